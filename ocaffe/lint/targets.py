"""Finds what the compiler of a chip refuses of a net: `ocaffe lint --target`."""
from __future__ import annotations

import collections
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from ocaffe import proto
from ocaffe.convert.caffe.modern import modernize
from ocaffe.convert.caffe.net import Net
from ocaffe.convert.deploy import DATA, likely_shape
from ocaffe.convert.targets import rules  # noqa: F401 (they register themselves)
from ocaffe.convert.targets.rewriter import Rewriter
from ocaffe.convert.targets.table import Around, Fault, Table, factor_of, origin_of
from ocaffe.errors import Error
from ocaffe.formats.states import stages_of
from ocaffe.ir.graph import Blob, Node
from ocaffe.lint.data import absent
from ocaffe.lint.rules import Finding, Job, View, is_loss
from ocaffe.shown import command, flag, path_word

RULE = "target"  # the name of the rule


def check_target(job: Job, table: Table, weights: str = "") -> Iterator[Finding]:
    """Yield a finding for each thing that the target refuses of a layer in TEST. Without shapes, only types and fields are judged.

    `weights`: the file that the remedy names.
    """
    for view in job.tests or job.views:
        graph = view.shaped
        nodes = {} if graph is None else {node.name: node for node in graph.nodes}
        producers = {top: (node.layer.param, node.bottoms) for node in nodes.values() for top in node.tops}
        makers, remade, outputs = dict[str, str](), collections.Counter[str](), _outputs(view.layers)
        for layer in view.layers:
            node = nodes.get(layer.name)
            before = [makers.get(name, "") for name in layer.bottom]
            if not (layer.type == "Scale" and before[:1] == ["BatchNorm"]):
                remade.update(set(layer.top) & set(layer.bottom))
            inner = node.bottoms if node else ()
            unread = [top for top in layer.top if outputs.get(top) is layer]
            dropped = len(unread) if len(unread) < len(layer.top) else 0
            remakes = max((remade[name] for name in layer.top), default=0)
            around = Around(before, outputs, remakes, partial(_factors, inner, producers), partial(_origin, inner, producers), dropped)
            makers |= dict.fromkeys(layer.top, layer.type)
            bottoms, tops = ([blob.shape for blob in blobs] for blobs in ((node.bottoms, node.tops) if node else ((), ())))
            for fault in table.faults(layer, bottoms, tops, around):
                if not fault.claimed:
                    continue
                yield view.finding(RULE, layer, fault.fact, _remedy(view, node, fault, table, weights), fault.path)


def _factors(bottoms: Sequence[Blob], producers: Mapping[Blob, tuple[Any, list[Blob]]]) -> list[Blob | None]:
    return [factor_of(blob, producers.get) for blob in bottoms]


def _origin(bottoms: Sequence[Blob], producers: Mapping[Blob, tuple[Any, list[Blob]]]) -> tuple[Any, int] | None:
    found = origin_of(bottoms[0], producers.get) if bottoms else None
    return found and (found[0], len(found[1][0].shape) if found[1] else 0)


def _outputs(layers: Iterable[Any]) -> dict[str, Any]:
    """Return the blobs whose last values no layer reads, and the layers that make these."""
    found = dict[str, Any]()
    for layer in layers:
        for name in layer.bottom:
            found.pop(name, None)
        found |= dict.fromkeys(layer.top, layer)
    return found


def _remedy(view: View, node: Node | None, fault: Fault, table: Table, weights: str) -> str:
    """Return the command that expresses the layer by others, or what prevents it. It also removes what only a training needs."""
    trained = node is not None and (not node.bottoms or is_loss(node.layer.param) or node.type == "Accuracy")
    problem = _problem(node, table) if node is not None and not trained else None
    if problem is not None:
        why = "" if problem == fault.fact else f": {problem}"
        return f"end the net before this layer (--cut-at of `ocaffe convert`){why}"
    source = Path(view.file.path)
    beside = source.with_suffix(".caffemodel")
    weights = weights or (str(beside) if beside.exists() else "")
    names = source, weights or "WEIGHTS.caffemodel", f"{source.stem}_{table.name}.prototxt", f"{source.stem}_{table.name}.caffemodel"
    fed = [layer for layer in view.layers if not layer.bottom and layer.type in DATA and layer.top]
    shapes = ",".join([*(likely_shape(layer.top[0], [layer])[0] for layer in fed if absent(layer)), *view.inputs])
    stages = ",".join(stages_of(view.net.state))
    flags = [*([flag("stage", stages)] if stages else []), *([flag("shape", shapes)] if shapes else [])]
    line = " ".join([command("ocaffe", "convert", *map(path_word, map(str, names)), f"--target={table.name}"), *flags])
    return f"`{line}` writes layers that it takes, from {'these' if weights else 'your'} weights"


def _root(blob: Blob) -> Blob:
    """Return the blob of which a Split has made this one."""
    while blob.producer is not None and blob.producer.type == "Split":
        blob = blob.producer.bottoms[0]
    return blob


def _problem(node: Node, table: Table) -> str | None:
    """Say why the target has no layers for this one, None if it has."""
    roots = list(map(_root, node.bottoms))
    bottoms = [f"bottom{roots.index(blob)}" for blob in roots]
    tops = [f"top{number}" for number in range(len(node.tops))]
    layers, shapes = [], {name: tuple(blob.shape) for name, blob in zip(bottoms, roots)}
    arrays = {}
    for name, blob in dict(zip(bottoms, roots)).items():
        maker = blob.producer
        if maker is not None and maker.type in table.makers and len(maker.tops) == 1:  # a limit depends on it
            inner = [f"{name}_{number}" for number in range(len(maker.bottoms))]
            shapes |= {each: tuple(bottom.shape) for each, bottom in zip(inner, maker.bottoms)}
            layers += [proto.LayerParameter(name=each, type="Input", top=[each], input_param={"shape": [{"dim": shapes[each]}]}) for each in inner]
            layer = proto.LayerParameter()
            layer.CopyFrom(maker.layer.param)
            layer.name, layer.bottom[:], layer.top[:] = name, inner, [name]
            arrays[name] = [np.zeros(tuple(each.shape), np.float32) for each in maker.layer.parameters()]
            layers.append(layer)
            continue
        constant = blob.producer is not None and blob.producer.type == "Parameter"
        layer = proto.LayerParameter(name=name, type="Parameter" if constant else "Input", top=[name])
        (layer.parameter_param.shape if constant else layer.input_param.shape.add()).dim.extend(blob.shape)
        layers.append(layer)
    own = proto.LayerParameter()
    own.CopyFrom(node.layer.param)
    own.bottom[:], own.top[:] = bottoms, tops
    own.name = "own"
    arrays |= {own.name: [np.zeros(tuple(each.shape), np.float32) for each in node.layer.parameters()]}
    arrays |= {layer.name: [np.zeros(shapes[layer.name], np.float32)] for layer in layers if layer.type == "Parameter"}
    shapes |= {name: tuple(blob.shape) for name, blob in zip(tops, node.tops)}
    try:
        net = Net([*layers, own], arrays, tops, shapes)
        modernize(net)  # as the conversion does first
        Rewriter(net, table, "").run()
    except Error as problem:
        return problem.fact if (problem.layer or "").startswith("'own") else None
    return None
