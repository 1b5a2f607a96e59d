#!/usr/bin/env python3
"""The zoo's vit_digits against the same net in PyTorch: losses of the first steps, final accuracy, ms per step.

    benchmarks/vit.py [--device DEVICE] [--torch cpu|cuda] [--mnist FOLDER] [--steps 1500] [--seeds 3] [--json FILE]

Both programs begin with the same weights and see the same batches. Without --mnist the data are scikit-learn's digits, as `ocaffe dataset digits` divides
them. PyTorch computes in single precision without TF32. `losses` has the largest difference of the losses of the first 100 steps, relative to PyTorch's:
of ocaffe, and as a measure of the amplification of rounding, of PyTorch in double precision. Each is measured with SGD, with the zoo's AdamW, and with a
delta of 0.001, so that gradients near 0 make small steps. The file gets a row after each seed; seeds that it has are left out.
"""
import argparse
import json
import os
import pathlib
import statistics
import time
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F

import ocaffe
from ocaffe import log, proto
from ocaffe.formats.text import read_net, read_solver
from ocaffe.tools.datasets.sets import SETS
from ocaffe.zoo import FOLDER
from ocaffe.zoo.generate import NETS

NET = "vit_digits"
COMPARED = 100  # steps
DAMPED = "AdamW, delta 0.001"
EPS = 1e-6  # of the net's LayerNorm


class Vit(nn.Module):
    """The net of the zoo. Parameters are held by the names of its layers, with '/' replaced by '_'."""

    def __init__(self, params: dict[str, Any], sizes: Any) -> None:
        super().__init__()
        self.sizes = sizes
        self.held = nn.ParameterDict({
            f"{layer.replace('/', '_')}_{index}": nn.Parameter(torch.tensor(blob)) for layer, blobs in params.items() for index, blob in enumerate(blobs)
        })  # fmt: skip

    def of(self, layer: str) -> list[torch.Tensor]:
        name = layer.replace("/", "_")
        return [self.held[f"{name}_{index}"] for index in range(2)]

    def norm(self, name: str, x: torch.Tensor) -> torch.Tensor:
        return F.layer_norm(x, x.shape[-1:], *self.of(f"{name}/scale"), eps=EPS)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = F.conv2d(x, *self.of("patches"), stride=self.sizes.patch).flatten(2).transpose(1, 2)
        x = F.pad(x, (0, 0, 1, 0)) + self.held["positions_0"]
        for i in range(1, self.sizes.depth + 1):
            parts = F.linear(self.norm(f"block{i}/norm1", x), *self.of(f"block{i}/attention/qkv")).chunk(3, -1)
            q, k, v = (part.unflatten(-1, (self.sizes.heads, -1)).transpose(1, 2) for part in parts)
            mixed = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)
            x = x + F.linear(mixed, *self.of(f"block{i}/attention/proj"))
            hidden = F.gelu(F.linear(self.norm(f"block{i}/norm2", x), *self.of(f"block{i}/fc1")))
            x = x + F.linear(hidden, *self.of(f"block{i}/fc2"))
        return F.linear(self.norm("norm", x)[:, 0], *self.of("head"))


def net_message(batch: int) -> Any:
    """Return the TRAIN net of the zoo with Input layers for images and labels."""
    net = read_net(str(FOLDER / NET / "train_val.prototxt"))
    body = [layer for layer in net.layer if layer.type not in ("Data", "Accuracy")]
    made = proto.NetParameter(name=net.name)
    for name, shape in (("data", (batch, 1, 28, 28)), ("label", (batch,))):
        made.layer.add(name=name, type="Input", top=[name]).input_param.shape.add().dim.extend(shape)
    made.layer.extend(body)
    return made


class Momentum:
    """SGD as Caffe has it: the rate is part of the momentum's history. PyTorch's SGD multiplies the history by the rate."""

    def __init__(self, groups: list[dict[str, Any]], momentum: float) -> None:
        self.param_groups, self.momentum = groups, momentum
        self.history = {parameter: torch.zeros_like(parameter) for group in groups for parameter in group["params"]}

    def zero_grad(self) -> None:
        for parameter in self.history:
            parameter.grad = None

    @torch.no_grad()
    def step(self) -> None:
        for group in self.param_groups:
            for parameter in group["params"]:
                gradient = parameter.grad + group["weight_decay"] * parameter
                parameter -= self.history[parameter].mul_(self.momentum).add_(gradient, alpha=group["lr"])


def settings_of(rule: str) -> Any:
    """Return the zoo's solver, with another delta for DAMPED. With `rule` SGD it has momentum in place of AdamW."""
    settings = read_solver(str(FOLDER / NET / "solver.prototxt"))
    for field in ("net", "test_iter", "test_interval", "snapshot", "snapshot_prefix", "display"):
        settings.ClearField(field)
    if rule == "SGD":
        settings.type, settings.base_lr, settings.weight_decay = rule, 0.01, 0.0005
        settings.ClearField("momentum2")
    if rule == DAMPED:
        settings.delta = 0.001
    return settings


def train_ocaffe(data: Any, steps: int, seed: int, batch: int, device: str, rule: str = "AdamW") -> tuple[dict[str, Any], dict[str, Any], list[float]]:
    """Train, and return the first weights, and losses, ms and accuracy, and the rates."""
    settings = settings_of(rule)
    settings.max_iter, settings.random_seed = max(steps, settings.warmup_iter + 1), seed
    settings.net_param.CopyFrom(net_message(batch))
    solver = ocaffe.get_solver(settings, **({"device": device} if device else {}))
    first = {name: [np.array(blob.data) for blob in blobs] for name, blobs in solver.net.params.items()}
    losses, rates, times = [], [], []
    for images, labels in batches(data, steps, seed, batch):
        rates.append(solver.lr)
        begin = time.perf_counter()
        solver.net.blobs["data"].data[...] = images
        solver.net.blobs["label"].data[...] = labels
        solver.step(1)
        losses.append(float(solver.net.blobs["loss"].data))
        times.append(time.perf_counter() - begin)
    part = data.parts["test"]
    weights = {name: [np.array(blob.data) for blob in blobs] for name, blobs in solver.net.params.items()}
    right = 0
    deploy = read_net(str(FOLDER / NET / "deploy.prototxt"))
    deploy.layer[0].input_param.shape[0].dim[0] = 180
    net = ocaffe.Net(deploy, ocaffe.TEST, **({"device": device} if device else {}))
    for name, blobs in weights.items():
        for blob, value in zip(net.params[name], blobs):
            blob.data[...] = value
    for start in range(0, len(part.labels), 180):
        images = scaled(part.images[start : start + 180])
        padded = np.zeros((180, 1, 28, 28), np.float32)
        padded[: len(images)] = images
        scores = net.forward(data=padded)["prob"][: len(images)]
        right += int((scores.reshape(len(images), -1).argmax(1) == part.labels[start : start + 180]).sum())
    solver.close()
    return first, {"losses": losses, "ms": 1000 * statistics.median(times), "accuracy": right / len(part.labels)}, rates


def train_torch(
    data: Any, steps: int, seed: int, batch: int, device: str, first: dict[str, Any], rates: list[float], rule: str = "AdamW", dtype: Any = torch.float32,
) -> dict[str, Any]:  # fmt: skip
    """Train the same net from the weights `first` with the same rates."""
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    sizes = NETS[NET][1].keywords["sizes"]  # type: ignore[attr-defined]
    vit = Vit(first, sizes).to(device, dtype)
    settings = settings_of(rule)
    plain, decayed, doubled = [], [], []  # norms and positions; weights; biases of products, which learn at twice the rate
    for name, parameter in vit.held.items():
        if "norm" in name or name.startswith("positions"):
            plain.append(parameter)
        else:
            (decayed if name.endswith("_0") else doubled).append(parameter)
    groups = [{"params": plain, "weight_decay": 0.0}, {"params": decayed, "weight_decay": settings.weight_decay}, {"params": doubled, "weight_decay": 0.0}]
    if rule == "SGD":
        optimizer: Any = Momentum(groups, settings.momentum)
    else:
        optimizer = torch.optim.AdamW(groups, lr=1.0, betas=(settings.momentum, settings.momentum2), eps=settings.delta)
    losses, times = [], []
    for (images, labels), rate in zip(batches(data, steps, seed, batch), rates):
        for group, factor in zip(optimizer.param_groups, (1, 1, 2)):
            group["lr"] = rate * factor
            if rule != "SGD":  # Caffe adds delta to the root of the history before the correction of its bias
                group["eps"] = settings.delta / (1 - settings.momentum2 ** (len(losses) + 1)) ** 0.5
        begin = time.perf_counter()
        loss = F.cross_entropy(vit(torch.from_numpy(images).to(device, dtype)), torch.from_numpy(labels).long().to(device))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
        times.append(time.perf_counter() - begin)
    part = data.parts["test"]
    with torch.no_grad():
        parts = [torch.from_numpy(scaled(part.images[i : i + 500])) for i in range(0, len(part.labels), 500)]
        scores = np.concatenate([vit(images.to(device, dtype)).cpu().numpy() for images in parts])
    return {"losses": losses, "ms": 1000 * statistics.median(times), "accuracy": float((scores.argmax(1) == part.labels).mean())}


def apart(losses: list[float], reference: list[float]) -> float:
    return max(abs(a - b) / abs(b) for a, b in zip(losses[:COMPARED], reference))


def scaled(images: np.ndarray) -> np.ndarray:
    return images.astype(np.float32).reshape(-1, 1, 28, 28) * np.float32(0.00390625)


def batches(data: Any, steps: int, seed: int, batch: int) -> Any:
    """Yield the batches of `steps` steps: a new order in every epoch."""
    part, rng = data.parts["train"], np.random.default_rng(seed)
    order = np.zeros(0, int)
    for _ in range(steps):
        if len(order) < batch:
            order = rng.permutation(len(part.labels))
        chosen, order = order[:batch], order[batch:]
        yield scaled(part.images[chosen]), part.labels[chosen].astype(np.float32)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="")
    parser.add_argument("--torch", default="cpu")
    parser.add_argument("--mnist", default="")
    parser.add_argument("--steps", type=int, default=1500)
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--json", default="")
    options = parser.parse_args()
    log.quiet()
    data = SETS["mnist" if options.mnist else "digits"](options.mnist or None)
    file = pathlib.Path(options.json or os.devnull)
    made = {"data": data.parts["train"].images.shape[0], "torch": torch.__version__, "steps": options.steps, "batch": options.batch}
    held = json.loads(file.read_text() or "{}") if file.exists() else {}
    rows = held["rows"] if held and made.items() <= held.items() else []
    for seed in sorted(set(range(1, options.seeds + 1)) - {row["seed"] for row in rows}):
        row: dict[str, Any] = {"seed": seed, "losses": {}}
        for rule in ("SGD", DAMPED, "AdamW"):
            steps = options.steps if rule == "AdamW" else COMPARED + 1
            first, ours, rates = train_ocaffe(data, steps, seed, options.batch, options.device, rule)
            theirs = train_torch(data, steps, seed, options.batch, options.torch, first, rates, rule)
            double = train_torch(data, COMPARED, seed, options.batch, options.torch, first, rates, rule, torch.float64)
            row["losses"][rule] = {"ocaffe": apart(ours.pop("losses"), theirs["losses"]), "PyTorch in double": apart(double["losses"], theirs.pop("losses"))}
            print(json.dumps(row), flush=True)
        rows.append({**row, "ocaffe": ours, "PyTorch": theirs})
        file.write_text(json.dumps({**made, "rows": rows}, indent=1) + "\n")
    means = [statistics.mean(row[side]["accuracy"] for row in rows) for side in ("ocaffe", "PyTorch")]
    print(f"accuracy of {len(rows)} seeds: ocaffe {means[0]:.4f}, PyTorch {means[1]:.4f}")


if __name__ == "__main__":
    main()
