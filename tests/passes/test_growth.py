"""The work to plan and to lint a net grows with its number of layers (benchmarks/growth.py has the times)."""
from __future__ import annotations

import pathlib
import random
import sys
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from ocaffe.cli import main
from ocaffe.memory import plan
from ocaffe.support.switches import VARIABLE

X = 'layer { name: "x" type: "Input" top: "x" input_param { shape { dim: 2 dim: 3 dim: 4 dim: 4 } } }'


def chain(kinds: dict[str, str], n: int) -> list[str]:
    layers, last = [X], "x"
    for i in range(n):
        for kind, param in kinds.items():
            layers.append(f'layer {{ name: "{kind}{i}" type: "{kind}" bottom: "{last}" top: "{kind}{i}" {param} }}')
            last = f"{kind}{i}"
    return layers


def wide(kind: str, n: int) -> list[str]:
    tops = [f"t{i}" for i in range(n)]
    read = " ".join(f'bottom: "{top}"' for top in tops)
    last = f'layer {{ name: "last" type: "{kind}" {read} top: "last" }}'
    return [X, *(f'layer {{ name: "{top}" type: "TanH" bottom: "x" top: "{top}" }}' for top in tops), last]


CONV = 'convolution_param { num_output: 3 kernel_size: 3 pad: 1 weight_filler { type: "xavier" } }'
FORMS: dict[str, Callable[[int], list[str]]] = {
    "pointwise": lambda n: chain({"TanH": ""}, n),
    "convolutions": lambda n: chain({"Convolution": CONV, "BatchNorm": "", "Scale": "scale_param { bias_term: true }", "ReLU": ""}, n),
    "concat": lambda n: wide("Concat", n),
    "sum": lambda n: wide("Eltwise", n),
}


def calls(command: list[str]) -> int:
    """Return how many functions a command calls."""
    count = 0

    def seen(frame: Any, event: str, argument: Any) -> None:
        nonlocal count
        count += event in ("call", "c_call")

    sys.setprofile(seen)
    try:
        main(command)
    finally:
        sys.setprofile(None)
    return count


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("command", ["plan --model net.prototxt", "plan --solver solver.prototxt", "lint net.prototxt"])
def test_work_grows_with_the_layers(form: str, command: str, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv(VARIABLE, raising=False)  # the verifier takes longer than a plan
    pathlib.Path("solver.prototxt").write_text('net: "net.prototxt" base_lr: 0.1 lr_policy: "fixed" max_iter: 1')
    counts = []
    for n in (60, 60, 120, 240):  # the first run imports and fills caches
        layers = FORMS[form](n)
        last = layers[-1].split('name: "')[1].split('"')[0]
        loss = f'layer {{ name: "loss" type: "Reduction" bottom: "{last}" top: "loss" loss_weight: 1 }}'
        pathlib.Path("net.prototxt").write_text("\n".join(["force_backward: true", *layers, loss]))
        counts.append(calls(command.split()))
    assert counts[3] - counts[2] <= 1.5 * 2 * (counts[2] - counts[1]), counts


@pytest.mark.parametrize("seed", range(3))
def test_arrays_find_the_places_of_the_loop(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    found = []
    for many in (10**9, 7):
        monkeypatch.setattr(plan, "MANY", many)
        rng, slab, places = random.Random(seed), plan._Slab(), []
        for _ in range(400):
            first = rng.randrange(600)
            life: Any = SimpleNamespace(first=first, last=first + rng.choice((3, 50, 500)), size=rng.randrange(1, 1000))
            places.append(slab.gap(life))
            slab.add(life, places[-1])
        found.append(places)
    assert found[0] == found[1]
