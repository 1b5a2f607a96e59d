"""The table of passes in docs/pipeline.md lists the passes of the pipeline, in their order."""
from __future__ import annotations

import pathlib
import re
from functools import partial
from typing import Any

from ocaffe.ir.rates import Rates
from ocaffe.ir.target import Target
from ocaffe.passes.fit import Fit
from ocaffe.passes.optimise import pipeline

ROOT = pathlib.Path(__file__).resolve().parents[2]


def test_table_of_passes() -> None:
    text = (ROOT / "docs/pipeline.md").read_text()
    listed = re.findall(r"^\| `(\w+)` \|", text[text.index("\n## Passes") : text.index("\n## Debug switches")], re.MULTILINE)
    linked = Target(rates=Rates(to_host=1e10, from_host=1e10))
    for settings, absent in (
        ({"recomputes": True}, {"sum_batches", "fit", "offload", "spread_copies"}),
        ({"recomputes": False}, {"recompute", "fit", "offload", "spread_copies"}),
        ({"recomputes": True, "target": linked, "limited": True, "fit": Fit(1, linked.rates)}, {"recompute", "sum_batches"}),
    ):
        passes = pipeline(**{"target": Target(), "prepacked": {}, "join": True, **settings})  # type: ignore[arg-type]
        runs: list[Any] = [entry.run.func if isinstance(entry.run, partial) else entry.run for entry in passes]
        names = ["offload" if run.__name__ == "offload_to_fit" else run.__module__.rpartition(".")[2] for run in runs]
        if "fit" in names:
            names.remove("elementwise_fusion")  # the first of two
        assert [name for name in listed if name not in absent] == names
