"""Nets with odd values are planned without a device: `python -m tests.abuse.nets --count 10000`.

A net is a random one (tests/passes/random_nets.py) or one of the golden nets. One in ten stays as it is, the others are distorted field by field.
`ocaffe plan` and `ocaffe summary` must succeed or raise ocaffe's Error within the limits.
"""
from __future__ import annotations

import pathlib
import random
from collections.abc import Callable
from typing import Any

from ocaffe import proto
from ocaffe.cli import plan, summary
from ocaffe.formats.text import parse, write_text
from tests.abuse.campaign import Options, Tally, options
from tests.abuse.fuzz import CHUNK, layer_types
from tests.abuse.harness import Limits, isolated
from tests.abuse.mutate import distort
from tests.abuse.workplace import nets, workplace
from tests.passes.random_nets import RandomNet

SOUND = 0.1  # share of nets that are not distorted


def net(seed: int, number: int) -> Any:
    """The message of net `number`."""
    rng = random.Random(f"net {seed} {number}")
    message = parse(RandomNet(rng.randrange(10**9)).text, proto.NetParameter) if rng.random() < 0.5 else rng.choice(nets())
    return message if rng.random() < SOUND else distort(rng, message, rng.choice(nets()), layer_types())


def text(seed: int, number: int) -> bytes:
    return write_text(net(seed, number)).encode("utf-8", "surrogateescape")


def plan_net(path: str) -> None:
    phase = ("TRAIN", "TEST")[pathlib.Path(path).stat().st_size % 2]
    plan.main(["--model", path, "--phase", phase])
    summary.main([path])


def run(part: str, chosen: Options, check: Callable[[str], object], limits: Limits) -> int:
    """Give every net, as a file, to `check`."""

    def one(number: int) -> object:
        pathlib.Path("net.prototxt").write_bytes(text(chosen.seed, number))
        return check("net.prototxt")

    tally = Tally(part, chosen)
    numbers = range(chosen.first, chosen.first + chosen.count)
    nets(), layer_types()
    for begin in range(0, len(numbers), CHUNK):
        if tally.spent():
            break
        for number, outcome in isolated(numbers[begin : begin + CHUNK], one, limits):
            tally.add(outcome, number, text(chosen.seed, number), ".prototxt")
            if tally.spent():
                break
    return tally.finish()


def main() -> int:
    chosen = options("nets", 100)
    with workplace():
        return run("nets", chosen, plan_net, Limits())


if __name__ == "__main__":
    raise SystemExit(main())
