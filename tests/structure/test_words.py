"""Block and job have one meaning each in names of Python (docs/glossary.md). Part and window are ordinary words too, so that no list of names is exact."""
from __future__ import annotations

import ast
import functools
import pathlib
import re

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2] / "ocaffe"
WORD = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+")
FORMS = {"block": {"block", "blocks", "blocked"}, "job": {"job", "jobs"}}
FOLDERS = {  # where a name with the word has its meaning
    "block": ("kernels", "passes", "ir"),  # a block of channels
    "job": ("kernels/convolution/blocks_gpu", "passes", "ir", "lint"),  # one of several tasks that share a launch; but in lint a solver with its nets
}
NAMES = {  # other names that have the meaning of the glossary, and names that others chose
    "block": {
        "compiler/compile.py": "blocks", "selftest/compare.py": "blocked", "selftest/layers.py": "blocked_net",
        # operands of OpenCL functions: programs keep their texts
        "data/changes/augment.py": "block", "data/changes/transform.py": "block", "data/sources/floats.py": "block", "solver/update.py": "blocks",
        # of LevelDB, Pillow, tar, a layer type of a fork and messages of forks
        "data/databases/writer.py": "block_size", "data/decoding/decode.py": "set_block_size", "data/stores/shards.py": "_TAR_BLOCK",
        "data/sources/slices.py": "block_size",
        "layers/dense_block.py": "DenseBlock dense_block", "layers/pass_through.py": "block_height block_width",
    },
    # A flag; the rules of lint.
    "job": {"cli/sweep.py": "jobs_per_device", "cli/lint.py": "JOB_RULES"},
}


@functools.cache
def names_of(path: pathlib.Path) -> set[str]:
    """Return all names in a file: of variables, attributes, parameters, functions, classes, modules, and its own."""
    found = {path.stem}
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        values = (getattr(node, each, None) for each in ("id", "attr", "arg", "name", "asname", "module"))
        found.update(part for value in values if isinstance(value, str) for part in value.split("."))
    return found


@pytest.mark.parametrize("word", FORMS)
def test_names_with_a_word_have_its_meaning(word: str) -> None:
    found = {}
    for path in sorted(ROOT.rglob("*.py")):
        place = path.relative_to(ROOT).as_posix()
        names = {name for name in names_of(path) if FORMS[word] & {each.lower() for each in WORD.findall(name)}}
        if names and not place.startswith(tuple(f"{folder}/" for folder in FOLDERS[word])):
            found[place] = " ".join(sorted(names))
    assert found == NAMES[word], f"the meaning of '{word}' is in docs/glossary.md: choose another word, or add a name that has this meaning"
