#!/usr/bin/env python3
"""Right conversions that `ocaffe convert` would refuse: modern nets and the zoo's nets, with fresh weights and with draws in trained magnitudes.

    benchmarks/refusals.py [NAMES ..] [--draws 10] [--device DEVICE] [--json benchmarks/refusals.json]

A name is one of tests/convert/modern_nets.py, which is imported, or `zoo/NAME`, which is exported, and imported again (`zoo/NAME, imported`). Each is verified
with the weights of its initialization and with each draw. The file gets the comparisons, the refusals, and the largest difference of a layer as a share of
its bound. It is written after each net; nets that it has are left out. A draw replaces all weights:

* filters and matrices: Student's t with 5 degrees of freedom, with the variance 2 / (inputs of an output). Each output channel has a factor, which is
  log-normal with sigma 0.5.
* values that begin as one number c other than 0 (scales of norms and of branches): max(|c|, 0.1) exp(N(-0.5, 0.7)); one in 20 is negative.
* other values (biases, positions, tables): the same t with the standard deviation 0.2.
* statistics of batch normalization: those of a batch of two drawn inputs in training. The mean is moved by 0.1 standard deviations N(0, 1), the variance
  is multiplied by exp(N(0, 0.3)). The zoo's fresh weights have such statistics too: Caffe's nets begin with a variance of 0.
"""
import argparse
import contextlib
import json
import math
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import torch

import ocaffe
from ocaffe import log, proto
from ocaffe.convert.export import Exported, Options
from ocaffe.convert.export import export as to_onnx
from ocaffe.convert.import_model import to_caffe
from ocaffe.convert.import_verify import comparable, pixels
from ocaffe.convert.importer.read import read_model
from ocaffe.convert.verify import opened, random_inputs, verify
from ocaffe.errors import Error
from ocaffe.formats.text import read_net
from ocaffe.formats.upgrade import upgrade_net
from ocaffe.formats.weights import LayerWeights, Weights
from ocaffe.zoo import FOLDER
from tests.convert.exporters import export
from tests.convert.modern_nets import NETS

ZOO = sorted(f"zoo/{path.parent.name}" for path in FOLDER.glob("*/deploy.prototxt"))
PART = 1 << 20
STATISTICS = ("running_mean", "running_var")


def drawn(fresh: np.ndarray, matrix: bool, rng: np.random.Generator) -> np.ndarray:
    """Return values in the magnitude of trained ones for values before training."""
    tailed = np.empty(fresh.shape, np.float32)
    for part in np.array_split(tailed.reshape(-1), fresh.size // PART + 1):  # doubles of all filters of FCN-8s would take 3 GB
        part[...] = rng.standard_t(5, len(part)) / math.sqrt(5 / 3)
    if matrix:
        factors = rng.lognormal(0, 0.5, (len(fresh), *[1] * (fresh.ndim - 1))) * math.sqrt(2 / math.prod(fresh.shape[1:]))
        values = tailed * factors.astype(np.float32)
    elif fresh.any() and (fresh == fresh.flat[0]).all():
        values = max(abs(fresh.flat[0]), 0.1) * rng.lognormal(-0.5, 0.7, fresh.shape) * np.where(rng.random(fresh.shape) < 0.05, -1, 1)
    else:
        values = 0.2 * tailed
    return np.asarray(values, np.float32)


def moved(mean: np.ndarray, variance: np.ndarray, rng: np.random.Generator) -> list[np.ndarray]:
    """Return statistics that differ from those of a batch as those of other images do."""
    return [mean + np.float32(0.1) * np.sqrt(variance) * rng.standard_normal(mean.shape, np.float32), variance * rng.lognormal(0, 0.3, mean.shape)]


def written(task: Any) -> Any:
    with tempfile.TemporaryDirectory() as folder:
        export(task.net, task.x, Path(folder, "net.onnx"), 18 if task.dynamo else 17, task.dynamo)
        return read_model(Path(folder, "net.onnx"))


def imported(model: Any, name: str) -> Exported:
    return comparable(model, *to_caffe(model, name), shapes={}, outputs=[])


@torch.no_grad()
def modern(name: str, draws: int) -> Iterator[tuple[str, Exported]]:
    """Yield the imported net, first with fresh weights. PyTorch exports it twice, because it stores equal fresh weights once."""
    torch.manual_seed(0)
    torch.backends.mha.set_fastpath_enabled(False)  # without gradients attention would be one operator, which ONNX lacks
    task = NETS[name]()
    net = task.net.eval()
    state = {key: value for key, value in net.state_dict().items() if value.is_floating_point()}
    fresh = {key: value.numpy().copy() for key, value in state.items() if not key.endswith(STATISTICS)}
    norms = {key: module for key, module in net.named_modules() if hasattr(module, "running_var")}
    model = written(task)
    yield name, imported(model, name)
    for seed in range(1, draws + 1):
        rng = np.random.default_rng(seed)
        for key, values in sorted(fresh.items()):
            state[key].copy_(torch.from_numpy(drawn(values, values.ndim > 1 and "weight" in key.rsplit(".", 1)[-1], rng)))
        for norm in norms.values():
            norm.train().reset_running_stats()
            norm.momentum = None  # the mean of all batches
        if norms:
            net(torch.randn(2, *task.x.shape[1:]))
        for key, norm in norms.items():
            pair = [state[f"{key}.{part}"] for part in STATISTICS]
            for tensor, values in zip(pair, moved(*(tensor.numpy() for tensor in pair), rng)):
                tensor.copy_(torch.from_numpy(values))
            norm.eval()
        model = written(task) if seed == 1 else model
        named = [tensor for tensor in model.graph.initializer if tensor.name in state]
        held = {state[tensor.name].data_ptr() for tensor in named}  # tied weights are one initializer
        assert all(tensor.data_ptr() in held for tensor in state.values()), "the model lacks weights by their names in PyTorch"
        for tensor in named:
            tensor.CopyFrom(onnx.numpy_helper.from_array(state[tensor.name].numpy(), tensor.name))
        yield name, imported(model, name)


def zoo(name: str, draws: int) -> Iterator[tuple[str, Exported]]:
    """Yield the exported net, then its import, each first with the values of the fillers in the net for training."""
    net, training = (upgrade_net(read_net(str(FOLDER / Path(name).name / file))) for file in ("deploy.prototxt", "train_val.prototxt"))
    twins = {layer.name: layer for layer in training.layer}
    for layer in net.layer[1:]:
        bottoms, tops = list(layer.bottom), list(layer.top)
        layer.CopyFrom(twins.get(layer.name, layer))
        layer.bottom[:], layer.top[:] = bottoms, tops
    fresh = {(parameter.layer, parameter.index): array for parameter, array in to_onnx(net, None, Options(fillers=True)).weights.items()}
    batch = proto.NetParameter.FromString(net.SerializeToString())
    batch.layer[0].input_param.shape[0].dim[0] = 2
    norms = [layer.name for layer in net.layer if layer.type == "BatchNorm"]
    tables = {layer.name for layer in net.layer if layer.type == "Parameter"}
    trained = ocaffe.Net(batch, ocaffe.TRAIN) if norms else None
    for again, seed in ((again, seed) for again in (False, True) for seed in range(draws + 1)):  # one after the other, so that one net is open at a time
        rng, blobs = np.random.default_rng(seed), dict[str, list[np.ndarray]]()
        for (layer, _), array in fresh.items():
            same = not seed or layer in norms
            blobs.setdefault(layer, []).append(array if same else drawn(array, array.ndim > 1 and layer not in tables, rng))
        if trained is not None:
            for own, array in ((own, array) for layer, arrays in blobs.items() for own, array in zip(trained.params[layer], arrays)):
                own.data[...] = array
            trained.forward(**{top: rng.standard_normal(trained.blobs[top].shape, np.float32) for top in trained.inputs})
        for layer in norms:
            mean, variance, factor = (np.array(blob.data) for blob in trained.params[layer])
            blobs[layer] = [*moved(mean / factor, variance / factor, rng), np.ones_like(factor)]
        exported = to_onnx(net, Weights("", [LayerWeights(layer, blobs=arrays) for layer, arrays in blobs.items()], "drawn"), Options())
        yield (f"{name}, imported", imported(exported.model, name)) if again else (name, exported)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", default=[*ZOO, *NETS])
    parser.add_argument("--draws", type=int, default=10)
    parser.add_argument("--device", default=None)
    parser.add_argument("--json", type=Path, default=Path("benchmarks/refusals.json"))
    options = parser.parse_args()
    log.quiet()
    for name in options.names:
        done = json.loads(options.json.read_text()) if options.json.exists() else {}
        if name in done:
            continue
        begin, rows, known = time.perf_counter(), dict[str, dict[str, Any]](), b""
        with contextlib.ExitStack() as stack:
            for title, made in (zoo if name in ZOO else modern)(name, options.draws):
                message = made.deployed.message.SerializeToString(deterministic=True)
                if message != known:
                    stack.pop_all().close()
                    known, net = message, stack.enter_context(opened(made, options.device, None))
                row = rows.setdefault(title, {"runtime": net._network.session.device.target.runtime, "compared": 0, "refused": 0, "share": 0.0})
                row["compared"] += 1
                try:
                    share = verify(made, [random_inputs(made.graph, pixels=pixels(made.model))], options.device, net=net).share
                    assert all(np.isfinite(net.blobs[output].data).all() for output in made.deployed.outputs), "the drawn weights are too large"
                    row["share"] = max(row["share"], float(f"{share:.2g}"))
                except Error as refusal:
                    row["refused"] += 1
                    print(f"{title}, comparison {row['compared']}: {refusal}", flush=True)
        print(f"{rows}, {time.perf_counter() - begin:.0f} s", flush=True)
        done |= rows
        options.json.write_text("{\n" + ",\n".join(f" {json.dumps(key)}: {json.dumps(value)}" for key, value in sorted(done.items())) + "\n}\n")


if __name__ == "__main__":
    main()
