"""Every error has a remedy: the call that makes one gives `fix`, or all its callers add one."""
from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from ocaffe import errors
from tests.structure.figures import PRODUCT, python_files, tree

ERRORS = {name for name, value in vars(errors).items() if isinstance(value, type) and issubclass(value, errors.Error)}
METHODS = {"error": 2, "check": 3}  # that make the error of a layer, and their arguments with the remedy
ADDED = {  # where the caller adds the remedy, and its name
    "cli/flags.py": "Parser.error",
    "convert/import_model.py": "Builder.error", "convert/importer": "Builder.error",
    "data/databases": "Database.fault", "data/decoding": "Store.fault, _image_file", "data/sources/database_images.py": "Database.fault",
    "tools/datasets/mean.py": "Database.fault",
    "layers/spec.py": "pycaffe's words, which its tests compare",
    "selftest/selftest.py": "the text of the child process has it",
    "kernels/expression/formula.py": "a ValueError for those who write kernels",
}  # fmt: skip


def without_remedy(path: Path) -> Iterator[int]:
    """Yield the lines of a module that make an error without a remedy."""
    for call in ast.walk(tree(path)):
        if not isinstance(call, ast.Call) or any(word.arg in ("fix", None) for word in call.keywords):
            continue
        name = call.func.id if isinstance(call.func, ast.Name) else call.func.attr if isinstance(call.func, ast.Attribute) else ""
        layers = name in METHODS and len(call.args) < METHODS[name] and not ast.unparse(call.func).startswith(("log.", "verifier.")) and _has_text(call)
        if layers or (name in ERRORS and isinstance(call.func, ast.Name)):
            yield call.lineno


def _has_text(call: ast.Call) -> bool:
    return any(isinstance(each, ast.JoinedStr) or (isinstance(each, ast.Constant) and isinstance(each.value, str)) for each in call.args)


@pytest.mark.parametrize("folder", sorted({path.relative_to(PRODUCT).parts[0] for path in python_files(PRODUCT)}))
def test_every_error_has_a_remedy(folder: str) -> None:
    paths = [path for path in python_files(PRODUCT) if path.relative_to(PRODUCT).parts[0] == folder]
    known = [path for path in paths if not path.relative_to(PRODUCT).as_posix().startswith(tuple(ADDED))]
    assert not [f"{path.relative_to(PRODUCT)}:{line}" for path in known for line in without_remedy(path)]


def test_the_check_finds_an_error_without_remedy(tmp_path: Path) -> None:
    file = tmp_path / "some.py"
    file.write_text('raise Error("a")\nraise Error("a", fix="b")\nself.check(x, "a")\nself.check(x, "a", "b")\nself.error(f"a{x}")\nlog.error("a")\n')
    assert [*without_remedy(file)] == [1, 3, 5]
