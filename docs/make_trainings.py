"""Writes the tables of docs/trainings.md and its curves: `python docs/make_trainings.py`. The curves need matplotlib.

The figures are results of benchmarks/detection.py, detect_scenes.py, rcnn.py, crnn.py and ssd300.py.
"""
from __future__ import annotations

import json
import pathlib
import re
from collections.abc import Callable
from typing import Any

DOCS = pathlib.Path(__file__).parent
PAGE, CURVES, RESULTS = DOCS / "trainings.md", DOCS / "charts/trainings.png", DOCS.parent / "benchmarks"
HEAD = ("net", "score", "untrained", "ocaffe", "PyTorch", "images", "iterations x batch", "ms per step", "PyTorch, ms")
STEPS = ("arithmetic", "ocaffe, ms", "torchvision, ms", "ratio", "ocaffe, MiB", "torchvision, MiB", "ratio")


def result(name: str) -> Any:
    return json.loads((RESULTS / f"{name}_h100.json").read_text(encoding="utf-8"))


def rows() -> list[list[str]]:
    """Return the cells of each training."""
    found = []
    for each in result("detection"):
        own, peer = each["ocaffe"], each.get("PyTorch", {})
        scores = [f"{each['untrained']:.3f}", f"{own['map']:.3f}", f"{peer['map']:.3f}" if peer else "-"]
        times = [f"{own['ms']:.1f}", f"{peer['ms']:.1f}" if peer else "-"]
        found.append([each["net"], "mAP", *scores, str(each["images"]), f"{each['iterations']} x {each['batch']}", *times])
    for each in json.loads((RESULTS / "detect_scenes.json").read_text(encoding="utf-8")):
        iterations, score = list(each["map"].items())[-1]
        scores = [f"{each['untrained']:.3f}", f"{score:.3f}", "-"]
        found.append([each["net"], "mAP", *scores, str(each["scenes"]), f"{iterations} x {each['batch']}", f"{each['ms']:.1f}", "-"])
    each = result("rcnn")
    scores = [f"{each['map before']:.3f}", f"{each['map']:.3f}", "-"]
    found.append(["faster_rcnn_zf", "mAP", *scores, str(each["scenes"]), f"{each['iterations']} x 1", f"{each['ms per step']:.1f}", "-"])
    each = result("crnn")
    scores = [f"{each['untrained']['strings']:.3f}", f"{each['ocaffe']['strings']:.3f}", "-"]
    found.append(["crnn", "whole strings", *scores, str(each["images"]), f"{each['iterations']} x {each['batch']}", f"{each['ocaffe']['ms']:.1f}", "-"])
    return found


def steps() -> list[list[str]]:
    """Return the cells of each arithmetic of SSD300's step."""
    found = []
    for math, each in result("ssd300").items():
        if math == "batch":
            continue
        own, peers = each["ocaffe"], each["torchvision"].values()
        ms, memory = (min(peer[name] for peer in peers) for name in ("ms", "MiB"))
        times = [f"{own['ms']:.1f}", f"{ms:.1f}", f"{own['ms'] / ms:.2f}"]
        found.append([math, *times, f"{own['MiB']:.0f}", f"{memory:.0f}", f"{own['MiB'] / memory:.2f}"])
    return found


TABLES: dict[str, tuple[tuple[str, ...], Callable[[], list[list[str]]]]] = {"trainings": (HEAD, rows), "steps": (STEPS, steps)}


def page() -> str:
    """Return the text of the page with new tables."""
    text = PAGE.read_text(encoding="utf-8")
    for name, (head, cells) in TABLES.items():
        lines = [f"| {' | '.join(head)} |", "|---" * len(head) + "|", *(f"| {' | '.join(row)} |" for row in cells())]
        made = "\n".join([f"<!-- table {name} -->", *lines, "<!-- end -->"])
        text = re.sub(rf"<!-- table {name} -->\n.*?<!-- end -->", lambda found, made=made: made, text, flags=re.S)
    return text


def draw() -> None:
    """Draw the losses of each training over its share of iterations."""
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(figsize=(7, 4), layout="constrained")
    for each in result("detection"):
        for framework, style in (("ocaffe", "-"), ("PyTorch", ":")):
            losses = each.get(framework, {}).get("losses", [])
            if losses:
                axes.plot([100 * (index + 0.5) / len(losses) for index in range(len(losses))], losses, style, label=f"{each['net']}, {framework}")
    losses = result("rcnn")["losses"]
    axes.plot([100 * index / (len(losses) - 1) for index in range(len(losses))], losses, label="faster_rcnn_zf, ocaffe")
    axes.set(xlabel="% of the iterations", ylabel="loss", yscale="log")
    axes.grid(alpha=0.3, which="both")
    axes.legend()
    figure.savefig(CURVES, dpi=120)


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
    draw()
