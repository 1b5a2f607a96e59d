"""Distances of all rows of two matrices: distance.cl."""
from __future__ import annotations

from ocaffe.ir.kernel import JOIN, Kernel, read, write
from ocaffe.ir.recorder import Recorder
from ocaffe.ir.tensor import Ref

BETWEEN = Kernel("distance.between", read("p"), read("q"), write("y"), can=JOIN)
PULL = Kernel("distance.pull", read("p"), read("q"), read("dy"), write("dp"), can=JOIN)
GPU_GROUP = 64


def distances(rec: Recorder, x: Ref, w: Ref, y: Ref, *, squares: bool, transposed: bool) -> None:
    """y[m, n] = the sum over k of (x[m, k] - w[n, k])^2, or of the magnitudes without `squares`. w is (N, K), or (K, N) if `transposed`."""
    (rows, depth), outputs = x.shape, y.shape[1]
    _launch(rec, BETWEEN, y, [rows, outputs, depth, depth, *_steps(w, transposed)], squares, p=x, q=w, y=y)


def distances_backward(rec: Recorder, x: Ref, w: Ref, dy: Ref, dx: Ref | None, dw: Ref | None, *, squares: bool, transposed: bool) -> None:
    """dx and dw = the gradients of `distances`; None is left out. Each element adds its terms in order."""
    (rows, depth), outputs = x.shape, dy.shape[1]
    own = _steps(w, transposed)
    if dw is not None:
        _launch(rec, PULL, dw, [outputs, rows, depth, *own, depth, 1, 1, outputs, rec.accumulates(dw)], squares, p=w, q=x, dy=dy, dp=dw)
    if dx is not None:
        _launch(rec, PULL, dx, [rows, outputs, depth, depth, 1, *own, outputs, 1, rec.accumulates(dx)], squares, p=x, q=w, dy=dy, dp=dx)


def _steps(w: Ref, transposed: bool) -> tuple[int, int]:
    """Return the distances in memory between two outputs and between two inputs of the weights."""
    return (1, w.shape[1]) if transposed else (w.shape[1], 1)


def _launch(rec: Recorder, kernel: Kernel, over: Ref, args: list[int], squares: bool, **operands: Ref) -> None:
    local = (1,) if rec.target.is_cpu else (GPU_GROUP,)
    rec.launch(kernel(**operands), args=args, size=(over.count,), local=local, defines={"SQUARES": int(squares)})
