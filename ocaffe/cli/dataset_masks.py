"""`ocaffe dataset masks IMAGES MASKS OUT`: make lists, masks and class weights for segmentation."""
from __future__ import annotations

from collections.abc import Sequence

from ocaffe.cli.flags import Parser
from ocaffe.shown import say
from ocaffe.tools.datasets.mask_set import SHARE, Settings, make_masks

NAME = "dataset masks"


def main(argv: Sequence[str]) -> int:
    """Run the command. Raises Error."""
    parser = Parser(NAME, "Make OUT for the layer DenseImageData: images, gray masks whose levels are classes, train.txt and test.txt, labels.txt, weights.")
    parser.add_argument("images", metavar="IMAGES", help="folder of the images")
    parser.add_argument("masks", metavar="MASKS", help="folder of the masks, with the names of the images: palette or gray PNG files, or color with --colors")
    parser.add_argument("out", metavar="OUT", help="folder to make")
    parser.flag("colors", "", "text file with the colors of the classes: lines NAME,RED,GREEN,BLUE or RED GREEN BLUE NAME")
    parser.flag("labels", "", "text file with the names of the classes from 0 on; default: labels.txt in MASKS, else numbers")
    parser.flag("lists", "", "folder with lists of names: train.txt, val.txt, test.txt (VOC's ImageSets/Segmentation)")
    parser.flag("image_suffix", "", "end of the names of images that the names of masks lack, such as _leftImg8bit")
    parser.flag("mask_suffix", "", "end of the names of masks that the names of images lack, such as _gtFine_labelTrainIds")
    parser.flag("test", SHARE, "share of the pairs for testing, if there are no parts; 0: make no test.txt")
    parser.flag("seed", 0, "seed of the division")
    parser.flag("skip_bad", False, "leave out and name pairs that cannot be used")
    options = parser.parse(argv)
    given = {name: getattr(options, name) for name in ("colors", "labels", "lists", "image_suffix", "mask_suffix", "seed", "skip_bad")}
    for line in make_masks(options.images, options.masks, options.out, Settings(**given, share=options.test)):
        say(line)
    return 0
