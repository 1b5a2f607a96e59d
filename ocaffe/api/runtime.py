"""Which device scripts run on, and from which seed: `set_mode_cpu`, `set_mode_gpu`, `set_device`, `set_random_seed`, `Timer`.

The mode is one for the process and counts for what is made after it. Each net has queues of its own on a context that all share, so several threads
may use one net each.
"""
from __future__ import annotations

import threading
import time
from typing import NamedTuple

from ocaffe.cl.device import Device, DeviceInfo, choose, list_devices, no_opencl, with_math, with_tuned
from ocaffe.cl.program import Programs
from ocaffe.errors import Error


class _Mode(NamedTuple):
    """What `choose` is asked for."""

    spec: str | None = None
    gpu: str | None = None


_lock = threading.Lock()
_mode = _Mode()
_gpu_number: str | None = None  # of set_device, which scripts call before set_mode_gpu or after it
_random_seed: int | None = None
_opened: dict[str, Device] = {}  # by number: what all nets of the process share


def _choose(mode: _Mode) -> DeviceInfo:
    import os

    devices = list_devices()
    if not devices:
        raise no_opencl()
    default = os.environ.get("OCAFFE_DEVICE")
    return choose(devices, default=default) if default else choose(devices, mode.spec, mode.gpu)


def _set(mode: _Mode) -> None:
    """Raises Error where no device fits, before anything has changed."""
    global _mode
    _choose(mode)
    _mode = mode


def set_mode_cpu() -> None:
    """Nets and solvers made from now on run on the CPU. $OCAFFE_DEVICE comes first. Raises Error if OpenCL knows no CPU."""
    _set(_Mode(spec="cpu"))


def set_mode_gpu() -> None:
    """Nets and solvers made from now on run on the GPU of `set_device`, else the best one. Raises Error if OpenCL knows no GPU.

    $OCAFFE_DEVICE comes first: with OCAFFE_DEVICE=cpu a script that says set_mode_gpu runs on the CPU.
    """
    _set(_Mode(gpu=_gpu_number) if _gpu_number is not None else _Mode(spec="gpu"))


def set_device(device: int | str) -> None:
    """Use this GPU (a number as `ocaffe device_query` lists them) in GPU mode; or any device by its spec, such as '0:0' or 'intel'.

    As in Caffe a number alone does not change the mode. Raises Error if there is no such device.
    """
    global _gpu_number
    if isinstance(device, str):
        _set(_Mode(spec=device))
        return
    in_gpu_mode = _mode.gpu is not None or _mode.spec == "gpu"
    if device < 0:
        raise Error(f"set_device({device})", fix="0 for the first GPU")
    mode = _Mode(gpu=str(device))
    if in_gpu_mode:
        _set(mode)
    _gpu_number = str(device)


def open_device(spec: str | None = None) -> Device:
    """The device of the present mode, or that of `spec`: its context and programs are shared by the process, its queues are new. Raises Error."""
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
    """Seed of the nets and solvers made from now on, where the prototxt or an argument gives none."""
    global _random_seed
    _random_seed = int(seed)


def random_seed() -> int | None:
    """What `set_random_seed` said last."""
    return _random_seed


class Timer:
    """A stopwatch: `start()`, `stop()`, then `ms`, the milliseconds between them.

    Calls of solvers, and of nets that return arrays, come back when their work is done, so it counts all of it.
    """

    def __init__(self) -> None:
        self._begin: float | None = None
        self._seconds: float | None = None

    def start(self) -> None:
        """Begin to count, from zero."""
        self._begin, self._seconds = time.perf_counter(), None

    def stop(self) -> None:
        """Raises Error if it does not run."""
        if self._begin is None:
            raise Error("the timer was not started", fix="timer.start()")
        self._seconds, self._begin = time.perf_counter() - self._begin, None

    @property
    def ms(self) -> float:
        """Milliseconds from start to stop, or to now while it runs. Raises Error if it was never started."""
        if self._begin is not None:
            return 1000 * (time.perf_counter() - self._begin)
        if self._seconds is None:
            raise Error("the timer was not started", fix="timer.start()")
        return 1000 * self._seconds
