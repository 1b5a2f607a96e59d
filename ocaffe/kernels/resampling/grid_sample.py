"""Values of images at the places of a grid, and both gradients: grid_sample.cl."""
from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from ocaffe.ir.kernel import JOIN, Kernel, read, reads, write
from ocaffe.ir.recorder import Recorder
from ocaffe.ir.tensor import Ref, Shape
from ocaffe.kernels.expression.expression import Read, pointwise

FORWARD = Kernel("grid_sample.forward", read("x"), read("grid"), write("y"), can=JOIN)
BACKWARD_GRID = Kernel("grid_sample.backward_grid", *reads("dy", "x", "grid"), write("dgrid"), can=JOIN)
BACKWARD_X = Kernel("grid_sample.backward_x", read("dy"), read("grid"), write("dx"), can=JOIN)
CPU_PIECE, GPU_GROUP = 64, 64  # points per CPU work-item, work-items of a GPU work-group


@dataclass(frozen=True)
class Sampler:
    """How values are taken. The grid is N x h x w x 2 or N x 2 x h x w: columns and rows.

    `corners`: -1 and 1 are the centers of the border pixels, else the outer edges. `pixels`: the grid has places in pixels. `nearest`: no interpolation.
    `border`: outside the image the value is that of the border, else 0. `planar`: the axis of columns and rows is axis 1. `rows_first`: rows come before
    columns on that axis.
    """

    corners: bool = True
    pixels: bool = False
    nearest: bool = False
    border: bool = False
    planar: bool = False
    rows_first: bool = False

    def forward(self, rec: Recorder, x: Ref, grid: Ref, y: Ref) -> None:
        """y (N x C x h x w) = the values of x (N x C x H x W) at the places."""
        self._launch(rec, FORWARD, x.shape, grid.shape, x=x, grid=grid, y=y)

    def backward_image(self, rec: Recorder, dy: Ref, grid: Ref, dx: Ref) -> None:
        images, channels, height, width = dx.shape
        args = [self._points(grid.shape), height, width, self.corners, rec.accumulates(dx)]
        rec.launch(BACKWARD_X(dy=dy, grid=grid, dx=dx), args=args, size=(channels, images), local=(1, 1), defines=self._defines())

    def backward_grid(self, rec: Recorder, dy: Ref, x: Ref, grid: Ref, dgrid: Ref) -> None:
        self._launch(rec, BACKWARD_GRID, x.shape, grid.shape, rec.accumulates(dgrid), dy=dy, x=x, grid=grid, dgrid=dgrid)

    def _points(self, places: Shape) -> int:
        return math.prod(places[2:] if self.planar else places[1:3])

    def _launch(self, rec: Recorder, kernel: Kernel, image: Shape, places: Shape, *more: Any, **operands: Ref) -> None:
        points, piece = self._points(places), CPU_PIECE if rec.target.is_cpu else 1
        local = (1, 1) if rec.target.is_cpu else (GPU_GROUP, 1)
        args = [points, piece, *image[1:], self.corners, *more]
        rec.launch(kernel(**operands), args=args, size=(-(-points // piece), image[0]), local=local, defines=self._defines())

    def _defines(self) -> dict[str, object]:
        more = {name: 1 for name, given in (("PIXELS", self.pixels), ("PLANAR", self.planar), ("ROWS_FIRST", self.rows_first)) if given}
        return {"NEAREST": int(self.nearest), "BORDER": int(self.border), **more}


def inside(rec: Recorder, x: Ref, places: Ref, size: tuple[int, int], outside: str, y: Ref, rows_first: bool = False) -> None:
    """y = x (N x C x ..) where the place is in an image of `size` (height, width), else `outside`. `places` are planar, in pixels."""
    points = math.prod(x.shape[2:])
    flat, single = (*x.shape[:2], points), (x.shape[0], 1, points)
    first, second = (places.view(single, part * points, 2 * points) for part in (0, 1))
    columns, rows = (second, first) if rows_first else (first, second)
    scalars = {"height": float(size[0]), "width": float(size[1])}
    reads: list[Read] = [x.view(flat), (columns, 0), (rows, 0)]
    pointwise(rec, f"y0 = x1 >= 0 && x1 < width && x2 >= 0 && x2 < height ? x0 : {outside}", reads=reads, writes=[y.view(flat)], scalars=scalars)
