"""RegionLoss and Yolov3: compared with a sequential float64 program, and their gradients with central differences of the objective that they descend."""
from __future__ import annotations

import pathlib
from typing import Any

import numpy as np
import pytest

from ocaffe import proto
from ocaffe.api.net import Net
from ocaffe.api.pysolver import get_solver
from ocaffe.data.databases.writer import LmdbWriter
from ocaffe.errors import Error
from ocaffe.formats.text import parse
from tests.layers.single import KINDS, close, layer_of, run
from tests.layers.yolo_program import Program, bottoms, lists, overlap, sigmoid

ANCHORS = [1.3, 1.7, 3.2, 0.9, 2.5, 4.4]  # in cells
PIXELS = [10, 14, 60, 25, 37, 58, 81, 82]
SIZE = (5, 7)  # height, width
ONLY_DATA = [True, False]


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    return request.param


def repeated(name: str, values: Any) -> str:
    return " ".join(f"{name}: {value}" for value in values)


def region(fields: str, classes: int = 4, num: int = 3) -> str:
    return f"name: 'loss' type: 'RegionLoss' region_loss_param {{ num_class: {classes} num: {num} {repeated('biases', ANCHORS)} {fields} }}"


def yolov3(fields: str, classes: int = 4, mask: Any = (1, 3), num: int = 2, pixels: int = 16) -> str:
    own = f"num_class: {classes} num: {num} anchors_scale: {pixels} {repeated('biases', PIXELS)} {repeated('mask', mask)} {fields}"
    return f"name: 'loss' type: 'Yolov3' yolov3_param {{ {own} }}"


def region_anchors() -> np.ndarray:
    return np.reshape(ANCHORS, (3, 2)) / SIZE[::-1]


def pixel_anchors() -> np.ndarray:
    return np.reshape(PIXELS, (4, 2)) / (16 * np.array(SIZE[::-1]))


@pytest.mark.parametrize("images", [1, 4])
@pytest.mark.parametrize(
    "fields, settings",
    [
        ("", {}),
        ("rescore: 0 object_scale: 5 noobject_scale: 1 class_scale: 2 coord_scale: 3", {
            "rescore": False, "object_scale": 5, "noobject_scale": 1, "class_scale": 2, "coord_scale": 3}),
        ("bias_match: 0 thresh: 0.5", {"bias_match": False, "thresh": 0.5}),
    ],
)  # fmt: skip
def test_region_loss(device: Any, kind: str, images: int, fields: str, settings: dict[str, Any]) -> None:
    """In the TRAIN phase this is the first iteration, in which predictions are drawn to their anchors; in the TEST phase they are not."""
    inputs = bottoms(np.random.default_rng(3), images, 3 * 9, SIZE, 4, has_rows=False)
    for phase, warm in ((proto.TRAIN, True), (proto.TEST, False)):
        program = Program("region", 4, region_anchors(), [0, 1, 2], **{"thresh": 0.2, **settings}, warm=warm)
        result = run(device, kind, layer_of(region(fields), phase), inputs, [np.array(3.0)], propagate=ONLY_DATA, strided=True)
        loss, gradient = program.run(*inputs)
        close(result.tops[0], loss, 1e-5)
        close(result.diffs[0], 3 * gradient)


def test_end_of_the_beginning(device: Any) -> None:
    """With 6400 images a batch, predictions are drawn to their anchors in two iterations."""
    images, biases = 6400, repeated("biases", [1, 1])
    shapes = "".join(
        f"layer {{ name: '{name}' type: 'Input' top: '{name}' input_param {{ shape {{ {repeated('dim', shape)} }} }} }} "
        for name, shape in (("x", (images, 6, 1, 1)), ("label", (images, 5)))
    )
    text = f"{shapes} layer {{ name: 'l' type: 'RegionLoss' bottom: 'x' bottom: 'label' top: 'l' region_loss_param {{ num_class: 1 num: 1 {biases} }} }}"
    with Net(parse(text, proto.NetParameter, "net"), proto.TRAIN, device=device) as net:
        x = net.blobs["x"].data[...] = np.random.default_rng(2).standard_normal((images, 6, 1, 1)).astype(np.float32)
        losses = [float(net.forward()["l"]) for _ in range(4)]
    for loss, warm in zip(losses, (True, True, False, False)):
        program = Program("region", 1, np.ones((1, 2)), [0], thresh=0.2, warm=warm)
        assert loss == pytest.approx(program.run(x, np.zeros((images, 5)))[0], rel=1e-4)
    assert losses[1] != losses[2]


def test_region_loss_of_yolo9000(device: Any, kind: str) -> None:
    """Rows of 8 columns; sides far from the anchors exceed the limit of the differences."""
    inputs = bottoms(np.random.default_rng(4), 3, 3 * 9, SIZE, 4, has_rows=True)
    inputs[0][:, 2::9] *= 3
    program = Program("yolo9000", 4, region_anchors(), [0, 1, 2], thresh=0.2)
    result = run(device, kind, region(""), inputs, [np.array(2.0)], propagate=ONLY_DATA, held=1.5)
    loss, gradient = program.run(*inputs)
    close(result.tops[0], loss, 1e-5)
    close(result.diffs[0], 1.5 + 2 * gradient)


@pytest.mark.parametrize("has_rows", [False, True])
@pytest.mark.parametrize(
    "fields, settings",
    [
        ("", {}),
        ("use_logic_gradient: true object_scale: 5 class_scale: 2 coord_scale: 1", {"logic": True, "object_scale": 5, "class_scale": 2, "coord_scale": 1}),
        ("use_focal_loss: true thresh: 0.6", {"focal": True, "thresh": 0.6}),
        ("iou_loss: GIOU", {"iou_loss": "GIOU"}),
        ("iou_loss: IOU iou_normalizer: 0.5", {"iou_loss": "IOU", "iou_scale": 0.5}),
    ],
)
def test_yolov3(device: Any, kind: str, fields: str, settings: dict[str, Any], has_rows: bool) -> None:
    """Several boxes share anchors of cells, image 1 has none, and some boxes fit anchors that the mask does not name."""
    inputs = bottoms(np.random.default_rng(5), 4, 2 * 9, SIZE, 4, has_rows)
    program = Program("yolov3", 4, pixel_anchors(), [1, 3], **{"thresh": 0.2, **settings})
    result = run(device, kind, yolov3(fields), inputs, [np.array(3.0)], propagate=ONLY_DATA, strided=not has_rows)
    loss, gradient = program.run(*inputs)
    close(result.tops[0], loss, 1e-5)
    close(result.diffs[0], 3 * gradient, 3e-4)


def test_several_boxes_of_one_prediction(device: Any, kind: str) -> None:
    """Yolov3 keeps the classes of both boxes; RegionLoss has those of the last. Both have the location of the last."""
    x = np.random.default_rng(6).standard_normal((1, 18, *SIZE)).astype(np.float32)
    label = np.zeros((1, 1, 5, 5), np.float32)
    label[0, 0, :2] = [[2, 0.5, 0.5, 0.72, 0.2], [1, 0.51, 0.49, 0.7, 0.19]]
    first = run(device, kind, yolov3(""), [x, label], [np.array(1.0)], propagate=ONLY_DATA).diffs[0].reshape(2, 9, *SIZE)  # type: ignore[union-attr]
    classes = first[:, 5:].reshape(2, 4, -1)
    (a,), (cell,) = np.nonzero(classes.any((1, 2))), np.nonzero(classes.any((0, 1)))
    assert (np.sign(classes[a[0], :, cell[0]]) == [1, -1, -1, 1]).all()
    alone = run(device, kind, yolov3(""), [x, label[:, :, 1:]], [np.array(1.0)], propagate=ONLY_DATA).diffs[0].reshape(2, 9, *SIZE)  # type: ignore[union-attr]
    assert (first[:, :5] == alone[:, :5]).all()


def test_gradient_is_that_of_the_objective(device: Any, kind: str) -> None:
    """The gradient of Yolov3 is that of cross entropies and squares, and with use_logic_gradient of squares alone. The loss is another number."""
    rng = np.random.default_rng(7)
    x, label = bottoms(rng, 1, 2 * 9, SIZE, 4, has_rows=False, most=1)
    truth_class, truth = lists(label, 1)[0][0]
    program = Program("yolov3", 4, pixel_anchors(), [1, 3], thresh=0.2)
    i, j = int(truth[0] * SIZE[1]), int(truth[1] * SIZE[0])
    similar = [overlap(np.array([0, 0, *sides]), np.array([0, 0, *truth[2:]])) for sides in program.anchors]
    chosen = int(np.argmax(similar))
    anchor = program.mask.index(chosen)
    start = x.astype(np.float64).reshape(2, 9, *SIZE)
    target = np.concatenate([truth[:2] * SIZE[::-1] - [i, j], np.log(truth[2:] / program.anchors[chosen])])
    ignored = [(a, h, w) for a, h, w in np.ndindex(2, *SIZE) if overlap(program.box(start, a, h, w), truth) > 0.2]

    def objective(x: np.ndarray, logic: bool) -> float:
        own, scale = x[anchor, :, j, i], 5 * (2 - truth[2] * truth[3])
        kinds = (np.arange(4) == truth_class).astype(float)

        def entropy(logit: Any, target: Any) -> Any:
            p = sigmoid(logit)
            return (p - target) ** 2 / 2 if logic else -target * np.log(p) - (1 - target) * np.log(1 - p)

        value = scale * (entropy(own[:2], target[:2]).sum() + ((own[2:4] - target[2:]) ** 2).sum() / 2)
        value += entropy(own[4], 1) + entropy(own[5:], kinds).sum()
        for a, h, w in np.ndindex(2, *SIZE):
            if (a, h, w) not in ignored and (a, h, w) != (anchor, j, i):
                value += entropy(x[a, 4, h, w], 0)
        return float(value)

    for logic in (False, True):
        result = run(device, kind, yolov3("use_logic_gradient: true" if logic else ""), [x, label], [np.array(1.0)], propagate=ONLY_DATA)
        assert result.diffs[0] is not None
        for _ in range(3):
            aim = rng.standard_normal(start.shape)
            slope = (objective(start + 1e-5 * aim, logic) - objective(start - 1e-5 * aim, logic)) / 2e-5
            told = float((result.diffs[0].reshape(start.shape) * aim).sum())
            assert abs(told - slope) <= 1e-3 * max(abs(slope), 1)


def test_threshold(device: Any, kind: str) -> None:
    """Predictions with a larger overlap than thresh are not trained as background."""
    x, label = bottoms(np.random.default_rng(8), 2, 2 * 9, SIZE, 4, has_rows=False)
    zeros = [
        int((run(device, kind, yolov3(f"thresh: {thresh}"), [x, label], [np.array(1.0)], propagate=ONLY_DATA).diffs[0][:, 4::9] == 0).sum())  # type: ignore[index]
        for thresh in (0.05, 0.2, 0.5, 1)
    ]
    assert zeros == sorted(zeros, reverse=True) and zeros[0] > zeros[1] > zeros[2] >= zeros[3] == 0


def test_without_boxes(device: Any, kind: str) -> None:
    x = np.random.default_rng(9).standard_normal((2, 18, *SIZE)).astype(np.float32)
    o = sigmoid(x[:, 4::9].astype(np.float64))
    for label in (np.zeros((2, 1, 3, 5)), np.zeros((2, 15)), np.full((1, 1, 1, 8), -1.0)):
        result = run(device, kind, yolov3(""), [x, label], [np.array(1.0)], propagate=ONLY_DATA)
        close(result.tops[0], (o**2).sum() / 2, 1e-5)
        expected = np.zeros(x.shape)
        expected[:, 4::9] = o / 2
        close(result.diffs[0], expected)


@pytest.mark.parametrize("box", [[4, 0.5, 0.5, 0.3, 0.3], [-1, 0.5, 0.5, 0.3, 0.3]])
def test_a_class_that_does_not_exist(device: Any, kind: str, box: list[float]) -> None:
    x = np.random.default_rng(9).standard_normal((1, 18, *SIZE)).astype(np.float32)
    assert np.isnan(run(device, kind, yolov3(""), [x, np.array([[[box]]])]).tops[0])


def test_boxes_that_train_nothing(device: Any, kind: str) -> None:
    """A centre outside of the image has no cell; a box without area is left out."""
    x = np.random.default_rng(9).standard_normal((1, 18, *SIZE)).astype(np.float32)
    label = np.array([[[[1, 1.2, 0.5, 0.1, 0.1], [2, 0.5, 0.5, 0.4, 0], [3, 0.3, -0.1, 0.05, 0.05]]]])
    result = run(device, kind, yolov3("thresh: 0.9"), [x, label], [np.array(1.0)], propagate=ONLY_DATA)
    assert np.isfinite(result.tops[0]) and not result.diffs[0].reshape(2, 9, *SIZE)[:, 5:].any()  # type: ignore[union-attr]


@pytest.mark.parametrize(
    "text, shapes, expected",
    [
        (region(""), [(2, 28, 5, 7), (2, 1, 3, 5)], "bottom 0 is 2 x 28 x 5 x 7; num and num_class are 3 and 4, so it must be N x 27 x H x W"),
        (region(""), [(2, 27, 5, 7), (3, 1, 3, 5)], "bottom 1 is 3 x 1 x 3 x 5, bottom 0 is 2 x 27 x 5 x 7"),
        (region("coords: 5"), [(2, 27, 5, 7), (2, 1, 3, 5)], "coords is 5"),
        (region("", num=4), [(2, 36, 5, 7), (2, 1, 3, 5)], "there are 6 biases, num: 4 needs 8"),
        (region("softmax_tree: 'a'"), [(2, 27, 5, 7), (2, 1, 3, 5)], "softmax_tree (YOLO9000) is not supported"),
        (region("class_map: 'a'"), [(2, 27, 5, 7), (2, 1, 3, 5)], "class_map (YOLO9000) is not supported"),
        (yolov3("", mask=(1, 4)), [(2, 18, 5, 7), (2, 1, 3, 5)], "there are 8 biases, mask: 4 needs 10"),
        (yolov3("", num=3), [(2, 27, 5, 7), (2, 1, 3, 5)], "mask has 2 anchors, num is 3"),
        (yolov3("", pixels=0), [(2, 18, 5, 7), (2, 1, 3, 5)], "anchors_scale is 0"),
        (yolov3("biases: -1 biases: 3"), [(2, 18, 5, 7), (2, 1, 3, 5)], "a number in biases is -1"),
        (yolov3("", classes=0), [(2, 18, 5, 7), (2, 1, 3, 5)], "num_class is 0"),
    ],
)
def test_errors(text: str, shapes: list[tuple[int, ...]], expected: str) -> None:
    with pytest.raises(Error) as caught:
        layer_of(text).infer(*shapes)
    assert expected in str(caught.value)
    assert caught.value.fix


@pytest.mark.parametrize("data_type, sizes", [(0, ()), (1, ()), (1, (32, 48))])
def test_training(device: Any, tmp_path: pathlib.Path, data_type: int, sizes: tuple[int, ...]) -> None:
    """A net learns white boxes of a database, with labels as rows and as lists, and with batches of several sizes."""
    rng = np.random.default_rng(1)
    with LmdbWriter(str(tmp_path / "db")) as out:
        for number in range(8):
            image, datum = np.zeros((1, 32, 32), np.uint8), proto.AnnotatedDatum(type=proto.AnnotatedDatum.BBOX)
            (x, y), side = rng.integers(0, 16, 2), 8 + 8 * (number % 2)
            image[:, y : y + side, x : x + side] = 255
            datum.datum.channels, datum.datum.height, datum.datum.width = image.shape
            datum.datum.data = image.tobytes()
            box = proto.NormalizedBBox(xmin=x / 32, ymin=y / 32, xmax=(x + side) / 32, ymax=(y + side) / 32)
            datum.annotation_group.add(group_label=1 + number % 2).annotation.add().bbox.CopyFrom(box)
            out.put(b"%08d" % number, datum.SerializeToString())
    resize = " ".join(f"resize_param {{ prob: {1 / len(sizes)} height: {size} width: {size} }}" for size in sizes)
    net = f"""
        layer {{ name: "data" type: "AnnotatedData" top: "data" top: "label" transform_param {{ scale: 0.004 {resize} }}
          data_param {{ source: "{tmp_path / "db"}" batch_size: 8 backend: LMDB }}
          annotated_data_param {{ yolo_data_type: {data_type} yolo_data_jitter: 0 }} }}
        layer {{ name: "c" type: "Convolution" bottom: "data" top: "c"
          convolution_param {{ num_output: 16 kernel_size: 8 stride: 8 weight_filler {{ type: "msra" }} }} }}
        layer {{ name: "r" type: "ReLU" bottom: "c" top: "c" }}
        layer {{ name: "p" type: "Convolution" bottom: "c" top: "p"
          convolution_param {{ num_output: 14 kernel_size: 3 pad: 1 weight_filler {{ type: "xavier" }} }} }}
        layer {{ name: "v2" type: "RegionLoss" bottom: "p" bottom: "label" top: "v2" loss_weight: 0.5
          region_loss_param {{ num_class: 2 num: 2 {repeated('biases', [1, 1, 2, 2])} thresh: 0.5 }} }}
        layer {{ name: "v3" type: "Yolov3" bottom: "p" bottom: "label" top: "v3"
          yolov3_param {{ num_class: 2 num: 2 anchors_scale: 8 mask: 0 mask: 1 {repeated('biases', [8, 8, 16, 16])} thresh: 0.5 coord_scale: 1 }} }}"""
    solver = parse(f'base_lr: 0.03 momentum: 0.9 lr_policy: "fixed" max_iter: 60 random_seed: 3 net_param {{ {net} }}', proto.SolverParameter, "solver")
    with get_solver(solver, device=device) as made:
        made.step(1)
        first = [float(made.net.blobs[name].data) for name in ("v2", "v3")]
        seen = set()
        for _ in range(59):
            made.step(1)
            seen.add(made.net.blobs["data"].shape[2])
        last = [float(made.net.blobs[name].data) for name in ("v2", "v3")]
    assert last[1] < first[1] / 4 and last[0] < first[0] and seen == set(sizes or [32])


def test_no_gradient_for_true_boxes(device: Any) -> None:
    x, label = np.zeros((1, 18, *SIZE)), np.zeros((1, 1, 2, 5))
    with pytest.raises(Error, match="no gradient for true boxes"):
        run(device, "cpu", yolov3(""), [x, label], [np.array(1.0)])
