"""Small nets with odd values run forward and backward on a device: `python -m tests.abuse.devices --count 5000 --device intel`.

They are the nets of tests/abuse/nets.py. Nets whose plan is larger than 256 MiB are refused before they reach the device.
"""
from __future__ import annotations

import numpy as np

import ocaffe
from ocaffe.errors import Error
from tests.abuse import nets
from tests.abuse.campaign import options
from tests.abuse.harness import Limits
from tests.abuse.workplace import workplace

LIMIT = 256 << 20  # bytes on the device
LIMITS = Limits(seconds=60)  # a compiler may take long


def run_net(path: str, device: str) -> None:
    rng = np.random.default_rng(0)
    with ocaffe.Net(path, ocaffe.TRAIN, memory_limit=LIMIT, device=device or None) as net:
        net.plan()  # raises Error for a net above the limit
        if any(net.blobs[name].count > LIMIT // 4 for name in (*net.inputs, *net.outputs)):
            raise Error("an input or output is too large for the harness")  # forward() returns arrays of constants, which take no memory on the device
        for name in net.inputs:
            net.blobs[name].data[...] = rng.integers(-1, 3, net.blobs[name].data.shape)
        for _ in range(2):
            net.forward()
            net.backward()


def main() -> int:
    chosen = options("devices", 20, device=True)
    with workplace():
        return nets.run("devices", chosen, lambda path: run_net(path, chosen.device), LIMITS)


if __name__ == "__main__":
    raise SystemExit(main())
