"""Target: the capabilities of a device, for recording and planning. Plain data, no OpenCL."""
from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from ocaffe.ir.rates import GENERIC_CPU, Rates
from ocaffe.ir.tensor import BFLOAT, BLOCKS_GPU, FLOAT, PLANES, Layout
from ocaffe.ir.tuned import ESTIMATES, Tuned

# Arithmetic of products: as exact as float; float multiply-adds only; tensor cores with operands rounded to tf32, bfloat16 or float16.
MATHS = ("fp32", "ieee", "tf32", "bf16", "fp16")
TENSOR_MATHS = MATHS[2:]  # only where OpenCL reaches tensor cores
OTHER_DEVICE = "choose another device (`ocaffe device_query` lists them), or on a CPU leave out --kind gpu"
SIXTEEN_BITS = MATHS[3:]
LARGEST_IMPORT = 510 << 20  # bytes: NVIDIA's driver 580 ends the process with a segmentation fault when it imports a buffer of 512 MiB or more
VECTORS = (16, 8)  # floats of a vector for which CPUs have kernels on channels in blocks
WGMMA_LOCAL_MEMORY = 200 << 10  # bytes of local arrays of a kernel for Hopper. The trial of `wgmma` uses so many; the driver reports 48 KiB


@dataclass(frozen=True)
class Target:
    """The capabilities of one device. Sizes are bytes unless a name says otherwise.

    `kind` is the device class, which chooses between kernel files. 'cpu': one work-item computes a tile with explicit vectors.
    'gpu': the work-items of a work-group share tiles in local memory.
    """

    kind: str = "cpu"
    name: str = "generic CPU"
    runtime: str = "generic"  # 'intel', 'pocl', 'nvidia', 'amd', ...: keys of the quirk table
    compute_units: int = 2
    vector_width: int = 8  # floats in one native vector; 16 on AVX-512
    max_work_group: int = 1024
    local_memory: int = 32 * 1024
    global_memory: int = 4 << 30
    max_allocation: int = 1 << 30
    argument_bytes: int = 1024  # of a kernel's arguments; every device has as many
    alignment: int = 256  # of a whole Ref within its slab
    gradient_slab: int = 0  # maximum bytes of the first slab, which then holds all gradients that fit (ocaffe/parallel/nccl.py); 0: any slab holds them
    extensions: frozenset[str] = field(default=frozenset())
    unified_memory: bool = True  # device memory is host memory
    stream_above: int = 1 << 20  # bytes from which on an array or a batch gets threads and a queue of its own (cl/pinned.py, cl/feed.py)
    tensor_cores: bool = False  # NVIDIA's, by inline PTX
    wgmma: bool = False  # with bf16 and tf32: Hopper's wgmma, mbarriers and bulk copies, which passed their trial (ocaffe/cl/wgmma_trial.py)
    matrix_unit: str = ""  # AMD's or Intel's: a key of matrix_units.UNITS; products use it with math tf32, bf16 and fp16
    matrix_unit_only: bool = False  # products of any size use the matrix unit (ocaffe/cl/unit_trial.py)
    workspace: int = 256 << 20  # bytes for the transformed tiles of one convolution (kernels/convolution/winograd/winograd_gpu.py)
    device_fence: str = ""  # memory fence between work-groups: PTX, SCOPE, AMD or CPU (ocaffe/cl/fences.py); OpenCL 1.2 has none
    math: str = "fp32"  # one of MATHS
    gradient_scale: int = 1024  # a power of two: with math fp16 gradients are multiplied by it before rounding, and results divided by it
    tuned: Tuned = ESTIMATES  # measured choices of kernels
    rates: Rates = GENERIC_CPU  # predicted times of launches (ocaffe/cl/rates.py)
    free_memory: int = 4 << 30  # bytes that were free when the device was listed; global_memory if the driver does not say

    @property
    def is_cpu(self) -> bool:
        return self.kind == "cpu"

    @property
    def available_memory(self) -> int:
        """Bytes that a job on the device may use: those that were free when the device was listed."""
        return min(self.global_memory, self.free_memory or self.global_memory)

    @property
    def largest_buffer(self) -> int:
        """Bytes of the largest buffer. NVIDIA's driver makes larger ones than it reports."""
        return self.global_memory if self.runtime == "nvidia" else self.max_allocation

    @property
    def static_local_memory(self) -> int:
        """Bytes that the local arrays in a kernel's text may take. For local memory in arguments, and without `wgmma`, `local_memory` is the limit."""
        return WGMMA_LOCAL_MEMORY if self.wgmma else self.local_memory

    @property
    def block_type(self) -> np.dtype:
        """The type of values with channels in blocks on GPUs (ocaffe/passes/layouts_gpu.py)."""
        return FLOAT if self.math == "tf32" else BFLOAT

    @property
    def blocks(self) -> Layout:
        """The layout of images whose channels are in blocks: of a vector of floats on CPUs. PLANES: there is none, because vectors are too narrow."""
        if not self.is_cpu:
            return BLOCKS_GPU
        return Layout(next((width for width in VECTORS if width <= self.vector_width), PLANES.channels))

    def group(self, most: int) -> int:
        """Return the work-items of a work-group: a power of two, at most `most` and max_work_group."""
        return 1 << min(most, self.max_work_group).bit_length() - 1

    def streams(self, nbytes: int) -> bool:
        """Whether an array of this size is copied through pinned memory. Small copies finish before a worker thread would wake."""
        return not self.unified_memory and nbytes > self.stream_above

    @property
    def last_block_reduction(self) -> bool:
        """Whether the last work-group to finish can add up the partial results of all work-groups."""
        return bool(self.device_fence) and not self.is_cpu
