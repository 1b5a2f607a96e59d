"""`draw`: pictures of nets, with pycaffe's names. tests/tools tests the drawing."""
from __future__ import annotations

import io
import pathlib
from typing import Any

import pytest
from PIL import Image

from ocaffe import TEST, draw
from ocaffe.errors import Error
from tests.api.nets import message


def size(file: Any) -> tuple[int, int]:
    with Image.open(file) as image:
        return image.size


def test_file_by_its_extension(tmp_path: pathlib.Path) -> None:
    for name in ("net.png", "net.svg", "net"):
        draw.draw_net_to_file(message(), str(tmp_path / name), "TB")
    assert (tmp_path / "net.svg").read_text().count("conv") >= 1
    sizes = [size(tmp_path / name) for name in ("net.png", "net")]
    assert sizes[0] == sizes[1] and sizes[0][1] > sizes[0][0], "TB is taller than wide"


def test_bytes_directions_phases() -> None:
    wide = size(io.BytesIO(draw.draw_net(message(), "LR", "png")))
    assert wide[0] > wide[1]
    text = 'layer { name: "only" type: "Input" top: "x" include { phase: TRAIN } } layer { name: "y" type: "Input" top: "y" }'
    assert b"only" in draw.draw_net(message(text), "LR", "svg") and b"only" not in draw.draw_net(message(text), "LR", "svg", phase=TEST)


@pytest.mark.parametrize(("args", "told"), [(("XX", "png"), "rankdir is 'XX'"), (("LR", "docx"), "docx")])
def test_refused(args: tuple[str, str], told: str) -> None:
    with pytest.raises(Error, match=told):
        draw.draw_net(message(), *args)
    with pytest.raises(Error, match="no layers"):
        draw.draw_net(message(""))
