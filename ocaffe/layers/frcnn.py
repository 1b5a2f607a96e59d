"""FrcnnProposal, FrcnnAnchorTarget and FrcnnProposalTarget of makefile/frcnn: Faster R-CNN with the settings in a file."""
from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np

from ocaffe import proto
from ocaffe.ir.tensor import Shape
from ocaffe.layers.anchor_target import AnchorTarget
from ocaffe.layers.anchors import Configured
from ocaffe.layers.base import register
from ocaffe.layers.proposal import Proposal
from ocaffe.layers.proposal_target import ProposalTarget
from ocaffe.support import log

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
    from_file: Mapping[str, str]  # the settings in the file

    def read_settings(self, defaults: Mapping[str, Any]) -> Any:
        self.from_file = self._file()
        for name in self.refused:
            self.check(not float(self.from_file.get(name, 0)), f"the file sets {name}: {self.from_file.get(name)}, which is not supported", f"{name}: 0")
        prefix = "test_" if self.phase == proto.TEST else ""
        values = dict(defaults)
        for key, default in defaults.items():
            name = self.keys.get(key, key).format(prefix)
            if name in self.from_file:
                numbers = self._numbers(name)
                values[key] = numbers if isinstance(default, list) else type(default)(numbers[0])
        return SimpleNamespace(**values)

    def cell_anchors(self, p: Any) -> np.ndarray:
        if "anchors" not in self.from_file:
            return super().cell_anchors(p)
        numbers = self._numbers("anchors")
        self.check(len(numbers) % 4 == 0, f"the file has {len(numbers)} numbers of anchors", "four for each anchor: x1, y1, x2, y2")
        return np.array(numbers, np.float32).reshape(-1, 4)

    def _numbers(self, name: str) -> list[float]:
        try:
            return [float(number) for number in str(self.from_file[name]).replace(",", " ").split()]
        except ValueError:
            raise self.error(f"the file sets {name}: {self.from_file[name]!r}", "numbers with commas between them") from None

    def config(self) -> str:
        """Return the name of the file; "": there is none. As in the fork, the data layer can name it for all layers."""
        return str(self.param.frcnn_param.config) or self.settings_file

    def _file(self) -> dict[str, str]:
        path = self.config()
        if not path:
            told = "py-faster-rcnn's settings and anchors are taken; frcnn_param { config: \"voc_config.json\" } names the file of the fork that has others"
            log.warn_once("frcnn_param.cpp:99", f"{self.title}: {told}")
            return {}
        try:
            with open(path, encoding="utf-8") as file:
                return dict(json.loads(file.read(), strict=False))  # the fork's files have line ends in texts
        except (OSError, ValueError, TypeError) as problem:
            raise self.error(f"the settings in {path} cannot be read: {problem}", "the JSON file with which the net was trained") from None


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
        self.check(stage == 0, f"proposal_target_param {{ stage: {stage} }} is not supported", "stage 0; a Python layer can leave boxes out before the layer")
        self.check(self.config(), "frcnn_param names no file, and the number of classes is in it", 'frcnn_param { config: "voc_config.json" }')
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
