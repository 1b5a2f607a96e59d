"""YoloDetectionOutput, Yolov3DetectionOutput and EvalDetection: compared with a float64 program of decoding, suppression and matching."""
from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from ocaffe import proto
from ocaffe.api.net import Net
from ocaffe.convert.export import Options, export
from ocaffe.convert.verify import OnnxSession
from ocaffe.errors import Error
from ocaffe.formats.text import parse
from tests.layers.single import KINDS, close, layer_of, run
from tests.layers.yolo_program import Decoder, bottoms, scored

BIASES = [1.3, 1.7, 3.2, 0.9, 2.5, 4.4]  # in cells
PIXELS = [10, 14, 60, 25, 37, 58, 81, 82]
SIZES = [(5, 7), (9, 4)]  # height, width


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    return request.param


def repeated(name: str, values: Any) -> str:
    return " ".join(f"{name}: {value}" for value in values)


def yolov2(fields: str, classes: int = 4, boxes: int = 3) -> str:
    own = f"num_classes: {classes} num_box: {boxes} {repeated('biases', BIASES)} {fields}"
    return f"name: 'y' type: 'YoloDetectionOutput' yolo_detection_output_param {{ {own} }}"


def yolov3(fields: str, scales: Any = (16, 8), mask: Any = (2, 3, 0, 1), groups: int = 2, boxes: int = 2) -> str:
    own = f"num_classes: 4 num_box: {boxes} {repeated('biases', PIXELS)} {repeated('mask', mask)} {repeated('anchors_scale', scales)} mask_group_num: {groups}"
    return f"name: 'y' type: 'Yolov3DetectionOutput' yolov3_detection_output_param {{ {own} {fields} }}"


def cell_anchors(size: tuple[int, int]) -> np.ndarray:
    return np.reshape(BIASES, (3, 2)) / size[::-1]


def pixel_anchors(size: tuple[int, int], scale: int, mask: Any) -> np.ndarray:
    return np.reshape(PIXELS, (4, 2))[list(mask)] / (scale * np.array(size[::-1]))


def net(text: str, xs: list[np.ndarray], device: Any) -> np.ndarray:
    """Return the top of a layer in a net, where the number of rows is measured."""
    inputs = "".join(f"layer {{ name: 'x{i}' type: 'Input' top: 'x{i}' input_param {{ shape {{ {repeated('dim', x.shape)} }} }} }} " for i, x in enumerate(xs))
    names = " ".join(f"bottom: 'x{i}'" for i in range(len(xs)))
    message = parse(f"{inputs} layer {{ {text} {names} top: 'y' }}", proto.NetParameter, "net")
    with Net(message, proto.TEST, device=device) as made:
        made.forward()  # on zeros, of another number of rows
        for i, x in enumerate(xs):
            made.blobs[f"x{i}"].data[...] = x
        found = made.forward()["y"].copy()
        model = export(message, None, Options()).model
    (exported,) = OnnxSession(model, ["y"]).run({f"x{i}": x for i, x in enumerate(xs)})
    close(exported, found)
    return found


@pytest.mark.parametrize("images", [1, 3])
@pytest.mark.parametrize("grids", [1, 2])
def test_yolov2(device: Any, images: int, grids: int) -> None:
    xs = [scored(np.random.default_rng(i), images, 3, 4, size) for i, size in enumerate(SIZES[:grids])]
    xs[0][1:2, 4::9] = -9
    decoder = Decoder([cell_anchors(size) for size in SIZES[:grids]], 4, False, 0.25, 0.4)
    expected = decoder.rows(xs)
    assert expected.shape[2] > 3
    close(net(yolov2("confidence_threshold: 0.25 nms_threshold: 0.4"), xs, device), expected)


@pytest.mark.parametrize("images", [1, 3])
def test_yolov3(device: Any, images: int) -> None:
    xs = [scored(np.random.default_rng(i), images, 2, 4, size) for i, size in enumerate(SIZES)]
    decoder = Decoder([pixel_anchors(SIZES[0], 16, (2, 3)), pixel_anchors(SIZES[1], 8, (0, 1))], 4, True, 0.3, 0.45)
    expected = decoder.rows(xs)
    assert expected.shape[2] > 3
    close(net(yolov3("confidence_threshold: 0.3"), xs, device), expected)


def test_kernels_of_both_kinds(device: Any, kind: str) -> None:
    """More detections than a work-group has items; bottoms are views with gaps."""
    x = scored(np.random.default_rng(5), 2, 3, 4, (23, 31))
    decoder = Decoder([cell_anchors((23, 31))], 4, False, 0.6, 0.45)
    found = run(device, kind, yolov2("confidence_threshold: 0.6"), [x], strided=True, train=False).tops[0]
    expected = decoder.rows([x])
    assert expected.shape[2] > 300
    close(found[:, :, : expected.shape[2]], expected)
    assert (found[0, 0, expected.shape[2] :, 1:] == -1).all()


def test_no_detections(device: Any) -> None:
    x = scored(np.random.default_rng(6), 3, 3, 4, SIZES[0])
    assert np.array_equal(net(yolov2("confidence_threshold: 0.9999"), [x], device), [[[[n, *[-1] * 6] for n in range(3)]]])
    some = x.copy()
    some[[0, 2], 4::9] = -9
    assert set(net(yolov2("confidence_threshold: 0.25"), [some], device)[0, 0, :, 0]) == {1}


def test_limits_are_reached(device: Any) -> None:
    """A score of exactly confidence_threshold is a detection of YOLOv2 and none of YOLOv3; boxes of exactly nms_threshold suppress each other."""
    x = np.zeros((1, 18, 1, 2), np.float32)
    x[0, 4::9] = [[[50, -50]], [[-50, -50]]]  # one confident prediction; the score of a class is 1 / 4, its sigmoid 1 / 2
    x[0, 5::9] = 0
    v2 = f"name: 'y' type: 'YoloDetectionOutput' yolo_detection_output_param {{ num_classes: 4 num_box: 2 {repeated('biases', [1, 1, 2, 2])} %s }}"
    v3 = "name: 'y' type: 'Yolov3DetectionOutput' yolov3_detection_output_param { num_classes: 4 num_box: 2 mask: 0 mask: 1 anchors_scale: 1 "
    v3 += f"mask_group_num: 1 {repeated('biases', [1, 1, 2, 2])} %s }}"
    assert net(v2 % "confidence_threshold: 0.25", [x], device)[0, 0, 0, 1] == 1
    assert net(v2 % "confidence_threshold: 0.2500001", [x], device)[0, 0, 0, 1] == -1
    assert net(v3 % "confidence_threshold: 0.5", [x], device)[0, 0, 0, 1] == -1
    assert net(v3 % "confidence_threshold: 0.49999", [x], device)[0, 0, 0, 1] == 1
    x[0, 13] = [[40, -50]]  # a second box of the same cell, 2 x 2 around 1 x 1: the overlap is 1 / 4
    for limit, rows in (("0.25", 1), ("0.2500001", 2)):
        assert net(v2 % f"confidence_threshold: 0.2 nms_threshold: {limit}", [x], device).shape[2] == rows


@pytest.mark.parametrize("has_rows", [False, True])
@pytest.mark.parametrize("score, nms", [("MULTIPLY", 0.45), ("OBJ", 0.3), ("PROB", -1)])
def test_evaluation(device: Any, kind: str, score: str, nms: float, has_rows: bool) -> None:
    rng = np.random.default_rng(8)
    x, label = scored(rng, 3, 3, 4, (6, 6)), bottoms(rng, 3, 1, (6, 6), 4, has_rows)[1]
    fields = f"side: 6 num_class: 4 num_object: 3 threshold: 0.3 nms: {nms} score_type: {score} {repeated('biases', BIASES)}"
    result = run(device, kind, f"name: 'e' type: 'EvalDetection' eval_detection_param {{ {fields} }}", [x, label], strided=not has_rows, train=False)
    expected = Decoder([cell_anchors((6, 6))], 4, False, 0.005, nms if nms > 0 else 2).evaluated(x, label, 0.3, score)
    assert expected[:, 4:].reshape(3, -1, 4)[:, :, 2:].sum((0, 1)).min() > 0, "both true and false positives"
    close(result.tops[0], expected)


@pytest.mark.parametrize(
    "text, shapes, expected",
    [
        (yolov2("", boxes=4), [(1, 36, 5, 7)], "there are 6 biases, num_box: 4 needs 8"),
        (yolov2(""), [(1, 28, 5, 7)], "bottom 0 is 1 x 28 x 5 x 7; num_box and num_classes are 3 and 4, so it must be N x 27 x H x W"),
        (yolov2(""), [(1, 27, 5, 7), (2, 27, 5, 7)], "bottom 0 has 1 images, bottom 1 has 2"),
        (yolov2("coords: 5"), [(1, 27, 5, 7)], "coords is 5"),
        (yolov2("nms_threshold: 0"), [(1, 27, 5, 7)], "nms_threshold is 0"),
        ("type: 'YoloDetectionOutput'", [(1, 27, 5, 7)], "num_classes is missing"),
        ("type: 'Yolov3DetectionOutput'", [(1, 27, 5, 7)], "num_classes is missing"),
        (yolov3("", groups=3), [(1, 18, 5, 7), (1, 18, 9, 4)], "2 bottoms are given, and mask_group_num is 3"),
        (yolov3("", scales=(16,)), [(1, 18, 5, 7), (1, 18, 9, 4)], "anchors_scale is given once for 2 bottoms"),
        (yolov3("", scales=(16, 0)), [(1, 18, 5, 7), (1, 18, 9, 4)], "anchors_scale of bottom 1 is 0"),
        (yolov3("", boxes=3), [(1, 27, 5, 7), (1, 27, 9, 4)], "mask has 4 anchors, num_box is 3"),
        (yolov3("", mask=(2, 3, 0, 4)), [(1, 18, 5, 7), (1, 18, 9, 4)], "there are 8 biases, mask: 4 needs 10"),
        (yolov3("nms_threshold: 1.5"), [(1, 18, 5, 7), (1, 18, 9, 4)], "nms_threshold is 1.5"),
        (yolov3(""), [(1, 18, 5, 7), (2, 18, 9, 4)], "bottom 0 has 1 images, bottom 1 has 2"),
        ("type: 'EvalDetection'", [(2, 1470), (2, 343)], "bottom 0 is 2 x 1470: predictions of YOLOv1"),
        (f"type: 'EvalDetection' eval_detection_param {{ side: 7 {repeated('biases', BIASES)} }}", [(2, 50, 6, 6), (2, 30, 5)], "side is 7"),
        (f"type: 'EvalDetection' eval_detection_param {{ nms: 2 {repeated('biases', BIASES)} }}", [(2, 50, 7, 7), (2, 30, 5)], "nms is 2"),
    ],
)
def test_errors(text: str, shapes: list[tuple[int, ...]], expected: str) -> None:
    with pytest.raises(Error) as caught:
        layer_of(text).infer(*shapes)
    assert expected in str(caught.value)
    assert caught.value.fix
