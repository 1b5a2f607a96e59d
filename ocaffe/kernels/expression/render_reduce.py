"""Kernel text of reductions: the sum or maximum of the values v0, v1, .. over the reduced axes, then `finish`.

The merged axes are the innermost axis and, outside of it, kept axes (folded into one index k) and reduced axes (folded into
rows). The reduced elements may be divided into chunks. Each chunk has a separate result, or a last-block reduction combines them.

CPU class, innermost axis reduced: a work-item owns some adjacent kept indices of one chunk and iterates over its rows. Lanes are
summed at the end.
CPU class, innermost axis kept: a work-item owns up to four vectors of it, and each lane is a result.
GPU class: a work-group has x * y work-items. x runs along the innermost axis. y runs over rows or, if there are few elements, over
kept indices. Partial results are combined in local memory.

The order of summation depends only on shapes and the device. Sums have two levels: at most RUN terms are added plainly, and
such sums are added to a compensated total (Kahan), so that the error does not grow with the count. On GPUs the lanes are summed
before that. Vector totals would take registers, and concurrent work-groups hide each other's latency.
"""
from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from ocaffe.ir.launch import Call
from ocaffe.ir.target import Target
from ocaffe.ir.tensor import BLOCK
from ocaffe.kernels.expression.formula import Formula, vector
from ocaffe.kernels.expression.render_pointwise import fit, gpu_width, power_of_two, row_width
from ocaffe.kernels.expression.source import Port, Source, lanes, load, place, single, steps
from ocaffe.kernels.expression.strides import Space

RUN = 128
GROUP = 256
AHEAD = {1: 4, 2: 4, 4: 4, 8: 2}  # vector width -> loads of an operand that a GPU work-item keeps in flight
VECTORS_AHEAD = 8  # loads of all operands that it keeps in flight if channels are in blocks
WIDE = 4  # channels of a block that it sums
LANES = BLOCK // WIDE
OWN = f"lane * {WIDE}"  # its first channel of the block
COLUMNS = 4  # vectors of results per CPU work-item if the innermost axis is kept
NEIGHBOURS = 16  # kept indices per CPU work-item if the innermost axis is reduced: adjacent elements are read together
ITEM = 8192  # elements that justify a separate CPU work-item
BUSY = 4  # work-groups per compute unit that keep a GPU's memory busy
MIN_VECTORS = 4  # of a block of channels that a GPU work-item sums, at least
MIN_SECOND_LAUNCH_ELEMENTS = 1 << 22  # at one group per compute unit, reading more elements takes a GPU longer than a second launch
IDENTITY = {"sum": "0.0f", "max": "-INFINITY"}


@dataclass(frozen=True)
class Reduction:
    """All inputs of the kernel text. The ports have strides along `space`, whose marks tell which axes are reduced.

    `chunk_strides` are the distances between chunks of writes. The first kept index updates a modified operand of one element.
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
    last_block: bool

    def render(self, target: Target) -> Call:
        inner_kept = not self.space.marks[-1]
        if target.is_cpu:
            return _CpuKept(self, target).call() if inner_kept else _CpuReduced(self, target).call()
        return _Gpu(self, target).call()


class _Body:
    """The base of all classes: parameters, chunks, pointers, sums of two levels, the finish."""

    def __init__(self, what: Reduction, target: Target) -> None:
        self.what, self.target, self.source = what, target, Source()
        space = what.space
        self.length = space.sizes[-1]
        self.inner_kept = not space.marks[-1]
        self.kept_axes = [d for d in range(len(space.sizes) - 1) if not space.marks[d]]
        self.row_axes = [d for d in range(len(space.sizes) - 1) if space.marks[d]]
        self.kept = math.prod(space.sizes[d] for d in self.kept_axes)
        self.rows = math.prod(space.sizes[d] for d in self.row_axes)
        self.ports = (*what.reads, *what.writes, *what.modifies)
        self.inputs = [port for port in what.reads if port.name in what.formula.used]
        for port in self.ports:
            self.source.operand(port.name, port.ctype, port.written)
        if what.last_block:
            self.source.operand("parts", "float", True)
            self.source.operand("counters", "uint", True)
        self.source.scalars(what.scalars)
        self.source.argument("int", "accumulate", what.accumulate)
        steps(self.source, self.ports)
        for name, value in (("length", self.length), ("kept", self.kept), ("rows", self.rows), ("chunks", what.chunks)):
            self.source.argument("int", name, value)

    def chunk(self, width: int) -> None:
        """Declare the rows of `chunk`, and its segment of the innermost axis if that axis is reduced.

        If there are more chunks than rows, each chunk has one row.
        """
        source, chunks = self.source, self.what.chunks
        by_rows = self.inner_kept or self.rows >= chunks
        row_step = -(-self.rows // chunks)
        source.argument("int", "row_step", row_step)
        if self.inner_kept:
            source.add("const int row_first = min(chunk * row_step, rows), row_last = min(row_first + row_step, rows);")
            return
        row_chunks = -(-self.rows // row_step)
        longest = self.length if by_rows else -(-self.length // (chunks // row_chunks))
        source.argument("int", "row_chunks", row_chunks)
        source.argument("int", "segment", self.length if by_rows else -(-longest // width) * width)
        source.add(
            "const int row_first = chunk % row_chunks * row_step, row_last = min(row_first + row_step, rows);",
            "const int begin = (int)min((long)(chunk / row_chunks) * segment, (long)length);",
            "const int end = (int)min((long)begin + segment, (long)length);",
        )

    def keep(self, index: str, ports: Sequence[Port]) -> None:
        """Declare the pointers k_.. to the elements of the operands that belong to a kept index."""
        self.advance(index, "k", self.kept_axes, ports, "p")

    def row(self, ports: Sequence[Port] | None = None) -> None:
        """Declare the pointers q_.. to the current row of `ports` (default: all inputs)."""
        self.advance("row", "q", self.row_axes, self.inputs if ports is None else ports, "k")

    def advance(self, index: str, to: str, axes: Sequence[int], ports: Sequence[Port], origin: str) -> None:
        coordinates = self.source.index([self.what.space.sizes[d] for d in axes], index, to)
        for port in ports:
            offset = self.source.offset(port.name, [port.strides[d] for d in axes], coordinates)
            self.source.add(f"{port.pointer} {to}_{port.name} = {origin}_{port.name}{offset};")

    def combine(self, left: str, right: str) -> str:
        return f"{left} + {right}" if self.what.op == "sum" else f"fmax({left}, {right})"

    def totals(self, width: int, count: int = 0) -> None:
        """Declare `total` (and `lost`, its rounding errors) of every value. `count` > 0 declares arrays of that size."""
        kind, identity = vector("float", width), IDENTITY[self.what.op]
        for value in self.what.values:
            for name in ("total", "lost")[: 1 + (self.what.op == "sum")]:
                start = f"({kind})({identity})"
                self.source.add(f"{kind} {name}_{value}[{count}];" if count else f"{kind} {name}_{value} = {start};")
                if count:
                    self.source.add(f"for (int j = 0; j < {count}; ++j) {name}_{value}[j] = {start};")

    def terms(self, width: int, inputs: Sequence[Port], at: str, fresh: str | None = None, whole: bool = False) -> None:
        """Evaluate the text at one place. Lanes before `fresh` get the identity of the operation. `whole`: see `load`."""
        for port in inputs:
            load(self.source, port, width, at, whole=whole)
        self.source.add(*self.what.formula.code(width))
        if fresh is not None and width > 1:
            index, kind = vector("int", width), vector("float", width)
            self.source.add(f"if ({fresh} > 0) {{", f"const {index} counts = {lanes(width)} >= ({index})({fresh});")
            for value in self.what.values:
                self.source.add(f"{value} = select(({kind})({IDENTITY[self.what.op]}), {value}, counts);")
            self.source.add("}")

    def run(self, width: int, count: int = 0) -> None:
        kind = vector("float", width)
        for value in self.what.values:
            start = f"({kind})({IDENTITY[self.what.op]})"
            self.source.add(f"{kind} run_{value}[{count}];" if count else f"{kind} run_{value} = {start};")
            if count:
                self.source.add(f"for (int j = 0; j < {count}; ++j) run_{value}[j] = {start};")

    def add(self, index: str = "") -> None:
        for value in self.what.values:
            self.source.add(f"run_{value}{index} = {self.combine(f'run_{value}{index}', value)};")

    def close_run(self, width: int, total_index: str = "", run_index: str = "", run: str = "run") -> None:
        """Add the sums of a run to the totals. `run` is the prefix of their variables."""
        kind = vector("float", width)
        for value in self.what.values:
            run_of, total, lost = f"{run}_{value}{run_index}", f"total_{value}{total_index}", f"lost_{value}{total_index}"
            if self.what.op == "max":
                self.source.add(f"{total} = fmax({total}, {run_of});")
                continue
            # An infinite total has lost nothing: infinity minus infinity would make it NaN.
            self.source.add(
                "{", f"const {kind} term = {run_of} - {lost}, sum = {total} + term, error = (sum - {total}) - term;",
                f"{lost} = select(({kind})(0.0f), error, isfinite(sum));", f"{total} = sum;", "}",
            )  # fmt: skip

    def total(self, value: str, index: str = "") -> str:
        return f"total_{value}{index} - lost_{value}{index}" if self.what.op == "sum" else f"total_{value}{index}"

    def across(self, value: str, width: int, lanes: str) -> None:
        """Declare lanes1_..: the sum or maximum of a value over all `lanes`, combined pairwise."""
        self.source.add(f"const {vector('float', width)} lanes{width}_{value} = {lanes};")
        while width > 1:
            whole, width = f"lanes{width}_{value}", width // 2
            low, high = (".lo", ".hi") if width > 1 else (".x", ".y")
            self.source.add(f"const {vector('float', width)} lanes{width}_{value} = {self.combine(whole + low, whole + high)};")

    def finish(self, at: str, first: str) -> None:
        """Finish one kept index and store the results. The totals v0, .. must be declared.

        `at` is the place on the innermost axis if that axis is kept.
        """
        source, what = self.source, self.what
        source.splat(what.scalars, 1)
        for port in what.reads:
            if port.name in what.finish.used:
                source.add(f"const float {port.name} = {single(port, f'k_{port.name}[{place(port, at)}]')};")
        for port in what.modifies:
            value = f"(float)(k_{port.name}[{place(port, at)}])"
            source.add(f"float {port.name} = {value if any(port.strides) else f'{first} ? {value} : 0.0f'};")
        source.add(*what.finish.code(1, frozenset(port.name for port in what.modifies)))
        for bit, port in enumerate(what.writes):
            chunk = source.argument("ulong", f"{port.name}_chunk", what.chunk_strides[bit])
            element = f"k_{port.name}[{place(port, at)} + chunk * {chunk}]"
            source.add(f"if (accumulate & {1 << bit}) {port.name} += (float)({element});", f"{element} = {_converted(port)};")
        for port in what.modifies:
            source.add(f"{'' if any(port.strides) else f'if ({first}) '}k_{port.name}[{place(port, at)}] = {_converted(port)};")


class _CpuReduced(_Body):
    """CPU class, with the innermost axis reduced."""

    def call(self) -> Call:
        source, what, width = self.source, self.what, row_width(self.length, self.target)
        reduced = self.rows * self.length // what.chunks
        neighbours = max(1, min(ITEM // max(1, self.length), NEIGHBOURS, self.kept // (4 * self.target.compute_units)))
        neighbours = power_of_two(neighbours, below=True)
        kept_per_item = neighbours * max(1, min(ITEM // max(1, reduced * neighbours), self.kept // (4 * self.target.compute_units * neighbours)))
        source.argument("int", "kept_per_item", kept_per_item)
        source.add(
            "const int chunk = get_global_id(0) % chunks, kept_first = get_global_id(0) / chunks * kept_per_item;",
            "const int kept_last = min(kept_first + kept_per_item, kept);",
        )
        self.chunk(width)
        source.add(f"for (int near = kept_first; near < kept_last; near += {neighbours}) {{", f"const int far = min(near + {neighbours}, kept_last);")
        self.totals(width, neighbours)
        source.add("for (int row = row_first; row < row_last; ++row) {", "for (int k = near; k < far; ++k) {")
        self.keep("k", self.inputs)
        self.row()
        source.splat(what.scalars, width)
        steady = [port for port in self.inputs if port.inner == 0]
        for port in steady:
            load(source, port, width, "0")
        source.add(f"for (int block = begin; block < end; block += {RUN * width}) {{", f"const int stop = min(block + {RUN * width}, end);")
        self.run(width)
        source.add(f"for (int i = block; i < stop; i += {width}) {{", f"const int at = min(i, stop - {width});")
        self.terms(width, [port for port in self.inputs if port not in steady], "at", "i - at")
        self.add()
        source.add("}")
        self.close_run(width, "[k - near]")
        source.add("}", "}", "}", "for (int k = near; k < far; ++k) {")
        for value in what.values:
            self.across(value, width, self.total(value, "[k - near]"))
            source.add(f"const float {value} = lanes1_{value};")
        self.keep("k", self.ports)
        self.finish("0", "k == 0")
        source.add("}", "}")
        return source.single(what.chunks * -(-self.kept // kept_per_item), width)


class _CpuKept(_Body):
    """CPU class, with the innermost axis kept."""

    def call(self) -> Call:
        source, what, width = self.source, self.what, row_width(self.length, self.target)
        columns = COLUMNS if self.length >= COLUMNS * width else 1
        span = columns * width
        spans = -(-self.length // span)
        source.argument("int", "blocks", spans)
        # The last span moves back to end at the row's end. `own` is the first column that no other span computes.
        source.add(
            "const int chunk = get_global_id(0) % chunks, rest = get_global_id(0) / chunks, k = rest / blocks;",
            f"const int own = rest % blocks * {span}, start = min(own, length - {span});",
        )
        self.chunk(width)
        self.keep("k", self.ports)
        self.totals(width, columns)
        source.add(f"for (int block = row_first; block < row_last; block += {RUN}) {{")
        self.run(width, columns)
        source.add(f"for (int row = block; row < min(block + {RUN}, row_last); ++row) {{")
        self.row()
        source.splat(what.scalars, width)
        source.add(f"for (int j = 0; j < {columns}; ++j) {{")
        self.terms(width, self.inputs, f"(start + j * {width})")
        self.add("[j]")
        source.add("}", "}", f"for (int j = 0; j < {columns}; ++j) {{")
        self.close_run(width, "[j]", "[j]")
        source.add("}", "}")
        for value in what.values:
            result = self.total(value, "[j]")
            put = f"all_{value}[j] = {result};" if width == 1 else f"vstore{width}({result}, j, all_{value});"
            source.add(f"float all_{value}[{span}];", f"for (int j = 0; j < {columns}; ++j) {put}")
        source.add(f"for (int j = own - start; j < {span}; ++j) {{", "const int column = start + j;")
        source.add(*(f"const float {value} = all_{value}[j];" for value in what.values))
        self.finish("column", "k == 0 && column == 0")
        source.add("}")
        return source.single(what.chunks * spans * self.kept, width)


class _Gpu(_Body):
    def walk(self, width: int, item: str, items: str) -> None:
        """Combine the partial result of work-item `item` of the `items` that share the rows.

        The vectors of all rows are one sequence, which the work-items process in turn. `ahead` vectors are loaded before they
        are added: a row is often short, and its latency would dominate. Loads past the end repeat the last row and do not count.
        """
        source, what, kind, ahead = self.source, self.what, vector("float", width), AHEAD[width]
        steady = [port for port in self.inputs if port.inner == 0 and not any(port.strides[d] for d in self.row_axes)]
        for port in steady:
            source.add(f"{port.pointer} q_{port.name} = k_{port.name};")
            load(source, port, width, "0")
        source.add(f"const int vectors = max(1, (end - begin + {width - 1}) / {width}), rows_on = {items} / vectors, vectors_on = {items} % vectors;")
        source.add(f"int row = valid && begin < end ? row_first + {item} / vectors : row_last, i = {item} % vectors;", "while (row < row_last) {")
        self.run(width)
        source.add(f"for (int n = 0; n < {RUN} && row < row_last; n += {ahead}) {{", "const int here = row_last - 1;")
        source.add("#pragma unroll", f"for (int ahead = 0; ahead < {ahead}; ++ahead) {{")
        source.add(f"const int place = begin + {width} * i, at = min(place, max(end - {width}, 0));")
        source.add(f"const int skip = row < row_last ? place - at : {width}, next = min(row, here);", "{", "const int row = next;")
        moving = [port for port in self.inputs if port not in steady]
        self.row(moving)
        self.terms(width, moving, "at", whole=self.length % width == 0)
        index = vector("int", width)
        for value in what.values:
            test = f"{lanes(width)} >= ({index})(skip)" if width > 1 else "skip <= 0"
            source.add(f"{value} = select(({kind})({IDENTITY[what.op]}), {value}, {test});")
        self.add()
        source.add("}", "row += rows_on;", "i += vectors_on;", "if (i >= vectors) {", "i -= vectors;", "++row;", "}", "}", "}")
        for value in what.values:
            self.across(value, width, f"run_{value}")
        self.close_run(1, run="lanes1")
        source.add("}")

    def call(self) -> Call:
        source, what = self.source, self.what
        group = self.target.group(GROUP)
        if self.inner_kept and self.length == BLOCK and all(port.inner <= 1 for port in self.inputs):
            return self.call_blocks(group)
        width = 1 if self.inner_kept else gpu_width(self.length, self.inputs)
        local0 = fit(self.length, 32) if self.inner_kept else min(group, power_of_two(-(-self.length // width)))
        several = not self.inner_kept and self.rows * self.length // what.chunks < group * width  # y runs over kept indices
        local1 = min(group // local0, power_of_two(self.kept if several else -(-self.rows // what.chunks)))
        columns = -(-self.length // local0) if self.inner_kept else 1
        source.argument("int", "columns", columns)
        source.add(
            "const int x = get_local_id(0), y = get_local_id(1), width = get_local_size(0), height = get_local_size(1), id = y * width + x;",
            "const int chunk = get_group_id(0) % chunks, rest = get_group_id(0) / chunks;",
        )
        if self.inner_kept:
            source.add("const int column = rest % columns * width + x, k = rest / columns;", "const bool valid = column < length;")
        else:
            source.add(f"const int column = 0, own = {'rest * height + y' if several else 'rest'}, k = min(own, kept - 1);", "const bool valid = own < kept;")
        self.chunk(width)
        self.keep("k", self.ports)
        source.splat(what.scalars, width)
        self.totals(1)
        if self.inner_kept:
            source.add(f"for (int block = row_first; valid && block < row_last; block += {RUN} * height) {{")
            self.run(width)
            source.add(f"for (int row = block + y; row < min(block + {RUN} * height, row_last); row += height) {{")
            self.row()
            self.terms(width, self.inputs, "column")
            self.add()
            source.add("}")
            self.close_run(1)
            source.add("}")
        else:
            self.walk(width, *(("x", "width") if several else ("id", "width * height")))
        # The tree: `rank` numbers the work-items that combine their values; neighbours are `step` apart. A single work-item gets no loop:
        # PoCL 3.1 runs the code after a loop with a barrier twice for the first work-item if the loop is never entered (seen with
        # results that accumulate).
        combining_items = local1 if self.inner_kept else local0 if several else local0 * local1
        rank, count, step = ("y", "height", "width") if self.inner_kept else ("x", "width", "1") if several else ("id", "width * height", "1")
        for value in what.values:
            source.add(f"local float part_{value}[{group}];", f"part_{value}[id] = {self.total(value)};")

        def tree() -> None:
            if combining_items > 1:
                source.add(f"for (int pairs = {count} / 2; pairs > 0; pairs /= 2) {{", "barrier(CLK_LOCAL_MEM_FENCE);", f"if ({rank} < pairs) {{")
                for value in what.values:
                    source.add(f"part_{value}[id] = {self.combine(f'part_{value}[id]', f'part_{value}[id + pairs * {step}]')};")
                source.add("}", "}")

        tree()
        if what.last_block:
            self.join(rank, count)
            tree()
        source.add(f"if ({rank} == 0 && valid) {{")
        source.add(*(f"const float {value} = part_{value}[id];" for value in what.values))
        self.finish("column", "k == 0 && column == 0" if self.inner_kept else "k == 0")
        source.add("}")
        groups = what.chunks * columns * (-(-self.kept // local1) if several else self.kept)
        return source.call((groups * local0, local1), (local0, local1))

    def call_blocks(self, group: int) -> Call:
        """Return the kernel for channels in blocks. A work-group has one block and chunk; LANES neighbouring work-items share the channels of a row.

        With all channels of a block a work-item would need so many registers that few work-items fit a compute unit. The rows of the chunks
        alternate, so that all work-groups read neighbouring rows at a time, and a cache has the last ones for the next launch.
        """
        source, what, kind = self.source, self.what, vector("float", WIDE)
        rows = -(-self.rows // what.chunks)
        local = min(group, LANES * power_of_two(rows))
        source.add(
            f"const int id = get_local_id(0), lane = id % {LANES}, y = id / {LANES}, height = get_local_size(0) / {LANES}, chunk = get_group_id(0) % chunks;",
            "const int rest = get_group_id(0) / chunks, k = rest;",
        )
        source.add("const int row_first = chunk * height, apart = height * chunks;")
        self.keep("k", self.ports)
        source.splat(what.scalars, WIDE)
        steady = [port for port in self.inputs if not any(port.strides[d] for d in self.row_axes)]
        for port in steady:
            source.add(f"{port.pointer} q_{port.name} = k_{port.name};")
            load(source, port, WIDE, OWN, whole=True)
        several = rows * LANES > RUN * local
        if several:
            self.totals(WIDE)
        source.add("int row = row_first + y;")
        self.place_row()
        if several:
            source.add(f"for (int block = 0; block < rows; block += {RUN} * apart) {{", f"const int stop = min(block + {RUN} * apart, rows);")
        else:
            source.add("const int stop = rows;")
        self.run(WIDE)
        source.add("while (row < stop) {")
        self.add_rows([port for port in self.inputs if port not in steady])
        source.add("}")
        if several:
            self.close_run(WIDE)
            source.add("}")
        for value in what.values:
            source.add(f"local {kind} part_{value}[{local}];", f"part_{value}[id] = {self.total(value) if several else f'run_{value}'};")

        def tree() -> None:
            if local > LANES:
                source.add("for (int pairs = height / 2; pairs > 0; pairs /= 2) {", "barrier(CLK_LOCAL_MEM_FENCE);", "if (y < pairs) {")
                for value in what.values:
                    source.add(f"part_{value}[id] = {self.combine(f'part_{value}[id]', f'part_{value}[id + pairs * {LANES}]')};")
                source.add("}", "}")

        tree()
        if what.last_block:
            places = {value: f"p_parts + {index} * total * chunks + {{0}} * total + k * {BLOCK} + {OWN}" for index, value in enumerate(what.values)}
            source.argument("int", "total", self.kept * BLOCK)
            source.add("local int vote;", "if (y == 0) {")
            source.add(*(f"vstore{WIDE}(part_{value}[id], 0, {places[value].format('chunk')});" for value in what.values), "}")
            source.add(f"IS_LAST_BLOCK({self.target.device_fence}, p_counters + rest, chunks, &vote, last);", "if (!last) return;")
            for value in what.values:
                source.add(f"{kind} all_{value} = ({kind})({IDENTITY[what.op]});")
            source.add("for (int c = y; c < chunks; c += height) {")
            for value in what.values:
                partial = f"vload{WIDE}(0, {places[value].format('c')})"
                source.add(f"all_{value} = {self.combine(f'all_{value}', partial)};")
            source.add("}")
            source.add(*(f"part_{value}[id] = all_{value};" for value in what.values))
            tree()
        source.add("barrier(CLK_LOCAL_MEM_FENCE);", f"for (int column = id; column < {BLOCK}; column += height * {LANES}) {{")
        source.add(*(f"const float {value} = ((local const float*)part_{value})[column];" for value in what.values))
        self.finish("column", "k == 0 && column == 0")
        source.add("}")
        return source.call((what.chunks * self.kept * local,), (local,))

    def place_row(self) -> None:
        """Declare the coordinates at0, at1, .. of `row` and those of `apart` rows, by which they advance without divisions."""
        sizes = [self.what.space.sizes[d] for d in self.row_axes]
        for of, prefix in (("row", "first"), ("apart", "by")):
            names = self.source.index(sizes, of, prefix)
            if prefix == "first":
                self.source.add(*(f"int at{d} = {name};" for d, name in enumerate(names)))

    def add_rows(self, ports: Sequence[Port]) -> None:
        """Add up the values of some rows of blocks, `apart` rows from each other, and advance `row` behind them.

        Their loads come first, because the compiler moves no load over a branch. A load past the end repeats the first row.
        """
        source, kind = self.source, vector("float", WIDE)
        sizes = [self.what.space.sizes[d] for d in self.row_axes]
        ahead = max(1, VECTORS_AHEAD // max(1, len(ports)))
        for n in range(ahead):
            source.add(f"const bool counts{n} = row + {n} * apart < stop;")
            for port in ports:
                offset = source.offset(port.name, [port.strides[d] for d in self.row_axes], [f"at{d}" for d in range(len(sizes))])
                place = f"k_{port.name}{offset}" if n == 0 else f"counts{n} ? k_{port.name}{offset} : q_{port.name}_0"
                source.add(f"{port.pointer} q_{port.name}_{n} = {place};")
                load(source, replace(port, name=f"{port.name}_{n}"), WIDE, OWN, whole=True)
            source.add(*(f"at{d} += by{d};" for d in range(len(sizes))))
            for d in reversed(range(1, len(sizes))):
                source.add(f"if (at{d} >= first_size{d}) at{d} -= first_size{d}, ++at{d - 1};")
        for n in range(ahead):
            source.add(f"if (counts{n}) {{", *(f"const {kind} {port.name} = {port.name}_{n};" for port in ports))
            source.add(*self.what.formula.code(WIDE))
            self.add()
            source.add("}")
        source.add(f"row += {ahead} * apart;")

    def join(self, rank: str, count: str) -> None:
        """Store the values of this chunk. Only the last work-group to finish continues.

        Each of its work-items combines its share of the chunks.
        """
        source, what = self.source, self.what
        total = self.kept * (self.length if self.inner_kept else 1)
        source.argument("int", "total", total)
        source.add("local int vote;")
        places = {}
        for index, value in enumerate(what.values):
            place = "{0} * total + k * length + column" if self.inner_kept else "k * chunks + {0}"
            places[value] = f"p_parts[{index} * total * chunks + {place}]"
        source.add(f"if ({rank} == 0 && valid) {{", *(f"{places[value].format('chunk')} = part_{value}[id];" for value in what.values), "}")
        source.add(f"IS_LAST_BLOCK({self.target.device_fence}, p_counters + rest, chunks, &vote, last);", "if (!last) return;")
        for value in what.values:
            source.add(f"float all_{value} = {IDENTITY[what.op]};")
        source.add(f"for (int c = {rank}; valid && c < chunks; c += {count}) {{")
        source.add(*(f"all_{value} = {self.combine(f'all_{value}', places[value].format('c'))};" for value in what.values), "}")
        source.add(*(f"part_{value}[id] = all_{value};" for value in what.values))


def chunk_count(kept: int, inner_kept: bool, reduced: int, target: Target, perhaps_blocks: bool = False) -> int:
    """Return the number of chunks of the reduced elements, each summed separately, that fill the device.

    1 means that one launch is enough. `perhaps_blocks`: the kept indices are channels that may be in blocks, which a work-group sums together.
    """
    if target.is_cpu:
        items = -(-kept // (COLUMNS * target.vector_width)) if inner_kept else kept
        if items >= 2 * target.compute_units or kept * reduced < 8 * ITEM:
            return 1
        return max(1, min(-(-4 * target.compute_units // items), kept * reduced // items // ITEM, reduced))
    if perhaps_blocks:
        wanted = -(-2 * BUSY * target.compute_units * BLOCK // kept)
        return max(1, min(wanted, reduced // (MIN_VECTORS * GROUP)))
    groups = -(-kept // 32) if inner_kept else kept
    each = reduced * 32 if inner_kept else reduced  # elements that one group would read
    units = target.compute_units
    if groups >= BUSY * units or each < 64 * GROUP or (groups >= units and kept * reduced < MIN_SECOND_LAUNCH_ELEMENTS):
        return 1
    return max(1, min(-(-2 * BUSY * units // groups), each // (16 * GROUP), reduced))


def _converted(port: Port) -> str:
    return port.name if port.ctype == "float" else f"convert_{port.ctype}_sat({port.name})"
