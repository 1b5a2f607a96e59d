"""FlowNet's augmentation: DataAugmentation, GenerateAugmentationParameters, FlowAugmentation and BlackAugmentation."""
from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from ocaffe import proto
from ocaffe.errors import shape_text
from ocaffe.ir.graph import Blob
from ocaffe.ir.recorder import Recorder
from ocaffe.ir.tensor import Ref, Shape
from ocaffe.kernels.expression.expression import Read, pointwise, reduce
from ocaffe.kernels.inputs import flow_augment
from ocaffe.kernels.inputs.flow_augment import COEFFICIENTS, DEFAULTS, KINDS, MODES, NEAR, Distribution, Schedule
from ocaffe.layers.base import TEST_PHASE, Layer, ParamBlob, register, stated, times
from ocaffe.onnx.graph import OnnxGraph

# The fields of AugmentationParameter with distributions, in the order of the fork, and the coefficients of which each draws one number or several.
# A field in SHARED draws one number for both coefficients.
FIELDS: dict[str, tuple[str, ...]] = {
    "mirror": ("mirror",), "translate": ("dx", "dy"), "translate_x": ("dx",), "translate_y": ("dy",), "rotate": ("angle",), "zoom": ("zoom_x", "zoom_y"),
    "squeeze": ("zoom_x", "zoom_y"), "gamma": ("gamma",), "brightness": ("brightness",), "contrast": ("contrast",), "color": ("color1", "color2", "color3"),
    "ladd_pow": ("pow_nomean0",), "col_pow": ("pow_nomean1", "pow_nomean2"), "ladd_add": ("add_nomean0",), "col_add": ("add_nomean1", "add_nomean2"),
    "ladd_mult": ("mult_nomean0",), "col_mult": ("mult_nomean1", "mult_nomean2"), "sat_pow": ("pow_withmean1", "pow_withmean2"),
    "sat_add": ("add_withmean1", "add_withmean2"), "sat_mult": ("mult_withmean1", "mult_withmean2"), "lmult_pow": ("lmult_pow",),
    "lmult_mult": ("lmult_mult",), "lmult_add": ("lmult_add",), "col_rotate": ("col_angle",),
    **{name: (name,) for name in ("fog_amount", "fog_size", "motion_blur_angle", "motion_blur_size", "shadow_angle", "shadow_distance", "shadow_strength",
                                  "noise")},
}  # fmt: skip
SHARED = frozenset({"zoom", "squeeze", "sat_pow", "sat_add", "sat_mult"})
WITHOUT = frozenset(list(FIELDS)[:7]) | {name for name in FIELDS if name.startswith(("fog", "motion", "shadow"))}  # they have a value without the number
COLORS = frozenset(FIELDS) - frozenset(list(FIELDS)[:7])
EIGEN = frozenset(name for name in FIELDS if name.startswith(("ladd", "col_", "sat", "lmult")))
NO_GRADIENT = "FlowNet's layers of augmentation have no gradient"


class Augmented(Layer):
    """Base: layers with augmentation_param."""

    message = "augmentation_param"
    origin = "FlowNet 2"
    has_backward = False

    def force_backward(self, bottom: int) -> bool:
        return False

    def distribution(self, name: str, generator: Any) -> Iterator[Distribution]:
        """Yield the random numbers of a RandomGeneratorParameter. Raise the layer's error for a rand_type that the fork does not know."""
        kind = generator.rand_type
        self.check(kind in KINDS, f"{name} has the rand_type '{kind}'", f"set rand_type to {' or '.join(KINDS)}")
        common = (kind, generator.mean, generator.spread, generator.prob, generator.exp, generator.discretize, generator.multiplier, generator.apply_schedule)
        targets = FIELDS.get(name, ("mirror",))
        for to in [targets] if name in SHARED else [(target,) for target in targets]:
            absent = float(DEFAULTS[to[0]]) if name in WITHOUT else None
            yield Distribution(to, *common, absent=absent, squeeze=name == "squeeze")

    def distributions(self) -> list[Distribution]:
        """Return the random numbers of this phase: in TEST none, unless augment_during_test."""
        own = self.own()
        if self.phase != proto.TRAIN and not own.augment_during_test:
            return []
        return [each for name in FIELDS if own.HasField(name) for each in self.distribution(name, getattr(own, name))]

    @property
    def schedule(self) -> Schedule:
        p = self.param.coeff_schedule_param
        self.check(p.half_life > 0, f"half_life is {p.half_life:g}", "set half_life in coeff_schedule_param above 0: the iterations until half of the change")
        return Schedule(p.initial_coeff, p.final_coeff, p.half_life)

    def image(self, shape: Shape, what: str = "bottom 0") -> tuple[int, int]:
        """Return height and width of an image."""
        self.check(
            len(shape) == 4 and 0 not in shape,
            f"{what} is {shape_text(shape)}, it must be N x C x H x W with values",
            f"give images of at least 1 x 1 pixels as {what}",
        )
        return shape[2], shape[3]

    def check_coefficients(self, shape: Shape, samples: int, what: str) -> None:
        fits = math.prod(shape) == samples * COEFFICIENTS and shape[:1] == (samples,)
        fix = f"give it {samples} x {COEFFICIENTS} x 1 x 1: the second top of DataAugmentation, or the top of GenerateAugmentationParameters"
        self.check(fits, f"{what} is {shape_text(shape)}, and there are {samples} samples", fix)

    @property
    def crop(self) -> tuple[int, int] | None:
        """Return height and width of the samples, or None."""
        own = self.own()
        return (own.crop_height, own.crop_width) if own.crop_height and own.crop_width else None


def flat(ref: Ref) -> Ref:
    """Return coefficients as N x 42."""
    return ref.view((ref.shape[0], COEFFICIENTS))


@register("DataAugmentation")
class DataAugmentation(Augmented):
    """Images (N x C x H x W) moved and recolored at random, cut to crop_width x crop_height, less a mean. The second top has the coefficients: N x 42 x 1 x 1.

    A second bottom gives the coefficients; else they are drawn, in TRAIN or with augment_during_test. Order: move (bilinear), ladd_* to lmult_* along the
    chromatic_eigvec, colors with gamma, brightness and contrast, shadow, noise; fog and motion blur limit the values only, as in the fork. Colors
    change in images of 3 channels. Without crop_width and crop_height the image stays, and the coefficients are 0 or those of the bottom.

    recompute_mean: the mean of the first so many batches is subtracted, also in TEST: of each pixel with mean_per_pixel, else of each channel. Parameters: the
    number of passes, both means. A file with another size of the mean gives that of each channel. `mean` has three values that are subtracted instead.
    coeff_schedule_param multiplies the spreads. No gradient. Source: lmb-freiburg/flownet2, src/caffe/layers/data_augmentation_layer.cu. Random numbers
    have the fork's distributions, and are others.
    """

    bottoms, tops = (1, 2), (1, 2)

    def infer(self, *bottoms: Shape) -> Sequence[Shape]:
        own, x = self.own(), bottoms[0]
        size = self.image(x)
        sample = self.crop or size
        self.check(
            sample[0] <= size[0] and sample[1] <= size[1],
            f"the sample is {shape_text(sample)}, the image is {shape_text(size)}",
            f"set crop_height to at most {size[0]}, crop_width to at most {size[1]}",
        )
        if len(bottoms) > 1:
            self.check_coefficients(bottoms[1], x[0], "bottom 1")
        self.drawn = self.distributions() if len(bottoms) == 1 and self.crop else []
        used = [name for name in FIELDS if own.HasField(name)] if self.drawn else []
        colors = [name for name in used if name in COLORS]
        self.check(not colors or x[1] == 3, f"{' and '.join(colors)} given for {x[1]} channels", f"remove {' and '.join(colors)}, or give images of 3 channels")
        vectors = list(own.chromatic_eigvec)
        self.check(len(vectors) in (0, 9), f"chromatic_eigvec is given {times(len(vectors))}", "write chromatic_eigvec 9 times: three vectors of 3 numbers")
        eigen = [name for name in used if name in EIGEN]
        self.check(
            not eigen or vectors,
            f"{' and '.join(eigen)} without chromatic_eigvec",
            f"write chromatic_eigvec 9 times: three vectors of 3 numbers; or remove {' and '.join(eigen)}",
        )
        self.vectors = np.array(vectors, np.float32).reshape(3, 3) if vectors and x[1] == 3 and (eigen or len(bottoms) > 1) else None
        self.mean = np.array(own.mean, np.float32) if len(own.mean) == 3 and not own.mean_per_pixel and not own.recompute_mean else None
        self.check(self.mean is None or x[1] == 3, f"3 mean are given for {x[1]} channels", "remove mean, or give images of 3 channels")
        self.shapes = (1,) * 4, (1, x[1], *sample), (1, x[1], 1, 1)
        tops: list[Shape] = [(*x[:2], *sample), bottoms[1] if len(bottoms) > 1 else (x[0], COEFFICIENTS, 1, 1)]
        return tops[: len(self.param.top)]

    def parameters(self) -> Sequence[ParamBlob]:
        return [ParamBlob(shape, proto.FillerParameter(), learned=False) for shape in self.shapes[: 3 if self.own().recompute_mean else 1]]

    def stored(self, blobs: Sequence[np.ndarray | None]) -> Sequence[np.ndarray | None]:
        """Return the number of passes and the means of a file, as the fork takes them: without mean_per_pixel that of each channel alone."""
        if not self.own().recompute_mean:
            return blobs[:1]
        if len(blobs) != 3 or any(blob is None for blob in blobs):
            return blobs
        count, pixels, channels = (np.asarray(blob, np.float32) for blob in blobs)
        wanted = self.shapes[1]
        if channels.size != wanted[1]:
            return blobs
        if not self.own().mean_per_pixel:
            return [count, np.zeros(wanted, np.float32), channels]
        planes = pixels.reshape(wanted[1], -1)
        if pixels.size != math.prod(wanted):
            pixels = np.broadcast_to(planes.mean(1)[:, None, None], wanted[1:])
        return [count, pixels.reshape(wanted), planes.mean(1).reshape(self.shapes[2])]

    def forward(self, rec: Recorder, bottoms: list[Blob], tops: list[Blob]) -> None:
        own, x, y = self.own(), bottoms[0], tops[0]
        pointwise(rec, "m0 = trunc(m0 + 1)", modifies=[self.params[0].data], side_effect=True)
        whole = bool(own.recompute_mean) or self.mean is not None
        made = rec.scratch("made", y.shape) if whole else y.data
        coefficients = self.coefficients(rec, bottoms, tops)
        if self.crop:
            assert coefficients is not None
            table = flow_augment.settle(rec, flat(coefficients), x.shape[2:], y.shape[2:], NEAR)
            flow_augment.augment(rec, x.data, table, self.vectors, own.max_multiplier, made)
        elif whole:
            made = x.data
        else:
            pointwise(rec, "y0 = x0", reads=[x.data], writes=[made])
        if own.recompute_mean:
            self.subtract(rec, made, y.data)
        elif self.mean is not None:
            pointwise(rec, "y0 = x0 - x1", reads=[made, (rec.constant("mean", self.mean), 1)], writes=[y.data])

    def coefficients(self, rec: Recorder, bottoms: list[Blob], tops: list[Blob]) -> Ref | None:
        """Return the coefficients, which the second top has, or None if nothing uses them."""
        x, given = bottoms[0], bottoms[1].data if len(bottoms) > 1 else None
        if len(tops) < 2 and not self.crop:
            return None
        if given is not None:
            if len(tops) > 1:
                pointwise(rec, "y0 = x0", reads=[given], writes=[tops[1].data])
            return given
        made = tops[1].data if len(tops) > 1 else rec.scratch("coefficients", (x.shape[0], COEFFICIENTS))
        if self.drawn:
            size, sample = x.shape[2:], tops[0].shape[2:]
            flow_augment.draw(rec, self.drawn, self.schedule, "regenerate", size, sample, flat(made), seen=self.params[0].data.view((1,)))
        else:
            pointwise(rec, "y0 = 0", writes=[made])
        return made

    def subtract(self, rec: Recorder, x: Ref, y: Ref) -> None:
        """Record the update of the means in the first passes, and y = x less the mean."""
        count, pixels, channels = (parameter.data for parameter in self.params)
        last = {"last": float(self.own().recompute_mean)}
        each, area = pixels.shape[1:], math.prod(pixels.shape[2:])
        passes: Read = (count.view(()), 0)
        reduce(rec, "v0 = x0", reads=[x, passes], modifies=[pixels.view(each)], writes=[], axes=[0],
               finish="m0 = x1 <= last ? ((x1 - 1) * m0 + v0 / n) / x1 : m0", scalars={"n": float(x.shape[0]), **last})  # fmt: skip
        reduce(rec, "v0 = x0", reads=[pixels.view((each[0], area)), passes], modifies=[channels.view(each[:1])], writes=[], axes=[1],
               finish="m0 = x1 <= last ? v0 / n : m0", scalars={"n": float(area), **last})  # fmt: skip
        mean: Read = (pixels.view(each), 1) if self.own().mean_per_pixel else (channels.view(each[:1]), 1)
        pointwise(rec, "y0 = x0 - x1", reads=[x, mean], writes=[y])

    def onnx(self, graph: OnnxGraph, bottoms: list[Blob], tops: list[Blob]) -> None:
        own = self.own()
        if self.crop and (self.drawn or len(bottoms) > 1):
            raise graph.refused("it changes images at random, or by coefficients", f"{TEST_PHASE}, without augment_during_test and a second bottom")
        x = graph.values[bottoms[0]]
        if self.crop:
            rows, columns = (middle(n, m) for n, m in zip(bottoms[0].shape[2:], tops[0].shape[2:]))
            x = graph.op("MatMul", rows, graph.op("MatMul", x, columns.T.copy()))
        mean = None if self.mean is None else self.mean
        if own.recompute_mean:
            count, pixels, channels = (graph.array(parameter) for parameter in self.params)
            fact = f"its mean is that of {count.item():g} of {own.recompute_mean} batches, and each pass changes it"
            if count.item() < own.recompute_mean:
                raise graph.refused(fact, "export with weights of a finished training")
            mean = pixels[0] if own.mean_per_pixel else channels.reshape(-1)
        if mean is None:
            graph.op("Identity", x, to=tops[0])
        else:
            graph.op("Sub", x, np.float32(mean).reshape(1, len(mean), *(mean.shape[1:] or (1, 1))), to=tops[0])
        if len(tops) > 1 and len(bottoms) > 1:
            graph.op("Identity", bottoms[1], to=tops[1])
        elif len(tops) > 1:
            graph.op("Expand", 0.0, [graph.fixed(tops[1], 0), COEFFICIENTS, 1, 1], to=tops[1])


def middle(inputs: int, outputs: int) -> np.ndarray:
    """Return the outputs x inputs matrix of the middle of an axis, as the fork's kernel samples it."""
    places = np.clip(np.arange(outputs) + 0.5 * (inputs - outputs), 0, max(inputs - 1.05, 0)).astype(np.float32)
    first = np.floor(places).astype(int)
    result = np.zeros((outputs, inputs), np.float32)
    rows = np.arange(outputs)
    result[rows, first] += 1 - (places - first)
    result[rows, np.minimum(first + 1, inputs - 1)] += places - first
    return result


@register("GenerateAugmentationParameters")
class GenerateAugmentationParameters(Augmented):
    """Random coefficients for DataAugmentation and FlowAugmentation: N x 42 x 1 x 1, each of them with the default 1 as its logarithm.

    Bottoms: the coefficients, the images and the samples made of them; or one blob, whose size of the batch counts, and if it is an image its size. mode:
    "add" adds the drawn numbers to those of bottom 0, "replace" takes them instead, "regenerate" (always with an image alone) sets all others to the
    default. Places whose sample leaves the image are drawn again, 50 times. In TEST nothing is drawn, unless augment_during_test. coeff_schedule_param
    multiplies the spreads by the iteration of the training; the fork counts forward passes, and starts again after a pause. No gradient. Source:
    lmb-freiburg/flownet2, src/caffe/layers/generate_augmentation_parameters_layer.cu and augmentation_layer_base.cpp.
    """

    bottoms = (0, 3)

    def infer(self, *bottoms: Shape) -> Sequence[Shape]:
        own, count = self.own(), len(bottoms)
        self.check(
            count != 2,
            "2 bottoms are given, the layer takes 0, 1 or 3",
            "remove bottom 1, or give coefficients, images and samples as bottoms 0, 1 and 2",
        )
        self.mode = own.mode
        self.check(self.mode in MODES, f"mode is '{self.mode}'", f"set mode to {' or '.join(MODES)}")
        images = count == 1 and len(bottoms[0]) == 4 and max(bottoms[0][2:]) > 1
        if count == 0 or images:
            self.mode = "regenerate"
        samples = math.prod(bottoms[0][:1]) if count else own.num
        self.check(samples > 0, stated(own, "num"), f"{self.written('num: N')}, where N is the batch size; or give a bottom of this batch size")
        if count == 3:
            self.size, self.sample = self.image(bottoms[1], "bottom 1"), self.image(bottoms[2], "bottom 2")
        else:
            self.check(
                self.crop,
                "crop_width and crop_height are not given",
                f"{self.written('crop_width: W crop_height: H')}, the pixels of the samples that the DataAugmentation layers cut",
            )
            self.sample = self.crop or (0, 0)
            self.size = (bottoms[0][2], bottoms[0][3]) if images else (own.bottomheight, own.bottomwidth)
        if self.mode != "regenerate":
            self.check_coefficients(bottoms[0], samples, "bottom 0")
        self.drawn = self.distributions()
        spatial = any(each.spatial for each in self.drawn)
        self.check(
            not spatial or min(self.size) > 0,
            "bottomwidth and bottomheight are not given",
            f"{self.written('bottomwidth: W bottomheight: H')}, the pixels of the images of the data layer",
        )
        return [(samples, COEFFICIENTS, 1, 1)]

    def forward(self, rec: Recorder, bottoms: list[Blob], tops: list[Blob]) -> None:
        given = flat(bottoms[0].data) if self.mode != "regenerate" else None
        flow_augment.draw(rec, self.drawn, self.schedule, self.mode, self.size, self.sample, flat(tops[0].data), given=given)

    def onnx(self, graph: OnnxGraph, bottoms: list[Blob], tops: list[Blob]) -> None:
        if self.drawn:
            raise graph.refused("it draws numbers at random", f"{TEST_PHASE}, and without augment_during_test")
        if self.mode == "regenerate":
            graph.op("Expand", 0.0, [graph.fixed(tops[0], 0), COEFFICIENTS, 1, 1], to=tops[0])
        else:
            graph.op("Identity", bottoms[0], to=tops[0])


@register("FlowAugmentation")
class FlowAugmentation(Augmented):
    """The flow (N x 2 x H x W) between two images that DataAugmentation changed by the coefficients in bottoms 1 and 2: N x 2 x crop_height x crop_width.

    A pixel takes the flow of the nearest pixel of the image. A place outside of the image takes that at its border; the fork reads other memory there.
    No gradient. Source: lmb-freiburg/flownet2, src/caffe/layers/flow_augmentation_layer.cu.
    """

    bottoms = 3

    def infer(self, *bottoms: Shape) -> Sequence[Shape]:
        flow = bottoms[0]
        self.image(flow)
        self.check(flow[1] == 2, f"bottom 0 is {shape_text(flow)}, it must be flow: N x 2 x H x W", "give flow of 2 channels as bottom 0: columns and rows")
        self.check(self.crop, "crop_width and crop_height are not given", f"{self.written('crop_width: W crop_height: H')}, as in the DataAugmentation layers")
        for number in (1, 2):
            self.check_coefficients(bottoms[number], flow[0], f"bottom {number}")
        return [(*flow[:2], *(self.crop or ()))]

    def forward(self, rec: Recorder, bottoms: list[Blob], tops: list[Blob]) -> None:
        size, sample = bottoms[0].shape[2:], tops[0].shape[2:]
        before, after = (flow_augment.settle(rec, flat(bottoms[n].data), size, sample, 0.0, f"table{n}") for n in (1, 2))
        flow_augment.move(rec, bottoms[0].data, before, after, tops[0].data)

    def onnx(self, graph: OnnxGraph, bottoms: list[Blob], tops: list[Blob]) -> None:
        raise graph.refused("it is a step of a training", "remove the layer, and give the net its flow")


@register("BlackAugmentation")
class BlackAugmentation(Augmented):
    """Images (3 channels) and flow (2 channels) of one batch, of which random samples have a black border, or show one image twice without flow.

    With the probability of `black` all images of a sample become the last one, and its flow 0. Else `border` draws the share of the sides that is black:
    at left and right, above and below, or at all sides. No gradient. Source: lmb-freiburg/flownet2, src/caffe/layers/black_augmentation_layer.cu. The
    fork leaves the last image of a black sample undefined unless its top is its bottom.
    """

    message = "black_augmentation_param"
    bottoms, tops = (1, None), (1, None)

    def infer(self, *bottoms: Shape) -> Sequence[Shape]:
        own = self.own()
        self.check_tops(bottoms)
        first = bottoms[0]
        for number, shape in enumerate(bottoms):
            self.image(shape, f"bottom {number}")
            self.check(
                shape[1] in (2, 3),
                f"bottom {number} is {shape_text(shape)}: {shape[1]} channels",
                f"give an image of 3 channels as bottom {number}, or flow of 2",
            )
            same = (shape[0], *shape[2:]) == (first[0], *first[2:])
            self.check(
                same,
                f"bottom {number} is {shape_text(shape)}, bottom 0 is {shape_text(first)}",
                f"give bottom {number} the batch size {first[0]} and {shape_text(first[2:])} pixels",
            )
        self.drawn = [each for name in ("black", "border") for each in self.distribution(name, getattr(own, name))]
        return list(bottoms)

    def forward(self, rec: Recorder, bottoms: list[Blob], tops: list[Blob]) -> None:
        black, border = self.drawn
        table = flow_augment.choose(rec, black, border, bottoms[0].shape[0], bottoms[0].shape[2:])
        last = next((bottom.data for bottom in reversed(bottoms) if bottom.shape[1] == 3), None)
        for bottom, top in zip(bottoms, tops):
            flow_augment.blacken(rec, bottom.data, table, last if bottom.shape[1] == 3 else None, top.data)

    def onnx(self, graph: OnnxGraph, bottoms: list[Blob], tops: list[Blob]) -> None:
        raise graph.refused("it draws numbers at random", "remove the layer")
