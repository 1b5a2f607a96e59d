"""Import cycles between the packages and between the files of ocaffe.

`python -m tests.structure.imports [FOLDER]` prints them. Every import statement counts: at the top of a file, inside a function, and under TYPE_CHECKING.
A cycle is a strongly connected component of the import graph with more than one member. Two units that import each other also count as a pair.
"""
from __future__ import annotations

import ast
import pathlib
import sys
from collections import defaultdict
from collections.abc import Mapping, Sequence

ROOT = pathlib.Path(__file__).resolve().parents[2] / "ocaffe"
Graph = dict[str, set[str]]


def files_of(root: pathlib.Path) -> dict[str, pathlib.Path]:
    """Every module below `root`, by its dotted name. The root's own __init__ is left out: it only gathers the public names."""
    result = {}
    for path in sorted(root.rglob("*.py")):
        parts = path.relative_to(root.parent).with_suffix("").parts
        name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
        if name != root.name:
            result[name] = path
    return result


def file_graph(root: pathlib.Path) -> Graph:
    """The modules that each module imports."""
    files = files_of(root)
    graph: Graph = {name: set() for name in files}
    for name, path in files.items():
        package = name if path.name == "__init__.py" else name.rpartition(".")[0]
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            graph[name] |= {found for found in _imported(node, package, files) if found != name}
    return graph


def _imported(node: ast.AST, package: str, files: Mapping[str, pathlib.Path]) -> set[str]:
    """The modules of `files` that one import statement names. `from a import b` names a.b if that is a module, else a."""
    if isinstance(node, ast.Import):
        return {alias.name for alias in node.names if alias.name in files}
    if not isinstance(node, ast.ImportFrom):
        return set()
    base = node.module or ""
    if node.level:
        parents = package.split(".")
        base = ".".join([*parts, *([node.module] if node.module else [])]) if (parts := parents[: len(parents) - node.level + 1]) else base
    named = {f"{base}.{alias.name}" if f"{base}.{alias.name}" in files else base for alias in node.names}
    return {name for name in named if name in files}


def package_graph(root: pathlib.Path) -> Graph:
    """The same between packages. A module that lies directly in the root counts as a package of its own."""
    files = files_of(root)

    def unit(name: str) -> str:
        package = name if files[name].name == "__init__.py" else name.rpartition(".")[0]
        return name if package == root.name else package

    graph: Graph = defaultdict(set)
    for name, imported in file_graph(root).items():
        graph[unit(name)] |= {unit(other) for other in imported if unit(other) != unit(name)}
    return dict(graph)


def cycles(graph: Graph) -> list[list[str]]:
    """Strongly connected components with more than one member (Tarjan, 1972)."""
    order: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []
    found: list[list[str]] = []

    def visit(name: str) -> None:
        order[name] = low[name] = len(order)
        stack.append(name)
        for other in sorted(graph.get(name, ())):
            if other not in order:
                visit(other)
                low[name] = min(low[name], low[other])
            elif other in stack:
                low[name] = min(low[name], order[other])
        if low[name] == order[name]:
            place = stack.index(name)
            members = sorted(stack[place:])
            del stack[place:]
            if len(members) > 1:
                found.append(members)

    sys.setrecursionlimit(max(sys.getrecursionlimit(), 10 * len(graph) + 1000))
    for name in sorted(graph):
        if name not in order:
            visit(name)
    return found


def pairs(graph: Graph) -> list[tuple[str, str]]:
    """Units that import each other directly."""
    return sorted((a, b) for a in graph for b in graph[a] if a < b and a in graph.get(b, ()))


def main(arguments: Sequence[str]) -> None:
    root = pathlib.Path(arguments[0]).resolve() if arguments else ROOT
    for title, graph in (("packages", package_graph(root)), ("files", file_graph(root))):
        found, both = cycles(graph), pairs(graph)
        print(f"{title}: {len(graph)}, cycles: {len(found)} with {sum(map(len, found))} members, pairs that import each other: {len(both)}")
        for members in found:
            print(f"  cycle of {len(members)}: {', '.join(members)}")
        for pair in both:
            print(f"  pair: {' <-> '.join(pair)}")


if __name__ == "__main__":
    main(sys.argv[1:])
