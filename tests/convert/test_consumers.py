"""`ocaffe convert --verify-in`: the outputs of other runtimes, and every way in which a runtime can fail."""
from __future__ import annotations

import importlib.util
import pathlib
import sys
from typing import Any

import numpy as np
import onnx
import pytest

from ocaffe.cli import convert, main
from ocaffe.convert import consumers
from ocaffe.convert.export import Options, export
from ocaffe.convert.verify import OnnxSession, random_inputs
from ocaffe.errors import Error
from ocaffe.onnx.detection import FAR
from tests.convert.test_convert import HEAD, ROOT, random_weights, small  # noqa: F401
from tests.convert.test_golden import GOLDEN, exported
from tests.docs.test_after_opencv5 import opencv5  # noqa: F401
from tests.test_golden import Case

pytestmark = pytest.mark.unoptimised

SSD = str(ROOT / "tests" / "golden" / "forks" / "Net-SSD-TEST-share.prototxt")
FAILURES = {  # the code of a runtime -> text in the error
    "import os; os.abort()": "opencv ends by signal 6",
    "import time; time.sleep(60)": "opencv has no result after 2 s",
    "raise RuntimeError('no such node')": "opencv does not run the model: RuntimeError: no such node",
    "raise SystemExit(3)": "status 3",
    "raise SystemExit('missing: cv2')": "'cv2' of opencv is not installed",
}


def test_the_command_knows_all_runtimes() -> None:
    assert set(convert.RUNTIMES) == set(consumers.CONSUMERS)


@pytest.mark.parametrize("runtime, module", [("reference", "onnx"), ("onnxruntime", "onnxruntime"), ("openvino", "openvino"), ("opencv", "cv2")])
def test_the_command(runtime: str, module: str, small: Any, device: Any, tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]) -> None:  # noqa: F811
    # HEAD alone: onnx 1.23's reference fails at a ConvTranspose with two groups.
    status = main(["convert", *small(HEAD), str(tmp_path / "m.onnx"), "--verify-in", runtime, "--dynamic-batch", "--device", str(device.number)])
    output = capsys.readouterr()
    if importlib.util.find_spec(module) is None:
        assert status == 1 and f"'{module}' of {runtime} is not installed" in output.err and "pip install" in output.err
        assert not (tmp_path / "m.onnx").exists()
    else:
        assert status == 0, output.err
        assert f"equal to ocaffe's outputs in {runtime} " in output.out and "layer by layer" not in output.out


@pytest.mark.parametrize("code", FAILURES)
def test_failures_of_a_runtime_are_errors(code: str, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = tmp_path / "process.py"
    program.write_text(code)
    monkeypatch.setattr(consumers.consumer_process, "__file__", str(program))
    with pytest.raises(Error) as problem:
        consumers.run_in("opencv", tmp_path / "m.onnx", {}, [], limit=2)
    assert FAILURES[code] in str(problem.value.fact) and problem.value.fix


def results(monkeypatch: pytest.MonkeyPatch, *values: np.ndarray) -> None:
    monkeypatch.setattr(consumers, "run_in", lambda *args, **kwargs: ("9", [[value] for value in values]))


def test_other_outputs_are_errors(small: Any, device: Any, monkeypatch: pytest.MonkeyPatch) -> None:  # noqa: F811
    exported = export(*small(), Options())
    feeds = [random_inputs(exported.graph)]
    zeros = np.zeros((2, 5), np.float32)
    for values, fact in (((zeros, zeros), "differs by 1 of"), ((zeros, zeros + 1), "differs among"), ((zeros[0], zeros[0]), "is 5 in opencv 9, but 2 x 5")):
        results(monkeypatch, *values)
        with pytest.raises(Error, match=fact):
            consumers.verify_in("opencv", exported, feeds, device)


def test_overflow_is_an_error(device: Any) -> None:
    exported = export(SSD, None, Options(fillers=True))
    feeds = {name: np.full_like(value, np.inf) for name, value in random_inputs(exported.graph).items()}
    with pytest.raises(Error, match="in ocaffe that are not finite"):
        consumers.verify_in("reference", exported, [feeds], device)


def test_a_detector_is_to_be_cut(device: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    exported = export(SSD, None, Options(fillers=True))
    results(monkeypatch, np.zeros(3))
    with pytest.raises(Error) as problem:
        consumers.verify_in("opencv", exported, [random_inputs(exported.graph)], device)
    assert "--raw-detection" in str(problem.value.fix) and "ENGINE_AUTO" not in str(problem.value.fix)
    assert "--raw-detection" in consumers.remedy("opencv-classic", exported) and "ENGINE_AUTO" in consumers.remedy("opencv-classic", exported)


PROPOSAL = """
layer { name: "data" type: "Input" top: "conv5" top: "im_info" input_param { shape { dim: 1 dim: 8 dim: 14 dim: 14 } shape { dim: 1 dim: 3 } } }
layer { name: "scores" type: "Convolution" bottom: "conv5" top: "scores" convolution_param { num_output: 18 kernel_size: 1 } }
layer { name: "deltas" type: "Convolution" bottom: "conv5" top: "deltas" convolution_param { num_output: 36 kernel_size: 1 } }
layer { name: "rois" type: "Proposal" bottom: "scores" bottom: "deltas" bottom: "im_info" top: "rois" proposal_param { feat_stride: 16 } }
layer { name: "pool5" type: "ROIPooling" bottom: "conv5" bottom: "rois" top: "pool5" roi_pooling_param { pooled_w: 2 pooled_h: 3 spatial_scale: 0.0625 } }
layer { name: "cls_score" type: "InnerProduct" bottom: "pool5" top: "cls_score" inner_product_param { num_output: 3 } }"""


PYTHON = """type: "Python" python_param { module: 'rpn.proposal_layer' layer: 'ProposalLayer' }"""


@pytest.mark.parametrize("kind", ["Proposal", "Python"])
def test_proposals_are_to_be_cut(kind: str, tmp_path: pathlib.Path) -> None:
    net = tmp_path / "net.prototxt"
    net.write_text(PROPOSAL if kind == "Proposal" else PROPOSAL.replace('type: "Proposal"', PYTHON).replace("proposal_param { feat_stride: 16 }", ""))
    text = consumers.remedy("opencv-classic", export(str(net), None, Options(fillers=True)))
    assert text.startswith(f"--cut-at=scores,deltas ends the model before 'rois' ({kind})") and "ENGINE_AUTO" in text


def test_a_scan_is_to_be_avoided(tmp_path: pathlib.Path) -> None:
    net = tmp_path / "net.prototxt"
    net.write_text(RECURRENT.format("LSTM"))
    scan, steps = (export(str(net), None, Options(fillers=True, dynamic_batch=dynamic)) for dynamic in (True, False))
    assert consumers.remedy("opencv", scan).startswith("leave out --dynamic-batch: OpenCV has no Scan") and "Scan" not in consumers.remedy("opencv", steps)


@pytest.mark.parametrize("flags, fact", [(["--verify-in=tensorrt"], "--verify-in is 'tensorrt'"), (["--verify-in=opencv", "--noverify"], "with --noverify")])
def test_wrong_flags(flags: list[str], fact: str, small: Any, tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]) -> None:  # noqa: F811
    assert main(["convert", *small(), str(tmp_path / "m.onnx"), *flags]) == 1
    assert fact in capsys.readouterr().err


def test_the_detector_runs_in_the_reference(device: Any) -> None:
    from ocaffe import proto
    from ocaffe.compiler.network import phase_net
    from ocaffe.formats.text import read_net
    from ocaffe.formats.upgrade import upgrade_net

    message = phase_net(upgrade_net(read_net(SSD)), proto.TEST)
    exported = export(message, random_weights(message), Options())
    assert consumers.verify_in("reference", exported, [random_inputs(exported.graph)], device, python=sys.executable).worst <= 1e-4


CORNERS = GOLDEN / "forks" / "Net-SSD-TEST-corner.npz"  # a third of its boxes have swapped corners


def test_boxes_that_are_suppressed_have_an_area() -> None:
    """OpenCV 5.0 takes two boxes without an area for equal, and onnxruntime swaps corners back."""
    case = Case(CORNERS, 1e-4)
    model = exported(case).model
    boxes = next(node.input[0] for node in model.graph.node if node.op_type == "NonMaxSuppression")
    (values,) = OnnxSession(model, [boxes]).run({blob: array for (blob,), array in case.get("in", 1)})
    sides = values[..., 2:] - values[..., :2]
    replaced = values[..., 0] >= FAR
    assert (sides > 0).all() and replaced.any() and not replaced.all() and len(np.unique(values[replaced], axis=0)) == replaced.any(0).sum()


@pytest.mark.parametrize("engine", ["new", "auto"])
def test_swapped_corners_in_opencv(engine: str, opencv5: str, tmp_path: pathlib.Path) -> None:  # noqa: F811
    case = Case(CORNERS, 1e-4)
    onnx.save(exported(case).model, tmp_path / "m.onnx")
    _, [[found]] = consumers.run_in(f"opencv-{engine}", tmp_path / "m.onnx", {blob: array for (blob,), array in case.get("in", 1)}, ["detection_out"],
                                    runs=1, python=opencv5)  # fmt: skip
    case.compare("out", 1, ["detection_out"], found)


RECURRENT = """
layer {{ name: "data" type: "Input" top: "data" top: "cont" input_param {{ shape {{ dim: 4 dim: 2 dim: 5 }} shape {{ dim: 4 dim: 2 }} }} }}
layer {{ name: "h" type: "{}" bottom: "data" bottom: "cont" top: "h" recurrent_param {{ num_output: 3 weight_filler {{ type: "xavier" }} }} }}"""
IMAGE = 'layer { name: "data" type: "Input" top: "data" input_param { shape { dim: 1 dim: 8 dim: 15 dim: 15 } } }'
FORMS = {  # forms of nodes that were chosen because OpenCV 5.0 computes others wrong, and the engines
    "AVE pooling with pads": (IMAGE + """
layer { name: "pool" type: "Pooling" bottom: "data" top: "pool" pooling_param { pool: AVE kernel_size: 3 stride: 2 pad: 1 } }""", ("classic", "new", "auto")),
    "LRN within a channel": (IMAGE + """
layer { name: "norm" type: "LRN" bottom: "data" top: "norm" lrn_param { local_size: 5 norm_region: WITHIN_CHANNEL } }""", ("classic", "new", "auto")),
    "Proposal": ("""
layer { name: "data" type: "Input" top: "scores" top: "deltas" top: "im_info"
        input_param { shape { dim: 1 dim: 18 dim: 14 dim: 14 } shape { dim: 1 dim: 36 dim: 14 dim: 14 } shape { dim: 1 dim: 3 } } }
layer { name: "rois" type: "Proposal" bottom: "scores" bottom: "deltas" bottom: "im_info" top: "rois" proposal_param { feat_stride: 16 } }""", ("new", "auto")),
    "ROIPooling": ("""
layer { name: "data" type: "Input" top: "data" top: "rois" input_param { shape { dim: 1 dim: 8 dim: 14 dim: 14 } shape { dim: 4 dim: 5 } } }
layer { name: "pool" type: "ROIPooling" bottom: "data" bottom: "rois" top: "pool" roi_pooling_param { pooled_w: 3 pooled_h: 2 spatial_scale: 0.0625 } }""",
                   ("classic", "new", "auto")),
    "ROIPooling of Proposal": (PROPOSAL, ("new", "auto")),
    **{kind: (RECURRENT.format(kind), ("classic", "new", "auto")) for kind in ("LSTM", "RNN", "GRU")},
}  # fmt: skip


@pytest.mark.parametrize("name, engine", [(name, engine) for name, (_, engines) in FORMS.items() for engine in engines])
def test_forms_for_opencv(name: str, engine: str, opencv5: str, device: Any, tmp_path: pathlib.Path) -> None:  # noqa: F811
    net = tmp_path / "net.prototxt"
    net.write_text(FORMS[name][0])
    exported = export(str(net), None, Options(fillers=True))
    assert consumers.verify_in(f"opencv-{engine}", exported, [random_inputs(exported.graph)], device, python=opencv5).worst <= 1e-4
