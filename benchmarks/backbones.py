#!/usr/bin/env python3
"""The backbone of a detector of the zoo, trained as a classifier on images of single objects. Its weights load into the detector by name.

    benchmarks/backbones.py NET CROPS OUT [--iterations 1000] [--side 64] [--batch 64] [--rate R] [--device D] [--math M]

CROPS has class folders, as `ocaffe dataset shapes --crops` writes them. Prints the accuracy on a fifth of the images, which training does not use.
"""
import argparse
import json
import os
import pathlib
import time
from typing import Any, NamedTuple

import ocaffe
from ocaffe import log, proto
from ocaffe.cl.device import Device, select_device
from ocaffe.formats.text import read_net, read_solver
from ocaffe.zoo import FOLDER
from ocaffe.zoo.project import Choices, write_project
from ocaffe.zoo.text import prototxt

RATE, UNNORMALIZED_RATE = 0.003, 0.0001  # of Adam; the second one for nets without BatchNorm
ENDS = {  # last blob of the backbone, and the rate
    "ssd300_vgg16": ("fc7", UNNORMALIZED_RATE), "mobilenet_ssd": ("conv13", RATE), "ssd_shapes": ("conv5_2", RATE), "mobilenet_yolov3_lite": ("conv13", RATE),
    "yolo_shapes": ("conv6", RATE),
}  # fmt: skip
AUGMENT = "affine { rotation: 10 translation: 0.1 min_zoom: 0.5 max_zoom: 1.2 border: REPLICATE }"  # symbols must not be mirrored
FULL = 70  # about the deviation of pixels of 0 to 255 from their mean
FREE = 0.01  # share of the last layer's weights, so that the first losses are small


class Backbone(NamedTuple):
    """weights: the trained file. accuracy: on images that training does not use. seconds: of the training."""

    weights: str
    accuracy: float
    seconds: float


def backbone(net: str, side: int) -> Any:
    """Return the deploy net of a classifier: the layers of the detector `net` up to the end of its backbone, a mean over all places, and class scores."""
    found, (end, _) = read_net(str(FOLDER / net / "deploy.prototxt")), ENDS[net]
    last = max(index for index, layer in enumerate(found.layer) if end in layer.top)
    del found.layer[last + 1 :]
    found.name = f"{net}-backbone"
    found.layer[0].input_param.shape[0].dim[2:] = [side, side]
    found.layer.add(name="crops_pool", type="Pooling", bottom=[end], top=["crops_pool"], pooling_param={"pool": "AVE", "global_pooling": True})
    filler = {"type": "gaussian", "std": FREE}
    scores = {"num_output": 2, "weight_filler": filler}  # `write_project` sets the number of classes
    found.layer.add(name="crops_scores", type="InnerProduct", bottom=["crops_pool"], top=["crops_scores"], inner_product_param=scores)
    if not transform(net).HasField("scale"):  # without BatchNorm, the first convolution brings the pixels to a deviation of 1
        first = next(layer for layer in found.layer if layer.type == "Convolution")
        fan_in = 3 * first.convolution_param.kernel_size[0] ** 2
        first.convolution_param.weight_filler.MergeFrom(proto.FillerParameter(type="gaussian", std=(2 / fan_in) ** 0.5 / FULL))
    return found


def transform(net: str) -> Any:
    """Return mean and scale of the images of a detector."""
    given = next(layer for layer in read_net(str(FOLDER / net / "train_val.prototxt")).layer if layer.type == "AnnotatedData").transform_param
    own = proto.TransformationParameter(mean_value=given.mean_value)
    if given.HasField("scale"):
        own.scale = given.scale
    return own


def pretrained(
    net: str, crops: str, out: str, device: Device, *, iterations: int = 1000, side: int = 64, batch: int = 64, rate: float = 0
) -> Backbone:  # fmt: skip
    """Train the backbone of the detector `net` on class folders `crops`, with files in the new folder `out`. `rate` 0: that in ENDS."""
    os.makedirs(out)
    deploy = f"{out}/backbone.prototxt"
    pathlib.Path(deploy).write_text(prototxt(backbone(net, side)))
    own = f"type: 'Adam' base_lr: {rate or ENDS[net][1]} momentum: 0.9 momentum2: 0.999 test_interval: {iterations} snapshot: 0"
    choices = Choices(size=side, batch=batch, iterations=iterations, augment=AUGMENT, transform=prototxt(transform(net)), solver=own)
    made = write_project(deploy, crops, f"{out}/net", choices, device.target)
    settings = read_solver(made.path("solver.prototxt"))
    begin = time.perf_counter()
    solver = ocaffe.get_solver(settings, device=device)
    solver.step(settings.max_iter)
    weights = f"{out}/{net}.caffemodel"
    solver.net.save(weights)
    seconds = time.perf_counter() - begin
    test = solver.test_nets[0]
    test.share_with(solver.net)
    right = 0.0
    for _ in range(settings.test_iter[0]):
        test.forward()
        right += float(test.blobs[made.accuracy].data) / settings.test_iter[0]
    solver.close()
    return Backbone(weights, right, seconds)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("net", choices=list(ENDS))
    parser.add_argument("crops")
    parser.add_argument("out")
    parser.add_argument("--iterations", type=int, default=1000)
    parser.add_argument("--side", type=int, default=64)
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--rate", type=float, default=0)
    parser.add_argument("--device", default="")
    parser.add_argument("--math", default="")
    options = parser.parse_args()
    log.quiet()
    device = select_device(options.device or None, math=options.math or None)
    found = pretrained(
        options.net, options.crops, options.out, device, iterations=options.iterations, side=options.side, batch=options.batch, rate=options.rate
    )  # fmt: skip
    print(json.dumps(found._asdict()))


if __name__ == "__main__":
    main()
