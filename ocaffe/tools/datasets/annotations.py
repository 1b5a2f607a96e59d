"""SSD's annotations: reads label maps, and converts annotation files (PASCAL VOC's XML, MS COCO's JSON, plain text) to AnnotatedDatums."""
from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from ocaffe import proto
from ocaffe.errors import Error, Place
from ocaffe.formats.json_file import misfit, parse_json
from ocaffe.formats.text import read
from ocaffe.support import log
from ocaffe.support.files import file_kind, read_plain, text_lines, to_read
from ocaffe.support.inside import check_below
from ocaffe.support.parsing import reason
from ocaffe.tools.datasets.xml_tree import parse_xml

MOST_BYTES = 16 << 20  # of a file with the boxes of one image
BACKGROUND = ("none_of_the_above", 0, "background")


class Box(NamedTuple):
    """A box in pixels of its image; `label` is the name or the number of its class."""

    label: str | int
    xmin: float
    ymin: float
    xmax: float
    ymax: float
    difficult: bool = False


class Boxes(NamedTuple):
    """The content of an annotation file; `size` is the height and width of its image, or None if the file does not state it."""

    size: tuple[int, int] | None
    boxes: list[Box]


def read_label_map(path: str, check: bool = False) -> dict[str, int]:
    """Return class names and labels of a label map (a LabelMap in text form). Raise Error. `check`: names are not empty, names and labels are unique."""
    labels: dict[str, int] = {}
    lines: dict[str, int] = {}
    for number, item in enumerate(read(path, proto.LabelMap, lines=lines).item):
        if check and not item.name.strip():
            fix = f'write it: item {{ name: "cat" label: {item.label} }}'
            raise Error(f"the class of the label {item.label} has no name", place=Place(path, lines.get(f"item[{number}]", 0)), fix=fix)
        clash = check and (item.name in labels or item.label in labels.values())
        if clash:
            raise Error(f"the name '{item.name}' or the label {item.label} occurs twice", place=path, fix="give each class its own")
        labels.setdefault(item.name, item.label)
    if not labels:
        raise Error("names no class", place=path, fix='item { name: "cat" label: 1 display_name: "cat" } for each class; `ocaffe create_label_map` makes it')
    return labels


def shown_names(path: str) -> dict[int, str]:
    """Return the names that people read, by the labels of a label map: display names, as COCO's names are numbers. Raise Error."""
    labels: dict[int, str] = {}
    for item in read(path, proto.LabelMap).item:
        labels.setdefault(item.label, item.display_name or item.name or str(item.label))
    return labels


def make_label_map(path: str, delimiter: str, background: bool) -> Any:
    """Return the LabelMap of a text file with lines `NAME [LABEL [DISPLAY NAME]]`. Without labels, classes are numbered from 1. Raise Error."""
    made = proto.LabelMap()
    if background:
        made.item.add(name=BACKGROUND[0], label=BACKGROUND[1], display_name=BACKGROUND[2])
    try:
        lines = [line.rstrip("\n") for line in text_lines(path, errors="strict")]
    except (OSError, UnicodeDecodeError) as problem:
        if isinstance(problem, UnicodeDecodeError):
            fact = f"it is not UTF-8 text: the byte at {problem.start} is {problem.object[problem.start]:02x}"
            raise Error(fact, place=path, fix="save it as UTF-8 text with a class in each line") from None
        raise Error(f"cannot be read: {problem.strerror}", place=path, fix=to_read(path, problem, "give a text file with a class in each line")) from None
    for number, line in enumerate(lines, 1):
        words = line.split(delimiter, 2)
        if not line.strip():
            continue
        if not words[0].strip():
            raise Error("the name of the class is empty", place=Place(path, number), fix=f"begin the line with the name: NAME{delimiter}LABEL")
        try:
            label = int(words[1]) if len(words) > 1 else len(made.item) + (not background)
        except ValueError:
            fix = f"a line is NAME, NAME{delimiter}LABEL, or NAME{delimiter}LABEL{delimiter}DISPLAY NAME, with a whole number as LABEL"
            raise Error(f"'{words[1]}' is not a label", place=Place(path, number), fix=fix) from None
        _check_label(label, Place(path, number))
        made.item.add(name=words[0], label=label, display_name=words[2] if len(words) > 2 else words[0])
    return made


def _check_label(label: int, place: Place | str) -> None:
    if not -(2**31) <= label < 2**31:
        raise Error(f"the label {label} does not fit into 32 bits", place=place, fix="number the classes from 0")


# files of annotations


def _is_float(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _voc(content: bytes) -> Boxes:
    root = parse_xml(content)
    size = root.find("size")
    extent = None if size is None else (int(size.findtext("height", "0")), int(size.findtext("width", "0")))
    boxes = []
    for number, thing in enumerate(root.iter("object"), 1):
        name, corners = (thing.findtext("name") or "").strip(), thing.find("bndbox")
        if not name or corners is None:
            raise ValueError(f"object {number} has no {'bndbox' if name else 'name'}")
        texts = {each: corners.findtext(each) for each in ("xmin", "ymin", "xmax", "ymax")}
        if missing := [each for each, text in texts.items() if text is None]:  # SSD's converter takes 0, which no one can mean
            raise ValueError(f"object {number} has a bndbox without {missing[0]}")
        try:
            xmin, ymin, xmax, ymax = (float(text or "") for text in texts.values())
        except ValueError:
            wrong = next(each for each, text in texts.items() if not _is_float(text or ""))
            raise ValueError(f"{wrong} of object {number} is '{(texts[wrong] or '')[:40]}', which is not a number") from None
        boxes.append(Box(name, xmin, ymin, xmax, ymax, thing.findtext("difficult", "0").strip() == "1"))
    return Boxes(extent, boxes)


_COCO = {"image?": {"height?": float, "width?": float}, "annotation?": [{"bbox": [float], "category_id": (int, str), "iscrowd?": (int, bool)}]}


def _coco(content: bytes) -> Boxes:
    found = parse_json(content, "")
    if wrong := misfit(found, _COCO):
        raise ValueError(wrong)
    image = found.get("image", {})
    extent = (int(image["height"]), int(image["width"])) if "height" in image and "width" in image else None
    boxes = []
    for each in found.get("annotation", []):
        x, y, width, height = map(float, each["bbox"])
        boxes.append(Box(str(each["category_id"]), x, y, x + width, y + height, bool(each.get("iscrowd", 0))))
    return Boxes(extent, boxes)


def _text(content: bytes) -> Boxes:
    """Read lines `LABEL XMIN YMIN XMAX YMAX`; the label is a number."""
    boxes = []
    for number, line in enumerate(content.decode("utf-8-sig").splitlines(), 1):
        if line.strip():
            try:
                label, xmin, ymin, xmax, ymax = line.split()
                boxes.append(Box(int(label), float(xmin), float(ymin), float(xmax), float(ymax)))
            except ValueError:
                raise ValueError(f"line {number}, '{line[:60]}', is not LABEL XMIN YMIN XMAX YMAX in numbers") from None
    return Boxes(None, boxes)


READERS: dict[str, Callable[[bytes], Boxes]] = {"xml": _voc, "json": _coco, "txt": _text}  # by the values of --label_type


def read_boxes(path: str, kind: str, root: str | None = None) -> Boxes:
    """Return the annotations in the file `path`. Raise Error, also if a link leads out of the folder `root` to it."""
    check_below(root, path)
    content = b""
    try:
        content = read_plain(path, MOST_BYTES)
        return READERS[kind](content)
    except OSError as problem:
        fix = to_read(path, problem, "correct the list, whose lines are an image and its annotations")
        raise Error(f"cannot be read: {problem.strerror}", place=path, fix=fix) from None
    except Exception as problem:  # of the parsers of XML and JSON
        what, text = file_kind(path), reason(problem, path)
        real = "xml" if content.lstrip().startswith(b"<") else "json" if content.lstrip().startswith((b"{", b"[")) else "txt"
        fix = f"--label_type={real}, if all annotations are so" if real != kind else "correct the file, or leave it out of the list"
        fix = fix if what is None else what.way or "name the file of its boxes in the list"
        raise Error(f"cannot be parsed as {kind} annotations: {text}", place=path, fix=fix) from None


def annotate(datum: Any, boxes: Boxes, shape: tuple[int, int], labels: dict[str, int], path: str) -> Any:
    """Return the AnnotatedDatum of `datum` with `boxes` as fractions of the image's size, grouped by label.

    `shape` is (height, width) of the image file. `path` is the annotation file, for messages. A box that looks wrong is kept, with a warning, as in
    SSD's converter. Raise Error.
    """
    height, width = boxes.size if boxes.size and min(boxes.size) > 0 else shape
    if (height, width) != shape:
        log.warning("io.cpp:1", f"{path}: it says {height} x {width}, the image is {shape[0]} x {shape[1]} (height x width)")
    made = proto.AnnotatedDatum(datum=datum, type=proto.AnnotatedDatum.BBOX)
    groups: dict[int, Any] = {}
    for box in boxes.boxes:
        label = box.label if isinstance(box.label, int) else labels.get(box.label)
        if label is None:
            raise Error(f"the class '{box.label}' is not in the label map", place=path, fix=f"correct the name, or add it; the map has {', '.join(labels)}")
        _check_label(label, path)
        for warning in _oddities(box, height, width):
            log.warning("io.cpp:1", f"{path}: {warning}")
        if label not in groups:
            groups[label] = made.annotation_group.add(group_label=label)
        group = groups[label]
        corners = {"xmin": box.xmin / width, "ymin": box.ymin / height, "xmax": box.xmax / width, "ymax": box.ymax / height}
        group.annotation.add(instance_id=len(group.annotation), bbox=proto.NormalizedBBox(**corners, difficult=box.difficult))
    return made


def _oddities(box: Box, height: int, width: int) -> Iterator[str]:
    corners = f"{box.xmin:g}, {box.ymin:g}, {box.xmax:g}, {box.ymax:g}"
    if min(box.xmin, box.ymin) < 0 or max(box.xmin, box.xmax) > width or max(box.ymin, box.ymax) > height:
        yield f"the box xmin, ymin, xmax, ymax = {corners} leaves the image of {height} x {width}"
    if box.xmin > box.xmax or box.ymin > box.ymax:
        yield f"the box xmin, ymin, xmax, ymax = {corners} has a minimum above its maximum"

