"""Split insertion: a blob with several consumers gets a Split layer, with Caffe's names. It maps a message to a message."""
from __future__ import annotations

from collections import defaultdict
from typing import Any

from ocaffe.graph.bottoms import unknown_bottom

Producer = tuple[int, int]  # layer index, top index


def split_layer_name(blob: str, layer: str, top: int) -> str:
    return f"{blob}_{layer}_{top}_split"


def split_blob_name(blob: str, layer: str, top: int, k: int) -> str:
    return f"{split_layer_name(blob, layer, top)}_{k}"


def insert_splits(net: Any) -> Any:
    """A NetParameter in which every value has at most one consumer. A loss weight on a top counts as a consumer. Raises Error for an unknown bottom."""
    last: dict[str, Producer] = {}
    source: dict[tuple[int, int], Producer] = {}  # (layer, bottom index) -> the top that it reads
    uses: dict[Producer, int] = defaultdict(int)
    weight: dict[Producer, float] = {}
    for i, layer in enumerate(net.layer):
        for j, name in enumerate(layer.bottom):
            if name not in last:
                raise unknown_bottom(net, i, j)
            source[i, j] = last[name]
            uses[last[name]] += 1
        for j, name in enumerate(layer.top):
            last[name] = (i, j)
        for j, value in enumerate(layer.loss_weight[: len(layer.top)]):
            if value:
                weight[i, j] = value
                uses[i, j] += 1
    result = type(net)()
    result.CopyFrom(net)
    del result.layer[:]
    given: dict[Producer, int] = defaultdict(int, dict.fromkeys(weight, 1))
    for i, layer in enumerate(net.layer):
        copy = result.layer.add()
        copy.CopyFrom(layer)
        for j in range(len(layer.bottom)):
            producer = source[i, j]
            if uses[producer] > 1:
                owner = net.layer[producer[0]]
                copy.bottom[j] = split_blob_name(layer.bottom[j], owner.name, producer[1], given[producer])
                given[producer] += 1
        for j, name in enumerate(layer.top):
            if uses[i, j] < 2:
                continue
            split = result.layer.add(name=split_layer_name(name, layer.name, j), type="Split", bottom=[name], source_line=layer.source_line)
            split.top.extend(split_blob_name(name, layer.name, j, k) for k in range(uses[i, j]))
            if (i, j) in weight:  # the first top of the split carries the loss
                copy.loss_weight[j] = 0
                split.loss_weight.extend([weight[i, j]] + [0.0] * (uses[i, j] - 1))
    return result
