#!/usr/bin/env python3
"""The cost of integers of 8 bits: nets of the zoo with few channels, trained on a hard task here, and quantized in several ways.

    benchmarks/quantization.py [--nets lenet mobilenet_v1 ..] [--mnist FOLDER] [--device D] [--iterations 3000] [--tests 10000] [--folder DIR] [--json FILE]
    benchmarks/quantization.py --table [--json FILE]

The task: noisy images of two overlapping digits, each with a contrast of its own. The 55 classes are the pairs of digits. A tenth of the images has up to
three hot pixels, far brighter than digits, as cameras have them. Digits for testing occur in no image for training. They are MNIST's with --mnist, else
scikit-learn's. The nets are those of the zoo, with a share of their channels. A net that is in DIR is not trained again.

Ways: `plain` is that of a simple tool: ranges of all values, one scale for all weights of a layer, nothing recovered. `max` and `kl` have a scale for each
output of a layer. `auto` chooses the method for each blob. `recovered` is the default of `ocaffe quantize`: equalisation, bias correction and
reconstruction follow. `trained`: then the net that rounds is trained, by --trained N iterations. Calibration sees 512 images of the training set. top-1 is
that of the test images. Agreement: the share of them that get the class
of the net in floats. Error: the mean squared error of the probabilities, as a share of their variance.
"""
import argparse
import dataclasses
import json
import pathlib
import shutil
import time
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any

import numpy as np

import ocaffe
from ocaffe import log, proto
from ocaffe.cl.device import select_device
from ocaffe.convert.caffe.net import Net as Folded
from ocaffe.convert.caffe.rewrite import rewrite
from ocaffe.convert.options import Options
from ocaffe.formats.text import parse, write_text
from ocaffe.quantize.images import Images
from ocaffe.quantize.observe import running
from ocaffe.quantize.output import write_all
from ocaffe.quantize.quantize import Quantized, Settings, quantize
from ocaffe.quantize.scheme import read_scheme
from ocaffe.quantize.simulate import simulated
from ocaffe.quantize.training import SOLVER, finished, write_training
from ocaffe.tools.datasets.sets import DataSet, digits, mnist
from ocaffe.zoo import classifiers
from ocaffe.zoo.net import CLASSES, XAVIER, Net, lines

HEIGHT, WIDTH = 32, {1: 32, 2: 40}  # the width by the number of digits
PAIRS = {1: 10, 2: 55}  # classes
BATCH, CALIBRATION = 64, 512
HOT, BRIGHT = 0.1, (10.0, 40.0)  # the share of images with hot pixels, and how bright these are, where a digit is at most 1
DECAY, DECAY_OF_NORMED = 1e-4, 2e-3  # strong with norms: channels then differ so much that one scale does not suit all of them
HERE = pathlib.Path(__file__).parent
SCHEME = read_scheme("int8")
PLAIN = {"equalise": False, "correct": False, "steps": 0}
WAYS = {
    "plain": Settings(dataclasses.replace(SCHEME, per_channel=False), "max", **PLAIN),
    "max": Settings(SCHEME, "max", **PLAIN),
    "kl": Settings(SCHEME, "kl", **PLAIN),
    "auto": Settings(SCHEME, **PLAIN),
    "recovered": Settings(SCHEME),
}


# -- task ------------------------------------------------------------------------------------------------------------


def scenes(source: Any, count: int, seed: int, each: int) -> tuple[np.ndarray, np.ndarray]:
    """Return images of one or two digits, about of unit size, and the classes: the digit, or the number of the pair, whatever its order."""
    rng = np.random.default_rng(seed)
    images, labels = np.zeros((count, 1, HEIGHT, WIDTH[each]), np.float32), np.zeros(count, np.int64)
    for i in range(count):
        chosen = rng.integers(len(source.labels), size=each)
        for place, index in enumerate(chosen):
            top, left = rng.integers(0, HEIGHT - 23), rng.integers(0, 5) + place * (WIDTH[each] - 28)
            images[i, 0, top : top + 24, left : left + 24] += source.images[index, 0, 2:-2, 2:-2] * (rng.uniform(0.3, 1) / 255)
        found = sorted(int(source.labels[index]) for index in chosen)
        labels[i] = found[0] if each == 1 else found[1] * (found[1] + 1) // 2 + found[0]
        images[i] += rng.normal(0, rng.uniform(0.05, 0.25), images[i].shape)
        if rng.random() < HOT:
            count = rng.integers(1, 4)
            images[i, 0, rng.integers(0, HEIGHT, count), rng.integers(0, WIDTH[each], count)] += rng.uniform(*BRIGHT, count)
    return images * 2, labels


def enlarged(images: np.ndarray, factor: int) -> np.ndarray:
    return images.repeat(factor, axis=2).repeat(factor, axis=3) if factor > 1 else images


# -- nets ------------------------------------------------------------------------------------------------------------


class Small(Net):
    """A net of the zoo with 1 / `narrow` of its channels, for the task. `dense`: convolutions called so have stride 1."""

    def __init__(self, each: int, narrow: int, factor: int, dense: str) -> None:
        super().__init__(deploy=False)
        self.classes, self.width, self.narrow, self.factor, self.dense = PAIRS[each], WIDTH[each], narrow, factor, dense

    def data(self, *args: Any, **settings: Any) -> str:
        for name, shape in (("data", [BATCH, 1, HEIGHT * self.factor, self.width * self.factor]), ("label", [BATCH])):
            self.layers.append({"name": name, "type": "Input", "top": name, "input_param": {"shape": {"dim": shape}}})
        return "data"

    def weighted(self, kind: str, message: str, name: str, bottom: str, /, **settings: Any) -> str:
        channels, group = settings["num_output"], settings.get("group", 1)
        settings["num_output"] = self.classes if channels in (CLASSES, 10) else max(4, channels // self.narrow)
        if group > 1:
            settings["group"] = settings["num_output"]
        if name == self.dense:
            settings["stride"] = 1
        return super().weighted(kind, message, name, bottom, **settings)

    def batch_norm(self, *names: str, **settings: float) -> str:
        return super().batch_norm(*names, moving_average_fraction=0.95, **settings)  # of the last steps: few are trained

    def pool(self, name: str, bottom: str, pool: str, **window: Any) -> str:
        return super().pool(name, bottom, pool, **({"global_pooling": True} if pool == "AVE" else window))

    def layer(self, kind: str, name: str, bottom: str | list[str], top: str = "", /, **fields: Any) -> str:
        if name.startswith(("loss1/", "loss2/")):  # GoogLeNet's losses in the middle need larger images
            return name
        return super().layer(kind, name, bottom, top, **fields)

    def classify(self, blob: str, loss: str = "loss", *args: str, **more: Any) -> str:
        return self.layer("SoftmaxWithLoss", loss, [blob, "label"])


def lenet(net: Net) -> None:
    """LeNet, whose text the zoo has as a file."""
    x = net.data(28, 64, 64)
    x = net.pool("pool1", net.conv("conv1", x, 20, kernel_size=5, weight=XAVIER, bias=0), "MAX", kernel_size=2, stride=2)
    x = net.pool("pool2", net.conv("conv2", x, 50, kernel_size=5, weight=XAVIER, bias=0), "MAX", kernel_size=2, stride=2)
    x = net.relu("relu1", net.fc("ip1", x, 500, weight=XAVIER, bias=0))
    net.classify(net.fc("ip2", x, CLASSES, weight=XAVIER, bias=0))


BUILT: dict[str, tuple[Callable[[Net], None], int, int, str, float]] = {  # the net, its share of channels, enlargement, a layer with stride 1, rate
    "lenet": (lenet, 2, 1, "", 0.002),
    "mobilenet_v1": (classifiers.mobilenet_v1, 8, 1, "conv1", 0.003),
    "mobilenet_v2": (classifiers.mobilenet_v2, 6, 1, "conv1", 0.003),
    "resnet20": (partial(classifiers.resnet_cifar, depth=3), 4, 1, "", 0.003),
    "googlenet": (classifiers.googlenet, 8, 2, "", 0.001),
    "squeezenet": (classifiers.squeezenet, 4, 2, "", 0.001),
    "vgg": (partial(classifiers.vgg, stages=[(64, 1), (128, 1), (256, 2), (512, 2)]), 8, 1, "", 0.001),
}


def message_of(name: str, each: int) -> Any:
    build, narrow, factor, dense, _ = BUILT[name]
    net = Small(each, narrow, factor, dense)
    build(net)
    message = parse("\n".join(lines({"name": name, "layer": net.layers})), proto.NetParameter)
    if not any(layer.type == "BatchNorm" for layer in message.layer):  # the published fillers of deep nets suit ImageNet and thousands of steps
        for layer in message.layer:
            for settings in (layer.convolution_param, layer.inner_product_param):
                if settings.HasField("weight_filler"):
                    settings.weight_filler.CopyFrom(proto.FillerParameter(type="msra"))
                    settings.bias_filler.CopyFrom(proto.FillerParameter())
    return message


def train(name: str, message: Any, images: np.ndarray, labels: np.ndarray, iterations: int, device: Any, file: pathlib.Path) -> None:
    decay = DECAY_OF_NORMED if any(layer.type == "BatchNorm" for layer in message.layer) else DECAY
    param = proto.SolverParameter(type="Adam", base_lr=BUILT[name][-1], momentum=0.9, momentum2=0.999, weight_decay=decay, lr_policy="poly", power=1.0,
                                  max_iter=iterations, random_seed=1, snapshot_prefix=str(file.with_suffix("")))  # fmt: skip
    param.net_param.CopyFrom(message)
    solver = ocaffe.get_solver(param, keep=[], device=device)
    feed(solver, images, labels, iterations, BUILT[name][2])
    solver.net.save(str(file))
    solver.close()


def feed(solver: Any, images: np.ndarray, labels: np.ndarray, iterations: int, factor: int) -> None:
    rng = np.random.default_rng(1)
    for _ in range(iterations):
        chosen = rng.integers(len(images), size=BATCH)
        solver.net.blobs["data"].data[...] = enlarged(images[chosen], factor)
        solver.net.blobs["label"].data[...] = labels[chosen]
        solver.step(1)


def trained(name: str, made: Quantized, net: pathlib.Path, images: np.ndarray, labels: np.ndarray, iterations: int, device: Any) -> Quantized:
    """Train the net that rounds, by the files that `ocaffe quantize --train` writes, and return its integers."""
    folder = net.with_name(f"{name}_trained")
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    solver = net.with_name(f"{name}_rounded.solver.prototxt")
    solver.write_text(f'net: "{net}" type: "Adam" base_lr: {BUILT[name][-1] / 10} momentum: 0.9 momentum2: 0.999 lr_policy: "poly" power: 1 '
                      f'max_iter: {iterations} random_seed: 1 snapshot_prefix: "{folder}/train"\n')  # fmt: skip
    write_all(folder, made, {})
    write_training(folder, str(folder), made, str(solver), Options())
    training = ocaffe.get_solver(str(folder / SOLVER), keep=[], device=device)
    feed(training, images, labels, iterations, BUILT[name][2])
    training.snapshot()
    training.close()
    return finished(str(folder))


# -- scores ----------------------------------------------------------------------------------------------------------


def batches(images: np.ndarray, factor: int) -> Iterator[Mapping[str, np.ndarray]]:
    for begin in range(0, len(images) - BATCH + 1, BATCH):
        yield {"data": enlarged(images[begin : begin + BATCH], factor)}


def scores(net: Folded, images: Images, device: Any) -> np.ndarray:
    output, found = net.outputs[0], []
    with running(images.message(net), net.weights(), [output], device) as run:
        for _ in images.run(run):
            found.append(run.blobs[output].data.reshape(images.batch, -1).copy())
    return np.concatenate(found)


def measured(name: str, options: argparse.Namespace, made: DataSet, device: Any) -> dict[str, Any]:
    folder, factor, message = pathlib.Path(options.folder), BUILT[name][2], message_of(name, options.digits)
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / f"{name}.caffemodel"
    images, labels = scenes(made.parts["train"], options.images, 1, options.digits)
    tests, truth = scenes(made.parts["test"], options.tests // BATCH * BATCH, 2, options.digits)
    started = time.monotonic()
    if not file.exists():
        train(name, message, images, labels, options.iterations, device, file)
    (folder / f"{name}.prototxt").write_text(write_text(message))
    result: dict[str, Any] = {"training_s": round(time.monotonic() - started), "iterations": options.iterations}
    calibration = Images(CALIBRATION, BATCH, arrays=partial(batches, images[:CALIBRATION], factor))
    held_out = Images(len(tests), BATCH, arrays=partial(batches, tests, factor))
    net = rewrite(message, str(file), Options(fold=True)).net
    floats = scores(net, held_out, device)
    best = floats.argmax(axis=1)
    result["fp32"] = {"top1": 100 * float((best == truth).mean())}
    print(name, "fp32", result["fp32"], flush=True)
    for way in (*WAYS, *(["trained"] if options.trained else [])):
        if options.ways and way not in options.ways:
            continue
        started = time.monotonic()
        if way in WAYS:
            quantized = quantize(net, WAYS[way], calibration, device)
        else:  # from the result of the way before
            quantized = trained(name, quantized, folder / f"{name}.prototxt", images, labels, options.trained, device)
        seconds = time.monotonic() - started
        rounded = scores(simulated(quantized.rounded(), quantized.table), held_out, device)
        top = rounded.argmax(axis=1)
        result[way] = {
            "top1": round(100 * float((top == truth).mean()), 2), "agreement": round(100 * float((top == best).mean()), 2),
            "error": float(((rounded - floats) ** 2).mean() / floats.var()), "seconds": round(seconds, 1),
            "stages": [(what, float(f"{error:.3g}")) for what, error in quantized.stages],
        }  # fmt: skip
        print(name, way, result[way], flush=True)
    return result


# -- command ---------------------------------------------------------------------------------------------------------


def table(results: Mapping[str, Any]) -> Iterator[str]:
    """Lines of a table of Markdown: top-1 of the net in floats, and the change by each way in points."""
    yield "| net | fp32 | " + " | ".join((*WAYS, "trained")) + " | agreement | error |"
    yield "|---|---|" + "---|" * (len(WAYS) + 3)
    for name, result in results.items():
        best = result["fp32"]["top1"]
        lost = [f"{result[way]['top1'] - best:+.2f}" if way in result else "" for way in (*WAYS, "trained")]
        end = result.get("recovered", {})
        yield f"| {name} | {best:.2f} % | " + " | ".join(lost) + f" | {end.get('agreement', 0):.1f} % | {end.get('error', 0):.1e} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nets", nargs="*", default=list(BUILT), choices=list(BUILT))
    parser.add_argument("--ways", nargs="*", default=[], choices=[*WAYS, "trained"], help="default: all")
    parser.add_argument("--trained", type=int, default=0, help="iterations of the net that rounds")
    parser.add_argument("--digits", type=int, default=2, choices=(1, 2), help="of an image; with one, nets learn sooner")
    parser.add_argument("--mnist", default="", help="folder with MNIST's four files")
    parser.add_argument("--device", default=None)
    parser.add_argument("--iterations", type=int, default=3000)
    parser.add_argument("--images", type=int, default=60000, help="of the training set")
    parser.add_argument("--tests", type=int, default=10000, help="images on which the nets are tested")
    parser.add_argument("--folder", default="build/quantization", help="for the trained nets")
    parser.add_argument("--json", default="")
    parser.add_argument("--table", action="store_true", help="print the table of the committed figures, or of those in --json")
    options = parser.parse_args()
    if options.table:
        print("\n".join(table(json.loads(pathlib.Path(options.json or HERE / "quantization.json").read_text())["nets"])))
        return
    log.quiet()
    made = mnist(options.mnist) if options.mnist else digits(None)
    device = select_device(options.device)
    results = {}
    for name in options.nets:
        results[name] = measured(name, options, made, device)
        if options.json:
            file = pathlib.Path(options.json)
            before = json.loads(file.read_text())["nets"] if file.exists() else {}
            content = {"device": device.name, "task": f"{options.digits} of {'MNIST' if options.mnist else 'scikit-learn'}", "nets": {**before, **results}}
            file.write_text(json.dumps(content, indent=1) + "\n")
    print("\n".join(table(results)))


if __name__ == "__main__":
    main()
