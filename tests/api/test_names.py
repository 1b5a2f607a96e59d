"""Every name of pycaffe in docs/pycaffe-names.md exists and can be used."""
from __future__ import annotations

import gc
import importlib.util
import pathlib
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from PIL import Image

import ocaffe as caffe
from docs import make_names
from ocaffe.formats.text import read_net
from tests.api.test_pycaffe import NET, SOLVER

NAMES = make_names.names()

DEPLOY = """
input: "data" input_shape { dim: 2 dim: 3 dim: 4 dim: 4 } force_backward: true
layer { name: "conv" type: "Convolution" bottom: "data" top: "conv" convolution_param { num_output: 2 kernel_size: 3 } }
layer { name: "ip" type: "InnerProduct" bottom: "conv" top: "ip" inner_product_param { num_output: 4 } }
layer { name: "prob" type: "Softmax" bottom: "ip" top: "prob" }
"""
MEMORY = 'layer { name: "m" type: "MemoryData" top: "data" top: "label" memory_data_param { batch_size: 2 channels: 1 height: 3 width: 3 } }'


@pytest.fixture
def there(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, device: Any) -> Iterator[dict[str, Any]]:
    """The objects that the uses name. All are made when a use first names them."""
    monkeypatch.chdir(tmp_path)
    opened = {"device": device}
    (tmp_path / "deploy.prototxt").write_text(DEPLOY)
    (tmp_path / "net.prototxt").write_text(NET)
    (tmp_path / "memory.prototxt").write_text(MEMORY)
    (tmp_path / "solver.prototxt").write_text(SOLVER)
    (tmp_path / "plain.prototxt").write_text(SOLVER.replace("momentum: 0.9", ""))
    Image.fromarray(np.zeros((8, 8, 3), np.uint8)).save(tmp_path / "picture.png")
    solvers = [name for name in vars(importlib.import_module("ocaffe.api.pysolver")) if name.endswith("Solver") and name != "Solver"]
    for name in ("Net", *solvers, "get_solver", "Classifier", "Detector"):
        made = getattr(caffe, name)
        monkeypatch.setattr(caffe, name, lambda *given, made=made, **options: made(*given, **{**opened, **options}))
    makers: dict[str, Any] = {
        "net": lambda: caffe.Net("deploy.prototxt", caffe.TEST), "other": lambda: caffe.Net("deploy.prototxt", caffe.TEST),
        "memory": lambda: caffe.Net("memory.prototxt", caffe.TEST), "solver": lambda: caffe.SGDSolver("solver.prototxt"),
        "blob": lambda: caffe.Net("deploy.prototxt", caffe.TEST).blobs["data"], "transformer": lambda: caffe.io.Transformer({"data": (1, 3, 4, 4)}),
        "timer": caffe.Timer, "twin": lambda: caffe.Net("net.prototxt", caffe.TEST), "message": lambda: read_net("deploy.prototxt"),
        "classifier": lambda: caffe.Classifier("deploy.prototxt", weights()),
        "detector": lambda: caffe.Detector("deploy.prototxt", weights()), "spec": lambda: net_spec(),
        "weights": lambda: weights(), "pydot": lambda: importlib.util.find_spec("pydot"), "skimage": lambda: importlib.util.find_spec("skimage"),
    }  # fmt: skip

    def weights() -> str:
        caffe.Net("deploy.prototxt", caffe.TEST).save("w.caffemodel")
        return "w.caffemodel"

    def net_spec() -> caffe.NetSpec:
        n = caffe.NetSpec()
        n.data = caffe.layers.Input(shape=dict(dim=[1, 1, 8, 8]))
        n.conv = caffe.layers.Convolution(n.data, kernel_size=3, num_output=1)
        return n

    class Names(dict[str, Any]):
        def __missing__(self, name: str) -> Any:
            if name not in makers:
                raise KeyError(name)
            self[name] = makers[name]()
            return self[name]

    found = Names(caffe=caffe, np=np, file="deploy.prototxt", solver_file="solver.prototxt", plain_file="plain.prototxt", picture="picture.png")
    found["images"] = np.random.default_rng(0).random((3, 3, 4, 4), np.float32)
    yield found
    found.clear()
    gc.collect()


CHANGES_THE_PROCESS = {"set_mode_cpu", "set_mode_gpu", "set_device", "set_random_seed", "init_log"}


@pytest.mark.parametrize("row", NAMES, ids=lambda row: f"{row.section}-{row.name}")
def test_use(row: Any, there: dict[str, Any]) -> None:
    if row.section == "caffe" and row.name in CHANGES_THE_PROCESS:
        assert callable(getattr(caffe, row.name))  # tests/api/test_module.py calls them and sets the state back
        return
    assert row.name.rpartition(".")[2] in row.use
    assert eval(row.use, {"__builtins__": __builtins__}, there) is not False, row.use


def test_the_page_is_new() -> None:
    assert make_names.PAGE.read_text() == make_names.page(), "python docs/make_names.py"
    assert len(NAMES) == len({(row.section, row.name) for row in NAMES}) and len(NAMES) > 150
