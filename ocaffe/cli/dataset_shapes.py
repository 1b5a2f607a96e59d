"""`ocaffe dataset shapes OUT`: make synthetic scenes of digits with boxes and masks, in the layout of PASCAL VOC."""
from __future__ import annotations

import re
from collections.abc import Sequence

from ocaffe.cli.flags import Parser
from ocaffe.cli.made_data import at_least, counts, least_and_most, wrong
from ocaffe.shown import say
from ocaffe.tools.datasets.sets import digits, mnist
from ocaffe.tools.synthetic.shapes_set import Settings, make_shapes

NAME = "dataset shapes"
_SIDES = range(32, 4097)  # pixels
_MOST_OBJECTS = 30  # of a scene


def main(argv: Sequence[str]) -> int:
    """Run the command. Raises Error."""
    parser = Parser(NAME, "Make scenes of colored digits on random backgrounds, with boxes and masks, in the layout of PASCAL VOC. No download is needed.")
    parser.add_argument("out", metavar="OUT", help="folder to make")
    parser.flag("images", 1000, "number of scenes")
    parser.flag("size", "300x300", "width and height of a scene in pixels")
    parser.flag("seed", 1, "seed of all random choices; the same seed gives the same files")
    parser.flag("objects", "1,6", "least and most digits of a scene")
    parser.flag("splits", "80,10,10", "shares of the scenes for train, val and test")
    parser.flag("format", "jpg", "format of the images", choices=("jpg", "png"))
    parser.flag("mnist", "", "folder with MNIST's four IDX files, for its digits; default: scikit-learn's digits")
    parser.flag("crops", 0, "number of images of single digits in OUT/crops/0 to OUT/crops/9, for training a backbone as classifier")
    parser.flag("crop_size", 64, "side of these images in pixels")
    options = parser.parse(argv)
    settings = Settings(
        counts=counts(NAME, options.images, options.splits, (80, 10, 10)),
        size=_size(options.size),
        seed=options.seed,
        objects=least_and_most(NAME, "objects", options.objects, _MOST_OBJECTS, "1,6"),
        suffix=options.format,
        crops=at_least(NAME, "crops", options.crops, 0),
        crop_size=_side("crop-size", options.crop_size),
    )
    for line in make_shapes(options.out, mnist(options.mnist) if options.mnist else digits(None), settings):
        say(line)
    return 0


def _side(flag: str, value: int) -> int:
    if value not in _SIDES:
        raise wrong(NAME, flag, value, f"a side of {_SIDES[0]} to {_SIDES[-1]} pixels")
    return value


def _size(text: str) -> tuple[int, int]:
    """Return height and width."""
    match = re.fullmatch(r"(\d{1,5})[xX](\d{1,5})", text)
    if match is None or int(match[1]) not in _SIDES or int(match[2]) not in _SIDES:
        raise wrong(NAME, "size", text, f"width x height, each of {_SIDES[0]} to {_SIDES[-1]} pixels: --size 300x300")
    return int(match[2]), int(match[1])
