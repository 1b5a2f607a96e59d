"""`ocaffe compare --dump`: the values of other tools. Dumps of all kinds are equal to the net, and the first layer with a planted fault is named."""
from __future__ import annotations

import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

import ocaffe
from ocaffe.cli import main
from ocaffe.tools.dumps.read import MOST_FILES
from ocaffe.tools.dumps.values import cosine, difference

pytestmark = pytest.mark.unoptimised
NET = """name: "n"
layer { name: "data" type: "Input" top: "data" input_param { shape { dim: 2 dim: 3 dim: 12 dim: 10 } } }
layer { name: "conv1" type: "Convolution" bottom: "data" top: "conv1"
  convolution_param { num_output: 6 kernel_size: 3 weight_filler { type: "xavier" } bias_filler { type: "uniform" min: -1 } } }
layer { name: "relu1" type: "ReLU" bottom: "conv1" top: "conv1" }
layer { name: "pool1" type: "Pooling" bottom: "conv1" top: "pool1" pooling_param { kernel_size: 2 stride: 2 } }
layer { name: "block/conv2" type: "Convolution" bottom: "pool1" top: "block/conv2"
  convolution_param { num_output: 4 kernel_size: 2 weight_filler { type: "xavier" } bias_filler { type: "uniform" min: -1 } } }
layer { name: "tail" type: "Slice" bottom: "block/conv2" top: "low" top: "high" slice_param { axis: 1 } }
layer { name: "sum" type: "Eltwise" bottom: "low" bottom: "high" top: "sum" }
layer { name: "fc" type: "InnerProduct" bottom: "sum" top: "fc" inner_product_param { num_output: 5 weight_filler { type: "xavier" } } }
layer { name: "prob" type: "Softmax" bottom: "fc" top: "prob" }
"""
Values = dict[str, np.ndarray]
CONV2 = "layer 'block/conv2' (Convolution), blob 'block/conv2'"


class Made(NamedTuple):
    """The net, its weights, and its values by layer, computed without ocaffe's in-place blobs."""

    files: list[str]
    values: Values


def saved(prototxt: Path, weights: Path, shape: tuple[int, ...], device: Any) -> tuple[Values, list[np.ndarray]]:
    """Save a net's weights. Return all its values for random data, and the parameters of conv1."""
    with ocaffe.Net(str(prototxt), ocaffe.TEST, device=device, seed=3) as net:
        net.save(str(weights))
        net.blobs["data"].data[...] = np.random.default_rng(0).standard_normal(shape)
        net.forward()
        return {name: blob.data.copy() for name, blob in net.blobs.items()}, [blob.data.copy() for blob in net.params["conv1"]]


@pytest.fixture(scope="module")
def made(device: Any, tmp_path_factory: pytest.TempPathFactory) -> Made:
    folder = tmp_path_factory.mktemp("net")
    prototxt, weights = folder / "n.prototxt", folder / "n.caffemodel"
    prototxt.write_text(NET)
    values, (weight, bias) = saved(prototxt, weights, (2, 3, 12, 10), device)
    windows = np.lib.stride_tricks.sliding_window_view(values["data"], (3, 3), (2, 3))
    values["relu1"] = values["conv1"]
    values["conv1"] = (np.einsum("nchwij,ocij->nohw", windows, weight) + bias[:, None, None]).astype(np.float32)
    assert np.allclose(np.maximum(values["conv1"], 0), values["relu1"], atol=1e-5)
    return Made([str(prototxt), str(weights)], values)


def integers(array: np.ndarray, wide: float = 127) -> tuple[np.ndarray, float]:
    scale = float(np.abs(array).max() / wide)
    return np.clip(np.round(array / scale), -128, 127).astype(np.int8), scale


def npz(folder: Path, values: Values) -> str:
    np.savez(folder / "dump.npz", **values)  # type: ignore[arg-type]
    return str(folder / "dump.npz")


def files(folder: Path, values: Values, write: Callable[[Path, np.ndarray], None]) -> str:
    (folder / "dump").mkdir()
    for name, array in values.items():
        write(folder / "dump" / name.replace("/", "_"), array)
    return str(folder / "dump")


def run(made: Made, dump: str, capsys: pytest.CaptureFixture[str], *flags: str) -> tuple[int, str, str]:
    status = main(["compare", *made.files, "--dump", dump, *flags])
    return status, *capsys.readouterr()


def raw(kind: str, suffix: str) -> Callable[[Path, np.ndarray], None]:
    def write(path: Path, array: np.ndarray) -> None:
        path.with_name(path.name + suffix).write_bytes(array.astype(kind).tobytes())

    return write


def texts(path: Path, array: np.ndarray) -> None:
    path.with_name(path.name + ".txt").write_text("# made by a test\n" + "\n".join(f"{value:.7g}" for value in array.reshape(-1)))


WRITERS: dict[str, Callable[[Path, np.ndarray], None]] = {
    "npy": lambda path, array: np.save(path.with_name(path.name + ".npy"), array), "text": texts, "float32": raw("<f4", ".float"),
    "bytes of float32": raw("<f4", ".bin"), "bytes of float16": raw("<f2", ".bin"), "float16": raw("<f2", ".half"), "no ending": raw("<f4", ""),
}  # fmt: skip


@pytest.mark.parametrize("kind", WRITERS)
def test_folders(made: Made, tmp_path: Path, capsys: pytest.CaptureFixture[str], device: Any, kind: str) -> None:
    status, out, _ = run(made, files(tmp_path, made.values, WRITERS[kind]), capsys)
    assert status == 0 and "no difference above the tolerance in 10 values" in out, out
    assert re.search(r"'conv1' \(Convolution\) +conv1 +conv1 +1\.0", out) and re.search(r"'relu1' \(ReLU\) +conv1 +relu1 +1\.0", out)
    assert re.search(r"'block/conv2' \(Convolution\) +block/conv2 +block_conv2 ", out)


def test_npz_as_pycaffe_names_it(made: Made, tmp_path: Path, capsys: pytest.CaptureFixture[str], device: Any) -> None:
    """Without a name of the layer in place, the blob is what that layer has written."""
    values = {name: array for name, array in made.values.items() if name != "relu1"} | {"conv1": made.values["relu1"]}
    status, out, _ = run(made, npz(tmp_path, values), capsys)
    assert status == 0 and "in 9 values" in out and "a later layer writes in place" in out and "values are not in the dump" not in out


def test_integers_with_and_without_scales(made: Made, tmp_path: Path, capsys: pytest.CaptureFixture[str], device: Any) -> None:
    quantised = {name: integers(array) for name, array in made.values.items()}
    plain = {name: pair[0] for name, pair in quantised.items()} | {"data": made.values["data"]}
    status, out, _ = run(made, npz(tmp_path, plain), capsys)
    assert status == 0 and out.count("no scale") == 9
    scales = {f"{name}_scale": np.array(pair[1]) for name, pair in quantised.items() if name != "data"}
    status, out, _ = run(made, npz(tmp_path, plain | scales), capsys)
    assert status == 0 and "no scale" not in out
    by_channel = np.abs(made.values["pool1"]).max((0, 2, 3)) / 200
    plain["pool1"] = (np.round(made.values["pool1"] / by_channel[:, None, None]) + 20).clip(0, 255).astype(np.uint8)
    scales |= {"pool1_scale": by_channel, "pool1_zero_point": np.full(6, 20)}
    status, out, _ = run(made, npz(tmp_path, plain | scales), capsys)
    assert status == 0, out
    lines = [f"{name.replace('/', '_')} {pair[1]:.9g} 0" for name, pair in quantised.items()]
    (tmp_path / "scales").write_text("# layer scale zero\n" + "\n".join(lines))
    folder = files(tmp_path, {name: pair[0] for name, pair in quantised.items()}, raw("<i1", ".bin"))
    np.save(tmp_path / "x.npy", made.values["data"])
    status, out, _ = run(made, folder, capsys, "--scales", str(tmp_path / "scales"), "--input", str(tmp_path / "x.npy"))
    assert status == 0 and "no scale" not in out, out


def test_zeros_are_told(made: Made, tmp_path: Path, capsys: pytest.CaptureFixture[str], device: Any) -> None:
    """Weights that are not those of the dump often make a net of zeros, and so does an input of zeros in a net without biases."""
    (tmp_path / "n.prototxt").write_text(NET.replace(' bias_filler { type: "uniform" min: -1 }', ""))
    with ocaffe.Net(str(tmp_path / "n.prototxt"), ocaffe.TEST, device=device) as net:
        net.save(str(tmp_path / "n.caffemodel"))
    other = Made([str(tmp_path / "n.prototxt"), str(tmp_path / "n.caffemodel")], {})
    status, out, _ = run(other, npz(tmp_path, {"data": made.values["data"] * 0, "pool1": made.values["pool1"] * 0}), capsys)
    assert status == 0 and len(re.findall(r"both are zero\n", out)) == 2


def test_a_layer_with_the_name_of_a_scale(made: Made, tmp_path: Path, capsys: pytest.CaptureFixture[str], device: Any) -> None:
    """Many nets have a Scale layer conv1_scale after conv1. Its values are no scale, also if conv1 has integers."""
    net = re.sub(r"\bpool1\b", "relu1_scale", NET).replace('"relu1"', '"scaled"').replace('"conv1"', '"relu1"')
    prototxt = tmp_path / "n.prototxt"
    prototxt.write_text(net)
    with ocaffe.Net(str(prototxt), ocaffe.TEST, device=device, seed=3) as run_net:
        run_net.save(str(tmp_path / "n.caffemodel"))
        run_net.blobs["data"].data[...] = made.values["data"]
        run_net.forward()
        values = {name: blob.data.copy() for name, blob in run_net.blobs.items()}
    other = Made([str(prototxt), str(tmp_path / "n.caffemodel")], values)
    for relu in (values["relu1"], integers(values["relu1"])[0]):
        status, out, _ = run(other, npz(tmp_path, values | {"relu1": relu}), capsys)
        assert status == 0 and re.search(r"'relu1_scale' \(Pooling\) +relu1_scale +relu1_scale +1\.0", out), out


def test_map_layouts_and_another_batch(made: Made, tmp_path: Path, capsys: pytest.CaptureFixture[str], device: Any) -> None:
    values = {"in": made.values["data"][:1], "a": made.values["conv1"][:1].transpose(0, 2, 3, 1), "b": made.values["relu1"][:1].reshape(-1),
              "c": made.values["fc"][0], "d": made.values["pool1"][:1].reshape(6, -1)}  # fmt: skip
    (tmp_path / "map").write_text("data in\nconv1 a\nrelu1 b  # in place\n\nfc c\npool1 d\n")
    status, out, _ = run(made, npz(tmp_path, values), capsys, "--map", str(tmp_path / "map"), "--html", str(tmp_path / "page.html"))
    assert status == 0 and "channels last" in out and "in 5 values" in out, out
    assert "5 of 10 values are not in the dump; the first: layer 'block/conv2' (Convolution)" in out
    page = (tmp_path / "page.html").read_text()
    assert page.count("<tr class=") == 10 and page.count('class="missing"') == 5 and "&#x27;relu1&#x27; (ReLU)" in page


def changed(name: str, change: Callable[[np.ndarray], np.ndarray]) -> Callable[[Values], None]:
    def plant(values: Values) -> None:
        values[name] = change(values[name].copy())

    return plant


def both(*faults: Callable[[Values], None]) -> Callable[[Values], None]:
    def plant(values: Values) -> None:
        for fault in faults:
            fault(values)

    return plant


def without(name: str) -> Callable[[Values], None]:
    def plant(values: Values) -> None:
        del values[name]

    return plant


def put(place: tuple[int, ...], value: float) -> Callable[[np.ndarray], np.ndarray]:
    def change(array: np.ndarray) -> np.ndarray:
        array[place] = value
        return array

    return change


def overflow(array: np.ndarray, wrap: bool) -> np.ndarray:
    """Return integers times their scale, of a scale that is too small. `wrap`: without saturation."""
    scale = float(np.abs(array).max() / 200)
    steps = np.round(array / scale)
    return ((steps + 128) % 256 - 128 if wrap else steps.clip(-128, 127)) * scale


def bias(array: np.ndarray) -> np.ndarray:
    return array + np.arange(array.shape[1], dtype=np.float32)[:, None, None]


def last(array: np.ndarray) -> np.ndarray:
    return array.transpose(0, 2, 3, 1).reshape(array.shape)


SLICE = "layer 'tail' (Slice), blob 'high'"
POOL = "layer 'pool1' (Pooling), blob 'pool1'"
FAULTS: dict[str, tuple[Callable[[Values], None], str, str]] = {  # the fault, the first bad layer, a word of the note
    "scaled": (changed("pool1", lambda x: x * 2), POOL, "it is 2 times ocaffe's"),
    "scaled a little": (changed("block/conv2", lambda x: x * 1.01), CONV2, "it is 1.01 times"),
    "negative": (changed("fc", lambda x: -x), "layer 'fc' (InnerProduct), blob 'fc'", "it is -1 times"),
    "channels last": (changed("block/conv2", last), CONV2, "equal if its channels are last"),
    "channels in the opposite order": (changed("conv1", lambda x: x[:, ::-1]), "layer 'conv1' (Convolution), blob 'conv1'", "in the opposite order"),
    "two channels exchanged": (changed("pool1", lambda x: x[:, [1, 0, 2, 3, 4, 5]]), POOL, "off by"),
    "shifted in place": (changed("relu1", lambda x: np.roll(x, 1, 3)), "layer 'relu1' (ReLU), blob 'conv1'", "moved by +1 along axis 3"),
    "shifted up": (changed("pool1", lambda x: np.roll(x, -1, 2)), POOL, "moved by -1 along axis 2"),
    "wrong bias": (changed("block/conv2", bias), CONV2, "another bias"),
    "an offset": (changed("sum", lambda x: x + 0.5), "layer 'sum' (Eltwise), blob 'sum'", "plus 0.5"),
    "no ReLU": (lambda values: values.update(relu1=values["conv1"]), "layer 'relu1' (ReLU), blob 'conv1'", "off by"),
    "overflow that wraps": (changed("block/conv2", lambda x: overflow(x, True)), CONV2, "off by"),
    "overflow that saturates": (changed("block/conv2", lambda x: overflow(x, False)), CONV2, "off by"),
    "NaN": (changed("pool1", put((1, 2, 0, 0), np.nan)), POOL, "nan in the dump"),
    "infinity": (changed("fc", put((0, 1), np.inf)), "layer 'fc' (InnerProduct), blob 'fc'", "inf in the dump"),
    "one wrong value": (changed("high", put((0, 0, 0, 0), 9)), SLICE, "at [0, 0, 0, 0]"),
    "zeros": (changed("prob", lambda x: x * 0), "layer 'prob' (Softmax), blob 'prob'", "off by"),
    "rows and columns": (changed("pool1", lambda x: x.swapaxes(2, 3)), POOL, "2 x 6 x 4 x 5 in the dump, 2 x 6 x 5 x 4 in the net"),
    "a row too few": (changed("conv1", lambda x: x[:, :, 1:]), "layer 'conv1' (Convolution), blob 'conv1'", "2 x 6 x 9 x 8 in the dump"),
    "missing": (without("block/conv2"), CONV2, "values are not in the dump; the first"),
    "two faults": (both(changed("fc", lambda x: x * 3), changed("pool1", lambda x: x + 1)), POOL, "plus 1"),
}  # fmt: skip


@pytest.mark.parametrize("fault", FAULTS)
def test_the_first_bad_layer_is_named(made: Made, tmp_path: Path, capsys: pytest.CaptureFixture[str], device: Any, fault: str) -> None:
    plant, layer, note = FAULTS[fault]
    values = dict(made.values)
    plant(values)
    status, out, _ = run(made, npz(tmp_path, values), capsys, "--html", str(tmp_path / "page.html"))
    named = re.findall(r"the first: (layer '.*' \(\w+\), blob '[^']*')", out)
    assert named == [layer] and note in out, out
    assert status == (fault != "missing") and len(re.findall("<--", out)) == (0 if fault == "missing" else 2 if fault == "two faults" else 1)
    assert (tmp_path / "page.html").read_text().count('class="wrong"') == out.count("<--")


def test_integer_faults(made: Made, tmp_path: Path, capsys: pytest.CaptureFixture[str], device: Any) -> None:
    """Integers that saturate, that have the scale of another layer, or that have no scale and another direction."""
    narrow, scale = integers(made.values["pool1"], 400)
    for array, given, note in ((narrow, scale, "are at an end of int8"), (integers(made.values["pool1"])[0], 1.0, "times ocaffe's"),
                               (integers(made.values["pool1"])[0][:, ::-1], None, "its cosine is")):  # fmt: skip
        values = made.values | {"pool1": array} | ({} if given is None else {"pool1_scale": np.array(given)})
        status, out, _ = run(made, npz(tmp_path, values), capsys)
        assert status == 1 and re.findall(r"the first: (layer '.*')", out.replace(" (", "')(")) and POOL in out and note in out, out


def test_cosine_and_difference() -> None:
    a = np.array([1.0, np.nan, np.inf, -4])
    assert difference(a, a) == (0.0, "at [0]: 1 in ocaffe, 1 in the dump")
    assert difference(a, np.array([1.0, np.nan, -np.inf, -4]))[0] == np.inf and difference(a, np.array([1, np.nan, np.inf, -3]))[0] == 0.25
    assert difference(np.zeros(2), np.array([0.0, 3]))[0] == 1 and difference(np.zeros(0), np.zeros(0))[0] == 0
    assert np.isnan(cosine(a, a)) and cosine(np.zeros(2), np.zeros(2)) == 1 and cosine(np.zeros(2), np.ones(2)) == 0
    assert cosine(np.array([1e200, 0]), np.array([1e200, 1e200])) == pytest.approx(0.5**0.5)


def wrong_text(folder: Path, values: Values) -> list[str]:
    dump = files(folder, values, texts)
    (folder / "dump" / "pool1.txt").write_text("1 2\n3 four 5\n")
    return [dump]


def other_file(folder: Path, values: Values, name: str, content: bytes) -> list[str]:
    dump = files(folder, values, WRITERS["npy"])
    (folder / "dump" / name).write_bytes(content)
    return [dump]


def with_file(flag: str, content: str) -> Callable[[Path, Values], list[str]]:
    def arguments(folder: Path, values: Values) -> list[str]:
        (folder / "given").write_text(content)
        return [npz(folder, values), f"--{flag}", str(folder / "given")]

    return arguments


def with_input(folder: Path, array: np.ndarray, values: Values) -> list[str]:
    np.save(folder / "x.npy", array)
    return [npz(folder, values), "--input", str(folder / "x.npy")]


MISTAKES: dict[str, tuple[Callable[[Path, Values], list[str]], str]] = {
    "no dump": (lambda folder, values: [str(folder / "no.npz")], r"no\.npz does not exist"),
    "an empty dump": (lambda folder, values: [npz(folder, {})], r"the dump has no arrays\n +fix: write it again"),
    "a word in a text": (wrong_text, r"pool1\.txt:2\n +'four' is not a number\n +fix: write numbers"),
    "two files": (lambda folder, values: other_file(folder, values, "fc.txt", b"1 " * 5000), "two files for 'fc'"),
    "objects": (lambda folder, values: [npz(folder, values | {"fc": np.array([{}])})], "objects of Python"),
    "no name": (lambda folder, values: [npz(folder, {"one": values["fc"], "two": values["fc"]})], r"the dump has one, two\n +fix: --map FILE"),
    "no input": (lambda folder, values: [npz(folder, {"fc": values["fc"]})], r"has no values of the input 'data'\n +fix: --input FILE\.npy"),
    "integers as input": (lambda folder, values: [npz(folder, values | {"data": integers(values["data"])[0]})], r"is int8 without a scale\n +fix: --input"),
    "another input": (lambda folder, values: with_input(folder, np.zeros((2, 4, 12, 10)), values), "is 2 x 3 x 12 x 10 in the net, and the array is 2 x 4"),
    "NaN as input": (lambda folder, values: with_input(folder, np.full((2, 3, 12, 10), np.nan), values), "values that are not finite"),
    "map of another net": (with_file("map", "data data\nconv9 conv1\n"), r"given:2\n +the net has no blob and no layer 'conv9'\n +fix: blobs are data, conv1"),
    "map of another dump": (with_file("map", "conv1 conv9\n"), r"given:1\n +the dump .* has no 'conv9'\n +fix: names in the dump are"),
    "three words": (with_file("map", "conv1 a b\n"), r"given:1\n +the line has 3 words, and 2 are expected"),
    "twice": (with_file("map", "fc fc\nfc prob\n"), r"given:2\n +'fc' is given twice, first in line 1"),
    "a scale of zero": (with_file("scales", "fc 0\n"), r"given:1\n +the scale 0 is not a finite number above 0"),
    "a scale in words": (with_file("scales", "fc big\n"), r"given:1\n +the line is not a name, a scale.*\n +fix: fc 0\.05"),
    "scales of another dump": (with_file("scales", "conv9 0.1\n"), "the scales name 'conv9', which the dump"),
    "scales of other channels": (lambda folder, values: [npz(folder, values | {"fc": integers(values["fc"])[0], "fc_scale": np.ones(3)})], "are 3 scales"),
    "two runs": (lambda folder, values: [npz(folder, values), "--with", "0:0"], "--with and --dump are given"),
}  # fmt: skip


@pytest.mark.parametrize("mistake", MISTAKES)
def test_mistakes(made: Made, tmp_path: Path, capsys: pytest.CaptureFixture[str], device: Any, mistake: str) -> None:
    arguments, told = MISTAKES[mistake]
    dump, *flags = arguments(tmp_path, made.values)
    status, _, err = run(made, dump, capsys, *flags)
    assert status == 1 and re.search(told, err), err
    assert "fix:" in err


def test_long_texts_special_files_and_many_files_are_refused(made: Made, tmp_path: Path, capsys: pytest.CaptureFixture[str], device: Any) -> None:
    dump = Path(files(tmp_path, made.values, texts))
    (dump / "fc.txt").write_text("1.0 " * 3000)
    status, _, err = run(made, str(dump), capsys)
    assert status == 1 and "it has 12,000 bytes, and 10 numbers take at most 4,736" in err
    (dump / "fc.txt").write_text("1 2 3")
    status, out, _ = run(made, str(dump), capsys)
    assert status == 1 and "3 in the dump, 2 x 5 in the net" in out
    (dump / "fc.txt").unlink()
    os.mkfifo(dump / "fc.bin")
    status, _, err = run(made, str(dump), capsys)
    assert status == 1 and "fc.bin" in err and "not a plain file" in err
    (dump / "fc.bin").unlink()
    (tmp_path / "secret").write_text("word")
    (dump / "fc.txt").symlink_to(tmp_path / "secret")
    status, _, err = run(made, str(dump), capsys)
    assert status == 1 and "fc.txt leads out of the folder" in err and "word" not in err
    (dump / "fc.txt").unlink()
    with open(dump / "fc.npy", "wb") as stream:
        np.lib.format.write_array_header_1_0(stream, {"descr": "<f4", "fortran_order": False, "shape": (1 << 25,)})
        stream.truncate(1 << 27)
    status, _, err = run(made, str(dump), capsys)
    assert status == 1 and "10 numbers take at most 67,108,864" in err
    for number in range(MOST_FILES):
        (dump / f"{number}.log").touch()
    status, _, err = run(made, str(dump), capsys)
    assert status == 1 and "it has more than 10,000 files" in err


@pytest.mark.parametrize("flag", ["map", "scales", "input", "html"])
def test_flags_of_dumps_alone(made: Made, capsys: pytest.CaptureFixture[str], flag: str) -> None:
    assert main(["compare", *made.files, f"--{flag}", "x"]) == 1
    assert f"--{flag} is given without --dump" in capsys.readouterr().err


def test_nets_without_input(made: Made, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "n.prototxt").write_text(
        'layer { name: "fc" type: "DummyData" top: "fc" dummy_data_param { shape { dim: 2 dim: 5 } } } layer { name: "r" type: "ReLU" bottom: "fc" top: "r" }'
    )
    assert main(["compare", str(tmp_path / "n.prototxt"), made.files[1], "--dump", npz(tmp_path, {"r": np.zeros((2, 5))})]) == 1
    assert "the net has no Input layer" in capsys.readouterr().err
    data = 'type: "Data" top: "data" transform_param { crop_size: 10 } data_param { source: "no_db" batch_size: 2 } }'
    (tmp_path / "n.prototxt").write_text(re.sub(r'type: "Input" .*', data, NET))
    assert main(["compare", str(tmp_path / "n.prototxt"), made.files[1], "--dump", npz(tmp_path, {"r": np.zeros((2, 5))})]) == 1
    said = capsys.readouterr().err
    assert f"`ocaffe convert {tmp_path}/n.prototxt {made.files[1]} deploy.prototxt deploy.caffemodel --shape=data:1x3x10x10` writes the prototxt" in said


@pytest.mark.parametrize("dump", [True, False])
def test_layers_without_weights_are_named(made: Made, tmp_path: Path, capsys: pytest.CaptureFixture[str], device: Any, dump: bool) -> None:
    (tmp_path / "n.prototxt").write_text(NET.replace('name: "fc"', 'name: "fc9"'))
    files = [str(tmp_path / "n.prototxt"), made.files[1]]
    main(["compare", *files, *(["--dump", npz(tmp_path, made.values)] if dump else [])])
    assert f"note: {made.files[1]} has no weights for 'fc9': these keep the values of their fillers" in capsys.readouterr().out


TWO = """layer { name: "data" type: "Input" top: "data" input_param { shape { dim: 1 dim: 2 dim: 6 dim: 6 } } }
layer { name: "conv1" type: "Convolution" bottom: "data" top: "conv1.conv1"
  convolution_param { num_output: 3 kernel_size: 3 weight_filler { type: "xavier" } bias_filler { type: "uniform" min: -1 } } }
layer { name: "relu1" type: "ReLU" bottom: "conv1.conv1" top: "conv1" }
layer { name: "c2" type: "Convolution" bottom: "conv1" top: "c2/bn.c2/bn.c2/bn"
  convolution_param { num_output: 3 kernel_size: 1 weight_filler { type: "xavier" } } }
layer { name: "c2/bn" type: "Power" bottom: "c2/bn.c2/bn.c2/bn" top: "c2/bn.c2/bn" power_param { scale: 2 } }
layer { name: "c2/relu" type: "ReLU" bottom: "c2/bn.c2/bn" top: "c2/bn" }
"""
LAYERS = {"conv1.conv1": "conv1", "conv1": "relu1", "c2/bn.c2/bn.c2/bn": "c2", "c2/bn.c2/bn": "c2/bn", "c2/bn": "c2/relu"}  # by blob


@pytest.mark.parametrize("by", ["blob", "layer", "map of blobs", "map of layers", "blob, joined"])
@pytest.mark.parametrize("bad", ["", *LAYERS])
def test_layers_with_the_names_of_other_layers_blobs(tmp_path: Path, capsys: pytest.CaptureFixture[str], device: Any, by: str, bad: str) -> None:
    """As in the files of `convert --target`. The name of a blob means the blob, unless the dump shows that its names are those of layers."""
    prototxt, weights = tmp_path / "n.prototxt", tmp_path / "n.caffemodel"
    prototxt.write_text(TWO)
    values, _ = saved(prototxt, weights, (1, 2, 6, 6), device)
    if bad:
        values[bad] *= 3
    flags = list[str]()
    if by == "layer":
        values = {LAYERS.get(name, name): array for name, array in values.items()}
    elif by == "blob, joined":  # a chip joins a layer with its ReLU
        values = {name: array for name, array in values.items() if "." not in name}
    elif by.startswith("map"):
        lines = [f"{LAYERS[blob] if 'layers' in by and LAYERS[blob] not in LAYERS else blob} v{number}" for number, blob in enumerate(LAYERS)]
        (tmp_path / "map").write_text("\n".join(lines))
        values = {f"v{list(LAYERS).index(name)}" if name in LAYERS else name: array for name, array in values.items()} | {"conv1": values["data"]}
        flags = ["--map", str(tmp_path / "map")]
    status, out, _ = run(Made([str(prototxt), str(weights)], {}), npz(tmp_path, values), capsys, *flags)
    if not bad or (by == "blob, joined" and "." in bad):
        assert status == 0 and f"in {3 if 'joined' in by else 6} values" in out, out
    else:
        assert status == 1 and f"the first: layer '{LAYERS[bad]}' (" in out, out
