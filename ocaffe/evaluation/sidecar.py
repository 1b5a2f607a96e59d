"""The preprocessing beside the weights: a training writes `<prefix>.json`, and `ocaffe predict` reads it.

The file has `size` (channels, height, width of the net's input), `resize` (height and width before the crop), `mean`, `scale`, `channel_order` and
`labels`. `mean` is a list of values, or the name of a .npy file beside it. Of a detector of regions the file has `shorter_side` and `longest` in place of
`size`, `resize` and `scale`.
"""
from __future__ import annotations

import json
import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ocaffe import proto
from ocaffe.data.changes.resample import check_pixels
from ocaffe.errors import Error, shape_text, within
from ocaffe.evaluation.deploy import class_names, data_layer
from ocaffe.evaluation.preprocessing import Padding, Preprocessing, of_layer
from ocaffe.evaluation.region_images import RegionImages
from ocaffe.formats.json_file import misfit, read_json
from ocaffe.formats.numpy_file import read_npy
from ocaffe.layers.base import layer_type
from ocaffe.support import log
from ocaffe.support.files import atomic_write, read_plain
from ocaffe.support.finite import singles
from ocaffe.support.inside import plain_inside

SIDE, LONGEST = "shorter_side", "longest"  # of the images of a detector of regions
ORDERS = {1: "gray", 3: "BGR"}
_FIX = "remove the file, and give --resize, --mean and --scale"
# the types of the file
_IMAGES = {"size": [int], "resize": [int], "mean": (str, [float]), "scale": float, "channel_order": str, "labels": [str],
           "padding?": (None, {"mode": str, "values": [float]})}  # fmt: skip
_REGIONS = {SIDE: int, LONGEST: int, "mean": [float], "labels": [str]}
_WEIGHTS = re.compile(r"((_best)?_iter_\d+(\.ema)?)?\.caffemodel(\.h5)?$")


def sidecar_of(weights: str) -> str:
    """Return the path of the file that belongs to weights: `a_iter_10.caffemodel` has `a.json`."""
    return _WEIGHTS.sub("", weights) + ".json"


def write_sidecar(prefix: str, nets: Sequence[Any]) -> None:
    """Write the preprocessing of a training to `<prefix>.json`. The first of `nets` (NetParameters) with a layer of images counts.

    If it does not say how its images are prepared, an older file is removed, because it would describe another training. A training can do without
    the file, so failures to write it are logged as a warning.
    """
    try:
        _write(prefix, nets)
    except (Error, OSError) as problem:
        log.warning("solver.cpp:57", f"the preprocessing is not written beside the snapshots: {' '.join(str(problem).split())}")


def _write(prefix: str, nets: Sequence[Any]) -> None:
    layer = next(filter(None, map(data_layer, nets)), None)
    path = Path(f"{prefix}.json")
    if layer is not None and layer_type(layer) == "RoIData":
        own = RegionImages.of(layer)
        _put(path, {SIDE: own.side, LONGEST: own.longest, "mean": own.mean.tolist(), "channel_order": ORDERS[3], "labels": class_names(layer)})
        return
    try:
        settings: Preprocessing | None = None if layer is None else of_layer(layer, None, None, prefix)
    except Error:  # `ocaffe predict` then requires flags
        settings = None
    if settings is None or settings.shape[0] not in ORDERS:  # other numbers of channels are no images of `ocaffe predict`
        path.unlink(missing_ok=True)
        return
    mean: Any = settings.mean.ravel().tolist()
    if settings.mean.ndim == 3:
        mean = f"{path.stem}.mean.npy"
        with atomic_write(path.with_name(mean)) as out:
            np.save(out, settings.mean)
    _put(path, {
        "size": list(settings.shape), "resize": list(settings.resized), "mean": mean, "scale": settings.scale,
        "channel_order": ORDERS[settings.shape[0]], "labels": class_names(layer), **({"padding": settings.padding._asdict()} if settings.padding else {}),
    })  # fmt: skip


def _put(path: Path, record: dict[str, Any]) -> None:
    with atomic_write(path) as out:
        out.write(_text(record))
    log.info("solver.cpp:57", f"Preprocessing of the images, for ocaffe predict: {path}")


def _text(record: dict[str, Any]) -> bytes:
    return (json.dumps(record, indent=1) + "\n").encode("utf-8", "surrogateescape")


def input_text(settings: Preprocessing | RegionImages) -> str:
    """Return the input that a net expects, for people who run an exported model elsewhere."""
    if isinstance(settings, RegionImages):
        mean = ", ".join(f"{value:g}" for value in settings.mean)
        return f"values from 0 to 255, BGR, minus {mean}; the shorter side has {settings.side} pixels, the longer one at most {settings.longest}"
    mean = "the mean image" if settings.mean.ndim == 3 else ", ".join(f"{value:g}" for value in settings.mean.ravel())
    order = ORDERS[settings.shape[0]]
    steps = [f"minus {mean}" if settings.mean.any() else "", f"times {settings.scale:g}" if settings.scale != 1 else ""]
    return ", ".join([f"{shape_text(settings.shape)} values from 0 to 255", order, *filter(None, steps)])


def read_sidecar(weights: str) -> tuple[Preprocessing | RegionImages, Sequence[str]] | None:
    """Return the preprocessing and the names of the classes that a training wrote for `weights`. None without such a file. Raise Error if it is damaged.

    The file comes with weights from anywhere. So `mean` may name a plain .npy file in the same folder, and no other file.
    """
    path = sidecar_of(weights)
    if not os.path.lexists(path):
        return None
    try:
        found = read_json(path, dict, "the preprocessing of a training", _FIX, raw=True)
        if wrong := misfit(found, _REGIONS if SIDE in found else _IMAGES):
            raise ValueError(wrong)
        with within(path):
            return (_regions if SIDE in found else _images)(found, path), found["labels"]
    except ValueError as problem:
        raise Error(f"the preprocessing cannot be read: {problem}", place=path, fix=_FIX) from None


def sidecar_files(weights: str, target: str, baked: bool = False) -> dict[Path, bytes]:
    """Return the files that belong to `target`, other weights of the same net, with their contents: a .json, and the mean image if there is one.

    Empty without such a file of `weights`, or if it is that of `target` too. `baked`: the net itself subtracts the mean and applies the scale. Raise Error
    where one file would describe both.
    """
    source, path = sidecar_of(weights), Path(sidecar_of(target))
    found = read_sidecar(weights)
    if found is None:
        return {}
    if os.path.exists(path) and os.path.samefile(source, path):
        if baked:
            fact = f"it says how images are prepared for {weights}, and {target} would have the same file, but does that itself"
            raise Error(fact, place=source, fix="give the new weights a name that does not begin as the old one")
        return {}
    settings, files = read_json(source, dict, "the preprocessing of a training", _FIX, raw=True), dict[Path, bytes]()
    if baked:
        settings["mean"] = [0.0] * len(found[0].mean)
        settings |= {"scale": 1.0} if "scale" in settings else {}
    elif isinstance(settings["mean"], str):
        mean = f"{path.stem}.mean.npy"
        files[path.with_name(mean)] = read_plain(Path(source).with_name(settings["mean"]))
        settings["mean"] = mean
    return {path: _text(settings), **files}


def _regions(found: Any, path: str) -> RegionImages:
    _check_sides(found[SIDE], found[LONGEST])
    return RegionImages(found[SIDE], found[LONGEST], _values(found["mean"]))


def _images(found: Any, path: str) -> Preprocessing:
    if len(found["size"]) != 3 or len(found["resize"]) != 2 or found["size"][0] not in ORDERS:
        raise ValueError(f"size is {found['size']}, not channels (1 or 3), height and width, or resize is {found['resize']}, not height and width")
    (channels, height, width), (high, wide) = found["size"], found["resize"]
    _check_sides(height, width)
    _check_sides(high, wide)
    if found["channel_order"] != ORDERS[channels]:
        raise ValueError(f"channel_order is {found['channel_order']}, not {ORDERS[channels]}")
    mean, given = found["mean"], found.get("padding")
    values = _beside(path, mean) if isinstance(mean, str) else _values(mean)
    modes = proto.ResizeParameter.Pad_mode.keys()
    if given and given["mode"] not in modes:
        raise ValueError(f"mode of padding is {given['mode']}, not {' or '.join(modes)}")
    padding = Padding(given["mode"], tuple(map(float, given["values"]))) if given else None
    singles("scale", found["scale"])
    singles("padding", padding.values if padding else ())
    made = Preprocessing((channels, height, width), (high, wide), values, float(found["scale"]), padding)
    made.check(path)
    return made


def _check_sides(height: int, width: int) -> None:
    if min(height, width) < 1:
        raise ValueError(f"images of {height} x {width} have no pixel")
    check_pixels("images of this preprocessing", height, width, _FIX)


def _values(mean: list[float]) -> np.ndarray:
    if len(mean) not in (1, 3):
        raise ValueError(f"mean has {len(mean)} values, not 1 or 3")
    return singles("mean", mean)


def _beside(path: str, name: str) -> np.ndarray:
    """Return the mean image in the .npy file `name`, which lies beside the file `path`."""
    if os.path.basename(name) != name or name in ("", os.curdir, os.pardir) or not name.endswith(".npy"):
        fact = f"mean is '{name[:200]}', which is no name of a .npy file in its folder"
        raise Error(fact, place=path, fix="copy the mean there, and write its name without folders")
    return singles(name, read_npy(plain_inside(os.path.dirname(path) or os.curdir, name, path), _FIX))


def trained_regions(weights: str) -> RegionImages | None:
    """Return how the training of a detector of regions prepared its images. None if no file beside the weights says it. Raise Error if it is damaged."""
    found = read_sidecar(weights)
    return found[0] if found is not None and isinstance(found[0], RegionImages) else None
