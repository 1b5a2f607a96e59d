"""The flags --imdb and --cfg of py-faster-rcnn's tools: the database of images, and settings from a file, for the layers of a net.

Source: rbgirshick/py-faster-rcnn, tools/train_net.py and lib/fast_rcnn/config.py; YuwenXiong/py-R-FCN for AGNOSTIC.
"""
from __future__ import annotations

import difflib
import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from ocaffe import proto
from ocaffe.errors import Error
from ocaffe.formats.param_str import read_value, with_settings
from ocaffe.layers.base import layer_type
from ocaffe.support import log
from ocaffe.support.files import read_plain, to_read

SAMPLED = (5, 6)  # tops of a RoIData for Fast R-CNN
PHASES = {"TRAIN": proto.TRAIN, "TEST": proto.TEST}  # the sections of a file


class Setting(NamedTuple):
    """Where a value goes: the name in param_str, and the types of layers. `Sample` is a RoIData for Fast R-CNN."""

    name: str
    layers: tuple[str, ...]


_IMAGES, _SAMPLE, _ANCHORS, _PROPOSALS = ("RoIData",), ("Sample", "ProposalTarget"), ("AnchorTarget",), ("Proposal",)
SETTINGS: Mapping[str, Setting] = {
    "SCALES": Setting("scales", _IMAGES),
    "MAX_SIZE": Setting("max_size", _IMAGES),
    "PIXEL_MEANS": Setting("pixel_means", _IMAGES),
    "USE_FLIPPED": Setting("use_flipped", _IMAGES),
    "BBOX_NORMALIZE_MEANS": Setting("bbox_normalize_means", _SAMPLE),
    "BBOX_NORMALIZE_STDS": Setting("bbox_normalize_stds", _SAMPLE),
    "BBOX_INSIDE_WEIGHTS": Setting("bbox_inside_weights", _SAMPLE),
    "BATCH_SIZE": Setting("batch_size", _SAMPLE),
    "FG_FRACTION": Setting("fg_fraction", _SAMPLE),
    "FG_THRESH": Setting("fg_thresh", _SAMPLE),
    "BG_THRESH_HI": Setting("bg_thresh_hi", _SAMPLE),
    "BG_THRESH_LO": Setting("bg_thresh_lo", _SAMPLE),
    "IMS_PER_BATCH": Setting("ims_per_batch", ("Sample",)),
    "ASPECT_GROUPING": Setting("aspect_grouping", ("Sample",)),
    "BBOX_THRESH": Setting("bbox_thresh", ("Sample",)),
    "BBOX_NORMALIZE_TARGETS": Setting("bbox_normalize_targets", ("Sample",)),
    "BBOX_NORMALIZE_TARGETS_PRECOMPUTED": Setting("bbox_normalize_targets_precomputed", ("Sample",)),
    "AGNOSTIC": Setting("agnostic", ("ProposalTarget",)),
    "RPN_POSITIVE_OVERLAP": Setting("positive_overlap", _ANCHORS),
    "RPN_NEGATIVE_OVERLAP": Setting("negative_overlap", _ANCHORS),
    "RPN_CLOBBER_POSITIVES": Setting("clobber_positives", _ANCHORS),
    "RPN_FG_FRACTION": Setting("fg_fraction", _ANCHORS),
    "RPN_BATCHSIZE": Setting("batch_size", _ANCHORS),
    "RPN_BBOX_INSIDE_WEIGHTS": Setting("bbox_inside_weights", _ANCHORS),
    "RPN_POSITIVE_WEIGHT": Setting("positive_weight", _ANCHORS),
    "RPN_NMS_THRESH": Setting("nms_thresh", _PROPOSALS),
    "RPN_PRE_NMS_TOP_N": Setting("pre_nms_topn", _PROPOSALS),
    "RPN_POST_NMS_TOP_N": Setting("post_nms_topn", _PROPOSALS),
    "RPN_MIN_SIZE": Setting("min_size", _PROPOSALS),
}
# The command, the solver or the net says these. Ocaffe's flags and solver replace the ones of scripts.
ELSEWHERE = frozenset({
    "EXP_DIR", "GPU_ID", "RNG_SEED", "USE_GPU_NMS", "DEDUP_BOXES", "EPS", "ROOT_DIR", "DATA_DIR", "MODELS_DIR", "MATLAB", "SNAPSHOT_ITERS", "SNAPSHOT_INFIX",
    "USE_PREFETCH", "PROPOSAL_METHOD", "HAS_RPN", "NMS", "DEBUG",
})  # fmt: skip
FIXED = {"BBOX_REG": True, "SVM": False}  # other values are not supported
_LINE = re.compile(r"( *)([A-Za-z_]+):[ \t]*(.*)")


class Configuration(NamedTuple):
    """A value for a section ('' outside of one) and a key."""

    section: str
    key: str
    value: Any


def read_configuration(path: str) -> list[Configuration]:
    """Return the values in a file such as experiments/cfgs/faster_rcnn_end2end.yml. Raises Error for unknown keys, and for YAML that such files do not have."""
    try:
        text = read_plain(path).decode("utf-8-sig")
    except (OSError, UnicodeDecodeError) as problem:
        fact = "it is not UTF-8 text" if isinstance(problem, UnicodeDecodeError) else f"it cannot be read: {problem.strerror}"
        raise Error(fact, place=path, fix=to_read(path, problem, "give a .yml file of py-faster-rcnn")) from None
    found, section = [], ""
    for number, line in enumerate(text.splitlines(), 1):
        line = re.sub(r"(^|\s)#.*", "", line).rstrip()
        if not line:
            continue
        match = _LINE.fullmatch(line)
        if match is None or bool(match[1]) != (bool(section) and bool(match[1])):
            raise Error(f"'{line.strip()}' is not a key with a value", place=f"{path}:{number}", fix="write KEY: VALUE, indented below TRAIN: or TEST:")
        if not match[1] and not match[3]:
            section = match[2]
            if section not in PHASES:
                raise Error(f"there is no section '{section}'", place=f"{path}:{number}", fix="write TRAIN: or TEST:")
            continue
        section = section if match[1] else ""
        found.append(Configuration(section, match[2], _value(match[2], match[3], f"{path}:{number}")))
    return found


def _value(key: str, text: str, place: str) -> Any:
    """Return the value of a key. Raises Error."""
    if key in ELSEWHERE:
        return text
    if key not in SETTINGS and key not in FIXED:
        near = difflib.get_close_matches(key, [*SETTINGS, *FIXED, *ELSEWHERE], 1)
        fix = f"did you mean {near[0]}? Else remove the line" if near else "remove the line"
        raise Error(f"'{key}' is no key of py-faster-rcnn's config.py that ocaffe knows", place=place, fix=fix)
    try:
        value = read_value(text)
    except (ValueError, SyntaxError):
        raise Error(f"'{key}' has the value '{text}'", place=place, fix=f"{key}: a number, True or False, or a list in [ ]") from None
    if key in FIXED and value != FIXED[key]:
        raise Error(f"'{key}' is {value}", place=place, fix=f"{key}: {FIXED[key]}; other values are not supported")
    while key == "PIXEL_MEANS" and isinstance(value, list) and len(value) == 1:  # 1 x 1 x 3 there
        value = value[0]
    return value


def configured(net: Any, phase: int, imdb: str = "", proposals: str = "", settings: Sequence[Configuration] = ()) -> Any:
    """Return a net, which is upgraded, with these settings in the param_str of its layers.

    `imdb`: a database of annotated images. `proposals`: a file with those of the images.

    Raises Error if no layer has the images.
    """
    made = type(net)()
    made.CopyFrom(net)
    images = sampled = False
    for layer in made.layer:
        kinds = {layer_type(_named(layer, imdb))}
        if "RoIData" in kinds:
            images = True
            if len(layer.top) in SAMPLED:
                sampled = True
                kinds.add("Sample")
        given = {"source": imdb if "RoIData" in kinds else "", "proposals": proposals if "Sample" in kinds else ""}
        values = {name: path for name, path in given.items() if path}
        for section, key, value in settings:
            if key in SETTINGS and kinds.intersection(SETTINGS[key].layers) and (not section or PHASES[section] == _phase(layer, phase)):
                values[SETTINGS[key].name] = value
        if values:
            layer.python_param.param_str = with_settings(layer.python_param.param_str, values)
    if imdb and not images:
        raise Error("--imdb is given, and the net has no layer RoIDataLayer", fix="leave it out, or give a net of py-faster-rcnn")
    if proposals and not sampled:
        fact = f"--proposals is given, and the net has no RoIDataLayer with {SAMPLED[0]} or {SAMPLED[1]} tops"
        raise Error(fact, fix="leave it out, or give a net for Fast R-CNN")
    return made


def _named(layer: Any, imdb: str) -> Any:
    """Return the layer as it is with the source `imdb`, which decides whether a Python layer is RoIData."""
    if not imdb or layer.type != "Python":
        return layer
    copy = type(layer)()
    copy.CopyFrom(layer)
    copy.python_param.param_str += f"\n'source': '{imdb}'"
    return copy


def _phase(layer: Any, phase: int) -> int:
    """Return the phase of a layer in a net for `phase`."""
    return next((rule.phase for rule in layer.include if rule.HasField("phase")), phase)


def log_ignored(settings: Sequence[Configuration]) -> None:
    """Log the keys that have no effect."""
    names = sorted({key for _, key, _ in settings if key in ELSEWHERE})
    if names:
        log.info("config.py:1", f"Keys of --cfg that the net, the solver or flags decide: {', '.join(names)}")
