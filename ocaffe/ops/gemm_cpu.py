"""Matrix product on CPU runtimes (kernels/gemm_cpu.cl)."""
from __future__ import annotations

from ocaffe.graph.ir import Ref
from ocaffe.graph.recorder import Recorder
from ocaffe.target import Target

ITEMS_PER_CORE = 4  # work-items per core that even out what the last ones leave idle


def tile(target: Target) -> dict[str, int]:
    """The register tile: V, NV, MR, KC of kernels/tile_cpu.h."""
    width = 16 if target.vector_width >= 16 else 8 if target.vector_width >= 8 else 4
    return {"V": width, "NV": 2, "MR": 8 if width == 16 else 6, "KC": 256}


def record(rec: Recorder, a: Ref, b: Ref, c: Ref, trans_a: bool, trans_b: bool, bias: Ref | None) -> None:
    """Packs op(a), then multiplies; see gemm() for the operands."""
    (m, n), k = c.shape, a.shape[0 if trans_a else 1]
    defines = tile(rec.target)
    panel, rows = defines["MR"], -(-m // defines["MR"])
    columns = -(-n // (defines["NV"] * defines["V"]))
    packed = rec.scratch("packed", (rows, k, panel))
    rec.launch("gemm_cpu.pack_a", reads=[a], writes=[packed], args=[m, k, trans_a], size=(-(-k // defines["KC"]), rows, 1), local=(1, 1, 1), defines=defines)
    blocks = min(rows, max(1, -(-ITEMS_PER_CORE * rec.target.compute_units // columns)))
    rows_each = -(-rows // blocks) * panel
    accumulate = rec.accumulates(c)
    args = [m, n, k, trans_b, rows_each, bias is not None, accumulate, 1.0]
    rec.launch(
        "gemm_cpu.gemm", reads=[packed, b, bias or packed], writes=[c], args=args, size=(columns, -(-m // rows_each), 1), local=(1, 1, 1),
        defines=defines, slope_arg=None if accumulate else len(args) - 1,
    )  # fmt: skip
