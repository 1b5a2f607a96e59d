"""Sign masks: bits in place of floats if only the sign is needed (sign_mask.cl)."""
from __future__ import annotations

from dataclasses import replace

import numpy as np

from ocaffe.ir.kernel import Access, Can, Kernel, Order, read, write
from ocaffe.ir.launch import Call, Launch, Operand
from ocaffe.ir.target import Target
from ocaffe.ir.tensor import Ref, Role

EITHER_ORDER = Can(helper=True, in_blocks=lambda launch, layout: launch.call)
PACK = Kernel("sign_mask.pack", read("x", bf16="SOURCE", order=Order.EITHER), write("mask", order=Order.EITHER), can=EITHER_ORDER)
RELU_BACKWARD = Kernel(
    "sign_mask.relu_backward",
    read("dy", bf16="SOURCE", order=Order.EITHER),
    read("mask", order=Order.EITHER),
    write("dx", bf16="RESULT", order=Order.EITHER),
    can=EITHER_ORDER,
)
CHUNK = 1024  # elements of a sample that share 32 words


def mask_of(x: Ref) -> Ref:
    """Return a new Ref for the sign mask of `x`."""
    words = -(-x.dense_stride // CHUNK) * 32
    return Ref(f"{x.name}.positive", (x.shape[0], words), Role.SAVED, np.dtype(np.uint32))


def pack(layer: str, x: Ref, mask: Ref, target: Target) -> Launch:
    """Return the launch that sets mask = bits of x > 0."""
    operands = [Operand(x, Access.READ, "x"), Operand(mask, Access.WRITE, "mask")]
    call = _call("pack", mask, target, (np.int32(x.dense_stride),))
    return Launch(layer, "forward", operands, PACK, call)


def relu_backward(layer: str, dy: Ref, mask: Ref, dx: Operand, slope: float, target: Target) -> Launch:
    """Return the launch that sets dx = dy where the bit is set, else slope * dy. It may operate in place."""
    operands = [Operand(dy, Access.READ, "dy"), Operand(mask, Access.READ, "mask"), replace(dx, name="dx")]
    scalars = (np.int32(dy.dense_stride), np.float32(slope), np.int32(dx.access is Access.MODIFY))
    call = _call("relu_backward", mask, target, scalars)
    return Launch(layer, "backward", operands, RELU_BACKWARD, call, inplace=(("dy", "dx"),))


def _call(function: str, mask: Ref, target: Target, scalars: tuple[np.generic, ...]) -> Call:
    vector, group = (16, 1) if target.is_cpu else (1, target.group(128))
    samples, words = mask.shape
    return Call("sign_mask", function, (("V", str(vector)),), scalars, (words // vector, samples), (group, 1))
