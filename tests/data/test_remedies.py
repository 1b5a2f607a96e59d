"""Data that is not found or not understood: the remedy of the error, typed as it stands, makes the net right."""
from __future__ import annotations

import os
import re
from pathlib import Path

import h5py
import numpy as np
import pytest
from PIL import Image

from ocaffe import proto
from ocaffe.compiler.network import phase_net
from ocaffe.data.databases.writer import LmdbWriter
from ocaffe.errors import Error
from ocaffe.formats.blob import write_blobproto
from ocaffe.formats.text import read_net, read_solver
from ocaffe.graph.build import build
from ocaffe.solver.nets import net_messages

pytestmark = pytest.mark.quick

IMAGES = 'layer {{ name: "d" type: "ImageData" top: "data" top: "label" image_data_param {{ source: "{}" batch_size: 1 {} }} transform_param {{ {} }} }}\n'
HDF5 = 'layer { name: "d" type: "HDF5Data" top: "data" hdf5_data_param { source: "%s" batch_size: 1 } }\n'
DATABASE = 'layer { name: "d" type: "Data" top: "data" data_param { source: "%s" backend: LMDB batch_size: 1 } }\n'
WINDOWS = 'layer { name: "d" type: "WindowData" top: "data" top: "label" window_data_param { source: "%s" batch_size: 1 } transform_param { crop_size: 4 } }\n'
DENSE = 'layer { name: "d" type: "DenseImageData" top: "data" top: "label" dense_image_data_param { source: "%s" batch_size: 1 %s } }\n'
WINDOW = "# 0\nimages/a.png\n3\n8\n8\n2\n1 0.9 0 0 3 3\n0 0.1 0 0 3 3\n"


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A project whose paths are relative to its own folder, and a working folder beside it. In `net` lies the prototxt."""
    root = tmp_path / "project"
    for folder in ("net", "data/images", "work/deep"):
        (root / folder).mkdir(parents=True)
    Image.fromarray(np.zeros((8, 8, 3), np.uint8)).save(root / "data" / "images" / "a.png")
    Image.fromarray(np.zeros((8, 8), np.uint8)).save(root / "data" / "images" / "m.png")
    for folder in ("net", "data"):
        (root / folder / "list.txt").write_text("images/a.png 0\n")
    (root / "data" / "pairs.txt").write_text("images/a.png images/m.png\n")
    with h5py.File(root / "data" / "a.h5", "w") as out:
        out["data"] = np.zeros((2, 3), np.float32)
    (root / "data" / "h5.txt").write_text("a.h5\n")
    write_blobproto(str(root / "data" / "mean.binaryproto"), np.zeros((1, 3, 8, 8), np.float32))
    with LmdbWriter(str(root / "data" / "lmdb")) as database:
        database.put(b"0", proto.Datum(channels=1, height=2, width=2, data=b"1234").SerializeToString())
    (root / "data" / "windows.txt").write_text(WINDOW)
    monkeypatch.chdir(root / "work" / "deep")
    return root


def made(path: Path) -> list[str]:
    return [node.name for node in build(phase_net(read_net(path), proto.TRAIN), proto.TRAIN).nodes]


def refusal(path: Path) -> Error:
    with pytest.raises(Error) as caught:
        made(path)
    return caught.value


def typed(text: str, problem: Error) -> str:
    """The text of a net with the fields that the remedy names in the place of those that it has, or added to the data layer's settings."""
    found = re.findall(r'^(\w+): ("[^"]*"|\d+)', problem.fix or "")
    assert found, problem.fix
    for name, value in found:
        changed = re.sub(rf'\b{name}: ("[^"]*"|\d+)', f"{name}: {value}", text)
        text = changed if changed != text else text.replace("batch_size: 1", f"batch_size: 1 {name}: {value}")
    return text


PLACES = [  # the net, the folders in which to run
    (DATABASE % "lmdb", ["data"]),
    (DATABASE % "data/lmdb", ["."]),
    (DATABASE % "./data/lmdb", ["."]),
    (DATABASE % "data\\\\lmdb", ["."]),
    (DATABASE % "/elsewhere/caffe/data/lmdb", []),
    (HDF5 % "data/h5.txt", []),
    (WINDOWS % "data/windows.txt", []),
    (DENSE % ("data/pairs.txt", 'root_folder: "data/"'), []),
    (IMAGES.format("list.txt", "", ""), []),
    (IMAGES.format("data/list.txt", "", ""), []),
]


@pytest.mark.parametrize("folder", ["net", "data"])
@pytest.mark.parametrize(("net", "runs"), PLACES, ids=[re.findall(r'source: "(.*?)"', case[0])[0] for case in PLACES])
def test_paths_that_are_relative_to_another_folder(net: str, runs: list[str], folder: str, project: Path) -> None:
    """`source` is named as it is seen from the working folder. The folder in which the net is right as it stands is named too."""
    path = project / folder / "net.prototxt"
    path.write_text(net)
    if "elsewhere" in net or (net == DATABASE % "lmdb" and folder == "net"):
        os.chdir(project if "elsewhere" in net else project / "data" / "images")
    problem = refusal(path)
    assert problem.place is not None and str(problem.place).startswith(str(path)) and (problem.fix or "").startswith('source: "'), str(problem)
    changed = typed(net, problem)
    path.write_text(changed)
    if "lmdb" in net or "windows" in net:
        assert made(path) == ["d"]
    else:  # the list is found now, and the files that it names are the next mistake, if the list is not in the folder of the files
        second = refusal(path)
        assert "does not exist" in second.fact or "No such file" in second.fact
    where = re.search(r"run in (\S+), to which", problem.fix or "")
    for run in runs:
        if where:
            os.chdir(where[1])
            path.write_text(net)
            assert os.path.samefile(where[1], project / run) and made(path) == ["d"]


ROOTS = [  # the net, the source in it
    (IMAGES.format("{}", "", ""), "data/list.txt"),
    (DENSE % ("{}", ""), "data/pairs.txt"),
    (WINDOWS % "{}", "data/windows.txt"),
    (IMAGES.format("{}", 'root_folder: "{root}/data"', ""), "data/list.txt"),
    (IMAGES.format("{}", 'root_folder: "nowhere/"', ""), "data/list.txt"),
]


@pytest.mark.parametrize(("net", "source"), ROOTS, ids=["images", "pairs", "windows", "without a slash", "wrong"])
def test_names_that_are_relative_to_the_list(net: str, source: str, project: Path) -> None:
    """The remedy is the root_folder with which the names of the list exist."""
    path = project / "net" / "net.prototxt"
    text = net.replace("{root}", str(project)).replace("{}", str(project / source))
    path.write_text(text)
    if "Window" in net:  # images of windows are read with the first batch
        layer = build(phase_net(read_net(path), proto.TRAIN), proto.TRAIN).nodes[0].layer
        with pytest.raises(Error) as caught:
            layer.source.fill(0, np.zeros(layer.source.nbytes, np.uint8))
        problem = caught.value
    else:
        problem = refusal(path)
    assert (problem.fix or "").startswith('root_folder: "'), str(problem)
    path.write_text(typed(text, problem))
    assert made(path) == ["d"]


def test_a_root_folder_too_much(project: Path) -> None:
    (project / "data" / "list.txt").write_text(f"{project}/data/images/a.png 0\n")
    path = project / "net" / "net.prototxt"
    path.write_text(IMAGES.format(project / "data" / "list.txt", 'root_folder: "data/"', ""))
    assert refusal(path).fix == "remove root_folder"
    path.write_text(IMAGES.format(project / "data" / "list.txt", "", ""))
    assert made(path) == ["d"]


def test_the_mean_file_of_another_folder(project: Path) -> None:
    path, mean = project / "net" / "net.prototxt", 'mean_file: "data/mean.binaryproto"'
    text = IMAGES.format(project / "data" / "list.txt", f'root_folder: "{project}/data/"', mean)
    path.write_text(text)
    problem = refusal(path)
    assert problem.fact == "mean_file data/mean.binaryproto does not exist" and str(problem.place) == f"{path}:1"
    path.write_text(typed(text, problem))
    assert made(path) == ["d"]


def test_hdf5_files_of_another_folder(project: Path) -> None:
    path = project / "net" / "net.prototxt"
    path.write_text(HDF5 % (project / "data" / "h5.txt"))
    problem = refusal(path)
    found = re.match(r"write (\S+) into the list, or run in (\S+), to which 'a.h5' is relative", problem.fix or "")
    assert found is not None and os.path.samefile(found[2], project / "data"), str(problem)
    (project / "data" / "h5.txt").write_text(found[1])
    assert made(path) == ["d"]


def test_the_net_of_a_solver_in_another_folder(project: Path) -> None:
    """A solver that names its net from the folder of the project, and that is run elsewhere."""
    (project / "net" / "net.prototxt").write_text(DATABASE % str(project / "data" / "lmdb"))
    solver = project / "net" / "solver.prototxt"
    for field, phase in (("net", 0), ("train_net", 0), ("test_net", 1)):
        others = f'train_net: "{project}/net/net.prototxt" test_iter: 1 test_interval: 1 ' if phase else ""
        solver.write_text(others + f'{field}: "net/net.prototxt"')

        def messages() -> object:
            train, tests = net_messages(read_solver(solver), read_net, str(solver))
            return tests[0]() if phase else train()  # noqa: B023

        with pytest.raises(Error, match=f"of the field {field} does not exist") as caught:
            messages()
        assert caught.value.place == str(solver)
        solver.write_text(others + (caught.value.fix or "").partition(", or run")[0])
        assert messages()


LABELS = [  # a line of the list, fields of the layer, the remedy
    ("{} 2.883333", "", "label_count: 1"),
    ("{} 0 1 2", "", "label_count: 3"),
    ("{} 0.5 1.5", "", "label_count: 2"),
    ("{} 0 1 2 3", "label_count: 3", "label_count: 4"),
    ("{} 0 1", "label_count: 3", "label_count: 2"),
    ("{} 1e-3 nan", "", None),
    ("{} cat", "", None),
    ("{},3", "", None),
]


@pytest.mark.parametrize(("line", "fields", "fix"), LABELS, ids=[case[0] for case in LABELS])
def test_labels_that_need_label_count(line: str, fields: str, fix: str | None, project: Path) -> None:
    listed, path = project / "data" / "list.txt", project / "net" / "net.prototxt"
    listed.write_text(line.format(project / "data" / "images" / "a.png") + "\n")
    text = IMAGES.format(listed, fields, "")
    path.write_text(text)
    problem = refusal(path)
    if fix is not None:
        assert (problem.fix or "").startswith(f"{fix} in image_data_param"), str(problem)
        path.write_text(typed(text, problem))
        assert made(path) == ["d"]
    elif "," in line or "cat" in line:
        assert ".csv" in (problem.fix or ""), str(problem)
        (project / "data" / "list.csv").write_text(listed.read_text().replace(" ", ","))
        path.write_text(text.replace("list.txt", "list.csv"))
        assert made(path) == ["d"]


MARKED = ["\ufeff{0}{0}", "\ufeff{0}\ufeff{0}"]


@pytest.mark.parametrize("text", MARKED, ids=["first", "joined"])
@pytest.mark.parametrize("kind", ["images", "table", "pairs", "hdf5", "windows", "net"])
def test_byte_order_marks(kind: str, text: str, project: Path) -> None:
    """Editors begin a file with the mark. Files that were joined have it within too."""
    os.chdir(project / "data")
    path = project / "net" / "net.prototxt"
    nets = {
        "images": IMAGES.format("x.txt", "", ""), "table": IMAGES.format("x.csv", "", ""), "pairs": DENSE % ("x.txt", ""), "hdf5": HDF5 % "x.txt",
        "windows": WINDOWS % "x.txt", "net": DATABASE % "lmdb",
    }  # fmt: skip
    lines = {"images": "images/a.png 0\n", "table": "images/a.png,0\n", "pairs": "images/a.png images/m.png\n", "hdf5": "a.h5\n", "windows": WINDOW, "net": ""}
    Path("x.csv" if kind == "table" else "x.txt").write_text(text.format(lines[kind]), encoding="utf-8")
    path.write_text("\ufeff" + nets[kind], encoding="utf-8")
    assert made(path) == ["d"]


@pytest.mark.parametrize("kind", ["images", "pairs", "hdf5", "windows"])
def test_utf_16_is_named(kind: str, project: Path) -> None:
    os.chdir(project / "data")
    Path("x.txt").write_text("images/a.png 0\n", encoding="utf-16")
    path = project / "net" / "net.prototxt"
    path.write_text({"images": IMAGES.format("x.txt", "", ""), "pairs": DENSE % ("x.txt", ""), "hdf5": HDF5 % "x.txt", "windows": WINDOWS % "x.txt"}[kind])
    assert "it is UTF-16 text; save it as UTF-8" in refusal(path).fact
