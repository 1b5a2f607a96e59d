"""Texts of files in pictures: one line of limited length, whatever a name has in it, before it is measured and drawn."""
from __future__ import annotations

import ast
import io
import pathlib
import xml.etree.ElementTree as ElementTree

import numpy as np
import pytest
from PIL import Image, ImageFont

from ocaffe import proto
from ocaffe.cli import main
from ocaffe.evaluation.confusion import Confusion
from ocaffe.evaluation.objects import draw_objects
from ocaffe.evaluation.picture import confusion_png
from ocaffe.support.drawable import MOST, drawable
from ocaffe.support.system_fonts import _font_with, lettering
from ocaffe.tools.drawing.box_drawing import with_boxes
from ocaffe.tools.drawing.contact_sheet import contact_sheet
from ocaffe.tools.drawing.diagram import picture, pixels, svg
from ocaffe.tools.drawing.figure import plain
from tests.structure.figures import PRODUCT, python_files, tree
from tests.test_shown import HIDDEN, HOSTILE

pytestmark = pytest.mark.quick
NAMES = [*HOSTILE, "", "\n", "\n\n", "a\n", "\r\n", "\tb", "a\x0bb\x0c", "n" * 3_000_000, "ﷺ" * 500, "\U0001f600"]
BOX = np.array([[0, 0, 0, 0.1, 0.1, 0.9, 0.9, 1]], np.float32)


@pytest.mark.parametrize("name", NAMES)
def test_pictures(name: str) -> None:
    blank = np.zeros((3, 20, 30), np.uint8)
    sheet = Image.open(io.BytesIO(contact_sheet([blank, blank], [name, "b"])))
    assert sheet.size == Image.open(io.BytesIO(contact_sheet([blank, blank], ["a", "b"]))).size
    assert with_boxes(blank, BOX, [name]).shape == (3, 20, 30)
    assert draw_objects(Image.new("RGB", (64, 48)), [{"label": name, "index": 0, "score": 1.0, "box": [0, 0, 1, 1]}]).size == (64, 48)
    confusion = Confusion(2)
    confusion.add(np.arange(2), np.eye(2))
    assert Image.open(io.BytesIO(confusion_png(confusion, [name, "b"]))).width < 1200


@pytest.mark.parametrize("name", NAMES)
def test_nets(name: str) -> None:
    try:
        layers = [proto.LayerParameter(name=name, type=name, top=[name, "two"]), proto.LayerParameter(name="b", type="B", bottom=[name, "two"], top=["c"])]
    except (UnicodeEncodeError, ValueError):  # no file has halves of characters
        return
    drawn = picture(proto.NetParameter(layer=layers), rates=True)
    lines = [line for _, node in drawn.boxes for line in node.lines] + [label for _, label in drawn.curves]
    assert not [line for line in lines if HIDDEN & set(line) or "\n" in line or len(line) > 1000]
    assert pixels(drawn, "PNG").startswith(b"\x89PNG")
    ElementTree.fromstring(svg(drawn, name[:1000]))


@pytest.mark.parametrize("name", NAMES)
def test_texts(name: str) -> None:
    assert len(drawable(name)) <= MOST and drawable(name).isascii() and (drawable(name) + "a").isprintable()
    assert "\n" not in plain(name) and len(plain(name)) < 2500


def test_letters_of_the_system(monkeypatch: pytest.MonkeyPatch) -> None:
    """A font of the system draws what Pillow's own lacks. Without one, names are spelt in ASCII."""
    own = lettering(["plain"], 12)
    assert own[0] == ["plain"] and own[1].getlength("plain") == ImageFont.load_default(12).getlength("plain")
    path = _font_with(frozenset("Ä"))
    if path:
        names, font = lettering(["A\u0308pfel\n", "b"], 12)
        assert names == ["Äpfel\\n", "b"] and isinstance(font, ImageFont.FreeTypeFont) and font.path == path
    assert lettering(["\U0010fffe"], 12)[0] == ["?"]
    monkeypatch.setattr("ocaffe.support.system_fonts._font_with", lambda letters: "")
    assert lettering(["Äpfel"], 12)[0] == ["Aepfel"]


def test_a_class_folder_with_a_line_break(tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("a\nb", "c"):
        (tmp_path / "p" / name).mkdir(parents=True)
        Image.new("RGB", (20, 20)).save(tmp_path / "p" / name / "1.png")
    assert main(["dataset", "show", str(tmp_path / "p"), "--out", str(tmp_path / "s.png")]) == 0
    assert "2 images" in capsys.readouterr().out


def test_every_module_that_draws_text_prepares_it() -> None:
    """A module that measures or draws text of Pillow imports one of the functions for it."""
    def called(path: pathlib.Path) -> set[str]:
        return {node.func.attr for node in ast.walk(tree(path)) if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)}

    drawing = [path for path in python_files(PRODUCT) if "ImageDraw" in path.read_text() and called(path) & {"text", "textlength", "textbbox", "getbbox"}]
    ready = [path for path in drawing if any(f"{name}(" in path.read_text() for name in ("lettering", "visible"))]
    assert len(drawing) == 6 and ready == drawing
