"""`ocaffe dataset text OUT`: make images of strings of digits, with lists for training a net that reads text."""
from __future__ import annotations

from collections.abc import Sequence

from ocaffe.cli.flags import Parser
from ocaffe.cli.made_data import counts, least_and_most, wrong
from ocaffe.shown import say
from ocaffe.tools.datasets.sets import digits, mnist
from ocaffe.tools.synthetic.text_set import Settings, make_text

NAME = "dataset text"
_SIDES = range(16, 4097)  # pixels
_LONGEST = 100  # characters


def main(argv: Sequence[str]) -> int:
    """Run the command. Raises Error."""
    parser = Parser(NAME, "Make gray images of strings of digits on random backgrounds, with lists for training a net with a CTC loss. No download is needed.")
    parser.add_argument("out", metavar="OUT", help="folder to make")
    parser.flag("images", 5000, "number of images")
    parser.flag("length", "3,8", "least and most digits of a string")
    parser.flag("height", 32, "height of an image in pixels")
    parser.flag("width", 128, "width of an image in pixels")
    parser.flag("seed", 1, "seed of all random choices; the same seed gives the same files")
    parser.flag("splits", "90,10", "shares of the images for train and val")
    parser.flag("format", "png", "format of the images", choices=("jpg", "png"))
    parser.flag("mnist", "", "folder with MNIST's four IDX files, for its digits; default: scikit-learn's digits")
    options = parser.parse(argv)
    for flag, side in (("height", options.height), ("width", options.width)):
        if side not in _SIDES:
            raise wrong(NAME, flag, side, f"a side of {_SIDES[0]} to {_SIDES[-1]} pixels")
    settings = Settings(
        counts=counts(NAME, options.images, options.splits, (90, 10)),
        size=(options.height, options.width),
        seed=options.seed,
        length=least_and_most(NAME, "length", options.length, _LONGEST, "3,8"),
        suffix=options.format,
    )
    for line in make_text(options.out, mnist(options.mnist) if options.mnist else digits(None), settings):
        say(line)
    return 0
