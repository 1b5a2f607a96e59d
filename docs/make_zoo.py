"""Writes README.md of each net of the zoo and the table of docs/zoo.md: `python docs/make_zoo.py`.

The sentences are those of ocaffe/zoo/about.py, the times those of benchmarks/zoo_cpu.json and zoo_h100.json. Everything else follows from the nets' files.
"""
from __future__ import annotations

import functools
import json
import pathlib
import sys
from collections.abc import Iterator
from typing import Any, NamedTuple

from ocaffe import log, proto
from ocaffe.errors import shape_text
from ocaffe.formats.text import read_solver
from ocaffe.memory.report import size_text
from ocaffe.tools.summary import count_text
from ocaffe.zoo import FOLDER
from ocaffe.zoo.about import ABOUT
from ocaffe.zoo.detection_project import is_detector
from ocaffe.zoo.figures import Figures, figures, published_batch
from ocaffe.zoo.segmentation_project import is_segmenter
from ocaffe.zoo.templates import graph_of, is_classifier, names, upgraded, without_data
from ocaffe.zoo.text_project import is_reader

PAGE = pathlib.Path(__file__).with_name("zoo.md")
BENCHMARKS = PAGE.parents[1] / "benchmarks"
DEVICES = {"CPU": "zoo_cpu.json", "H100": "zoo_h100.json"}
UNPREDICTED = "MTCNNData"  # the data layer of nets whose outputs `ocaffe predict` does not know
START, END = "<!-- table figures -->\n", "<!-- end -->"


class Net(NamedTuple):
    """The figures of a net. `parameters`: of the TRAIN net, without the statistics of BatchNorm. `times`: by device, as in the JSON files."""

    figures: Figures
    batch: int
    train: Any
    parameters: int
    times: dict[str, dict[str, float]]


@functools.cache
def measured() -> dict[str, Any]:
    """Return the contents of the JSON files by device, without the figures of busy machines. A file that is missing has no nets."""
    made = {}
    for device, file in DEVICES.items():
        path = BENCHMARKS / file
        found = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {"nets": {}}
        made[device] = {**found, "nets": {name: row for name, row in found["nets"].items() if not row["busy"]}}
    return made


@functools.cache
def net(name: str) -> Net:
    """Return the figures of a net. Ends the program if ABOUT has no row for it."""
    if name not in ABOUT:
        sys.exit(f"{FOLDER / name}: ocaffe/zoo/about.py has no row '{name}': add one")
    batch, train = published_batch(name), upgraded(FOLDER / name / "train_val.prototxt")
    found = figures(name, batch)
    free = without_data(train, found.shape, 1)
    for rule in (rule for layer in free.layer for rule in layer.param):
        rule.ClearField("lr_mult")  # fixed weights are parameters too
    parameters = sum(parameter.count for parameter in graph_of(free, proto.TRAIN).params if parameter.learned)
    times = {device: table["nets"][name] for device, table in measured().items() if name in table["nets"]}
    return Net(found, batch, train, parameters, times)


def ms(value: float) -> str:
    return f"{value:.2g}" if value < 1 else f"{value:.1f}" if value < 100 else f"{value:,.0f}"


def readme(name: str) -> str:
    """Return the README.md of a net: ten lines."""
    about, made, solver = ABOUT[name], net(name), read_solver(FOLDER / name / "solver.prototxt")
    weights = f"{solver.snapshot_prefix}_iter_{solver.max_iter}.caffemodel"
    test = f"`ocaffe test --model zoo/{name}/train_val.prototxt --weights {weights} --iterations {solver.test_iter[0]}`"
    lines = {
        "paper": [about.paper],
        "net": [about.net],
        "size": [", ".join(filter(None, (f"input {shape_text(made.figures.shape)}", about.sizes))), about.output, parameters(made)],
        "one image": [f"{count_text(made.figures.flops)}FLOPs", f"{size_text(made.figures.running)} of memory", *times(made, "forward_ms")],
        "training": [images(made.batch), f"{size_text(made.figures.training or 0)} of memory", *times(made, "train_ms")],
        "data": [about.data, *own_data(name, made)],
        "train": [*filter(None, [about.start]), f"`ocaffe train --solver zoo/{name}/solver.prototxt`", f"test: {test}", about.result],
        "deploy": [deployment(name, made, weights)],
    }
    return "\n".join([f"# {about.title}", "", *(f"- {key}: {'; '.join(parts)}" for key, parts in lines.items())]) + "\n"


def parameters(made: Net) -> str:
    deployed = made.figures.parameters
    counts = f"{made.parameters:,} parameters" + (f" to train, {deployed:,} to deploy" if made.parameters != deployed else "")
    return counts + (", and BatchNorm's statistics" if any(layer.type == "BatchNorm" for layer in made.train.layer) else "")


def images(batch: float) -> str:
    return f"batches of {batch:.0f} images" if batch > 1 else "batches of one image"


def times(made: Net, field: str) -> Iterator[str]:
    """Yield the times of a forward pass or of a training step on the devices of docs/zoo.md."""
    for device, row in made.times.items():
        batch = f", {images(row['batch'])}" if field == "train_ms" and row["batch"] != made.batch else ""
        yield f"{ms(row[field])} ms on the {device}{batch}"


def own_data(name: str, made: Net) -> Iterator[str]:
    """Yield the commands for a reader's own images, if `ocaffe new` adapts the net to them."""
    if is_detector(name):
        yield f"your own images: `ocaffe dataset voc YOURS boxes`, then `ocaffe new {name} --data boxes`"
    elif is_segmenter(name):
        yield f"your own images: `ocaffe dataset masks IMAGES MASKS made`, then `ocaffe new {name} --data made`"
    elif is_reader(name):
        yield f"your own images: `ocaffe new {name} --data FOLDER`, with train.txt, val.txt and labels.txt as `ocaffe dataset text` writes them"
    elif is_classifier(made.train):
        yield f"your own images: `ocaffe new {name} --data FOLDER`"


def deployment(name: str, made: Net, weights: str) -> str:
    if any(layer.type == UNPREDICTED for layer in made.train.layer):
        return f'`ocaffe.Net("zoo/{name}/deploy.prototxt", "{weights}", ocaffe.TEST)` in Python'
    return f"`ocaffe predict --model zoo/{name}/deploy.prototxt --weights {weights} image.jpg`"


def table() -> Iterator[str]:
    """Yield the lines of the table in docs/zoo.md, and a line for each device."""
    head = ["net", "parameters", "FLOPs", "memory", "batch", "memory to train"]
    head += [f"{device}, {kind}" for device in DEVICES for kind in ("1 image", "training")]
    yield f"| {' | '.join(head)} |"
    yield f"|---{'|---:' * (len(head) - 1)}|"
    for name in names():
        made = net(name)
        cells = [name, f"{made.parameters:,}", count_text(made.figures.flops), size_text(made.figures.running), str(made.batch)]
        cells.append(size_text(made.figures.training or 0))
        for device in DEVICES:
            row = made.times.get(device)
            other = f" ({row['batch']})" if row and row["batch"] != made.batch else ""
            cells += [ms(row["forward_ms"]), ms(row["train_ms"]) + other] if row else ["", ""]
        yield f"| {' | '.join(cells)} |"
    yield ""
    for device, found in measured().items():
        if found["nets"]:
            yield f"{device}: {found['device']}, {found['threads']} processor cores.\n"


def page() -> str:
    """Return the text of the page with a new table."""
    before, _, after = PAGE.read_text(encoding="utf-8").partition(START)
    return before + START + "\n".join([*table(), END]) + after.partition(END)[2]


def readmes() -> dict[pathlib.Path, str]:
    """Return the text of each README.md by its path."""
    return {FOLDER / name / "README.md": readme(name) for name in names()}


if __name__ == "__main__":
    log.quiet(2)
    for path, text in readmes().items():
        path.write_text(text, encoding="utf-8")
    PAGE.write_text(page(), encoding="utf-8")
