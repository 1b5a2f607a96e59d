"""`ocaffe dataset voc|coco|yolo|labelme DIR OUT`: make databases for AnnotatedData of a data set with boxes."""
from __future__ import annotations

from collections.abc import Sequence

from ocaffe.cli.convert_imageset import image_recipe, recipe_flags
from ocaffe.cli.flags import Parser
from ocaffe.shown import say
from ocaffe.tools.datasets.box_databases import SHARE, Settings, make_databases

_TEXTS = {
    "voc": "DIR has Annotations, JPEGImages and ImageSets/Main, or XML files beside the images.",
    "coco": "DIR has annotations/instances_train2017.json and the folder train2017, or JSON files and images in a similar layout.",
    "yolo": "DIR has data.yaml, classes.txt or obj.names, and text files `CLASS X Y WIDTH HEIGHT` in labels or beside the images.",
    "labelme": "DIR has LabelMe's JSON files with rectangles and polygons.",
}


def main(kind: str, argv: Sequence[str]) -> int:
    """Run the command for the format `kind`. Raises Error."""
    name = f"dataset {kind}"
    parser = Parser(name, f"Make OUT with a database of boxes for each part (train_lmdb, test_lmdb), and a label map in SSD's format. {_TEXTS[kind]}")
    parser.add_argument("folder", metavar="DIR", help="folder of the data set")
    parser.add_argument("out", metavar="OUT", help="folder to make")
    parser.flag("parts", "", "parts to convert, such as train,val; default: all, and trainval only without train")
    parser.flag("test", SHARE, "share of the images for testing, if the set has no parts; 0: make no test_lmdb")
    parser.flag("seed", 0, "seed of the division and of the order")
    parser.flag("shuffle", False, "write the images for training in random order; --noshuffle: as the set lists them")
    parser.flag("label_map_file", "", "label map to use; default: the classes of the set, from 1 on")
    parser.flag("skip_bad", False, "leave out and name boxes and images that cannot be used")
    recipe_flags(parser)
    parser.set_defaults(shuffle=True, encoded=True)
    options = parser.parse(argv)
    settings = Settings(
        image_recipe(options, name, dimensions=True),
        parts=tuple(options.parts.split(",")) if options.parts else (),
        share=options.test,
        seed=options.seed,
        shuffle=options.shuffle,
        check_size=options.check_size,
        label_map=options.label_map_file,
        skip_bad=options.skip_bad,
    )
    for line in make_databases(kind, options.folder, options.out, settings):
        say(line)
    return 0
