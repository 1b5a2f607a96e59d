#!/usr/bin/env python3
"""Training on two devices against one, by the command line, beside PyTorch's DistributedDataParallel: ms per iteration and efficiency.

    benchmarks/ranks.py [--devices 0,1] [--torch] [--exchange nccl,mpi] [--iterations 120] [--display 20] [--json FILE] [ROW ...]

The batch is that of one device; each device trains on constants (DummyData). Efficiency is the time of a step on one device, divided by that on all.
`wait` is the share of the time that the devices waited for gradients, from the log. `MiB`: the largest memory of the first device that the driver reports.
PyTorch trains in channels_last; fp32 without TF32.
"""
import argparse
import json
import os
import pathlib
import re
import statistics
import subprocess
import sys
import tempfile
import threading
from typing import Any

from resident import ROOT, constant, resident

from ocaffe import log, proto
from ocaffe.formats.text import write_text

ROWS = {  # name: (net, batch, math)
    "resnet50 fp32": ("resnet50", 64, "fp32"),
    "resnet50 bf16": ("resnet50", 64, "bf16"),
    "vgg16 fp32": ("vgg16", 64, "fp32"),
    "vgg16 bf16": ("vgg16", 64, "bf16"),
    "alexnet fp32": ("alexnet", 256, "fp32"),
    "alexnet bf16": ("alexnet", 256, "bf16"),
}
_DISPLAY = re.compile(r"Iteration (\d+) \(([\d.e+-]+) iter/s")
_WAIT = re.compile(r"exchange wait ([\d.]+) %")
_TORCH = """
import os, statistics, sys, time, torch, torch.distributed as dist, torchvision
net, batch, math, iterations = sys.argv[1], int(sys.argv[2]), sys.argv[3], int(sys.argv[4])
rank, ranks = int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1))
torch.cuda.set_device(rank)
if ranks > 1: dist.init_process_group("nccl")
torch.backends.cudnn.allow_tf32 = torch.backends.cuda.matmul.allow_tf32 = False
torch.backends.cudnn.benchmark = True
model = getattr(torchvision.models, net)().cuda().to(memory_format=torch.channels_last)
if ranks > 1: model = torch.nn.parallel.DistributedDataParallel(model, device_ids=[rank])
optimizer = torch.optim.SGD(model.parameters(), 0.001, momentum=0.9, weight_decay=0.0005, fused=True)
x = torch.randn(batch, 3, 224, 224, device="cuda").to(memory_format=torch.channels_last)
y = torch.zeros(batch, dtype=torch.long, device="cuda")
def step():
    optimizer.zero_grad()
    with torch.autocast("cuda", torch.bfloat16, enabled=math == "bf16"):
        loss = torch.nn.functional.cross_entropy(model(x), y)
    loss.backward()
    optimizer.step()
for _ in range(10): step()
times = []
for _ in range(4):
    torch.cuda.synchronize()
    if ranks > 1: dist.barrier()
    begin = time.perf_counter()
    for _ in range(iterations // 4): step()
    torch.cuda.synchronize()
    times.append((time.perf_counter() - begin) / (iterations // 4))
if rank == 0: print("ms", 1000 * statistics.median(times))
if ranks > 1: dist.destroy_process_group()
"""


class Memory:
    """Context that looks at the memory of the first NVIDIA device, every 0.2 s. `most`: the largest value in MiB."""

    def __enter__(self) -> "Memory":
        self.most, self._done = 0, threading.Event()
        self._thread = threading.Thread(target=self._look)
        self._thread.start()
        return self

    def _look(self) -> None:
        while not self._done.wait(0.2):
            try:
                text = subprocess.run(["nvidia-smi", "--query-gpu=memory.used", "--format=csv,noheader,nounits"], capture_output=True, text=True).stdout
                self.most = max(self.most, int(text.split()[0]))
            except (OSError, ValueError, IndexError):
                return

    def __exit__(self, *_: object) -> None:
        self._done.set()
        self._thread.join()


def train(folder: str, name: str, batch: int, math: str, flags: list[str], options: argparse.Namespace) -> dict[str, Any]:
    """Run `ocaffe train`. Return the median ms per iteration, the log's exchange wait and the memory. The first display is left out."""
    solver = proto.SolverParameter(base_lr=0.001, lr_policy="fixed", momentum=0.9, weight_decay=0.0005, random_seed=1)
    solver.max_iter, solver.display, solver.snapshot_after_train = options.iterations, options.display, False
    solver.snapshot_prefix = os.path.join(folder, "snapshot")
    solver.net_param.CopyFrom(constant(resident(name, batch, proto.TRAIN)))
    path = os.path.join(folder, "solver.prototxt")
    pathlib.Path(path).write_text(write_text(solver))
    command = [sys.executable, "-m", "ocaffe", "train", "--solver", path, "--math", math, *flags]
    with Memory() as memory:
        done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=False)
    rates = [float(rate) for _, rate in _DISPLAY.findall(done.stderr)][2:]
    if done.returncode or not rates:
        raise SystemExit(f"{' '.join(command)} failed:\n{done.stderr[-3000:]}")
    waits = [float(share) for share in _WAIT.findall(done.stderr)][2:]
    used = re.search(r"The exchange takes (.*) on the device", done.stderr)
    return {"ms": 1000 / statistics.median(rates), "wait": statistics.median(waits) if waits else 0.0, "MiB": memory.most, "beside": used[1] if used else ""}


def torch_step(folder: str, name: str, batch: int, math: str, ranks: int, iterations: int) -> dict[str, Any]:
    path = pathlib.Path(folder, "step.py")
    path.write_text(_TORCH)
    starter = ["-m", "torch.distributed.run", "--nproc-per-node", str(ranks)] if ranks > 1 else []
    command = [sys.executable, *starter, str(path), name, str(batch), math, str(iterations)]
    with Memory() as memory:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    found = re.search(r"ms ([\d.]+)", done.stdout)
    if found is None:
        raise SystemExit(f"{' '.join(command)} failed:\n{done.stderr[-3000:]}")
    return {"ms": float(found[1]), "wait": 0.0, "MiB": memory.most, "beside": ""}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("rows", nargs="*", metavar="ROW", help=f"default: all of {', '.join(ROWS)}")
    parser.add_argument("--devices", default="0,1", help="as --gpu of ocaffe train; several")
    parser.add_argument("--exchange", default="nccl,mpi", help="transports")
    parser.add_argument("--torch", action="store_true", help="also PyTorch's DistributedDataParallel")
    parser.add_argument("--iterations", type=int, default=120)
    parser.add_argument("--display", type=int, default=20)
    parser.add_argument("--json", help="write the figures to this file")
    options = parser.parse_args()
    log.quiet()
    first, ranks = options.devices.split(",")[0], len(options.devices.split(","))
    print(f"{'':<16}{'':<12}{'ms':>8}{'efficiency':>12}{'wait':>8}{'MiB':>8}  beside the plan")
    results: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as folder:
        for row in options.rows or ROWS:
            name, batch, math = ROWS[row]
            found = results[row] = {"alone": train(folder, name, batch, math, ["--gpu", first], options)}
            for exchange in options.exchange.split(","):
                found[exchange] = train(folder, name, batch, math, ["--gpu", options.devices, "--exchange", exchange], options)
            if options.torch:
                found["torch alone"] = torch_step(folder, name, batch, math, 1, options.iterations)
                found["torch DDP"] = torch_step(folder, name, batch, math, ranks, options.iterations)
            for kind, figures in found.items():
                alone = found["torch alone" if kind.startswith("torch") else "alone"]["ms"]
                figures["efficiency"] = alone / figures["ms"]
                text = f"{figures['ms']:8.1f}{100 * figures['efficiency']:10.1f} %{figures['wait']:6.1f} %{figures['MiB']:8}  {figures['beside']}"
                print(f"{row:<16}{kind:<12}{text}", flush=True)
            if options.json:
                pathlib.Path(options.json).write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
