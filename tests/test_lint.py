"""`ocaffe lint`: every rule reports its mistake at the right line, and reports nothing for the corrected net."""
from __future__ import annotations

import pathlib
import re
import shutil

import h5py
import lmdb
import numpy as np
import pytest
from PIL import Image

from ocaffe import proto
from ocaffe.cli import main
from ocaffe.errors import Error
from ocaffe.lint import JOB_RULES, NET_RULES, lint
from ocaffe.tools.synthetic.voc_writer import with_palette
from tests.test_detection_mistakes import CASES, REGION_CASES

pytestmark = pytest.mark.quick

ROOT = pathlib.Path(__file__).resolve().parents[1]
GOLDEN = ROOT / "tests" / "golden"

# Each case is a whole net; lines `- text` are in the bad net, `+ text` in the corrected one. `#!` marks the line of the finding.
HEAD = """
layer { name: "data" type: "DummyData" top: "data" top: "label"
  dummy_data_param { shape { dim: 4 dim: 3 dim: 8 dim: 8 } shape { dim: 4 } } }
layer { name: "conv" type: "Convolution" bottom: "data" top: "conv"
  convolution_param { num_output: 5 kernel_size: 3 weight_filler { type: "msra" } bias_term: false } }
"""
TAIL = """
layer { name: "ip" type: "InnerProduct" bottom: "conv" top: "ip" inner_product_param { num_output: 5 weight_filler { type: "xavier" } } }
layer { name: "loss" type: "SoftmaxWithLoss" bottom: "ip" bottom: "label" top: "loss" }
"""
BN = 'layer { name: "bn" type: "BatchNorm" bottom: "conv" top: "bn"'
IP = 'type: "InnerProduct" bottom: "conv"'
FILLED = 'num_output: 5 weight_filler { type: "xavier" }'
NETS = {
    "batch-norm-without-scale": f"""{HEAD}
- {BN} }} #! no Scale layer follows, but 'relu' (ReLU)
- layer {{ name: "relu" type: "ReLU" bottom: "bn" top: "conv2" }}
+ {BN} }}
+ layer {{ name: "scale" type: "Scale" bottom: "bn" top: "conv2" scale_param {{ bias_term: true }} }}
layer {{ name: "pool" type: "Pooling" bottom: "conv2" top: "pool" pooling_param {{ global_pooling: true }} }}
{TAIL.replace('"conv"', '"pool"')}""",
    "batch-norm-without-scale beta": f"""{HEAD}
{BN} }}
- layer {{ name: "scale" type: "Scale" bottom: "bn" top: "bn" }} #! adds no bias
+ layer {{ name: "scale" type: "Scale" bottom: "bn" top: "bn" }}
+ layer {{ name: "bias" type: "Bias" bottom: "bn" top: "bn" }}
{TAIL.replace('"conv"', '"bn"')}""",
    "statistics-not-learned": f"""{HEAD}
{BN} batch_norm_param {{
- use_global_stats: true #! applies in the TRAIN phase
}} }}
layer {{ name: "scale" type: "Scale" bottom: "bn" top: "bn" scale_param {{ bias_term: true }} }}
{TAIL.replace('"conv"', '"bn"')}""",
    "batch-statistics-in-test": f"""{HEAD}
layer {{ name: "phase" type: "Silence" bottom: "data" include {{ phase: TRAIN }} }}
{BN} batch_norm_param {{
- use_global_stats: false #! applies in the TEST phase
}} }}
layer {{ name: "scale" type: "Scale" bottom: "bn" top: "bn" scale_param {{ bias_term: true }} }}
{TAIL.replace('"conv"', '"bn"')}""",
    "bias-before-batch-norm": f"""{HEAD}
layer {{ name: "conv2" type: "Convolution" bottom: "conv" top: "conv2"
- convolution_param {{ num_output: 2 kernel_size: 1 weight_filler {{ type: "xavier" }} }} }} #! its bias has no effect: 'bn'
+ convolution_param {{ num_output: 2 kernel_size: 1 weight_filler {{ type: "xavier" }} bias_term: false }} }}
{BN.replace('"conv"', '"conv2"')} }}
layer {{ name: "scale" type: "Scale" bottom: "bn" top: "bn" scale_param {{ bias_term: true }} }}
{TAIL.replace('"conv"', '"bn"')}""",
    "no-loss": """state { phase: TRAIN }
layer { name: "conv" type: "DummyData" top: "conv" dummy_data_param { shape { dim: 4 dim: 3 dim: 8 dim: 8 } } }
layer { name: "scale" type: "Scale" bottom: "conv" top: "scale" }
- layer { name: "pool" type: "Pooling" bottom: "scale" top: "pool" pooling_param { global_pooling: true } } #! has a loss
+ layer { name: "pool" type: "Pooling" bottom: "scale" top: "pool" loss_weight: 1 pooling_param { global_pooling: true } }
""",
    "unused-top": f"""{HEAD}
- layer {{ name: "relu" type: "ReLU" bottom: "conv" top: "relu" }} #! no layer reads its top 'relu'
+ layer {{ name: "relu" type: "ReLU" bottom: "conv" top: "conv" }}
{TAIL}""",
    "softmax-twice": f"""{HEAD}
layer {{ name: "ip" {IP} top: "ip" inner_product_param {{ {FILLED} }} }}
- layer {{ name: "prob" type: "Softmax" bottom: "ip" top: "prob" }}
layer {{ name: "loss" type: "SoftmaxWithLoss"
- bottom: "prob" #! comes from 'prob' (Softmax)
+ bottom: "ip"
bottom: "label" }}""",
    "softmax-twice none": f"""{HEAD}
layer {{ name: "ip" {IP} top: "ip" inner_product_param {{ {FILLED} }} }}
layer {{ name: "prob" type: "Softmax" bottom: "ip" top: "prob" }}
- layer {{ name: "loss" type: "MultinomialLogisticLoss" bottom: "ip" bottom: "label" }} #! must be probabilities
+ layer {{ name: "loss" type: "MultinomialLogisticLoss" bottom: "prob" bottom: "label" }}
""",
    "scores-cut": f"""{HEAD}
layer {{ name: "ip" {IP} top: "ip" inner_product_param {{ {FILLED} }} }}
- layer {{ name: "relu" type: "ReLU" bottom: "ip" top: "ip" }}
- layer {{ name: "loss" type: "SoftmaxWithLoss" bottom: "ip" bottom: "label" }} #! come from 'relu' (ReLU)
+ layer {{ name: "loss" type: "SoftmaxWithLoss" bottom: "ip" bottom: "label" }}
""",
    "weights-start-at-zero": f"""{HEAD}
- layer {{ name: "ip" {IP} top: "ip" inner_product_param {{ num_output: 5 }} }} #! it has no weight_filler
+ layer {{ name: "ip" {IP} top: "ip" inner_product_param {{ {FILLED} }} }}
layer {{ name: "loss" type: "SoftmaxWithLoss" bottom: "ip" bottom: "label" }}""",
    "nothing-learned": HEAD.replace("convolution_param", "param { lr_mult: 0 } convolution_param") + f"""
layer {{ name: "ip" {IP} top: "ip" inner_product_param {{ {FILLED} }}
- param {{ lr_mult: 0 }} param {{ lr_mult: 0 }} }} #! every lr_mult in the net is 0 (2 layers
+ param {{ lr_mult: 1 }} param {{ lr_mult: 0 }} }}
layer {{ name: "loss" type: "SoftmaxWithLoss" bottom: "ip" bottom: "label" }}""",
    "same-name": f"""{HEAD}
- layer {{ name: "conv" {IP} top: "ip" inner_product_param {{ {FILLED} }} }} #! that of the layer in line 4
+ layer {{ name: "ip" {IP} top: "ip" inner_product_param {{ {FILLED} }} }}
layer {{ name: "loss" type: "SoftmaxWithLoss" bottom: "ip" bottom: "label" }}""",
    "shared-by-accident": f"""{HEAD}
layer {{ name: "a" {IP} top: "a" inner_product_param {{ {FILLED} }} param {{ name: "w" }} param {{ name: "b" }} }}
layer {{ name: "b" {IP} top: "b" inner_product_param {{ {FILLED} }}
- param {{ name: "w" }} param {{ name: "b" }} }} #! reads the same bottom 'conv'
+ param {{ name: "w2" }} param {{ name: "b2" }} }}
layer {{ name: "sum" type: "Eltwise" bottom: "a" bottom: "b" top: "sum" }}
layer {{ name: "loss" type: "SoftmaxWithLoss" bottom: "sum" bottom: "label" }}""",
    "shared-by-accident size": f"""{HEAD}
layer {{ name: "a" {IP} top: "a" inner_product_param {{ {FILLED} }} param {{ name: "w" }} }}
layer {{ name: "b" type: "InnerProduct" bottom: "a" top: "b" inner_product_param {{ {FILLED.replace("5", "6")} }}
- param {{ name: "w" }} }} #! InnerProduct with num_output 6 and InnerProduct with num_output 5
+ }}
layer {{ name: "loss" type: "SoftmaxWithLoss" bottom: "b" bottom: "label" }}""",
    "shared-by-accident half": f"""{HEAD}
layer {{ name: "pool" type: "Pooling" bottom: "conv" top: "pool" pooling_param {{ kernel_size: 1 }} }}
layer {{ name: "a" {IP} top: "a" inner_product_param {{ {FILLED} }} param {{ name: "w" }} param {{ name: "b" }} }}
layer {{ name: "b" type: "InnerProduct" bottom: "pool" top: "b" inner_product_param {{ {FILLED} }}
- param {{ name: "w" }} }} #! but not its other parameters
+ param {{ name: "w" }} param {{ name: "b" }} }}
layer {{ name: "sum" type: "Eltwise" bottom: "a" bottom: "b" top: "sum" }}
layer {{ name: "loss" type: "SoftmaxWithLoss" bottom: "sum" bottom: "label" }}""",
    "shared-by-accident bias": f"""{HEAD}
layer {{ name: "a" {IP} top: "a" inner_product_param {{ {FILLED} }} param {{ name: "w" }}
- param {{ name: "w" }} }} #! 'w' names parameter 0 and parameter 1
+ param {{ name: "b" }} }}
layer {{ name: "loss" type: "SoftmaxWithLoss" bottom: "a" bottom: "label" }}""",
    "impossible": f"""{HEAD}
- layer {{ name: "ip" type: "InnerProduct" bottom: "convolution" top: "ip" inner_product_param {{ {FILLED} }} }} #! unknown bottom blob 'convolution'
+ layer {{ name: "ip" {IP} top: "ip" inner_product_param {{ {FILLED} }} }}
layer {{ name: "loss" type: "SoftmaxWithLoss" bottom: "ip" bottom: "label" }}""",
}  # fmt: skip
NETS["no-effect"] = """
- layer { name: "data" type: "ImageData" top: "data" top: "label" #! mean_file of image_data_param have no effect
+ layer { name: "data" type: "ImageData" top: "data" top: "label"
- image_data_param { source: "none" batch_size: 4 mean_file: "m" } }
+ image_data_param { source: "none" batch_size: 4 } transform_param { mean_file: "m" } }
""" + "\n".join(HEAD.splitlines()[3:]) + TAIL


def variant(text: str, sign: str) -> tuple[str, int, str]:
    """Return the bad (-) or good (+) net, and the line and fact that are marked in it."""
    lines = [line[2:] if line[:2] == f"{sign} " else line for line in text.splitlines() if line[:2] == f"{sign} " or line[:2] not in ("- ", "+ ")]
    marked = [(number, line.partition("#! ")[2]) for number, line in enumerate(lines, 1) if "#!" in line]
    return "\n".join(line.partition("#!")[0] for line in lines), *(marked[0] if marked else (0, ""))


@pytest.mark.parametrize("name", NETS)
def test_net_rule(name: str, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    rule = name.split()[0]
    bad, line, fact = variant(NETS[name], "-")
    pathlib.Path("net.prototxt").write_text(bad)
    found = [finding for finding in lint("net.prototxt") if finding.rule == rule.replace("impossible", "")]
    assert [finding.place for finding in found] == [("net.prototxt", line)] and fact in found[0].fact, found
    assert rule == "no-effect" or (found[0].fix and found[0].layer)
    assert rule == "impossible" or not [each for each in lint("net.prototxt", frozenset({rule})) if each.rule == rule]
    pathlib.Path("net.prototxt").write_text(variant(NETS[name], "+")[0])
    found = lint("net.prototxt", frozenset({"missing-data"}))
    assert not found, found


# Jobs: a solver, its net and data.

SOLVER = """
net: "net.prototxt"
test_iter: 3
test_interval: 10
base_lr: 0.1
lr_policy: "step"
gamma: 0.1
stepsize: 20
momentum: 0.9
max_iter: 50
display: 5
"""
NET = """
layer { name: "data" type: "ImageData" top: "data" top: "label" include { phase: TRAIN }
  image_data_param { source: "train.txt" batch_size: 4 }
  transform_param { mirror: true } }
layer { name: "data" type: "ImageData" top: "data" top: "label" include { phase: TEST }
  image_data_param { source: "test.txt" batch_size: 2 }
  transform_param { } }
layer { name: "ip" type: "InnerProduct" bottom: "data" top: "ip"
  inner_product_param { num_output: 3 weight_filler { type: "xavier" } } }
layer { name: "loss" type: "SoftmaxWithLoss" bottom: "ip" bottom: "label" top: "loss" }
"""
TWO = """inner_product_param {{ num_output: {1} weight_filler {{ type: "xavier" }} }} }}
layer {{ name: "{0}" type: "InnerProduct" bottom: "data" top: "ip" include {{ phase: TEST }}"""
SHAPES = """bottom: "data" top: "ip" include { phase: TRAIN } inner_product_param { num_output: 3 weight_filler { type: "xavier" } } }
layer { name: "pool" type: "Pooling" bottom: "data" top: "pool" include { phase: TEST } pooling_param { kernel_h: 2 stride_h: 2 kernel_w: 1 stride_w: 1 } }
layer { name: "ip" type: "InnerProduct" bottom: "pool" top: "ip" include { phase: TEST }"""
STEP = 'lr_policy: "step"\ngamma: 0.1\nstepsize: 20'
JOBS = [
    # rule, file, replaced text, replacement, line, fact
    ("test-set-not-covered", "solver", "test_iter: 3", "test_iter: 2", 3, "test_iter 2 x batch_size 2 scores 4 of the 6 samples in test.txt"),
    ("test-set-not-covered", "solver", "test_iter: 3", "test_iter: 5", 3, "scores 10 samples, and test.txt has 6: some count twice"),
    ("batch-larger-than-data", "net", "batch_size: 2", "batch_size: 7", 6, "batch_size is 7, and test.txt has 6 samples"),
    ("missing-data", "net", '"test.txt"', '"none.txt"', 6, "none.txt does not exist"),
    ("missing-data", "net", "{ } }", '{ mean_file: "none.binaryproto" } }', 7, "none.binaryproto does not exist"),
    ("tested-on-training-data", "net", '"test.txt"', '"train.txt"', 6, "it reads train.txt, as the TRAIN net does"),
    ("transforms-differ", "net", "{ } }", "{ scale: 0.5 } }", 7, "its scale is 0.5, that of 'data' in the TRAIN phase (line 2) is 1"),
    ("transforms-differ", "net", "{ mirror: true }", "{ mirror: true mean_value: 3 mean_value: 4 mean_value: 5.5 }", 7, "its mean_value is absent, that"),
    ("mirrored-test", "net", "{ } }", "{ mirror: true } }", 7, "mirror: true applies in the TEST phase"),
    ("not-shuffled", "net", '"train.txt"', '"sorted.txt"', 3, "sorted.txt is in the order of its labels (0, 0, 1, ...)"),
    ("not-shuffled", "net", '"ImageData" top: "data" top: "label" include { phase: TRAIN }\n  image_data_param { source: "train.txt"',
     '"Data" top: "data" top: "label" include { phase: TRAIN }\n  data_param { backend: LMDB source: "db"', 3, "db is in the order of its labels"),
    ("label-out-of-range", "net", "num_output: 3", "num_output: 2", 2, "train.txt has the label 2, and 'loss' gets 2 scores: labels 0 to 1"),
    ("test-net-differs", "net", 'top: "ip"', 'top: "ip" include { phase: TRAIN } ' + TWO.format("ip2", 5), 9, "the TRAIN net has no layer of"),
    ("test-net-differs", "net", 'top: "ip"', 'top: "ip" include { phase: TRAIN } ' + TWO.format("ip", 5), 9, "num_output is 3, and 5 in the TRAIN net"),
    ("refused", "solver", "gamma: 0.1\n", "", 0, "lr_policy 'step' needs gamma; gamma is missing"),
    ("learning-rate", "solver", "stepsize: 20", "stepsize: 50", 8, "the step at iteration 50 is never reached: max_iter is 50"),
    ("learning-rate", "solver", STEP, 'lr_policy: "multistep"\ngamma: 0.1', 6, 'reads stepvalue'),
    ("learning-rate", "solver", STEP, 'lr_policy: "multistep"\ngamma: 0.1\nstepvalue: 30\nstepvalue: 10', 8, "30, 10 does not rise"),
    ("learning-rate", "solver", "gamma: 0.1", "gamma: 1", 7, "gamma is 1: the learning rate does not fall"),
    ("learning-rate", "solver", "base_lr: 0.1", "base_lr: -1", 5, "base_lr is -1"),
    ("learning-rate", "solver", "gamma: 0.1", "gamma: 0", 7, "gamma is 0"),
    ("solver-settings", "solver", "momentum: 0.9", 'type: "Adam" momentum2: 1.5', 9, "momentum2 is 1.5: all parameters become NaN"),
    ("solver-settings", "solver", "momentum: 0.9", 'type: "AdaGrad" delta: 0', 9, "delta is 0: a parameter"),
    ("nothing-updated", "solver", "base_lr: 0.1\n", "", 0, "base_lr is not given: every learning rate is 0"),
    ("nothing-updated", "solver", "base_lr: 0.1", "base_lr: 0", 5, "base_lr is 0: every learning rate is 0"),
    ("nothing-updated", "solver", "max_iter: 50\n", "", 0, "max_iter is not given: no iteration is run"),
    ("nothing-updated", "solver", "momentum: 0.9", "clip_gradients: 0", 9, "clip_gradients is 0: every gradient is scaled to 0"),
    ("nothing-updated", "solver", "momentum: 0.9", 'type: "Adam" momentum2: 1', 9, "momentum2 is 1: the correction"),
    ("nothing-updated", "solver", "momentum: 0.9", 'type: "AdaDelta" delta: 0', 9, "delta is 0: the first update"),
    ("weights-refused", "solver", "momentum: 0.9", 'weights: "none.caffemodel"', 9, "none.caffemodel: no such file"),
    ("weights-refused", "solver", "momentum: 0.9", 'weights: "solver.prototxt"', 9, "is a text file"),
    ("refused", "solver", "momentum: 0.9", 'snapshot_prefix: "solver.prototxt/s"', 9, "solver.prototxt is not a folder"),
    ("shapes-differ", "net", 'bottom: "data" top: "ip"', SHAPES, 10, "parameter 0 is 3 x 1008 here and 3 x 2016 in the TRAIN net"),
    ("solver-settings", "solver", "display: 5", "display: 0", 11, "display is 0"),
    ("solver-settings", "solver", "momentum: 0.9", "momentum: 1", 9, "momentum is 1"),
    ("solver-settings", "solver", "test_interval: 10", "test_interval: 100", 4, "test_interval 100 is larger than max_iter 50"),
    ("solver-settings", "solver", "display: 5", "display: 5\nsnapshot_after_train: false", 12, "never saved"),
    ("solver-settings", "solver", "test_iter: 3\ntest_interval: 10\n", "", 2, "no test_iter is given"),
    ("", "net", "num_output: 3", "num_output: 3 axis: 7", 8, "axis"),
]  # fmt: skip


@pytest.fixture
def job(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    shutil.copytree(GOLDEN / "files" / "images", "images")
    for name, labels in {"train": [2, 0, 1, 0, 2, 1, 1, 0], "test": [0, 1, 2, 0, 1, 2], "sorted": [0, 0, 1, 1, 1, 2, 2, 2]}.items():
        pathlib.Path(f"{name}.txt").write_text("".join(f"images/im{number:02}.png {label}\n" for number, label in enumerate(labels)))
    environment = lmdb.open("db", map_size=1 << 20)
    with environment.begin(write=True) as transaction:
        for number, label in enumerate([0] * 40 + [1, 0, 1]):
            transaction.put(b"%08d" % number, proto.Datum(channels=3, height=24, width=28, data=bytes(2016), label=label).SerializeToString())
    environment.close()
    pathlib.Path("solver.prototxt").write_text(SOLVER)
    pathlib.Path("net.prototxt").write_text(NET)


def test_good_job(job: None, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["lint", "solver.prototxt", "net.prototxt"]) == 0
    assert capsys.readouterr().out == "0 findings in solver.prototxt, net.prototxt\n"


@pytest.mark.parametrize(("rule", "file", "old", "new", "line", "fact"), JOBS)
def test_job_rule(job: None, rule: str, file: str, old: str, new: str, line: int, fact: str) -> None:
    path = pathlib.Path(f"{file}.prototxt")
    assert path.read_text().count(old) >= 1
    path.write_text(path.read_text().replace(old, new, 1))
    found = [finding for finding in lint("solver.prototxt") if finding.rule == rule]
    assert found and found[0].place == (path.name, line) and fact in found[0].fact, found
    assert found[0].fix or not rule


def test_every_rule_has_a_test_and_a_description() -> None:
    tested = {name.split()[0] for name in NETS} | {case[0] for case in JOBS} | {case.rule for case in (*CASES.values(), *REGION_CASES.values())}
    assert {*NET_RULES, *JOB_RULES} <= tested
    assert all(rule.__doc__ and rule.__doc__.strip().endswith(".") for rule in (*NET_RULES.values(), *JOB_RULES.values()))
    table = (ROOT / "docs" / "tools.md").read_text()
    assert all(f"| `{name}` |" in table for name in (*NET_RULES, *JOB_RULES))


def test_hdf5_and_lmdb_sizes(job: None) -> None:
    with h5py.File("data.h5", "w") as file:
        file["data"], file["label"] = np.zeros((9, 3, 2, 2), np.float32), np.zeros(9, np.float32)
    pathlib.Path("list.txt").write_text("data.h5\n")
    tops = 'top: "data" top: "label" include { phase: TEST }\n  '
    net = NET.replace(f'"ImageData" {tops}image_data_param {{ source: "test.txt"', f'"HDF5Data" {tops}hdf5_data_param {{ source: "list.txt"')
    pathlib.Path("net.prototxt").write_text(net.replace("  transform_param { } }", "}"))
    assert "test_iter 3 x batch_size 2 scores 6 of the 9 samples in list.txt" in str(lint("solver.prototxt")[0])


def test_masks(job: None) -> None:
    """Lists of images and masks are data like others. Masks with a palette are told with their remedy."""
    Image.fromarray(np.zeros((24, 28), np.uint8)).save("mask.png")
    for part, count in (("train", 8), ("test", 6)):
        pathlib.Path(f"{part}.txt").write_text("images/im00.png mask.png\n" * count)
    net = NET.replace("ImageData", "DenseImageData").replace("image_data_param", "dense_image_data_param")
    net = net.replace("InnerProduct", "Convolution").replace("inner_product_param { num_output: 3", "convolution_param { kernel_size: 1 num_output: 3")
    pathlib.Path("net.prototxt").write_text(net)
    assert not lint("solver.prototxt")

    def told(rule: str) -> str:
        return "".join(str(each) for each in lint("solver.prototxt") if each.rule == rule)

    Image.fromarray(np.full((24, 28), 3, np.uint8)).save("mask.png")
    assert "mask.png has the label 3, and 'loss' gets 3 scores: labels 0 to 2" in told("label-out-of-range")
    with_palette(np.full((24, 28), 2, np.uint8)).save("mask.png")
    assert "mask.png has the label 75" in told("label-out-of-range") and "`ocaffe dataset masks`" in told("label-out-of-range")
    pathlib.Path("test.txt").write_text("images/im00.png mask.png\n" * 9)
    assert "scores 6 of the 9 samples in test.txt" in told("test-set-not-covered")
    pathlib.Path("test.txt").unlink()
    assert "test.txt does not exist" in told("missing-data")


def test_zoo_is_clean() -> None:
    for path in sorted((ROOT / "zoo").glob("*/*.prototxt")):
        if "solver" not in path.name:
            assert not lint(str(path), frozenset({"missing-data"})), path


def test_many_are_grouped_and_ignored(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(tmp_path)
    layers = [f'layer {{ name: "ip{n}" type: "InnerProduct" bottom: "ip{n - 1}" top: "ip{n}" inner_product_param {{ num_output: 3 }} }}' for n in range(1, 6)]
    head = 'layer { name: "d" type: "DummyData" top: "ip0" dummy_data_param { shape { dim: 2 dim: 3 } } }'
    pathlib.Path("net.prototxt").write_text("\n".join([head, *layers, 'layer { name: "l" type: "EuclideanLoss" bottom: "ip5" bottom: "ip5" }']))
    assert main(["lint", "net.prototxt"]) == 1
    said = capsys.readouterr().out
    assert re.search(r"net.prototxt:2: layer 'ip1' \(InnerProduct\)\n.*\[weights-start-at-zero\]\n  fix: .*\n  also in lines 3, 4, 5, 6\n5 findings", said)
    assert main(["lint", "--ignore=weights-start-at-zero", "net.prototxt"]) == 0


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["--ignore=zeros", "net.prototxt"], ["zeros", "--rules"]),
        ([], ["no file"]),
        (["none.prototxt"], ["none.prototxt"]),
        (["bad.prototxt"], ["bad.prototxt:"]),
    ],
)
def test_refused(job: None, arguments: list[str], told: list[str], capfd: pytest.CaptureFixture[str]) -> None:
    pathlib.Path("bad.prototxt").write_text('layer {\n  nme: "x" }')
    assert main(["lint", *arguments]) == 1
    said = capfd.readouterr().err
    assert all(text in said for text in told), said


def test_solver_with_weights(job: None) -> None:
    net = pathlib.Path("net.prototxt")
    net.write_text(net.read_text().replace(' weight_filler { type: "xavier" }', ""))
    assert [finding.rule for finding in lint("solver.prototxt")] == ["weights-start-at-zero"]
    net_of_weights = proto.NetParameter()
    net_of_weights.layer.add(name="other").blobs.add(data=[1]).shape.dim.append(1)
    pathlib.Path("some.caffemodel").write_bytes(net_of_weights.SerializeToString())
    pathlib.Path("solver.prototxt").write_text(SOLVER + 'weights: "some.caffemodel"\n')
    assert not lint("solver.prototxt")


def test_weights_are_compared(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(tmp_path)
    text = HEAD + TAIL.replace(', "xavier"', "")
    pathlib.Path("net.prototxt").write_text(text)
    layers = [
        proto.LayerParameter(name="conv", blobs=[proto.BlobProto(shape=proto.BlobShape(dim=[5, 3, 2, 2]), data=[0.0] * 60)]),
        proto.LayerParameter(name="other", blobs=[proto.BlobProto(shape=proto.BlobShape(dim=[1]), data=[0.0])]),
    ]
    pathlib.Path("w.caffemodel").write_bytes(proto.NetParameter(layer=layers).SerializeToString())
    assert main(["lint", "net.prototxt", "--weights", "w.caffemodel"]) == 1
    said = capsys.readouterr().out
    assert re.search(r"net.prototxt:4: layer 'conv'.*\n.*5 x 3 x 2 x 2 in the file, 5 x 3 x 3 x 3 in the net", said)
    assert re.search(r"net.prototxt:\d+: layer 'ip'.*\n.*w.caffemodel has no weights for this layer", said)
    assert "the net has no layer 'other': these weights are not used" in said and said.count("[weights]") == 3
    assert main(["lint", "net.prototxt", "--weights", "w.caffemodel", "--ignore", "weights"]) == 0


def test_rules_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["lint", "--rules"]) == 0
    assert len(capsys.readouterr().out.splitlines()) == len(NET_RULES) + len(JOB_RULES) + 3


@pytest.mark.parametrize(("name", "phase"), [("train", "TRAIN"), ("deploy", "TEST"), ("test_net", "TEST"), ("train_val", "TRAIN")])
def test_phase_of_a_net_without_phases(name: str, phase: str, tmp_path: pathlib.Path) -> None:
    path = tmp_path / f"{name}.prototxt"
    path.write_text(variant(NETS["statistics-not-learned"], "-")[0])
    assert bool(lint(str(path))) == (phase == "TRAIN")


def test_a_phase_without_data_is_not_checked(tmp_path: pathlib.Path) -> None:
    """test.prototxt of SSD has data for TEST alone."""
    path = tmp_path / "net.prototxt"
    path.write_text(HEAD.replace("dummy_data_param", "include { phase: TEST } dummy_data_param") + TAIL)
    assert not lint(str(path))


def test_a_phase_without_its_data_is_not_meant(tmp_path: pathlib.Path) -> None:
    """The data layer belongs to TEST alone, and another layer without bottoms to both phases."""
    path = tmp_path / "net.prototxt"
    path.write_text(f"""{HEAD.replace('type: "DummyData"', 'include { phase: TEST } type: "DummyData"')}
layer {{ name: "marks" type: "DummyData" top: "marks" dummy_data_param {{ shape {{ dim: 4 }} }} }}
layer {{ name: "s" type: "Silence" bottom: "conv" bottom: "marks" bottom: "label" }}""")
    assert not lint(str(path))


def test_statistics_that_are_fixed_on_purpose(tmp_path: pathlib.Path) -> None:
    """The Scale layer of the BatchNorm does not learn either, as in nets of R-FCN."""
    path = tmp_path / "train.prototxt"
    for rate, rules in ((0, set()), (1, {"statistics-not-learned"})):
        specs = f"param {{ lr_mult: {rate} }} param {{ lr_mult: 0 }}"
        path.write_text(f"""{HEAD}
{BN} batch_norm_param {{ use_global_stats: true }} }}
layer {{ name: "scale" type: "Scale" bottom: "bn" top: "bn" {specs} scale_param {{ bias_term: true }} }}
{TAIL.replace('"conv"', '"bn"')}""")
        assert {finding.rule for finding in lint(str(path))} == rules


@pytest.mark.parametrize("name", ["net_deploy", "net_inference"])
def test_a_net_for_inference(name: str, tmp_path: pathlib.Path) -> None:
    """Layers that differ by phase, or a data layer without labels, do not make it a training net."""
    path = tmp_path / f"{name}.prototxt"
    lines = {"net_deploy": """layer { name: "x" type: "Input" top: "x" input_param { shape { dim: 2 dim: 3 } } }
layer { name: "c" type: "ContinuationIndicator" top: "c" continuation_indicator_param { time_step: 2 batch_size: 2 } }
layer { name: "a" type: "AbsVal" bottom: "x" top: "a" include { phase: TRAIN } }
layer { name: "a" type: "AbsVal" bottom: "x" top: "a" include { phase: TEST } }
layer { name: "s" type: "Silence" bottom: "c" bottom: "a" }""", "net_inference": """layer { name: "d" type: "Data" top: "d" data_param { source: "d" } }
layer { name: "a" type: "AbsVal" bottom: "d" top: "a" }"""}
    path.write_text(lines[name])
    assert not any(finding.rule == "no-loss" for finding in lint(str(path)))


def test_a_net_with_a_field_of_solvers(tmp_path: pathlib.Path) -> None:
    """A layer's message can begin with max_iter, as in forks. The file is a solver only if such a field is outside of all messages."""
    net = tmp_path / "net.prototxt"
    net.write_text(f'''name: "base_lr: 1" # lr_policy: "fixed"
{HEAD}layer {{ name: "g" type: "AbsVal" bottom: "conv" top: "g" power_param {{ power: 1 }}
  gradient_scaler_param {{
    max_iter: 5000 }} }}''')
    with pytest.raises(Error, match=r"LayerParameter has no field 'gradient_scaler_param'"):  # read as a net, and not as a solver
        lint(str(net))
    net.write_text(f"net_param {{ {HEAD} {TAIL} }} max_iter: 9")
    lint(str(net))  # a solver; as a net it would be an error
