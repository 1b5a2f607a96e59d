"""PyTorch's old stream of weights: what PyTorch writes is read; classes, other operations, sizes that do not fit and other formats are refused."""
from __future__ import annotations

import pathlib
import pickle
import sys
import tracemalloc
from typing import Any

import numpy as np
import pytest

from ocaffe.errors import Error
from ocaffe.formats import torch_stream
from ocaffe.formats.torch_stream import MAGIC, PROTOCOL, read_torch_stream

pytestmark = pytest.mark.quick

HEAD = [pickle.dumps(MAGIC, 2), pickle.dumps(PROTOCOL, 2), pickle.dumps({"protocol_version": PROTOCOL, "little_endian": True, "type_sizes": {}}, 2)]
KINDS = {"<f4": b"ctorch\nFloatStorage\n", "<i8": b"ctorch\nLongStorage\n"}
ORDERED, REBUILD = b"ccollections\nOrderedDict\n)R", b"ctorch._utils\n_rebuild_tensor_v2\n"


def value(given: Any) -> bytes:
    """A number, a text, a list or nothing, as a part of a pickle. Bytes stand for themselves."""
    return given if isinstance(given, bytes) else pickle.dumps(given, 2)[2:-1]


def together(*parts: Any) -> bytes:
    return b"(" + b"".join(map(value, parts)) + b"t"


def storage(key: str, count: Any, kind: bytes = KINDS["<f4"], view: Any = None, name: str = "storage") -> bytes:
    return together(name, kind, key, "cpu", count, view) + b"Q"


def tensor(stored: bytes, offset: Any, shape: tuple[Any, ...], strides: tuple[Any, ...], hooks: bytes = ORDERED) -> bytes:
    return REBUILD + together(stored, offset, together(*shape), together(*strides), False, hooks) + b"R"


def whole(weights: bytes, keys: Any = ("0",), rows: bytes = b"", head: Any = HEAD) -> bytes:
    """A stream: the head, the pickle with `weights`, the keys of the storages, their values."""
    return b"".join(head) + b"\x80\x02" + weights + b"." + pickle.dumps(list(keys), 2) + rows


def named(**tensors: bytes) -> bytes:
    """Tensors in an OrderedDict with a state, as PyTorch has it."""
    items = b"(" + b"".join(value(name) + each for name, each in tensors.items()) + b"u"
    return ORDERED + items + b"}" + value("_metadata") + ORDERED + b"sb"


def row(array: np.ndarray) -> bytes:
    return array.size.to_bytes(8, "little") + array.tobytes()


SIX = np.arange(6, dtype="<f4")
ONE = tensor(storage("0", 6), 0, (2, 3), (3, 1))


def test_tensors(tmp_path: pathlib.Path) -> None:
    """Strides of any order, an offset, whole numbers, a shared storage, a scalar."""
    steps = np.array([7], "<i8")
    weights = named(
        a=ONE, columns=tensor(storage("0", 6), 0, (3, 2), (1, 3)), part=tensor(storage("0", 6), 4, (2,), (1,)),
        steps=tensor(storage("1", 1, KINDS["<i8"]), 0, (), ()),
    )  # fmt: skip
    (tmp_path / "a.pth").write_bytes(whole(weights, ("1", "0"), row(steps) + row(SIX)))
    found = read_torch_stream(tmp_path / "a.pth")
    assert list(found) == ["a", "columns", "part", "steps"]
    assert (found["a"] == SIX.reshape(2, 3)).all() and (found["columns"] == SIX.reshape(2, 3).T).all() and (found["part"] == [4, 5]).all()
    assert found["steps"].shape == () and found["steps"] == 7 and not any(array.flags.writeable for array in found.values())


GOOD = whole(named(a=ONE), rows=row(SIX))
SIZES = "fit its storage"
REFUSED = {
    "a function": (whole(b"cos\nsystem\n" + together("id") + b"R"), "it names os.system"),
    "a builtin": (whole(b"cbuiltins\neval\n" + together("1") + b"R"), "it names builtins.eval"),
    "a class": (whole(named(a=b"ctorch\nDoubleStorage\n")), "it names torch.DoubleStorage"),
    "a name from the stack": (whole(value("os") + value("system") + b"\x93"), "operation STACK_GLOBAL"),
    "an object": (whole(ORDERED + b")\x81"), "operation NEWOBJ"),
    "an instance": (whole(b"(ios\nsystem\n"), "operation INST"),
    "an extension": (whole(b"\x82\x01"), "operation EXT1"),
    "a reduced storage": (whole(KINDS["<f4"] + b")R"), "it calls torch.FloatStorage with unknown arguments"),
    "a dictionary of arguments": (whole(b"ccollections\nOrderedDict\n" + together([1]) + b"R"), "it calls collections.OrderedDict"),
    "a state of a text": (whole(value("a") + value("b") + b"b"), "the state of an object"),
    "hooks": (whole(named(a=tensor(storage("0", 6), 0, (6,), (1,), ORDERED + value("a") + value("b") + b"s"))), "hooks"),
    "numbers as keys": (whole(ORDERED + value(1) + ONE + b"s"), "keys that are no texts"),
    "no tensor": (whole(named(a=value("text"))), "'a' is text, not a tensor"),
    "nested": (whole(named(a=b")" + b"\x85" * 100_000)), "'a' is a tuple, not a tensor"),
    "no dictionary": (whole(b")" + b"\x85" * 100_000), "it holds a tuple"),
    "nothing": (whole(ORDERED), "it holds nothing"),
    "other storages": (whole(named(a=tensor(storage("0", 6, name="module"), 0, (6,), (1,)))), "no storage"),
    "a view": (whole(named(a=tensor(storage("0", 6, view="x"), 0, (6,), (1,)))), "other types than PyTorch's"),
    "a negative count": (whole(named(a=tensor(storage("0", -6), 0, (6,), (1,)))), "other types than PyTorch's"),
    "a truth value": (whole(named(a=tensor(storage("0", True), 0, (1,), (1,)))), "other types than PyTorch's"),
    "a negative stride": (whole(named(a=tensor(storage("0", 6), 5, (6,), (-1,)))), "not numbers from 0 on"),
    "a negative offset": (whole(named(a=tensor(storage("0", 6), -1, (6,), (1,)))), "not numbers from 0 on"),
    "past the end": (whole(named(a=tensor(storage("0", 6), 1, (6,), (1,)))), SIZES),
    "past the end by strides": (whole(named(a=tensor(storage("0", 6), 0, (2, 3), (4, 1)))), SIZES),
    "repeated values": (whole(named(a=tensor(storage("0", 6), 0, (2**40, 2**40), (0, 0)))), SIZES),
    "huge": (whole(named(a=tensor(storage("0", 2**62), 0, (2**62,), (1,))), rows=(2**62).to_bytes(8, "little")), "the file is truncated"),
    "larger than a number": (whole(named(a=tensor(storage("0", 2**900), 0, (2**900,), (1,)))), "the storage 0 has 84527"),
    "no values": (whole(named(a=tensor(storage("0", 6), 0, (2**62, 0), (1, 1)))), SIZES),
    "axes": (whole(named(a=tensor(storage("0", 6), 0, (1,) * 9, (1,) * 9))), "9 axes"),
    "strides": (whole(named(a=tensor(storage("0", 6), 0, (6,), (1, 1)))), "1 axes and 2 strides"),
    "two descriptions": (whole(named(a=ONE, b=tensor(storage("0", 5), 0, (5,), (1,)))), "two descriptions"),
    "other keys": (whole(named(a=ONE), ("0", "1")), "other keys"),
    "keys of numbers": (whole(named(a=ONE), (0,)), "other keys"),
    "another count": (whole(named(a=ONE), rows=row(SIX[:5])), "has 5 values, and the pickles say 6"),
    "longer": (GOOD + b"\0", "1 bytes follow"),
    "no magic": (whole(named(a=ONE), head=[pickle.dumps(1, 2), *HEAD[1:]]), "magic number"),
    "another protocol": (whole(named(a=ONE), head=[HEAD[0], pickle.dumps(1002, 2), HEAD[2]]), "its protocol is 1002"),
    "another order": (whole(named(a=ONE), head=[*HEAD[:2], pickle.dumps({"little_endian": False}, 2)]), "other order of bytes"),
    "no machine": (whole(named(a=ONE), head=[*HEAD[:2], pickle.dumps([], 2)]), "its third pickle"),
    "an empty stack": (whole(b"R"), "takes a value that is not there"),
    "no mark": (whole(b"t"), "damaged"),
    "an unknown memo": (whole(b"h\x07"), "damaged"),
    "a long text": (b"".join(HEAD) + b"\x80\x02X\xff\xff\xff\x7fabc", "damaged"),
    "noise": (b"\x80\x02" + bytes(range(256)) * 9, "cannot be read"),
    "a zip archive": (b"PK\x03\x04" + bytes(60), "is a zip archive, PyTorch's format since version 1.6"),
    "an ONNX or text file": (b"ir_version", "magic number"),
    "HDF5": (b"\x89HDF\r\n\x1a\n" + bytes(50), "is an HDF5 file"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refused(name: str, tmp_path: pathlib.Path) -> None:
    content, said = REFUSED[name]
    (tmp_path / "a.pth").write_bytes(content)
    tracemalloc.start()
    with pytest.raises(Error) as caught:
        read_torch_stream(tmp_path / "a.pth")
    most = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert most < 32 << 20
    assert said in caught.value.fact and caught.value.place == str(tmp_path / "a.pth") and "torch.save(" in str(caught.value.fix)
    assert len(caught.value.fact) < 400


@pytest.mark.parametrize("size", range(0, len(GOOD), 7))
def test_truncated(size: int, tmp_path: pathlib.Path) -> None:
    (tmp_path / "a").write_bytes(GOOD[:size])
    with pytest.raises(Error):
        read_torch_stream(tmp_path / "a")


def test_changed_bytes_give_tensors_or_an_error(tmp_path: pathlib.Path) -> None:
    rng = np.random.default_rng(1)
    for _ in range(500):
        content = bytearray(GOOD)
        for at in rng.integers(0, len(GOOD), rng.integers(1, 4)):
            content[at] = rng.integers(256)
        (tmp_path / "a").write_bytes(content)
        try:
            found = read_torch_stream(tmp_path / "a")
        except Error:
            continue
        assert all(array.size <= 6 for array in found.values())


def test_long_pickles_are_not_read(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch_stream, "LARGEST", 1000)
    (tmp_path / "a").write_bytes(whole(named(**{f"name{number}": ONE for number in range(20)}), rows=row(SIX)))
    with pytest.raises(Error, match="damaged"):
        read_torch_stream(tmp_path / "a")


def test_no_module_is_imported(tmp_path: pathlib.Path) -> None:
    (tmp_path / "a").write_bytes(whole(b"cthis\nd\n"))
    before = set(sys.modules)  # another test may have imported PyTorch
    with pytest.raises(Error, match=r"it names this\.d"):
        read_torch_stream(tmp_path / "a")
    assert not {"this", "torch"} & (set(sys.modules) - before) and "this" not in sys.modules
