"""Values of images in the bins of regions, and their gradients: region_values.cl."""
from __future__ import annotations

from ocaffe.ir.kernel import JOIN, Kernel, reads, write
from ocaffe.ir.recorder import Recorder
from ocaffe.ir.tensor import Ref

FORWARD = Kernel("region_values.forward", *reads("x", "roi", "bins"), write("y"), can=JOIN)
BACKWARD_X = Kernel("region_values.backward_x", *reads("dy", "roi", "bins"), write("dx"), can=JOIN)
BACKWARD_BINS = Kernel("region_values.backward_bins", *reads("dy", "x", "roi", "bins"), write("dplaces"), can=JOIN)
CPU_PIECE, GPU_GROUP = 64, 64  # elements per CPU work-item, work-items of a GPU work-group


def values(rec: Recorder, x: Ref, rois: Ref, bins: Ref, y: Ref) -> None:
    """y (R x C x points) = the means of the values of x in the bins R x 4 x points: row, column, values down, values across."""
    count, piece = y.dense_stride, CPU_PIECE if rec.target.is_cpu else 1
    local = (1, 1) if rec.target.is_cpu else (GPU_GROUP, 1)
    args = [count, piece, x.shape[0], *x.shape[2:], bins.shape[2]]
    rec.launch(FORWARD(x=x, roi=rois, bins=bins, y=y), args=args, size=(-(-count // piece), y.shape[0]), local=local)


def backward_image(rec: Recorder, dy: Ref, rois: Ref, bins: Ref, dx: Ref) -> None:
    images, channels, height, width = dx.shape
    args = [dy.shape[0], height, width, bins.shape[2], rec.accumulates(dx)]
    rec.launch(BACKWARD_X(dy=dy, roi=rois, bins=bins, dx=dx), args=args, size=(channels, images), local=(1, 1))


def backward_places(rec: Recorder, dy: Ref, x: Ref, rois: Ref, bins: Ref, dplaces: Ref) -> None:
    """dplaces (R x 2 x points) = the gradient by the row and column of each bin, for bins of one value."""
    points, piece = bins.shape[2], CPU_PIECE if rec.target.is_cpu else 1
    local = (1, 1) if rec.target.is_cpu else (GPU_GROUP, 1)
    args = [points, piece, x.shape[0], *x.shape[1:]]
    rec.launch(BACKWARD_BINS(dy=dy, x=x, roi=rois, bins=bins, dplaces=dplaces), args=args, size=(-(-points // piece), bins.shape[0]), local=local)
