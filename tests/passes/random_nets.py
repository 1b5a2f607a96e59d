"""Random nets with all patterns that passes rewrite, in unusual combinations."""
from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Sequence
from typing import NamedTuple

from tests.passes.test_traps import DATA, classified, conv, layer

MAX_CHANNELS = 24
SCALE = "scale_param { bias_term: true }"
SHARED = 'param {{ name: "{0}" }} param {{ name: "{0}b" }}'


class Value(NamedTuple):
    """A blob of 4 samples: its name, its channels, the length of its square maps."""

    name: str
    channels: int
    size: int


class RandomNet:
    """`text` is a net with losses, drawn from `seed`."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.values = [Value("im", 3, 12)]
        self.readers: Counter[str] = Counter()
        self.text = DATA
        self.names = 0
        for _ in range(self.random.randint(8, 18)):
            self.random.choice(KINDS)(self, self.pick())
        for value in self.values[1:]:
            if not self.readers[value.name] and (value is self.values[-1] or self.random.random() < 0.4):
                self.text += classified(value.name, self.name("loss"), 0.5)

    # -- tools of the kinds ------------------------------------------------------------------------------------------

    def name(self, prefix: str) -> str:
        self.names += 1
        return f"{prefix}{self.names}"

    def pick(self, wanted: Callable[[Value], bool] = lambda value: True) -> Value:
        """Draw a value, mostly a late one."""
        found = [value for value in self.values if wanted(value)]
        return self.random.choice(found[-6:] if self.random.random() < 0.8 else found)

    def like(self, value: Value) -> Value:
        return self.pick(lambda other: other[1:] == value[1:])

    def add(self, kind: str, bottoms: Sequence[Value], channels: int | None = None, size: int | None = None, more: str = "") -> Value:
        """Add a layer with one top."""
        name = self.name(kind.lower())
        self.text += layer(kind, name, " ".join(bottom.name for bottom in bottoms), name, more)
        self.readers.update(bottom.name for bottom in bottoms)
        first = bottoms[0]
        self.values.append(Value(name, first.channels if channels is None else channels, first.size if size is None else size))
        return self.values[-1]

    def in_place(self, kind: str, value: Value, more: str = "") -> None:
        self.text += layer(kind, self.name("inplace"), value.name, value.name, more)

    def untouched(self, value: Value) -> bool:
        """Whether a layer may still work on the value in place."""
        return not self.readers[value.name] and value.name != "im"

    # -- kinds of layers ---------------------------------------------------------------------------------------------

    def convolution(self, value: Value) -> None:
        name, outputs = self.name("conv"), self.random.choice((2, 4, 4, 8))
        self.text += conv(name, value.name, outputs)
        self.readers[value.name] += 1
        self.values.append(Value(name, outputs, value.size))

    def shared_weights(self, value: Value) -> None:
        more = SHARED.format(f"w{value.channels}") + f" convolution_param {{ num_output: {value.channels} kernel_size: 3 pad: 1 "
        self.add("Convolution", [value], more=more + 'weight_filler { type: "msra" } }')

    def shared_scale(self, value: Value) -> None:
        self.add("Scale", [value], more=f'param {{ name: "s{value.channels}" }}')

    def activation(self, value: Value) -> None:
        kind, more = self.random.choice((
            ("ReLU", ""), ("ReLU", "relu_param { negative_slope: 0.1 }"), ("TanH", ""), ("AbsVal", ""), ("PReLU", ""),
            ("Power", "power_param { scale: 0.5 shift: 0.3 power: 2 }"), ("Power", "power_param { scale: 2 }"),
            ("LRN", "lrn_param { local_size: 3 alpha: 0.1 }"), ("Dropout", "dropout_param { dropout_ratio: 0.3 }"),
        ))  # fmt: skip
        if self.untouched(value) and kind in ("ReLU", "TanH", "Power", "Dropout") and self.random.random() < 0.5:
            self.in_place(kind, value, more)
        else:
            self.add(kind, [value], more=more)

    def normalization(self, value: Value) -> None:
        more = self.random.choice(("", "", "batch_norm_param { use_global_stats: true }"))
        if self.untouched(value) and self.random.random() < 0.5:
            self.in_place("BatchNorm", value, more)
            self.in_place("Scale", value, SCALE)
            if self.random.random() < 0.7:
                self.in_place("ReLU", value)
        else:
            self.add("Scale", [self.add("BatchNorm", [value], more=more)], more=SCALE)

    def slice(self, value: Value) -> None:
        if value.channels == 1:
            return
        point, names = self.random.randint(1, value.channels - 1), [self.name("part"), self.name("part")]
        tops = f'top: "{names[1]}" slice_param {{ slice_point: {point} }}'
        self.text += layer("Slice", self.name("slice"), value.name, names[0], tops)
        self.readers[value.name] += 1
        self.values += [Value(names[0], point, value.size), Value(names[1], value.channels - point, value.size)]

    def concat(self, value: Value) -> None:
        bottoms = [value, *(self.pick(lambda other: other.size == value.size) for _ in range(self.random.choice((1, 1, 2))))]
        channels = sum(bottom.channels for bottom in bottoms)
        if channels <= MAX_CHANNELS:
            self.add("Concat", bottoms, channels)

    def eltwise(self, value: Value) -> None:
        bottoms = [value, *(self.like(value) for _ in range(self.random.choice((1, 1, 1, 2))))]
        coefficients = " ".join(f"coeff: {self.random.choice((1, 1, 0.5, -0.3))}" for _ in bottoms)
        more = self.random.choice(("", "", coefficients, "operation: PROD", "operation: MAX"))
        self.add("Eltwise", bottoms, more=f"eltwise_param {{ {more} }}")

    def pooling(self, value: Value) -> None:
        if value.size >= 6:
            self.add("Pooling", [value], size=value.size // 2, more=f"pooling_param {{ pool: {self.random.choice(('MAX', 'AVE'))} kernel_size: 2 stride: 2 }}")

    def crop(self, value: Value) -> None:
        smaller = [other for other in self.values if other.size == value.size and other.channels < value.channels]
        if smaller:
            size = self.random.choice(smaller)
            offset = self.random.randint(0, value.channels - size.channels)
            self.add("Crop", [value, size], size.channels, more=f"crop_param {{ axis: 1 offset: {offset} offset: 0 offset: 0 }}")

    def flatten(self, value: Value) -> None:
        flat = self.add("Flatten", [value], more="flatten_param { axis: 2 }")
        self.add("Reshape", [flat], more=f"reshape_param {{ shape {{ dim: 0 dim: 0 dim: {value.size} dim: {value.size} }} }}")
        self.values.remove(flat)

    def loss(self, value: Value) -> None:
        if self.random.random() < 0.4:
            self.text += classified(value.name, self.name("loss"), 0.3)
            self.readers[value.name] += 1


KINDS = (
    *[RandomNet.convolution, RandomNet.normalization, RandomNet.concat, RandomNet.slice] * 2, *[RandomNet.activation, RandomNet.eltwise] * 4,
    RandomNet.shared_weights, RandomNet.shared_scale, RandomNet.pooling, RandomNet.crop, RandomNet.flatten, RandomNet.loss,
)  # fmt: skip
