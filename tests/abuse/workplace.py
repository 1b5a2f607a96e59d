"""A folder to work in, with copies of the golden data that nets name, and the seeds: sound files of every kind, from which damaged ones are made."""
from __future__ import annotations

import contextlib
import functools
import io
import os
import pathlib
import shutil
import sys
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import lmdb
import numpy as np
from PIL import Image

from ocaffe import proto
from ocaffe.errors import Error
from ocaffe.formats.text import read_net
from tests.abuse.harness import ROOT

GOLDEN = ROOT / "tests" / "golden"
CORPUS = pathlib.Path(__file__).with_name("corpus")
MAX_SEED = 200_000  # bytes of a seed; larger files have no other code to reach
SHAPE = (3, 6, 8)  # of pictures
FORMATS = (  # of Pillow, with the mode of the pixels
    ("JPEG", "RGB"), ("JPEG", "L"), ("JPEG", "CMYK"), ("PNG", "RGB"), ("PNG", "L"), ("PNG", "P"), ("PNG", "RGBA"), ("PNG", "I;16"), ("PNG", "1"),
    ("BMP", "RGB"), ("BMP", "L"), ("TIFF", "RGB"), ("TIFF", "L"), ("TIFF", "I;16"), ("WEBP", "RGB"), ("WEBP", "RGBA"), ("PPM", "RGB"), ("PPM", "L"),
    ("GIF", "P"), ("JPEG2000", "RGB"), ("ICO", "RGB"), ("TGA", "RGB"), ("PCX", "RGB"), ("SGI", "RGB"), ("DDS", "RGB"), ("ICNS", "RGB"), ("AVIF", "RGB"),
    ("EPS", "RGB"), ("PDF", "RGB"), ("SPIDER", "F"), ("IM", "RGB"), ("MPO", "RGB"),
)  # fmt: skip


@contextlib.contextmanager
def workplace(memory: bool = True) -> Iterator[pathlib.Path]:
    """Make a temporary folder, the working directory in the context, and yield it.

    It has the golden folders to which nets refer. `memory`: put it into a file system in memory, if there is one.
    """
    fast = "/dev/shm" if memory and os.access("/dev/shm", os.W_OK) else None
    before = os.getcwd()
    with tempfile.TemporaryDirectory(prefix="ocaffe-abuse-", dir=fast, ignore_cleanup_errors=True) as name:
        for folder in ("files", "data", "solvers"):
            shutil.copytree(GOLDEN / folder, pathlib.Path(name, folder), ignore=shutil.ignore_patterns("*.npz", "*.json"))
        os.chdir(name)
        try:
            yield pathlib.Path(name)
        finally:
            os.chdir(before)


def contents(*patterns: str) -> list[bytes]:
    """The files of tests/golden and zoo that match."""
    found = [path for pattern in patterns for folder in (GOLDEN, ROOT) for path in sorted(folder.glob(pattern)) if path.is_file()]
    made = [path.read_bytes() for path in found if 0 < path.stat().st_size <= MAX_SEED]
    assert made, f"no file {patterns}"
    return made


@functools.cache
def nets() -> tuple[Any, ...]:
    """Small nets of all layer types, as messages."""
    sys.path.append(str(GOLDEN / "layers"))  # golden_pylayer
    found = []
    for folder in ("layers", "nets", "forks", "data", "upgrade", "errors"):
        for path in sorted((GOLDEN / folder).glob("*.prototxt")):
            with contextlib.suppress(Error):
                message = read_net(path)
                message.ClearField("source_file")
                found.append(message)
    return tuple(found)


def picture(seed: int = 0, shape: Sequence[int] = SHAPE) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, shape, np.uint8)


def image_file(kind: str, mode: str, size: tuple[int, int] = (20, 14), seed: int = 0) -> bytes | None:
    """An image file of `size` (width, height); None if Pillow cannot write this kind here."""
    smooth = Image.fromarray(picture(seed, (4, 5, 3))).resize(size)
    pixels = Image.fromarray(np.asarray(smooth.convert("L")).astype(np.uint16) * 257) if mode == "I;16" else smooth.convert(mode)
    buffer = io.BytesIO()
    try:
        pixels.save(buffer, kind)
    except (OSError, KeyError, ValueError):
        return None
    return buffer.getvalue()


@functools.cache
def image_files() -> tuple[bytes, ...]:
    made = [image_file(*each) for each in FORMATS]
    return tuple(data for data in made if data is not None)


@functools.cache
def datums() -> tuple[Any, ...]:
    """Records: raw bytes, floats, and image files of all kinds."""
    raw = proto.Datum(channels=SHAPE[0], height=SHAPE[1], width=SHAPE[2], label=3, data=picture().tobytes())
    floats = proto.Datum(channels=1, height=2, width=3, label=1, float_data=[0.5, -1, 2, 3, 4, 5])
    return (raw, floats, *(proto.Datum(data=data, label=1, encoded=True) for data in image_files()))


def annotated(datum: Any) -> Any:
    """The record with a box (SSD)."""
    made = proto.AnnotatedDatum(datum=datum, type=proto.AnnotatedDatum.BBOX)
    box = {"xmin": 0.1, "ymin": 0.2, "xmax": 0.6, "ymax": 0.7}
    made.annotation_group.add(group_label=1).annotation.add(instance_id=0, bbox=proto.NormalizedBBox(**box))
    return made


def database(path: pathlib.Path, values: Iterable[bytes]) -> None:
    """Write an LMDB in place of an earlier one."""
    shutil.rmtree(path, ignore_errors=True)
    with lmdb.open(str(path), map_size=1 << 26, sync=False, lock=False) as environment, environment.begin(write=True) as transaction:
        for number, value in enumerate(values):
            transaction.put(b"%08d" % number, value)


@functools.cache
def databases() -> tuple[bytes, ...]:
    """Files data.mdb with few and many records, and with records larger than a page."""
    made = []
    for count, size in ((3, 64), (400, 64), (20, 9000)):
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder, "db")
            values = (proto.Datum(channels=1, height=1, width=size, label=number % 10, data=bytes(size)).SerializeToString() for number in range(count))
            database(path, values)
            made.append((path / "data.mdb").read_bytes())
    return tuple(made)


@functools.cache
def onnx_models() -> tuple[Any, ...]:
    """Small ONNX models with the operators of usual nets."""
    import onnx

    head = '<ir_version: 8, opset_import: ["": 17]> net '
    texts = (
        ("(float[1, 3, 8, 8] x) => (float[1, 4] y) { a = Conv<pads = [1, 1, 1, 1], strides = [2, 2]>(x, w) b = Relu(a) c = MaxPool<kernel_shape = [2, 2]>(b) "
         "d = GlobalAveragePool(c) y = Flatten(d) }", {"w": (4, 3, 3, 3)}),
        ("(float[2, 3, 6, 6] x) => (float[2, 5] y) { a = BatchNormalization(x, s, b, m, v) c = LRN<size = 3>(a) d = Flatten(c) e = Gemm<transB = 1>(d, w, k) "
         "y = Softmax(e) }", {"s": (3,), "b": (3,), "m": (3,), "v": (3,), "w": (5, 108), "k": (5,)}),
        ("(float[1, 4, 4, 4] x) => (float[1, 8, 8, 8] y) { a = ConvTranspose<strides = [2, 2], kernel_shape = [2, 2]>(x, w) b = Sigmoid(a) c = Mul(a, b) "
         "y = Concat<axis = 1>(b, c) }", {"w": (4, 4, 2, 2)}),
        ("(float[1, 2, 6] x) => (float[1, 6, 2] y) { a = Transpose<perm = [0, 2, 1]>(x) b = MatMul(a, w) c = Add(b, k) d = Clip(c, lo, hi) y = Tanh(d) }",
         {"w": (2, 2), "k": (2,), "lo": (), "hi": ()}),
        ("(float[1, 4, 6, 6] x) => (float[1, 4, 6, 6] y) { a = Conv<group = 4, pads = [1, 1, 1, 1]>(x, w) b = HardSwish(a) c = GlobalAveragePool(b) "
         "d = HardSigmoid(c) e = Mul(b, d) y = Add(e, x) }", {"w": (4, 1, 3, 3)}),
        ("(float[2, 3, 8] x) => (float[2, 3, 4] y) { a = LayerNormalization<axis = -1>(x, s, b) c = Tanh(a) d = MatMul(c, w) y = Softmax<axis = -1>(d) }",
         {"s": (8,), "b": (8,), "w": (8, 4)}),
        ("(float[1, 4, 6, 6] x) => (float[1, 4, 2, 2] y) { a, b = Split<axis = 1>(x) c = Concat<axis = 1>(b, a) d = PRelu(c, s) "
         "y = AveragePool<kernel_shape = [3, 3], strides = [2, 2], ceil_mode = 0>(d) }", {"s": (4, 1, 1)}),
        ("(float[1, 3, 6, 6] x) => (float[1, 3, 1, 1] y) { a = InstanceNormalization(x, s, b) c = LeakyRelu<alpha = 0.1>(a) d = ReduceMean<axes = [2, 3]>(c) "
         "e = Sqrt(k) f = Abs(d) y = Div(f, e) }", {"s": (3,), "b": (3,), "k": ()}),
        ("(float[2, 4, 4, 4] x) => (float[2, 4, 4, 4] y) { a = Elu(x) b = Sub(x, k) c = Max(a, b) d = Exp(c) e = Pow(d, k) f = Neg(e) y = Sum(a, f) }",
         {"k": ()}),
        ("(float[1, 4, 4, 4] x, float[1, 4, 4, 4] z) => (float[1, 2, 4, 2] y) { a = Mul(x, z) b = Gather<axis = 1>(a, i) c = Slice(b, o, p, q) "
         "y = Celu(c) }", {"i": [0, 2], "o": [1], "p": [3], "q": [3]}),
        ("(float[1, 8, 4, 4] x) => (float[1, 2, 8, 8] y) { a = DepthToSpace<blocksize = 2>(x) b = Softplus(a) c = Reshape(b, r) "
         "d = Transpose<perm = [0, 2, 1]>(c) e = Reshape(d, r2) y = Tanh(e) }", {"r": [1, 2, 64], "r2": [1, 2, 8, 8]}),
        ("(float[1, 2, 4, 4] x) => (float[1, 2, 8, 8] y) { a = Resize<mode = \"nearest\">(x, , s) b = Pad(a, p) "
         "c = MaxPool<kernel_shape = [3, 3]>(b) y = Relu(c) }",
         {"s": (4,), "p": [0, 0, 1, 1, 0, 0, 1, 1]}),
    )  # fmt: skip
    made = []
    for text, weights in texts:
        model = onnx.parser.parse_model(head + text)
        for name, shape in weights.items():  # a tuple is a shape, a list has values
            array = np.array(shape, np.int64) if isinstance(shape, list) else np.full(shape, 6 if name == "hi" else 0.5, np.float32)
            if text.count("Resize") and name == "s":
                array = np.array([1, 1, 2, 2], np.float32)
            model.graph.initializer.append(onnx.numpy_helper.from_array(array, name))
        made.append(model)
    return tuple(made)
