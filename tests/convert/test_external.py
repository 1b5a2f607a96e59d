"""Data of tensors in files beside an ONNX model: only plain files below its folder are read, whatever the tensor is."""
from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import ModelProto, TensorProto, helper, numpy_helper

from ocaffe.convert.import_model import load
from ocaffe.convert.importer import external
from ocaffe.errors import Error

SECRET = np.arange(12, dtype=np.float32) + 5


def info(name: str, *shape: int) -> Any:
    return helper.make_tensor_value_info(name, TensorProto.FLOAT, shape)


def model_of(nodes: list[Any], arrays: dict[str, Any] | None = None, *, opset: int = 21, **parts: Any) -> Any:
    """Return a model from x to y, both 1 x 3 x 2 x 2."""
    made = [numpy_helper.from_array(np.asarray(array), name) for name, array in (arrays or {}).items()]
    graph = helper.make_graph(nodes, "g", [info("x", 1, 3, 2, 2)], [info("y", 1, 3, 2, 2)], made, sparse_initializer=parts.pop("sparse", []))
    opsets = [helper.make_opsetid("", opset), helper.make_opsetid("own", 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=10, **parts)


def written(tmp_path: Path, model: Any) -> Path:
    (tmp_path / "model").mkdir(exist_ok=True)
    file = tmp_path / "model" / "m.onnx"
    file.write_bytes(model.SerializeToString())
    return file


ADD = helper.make_node("Add", ["x", "w"], ["y"])
PLACES = ("initializer", "sparse values", "sparse indices", "attribute", "sparse attribute", "subgraph", "subgraph attribute", "function")


def model_with_data(place: str, change: Callable[[Any, bytes], None]) -> Any:
    """Return a model with the constant w, SECRET, at a place. `change` gets its tensor and the bytes of its values."""
    dense = numpy_helper.from_array(SECRET.reshape(1, 3, 2, 2), "w")
    sparse = helper.make_sparse_tensor(numpy_helper.from_array(SECRET, "w"), numpy_helper.from_array(np.arange(12), "i"), [1, 3, 2, 2])
    tensor = sparse.indices if place == "sparse indices" else sparse.values if "sparse" in place else dense
    change(tensor, tensor.raw_data)
    held = helper.make_node("Constant", [], ["w"], **({"sparse_value": sparse} if place == "sparse attribute" else {"value": dense}))
    if place in ("sparse values", "sparse indices"):
        return model_of([ADD], sparse=[sparse])
    if place == "function":
        function = helper.make_function("own", "held", [], ["w"], [held], [helper.make_opsetid("", 21)])
        return model_of([helper.make_node("held", [], ["w"], domain="own"), ADD], functions=[function])
    if place.startswith("subgraph"):
        nodes, initializers = ([], [dense]) if place == "subgraph" else ([held], [])
        branches = [helper.make_graph([*nodes, helper.make_node("Add", ["x", "w"], ["z"])], name, [], [info("z", 1, 3, 2, 2)], initializers) for name in "ab"]
        return model_of([helper.make_node("If", ["c"], ["y"], then_branch=branches[0], else_branch=branches[1])], {"c": True})
    model = model_of([held, ADD] if "attribute" in place else [ADD])
    model.graph.initializer.extend([dense] if place == "initializer" else [])
    return model


def moved(location: str, **entries: str) -> Callable[[Any, bytes], None]:
    def change(tensor: Any, data: bytes) -> None:
        tensor.ClearField("raw_data")
        tensor.data_location = TensorProto.EXTERNAL
        for key, value in {"location": location, "length": str(len(data)), **entries}.items():
            tensor.external_data.add(key=key, value=value)

    return change


def values_of(file: Path) -> list[np.ndarray]:
    return [blob for blobs in load(file)[1].values() for blob in blobs]


@pytest.mark.parametrize("place", PLACES)
def test_data_beside_the_model(tmp_path: Path, place: str) -> None:
    file = written(tmp_path, model_with_data(place, moved("w.bin")))
    (file.parent / "w.bin").write_bytes(np.arange(12).tobytes() if place == "sparse indices" else SECRET.tobytes())
    (blob,) = values_of(file)
    np.testing.assert_array_equal(blob.reshape(-1), SECRET)


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("location", ["../home/secret.bin", "secret.bin", "ABSOLUTE", "sub/../../home/secret.bin"])
def test_data_outside_the_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str, location: str) -> None:
    home = tmp_path / "home"
    home.mkdir()
    (home / "secret.bin").write_bytes(SECRET.tobytes() * 2)
    file = written(tmp_path, model_with_data(place, moved(location.replace("ABSOLUTE", str(home / "secret.bin")))))
    (file.parent / "sub").mkdir()
    monkeypatch.chdir(home)
    with pytest.raises(Error, match=r"the data of tensor '[wi]' is in .*(not below the folder of the model|which is missing)") as caught:
        load(file)
    assert caught.value.place == str(file) and caught.value.fix


LINKS: dict[str, tuple[Callable[[Path, Path], Any], str]] = {  # what lies in the model's folder, for another file of the user
    "link": (lambda other, here: here.symlink_to(other), "which is a link"),
    "hard link": (lambda other, here: os.link(other, here), r"which has 2 names \(hard links\)"),
    "pipe": (lambda other, here: os.mkfifo(here), "which is not a plain file"),
    "folder": (lambda other, here: here.mkdir(), "which is not a plain file"),
    "dangling link": (lambda other, here: here.symlink_to("nowhere"), "which is a link"),
}


@pytest.mark.skipif(sys.platform == "win32", reason="no pipes")
@pytest.mark.parametrize("kind", LINKS)
def test_data_that_is_no_plain_file(tmp_path: Path, kind: str) -> None:
    make, fact = LINKS[kind]
    (tmp_path / "secret.bin").write_bytes(SECRET.tobytes())
    file = written(tmp_path, model_with_data("sparse values", moved("w.bin")))
    make(tmp_path / "secret.bin", file.parent / "w.bin")
    with pytest.raises(Error, match=fact):
        load(file)


def test_data_in_a_linked_folder(tmp_path: Path) -> None:
    file = written(tmp_path, model_with_data("initializer", moved("sub/w.bin")))
    (tmp_path / "w.bin").write_bytes(SECRET.tobytes())
    (file.parent / "sub").symlink_to(tmp_path)
    with pytest.raises(Error, match=r"is in 'sub/w\.bin', which is a link"):
        load(file)
    linked = tmp_path / "linked"  # the model's own folder may be a link
    linked.symlink_to(file.parent)
    (file.parent / "sub").unlink()
    (file.parent / "sub").mkdir()
    (file.parent / "sub" / "w.bin").write_bytes(SECRET.tobytes())
    assert len(values_of(linked / "m.onnx")) == 1


def test_many_tensors_of_the_same_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(external, "SPARE", 0)
    model = model_of([helper.make_node("Sum", ["x", *(f"w{i}" for i in range(5))], ["y"])])
    for number in range(5):
        tensor = numpy_helper.from_array(SECRET.reshape(1, 3, 2, 2), f"w{number}")
        moved("w.bin")(tensor, SECRET.tobytes())
        model.graph.initializer.append(tensor)
    file = written(tmp_path, model)
    (file.parent / "w.bin").write_bytes(SECRET.tobytes())
    with pytest.raises(Error, match=r"the data of tensor 'w4' brings the tensors to 240 bytes, and their files have 48"):
        load(file)


@pytest.mark.parametrize("entries", [{"offset": "40"}, {"length": str(1 << 62)}, {"offset": str(1 << 62), "length": "0"}])
def test_data_behind_the_end(tmp_path: Path, entries: dict[str, str]) -> None:
    file = written(tmp_path, model_with_data("sparse attribute", moved("w.bin", **entries)))
    (file.parent / "w.bin").write_bytes(SECRET.tobytes())
    with pytest.raises(Error, match="which has 48: it is truncated"):
        load(file)


def test_all_tensors_of_a_model_are_found() -> None:
    """Wherever ONNX's messages can hold a tensor: the places are those of its descriptors."""
    places = set()

    def fill(message: Any, path: tuple[str, ...]) -> None:
        for field in message.DESCRIPTOR.fields:
            name = field.message_type.full_name if field.message_type else ""
            if not name or path.count(field.name) or len(path) > 8:
                continue
            part = getattr(message, field.name).add() if field.is_repeated else getattr(message, field.name)
            part.SetInParent()
            if name == TensorProto.DESCRIPTOR.full_name:
                part.name = "/".join((*path, field.name))
                places.add(part.name)
            else:
                fill(part, (*path, field.name))

    model = ModelProto()
    fill(model, ())
    assert {tensor.name for tensor in external.tensors(model)} == places and len(places) > 20
    assert {"graph/node/attribute/t", "graph/node/attribute/sparse_tensors/values", "functions/node/attribute/g/initializer"} <= places
