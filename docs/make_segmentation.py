"""Writes the table and the curves of docs/segmentation.md: `python docs/make_segmentation.py [RESULT.json ...]`.

The files are results of benchmarks/segmentation.py. They replace those in benchmarks/segmentation_h100.json. The curves need matplotlib.
"""
from __future__ import annotations

import json
import pathlib
import re
import sys
from typing import Any

DOCS = pathlib.Path(__file__).parent
PAGE, CURVES, RESULTS = DOCS / "segmentation.md", DOCS / "charts/segmentation.png", DOCS.parent / "benchmarks/segmentation_h100.json"
HEAD = ("net", "images", "iterations x batch", "mean IoU", "of the best snapshot", "PyTorch", "untrained", "ms per step", "PyTorch, ms")


def results() -> list[dict[str, Any]]:
    return json.loads(RESULTS.read_text(encoding="utf-8")) if RESULTS.exists() else []


def title(row: dict[str, Any]) -> str:
    """Return the net of a result, and how its training differs from that of `ocaffe new`."""
    first = f", VGG-16 first: {row['backbone']} iterations" if row["backbone"] else ""
    return row["net"] + first + (f", `{row['augment']}`" if row.get("augment") else "")


def table() -> list[str]:
    """Return the lines of the table and the picture, [] without results."""
    lines = []
    for row in results():
        peer = row.get("PyTorch", {})
        scores = [f"{found.get('mean_iou', '-')}" for found in (row["ocaffe"], row.get("best", {}), peer, row["untrained"])]
        ranks = row.get("ranks", 1)
        batch = str(row["batch"]) if ranks == 1 else f"{row['batch']} on each of {ranks} devices"
        cells = [title(row), f"{row['images']} of {row['input'][1]} x {row['input'][2]}", f"{row['iterations']} x {batch}", *scores]
        lines.append(f"| {' | '.join([*cells, str(row['training']['ms']), str(peer.get('ms', '-'))])} |")
    if not lines:
        return []
    tested = results()[0]
    about = f"Scenes for testing: {tested['held_out']}. Device: {tested['device']} (`benchmarks/segmentation.py`)."
    return [about, "", f"| {' | '.join(HEAD)} |", "|---" * len(HEAD) + "|", *lines, "", f"![Mean IoU over the training](charts/{CURVES.name})"]


def page() -> str:
    """Return the text of the page with a new table."""
    text = "\n".join(["<!-- table segmentation -->", *table(), "<!-- end -->"])
    return re.sub(r"<!-- table segmentation -->\n.*?<!-- end -->", lambda found: text, PAGE.read_text(encoding="utf-8"), flags=re.S)


def draw() -> None:
    """Draw the mean IoU of each net over its iterations."""
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(figsize=(7, 4), layout="constrained")
    for row in results():
        axes.plot(*zip(*row["training"]["mean_iou"]), marker="o", markersize=3, label=title(row).replace("`", ""))
    axes.set(xlabel="iteration", ylabel="mean IoU on held-out scenes", ylim=(0, 1))
    axes.grid(alpha=0.3)
    axes.legend()
    figure.savefig(CURVES, dpi=120)


if __name__ == "__main__":
    given = [json.loads(pathlib.Path(file).read_text(encoding="utf-8")) for file in sys.argv[1:]]
    if given:
        RESULTS.write_text(json.dumps(given, indent=1) + "\n", encoding="utf-8")
    PAGE.write_text(page(), encoding="utf-8")
    if results():
        draw()
