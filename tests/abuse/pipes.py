"""Pipes, devices and folders in place of each file that a command or a net names: `python -m tests.abuse.pipes`.

A command must end with an Error at once: a pipe has no writer, and /dev/zero has no end. INPUTS has a command line for each argument that names a file to
read. Every other argument with a value is in NO_INPUTS; a test compares both with the parsers. Fields of nets are found in the descriptors of messages.
"""
from __future__ import annotations

import argparse
import json
import os
import pathlib
import re
import shutil
import tempfile
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

from ocaffe.cli import COMMANDS
from ocaffe.cli import main as ocaffe
from ocaffe.cli.parsers import NESTED, parser_of
from ocaffe.formats.text import read_net, write_text
from ocaffe.formats.weights import write_weights
from tests.abuse import workplace
from tests.abuse.fuzz import drain
from tests.abuse.harness import GOOD, Limits, Outcome, isolated

LIMITS = Limits(seconds=20)  # of a command, with its imports on a busy machine
KINDS = ("pipe", "device", "folder")
NAMES = re.compile(r"(^|_)(file|source|folder|config|video)(s|_name|_suffix)?$|^meanfile$")  # fields of messages that may name files

# arguments whose values are no files to read: of all commands, and of single ones
NO_INPUTS = {
    "gpu", "device", "kind", "stage", "memory_limit", "max_slowdown", "sigint_effect", "sighup_effect", "sigterm_effect", "settings", "batch", "shape",
    "phase", "transform", "resize", "out", "json", "html", "log_json", "tensorboard", "log", "scores", "ap_version", "output", "write", "annotate", "to",
    "sha256", "url", "name", "ignore", "with", "by", "only", "nets", "cut_at", "verify_in", "encode_type", "image_suffix", "mask_suffix", "size",
    "objects", "splits", "length", "root_folder", "parts", "delimiter", "channel_swap", "images_dim", "ext", "crop_mode", "type", "image", "blobs",
    "databases", "output_file", "output_dir", "target", "scheme", "method",
    *("fit augment", "fit freeze", "new augment", "dataset folder", "create_label_map label_map_file", "convert_imageset database", "convert_annoset database",
      "install-links folder", "plan dump"),
}  # fmt: skip
_WEIGHTS = "w.caffemodel"
_PREDICT = f"predict --model deploy.prototxt --weights {_WEIGHTS} --resize 8,8 --scale 1 --mean 0"
_QUANTIZE = f"quantize deploy.prototxt {_WEIGHTS} --out o --resize 8,8 --scale 1"
_DETECTION = "--anno_type=detection --label_map_file="
_CLASSIFY, _DETECT = "o.npy --images_dim=8,8 --mean_file=", "o.h5 --crop_mode list --mean_file="
TOLD = re.compile(  # what a message says of the special file
    "not a plain file|not a folder|is no folder|leads out of the folder|"  # the device lies behind a link
    "not exist|no such file|a database is a folder|has no file|has no list|Not a directory|is empty .0 bytes.|no names of classes"
)
# the argument (a flag, or a positional by its place) -> command lines, where {} is the pipe; {.npy}: a pipe whose name ends so
INPUTS: dict[str, dict[str, list[str]]] = {
    "fit": {
        "data": ["fit {} --net lenet --out o", "fit {.csv} --net lenet --out o", "fit {.txt} --net lenet --out o", "fit {.tar} --net lenet --out o"],
        "net": ["fit images --net {} --out o", "fit images --net {.prototxt} --out o"],
        "val": ["fit images --net lenet --out o --val {.csv}"],
        "weights": ["fit images --net lenet --out o --weights {.caffemodel}"],
    },
    "predict": {
        "inputs": ["predict {}", f"{_PREDICT} {{.png}}"],
        "model": ["predict --model {} --weights files/init.caffemodel image.png"],
        "weights": [f"{_PREDICT} image.png --weights {{}}", f"{_PREDICT} image.png --weights {{.caffemodel.h5}}"],
        "labels": [f"{_PREDICT} --labels {{}} image.png"],
        "mean": [f"{_PREDICT} image.png --mean {{}}", f"{_PREDICT} image.png --mean {{.npy}}"],
        "quantized": [f"{_PREDICT} image.png --quantized {{}}"],
        "(beside)": ["predict --model deploy.prototxt --weights sidecar.caffemodel image.png"],
    },
    "new": {
        "net": ["new {} --data images --out o", "new {.prototxt} --data images --out o"],
        "data": ["new lenet --data {} --out o", "new lenet --data {.csv} --out o"],
        "val": ["new lenet --data images --out o --val {.csv}"],
        "weights": ["new lenet --data images --out o --weights {.caffemodel}"],
    },
    "zoo get": {"from": ["zoo get vgg16 --to o --from {} --sha256 " + "0" * 64, "zoo get vgg16 --to o --from {}"]},
    "train": {
        "solver": ["train --solver {}"],
        "snapshot": ["train --solver files/solver.prototxt --snapshot {}", "train --solver files/solver.prototxt --snapshot {.solverstate.h5}"],
        "weights": ["train --solver files/solver.prototxt --weights {}", "train --solver files/solver.prototxt --weights {.caffemodel.h5}"],
        "imdb": ["train --solver rcnn.prototxt --imdb {}"],
        "proposals": ["train --solver rcnn.prototxt --imdb boxes_lmdb --proposals {.npz}"],
        "cfg": ["train --solver files/solver.prototxt --cfg {.yml}"],
    },
    "test": {
        "model": ["test --model {} --weights files/init.caffemodel"],
        "weights": ["test --model files/train_net.prototxt --weights {}", "test --model files/train_net.prototxt --weights {.caffemodel.h5}"],
        "imdb": ["test --model files/train_net.prototxt --weights files/init.caffemodel --imdb {}"],
        "cfg": ["test --model files/train_net.prototxt --weights files/init.caffemodel --cfg {.yml}"],
        "quantized": ["test --model files/train_net.prototxt --quantized {}"],
    },
    "quantize": {
        "net": ["quantize {} files/init.caffemodel --out o"],
        "weights": ["quantize files/train_net.prototxt {} --out o", "quantize files/train_net.prototxt {.caffemodel.h5} --out o"],
        "data": [f"{_QUANTIZE} --data {{}} --mean 0", f"{_QUANTIZE} --data {{.txt}} --mean 0"],
        "mean": [f"{_QUANTIZE} --data images --mean {{}}", f"{_QUANTIZE} --data images --mean {{.npy}}"],
        "train": ["quantize files/train_net.prototxt files/init.caffemodel --out o --train {}"],
    },
    "time": {"model": ["time --model {}"], "solver": ["time --profile --solver {}"]},
    "plan": {"solver": ["plan --solver {}"], "model": ["plan --model {}"]},
    "summary": {"net": ["summary {}"], "model": ["summary --model {}"]},
    "lint": {
        "files": ["lint {}"], "weights": ["lint files/solver.prototxt --weights {}"], "imdb": ["lint rcnn.prototxt --imdb {}"],
        "proposals": ["lint rcnn.prototxt --imdb boxes_lmdb --proposals {.npz}"], "cfg": ["lint files/solver.prototxt --cfg {.yml}"],
    },
    "plot": {"files": ["plot {} -o o.svg", "plot {.json} -o o.svg", "plot files/caffe_train.log {} -o o.svg"]},
    "compare": {
        "net": ["compare {}"], "model": ["compare --model {}"], "weights": ["compare --model files/train_net.prototxt --weights {}"],
        "caffemodel": ["compare files/train_net.prototxt {}"],
        "dump": [f"compare deploy.prototxt {_WEIGHTS} --dump {{{suffix}}}" for suffix in ("", ".npz")],
        "map": [f"compare deploy.prototxt {_WEIGHTS} --dump files --map {{}}"],
        "scales": [f"compare deploy.prototxt {_WEIGHTS} --dump files --scales {{}}"],
        "quantized": ["compare files/train_net.prototxt --quantized {}"],
        "input": [f"compare deploy.prototxt {_WEIGHTS} --dump files --input {{{suffix}}}" for suffix in (".npy", ".npz")],
    },
    "sweep": {
        "solver": ["sweep {} --set base_lr=0.1 --out o"], "weights": ["sweep files/solver.prototxt --set base_lr=0.1 --out o --weights {}"],
        "(out)": ["sweep files/solver.prototxt --set base_lr=0.1 --out swept"],
    },
    "tune": {"solver": ["tune --solver {}"], "model": ["tune --model {}"]},
    "convert": {
        "files": [
            "convert {.onnx} o.prototxt o.caffemodel", "convert {.prototxt} o.onnx", "convert {.caffemodel} o.onnx",
            "convert deploy.prototxt {.caffemodel} o.onnx", "convert {.caffemodel} o.caffemodel.h5", "convert {.caffemodel.h5} o.caffemodel",
            "convert --summary {.solverstate}",
        ],
        "summary": [f"convert --summary {{{suffix}}}" for suffix in ("", ".caffemodel", ".onnx", ".h5", ".binaryproto", ".prototxt")],
        "verify": [f"convert --verify {{{suffix}}} deploy.prototxt {_WEIGHTS} o.onnx" for suffix in (".png", ".npy", ".npz")],
    },
    "dataset": {"from": ["dataset mnist o --from originals", "dataset cifar10 o --from originals"]},
    "dataset anchors": {"database": ["dataset anchors {}"]},
    "dataset folder": {"folder": ["dataset folder {} o"]},
    "dataset proposals": {
        "database": ["dataset proposals {} o.npz --model proposals.prototxt --weights w.caffemodel"],
        "model": ["dataset proposals boxes o.npz --model {} --weights files/init.caffemodel"],
        "weights": ["dataset proposals boxes_lmdb o.npz --model proposals.prototxt --weights {}"],
        "cfg": ["dataset proposals boxes o.npz --model deploy.prototxt --weights files/init.caffemodel --cfg {.yml}"],
    },
    "dataset masks": {
        "images": ["dataset masks {} images o"], "masks": ["dataset masks images {} o"], "colors": ["dataset masks images images o --colors {}"],
        "labels": ["dataset masks images images o --labels {}"], "lists": ["dataset masks images images o --lists lists"],
    },
    "dataset shapes": {"mnist": ["dataset shapes o --mnist originals"]},
    "dataset show": {
        "source": ["dataset show {} --out o.png", "dataset show {.csv} --out o.png", "dataset show {.txt} --out o.png"],
        "augment": ["dataset show database --augment {} --out o.png"],
    },
    "dataset text": {"mnist": ["dataset text o --mnist originals"]},
    **{
        f"dataset {kind}": {
            "folder": [f"dataset {kind} {{}} o", f"dataset {kind} sets/{kind} o --test 0"],
            "label_map_file": [f"dataset {kind} boxes/{kind} o --test 0 --label-map-file {{}}"],
        }
        for kind in ("voc", "coco", "yolo", "labelme")
    },
    "convert_imageset": {"root": ["convert_imageset {}/ list.txt o"], "list": ["convert_imageset images/ {} o", "convert_imageset images/ pipes.txt o"]},
    "convert_annoset": {
        "root": ["convert_annoset --anno_type=classification {}/ list.txt o"], "list": [f"convert_annoset images/ {{}} o {_DETECTION}map.prototxt"],
        "label_map_file": [f"convert_annoset ./ annotated.txt o {_DETECTION}{{}}"],
        "(annotations)": [f"convert_annoset ./ annotated.txt o {_DETECTION}map.prototxt --label_type={kind}" for kind in ("xml", "json", "txt")],
    },
    "create_label_map": {"map_file": ["create_label_map {} o"]},
    "compute_image_mean": {"database": ["compute_image_mean {} o", "compute_image_mean piped o", "compute_image_mean --backend=leveldb piped-leveldb o"]},
    "extract_features": {
        "weights": ["extract_features {} files/train_net.prototxt ip1 o 1 lmdb"], "model": ["extract_features files/init.caffemodel {} ip1 o 1 lmdb"],
    },
    **{f"upgrade_{kind}": {"source": [f"upgrade_{kind} {{}} o"]} for kind in ("net_proto_text", "net_proto_binary", "solver_proto_text")},
    "classify": {
        "input_file": [f"classify {{{suffix}}} {_CLASSIFY} --model-def deploy.prototxt --pretrained-model {_WEIGHTS}" for suffix in (".png", ".npy")],
        "model_def": [f"classify image.png {_CLASSIFY} --model-def {{}} --pretrained-model {_WEIGHTS}"],
        "pretrained_model": [f"classify image.png {_CLASSIFY} --model-def deploy.prototxt --pretrained-model {{}}"],
        "mean_file": [f"classify image.png o.npy --model-def deploy.prototxt --pretrained-model {_WEIGHTS} --mean-file {{{kind}}}" for kind in ("", ".npy")],
        "labels": [f"classify image.png {_CLASSIFY} --model-def deploy.prototxt --pretrained-model {_WEIGHTS} --labels {{}}"],
    },
    "detect": {
        "input_file": [f"detect {{{suffix}}} {_DETECT} --model-def deploy.prototxt --pretrained-model {_WEIGHTS}" for suffix in (".csv", ".txt")],
        "model_def": [f"detect windows.csv {_DETECT} --model-def {{}} --pretrained-model {_WEIGHTS}"],
        "pretrained_model": [f"detect windows.csv {_DETECT} --model-def deploy.prototxt --pretrained-model {{}}"],
        "mean_file": [f"detect windows.csv {_DETECT}{{{suffix}}} --model-def deploy.prototxt --pretrained-model {_WEIGHTS}" for suffix in ("", ".npy")],
    },
    "draw_net": {"net": ["draw_net {} o.svg"]},
    "parse_log": {"logfile_path": ["parse_log {} o"]},
}  # fmt: skip
BOXES = {  # the file with a box of each format, beside a.png
    "voc": ("a.xml", "<annotation><object><name>cat</name><bndbox><xmin>1</xmin><ymin>1</ymin><xmax>9</xmax><ymax>9</ymax></bndbox></object></annotation>"),
    "coco": ("a.json", '{"images": [{"id": 1, "file_name": "a.png"}], "categories": [{"id": 1, "name": "cat"}], "annotations": '
             '[{"image_id": 1, "category_id": 1, "bbox": [1, 1, 8, 8]}]}'),
    "yolo": ("a.txt", "0 0.5 0.5 0.25 0.25\n"),
    "labelme": ("a.json", '{"shapes": [{"label": "cat", "points": [[1, 1], [9, 9]], "shape_type": "rectangle"}]}'),
}  # fmt: skip
PROPOSALS = """
layer { name: "data" type: "Input" top: "data" top: "im_info" input_param { shape { dim: 1 dim: 3 dim: 64 dim: 64 } shape { dim: 1 dim: 3 } } }
layer { name: "scores" type: "Convolution" bottom: "data" top: "scores" convolution_param { num_output: 18 kernel_size: 16 stride: 16 } }
layer { name: "boxes" type: "Convolution" bottom: "data" top: "boxes" convolution_param { num_output: 36 kernel_size: 16 stride: 16 } }
layer { name: "rois" type: "Python" bottom: "scores" bottom: "boxes" bottom: "im_info" top: "rois" top: "kept"
  python_param { module: "rpn.proposal_layer" layer: "ProposalLayer" param_str: "{feat_stride: 16}" } }
"""
NONE = ("zoo", "layers", "device_query", "selftest", "report", "install-links", "completion")  # commands without a file to read


class Case(NamedTuple):
    """What is run: a command line with {} for the special file, or a field of a golden net; and the kind of the special file."""

    what: str
    kind: str
    net: int = -1


def arguments() -> Iterator[tuple[str, str]]:
    """Yield command and name of each argument that has a free text as its value."""
    for command in COMMANDS:
        for nested in ((), *((each,) for each in NESTED.get(command, ()))):
            for action in parser_of(command, *nested)._actions:
                if action.nargs != 0 and not action.choices and action.help != argparse.SUPPRESS and action.type in (None, str):
                    yield " ".join((command, *nested)), action.dest


def special(path: str, kind: str) -> None:
    """Make a pipe, a link to an endless device, or a folder."""
    if os.path.lexists(path):
        (shutil.rmtree if os.path.isdir(path) and not os.path.islink(path) else os.unlink)(path)
    pathlib.Path(path).parent.mkdir(parents=True, exist_ok=True)
    {"pipe": os.mkfifo, "device": lambda name: os.symlink("/dev/zero", name), "folder": os.mkdir}[kind](path)


def prepare() -> None:
    """Make sound files for the rest of a command line."""
    pathlib.Path("deploy.prototxt").write_text(
        'layer { name: "data" type: "Input" top: "data" input_param { shape { dim: 1 dim: 3 dim: 8 dim: 8 } } }\n'
        'layer { name: "ip" type: "InnerProduct" bottom: "data" top: "ip" inner_product_param { num_output: 2 } }\n'
        'layer { name: "prob" type: "Softmax" bottom: "ip" top: "prob" }\n'
    )
    pathlib.Path("rcnn_net.prototxt").write_text(
        'layer { name: "data" type: "Python" top: "data" top: "rois" top: "labels" top: "bbox_targets" top: "bbox_inside_weights" top: "bbox_outside_weights" '
        'python_param { module: "roi_data_layer.layer" layer: "RoIDataLayer" param_str: "{num_classes: 2}" } }\n'
    )
    pathlib.Path("rcnn.prototxt").write_text('train_net: "rcnn_net.prototxt" base_lr: 0.1 lr_policy: "fixed" max_iter: 1\n')
    pathlib.Path("proposals.prototxt").write_text(PROPOSALS)
    pathlib.Path("map.prototxt").write_text('item { name: "cat" label: 1 }\n')
    image = workplace.image_file("PNG", "RGB")
    assert image is not None
    for name in ("image.png", *(f"images/{folder}/{number}.png" for folder in ("cat", "dog") for number in range(3))):
        pathlib.Path(name).parent.mkdir(parents=True, exist_ok=True)
        pathlib.Path(name).write_bytes(image)
    pathlib.Path("list.txt").write_text("cat/0.png 0\n")
    pathlib.Path("windows.csv").write_text("filename,ymin,xmin,ymax,xmax\nimage.png,0,0,4,4\n")
    for kind, (file, content) in BOXES.items():
        for folder in ("sets", "boxes"):
            pathlib.Path(folder, kind).mkdir(parents=True, exist_ok=True)
            pathlib.Path(folder, kind, "a.png").write_bytes(image)
        pathlib.Path("boxes", kind, file).write_text(content)
    pathlib.Path("boxes", "yolo", "classes.txt").write_text("cat\n")
    workplace.database(pathlib.Path("database"), [datum.SerializeToString() for datum in workplace.datums()[:1]])
    workplace.database(pathlib.Path("boxes_lmdb"), [workplace.annotated(datum).SerializeToString() for datum in workplace.datums()[2:3]])
    write_weights("w.caffemodel", read_net("deploy.prototxt"), {"ip": [np.ones((2, 192), np.float32), np.ones(2, np.float32)]})


def surroundings(kind: str) -> None:
    """Make the special files that are not named by an argument, but by a file or by their place."""
    pathlib.Path("pipes.txt").write_text("special 0\n")
    pathlib.Path("annotated.txt").write_text("image.png special\n")
    for name in (
        "images/special", "special", "originals/train-images-idx3-ubyte", "originals/data_batch_1.bin", "sidecar.json", "sets/voc/a.xml", "sets/coco/a.json",
        "sets/yolo/data.yaml", "sets/labelme/a.json", "lists/train.txt", "piped/data.mdb", "piped-leveldb/CURRENT", "swept/base_lr=0.1/training.json",
    ):  # fmt: skip
        special(name, kind)


def fields() -> Iterator[tuple[int, str]]:
    """Yield the number of a golden net and the path of a field that may name a file: each field of each layer type once, in a net that has the layer."""
    seen = set()
    for number, net in enumerate(workplace.nets()):
        for row, layer in enumerate(net.layer):
            for part, name in _named(layer):
                if (layer.type, part, name) not in seen:
                    seen.add((layer.type, part, name))
                    yield number, f"{row} {part} {name}"


def _named(layer: Any) -> Iterator[tuple[str, str]]:
    """Yield the messages and fields of a layer that may name files. Data layers have more than those that a golden net sets."""
    for field, value in layer.ListFields():
        if field.message_type is not None and not field.is_repeated:
            yield from ((field.name, each.name) for each in value.DESCRIPTOR.fields if each.cpp_type == each.CPPTYPE_STRING and NAMES.search(each.name))
    if "Data" in layer.type:
        yield "transform_param", "mean_file"


def run_field(case: Case) -> None:
    row, part, name = case.what.split()
    special("special", case.kind)
    net = type(workplace.nets()[case.net])()
    net.CopyFrom(workplace.nets()[case.net])
    message = getattr(net.layer[int(row)], part)
    if message.DESCRIPTOR.fields_by_name[name].is_repeated:
        getattr(message, name)[:] = ["special"]
    else:
        setattr(message, name, "special")
    drain(write_text(net), 1)


LISTED = {  # nets that read the list list.txt, and a line of it with the special file as FILE
    "ImageData": ('image_data_param { source: "list.txt" batch_size: 1 new_height: 8 new_width: 8 }', "FILE 0"),
    "DenseImageData": ('dense_image_data_param { source: "list.txt" batch_size: 1 }', "FILE image.png"),
    "DenseImageData ": ('dense_image_data_param { source: "list.txt" batch_size: 1 }', "image.png FILE"),
    "HDF5Data": ("hdf5_data_param { source: \"list.txt\" batch_size: 1 }", "FILE"),
    "VideoData": ('video_data_param { source: "list.txt" batch_size: 1 new_length: 1 num_segments: 1 }', "FILE 3 0"),
    "WindowData": ('window_data_param { source: "list.txt" batch_size: 1 fg_fraction: 0.5 } transform_param { crop_size: 4 }',
                   "# 0\nFILE\n3\n14\n20\n2\n1 0.9 0 0 8 8\n0 0 0 0 8 8"),
    "ImageSegData": ('image_data_param { source: "list.txt" batch_size: 1 label_type: PIXEL }', "FILE image.png"),
    "ImageLabelmapData": ('image_data_param { source: "list.txt" batch_size: 1 }', "image.png FILE"),
    "CustomData": ('data_param { source: "list.txt" batch_size: 1 }', "FILE"),
    "ImgReader": ('reader_param { file: "FILE" }', ""),
    "FloatReader": ('reader_param { file: "FILE" }', ""),
}  # fmt: skip


def run_listed(case: Case) -> None:
    prepare()
    special("special", case.kind)
    settings, line = LISTED[case.what]
    pathlib.Path("list.txt").write_text(line.replace("FILE", "special") + "\n")
    tops = "" if case.what.endswith("Reader") else 'top: "label"'
    drain(f'layer {{ name: "data" type: "{case.what.strip()}" top: "data" {tops} {settings.replace("FILE", "special")} }}', 1)


def run_command(case: Case) -> Outcome | None:
    for path in [*pathlib.Path().glob("o"), *pathlib.Path().glob("o.*"), *pathlib.Path().glob("special*")]:
        (shutil.rmtree if path.is_dir() and not path.is_symlink() else os.unlink)(path)
    prepare()
    surroundings(case.kind)
    words = []
    for word in case.what.split():
        if match := re.search(r"\{([.\w]*)\}", word):
            special(f"special{match[1]}", case.kind)
            word = word.replace(match[0], f"special{match[1]}")
        words.append(word)
    return Outcome("error", "") if ocaffe(words) else None


def main() -> int:
    chosen = argparse.ArgumentParser(prog="python -m tests.abuse.pipes")
    chosen.add_argument("--only", default="", help="cases whose text has this")
    only = chosen.parse_args().only
    cases = [Case(line, kind) for command in INPUTS.values() for lines in command.values() for line in lines for kind in KINDS if only in line]
    cases += [Case(field, kind, number) for number, field in fields() for kind in KINDS[:2] if only in field]
    cases += [Case(name, kind) for name in LISTED for kind in KINDS[:2] if only in name]
    status = 0
    with workplace.workplace() as folder:
        os.environ["OCAFFE_CACHE"] = str(folder / "cache")
        for case, outcome in isolated(cases, told, LIMITS):
            must = case.kind != "folder" and case.net < 0  # a net may ignore a field, and a folder may be right
            good = outcome.kind == "error" and TOLD.search(outcome.note) is not None if must else outcome.kind in GOOD
            print(json.dumps({"case": case.what, "special": case.kind, "kind": outcome.kind, "note": outcome.note, "good": bool(good)}), flush=True)
            status |= not good
    return int(status)


def told(case: Case) -> Outcome | None:
    """Run a case. The note is the output of a command."""
    if case.net >= 0:
        return run_field(case)
    if case.what in LISTED:
        return run_listed(case)
    with tempfile.TemporaryFile("w+") as said:
        for stream in (1, 2):
            os.dup2(said.fileno(), stream)
        result = run_command(case)
        said.seek(0)
        text = said.read()
    return Outcome("error", " ".join(text[max(text.rfind("error:"), 0) :].split())[-600:]) if result else None


if __name__ == "__main__":
    raise SystemExit(main())
