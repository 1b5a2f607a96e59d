"""Matrix product. The device class of the target decides which kernels compute it."""
from __future__ import annotations

from ocaffe.ir.recorder import Recorder
from ocaffe.ir.tensor import Ref
from ocaffe.kernels.matmul import gemm_cpu, gemm_gpu


def gemm(
    rec: Recorder, a: Ref, b: Ref, c: Ref, *, trans_a: bool = False, trans_b: bool = False, bias: Ref | None = None, mergeable: bool = True
) -> None:
    """c[M, N] = op(a) @ op(b), with bias[n] added to column n. If c accumulates (`rec.accumulates`), the product is added to it.

    a, b and c are two-dimensional Refs, rows x columns as stored: a is M x K (K x M with `trans_a`), b is K x N (N x K with `trans_b`).
    The batch stride of an operand is its leading dimension, which can be longer than a row. `mergeable`: a following ReLU may be
    fused into the launch that writes c.
    """
    m, k = a.shape[::-1] if trans_a else a.shape
    k_b, n = b.shape[::-1] if trans_b else b.shape
    assert (k_b, c.shape) == (k, (m, n)), f"{a.shape} x {b.shape} -> {c.shape}, transposed {trans_a} {trans_b}"
    assert bias is None or bias.count == n, f"{bias} for {n} columns"
    first = len(rec.launches)
    with rec.counted(2 * m * n * k):
        (gemm_cpu.record if rec.target.is_cpu else gemm_gpu.record)(rec, a, b, c, trans_a, trans_b, bias)
    if not mergeable:
        for launch in rec.launches[first:]:
            launch.epilogue = None


def batched_gemm(rec: Recorder, a: Ref, b: Ref, c: Ref, batches: int, *, trans_a: bool = False, trans_b: bool = False) -> None:
    """c[i] = op(a[i]) @ op(b[i]) for each of `batches` products. If c accumulates, the products are added to it.

    a, b and c are two-dimensional Refs as in `gemm`, with the matrices of all products one below the other, in dense memory.
    """
    if batches == 1:
        gemm(rec, a, b, c, trans_a=trans_a, trans_b=trans_b, mergeable=False)
        return
    m, n = c.shape[0] // batches, c.shape[1]
    k = a.shape[0] // batches if trans_a else a.shape[1]
    shapes = ((batches * k, m) if trans_a else (batches * m, k), (batches * n, k) if trans_b else (batches * k, n), (batches * m, n))
    assert (a.shape, b.shape, c.shape) == shapes, f"{batches} products: {a.shape} x {b.shape} -> {c.shape}, transposed {trans_a} {trans_b}"
    a, b, c = (ref.view(ref.shape, 0, ref.shape[1]) for ref in (a, b, c))  # a stride of its own: no copy is elided that would leave gaps
    with rec.counted(2 * batches * m * n * k):
        (gemm_cpu.record_batches if rec.target.is_cpu else gemm_gpu.record_batches)(rec, a, b, c, batches, trans_a, trans_b)
