"""Whole numbers of texts of others: Python's `int` refuses thousands of digits, and takes characters that no file means."""
from __future__ import annotations

import pathlib

import pytest

from ocaffe import proto
from ocaffe.errors import Error
from ocaffe.formats.text import parse
from ocaffe.support.whole import signed, whole

pytestmark = pytest.mark.quick

LONG = "9" * 5000
PACKAGE = pathlib.Path(__file__).resolve().parents[2] / "ocaffe"
OTHERS = {  # file that looks for digits itself: why no number of thousands of digits gets through
    "convert/importer/external.py": "it compares the length",
    "data/sources/seg.py": "the remedy of an error",
    "fit/start.py": "it makes no number",
    "formats/flow_files.py": "it compares the length",
    "formats/parser.py": "`bound` compares the length",
    "ir/tuned.py": "it looks at the first character",
    "support/whole.py": "the function itself",
    "zoo/text_project.py": "it makes no number",
}


@pytest.mark.parametrize(("text", "number"), [("0", 0), ("12", 12), ("007", 7), ("9" * 18, 10**18 - 1)])
def test_whole_numbers(text: str, number: int) -> None:
    assert whole(text) == signed(text) == signed(f"+{text}") == number and signed(f"-{text}") == -number


@pytest.mark.parametrize("text", ["", "-", "+", " 1", "1 ", "1.0", "1_0", "0x1", "²", "٣", "--1", "9" * 19, LONG])
def test_other_texts(text: str) -> None:
    assert whole(text) == -1 and whole(text, 5) == 5 and signed(text) is None


def test_all_code_asks_this_module() -> None:
    texts = {path.relative_to(PACKAGE).as_posix(): path.read_text(encoding="utf-8") for path in PACKAGE.rglob("*.py")}
    assert {name for name, text in texts.items() if "isdecimal" in text or "isdigit" in text} == set(OTHERS)


@pytest.mark.parametrize("number", [LONG, "-" + LONG, "0x" + LONG, "0" + "7" * 6000])
@pytest.mark.parametrize("field", ["batch_size", "crop_size", "rand_skip", "backend", "shuffle"])
def test_numbers_of_a_prototxt(field: str, number: str) -> None:
    with pytest.raises(Error) as caught:
        parse("layer {\n  data_param {\n    " + f"{field}: {number}\n" + "} }", proto.NetParameter, "net.prototxt")
    assert caught.value.place == ("net.prototxt", 3) and caught.value.fix and len(caught.value.fact) < 200


@pytest.mark.parametrize("number", ["0x" + LONG, "0" + "7" * 6000])
def test_numbers_that_have_a_fraction(number: str) -> None:
    with pytest.raises(Error, match="digits"):
        parse(f"base_lr: {number}", proto.SolverParameter, "solver.prototxt")
