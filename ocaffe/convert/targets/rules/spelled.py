"""Forms of a layer that say more than is needed, for targets that read no other."""
from __future__ import annotations

import numpy as np

from ocaffe import proto
from ocaffe.convert.targets.rewriter import Item, Rewriter, rule
from ocaffe.convert.targets.view import View


@rule("Scale")
def with_bias(net: Rewriter, item: Item) -> list[View] | None:
    """Scale with a bias of zeros."""
    if len(item.bottoms) != 1 or item.own.bias_term:
        return None
    param = proto.LayerParameter()
    param.CopyFrom(item.param)
    param.scale_param.bias_term = True
    return net.place(Item(param, item.bottoms, item.wishes, [*item.arrays, np.zeros_like(item.arrays[0])]))


@rule("Concat", "Slice", "Crop", "Reverse", "Softmax", "ArgMax", "Tile", "Reduction")
def from_the_front(net: Rewriter, item: Item) -> list[View] | None:
    """The axis in the field `axis`, counted from the front."""
    param = proto.LayerParameter()
    param.CopyFrom(item.param)
    changed = Item(param, item.bottoms, item.wishes, item.arrays)
    own, older = changed.own, {"Concat": "concat_dim", "Slice": "slice_dim"}.get(param.type, "")
    if older and own.HasField(older):
        own.axis = getattr(own, older)
        own.ClearField(older)
    if own.axis < 0:
        own.axis += len(item.shape)
    return net.place(changed) if own != item.own else None


@rule("Deconvolution")
def with_stride(net: Rewriter, item: Item) -> list[View] | None:
    """Deconvolution whose stride of 1 is given."""
    if item.own.stride or item.own.HasField("stride_h"):
        return None
    param = proto.LayerParameter()
    param.CopyFrom(item.param)
    param.convolution_param.stride.append(1)
    return net.place(Item(param, item.bottoms, item.wishes, item.arrays))
