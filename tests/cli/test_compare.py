"""`ocaffe compare`: optimised and plain runs agree on every value of real nets. The first difference is reported."""
from __future__ import annotations

import pathlib
import re
from typing import Any

import numpy as np
import pytest

from ocaffe import proto
from ocaffe.api.net import Net
from ocaffe.cli import main
from ocaffe.compiler.network import phase_net
from ocaffe.formats.text import read_net
from ocaffe.selftest.compare import MAX_SAMPLED_ELEMENTS, Row, Side, compare, difference, sample

GOLDEN = pathlib.Path(__file__).resolve().parents[1] / "golden"
NETS = ["nets/Inception-TRAIN", "nets/ResBlock-TRAIN", "nets/EmbedLSTM", "nets/SharedIP", "nets/Siamese", "forks/Net-SegNet-TRAIN"]


@pytest.fixture(autouse=True)
def folder(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(GOLDEN)


def sides(device: Any, name: str) -> tuple[Side, Side]:
    message = read_net(f"{name}.prototxt")
    first, second = (Side(phase_net(message, proto.TRAIN), proto.TRAIN, device, plain) for plain in (False, True))
    return first, second


@pytest.mark.parametrize("name", NETS)
def test_optimised_and_plain_agree(name: str, device: Any) -> None:
    first, second = sides(device, name)
    rows = compare(first, second)
    values = second.values()
    assert all(row.error is None or row.error <= 1e-4 for row in rows), [row for row in rows if row.error is not None and row.error > 1e-4]
    assert sum(row.error is not None for row in rows) > len(rows) / 2
    phases = [row.phase for row in rows]
    assert phases == sorted(phases, reverse=True) and {"forward", "backward"} == set(phases)
    assert sum(value.largest > 0 for value in values.values()) > 0.6 * len(values), "what is all zero shows nothing"
    for side in (first, second):
        side.network.close()


def test_values_are_those_of_a_net_that_keeps_all(device: Any) -> None:
    """Every value of the optimised run is read before another blob reuses its memory."""
    side, _ = sides(device, "nets/ResBlock-TRAIN")
    values = side.values()
    net = Net("nets/ResBlock-TRAIN.prototxt", proto.TRAIN, device=device, seed=1)
    for node in side.network.graph.nodes:
        for parameter in node.params:
            net.params[node.name][parameter.index].data[...] = side.network.session.read(parameter.data)
    for number, name in enumerate(net.inputs):
        array = np.random.default_rng(number).standard_normal(net.blobs[name].shape)
        net.blobs[name].data[...] = 0 if "label" in name else array
    for output in net.outputs:
        net.blobs[output].diff[...] = 1
    net.forward()
    net.backward()
    last = {top.name: index for index, node in enumerate(side.network.graph.nodes) for top in node.tops}
    compared = 0
    for (phase, index, blob), value in values.items():
        if phase == "forward" and index == last[blob] and blob in net.blobs:
            found, scale = net.blobs[blob].data.reshape(-1), max(value.largest, 1e-30)
            assert np.abs(found[:: value.step] - value.values).max() <= 1e-4 * scale, blob
            compared += 1
    assert compared > 5


def test_the_first_difference_is_found(device: Any) -> None:
    first, second = sides(device, "nets/Inception-TRAIN")
    parameter = next(node for node in second.network.graph.nodes if node.name == "i_3").params[0]
    weights = second.network.session.read(parameter.data)
    weights[1, 0, 1, 1] += 0.5
    second.network.session.write(parameter.data, weights)
    rows = [row for row in compare(first, second) if row.error is not None and row.error > 1e-4]
    assert rows[0].layer == "'relu_i_3' (ReLU)" and rows[0].phase == "forward"  # i_3 itself is fused with it
    assert re.match(r"at \[\d+, 1, \d+, \d+\]: \S+ on the first, \S+ on the second", rows[0].place)
    assert not any("i_5" in row.layer and row.phase == "forward" for row in rows)


def test_difference_of_odd_values() -> None:
    a = np.array([1, np.nan, np.inf, 4], np.float32)
    assert difference(sample(a), sample(a)) == (0.0, "at [0]: 1 on the first, 1 on the second")
    for place, value in ((1, 2), (2, np.nan), (2, -np.inf), (0, np.nan)):
        b = a.copy()
        b[place] = value
        error, where = difference(sample(a), sample(b))
        assert error == np.inf and where.startswith(f"at [{place}]")
    assert difference(sample(a), sample(a[:3]))[0] == np.inf
    assert difference(sample(np.array([4.0])), sample(np.array([3.0])), floor=100)[0] == pytest.approx(0.01)


def test_large_values_are_sampled() -> None:
    array = np.zeros((3, MAX_SAMPLED_ELEMENTS), np.float32)
    array[2, 1] = 7
    found = sample(array)
    assert found.step == 3 and found.values.size == MAX_SAMPLED_ELEMENTS and found.largest == 7
    other = array.copy()
    other[1, 2] = 1  # element MAX_SAMPLED_ELEMENTS + 2 is sampled, like every third element
    assert difference(found, sample(other))[1].startswith("at [1, 2]:")


def test_command(device: Any, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    arguments = ["compare", "--model=files/train_net.prototxt", "--weights=files/init.caffemodel", f"--device={device.number}"]
    assert main(arguments) == 0
    out = capsys.readouterr().out
    assert re.search(rf"first:  {device.number}: .*\nsecond: {device.number}: .*, plain\n", out)
    assert re.search(r"forward   'relu1' \(ReLU\) +\S+e-?\+?\d+  conv1\n", out) and "no difference above 0.0001 in" in out
    assert main([*arguments, f"--with={device.number}", "--phase=TEST"]) == 0
    assert "second: " in (out := capsys.readouterr().out) and "plain" not in out
    import ocaffe.cli.compare as command

    wrong = [Row("forward", "'a' (ReLU)", "x", 1e-7), Row("forward", "'b' (ReLU)", "y", 0.5, "at [0]: 1 on the first, 2 on the second")]
    monkeypatch.setattr(command, "compare", lambda *sides: wrong)
    assert main(arguments) == 1
    out = capsys.readouterr().out
    assert "1 of 2 values differ; the first: layer 'b' (ReLU), forward, 'y', off by 0.5" in out and "magnitude, at [0]: 1 on the first" in out


@pytest.mark.parametrize(("flags", "told"), [([], "--model"), (["--model=no.prototxt"], "no.prototxt"), (["--model=x", "--tolerance=0"], "tolerance is 0")])
def test_mistakes(flags: list[str], told: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["compare", *flags]) == 1
    assert told in capsys.readouterr().err
