"""Convolution with 3 x 3 windows on CPU runtimes by Winograd's F(4x4, 3x3) (winograd_cpu.cl), and the estimate of its time."""
from __future__ import annotations

from ocaffe.ir.kernel import JOIN, Can, Kernel, own_form, read, reads, write, writes
from ocaffe.ir.launch import EpilogueScalars
from ocaffe.ir.recorder import Recorder
from ocaffe.ir.target import Target
from ocaffe.ir.tensor import Ref
from ocaffe.kernels.convolution.geometry.conv_geometry import ConvGeometry
from ocaffe.kernels.matmul import gemm_cpu
from ocaffe.kernels.matmul.gemm_cpu import ONE, ceil, columns, share_out

PACK = Kernel("winograd_cpu.filter", read("w"), write("packed"), can=Can(join=True, helper=True))
FORWARD = Kernel("winograd_cpu.forward", *reads("x", "packed", "bias"), *writes("y", "space"), can=Can(join=True, in_blocks=own_form))
INPUT_TILES = Kernel("winograd_cpu.input", read("x"), write("made"), can=Can(join=True, helper=True))
GRADIENT_TILES = Kernel("winograd_cpu.gradient", read("dy"), write("made"), can=Can(join=True, helper=True))
PRODUCTS = Kernel("winograd_cpu.product", *reads("right", "left"), write("sums"), can=JOIN)
WINDOW = Kernel("winograd_cpu.window", read("sums"), write("dw"), can=Can(join=True, helper=True))
OUT = 4  # outputs of a tile, per axis
POINTS = 36
CHUNK = 64  # outputs whose products a work-item keeps, so that their tiles are still in the caches when they are transformed back
BLOCK = 120  # outputs per work-item of the kernel `product`: whole panels of every height
BURST = 8  # outputs per work-item of the kernel `gradient`
ROOM = 4 << 20  # maximum floats of transformed tiles in backward_filter; one panel is always allowed
FEWEST = 16  # minimum outputs per work-item of forward
ITEMS_PER_CORE = 2  # if outputs are divided; each part transforms the input again
# Cycles of a core for the estimate: a multiply-add of one vector; the same in the direct backward_filter, which transposes its
# panels; per vector of tiles, the transform of a channel and of an output; the transform of a filter.
PRODUCT, DIRECT_FILTER, INPUT, OUTPUT, FILTER = 0.7, 1.2, 1000, 600, 90


def possible(target: Target, g: ConvGeometry) -> bool:
    """Whether forward and backward_filter have this geometry. With math ieee there are only direct products."""
    return target.math != "ieee" and (g.size[0], *g.kernel, *g.stride, *g.dilation, g.pad[0]) == (1, 1, 3, 3, *ONE, *ONE, 0)


def cheaper(rec: Recorder, g: ConvGeometry) -> bool:
    """Whether the estimate for forward is below that of the direct product."""
    defines, blocks, rows, filters = _counts(g, forward_tile(rec, g))
    vectors, splits = blocks * defines["NV"], _splits(rec, g, blocks)
    filters *= not rec.prepack_weights
    wide = columns(gemm_cpu.tile(rec.target))
    direct = ceil(g.batch * g.positions, wide) * wide // defines["V"] * rows * g.depth * PRODUCT
    products = vectors * POINTS * g.group_channels * rows * PRODUCT
    return products + vectors * (splits * g.group_channels * INPUT + g.group_outputs * OUTPUT) + filters < direct


def filters_cheaper(rec: Recorder, g: ConvGeometry) -> bool:
    """Whether the estimate for backward_filter is below that of the direct product."""
    defines, blocks, rows, filters = _counts(g, tile(rec, g))
    wide = ceil(g.group_channels, columns(defines)) * defines["NV"]
    direct = ceil(g.depth, columns(defines)) * defines["NV"] * rows * g.batch * g.positions * DIRECT_FILTER
    products = wide * POINTS * rows * _tiles(g) * PRODUCT
    return products + blocks * defines["NV"] * (g.group_channels + g.group_outputs) * INPUT + 2 * filters < direct  # the sums are written, then read


def _counts(g: ConvGeometry, defines: dict[str, int]) -> tuple[dict[str, int], int, int, float]:
    """Return the defines, the blocks of tiles, the outputs padded to whole panels, and the cycles to transform all filters."""
    rows = ceil(g.group_outputs, defines["MR"]) * defines["MR"]
    return defines, ceil(_tiles(g), columns(defines)), rows, rows * g.group_channels * FILTER * 16 / defines["V"]


def forward(rec: Recorder, g: ConvGeometry, x: Ref, w: Ref, bias: Ref | None, y: Ref, turned: bool = False) -> None:
    """y = convolution of x (+ bias). `turned`: filters are [channel][output] with mirrored taps, for backward_data."""
    defines = forward_tile(rec, g)
    panels = ceil(g.group_outputs, defines["MR"])
    packed = rec.scratch("packed", (g.group, panels, POINTS, g.group_channels, defines["MR"]))
    steps = [9, g.group_outputs * 9, 1] if turned else [g.depth, 9, 0]
    rec.launch(
        PACK(w=w, packed=packed),
        args=[g.group_outputs, g.group_channels, g.group_outputs * g.depth, *steps],
        size=(ceil(g.group_channels, defines["KC"]), panels, g.group),
        local=ONE,
        defines=defines,
    )
    blocks = ceil(_tiles(g), columns(defines))
    splits = _splits(rec, g, blocks)
    share = ceil(blocks, share_out(rec, splits * g.group, blocks))
    block = ceil(panels, splits) * defines["MR"]
    size = (ceil(blocks, share), ceil(g.group_outputs, block), g.group)
    chunk = ceil(min(CHUNK, block), defines["MR"]) * defines["MR"]
    room = POINTS * ((g.group_channels + chunk) * columns(defines) + defines["V"])
    space = rec.scratch("transformed", (size[0] * size[1] * size[2], room))
    sizes = [g.batch, g.group_channels, g.group_outputs, *g.size[1:], *g.out[1:], *g.pad[1:]]
    args = [*sizes, share, block, chunk, EpilogueScalars(bias is not None, rec.accumulates(y))]
    rec.launch(FORWARD(x=x, packed=packed, bias=bias or packed, y=y, space=space), args=args, size=size, local=ONE, defines=defines)


def backward_data(rec: Recorder, g: ConvGeometry, dy: Ref, w: Ref, dx: Ref, bias: Ref | None = None) -> None:
    forward(rec, g.turned, dy, w, bias, dx, turned=True)


def backward_filter(rec: Recorder, g: ConvGeometry, x: Ref, dy: Ref, dw: Ref) -> None:
    """dw = the sums over tiles of products of transformed inputs and gradients. Some tiles are processed at a time."""
    defines = tile(rec, g)
    width, accumulate = columns(defines), rec.accumulates(dw)
    panels, tiles = ceil(g.group_channels, width), _tiles(g)
    pitch = min(ceil(tiles, width), max(1, ROOM // (POINTS * g.group * (panels * width + g.group_outputs) * width))) * width
    step = defines["V"]
    right = rec.scratch("input", (g.group, POINTS, panels * pitch * width + step))
    left = rec.scratch("gradient", (g.group, POINTS, g.group_outputs * pitch + step))
    sums = rec.scratch("sums", (g.group, POINTS, g.group_outputs * panels * width + step))
    for first in range(0, tiles, pitch):
        length = min(pitch, tiles - first)
        place = [*g.size[1:], *g.out[1:], *g.pad[1:], first, length, pitch]
        blocks = ceil(length, width)
        for kernel, operands, planes, each in (
            (INPUT_TILES, {"x": x, "made": right}, g.group_channels, width),
            (GRADIENT_TILES, {"dy": dy, "made": left}, g.group_outputs, BURST),
        ):
            rec.launch(kernel(**operands), args=[g.batch, planes, *place], size=(blocks, ceil(planes, each), g.group), local=ONE, defines=defines)
        rec.launch(
            (PRODUCTS.adding("sums") if first else PRODUCTS)(right=right, left=left, sums=sums),
            args=[g.group_channels, g.group_outputs, length, pitch, BLOCK, first > 0],
            size=(POINTS, ceil(g.group_outputs, BLOCK), g.group),
            local=ONE,
            defines=defines,
        )
    rec.launch(
        WINDOW(sums=sums, dw=dw),
        args=[g.group_channels, g.group_outputs, accumulate],
        size=(1, g.group_outputs, g.group),
        local=ONE,
        defines=defines,
    )


def tile(rec: Recorder, g: ConvGeometry) -> dict[str, int]:
    """Return V, NV, MR, KC of kernels/matmul/tile_cpu.h."""
    return gemm_cpu.tile(rec.target, g.group_outputs)


def forward_tile(rec: Recorder, g: ConvGeometry) -> dict[str, int]:
    """Return the defines of forward. If one vector holds all tiles, the tile is twice as high and one vector wide.

    Half of a tile of two vectors would be empty.
    """
    base = tile(rec, g)
    return base | {"NV": 1, "MR": 2 * base["MR"]} if _tiles(g) <= base["V"] else base


def _tiles(g: ConvGeometry) -> int:
    return g.batch * ceil(g.out[1], OUT) * ceil(g.out[2], OUT)


def _splits(rec: Recorder, g: ConvGeometry, blocks: int) -> int:
    """Return the number of parts of the outputs, so that all cores have work."""
    return max(1, min(ceil(g.group_outputs, FEWEST), ceil(ITEMS_PER_CORE * rec.target.compute_units, blocks * g.group)))
