"""`ocaffe lint` and `ocaffe train` know the same: lint reports each refusal of train, and each training that learns nothing.

The checks of solvers are one list (ocaffe/solver/checks.py). Nets are built and recorded by the same functions.
"""
from __future__ import annotations

import ast
import pathlib

import numpy as np
import pytest

from ocaffe import proto
from ocaffe.cl.device import Device
from ocaffe.errors import Error
from ocaffe.formats.fork_fields import REFUSED
from ocaffe.lint import lint
from ocaffe.solver.solver import Solver

ROOT = pathlib.Path(__file__).resolve().parents[1]
DATA = """layer { name: "d" type: "DummyData" top: "x" top: "l"
  dummy_data_param { shape { dim: 2 dim: 3 dim: 4 dim: 4 } shape { dim: 2 } data_filler { type: "gaussian" std: 1 } data_filler { type: "constant" } } }
"""
IP = 'layer { name: "ip" type: "InnerProduct" bottom: "x" top: "ip" inner_product_param { num_output: 2 weight_filler { type: "xavier" } } }\n'
LOSS = 'layer { name: "loss" type: "SoftmaxWithLoss" bottom: "ip" bottom: "l" top: "loss" }\n'
NET = DATA + IP + LOSS
SOLVER = 'net: "net.prototxt" base_lr: 0.1 max_iter: 2 display: 1 snapshot_after_train: true snapshot_prefix: "s" random_seed: 1 '
FIXED = 'lr_policy: "fixed" '
TESTED = FIXED + "test_iter: 1 test_interval: 1 "


@pytest.fixture(autouse=True)
def workplace(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def write(fields: str, net: str = NET) -> None:
    pathlib.Path("net.prototxt").write_text(net)
    pathlib.Path("solver.prototxt").write_text(SOLVER + fields)


def refusal(device: Device) -> Error | None:
    """The error with which a training refuses to begin; None if it would run."""
    try:
        Solver("solver.prototxt", device, file="solver.prototxt").close()
    except Error as problem:
        return problem
    return None


UNSUPPORTED = [
    f"{name}: " + {"string": '"x"', "bool": "true", "int32": "7", "uint32": "7", "float": "7"}.get(kind, "1")
    for message, name in (key.split(".") for key in REFUSED)
    if message == "SolverParameter"
    for kind in [{9: "string", 8: "bool", 5: "int32", 13: "uint32", 2: "float"}.get(proto.SolverParameter.DESCRIPTOR.fields_by_name[name].type, "other")]
    if kind != "other"
]
SOLVERS = [
    'lr_policy: "poly" power: 1 min_lr: 0.2', 'lr_policy: "multifixed"', 'lr_policy: "multifixed" stagelr: 0.1', 'lr_policy: "plateau"',
    'lr_policy: "sgdr" p_mult: 0', 'lr_policy: "sgdr" period: -1 max_iter: 0', FIXED + "min_lr: -1", FIXED + "rampup_interval: 5 warmup_iter: 1",
    FIXED + "stagelr: 0.1", FIXED + "period: 3", 'lr_policy: "multifixed" stagelr: inf stageiter: 1', FIXED + 'momentum_policy: "polly"',
    FIXED + 'momentum_policy: "poly" type: "Nesterov"', FIXED + 'weight_decay_policy: "opt"', FIXED + 'weight_decay_policy: "poly" max_iter: 0',
    FIXED + 'larc: true type: "Adam"', FIXED + 'larc: true larc_policy: "Clip"', FIXED + "larc: true local_lr_auto: true",
    FIXED + 'local_lr_auto: true type: "AdaDelta"', "", 'lr_policy: "Step"', FIXED + 'type: "adam"', FIXED + 'type: "LAMB"',
    FIXED + 'regularization_type: "l2" weight_decay: 0.1', FIXED + 'type: "AdaGrad" momentum: 0.9', FIXED + 'type: "RMSProp" momentum: 0.9',
    FIXED + 'type: "RMSProp" rms_decay: 2', FIXED + "iter_size: 0", FIXED + "average_loss: 0", FIXED + 'eval_type: "segm"', FIXED + 'ap_version: "12point"',
    FIXED + "ema_test: true", FIXED + "ema_decay: 1", FIXED + "early_stopping: 3", FIXED + 'best_output: "loss"', TESTED + 'best_output: "los"',
    TESTED + 'best_output: "ip2"', TESTED + 'eval_type: "detection"', FIXED + "snapshot_keep: -1", FIXED + "test_iter: 1", FIXED + "warmup_iter: -1",
    FIXED + "test_iter: 1 test_interval: 1 test_state { } test_state { }", FIXED + 'train_net: "net.prototxt"', FIXED + "momentum: nan",
    FIXED + "weight_decay: inf", FIXED + "onecycle_rise: 0.5", FIXED + 'weights: "none.caffemodel"', FIXED + 'weights: "net.prototxt"',
    'lr_policy: "step" gamma: 0.1', 'lr_policy: "step" stepsize: 3', 'lr_policy: "step" gamma: 0.1 stepsize: 0', 'lr_policy: "exp"',
    'lr_policy: "inv" gamma: 0.1', 'lr_policy: "poly"', 'lr_policy: "sigmoid" gamma: 1', 'lr_policy: "multistep"', 'lr_policy: "exp" gamma: -1',
    'lr_policy: "onecycle" onecycle_rise: 2', 'lr_policy: "cosine" warmup_iter: 5',
    *(FIXED + field for field in UNSUPPORTED if field not in ("snapshot_diff: true",)),
]  # fmt: skip


@pytest.mark.parametrize("fields", SOLVERS)
def test_refused_solvers_are_reported(fields: str, device: Device) -> None:
    """With the same fact, and at the line of the field."""
    write(fields.replace(" ", "\n"), NET.replace('top: "ip"', 'top: "ip" loss_weight: 0', 1) + 'layer { name: "o" type: "ReLU" bottom: "x" top: "ip2" }\n')
    problem = refusal(device)
    assert problem is not None, "the case is of no use: it is accepted"
    try:
        found = lint("solver.prototxt")
    except Error as refused:  # a mistake that leaves no net to look at
        assert refused.fact == problem.fact
        return
    assert any(problem.fact in each.fact for each in found), [str(each) for each in found]
    assert all(each.fix for each in found if problem.fact in each.fact)
    assert problem.fix and problem.place is not None


CONV = 'layer { name: "c" type: "Convolution" bottom: "x" top: "c" convolution_param { num_output: 2 kernel_size: 3 %s } }\n'
NETS = [
    NET.replace('"xavier"', '"xavir"'),
    NET.replace('"xavier"', '"bilinear"'),
    NET.replace('type: "xavier"', 'type: "uniform" min: 2'),
    NET.replace('type: "xavier"', 'type: "gaussian" std: -1'),
    NET.replace('type: "xavier"', 'type: "gaussian" sparse: 9'),
    NET.replace("num_output: 2", "num_output: 2 axis: 9"),
    NET.replace('bottom: "ip"', 'bottom: "pi"'),
    NET.replace("SoftmaxWithLoss", "SoftmaxWithLos"),
    NET.replace('bottom: "l"', ""),
    NET.replace('bottom: "l"', 'bottom: "l" propagate_down: true'),
    NET.replace('top: "loss"', 'top: "loss" loss_weight: 1 loss_weight: 2 loss_weight: 3'),
    NET.replace('top: "ip"', 'top: "ip" param { } param { } param { }', 1),
    DATA + IP.replace('"ip" type', '"a" type').replace("inner", 'param { name: "w" } inner') + IP.replace('"x"', '"ip"').replace(
        'top: "ip"', 'top: "b"').replace("inner", 'param { name: "w" } inner') + LOSS,
    DATA + CONV % "dilation: 9" + IP.replace('"x"', '"c"') + LOSS,
    DATA + CONV % "group: 2" + IP.replace('"x"', '"c"') + LOSS,
    DATA + CONV % "pad: 4294967295" + IP.replace('"x"', '"c"') + LOSS,
    DATA + IP + 'layer { name: "e" type: "EuclideanLoss" bottom: "ip" bottom: "x" }\n',
    DATA + IP + DATA + LOSS,
    NET.replace("dim: 4 dim: 4", "dim: 0 dim: 4"),
    # gradients that a layer refuses to compute
    DATA + IP + 'layer { name: "p" type: "SoftmaxWithLoss" bottom: "l" bottom: "ip" }\n',
    DATA + IP + 'layer { name: "f" type: "InnerProduct" bottom: "x" top: "y" inner_product_param { num_output: 1 } }\n'
    'layer { name: "s" type: "SoftmaxWithLoss" bottom: "ip" bottom: "y" propagate_down: true propagate_down: true }\n',
    DATA + CONV % "" + 'layer { name: "i" type: "Embed" bottom: "c" top: "ip" embed_param { num_output: 2 input_dim: 3 } }\n'
    'layer { name: "r" type: "Reduction" bottom: "ip" top: "z" loss_weight: 1 }\n',
    DATA + IP + 'layer { name: "f" type: "InnerProduct" bottom: "x" top: "y" inner_product_param { num_output: 1 } }\n'
    'layer { name: "r" type: "BatchReindex" bottom: "ip" bottom: "y" top: "z" loss_weight: 1 }\n',
    'layer { name: "h" type: "HDF5Data" top: "x" hdf5_data_param { source: "net.prototxt" batch_size: 1 } }\n',
    'layer { name: "w" type: "ImageData" top: "x" top: "l" image_data_param { source: "solver.prototxt" batch_size: 1 } }\n',
]  # fmt: skip


@pytest.mark.parametrize("net", NETS, ids=map(str, range(len(NETS))))
def test_refused_nets_are_reported(net: str, device: Device) -> None:
    write(FIXED, net)
    problem = refusal(device)
    if problem is None:
        pytest.fail("the case is of no use: it is accepted")
    assert any(problem.fact == each.fact and each.fix == (problem.fix or "") for each in lint("solver.prototxt")), str(problem)


def test_parameters_of_other_shapes_in_the_test_net(device: Device) -> None:
    one, two = (
        IP.replace('top: "ip"', f'top: "ip" include {{ phase: {phase} }}').replace('"x"', f'"{bottom}"', 1) for phase, bottom in (("TRAIN", "x"), ("TEST", "p"))
    )
    write(TESTED, DATA + 'layer { name: "p" type: "Pooling" bottom: "x" top: "p" pooling_param { kernel_size: 2 stride: 2 } }\n' + one + two + LOSS)
    problem = refusal(device)
    assert problem is not None and problem.fact in [each.fact for each in lint("solver.prototxt")]


RELU = 'layer { name: "r" type: "%s" bottom: "ip" top: "r" %s }\n'
NOTHING = [  # fields of the solver, the net, words of the finding
    (FIXED, NET, None),
    (FIXED, NET.replace("inner_product_param", "param { lr_mult: 0 } param { lr_mult: 0 } inner_product_param"), "every lr_mult in the net is 0"),
    (FIXED, NET.replace('bottom: "l"', 'bottom: "l" propagate_down: false propagate_down: false'), "propagate_down: false keeps the gradient from 'ip'"),
    (FIXED, DATA + IP + RELU % ("ReLU", "propagate_down: false") + LOSS.replace('"ip"', '"r"'), "propagate_down: false keeps"),
    (FIXED, DATA + IP + RELU % ("Threshold", "") + LOSS.replace('"ip"', '"r"'), "Threshold has no gradient for 'ip'"),
    (FIXED, DATA + IP + RELU % ("Power", "power_param { scale: 0 }") + LOSS.replace('"ip"', '"r"'), "scale: 0 makes the gradient of 'ip' 0"),
    (FIXED, DATA + LOSS.replace('"ip"', '"x"').replace('"SoftmaxWithLoss"', '"HingeLoss"'), "no layer of the TRAIN net has parameters"),
    (FIXED, NET.replace('top: "loss"', 'top: "loss" loss_weight: 0'), "no layer of the TRAIN net has a loss"),
    (FIXED + "clip_gradients: 0", NET, "clip_gradients is 0"),
    (FIXED + "base_lr: 0", NET, "base_lr is 0"),
    (FIXED + "base_lr:", NET, "base_lr is not given"),
    (FIXED + "max_iter: 0", NET, "max_iter is 0"),
    (FIXED + "max_iter:", NET, "max_iter is not given"),
    (FIXED + 'type: "Adam" momentum: 0.9 momentum2: 1', NET, "momentum2 is 1"),
    (FIXED + 'type: "AdaDelta" momentum: 0.9 delta: 0', NET, "delta is 0"),
    ('lr_policy: "multifixed" stagelr: 0 stageiter: 9', NET, "stagelr is 0"),
    # these learn
    (FIXED + "base_lr: 0 min_lr: 0.1", NET, None),
    (FIXED + "base_lr: 0 rampup_interval: 5 rampup_lr: 0.1", NET, None),
    (FIXED + "base_lr: 0 warmup_iter: 5 warmup_start_lr: 0.1", NET, None),
    ('lr_policy: "multifixed" stagelr: 0.1 stageiter: 9 base_lr: 0', NET, None),
    (FIXED, NET.replace("inner_product_param", "param { lr_mult: 0 } inner_product_param"), None),
    (FIXED, DATA + IP + RELU % ("TanH", "propagate_down: true") + LOSS.replace('"ip"', '"r"'), None),
    (FIXED, DATA + IP + IP.replace('"x"', '"ip"').replace('"ip" type', '"two" type').replace('top: "ip"', 'top: "o" propagate_down: false') + LOSS.replace(
        '"ip"', '"o"'), None),
    ('lr_policy: "multistep" gamma: 0.1 stepvalue: 1', NET, None),
    (FIXED + 'type: "Adam" momentum: 0.9', NET, None),
]  # fmt: skip


@pytest.mark.parametrize(("fields", "net", "words"), NOTHING, ids=[f"{number}-{case[2]}" for number, case in enumerate(NOTHING)])
def test_every_way_to_learn_nothing(fields: str, net: str, words: str | None, device: Device) -> None:
    """Two iterations change no parameter exactly if lint says so."""
    write("", net)
    solver = SOLVER
    for field in ("base_lr: 0.1 ", "max_iter: 2 "):
        if field.split(":")[0] in fields:
            solver = solver.replace(field, "")
    path = pathlib.Path("solver.prototxt")
    path.write_text(solver + fields.replace("base_lr:", "", fields.endswith("base_lr:")).replace("max_iter:", "", fields.endswith("max_iter:")))
    solving = Solver("solver.prototxt", device, file="solver.prototxt")
    before = solving.network.parameter_arrays()
    solving.solve()
    after = solving.network.parameter_arrays()
    solving.close()
    changed = any(not np.array_equal(a, b) for name in before for a, b in zip(before[name], after[name]))
    facts = [each.fact for each in lint("solver.prototxt")]
    if words is None:
        assert changed and not facts, facts
    else:
        assert not changed and any(words in fact for fact in facts), facts


def test_no_check_of_a_solver_is_outside_of_the_list() -> None:
    """These files make Faults, which both commands know, and raise no errors of their own."""
    for name in ("checks", "policies", "update", "best"):
        tree = ast.parse((ROOT / "ocaffe" / "solver" / f"{name}.py").read_text())
        raised = [node.lineno for node in ast.walk(tree) if isinstance(node, ast.Raise)]
        assert not raised, f"ocaffe/solver/{name}.py, lines {raised}: yield a Fault from a function in SOLVER_CHECKS or OUTPUT_CHECKS"
