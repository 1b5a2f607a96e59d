"""Lists of image files: names with spaces, several labels, mistakes."""
from __future__ import annotations

import pathlib
import pickle

import numpy as np
import pytest

from ocaffe import proto
from ocaffe.data.stores.image_list import ListFiles
from ocaffe.data.stores.opening import open_files
from ocaffe.errors import Error
from tests.data.pictures import content, failure, fault, listing, name

pytestmark = pytest.mark.quick


def files(folder: pathlib.Path, lines: list[str], label_count: int = 1, floats: bool = False, root: str = "") -> ListFiles:
    return ListFiles(listing(folder, lines), root, label_count, floats)


def test_one_label_is_after_the_last_space(tmp_path: pathlib.Path) -> None:
    made = files(tmp_path, ["a b.png 4", "", "  c  d.png\t-5 ", "1 2 3", "e\u00e9.png  2147483647"], root="root/")
    assert [name(made, n) for n in range(4)] == ["root/a b.png", "root/c  d.png", "root/1 2", "root/e\u00e9.png"]
    assert made.labels.dtype == np.float32 and made.labels.tolist() == [[4], [-5], [3], [np.float32(2147483647)]]
    assert made.notes == (("image_data_layer.cpp:38", f"Opening file {tmp_path}/list.txt"),) and made.entries == 4


def test_spaces_before_a_name(tmp_path: pathlib.Path) -> None:
    """Caffe reads them as part of the name. They are, if the file is there."""
    for path in (" a.png", "a.png", "  d/b.png", "c.png"):
        (tmp_path / path).parent.mkdir(exist_ok=True)
        (tmp_path / path).write_bytes(path.encode())
    made = files(tmp_path, [" a.png 0", "a.png 1", "  d/b.png 2", "\tc.png 3"], root=f"{tmp_path}/")
    assert [content(made, record) for record in range(4)] == [b" a.png", b"a.png", b"  d/b.png", b"c.png"]
    assert name(files(tmp_path, [" a.png 0"]), 0) == " a.png"  # beside the list


def test_several_labels(tmp_path: pathlib.Path) -> None:
    made = files(tmp_path, ["a b 7 8.png 1 0.5 -2e3", "x.png 0 0\t1"], 3, True)
    assert [name(made, n) for n in range(2)] == ["a b 7 8.png", "x.png"] and made.labels.tolist() == [[1, 0.5, -2000], [0, 0, 1]]
    assert files(tmp_path, ["a b.png 0.25"], 1, True).labels.tolist() == [[0.25]]


@pytest.mark.parametrize(
    ("lines", "label_count", "floats", "fact"),
    [
        (["a.png 1", "b.png"], 1, False, "line 2: 'b.png' has no label"),
        (["a.png 1 2"], 3, True, "line 1: 'a.png 1 2' has less than 3 labels"),
        (["a.png 1 2 3", "", "b.png one 2 3"], 3, True, "line 3: the label 'one' is not a finite number"),
        (["my a.png 2 3"], 3, True, "line 1: the label 'a.png' is not a finite number"),
        (["a.png nan"], 1, True, "line 1: the label 'nan' is not a finite number"),
        (["a.png 1e39"], 1, True, "line 1: the label '1e39' is not a finite number"),
        (["a.png 0.5"], 1, False, "line 1: the label '0.5' is not a whole number of 32 bits"),
        ([" "], 3, True, "names no image"),
    ],
)  # fmt: skip
def test_mistakes(tmp_path: pathlib.Path, lines: list[str], label_count: int, floats: bool, fact: str) -> None:
    error = failure(lambda: files(tmp_path, lines, label_count, floats))
    assert fact in error.fact and error.fix


def test_files_are_read_and_named(tmp_path: pathlib.Path) -> None:
    (tmp_path / "a b.png").write_bytes(b"bytes")
    made = files(tmp_path, ["", "a b.png 1", "c.png 2"], root=f"{tmp_path}/")
    assert content(made, 0) == b"bytes" and made.find([1])[0].label == 2
    assert pickle.loads(pickle.dumps((made.opener, made.find([0])[0])))[0].parse(made.find([0])[0]).file == b"bytes"  # as another process reads it
    error = fault(made, 1)
    assert error.fact.startswith(f"{tmp_path}/list.txt, line 3: {tmp_path}/c.png: it cannot be read: No such file") and "root_folder" in str(error.fix)


def test_the_field(tmp_path: pathlib.Path) -> None:
    path = listing(tmp_path, ["a.png 0.5 2"])
    made = open_files(proto.ImageDataParameter(source=path, label_count=2))
    assert made.labels.tolist() == [[0.5, 2]]
    assert "'0.5 2' " not in str(name(made, 0)) and name(open_files(proto.ImageDataParameter(source=path)), 0) == "a.png 0.5"
    for fields, fact in (({"label_count": 0}, "label_count is 0"), ({"source": str(tmp_path)}, "has no subfolders"), ({"source": ""}, "source is empty")):
        with pytest.raises(Error, match=fact):
            open_files(proto.ImageDataParameter(**{"source": path, **fields}))
