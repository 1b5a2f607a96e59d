"""Compare two corpora (tests/portability/corpus.py) after the preprocessor: `python -m tests.portability.compare BEFORE AFTER --devices h100,cpu`.

Equal tokens, options, launches and nets give equal binaries on a device. The exit status is 1 if a device has other ones.
"""
from __future__ import annotations

import argparse
import collections
import hashlib
import json
import pathlib
import sys

from tests.portability.compiler import tokens


def digests(folder: pathlib.Path, device: str) -> collections.Counter[str]:
    """Digests of the programs of a device, each with its options and launches."""
    found = collections.Counter[str]()
    for name, program in json.loads((folder / f"{device}.json").read_text()).items():
        facts = json.dumps([tokens(folder / device / f"{name}.cl"), program["options"], program["kernels"]], sort_keys=True)
        found[f"{program['family']} {hashlib.sha1(facts.encode()).hexdigest()}"] += 1
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("before", type=pathlib.Path)
    parser.add_argument("after", type=pathlib.Path)
    parser.add_argument("--devices", default="h100,h100-bf16,cpu,gpu")
    args = parser.parse_args()
    status = 0
    for device in args.devices.split(","):
        before, after = digests(args.before, device), digests(args.after, device)
        counts = [sum(each.values()) for each in (before, after, before & after)]
        total = hashlib.sha1(json.dumps(sorted(after.items())).encode()).hexdigest()[:16]
        print(f"{device}: {counts[0]} programs before, {counts[1]} after, {counts[2]} equal; digest {total}", flush=True)
        status |= before != after
    return status


if __name__ == "__main__":
    sys.exit(main())
