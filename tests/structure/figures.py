"""Figures of the structure of the code: `python -m tests.structure.figures [--json]`.

Launch: the fields of the class Launch, of its subclasses, and of Call, wherever they are defined.
Recorder.launch: its parameters without self.
Decisions by a kernel's name: places in FOLDERS that compare an attribute of NAMES of a launch, a call or a kernel, call a method of it or use it as a part
of a key, and uses of a table of names (`is_product`). A text for people (an f-string), an argument and a copy are none. A program with
its defines as a key is none either: it identifies a build.
setattr: calls in tests, of monkeypatch, of mock, and the builtin one, by the package of ocaffe whose attribute they replace.
Environment variables: those whose names are literals in ocaffe; OCAFFE_* are its own.
Flags: of all commands, each with its own, as --help shows them. --help itself, negatives of switches and old spellings are not counted.
Packages: folders with Python files; a file in the root of ocaffe is one, too. Cycles are those of tests/structure/imports.py.
Files per folder: those of Python and OpenCL, without `__init__.py`.
Upward imports: folders are the packages with their subfolders. They are ordered so that the fewest imports between two of them go up. These are left.
"""
from __future__ import annotations

import argparse
import ast
import functools
import importlib
import itertools
import json
import pathlib
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

from tests.structure.imports import Graph, cycles, file_graph, files_of, package_graph

ROOT = pathlib.Path(__file__).resolve().parents[2]
PRODUCT = ROOT / "ocaffe"
FOLDERS = ("compiler", "graph", "ir", "kernels", "layers", "ops", "passes")  # where no decision should depend on a kernel's name
NAMES = ("family", "function", "name", "program", "what")
NAME_TABLES = ("is_product",)
METHODS = ("endswith", "partition", "removeprefix", "removesuffix", "rpartition", "split", "startswith")
OBJECTS = re.compile(r"call|launch|last|other|schedule|product|pack|kernel")  # the names of launches, calls and kernels
PATCHED = ("ops", "kernels", "passes", "cl", "compiler")  # whose attributes tests replace where they should choose by name
LARGE = 25  # files of a folder that are too many
MOST_IN_CYCLE = 9  # folders of a cycle whose orders can all be tried


@functools.cache
def tree(path: pathlib.Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


def python_files(folder: pathlib.Path) -> list[pathlib.Path]:
    return sorted(path for path in folder.rglob("*.py") if "__pycache__" not in path.parts)


def place(path: pathlib.Path, node: ast.AST) -> str:
    return f"{path.relative_to(ROOT)}:{getattr(node, 'lineno', 0)}"


def classes() -> dict[str, ast.ClassDef]:
    """The classes of the packages that define launches, by name."""
    folders = (PRODUCT / name for name in ("ir", "kernels"))
    return {node.name: node for folder in folders for path in python_files(folder) for node in ast.walk(tree(path)) if isinstance(node, ast.ClassDef)}


def launch_fields() -> dict[str, list[str]]:
    """The annotated fields of Launch, its subclasses and Call."""
    found = classes()
    wanted = {"Launch", "Call"}
    while more := {name for name, node in found.items() if name not in wanted and any(isinstance(base, ast.Name) and base.id in wanted for base in node.bases)}:
        wanted |= more
    return {name: [each.target.id for each in found[name].body if isinstance(each, ast.AnnAssign) and isinstance(each.target, ast.Name)]
            for name in found if name in wanted}  # fmt: skip


def launch_parameters() -> list[str]:
    """The parameters of Recorder.launch."""
    method = next(node for node in classes()["Recorder"].body if isinstance(node, ast.FunctionDef) and node.name == "launch")
    arguments = method.args
    every = [*arguments.posonlyargs, *arguments.args[1:], *filter(None, [arguments.vararg]), *arguments.kwonlyargs, *filter(None, [arguments.kwarg])]
    return [each.arg for each in every]


def name_decisions() -> list[str]:
    """The places that decide by a kernel's name."""
    found = []
    for folder in FOLDERS:
        for path in python_files(PRODUCT / folder):
            for node in ast.walk(tree(path)):
                for child in _deciding(node):
                    found.append(f"{place(path, child)} {ast.unparse(child)}")
    return sorted(set(found), key=lambda text: (text.partition(":")[0], int(text.partition(":")[2].split()[0])))


def _deciding(node: ast.AST) -> Iterator[ast.AST]:
    """The parts of a node that read the name of a kernel in order to decide."""
    parts: list[ast.AST] = []
    if isinstance(node, ast.Compare):
        parts = [part for side in (node.left, *node.comparators) for part in (side.elts if isinstance(side, (ast.Tuple, ast.List, ast.Set)) else [side])]
    elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in METHODS:
        parts = [node.func.value]
    elif isinstance(node, (ast.SetComp, ast.DictComp)):  # the elements of a set, and the keys of a dict
        element = node.key if isinstance(node, ast.DictComp) else node.elt
        parts = list(element.elts) if isinstance(element, ast.Tuple) else [element]
    elif isinstance(node, ast.Subscript):
        parts = list(node.slice.elts) if isinstance(node.slice, ast.Tuple) else [node.slice]
    elif isinstance(node, ast.Attribute) and node.attr in NAME_TABLES and isinstance(node.ctx, ast.Load):
        yield node
    for part in parts:
        if isinstance(part, ast.Attribute) and part.attr in NAMES and OBJECTS.search(ast.unparse(part.value).partition("[")[0].rpartition(".")[2]):
            yield node if isinstance(node, ast.Compare) else part


def setattrs() -> dict[str, Counter[str]]:
    """The calls of setattr in tests: by kind, and those of fixtures by the package of their target."""
    kinds: Counter[str] = Counter()
    packages: Counter[str] = Counter()
    modules = files_of(PRODUCT)
    for path in python_files(ROOT / "tests"):
        names = _imported(tree(path), modules)
        for node in ast.walk(tree(path)):
            if not isinstance(node, ast.Call):
                continue
            function = ast.unparse(node.func)
            if function.endswith("setattr"):
                kinds["setattr of a fixture" if "." in function else "builtin setattr"] += 1
                if "." in function and node.args:
                    packages[_package(node.args[0], names, modules)] += 1
            elif re.search(r"(^|\.)patch(\.object)?$", function) and node.args:
                kinds["mock.patch"] += 1
    return {"kinds": kinds, "targets": packages}


def _imported(module: ast.Module, modules: dict[str, pathlib.Path]) -> dict[str, str]:
    """The names that a test file imports, with the dotted names in ocaffe that they stand for."""
    names: dict[str, str] = {}
    for node in ast.walk(module):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("ocaffe"):
            names |= {alias.asname or alias.name: f"{node.module}.{alias.name}" for alias in node.names}
        elif isinstance(node, ast.Import):
            names |= {alias.asname or "ocaffe": alias.name if alias.asname else "ocaffe" for alias in node.names if alias.name.startswith("ocaffe")}
    return names


def _package(target: ast.expr, names: dict[str, str], modules: dict[str, pathlib.Path]) -> str:
    """The package of ocaffe to which the target of a setattr belongs; "other" for objects and foreign modules."""
    text = target.value if isinstance(target, ast.Constant) and isinstance(target.value, str) else ast.unparse(target)
    first, _, rest = text.partition(".")
    full = f"{names[first]}.{rest}".rstrip(".") if first in names else text
    parts = full.split(".")
    return f"ocaffe.{parts[1]}" if len(parts) > 1 and parts[0] == "ocaffe" and any(name.split(".")[1] == parts[1] for name in modules) else "other"


def environment_variables() -> list[str]:
    """The names of environment variables in the product: literals that begin with OCAFFE_, and those that os.environ is indexed with or asked for."""
    found: set[str] = set()
    for path in python_files(PRODUCT):
        constants = {
            target.id: node.value.value for node in tree(path).body if isinstance(node, ast.Assign) and isinstance(node.value, ast.Constant)
            for target in node.targets if isinstance(target, ast.Name)
        }  # fmt: skip
        for node in ast.walk(tree(path)):
            if isinstance(node, ast.Constant) and isinstance(node.value, str) and re.fullmatch(r"OCAFFE_[A-Z0-9_]+", node.value):
                found.add(node.value)
            key: ast.expr | None = None
            if isinstance(node, ast.Subscript) and ast.unparse(node.value).endswith("environ"):
                key = node.slice
            elif isinstance(node, ast.Call) and node.args and re.search(r"environ\.(get|pop|setdefault)$|getenv$", ast.unparse(node.func)):
                key = node.args[0]
            elif isinstance(node, ast.Compare) and ast.unparse(node.comparators[0]).endswith("environ"):
                key = node.left
            value = constants.get(key.id) if isinstance(key, ast.Name) else key.value if isinstance(key, ast.Constant) else None
            found.update([value] if isinstance(value, str) else [])
    return sorted(found)


def environment_files() -> list[str]:
    """The files that read or write the environment."""
    def uses(node: ast.AST) -> bool:
        return isinstance(node, ast.Attribute) and node.attr in ("environ", "getenv") and ast.unparse(node.value) == "os"

    return [str(path.relative_to(ROOT)) for path in python_files(PRODUCT) if any(map(uses, ast.walk(tree(path))))]


def flags() -> dict[str, list[str]]:
    """The flags of each command, and of each command within a command."""
    commands = importlib.import_module("ocaffe.cli").COMMANDS
    parsers = importlib.import_module("ocaffe.cli.parsers")
    found = {}
    for command in commands:
        own = getattr(importlib.import_module(f"ocaffe.cli.{command.replace('-', '_')}"), "COMMANDS", {})  # NESTED may lack some
        for nested in ((), *((each,) for each in dict.fromkeys([*parsers.NESTED.get(command, ()), *(own if own is not commands else ())]))):
            parser = parsers.parser_of(command, *nested)
            shown = (action for action in parser._actions if action.option_strings and action.help != argparse.SUPPRESS)
            found[" ".join((command, *nested))] = [action.dest for action in shown if action.dest != "help"]
    return found


def folder_graph() -> Graph:
    """The imports between the folders of ocaffe, with their subfolders."""
    graph: Graph = {}
    for name, imported in file_graph(PRODUCT).items():
        folder = name.split(".")[1]
        graph.setdefault(folder, set()).update(other.split(".")[1] for other in imported if other.split(".")[1] != folder)
    return graph


def upward(graph: Graph) -> list[str]:
    """The imports that go up in the best order of the folders. Only those within a cycle can."""
    found = []
    for members in cycles(graph):
        arrows = [(a, b) for a in members for b in graph[a] if b in members]
        tried = itertools.permutations(members) if len(members) <= MOST_IN_CYCLE else [tuple(members)]
        orders = ([(a, b) for a, b in arrows if order.index(a) < order.index(b)] for order in tried)
        found += [f"{a} -> {b}" for a, b in min(orders, key=len)]
    return sorted(found)


def floors(graph: Graph) -> int:
    """The number of packages on the longest path of imports. A cycle counts as one."""
    of = {name: tuple(members) for members in cycles(graph) for name in members}

    @functools.cache
    def height(unit: tuple[str, ...]) -> int:
        below = {of.get(other, (other,)) for name in unit for other in graph.get(name, ())} - {unit}
        return 1 + max(map(height, below), default=0)

    return max(height(of.get(name, (name,))) for name in graph)


def folder_sizes() -> dict[str, int]:
    """The Python and OpenCL files of each folder of ocaffe, without `__init__.py` and without those in its subfolders."""
    files = [path for path in PRODUCT.rglob("*") if path.suffix in (".py", ".cl", ".h") and path.name != "__init__.py"]
    return dict(Counter(str(path.parent.relative_to(ROOT)) for path in files))


def figures() -> dict[str, Any]:
    """All figures, with their members."""
    fields, decisions, variables = launch_fields(), name_decisions(), environment_variables()
    patched, commands = setattrs(), flags()
    packages, folders, sizes = package_graph(PRODUCT), folder_graph(), folder_sizes()
    return {
        "fields of Launch": len(fields["Launch"]),
        "fields of its subclasses": sum(len(own) for name, own in fields.items() if name not in ("Launch", "Call")),
        "fields of Call": len(fields["Call"]),
        "fields": fields,
        "parameters of Recorder.launch": len(launch_parameters()),
        "parameters": launch_parameters(),
        "decisions by a kernel's name": len(decisions),
        "files with decisions by a kernel's name": len({text.partition(":")[0] for text in decisions}),
        "decisions": decisions,
        "setattr in tests": sum(count for kind, count in patched["kinds"].items() if "setattr" in kind),
        "setattr of ops, kernels, passes, cl and compiler": sum(patched["targets"][f"ocaffe.{name}"] for name in PATCHED),
        "setattr by kind": dict(sorted(patched["kinds"].items())),
        "setattr by package": dict(patched["targets"].most_common()),
        "environment variables of ocaffe": sum(name.startswith("OCAFFE_") for name in variables),
        "other environment variables": sum(not name.startswith("OCAFFE_") for name in variables),
        "variables": variables,
        "files that use the environment": len(environment_files()),
        "flags of all commands": sum(map(len, commands.values())),
        "different flags": len({flag for own in commands.values() for flag in own}),
        "flags by command": {command: len(own) for command, own in commands.items()},
        "packages": len(packages),
        "imports between packages": sum(map(len, packages.values())),
        "floors of packages": floors(packages),
        "cycles between packages": len(cycles(packages)),
        "cycles between folders": len(cycles(folders)),
        "folders in cycles": cycles(folders),
        "upward imports between folders": len(upward(folders)),
        "upward": upward(folders),
        "folders with too many files": sum(count > LARGE for count in sizes.values()),
        "files per folder": dict(sorted(sizes.items(), key=lambda item: (-item[1], item[0]))),
    }


def lines(found: dict[str, Any]) -> Iterator[str]:
    """The figures as text: the numbers, then the lists behind them."""
    yield from (f"{name:52} {value:6}" for name, value in found.items() if isinstance(value, int))
    for name, value in found.items():
        if isinstance(value, int):
            continue
        yield from ("", f"{name}:")
        for each in value.items() if isinstance(value, dict) else value:
            key, content = each if isinstance(value, dict) else (each, "")
            text = ", ".join(map(str, content)) if isinstance(content, list) else str(content)
            yield f"  {', '.join(key) if isinstance(key, list) else key:50} {text}".rstrip()


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args(arguments)
    found = figures()
    print(json.dumps(found, indent=1) if args.json else "\n".join(lines(found)))


if __name__ == "__main__":
    main()
