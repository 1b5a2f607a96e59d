"""Rules over a whole job: the solver, its nets together, and their data."""
from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

from ocaffe import proto
from ocaffe.errors import Place
from ocaffe.formats.nearby import MissingPath
from ocaffe.layers.base import param_field
from ocaffe.layers.roi_data import DEFAULTS
from ocaffe.lint.data import PARAMS, absent, has_palette, labels, mask_labels, param_of, samples, settings_of, source_of
from ocaffe.lint.rules import Finding, Job, View, job_rule, own_param
from ocaffe.solver.coverage import scored
from ocaffe.support import log

_TRANSFORM = ("scale", "mean_file", "mean_value", "crop_size", "force_color", "force_gray", "resize_param")  # must be equal in TRAIN and TEST
_SCALING = ("pixel_means", "max_size")  # of RoIData, must be equal too. Several `scales` in TRAIN are one in TEST


def _feeders(view: View) -> Iterator[Any]:
    """Return the data layers whose data the rules can read."""
    return (layer for layer in view.layers if layer.type in PARAMS)


@job_rule
def test_set_not_covered(job: Job) -> Iterator[Finding]:
    """test_iter times the batch size differs from the size of the test set. Some samples are never scored, or some count twice."""
    for number, view in enumerate(job.tests if job.solver is not None else ()):
        iterations = job.solver.test_iter[number]
        for layer in _feeders(view):
            batch, count = int(param_of(layer).batch_size), samples(layer)
            if not count or not batch or batch > count:
                continue
            found = scored(iterations, batch, count, param_of(layer).source)
            if found is not None:
                yield job.finding("test-set-not-covered", f"test_iter[{number}]", found[0], f"test_iter: {found[1]}")


@job_rule
def batch_larger_than_data(job: Job) -> Iterator[Finding]:
    """A batch with more samples than the data has. It contains some samples twice."""
    for view in job.views:
        for layer in _feeders(view):
            batch, count = int(param_of(layer).batch_size), samples(layer)
            if count and batch > count:
                fact = f"batch_size is {batch}, and {param_of(layer).source} has {count} samples: each batch holds some twice"
                yield view.finding("batch-larger-than-data", layer, fact, f"set batch_size to at most {count}", f"{PARAMS[layer.type]}.batch_size")


@job_rule
def tested_on_training_data(job: Job) -> Iterator[Finding]:
    """TRAIN and TEST read the same source."""
    training = job.training
    sources = {(layer.type, param_of(layer).source) for layer in _feeders(training)} if training else set()
    for view in job.tests:
        for layer in _feeders(view):
            if param_of(layer).source and (layer.type, param_of(layer).source) in sources and training is not None and training.losses:
                fact = f"it reads {param_of(layer).source}, as the TRAIN net does: accuracy on training data is meaningless"
                yield view.finding("tested-on-training-data", layer, fact, "set source to the test set", f"{PARAMS[layer.type]}.source")


@job_rule
def transforms_differ(job: Job) -> Iterator[Finding]:
    """TRAIN and TEST scale, crop, resize or subtract the mean differently. The net is tested on other values than it was trained on."""
    training = job.training
    first = next(_feeders(training), None) if training else None
    if first is None:
        return
    for view in job.tests:
        for layer in _feeders(view):
            ours, theirs = layer.transform_param, first.transform_param
            crops = any(each.crop_size or each.crop_h or len(each.resize_param) > 1 for each in (ours, theirs))
            for name in (_SCALING if layer.type == "RoIData" else _TRANSFORM) if layer.type == first.type else ():
                a, b = _value(layer, name), _value(first, name)
                if a != b and not (name == "resize_param" and crops):
                    fact = f"its {name} is {_text(a)}, that of '{first.name}' in the TRAIN phase (line {first.source_line}) is {_text(b)}"
                    yield view.finding("transforms-differ", layer, fact, f"set the same {name} in both layers", f"transform_param.{name}")


def _value(layer: Any, name: str) -> Any:
    """Return the value of a field of transform_param, or of a setting of RoIData. That of resize_param is the size."""
    if name in _SCALING:
        return settings_of(layer).get(name, DEFAULTS[name])
    transform = layer.transform_param
    value = getattr(transform, name)
    return [f"{each.height} x {each.width}" for each in value] if name == "resize_param" else list(value) if name == "mean_value" else value


def _text(value: Any) -> str:
    values = value if isinstance(value, list) else [value]
    return ", ".join(log.number(each) if isinstance(each, float) else str(each) for each in values) or "absent"


@job_rule
def mirrored_test(job: Job) -> Iterator[Finding]:
    """mirror: true in the TEST phase. Caffe mirrors at random in both phases, so results change from test to test."""
    for view in job.tests:
        for layer in view.layers:
            if layer.HasField("transform_param") and layer.transform_param.mirror:
                fact = "mirror: true applies in the TEST phase too: results change from test to test"
                yield view.finding("mirrored-test", layer, fact, "remove mirror from the layer of the TEST phase", "transform_param.mirror")


@job_rule
def not_shuffled(job: Job) -> Iterator[Finding]:
    """Training data sorted by class and read without shuffle. A batch contains samples of few classes."""
    for layer in _feeders(job.training) if job.training else ():
        param = param_of(layer)
        found = [] if getattr(param, "shuffle", False) else labels(layer)
        batches = found[: 4 * int(param.batch_size)]
        if len(set(found)) > 1 and (found == sorted(found) or (len(batches) > 3 and len(set(batches)) == 1)):
            fact = f"{param.source} is in the order of its labels ({', '.join(map(str, found[:3]))}, ...), and is read without shuffle"
            fix = "shuffle: true, or make the database with convert_imageset --shuffle"
            yield job.training.finding("not-shuffled", layer, fact, fix, f"{PARAMS[layer.type]}.source")  # type: ignore[union-attr]


@job_rule
def label_out_of_range(job: Job) -> Iterator[Finding]:
    """A label that is not below the number of scores, also in the first 50 masks. Classes are numbered from 0."""
    for view in job.views:
        for index in view.losses:
            loss = view.layers[index]
            source = view.source(index, 1) if len(loss.bottom) > 1 and loss.type == "SoftmaxWithLoss" else None
            scores = _scores(view, index)
            found = labels(source) if source is not None and source.type in PARAMS and scores else []
            masks = mask_labels(source) if source is not None and source.type == "DenseImageData" and scores else {}
            ignored = loss.loss_param.ignore_label if loss.loss_param.HasField("ignore_label") else None
            wrong = [label for label in (*found, *masks) if not 0 <= label < scores and label != ignored]
            if wrong and masks:
                file = masks[max(wrong)]
                fact = f"{file} has the label {max(wrong)}, and '{loss.name}' gets {scores} scores: labels 0 to {scores - 1}"
                fix = f"num_output: {max(wrong) + 1} before the loss, or loss_param {{ ignore_label: {max(wrong)} }}, or correct the masks"
                if has_palette(file):
                    fix = "convert the masks by `ocaffe dataset masks`, which writes the indices of their palette; the layer reads gray levels of colors"
                yield view.finding("label-out-of-range", source, fact, fix, "dense_image_data_param.source")
            elif wrong:
                fact = f"{param_of(source).source} has the label {max(wrong, key=abs)}, and '{loss.name}' gets {scores} scores: labels 0 to {scores - 1}"
                yield view.finding("label-out-of-range", source, fact, f"num_output: {max(found) + 1} before the loss, or number the labels from 0")


def _scores(view: View, index: int) -> int:
    """Return num_output of the layer that computes the scores of loss number `index`; 0 if it cannot be determined."""
    for _ in view.layers:
        value = view.reads[index][0] if view.reads[index] else None
        if value is None:
            return 0
        index = value[0]
        layer = view.layers[index]
        if layer.type in ("InnerProduct", "Convolution"):
            return int(own_param(layer).num_output)
        if len(layer.bottom) != 1 or layer.type in ("Slice", "Reshape", "Permute", "Flatten", "Reduction", "Tile"):
            return 0
    return 0


@job_rule
def test_net_differs(job: Job) -> Iterator[Finding]:
    """A layer of the TEST net whose parameters are missing or of another size in the TRAIN net. The nets share weights by layer name."""
    training = job.training
    if training is None or not training.losses:
        return
    theirs = {layer.name: layer for layer in training.layers}
    for view in job.tests:
        for layer in view.layers:
            param = own_param(layer) if layer.type in ("Convolution", "Deconvolution", "InnerProduct") else None
            if param is None or any(spec.name for spec in layer.param):
                continue
            other = theirs.get(layer.name)
            if other is None:
                fact = "the TRAIN net has no layer of this name: it is tested with the values of its fillers"
                yield view.finding("test-net-differs", layer, fact, "give the layer the same name in both phases", "name")
            elif other.type == layer.type and own_param(other).num_output != param.num_output:
                fact = f"num_output is {param.num_output}, and {own_param(other).num_output} in the TRAIN net (line {other.source_line})"
                yield view.finding("test-net-differs", layer, fact, "set the same num_output in both phases, or give one layer another name", "name")


@job_rule
def learning_rate(job: Job) -> Iterator[Finding]:
    """A multistep policy without steps, steps after the end of training, or a rate that is negative, that does not decrease, or that becomes 0."""
    solver = job.solver
    if solver is None:
        return
    rule, policy = "learning-rate", solver.lr_policy
    if policy == "multistep" and not solver.stepvalue:
        yield job.finding(rule, "lr_policy", 'lr_policy: "multistep" reads stepvalue, which is not given', f"stepvalue: {max(solver.max_iter // 2, 1)}")
    if solver.base_lr < 0:
        yield job.finding(rule, "base_lr", f"base_lr is {solver.base_lr:g}: the loss rises", f"base_lr: {-solver.base_lr:g}")
    if policy in ("step", "multistep", "exp") and solver.HasField("gamma") and solver.gamma == 0:
        yield job.finding(rule, "gamma", "gamma is 0: the learning rate is 0 after the first step", "gamma: 0.1")
    last = max(solver.stepvalue, default=0) if policy == "multistep" else solver.stepsize if policy == "step" else 0
    if solver.max_iter and last >= solver.max_iter:
        name = f"stepvalue[{len(solver.stepvalue) - 1}]" if policy == "multistep" else "stepsize"
        fact = f"the step at iteration {last:,} is never reached: max_iter is {solver.max_iter:,}"
        yield job.finding(rule, name, fact, f"set {name.partition('[')[0]} below {solver.max_iter}, or a larger max_iter")
    if policy in ("step", "multistep", "exp") and solver.HasField("gamma") and solver.gamma >= 1:
        yield job.finding(rule, "gamma", f"gamma is {solver.gamma:g}: the learning rate does not fall", "set gamma below 1, such as gamma: 0.1")
    if list(solver.stepvalue) != sorted(solver.stepvalue):
        fix = "write " + " ".join(f"stepvalue: {value}" for value in sorted(solver.stepvalue))
        yield job.finding(rule, "stepvalue[0]", f"stepvalue {', '.join(map(str, solver.stepvalue))} does not rise: later ones are skipped", fix)


@job_rule
def solver_settings(job: Job) -> Iterator[Finding]:
    """Settings that lose work or have no effect: no snapshot, no display, a TEST net without tests, a momentum of 1 or more."""
    solver = job.solver
    if solver is None:
        return
    rule = "solver-settings"
    if not solver.snapshot and not solver.snapshot_after_train:
        yield job.finding(rule, "snapshot_after_train", "snapshot is 0 and snapshot_after_train false: what is learned is never saved", "snapshot: 1000")
    if not solver.display:
        yield job.finding(rule, "display", "display is 0: the loss is never shown, and plot and parse_log find nothing", "display: 100")
    if solver.momentum >= 1:
        yield job.finding(rule, "momentum", f"momentum is {solver.momentum:g}: the training diverges", "momentum: 0.9")
    if solver.type in ("Adam", "AdamW") and solver.momentum2 > 1:
        yield job.finding(rule, "momentum2", f"momentum2 is {solver.momentum2:g}: all parameters become NaN", "momentum2: 0.999")
    if solver.type in ("AdaGrad", "RMSProp", "Adam", "AdamW") and solver.delta <= 0:
        yield job.finding(rule, "delta", f"delta is {solver.delta:g}: a parameter whose gradient is 0 becomes NaN", "delta: 1e-8")
    if solver.test_interval and solver.max_iter and solver.test_interval > solver.max_iter:
        fact = f"test_interval {solver.test_interval:,} is larger than max_iter {solver.max_iter:,}: only the untrained net is tested"
        yield job.finding(rule, "test_interval", fact, f"test_interval: {max(solver.max_iter // 10, 1)}")
    if not solver.test_iter and job.training is not None and solver.HasField("net"):
        rules = [rule.phase for layer in job.training.file.message.layer for rule in layer.include]
        if proto.TEST in rules:
            fact = "the net has layers for the TEST phase, and no test_iter is given: it is never tested"
            yield job.finding(rule, "net", fact, "set test_iter and test_interval in the solver")


@job_rule
def missing_data(job: Job) -> Iterator[Finding]:
    """A source or mean_file of a data layer that does not exist. Training cannot start without it."""
    for view in job.views:
        for layer in view.layers:
            fields = {f"{PARAMS.get(layer.type) or param_field(layer.type)}.source": source_of(layer) if absent(layer) else None}
            fields["transform_param.mean_file"] = layer.transform_param.mean_file if not os.path.exists(layer.transform_param.mean_file) else None
            for field, path in fields.items():
                if path and not layer.bottom:
                    place = Place(view.file.path, layer.source_line)
                    problem = MissingPath(f"{path} does not exist", path, field.rpartition(".")[2], "make it, or correct the name", place=place)
                    yield view.finding("missing-data", layer, problem.fact, problem.fix or "", field)
