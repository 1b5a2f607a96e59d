"""Two branches that sample the same pixels of one value sample them once."""
from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from google.protobuf import text_format

from ocaffe import proto
from ocaffe.api.net import Net

pytestmark = pytest.mark.quick

NET = """layer { name: "data" type: "Input" top: "data"
  input_param { shape { dim: 2 dim: 6 dim: 7 dim: 5 } } }
layer { name: "wide" type: "Convolution" bottom: "data" top: "wide"
  convolution_param { num_output: 5 kernel_size: 1 stride: 2 weight_filler { type: "xavier" } } }
layer { name: "deep" type: "Convolution" bottom: "data" top: "deep"
  convolution_param { num_output: 5 kernel_size: 1 stride: 2 weight_filler { type: "xavier" } } }
layer { name: "other" type: "Convolution" bottom: "data" top: "other"
  convolution_param { num_output: 5 kernel_size: 1 stride: 3 weight_filler { type: "xavier" } } }
layer { name: "sum" type: "Eltwise" bottom: "wide" bottom: "deep" top: "sum" }
"""


def test_branches_share_the_pixels_that_they_see(device: Any) -> None:
    net = Net(text_format.Parse(NET, proto.NetParameter()), proto.TEST, keep=[], device=device)
    x = np.random.default_rng(3).standard_normal((2, 6, 7, 5)).astype(np.float32)
    net.blobs["data"].data[...] = x
    found = net.forward()
    names = [launch.what.split(".")[0] for launch in net._engine.current().recording.schedule]
    assert sum("pooling" in name for name in names) == 2  # every second pixel once, every third once
    wide, deep, other = (net.params[name][0].data.reshape(5, 6) for name in ("wide", "deep", "other"))
    np.testing.assert_allclose(found["sum"], np.einsum("oc,nchw->nohw", wide + deep, x[:, :, ::2, ::2]), atol=1e-5)
    np.testing.assert_allclose(found["other"], np.einsum("oc,nchw->nohw", other, x[:, :, ::3, ::3]), atol=1e-5)
    net.close()
