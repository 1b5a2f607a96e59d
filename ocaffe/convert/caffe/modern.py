"""Write forks' forms of layers as BVLC Caffe's: BatchNorm with scale and bias, BN, convolutions under other names, merged ReLUs, names of window fields.

Each function returns the layers that replace one, with their arrays, or None where the layer is BVLC's, or has no such form.
"""
from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ocaffe import proto
from ocaffe.convert.caffe.net import Net

Made = list[tuple[Any, list[np.ndarray]]]
NORM_FIELDS = ("scale_bias", "scale_filler", "bias_filler", "filler", "use_weight_bias", "bias_term", "stats_batch_size", "relu", "fused_relu",
               "update_global_stats", "engine")  # fmt: skip
WINDOW_FIELDS = ("dilation_h", "dilation_w", "filter_stride", "filter_stride_h", "filter_stride_w", "kernel_depth", "temporal_stride", "temporal_pad",
                 "kernel_shape", "stride_shape", "pad_shape", "filter_group")  # fmt: skip
PLAIN = ("kernel_size", "stride", "pad", "dilation", "kernel_h", "kernel_w", "stride_h", "stride_w", "pad_h", "pad_w")


def modernize(net: Net) -> int:
    """Replace all layers that BVLC Caffe has in another form. Return how many."""
    count = 0
    for layer in list(net.layers):
        made = FORMS[layer.type](net, layer, net.computed(layer)) if layer.type in FORMS else None
        if made is not None:
            was_in_place = layer.name in net.in_place
            net.replace(layer, *made)
            rest = [each.name for each, _ in made[0 if was_in_place else 1 :]]
            net.in_place.update(rest)
            count += 1
    return count


def _batch_norm(net: Net, layer: Any, made: Any) -> Made | None:
    """NVCaffe's and Intel's scale, bias and ReLU become layers of their own. NVCaffe raises a small eps to cuDNN's least."""
    if not any(layer.batch_norm_param.HasField(name) for name in NORM_FIELDS) and made.learned == (None, None):
        return None
    param, arrays = layer.batch_norm_param, net.arrays[layer.name]
    if (made.of_batch and param.stats_batch_size) or (param.update_global_stats and made.phase == proto.TRAIN):
        return None  # they compute something else than BVLC's layer
    norm = proto.LayerParameter()
    norm.CopyFrom(layer)
    for name in NORM_FIELDS:
        norm.batch_norm_param.ClearField(name)
    if made.eps != param.eps:
        norm.batch_norm_param.eps = made.eps
    scale = [arrays[index] for index in made.learned if index is not None]
    return _chain(net, layer, (norm, arrays[:3], layer.param[:3]), scale, layer.param[3:], made.relu)


def _bn(net: Net, layer: Any, made: Any) -> Made | None:
    """PSPNet's BN has scale, bias, mean and variance. SegNet's has scale and bias, and statistics of the batch unless they are merged into these."""
    unread = all(not net.readers(top) and top not in net.outputs for top in layer.top[1:])
    if not unread:
        return None
    first, arrays = layer.top[0], [array.reshape(-1) for array in net.arrays[layer.name]]
    if not made.of_batch and len(arrays) == 2:
        scale = proto.LayerParameter(name=layer.name, type="Scale", bottom=layer.bottom, top=[first], scale_param={"bias_term": True})
        return _without_tops(net, layer, [(scale, arrays)])
    norm = proto.LayerParameter(name=layer.name, type="BatchNorm", bottom=layer.bottom, top=[first], batch_norm_param={"eps": made.eps})
    norm.source_line = layer.source_line
    if made.of_batch:
        norm.batch_norm_param.use_global_stats = False
    mean, variance = arrays[2:] if len(arrays) == 4 else (np.zeros(made.channels, np.float32),) * 2
    statistics = [mean, variance, np.full(1, len(arrays) == 4, np.float32)]
    return _without_tops(net, layer, _chain(net, layer, (norm, statistics, layer.param[2:]), arrays[:2], layer.param[:2]))


def _filters(net: Net, layer: Any, made: Any) -> Made | None:
    """A convolution under another name, with other names of its fields, or with a merged ReLU."""
    plain = "Deconvolution" if layer.type.startswith("Deconvolution") else "Convolution"
    given = made.own()
    renamed = layer.type != plain or any(given.HasField(name) for name in WINDOW_FIELDS)
    if not renamed and made.slope is None:
        return None
    product = proto.LayerParameter()
    product.CopyFrom(layer)
    product.type = plain
    for name in ("convolution_param", "convolution3d_param"):
        product.ClearField(name)
    own = product.convolution_param
    own.CopyFrom(given)
    for name in ("relu", "negative_slope", "fuse_type", "relu_param"):
        own.ClearField(name)
    own.num_output, own.bias_term = made.channels_out, len(net.arrays[layer.name]) > 1
    if own.bias_term:
        own.ClearField("bias_term")
    if renamed:
        for name in (*WINDOW_FIELDS, *PLAIN, "group"):
            own.ClearField(name)
        for name, default in (("kernel_size", 0), ("stride", 1), ("pad", 0), ("dilation", 1)):
            _spread(own, name, getattr(made.window, name.removesuffix("_size")), default)
        if made.geometry.group != 1:
            own.group = made.geometry.group
    result: Made = [(product, net.arrays[layer.name])]
    if made.slope is None:
        return result
    return result + [(_relu(net, layer, product, index, made.slope), []) for index in range(len(layer.top))]


def _pooling(net: Net, layer: Any, made: Any) -> Made | None:
    """ceil_mode of a pull request, and pooling of images under another name."""
    given = made.own()
    plain = len(made.pool.kernel) == 2 and set(made.pool.dilation) <= {1} and given.avg_include_pad and given.axis == 1
    named = [name for name in ("ceil_mode", "kernel_size_3d", "stride_3d", "pad_3d", "kernel_shape", "stride_shape", "pad_shape") if _has(given, name)]
    if not plain or (layer.type == "Pooling" and not named):
        return None
    pooling = proto.LayerParameter()
    pooling.CopyFrom(layer)
    for name in ("pooling_param", "pooling_nd_param", "pooling3d_param"):
        pooling.ClearField(name)
    pooling.type, own = "Pooling", pooling.pooling_param
    own.pool = given.pool
    if given.global_pooling:
        own.global_pooling = True
    else:
        for name, values, default in (("kernel", made.pool.kernel, 0), ("stride", made.pool.stride, 1), ("pad", made.pool.pad, 0)):
            if len(set(values)) > 1:
                setattr(own, f"{name}_h", values[0])
                setattr(own, f"{name}_w", values[1])
            elif values[0] != default:
                setattr(own, "kernel_size" if name == "kernel" else name, values[0])
    if given.round_mode != given.CEIL or not given.ceil_mode:
        own.round_mode = own.FLOOR
    return [(pooling, [])]


def _limited(net: Net, layer: Any, made: Any) -> Made | None:
    """A Scale whose factors a fork limits gets the limited ones."""
    if not made.bounded:
        return None
    scale = proto.LayerParameter()
    scale.CopyFrom(layer)
    for name in ("min_value", "max_value"):
        scale.scale_param.ClearField(name)
    first, *rest = net.arrays[layer.name]
    return [(scale, [np.clip(first, *np.float32(made.bounds)), *rest])]


def _scaled(net: Net, layer: Any, made: Any) -> Made | None:
    """Dropout that did not scale in TRAIN multiplies in TEST."""
    if made.training or not made.moves_data:
        return None
    return [(proto.LayerParameter(name=layer.name, type="Power", bottom=layer.bottom, top=layer.top, power_param={"scale": made.scale}), [])]


FORMS: dict[str, Callable[[Net, Any, Any], Made | None]] = {
    "BN": _bn, "BatchNorm": _batch_norm, "Convolution": _filters, "Convolution3D": _filters, "ConvolutionDepthwise": _filters, "Deconvolution": _filters,
    "Deconvolution3D": _filters, "DepthwiseConvolution": _filters, "Dropout": _scaled, "NdConvolution": _filters, "NdPooling": _pooling, "Pooling": _pooling,
    "Pooling3D": _pooling, "PoolingND": _pooling, "Scale": _limited, "SpatialDropout": _scaled,
}  # fmt: skip


# -- help ------------------------------------------------------------------------------------------------------------


def _chain(
    net: Net, layer: Any, first: tuple[Any, Sequence[np.ndarray], Sequence[Any]], scale: Sequence[np.ndarray], specs: Sequence[Any], relu: bool = False
) -> Made:
    """Return a layer with its arrays and ParamSpecs, then a Scale with `scale` (factors, biases) and `specs`, then a ReLU, in place of one layer."""
    norm, arrays, own = first
    kept = [list(own), list(specs)]  # `norm` may be a copy of the layer that has them
    del norm.param[:]
    norm.param.extend(kept[0])
    norm.top[:] = layer.top[:1]
    made: Made = [(norm, list(arrays))]
    if scale:
        value = norm.top[0] = net.fresh(f"{layer.top[0]}.{layer.name}")
        after = proto.LayerParameter(name=f"{layer.name}_scale", type="Scale", bottom=[value], top=layer.top[:1], param=kept[1])
        after.scale_param.bias_term = len(scale) > 1
        made.append((after, list(scale)))
    if relu:
        made.append((_relu(net, layer, made[-1][0], 0, 0.0), []))
    return made


def _relu(net: Net, layer: Any, before: Any, index: int, slope: float) -> Any:
    """Return a ReLU between a new layer and a top of the old one."""
    before.top[index] = net.fresh(f"{layer.top[index]}.{before.name}")
    relu = proto.LayerParameter(name=f"{layer.name}_relu", type="ReLU", bottom=[before.top[index]], top=[layer.top[index]])
    if slope:
        relu.relu_param.negative_slope = slope
    return relu


def _without_tops(net: Net, layer: Any, made: Made) -> Made:
    """Forget the tops that the new layers do not make."""
    for top in layer.top[1:]:
        net.shapes.pop(top)
        net.blobs.pop(top, None)
    return made


def _has(message: Any, name: str) -> bool:
    value = getattr(message, name)
    return bool(len(value)) if hasattr(value, "extend") else message.HasField(name)


def _spread(message: Any, name: str, values: Sequence[int], default: int) -> None:
    """Write a window field: once if all axes have the same number, not at all if it is the default."""
    if set(values) == {default} or not values:
        return
    getattr(message, name).extend(values if len(set(values)) > 1 else values[:1])
