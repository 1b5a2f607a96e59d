"""Device and seed for scripts: `set_mode_cpu`, `set_mode_gpu`, `set_device`, `set_random_seed`, `Timer`.

The process has one mode, which applies to nets and solvers created after the call. All nets share one context, but each has
its own queues, so each thread can use its own net.
"""
from __future__ import annotations

import operator
import threading
import time
from typing import NamedTuple

from ocaffe.cl.device import Device, DeviceInfo, choose, gpus, list_devices, no_opencl, with_math, with_tuned
from ocaffe.cl.program import Programs
from ocaffe.errors import Error, WrongValue
from ocaffe.support import log


class _Mode(NamedTuple):
    """Arguments of `choose`."""

    spec: str | None = None
    gpu: str | None = None


_lock = threading.Lock()
_mode = _Mode()
_gpu_number: str | None = None  # from set_device, which scripts call before or after set_mode_gpu
_random_seed: int | None = None
_opened: dict[str, Device] = {}  # by device number; all nets of the process share these


def _choose(mode: _Mode) -> DeviceInfo:
    import os

    devices = list_devices()
    if not devices:
        raise no_opencl()
    default = os.environ.get("OCAFFE_DEVICE")
    if default:
        return choose(devices, default=default)
    try:
        return choose(devices, mode.spec, mode.gpu)
    except Error as problem:
        if gpus(devices) or (mode.gpu is None and mode.spec != "gpu"):
            raise
        fix = "call caffe.set_mode_cpu() in place of set_mode_gpu(), or change nothing and export OCAFFE_DEVICE=cpu, or install the GPU's OpenCL driver"
        raise Error(problem.fact.replace("--device gpu", "set_mode_gpu()").replace(f"--gpu {mode.gpu}", f"set_device({mode.gpu})"), fix=fix) from None


def _set(mode: _Mode) -> None:
    """Set the mode. Raises Error if no device fits; the mode then stays as it was."""
    global _mode
    _choose(mode)
    _mode = mode


def set_mode_cpu() -> None:
    """Make nets and solvers created after this call run on the CPU. $OCAFFE_DEVICE has priority.

    Raises Error if OpenCL has no CPU device.
    """
    _set(_Mode(spec="cpu"))


def set_mode_gpu() -> None:
    """Make nets and solvers created after this call run on the GPU of `set_device`, or else on the best GPU.

    $OCAFFE_DEVICE has priority: with OCAFFE_DEVICE=cpu a script that calls set_mode_gpu runs on the CPU.
    Raises Error if OpenCL has no GPU.
    """
    _set(_Mode(gpu=_gpu_number) if _gpu_number is not None else _Mode(spec="gpu"))


def set_device(device: int | str) -> None:
    """Use this GPU in GPU mode, by its number in `ocaffe device_query`; or use any device by its spec, such as '0:0' or 'intel'.

    As in Caffe, a number alone does not change the mode. Raises Error if there is no such device.
    """
    global _gpu_number
    if isinstance(device, str):
        _set(_Mode(spec=device))
        return
    in_gpu_mode = _mode.gpu is not None or _mode.spec == "gpu"
    if device < 0:
        raise WrongValue(f"set_device({device})", fix="set_device(0) for the first GPU")
    mode = _Mode(gpu=str(device))
    if in_gpu_mode:
        _set(mode)
    _gpu_number = str(device)


def open_device(spec: str | None = None) -> Device:
    """Open the device of the present mode, or of `spec`. The process shares its context and programs; its queues are new.

    Raises Error if no device fits.
    """
    info = with_tuned(with_math(_choose(_mode) if spec is None else choose(list_devices() or _none(), spec)))
    with _lock:
        if info.number not in _opened:
            base = Device(info)
            base.programs = Programs(base)
            _opened[info.number] = base
        return Device(info, _opened[info.number])


def _none() -> list[DeviceInfo]:
    raise no_opencl()


def set_random_seed(seed: int) -> None:
    """Set the seed of nets and solvers created after this call. A seed in the prototxt or in an argument has priority."""
    global _random_seed
    _random_seed = operator.index(seed)


def random_seed() -> int | None:
    """Return the seed of the last `set_random_seed`, or None."""
    return _random_seed


class Timer:
    """A stopwatch: `start()`, `stop()`, then `ms`, the milliseconds between them.

    Every method of a solver, and every method of a net that returns arrays, waits for the device. The measured time includes their work.
    """

    def __init__(self) -> None:
        self._begin: float | None = None
        self._seconds: float | None = None

    def start(self) -> None:
        """Start from zero, if the timer is not running."""
        if self._begin is None:
            self._begin, self._seconds = time.perf_counter(), 0.0

    def stop(self) -> None:
        """Stop the timer, if it is running."""
        if self._begin is not None:
            self._seconds, self._begin = time.perf_counter() - self._begin, None

    @property
    def ms(self) -> float:
        """Milliseconds from start to stop. Stops a timer that is running. 0, with Caffe's warning, for one that was never started."""
        self.stop()
        if self._seconds is None:
            log.warning("benchmark.cpp:67", "Timer has never been run before reading time.")
            return 0.0
        return 1000 * self._seconds
