"""Files that come with weights and models of strangers, as sections of the fuzzer: sidecars, NumPy's files, LevelDB, ONNX with subgraphs and data in files.

Each has an oracle. SECRET is a file of the user that no such file may reach: its values must not be in a result. Arrays must be those that NumPy reads.
"""
from __future__ import annotations

import functools
import importlib.util
import io
import json
import os
import pathlib
import random
import shutil
import tempfile
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ocaffe.data.databases.proposals import read_proposals
from ocaffe.errors import Error
from ocaffe.evaluation.preprocessing import Preprocessing
from ocaffe.evaluation.sidecar import read_sidecar
from ocaffe.formats.numpy_file import read_npy, read_npz
from tests.abuse.harness import Wrong
from tests.abuse.mutate import damage, distort
from tests.abuse.workplace import datums

SECRET = np.full(12, 1234.5, np.float32)
PLACES = ("secret.bin", "../secret.bin", "sub/../../secret.bin", "link.bin", "pipe.bin", "sub", "w.bin", "./w.bin", "sub/w.bin")  # names in a model


def strange_folder(name: str) -> pathlib.Path:
    """A folder with a file of its own, a link to the secret and a pipe. The secret lies beside it, and in the working directory."""
    folder = pathlib.Path(name)
    if not folder.exists():
        (folder / "sub").mkdir(parents=True)
        for kind in ("bin", "npy"):
            for path in (pathlib.Path(f"secret.{kind}"), folder / f"w.{kind}", folder / "sub" / f"w.{kind}"):
                values = SECRET if path.name.startswith("secret") else np.arange(12, dtype=np.float32)
                path.write_bytes(values.tobytes())
                if kind == "npy":
                    np.save(path, values.reshape(3, 2, 2))
            (folder / f"link.{kind}").symlink_to(f"../secret.{kind}")
            os.mkfifo(folder / f"pipe.{kind}")
    return folder


# sidecars


def sidecars() -> list[bytes]:
    settings = {"size": [3, 2, 2], "resize": [2, 2], "mean": [1, 2, 3.5], "scale": 0.5, "channel_order": "BGR", "labels": ["cat", "dog"]}
    regions = {"shorter_side": 600, "longest": 1000, "mean": [102.9, 115.9, 122.7], "channel_order": "BGR", "labels": ["background", "cat"]}
    changes: tuple[dict[str, Any], ...] = (
        {}, {"mean": "w.npy"}, {"mean": "../secret.npy"}, {"padding": {"mode": "CONSTANT", "values": [7.0]}},
        {"size": [1, 2, 2], "mean": [5.0], "channel_order": "gray"},
    )  # fmt: skip
    return [json.dumps(each).encode() for each in (regions, *({**settings, **change} for change in changes))]


def sidecar(path: str) -> None:
    folder = strange_folder("weights")
    shutil.copyfile(path, folder / "a.json")
    found = read_sidecar(str(folder / "a_iter_10.caffemodel"))
    assert found is not None
    settings, labels = found
    if (settings.mean == SECRET[0]).any():
        raise Wrong("the mean is that of a file outside of the folder")
    sound = all(type(name) is str for name in labels) and settings.mean.dtype == np.float32 and np.isfinite(settings.scale)
    if isinstance(settings, Preprocessing):
        settings.check(path)
        sound = sound and all(type(side) is int and side > 0 for side in (*settings.shape, *settings.resized))
    if not sound:
        raise Wrong("the settings are of other types than the code behind expects")


# NumPy's files


def arrays() -> list[bytes]:
    made: list[Any] = [
        np.arange(24, dtype=np.float32).reshape(1, 2, 3, 4), np.asfortranarray(np.arange(6, dtype=np.float64).reshape(2, 3)), np.int64(7),
        np.zeros((0, 3), bool), np.arange(5, dtype=">i2"), np.array(["a", "bc"]), np.arange(3, dtype=complex), np.zeros(2, [("a", "f4"), ("b", "i4")]),
    ]  # fmt: skip
    files = []
    for array in made:
        buffer = io.BytesIO()
        np.save(buffer, array, allow_pickle=False)
        files.append(buffer.getvalue())
    pickled = io.BytesIO()
    np.save(pickled, np.array([{"a": 1}], object), allow_pickle=True)
    named = {"counts": np.array([1, 2]), "boxes": np.float32([[0, 0, 1, 1], [1, 2, 3, 4], [0, 0, 5, 5]]), "scores": np.ones(3, np.float32)}
    for save in (np.savez, np.savez_compressed):
        buffer = io.BytesIO()
        save(buffer, **named)  # type: ignore[arg-type]
        files.append(buffer.getvalue())
    bomb = io.BytesIO()
    np.savez_compressed(bomb, counts=np.zeros(1 << 20, np.int64))
    return [*files, pickled.getvalue(), bomb.getvalue()]


def of_arrays(rng: random.Random, seeds: Sequence[bytes]) -> bytes:
    """Files of NumPy: half of them have another header, which is a text."""
    data = rng.choice(seeds)
    if rng.random() < 0.5 or not data.startswith(b"\x93NUMPY"):
        return damage(rng, data, rng.choice(seeds))
    size = int.from_bytes(data[8:10], "little")
    header, values = data[10 : 10 + size].decode("latin-1"), data[10 + size :]
    words = (
        "-1", "99999999999", "9" * 30, "1 << 40", "None", "True", "'|O'", "'<f8'", "'<f4'", "'>f2'", "'<i2'", "'|S5'", "'V9999999999'", "[('a','<f4')]", "()",
        "(3,)", "(2, 3)", "(" * 200,
    )  # fmt: skip
    parts = header.split(" ")
    parts[rng.randrange(len(parts))] = rng.choice(words) + rng.choice(("", ",", "),", "}"))
    changed = " ".join(parts).encode("latin-1")
    return data[:6] + rng.choice((b"\1\0", b"\1\0", b"\2\0", b"\3\0", b"\4\0")) + len(changed).to_bytes(2, "little") + changed + values


def numpy_file(path: str) -> None:
    if not pathlib.Path(path).read_bytes().startswith(b"PK"):
        ours = {"": read_npy(path, "give another file")}
    else:
        try:
            for boxes in read_proposals(path):
                assert boxes.dtype == np.float32 and boxes.ndim == 2 and np.isfinite(boxes).all()
        except Error:
            pass
        ours = read_npz(path, "give another file")
    loaded: Any = np.load(path, allow_pickle=False)
    theirs = {"": loaded} if isinstance(loaded, np.ndarray) else dict(loaded)
    for name, array in ours.items():
        other = theirs[name]
        if (array.shape, array.dtype, array.tobytes()) != (other.shape, other.dtype, other.tobytes()):
            raise Wrong("an array is another one than NumPy reads")


# LevelDB

HAS_LEVELDB = importlib.util.find_spec("plyvel") is not None


@functools.cache
def leveldbs() -> tuple[dict[str, bytes], ...]:
    """The files of databases with tables, with a log, and with both."""
    import plyvel

    made = []
    for stored, logged in ((200, 0), (0, 20), (400, 30)):
        with tempfile.TemporaryDirectory() as folder:
            database = plyvel.DB(folder, create_if_missing=True)
            for number in range(stored + logged):
                if number == stored:
                    database.compact_range()
                database.put(b"%08d" % number, datums()[0].SerializeToString())
            if not logged:
                database.compact_range()
            database.close()
            files = (path for path in pathlib.Path(folder).iterdir() if path.name not in ("LOCK", "LOG", "LOG.old"))
            made.append({path.name: path.read_bytes() for path in files})
    return tuple(made)


def of_leveldbs(rng: random.Random, seeds: Sequence[dict[str, bytes]]) -> bytes:
    """The number of a database, the name of a file in it, and its damaged content."""
    number = rng.randrange(len(seeds))
    name = rng.choice(sorted(seeds[number]))
    other = rng.choice(sorted(seeds[number].values()))
    return b"%d %s\n" % (number, name.encode()) + damage(rng, seeds[number][name], other)


def leveldb(read: Callable[[str], object]) -> Callable[[str], None]:
    """Return a reader. `read` gets the folder of a database."""

    def run(path: str) -> None:
        head, _, content = pathlib.Path(path).read_bytes().partition(b"\n")
        number, name = head.decode().split(" ", 1)
        folder = pathlib.Path(f"{path}-leveldb")
        folder.mkdir()
        try:
            for file, data in leveldbs()[int(number)].items():
                (folder / file).write_bytes(content if file == name else data)
            read(str(folder))
        finally:
            shutil.rmtree(folder)

    return run


# ONNX


@functools.cache
def onnx_strangers() -> tuple[Any, ...]:
    """Models with bodies of If, Loop and Scan, with functions, with sparse tensors, and with data in files, in all combinations of place and kind."""
    from tests.convert.test_external import PLACES as AT
    from tests.convert.test_external import model_with_data, moved

    made = [model_with_data(place, change) for place in AT for change in (moved("w.bin"), moved("../secret.bin"), lambda tensor, data: None)]
    return (*made, *_bodies())


def _bodies() -> list[Any]:
    """Models whose constant k comes from a Loop, a Scan, or Ifs in each other."""
    from onnx import helper

    from tests.convert.test_external import info, model_of
    from tests.convert.test_foreign import BRANCHES, USE, endless

    steps = [helper.make_node("Add", ["s", "e"], ["t"]), helper.make_node("Identity", ["t"], ["u"])]
    scan = helper.make_graph(steps, "scan", [info("s"), info("e")], [info("t"), info("u")])
    inner = helper.make_graph([helper.make_node("Identity", ["one"], ["k"])], "inner", [], [info("k")])
    nested = helper.make_graph([helper.make_node("If", ["true"], ["k"], then_branch=inner, else_branch=inner)], "outer", [], [info("k")])
    nodes = (
        [endless("many")],
        [helper.make_node("If", ["true"], ["k"], **BRANCHES)],
        [helper.make_node("If", ["true"], ["k"], then_branch=nested, else_branch=inner)],
        [helper.make_node("Scan", ["one", "row"], ["k", "all"], body=scan, num_scan_inputs=1)],
    )
    constants = {"true": True, "one": np.float32(1), "many": np.int64(3), "row": np.float32([1, 2])}
    return [model_of([*each, USE], constants) for each in nodes]


def of_strangers(rng: random.Random, seeds: Sequence[Any]) -> bytes:
    one, two = rng.choice(seeds), rng.choice(seeds)
    if rng.random() < 0.2:
        return damage(rng, one.SerializeToString(), two.SerializeToString())
    return bytes(distort(rng, one, two, (*PLACES, "If", "Loop", "Scan", "Constant", "location", "offset", "length", "x", "w", "k")).SerializePartialToString())


def onnx_stranger(path: str) -> None:
    from ocaffe.convert.import_model import load

    folder = strange_folder("model")
    shutil.copyfile(path, folder / "m.onnx")
    _, blobs = load(folder / "m.onnx")
    if any(SECRET.tobytes()[:8] in blob.tobytes() for each in blobs.values() for blob in each):
        raise Wrong("the weights have values of a file outside of the model's folder")
