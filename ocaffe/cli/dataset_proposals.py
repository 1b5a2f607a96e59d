"""`ocaffe dataset proposals DATABASE OUT`: write the regions that a region proposal network proposes, for training Fast R-CNN."""
from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from tqdm import tqdm

from ocaffe import proto
from ocaffe.api.net import Net
from ocaffe.cl.device import select_device
from ocaffe.cli.flags import Parser, device_flags, required
from ocaffe.data.databases.proposals import write_proposals
from ocaffe.data.sources.roidb import open_annotated
from ocaffe.errors import Error
from ocaffe.evaluation.region_images import with_images
from ocaffe.evaluation.sidecar import trained_regions
from ocaffe.formats.filter import filter_net
from ocaffe.formats.param_str import with_settings
from ocaffe.formats.text import read_net
from ocaffe.formats.upgrade import upgrade_net
from ocaffe.layers.base import layer_type
from ocaffe.shown import say
from ocaffe.support import log
from ocaffe.tools.py_faster_rcnn import configured, read_configuration

NAME = "dataset proposals"
ALL = 1 << 24  # boxes before suppression: RPN_PRE_NMS_TOP_N is -1 in tools/train_faster_rcnn_alt_opt.py

CLASSES = 1 << 24  # more than any database has: the labels have no effect


def main(argv: Sequence[str]) -> int:
    """Run the command. Raises Error."""
    parser = Parser(NAME, "Write the regions that a region proposal network proposes for each image of a database, for `ocaffe train --proposals`.")
    parser.add_argument("database", metavar="DATABASE", help="LMDB or LevelDB with boxes, as `ocaffe dataset voc` makes them")
    parser.add_argument("out", metavar="OUT", help="the file to write, such as proposals.npz")
    parser.flag("model", "", "an rpn_test.pt of py-faster-rcnn, or another net with a Proposal layer and the inputs data and im_info")
    parser.flag("weights", "", "the trained weights")
    parser.flag("cfg", "", "a .yml file with py-faster-rcnn's settings")
    parser.flag("most", 2000, "proposals of an image at most")
    device_flags(parser)
    options = parser.parse(argv)
    model, weights = (required(options, flag, text, NAME) for flag, text in (("model", "the net"), ("weights", "the weights")))
    if options.most < 1:
        raise Error(f"--most is {options.most}", place=f"ocaffe {NAME}", fix="--most 2000, or another number of 1 or more")
    log.quiet()
    settings = read_configuration(options.cfg) if options.cfg else []
    part = _part(filter_net(upgrade_net(read_net(model)), proto.NetState(phase=proto.TEST)), options.most, model)
    net = configured(with_images(part, options.database, CLASSES, images=trained_regions(weights)), proto.TEST, settings=settings)
    images = open_annotated(options.database).entries
    device = select_device(options.device or None, options.gpu or None, math=options.math or None)
    with Net(net, phase=proto.TEST, weights=weights, device=device) as made:
        found = [_proposed(made, net.layer[0].top[1], net.layer[-1].top) for _ in tqdm(range(images), desc="proposals", disable=None)]
    if not any(len(boxes) for boxes, _ in found):
        fix = "other weights, or smaller min_size of Proposal, or the 'scales' of the training: --cfg FILE with TEST: SCALES"
        raise Error(f"the net proposes no region in any of {len(found)} images", place=model, fix=fix)
    write_proposals(options.out, [boxes for boxes, _ in found], [scores for _, scores in found])
    say(f"{options.out}: {sum(len(boxes) for boxes, _ in found)} proposals for {len(found)} images")
    return 0


def _part(net: Any, most: int, place: str) -> Any:
    """Return the net up to its Proposal layer, which has the tops rois and scores. Raise Error if there is none."""
    index = next((index for index, layer in enumerate(net.layer) if layer_type(layer) == "Proposal"), None)
    if index is None:
        raise Error("the net has no Proposal layer", place=place, fix="give a net with a region proposal network")
    del net.layer[index + 1 :]
    layer = net.layer[index]
    limits = {"pre_nms_topn": ALL, "post_nms_topn": most}
    if layer.HasField("python_param"):
        layer.python_param.param_str = with_settings(layer.python_param.param_str, limits)
    else:
        for name, value in limits.items():
            setattr(layer.proposal_param, name, value)
    if len(layer.top) < 2:
        layer.top.append("rpn_scores")
    return net


def _proposed(net: Net, info: str, tops: Sequence[str]) -> tuple[np.ndarray, np.ndarray]:
    """Return the boxes of the next image in pixels of the stored image, and their scores."""
    net.forward()
    rois, scores = (np.array(net.blobs[name].data) for name in tops)
    return rois[:, 1:] / net.blobs[info].data[0, 2], scores.reshape(-1)
