"""The confusion matrix as a picture."""
from __future__ import annotations

import io
from collections.abc import Sequence

import numpy as np
from PIL import Image, ImageDraw, ImageFont

from ocaffe.evaluation.confusion import Confusion
from ocaffe.support.system_fonts import Font, lettering

_SIZE = 900  # pixels of the matrix, at most; cells are smaller or larger with the number of classes
_CELLS = 2, 60  # pixels of a cell's side, least and most
_RULED = 6  # pixels of a cell that gets white lines
_NAMED = 14  # pixels of a cell that has room for a number or a name
_MARGIN = 12
_LETTERS = 24  # of a name


def confusion_png(confusion: Confusion, names: Sequence[str]) -> bytes:
    """Return a PNG. Rows are the true classes, columns the best scores; a cell is as dark as its share of the row."""
    counts = confusion.counts
    classes = len(counts)
    cell = int(np.clip(_SIZE // classes, *_CELLS))
    shown, font = lettering(names if cell >= _NAMED else [""] * classes, min(14, max(9, cell // 2)), _LETTERS)
    measure = ImageDraw.Draw(Image.new("RGB", (1, 1)))
    room = int(max(measure.textlength(name, font) for name in shown)) + 2 * _MARGIN
    head = room + 2 * _MARGIN
    side = cell * classes
    image = Image.new("RGB", (room + side + _MARGIN, head + side + _MARGIN), "white")
    draw = ImageDraw.Draw(image)
    shares = counts / np.maximum(counts.sum(1, keepdims=True), 1)
    pixels = _colors(shares).repeat(cell, 0).repeat(cell, 1)
    if cell >= _RULED:
        pixels[cell - 1 :: cell] = pixels[:, cell - 1 :: cell] = 255
    image.paste(Image.fromarray(pixels), (room, head))
    for i in range(classes):
        draw.text((room - _MARGIN / 2, head + (i + 0.5) * cell), shown[i], "black", font, anchor="rm")
        _upright(image, shown[i], font, (room + i * cell, head - _MARGIN // 2), cell)
        for j in range(classes if cell >= 2 * _NAMED else 0):
            text = str(counts[i, j])
            if counts[i, j] and draw.textlength(text, font) < cell:
                place = room + (j + 0.5) * cell - 1, head + (i + 0.5) * cell - 1
                draw.text(place, text, "white" if shares[i, j] > 0.5 else "black", font, anchor="mm")
    title = f"{confusion.right} of {confusion.images} right; rows: true class, columns: best score"
    draw.text((_MARGIN, _MARGIN / 2), title, "black", ImageFont.load_default(12))
    buffer = io.BytesIO()
    image.save(buffer, "PNG")
    return buffer.getvalue()


def _colors(shares: np.ndarray) -> np.ndarray:
    """Return the colors of the cells: nearly white for 0, and dark blue (right) or dark red (wrong) for 1."""
    full = np.where(np.eye(len(shares), dtype=bool)[..., None], (20, 80, 150), (170, 40, 30))
    return (245 + (full - 245) * np.sqrt(shares)[..., None]).astype(np.uint8)


def _upright(image: Image.Image, text: str, font: Font, corner: tuple[int, int], width: int) -> None:
    """Write a text upwards from its lower left corner, in the middle of `width` pixels."""
    if not text:
        return
    _, _, right, bottom = font.getbbox(text)
    strip = Image.new("L", (int(right) + 1, int(bottom) + 1), 255)
    ImageDraw.Draw(strip).text((0, 0), text, 0, font)
    turned = strip.rotate(90, expand=True)
    image.paste(turned.convert("RGB"), (corner[0] + (width - turned.width) // 2, corner[1] - turned.height))
