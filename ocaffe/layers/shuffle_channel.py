"""ShuffleChannel."""
from __future__ import annotations

from collections.abc import Sequence

from ocaffe.errors import shape_text
from ocaffe.ir.tensor import Shape
from ocaffe.layers.base import register
from ocaffe.layers.permute import Permuted


@register("ShuffleChannel")
class ShuffleChannel(Permuted):
    """Interleaves `group` groups of channels (axis 1): the first channel of each group, then the second of each, and so on."""

    origin = "ShuffleNet"

    def infer(self, *bottoms: Shape) -> Sequence[Shape]:
        x, group = bottoms[0], self.own().group
        self.check_axes(x, "N x C x ..")
        self.check(
            group > 0 and x[1] % group == 0,
            f"group {group} does not divide the {x[1]} channels of bottom {shape_text(x)}",
            f"set group to a number that divides {x[1]}",
        )
        return self.plan(x, (x[0], group, x[1] // group, *x[2:]), (0, 2, 1, *range(3, len(x) + 1)), x)
