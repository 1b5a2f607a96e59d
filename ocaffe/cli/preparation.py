"""How images are prepared for a net: by its data layer, by flags, or by the file beside the weights."""
from __future__ import annotations

from typing import Any

import numpy as np

from ocaffe.cli.classify import size_of
from ocaffe.cli.flags import Parser
from ocaffe.errors import Error
from ocaffe.evaluation.preprocessing import Preprocessing, mean_of, of_layer
from ocaffe.evaluation.region_images import RegionImages, is_region_detector
from ocaffe.evaluation.sidecar import sidecar_of
from ocaffe.formats.upgrade import upgrade_net
from ocaffe.layers.base import layer_type

GIVEN = ("resize", "mean", "scale")  # flags that replace settings of the data layer


def preparation_flags(parser: Parser) -> None:
    """Add the flags of GIVEN."""
    parser.flag("resize", "", "HEIGHT,WIDTH of the images before the crop; of detectors of regions: SHORTER,LONGEST sides; default: as in the training")
    parser.flag("mean", "", "mean: a .binaryproto or .npy file, or values separated by commas, blue first; default: as in the training")
    parser.flag("scale", 0.0, "factor after the mean is subtracted; default: as in the training")


def preparation(net: Any, layer: Any | None, place: str, options: Any, name: str) -> Preprocessing | RegionImages:
    """Return the preprocessing of a data layer. Flags replace its settings. Raise Error if neither says them.

    Nets of py-faster-rcnn have its settings, if nothing says others.
    """
    if (layer is None and is_region_detector(upgrade_net(net))) or (layer is not None and layer_type(layer) == "RoIData"):
        return changed(RegionImages.of(layer), options, place, name)
    shape, resized = _input(net), _size(options, name)
    missing = [f"--{flag}" for flag in GIVEN if not getattr(options, flag)]
    if layer is not None:
        base = of_layer(layer, shape, resized, place)
    elif missing or resized is None or shape is None:
        fact = f"the net has no data layer, and there is no {sidecar_of(options.weights)}, so that the preprocessing of its images is not known"
        net_word = "NET" if name == "quantize" else "--model"
        raise Error(fact, place=place, fix=f"give {', '.join(missing)}, or the net of the training as {net_word}")
    else:
        base = Preprocessing(shape, resized, np.zeros(1, np.float32))
    return changed(base, options, place, name)


def _size(options: Any, name: str) -> tuple[int, int] | None:
    """Return the size of --resize, None without it. Raise Error."""
    return size_of(options.resize, "resize", name) if options.resize else None


def changed(base: Preprocessing | RegionImages, options: Any, place: str, name: str) -> Preprocessing | RegionImages:
    """Return the settings with those of the flags in their place. Raise Error if they contradict each other."""
    found = _size(options, name)
    mean = mean_of(options.mean) if options.mean else base.mean
    if isinstance(base, RegionImages):
        if options.scale or mean.shape not in ((1,), (3,)):
            raise Error("--scale, or --mean with an image, is given for a detector of regions", place=f"ocaffe {name}", fix="--mean BLUE,GREEN,RED")
        side, longest = found or (base.side, base.longest)
        return RegionImages(side, longest, mean)
    result = Preprocessing(base.shape, found or base.resized, mean, options.scale or base.scale)
    result.check(place)
    return result


def _input(net: Any) -> tuple[int, int, int] | None:
    """Return channels, height and width of the net's input; None if it has data layers."""
    shapes = [tuple(shape.dim) for layer in upgrade_net(net).layer if layer.type == "Input" for shape in layer.input_param.shape]
    return shapes[0][1:] if shapes and len(shapes[0]) == 4 else None  # type: ignore[return-value]
