"""JSON of strangers: a table of types decides which values code behind it gets. Messages name the value."""
from __future__ import annotations

import json
import os
import pathlib
from typing import Any

import pytest

from ocaffe.errors import Error
from ocaffe.formats import json_file
from ocaffe.formats.json_file import Each, misfit, parse_json, read_json

pytestmark = pytest.mark.quick

KIND = {"name": str, "size": [int], "scale?": float, "mean": (str, [float], None), "boxes?": [{"box": [float], "hard?": bool}], "more?": Each(int)}
WHOLE: dict[str, Any] = {
    "name": "a", "size": [1, 2], "scale": 2, "mean": [0.5], "boxes": [{"box": [1, 2.5], "hard": False}, {"box": []}], "more": {"x": 1}, "unknown": [{}],
}  # fmt: skip


def test_a_whole_value_fits() -> None:
    assert not misfit(WHOLE, KIND)
    assert not misfit({"name": "", "size": [], "mean": None}, KIND)


@pytest.mark.parametrize(("change", "told"), [
    ({"name": 5}, "name is 5, not a text"),
    ({"name": None}, "name is null, not a text"),
    ({"size": 5}, "size is 5, not a list"),
    ({"size": {"a": 1}}, "size is an object of 1, not a list"),
    ({"size": [1, "2"]}, 'size[1] is "2", not a whole number'),
    ({"size": [1, True]}, "size[1] is true, not a whole number"),
    ({"size": [1, 2.0]}, "size[1] is 2.0, not a whole number"),
    ({"size": [2**63]}, "size[0] is 9223372036854775808, not a whole number"),
    ({"scale": float("nan")}, "scale is NaN, not a number"),
    ({"scale": 10**400}, "scale is 10000"),
    ({"scale": True}, "scale is true, not a number"),
    ({"mean": 5}, "mean is 5, not a text or a list or null"),
    ({"mean": [1, []]}, "mean[1] is a list of 0, not a number"),
    ({"boxes": [{"box": [1]}, {}]}, "boxes[1] has no list 'box'"),
    ({"boxes": [{"box": [1], "hard": 1}]}, "boxes[0].hard is 1, not true or false"),
    ({"more": {"x": 1, "y": "z" * 100}}, f'more.y is "{"z" * 59}.., not a whole number'),
])  # fmt: skip
def test_misfits(change: dict[str, Any], told: str) -> None:
    assert misfit({**WHOLE, **change}, KIND).startswith(told)


def test_missing_keys() -> None:
    assert misfit({}, KIND) == "it has no 'name'" and misfit([], KIND) == "it is a list of 0, not an object"


@pytest.mark.parametrize(("content", "told"), [
    (b"", "it is empty, not JSON"),
    (b"<html>", "a web page"),
    (b'{"a": 1', "it is JSON that ends too early"),
    (b'{"a": 1,}', "line 1"),
    (b"\xff\xfe{", "is not UTF-8"),
    (b"\x08\x01\xff", "it is a binary file, not JSON"),
    (b"9" * 5000, "Exceeds the limit"),
    (b"[" * 100_000, "its brackets are nested too deep"),
    (b'["\\ud800"]', r"""the text '\ud800' has half of a character"""),
    (b'{"\\uDfff": 1}', "has half of a character"),
    (b'["\\udc80"]', "has half of a character"),
])  # fmt: skip
def test_what_is_no_json(content: bytes, told: str) -> None:
    with pytest.raises(Error) as caught:
        parse_json(content, "a.json")
    assert told in caught.value.fact and caught.value.place == "a.json" and caught.value.fix


def test_what_is_json(tmp_path: pathlib.Path) -> None:
    assert parse_json(b'\xef\xbb\xbf["\\ud83d\\ude00", "\\\\ud800", 1e400]', "") == ["\U0001f600", "\\ud800", float("inf")]
    path = tmp_path / "a.json"
    path.write_text(json.dumps(["\udcff"]))  # the byte ff in the name of a file
    assert read_json(path, [str], "a list", "write it", raw=True) == ["\udcff"]
    with pytest.raises(Error, match="half of a character"):
        read_json(path, [str], "a list", "write it")


def test_limits(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "a.json"
    path.write_text("[1, 2, 3, 4]")
    with pytest.raises(Error, match="it has 12 bytes, and the limit is 10"):
        read_json(path, [int], "a list", "write it", most=10)
    with pytest.raises(Error, match="it has about 4 values, and the limit is 3"):
        parse_json(path.read_bytes(), "", most=3)
    monkeypatch.setattr(json_file, "MOST_BYTES", 1)
    assert read_json(path, [int], "a list", "write it") == [1, 2, 3, 4]


@pytest.mark.skipif(os.name == "nt", reason="no pipes")
def test_files_that_cannot_be_read(tmp_path: pathlib.Path) -> None:
    os.mkfifo(tmp_path / "pipe.json")
    for name, told in (("pipe.json", "it is a pipe, not a plain file"), ("none.json", "No such file"), ("", "Is a directory")):
        with pytest.raises(Error) as caught:
            read_json(tmp_path / name, [int], "a list", "write it")
        assert caught.value.fact == f"cannot be read: {caught.value.fact.partition(': ')[2]}" and told in caught.value.fact and caught.value.fix
