"""Choose the grid of each value: the method whose rounding changes the products that read the value least."""
from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ocaffe import proto
from ocaffe.convert.caffe.net import Net
from ocaffe.ir.tensor import Shape
from ocaffe.layers.base import layer_type
from ocaffe.quantize.counts import Counts
from ocaffe.quantize.grid import Grid, grid
from ocaffe.quantize.images import Images
from ocaffe.quantize.measure import difference, sum_of_squares
from ocaffe.quantize.observe import Tell, running
from ocaffe.quantize.places import Place
from ocaffe.quantize.scheme import Scheme
from ocaffe.quantize.simulate import copied, fake_quantize
from ocaffe.quantize.table import Entry
from ocaffe.quantize.thresholds import METHODS, squared_error

AUTO = "auto"
NEAR_ZERO = 1e-2  # of the mean power of images


def choose(
    net: Net, at: Sequence[Place], counts: Mapping[str, Counts], scheme: Scheme, method: str, images: Images, device: Any = None,
    tell: Tell = lambda done: None,
) -> dict[str, Entry]:  # fmt: skip
    """Return the grid of each place. `images`: those on which `auto` measures the error of the outputs; another method needs none."""
    candidates = {place.value: _candidates(counts[place.value], scheme, method) for place in at}
    errors = _errors(net, at, candidates, images, device, tell) if method == AUTO else {}
    found = {}
    for place in at:
        value, own = counts[place.value], candidates[place.value]
        power = value.moment(2) or 1.0
        # Without a product that reads the value, its own squared error decides.
        measured = errors.get(place.value) or {name: squared_error(value, on) / power for name, on in own.items()}
        best = min(own, key=lambda name: measured[name])
        found[place.value] = Entry(place.layer, own[best], best, value.low, value.high, float(measured[best]))
    return found


def _candidates(counts: Counts, scheme: Scheme, method: str) -> dict[str, Grid]:
    """Return the different grids of the methods, each by the first method that gives it."""
    names = list(METHODS) if method == AUTO else [method]
    found = dict[str, Grid]()
    for name in names:
        made = grid(*METHODS[name](counts, scheme), scheme)
        if made not in found.values():
            found[name] = made
    return found


def _errors(
    net: Net, at: Sequence[Place], candidates: Mapping[str, Mapping[str, Grid]], images: Images, device: Any, tell: Tell
) -> dict[str, dict[str, float]]:
    """Return the squared error of the products that read a value, by value and method, as a share of the square of their outputs; the mean over all images.

    A product is linear. So its error is its output for the rounding error of the value, without its bias. A share for each image, because a few images with
    very large values would decide alone.
    """
    made = copied(net)
    for layer in made.layers:
        if any(layer.name in place.readers for place in at):
            _name_weights(layer)
    probes, sums = list[Any](), dict[tuple[str, str], list[tuple[str, str]]]()  # of a value and a method: the outputs of readers, and the sums of squares
    arrays, layers = dict(made.weights()), {layer.name: layer for layer in made.layers}
    for place in at:
        for method, on in candidates[place.value].items() if len(candidates[place.value]) > 1 else ():
            for name in place.readers:
                reader = layers[name]
                stem, value = f"{place.value}/{method}/{name}", reader.bottom[0]  # perhaps behind layers that move values
                rounding, arrays[f"{stem}/grid"] = fake_quantize(f"{stem}/grid", value, f"{stem}/rounded", on)
                error = difference(f"{stem}/rounded", value, f"{stem}/error")
                probes += [rounding, error, *_squares(reader, f"{stem}/error", stem, made.shapes[reader.top[0]])]
                sums.setdefault((place.value, method), []).append((reader.top[0], probes[-1].top[0]))
    outputs = list(dict.fromkeys(output for pairs in sums.values() for output, _ in pairs))
    probes += [sum_of_squares(output, f"{output}/power", made.shapes[output]) for output in outputs]
    found: dict[str, dict[str, float]] = {}
    tops = [*(top for pairs in sums.values() for _, top in pairs), *(f"{output}/power" for output in outputs)]
    if not tops:
        return found
    with running(images.message(made, probes), arrays, tops, device) as run:
        for done in images.run(run):
            squares = {top: np.asarray(run.blobs[top].data, np.float64).reshape(-1) for top in tops}
            for (value, method), pairs in sums.items():
                own = found.setdefault(value, {})
                own[method] = own.get(method, 0.0) + sum(_share(squares[top], squares[f"{output}/power"]) for output, top in pairs) / images.batches
            tell(done)
    return found


def _share(errors: np.ndarray, powers: np.ndarray) -> float:
    """Return the mean error of images as a share of each image's power. That of an image near zero is a part of the mean."""
    return float((errors / np.maximum(powers, max(NEAR_ZERO * float(powers.mean()), 1e-30))).mean())


def _name_weights(layer: Any) -> None:
    """Give the weights of a product a name, by which other layers share them."""
    if not layer.param:
        layer.param.add()
    if not layer.param[0].name:
        layer.param[0].name = f"{layer.name}/weights"


def _squares(reader: Any, bottom: str, stem: str, shape: Shape) -> list[Any]:
    """Return a product like `reader`, with its weights and without its bias, on another bottom, and the sum of its squares for each image."""
    product = proto.LayerParameter()
    product.CopyFrom(reader)
    product.name, product.bottom[:], product.top[:] = stem, [bottom], [f"{stem}/product"]
    del product.param[1:]
    own = product.inner_product_param if layer_type(reader) == "InnerProduct" else product.convolution_param
    own.bias_term = False
    return [product, sum_of_squares(f"{stem}/product", f"{stem}/squares", shape)]

