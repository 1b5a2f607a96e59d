"""Kernel text of copies between tensors that are dense along different axes.

Both are read and written in tiles, so that a fetched cache line is used completely. The merged axes are the target's innermost
axis (columns), the axis along which the source is dense (rows), and all others, folded into one index.
CPU class: a work-item moves some strips of SIDE rows through a private tile.
GPU class: a work-group of TILE x LINES moves a tile through local memory.
"""
from __future__ import annotations

import math

from ocaffe.ir.launch import Call
from ocaffe.ir.target import Target
from ocaffe.kernels.expression.render_pointwise import GRID
from ocaffe.kernels.expression.source import Port, Source

SIDE = 16
TILE, LINES = 32, 8
ITEM = 8192  # elements per CPU work-item


def dense_axis(sizes: tuple[int, ...], x: Port, y: Port, target: Target) -> int | None:
    """Return the axis along which x is dense if tiles pay off: y is dense along another axis, and both are long. Else return None."""
    axis = next((d for d, step in enumerate(x.strides[:-1]) if step == 1), None)
    least = SIDE if target.is_cpu else TILE // 2
    if axis is None or x.ctype != "float" or y.inner != 1 or x.inner in (0, 1) or min(sizes[axis], sizes[-1]) < least:
        return None
    outer = math.prod(sizes[:-1]) // sizes[axis]
    fits = target.max_work_group >= TILE * LINES and max(outer, -(-sizes[axis] // TILE)) <= GRID
    return axis if target.is_cpu or fits else None


def render_transpose(sizes: tuple[int, ...], axis: int, x: Port, y: Port, accumulate: int, target: Target) -> Call:
    """Return the kernel of y = x over merged axes of these `sizes`. `axis` is the result of `dense_axis`."""
    source = Source()
    source.operand("x", x.ctype, False)
    source.operand("y", y.ctype, True)
    source.argument("int", "accumulate", accumulate)
    rows, columns = sizes[axis], sizes[-1]
    source.argument("int", "rows", rows)
    source.argument("int", "columns", columns)
    source.argument("ulong", "x_step", x.inner)
    source.argument("ulong", "y_step", y.strides[axis])
    others = [d for d in range(len(sizes) - 1) if d != axis]
    outer = math.prod(sizes[d] for d in others)
    if target.is_cpu:
        strips = max(1, min(rows // SIDE, ITEM // (SIDE * columns)))
        items = -(-rows // (SIDE * strips))
        source.argument("int", "height", SIDE * strips)
        source.argument("int", "items", items)
        source.add("const int outer = get_global_id(0) / items, begin = get_global_id(0) % items * height, end = min(begin + height, rows);")
        _locate(source, sizes, others, x, y)
        _cpu(source)
        return source.single(outer * items, SIDE)
    source.add("const int outer = get_group_id(2);")
    _locate(source, sizes, others, x, y)
    _gpu(source)
    local = (TILE, LINES, 1)
    size = -(-columns // TILE) * TILE, -(-rows // TILE) * LINES, outer
    return source.call(size, local, f"__attribute__((reqd_work_group_size({TILE}, {LINES}, 1))) ")


def _locate(source: Source, sizes: tuple[int, ...], others: list[int], x: Port, y: Port) -> None:
    """Declare q_x and q_y, the pointers to the matrix of rows and columns."""
    coordinates = source.index([sizes[d] for d in others], "outer", "i")
    for name, port in (("x", x), ("y", y)):
        source.add(f"{port.pointer} q_{name} = p_{name}{source.offset(name, [port.strides[d] for d in others], coordinates)};")


def _cpu(source: Source) -> None:
    gathered = ", ".join(f"tile[{SIDE * k} + j]" for k in range(SIDE))
    single = ["const float value = q_x[row + column * x_step];", "global float* to = q_y + row * y_step + column;", "*to = accumulate ? *to + value : value;"]
    source.add(
        "int row_end = begin;",
        f"for (int first = begin; first + {SIDE} <= end; first += {SIDE}) {{",
        f"row_end = first + {SIDE};",
        "int column_end = 0;",
        f"for (int left = 0; left + {SIDE} <= columns; left += {SIDE}) {{",
        f"column_end = left + {SIDE};",
        f"float tile[{SIDE * SIDE}];",
        f"for (int k = 0; k < {SIDE}; ++k) vstore16(vload16(0, q_x + first + (left + k) * x_step), k, tile);",
        f"for (int j = 0; j < {SIDE}; ++j) {{",
        f"float16 values = (float16)({gathered});",
        "global float* to = q_y + (first + j) * y_step + left;",
        "if (accumulate) values += vload16(0, to);",
        "vstore16(values, 0, to);",
        "}",
        "}",
        f"for (int row = first; row < first + {SIDE}; ++row) {{",
        "for (int column = column_end; column < columns; ++column) {",
        *single,
        "}",
        "}",
        "}",
        "for (int row = row_end; row < end; ++row) {",
        "for (int column = 0; column < columns; ++column) {",
        *single,
        "}",
        "}",
    )


def _gpu(source: Source) -> None:
    source.add(
        f"local float tile[{TILE}][{TILE + 1}];",
        f"const int left = get_group_id(0) * {TILE}, first = get_group_id(1) * {TILE}, a = get_local_id(0), b = get_local_id(1);",
        f"for (int j = b; j < {TILE}; j += {LINES}) {{",
        "if (first + a < rows && left + j < columns) tile[j][a] = q_x[first + a + (left + j) * x_step];",
        "}",
        "barrier(CLK_LOCAL_MEM_FENCE);",
        f"for (int j = b; j < {TILE}; j += {LINES}) {{",
        "if (first + j < rows && left + a < columns) {",
        "global float* to = q_y + (first + j) * y_step + left + a;",
        "*to = accumulate ? *to + tile[a][j] : tile[a][j];",
        "}",
        "}",
    )
