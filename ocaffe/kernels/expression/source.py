"""Builder for the text of a generated kernel: parameters with their values, lines, loads and stores of operands."""
from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from ocaffe.ir.launch import Call
from ocaffe.kernels.expression.formula import variable, vector

BFLOAT = "bfloat"  # kernels/common/bf16_operands.h
CTYPES = {"float32": "float", "uint8": "uchar", "int32": "int", "uint32": "uint", "uint16": BFLOAT}
SCALARS = {"int": np.int32, "uint": np.uint32, "ulong": np.uint64}
ALIGNMENT = 8  # elements; no vector is longer
MASKS = {"uchar": "char"}  # element type -> signed type of the same width, for select; int if not listed


@dataclass(frozen=True)
class Port:
    """An operand in a kernel. Its value is the variable `name`; `p_name` points to its first element, `q_name` to the current row.

    `strides` are those of the merged axes, outermost first. The innermost stride is part of the text if it is 0 or 1. The first
    element and all rows start at a multiple of `alignment` elements.
    """

    name: str
    ctype: str
    strides: tuple[int, ...]
    written: bool = False
    alignment: int = 1

    @property
    def inner(self) -> int:
        return self.strides[-1]

    @property
    def converted(self) -> bool:
        """Whether an OpenCL conversion function turns vectors of its type into floats."""
        return self.ctype not in ("float", BFLOAT)

    @property
    def pointer(self) -> str:
        return f"{'' if self.written else 'const '}global {self.ctype}*"


class Source:
    """A kernel in the making. `argument` declares a parameter and records its value, so text and arguments always agree."""

    def __init__(self) -> None:
        self.parameters: list[str] = []
        self.values: list[np.generic] = []
        self.named: dict[str, int] = {}
        self.lines: list[str] = []
        self.depth = 1

    def operand(self, name: str, ctype: str, written: bool) -> None:
        self.parameters.append(f"OPERAND({'' if written else 'const '}{ctype}, p_{name})")
        self.add(f"LOCATE(p_{name});")

    def argument(self, ctype: str, name: str, value: int) -> str:
        """Declare a parameter if it is not declared yet. Return its name."""
        if name not in self.named:
            self.named[name] = value
            self.parameters.append(f"const {ctype} {name}")
            self.values.append(SCALARS[ctype](value))
        assert self.named[name] == value, name
        return name

    def scalars(self, scalars: Iterable[tuple[str, np.generic]]) -> None:
        """Declare the named scalars of an expression as parameters. `splat` makes variables of them."""
        for name, value in scalars:
            self.parameters.append(f"const {CTYPES[value.dtype.name]} a_{name}")
            self.values.append(value)

    def splat(self, scalars: Iterable[tuple[str, np.generic]], width: int) -> None:
        kind = vector("float", width)
        self.add(*(f"const {kind} {variable(name)} = ({kind})(a_{name});" for name, _ in scalars))

    def add(self, *lines: str) -> None:
        for line in lines:
            if line.startswith("}"):
                self.depth -= 1
            self.lines.append("  " * self.depth + line)
            if line.endswith("{"):
                self.depth += 1

    def index(self, sizes: Sequence[int], of: str, prefix: str) -> list[str]:
        """Declare the coordinates prefix0, prefix1, ... of position `of` in axes of these sizes, outermost first."""
        names = [f"{prefix}{d}" for d in range(len(sizes))]
        rest = of
        for d in reversed(range(1, len(sizes))):
            size = self.argument("int", f"{prefix}_size{d}", sizes[d])
            self.add(f"const int {names[d]} = {rest} % {size};", f"const int {prefix}_rest{d} = {rest} / {size};")
            rest = f"{prefix}_rest{d}"
        if names:
            self.add(f"const int {names[0]} = {rest};")
        return names

    def offset(self, name: str, strides: Sequence[int], coordinates: Sequence[str]) -> str:
        """Return ` + i0 * stride` for every axis."""
        terms = []
        for stride, coordinate in zip(strides, coordinates):
            terms.append(f" + {coordinate} * {self.argument('ulong', f'{name}_{coordinate}', stride)}")
        return "".join(terms)

    def single(self, items: int, width: int) -> Call:
        """Return the finished kernel for the CPU class, whose work-groups have one work-item.

        The hint stops Intel's compiler from vectorising across work-items.
        """
        return self.call((items,), (1,), f"__attribute__((reqd_work_group_size(1, 1, 1), vec_type_hint({vector('float', width)}))) ")

    def call(self, size: Sequence[int], local: Sequence[int], attributes: str = "") -> Call:
        """Return the finished kernel. Its name is a hash of its text, so equal texts are one kernel."""
        body = f"({', '.join(self.parameters)}) {{\n" + "\n".join(self.lines) + "\n}\n"
        name = "e_" + hashlib.sha1((attributes + body).encode()).hexdigest()[:16]
        text = f"kernel {attributes}void {name}{body}"
        return Call(text, name, (), tuple(self.values), tuple(size), tuple(local), generated=True)


def lanes(width: int) -> str:
    return f"({vector('int', width)})({', '.join(map(str, range(width)))})"


def load(source: Source, port: Port, width: int, at: str, target: str | None = None, whole: bool = False) -> None:
    """Declare `target` (default: the port's name) with the elements of the current row that start at `at`.

    `whole`: `at` is a multiple of `width`.
    """
    target = target or port.name
    kind = vector("float", width)
    convert = f"convert_{kind}" if port.converted else ""
    if port.inner == 0:
        source.add(f"const {kind} {target} = ({kind})({single(port, f'q_{port.name}[0]')});")
    elif width == 1:
        source.add(f"const float {target} = {single(port, f'q_{port.name}[{place(port, at)}]')};")
    elif port.inner == 1 and port.ctype == BFLOAT:
        source.add(f"const {kind} {target} = {_vector('at', port, width, whole)}(q_{port.name} + {at});")
    elif port.inner == 1 and port.ctype == "float" and whole and port.alignment % width == 0:
        source.add(f"const {kind} {target} = *(global const {kind}*)(q_{port.name} + {at});")  # one instruction; vload knows no alignment
    elif port.inner == 1:
        source.add(f"const {kind} {target} = {convert}(vload{width}(0, q_{port.name} + {at}));")
    else:
        element = f"q_{port.name}[{place(port, f'({at} + each)')}]"
        source.add(f"{_apart(port)} g_{target}[{width}];", f"for (int each = 0; each < {width}; ++each) g_{target}[each] = {_wide(port, element)};")
        source.add(f"const {kind} {target} = {convert}(vload{width}(0, g_{target}));")


def single(port: Port, element: str) -> str:
    """Return the text of an element as a float."""
    return f"convert_float({element})" if port.converted else _wide(port, element)


def _wide(port: Port, value: str) -> str:
    return f"wide({value})" if port.ctype == BFLOAT else value


def _narrow(port: Port, value: str) -> str:
    return f"narrow({value})" if port.ctype == BFLOAT else value


def _vector(way: str, port: Port, width: int, whole: bool) -> str:
    """Return the function of kernels/common/bf16_operands.h that loads or stores a vector of bf16, aligned or unaligned."""
    return f"{BFLOAT}_{way}{'' if whole and port.alignment % width == 0 else '_any'}{width}"


def _apart(port: Port) -> str:
    """Return the type of elements that are gathered or scattered one at a time."""
    return "float" if port.ctype == BFLOAT else port.ctype


def store(source: Source, port: Port, width: int, at: str, skip: str | None = None, whole: bool = False) -> None:
    """Store the port's value. The first `skip` lanes in memory stay unchanged. `whole`: `at` is a multiple of `width`."""
    value = port.name
    if port.converted:
        value = f"convert_{vector(port.ctype, width)}_sat({value})"
    if width == 1:
        source.add(f"q_{port.name}[{place(port, at)}] = {_narrow(port, value)};")
    elif port.inner != 1:
        source.add(f"{_apart(port)} s_{port.name}[{width}];", f"vstore{width}({value}, 0, s_{port.name});")
        element, one = place(port, f"({at} + each)"), _narrow(port, f"s_{port.name}[each]")
        source.add(f"for (int each = {skip or 0}; each < {width}; ++each) q_{port.name}[{element}] = {one};")
    elif port.ctype == BFLOAT:
        assert skip is None, "only the CPU class moves vectors back, and it has no bf16 operands"
        source.add(f"{_vector('put', port, width, whole)}(q_{port.name} + {at}, {value});")
    elif port.ctype == "float" and whole and port.alignment % width == 0:
        source.add(f"*(global {vector('float', width)}*)(q_{port.name} + {at}) = {value};")
    elif skip is None:
        source.add(f"vstore{width}({value}, 0, q_{port.name} + {at});")
    else:
        mask = f"{lanes(width)} >= ({vector('int', width)})({skip})"
        if port.ctype in MASKS:
            mask = f"convert_{vector(MASKS[port.ctype], width)}({mask})"
        old = f"vload{width}(0, q_{port.name} + {at})"
        source.add(f"vstore{width}(select({old}, {value}, {mask}), 0, q_{port.name} + {at});")


def place(port: Port, at: str) -> str:
    """Return the index of element `at` of the current row."""
    if port.inner in (0, 1):
        return at if port.inner else "0"
    return f"(ulong){at} * {port.name}_step"


def steps(source: Source, ports: Iterable[Port]) -> None:
    """Declare the innermost strides that are neither 0 nor 1."""
    for port in ports:
        if port.inner not in (0, 1):
            source.argument("ulong", f"{port.name}_step", port.inner)
