"""Faults that a worker plants in ocaffe, to show that the oracle finds them."""
from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any


def wrong_pooling_edge() -> None:
    """A last window that starts where the padded image ends is not dropped."""
    from ocaffe.layers.window import Window

    def outputs(self: Any, image: Any, ceil: bool) -> Any:
        counts = []
        for size, extent, stride, pad in zip(image, self.extent, self.stride, self.pad):
            room = size + 2 * pad - extent
            count = (-(-room // stride) if ceil else room // stride) + 1
            counts.append(count - 1 if any(self.pad) and (count - 1) * stride > size + pad else count)
        return tuple(counts)

    Window.outputs = outputs


def no_bias_gradient() -> None:
    """Convolutions have a gradient of zeros for their bias."""
    from ocaffe.kernels.convolution import convolution
    from ocaffe.kernels.expression.expression import pointwise

    def backward_bias(rec: Any, geometry: Any, dy: Any, db: Any) -> None:
        pointwise(rec, "y0 = 0", writes=[db])

    convolution.backward_bias = backward_bias


def late_rate() -> None:
    """The policy `inv` counts iterations from 1."""
    from ocaffe.solver import policies

    policy = policies.POLICIES["inv"]
    policies.POLICIES["inv"] = policy._replace(rate=lambda settings, iteration, step: policy.rate(settings, iteration + 1, step))


def short_lives() -> None:
    """The plan gives the memory of a value away one launch before its last use."""
    from ocaffe.memory import plan

    true_lives = plan.lifetimes
    plan.lifetimes = lambda *arguments: [life if life.last == life.first else replace(life, last=life.last - 1) for life in true_lives(*arguments)]


FAULTS: dict[str, Callable[[], None]] = {"pooling": wrong_pooling_edge, "bias": no_bias_gradient, "rate": late_rate, "memory": short_lives}


def plant(name: str) -> None:
    FAULTS[name]()
