"""Draws boxes with the names of their classes into pictures."""
from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from PIL import Image, ImageDraw

from ocaffe.support.system_fonts import lettering

LETTERS = 10  # pixels of their height
_LONGEST = 256  # pixels; larger pictures are shrunk first, so that lines and names stay visible in a contact sheet
_COLORS = ("red", "lime", "deepskyblue", "yellow", "magenta", "cyan", "orange", "white")  # by label


def with_boxes(picture: np.ndarray, rows: np.ndarray, names: Sequence[str]) -> np.ndarray:
    """Return a picture with its boxes: 3 x height x width, bytes, blue, green, red.

    `picture` is channels x height x width, of 1 channel or 3. `rows` are those of AnnotatedData's label top. The name of a difficult box ends in '?'.
    """
    planes = picture[::-1].transpose(1, 2, 0) if len(picture) == 3 else picture[0]
    image = Image.fromarray(np.ascontiguousarray(planes)).convert("RGB")
    image.thumbnail((_LONGEST, _LONGEST))
    draw = ImageDraw.Draw(image)
    for row in rows.tolist():
        label, difficult = int(row[1]), row[7] > 0
        xmin, ymin, xmax, ymax = (round(edge * side) for edge, side in zip(row[3:7], (*image.size, *image.size)))
        right, bottom = max(xmax - 1, xmin), max(ymax - 1, ymin)
        color = _COLORS[label % len(_COLORS)]
        draw.rectangle((xmin, ymin, right, bottom), outline=color)
        name = names[label] if 0 <= label < len(names) else str(label)
        [text], font = lettering([name], LETTERS)
        text += "?" * difficult
        draw.text((xmin + 2, ymin + 1), text, color, font, stroke_width=1, stroke_fill="black")
    return np.asarray(image)[..., ::-1].transpose(2, 0, 1)
