"""The table of passes in docs/pipeline.md lists the passes of the pipeline, in their order."""
from __future__ import annotations

import pathlib
import re
from functools import partial
from typing import Any

from ocaffe.ir.target import Target
from ocaffe.passes.optimise import pipeline

ROOT = pathlib.Path(__file__).resolve().parents[2]


def test_table_of_passes() -> None:
    text = (ROOT / "docs/pipeline.md").read_text()
    listed = re.findall(r"^\| `(\w+)` \|", text[text.index("\n## Passes") : text.index("\n## Debug switches")], re.MULTILINE)
    for recomputes, absent in ((True, "sum_batches"), (False, "recompute")):  # no plan has both
        passes = pipeline(Target(), recomputes=recomputes, prepacked={}, join=True)
        runs: list[Any] = [entry.run.func if isinstance(entry.run, partial) else entry.run for entry in passes]
        assert [name for name in listed if name != absent] == [run.__module__.rpartition(".")[2] for run in runs]
