"""Damaged inputs for every parser: `python -m tests.abuse.fuzz --count 100000 --seed 1 --section caffemodel`.

`python -m tests.abuse.fuzz --seeds 1:29 --count 1000 --processes 8` runs 1,000 inputs of each section with each of 28 seeds, 8 processes at a time. It
prints the inputs per second of each section. All sections together have about 39 times as many inputs.

A section has seeds, a way to damage them, and the code that reads the result. That code must succeed or raise ocaffe's Error.
"""
from __future__ import annotations

import contextlib
import functools
import importlib
import io
import json
import os
import pathlib
import random
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import numpy as np

from ocaffe import log, proto
from ocaffe.cl import tuned_tables
from ocaffe.cli.upgrade_net_proto_binary import main as upgrade_binary
from ocaffe.compiler.network import phase_net
from ocaffe.data.databases import database
from ocaffe.data.databases.slot import NoSlot
from ocaffe.data.source import Source
from ocaffe.errors import Error
from ocaffe.evaluation.class_scores import read_class_scores
from ocaffe.formats.binary import read_net_binary
from ocaffe.formats.blob import read_blobproto
from ocaffe.formats.state import read_state
from ocaffe.formats.text import parse, read_net, read_solver, write_text
from ocaffe.formats.upgrade import upgrade_net
from ocaffe.formats.weights import read_weights
from ocaffe.graph.build import build
from ocaffe.solver.checks import check_solver
from ocaffe.solver.policies import LearningRate
from ocaffe.support.cache import Entries
from ocaffe.tools.datasets.annotations import annotate, make_label_map, read_boxes, read_label_map
from ocaffe.tools.datasets.coco_set import read_coco
from ocaffe.tools.datasets.color_table import read_color_table
from ocaffe.tools.datasets.imageset import read_list
from ocaffe.tools.datasets.labelme_set import read_labelme
from ocaffe.tools.datasets.voc_set import read_voc
from ocaffe.tools.datasets.yolo_set import read_yolo
from ocaffe.tools.file_summary import summarize
from ocaffe.tools.py_faster_rcnn import read_configuration
from ocaffe.tools.training_logs.logs import csv_text, read_log
from tests.abuse import box_sets, strangers, workplace
from tests.abuse.campaign import Options, Tally, options
from tests.abuse.harness import Limits, Wrong, isolated
from tests.abuse.hdf5_child import share_child
from tests.abuse.mutate import damage, distort, rewrite
from tests.abuse.mutate_trees import of_json, of_xml

PAGE = 4096  # bytes of a page of LMDB
CHUNK = 1000  # cases of one child
LIMITS = Limits(seconds=20)  # damaged HDF5 files have a limit of 5 s of computing, which may take longer on a busy machine
BATCH = 1 << 30  # bytes of a batch that may be read
Damage = Callable[[random.Random, Sequence[Any]], bytes]


class Section(NamedTuple):
    """`read` gets the path of a file with the damaged input."""

    seeds: Callable[[], Sequence[Any]]
    damage: Damage
    read: Callable[[str], object]


def of_bytes(rng: random.Random, seeds: Sequence[bytes]) -> bytes:
    return damage(rng, rng.choice(seeds), rng.choice(seeds))


def of_pages(rng: random.Random, seeds: Sequence[bytes]) -> bytes:
    """Files of pages: half of them have damaged heads of pages, where LMDB's numbers are."""
    data, other = rng.choice(seeds), rng.choice(seeds)
    if rng.random() < 0.5:
        return damage(rng, data, other)
    content = bytearray(data)
    for _ in range(rng.choice((1, 1, 2, 4, 20))):
        at = rng.randrange(len(content) // PAGE) * PAGE + rng.choice((rng.randrange(64), rng.randrange(64), rng.randrange(256)))
        content[at : at + 2] = rng.choice((b"\0\0", b"\xff\xff", b"\xff\x7f", b"\x00\x10", rng.randbytes(2), bytes([content[at] ^ 1 << rng.randrange(8)])))
    return bytes(content)


def of_text(rng: random.Random, seeds: Sequence[bytes]) -> bytes:
    return rewrite(rng, rng.choice(seeds), rng.choice(seeds))


def of_messages(rng: random.Random, seeds: Sequence[Any]) -> bytes:
    """Binary messages: one in three has damaged bytes, the others have odd fields."""
    one, two = rng.choice(seeds), rng.choice(seeds)
    if rng.random() < 1 / 3:
        return damage(rng, one.SerializeToString(), two.SerializeToString())
    return bytes(distort(rng, one, two).SerializePartialToString())


def of_prototxts(rng: random.Random, seeds: Sequence[Any]) -> bytes:
    """Messages as text: half of them have damaged text, the others have odd fields."""
    one, two = rng.choice(seeds), rng.choice(seeds)
    if rng.random() < 0.5:
        return rewrite(rng, write_text(one).encode(), write_text(two).encode())
    return write_text(distort(rng, one, two, layer_types())).encode("utf-8", "surrogateescape")


@functools.cache
def layer_types() -> tuple[str, ...]:
    from ocaffe.layers.base import registry

    return tuple(sorted(registry()))


# readers


def _net(path: str) -> None:
    for unknown in (False, True):
        net = read_net(path, unknown, lambda warning: None)
        for phase in (proto.TRAIN, proto.TEST):
            phase_net(net, phase)
        parse(write_text(upgrade_net(net)), proto.NetParameter)


def _solver(path: str) -> None:
    solver = read_solver(path)
    check_solver(solver, path)
    rate = LearningRate(solver)
    for iteration in (0, 1, 5, 100, 10**6):
        rate(iteration)


def _weights(path: str) -> None:
    """Read weights as blobs and as a message."""
    problem = None
    try:
        _blobs(path)
    except Error as found:
        problem = found
    upgrade_net(read_net_binary(path))
    if problem is not None:
        raise problem


def _blobs(path: str) -> None:
    for layer in read_weights(path).layers:
        for blob in layer.blobs:
            if blob is not None:
                blob.sum()


def _upgrade(path: str) -> None:
    upgrade_binary([path, "upgraded"])


def _summary(path: str) -> None:
    summarize(path)


def _log(path: str) -> None:
    found = read_log(path)
    for rows in (found.train, found.test):
        csv_text(rows)


def _annotations(path: str) -> None:
    kind = {b"<": "xml", b"{": "json"}.get(pathlib.Path(path).read_bytes()[:1], "txt")
    annotate(proto.Datum(), read_boxes(path, kind), (60, 50), {"cat": 1, "3": 3}, path)


def _set_of(read: Callable[[str], Any], name: str) -> Callable[[str], None]:
    """Return a reader of data sets with boxes that gets one file, with the name `name` in a folder with two images."""

    def run(path: str) -> None:
        root = pathlib.Path(f"{path}-set")
        for file in (name, "images/train/1.png", "images/train/2.png", "labels/train/2.txt", "train/1.png"):
            (root / file).parent.mkdir(parents=True, exist_ok=True)
            (root / file).touch()
        try:
            shutil.copyfile(path, root / name)
            read(str(root))
        finally:
            shutil.rmtree(root)

    return run


def _classes(path: str) -> None:
    make_label_map(path, " ", True)
    read_list(path)


def _tuned(path: str) -> None:
    tuned_tables.read(pathlib.Path(path))


def _entry(path: str) -> None:
    """A damaged entry of the cache counts as none."""
    entries = Entries("programs")
    assert entries.folder is not None
    shutil.copyfile(path, entries.folder / "key")
    loaded = entries.load("key")
    if loaded is not None and loaded not in PAYLOADS[:1]:
        raise Wrong("a damaged entry of the cache is accepted")


def drain(net: str, batches: int = 3) -> None:
    """Read some batches of the data layers of a net."""
    log.quiet(3)
    graph = build(phase_net(parse(net, proto.NetParameter), proto.TRAIN), proto.TRAIN)
    sources: list[Source] = [node.layer.source for node in graph.nodes if node.layer.source is not None]
    try:
        for source in sources:
            buffer = np.empty(source.nbytes, np.uint8)
            for number in range(batches):
                info = source.fill(number, buffer)
                if info.nbytes > buffer.nbytes:
                    if info.nbytes > BATCH:
                        raise Error(f"a batch of {info.nbytes} bytes is too large for the harness")
                    buffer = np.empty(info.nbytes, np.uint8)
                    source.fill(number, buffer)
    finally:
        for source in sources:
            source.close()


DATA = 'data_param {{ source: "{0}" batch_size: 2 backend: LMDB }}'
TRANSFORMS = ("", "crop_size: 4 mirror: true", "force_color: true", "force_gray: true", "mean_value: 3 scale: 0.5")
ANNOTATED = (
    "mirror: true force_color: true resize_param { prob: 1 resize_mode: WARP height: 20 width: 20 } expand_param { prob: 0.5 max_expand_ratio: 3 } "
    "distort_param { brightness_prob: 0.5 brightness_delta: 32 } emit_constraint { emit_type: CENTER }"
)
SAMPLER = (
    "annotated_data_param { batch_sampler { max_sample: 1 max_trials: 1 } batch_sampler { sampler { min_scale: 0.3 max_scale: 1.0 min_aspect_ratio: 0.5 "
    "max_aspect_ratio: 2.0 } sample_constraint { min_jaccard_overlap: 0.1 } max_sample: 1 max_trials: 20 } }"
)


def _layer(kind: str, more: str) -> str:
    return f'layer {{ name: "data" type: "{kind}" top: "data" top: "label" {more} }}'


def _choice(path: str, values: Sequence[str]) -> str:
    """One of the values, by the content of a file."""
    return values[sum(pathlib.Path(path).read_bytes()[-32:]) % len(values)]


def _no_slot(path: str) -> None:
    raise NoSlot("no process for each input")


@contextlib.contextmanager
def _slotless(wanted: bool = True) -> Iterator[None]:
    """Read LMDBs without a reader slot. The process that holds one takes 0.1 s to start."""
    before = database.Slot
    if wanted:
        database.Slot = _no_slot  # type: ignore[assignment, misc]
    try:
        yield
    finally:
        database.Slot = before  # type: ignore[misc]


@_slotless()
def _datum(path: str) -> None:
    workplace.database(pathlib.Path("one"), [pathlib.Path(path).read_bytes()])
    drain(_layer("Data", f"transform_param {{ {_choice(path, TRANSFORMS)} }} {DATA.format('one')}"), 1)


@_slotless()
def _annotated(path: str) -> None:
    workplace.database(pathlib.Path("one"), [pathlib.Path(path).read_bytes()])
    drain(_layer("AnnotatedData", f"transform_param {{ {ANNOTATED} }} {DATA.format('one')} {SAMPLER}"), 2)


def _lmdb(path: str) -> None:
    folder = pathlib.Path("damaged")
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    shutil.copyfile(path, folder / "data.mdb")
    with _slotless(_choice(path, ("", *["x"] * 15)) != ""):  # some with the process that opens the database by the library
        drain(_layer("Data", f"{DATA.format('damaged')}"))


def _leveldb(folder: str) -> None:
    for shuffled in ("false", "true"):
        drain(_layer("Data", f'data_param {{ source: "{folder}" batch_size: 3 backend: LEVELDB shuffle: {shuffled} }}'), 2)


def _images(source: str, more: str) -> str:
    return _layer("ImageData", f'image_data_param {{ source: "{source}" batch_size: 2 {more} }}')


def _image(path: str) -> None:
    pathlib.Path("one.txt").write_text(f"{path} 1\n")
    drain(_images("one.txt", _choice(path, ("", "new_height: 8 new_width: 9", "is_color: false"))), 1)


def _image_list(path: str) -> None:
    drain(_images(path, 'root_folder: "files/images/" new_height: 8 new_width: 8'), 1)


def _table(path: str) -> None:
    with _named(path, ".csv") as table:
        drain(_images(table, f'root_folder: "files/images/" new_height: 8 new_width: 8 {_choice(path, ("", "label_count: 1", "label_count: 2"))}'), 1)


def _shard(path: str) -> None:
    with _named(path, ".tar") as shard:
        drain(_images(shard, "new_height: 8 new_width: 8"), 1)


@contextlib.contextmanager
def _named(path: str, suffix: str) -> Iterator[str]:
    """Yield the name of the same file with a suffix."""
    os.link(path, path + suffix)
    try:
        yield path + suffix
    finally:
        os.unlink(path + suffix)


def _windows(path: str) -> None:
    more = f'window_data_param {{ source: "{path}" batch_size: 4 fg_fraction: 0.5 context_pad: 2 }}'
    drain(_layer("WindowData", f"transform_param {{ crop_size: 12 }} {more}"), 2)


def _rows(more: str) -> str:
    return f'layer {{ name: "data" type: "HDF5Data" top: "x" top: "y" {more} }}'


def _hdf5_list(path: str) -> None:
    drain(_rows(f'hdf5_data_param {{ source: "{path}" batch_size: 4 }}'), 2)


def _hdf5_data(path: str) -> None:
    pathlib.Path("one.txt").write_text(f"{path}\n")
    drain(_rows(f'hdf5_data_param {{ source: "one.txt" batch_size: 4 shuffle: {_choice(path, ("true", "false"))} }}'), 2)


FRCNN = """
layer {{ name: "scores" type: "Input" top: "scores" input_param {{ shape {{ dim: 1 dim: 18 dim: 4 dim: 4 }} }} }}
layer {{ name: "boxes" type: "Input" top: "boxes" input_param {{ shape {{ dim: 1 dim: 36 dim: 4 dim: 4 }} }} }}
layer {{ name: "info" type: "Input" top: "info" input_param {{ shape {{ dim: 1 dim: 3 }} }} }}
layer {{ name: "rois" type: "FrcnnProposal" bottom: "scores" bottom: "boxes" bottom: "info" top: "rois" frcnn_param {{ config: "{}" }} }}
"""


def _frcnn_config(path: str) -> None:
    log.quiet(3)
    net = parse(FRCNN.format(path), proto.NetParameter)
    for phase in (proto.TRAIN, proto.TEST):
        build(phase_net(net, phase), phase)


def _onnx(path: str) -> None:
    from ocaffe.convert.import_model import load

    load(path)


# seeds

TABLE = tuned_tables.table({"kind": "gpu", "compute_units": 132}, {f"gemm 1x{size}x3 fp32": "64x64x16 by 4x8" for size in range(5)})
PAYLOADS = (b"the binary of a program " * 20, b"another binary")


def _parsed(kind: Any, *patterns: str) -> list[Any]:
    return [kind.FromString(data) for data in workplace.contents(*patterns)]


def _solvers() -> list[Any]:
    return [parse(data.decode(), proto.SolverParameter) for data in workplace.contents("solvers/*.solver.prototxt", "zoo/*/solver.prototxt")]


def _label_maps() -> list[Any]:
    made = proto.LabelMap()
    for number, name in enumerate(("none_of_the_above", "cat", "dog")):
        made.item.add(name=name, label=number, display_name=name)
    return [made]


def _annotation_files() -> list[bytes]:
    box = "<bndbox><xmin>1</xmin><ymin>2</ymin><xmax>30</xmax><ymax>40</ymax></bndbox>"
    voc = f"<annotation><size><width>50</width><height>60</height></size><object><name>cat</name><difficult>1</difficult>{box}</object></annotation>"
    coco = '{"image": {"height": 60, "width": 50}, "annotation": [{"bbox": [1.5, 2, 30, 40], "category_id": 3, "iscrowd": 0}]}'
    return [voc.encode(), coco.encode(), b"1 1 2 30 40\n2 5.5 6 7 8\n"]


def _coco_files() -> list[bytes]:
    return [
        b'{"images": [{"id": 1, "file_name": "1.png", "width": 50, "height": 60}, {"id": 7, "file_name": "2.png"}], "categories": [{"id": 3, "name": "cat"}], '
        b'"annotations": [{"image_id": 1, "category_id": 3, "bbox": [1.5, 2, 30, 40], "iscrowd": 0}, {"image_id": 7, "category_id": 3, "bbox": [0, 0, 1, 1]}]}'
    ]


def _labelme_files() -> list[bytes]:
    return [
        b'{"imagePath": "images/train/1.png", "imageHeight": 60, "imageWidth": 50, "shapes": [{"label": " cat", "points": [[1, 2], [3.5, 4]], '
        b'"shape_type": "rectangle"}, {"label": "dog", "points": [[1, 2], [3, 4], [5, 6]], "shape_type": "polygon", "flags": {}}]}'
    ]


def _score_files() -> list[bytes]:
    curve = {"name": "cat", "boxes": 2, "detections": 3, "score": [0.5], "recall": [0.5], "precision": [1.0]}
    shares = [{"name": "sky", "iou": 0.5}, {"name": "x", "iou": None}]
    found = {"eval": {"ap_version": "Integral", "mean": 0.5, "classes": [curve]}}, {"iou": {"mean": 0.25, "classes": shares}}
    return [json.dumps(each).encode() for each in found]


def _frcnn_configs() -> list[bytes]:
    anchors = ", ".join("-84, -40, 99, 55" for _ in range(9))
    values = {"feat_stride": "16", "anchors": anchors, "rpn_min_size": 16, "rpn_nms_thresh": "0.7", "test_rpn_post_nms_top_n": "300", "test_soft_nms": 0}
    return [json.dumps(values).encode(), b'{"rpn_pre_nms_top_n": 6000.5, "n_classes": "21", "anchors": "0, 0, 15, 15"}']


def _rcnn_cfgs() -> list[bytes]:
    return [b"EXP_DIR: a\nTRAIN:\n  SCALES: [600]  # one\n  RPN_MIN_SIZE: 16\n  BG_THRESH_LO: 0.0\nTEST:\n  MAX_SIZE: 1000\n", b"TRAIN:\n  BBOX_REG: True\n"]


def _descriptions() -> list[bytes]:
    lists = b"train: images/train\nnames: [cat, 'dog']  # both\nnc: 2\n"
    return [lists, b"path: ../a\ntrain: [images/train]\nval:\n  - images/train\nnames:\n  0: cat\n  1: dog\n"]


def _entries() -> list[bytes]:
    """The files of entries with both payloads; the first is that of the key."""
    entries = Entries("programs")
    assert entries.folder is not None
    made = []
    for key, payload in zip(("key", "other"), PAYLOADS):
        entries.store(key, payload)
        made.append((entries.folder / key).read_bytes())
    return made


def _means() -> list[Any]:
    array = np.arange(24, dtype=np.float32)
    shaped = proto.BlobProto(data=array.tolist())
    shaped.shape.dim.extend((2, 3, 4))
    doubles = proto.BlobProto(num=1, channels=2, height=3, width=4, double_data=array.tolist())
    return [*_parsed(proto.BlobProto, "files/*.binaryproto"), shaped, doubles]


def _npy_and_means(rng: random.Random, seeds: Sequence[Any]) -> bytes:
    """Mean files, one in ten a damaged file of numpy."""
    if rng.random() < 0.9:
        return of_messages(rng, seeds)
    buffer = io.BytesIO()
    np.save(buffer, np.zeros((1, 3, 4, 5), np.float32))
    return damage(rng, buffer.getvalue(), buffer.getvalue())


def _tables() -> list[bytes]:
    lists = workplace.contents("files/images*.txt")
    return [*(text.replace(b" ", b",") for text in lists), b"file;class\r\n\"im00.png\";cat\r\nim01.png;dog\r\n", b"im00.png\t1\t0.5\nim01.png\t2\t0.25\n"]


def _shards() -> list[bytes]:
    """Shards in all formats of tar, some with long names."""
    made, images = [], workplace.contents("files/images/im0*.png")
    for form in (tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT):
        for stem in ("{}", "folder/{}" + "x" * (20 if form == tarfile.USTAR_FORMAT else 200)):
            buffer = io.BytesIO()
            with tarfile.open(fileobj=buffer, mode="w", format=form) as tar:
                for number, content in enumerate(images[:3]):
                    for suffix, data in (("png", content), ("cls", b"%d" % number) if number else ("json", b'{"label": 3}')):
                        member = tarfile.TarInfo(f"{stem.format(number)}.{suffix}")
                        member.size = len(data)
                        tar.addfile(member, io.BytesIO(data))
            made.append(buffer.getvalue())
    return made


def _headers(rng: random.Random, seeds: Sequence[bytes]) -> bytes:
    """Tar files: half of them have a damaged header with the right sum of its bytes."""
    if rng.random() < 0.5:
        return of_bytes(rng, seeds)
    content = bytearray(rng.choice(seeds))
    at = rng.choice([n for n in range(0, len(content), tarfile.BLOCKSIZE) if content[n + 257 : n + 262] == b"ustar"])
    for field in rng.choices(((0, 100), (124, 12), (156, 1), (157, 100), (257, 8), (345, 155)), k=2):
        size = field[1]
        content[at + field[0] : at + sum(field)] = rng.choice((bytes(size), rng.randbytes(size), b"\xff" * size, b"7" * size, b"\x80".ljust(size, b"\0")))
    head = content[at : at + tarfile.BLOCKSIZE]
    content[at + 148 : at + 156] = b"%06o\0 " % (sum(head[:148]) + sum(head[156:]) + 8 * ord(" "))
    return bytes(content)


def _anything() -> list[bytes]:
    files = workplace.contents("files/*.caffemodel*", "files/*.solverstate*", "files/*.binaryproto", "files/*.prototxt", "data/*.h5")
    return [*files, *(model.SerializeToString() for model in workplace.onnx_models())]


SECTIONS: dict[str, Section] = {
    "net": Section(workplace.nets, of_prototxts, _net),
    "solver": Section(_solvers, of_prototxts, _solver),
    "caffemodel": Section(lambda: _parsed(proto.NetParameter, "files/*.caffemodel", "upgrade/*caffemodel*", "weights/*.caffemodel"), of_messages, _weights),
    "solverstate": Section(lambda: _parsed(proto.SolverState, "files/*.solverstate", "solvers/*.solverstate"), of_messages, read_state),
    "caffemodel-hdf5": Section(lambda: workplace.contents("files/*.caffemodel.h5", "solvers/*.caffemodel.h5"), of_bytes, _blobs),
    "solverstate-hdf5": Section(lambda: workplace.contents("files/*.solverstate.h5", "solvers/*.solverstate.h5"), of_bytes, read_state),
    "mean": Section(_means, _npy_and_means, read_blobproto),
    "datum": Section(workplace.datums, of_messages, _datum),
    "annotated": Section(lambda: [workplace.annotated(datum) for datum in workplace.datums()], of_messages, _annotated),
    "lmdb": Section(workplace.databases, of_pages, _lmdb),
    "image": Section(workplace.image_files, of_bytes, _image),
    "image-list": Section(lambda: workplace.contents("files/images*.txt"), of_text, _image_list),
    "table": Section(_tables, of_text, _table),
    "shards": Section(_shards, _headers, _shard),
    "windows": Section(lambda: workplace.contents("data/windows.txt"), of_text, _windows),
    "hdf5-list": Section(lambda: workplace.contents("data/h5_*.txt"), of_text, _hdf5_list),
    "hdf5-data": Section(lambda: workplace.contents("data/*.h5"), of_bytes, _hdf5_data),
    "onnx": Section(workplace.onnx_models, of_messages, _onnx),
    "onnx-strangers": Section(strangers.onnx_strangers, strangers.of_strangers, strangers.onnx_stranger),
    "sidecar": Section(strangers.sidecars, of_json, strangers.sidecar),
    "numpy": Section(strangers.arrays, strangers.of_arrays, strangers.numpy_file),
    **({"leveldb": Section(strangers.leveldbs, strangers.of_leveldbs, strangers.leveldb(_leveldb))} if strangers.HAS_LEVELDB else {}),
    "scores": Section(_score_files, of_json, read_class_scores),
    "frcnn-config": Section(_frcnn_configs, of_json, _frcnn_config),
    "rcnn-cfg": Section(_rcnn_cfgs, of_text, read_configuration),
    "label-map": Section(_label_maps, of_prototxts, read_label_map),
    "classes": Section(lambda: [b"cat 1 cat\ndog 2 dog\n", b"cat\ndog\n", *workplace.contents("files/images*.txt")], of_text, _classes),
    "annotations": Section(_annotation_files, of_text, _annotations),
    "voc-set": Section(lambda: _annotation_files()[:1], of_xml, lambda path: box_sets.check("voc", path, read_voc)),
    "coco-set": Section(_coco_files, of_json, _set_of(read_coco, "train/a.json")),
    "labelme-set": Section(_labelme_files, of_json, lambda path: box_sets.check("labelme", path, read_labelme)),
    "yolo-set": Section(_descriptions, of_text, _set_of(read_yolo, "data.yaml")),
    "yolo-boxes": Section(lambda: [b"0 0.5 0.5 0.25 0.25\n1 0.1 0.1 0.9 0.1 0.9 0.9\n"], of_text, lambda path: box_sets.check("yolo", path, read_yolo)),
    "colors": Section(lambda: [b"name,r,g,b\nsky,1,2,3\nvoid,0,0,0\n", b"64 128 64\tAnimal\n192 0 128 Archway\n"], of_text, read_color_table),
    "tuned": Section(lambda: [TABLE.encode()], of_text, _tuned),
    "cache": Section(_entries, of_bytes, _entry),
    "log": Section(lambda: workplace.contents("files/caffe_train*.log"), of_text, _log),
    "summary": Section(_anything, of_bytes, _summary),
    "upgrade": Section(lambda: workplace.contents("upgrade/*caffemodel*", "files/*.caffemodel"), of_bytes, _upgrade),
}


def generator(section: str, seed: int, number: int) -> random.Random:
    """The random numbers of one case."""
    return random.Random(f"{section} {seed} {number}")


def made(section: str, seeds: Sequence[Any], seed: int, number: int) -> bytes:
    """The input of one case."""
    return SECTIONS[section].damage(generator(section, seed, number), seeds)


def read(section: str, data: bytes, number: int = 0) -> None:
    """Give an input to the reader of a section. Every number has its own file, because readers may keep files open."""
    path = pathlib.Path(f"input-{os.getpid()}-{number}")
    path.write_bytes(data)
    try:
        SECTIONS[section].read(str(path))
    finally:
        path.unlink()


def fuzz(section: str, chosen: Options, tally: Tally) -> None:
    """Run the cases of one section."""
    seeds = SECTIONS[section].seeds()
    numbers = range(chosen.first, chosen.first + chosen.count)
    for begin in range(0, len(numbers), CHUNK):
        if tally.spent():
            return
        chunk = numbers[begin : begin + CHUNK]
        for number, outcome in isolated(chunk, lambda number: read(section, made(section, seeds, chosen.seed, number), number), LIMITS):
            bad = outcome.kind not in ("ok", "error")
            tally.add(outcome, number, made(section, seeds, chosen.seed, number) if bad else b"")
            if tally.spent():
                break


def campaign(chosen: Options) -> int:
    """Run each section with each seed in a process of its own, several at a time. Print the lines of all, and the speed of each section."""
    low, _, high = chosen.seeds.partition(":")
    seeds = range(int(low), int(high or int(low) + 1))
    jobs = [(section, seed) for seed in seeds for section in ([chosen.section] if chosen.section else SECTIONS)]

    def run(job: tuple[str, int]) -> tuple[str, subprocess.CompletedProcess[str]]:
        flags = ["--section", job[0], "--seed", str(job[1]), "--first", str(chosen.first), "--count", str(chosen.count), "--findings", str(chosen.findings)]
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        return job[0], subprocess.run([sys.executable, "-m", "tests.abuse.fuzz", *flags], stdout=subprocess.PIPE, text=True, check=False, env=environment)

    figures: dict[str, list[float]] = {section: [0, 0] for section, _ in jobs}
    status = 0
    with ThreadPoolExecutor(chosen.processes) as pool:
        for section, done in pool.map(run, jobs):
            print(done.stdout, end="", flush=True)
            status |= done.returncode
            for line in done.stdout.splitlines():
                if line.startswith('{"part"'):
                    told = json.loads(line)
                    figures[section] = [figures[section][0] + told["cases"], figures[section][1] + told["seconds"]]
    for section, (cases, seconds) in figures.items():
        print(f"{section:20} {cases:12,.0f} inputs {seconds:10,.1f} s {cases / max(seconds, 0.1):10,.0f} inputs/s", file=sys.stderr)
    return status


def main() -> int:
    chosen = options("fuzz", 1000, tuple(SECTIONS), seeds=True)
    if chosen.seeds:
        return campaign(chosen)
    status = 0
    importlib.import_module("h5py")  # once, before children are made
    share_child()
    sections = [chosen.section] if chosen.section else list(SECTIONS)
    chosen.seconds /= len(sections)
    with workplace.workplace() as folder:
        os.environ["OCAFFE_CACHE"] = str(folder / "cache")
        for section in sections:
            chosen.section = section
            tally = Tally("fuzz", chosen)
            fuzz(section, chosen, tally)
            status |= tally.finish()
    return status


if __name__ == "__main__":
    raise SystemExit(main())
