"""The zoo's files parse, their shapes fit, and their parameter counts are those of the papers."""
from __future__ import annotations

import functools
import math
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ocaffe import proto
from ocaffe.formats.param_str import read_settings
from ocaffe.formats.text import read_net, read_solver
from ocaffe.zoo import FOLDER as ZOO
from ocaffe.zoo import generate as GENERATOR
from ocaffe.zoo.templates import DATA, data_shapes, graph_of, image_shape, without_data

pytestmark = pytest.mark.quick

ROOT = Path(__file__).parents[2]
NETS = sorted(folder.name for folder in ZOO.iterdir() if (folder / "solver.prototxt").exists())

PARAMETERS = {  # of the training net, of the deploy net; without BatchNorm's statistics
    "lenet": (431_080, 431_080),
    "lenet_digits": (431_080, 431_080),
    "cifar10_quick": (145_578, 145_578),
    "alexnet": (60_965_224, 60_965_224),
    "caffenet": (60_965_224, 60_965_224),
    "squeezenet": (1_235_496, 1_235_496),
    "resnet20": (272_474, 272_474),
    "googlenet": (13_378_280, 6_998_552),
    "vgg16": (138_357_544, 138_357_544),
    "vgg19": (143_667_240, 143_667_240),
    "resnet18": (11_689_512, 11_689_512),
    "resnet50": (25_557_032, 25_557_032),
    "resnet101": (44_549_160, 44_549_160),
    "resnet152": (60_192_808, 60_192_808),
    "densenet121": (7_978_856, 7_978_856),
    "inception_v3": (23_834_568, 23_834_568),
    "mobilenet_v1": (4_231_976, 4_231_976),
    "mobilenet_v2": (3_504_872, 3_504_872),
    "efficientnet_lite0": (4_664_008, 4_664_008),  # the published 4,652,008, and the zeros of five larger windows
    "efficientnet_lite1": (5_421_288, 5_421_288),
    "efficientnet_lite2": (6_093_416, 6_093_416),
    "shufflenet_v2": (2_278_604, 2_278_604),
    "fcn8s": (134_369_567, 134_369_567),  # 6,816 of them are fixed: upsampling and scales
    "segnet": (29_449_355, 29_449_355),
    "segnet_basic": (1_416_587, 1_416_587),
    "unet": (31_030_658, 31_030_658),
    "mtcnn_pnet": (6_632, 6_632),
    "mtcnn_rnet": (100_178, 100_178),
    "mtcnn_onet": (389_040, 389_040),
    "vit_tiny": (5_717_224, 5_717_224),  # DeiT-Tiny's 5,717,416 less the class token, which is part of the table of positions
    "vit_digits": (205_002, 205_002),
}
LAST_MAP = {  # input of the last pooling: channels, height
    "lenet": (50, 8),
    "lenet_digits": (50, 8),
    "cifar10_quick": (64, 8),
    "alexnet": (256, 13),
    "caffenet": (256, 13),
    "squeezenet": (1000, 14),
    "resnet20": (64, 8),
    "googlenet": (1024, 7),
    "vgg16": (512, 14),
    "vgg19": (512, 14),
    "resnet18": (512, 7),
    "resnet50": (2048, 7),
    "resnet101": (2048, 7),
    "resnet152": (2048, 7),
    "densenet121": (1024, 7),
    "inception_v3": (2048, 8),
    "mobilenet_v1": (1024, 7),
    "mobilenet_v2": (1280, 7),
    "efficientnet_lite0": (1280, 7),
    "efficientnet_lite1": (1280, 8),
    "efficientnet_lite2": (1280, 9),
    "shufflenet_v2": (1024, 7),
    "fcn8s": (512, 44),  # for 500 pixels and a padding of 100
    "segnet": (512, 23),
    "segnet_basic": (64, 45),
    "unet": (512, 64),
    "mtcnn_pnet": (10, 10),
    "mtcnn_rnet": (48, 9),
    "mtcnn_onet": (64, 8),
    "vit_tiny": (192, 14),  # of a ViT: the patches
    "vit_digits": (64, 7),
}
# channels, side; for data sets that are not cropped
IMAGES = {"lenet": (1, 28), "lenet_digits": (1, 28), "vit_digits": (1, 28), "cifar10_quick": (3, 32), "resnet20": (3, 32)}
TEST_IMAGES = {
    "lenet": 10_000, "lenet_digits": 360, "vit_digits": 360, "cifar10_quick": 10_000, "resnet20": 10_000, "fcn8s": 1449, "segnet": 101, "segnet_basic": 101,
    "unet": 6,
    "mtcnn_pnet": 10_000, "ssd300_vgg16": 4952, "mobilenet_ssd": 4952, "ssd_shapes": 500, "mtcnn_rnet": 10_000, "mtcnn_onet": 10_000,
    "crnn": 500, "faster_rcnn_zf": 4952,
    "mobilenet_yolov3_lite": 4952, "yolo_shapes": 500, "point_shapes": 500,
}  # fmt: skip
IMAGENET_TEST_IMAGES = 50_000


LABEL_IMAGES = ("fcn8s", "segnet", "segnet_basic", "unet")
FACES = ("mtcnn_pnet", "mtcnn_rnet", "mtcnn_onet")
DETECTORS = {  # learned parameters; channels and sides of the maps with predictions; boxes
    "ssd300_vgg16": (26_285_486, [(512, 38), (1024, 19), (512, 10), (256, 5), (256, 3), (256, 1)], 8732),
    "mobilenet_ssd": (5_796_089, [(512, 19), (1024, 10), (512, 5), (256, 3), (256, 2), (128, 1)], 1917),
    "ssd_shapes": (925_594, [(64, 32), (96, 16), (128, 8), (128, 4)], 6112),
    "point_shapes": (697_196, [(64, 32), (96, 16), (128, 8), (128, 4)], 1360),
}
YOLOS = {  # parameters without BatchNorm's statistics; channels and sides of the maps with predictions; boxes
    "mobilenet_yolov3_lite": (5_224_406, [(1024, 13), (1024, 26)], 2535),  # 1,024 of them are fixed: upsampling
    "yolo_shapes": (794_314, [(128, 8), (96, 16)], 960),
}
READERS = {"crnn": (454_323, 32, 11)}  # learned parameters; time steps; classes
REGIONS = {"faster_rcnn_zf": 59_294_751}  # learned parameters
CLASSIFIERS = [name for name in NETS if name not in (*LABEL_IMAGES, *FACES, *DETECTORS, *READERS, *REGIONS, *YOLOS)]
WALKED = [name for name in NETS if name not in (*DETECTORS, *READERS, *REGIONS, *YOLOS)]


@functools.cache
def read(name: str, file: str) -> Any:
    return read_net(ZOO / name / f"{file}.prototxt")


def layers(name: str, file: str, phase: int) -> list[Any]:
    return [layer for layer in read(name, file).layer if not layer.include or phase in [rule.phase for rule in layer.include]]


def kernel(p: Any) -> list[int]:
    return [p.kernel_h, p.kernel_w] if p.kernel_h else [*p.kernel_size] * 2


def convolved(shape: list[int], p: Any) -> list[int]:
    stride, pads = (*p.stride, 1)[0], [p.pad_h, p.pad_w] if p.kernel_h else [(*p.pad, 0)[0]] * 2
    assert shape[1] % p.group == 0 and p.num_output % p.group == 0
    return [shape[0], p.num_output, *((side + 2 * pad - extent) // stride + 1 for side, pad, extent in zip(shape[2:], pads, kernel(p)))]


def pooled(shape: list[int], p: Any) -> list[int]:
    if p.global_pooling:
        return [*shape[:2], 1, 1]
    out = []
    for side in shape[2:]:
        windows = (math.floor if p.round_mode == p.FLOOR else math.ceil)((side + 2 * p.pad - p.kernel_size) / p.stride) + 1
        if p.pad and (windows - 1) * p.stride >= side + p.pad:
            windows -= 1
        out.append(windows)
    return [*shape[:2], *out]


def walk(name: str, file: str, phase: int) -> Iterator[tuple[Any, list[list[int]], list[int], list[list[int]]]]:
    """Iterate over every layer with the shapes of its bottoms, its top and its parameters. The layers are those of the zoo."""
    blobs: dict[str, list[int]] = {}
    for layer in layers(name, file, phase):
        bottoms = [blobs[bottom] for bottom in layer.bottom]
        parameters: list[list[int]] = []
        others: list[list[int]] = []  # the tops after the first
        top = bottoms[0] if bottoms else []
        if layer.type == "Input":
            top = list(layer.input_param.shape[0].dim)
        elif layer.type == "Data":
            side = layer.transform_param.crop_size
            channels, side = (3, side) if side else IMAGES[name]
            top = [layer.data_param.batch_size, channels, side, side]
            blobs["label"] = top[:1]
        elif layer.type in DATA:
            shape = read(name, "deploy").layer[0].input_param.shape[0].dim[1:]
            top, *others = map(list, data_shapes(layer, getattr(layer, DATA[layer.type]).batch_size, shape))
        elif layer.type == "Convolution":
            p = layer.convolution_param
            parameters = [[p.num_output, top[1] // p.group, *kernel(p)], *([[p.num_output]] if p.bias_term else [])]
            top = convolved(top, p)
        elif layer.type == "Deconvolution":
            p = layer.convolution_param
            parameters = [[top[1], p.num_output // p.group, *kernel(p)], *([[p.num_output]] if p.bias_term else [])]
            top = [top[0], p.num_output, *(p.stride[0] * (side - 1) + extent for side, extent in zip(top[2:], kernel(p)))]
        elif layer.type == "Crop":
            offset, wanted = layer.crop_param.offset[0], bottoms[1]
            assert layer.crop_param.axis == 2 and all(offset + inner <= outer for inner, outer in zip(wanted[2:], top[2:]))
            top = [*top[:2], *wanted[2:]]
        elif layer.type == "Upsample":
            assert bottoms[0] == bottoms[1]
            top = [*top[:2], 2 * top[2] - layer.upsample_param.pad_out_h, 2 * top[3]]
        elif layer.type in ("BN", "PReLU"):
            parameters = [[top[1]]] * (2 if layer.type == "BN" else 1)
        elif layer.type == "InnerProduct":
            p = layer.inner_product_param
            parameters = [[p.num_output, math.prod(top[p.axis :])], *([[p.num_output]] if p.bias_term else [])]
            top = [*top[: p.axis], p.num_output]
        elif layer.type == "Pooling":
            top = pooled(top, layer.pooling_param)
            others = [top] * (len(layer.top) - 1)  # the places of the maxima
        elif layer.type == "Concat":
            assert len({(s[0], *s[2:]) for s in bottoms}) == 1
            top = [top[0], sum(s[1] for s in bottoms), *top[2:]]
        elif layer.type == "Eltwise":
            assert len(bottoms) == 2 and bottoms[0] == bottoms[1]
        elif layer.type == "Scale":
            parameters = [[top[layer.scale_param.axis]]] * (1 + layer.scale_param.bias_term)
            assert layer.scale_param.bias_term or name == "fcn8s"
        elif layer.type == "Bias":
            assert (layer.bias_param.axis, layer.bias_param.num_axes) == (1, 2)
            parameters = [top[1:]]
        elif layer.type == "Reshape":
            shape = [top[axis] if dim == 0 else dim for axis, dim in enumerate(layer.reshape_param.shape.dim)]
            top = [dim if dim > 0 else math.prod(top) // -math.prod(shape) for dim in shape]
        elif layer.type == "Permute":
            top = [top[axis] for axis in layer.permute_param.order]
        elif layer.type == "Pad":
            assert layer.pad_param.axis == 1
            top = [top[0], *(sum(sizes) for sizes in zip(top[1:], layer.pad_param.begin, layer.pad_param.end))]
        elif layer.type == "Slice":
            p = layer.slice_param
            sizes = [p.slice_point[0], top[p.axis] - p.slice_point[0]] if p.slice_point else [top[p.axis] // len(layer.top)] * len(layer.top)
            parts = [[*top[: p.axis], size, *top[p.axis + 1 :]] for size in sizes]
            top, *others = parts
        elif layer.type == "MatMul":
            (*batch, m, k), (*other, p, q) = bottoms
            assert batch == other and k == (q if layer.matmul_param.transpose_b else p)
            top = [*batch, m, p if layer.matmul_param.transpose_b else q]
        elif layer.type == "Silence":
            continue
        elif layer.type == "Clip":
            assert layer.top[0] != layer.bottom[0], "Clip's gradient reads its input"
        elif layer.type in ("Accuracy", "SoftmaxWithLoss"):
            assert bottoms[1] == [top[0], 1, *top[2:]] if name in LABEL_IMAGES else bottoms[1] == top[:1] and all(side == 1 for side in top[2:])
            top = []
        elif layer.type == "MTCNNEuclideanLoss":
            assert math.prod(bottoms[0]) == math.prod(bottoms[1]) and bottoms[2] == top[:1]
            top = []
        else:
            assert layer.type in ("ReLU", "LRN", "Dropout", "BatchNorm", "Softmax", "LayerNorm", "Gelu", "Power", "ShuffleChannel")
        assert top == [] or min(top) > 0
        for blob in layer.top:
            assert blob not in blobs or blob in layer.bottom or layer.type == "Data", f"{layer.name} writes {blob} again"
        blobs |= dict(zip(layer.top, [top, *others]))
        yield layer, bottoms, top, parameters


def weights(name: str, file: str) -> dict[str, list[list[int]]]:
    return {layer.name: parameters for layer, _, _, parameters in walk(name, file, proto.TRAIN) if parameters}


def count(shapes: dict[str, list[list[int]]]) -> int:
    return sum(math.prod(shape) for parameters in shapes.values() for shape in parameters)


def test_every_net_is_here() -> None:
    assert sorted({*PARAMETERS, *DETECTORS, *READERS, *REGIONS, *YOLOS}) == NETS


@pytest.mark.parametrize("name", DETECTORS)
def test_detectors(name: str) -> None:
    """The numbers of boxes are the published ones: 8732 of SSD300, 1917 of MobileNet-SSD."""
    parameters, maps, boxes = DETECTORS[name]
    for file, phase, end in (("deploy", proto.TEST, (1, 1, 200, 7)), ("train_val", proto.TRAIN, ())):
        net = read(name, file) if file == "deploy" else without_data(read(name, file), image_shape(read(name, "deploy")), 1)
        graph = graph_of(net, phase)
        assert sum(parameter.count for parameter in graph.params if parameter.learned) == parameters
        found = {node.name: node for node in graph.nodes}
        assert [tuple(node.bottoms[0].shape[1:3]) for node in graph.nodes if node.name.endswith("_mbox_loc") and node.type == "Convolution"] == maps
        assert found["mbox_priorbox"].tops[0].shape == (1, 2, 4 * boxes) and [blob.shape for blob in graph.outputs] == [end]
    assert f"{parameters:,}" in (ZOO / name / "README.md").read_text()


@pytest.mark.parametrize("name", READERS)
def test_readers(name: str) -> None:
    parameters, steps, classes = READERS[name]
    shape = image_shape(read(name, "deploy"))
    share = (1, 1, 1, 1)
    for file, phase, ends in (("deploy", proto.TEST, [(1, steps, 1, 1)]), ("train_val", proto.TRAIN, [()]), ("train_val", proto.TEST, [share, (), share])):
        graph = graph_of(read(name, file) if file == "deploy" else without_data(read(name, file), shape, 1), phase)
        assert sum(parameter.count for parameter in graph.params if parameter.learned) == parameters
        assert {node.bottoms[0].shape for node in graph.nodes if node.type in ("WarpCTCLoss", "CTCGreedyDecoder")} == {(steps, 1, classes)}
        assert [blob.shape for blob in graph.outputs] == ends
    assert f"{parameters:,}" in (ZOO / name / "README.md").read_text()


@pytest.mark.parametrize("name", REGIONS)
def test_detectors_of_regions(name: str) -> None:
    """The outputs are four losses in training, the rows for the average precision in testing, scores and boxes in deployment."""
    nets = [(read(name, "deploy"), proto.TEST, [(300, 84), (300, 21)])]
    train_val = without_data(read(name, "train_val"), image_shape(read(name, "deploy")), 1)
    nets += [(train_val, proto.TRAIN, [()] * 4), (train_val, proto.TEST, [(1, 1, 20 + 100, 5)])]
    for net, phase, outputs in nets:
        graph = graph_of(net, phase)
        assert sum(parameter.count for parameter in graph.params if parameter.learned) == REGIONS[name]
        assert graph.blobs["conv5"].shape == (1, 256, 39, 64) and graph.blobs["rpn_bbox_pred"].shape == (1, 36, 39, 64)
        assert [blob.shape for blob in graph.outputs] == outputs
    assert f"{REGIONS[name]:,}" in (ZOO / name / "README.md").read_text()


@pytest.mark.parametrize("name", YOLOS)
def test_yolos(name: str) -> None:
    parameters, maps, boxes = YOLOS[name]
    for file, phase, end in (("deploy", proto.TEST, [(1, 1, boxes, 7)]), ("train_val", proto.TRAIN, [(), ()])):
        net = read(name, file) if file == "deploy" else without_data(read(name, file), image_shape(read(name, "deploy")), 1)
        graph = graph_of(net, phase)
        assert sum(parameter.count for node in graph.nodes if node.type != "BatchNorm" for parameter in node.params) == parameters
        ends = [node for node in graph.nodes if node.type in ("Yolov3DetectionOutput", "Yolov3")]
        sources = [blob.producer for node in ends for blob in node.bottoms if blob.producer and blob.producer.type == "Convolution"]
        assert [tuple(source.bottoms[0].shape[1:3]) for source in sources] == maps
        assert [blob.shape for blob in graph.outputs] == end
        anchors = [list(node.layer.own().biases) for node in ends]
        assert len(anchors[0]) == 12 and anchors == [anchors[0]] * len(ends)
    assert f"{parameters:,}" in (ZOO / name / "README.md").read_text()


@pytest.mark.parametrize("name", WALKED)
def test_parameters(name: str) -> None:
    train, deploy = weights(name, "train_val"), weights(name, "deploy")
    assert (count(train), count(deploy)) == PARAMETERS[name]
    assert deploy == {layer: train[layer] for layer in deploy}
    readme = (ZOO / name / "README.md").read_text()
    assert all(f"{parameters:,}" in readme for parameters in PARAMETERS[name])


@pytest.mark.parametrize("name", WALKED)
def test_last_map(name: str) -> None:
    sizes = [bottoms[0][1:3] for layer, bottoms, _, _ in walk(name, "deploy", proto.TEST) if layer.type == "Pooling" or layer.name == "patches/flat"]
    assert sizes[-1] == list(LAST_MAP[name])


def ends(name: str, file: str, phase: int) -> list[tuple[str, list[int]]]:
    """Types and shapes of the outputs."""
    walked = list(walk(name, file, phase))
    read = {bottom for layer, *_ in walked for bottom in layer.bottom}
    return [(layer.type, top) for layer, _, top, _ in walked if not set(layer.top) & read]


@pytest.mark.parametrize("name", CLASSIFIERS)
def test_ends(name: str) -> None:
    """The outputs are losses in training, losses and accuracies in testing, probabilities in deployment."""
    losses = 3 if name == "googlenet" else 1
    classes = 10 if name in IMAGES else 1000
    assert ends(name, "train_val", proto.TRAIN) == [("SoftmaxWithLoss", [])] * losses
    in_test = [kind for kind, _ in ends(name, "train_val", proto.TEST)]
    assert in_test.count("SoftmaxWithLoss") == losses
    assert in_test.count("Accuracy") == losses * (1 if name in IMAGES else 2) == len(in_test) - losses
    [(kind, shape)] = ends(name, "deploy", proto.TEST)
    assert kind == "Softmax" and shape[1] == classes and math.prod(shape) == shape[0] * classes
    assert layers(name, "deploy", proto.TEST)[-1].top == ["prob"]


@pytest.mark.parametrize(
    ("name", "shape"), [("fcn8s", [1, 21, 500, 500]), *((net, [1, 11, 360, 480]) for net in ("segnet", "segnet_basic")), ("unet", [1, 2, 512, 512])]
)
def test_ends_of_segmentation(name: str, shape: list[int]) -> None:
    assert ends(name, "train_val", proto.TRAIN) == [("SoftmaxWithLoss", [])]
    assert [kind for kind, _ in ends(name, "train_val", proto.TEST)] == ["Accuracy", "SoftmaxWithLoss"]
    assert ends(name, "deploy", proto.TEST) == [("Crop" if name == "fcn8s" else "Softmax", shape)]


@pytest.mark.parametrize(("name", "outputs"), zip(FACES, ([[1, 2, 1, 1], [1, 4, 1, 1]], [[1, 2], [1, 4]], [[1, 2], [1, 4], [1, 10]])))
def test_ends_of_faces(name: str, outputs: list[list[int]]) -> None:
    boxes = ["MTCNNEuclideanLoss"] * (len(outputs) - 1)
    assert [kind for kind, _ in ends(name, "train_val", proto.TRAIN)] == ["SoftmaxWithLoss", *boxes]
    assert [kind for kind, _ in ends(name, "train_val", proto.TEST)] == ["Accuracy", "SoftmaxWithLoss", *boxes]
    assert sorted(shape for _, shape in ends(name, "deploy", proto.TEST)) == outputs and layers(name, "deploy", proto.TEST)[-1].top == ["prob1"]


@pytest.mark.parametrize("name", NETS)
def test_deploy_computes_what_was_trained(name: str) -> None:
    """The deploy net is the TEST net without data, losses, auxiliary classifiers and learning settings, in the same order."""

    def body(file: str) -> list[str]:
        kept = []
        deployed = {layer.name for layer in layers(name, "deploy", proto.TEST)} - {"data", "prob", "prob1", "text"}
        for original in layers(name, file, proto.TEST):
            if original.name in deployed:
                layer = proto.LayerParameter()
                layer.CopyFrom(original)
                layer.ClearField("param")
                layer.ClearField("source_line")
                layer.ClearField("include")
                for field in ("convolution_param", "inner_product_param", "lstm_param"):
                    if layer.HasField(field):
                        getattr(layer, field).ClearField("weight_filler")
                        getattr(layer, field).ClearField("bias_filler")
                for message in ("bias_param", "scale_param"):
                    getattr(layer, message).ClearField("filler")
                    if not getattr(layer, message).ByteSize():
                        layer.ClearField(message)
                layer.norm_param.ClearField("scale_filler")
                if layer.type != "Normalize":
                    layer.ClearField("norm_param")
                layer.bn_param.ClearField("scale_filler")
                layer.bn_param.ClearField("shift_filler")
                if layer.type != "BN":
                    layer.ClearField("bn_param")
                kept.append(str(layer))
        return kept

    assert body("deploy") == body("train_val") != []
    for layer in layers(name, "deploy", proto.TEST):
        assert not layer.param and not layer.include
        assert not layer.convolution_param.HasField("weight_filler") and not layer.inner_product_param.HasField("weight_filler")


@pytest.mark.parametrize("name", NETS)
def test_solver(name: str) -> None:
    solver = read_solver(ZOO / name / "solver.prototxt")
    first, _, _ = (ZOO / name / "solver.prototxt").read_text().partition("\n")
    assert first == f'net: "zoo/{name}/train_val.prototxt"'  # `ocaffe new` writes its own line there
    assert not solver.HasField("solver_mode")  # the command chooses the device
    train, test = (next(layer for layer in layers(name, "train_val", phase) if layer.type in DATA) for phase in (proto.TRAIN, proto.TEST))
    fields = [getattr(layer, DATA[layer.type]) if DATA[layer.type] else None for layer in (train, test)]
    sources = [field.source if field else read_settings(layer.python_param.param_str)["source"] for field, layer in zip(fields, (train, test))]
    batch = fields[1].batch_size if fields[1] else 1
    assert solver.test_iter[0] * batch == TEST_IMAGES.get(name, IMAGENET_TEST_IMAGES)
    assert sources[0] != sources[1]
    assert Path(solver.snapshot_prefix).parent == Path(sources[0]).parent
    assert not test.transform_param.mirror
    readme = (ZOO / name / "README.md").read_text()
    assert f"--weights {solver.snapshot_prefix}_iter_{solver.max_iter}.caffemodel --iterations {solver.test_iter[0]}`" in readme


@pytest.mark.parametrize("name", NETS)
def test_layers_with_weights_say_how_they_learn(name: str) -> None:
    """A missing weight filler means zeros, and such a net never learns."""
    for layer in layers(name, "train_val", proto.TRAIN):
        if layer.type == "Lstm":
            assert layer.lstm_param.HasField("weight_filler"), layer.name
        if layer.type in ("Convolution", "Deconvolution", "InnerProduct"):
            p = layer.inner_product_param if layer.type == "InnerProduct" else layer.convolution_param
            assert p.HasField("weight_filler") and len(layer.param) == 1 + p.bias_term, layer.name


@pytest.mark.parametrize("deploy", [False, True])
@pytest.mark.parametrize("name", list(GENERATOR.NETS))
def test_generated_files_are_current(name: str, deploy: bool) -> None:
    file = ZOO / name / ("deploy.prototxt" if deploy else "train_val.prototxt")
    assert file.read_text() == GENERATOR.prototxt(name, deploy), f"run python -m ocaffe.zoo.generate {name}"


def test_generator_refuses_an_unknown_net() -> None:
    run = subprocess.run([sys.executable, "-m", "ocaffe.zoo.generate", "vgg61"], capture_output=True, text=True, cwd=ROOT)
    assert run.returncode == 1 and "vgg61" in run.stderr and "vgg16" in run.stderr


def test_lenet_digits_is_lenet_on_other_data() -> None:
    texts = [(ZOO / name / "train_val.prototxt").read_text() for name in ("lenet", "lenet_digits")]
    conv1 = [text[text.index('name: "conv1"') :] for text in texts]
    assert conv1[0] == conv1[1]
