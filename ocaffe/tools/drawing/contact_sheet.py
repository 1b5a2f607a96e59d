"""A contact sheet: pictures in rows, each with a line of text below it."""
from __future__ import annotations

import io
import math
from collections.abc import Sequence

import numpy as np
from PIL import Image, ImageDraw

from ocaffe.support.system_fonts import lettering

_LEAST, _MOST = 96, 256  # pixels of a picture's longer side; a small one is enlarged by a whole number
_TEXT, _GAP, LETTERS = 14, 6, 10


def contact_sheet(pictures: Sequence[np.ndarray], captions: Sequence[str]) -> bytes:
    """Return a PNG. Pictures are channels x height x width, bytes, with 1 channel, or 3 in the order blue, green, red; others show their first one."""
    shown = [_shown(picture) for picture in pictures]
    width, height = max(image.width for image in shown), max(image.height for image in shown)
    columns = math.ceil(math.sqrt(len(shown) * height / width))
    rows = math.ceil(len(shown) / columns)
    sheet = Image.new("RGB", (columns * (width + _GAP) + _GAP, rows * (height + _TEXT + _GAP) + _GAP), "white")
    draw = ImageDraw.Draw(sheet)
    for number, (image, caption) in enumerate(zip(shown, captions)):
        x, y = _GAP + number % columns * (width + _GAP), _GAP + number // columns * (height + _TEXT + _GAP)
        sheet.paste(image, (x, y))
        [text], font = lettering([caption], LETTERS)
        while text and draw.textlength(text, font) > width:
            text = text[:-1]
        draw.text((x, y + height + 1), text, "black", font)
    buffer = io.BytesIO()
    sheet.save(buffer, "PNG")
    return buffer.getvalue()


def _shown(picture: np.ndarray) -> Image.Image:
    planes = picture[::-1].transpose(1, 2, 0) if len(picture) == 3 else picture[0]
    image = Image.fromarray(np.ascontiguousarray(planes)).convert("RGB")
    longer = max(image.size)
    if longer < _LEAST:
        return image.resize((image.width * -(-_LEAST // longer), image.height * -(-_LEAST // longer)), Image.Resampling.NEAREST)
    if longer > _MOST:
        image.thumbnail((_MOST, _MOST))
    return image
