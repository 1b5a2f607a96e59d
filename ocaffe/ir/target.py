"""What recording and planning need to know of a device: plain data, no OpenCL."""
from __future__ import annotations

from dataclasses import dataclass, field

from ocaffe.ir.tuned import ESTIMATES, Tuned

# What products are made of: as exact as float; float multiply-adds alone; operands rounded to 11 bits of mantissa, to bfloat16, to float16, on tensor cores.
MATHS = ("fp32", "ieee", "tf32", "bf16", "fp16")
MOST_GRADIENT_SCALE = 1 << 24
TENSOR_MATHS = MATHS[2:]  # only where OpenCL reaches tensor cores
SIXTEEN_BITS = MATHS[3:]


@dataclass(frozen=True)
class Target:
    """The capabilities of one device. Sizes are bytes unless a name says otherwise.

    `kind` is the machine class that chooses between kernel files (DESIGN §5): 'cpu' = one work-item computes a tile with
    explicit vectors; 'gpu' = work-groups share tiles in local memory.
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
    alignment: int = 256  # of a whole Ref within its slab
    extensions: frozenset[str] = field(default=frozenset())
    unified_memory: bool = True  # device memory is host memory
    stream_above: int = 1 << 20  # bytes of an array or a batch that is worth threads and a queue of its own (cl/pinned.py, cl/feed.py)
    tensor_cores: bool = False  # NVIDIA's, by inline PTX
    workspace: int = 256 << 20  # bytes that the transformed tiles of one convolution may take (ops/winograd_gpu.py)
    device_fence: str = ""  # how one work-group sees what another wrote: PTX or CPU (IS_LAST_BLOCK in kernels/common.h); OpenCL 1.2 promises no way
    math: str = "fp32"  # MATHS: what products may be made of
    gradient_scale: int = 1024  # a power of two: with math fp16, gradients are multiplied with it before they are rounded, results divided by it
    tuned: Tuned = ESTIMATES  # measured choices of kernels
    free_memory: int = 4 << 30  # what was free when the device was listed; global_memory where the device cannot tell

    @property
    def is_cpu(self) -> bool:
        return self.kind == "cpu"

    def streams(self, nbytes: int) -> bool:
        """Whether so much goes to the device through pinned memory. Less is there before a thread has woken."""
        return not self.unified_memory and nbytes > self.stream_above

    @property
    def last_block_reduction(self) -> bool:
        """Whether the last of several work-groups can finish what all of them made."""
        return bool(self.device_fence) and not self.is_cpu
