"""The generated pages agree with the code, and each page is in a table of contents."""
from __future__ import annotations

import fnmatch
import importlib
import pathlib
import re

import pytest

from docs import conf
from ocaffe.cli import COMMANDS
from ocaffe.tools.datasets.box_databases import FORMATS

pytestmark = pytest.mark.quick

DOCS = pathlib.Path(__file__).resolve().parents[2] / "docs"
CLI = DOCS.parent / "ocaffe" / "cli"


PAGES = (
    "make_commands", "make_devices", "make_fork_fields", "make_matrix_units", "make_modern_nets", "make_onnx_consumers", "make_segmentation",
    "make_solver_fields", "make_targets", "make_trainings",
)  # fmt: skip


@pytest.mark.parametrize("name", PAGES)
def test_page_is_fresh(name: str) -> None:
    made = importlib.import_module(f"docs.{name}")
    assert made.PAGE.read_text(encoding="utf-8") == made.page(), f"run `python docs/{name}.py`"


def test_commands_have_their_flags() -> None:
    page = (DOCS / "commands.md").read_text(encoding="utf-8")
    assert set(re.findall(r"^## (\S+)$", page, re.MULTILINE)) == set(COMMANDS)
    assert "| `--solver SOLVER` |" in page


def test_nested_commands_have_their_flags() -> None:
    """The modules say the names, so that a command that is in no table of its parent is missed too."""
    modules = [importlib.import_module(f"ocaffe.cli.{path.stem}") for path in CLI.glob("*.py") if path.stem != "__init__"]
    names = [str(module.NAME) for module in modules if " " in getattr(module, "NAME", "")] + [f"dataset {kind}" for kind in FORMATS]
    page = (DOCS / "commands.md").read_text(encoding="utf-8")
    assert sorted(re.findall(r"^### (.+)$", page, re.MULTILINE)) == sorted(names) and "dataset proposals" in names


def test_fields_of_caffe_have_a_meaning() -> None:
    page = (DOCS / "solver-fields.md").read_text(encoding="utf-8")
    assert re.search(r"\| `momentum2` \| .+ \| float \| 0.999 \|", page)
    assert "` |  |" not in page, "a field of proto/caffe.proto has no comment"


def test_every_page_is_in_a_table_of_contents() -> None:
    index = (DOCS / "index.md").read_text(encoding="utf-8")
    entries = {re.sub(r".*<(.*)>", r"\1", line) for block in re.findall(r"```\{toctree\}\n(.*?)```", index, re.DOTALL) for line in block.splitlines()}
    pages = {path.relative_to(DOCS).with_suffix("").as_posix() for path in DOCS.rglob("*.md")} - {"index"}
    missing = [page for page in pages if not any(fnmatch.fnmatch(page, entry) for entry in entries if entry)]
    assert not missing, "add them to docs/index.md"


def test_paths_of_pages_become_links() -> None:
    source = ["See docs/fit.md (docs/adr/0002-single-assignment.md).\n\n    cat docs/fit.md\n\n`docs/fit.md`, docs/none.md"]
    conf.link_pages(None, "tutorials/own-folder", source)
    assert source[0].startswith("See [](../fit.md) ([](../adr/0002-single-assignment.md)).")
    assert source[0].endswith("\n\n    cat docs/fit.md\n\n`docs/fit.md`, docs/none.md")
