"""Choice of the device class's convolution kernels for filters over several channels: conv_cpu.py or conv_gpu.py."""
from __future__ import annotations

from importlib import import_module
from types import ModuleType

from ocaffe.ir.recorder import Recorder


def dense(rec: Recorder) -> ModuleType:
    """Return the module of this device class for filters over several channels."""
    return import_module(f"ocaffe.kernels.convolution.dense_{rec.target.kind}.conv_{rec.target.kind}")
