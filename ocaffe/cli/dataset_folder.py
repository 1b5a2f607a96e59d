"""`ocaffe dataset folder FOLDER OUT`: make databases for training and testing of class folders."""
from __future__ import annotations

from collections.abc import Sequence

from ocaffe.cli.convert_imageset import image_recipe, recipe_flags
from ocaffe.cli.flags import Parser
from ocaffe.errors import Error
from ocaffe.shown import say
from ocaffe.tools.datasets.folder_set import SHARE, Settings, make_databases

NAME = "dataset folder"


def main(argv: Sequence[str]) -> int:
    """Run the command. Raises Error."""
    parser = Parser(NAME, "Make OUT/train_lmdb and OUT/test_lmdb of class folders, with lists and labels.txt. The subfolders of FOLDER are the classes.")
    parser.add_argument("folder", metavar="FOLDER", help="folder with a subfolder for each class, or with train and test (or val), each with class folders")
    parser.add_argument("out", metavar="OUT", help="folder for the databases; created if it does not exist")
    parser.flag("test", SHARE, "share of each class for testing; 0: make no test_lmdb")
    parser.flag("seed", 0, "seed of the division and of the order")
    parser.flag("shuffle", False, "write the images in random order; --noshuffle: by class and name")
    recipe_flags(parser)
    parser.flag("skip_bad_records", 0, "leave out up to this number of images that cannot be read")
    parser.set_defaults(shuffle=True, encoded=True)
    options = parser.parse(argv)
    if options.skip_bad_records < 0:
        raise Error(f"--skip-bad-records is {options.skip_bad_records}", place=f"ocaffe {NAME}", fix="--skip-bad-records with a number of images, 0 or more")
    settings = Settings(
        image_recipe(options, NAME), options.test, options.seed, options.shuffle, check_size=options.check_size, most_bad=options.skip_bad_records
    )
    for line in make_databases(options.folder, options.out, settings):
        say(line)
    return 0
