"""Every (program text, options) pair that ocaffe would build for an imitated device: `python -m tests.portability.corpus OUT --devices dg2 --nets lenet`.

It plans nets of the zoo in TRAIN (with backward and update) and TEST, and the cases of `ocaffe selftest`. No device is needed. OUT/DEVICE/*.cl are the
texts. OUT/DEVICE.json maps each to its family, defines, options and launched kernels. --digests FILE writes a digest of every text instead, to compare
two versions of ocaffe.
"""
from __future__ import annotations

import argparse
import hashlib
import json
import pathlib
from collections.abc import Iterable, Iterator
from typing import Any

from ocaffe import log
from ocaffe.cl.program import ProgramKey, options_of, program_text
from ocaffe.ir.launch import HOST, Call
from ocaffe.ir.target import Target
from ocaffe.selftest.selftest import all_cases
from tests.portability.devices import DEVICES
from tests.zoo.counts import compiled

# The default; --nets names others.
NETS = ("lenet", "vit_digits", "alexnet", "vgg16", "googlenet", "resnet18", "resnet50", "mobilenet_v1", "mobilenet_v2", "unet")
SELFTEST = "selftest"  # a name among the nets


def schedules(name: str, phase: str, target: Target) -> Iterator[Iterable[Any]]:
    """Yield the schedules of a net of the zoo, or of all cases of the selftest (which have phases of their own)."""
    if name != SELFTEST:
        yield compiled(name, phase, target).recording.schedule
        return
    for case in all_cases():
        yield case.launches(target)


def calls(name: str, phase: str, target: Target) -> Iterator[Call]:
    for schedule in schedules(name, phase, target):
        yield from (launch.final() for launch in schedule if not isinstance(launch, HOST))


def corpus(device: str, nets: Iterable[str]) -> dict[str, dict[str, Any]]:
    """The programs of a device by name, with `text`, `options`, `family`, `defines`, and `kernels`: launches by kernel and by net.

    The generated kernels of a net are one program, without those of earlier nets, as in a session with one net after another.
    """
    target, _, standard = DEVICES[device]
    launched: dict[ProgramKey, dict[str, dict[str, int]]] = {}
    generated: dict[str, dict[str, dict[str, int]]] = {}
    first: dict[ProgramKey, list[str]] = {}
    for net in nets:
        earlier = set(generated)
        for phase in ("TRAIN",) if net == SELFTEST else ("TRAIN", "TEST"):
            for call in calls(net, phase, target):
                kernels = generated.setdefault(call.program, {}) if call.generated else launched.setdefault(ProgramKey(call.program, call.defines), {})
                uses = kernels.setdefault(call.function, {})
                uses[net] = uses.get(net, 0) + 1
        if own := sorted(set(generated) - earlier):
            first[ProgramKey.generated(own)] = own
    for key, texts in first.items():
        launched[key] = {function: uses for text in texts for function, uses in generated[text].items()}
    found = {}
    for key, kernels in launched.items():
        text, options = program_text(key, target.device_fence), options_of(key, target, standard=standard)
        name = f"{key.family}_{hashlib.sha1(f'{options}{text}'.encode()).hexdigest()[:10]}"
        found[name] = {"text": text, "options": options, "family": key.family, "defines": dict(key.defines), "kernels": dict(sorted(kernels.items()))}
    return dict(sorted(found.items()))


def write(folder: pathlib.Path, device: str, nets: Iterable[str]) -> dict[str, dict[str, Any]]:
    """Write the programs of a device and their table. Return the table, without texts."""
    programs = corpus(device, nets)
    (folder / device).mkdir(parents=True, exist_ok=True)
    for old in (folder / device).glob("*.cl"):
        old.unlink()
    for name, program in programs.items():
        (folder / device / f"{name}.cl").write_text(program.pop("text"))
    (folder / f"{device}.json").write_text(json.dumps(programs, indent=1) + "\n")
    return programs


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=pathlib.Path)
    parser.add_argument("--devices", default=",".join(name for name, device in DEVICES.items() if device.compiler))
    parser.add_argument("--nets", default=",".join((*NETS, SELFTEST)))
    args = parser.parse_args()
    log.quiet(2)
    for device in args.devices.split(","):
        programs = write(args.out, device, args.nets.split(","))
        launches = sum(sum(uses.values()) for program in programs.values() for uses in program["kernels"].values())
        print(f"{device}: {len(programs)} programs, {launches} launches", flush=True)


if __name__ == "__main__":
    main()
