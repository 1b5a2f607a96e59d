"""Exceptions that scripts catch: each Error is also of the type that pycaffe, or Python in its place, raises."""
from __future__ import annotations

import errno
import pathlib
import pickle
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyopencl as cl
import pytest

import ocaffe as caffe
from ocaffe import coord_map, errors, io
from ocaffe.cl.failure import DeviceFailure
from ocaffe.errors import Error
from ocaffe.formats.hdf5 import write_state_hdf5
from ocaffe.formats.state import SolverState
from tests.api.nets import LEARNING, message, net, numbers

L, P = caffe.layers, caffe.params
TEXT = """
layer { name: "data" type: "Input" top: "data" input_param { shape { dim: 2 dim: 3 dim: 4 dim: 4 } } }
layer { name: "ip" type: "InnerProduct" bottom: "data" top: "ip" inner_product_param { num_output: 2 } }
"""


@pytest.fixture(scope="module")
def have(device: Any, tmp_path_factory: pytest.TempPathFactory) -> Any:
    folder = tmp_path_factory.mktemp("errors")
    path = folder / "net.prototxt"
    path.write_text(TEXT)
    (folder / "broken.prototxt").write_text("layer { nam: 3 }")
    (folder / "broken.png").write_bytes(b"\x89PNG\r\n\x1a\nand no more")
    transformer = io.Transformer({"data": (1, 3, 4, 4)})
    transformer.set_transpose("data", (2, 0, 1))
    transformer.set_channel_swap("data", (2, 1, 0))
    datum, blob = io.array_to_datum(np.zeros((1, 2, 3), np.uint8)), io.array_to_blobproto(np.zeros((1, 2, 3, 4), np.float32))
    datum.height, blob.data[:] = 7, [1, 2]
    with net(device, TEXT) as made:
        yield SimpleNamespace(net=made, path=str(path), folder=folder, transformer=transformer, datum=datum, blob=blob, spec=caffe.NetSpec())


CASES: list[tuple[str, type[Exception], Callable[[Any], Any]]] = [
    # files, and what Caffe aborts for
    ("no net", RuntimeError, lambda have: caffe.Net("none.prototxt", caffe.TEST)),
    ("a broken net", RuntimeError, lambda have: caffe.Net(str(have.folder / "broken.prototxt"), caffe.TEST)),
    ("no weights", RuntimeError, lambda have: caffe.Net(have.path, "none.caffemodel", caffe.TEST)),
    ("copy_from", RuntimeError, lambda have: have.net.copy_from("none.caffemodel")),
    ("load_hdf5", RuntimeError, lambda have: have.net.load_hdf5("none.h5")),
    ("save", RuntimeError, lambda have: have.net.save(str(have.folder / "no" / "folder"))),
    ("save_hdf5", RuntimeError, lambda have: have.net.save_hdf5(str(have.folder / "no" / "folder"))),
    ("get_solver", RuntimeError, lambda have: caffe.get_solver("none.prototxt")),
    ("SGDSolver", RuntimeError, lambda have: caffe.SGDSolver("none.prototxt")),
    ("Classifier", RuntimeError, lambda have: caffe.Classifier("none.prototxt", "none.caffemodel")),
    ("a negative size", RuntimeError, lambda have: have.net.blobs["data"].reshape(-1, 3)),
    ("set_input_arrays", RuntimeError, lambda have: have.net.set_input_arrays(numbers(2, 3, 4, 4), numbers(2))),
    ("a negative device", RuntimeError, lambda have: caffe.set_device(-1)),
    ("two solvers", RuntimeError, lambda have: caffe.set_solver_count(2)),
    ("no common ancestor", RuntimeError, lambda have: coord_map.coord_map_from_to(L.Input(), L.Input())),
    # types
    ("Net without arguments", TypeError, lambda have: caffe.Net()),  # type: ignore[call-arg]
    ("too many arguments of Net", TypeError, lambda have: caffe.Net(have.path, 0, 1, [], "x", 5)),
    ("a list as phase", TypeError, lambda have: caffe.Net(have.path, [1])),
    ("a text as level", TypeError, lambda have: caffe.Net(have.path, caffe.TEST, level="x")),  # type: ignore[arg-type]
    ("a text as stages", TypeError, lambda have: caffe.Net(have.path, caffe.TEST, stages="x")),
    ("a number as weights", TypeError, lambda have: caffe.Net(have.path, caffe.TEST, weights=3)),  # type: ignore[arg-type]
    ("a number as a net", TypeError, lambda have: caffe.Net(3, caffe.TEST)),
    ("a number as a solver", TypeError, lambda have: caffe.get_solver(3)),
    ("a number as SGDSolver", TypeError, lambda have: caffe.SGDSolver(3)),
    ("a number as the other net", TypeError, lambda have: have.net.share_with(3)),
    ("a text as a size", TypeError, lambda have: have.net.blobs["data"].reshape("a")),
    ("half a size", TypeError, lambda have: have.net.blobs["data"].reshape(2.5, 3, 4, 4)),
    ("a tuple as a size", TypeError, lambda have: have.net.blobs["data"].reshape((2, 3, 4, 4))),
    ("sizes by name", TypeError, lambda have: have.net.blobs["data"].reshape(num=3)),
    ("texts as layers", TypeError, lambda have: have.net._forward("a", "b")),
    ("a text as seed", TypeError, lambda have: caffe.set_random_seed("x")),  # type: ignore[arg-type]
    ("a name as bottom", TypeError, lambda have: L.ReLU("data")),
    ("a pair as bottom", TypeError, lambda have: L.Silence(L.DummyData(ntop=2), ntop=0)),
    ("a text as ntop", TypeError, lambda have: L.Data(ntop="x")),
    ("a pair as top", TypeError, lambda have: setattr(have.spec, "pair", L.Data(ntop=2))),
    ("a text as a number", TypeError, lambda have: L.Convolution(num_output="x").to_proto()),
    ("a text in a dict", TypeError, lambda have: L.Data(transform_param=dict(scale="x")).to_proto()),
    # names
    ("a blob", KeyError, lambda have: have.net.blobs["x"]),
    ("parameters", KeyError, lambda have: have.net.params["x"]),
    ("a layer of layer_dict", KeyError, lambda have: have.net.layer_dict["x"]),
    ("a blob for forward", KeyError, lambda have: have.net.forward(blobs=["x"])),
    ("a diff for backward", KeyError, lambda have: have.net.backward(diffs=["x"])),
    ("a top", KeyError, lambda have: have.spec["x"]),
    ("a top as attribute", KeyError, lambda have: have.spec.x),
    ("a deleted top", KeyError, lambda have: have.spec.__delitem__("x")),
    ("a deleted attribute", KeyError, lambda have: have.spec.__delattr__("x")),
    ("a missing attribute", AttributeError, lambda have: have.spec.x),
    ("a name of caffe", AttributeError, lambda have: caffe.nope),  # type: ignore[attr-defined]
    ("a message of params", AttributeError, lambda have: P.Nope.MAX),
    ("a value of params", AttributeError, lambda have: P.Pooling.NOPE),
    ("a field", AttributeError, lambda have: L.ReLU(nope=3).to_proto()),
    ("a field in a dict", AttributeError, lambda have: L.Convolution(weight_filler=dict(nope=3)).to_proto()),
    ("a blob's shape is no field", AttributeError, lambda have: setattr(have.net.blobs["data"], "shape", (1,))),
    # values
    ("a layer to start at", ValueError, lambda have: have.net.forward(start="x")),
    ("a layer to end at", ValueError, lambda have: have.net.forward(end="x")),
    ("a layer of backward", ValueError, lambda have: have.net.backward(start="x")),
    ("an input's rows", ValueError, lambda have: have.net.forward(data=numbers(5, 3, 4, 4))),
    ("an input's width", ValueError, lambda have: have.net.forward(data=numbers(2, 3, 4, 5))),
    ("an assignment", ValueError, lambda have: have.net.blobs["data"].data.__setitem__(..., numbers(1, 7))),
    ("a value out of range", ValueError, lambda have: L.Convolution(num_output=-1).to_proto()),
    ("a value of an enum", ValueError, lambda have: L.Pooling(pool="NOPE").to_proto()),
    ("a mean's channels", ValueError, lambda have: have.transformer.set_mean("data", numbers(2))),
    ("a mean's axes", ValueError, lambda have: have.transformer.set_mean("data", numbers(1, 2, 3, 4))),
    ("a mean image's channels", ValueError, lambda have: have.transformer.set_mean("data", numbers(5, 4, 4))),
    ("an image without channels", ValueError, lambda have: have.transformer.preprocess("data", numbers(4, 4))),
    ("an array for a Datum", ValueError, lambda have: io.array_to_datum(numbers(3))),
    ("a Datum", ValueError, lambda have: io.datum_to_array(have.datum)),
    ("a BlobProto", ValueError, lambda have: io.blobproto_to_array(have.blob)),
    ("a large crop", ValueError, lambda have: io.oversample([numbers(4, 4, 3)], (9, 9))),
    # numbers
    ("a parameter", IndexError, lambda have: have.net.params["ip"][9]),
    ("a layer", IndexError, lambda have: have.net.layers[9]),
    ("a layer's tops", IndexError, lambda have: have.net._top_ids(9)),
    ("a layer to run", IndexError, lambda have: have.net._forward(0, 9)),
    ("a layer to run backward", IndexError, lambda have: have.net._backward(9, 0)),
    ("an image's channels", IndexError, lambda have: have.transformer.preprocess("data", numbers(4, 4, 1))),
    # files that scripts skip
    ("no image", FileNotFoundError, lambda have: io.load_image("none.jpg")),
    ("a broken image", OSError, lambda have: io.load_image(str(have.folder / "broken.png"))),
]
PYTHON_RAISES = {  # cases in which Python itself raises, or a function with a signature
    "Net without arguments", "sizes by name", "texts as layers", "a text as seed", "a text as ntop", "a blob", "parameters", "a layer of layer_dict",
    "a name of caffe", "a message of params", "a value of params", "a blob's shape is no field", "an assignment", "a parameter", "a layer", "a layer's tops",
}  # fmt: skip


@pytest.mark.parametrize(("name", "kind", "call"), CASES, ids=[name for name, *_ in CASES])
def test_kinds(have: Any, name: str, kind: type[Exception], call: Callable[[Any], Any]) -> None:
    with pytest.raises(kind) as caught:
        call(have)
    assert isinstance(caught.value, Error) != (name in PYTHON_RAISES)
    if isinstance(caught.value, Error):
        assert isinstance(caught.value, RuntimeError) and caught.value.fact in str(caught.value) and not str(caught.value).startswith("'the ")


def test_words_of_pycaffe() -> None:
    """pycaffe's own test compares the whole text."""
    with pytest.raises(TypeError, match=r"^Silence input 0 is not a Top \(type is <class 'tuple'>\)$"):
        L.Silence(L.DummyData(ntop=2), ntop=0)


def test_absent_attributes() -> None:
    spec = caffe.NetSpec()
    assert not hasattr(spec, "x") and getattr(spec, "x", 3) == 3
    with pytest.raises(Error, match="a fact") as caught:
        raise errors.NoSuchFile("a fact")
    assert caught.value.errno == errno.ENOENT


@pytest.mark.parametrize("kind", [Error, errors.WrongType, errors.WrongValue, errors.UnknownName, errors.OutOfRange, errors.NoSuchTop, errors.NoSuchFile])
def test_text(kind: type[Error]) -> None:
    """KeyError and OSError have texts of another form. Processes send errors to each other."""
    problem = kind("a fact", place="net.prototxt:3", fix="a remedy")
    assert str(problem) == str(pickle.loads(pickle.dumps(problem))) == "net.prototxt:3\n  a fact\n  fix: a remedy"


def test_errors_in_a_writer(tmp_path: pathlib.Path) -> None:
    """h5py raises RuntimeError for a failed write. An Error is none of these, although it is a RuntimeError."""

    def history() -> Any:
        yield np.zeros(3, np.float32)
        raise Error("the device has failed", fix="another one")

    with pytest.raises(Error, match="the device has failed"):
        write_state_hdf5(tmp_path / "state.h5", SolverState(iter=1, learned_net="", history=[], current_step=0), history())
    assert not list(tmp_path.iterdir())


def refused(*args: Any, **named: Any) -> Any:
    raise cl.RuntimeError(cl._cl._ErrorRecord("clEnqueueNDRangeKernel", -5, ""))


def test_failures_of_the_device(device: Any, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ocaffe.cl.session.can_share", lambda _: False)  # the host would read outputs without a command
    with net(device) as made:
        made.forward()
        with monkeypatch.context() as patch:
            patch.setattr(cl, "enqueue_nd_range_kernel", refused)
            patch.setattr(cl, "enqueue_copy", refused)
            patch.setattr(cl, "enqueue_map_buffer", refused)
            for call in (made.forward, lambda: made.blobs["prob"].data, lambda: made.save(str(tmp_path / "x.caffemodel"))):
                with pytest.raises(DeviceFailure, match="too few resources") as caught:
                    call()
                assert caught.value.fix and isinstance(caught.value.__cause__, cl.Error)
            with pytest.raises(DeviceFailure):
                net(device)
        assert made.forward()["prob"].shape == (2, 5, 3, 3) and not list(tmp_path.iterdir())


def test_failures_of_the_device_in_a_solver(device: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = caffe.proto.SolverParameter(base_lr=0.1, lr_policy="fixed", max_iter=2, snapshot_after_train=False)
    settings.net_param.CopyFrom(message(LEARNING))
    with caffe.get_solver(settings, device=device) as solver:
        monkeypatch.setattr(cl, "enqueue_nd_range_kernel", refused)
        monkeypatch.setattr(cl, "enqueue_copy", refused)
        monkeypatch.setattr(cl, "enqueue_map_buffer", refused)
        for call in (lambda: solver.step(1), solver.solve, solver.apply_update, lambda: caffe.get_solver(settings, device=device)):
            with pytest.raises(DeviceFailure, match="too few resources"):
                call()
