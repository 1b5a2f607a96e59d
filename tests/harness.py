"""Run the launches of a Recorder with a separate buffer for every root Ref, for tests of operations and kernels without planner and command list."""
from __future__ import annotations

import contextlib
import os
import warnings
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from ocaffe.cl.command_list import HOST
from ocaffe.cl.device import Device
from ocaffe.cl.open_ptx import opened, opens
from ocaffe.cl.program import OPTIONS, ProgramKey, program_text
from ocaffe.graph import parameters
from ocaffe.ir.launch import Call, Upload
from ocaffe.ir.recorder import Recorder
from ocaffe.ir.target import Target
from ocaffe.ir.tensor import BFLOAT, BLOCKS_GPU, Ref, widened
from ocaffe.ir.tuned import Tuned
from ocaffe.kernels.convolution.blocks_gpu import conv_blocks
from ocaffe.kernels.convolution.winograd import winograd_gpu
from ocaffe.passes import bf16, estimate, offload, recompute, sign_masks
from ocaffe.support.switches import VARIABLE

_programs: dict[Any, Any] = {}


def switches(*words: str) -> str:
    """Return the value of OCAFFE_DEBUG with more words. A word replaces the present one of its name."""
    return ",".join({word.partition("=")[0]: word for word in (*filter(None, os.environ.get(VARIABLE, "").split(",")), *words)}.values())


def switch(monkeypatch: pytest.MonkeyPatch, *words: str) -> None:
    """Set words of OCAFFE_DEBUG for a test, for example `switch(monkeypatch, "poison", "fuse=0")`. The others stay."""
    monkeypatch.setenv(VARIABLE, switches(*words))


def of_kind(target: Target, kind: str, last_block: bool = True) -> Target:
    """Return a device's target with the kernels of a class.

    With `last_block`, kernels may use last-block reductions if the device can order memory between work-groups. PoCL never does: its version 3.1
    miscompiles kernels that return early between two barriers, and none of its devices has such a fence.
    """
    fence = target.device_fence or ("CPU" if target.is_cpu and target.runtime != "pocl" else "")
    return replace(target, kind=kind, device_fence=fence if last_block and kind == "gpu" else "")


def blocks(values: np.ndarray) -> np.ndarray:
    """Return values in the order of memory: N, C / 8, spatial axes, 8. The shape stays that of Caffe."""
    return BLOCKS_GPU.from_planes(values)


def narrowed(values: np.ndarray) -> np.ndarray:
    """Return the nearest bfloat16 values."""
    bits = np.ascontiguousarray(values, np.float32).view(np.uint32)
    return ((bits + 0x7FFF + (bits >> 16 & 1)) >> 16).astype(np.uint16)


def stored(values: np.ndarray, ref: Ref) -> np.ndarray:
    """Return values in the order and type of a Ref in blocks."""
    return narrowed(blocks(values)) if ref.dtype == BFLOAT else blocks(values)


def loaded(values: np.ndarray) -> np.ndarray:
    """Return the inverse of `stored`."""
    return BLOCKS_GPU.to_planes(widened(values) if values.dtype == BFLOAT else values)


SMALL_TILE = "32x32"  # of products on GPUs; CPU runtimes compile the larger ones for many seconds


def preferring(target: Target, *names: str) -> Target:
    """Return the target with a preference, as Recorder.prefer, for whole nets."""
    return replace(target, tuned=Tuned(preferred=names))


@contextlib.contextmanager
def winograd_in_parts(rec: Recorder, out: int) -> Iterator[None]:
    """Make operations recorded inside use Winograd's algorithm of the GPU class where possible, with tiles of `out` x `out`, in several passes."""
    with pytest.MonkeyPatch.context() as patch, rec.prefer(f"winograd {out}", SMALL_TILE):
        patch.setattr(winograd_gpu, "GRAIN", 4)
        rec.target = replace(rec.target, workspace=1)
        yield


def of_its_own(device: Device) -> Device:
    """Return the same device as if it had separate memory, to which batches and arrays of any size are streamed."""
    return changed(device, unified_memory=False, stream_above=0)


def changed(device: Device, **capabilities: Any) -> Device:
    """Return the same device as if its target had other capabilities."""
    return Device(replace(device.info, target=replace(device.target, **capabilities)), device)


def treat_as_large(patch: pytest.MonkeyPatch, size: int) -> None:
    """Lower the limits of passes that skip small values to `size` bytes, and flush gradients of any size."""
    for module in (bf16, estimate, offload, recompute, sign_masks):
        patch.setattr(module, "MIN_VALUE_BYTES", size)
    patch.setattr(parameters, "MIN_FLUSH_BYTES", 1)


def quick_to_compile(target: Target, on_cpu: bool) -> str:
    """Return a compiler's option for the kernels of GPUs on Intel's runtime for CPUs. They are long and run once.

    Optimised, the emulation of wgmma took four times as long to compile.
    """
    return " -cl-opt-disable" if on_cpu and target.kind == "gpu" and target.runtime == "intel" else ""


def program(target: Target, cl: Any, context: Any, call: Any, generated: str) -> Any:
    """Build the program of a call. All generated kernels of a recorder are one program, which builds much faster."""
    options = OPTIONS + quick_to_compile(target, bool(context.devices[0].type & cl.device_type.CPU))
    key = (context, options, generated if call.generated else call.program, call.defines)
    if key not in _programs:
        text = program_text(ProgramKey.generated([generated]) if call.generated else ProgramKey(call.program, call.defines))
        with warnings.catch_warnings():  # pyopencl warns whenever a compiler prints text
            warnings.simplefilter("ignore")
            built = cl.Program(context, text).build(options)
            if opens(call.defines):
                (device,) = context.devices
                built = cl.Program(context, [device], [opened(built.binaries[0])]).build(options)
            _programs[key] = built
    return _programs[key]


def in_blocks(rec: Recorder, context: Any, feeds: dict[Ref, np.ndarray], fetches: list[Ref]) -> list[np.ndarray]:
    """`execute` for launches that know both orders, with all operands in blocks of channels. Feeds and results are in Caffe's order."""
    for launch in rec.launches:
        call = launch.in_blocks(BLOCKS_GPU)
        assert isinstance(call, Call)
        launch.call = call
        launch.define(**conv_blocks.block_defines(rec.target))
    return [loaded(values) for values in execute(rec, context, {ref: stored(values, ref) for ref, values in feeds.items()}, fetches)]


def execute(rec: Recorder, context: Any, feeds: dict[Ref, np.ndarray], fetches: list[Ref], guard: int = 64, batch: int = 0) -> list[np.ndarray]:
    """Run all launches of `rec` in order and return the `fetches` as dense arrays.

    `feeds` and fetches may be views, also strided ones. Sources provide batch number `batch`. Unwritten memory is NaN. After the run, `guard` elements
    on both sides of every root buffer must be unchanged, and all completion counters must be zero.
    """
    import pyopencl as cl

    if rec.target.is_cpu and not context.devices[0].type & cl.device_type.CPU:
        pytest.skip("kernels of the CPU class keep tiles in private memory, which a GPU has not for all the work-items that it keeps in flight")
    queue = cl.CommandQueue(context)
    host: dict[Ref, np.ndarray] = {}
    pattern = 0xFFFFA5A5

    def root_array(ref: Ref) -> np.ndarray:
        root = ref.root
        if root not in host:
            size = root.count * root.dtype.itemsize + 2 * guard * root.dtype.itemsize
            data = np.full(-(-size // 4), pattern, np.uint32).view(np.uint8)[:size].view(root.dtype)
            if root.value is not None:
                data[guard : guard + root.count] = np.asarray(root.value, root.dtype).reshape(-1) if np.ndim(root.value) else root.value
            host[root] = data
        return host[root]

    def array_of(ref: Ref) -> np.ndarray:
        data = root_array(ref)[guard + ref.root_offset :]
        if not ref.shape:
            return data[:1].reshape(())
        inner = ref.dense_stride
        item = data.itemsize
        flat = np.lib.stride_tricks.as_strided(data, (ref.shape[0], inner), (ref.batch_stride * item, item))
        return flat

    for ref, array in feeds.items():
        array_of(ref)[...] = np.asarray(array, ref.dtype).reshape(array_of(ref).shape)
    for launch in rec.launches:
        for operand in launch.operands:
            root_array(operand.ref)
        if isinstance(launch, Upload):
            staging = launch.operands[0].ref
            launch.source.fill(batch, root_array(staging)[guard : guard + staging.count])
    for ref in fetches:
        root_array(ref)
    flags = cl.mem_flags.READ_WRITE | cl.mem_flags.COPY_HOST_PTR
    buffers = {root: cl.Buffer(context, flags, hostbuf=array) for root, array in host.items()}
    calls = [(launch, launch.final()) for launch in rec.launches if not isinstance(launch, HOST)]
    generated = "".join(dict.fromkeys(call.program for _, call in calls if call.generated))
    for launch, call in calls:
        kernel = cl.Kernel(program(rec.target, cl, context, call, generated), call.function)
        args: list[Any] = []
        for operand in launch.operands:
            ref = operand.ref
            args += [buffers[ref.root], np.uint64(guard + ref.root_offset), np.uint64(ref.batch_stride)]
        kernel.set_args(*args, *call.scalars)
        size = call.size
        if call.local is not None:
            assert len(call.local) < 3 or call.local[2] <= 64, f"{call.function}: groups of {call.local}, and NVIDIA allows 64 in the third axis"
            size = tuple(-(-n // m) * m for n, m in zip(size, call.local))
        cl.enqueue_nd_range_kernel(queue, kernel, size, call.local)
    queue.finish()
    for root, array in host.items():
        before = array.view(np.uint8).copy()
        cl.enqueue_copy(queue, array, buffers[root])
        edge = guard * root.dtype.itemsize
        after = array.view(np.uint8)
        assert root is not rec.completion_counters or not array[guard:-guard].any(), "counters that are not zero"
        assert (after[:edge] == before[:edge]).all() and (after[-edge:] == before[-edge:]).all(), f"{root}: written outside"
    return [array_of(ref).copy().reshape(ref.shape) for ref in fetches]
