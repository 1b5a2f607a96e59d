"""Kernel text of reductions: values v0, v1, .. of every element summed (or the largest taken) over the reduced axes, then `finish`.

CPU class: a work-item owns one kept index (or several) and one chunk of the reduced elements, and keeps vectors of partial results. If the
innermost axis is reduced, its lanes are summed at the end; if it is kept, each lane is a result of its own and a work-item owns up to four vectors
of them. GPU class: a work-group of x * y work-items; x runs along the innermost axis, y over rows or over kept indices; partial results
meet in local memory. The order of summation depends on shapes alone.

Sums are blocked: every RUN terms the partial sum moves to a compensated total (Kahan), so the error does not grow with the count.
"""
from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ocaffe.graph.ir import Call
from ocaffe.ops.formula import Formula, vector
from ocaffe.ops.render_pointwise import fit, power_of_two, row_width
from ocaffe.ops.source import Port, Source, lanes, load, steps
from ocaffe.ops.strides import Space
from ocaffe.target import Target

RUN = 128
GROUP = 256
COLUMNS = 4  # vectors of results in a CPU work-item where the innermost axis is kept
ITEM = 8192  # elements that a CPU work-item should at least read
IDENTITY = {"sum": "0.0f", "max": "-INFINITY"}


@dataclass(frozen=True)
class Reduction:
    """Everything that the text of a reduction follows from. Strides of ports run over `space`; a chunk of writes lies `chunk_stride` apart.

    `finish_reads`: names of reads that the finish uses too. `scalars_modified`: names of modified operands of one element, which the first kept
    index updates.
    """

    formula: Formula
    finish: Formula
    values: tuple[str, ...]
    op: str
    space: Space
    reads: tuple[Port, ...]
    writes: tuple[Port, ...]
    modifies: tuple[Port, ...]
    scalars: tuple[tuple[str, np.generic], ...]
    accumulate: int
    chunks: int
    chunk_strides: tuple[int, ...]

    def render(self, target: Target) -> Call:
        return _Cpu(self).call(target) if target.is_cpu else _Gpu(self).call()


class _Body:
    """What both classes share. Axes of the space: kept and reduced ones, the innermost of either kind called `inner` and treated apart."""

    def __init__(self, what: Reduction) -> None:
        self.what = what
        self.source = Source()
        space = what.space
        self.inner_kept = not space.marks[-1]
        self.length = space.sizes[-1]
        outer = range(len(space.sizes) - 1)
        self.kept_axes = [d for d in outer if not space.marks[d]]
        self.row_axes = [d for d in outer if space.marks[d]]
        self.kept = math.prod(space.sizes[d] for d in self.kept_axes)
        self.rows = math.prod(space.sizes[d] for d in self.row_axes)
        self.inner_names = [p for p in what.reads if p.name in what.formula.used]

    def begin(self) -> None:
        source, what = self.source, self.what
        for port in what.reads:
            source.operand(port.name, port.ctype, False)
        for port in (*what.writes, *what.modifies):
            source.operand(port.name, port.ctype, True)
        source.scalars(what.scalars)
        source.argument("int", "accumulate", what.accumulate)
        steps(source, (*what.reads, *what.writes, *what.modifies))
        source.argument("int", "length", self.length)
        source.argument("int", "kept", self.kept)
        source.argument("int", "rows", self.rows)
        source.argument("int", "chunks", what.chunks)

    def chunk(self, width: int) -> None:
        """Declare which rows and which part of the inner axis belong to `chunk`: rows are shared out if there are enough, else the axis is."""
        source, chunks = self.source, self.what.chunks
        by_rows = self.inner_kept or self.rows >= chunks
        row_step = -(-self.rows // chunks) if by_rows else self.rows
        source.argument("int", "row_step", row_step)
        if self.inner_kept:
            source.add("const int row_first = min(chunk * row_step, rows), row_last = min(row_first + row_step, rows);")
            return
        part = -(-self.length // chunks)
        segment = self.length if by_rows else -(-part // width) * width
        source.argument("int", "row_chunks", -(-self.rows // row_step))
        source.argument("int", "segment", segment)
        source.add(
            "const int row_first = chunk % row_chunks * row_step, row_last = min(row_first + row_step, rows);",
            "const int begin = (int)min((long)(chunk / row_chunks) * segment, (long)length);",
            "const int end = (int)min((long)begin + segment, (long)length);",
        )

    def pointers(self, ports: Sequence[Port], axes: Sequence[int], coordinates: Sequence[str], base: str, name: str) -> None:
        """Pointers name_.. = base_.. advanced along some axes."""
        for port in ports:
            offset = self.source.offset(port.name, [port.strides[d] for d in axes], coordinates)
            self.source.add(f"{port.pointer} {name}_{port.name} = {base}_{port.name}{offset};")

    def sizes(self, axes: Sequence[int]) -> list[int]:
        return [self.what.space.sizes[d] for d in axes]

    def combine(self, left: str, right: str) -> str:
        return f"{left} + {right}" if self.what.op == "sum" else f"fmax({left}, {right})"

    def partials(self, width: int, count: str = "") -> None:
        """Declare run (and total, lost) of every value: the sum of the current run, the compensated sum of those before."""
        kind = vector("float", width)
        parts = ("run", "total", "lost") if self.what.op == "sum" else ("run",)
        for value in self.what.values:
            for part in parts:
                self.source.add(f"{kind} {part}_{value}{count or f' = ({kind})({IDENTITY[self.what.op]})'};")
                if count:
                    self.source.add(f"for (int q = 0; q < {count[1:-1]}; ++q) {part}_{value}{'[q]'} = ({kind})({IDENTITY[self.what.op]});")
        if self.what.op == "sum":
            self.source.add("int terms = 0;")

    def flush(self, width: int, index: str = "") -> None:
        """Count one term; after RUN of them move the runs to the totals."""
        if self.what.op != "sum":
            return
        kind = vector("float", width)
        self.source.add(f"if (++terms == {RUN}) {{", "terms = 0;")
        if index:
            self.source.add(f"for (int q = 0; q < {COLUMNS}; ++q) {{")
        for value in self.what.values:
            run, total, lost = (f"{part}_{value}{index}" for part in ("run", "total", "lost"))
            self.source.add(
                "{",
                f"const {kind} term = {run} - {lost}, sum = {total} + term;",
                f"{lost} = (sum - {total}) - term;",
                f"{total} = sum;",
                f"{run} = ({kind})(0.0f);",
                "}",
            )
        self.source.add(*["}"] * (2 if index else 1))

    def result(self, value: str, index: str = "") -> str:
        if self.what.op == "max":
            return f"run_{value}{index}"
        return f"total_{value}{index} + (run_{value}{index} - lost_{value}{index})"

    def finish(self, at: str, first: str) -> None:
        """Finish one kept index and store: scalars named v0.. are declared, base_ pointers stand at the index, `at` is its inner coordinate."""
        source, what = self.source, self.what
        source.splat(what.scalars, 1)
        for port in what.reads:
            if port.name in what.finish.used:
                source.add(f"const float {port.name} = (float)(base_{port.name}[{_place(port, at)}]);")
        for port in what.modifies:
            alone = not any(port.strides)
            value = f"(float)(base_{port.name}[{_place(port, at)}])"
            source.add(f"float {port.name} = {f'{first} ? {value} : 0.0f' if alone else value};")
        source.add(*what.finish.code(1, frozenset(port.name for port in what.modifies)))
        for bit, port in enumerate(what.writes):
            chunk = f" + chunk * {source.argument('ulong', f'{port.name}_chunk', what.chunk_strides[bit])}"
            element = f"base_{port.name}[{_place(port, at)}{chunk}]"
            source.add(f"if (accumulate & {1 << bit}) {port.name} += (float)({element});", f"{element} = {_converted(port)};")
        for port in what.modifies:
            guard = "" if any(port.strides) else f"if ({first}) "
            source.add(f"{guard}base_{port.name}[{_place(port, at)}] = {_converted(port)};")


class _Cpu(_Body):
    def call(self, target: Target) -> Call:
        self.begin()
        width = row_width(self.length, target)
        items = self.kept_rows(width) if self.inner_kept else self.reduced_rows(width, target)
        return self.source.single(items, width)

    def reduced_rows(self, width: int, target: Target) -> int:
        """The innermost axis is reduced."""
        source, what, kind = self.source, self.what, vector("float", width)
        size = self.rows * self.length // what.chunks
        kept_per_item = max(1, min(ITEM // max(size, 1), self.kept // (4 * target.compute_units)))
        source.argument("int", "kept_per_item", kept_per_item)
        source.add("const int chunk = get_global_id(0) % chunks, kept_first = get_global_id(0) / chunks * kept_per_item;")
        self.chunk(width)
        source.add("for (int k = kept_first; k < min(kept_first + kept_per_item, kept); ++k) {")
        coordinates = source.index(self.sizes(self.kept_axes), "k", "k")
        self.pointers((*what.reads, *what.writes, *what.modifies), self.kept_axes, coordinates, "p", "base")
        self.partials(width)
        source.add("for (int row = row_first; row < row_last; ++row) {")
        self.enter_row()
        source.splat(what.scalars, width)
        hoisted = [port for port in self.inner_names if port.inner == 0]
        for port in hoisted:
            load(source, port, width, "0")
        source.add(f"for (int i = begin; i < end; i += {width}) {{", f"const int at = min(i, end - {width});")
        for port in self.inner_names:
            if port not in hoisted:
                load(source, port, width, "at")
        source.add(*what.formula.code(width))
        if width > 1:
            source.add("if (at != i) {", f"const {vector('int', width)} fresh = {lanes(width)} >= ({vector('int', width)})(i - at);")
            for value in what.values:
                source.add(f"{value} = select(({kind})({IDENTITY[what.op]}), {value}, fresh);")
            source.add("}")
        for value in what.values:
            source.add(f"run_{value} = {self.combine(f'run_{value}', value)};")
        self.flush(width)
        source.add("}", "}")
        for value in what.values:
            source.add(f"{kind} all_{value} = {self.result(value)};")
            name, half = f"all_{value}", width // 2
            while half:
                low, high = (f"{name}.lo", f"{name}.hi") if half > 1 else (f"{name}.x", f"{name}.y")
                source.add(f"const {vector('float', half)} h{half}_{value} = {self.combine(low, high)};")
                name, half = f"h{half}_{value}", half // 2
            source.add(f"const float {value} = {name};")
        self.finish("0", "k == 0")
        source.add("}")
        return what.chunks * -(-self.kept // kept_per_item)

    def kept_rows(self, width: int) -> int:
        """The innermost axis is kept."""
        source, what = self.source, self.what
        columns = COLUMNS if self.length >= COLUMNS * width else 1
        span = columns * width
        blocks = -(-self.length // span)
        source.argument("int", "blocks", blocks)
        source.add(
            "const int chunk = get_global_id(0) % chunks, rest = get_global_id(0) / chunks, k = rest / blocks;",
            f"const int own = rest % blocks * {span}, start = min(own, length - {span});",
        )
        self.chunk(width)
        coordinates = source.index(self.sizes(self.kept_axes), "k", "k")
        self.pointers((*what.reads, *what.writes, *what.modifies), self.kept_axes, coordinates, "p", "base")
        self.partials(width, f"[{columns}]")
        source.add("for (int row = row_first; row < row_last; ++row) {")
        self.enter_row()
        source.splat(what.scalars, width)
        source.add(f"for (int q = 0; q < {columns}; ++q) {{", f"const int at = start + q * {width};")
        for port in self.inner_names:
            load(source, port, width, "at")
        source.add(*what.formula.code(width))
        for value in what.values:
            source.add(f"run_{value}[q] = {self.combine(f'run_{value}[q]', value)};")
        source.add("}")
        self.flush(width, "[q]" if columns > 1 else "[0]")
        source.add("}")
        for value in what.values:
            source.add(f"float all_{value}[{span}];", f"for (int q = 0; q < {columns}; ++q) {{")
            result = self.result(value, "[q]")
            source.add(f"all_{value}[q] = {result};" if width == 1 else f"vstore{width}({result}, q, all_{value});", "}")
        source.add(f"for (int j = own - start; j < {span}; ++j) {{", "const int column = start + j;")
        source.add(*(f"const float {value} = all_{value}[j];" for value in what.values))
        self.finish("column", "k == 0 && column == 0")
        source.add("}")
        return what.chunks * blocks * self.kept

    def enter_row(self) -> None:
        coordinates = self.source.index(self.sizes(self.row_axes), "row", "r")
        self.pointers(self.inner_names, self.row_axes, coordinates, "base", "q")


class _Gpu(_Body):
    def call(self) -> Call:
        self.begin()
        source, what = self.source, self.what
        local0 = fit(self.length, 32) if self.inner_kept else min(GROUP, power_of_two(self.length))
        # Few reduced elements: rows of the group take kept indices of their own.
        several = not self.inner_kept and self.rows * self.length // what.chunks < GROUP
        local1 = GROUP // local0
        local1 = min(local1, power_of_two(self.kept if several else -(-self.rows // what.chunks)))
        columns = -(-self.length // local0) if self.inner_kept else 1
        keeps = -(-self.kept // local1) if several else self.kept
        source.argument("int", "columns", columns)
        source.add(
            "const int group = get_group_id(0), x = get_local_id(0), y = get_local_id(1), width = get_local_size(0), height = get_local_size(1);",
            "const int chunk = group % chunks, rest = group / chunks;",
            f"const int k = {'rest * height + y' if several else 'rest / columns'};",
            f"const bool valid = {'rest % columns * width + x < length' if self.inner_kept else 'k < kept'};",
        )
        self.chunk(1)
        source.add(f"const int known = {'min(k, kept - 1)' if several else 'k'};")
        coordinates = source.index(self.sizes(self.kept_axes), "known", "k")
        self.pointers((*what.reads, *what.writes, *what.modifies), self.kept_axes, coordinates, "p", "base")
        source.splat(what.scalars, 1)
        self.partials(1)
        source.add("if (valid) {")
        source.add("for (int row = row_first; row < row_last; ++row) {" if several else "for (int row = row_first + y; row < row_last; row += height) {")
        row = source.index(self.sizes(self.row_axes), "row", "r")
        self.pointers(self.inner_names, self.row_axes, row, "base", "q")
        if self.inner_kept:
            source.add("{", "const int at = rest % columns * width + x;")
        else:
            source.add("for (int at = begin + x; at < end; at += width) {")
        for port in self.inner_names:
            load(source, port, 1, "at")
        source.add(*what.formula.code(1))
        source.add(*(f"run_{value} = {self.combine(f'run_{value}', value)};" for value in what.values))
        self.flush(1)
        source.add("}", "}", "}")
        # The tree: `rank` counts the work-items that meet, `step` is the distance of two of them.
        rank, count, step = ("y", "height", "width") if self.inner_kept else ("x", "width", "1") if several else ("id", "width * height", "1")
        source.add("const int id = y * width + x;")
        for value in what.values:
            source.add(f"local float part_{value}[{GROUP}];", f"part_{value}[id] = {self.result(value)};")
        source.add(f"for (int half_count = {count} / 2; half_count > 0; half_count /= 2) {{", "barrier(CLK_LOCAL_MEM_FENCE);")
        source.add(f"if ({rank} < half_count) {{")
        for value in what.values:
            pair = self.combine(f"part_{value}[id]", f"part_{value}[id + half_count * {step}]")
            source.add(f"part_{value}[id] = {pair};")
        source.add("}", "}", f"if ({rank} == 0 && valid) {{")
        source.add(*(f"const float {value} = part_{value}[id];" for value in what.values))
        at = "rest % columns * width + x" if self.inner_kept else "0"
        source.add(f"const int column = {at};")
        self.finish("column", "k == 0 && column == 0")
        source.add("}")
        return source.call((what.chunks * columns * keeps * local0, local1), (local0, local1))


def chunk_count(kept: int, inner_kept: bool, reduced: int, target: Target) -> int:
    """Into how many parts to cut the reduced elements, each summed on its own, so that the device has enough to do; 1: one launch is enough."""
    if target.is_cpu:
        items = -(-kept // (COLUMNS * target.vector_width)) if inner_kept else kept
        if items >= 2 * target.compute_units or kept * reduced < 8 * ITEM:
            return 1
        return max(1, min(-(-4 * target.compute_units // items), kept * reduced // items // ITEM, reduced))
    groups = -(-kept // 32) if inner_kept else kept
    each = reduced * 32 if inner_kept else reduced  # elements that one group would read
    if groups >= target.compute_units or each < 16 * GROUP:
        return 1
    return max(1, min(-(-4 * target.compute_units // groups), each // (8 * GROUP), reduced))


def _place(port: Port, at: str) -> str:
    if port.inner in (0, 1):
        return at if port.inner else "0"
    return f"(ulong){at} * {port.name}_step"


def _converted(port: Port) -> str:
    return port.name if port.ctype == "float" else f"convert_{port.ctype}_sat({port.name})"
