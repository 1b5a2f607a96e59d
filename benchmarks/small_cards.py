#!/usr/bin/env python3
"""Batches that cards with little memory can train, with and without a limit: predicted, without a device.

    benchmarks/small_cards.py [NET ...]

A card has CARD's speeds. OTHERS of its memory serve other programs and the driver. `over`: more time of an image, against the same batch on a card that keeps
all values.
"""
from __future__ import annotations

import sys
from dataclasses import replace

from optimum import GPU, assumed_data, case  # first: it makes ocaffe importable

from ocaffe.errors import NoRoom
from ocaffe.memory.report import fixed_bytes

CARD = {"flops": 1.27e13, "bandwidth": 3.3e11, "launch": 8e-6, "to_host": 1.2e10, "from_host": 1.2e10}
UNITS = 28
SIZES, OTHERS = (4, 8), 1 << 30
BATCHES = (8, 16, 32, 48, 64, 96, 128, 192, 256, 384)
MOST = 0.3  # more time


def main() -> None:
    with assumed_data() as data:
        for net in sys.argv[1:] or ("resnet50", "mobilenet_v2", "vgg16"):
            for size in SIZES:
                room = (size << 30) - OTHERS
                target = replace(GPU, name="card", compute_units=UNITS, global_memory=size << 30, free_memory=room)
                for batch in BATCHES:
                    given = case(net, batch, "gpu", CARD["to_host"], data)
                    given.target, given.rates = target, replace(given.rates, **CARD)
                    keep = given.plan(None)
                    if keep.plan.total + fixed_bytes([keep.recording.schedule]) <= room:
                        print(f"{net} {size} GiB: batch {batch} fits", flush=True)
                        continue
                    try:
                        plan = given.plan(room, link=True)
                    except NoRoom:
                        break
                    over = plan.predicted(given.rates).seconds / keep.predicted(given.rates).seconds - 1
                    print(f"{net} {size} GiB: batch {batch} with a limit, over {100 * over:.1f} %", flush=True)
                    if over > MOST:
                        break


if __name__ == "__main__":
    main()
