"""Run exported nets in the runtimes that read ONNX, and write benchmarks/onnx_consumers.json: `python benchmarks/onnx_consumers.py [NET ..]`.

The weights are random. Each runtime runs a net 5 times. A result is the largest difference from ocaffe's outputs, as a share of the largest magnitude
of an output, or the error. Each runtime needs a Python that has it: OCAFFE_OPENCV5_PYTHON for OpenCV, OCAFFE_CONSUMERS_PYTHON for the others, by
default this Python. `docs/make_onnx_consumers.py` makes the page from the file.
"""
from __future__ import annotations

import json
import os
import pathlib
import sys
import tempfile
from collections.abc import Mapping
from typing import Any

import numpy as np

from ocaffe import proto
from ocaffe.cl.device import select_device
from ocaffe.compiler.network import phase_net
from ocaffe.convert.consumers import run_in
from ocaffe.convert.deploy import deploy
from ocaffe.convert.export import Exported, Options, export
from ocaffe.convert.model import save
from ocaffe.convert.verify import difference, opened, random_inputs, run_net
from ocaffe.errors import Error
from ocaffe.formats.text import read_net
from ocaffe.formats.upgrade import upgrade_net
from tests.convert.test_convert import random_weights

ROOT = pathlib.Path(__file__).resolve().parents[1]
LIMIT = 120.0  # seconds; onnx's reference needs more for the larger nets
RESULTS = pathlib.Path(__file__).with_suffix(".json")
OTHERS, OPENCV = (os.environ.get(f"OCAFFE_{name}_PYTHON") or sys.executable for name in ("CONSUMERS", "OPENCV5"))
RUNTIMES = dict.fromkeys(("onnxruntime", "reference", "openvino", "ncnn"), OTHERS) | dict.fromkeys(("opencv-classic", "opencv-new", "opencv-auto"), OPENCV)


class Prototxt:
    """The text of a net. A layer reads the last one unless it is given bottoms; its top has its name."""

    def __init__(self, *inputs: tuple[str, str]) -> None:
        self.lines = [f'layer {{ name: "{name}" type: "Input" top: "{name}" input_param {{ shape {{ {shape} }} }} }}' for name, shape in inputs]
        self.last = inputs[0][0]

    def add(self, name: str, kind: str, param: str = "", *bottoms: str) -> str:
        bottoms = bottoms or (self.last,)
        self.lines.append(f'layer {{ name: "{name}" type: "{kind}" {" ".join(map("bottom: {0!r}".format, bottoms))} top: "{name}" {param} }}')
        self.last = name
        return name

    def relu(self) -> str:
        """Add a ReLU in place of the last layer's top."""
        self.lines.append(f'layer {{ name: "{self.last}_relu" type: "ReLU" bottom: "{self.last}" top: "{self.last}" }}')
        return self.last

    def conv(self, name: str, outputs: int, kernel: int = 3, pad: int = 1, stride: int = 1, dilation: int = 1) -> str:
        """Add a convolution and its ReLU."""
        numbers = f"num_output: {outputs} kernel_size: {kernel} pad: {pad} stride: {stride} dilation: {dilation}"
        self.add(name, "Convolution", f"convolution_param {{ {numbers} }}")
        return self.relu()

    def dense(self, name: str, outputs: int, *bottoms: str) -> str:
        return self.add(name, "InnerProduct", f"inner_product_param {{ num_output: {outputs} }}", *bottoms)

    def vgg(self) -> None:
        """Add the thirteen convolutions of VGG-16 at a width of a quarter, with the four poolings between them."""
        for stage, (repeats, outputs) in enumerate(((2, 16), (2, 32), (3, 64), (3, 128), (3, 128)), 1):
            for number in range(1, repeats + 1):
                self.conv(f"conv{stage}_{number}", outputs)
            if stage < 5:
                self.add(f"pool{stage}", "Pooling", "pooling_param { pool: MAX kernel_size: 2 stride: 2 }")

    def text(self) -> str:
        return "\n".join(self.lines)


def vgg_ssd(size: int) -> str:
    """Return SSD with the layers of VGG-16 at a width of a quarter, six or seven maps of predictions, and DetectionOutput."""
    net = Prototxt(("data", f"dim: 1 dim: 3 dim: {size} dim: {size}"))
    net.vgg()
    net.add("pool5", "Pooling", "pooling_param { pool: MAX kernel_size: 3 stride: 1 pad: 1 }")
    net.conv("fc6", 256, 3, 6, 1, 6)
    sources = [net.conv("fc7", 256, 1, 0)]
    for number in range(6, 9 if size == 300 else 10):
        net.conv(f"conv{number}_1", 64, 1, 0)
        sources.append(net.conv(f"conv{number}_2", 128, 3, 1, 2))
    sources.insert(0, net.add("conv4_3_norm", "Normalize", "norm_param { across_spatial: false channel_shared: false }", "conv4_3"))
    ends: dict[str, list[str]] = {"loc": [], "conf": [], "prior": []}
    for number, source in enumerate(sources):
        for kind, outputs in (("loc", 16), ("conf", 84)):
            net.add(f"{source}_{kind}", "Convolution", f"convolution_param {{ num_output: {outputs} kernel_size: 3 pad: 1 }}", source)
            net.add(f"{source}_{kind}_perm", "Permute", "permute_param { order: 0 order: 2 order: 3 order: 1 }")
            ends[kind].append(net.add(f"{source}_{kind}_flat", "Flatten", "flatten_param { axis: 1 }"))
        least = size * (0.1 + 0.13 * number)
        boxes = f"min_size: {least:.0f} max_size: {least + 0.13 * size:.0f} aspect_ratio: 2 flip: true variance: 0.1 variance: 0.1 variance: 0.2 variance: 0.2"
        ends["prior"].append(net.add(f"{source}_prior", "PriorBox", f"prior_box_param {{ {boxes} }}", source, "data"))
    for kind, axis in (("loc", 1), ("prior", 2), ("conf", 1)):
        net.add(f"mbox_{kind}", "Concat", f"concat_param {{ axis: {axis} }}", *ends[kind])
    net.add("rows", "Reshape", "reshape_param { shape { dim: 0 dim: -1 dim: 21 } }")
    net.add("softmax", "Softmax", "softmax_param { axis: 2 }")
    net.add("scores", "Flatten", "flatten_param { axis: 1 }")
    own = "num_classes: 21 share_location: true background_label_id: 0 nms_param { nms_threshold: 0.45 top_k: 400 } code_type: CENTER_SIZE keep_top_k: 200"
    net.add("detection_out", "DetectionOutput", f"detection_output_param {{ {own} confidence_threshold: 0.01 }}", "mbox_loc", "scores", "mbox_prior")
    return net.text()


def faster_rcnn() -> str:
    """Return the deploy net of Faster R-CNN with the layers of VGG-16 at a width of a quarter, for an image of 200 x 300 pixels."""
    net = Prototxt(("data", "dim: 1 dim: 3 dim: 200 dim: 300"), ("im_info", "dim: 1 dim: 3"))
    net.vgg()
    net.conv("rpn_conv", 128)
    net.add("rpn_cls_score", "Convolution", "convolution_param { num_output: 18 kernel_size: 1 }", "rpn_conv")
    net.add("rpn_bbox_pred", "Convolution", "convolution_param { num_output: 36 kernel_size: 1 }", "rpn_conv")
    net.add("rpn_cls_score_reshape", "Reshape", "reshape_param { shape { dim: 0 dim: 2 dim: -1 dim: 0 } }", "rpn_cls_score")
    net.add("rpn_cls_prob", "Softmax")
    net.add("rpn_cls_prob_reshape", "Reshape", "reshape_param { shape { dim: 0 dim: 18 dim: -1 dim: 0 } }")
    own = "module: 'rpn.proposal_layer' layer: 'ProposalLayer' param_str: \"'feat_stride': 16\""
    net.add("rois", "Python", f"python_param {{ {own} }}", "rpn_cls_prob_reshape", "rpn_bbox_pred", "im_info")
    net.add("pool5", "ROIPooling", "roi_pooling_param { pooled_w: 7 pooled_h: 7 spatial_scale: 0.0625 }", "conv5_3", "rois")
    for name in ("fc6", "fc7"):
        net.dense(name, 256)
        net.relu()
    net.dense("bbox_pred", 84, "fc7")
    net.dense("cls_score", 21, "fc7")
    net.add("cls_prob", "Softmax")
    return net.text()


IMAGE = 'layer {{ name: "data" type: "Input" top: "data" input_param {{ shape {{ dim: 1 dim: {} dim: {} dim: {} }} }} }}'
RECURRENT = """
layer {{ name: "data" type: "Input" top: "data" top: "cont" input_param {{ shape {{ dim: 6 dim: 2 dim: 5 }} shape {{ dim: 6 dim: 2 }} }} }}
layer {{ name: "h" type: "{}" bottom: "data" bottom: "cont" top: "h" recurrent_param {{ num_output: 7 }} }}"""
SMALL = {  # nets of the layers that the zoo lacks
    "SegNet (Upsample)": IMAGE.format(3, 32, 32) + """
layer { name: "conv1" type: "Convolution" bottom: "data" top: "conv1" convolution_param { num_output: 8 kernel_size: 3 pad: 1 } }
layer { name: "bn1" type: "BN" bottom: "conv1" top: "conv1" bn_param { bn_mode: INFERENCE } }
layer { name: "relu1" type: "ReLU" bottom: "conv1" top: "conv1" }
layer { name: "pool1" type: "Pooling" bottom: "conv1" top: "pool1" top: "mask" pooling_param { pool: MAX kernel_size: 2 stride: 2 } }
layer { name: "up1" type: "Upsample" bottom: "pool1" bottom: "mask" top: "up1" upsample_param { scale: 2 } }
layer { name: "conv2" type: "Convolution" bottom: "up1" top: "conv2" convolution_param { num_output: 4 kernel_size: 3 pad: 1 } }
layer { name: "prob" type: "Softmax" bottom: "conv2" top: "prob" }""",
    "FCN (Crop)": IMAGE.format(3, 32, 32) + """
layer { name: "conv1" type: "Convolution" bottom: "data" top: "conv1" convolution_param { num_output: 8 kernel_size: 3 pad: 10 } }
layer { name: "pool1" type: "Pooling" bottom: "conv1" top: "pool1" pooling_param { pool: MAX kernel_size: 2 stride: 2 } }
layer { name: "score" type: "Convolution" bottom: "pool1" top: "score" convolution_param { num_output: 5 kernel_size: 1 } }
layer { name: "up" type: "Deconvolution" bottom: "score" top: "up" convolution_param { num_output: 5 kernel_size: 4 stride: 2 bias_term: false } }
layer { name: "crop" type: "Crop" bottom: "up" bottom: "data" top: "crop" crop_param { axis: 2 offset: 9 } }""",
    **{name: RECURRENT.format(name.partition(",")[0]) for name in ("LSTM", "LSTM, --dynamic-batch", "RNN", "GRU")},
    "Deconvolution in groups": IMAGE.format(4, 8, 8) + """
layer { name: "up" type: "Deconvolution" bottom: "data" top: "up" convolution_param { num_output: 4 group: 4 kernel_size: 4 stride: 2 pad: 1 } }""",
    "LRN, AVE pooling": IMAGE.format(8, 15, 15) + """
layer { name: "norm" type: "LRN" bottom: "data" top: "norm" lrn_param { local_size: 5 alpha: 0.1 beta: 0.75 } }
layer { name: "pool" type: "Pooling" bottom: "norm" top: "pool" pooling_param { pool: AVE kernel_size: 3 stride: 2 pad: 1 } }""",
    "PSROIPooling": """
layer { name: "data" type: "Input" top: "data" top: "rois" input_param { shape { dim: 1 dim: 18 dim: 14 dim: 14 } shape { dim: 4 dim: 5 } } }
layer { name: "pool" type: "PSROIPooling" bottom: "data" bottom: "rois" top: "pool"
        psroi_pooling_param { spatial_scale: 0.0625 output_dim: 2 group_size: 3 } }""",
    "ROIPooling": """
layer { name: "data" type: "Input" top: "data" top: "rois" input_param { shape { dim: 1 dim: 8 dim: 14 dim: 14 } shape { dim: 4 dim: 5 } } }
layer { name: "pool" type: "ROIPooling" bottom: "data" bottom: "rois" top: "pool" roi_pooling_param { pooled_w: 3 pooled_h: 3 spatial_scale: 0.0625 } }""",
    "Faster R-CNN": faster_rcnn(),
    "Proposal": """
layer { name: "data" type: "Input" top: "scores" top: "deltas" top: "im_info"
        input_param { shape { dim: 1 dim: 18 dim: 14 dim: 14 } shape { dim: 1 dim: 36 dim: 14 dim: 14 } shape { dim: 1 dim: 3 } } }
layer { name: "rois" type: "Proposal" bottom: "scores" bottom: "deltas" bottom: "im_info" top: "rois"
        proposal_param { feat_stride: 16 ratio: 0.5 ratio: 1 ratio: 2 scale: 8 scale: 16 scale: 32 } }""",
    "SSD VGG 300": vgg_ssd(300),
    "SSD VGG 512": vgg_ssd(512),
    "SSD VGG 300, --cut-at": vgg_ssd(300),
}  # fmt: skip


def nets() -> dict[str, tuple[Any, str | None, Mapping[str, tuple[int, ...]]]]:
    """Return name -> (NetParameter, weights or None, shapes of inputs)."""
    found: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as folder:
        for name, text in SMALL.items():
            path = pathlib.Path(folder) / "net.prototxt"
            path.write_text(text)
            found[name] = (read_net(str(path)), None, {})
    real = ROOT.parent / "shared" / "real"  # nets of others, only where they are
    real = pathlib.Path(os.environ.get("OCAFFE_REAL", real))
    for weights in sorted(real.glob("models/*/*.caffemodel")):
        (net,) = weights.parent.glob("*.prototxt")
        found[f"{weights.parent.name} (trained)"] = (str(net), str(weights), {})
    for path in real.glob("prototxts/*/voc/MobileNetSSD_test.prototxt"):
        for size, end in ((300, ""), (512, ""), (512, ", --cut-at")):
            found[f"MobileNet-SSD {size}{end}"] = (str(path), None, {"data": (1, 3, size, size)})
    zoo = sorted((ROOT / "zoo").glob("*/deploy.prototxt"))
    return found | {path.parent.name: (str(path), None, {}) for path in zoo}


def exported(net: Any, weights: str | None, shapes: Mapping[str, tuple[int, ...]], flag: str) -> Exported:
    """Return the model. With the flag "cut-at" it ends with the locations and confidences of an SSD."""
    message = upgrade_net(read_net(net, allow_unknown_fields=True) if isinstance(net, str) else net)
    for layer in message.layer if isinstance(net, str) else ():
        for shape in layer.input_param.shape:
            shape.dim[0] = 1  # ncnn has no batch
    cuts = [layer.bottom[i] for layer in message.layer if layer.type == "DetectionOutput" for i in range(2)] if flag == "cut-at" else []
    options = Options(shapes=shapes, activate=True, cut_at=cuts, dynamic_batch=flag == "dynamic-batch")
    own = None if weights else random_weights(deploy(phase_net(message, proto.TEST), shapes=shapes, activate=True).message)
    return export(message, weights or own, options)


def result(runtime: str, model: pathlib.Path, feeds: dict[str, Any], expected: dict[str, Any]) -> dict[str, Any]:
    """Return the version and the largest difference, or the error."""
    runs = 1 if runtime == "reference" else 5
    try:
        version, results = run_in(runtime, model, feeds, list(expected), runs=runs, python=RUNTIMES[runtime], limit=LIMIT)
    except Error as problem:
        return {"error": problem.fact}
    for run in results[1:]:
        if not all(np.array_equal(a, b, equal_nan=True) for a, b in zip(run, results[0])):
            return {"version": version, "error": "the runs differ"}
    for actual, wanted in zip(results[0], expected.values()):
        if actual.shape != wanted.shape:
            return {"version": version, "error": f"the shape is {actual.shape}, not {wanted.shape}"}
    return {"version": version, "difference": max(difference(actual, wanted) for actual, wanted in zip(results[0], expected.values()))}


def main(wanted: list[str]) -> None:
    device = select_device(os.environ.get("OCAFFE_DEVICE"))
    record = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    known = nets()
    for name, (net, weights, shapes) in known.items():
        if wanted and name not in wanted:
            continue
        made = exported(net, weights, shapes, name.partition(", --")[2])
        feeds = random_inputs(made.graph)
        with opened(made, device, made.deployed.outputs) as own:
            values = run_net(own, made, feeds, made.deployed.outputs)
        outputs = {info.name: values[blob] for info, blob in zip(made.model.graph.output, made.deployed.outputs)}
        with tempfile.TemporaryDirectory() as folder:
            model = pathlib.Path(folder) / "model.onnx"
            save(made.model, model)
            record[name] = {runtime: result(runtime, model, feeds, outputs) for runtime in RUNTIMES}
        print(name, record[name], flush=True)
        record = {name: record[name] for name in [*known, *record] if name in record}
        RESULTS.write_text(json.dumps(record, indent=1) + "\n")
    device.close()


if __name__ == "__main__":
    main(sys.argv[1:])
