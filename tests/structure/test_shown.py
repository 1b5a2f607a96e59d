"""Texts leave the program by the functions of ocaffe/shown.py, one for each medium: no source file goes around them."""
from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.structure.figures import PRODUCT, python_files, tree

OWN = {"shown.py", "support/log.py"}  # the functions themselves
# The parent process reads what they print.
PROTOCOLS = {"data/databases/leveldb_child.py", "data/databases/slot_child.py", "selftest/__main__.py", "selftest/section.py"}
WRITERS = {"html": "markup", "xml.sax.saxutils": "markup", "shlex": "command"}  # modules that only shown.py needs, and its function
RAW = (
    "csv.writer", "csv.DictWriter", "sys.stdout.write", "sys.stderr.write", "sys.stdout.writelines", "sys.stderr.writelines",
    "traceback.print_exc", "traceback.print_exception",
)  # fmt: skip
SAFE = ("markup", "command", "flag", "code_span", "markdown")
TAG = re.compile(r"<[a-z!/]")
# A command of a shell up to the place of a value: the value must be quoted.
COMMAND = re.compile(
    r"(?:\bocaffe (?:[a-z_]+ )+(?:--?[\w-]+ )*|\b(?:mkdir|mv|cp|rm|chmod|ln|cd|tar|export|python -m) (?:-\w+ )*|"
    r"--(?:shape|cut-at|snapshot|solver|model|weights|to|parts|out)[= ])$"
)
NUMBERS = re.compile(r"[,.\d]*[dfgex%]|\d+|,")  # the format of a number
# Values in markup that are no names of users: texts of this program, numbers, and texts made of safe parts. Names in capitals are constants.
MADE = {
    "fit/curves.py": "floor + 16 colour places key unit drawn",
    "fit/page.py": "color text head unit cells numbers _address(picture, 'png') bar kind pictures _address(*_small(picture))",
    "memory/curve_picture.py": "key picture(curves) lines text axis colour line anchor floor + 16",
    "memory/html.py": "key colour role.value picture(schedule, plan) place label anchor text floor + 10 floor turned "
    "size_text(plan.total) size_text(plan.lower_bound) COLOURS.get(life.ref.role, OTHER)",
    "profiling/roofline.py": "name kind percent title summary key phase across floor floor + 18 place[0] launch.kind KINDS[kind] _title(launch)",
    "quantize/page.py": "text ''.join(bars) ''.join(lines) _bar(error) ''.join(cells) _answer(item) wide _png(item.image) caption kind drawn bar",
    "selftest/privacy.py": "re.escape(name) last",  # a regular expression, and the text of a report
    "tools/drawing/diagram.py": "steps node.color weight",
    "tools/drawing/figure.py": "head svg[svg.index('<svg'):]",
    "tools/dumps/page.py": "kind ''.join(cells) _bar(row)",
    "tools/synthetic/voc_writer.py": "width height depth objects int(thing.difficult) thing.xmin thing.ymin thing.xmax thing.ymax",
}
WORDS = {  # values in commands that are words of this program
    "cl/unit_trial.py": "number", "cli/__init__.py": "__version__", "cli/summary.py": "options.model", "cli/train.py": "ids", "cli/zoo.py": "name",
    "graph/build.py": "layer.param.type", "zoo/templates.py": "name MADE_BY[data.type]", "zoo/weights.py": "name",
    "tools/sweep/training_queue.py": "training.folder / SOLVER",  # no shell reads it
    **dict.fromkeys((f"zoo/{kind}project.py" for kind in ("", "detection_", "segmentation_", "text_")), "solver_file net deploy weights"),  # of words_of
}  # fmt: skip


def names_of(call: ast.AST) -> str:
    return ast.unparse(call) if isinstance(call, (ast.Name, ast.Attribute)) else ""


def around(path: Path) -> Iterator[str]:
    """Yield the places of a module where text leaves by another way."""
    for node in ast.walk(tree(path)):
        if isinstance(node, ast.Call) and names_of(node.func) in ("print", *RAW):
            yield f"{node.lineno}: {names_of(node.func)}"
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            modules = [alias.name for alias in node.names] if isinstance(node, ast.Import) else [node.module or ""]
            yield from (f"{node.lineno}: import {module}: use {WRITERS[module]} of ocaffe/shown.py" for module in modules if module in WRITERS)


def unescaped(path: Path, ends: re.Pattern[str] | None) -> Iterator[str]:
    """Yield the values that are put into markup (`ends` is None), or into a command of a shell (they follow a text that `ends` matches)."""
    for node in ast.walk(tree(path)):
        if not isinstance(node, ast.JoinedStr):
            continue
        text = "".join(part.value if isinstance(part, ast.Constant) else "\0" for part in node.values)
        if ends is None and not TAG.search(text):
            continue
        for before, part in zip([None, *node.values], node.values):
            if not isinstance(part, ast.FormattedValue) or is_number(part) or is_safe(part.value) or is_constant(part.value):
                continue
            if ends is None or (isinstance(before, ast.Constant) and ends.search(before.value)):
                yield f"{part.lineno}: {ast.unparse(part.value)}"


def is_constant(value: ast.AST) -> bool:
    """Whether a value is a constant of a module, or computed from constants."""
    if isinstance(value, ast.BinOp):
        return is_constant(value.left) and is_constant(value.right)
    return isinstance(value, ast.Constant) or (isinstance(value, ast.Name) and value.id.isupper())


def is_number(part: ast.FormattedValue) -> bool:
    return part.format_spec is not None and bool(NUMBERS.search(ast.unparse(part.format_spec)))


def is_safe(value: ast.AST) -> bool:
    return isinstance(value, ast.Call) and names_of(value.func) in SAFE


def left(found: Iterator[str], known: str) -> list[str]:
    """Return the values that are not in a text of known ones."""
    return [each for each in found if f" {each.partition(': ')[2]} " not in f" {known} "]


def test_no_module_goes_around_the_functions() -> None:
    paths = {path.relative_to(PRODUCT).as_posix(): path for path in python_files(PRODUCT)}
    assert not [f"{name}:{each}" for name, path in paths.items() if name not in OWN | PROTOCOLS for each in around(path)]
    assert not [f"{name}:{each}" for name, path in paths.items() for each in left(unescaped(path, None), MADE.get(name, ""))]
    assert not [f"{name}:{each}" for name, path in paths.items() for each in left(unescaped(path, COMMAND), WORDS.get(name, ""))]


@pytest.mark.parametrize(
    "line",
    [
        "print(name)", "sys.stdout.write(name)", "import html", "from xml.sax.saxutils import escape", "import shlex", "csv.writer(out)",
        "traceback.print_exc()", "f'<td>{name}</td>'", "f'<svg a=\"{name}\">{x:.1f}'", "f'ocaffe train --solver {path}'",
        "f'first mkdir -p {path}'", "f'--shape={name}:1x3'",
    ],
)
def test_the_check_finds(line: str, tmp_path: Path) -> None:
    file = tmp_path / "some.py"
    file.write_text(f"{line}\n")
    assert [*around(file), *unescaped(file, None), *unescaped(file, COMMAND)]


@pytest.mark.parametrize("line", ["say(name)", "f'<td>{markup(name)}</td>'", "f'<svg a=\"{WIDTH - 2}\">{x:.1f}'", "f'ocaffe train --solver {command(path)}'"])
def test_the_check_accepts(line: str, tmp_path: Path) -> None:
    file = tmp_path / "some.py"
    file.write_text(f"{line}\n")
    assert not [*around(file), *unescaped(file, None), *unescaped(file, COMMAND)]
