"""The predicted time of a schedule: its launches run one after the other, and copies to and from the host run beside them."""
from __future__ import annotations

import math
from dataclasses import dataclass

from ocaffe.ir.launch import BeginFetch, BeginStore, Schedule, Transfer
from ocaffe.ir.rates import Rates
from ocaffe.ir.tensor import Ref

BESIDE = 0.05  # share of the time of copies by which launches beside them take longer: 1.0 of 20 ms for ResNet-50 on an H200


@dataclass(frozen=True)
class Prediction:
    """Seconds of a run. `waits`: those of them in which launches wait for copies. `copied`: bytes to the host."""

    seconds: float
    waits: float = 0.0
    copied: int = 0


def can_offload(rates: Rates) -> bool:
    """Whether values can be in the host's memory while the device does not need them."""
    return rates.to_host > 0 and rates.from_host > 0


def copy_seconds(nbytes: float, rate: float) -> float:
    """The time of a copy of so many bytes at `rate` bytes per second; infinite if there is no such copy."""
    return nbytes / rate if rate else math.inf


def beside_seconds(nbytes: float, rates: Rates) -> float:
    """The time by which launches take longer, if so many bytes go to the host and back beside them."""
    return BESIDE * (copy_seconds(nbytes, rates.to_host) + copy_seconds(nbytes, rates.from_host)) if nbytes else 0.0


def predict(schedule: Schedule, rates: Rates) -> Prediction:
    """Simulate one run. Copies of a direction run one by one, each after the launches that were enqueued before it."""
    now = waits = stores = fetches = 0.0
    copied = fetched = 0
    done: dict[Ref, float] = {}  # when the copy to or from a Ref of the host is complete
    for launch in schedule:
        if isinstance(launch, BeginStore):
            stores = done[launch.host] = max(stores, now) + copy_seconds(launch.host.nbytes, rates.to_host)
            copied += launch.host.nbytes
        elif isinstance(launch, BeginFetch):
            fetches = done[launch.host] = max(fetches, now) + copy_seconds(launch.host.nbytes, rates.from_host)
            fetched += launch.host.nbytes
        elif isinstance(launch, Transfer):
            waits += max(0.0, done[launch.host] - now)
            now = max(now, done[launch.host])
        else:
            now += rates.seconds(launch)
    return Prediction(now + beside_seconds(copied + fetched, rates) / 2, waits, copied)
