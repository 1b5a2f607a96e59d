"""The largest values along an axis and their indices: argmax.cl."""
from __future__ import annotations

from ocaffe.ir.kernel import Kernel, read, write
from ocaffe.ir.recorder import Recorder
from ocaffe.ir.tensor import Ref, split_axes

MAPS, RUNS, GROUPS = (Kernel(f"argmax.{function}", read("x"), write("y")) for function in ("maps", "blocks", "group"))
CPU_POSITIONS = 16  # positions per CPU work-item, if that many are adjacent
GPU_GROUP = 64


def argmax(rec: Recorder, x: Ref, y: Ref, axis: int, top: int, *, index_at: int | None, value_at: int | None) -> None:
    """Record the `top` largest values of x along `axis`, in descending order. Equal values are ordered by descending index.

    y has the axes of x except for the size of `axis`. Along `axis`, the indices start at index_at and the values at value_at.
    None omits them.
    """
    outer, classes, inner = split_axes(x.shape, axis)
    positions, mid = outer * inner, outer // x.shape[0] if axis else 0
    places = [-1 if at is None else at for at in (index_at, value_at)]
    size: tuple[int, ...]
    local: tuple[int, ...]
    if rec.target.is_cpu and inner >= CPU_POSITIONS:
        kernel, size, local = RUNS, (-(-inner // CPU_POSITIONS), outer), (1, 1)
    elif rec.target.is_cpu:
        kernel, size, local = MAPS, (positions,), (1,)
    else:
        group = rec.target.group(GPU_GROUP)
        if inner >= CPU_POSITIONS or classes < group:
            kernel, size, local = MAPS, (positions,), (group,)
        else:
            kernel, size, local = GROUPS, (positions * group,), (group,)
    rec.launch(
        kernel(x=x, y=y),
        args=[positions, classes, inner, mid, top, y.shape[axis], *places],
        size=size,
        local=local,
        defines={} if rec.target.is_cpu else {"GROUP": group},
    )
