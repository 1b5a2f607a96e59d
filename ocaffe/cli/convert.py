"""ocaffe convert: convert one kind of model file to another. The kinds of the files determine the conversion."""
from __future__ import annotations

import argparse
import importlib.util
import itertools
import os
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ocaffe.cli.flags import Parser, device_flags, refuse_overwriting, shapes_of, stages, state_flags
from ocaffe.errors import Error, names_text, within
from ocaffe.evaluation.sidecar import input_text, read_sidecar, sidecar_files
from ocaffe.shown import command, path_word, say
from ocaffe.support import log
from ocaffe.support.files import refuse_other
from ocaffe.support.kinds import foreign
from ocaffe.support.progress import heartbeat
from ocaffe.zoo.weights import EXPORT_OPTIONS

KINDS = {".prototxt": "prototxt", ".pbtxt": "prototxt", ".caffemodel": "weights", ".h5": "weights", ".hdf5": "weights", ".onnx": "onnx"}
VERIFY = ("--verify", "-verify")  # may be followed by a file that is not of these kinds
FORMS = ("input files, then output files: NET.prototxt WEIGHTS.caffemodel MODEL.onnx, or WEIGHTS.caffemodel MODEL.onnx, or MODEL.onnx NET.prototxt "
         "WEIGHTS.caffemodel, or NET.prototxt WEIGHTS.caffemodel NET2.prototxt WEIGHTS2.caffemodel (a net for deployment, docs/convert-caffe.md), or "
         "WEIGHTS.caffemodel WEIGHTS.caffemodel.h5, or back; the extensions determine the conversion")
DRAWS = 5  # of random inputs, until rounding errors change no choice of a layer: YOLO's detections depend on them for 1 to 3 of 100 random images
EXPORT = "torch.onnx.export(net.eval(), (x,), 'model.onnx', {})"
OPEN = "dynamic_axes={{'{}': {{0: 'batch'}}}}"  # leaves the batch open
EXPORTS = {  # calls that keep batch normalization
    "TorchScript": EXPORT.format(EXPORT_OPTIONS),
    "dynamo": EXPORT.format("dynamo=True, optimize=False"),
    "tf2onnx": "tf2onnx.convert.from_keras(net, optimizers=...), with all optimizers but remove_back_to_back",
}
RUNTIMES = ("opencv", "opencv-classic", "opencv-new", "onnxruntime", "openvino", "reference")  # those of ocaffe.convert.consumers
BAKE = ". --bake-preprocessing makes mean and scale a part of it"
WHY = {"fp16": ": Caffe files hold numbers of 32 bits. The chip's own tool makes 16 or 8 bits of them"}  # flags that mean nothing for Caffe files
USAGE = "ocaffe convert deploy.prototxt weights.caffemodel model.onnx"


def main(argv: Sequence[str]) -> int:
    parser = Parser("convert", "Convert models: Caffe to ONNX and back, Caffe to Caffe for deployment, weights to HDF5 and back.")
    parser.add_argument("files", nargs="*", help=FORMS)
    parser.flag("summary", "", "show the contents of a file: a net, solver, weights, state, mean, database or ONNX model")
    export_flags(parser)
    parser.flag("force", False, "write over files with other content")
    parser.flag("target", "", "write the net with the layers that this compiler or Caffe reads (docs/targets.md)")
    parser.flag("for_training", False, "refuse a model whose batch normalization the exporter has merged into convolutions")
    device_flags(parser)
    state_flags(parser)
    log.quiet()
    options = parser.parse([f"{arg}=" if arg in VERIFY and _suffix(after) in KINDS else arg for arg, after in zip(argv, [*argv[1:], ""])], intermixed=True)
    if options.summary:
        return _summary(options)
    if not options.files:
        raise Error("no files are given", place="ocaffe convert", fix=f"for example {USAGE}, or --summary FILE")
    kinds = tuple(_kind(file, file == options.files[0]) for file in options.files)
    if kinds not in CONVERSIONS:
        raise Error(f"no conversion takes the kinds {' '.join(kinds)}", place="ocaffe convert", fix=_in_order(options.files))
    convert = CONVERSIONS[kinds]
    idle = [name for name, value in vars(options).items() if value != parser.get_default(name) and name not in ("files", *READS.get(convert, (name,)))]
    if idle:
        why = WHY.get(idle[0], "") if kinds[-1] == "weights" else ""
        raise Error(f"--{idle[0].replace('_', '-')} means nothing for {' '.join(kinds)}{why}", place="ocaffe convert", fix="leave it out")
    if not options.tolerance >= 0:
        raise Error(f"--tolerance is {options.tolerance:g}", place="ocaffe convert", fix="--tolerance with a number of 0 or more")
    count = 1 + (kinds[-1] == "weights" and convert is not transcode)
    refuse_overwriting("convert", [*options.files[:-count], options.verify], options.files[-count:])
    targets = [word.partition("=")[2] or after for word, after in zip(argv, [*argv[1:], ""]) if re.fullmatch(r"--?target(=.*)?", word)]
    if len(set(targets)) > 1:
        raise Error(f"--target is given {len(targets)} times: {', '.join(targets)}", place="ocaffe convert", fix="run the command once for each target")
    try:
        return convert(options) or 0
    except MemoryError as problem:
        fact = f"the conversion needs more memory than there is{f': {problem}' if str(problem) else ''}"
        fix = "--noverify converts without a comparison, which takes less" if options.verify is not None else "end other programs, or use a machine with more"
        raise Error(fact, place=options.files[0], fix=fix) from problem


def _suffix(file: str) -> str:
    return Path(file).suffix.lower()


def _kind(file: str, source: bool) -> str:
    """Return the kind of a file by its name. `source`: it is to be read."""
    suffix = _suffix(file)
    if suffix not in KINDS:
        other = foreign(file) if source else None
        if other is not None:
            raise Error(f"'{file}' is {other.name}, which ocaffe does not read", place="ocaffe convert", fix=other.way)
        fact = f"the name '{file}' ends with none of {', '.join(KINDS)}"
        raise Error(fact, place="ocaffe convert", fix=f"give names of these kinds, in this order: {_orders()}")
    return KINDS[suffix]


def _orders() -> str:
    return "; ".join(" ".join(names) for names in CONVERSIONS)


def _in_order(files: Sequence[str]) -> str:
    """Return the remedy for files of known kinds that no conversion takes: their right order, or the orders of all conversions."""
    first, *rest = files
    for order in itertools.permutations(rest) if len(files) < 5 else ():
        if tuple(_kind(file, False) for file in (first, *order)) in CONVERSIONS:
            return command("ocaffe", "convert", *map(path_word, (first, *order)))
    return f"give files of these kinds, in this order: {_orders()}"


def _summary(options: argparse.Namespace) -> int:
    from ocaffe.tools.file_summary import summarize

    if options.files:
        words = "ocaffe", "convert"
        files, one = command(*words, *map(path_word, options.files)), command(*words, "--summary", path_word(options.summary))
        fix = f"`{files}` converts, `{one}` shows {options.summary}: give one of the two"
        raise Error(f"--summary is given with files to convert ({' '.join(options.files)})", place="ocaffe convert", fix=fix)
    say(*summarize(options.summary))
    return 0


def import_onnx(options: argparse.Namespace) -> None:
    """Convert onnx to prototxt and weights. The net is compared with the model before it is written.

    --shape, --cut-at, --fold and --raw-detection are those of the export.
    """
    from ocaffe.convert.caffe.rewrite import folded
    from ocaffe.convert.detector import decoding_note, raw_outputs
    from ocaffe.convert.import_model import draws, import_net, is_training, merged_norms, refuse_changed, write
    from ocaffe.convert.import_verify import comparable
    from ocaffe.convert.importer.read import read_model

    table = _target(options)
    source, net, weights = options.files
    outputs = [name for name in options.cut_at.split(",") if name]
    model = read_model(source)
    if options.raw_detection and outputs:
        raise Error("--raw-detection and --cut-at both say where the net ends", place="ocaffe convert", fix="give one of the two")
    if options.raw_detection:
        outputs = raw_outputs(model, source)
    exporter = merged_norms(model)
    if exporter and options.for_training:
        fact = f"{exporter}'s exporter has merged batch normalization into the convolutions, so a training would have none"
        raise Error(fact, place=source, fix=f"{EXPORTS[exporter]}, or leave out --for-training")
    shapes = shapes_of(options.shape, "convert")
    imported = import_net(model, source, shapes=shapes, outputs=outputs)
    if table is not None:
        _refuse_rounding(imported.net.layer, table, source)
    if options.fold:
        imported.net, imported.blobs = folded(imported.net, imported.blobs)
    changed = _retargeted(imported, model, outputs, table, source) if table is not None else ""
    message, blobs = imported.net, imported.blobs
    cut_off = decoding_note(model, source, shapes, outputs) if outputs else []
    if not options.force:
        refuse_changed(message, blobs, source, net, weights)
    if options.verify is None:
        verdict = "not verified (--noverify)"
    elif any(map(is_training, model.graph.node)):
        verdict = "not verified, because the model normalizes by the batch"
    elif draws(model):
        verdict = "not verified, because a Dropout of the model drops values at random"
    else:
        axes = imported.batch if imported.open and not imported.fixed else {}
        with within(source):
            compared = comparable(model, message, blobs, shapes=shapes, outputs=outputs, batch=axes)
            verdict = _verified(compared, options, imported)
    write(message, blobs, source, net, weights)
    say(f"{net}, {weights}: {len(message.layer)} layers from {source}; {verdict}", *filter(None, [changed]), *cut_off)
    if imported.fixed:
        name, axis = next(iter(imported.batch.items()))
        size = next(layer.input_param.shape[0].dim[axis] for layer in message.layer if name in layer.top)
        remedy = "" if imported.open else f"; for other batches {EXPORT.format(OPEN.format(name))}, or dynamic_shapes with dynamo=True"
        say(f"note: the net takes only the batch of {size}: {imported.fixed}{remedy}")
    if exporter:
        say(f"note: batch normalization is merged into the convolutions of {source}. To train with it, export the model again:", f"  {EXPORTS[exporter]}")


def _target(options: argparse.Namespace) -> Any:
    """Return the table of --target, None without it."""
    from ocaffe.convert.targets.table import read_table

    with within("ocaffe convert"):
        return read_table(options.target) if options.target else None


def _refuse_rounding(layers: Sequence[Any], table: Any, source: str) -> None:
    """Refuse a net that rounds as a chip does. The tools of chips take the net in floats, and round it themselves."""
    found = next((layer for layer in layers if layer.type == "FakeQuantize" or layer.HasField("weight_quantization_param")), None)
    if found is None:
        return
    from ocaffe.quantize.output import NET, WEIGHTS

    beside = [str(Path(source).with_name(name)) for name in (NET, WEIGHTS)]
    fix = f"give the net in floats beside it: {' '.join(map(path_word, beside))}" if all(map(os.path.exists, beside)) else (
        f"give the net in floats: {NET} and {WEIGHTS} of `ocaffe quantize`, or the model from which this one was made")  # fmt: skip
    fact = f"the net rounds values or weights, and {table.name} reads nets in floats"
    raise Error(fact, place=source, layer=f"'{found.name}' ({found.type})", fix=fix)


def _retargeted(imported: Any, model: Any, outputs: Sequence[str], table: Any, place: str) -> str:
    """Replace the net of `imported` by one of the target's layers. Return what was rewritten, as a sentence."""
    from ocaffe.convert.caffe.net import net_of
    from ocaffe.convert.targets.rules.retarget import retarget

    ends = list(dict.fromkeys(outputs or (info.name for info in model.graph.output)))
    named = {name: tuple(node.input) for node in model.graph.node if node.op_type != "Constant" for name in node.output}
    free = [name for name in imported.batch if not imported.fixed and not any(imported.batch.values())]
    made = retarget(net_of(imported.net, imported.blobs, ends), table, place, free, named)
    imported.net, imported.blobs, imported.fixed = made.net.message(), made.net.weights(), imported.fixed or made.fixed
    return str(made)


def transcode(options: argparse.Namespace) -> None:
    """Convert weights between .caffemodel and .caffemodel.h5, with an optional prototxt."""
    from ocaffe.formats.transcode import convert_weights

    *net, source, target = options.files
    if not options.force:
        refuse_other(target, lambda path: convert_weights(source, path, net[0] if net else None))
    convert_weights(source, target, net[0] if net else None)
    say(f"{target}: the weights of {source}")


# -- to ONNX ---------------------------------------------------------------------------------------------------------


def export_flags(parser: Parser) -> None:
    parser.flag("opset", 17, "opset of the ONNX model")
    parser.flag("dynamic_batch", False, "let the model take any batch size")
    parser.flag("fold", False, "fold BatchNorm, Scale and Bias into the convolution or product before them; to Caffe files also into those behind them")
    parser.flag("fp16", False, "use 16 bits for weights and arithmetic; inputs and outputs keep 32")
    parser.flag("cut_at", "", "end with these blobs, separated by ','")
    parser.flag("raw_detection", False, "end with the bottoms of DetectionOutput, or an ONNX detector with its last convolutions")
    parser.flag("activate_losses", False, "replace losses by the Softmax or Sigmoid inside them; by default losses are removed")
    parser.flag("bake_preprocessing", False, "include the mean and scale of the data layer in the model")
    parser.flag("fillers", False, "use the fillers for layers that the weights lack")
    parser.flag("shape", "", "shapes of inputs, for example data:1x3x224x224,im_info:1x3; a data layer then needs no data")
    parser.flag("tolerance", 0.0, "largest accepted difference of a layer, as a share of its largest magnitude; 0 means what rounding explains")
    what = "compare with ocaffe on this image or .npz; by default on random numbers; --noverify: write the file without comparing"
    parser.add_argument(*VERIFY, dest="verify", nargs="?", const="", default="", help=what)
    parser.flag("verify_in", "", f"compare in this runtime, in a process of its own: {', '.join(RUNTIMES)}")
    parser.add_argument("--noverify", "-noverify", dest="verify", action="store_const", const=None, help=argparse.SUPPRESS)


def export_onnx(options: argparse.Namespace) -> None:
    """Convert prototxt and optional weights to onnx. The model is verified before it is written."""
    from ocaffe.convert.export import export
    from ocaffe.convert.model import data_of, save
    from ocaffe.convert.tensorrt import VERSION, unlisted

    *inputs, target = options.files
    net, weights = _sources(inputs)
    if options.verify_in and options.verify_in not in RUNTIMES:
        fix = f"--verify-in with one of {', '.join(RUNTIMES)}; for TensorRT's list of operators {command('ocaffe', 'convert', '--summary', path_word(target))}"
        raise Error(f"--verify-in is '{options.verify_in}'", place="ocaffe convert", fix=fix)
    if options.verify_in and options.verify is None:
        raise Error("--verify-in is given with --noverify", place="ocaffe convert", fix="leave out --noverify to compare, or --verify-in not to")
    wanted = _wanted(options, weights)
    exported = export(net, weights[0] if weights else None, wanted)
    found = read_sidecar(weights[0]) if weights else None
    if found is not None:
        settings, labels = found
        told = {"labels": "\n".join(labels), "preprocessing": "" if wanted.bake else input_text(settings)}
        for key, value in told.items():
            if value:
                exported.model.metadata_props.add(key=key, value=value)
    if not options.force:
        refuse_other(target, lambda path: save(exported.model, path), data_of(Path(target)))
    verdict = "not verified (--noverify)" if options.verify is None else _verified(exported, options)
    files = save(exported.model, target)
    say(f"{', '.join(map(str, files))}: {len(exported.model.graph.node)} nodes, opset {options.opset}, {_sizes(exported)}; {verdict}")
    if exported.deployed.note:
        say(f"note: {exported.deployed.note}")
    missing = unlisted(exported.model)
    if missing:
        say(f"note: {VERSION} does not list {len(missing)} of its kinds of nodes: {missing[0]}{'; ..' * (len(missing) > 1)}")
    if not wanted.bake and (exported.deployed.prepared or found is not None):
        how = input_text(found[0]) if found is not None else exported.deployed.prepared
        say(f"the model expects images as in the training: {how}{BAKE * (found is None)}")
    batch = next((each.type.tensor_type.shape.dim[:1] for each in exported.model.graph.input), [])
    if not options.dynamic_batch and any(size.dim_value > 1 for size in batch):
        say(f"the batch is fixed to {batch[0].dim_value}; --dynamic-batch makes it free")


def _sources(files: Sequence[str]) -> tuple[Any, Sequence[str]]:
    """Return the net, a prototxt or the message that a .caffemodel has, and the files of weights."""
    return (files[0], files[1:]) if KINDS[_suffix(files[0])] == "prototxt" else (_net_in(files[0]), files)


def _wanted(options: argparse.Namespace, weights: Sequence[str]) -> Any:
    """Return the Options of an export, or of a net for deployment."""
    from ocaffe.convert.options import Options

    return Options(
        opset=options.opset, dynamic_batch=options.dynamic_batch, fold=options.fold, fp16=options.fp16,
        raw_detection=options.raw_detection, beside=_beside(weights) if options.bake_preprocessing else None,
        bake=options.bake_preprocessing, activate=options.activate_losses, fillers=options.fillers,
        cut_at=[name for name in options.cut_at.split(",") if name], shapes=shapes_of(options.shape, "convert"),
        level=options.level, stages=stages(options.stage), unknown_fields=options.allow_unknown_fields,
    )  # fmt: skip


def _net_in(weights: str) -> Any:
    """Return the net that a .caffemodel holds beside the weights, without them. Raises Error if there is none."""
    from ocaffe.formats.binary import read_net_binary
    from ocaffe.formats.sniff import is_hdf5, open_head

    net = None if is_hdf5(open_head(weights, "a caffemodel")) else read_net_binary(weights)
    layers = [] if net is None else [*net.layer, *net.layers]
    if not any(layer.bottom for layer in layers):
        raise Error("the file has weights, but no net", place=weights, fix=f"give its prototxt too: {USAGE}")
    for layer in layers:
        layer.ClearField("blobs")
    return net


def _beside(weights: Sequence[str]) -> Any:
    """Return the pixel transform that the training wrote beside the weights, None without it. A mean image is cropped to the net's input."""
    from ocaffe.convert.deploy import Preprocessing
    from ocaffe.evaluation.preprocessing import Preprocessing as Cropped

    found = read_sidecar(weights[0]) if weights else None
    if found is None:
        return None
    settings, _ = found
    mean = settings.mean if settings.mean.ndim == 3 else settings.mean.reshape(-1, 1, 1)
    if isinstance(settings, Cropped) and settings.mean.ndim == 3:
        top, left = ((whole - part) // 2 for whole, part in zip(settings.resized, settings.shape[1:]))
        mean = mean[:, top : top + settings.shape[1], left : left + settings.shape[2]]
    return Preprocessing(mean.astype(np.float32) if mean.any() else None, settings.scale)


def _verified(exported: Any, options: argparse.Namespace, imported: Any = None) -> str:
    """Compare the net with its model. A net that was imported for any batch is compared at a second one; `imported.fixed` says if it fails there."""
    from ocaffe.cl.device import list_devices, select_device
    from ocaffe.convert.cost import check_cost
    from ocaffe.convert.import_verify import batch_sizes, by_sample, other_batch, pixels
    from ocaffe.convert.verify import Feeds, Undecided, inputs_from, opened, random_inputs, verify

    if not (options.device or options.gpu) and all(device.unusable for device in list_devices()):
        return "NOT VERIFIED: there is no OpenCL device"
    any_batch = imported.batch if imported and not imported.fixed else {}
    firsts = {blob.name: 0 for blob in exported.graph.inputs if blob.shape[:1] == exported.graph.inputs[0].shape[:1] != ()}
    other = batch_sizes(exported, any_batch)[1] if any_batch else 3 * exported.options.dynamic_batch
    check_cost(exported, options.files[0], any_batch if imported else firsts, other)
    device = select_device(options.device or None, options.gpu or None, math=options.math)
    if importlib.util.find_spec("onnxruntime") is None and not options.verify_in:
        log.tell("note: onnxruntime is missing, so onnx's reference evaluator compares, which is slow: pip install onnxruntime, and run the command again")

    def runs(seed: int) -> list[Feeds]:
        further = [other_batch(exported, any_batch, seed)[1]] if any_batch and imported.open else []
        if options.verify:
            return [inputs_from(options.verify, exported.graph), *further]
        batches = [None, 3] if exported.options.dynamic_batch else [None]
        return [random_inputs(exported.graph, seed, batch, pixels(exported.model)) for batch in batches] + further

    try:
        if options.verify_in:
            from ocaffe.convert.consumers import verify_in

            return str(verify_in(options.verify_in, exported, runs(0), device, options.tolerance))
        compared = [blob for blob in exported.graph.blobs if blob in exported.named]
        with heartbeat("comparing") as tell, opened(exported, device, compared) as net:
            for seed in range(1 if options.verify else DRAWS):
                try:
                    verdict = str(verify(exported, runs(seed), device, options.tolerance, net, tell))
                    break
                except Undecided as problem:
                    undecided = problem
            else:
                raise undecided
            if any_batch and not imported.open:
                tell("batches of other sizes, in ocaffe")
                imported.fixed = by_sample(exported, any_batch, imported.outputs, net)
        return verdict
    finally:
        device.close()


# -- to Caffe --------------------------------------------------------------------------------------------------------


def rewrite_caffe(options: argparse.Namespace) -> None:
    """Convert prototxt and weights to those of a net for deployment. The net is compared with the source before it is written."""
    from ocaffe.convert.caffe.fold import norms
    from ocaffe.convert.caffe.rewrite import rewrite
    from ocaffe.convert.import_model import refuse_changed, write
    from ocaffe.convert.targets.rules.retarget import batch_inputs, retarget

    *inputs, net2, weights2 = options.files
    table = _target(options)
    net, weights = _sources(inputs)
    made = rewrite(net, weights[0], _wanted(options, weights))
    if table is not None:
        _refuse_rounding(made.net.layers, table, inputs[0])
    try:
        targeted = None if table is None else retarget(made.net, table, inputs[0], batch_inputs(made.net))
    except Error as problem:
        if options.raw_detection and problem.fix:
            problem.fix = problem.fix.replace(" converts ", " in place of --raw-detection converts ", 1)
        raise
    made.net = made.net if targeted is None else targeted.net
    message, arrays, beside = made.net.message(), made.net.weights(), sidecar_files(weights[0], weights2, options.bake_preprocessing)
    if not options.force:
        refuse_changed(message, arrays, inputs[0], net2, weights2, beside)
    verdict = "not verified (--noverify)" if options.verify is None else _compared(made, options)
    write(message, arrays, inputs[0], net2, weights2, beside)
    ends = ", ".join(blob.name for blob in made.graph.inputs), ", ".join(made.net.outputs)
    said = f"{net2}, {weights2}: {made} of {inputs[0]}, from {ends[0]} to {ends[1]}; {verdict}"
    say(said, *filter(None, [str(targeted or "")]))
    if made.note:
        say(f"note: {made.note}")
    if targeted is not None and targeted.fixed:
        say(f"note: the net takes only the batch of the prototxt: {targeted.fixed}")
    left = norms(made.net) if options.fold else []
    if left:
        say(f"note: {len(left)} could not be folded, because no product alone makes or reads their values: {names_text(left)}")
    found = read_sidecar(weights[0])
    if not options.bake_preprocessing and (made.prepared or found is not None):
        how = input_text(found[0]) if found is not None else made.prepared
        say(f"{net2} expects images as in the training: {how}{BAKE}", *(f"{path} says so too" for path in list(beside)[:1]))


def _compared(made: Any, options: argparse.Namespace) -> str:
    """Compare the net for deployment with its source. Return what was found."""
    from ocaffe.cl.device import list_devices, select_device
    from ocaffe.convert.caffe.verify import check_rewriting, verify
    from ocaffe.convert.verify import inputs_from, random_inputs

    if not (options.device or options.gpu) and all(device.unusable for device in list_devices()):
        return "NOT VERIFIED: there is no OpenCL device"
    check_rewriting(made, options.files[0])
    device = select_device(options.device or None, options.gpu or None, math=options.math)
    try:
        feeds = inputs_from(options.verify, made.graph) if options.verify else random_inputs(made.graph, pixels=dict.fromkeys(made.how, 256))
        with heartbeat("comparing") as tell:
            return str(verify(made, [feeds], device, options.tolerance, tell))
    finally:
        device.close()


# -- help ------------------------------------------------------------------------------------------------------------


def _sizes(exported: Any) -> str:
    sides = ((exported.model.graph.input, "from"), (exported.model.graph.output, "to"))
    return " ".join(f"{word} {', '.join(info.name for info in infos)}" for infos, word in sides)


# The conversions: the kinds of the files in the order of the arguments, and the function.
CONVERSIONS: dict[tuple[str, ...], Callable[[argparse.Namespace], int | None]] = {
    ("prototxt", "weights", "onnx"): export_onnx,
    ("prototxt", "onnx"): export_onnx,
    ("weights", "onnx"): export_onnx,
    ("onnx", "prototxt", "weights"): import_onnx,
    ("prototxt", "weights", "prototxt", "weights"): rewrite_caffe,
    ("weights", "prototxt", "weights"): rewrite_caffe,
    ("weights", "weights"): transcode,
    ("prototxt", "weights", "weights"): transcode,
}
READS: dict[Callable[[argparse.Namespace], int | None], tuple[str, ...]] = {  # the flags of conversions that do not support all
    export_onnx: (
        "opset", "dynamic_batch", "fold", "fp16", "cut_at", "raw_detection", "activate_losses", "bake_preprocessing", "fillers", "shape", "verify", "verify_in",
        "tolerance", "force", "gpu", "device", "math", "level", "stage", "allow_unknown_fields",
    ),
    import_onnx: ("cut_at", "raw_detection", "shape", "fold", "target", "verify", "tolerance", "force", "for_training", "gpu", "device"),
    rewrite_caffe: (
        "fold", "target", "cut_at", "raw_detection", "activate_losses", "bake_preprocessing", "fillers", "shape", "verify", "tolerance", "force", "gpu",
        "device", "math", "level", "stage", "allow_unknown_fields",
    ),
    transcode: ("force",),
}
