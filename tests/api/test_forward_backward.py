"""Net, Blob and get_solver of pycaffe: running and memory."""
from __future__ import annotations

import pathlib
import shutil
from typing import Any

import h5py
import numpy as np
import pytest
from google.protobuf import text_format

import ocaffe as caffe
from ocaffe import log, proto
from ocaffe.compiler.compiled_nets import SHAPES_KEPT
from ocaffe.errors import Error
from ocaffe.formats.text import parse

pytestmark = pytest.mark.quick

GOLDEN = pathlib.Path(__file__).parents[1] / "golden"
NET = """
name: "small"
layer { name: "data" type: "Input" top: "data" input_param { shape { dim: 2 dim: 3 dim: 8 dim: 8 } } }
layer { name: "conv" type: "Convolution" bottom: "data" top: "conv" convolution_param { num_output: 4 kernel_size: 3 weight_filler { type: "xavier" } } }
layer { name: "relu" type: "ReLU" bottom: "conv" top: "conv" }
layer { name: "pool" type: "Pooling" bottom: "conv" top: "pool" pooling_param { pool: AVE kernel_size: 2 stride: 2 } }
layer { name: "score" type: "Convolution" bottom: "pool" top: "score" convolution_param { num_output: 5 kernel_size: 1 weight_filler { type: "xavier" } } }
layer { name: "prob" type: "Softmax" bottom: "score" top: "prob" }
"""


def net(device: Any, text: str = NET, phase: int = proto.TEST, **options: Any) -> caffe.Net:
    return caffe.Net(parse(text, proto.NetParameter, "net.prototxt"), phase, device=device, **options)


def image(*shape: int) -> np.ndarray:
    return np.random.default_rng(1).standard_normal(shape or (2, 3, 8, 8)).astype(np.float32)


def test_properties(device: Any) -> None:
    small = net(device)
    assert small.inputs == ["data"] and small.outputs == ["prob"]
    assert list(small.blobs) == ["data", "conv", "pool", "score", "prob"]
    assert {name: [blob.shape for blob in blobs] for name, blobs in small.params.items()} == {
        "conv": [(4, 3, 3, 3), (4,)], "score": [(5, 4, 1, 1), (5,)],
    }  # fmt: skip
    blob = small.blobs["data"]
    assert (blob.num, blob.channels, blob.height, blob.width, blob.count) == (2, 3, 8, 8, 384)
    assert small.params["conv"][1].num == 4 and small.params["conv"][1].width == 1


def test_forward_takes_arrays_and_returns_outputs(device: Any) -> None:
    small = net(device)
    out = small.forward(data=image())
    assert out["prob"].shape == (2, 5, 3, 3)
    np.testing.assert_allclose(out["prob"].sum(1), 1, rtol=1e-5)
    assert set(small.forward(["pool"])) == {"prob", "pool"}


def test_what_a_script_writes_is_used_and_what_it_holds_is_fresh(device: Any) -> None:
    small = net(device)
    small.blobs["data"].data[...] = image()
    held = small.forward()["prob"]
    before = held.copy()
    small.params["score"][0].data[...] = 0
    small.params["score"][1].data[...] = [0, 0, 0, 0, 9]
    small.forward()
    assert not np.array_equal(held, before), "the array that the script holds was not refreshed"
    np.testing.assert_allclose(held[:, 4], np.exp(9) / (4 + np.exp(9)), rtol=1e-5)
    np.testing.assert_array_equal(held, small.blobs["prob"].data)


def test_parts_of_the_net_run_alone(device: Any) -> None:
    small = net(device)
    whole = small.forward(data=image())["prob"].copy()
    conv = small.forward(end="relu")["conv"]
    assert conv.min() >= 0
    small.blobs["pool"].data[...] *= 2
    assert not np.allclose(small.forward(start="score")["prob"], whole)
    assert np.array_equal(small.forward(start="pool")["prob"], whole)
    with pytest.raises(Error, match="no layer 'nope'"):
        small.forward(start="nope")


def test_backward_adds_to_gradients_and_works_in_test_phase(device: Any) -> None:
    small = net(device, NET.replace("layer {", "force_backward: true layer {", 1))
    small.forward(data=image())
    slope = image(2, 5, 3, 3)
    data_diff = small.backward(prob=slope)["data"].copy()
    weight_diff = small.params["conv"][0].diff.copy()
    assert np.abs(data_diff).max() > 0
    step = 1e-2
    moved = image()
    moved[0, 1, 4, 4] += step
    numeric = ((small.forward(data=moved)["prob"] - small.forward(data=image())["prob"].copy()) * slope).sum()
    up = (small.forward(data=moved)["prob"].astype(np.float64) * slope).sum()
    down = (small.forward(data=2 * image() - moved)["prob"].astype(np.float64) * slope).sum()
    assert np.isfinite(numeric)
    np.testing.assert_allclose((up - down) / (2 * step), data_diff[0, 1, 4, 4], rtol=2e-2, atol=2e-4)
    small.forward(data=image())
    small.backward()
    np.testing.assert_allclose(small.params["conv"][0].diff, 2 * weight_diff, rtol=1e-4, atol=1e-6)
    small.clear_param_diffs()
    assert not small.params["conv"][0].diff.any()


def test_reshape_runs_other_image_sizes(device: Any) -> None:
    small = net(device)
    small.forward(data=image())
    weights = small.params["conv"][0].data.copy()
    for shape in ((1, 3, 12, 10), (2, 3, 8, 8), (5, 3, 8, 8)):
        small.blobs["data"].reshape(*shape)
        small.reshape()
        assert small.forward(data=image(*shape))["prob"].shape == (shape[0], 5, (shape[2] - 2) // 2, (shape[3] - 2) // 2)
    assert np.array_equal(small.params["conv"][0].data, weights)


def test_a_fully_connected_net_refuses_another_image_size(device: Any) -> None:
    text = NET.replace('type: "Convolution" bottom: "pool" top: "score" convolution_param { num_output: 5 kernel_size: 1',
                       'type: "InnerProduct" bottom: "pool" top: "score" inner_product_param { num_output: 5')  # fmt: skip
    small = net(device, text)
    small.blobs["data"].reshape(2, 3, 10, 10)
    with pytest.raises(Error, match=r"5 x 64.*5 x 36"):
        small.forward()


def test_recycled_memory_is_never_another_blobs_numbers(device: Any) -> None:
    everything = net(device)
    planned = net(device, keep=["pool"])
    expected = everything.forward(data=image())
    np.testing.assert_array_equal(planned.forward(data=image())["prob"], expected["prob"])
    np.testing.assert_array_equal(planned.blobs["pool"].data, everything.blobs["pool"].data)
    with pytest.raises(Error, match="memory of blob 'conv'") as caught:
        _ = planned.blobs["conv"].data
    assert "keep=['conv']" in str(caught.value.fix)


def test_save_and_copy_from(device: Any, tmp_path: pathlib.Path) -> None:
    first, second = net(device, seed=1), net(device, seed=2)
    first.params["score"][1].data[...] = 7
    first.save(str(tmp_path / "w.caffemodel"))
    assert not np.array_equal(first.params["conv"][0].data, second.params["conv"][0].data)
    second.copy_from(str(tmp_path / "w.caffemodel"))
    for name, blobs in first.params.items():
        for a, b in zip(blobs, second.params[name]):
            np.testing.assert_array_equal(a.data, b.data)


def test_net_surgery_copies_a_fully_connected_layer_into_a_convolution(device: Any) -> None:
    text = NET.replace('type: "Convolution" bottom: "pool" top: "score" convolution_param { num_output: 5 kernel_size: 1',
                       'type: "InnerProduct" bottom: "pool" top: "score" inner_product_param { num_output: 5')  # fmt: skip
    full = net(device, text)
    conv = net(device, NET.replace("kernel_size: 1", "kernel_size: 3"))
    for a, b in zip(full.params["conv"], conv.params["conv"]):
        b.data[...] = a.data
    conv.params["score"][0].data.flat = full.params["score"][0].data.flat
    conv.params["score"][1].data[...] = full.params["score"][1].data
    np.testing.assert_allclose(conv.forward(data=image())["prob"].reshape(2, 5), full.forward(data=image())["prob"], rtol=1e-4, atol=1e-6)


@pytest.fixture
def files(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> pathlib.Path:
    shutil.copytree(GOLDEN / "files", tmp_path / "files")
    monkeypatch.chdir(tmp_path)
    log.quiet()
    return tmp_path


def test_get_solver_trains_as_caffe_did(device: Any, files: pathlib.Path) -> None:
    solver = caffe.get_solver("files/solver.prototxt", device=device)
    solver.step(8)
    assert solver.iter == 8
    reference = caffe.Net("files/train_net.prototxt", "files/train_iter_8.caffemodel", proto.TEST, device=device)
    for name, blobs in reference.params.items():
        for mine, theirs in zip(solver.net.params[name], blobs):
            np.testing.assert_allclose(mine.data, theirs.data, rtol=1e-3, atol=1e-5)
    assert solver.net.blobs["loss"].data == pytest.approx(float(solver.loss_history()[-1])) and solver.net.blobs["conv1"].data.any()
    reference.close()
    solver._solver.close()


def test_a_script_may_update_parameters_by_hand(device: Any, files: pathlib.Path) -> None:
    solver = caffe.get_solver("files/solver.prototxt", device=device)
    solver.net.forward()
    solver.net.clear_param_diffs()
    solver.net.backward()
    weight = solver.net.params["conv1"][0]
    before, slope = weight.data.copy(), weight.diff.copy()
    assert np.abs(slope).max() > 0
    solver.apply_update()
    decay = solver.param.weight_decay
    np.testing.assert_allclose(weight.data, before - solver.lr * (slope + decay * before), rtol=1e-4, atol=1e-6)
    solver._solver.close()


def slope_of(device: Any, text: str, **diffs: np.ndarray) -> np.ndarray:
    small = net(device, NET.replace("layer {", "force_backward: true layer {", 1) + text, proto.TRAIN)
    small.forward(data=image())
    small.backward(**diffs)
    return small.params["conv"][0].diff.copy()


def test_gradients_pass_through_layers_that_move_no_data(device: Any) -> None:
    """A loss weight or a user's diff on the top of a Flatten reaches the layers below."""
    flat = 'layer { name: "f" type: "Flatten" bottom: "prob" top: "f" loss_weight: 3 }'
    power = 'layer { name: "f" type: "Power" bottom: "prob" top: "f" power_param { power: 2 } loss_weight: 3 }'
    assert np.abs(slope_of(device, power)).max() > 1e-4  # the sum of prob is constant, the sum of its squares is not
    by_hand = slope_of(device, flat.replace("loss_weight: 3", ""), f=image(2, 45))
    direct = slope_of(device, "", prob=image(2, 45).reshape(2, 5, 3, 3))
    np.testing.assert_allclose(by_hand, direct, rtol=1e-5, atol=1e-7)
    assert np.abs(direct).max() > 1e-4
    reshaped = 'layer { name: "r" type: "Reshape" bottom: "conv" top: "r" reshape_param { shape { dim: 0 dim: -1 } } loss_weight: 2 }'
    plain = 'layer { name: "r" type: "Power" bottom: "conv" top: "r" loss_weight: 2 }'
    np.testing.assert_allclose(slope_of(device, reshaped), slope_of(device, plain), rtol=1e-5)
    assert np.abs(slope_of(device, plain)).max() > 1


@pytest.mark.parametrize("reader", ["TanH", "ArgMax"])
def test_the_diff_of_a_top_that_no_loss_needs_is_zero(device: Any, reader: str) -> None:
    """A layer with several tops has diffs for all of them, also for one that only layers without a loss read."""
    text = f"""layer {{ name: "a" type: "Input" top: "a" input_param {{ shape {{ dim: [2, 4] }} }} }} layer {{ name: "b" type: "Bias" bottom: "a" top: "b" }}
        layer {{ name: "s" type: "Slice" bottom: "b" top: "x" top: "y" slice_param {{ slice_point: 2 }} }}
        layer {{ name: "l" type: "Reduction" bottom: "x" top: "l" loss_weight: 1 }} layer {{ name: "t" type: "{reader}" bottom: "y" top: "t" }}"""
    net = caffe.Net(parse(text, proto.NetParameter), caffe.TRAIN, device=device)
    net.blobs["a"].data[...] = 1
    net.forward()
    net.backward()
    diffs = {name: blob.diff.tolist() for name, blob in net.blobs.items()}
    assert diffs["x"] == [[1, 1]] * 2 and diffs["y"] == [[0, 0]] * 2 and diffs["b"] == [[1, 1, 0, 0]] * 2
    net.close()


def test_in_place_layers_can_be_looked_into(device: Any) -> None:
    small = net(device)
    assert small.forward(data=image(), end="conv")["conv"].min() < 0 <= small.forward()["prob"].min()
    assert small.blobs["conv"].data.min() == 0
    small.blobs["conv"].data[...] = -1.0
    assert np.array_equal(small.forward(start="relu", end="pool")["pool"], np.zeros((2, 4, 3, 3), np.float32))


@pytest.mark.parametrize("before", ["", 'layer { name: "first" type: "Power" bottom: "x" top: "x" power_param { shift: 0.5 } }'], ids=["input", "power"])
@pytest.mark.parametrize("learns", ["Bias", "Scale", "PReLU"])
def test_the_diff_of_a_name_is_that_of_its_first_value_with_a_gradient(device: Any, before: str, learns: str) -> None:
    """The first layer that learns needs no gradient of its bottom, so the first value of the name has no diff. The next value has one."""
    text = """
        layer {{ name: "x" type: "Input" top: "x" input_param {{ shape {{ dim: 2 dim: 3 }} }} }} {before}
        layer {{ name: "learns" type: "{learns}" bottom: "x" top: "{top}" }}
        layer {{ name: "sigmoid" type: "Sigmoid" bottom: "{top}" top: "{last}" }}
        layer {{ name: "sum" type: "Reduction" bottom: "{last}" top: "sum" loss_weight: 0.5 reduction_param {{ operation: SUMSQ }} }}"""
    diffs = []
    for top, last in (("x", "x"), ("y", "z")):
        net = caffe.Net(parse(text.format(before=before, learns=learns, top=top, last=last), proto.NetParameter), caffe.TRAIN, device=device)
        for _, params in net.params.items():
            params[0].data[...] = 0.3
        net.blobs["x"].data[...] = [[1, -2, 3], [0.5, 1.5, -0.25]]
        net.forward()
        net.backward()
        diffs.append(net.blobs[top].diff.copy())
        net.close()
    assert diffs[0].any()
    np.testing.assert_allclose(diffs[0], diffs[1], rtol=1e-6)


def test_similarities_may_be_asked_for_a_gradient(device: Any) -> None:
    """Caffe's ContrastiveLoss does not look at propagate_down of bottom 2. The other losses refuse it for labels."""
    text = """force_backward: true
        layer {{ name: "in" type: "Input" top: "a" top: "b" top: "s" input_param {{ shape {{ dim: 2 dim: 2 }} shape {{ dim: 2 dim: 2 }} shape {{ dim: 2 }} }} }}
        layer {{ name: "near" type: "Power" bottom: "s" top: "similar" }}
        layer {{ name: "loss" type: "ContrastiveLoss" bottom: "a" bottom: "b" bottom: "similar" top: "loss" {} contrastive_loss_param {{ margin: 6 }} }}"""
    diffs = []
    for flags in ("propagate_down: true " * 3, ""):
        net = caffe.Net(parse(text.format(flags), proto.NetParameter), caffe.TRAIN, device=device)
        net.forward(a=np.array([[1, 2], [3, -1]]), b=np.array([[0, 2], [1, 1]]), s=np.array([1, 0]))
        net.backward()
        diffs.append({name: net.blobs[name].diff.copy() for name in ("a", "b", "s", "similar")})
        net.close()
    asked, usual = diffs
    assert usual["a"].any() and not asked["s"].any() and not asked["similar"].any()
    for name in ("a", "b"):
        np.testing.assert_array_equal(asked[name], usual[name])


def test_a_reduction_of_one_element_reads_a_view_with_gaps(device: Any) -> None:
    text = """
        layer { name: "x" type: "Input" top: "x" input_param { shape { dim: 4 dim: 1 dim: 2 dim: 1 } } }
        layer { name: "b" type: "Power" bottom: "x" top: "b" power_param { scale: 2 } }
        layer { name: "s" type: "Slice" bottom: "b" top: "p" top: "q" slice_param { axis: 2 } }
        layer { name: "r" type: "Reduction" bottom: "q" top: "r" reduction_param { axis: 1 coeff: 2 } }"""
    net = caffe.Net(parse(text, proto.NetParameter), caffe.TEST, device=device, keep=[])
    assert net.forward(x=np.arange(8).reshape(4, 1, 2, 1))["r"].tolist() == [4, 12, 20, 28]
    net.close()


def test_partial_runs_do_not_disturb_other_blobs(device: Any) -> None:
    small = net(device, phase=proto.TRAIN)
    small.forward(data=image())
    before = {name: blob.data.copy() for name, blob in small.blobs.items()}
    small.forward(end="conv")
    small.backward()
    small.forward()
    for name, values in before.items():
        np.testing.assert_array_equal(small.blobs[name].data, values)


def test_a_run_cannot_begin_where_memory_was_used_again(device: Any) -> None:
    small = net(device, keep=[])
    small.forward(data=image())
    with pytest.raises(Error, match="memory other blobs reuse"):
        small.forward(start="score")


def test_impossible_shapes_leave_the_net_usable(device: Any) -> None:
    small = net(device)
    expected = small.forward(data=image())["prob"].copy()
    with pytest.raises(Error, match="cannot have the shape"):
        small.blobs["data"].reshape(0, 3)
    small.blobs["data"].reshape(2, 3, 1, 1)  # smaller than the window
    with pytest.raises(Error, match="window"):
        small.forward()
    assert np.array_equal(small.forward()["prob"], expected)


def test_old_shapes_give_their_memory_back(device: Any) -> None:
    small = net(device)
    for size in range(8, 8 + 2 * SHAPES_KEPT):
        small.blobs["data"].reshape(1, 3, size, size)
        small.forward()
    session = small._network.session
    assert len(session.command_lists) <= SHAPES_KEPT and len(session._persistent) < SHAPES_KEPT * 12


def test_nets_of_one_solver_do_not_disturb_each_other(device: Any, files: pathlib.Path) -> None:
    solver = caffe.get_solver("files/solver.prototxt", device=device)
    solver.step(1)
    before = {name: blob.data.copy() for name, blob in solver.net.blobs.items()}
    solver.test_nets[0].forward()
    for name, values in before.items():
        np.testing.assert_array_equal(solver.net.blobs[name].data, values)
    solver.net.params["ip1"][1].data[...] = 5
    assert np.array_equal(solver.test_nets[0].params["ip1"][1].data, solver.net.params["ip1"][1].data)
    score = solver.test_nets[0].forward()["loss"].copy()
    solver.net.params["ip1"][1].data[...] = [9, 0, 0, 0]
    assert solver.test_nets[0].forward()["loss"] != score, "the test net does not see what was written into the train net"
    solver.snapshot()
    saved = caffe.Net("files/train_net.prototxt", "files/train_iter_1.caffemodel", proto.TEST, device=device)
    np.testing.assert_array_equal(saved.params["ip1"][1].data, [9, 0, 0, 0])
    saved.close()
    solver._solver.close()


def test_two_inputs_reshaped_one_after_the_other(device: Any) -> None:
    """A value written to the first input is kept when the second is reshaped, here to its own shape."""
    text = """layer { name: "in" type: "Input" top: "a" top: "b" input_param { shape { dim: 4 dim: 3 } } }
              layer { name: "sum" type: "Eltwise" bottom: "a" bottom: "b" top: "c" }"""
    net = caffe.Net(text_format.Parse(text, proto.NetParameter()), proto.TEST, device=device)
    for name in ("a", "b"):
        net.blobs[name].reshape(4, 3)
        net.blobs[name].data[...] = 3
    assert (net.forward()["c"] == 6).all()


def test_a_fused_blob_that_is_not_kept_is_refused(device: Any) -> None:
    """BatchNorm, Scale and ReLU are one launch, so `bn` has no memory that could be read."""
    fused = NET.replace('type: "ReLU" bottom: "conv" top: "conv"', 'type: "BatchNorm" bottom: "conv" top: "bn" batch_norm_param { use_global_stats: false }')
    fused = fused.replace('layer { name: "pool" type: "Pooling" bottom: "conv"', """layer { name: "scale" type: "Scale" bottom: "bn" top: "scale" }
layer { name: "relu2" type: "ReLU" bottom: "scale" top: "scale" }
layer { name: "pool" type: "Pooling" bottom: "scale" """)
    small = net(device, fused, keep=[])
    small.forward(data=image())
    with pytest.raises(Error, match="blob 'bn' has no memory"):
        _ = small.blobs["bn"].data
    assert net(device, fused, keep=["bn"]).forward(blobs=["bn"], data=image())["bn"].any()


def test_a_script_changes_an_output_that_is_computed_in_place(device: Any) -> None:
    """The first value of the blob has no memory. The next pass overwrites the change."""
    head = NET[: NET.index('layer { name: "pool"')]
    small = net(device, head, keep=[])
    found = small.forward(data=image())["conv"]
    expected = found.copy()
    found /= 2
    np.testing.assert_array_equal(small.blobs["conv"].data, expected / 2)
    np.testing.assert_array_equal(small.forward(data=image())["conv"], expected)


def test_a_repeated_pass_writes_and_counts_nothing(device: Any, tmp_path: pathlib.Path) -> None:
    """The first diff of a TEST net repeats the last pass with other launches."""
    file, sizes = tmp_path / "out.h5", tmp_path / "sizes.txt"
    sizes.write_text("a 10 20\nb 30 40\nc 50 60\n")
    outputs = NET + f"""
layer {{ name: "label" type: "Input" top: "label" input_param {{ shape {{ dim: 2 dim: 1 dim: 3 dim: 3 }} }} }}
layer {{ name: "out" type: "HDF5Output" bottom: "score" bottom: "label" hdf5_output_param {{ file_name: "{file}" }} }}
layer {{ name: "seg" type: "SegAccuracy" bottom: "score" bottom: "label" top: "seg" seg_accuracy_param {{ reset: false }} }}
layer {{ name: "found" type: "Input" top: "found" top: "true" input_param {{ shape {{ dim: [1, 1, 1, 7] }} shape {{ dim: [1, 1, 1, 8] }} }} }}
layer {{ name: "det" type: "DetectionEvaluate" bottom: "found" bottom: "true" top: "det"
  detection_evaluate_param {{ num_classes: 2 background_label_id: 0 name_size_file: "{sizes}" resize_param {{ height: 8 width: 8 }} }} }}
"""
    found = np.array([0, 1, 0.9, 0.1, 0.1, 0.5, 0.5], np.float32).reshape(1, 1, 1, 7)
    true = np.array([0, 1, 0, 0.1, 0.1, 0.5, 0.5, 0], np.float32).reshape(1, 1, 1, 8)
    results = []
    for reads in (False, True):
        with net(device, outputs, seed=1) as small:
            seen = []
            for number in range(3):
                out = small.forward(data=image() * (number + 1), label=np.full((2, 1, 3, 3), number, np.float32), found=found, true=true)
                seen.append({name: out[name].copy() for name in ("seg", "det")})
                if reads and number == 1:
                    assert small.blobs["conv"].diff.shape == (2, 4, 6, 6)
            layers: dict[str, Any] = {node.name: node.layer for node in small._network.graph.nodes}
            results.append((seen, layers["seg"].whole, layers["det"]._at))
        with h5py.File(file) as rows:
            assert rows["data"].shape[0] == 6
            results[-1][0].append({"rows": rows["data"][:]})
    for first, second in zip(*(result[0] for result in results)):
        for name in first:
            np.testing.assert_allclose(first[name], second[name], rtol=1e-5, err_msg=name)
    assert np.array_equal(results[0][1], results[1][1]) and results[0][2] == results[1][2]


@pytest.mark.parametrize("keep", [[], ["ip"]])
@pytest.mark.parametrize("kind", ["ReLU", "FakeQuantize"])
def test_an_input_that_a_layer_replaces_can_be_written(device: Any, kind: str, keep: list[str]) -> None:
    """Quantized nets round their input in place. What is read back is the input."""
    text = f"""layer {{ name: "data" type: "Input" top: "data" input_param {{ shape {{ dim: 2 dim: 5 }} }} }}
        layer {{ name: "r" type: "{kind}" bottom: "data" top: "data" }}
        layer {{ name: "ip" type: "InnerProduct" bottom: "data" top: "ip" inner_product_param {{ num_output: 3 weight_filler {{ type: "xavier" }} }} }}"""
    given = np.linspace(-3, 3, 10, dtype=np.float32).reshape(2, 5)
    whole, small = (caffe.Net(parse(text, proto.NetParameter), caffe.TEST, device=device, keep=names) for names in (None, keep))
    small.params["ip"][0].data[...] = whole.params["ip"][0].data
    expected = whole.forward(data=given)["ip"].copy()
    assert (small.forward(data=given)["ip"] == expected).all()
    small.blobs["data"].data[...] = given
    assert (small.forward()["ip"] == expected).all()
    assert (small.blobs["data"].data == given).all()
