"""Plain descriptions of compiled nets. This is the one file of the replay that knows how a Launch, a Ref, a plan and a program look inside.

A description is made of lists, dicts, numbers and strings, so it can be kept and compared with one of another version of ocaffe. When a restructuring
renames an attribute, change the line here that reads it, and keep the names of the description.
"""
from __future__ import annotations

import copy
import functools
import hashlib
import os
import pathlib
import sys
from collections.abc import Iterable
from dataclasses import replace
from typing import Any, NamedTuple
from unittest import mock

import numpy as np

from ocaffe.cl.command_list import CommandList
from ocaffe.cl.program import ProgramKey, generated_programs, options_of, program_text
from ocaffe.cl.session import GENERATED_SIZE
from ocaffe.compiler.compile import CompiledNet
from ocaffe.errors import Error
from ocaffe.graph.options import NetOptions
from ocaffe.ir.launch import HOST, Launch, roots
from ocaffe.ir.recorder import Recorder
from ocaffe.ir.target import Target
from ocaffe.ir.tensor import Ref
from ocaffe.memory.plan import MemoryPlan, plan
from ocaffe.selftest.selftest import all_cases
from ocaffe.support.switches import Switches
from tests.portability.devices import DEVICES
from tests.zoo.counts import H100, ROOT, cases, compiled

Description = dict[str, Any]

_INTEL = Target(name="AMD EPYC", runtime="intel", compute_units=16, vector_width=16, max_work_group=8192, local_memory=256 << 10, global_memory=64 << 30,
                free_memory=64 << 30, max_allocation=1 << 40, argument_bytes=3840)  # fmt: skip
_NVIDIA = replace(H100, extensions=frozenset({"cl_nv_compiler_options"}))
_MI210 = replace(DEVICES["gfx90a"].target, max_allocation=1 << 40)
TARGETS = {
    "intel": _INTEL,
    "pocl": replace(_INTEL, name="pthread-haswell", runtime="pocl", compute_units=4, vector_width=8, max_work_group=4096, local_memory=512 << 10),
    "H100": _NVIDIA,
    "H100-tf32": replace(_NVIDIA, math="tf32", wgmma=True),
    "H100-bf16": replace(_NVIDIA, math="bf16", wgmma=True),
    "H100-bf16-no-wgmma": replace(_NVIDIA, math="bf16"),  # as an A100, or where the trial of wgmma failed
    "gfx90a": _MI210,
    "gfx90a-bf16": replace(_MI210, math="bf16", matrix_unit="MFMA of CDNA 2"),
}
STANDARD = DEVICES["gfx90a"].standard  # of programs with the fence SCOPE
NETS = sorted({net for net, _, _ in cases()})
QUICK = ("alexnet", "googlenet", "lenet", "mobilenet_ssd", "mobilenet_v2", "resnet50", "vit_digits")
SELFTEST = "selftest"
SLOW = ("densenet121", "inception_v3", "shufflenet_v2")


class Way(NamedTuple):
    """A way to compile a net. `limit`: the part of the memory without a limit that it may take. `nets`, `targets`: those that are compiled so; empty: all."""

    phase: str = "TRAIN"
    options: NetOptions = NetOptions()
    switches: Switches = Switches()
    batch: int = 16
    limit: float = 0.0
    data: str = "DummyData"
    nets: tuple[str, ...] = ()
    targets: tuple[str, ...] = ()


_FEW = ("lenet", "mobilenet_v2", "resnet50")
WAYS = {
    "TRAIN": Way(),
    "TEST": Way("TEST"),
    "prepacked": Way("TEST", NetOptions(prepack_weights=True), data="Input"),  # `ocaffe test` and scripts
    "batch64": Way(batch=64, nets=("googlenet", "mobilenet_v2", "resnet50", "vgg16"), targets=("H100", "H100-tf32", "H100-bf16")),  # the tuned choices
    "script": Way(options=NetOptions(observed_diffs=True, hold_gradients=True, accumulate=True), nets=(*_FEW, "googlenet"), targets=("intel", "H100-bf16")),
    "debug": Way(options=NetOptions(debug=True), nets=_FEW, targets=("intel", "H100-bf16")),
    "apart": Way(options=NetOptions(apart=True), nets=_FEW, targets=("intel", "H100-bf16")),
    "plain": Way(switches=Switches(share=False, fuse=False), nets=_FEW, targets=("intel", "H100", "H100-bf16")),
    "recomputed": Way(options=NetOptions(recompute="cheap"), nets=(*_FEW, "googlenet"), targets=("H100", "H100-bf16", "gfx90a")),
    "ranks": Way(options=NetOptions(in_flight=32 << 20, statistics_ranks=2), nets=_FEW, targets=("intel", "H100-bf16")),
    "limited": Way(limit=0.9, nets=("googlenet", "resnet50"), targets=("intel", "H100-bf16")),  # more recomputation
    "microbatches": Way(limit=0.6, nets=("lenet", "vgg16"), targets=("intel", "H100")),
}  # fmt: skip


def names(quick: bool) -> list[str]:
    """The names 'NET WAY TARGET' of everything that is described. Those that take long come first."""
    own = [
        f"{net} {way} {target}" for net in NETS if not quick or net in QUICK for way, facts in WAYS.items() for target in TARGETS
        if (not facts.nets or net in facts.nets) and (not facts.targets or target in facts.targets)
    ]  # fmt: skip
    checks = [f"{SELFTEST} {case.name.replace(' ', '_')} {target}" for case in all_cases() for target in TARGETS]
    return sorted(own, key=lambda name: name.split()[1] not in ("microbatches", "limited") and not name.startswith(SLOW)) + checks


def prepare(folder: pathlib.Path) -> None:
    """Make `folder` the current one, with the files that nets of the zoo read while shapes are inferred, and clear the variables that change plans."""
    sizes = folder / "data/VOC0712/test_name_size.txt"
    sizes.parent.mkdir(parents=True)
    sizes.write_text("000001 500 353\n")
    os.chdir(folder)
    for variable in [name for name in os.environ if name.startswith("OCAFFE_")]:
        del os.environ[variable]


def describe(name: str) -> tuple[Description, dict[str, str]]:
    """Describe one of `names`. Return the texts of its programs, too, by their digests. An error is a description, too."""
    try:
        return _describe(name)
    except (Error, AssertionError) as problem:
        return {"error": f"{type(problem).__name__}: {problem}".replace(str(ROOT), ".")}, {}


def _describe(name: str) -> tuple[Description, dict[str, str]]:
    net, way, device = name.split()
    target = TARGETS[device]
    if net == SELFTEST:
        case = next(case for case in all_cases() if case.name.replace(" ", "_") == way)
        schedule = case.launches(target)
        placed = plan(schedule, alignment=target.alignment, slab_limit=target.max_allocation, gradient_slab=target.gradient_slab)
        return _described(schedule, placed, target, Recorder(target, train=True).step)
    found = _compiled(net, WAYS[way], target)
    recording = found.recording
    result, texts = _described(recording.schedule, found.plan, target, recording.step)
    result["ranges"] = {
        "forward": recording.forward_end, "backward": recording.backward_end, "forward layers": recording.forward_ranges,
        "backward layers": sorted([layer, *both] for layer, both in recording.backward_ranges.items()),
    }  # fmt: skip
    result["microbatches"] = [found.microbatch.cut, found.microbatch.count] if found.microbatch else []
    return result, texts


def _compiled(net: str, way: Way, target: Target) -> CompiledNet:
    found = compiled(net, way.phase, target, way.options, way.switches, way.batch, way.data)
    if not way.limit:
        return found
    fixed = sum(root.nbytes * root.slots for root in roots(found.recording.schedule) if root.persistent)
    return compiled(net, way.phase, target, replace(way.options, limit=fixed + int(way.limit * found.plan.total)), way.switches, way.batch, way.data)


def _described(schedule: list[Launch], placed: MemoryPlan, target: Target, step: Ref) -> tuple[Description, dict[str, str]]:
    texts: dict[str, str] = {}
    schedule = [_final(launch) for launch in schedule]
    numbers = {root: number for number, root in enumerate(roots(schedule))}
    launches = [_launch(launch, numbers, target, texts) for launch in schedule]
    return {
        "launches": launches,
        "tensors": [_root(root, steps, placed) for root, steps in roots(schedule).items()],
        "plan": {"slabs": placed.slabs, "total": placed.total, "lower bound": placed.lower_bound, "peak step": placed.peak_step},
        "programs": [_program(key, target, texts) for key in sorted(_built(schedule, placed, target, step))],
    }, texts


def _final(launch: Launch) -> Launch:
    """The launch with its call, so that an expression is lowered once."""
    result = copy.copy(launch)
    result.call = None if isinstance(launch, HOST) else launch.final()
    return result


def _launch(launch: Launch, numbers: dict[Ref, int], target: Target, texts: dict[str, str]) -> Description:
    result: Description = {"layer": launch.layer, "phase": launch.phase, "class": type(launch).__name__, "shown": launch.what}
    if not isinstance(launch, HOST):
        call = launch.final()
        key = ProgramKey.generated([call.program]) if call.generated else ProgramKey(call.program, call.defines)
        result |= {"program": key.family, "function": call.function, "defines": dict(call.defines), "text": _text(key, target.device_fence, texts)}
        result |= {"size": call.size, "local": call.local, "scalars": [f"{scalar.dtype.name} {scalar.item()!r}" for scalar in call.scalars]}
    result["operands"] = [
        {"name": ref.name, "access": access.value, "tensor": numbers[ref.root], "shape": ref.shape, "type": ref.dtype.name, "offset": ref.root_offset,
         "stride": ref.batch_stride} for ref, access in ((operand.ref, operand.access) for operand in launch.operands)
    ]  # fmt: skip
    return {**result, "flops": launch.flops, "recomputed": launch.recomputed, "prepacks": launch.prepacks_weights}


def _root(root: Ref, steps: tuple[int, int], placed: MemoryPlan) -> Description:
    value = hashlib.sha1(np.ascontiguousarray(root.value).tobytes()).hexdigest()[:12] if isinstance(root.value, np.ndarray) else root.value
    return {
        "name": root.name, "role": root.role.value, "shape": root.shape, "type": root.dtype.name, "order": "blocks" if root.blocked else "planes",
        "slots": root.slots, "kept": root.persistent, "value": value, "steps": steps, "place": placed.places.get(root),
    }  # fmt: skip


def _program(key: ProgramKey, target: Target, texts: dict[str, str]) -> Description:
    options, family = options_of(key, target, (), STANDARD), "task_graph" if '#include "task_graph.h"' in key.source else key.family
    return {"program": family, "defines": dict(key.defines), "options": options, "text": _text(key, target.device_fence, texts)}


def _built(schedule: list[Launch], placed: MemoryPlan, target: Target, step: Ref) -> Iterable[ProgramKey]:
    """The programs that a session builds to bind the schedule. Its device is imitated."""
    session = mock.MagicMock()
    session.device.target = target
    commands = CommandList(session, schedule, placed, step)
    commands.generated = generated_programs(commands.texts, sys.maxsize if target.is_cpu else GENERATED_SIZE)
    return commands.keys


def _text(key: ProgramKey, fence: str, texts: dict[str, str]) -> str:
    text, digest = _texts(key, fence)
    texts[digest] = text
    return digest


@functools.lru_cache(maxsize=4096)
def _texts(key: ProgramKey, fence: str) -> tuple[str, str]:
    """The text of a program as the compiler gets it, and its digest."""
    text = program_text(key, fence)
    return text, hashlib.sha1(text.encode()).hexdigest()[:16]
