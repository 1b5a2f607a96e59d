"""AutoCrop: a Crop whose offsets follow from the layers before it."""
from __future__ import annotations

from collections.abc import Iterator, Sequence
from fractions import Fraction

from ocaffe.errors import shape_text
from ocaffe.ir.graph import Blob, Node
from ocaffe.ir.tensor import Shape
from ocaffe.layers.base import register
from ocaffe.layers.convolution import Filters
from ocaffe.layers.crop import Crop, Cropped
from ocaffe.layers.deconvolution import Deconvolution
from ocaffe.layers.pooling import Pooling
from ocaffe.layers.window import Window

Line = tuple[Fraction, Fraction]  # scale and shift: x of one blob is the place scale x + shift of another, along one axis


@register("AutoCrop")
class AutoCrop(Crop):
    """The part of bottom 0 that lies over bottom 1, N x C x H x W. The offsets follow from the layers between the bottoms and their common ancestor.

    The paths go through the first bottom of each layer. Convolution, Deconvolution and Pooling move pixels by their stride, pad and kernel, a Crop by its
    offset. All other layers on the paths must keep the size. Source: yun-liu/rcf, src/caffe/layers/auto_crop_layer.cpp.
    """

    origin = "RCF"
    message = ""
    offsets: Sequence[int] = (0, 0)

    def connect(self, bottoms: Sequence[Blob]) -> None:
        paths = [list(_ancestors(blob)) for blob in bottoms]
        common = next((blob for blob in paths[1] if blob in paths[0]), None)
        one, two = (f"'{path[0].name}'" for path in paths)
        fact = f"{one} and {two} come from different inputs"
        self.check(common is not None, fact, "use a layer of type Crop, whose crop_param { offset: N } says the place")
        assert common is not None
        first, second = (self.places(path[: path.index(common)]) for path in paths)
        offsets = []
        for (scale, shift), (other, moved) in zip(first, second):
            offset = moved - shift
            fact = f"a pixel of {one} spans {scale} pixels of '{common.name}', one of {two} {other}"
            self.check(scale == other, fact, f"change stride of the Deconvolution layers before {one} and {two}, until both span the same")
            offset /= scale
            fact = f"{two} begins {float(offset):g} pixels after {one}"
            self.check(
                offset.denominator == 1 and offset >= 0,
                fact,
                f"raise pad in the first layers of the net, until {two} begins a whole number of pixels after {one}",
            )
            offsets.append(int(offset))
        self.offsets = offsets

    def places(self, path: Sequence[Blob]) -> list[Line]:
        """Return the line of each axis from the pixels of the first blob of `path` to those of the bottom of its last one."""
        lines: list[Line] = [(Fraction(1), Fraction(0))] * 2
        for blob in path:
            assert blob.producer is not None
            steps = self.steps(blob.producer)
            lines = [(scale * step, move + step * shift) for (scale, shift), (step, move) in zip(lines, steps)]
        return lines

    def steps(self, node: Node) -> list[Line]:
        """Return the line of each axis from the pixels of a layer's top to those of its bottom."""
        layer, image = node.layer, node.bottoms[0].shape[2:]
        if isinstance(layer, Filters):
            window = layer.window
            lines = [_line(*each) for each in zip(window.extent(), window.stride, window.pad)]
            return [(1 / scale, -shift / scale) for scale, shift in lines] if isinstance(layer, Deconvolution) else lines
        if isinstance(layer, Pooling) and not layer.own().global_pooling:
            pool = Window.read(layer, layer.own(), image)
            return [_line(*each) for each in zip(pool.extent, pool.stride, pool.pad)]
        if isinstance(layer, Cropped):
            return [(Fraction(1), Fraction(start)) for start in layer.starts[2:]]
        fact = f"the path goes through '{node.name}' ({node.type}), which does not keep the places of pixels"
        self.check(node.tops[0].shape[2:] == image and len(image) == 2, fact, "use a layer of type Crop, whose crop_param { offset: N } says the place")
        return [(Fraction(1), Fraction(0))] * 2

    def infer(self, *bottoms: Shape) -> Sequence[Shape]:
        x, like = bottoms
        self.check(
            len(x) == len(like) == 4,
            f"bottom 0 is {shape_text(x)}, bottom 1 is {shape_text(like)}",
            f"give bottom {0 if len(x) != 4 else 1} the axes N x C x H x W",
        )
        for axis, offset in enumerate(self.offsets, 2):
            fact = f"axis {axis}: offset {offset} and size {like[axis]} (bottom 1 is {shape_text(like)}) go beyond {x[axis]} (bottom 0 is {shape_text(x)})"
            self.check(
                offset + like[axis] <= x[axis],
                fact,
                f"raise pad in the first layers of the net: bottom 0 is {offset + like[axis] - x[axis]} too small along axis {axis}",
            )
        return self.plan(x, [0, 0, *self.offsets], (*x[:2], *like[2:]))


def _line(extent: int, stride: int, pad: int) -> Line:
    """Return the line from windows to the pixels in their middle."""
    return Fraction(stride), Fraction(extent - 1, 2) - pad


def _ancestors(blob: Blob) -> Iterator[Blob]:
    """Yield `blob`, and the first bottoms of the layers before it, the nearest first. A Split gives copies, and its bottom stands for them."""
    while True:
        while blob.producer is not None and blob.producer.type == "Split":
            blob = blob.producer.bottoms[0]
        yield blob
        if blob.producer is None or not blob.producer.bottoms:
            return
        blob = blob.producer.bottoms[0]
