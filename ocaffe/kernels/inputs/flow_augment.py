"""FlowNet's augmentation of images and flow: flow_augment.cl. Coefficients, one row for each sample, say how a sample is changed."""
from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ocaffe.ir.kernel import Kernel, read, reads, write
from ocaffe.ir.recorder import STEP, Recorder
from ocaffe.ir.tensor import Ref, Shape
from ocaffe.kernels.expression.expression import reduce

DRAW = Kernel("flow_augment.draw", *reads("step", "rows"), read("given", optional=True), read("seen", optional=True), write("y"))
SETTLE = Kernel("flow_augment.settle", read("coefficients"), write("table"))
AUGMENT = Kernel("flow_augment.augment", *reads("step", "x", "table"), read("vectors", optional=True), read("space", optional=True), write("y"))
MOVE = Kernel("flow_augment.move", *reads("x", "before", "after"), write("y"))
CHOOSE = Kernel("flow_augment.choose", *reads("step", "rows"), write("table"))
BLACKEN = Kernel("flow_augment.blacken", *reads("x", "table"), read("black", optional=True), write("y"))

# The coefficients in FlowNet's order (AugmentationCoeff), and their defaults. Those with the default 1 are passed on as logarithms.
DEFAULTS: dict[str, int] = {
    "mirror": 0, "dx": 0, "dy": 0, "angle": 0, "zoom_x": 1, "zoom_y": 1, "gamma": 1, "brightness": 0, "contrast": 1, "color1": 1, "color2": 1, "color3": 1,
    **{f"{what}_{of}{k}": int(what != "add") for of in ("nomean", "withmean") for what in ("pow", "add", "mult") for k in range(3)},
    "lmult_pow": 1, "lmult_add": 0, "lmult_mult": 1, "col_angle": 0, "fog_amount": 0, "fog_size": 0, "motion_blur_angle": 0, "motion_blur_size": 0,
    "shadow_angle": 0, "shadow_distance": 0, "shadow_strength": 0, "noise": 0,
}  # fmt: skip
PLACE = {name: index for index, name in enumerate(DEFAULTS)}
COEFFICIENTS, COLUMNS, ROW = len(DEFAULTS), len(DEFAULTS) + 11, 12  # of a row of the top, of the table, and of the distributions
SPATIAL = 6  # the first coefficients move pixels
MODES = ("add", "replace", "regenerate")
KINDS = ("uniform", "gaussian", "bernoulli", "uniform_bernoulli", "gaussian_bernoulli")
NEAR = 1e-3  # DataAugmentation takes a coefficient nearer to its default for the default
CPU_PIECE, GPU_GROUP = 256, 64  # pixels of a work-item on a CPU, work-items of a group on a GPU

_LOGARITHMS = {"LOGARITHMS": f"{sum(value << index for index, value in enumerate(DEFAULTS.values())):#x}UL"}
_STEP = {f"STEP_{word}": STEP[word] for word in ("ITERATION", "PASS", "SAMPLE", "OTHER_RANKS")}


@dataclass(frozen=True)
class Distribution:
    """A random number for one coefficient, or for two that are equal. `absent`: its value if the probability misses; None: that of 0.

    `squeeze`: the number multiplies the first coefficient and divides the second one.
    """

    to: tuple[str, ...]
    kind: str
    mean: float
    spread: float
    prob: float
    exp: bool
    rounded: bool
    factor: float
    scheduled: bool
    absent: float | None = None
    squeeze: bool = False

    def row(self) -> list[float]:
        """Return the row of the table of the kernel."""
        places = [PLACE[name] for name in self.to] + [-1]
        absent = math.nan if self.absent is None else self.absent
        return [KINDS.index(self.kind), self.mean, self.spread, self.prob, self.exp, self.rounded, self.factor, self.scheduled, absent,
                places[0], places[1], self.squeeze]  # fmt: skip

    @property
    def spatial(self) -> bool:
        return PLACE[self.to[0]] < SPATIAL


@dataclass(frozen=True)
class Schedule:
    """The factor of all spreads: from `initial` to `final`, half of the way after `half_life` passes."""

    initial: float = 1.0
    final: float = 1.0
    half_life: float = 1.0


def draw(
    rec: Recorder, distributions: Sequence[Distribution], schedule: Schedule, mode: str, image: Shape, sample: Shape, y: Ref, *,
    given: Ref | None = None, seen: Ref | None = None,
) -> None:  # fmt: skip
    """Draw y (N x 42), of which those that move pixels come first among `distributions`. `image`, `sample`: heights and widths.

    `mode`: the drawn coefficients are added to those of `given`, replace them, or all are made anew. `seen`: the number of forward passes; without it
    the iteration counts.
    """
    rows = np.array([each.row() for each in distributions] or [[0] * ROW], np.float32)
    given = given if mode != "regenerate" else None
    rec.launch(
        DRAW(step=rec.step, rows=rec.constant("rows", rows), given=given, seen=seen, y=y),
        args=[*rec.key("coefficients"), len(distributions), *image, *sample, schedule.initial, schedule.final, schedule.half_life],
        size=(y.shape[0],),
        defines={
            **_STEP, **_LOGARITHMS, "GIVEN": int(given is not None), "SEEN": int(seen is not None),
            "ADD": int(mode == "add"), "REPLACE": int(mode == "replace"), "SPATIAL": sum(each.spatial for each in distributions),
        },
    )  # fmt: skip


def settle(rec: Recorder, coefficients: Ref, image: Shape, sample: Shape, near: float, name: str = "table") -> Ref:
    """Return the table of the changes for coefficients (N x 42). `near`: a coefficient nearer to its default is the default."""
    samples = coefficients.shape[0]
    table = rec.scratch(name, (samples, COLUMNS))
    defines = {**_LOGARITHMS, "NEAR": f"{np.float32(near)!s}f"}
    rec.launch(SETTLE(coefficients=coefficients, table=table), args=[samples, *image, *sample], size=(samples,), defines=defines)
    return table


def augment(rec: Recorder, x: Ref, table: Ref, vectors: np.ndarray | None, most: float, y: Ref) -> None:
    """y (N x C x h x w) = images x (N x C x H x W), moved and changed by the table. `vectors`: eigenvectors of colors, 3 x 3. `most`: the largest value."""
    eigen = {}
    if vectors is not None:
        eigen = {"vectors": rec.constant("vectors", vectors.astype(np.float32)), "space": _space(rec, x, vectors)}
    points = math.prod(y.shape[2:])
    _launch(rec, AUGMENT, points, y.shape[0], {**_STEP, "EIGEN": int(bool(eigen))}, [*x.shape[1:], *y.shape[2:], most], rec.key("noise"),
            step=rec.step, x=x, table=table, y=y, **eigen)  # fmt: skip


def _space(rec: Recorder, x: Ref, vectors: np.ndarray) -> Ref:
    """Return the mean of each channel of a batch (N x 3 x H x W), and the largest magnitudes of its colors along the vectors."""
    samples, channels, *size = x.shape
    pixels = math.prod(size)
    space = rec.scratch("space", (2 * channels,))
    planes = [x.view((samples, pixels), c * pixels, x.batch_stride) for c in range(channels)]
    reduce(rec, "v0 = x0; v1 = x1; v2 = x2", reads=planes, writes=[space.view((), c) for c in range(3)], axes=[0, 1],
           finish="y0 = v0 / n; y1 = v1 / n; y2 = v2 / n", scalars={"n": float(samples * pixels)})  # fmt: skip
    text = "; ".join(f"v{k} = fabs({' + '.join(f'e{k}{c} * x{c}' for c in range(3))})" for k in range(3))
    scalars = {f"e{k}{c}": float(vectors[k, c]) for k in range(3) for c in range(3)}
    reduce(rec, text, reads=planes, writes=[space.view((), 3 + k) for k in range(3)], axes=[0, 1], finish="y0 = v0; y1 = v1; y2 = v2",
           scalars=scalars, op="max")  # fmt: skip
    return space


def move(rec: Recorder, flow: Ref, before: Ref, after: Ref, y: Ref) -> None:
    """y (N x 2 x h x w) = the flow between the samples of two images. `flow` (N x 2 x H x W) is that of the images, and the tables are theirs."""
    _launch(rec, MOVE, math.prod(y.shape[2:]), y.shape[0], {}, [*flow.shape[2:], *y.shape[2:]], (), x=flow, before=before, after=after, y=y)


def choose(rec: Recorder, black: Distribution, border: Distribution, samples: int, image: Shape) -> Ref:
    """Return the table of black samples and borders. `image`: height and width."""
    table, rows = rec.scratch("table", (samples, 3)), rec.constant("rows", np.array([black.row(), border.row()], np.float32))
    rec.launch(CHOOSE(step=rec.step, rows=rows, table=table), args=[*rec.key("choice"), *image], size=(samples,), defines=_STEP)
    return table


def blacken(rec: Recorder, x: Ref, table: Ref, black: Ref | None, y: Ref) -> None:
    """y = x with a border of zeros. Where the table says that a sample is black, y = `black`, or 0 without it."""
    more = {} if black is None else {"black": black}
    _launch(rec, BLACKEN, x.dense_stride, x.shape[0], {"BLACK": int(black is not None)}, [x.dense_stride, *x.shape[2:]], (), x=x, table=table, y=y, **more)


def _launch(
    rec: Recorder, kernel: Kernel, points: int, samples: int, defines: dict[str, object], args: Sequence[float], key: Sequence[np.uint32], **operands: Ref
) -> None:
    piece = CPU_PIECE if rec.target.is_cpu else 1
    local = (1, 1) if rec.target.is_cpu else (GPU_GROUP, 1)
    rec.launch(kernel(**operands), args=[*key, piece, *args], size=(-(-points // piece), samples), local=local, defines=defines)
