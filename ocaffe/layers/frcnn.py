"""FrcnnProposal, FrcnnAnchorTarget and FrcnnProposalTarget of makefile/frcnn: Faster R-CNN with the settings in a file."""
from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np

from ocaffe import proto
from ocaffe.errors import Error
from ocaffe.formats.json_file import MOST_BYTES, Each, misfit, parse_json
from ocaffe.ir.tensor import Shape
from ocaffe.layers.anchor_target import AnchorTarget
from ocaffe.layers.anchors import Configured
from ocaffe.layers.base import register
from ocaffe.layers.proposal import Proposal
from ocaffe.layers.proposal_target import ProposalTarget
from ocaffe.support import log
from ocaffe.support.files import read_plain, to_read

# The names in the file of the settings whose names differ there; {} is test_ in TEST.
PROPOSAL = {"min_size": "{}rpn_min_size", "pre_nms_topn": "{}rpn_pre_nms_top_n", "post_nms_topn": "{}rpn_post_nms_top_n", "nms_thresh": "{}rpn_nms_thresh"}
ANCHOR_TARGET = {
    name: f"rpn_{name}"
    for name in ("allowed_border", "positive_overlap", "negative_overlap", "clobber_positives", "fg_fraction", "positive_weight", "bbox_inside_weights")
} | {"batch_size": "rpn_batchsize"}  # fmt: skip
PROPOSAL_TARGET = {"num_classes": "n_classes"}


class FromFile(Configured):
    """Base: settings from the file that frcnn_param { config } names, or a layer FrcnnRoiData of the net."""

    keys: Mapping[str, str] = {}
    refused: Sequence[str] = ()  # settings of the file that must be 0
    from_file: Mapping[str, str | float]  # the settings in the file

    def read_settings(self, defaults: Mapping[str, Any]) -> Any:
        self.from_file = self._file()
        for name in self.refused:
            given = name in self.from_file and self._numbers(name)[0]
            self.check(not given, f"{self.told} sets {name}: {self.from_file.get(name)}, which is not supported", f"set {name} to 0 in the file")
        prefix = "test_" if self.phase == proto.TEST else ""
        values = dict(defaults)
        for key, default in defaults.items():
            name = self.keys.get(key, key).format(prefix)
            if name in self.from_file:
                numbers = self._numbers(name)
                values[key] = numbers if isinstance(default, list) else type(default)(numbers[0])
        return SimpleNamespace(**values)

    @property
    def told(self) -> str:
        """The file, for errors."""
        return f"the settings file {self.config()}"

    def cell_anchors(self, p: Any) -> np.ndarray:
        if "anchors" not in self.from_file:
            return super().cell_anchors(p)
        numbers = self._numbers("anchors")
        self.check(len(numbers) % 4 == 0, f"{self.told} has {len(numbers)} numbers in anchors", "write four for each anchor: x1, y1, x2, y2")
        return np.array(numbers, np.float32).reshape(-1, 4)

    def _numbers(self, name: str) -> list[float]:
        """Return the numbers of a setting, at least one, all finite."""
        try:
            numbers = [float(number) for number in str(self.from_file[name]).replace(",", " ").split()]
        except ValueError:
            numbers = []
        sound = numbers and all(map(math.isfinite, numbers))
        self.check(sound, f"{self.told} sets {name}: {self.from_file[name]!r:.100}", f"write numbers with commas between them as {name}")
        return numbers

    def config(self) -> str:
        """Return the name of the file; "": there is none. As in the fork, the data layer can name it for all layers."""
        return str(self.param.frcnn_param.config) or self.settings_file

    def _file(self) -> dict[str, str | float]:
        path = self.config()
        if not path:
            told = "py-faster-rcnn's settings and anchors are taken; frcnn_param { config: \"voc_config.json\" } names the file of the fork that has others"
            log.warn_once("frcnn_param.cpp:99", f"{self.title}: {told}")
            return {}
        try:
            content = read_plain(path, MOST_BYTES)
        except OSError as problem:
            fix = to_read(path, problem, "give the path of the JSON file with which the net was trained")
            raise self.error(f"{self.told} cannot be read: {problem.strerror}", fix) from None
        self.check(content.strip(), f"{self.told} is an empty file", "copy the JSON file with which the net was trained there")
        try:
            settings = parse_json(content, path, strict=False)  # the fork's files have line ends in texts
        except Error as problem:
            raise self.error(f"{self.told} is not valid JSON: {problem.fact}", problem.fix or "") from None
        wrong = misfit(settings, Each((str, float, bool)))
        self.check(not wrong, f"{self.told} is JSON, but {wrong}", "write the settings as a JSON object of texts and numbers: { name: value, .. }")
        return dict(settings)


@register("FrcnnProposal")
class FrcnnProposal(FromFile, Proposal):
    """Proposal with the settings and anchors in the JSON file of makefile/frcnn, which frcnn_param { config } names; without it they are py-faster-rcnn's.

    As in the fork, a layer FrcnnRoiData of the net can name the file. proposal_param { feat_stride } comes first. Bottoms and tops are those of Proposal.
    test_soft_nms and test_rpn_score_thresh, which drops boxes earlier, are refused. Source: makefile/frcnn, src/caffe/FRCNN/frcnn_proposal_layer.cpp.
    """

    origin = "makefile/frcnn"
    message = "frcnn_param"
    keys = PROPOSAL
    refused = ("test_soft_nms", "test_rpn_score_thresh")

    def read_settings(self, defaults: Mapping[str, Any]) -> Any:
        p = super().read_settings(defaults)
        own = self.param.proposal_param
        if own.HasField("feat_stride") and own.feat_stride:
            p.feat_stride = own.feat_stride
        return p


@register("FrcnnAnchorTarget")
class FrcnnAnchorTarget(FromFile, AnchorTarget):
    """AnchorTarget with the settings and anchors in the JSON file of makefile/frcnn, which frcnn_param { config } names; without it they are py-faster-rcnn's.

    Bottoms and tops are those of AnchorTarget. Source: makefile/frcnn, src/caffe/FRCNN/frcnn_anchor_target_layer.cpp.
    """

    origin = "makefile/frcnn"
    message = "frcnn_param"
    keys = ANCHOR_TARGET


@register("FrcnnProposalTarget")
class FrcnnProposalTarget(FromFile, ProposalTarget):
    """ProposalTarget with the settings in the JSON file of makefile/frcnn, which frcnn_param { config } names and which has the number of classes.

    Bottoms and tops are those of ProposalTarget. Where candidates are too few, the fork repeats background boxes; here the tops have fewer rows. A stage of
    Cascade R-CNN in proposal_target_param is refused. Source: makefile/frcnn, src/caffe/FRCNN/frcnn_proposal_target_layer.cpp.
    """

    origin = "makefile/frcnn"
    message = "frcnn_param"
    keys = PROPOSAL_TARGET

    def read_settings(self, defaults: Mapping[str, Any]) -> Any:
        stage = self.param.proposal_target_param.stage
        self.check(
            stage == 0,
            f"proposal_target_param {{ stage: {stage} }} is not supported",
            "remove stage; a Python layer before this one can leave boxes out, as Cascade R-CNN does",
        )
        self.check(
            self.config(),
            "frcnn_param names no file, and the number of classes is in it",
            'name the JSON file with which the net was trained: frcnn_param { config: "PATH" }',
        )
        p = super().read_settings(defaults)
        if not float(self.from_file.get("bbox_normalize_targets", 1)):
            p.bbox_normalize_means, p.bbox_normalize_stds = [0.0] * 4, [1.0] * 4
        return p

    def infer(self, *bottoms: Shape) -> Sequence[Shape]:
        tops = super().infer(*bottoms)
        if self.settings.batch_size > 0:
            self.most_positives = int(self.settings.fg_fraction * self.settings.batch_size)  # rounded down, unlike ProposalTarget
        return tops


for own, same in ((FrcnnProposal, Proposal), (FrcnnAnchorTarget, AnchorTarget), (FrcnnProposalTarget, ProposalTarget)):
    own.type = same.type  # other parts of ocaffe treat both alike, as with a Python layer of that module
