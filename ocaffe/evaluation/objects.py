"""The detections of an image: from the rows of DetectionOutput to names and boxes, and boxes drawn on the image."""
from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from PIL import Image, ImageDraw

from ocaffe.support.system_fonts import lettering
from ocaffe.tools.drawing.palette import color_of

IMAGE, LABEL, SCORE, BOX = 0, 1, 2, slice(3, 7)  # columns of DetectionOutput
LEAST = 0.5  # score of a detection that is shown


def objects(rows: np.ndarray, image: int, labels: Sequence[str], least: float) -> list[dict[str, Any]]:
    """Return the detections of image number `image` with a score of at least `least`, the best first.

    `rows`: n x 7 of DetectionOutput. `labels`: names by number, [] if they are not known. A box is left, top, right, bottom as shares of the image's
    width and height, limited to the image.
    """
    own = rows[(rows[:, IMAGE] == image) & (rows[:, LABEL] >= 0) & (rows[:, SCORE] >= least)]
    own = own[np.argsort(-own[:, SCORE], kind="stable")]
    found = []
    for row in own:
        index = int(row[LABEL])
        name = labels[index] if index < len(labels) else str(index)
        found.append({"label": name, "index": index, "score": float(row[SCORE]), "box": np.clip(row[BOX], 0, 1).astype(float).tolist()})
    return found


def draw_objects(picture: Image.Image, found: Sequence[dict[str, Any]]) -> Image.Image:
    """Return the RGB image with the boxes of `objects`, their names and scores."""
    width, height = picture.size
    drawn = picture.copy()
    draw = ImageDraw.Draw(drawn)
    line = max(1, round(min(width, height) / 200))
    size = max(10, min(width, height) // 25)
    for each in reversed(found):  # the best on top
        left, top, right, bottom = (round(share * (side - 1)) for share, side in zip(each["box"], (width, height, width, height)))
        color = color_of(each["index"])
        draw.rectangle((min(left, right), min(top, bottom), max(left, right), max(top, bottom)), outline=color, width=line)
        [name], font = lettering([each["label"]], size)
        text = f"{name} {each['score']:.2f}"
        _, _, wide, high = draw.textbbox((0, 0), text, font=font)
        y = top - high - 2 if top > high + 2 else top + line
        draw.rectangle((left, y, left + wide + 3, y + high + 2), fill=color)
        draw.text((left + 2, y), text, "black" if sum(color) > 384 else "white", font)
    return drawn
