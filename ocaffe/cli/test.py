"""ocaffe test: score a model, as Caffe's test command."""
from __future__ import annotations

import argparse
import os
from collections.abc import Mapping, Sequence

import numpy as np

from ocaffe import proto
from ocaffe.cl.device import Device, select_device
from ocaffe.cl.session import Session
from ocaffe.cli.flags import (
    Parser,
    bad_records_flag,
    batch_flag,
    check_outputs,
    device_flags,
    kind_flag,
    memory_flags,
    memory_limit,
    naming_bad_records,
    required,
    stages,
    state_flags,
)
from ocaffe.cli.matching import check_match, match_flag
from ocaffe.cli.ranks import listed, rank_device, ranked, started_ranks
from ocaffe.cli.train import announced
from ocaffe.compiler.network import Network, phase_net
from ocaffe.data.bad_records import skip_bad_records
from ocaffe.data.sources.roidb import open_annotated
from ocaffe.data.stores.label_names import label_names
from ocaffe.errors import Error
from ocaffe.evaluation.class_scores import class_scores
from ocaffe.evaluation.coco import detections_scored, evaluate_coco
from ocaffe.evaluation.confusion import lines_of
from ocaffe.evaluation.deploy import class_names, data_layer
from ocaffe.evaluation.region_images import with_test
from ocaffe.evaluation.scores import accuracies, evaluate
from ocaffe.evaluation.sidecar import trained_regions
from ocaffe.evaluation.tables import detection_table, label_map_names, segmentation_table
from ocaffe.formats.batch import batched
from ocaffe.formats.filter import filter_net
from ocaffe.formats.text import read_net
from ocaffe.formats.upgrade import upgrade_net
from ocaffe.formats.weights import read_weights
from ocaffe.graph.options import NetOptions
from ocaffe.parallel.world import ALONE, World
from ocaffe.quantize.graft import quantized_files, quantized_net
from ocaffe.shown import command, path_word, say
from ocaffe.solver.average_precision import VERSIONS, Detections
from ocaffe.solver.scoring import Means, Output, detections_of, log_outputs, restart_scores, run_batches, segmentation_counts, segmentation_scores
from ocaffe.support import log
from ocaffe.support.files import atomic_write
from ocaffe.support.log import number
from ocaffe.tools.py_faster_rcnn import configured, read_configuration

ITERATIONS = 50


def main(argv: Sequence[str]) -> int:
    with ranked() as world, naming_bad_records():
        options = _options(argv)
        status = started_ranks("test", argv, options)
        if status is None:
            test(options, world)
    return status or 0


def _options(argv: Sequence[str]) -> argparse.Namespace:
    parser = Parser("test", "Score a model.")
    parser.flag("model", "", "the net prototxt")
    parser.flag("weights", "", "the trained weights")
    parser.flag("quantized", "", "the folder of `ocaffe quantize`: score its net, which rounds as a chip does, in place of that of --model")
    parser.flag("integers", False, "with --quantized: compute convolutions and inner products with integers, as a chip does, and not with rounded floats")
    parser.flag("iterations", ITERATIONS, f"number of batches; default: {ITERATIONS}, with --imdb one for each image")
    parser.set_defaults(iterations=None)
    parser.flag("imdb", "", "a database of annotated images, for a test.prototxt of py-faster-rcnn: its mean average precision")
    parser.flag("cfg", "", "a .yml file with py-faster-rcnn's settings")
    parser.flag("per_class", False, "also print a table of the classes: AP (DetectionEvaluate), IoU (SegAccuracy), or precision and recall (Accuracy)")
    parser.flag("ap_version", VERSIONS[0], f"the rule of the average precision: {', '.join(VERSIONS)}")
    parser.flag("coco", False, "also print COCO's average precision over the overlaps 0.5 to 0.95, of the first DetectionEvaluate layer; needs pycocotools")
    parser.flag("scores", "", "write the scores of the classes to this JSON file, which `ocaffe plot` draws: precision and recall (DetectionEvaluate), "
                "IoU (SegAccuracy)")  # fmt: skip
    match_flag(parser)
    batch_flag(parser)
    memory_flags(parser)
    bad_records_flag(parser)
    device_flags(parser)
    kind_flag(parser)
    state_flags(parser)
    options = parser.parse(argv)
    required(options, "model", "the model", "test")
    if options.quantized and options.weights:
        fact = "--quantized has weights of its own, and --weights gives others"
        raise Error(fact, place="ocaffe test", fix="leave out --weights to score the rounded net, or --quantized to score the net in floats")
    if options.quantized:
        options.weights = quantized_files(options.quantized)[1]
    if options.integers and not options.quantized:
        raise Error("--integers is given without --quantized", place="ocaffe test", fix="add --quantized DIR of `ocaffe quantize`, or leave --integers out")
    required(options, "weights", "the weights", "test")
    check_outputs("test", (options.model, *options.weights.split(",")), scores=options.scores)
    for flag in ("per-class", "coco"):
        if getattr(options, flag.replace("-", "_")) and len(listed(options)) > 1:
            raise Error(f"--{flag} with several devices", place="ocaffe test", fix="choose one device by --gpu or --device")
    if options.ap_version not in VERSIONS:
        raise Error(f"--ap-version is '{options.ap_version}'", place="ocaffe test", fix=f"--ap-version with one of {', '.join(VERSIONS)}")
    if options.scores and not os.path.isdir(os.path.dirname(options.scores) or "."):
        fact = f"--scores is {options.scores}, and its folder does not exist"
        raise Error(fact, place="ocaffe test", fix=command("mkdir", "-p", path_word(os.path.dirname(options.scores))))
    if options.iterations is None:
        options.iterations = open_annotated(options.imdb).entries if options.imdb else ITERATIONS
    if options.iterations < 1:
        raise Error(f"--iterations is {options.iterations}", place="ocaffe test", fix="--iterations 50, or another number of 1 or more")
    return options


def test(options: argparse.Namespace, world: World) -> None:
    """Score the model. Several ranks share the batches."""
    file = options.weights
    message = read_net(options.model, options.allow_unknown_fields, lambda text: log.warning("upgrade_proto.cpp:1", text))
    settings = read_configuration(options.cfg) if options.cfg else []
    if options.imdb:
        message = with_test(filter_net(upgrade_net(message), proto.NetState(phase=proto.TEST)), options.imdb, trained_regions(file))
    if options.quantized:
        message = quantized_net(message, options.quantized, options.level, stages(options.stage, message) or ("",), options.integers)
    message = batched(configured(upgrade_net(message), proto.TEST, settings=settings) if settings else message, options.batch)
    if options.coco:
        detections_scored(message, options.model)  # before the test
    device = announced(rank_device(options, world) or select_device(options.device or None, options.gpu or None, math=options.math, kind=options.kind))
    net = skip_bad_records(phase_net(message, proto.TEST, options.level, stages(options.stage, message) or ("",)), options.skip_bad_records)
    if options.scores and not {layer.type for layer in net.layer} & {"DetectionEvaluate", "SegAccuracy"}:
        raise Error("the TEST net has no layer DetectionEvaluate or SegAccuracy", place=options.model, fix="remove --scores, or add such a layer")
    net_options = NetOptions(backward=False, prepack_weights=True, limit=memory_limit(options.memory_limit, device.target.free_memory))
    weights = read_weights(file)
    network = Network(net, proto.TEST, Session(device, net_options.limit is not None, apart=1), weights=[weights])
    network.inputs.share(world.rank, world.size)
    network.limit_labels()
    network.fill_parameters()
    check_match(network.graph, {file: network.copy_weights(weights)}, options.allow_no_match)
    log.info("caffe.cpp:281", f"Running for {options.iterations} iterations.")
    network.inputs.start()
    try:
        detections = detections_of(network.graph, options.ap_version)
        if options.scores and not (detections or segmentation_counts(network.graph, world)):
            fact = "the TEST net has no layer DetectionEvaluate or SegAccuracy"
            raise Error(fact, place=options.model, fix="remove --scores, or add such a layer")
        lines = score(network, net_options, options.iterations, world, detections)
        segmentations = segmentation_counts(network.graph, world)
        if options.per_class:
            lines += ["", *_per_class(options, device, detections, segmentations)]
        if options.coco:
            found = evaluate_coco(message, options.model, options.weights, device, options.iterations)
            lines += ["", *lines_of([("COCO", ""), *((name, f"{value:.4f}") for name, value in found.items())])]
    finally:
        network.close()
        device.close()
    if not world.first:
        return
    for line in lines:
        say(line)
    if options.scores:
        classes = class_names(data_layer(read_net(options.model)))
        with atomic_write(options.scores) as out:
            out.write(class_scores(detections, segmentations, label_map_names(options.model), classes))


def score(
    network: Network, options: NetOptions, iterations: int, world: World = ALONE, detections: Mapping[str, Detections] | None = None
) -> list[str]:
    """Log every output of every batch, then the means. The batches of several ranks are logged in their order after the last one.

    Outputs in `detections` are collected there, and only their mean AP is logged. Return the lines of a table: mean of each output, and the standard
    error of this mean, from the differences between batches.
    """
    means = Means(detections)
    batches: list[list[float]] = []
    restart_scores(network, world)
    runs = run_batches(network, options, iterations)
    results = ((network.loss(compiled, fetched), network.output_values(compiled, fetched)) for compiled, fetched in runs)
    for index, (loss, values) in enumerate(world.interleave(list(results)) if world.several else results):
        means.add(loss, values)
        values = [each for each in values if each[0] not in means.detections]
        batches.append([float(value) for _, array, _ in values for value in array])
        log_outputs("caffe.cpp:304", f"Batch {index}, ", [(name, array, 0.0) for name, array, _ in values])
    log.info("caffe.cpp:309", f"Loss: {number(means.mean_loss)}")
    outputs = [*means.outputs, *segmentation_scores(network.graph, world)]
    log_outputs("caffe.cpp:321", "", outputs)
    return _table(outputs, [name for name, _, _ in means.outputs if name not in means.detections], np.array(batches))


def _table(outputs: Sequence[Output], averaged: Sequence[str], batches: np.ndarray) -> list[str]:
    """`averaged`: the outputs that are means over batches; `batches` has their values in each batch."""
    rows = [(name + f"[{n}]" * (len(array) > 1), mean) for name, array, _ in outputs for n, mean in enumerate(array)]
    count, width = len(batches), max(len(name) for name, _ in [("output", 0), *rows])
    known = [name in averaged for name, array, _ in outputs for _ in array]
    errors = np.full(len(rows), np.nan)
    if count > 1:
        errors[known] = batches.std(0, ddof=1) / np.sqrt(count)
    lines = [f"{'output':<{width}} {'mean':>12} {'standard error':>15}   ({count} batches)"]
    for (name, mean), error in zip(rows, errors):
        lines.append(f"{name:<{width}} {mean:>12.6g} {'-' if np.isnan(error) else f'{error:.2g}':>15}")
    return lines


def _per_class(
    options: argparse.Namespace, device: Device, detections: Mapping[str, Detections], segmentations: Mapping[str, np.ndarray]
) -> list[str]:
    """Return a table of the classes for each layer that scores a test, else for the first Accuracy layer. Raise Error if the net has none of them."""
    labels = dict(enumerate(label_names(options.imdb))) if options.imdb else label_map_names(options.model)
    names = class_names(data_layer(read_net(options.model)))
    tables = [detection_table(found.by_class(), labels or dict(enumerate(names))) for found in detections.values()]
    tables += [segmentation_table(counts, names) for counts in segmentations.values()]
    if tables:
        return [line for table in tables for line in ("", *table)][1:]
    found = accuracies(options.model)
    if not found:
        fact = "the TEST net has no layer Accuracy, DetectionEvaluate or SegAccuracy"
        raise Error(fact, place=options.model, fix="remove --per-class, or add such a layer")
    confusion = evaluate(options.model, options.weights, next(iter(found)), device, batches=options.iterations)
    names += [str(number) for number in range(len(names), len(confusion.counts))]
    return [*confusion.table(names), *confusion.mistakes(names)]
