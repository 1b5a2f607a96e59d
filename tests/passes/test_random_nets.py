"""Random nets train to the same parameters with all rewrites and poisoned memory as without rewrites."""
from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest

from tests.harness import switch
from tests.passes.random_nets import RandomNet
from tests.passes.test_traps import SETTINGS, trained

pytestmark = pytest.mark.unoptimised

EXTRAS = ("", "", " iter_size: 2", " clip_gradients: 0.5", " weight_decay: 0.01")
ROUNDING = 1e-5  # relative to the largest magnitude; a fused expression may round less often
LEAST = 5e-2  # magnitude of parameters that are smaller: their steps are sums of larger terms, whose rounding differs (2.4e-7 on an NVIDIA GPU)
SEEDS = [*range(6), *(pytest.param(seed, marks=pytest.mark.sweep) for seed in range(6, 200))]


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.usefixtures("small_values")
def test_rewrites_change_no_more_than_rounding(seed: int, device: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    text = f"net_param {{ {RandomNet(seed).text} }} {SETTINGS}{random.Random(seed).choice(EXTRAS)}"
    switch(monkeypatch, "poison")
    rewritten = trained(device, text, 2)
    switch(monkeypatch, "poison=0", "plan=none", "fuse=0")
    plain = trained(device, text, 2, recompute="none")
    for layer, arrays in plain.items():
        for ours, exact in zip(rewritten[layer], arrays):
            assert np.abs(ours - exact).max(initial=0) <= ROUNDING * max(np.abs(exact).max(initial=0), LEAST), layer
