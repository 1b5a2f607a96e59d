"""Kernel text of pointwise expressions.

CPU class: a work-item computes a segment of a row, or several short rows, in explicit vectors of W elements. A row is the
innermost merged axis, and W is at most its length. The last vector of a segment is moved back to end at the segment's end.
Elements that it covers a second time are computed but not stored.
GPU class: a work-item computes neighbouring elements (`gpu_width`). With random numbers it computes four elements that are
16 apart, because one Philox call gives four words.

Random numbers: element e of sample n gets word (e / 16) % 4 of Philox with the counter (e / 64 * 16 + e % 16, n, iteration, pass).
Sixteen neighbouring elements thus use one word of sixteen neighbouring counters, which a vector unit computes at once. The
mapping does not depend on the machine, the strides or the split of the batch.
"""
from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from ocaffe.ir.launch import Call
from ocaffe.ir.recorder import STEP
from ocaffe.ir.target import Target
from ocaffe.ir.tensor import BLOCK
from ocaffe.kernels.expression.formula import Formula, vector
from ocaffe.kernels.expression.source import BFLOAT, Port, Source, lanes, load, steps, store

SEGMENT = 8192  # elements per CPU work-item: enough to hide the cost of its dispatch, few enough to balance the load of small tensors
GROUP = 256
DEEPEST = 64  # work-items of a group in the third axis: NVIDIA's limit
GRID = 65535  # work-groups along the second and third axis of a grid that every device supports
WIDTH = 4  # adjacent elements per GPU work-item: an H100 copies 3.0 TB/s with four, 2.7 TB/s with one
SHARED_COUNTERS = 64  # elements that share 16 Philox counters
VECTORS_AHEAD = 8  # that a GPU work-item loads before it stores
PIXELS = 4  # per GPU work-item if channels are in blocks: they share what was loaded per channel


@dataclass(frozen=True)
class Random:
    """The numbering of elements for Philox: strides of the element and sample indices along the merged axes, and the key."""

    element: tuple[int, ...]
    sample: tuple[int, ...]
    key: tuple[np.uint32, np.uint32]

    @property
    def aligned(self) -> bool:
        """Whether the element indices of a row are consecutive and start at a multiple of SHARED_COUNTERS."""
        return self.element[-1] == 1 and self.sample[-1] == 0 and all(stride % SHARED_COUNTERS == 0 for stride in self.element[:-1])


def render(
    formula: Formula,
    sizes: tuple[int, ...],
    reads: Sequence[Port],
    writes: Sequence[Port],
    modifies: Sequence[Port],
    scalars: Sequence[tuple[str, np.generic]],
    accumulate: int,
    target: Target,
    random: Random | None = None,
) -> Call:
    """Return the kernel of a pointwise expression.

    `sizes` are the merged axes, outermost first. If bit j of `accumulate` is set, writes[j] accumulates. With `random`, `p_step`
    is the step buffer.
    """
    source = Source()
    for port in reads:
        source.operand(port.name, port.ctype, False)
    if random is not None:
        source.operand("step", "uint", False)
    for port in (*writes, *modifies):
        source.operand(port.name, port.ctype, True)
    source.scalars(scalars)
    if writes:
        source.argument("int", "accumulate", accumulate)
    if random is not None:
        source.argument("uint", "key0", int(random.key[0]))
        source.argument("uint", "key1", int(random.key[1]))
    steps(source, (*reads, *writes, *modifies))
    body = _Body(source, formula, sizes, tuple(reads), tuple(writes), tuple(modifies), tuple(scalars), random)
    return body.cpu(target) if target.is_cpu else body.gpu(target.group(GROUP))


@dataclass(frozen=True)
class _Body:
    source: Source
    formula: Formula
    sizes: tuple[int, ...]
    reads: tuple[Port, ...]
    writes: tuple[Port, ...]
    modifies: tuple[Port, ...]
    scalars: tuple[tuple[str, np.generic], ...]
    random: Random | None

    @property
    def ports(self) -> tuple[Port, ...]:
        return (*self.reads, *self.writes, *self.modifies)

    # -- CPU ---------------------------------------------------------------------------------------------------------

    def cpu(self, target: Target) -> Call:
        source, length = self.source, self.sizes[-1]
        rows = math.prod(self.sizes[:-1])
        width = row_width(length, target)
        goal = max(1024, min(SEGMENT, rows * length // (4 * target.compute_units)))
        segment = max(width, min(length, goal) // width * width)
        segments = max(1, length // segment)
        rows_per_item = max(1, min(rows, goal // length))
        source.argument("int", "length", length)
        source.argument("int", "segment", segment)
        source.argument("int", "segments", segments)
        self.source.splat(self.scalars, width)
        source.add(
            "const int item = get_global_id(0);",
            "const int begin = item % segments * segment;",
            "const int end = item % segments == segments - 1 ? length : begin + segment;",
        )
        if rows > 1:
            source.argument("int", "rows", rows)
            source.argument("int", "rows_per_item", rows_per_item)
            source.add("const int first = item / segments * rows_per_item;", "const int last = min(first + rows_per_item, rows);")
            source.add("for (int row = first; row < last; ++row) {")
        self.row(source.index(self.sizes[:-1], "row", "i"))
        if self.random is not None:
            source.add(f"uint drawn[{SHARED_COUNTERS}];", "uint block = UINT_MAX;")
        hoisted = [port for port in self.reads if port.inner == 0]
        for port in hoisted:
            load(source, port, width, "0")
        source.add(f"for (int i = begin; i < end; i += {width}) {{", f"const int at = min(i, end - {width});")
        if self.random is not None:
            self.draw_cpu(self.random, width)
        self.compute(width, "at", hoisted)
        if width == 1:
            self.stores(width, "at")
        else:
            source.add("if (at == i) {")
            self.stores(width, "at")
            source.add("}", "else {")
            self.stores(width, "at", "i - at")
            source.add("}")
        source.add("}")
        if rows > 1:
            source.add("}")
        return source.single(segments * -(-rows // rows_per_item), width)

    def draw_cpu(self, random: Random, width: int) -> None:
        """Declare the Philox words of one vector. If possible SHARED_COUNTERS words are drawn at once, else each lane draws its own."""
        source = self.source
        word, signed = vector("uint", width), f"convert_{vector('uint', width)}({lanes(width)})" if width > 1 else "0u"
        source.add(f"{word} words;")
        if random.element[-1] == 1 and random.sample[-1] == 0:
            source.add(f"if ((element + at) % {SHARED_COUNTERS} + {width} <= {SHARED_COUNTERS}) {{", f"if ((element + at) / {SHARED_COUNTERS} != block) {{")
            source.add(f"block = (element + at) / {SHARED_COUNTERS};", f"for (int j = 0; j < 16; j += {width}) {{")
            self.philox(width, f"({word})(block * 16 + j) + {signed}", f"({word})(sample)")
            source.add(*(_put(f"c{k}", f"drawn + {16 * k} + j", width) for k in range(4)), "}", "}")
            source.add(f"words = {_get(f'drawn + (element + at) % {SHARED_COUNTERS}', width)};", "}", "else {")
        else:
            source.add("{")
        e = source.argument("uint", "element_step", random.element[-1])
        n = source.argument("uint", "sample_step", random.sample[-1])
        source.add(f"const {word} k = ({word})(at) + {signed}, e = element + k * {e};")
        self.philox(width, f"e / {SHARED_COUNTERS}u * 16u + e % 16u", f"sample + k * {n} * ranks")
        odd, high = f"(e & 16u) != ({word})(0)", f"(e & 32u) != ({word})(0)"
        if width == 1:
            source.add(f"words = {high} ? ({odd} ? c3 : c2) : ({odd} ? c1 : c0);", "}")
        else:
            source.add(f"words = select(select(c0, c1, {odd}), select(c2, c3, {odd}), {high});", "}")
        source.add(f"const {vector('float', width)} uniform = convert_{vector('float', width)}(words >> 8) * 0x1p-24f;")

    def philox(self, width: int, counter: str, sample: str) -> None:
        """Declare c0 .. c3: `philox` of common.h for vectors of counters.

        The words stay in 64-bit lanes with undefined upper halves. Products then need no repacking, which is 2 to 4 times
        faster than mul_hi.
        """
        word, wide = vector("uint", width), vector("ulong", width)
        starts = (counter, sample, f"({word})(p_step[{STEP['ITERATION']}])", f"({word})(p_step[{STEP['PASS']}])")
        self.source.add(
            *(f"{wide} w{k} = convert_{wide}({start});" for k, start in enumerate(starts)),
            "for (uint round = 0, k0 = key0, k1 = key1; round < 10; ++round, k0 += 0x9E3779B9u, k1 += 0xBB67AE85u) {",
            f"const {wide} product0 = (w0 & 0xFFFFFFFFul) * 0xD2511F53ul, product2 = (w2 & 0xFFFFFFFFul) * 0xCD9E8D57ul;",
            "w0 = (product2 >> 32) ^ w1 ^ (ulong)k0;",
            "w1 = product2;",
            "w2 = (product0 >> 32) ^ w3 ^ (ulong)k1;",
            "w3 = product0;",
            "}",
            f"const {word} {', '.join(f'c{k} = convert_{word}(w{k})' for k in range(4))};",
        )

    # -- GPU ---------------------------------------------------------------------------------------------------------

    def gpu(self, group: int) -> Call:
        """Return the kernel for the GPU class, in work-groups of at most `group` work-items. The grid is columns x axis x outer axes.

        A column is `gpu_width` adjacent elements of a row. With random numbers it is four elements of SHARED_COUNTERS or one element.
        """
        source, length = self.source, self.sizes[-1]
        if self.has_channel_blocks():
            return self.gpu_blocks(group)
        grouped = self.random is not None and self.random.aligned
        width = 1 if self.random is not None else gpu_width(length, self.ports)
        columns = -(-length // SHARED_COUNTERS) * 16 if grouped else -(-length // width)
        source.argument("int", "length", length)
        source.splat(self.scalars, 1)
        source.add("const int column = get_global_id(0);")
        size, local = self.grid(columns, group)
        steady = [port for port in self.reads if port.inner == 0]
        if grouped:
            self.draw_gpu()
        elif width > 1:
            source.add(f"if ((column + 1) * {width} <= length) {{", f"const int at = column * {width};")
            source.splat(self.scalars, width)
            self.compute(width, "at", [], whole=True)
            self.stores(width, "at", whole=True)
            source.add("}", f"else for (int at = column * {width}; at < length; ++at) {{")
        else:
            source.add("const int at = column;", "if (at < length) {")
            if self.random is not None:
                e = source.argument("uint", "element_step", self.random.element[-1])
                n = source.argument("uint", "sample_step", self.random.sample[-1])
                source.add(f"const uint e = element + at * {e};", self.words(f"e / {SHARED_COUNTERS} * 16 + e % 16", f"sample + at * {n} * ranks"))
                source.add("const float uniform = uniform01(e & 32 ? (e & 16 ? words.w : words.z) : (e & 16 ? words.y : words.x));")
        for port in steady:
            load(source, port, 1, "0")
        self.compute(1, "at", steady)
        self.stores(1, "at")
        source.add(*["}"] * (2 if grouped else 1))
        return source.call(size, local)

    def has_channel_blocks(self) -> bool:
        """Whether rows are blocks of channels, all operands have whole vectors there, and some have one value per channel."""
        plain = self.random is None and len(self.sizes) > 2 and self.sizes[-1] == BLOCK and max(self.sizes[-2], math.prod(self.sizes[:-2])) <= GRID
        return plain and all(port.inner <= 1 for port in self.ports) and any(not port.strides[-2] for port in self.reads)

    def gpu_blocks(self, group: int) -> Call:
        """Return the kernel for channels in blocks: a work-item computes some pixels of a block, and loads values per channel once.

        The last rows are first: the launch before has just written them, and a cache may still have them.
        """
        source, outer = self.source, self.sizes[:-1]
        items = -(-outer[-1] // PIXELS)
        source.argument("int", "middle", outer[-1])
        source.argument("int", "items", items)
        source.splat(self.scalars, BLOCK)
        source.argument("int", "rows", math.prod(outer[:-1]))
        source.add("const int row = rows - 1 - (int)get_global_id(2), first = get_global_id(1);", "if (first >= items || row < 0) return;")
        rows = source.index(outer[:-1], "row", "i")
        steady = [port for port in self.reads if not port.strides[-2]]
        for port in steady:
            source.add(f"{port.pointer} q_{port.name} = p_{port.name}{source.offset(port.name, port.strides[:-2], rows)};")
            load(source, port, BLOCK, "0", whole=True)
        moving = [port for port in self.ports if port not in steady]
        source.add(*(f"{port.pointer} row_{port.name} = p_{port.name}{source.offset(port.name, port.strides[:-2], rows)};" for port in moving))
        read = [port for port in self.reads if port not in steady]
        ahead = max(1, min(PIXELS, VECTORS_AHEAD // max(1, len(read))))
        for begin in range(0, PIXELS, ahead):
            pixels = range(begin, min(begin + ahead, PIXELS))
            # The compiler moves no load over a store, so that all loads come first. Those past the end load the last pixel.
            for n in pixels:
                source.add(f"const int pixel{n} = min(first + {n} * items, middle - 1);")
                for port in moving:
                    step = source.argument("ulong", f"{port.name}_pixel", port.strides[-2])
                    source.add(f"{port.pointer} q_{port.name}_{n} = row_{port.name} + pixel{n} * {step};")
                for port in read:
                    load(source, replace(port, name=f"{port.name}_{n}"), BLOCK, "0", whole=True)
            for n in pixels:
                source.add(f"if (first + {n} * items < middle) {{")
                source.add(*(f"{port.pointer} q_{port.name} = q_{port.name}_{n};" for port in moving if port not in read))
                source.add(*(f"const {vector('float', BLOCK)} {port.name} = {port.name}_{n};" for port in read))
                self.compute(BLOCK, "0", self.reads, whole=True)
                self.stores(BLOCK, "0", whole=True)
                source.add("}")
        local = fit(items, group)
        return source.call((1, items, math.prod(outer[:-1])), (1, local, min(group // local, DEEPEST)))

    def grid(self, columns: int, group: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Return the global and local size, and declare the pointers to the row of a work-item."""
        source, outer = self.source, self.sizes[:-1]
        local0 = fit(columns, group)
        if len(outer) > 1 and max(outer[-1], math.prod(outer[:-1])) <= GRID:  # the second axis needs no division
            local1 = min(group // local0, power_of_two(outer[-1]))
            source.argument("int", "middle", outer[-1])
            source.add("const int row = get_global_id(2);", f"const int i{len(outer) - 1} = get_global_id(1);", f"if (i{len(outer) - 1} >= middle) return;")
            self.row([*source.index(outer[:-1], "row", "i"), f"i{len(outer) - 1}"])
            return (columns, outer[-1], math.prod(outer[:-1])), (local0, local1, 1)
        rows = math.prod(outer)
        local1 = min(group // local0, power_of_two(rows))
        folded = min(rows, GRID // local1 * local1)
        if rows > 1:
            source.argument("int", "rows", rows)
            source.argument("int", "folded", folded)
            source.add("const int row = get_global_id(2) * folded + get_global_id(1);")
            source.add("if (get_global_id(1) >= folded || row >= rows) return;")
        self.row(source.index(outer, "row", "i"))
        return (columns, folded, -(-rows // folded)), (local0, local1, 1)

    def draw_gpu(self) -> None:
        """Emit one Philox call for the four elements of a work-item, which are 16 apart."""
        self.source.add(
            self.words(f"element / {SHARED_COUNTERS} * 16 + column", "sample"),
            "const uint word[4] = {words.x, words.y, words.z, words.w};",
            "for (int j = 0; j < 4; ++j) {",
            f"const int at = column / 16 * {SHARED_COUNTERS} + j * 16 + column % 16;",
            "if (at < length) {",
            "const float uniform = uniform01(word[j]);",
        )

    @staticmethod
    def words(counter: str, sample: str) -> str:
        step = f"p_step[{STEP['ITERATION']}], p_step[{STEP['PASS']}]"
        return f"const uint4 words = philox((uint4)({counter}, {sample}, {step}), (uint2)(key0, key1));"

    # -- both --------------------------------------------------------------------------------------------------------

    def row(self, coordinates: Sequence[str]) -> None:
        """Declare the pointers to the row at these coordinates, and the numbers of its first element and sample."""
        source = self.source
        for port in self.ports:
            source.add(f"{port.pointer} q_{port.name} = p_{port.name}{source.offset(port.name, port.strides[:-1], coordinates)};")
        if self.random is not None:
            source.add(f"const uint element = 0{source.offset('element', self.random.element[:-1], coordinates)};")
            offset = source.offset("sample", self.random.sample[:-1], coordinates)
            source.add(f"const uint ranks = p_step[{STEP['OTHER_RANKS']}] + 1;")
            source.add(f"const uint sample = p_step[{STEP['SAMPLE']}] + (0{offset}) * ranks;")

    def compute(self, width: int, at: str, hoisted: Sequence[Port], whole: bool = False) -> None:
        kind = vector("float", width)
        for port in self.reads:
            if port not in hoisted:
                load(self.source, port, width, at, whole=whole)
        for port in self.modifies:
            load(self.source, port, width, at, target=f"old_{port.name}", whole=whole)
            self.source.add(f"{kind} {port.name} = old_{port.name};")
        self.source.add(*self.formula.code(width, frozenset(port.name for port in self.modifies)))
        for bit, port in enumerate(self.writes):
            self.source.add(f"if (accumulate & {1 << bit}) {{")
            load(self.source, port, width, at, target=f"old_{port.name}", whole=whole)
            self.source.add(f"{port.name} += old_{port.name};", "}")

    def stores(self, width: int, at: str, skip: str | None = None, whole: bool = False) -> None:
        for port in (*self.writes, *self.modifies):
            store(self.source, port, width, at, skip, whole)


def gpu_width(length: int, ports: Sequence[Port]) -> int:
    """Return the number of elements per GPU work-item.

    It is 8 if there are dense bf16 operands and all of them have aligned vectors of 8 elements, else 4. Short rows have 4 or 1.
    """
    halves = [port for port in ports if port.ctype == BFLOAT and port.inner == 1]
    width = 2 * WIDTH if halves and all(port.alignment % (2 * WIDTH) == 0 for port in halves) else WIDTH
    return width if length >= width else WIDTH if length >= WIDTH else 1


def row_width(length: int, target: Target) -> int:
    """Return the vector width of a CPU kernel over rows of this length."""
    return min(power_of_two(length, below=True), target.vector_width, 16)


def power_of_two(n: int, below: bool = False) -> int:
    """Return the smallest power of two that is at least n; with `below`, the largest that is at most n."""
    return 1 << (n.bit_length() - 1 if below else (n - 1).bit_length())


def fit(n: int, most: int) -> int:
    """Return a work-group size along an axis of n work-items: the largest power of two that leaves few work-items idle."""
    sizes = [1 << k for k in range(most.bit_length()) if 1 << k >= 16] or [most]
    if n <= sizes[0]:
        return power_of_two(n)
    padded = {size: -(-n // size) * size for size in sizes}
    return max(size for size in sizes if padded[size] <= 1.125 * min(padded.values()))


def _get(pointer: str, width: int) -> str:
    return f"(*({pointer}))" if width == 1 else f"vload{width}(0, {pointer})"


def _put(value: str, pointer: str, width: int) -> str:
    return f"*({pointer}) = {value};" if width == 1 else f"vstore{width}({value}, 0, {pointer});"
