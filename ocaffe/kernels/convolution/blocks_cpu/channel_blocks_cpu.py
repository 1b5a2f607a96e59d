"""An image without blocks of channels, from one with blocks, on CPU runtimes (channel_blocks_cpu.cl)."""
from __future__ import annotations

import math

from ocaffe.ir.kernel import Can, Kernel, Order, read, write
from ocaffe.ir.recorder import Recorder
from ocaffe.ir.tensor import Ref
from ocaffe.kernels.matmul.gemm_cpu import ONE, ceil, share_out

JOIN = Kernel("channel_blocks_cpu.join", read("x", order=Order.BLOCKS), write("y"), can=Can(join=True, helper=True))


def join(rec: Recorder, x: Ref, y: Ref) -> None:
    """y = the image x, whose channels are in blocks, without blocks. The last block of x may have empty channels."""
    width = rec.channel_block
    batch, channels, pixels = y.shape[0], y.shape[1], math.prod(y.shape[2:])
    vectors = ceil(pixels, width)
    share = ceil(vectors, share_out(rec, batch * ceil(channels, width), vectors)) * width
    size = ceil(pixels, share), ceil(channels, width), batch
    rec.launch(JOIN(x=x, y=y), args=[channels, pixels, share], size=size, local=ONE, defines={"V": width})
