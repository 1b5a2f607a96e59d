"""Export of options of forks and layers without golden cases, compared with ocaffe, and of every layer with another batch size."""
from __future__ import annotations

import pathlib
from typing import Any

import pytest

from ocaffe import proto
from ocaffe.convert.deploy import DATA, MEASURES
from ocaffe.convert.export import Options, export
from ocaffe.convert.verify import random_inputs, verify
from ocaffe.errors import Error
from ocaffe.layers.base import Layer, registry
from tests.convert.test_convert import random_weights
from tests.convert.test_golden import GOLDEN, exported, one_of_each
from tests.test_golden import Case

pytestmark = [pytest.mark.quick, pytest.mark.unoptimised]

INPUT = 'layer {{ name: "data" type: "Input" top: "data" input_param {{ shape {{ {dims} }} }} }}'
NETS = {
    "Pooling-3d-max": ((2, 3, 5, 6, 7), 'type: "Pooling" pooling_param { kernel_size_3d: [2, 3, 2] stride_3d: [2, 2, 1] pad_3d: [1, 1, 0] }'),
    "Pooling-3d-ave": ((2, 3, 5, 6, 7), 'type: "Pooling" pooling_param { pool: AVE kernel_size_3d: 3 stride_3d: 2 pad_3d: 1 }'),
    "Pooling-without-pad": ((2, 3, 8, 9), 'type: "Pooling" pooling_param { pool: AVE kernel_size: 3 stride: 2 pad: 1 avg_include_pad: false }'),
    "Pooling-dilated": ((2, 3, 12, 13), 'type: "Pooling" pooling_param { kernel_size: 3 stride: 2 pad: 1 dilation: 2 }'),
    "Pooling-floor": ((2, 3, 8, 9), 'type: "Pooling" pooling_param { pool: AVE kernel_size: 3 stride: 2 ceil_mode: false }'),
    "Pooling-stochastic": ((2, 3, 7, 7), 'type: "Pooling" pooling_param { pool: STOCHASTIC kernel_size: 3 stride: 2 }'),
    "Pooling-axis": ((2, 2, 3, 8, 9), 'type: "Pooling" pooling_param { kernel_size: 2 stride: 2 axis: 2 }'),
    "Convolution-relu": ((2, 3, 8, 9), 'type: "Convolution" convolution_param { num_output: 4 kernel_size: 3 relu: true negative_slope: 0.1 }'),
    "Convolution-axis": ((2, 2, 3, 8, 9), 'type: "Convolution" convolution_param { num_output: 4 kernel_size: 3 axis: 2 relu: true }'),
    "BatchNorm-nvidia": ((2, 3, 4, 5), 'type: "BatchNorm" batch_norm_param { scale_bias: true }'),
    "BatchNorm-intel": ((2, 3, 4, 5), 'type: "BatchNorm" batch_norm_param { use_weight_bias: true relu: true }'),
    "BatchNorm-1d": ((4,), 'type: "BatchNorm"'),
    "SpatialDropout": ((2, 3, 4, 5), 'type: "SpatialDropout"'),
    "Dropout-unscaled": ((2, 3), 'type: "Dropout" dropout_param { scale_train: false dropout_ratio: 0.2 }'),
    "Slice-batch": ((4, 3), 'type: "Slice" top: "b" slice_param { axis: 0 }'),
    "SPP-stochastic": ((2, 3, 8, 8), 'type: "SPP" spp_param { pyramid_height: 3 pool: STOCHASTIC }'),
    "Permute-of-one-pixel": ((2, 3, 1, 1), 'type: "Permute" permute_param { order: [0, 2, 3, 1] }'),
    "MVN-2d": ((3, 4), 'type: "MVN" mvn_param { across_channels: true }'),
    "LRN-within": ((2, 3, 8, 9), 'type: "LRN" lrn_param { norm_region: WITHIN_CHANNEL local_size: 5 alpha: 0.5 }'),
    "Interp-crop": ((2, 3, 8, 9), 'type: "Interp" interp_param { pad_beg: -1 pad_end: -2 height: 11 width: 5 }'),
    "Normalize-norms": ((2, 3, 4, 5), 'type: "Normalize" top: "norms" normalize_param { normalize_type: "L1" }'),
}
POSITIVE = {"Pooling-stochastic", "SPP-stochastic"}


def net(tmp_path: pathlib.Path, shape: tuple[int, ...], layer: str, more: str = "") -> Any:
    from ocaffe.formats.text import read_net

    file = tmp_path / "net.prototxt"
    dims = " ".join(f"dim: {n}" for n in shape)
    bottom = f'layer {{ name: "abs" type: "AbsVal" bottom: "data" top: "abs" }} layer {{ name: "layer" bottom: "abs" top: "a" {layer} }}'
    plain = f'layer {{ name: "layer" bottom: "data" top: "a" {layer} }}'
    file.write_text(INPUT.format(dims=dims) + (bottom if more == "abs" else plain))
    return read_net(str(file))


WITHOUT_RULE = {  # besides losses, data layers and measures, which are never exported
    "Python", "HDF5Output", "MarginInnerProduct", "AdaCosAddmScale", "CosinAddm",
    "AnchorTarget", "ProposalTarget", "FrcnnAnchorTarget", "FrcnnProposalTarget", "BoxAnnotatorOHEM",  # these choose samples for training
    "CombinedMargin", "LargeMarginInnerProduct", "BoxOutput", "Histogram",
    "DeformableConvolution",  # the border of ONNX's DeformConv differs
    "Upsample", "UnPooling", "Unpooling",  # the classes that implement them have one
}  # fmt: skip


def test_every_layer_has_a_rule_or_is_listed() -> None:
    left_out = DATA | MEASURES | {name for name, cls in registry().items() if cls.is_loss}
    assert {name for name, cls in registry().items() if cls.onnx is Layer.onnx} - left_out == WITHOUT_RULE


@pytest.mark.parametrize("name", NETS)
def test_forks(name: str, device: Any, tmp_path: pathlib.Path) -> None:
    shape, layer = NETS[name]
    message = net(tmp_path, shape, layer, "abs" if name in POSITIVE else "")
    result = export(message, random_weights(message), Options(dynamic_batch=True))
    verify(result, [random_inputs(result.graph, batch=batch) for batch in (shape[0], 3 * shape[0])], device)


FIXED = {"layers/Filter-two", "layers/LSTMUnit-cut"}  # one filters a Parameter; in the other the first axis is one time step


@pytest.mark.parametrize("name", one_of_each())
def test_other_batches(name: str, device: Any) -> None:
    case = Case(GOLDEN / f"{name}.npz")
    if name in FIXED:
        with pytest.raises(Error, match="with a batch of"):
            exported(case, dynamic_batch=True)
        return
    result = exported(case, dynamic_batch=True)
    inputs = result.graph.inputs
    batch = 2 * inputs[0].shape[0] if inputs else None
    verify(result, [random_inputs(result.graph, batch=batch)], device)


SEQUENCES = """
layer { name: "data" type: "Input" top: "data" input_param { shape { dim: 5 dim: 2 dim: 3 } } }
layer { name: "cont" type: "Input" top: "cont" input_param { shape { dim: 5 dim: 2 } } }
layer { name: "lstm" type: "LSTM" bottom: "data" bottom: "cont" top: "h" recurrent_param { num_output: 4 weight_filler { type: "uniform" min: -1 } } }
layer { name: "fc" type: "InnerProduct" bottom: "h" top: "y" inner_product_param { num_output: 3 axis: 2 weight_filler { type: "xavier" } } }
"""


def test_recurrent_nets_take_any_number_of_steps(device: Any, tmp_path: pathlib.Path) -> None:
    """The first axis, time, is dynamic. The number of sequences is fixed by the prototxt or by --shape."""
    file = tmp_path / "net.prototxt"
    file.write_text(SEQUENCES)
    result = export(str(file), None, Options(dynamic_batch=True, fillers=True, shapes={"data": (5, 7, 3), "cont": (5, 7)}))
    sizes = [[size.dim_param or size.dim_value for size in info.type.tensor_type.shape.dim] for info in (*result.model.graph.input, *result.model.graph.output)]
    assert sizes == [["steps", 7, 3], ["steps", 7], ["steps", 7, 3]]
    verify(result, [random_inputs(result.graph, batch=steps) for steps in (1, 8)], device)


RPN = """
layer { name: "scores" type: "Input" top: "scores" input_param { shape { dim: 1 dim: 18 dim: 7 dim: 9 } } }
layer { name: "deltas" type: "Input" top: "deltas" input_param { shape { dim: 1 dim: 36 dim: 7 dim: 9 } } }
layer { name: "im_info" type: "Input" top: "im_info" input_param { shape { dim: 1 dim: 3 } } }
layer { name: "proposal" type: "Python" bottom: "scores" bottom: "deltas" bottom: "im_info" top: "rois" PARAM }
"""
PROPOSALS = {
    "python": 'python_param { module: "rpn.proposal_layer" layer: "ProposalLayer" param_str: "\'feat_stride\': 16" }',
    "all-tops": 'top: "kept" type: "Proposal" proposal_param { post_nms_topn: 20 pre_nms_topn: 200 nms_thresh: 0.5 min_size: 40 }',
}


@pytest.mark.parametrize("opset", [13, 18])
@pytest.mark.parametrize("kind", PROPOSALS)
def test_proposal(kind: str, opset: int, device: Any, tmp_path: pathlib.Path) -> None:
    from ocaffe.formats.text import read_net

    text = RPN.replace("PARAM", PROPOSALS[kind])
    file = tmp_path / "net.prototxt"
    file.write_text(text if kind == "python" else text.replace('type: "Python"', ""))
    result = export(read_net(str(file)), None, Options(opset=opset))
    runs = [random_inputs(result.graph, seed=seed) for seed in range(3)]
    assert all(run["im_info"].tolist() == [[200, 300, 1]] for run in runs)
    verify(result, runs, device)
    assert result.model.graph.output[0].type.tensor_type.shape.dim[0].dim_value == 0
    with pytest.raises(Error, match="batch of 2 instead of 1"):
        export(read_net(str(file)), None, Options(dynamic_batch=True))


def test_random_layers_are_refused_in_train(tmp_path: pathlib.Path) -> None:
    for layer in ('type: "Dropout"', 'type: "SpatialDropout"', 'type: "Pooling" pooling_param { pool: STOCHASTIC kernel_size: 2 }'):
        with pytest.raises(Error, match="at random"):
            export(net(tmp_path, (2, 3, 4, 4), layer), None, Options(phase=proto.TRAIN))
