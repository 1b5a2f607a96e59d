"""The language of expressions, for example `float t = x0 * s; y0 = t > 0 ? t : 0`.

A text is parsed once and can be written as OpenCL C for any vector width. A formula is a list of assignments separated by `;`.
It looks like C, but all numbers, names and results are floats (`1 / 2` is 0.5). The operators are `+ - * /`, comparisons,
`&& || !` and `c ? a : b`. Both sides of a `?:` are evaluated. FUNCTIONS lists the functions. An assigned name that is not an
output is a local variable, with or without `float` before it.

CPU runtimes do not vectorise scalar kernels reliably. Measured: Intel's runtime is 5 times slower than the memory, and PoCL's
scalar tanh is 2.5 times slower than its float16 tanh. The text is therefore translated to explicit vector code, in which a
comparison is a mask and a choice is `select`.
"""
from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property, lru_cache

_UNARY = "acos fabs exp exp2 expm1 log log2 log1p sqrt rsqrt sin cos tanh erf floor ceil rint trunc sign"
_BINARY = "fmin fmax pow fmod copysign"
FUNCTIONS = dict.fromkeys(_UNARY.split(), 1) | dict.fromkeys(_BINARY.split(), 2)
CONSTANTS = frozenset({"FLT_MIN", "FLT_MAX", "FLT_EPSILON", "INFINITY", "NAN", "M_PI_F"})
_OF_PYTHON = {"nan": "NAN", "inf": "INFINITY"}  # how Python writes such numbers in the text of a formula
_LEVELS = (("||",), ("&&",), ("==", "!="), ("<", ">", "<=", ">="), ("+", "-"), ("*", "/"))  # lowest precedence first
_LOGIC = {"||": "|", "&&": "&"}  # masks are all ones or zero in vectors, 1 or 0 in scalars; bitwise operators work for both
_COMPARISONS = frozenset({"==", "!=", "<", ">", "<=", ">="})
_TOKEN = re.compile(r"\s*(?:(\d+\.?\d*(?:[eE][-+]?\d+)?|\.\d+(?:[eE][-+]?\d+)?)f?|([A-Za-z_]\w*)|(\|\||&&|[=!<>]=|[-+*/<>!?:()=,;]))")


@dataclass(frozen=True)
class Node:
    """A term: `op` is 'number', 'name', an operator, '?:' or the name of a function."""

    op: str
    args: tuple[Node, ...] = ()
    text: str = ""  # of a number or a name


@dataclass(frozen=True)
class Formula:
    """The assignments (name, term) of a text in order."""

    statements: tuple[tuple[str, Node], ...]

    @property
    def assigned(self) -> frozenset[str]:
        return frozenset(name for name, _ in self.statements)

    @property
    def used(self) -> frozenset[str]:
        """The inputs: names that are read before they are assigned."""
        seen: set[str] = set()
        result: set[str] = set()
        for name, term in self.statements:
            result |= {n for n in _names(term) if n not in seen}
            seen.add(name)
        return frozenset(result - CONSTANTS)

    @cached_property
    def terms(self) -> dict[str, Node]:
        """The final term of each assigned name in terms of the inputs. Earlier assignments are substituted.

        Two texts that differ in the names or in the order of their local variables give equal terms.
        """
        found: dict[str, Node] = {}
        for name, term in self.statements:
            found[name] = substituted(term, lambda node: found.get(node.text) if node.op == "name" else None)
        return found

    def code(self, width: int, outputs: Mapping[str, str] | frozenset[str] = frozenset()) -> list[str]:
        """Return C statements for vectors of `width` floats (1: scalars). They declare all assigned names except those in `outputs`."""
        declared = set(outputs)
        lines = []
        for name, term in self.statements:
            prefix = "" if name in declared else f"{vector('float', width)} "
            declared.add(name)
            lines.append(f"{prefix}{variable(name)} = {_Writer(width).number(term)};")
        return lines


def substituted(node: Node, replacement: Callable[[Node], Node | None]) -> Node:
    """Replace every subterm for which `replacement` returns a term, outermost first."""
    found = replacement(node)
    if found is not None:
        return found
    return Node(node.op, tuple(substituted(arg, replacement) for arg in node.args), node.text)


def plain_text(node: Node) -> str | None:
    """Return a term of names, integers, comparisons, && || and `?:` as text with the same meaning in C. Return None for other terms."""
    return _plain(node, 0)


def _plain(node: Node, level: int) -> str | None:
    if node.op in ("name", "number"):
        return node.text if re.fullmatch(r"[a-z_0-9]+", node.text) else None
    if node.op == "?:":
        condition, yes, no = _plain(node.args[0], 1), _plain(node.args[1], 0), _plain(node.args[2], 0)
        return None if level or condition is None or yes is None or no is None else f"{condition} ? {yes} : {no}"
    own = next((index for index, operators in enumerate(_LEVELS[:4], 1) if node.op in operators), None)
    if own is None or own < level:
        return None
    left, right = _plain(node.args[0], own), _plain(node.args[1], own + 1)
    return None if left is None or right is None else f"{left} {node.op} {right}"


def variable(name: str) -> str:
    """Return the C variable of a name. Operands and totals keep their names.

    Scalars and locals get a prefix, so that they do not clash with the kernel's own variables.
    """
    return name if re.fullmatch(r"[xymv]\d+|uniform", name) else f"u_{name}"


def vector(ctype: str, width: int) -> str:
    """Return the type of `width` elements, for example `float` or `float16`."""
    return ctype if width == 1 else f"{ctype}{width}"


@lru_cache(maxsize=4096)
def parse(text: str) -> Formula:
    """Parse a text. Raises ValueError if it is not a formula."""
    return _Parser(text).formula()


def _names(node: Node) -> set[str]:
    if node.op == "name":
        return {node.text}
    return set().union(*(_names(arg) for arg in node.args)) if node.args else set()


class _Parser:
    def __init__(self, text: str) -> None:
        self.text = text
        self.tokens: list[tuple[str, str]] = []
        at, end = 0, len(text.rstrip())
        while at < end:
            match = _TOKEN.match(text, at)
            if match is None:
                raise self.error(f"cannot read {text[at:].strip()[:12]!r}")
            kind = ("number", "name", "sign")[(match.lastindex or 0) - 1]
            word = match[match.lastindex or 0]
            self.tokens.append((kind, _OF_PYTHON.get(word, word)))
            at = match.end()
        self.tokens.append(("end", ""))
        self.at = 0

    def error(self, fact: str) -> ValueError:
        return ValueError(f"expression {self.text!r}: {fact}")

    @property
    def next(self) -> str:
        return self.tokens[self.at][1]

    def take(self) -> tuple[str, str]:
        self.at += 1
        return self.tokens[self.at - 1]

    def expect(self, sign: str) -> None:
        if self.take()[1] != sign:
            raise self.error(f"{sign!r} expected before {' '.join(text for _, text in self.tokens[self.at - 1 :])!r}")

    def formula(self) -> Formula:
        statements = []
        while self.tokens[self.at][0] != "end":
            if self.next == ";":
                self.take()
                continue
            kind, name = self.take()
            if name == "float":
                kind, name = self.take()
            if kind != "name" or name in FUNCTIONS or name in CONSTANTS:
                raise self.error(f"{name!r} cannot be assigned")
            self.expect("=")
            statements.append((name, self.choice()))
            if self.tokens[self.at][0] != "end":
                self.expect(";")
        if not statements:
            raise self.error("nothing is assigned")
        return Formula(tuple(statements))

    def choice(self) -> Node:
        condition = self.binary(0)
        if self.next != "?":
            return condition
        self.take()
        yes = self.choice()
        self.expect(":")
        return Node("?:", (condition, yes, self.choice()))

    def binary(self, level: int) -> Node:
        if level == len(_LEVELS):
            return self.unary()
        left = self.binary(level + 1)
        while self.tokens[self.at][0] == "sign" and self.next in _LEVELS[level]:
            _, operator = self.take()
            left = Node(operator, (left, self.binary(level + 1)))
        return left

    def unary(self) -> Node:
        if self.next in ("-", "!", "+"):
            _, operator = self.take()
            operand = self.unary()
            return operand if operator == "+" else Node(f"unary {operator}", (operand,))
        kind, text = self.take()
        if text == "(":
            inner = self.choice()
            self.expect(")")
            return inner
        if kind == "number":
            return Node("number", text=text)
        if kind != "name":
            raise self.error(f"a value expected, found {text or 'the end'!r}")
        if self.next != "(":
            return Node("name", text=text)
        if text not in FUNCTIONS:
            raise self.error(f"no function {text!r}; known are {', '.join(FUNCTIONS)}")
        self.take()
        args = [self.choice()]
        while self.next == ",":
            self.take()
            args.append(self.choice())
        self.expect(")")
        if len(args) != FUNCTIONS[text]:
            raise self.error(f"{text} takes {FUNCTIONS[text]} arguments, {len(args)} given")
        return Node(text, tuple(args))


class _Writer:
    """Write terms as C of one vector width. A term is a number (floatN) or a mask (intN) and is converted where the other is needed."""

    def __init__(self, width: int) -> None:
        self.width = width
        self.type = vector("float", width)

    def splat(self, text: str) -> str:
        return text if self.width == 1 else f"({self.type})({text})"

    def number(self, node: Node) -> str:
        if node.op == "number":
            text = node.text if re.search(r"[.eE]", node.text) else f"{node.text}.0"
            return self.splat(f"{text}f")
        if node.op == "name":
            return self.splat(node.text) if node.text in CONSTANTS else variable(node.text)
        if node.op == "?:":
            condition, yes, no = self.mask(node.args[0]), self.number(node.args[1]), self.number(node.args[2])
            return f"({condition} ? {yes} : {no})" if self.width == 1 else f"select({no}, {yes}, {condition})"
        if self.is_mask(node):
            return self.number(Node("?:", (node, Node("number", text="1"), Node("number", text="0"))))
        args = [self.number(arg) for arg in node.args]
        if node.op == "unary -":
            return f"(-{args[0]})"
        if node.op in FUNCTIONS:
            return f"{node.op}({', '.join(args)})"
        return f"({args[0]} {node.op} {args[1]})"

    @staticmethod
    def is_mask(node: Node) -> bool:
        return node.op in _COMPARISONS or node.op in _LOGIC or node.op == "unary !"

    def mask(self, node: Node) -> str:
        if node.op in _COMPARISONS:
            return f"({self.number(node.args[0])} {node.op} {self.number(node.args[1])})"
        if node.op in _LOGIC:
            return f"({self.mask(node.args[0])} {_LOGIC[node.op]} {self.mask(node.args[1])})"
        if node.op == "unary !":
            return f"({'!' if self.width == 1 else '~'}{self.mask(node.args[0])})"
        return f"({self.number(node)} != {self.splat('0.0f')})"
