"""Every declared kernel has the operands of its source: the same names, in the same order, read and written as declared."""
from __future__ import annotations

import functools
import importlib
import pathlib
import pkgutil
import re
from collections.abc import Iterator
from typing import Any

import pytest

import ocaffe
from ocaffe.cl.marks import unmarked
from ocaffe.ir.kernel import COUNTERS, SIGN, Access, Can, Kernel, Slot, read, write
from ocaffe.kernels.files import kernel_text

KERNELS = pathlib.Path(ocaffe.__file__).parent / "kernels"
OPERAND = re.compile(r"OPERAND(?:_RESTRICT)?\((const )?(\w+), (\w+)\)")
FUNCTION = re.compile(r"(?:\b(?:kernel|SINGLE)\b(?:(?!\bvoid\b)[^;{}])*\bvoid|\bKERNEL)\s+((?:#[^\n]*\n|\w+\s)*\w*)\s*\(")
DEFINE = re.compile(r"^#define (\w+)(\([\w, ]*\))?(.*)$", re.M)
FAMILIES = tuple(path.stem for path in KERNELS.rglob("*.cl") if "split_sum.h" in path.read_text())  # their programs have the kernel split_sum


@functools.cache
def text_of(name: str, marks: bool = False) -> str:
    """A source file with the headers that it includes, without comments, and each definition of a macro on one line. `marks`: with those of names."""
    text = kernel_text(name)
    text = text if marks else unmarked(text)
    text = re.sub(r"/\*.*?\*/|//[^\n]*", "", text, flags=re.S).replace("\\\n", " ")
    return re.sub(r'#include "(.*?)"', lambda match: text_of(match[1], marks), text)


@functools.cache
def macros(file: str) -> dict[str, str]:
    """The definitions of the macros without parameters. Of several, the one with the most operands."""
    found: dict[str, str] = {}
    for name, parameters, body in DEFINE.findall(text_of(file)):
        if not parameters:
            found[name] = max(found.get(name, ""), body, key=lambda each: len(OPERAND.findall(each)))
    return found


def operands(file: str, parameters: str) -> list[tuple[str, bool]]:
    """The operands in a list of parameters, by name, and whether they are constant. Macros have all that one of their definitions has."""
    parameters = re.sub(r"\bEACH\((\w+)\)", lambda match: _job(file, match[1]), parameters)
    known = macros(file)
    while (expanded := re.sub(r"\b[A-Z_]+\b(?!\()", lambda match: known[match[0]] if _has_operands(known, match[0]) else match[0], parameters)) != parameters:
        parameters = expanded
    return [(name, bool(const)) for const, _, name in OPERAND.findall(parameters)]


def _has_operands(known: dict[str, str], name: str) -> bool:
    body = known.get(name, "")
    return bool(OPERAND.search(body)) or any(_has_operands(known, other) for other in re.findall(r"\b[A-Z_]+\b", body) if other != name and other in known)


def _job(file: str, name: str) -> str:
    """The parameters of job 0 (jobs.h)."""
    body = next(body for macro, parameters, body in DEFINE.findall(text_of(file)) if macro == name and parameters)
    return str(re.sub(r"##n\b", "0", body))


def functions(file: str) -> dict[str, list[tuple[str, bool]]]:
    """The kernels of a file and their operands. Where a file defines a kernel several times, operands of all definitions, in order."""
    text, found = text_of(file), dict[str, list[tuple[str, bool]]]()
    for match in FUNCTION.finditer(text):
        depth, end = 1, match.end()
        while depth and end < len(text):
            depth += {"(": 1, ")": -1}.get(text[end], 0)
            end += 1
        own = operands(file, text[match.end() : end])
        for name in re.sub(r"#[^\n]*", "", match[1]).split():  # one of several names, by a define
            if own:
                found[name] = _merged(found.get(name, []), own)
    return found


def _merged(first: list[tuple[str, bool]], second: list[tuple[str, bool]]) -> list[tuple[str, bool]]:
    """Both lists as one, in which the order of each is kept."""
    result, rest = list[tuple[str, bool]](), list(second)
    for each in first:
        if each in rest:
            place = rest.index(each)
            result += rest[:place]
            rest = rest[place + 1 :]
        result.append(each)
    return [*result, *rest]


def declared() -> Iterator[Kernel]:
    """All kernels that are declared in the package."""
    seen = set[int]()
    for module in pkgutil.walk_packages(ocaffe.__path__, "ocaffe."):
        if module.name.split(".")[1] in ("kernels", "layers", "data", "solver", "selftest", "passes"):
            for value in vars(importlib.import_module(module.name)).values():
                yield from (kernel for kernel in _kernels(value) if id(kernel) not in seen and not seen.add(id(kernel)))  # type: ignore[func-returns-value]


def _kernels(value: Any) -> Iterator[Kernel]:
    if isinstance(value, Kernel):
        yield value
    elif isinstance(value, (list, tuple)):
        for each in value:
            yield from _kernels(each)


def faults(kernel: Kernel) -> list[str]:
    """The differences between a declaration and its source."""
    file, function = kernel.name.split(".")
    source = functions(f"{file}.cl").get(function)
    if source is None:
        return [f"{file}.cl has no kernel {function}"]
    names = [slot.name for slot in kernel.slots]
    found = []
    if names != [name for name, _ in source if name in names]:
        found.append(f"declares {names}, the source has {[name for name, _ in source]}")
    constant = dict(source)
    for slot in kernel.slots:
        # The counters are zero again after the launch, so that it counts as a reader.
        if slot != COUNTERS and slot.name in constant and constant[slot.name] != (slot.access is Access.READ):
            found.append(f"{slot.name} is declared as {slot.access.value}")
    return found


SOURCES = [kernel for kernel in declared() if "." in kernel.name]


@pytest.mark.parametrize("kernel", SOURCES, ids=lambda kernel: kernel.name)
def test_declarations_have_the_operands_of_their_sources(kernel: Kernel) -> None:
    assert faults(kernel) == []


def test_operands_that_a_declaration_lacks_are_optional() -> None:
    """A source may have operands that no declaration names only in a macro or a branch: kernels for a define that is never set."""
    for name in {kernel.name for kernel in SOURCES}:
        file, function = name.split(".")
        known = {slot.name for kernel in SOURCES if kernel.name == name for slot in kernel.slots}
        lacking = [operand for operand, _ in functions(f"{file}.cl")[function] if operand not in known]
        assert not set(lacking) - {"sign", "reduced", "normal", "mean", "inverse", "scale", "shift"}, name


@pytest.mark.parametrize("kernel", SOURCES, ids=lambda kernel: kernel.name)
def test_kernels_of_task_graphs_are_marked(kernel: Kernel) -> None:
    """Both or neither: a kernel that may be part of a task graph, and one whose source marks it. Such a source has no local arrays."""
    file, function = kernel.name.split(".")
    text = kernel_text(f"{file}.cl")
    assert kernel.can.join == (f"ENTRY({function})(" in text)
    assert not (kernel.can.join and re.search(r"^\s+local\s", text_of(f"{file}.cl"), re.M))


DEFINITIONS = (
    re.compile(r"^(?:__attribute__\(\(\w+\)\) |[\w*]+[ *]+)+(\w+)\(", re.M),  # a function, or a type by a macro
    re.compile(r"^(?:typedef [^;{]*?|typedef [^\n]*\} |\} )(\w+(?:\(\w+\))?)(?:\[[^;]*\])?;$", re.M),
    re.compile(r"^constant \w+ (\w+)", re.M),
    re.compile(r"^enum \{\s*(\w+)", re.M),
)


@pytest.mark.parametrize("file", sorted({kernel.file for kernel in SOURCES if kernel.can.join}))
def test_names_of_routines_are_marked(file: str) -> None:
    text = text_of(f"{file}.cl", marks=True)
    found = {name for pattern in DEFINITIONS for name in pattern.findall(text)}
    assert {name for name in found - {"__attribute__"} if not name.startswith(("ENTRY", "OWN")) and f"#define {name}" not in text} == set()
    assert "ENTRY" in found


@pytest.mark.parametrize("file", FAMILIES)
def test_the_sum_of_splits_has_the_operands_of_its_source(file: str) -> None:
    from ocaffe.kernels.matmul.gemm_gpu import _split_sum

    assert faults(_split_sum(file)) == []


@pytest.mark.parametrize(
    ("slots", "fault"),
    [
        ((read("x"), write("mask"), Slot("more", Access.READ)), "declares"),
        ((write("mask"), read("x")), "declares"),
        ((read("x"), read("mask")), "mask is declared as r"),
        ((read("x"), SIGN, write("mask")), "declares"),
    ],
)
def test_wrong_declarations_are_found(slots: tuple[Slot, ...], fault: str) -> None:
    assert any(fault in each for each in faults(Kernel("sign_mask.pack", *slots, can=Can())))
    assert faults(Kernel("sign_mask.pack", read("x"), write("mask"))) == []
    assert faults(Kernel("sign_mask.other")) == ["sign_mask.cl has no kernel other"]
