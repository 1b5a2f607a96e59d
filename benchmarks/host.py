#!/usr/bin/env python3
"""The host's time in a training step, us: the zoo's nets with their data on the device.

    benchmarks/host.py [--only NET ...] [--batch 64] [--policy fixed|inv] [--device SPEC] [--steps 20] [--rounds 5]

`step` is the time of a step by the clock, in a queue of steps. `kernels`, `copies` and `flush` are the time within
these calls of OpenCL, which may wait for the device. `python` is the time of a step in which those calls do nothing.
Where their sum is near `step`, the host is the limit. Medians over rounds, alternating.
"""
from __future__ import annotations

import argparse
import statistics
import time
from collections import defaultdict
from collections.abc import Callable
from typing import Any

from resident import BATCHES, constant, resident  # first: it makes ocaffe importable

import ocaffe
from ocaffe import log, proto
from ocaffe.cl.device import select_device

POLICIES: dict[str, dict[str, float]] = {"fixed": {}, "inv": {"gamma": 1e-4, "power": 0.75}}
KINDS = {"enqueue_nd_range_kernel": "kernels", "enqueue_copy": "copies", "flush": "flush"}


class Done:
    """The event of a call that was skipped."""

    def __init__(self, status: int) -> None:
        self.command_execution_status = status

    def wait(self) -> None:
        """Return at once."""


class Calls:
    """A proxy of pyopencl or of a queue: adds up the time of the calls in KINDS, or skips them."""

    def __init__(self, real: Any, taken: dict[str, float] | None, event: Done) -> None:
        self.real = real
        for name, kind in KINDS.items():
            if hasattr(real, name):
                setattr(self, name, (lambda *args, **kwargs: event) if taken is None else self._timed(getattr(real, name), kind, taken))

    def __getattr__(self, name: str) -> Any:
        return getattr(self.real, name)

    @staticmethod
    def _timed(call: Callable[..., Any], kind: str, taken: dict[str, float]) -> Callable[..., Any]:
        def timed(*args: Any, **kwargs: Any) -> Any:
            real = [arg.real if type(arg) is Calls else arg for arg in args]
            begin = time.perf_counter()
            result = call(*real, **kwargs)
            taken[kind] += time.perf_counter() - begin
            return result

        return timed


def measure(net: str, options: argparse.Namespace) -> dict[str, float]:
    """us of a step by kind of call."""
    device = select_device(options.device)
    rate = {"base_lr": 1e-4, "lr_policy": options.policy, **POLICIES[options.policy]}
    param = proto.SolverParameter(momentum=0.9, weight_decay=5e-4, max_iter=1 << 30, snapshot_after_train=False, **rate)
    param.net_param.CopyFrom(constant(resident(net, options.batch or BATCHES[net], proto.TRAIN)))
    with ocaffe.SGDSolver(param, keep=[], device=device) as solver:
        cl, queue, event = device.cl, device.queue, Done(device.cl.command_execution_status.COMPLETE)
        found: dict[str, list[float]] = defaultdict(list)

        def step() -> float:
            begin = time.perf_counter()
            solver._solver.step(options.steps)
            queue.finish()
            return time.perf_counter() - begin

        step()
        for _ in range(options.rounds):
            times = {"step": step()}
            within: dict[str, float] = defaultdict(float)
            for taken in (within, None):
                device.cl, device.queue = Calls(cl, taken, event), Calls(queue, taken, event)
                try:
                    times["python"] = step()
                finally:
                    device.cl, device.queue = cl, queue
            times |= within
            for kind, seconds in times.items():
                found[kind].append(1e6 * seconds / options.steps)
        return {kind: statistics.median(times) for kind, times in found.items()}


def main() -> None:
    log.quiet(2)
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="*", default=["lenet"], choices=list(BATCHES), metavar="NET")
    parser.add_argument("--batch", type=int, help="default: the batch of the training benchmarks")
    parser.add_argument("--policy", default="fixed", choices=list(POLICIES), help="of the learning rate: constant, or sent to the device in each step")
    parser.add_argument("--device")
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    for net in options.only:
        print(f"{net:12}  " + "  ".join(f"{kind} {time:.1f}" for kind, time in measure(net, options).items()), flush=True)


if __name__ == "__main__":
    main()
