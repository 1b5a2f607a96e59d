"""Count the values of a net on calibration images: a Histogram layer behind each place."""
from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from ocaffe import proto
from ocaffe.api.net import Net as Running
from ocaffe.convert.caffe.net import Net
from ocaffe.errors import Error, names_text
from ocaffe.quantize.counts import Counts
from ocaffe.quantize.images import Images
from ocaffe.quantize.places import Place

Tell = Callable[[int], object]


def observe(net: Net, at: Sequence[Place], images: Images, device: Any = None, tell: Tell = lambda done: None) -> dict[str, Counts]:
    """Return the counts of each place's value. `tell` gets the number of images after each batch. Raise Error for NaN, infinity and constant values."""
    tops = {place.value: (f"{place.value}/counts", f"{place.value}/extremes") for place in at}
    probes = [proto.LayerParameter(name=f"{value}/histogram", type="Histogram", bottom=[value], top=pair) for value, pair in tops.items()]
    message = images.message(net, probes)
    found = {place.value: Counts() for place in at}
    with running(message, net.weights(), [name for pair in tops.values() for name in pair], device) as run:
        for done in images.run(run):
            for value, (counts, extremes) in tops.items():
                found[value].add(np.asarray(run.blobs[counts].data, np.float64).reshape(-1), run.blobs[extremes].data.reshape(-1))
            tell(done)
    for place in at:
        _check(net, place, found[place.value])
    return found


def channel_ranges(net: Net, values: Sequence[str], images: Images, device: Any = None, tell: Tell = lambda done: None) -> dict[str, np.ndarray]:
    """Return the largest magnitude of each channel of values."""
    tops, probes = dict[str, str](), list[Any]()
    for value in dict.fromkeys(values):
        tops[value] = f"{value}/magnitudes"
        probes.append(proto.LayerParameter(name=tops[value], type="AbsVal", bottom=[value], top=[tops[value]]))
        if len(net.shapes[value]) > 2:
            largest = proto.LayerParameter(name=f"{value}/largest", type="Pooling", bottom=[tops[value]], top=[f"{value}/largest"])
            largest.pooling_param.pool, largest.pooling_param.global_pooling = proto.PoolingParameter.MAX, True
            probes.append(largest)
            tops[value] = largest.top[0]
    found = {value: np.zeros(net.shapes[value][1]) for value in tops}
    if not tops:
        return found
    with running(images.message(net, probes), net.weights(), list(tops.values()), device) as run:
        for done in images.run(run):
            for value, top in tops.items():
                found[value] = np.maximum(found[value], run.blobs[top].data.reshape(-1, len(found[value])).max(axis=0))
            tell(done)
    return found


def _check(net: Net, place: Place, counts: Counts) -> None:
    layer = net.producer(place.value)
    if counts.unknown:
        fact = f"its value '{place.value}' has NaN or infinity in {counts.unknown} places on the calibration images"
        raise Error(fact, place=net.place(layer), layer=f"'{layer.name}' ({layer.type})", fix="look at the images and the weights: `ocaffe predict` on one")
    if not counts.total:
        raise Error(f"its value '{place.value}' is empty", place=net.place(layer), layer=f"'{layer.name}' ({layer.type})", fix="give images")


def running(message: Any, arrays: Mapping[str, Sequence[np.ndarray]], keep: Sequence[str], device: Any) -> Running:
    """Return a running net with these weights, of which the blobs `keep` are read. Close it. Raise Error for weights that no layer has."""
    made = Running(message, proto.TEST, keep=[*keep, *inputs_of(message)], device=device)
    try:
        load(made, arrays)
    except BaseException:
        made.close()
        raise
    return made


def inputs_of(message: Any) -> list[str]:
    """Return the blobs of the Input layers: images are written into them, so no other blob may use their memory."""
    return [top for layer in message.layer if layer.type == "Input" for top in layer.top]


def load(net: Running, arrays: Mapping[str, Sequence[np.ndarray]]) -> None:
    """Give a running net these weights. Raise Error for layers that have none."""
    network = net._network
    lacking = sorted({parameter.layer for parameter in network.graph.params if parameter.layer not in arrays})
    if lacking:
        raise Error(f"there are no weights for {names_text(lacking)}", fix="give the weights of this net")
    for parameter in network.graph.params:
        array = np.asarray(arrays[parameter.layer][parameter.index], np.float32)
        network.session.write(parameter.data, array.reshape(parameter.shape))
