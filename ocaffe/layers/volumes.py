"""Pooling, Convolution and Deconvolution of volumes under the names that forks for videos and medical images give them."""
from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ocaffe.layers.base import register
from ocaffe.layers.convolution import Convolution, Filters
from ocaffe.layers.deconvolution import Deconvolution
from ocaffe.layers.pooling import Pooling


@register("NdPooling")
class NdPooling(Pooling):
    """Pooling under another name, with kernel_shape, stride_shape and pad_shape: one number per spatial axis."""

    origin = "video-caffe"
    message = "pooling_param"


@register("NdConvolution")
class NdConvolution(Convolution):
    """Convolution under another name, with kernel_shape, stride_shape and pad_shape: one number per spatial axis."""

    origin = "video-caffe"


@register("PoolingND")
class PoolingND(Pooling):
    """Pooling under another name, with kernel_size, stride and pad once or once per spatial axis, in pooling_nd_param.

    Source: yulequan/3D-Caffe, src/caffe/layers/pooling_nd_layer.cpp.
    """

    origin = "3D-Caffe"
    message = "pooling_nd_param"


@register("Pooling3D")
class Pooling3D(Pooling):
    """Pooling of N x C x D x H x W; kernel_size, stride and pad are those of H and W, kernel_depth and temporal_stride those of D.

    The fields are in pooling3d_param, or in pooling_param as in C3D 1.0. Without kernel_depth, kernel_size is the size along all axes.
    Source: facebook/C3D, C3D-v1.1/src/caffe/layers/pool3d_layer.cpp.
    """

    origin = "C3D"
    message = "pooling3d_param"

    def own(self) -> Any:
        return self.param.pooling3d_param if self.param.HasField("pooling3d_param") else self.param.pooling_param


class Filters3D(Filters):
    """Base of the convolutions of C3D. Its code takes `group` and ignores it, and filter_group only divides the work."""

    origin = "C3D"
    message = "convolution3d_param"

    def own(self) -> Any:
        return self.param.convolution3d_param if self.param.HasField("convolution3d_param") else self.param.convolution_param

    def counts(self, channels: int) -> tuple[int, int]:
        group = self.own().group
        self.check(group == 1, f"group is {group}, which C3D ignores", f"remove group, or use the type {self.type.removesuffix('3D')}, which has groups")
        return super().counts(channels)

    def stored(self, blobs: Sequence[np.ndarray | None]) -> Sequence[np.ndarray | None]:
        """C3D stores the bias as 1 x 1 x 1 x 1 x num_output."""
        return [blob.reshape(-1) if index == 1 and blob is not None else blob for index, blob in enumerate(blobs)]


@register("Convolution3D")
class Convolution3D(Filters3D, Convolution):
    """Convolution of N x C x D x H x W; kernel_size, stride and pad are those of H and W, kernel_depth, temporal_stride and temporal_pad those of D.

    The fields are in convolution3d_param, or in convolution_param as in C3D 1.0. Without kernel_depth, kernel_size is the size along all axes.
    Source: facebook/C3D, C3D-v1.1/src/caffe/layers/convolution3d_layer.cpp.
    """


@register("Deconvolution3D")
class Deconvolution3D(Filters3D, Deconvolution):
    """Deconvolution of N x C x D x H x W with the fields of Convolution3D, except that bias_term is that of convolution_param.

    So convolution3d_param { bias_term: false } has no effect, and weights files have a bias. Source: facebook/C3D,
    C3D-v1.1/src/caffe/layers/deconvolution3d_layer.cpp.
    """

    def has_bias(self) -> bool:
        return bool(self.param.convolution_param.bias_term)

