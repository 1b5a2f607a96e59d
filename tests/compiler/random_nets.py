"""Random nets with layers that measure their shapes."""
from __future__ import annotations

import math
from random import Random

from ocaffe.ir.tensor import Shape

SAMPLES = 6
LAYERS = 12
KINDS = ["product", "product", "TanH", "in place", "square", "Eltwise", "view", "view", "Concat", "join", "Slice", "Split", "Pooling", "Scale"]
FILLERS = 'weight_filler { type: "gaussian" std: 0.5 } bias_filler { type: "gaussian" std: 0.5 }'


class RandomNet:
    """The text of a net, while layers are added to it. `blobs`: name -> (a name of the number of samples, the shape of a sample)."""

    def __init__(self, seed: int) -> None:
        self.draw = Random(seed)
        self.text = f"""force_backward: true
            layer {{ name: "in" type: "Input" top: "x" top: "v" top: "s0" top: "s1" input_param {{ shape {{ dim: [{SAMPLES}, 4, 3, 3] }}
            shape {{ dim: [{SAMPLES}, 6] }} shape {{ dim: {SAMPLES} }} shape {{ dim: {SAMPLES} }} }} }}\n"""
        self.blobs: dict[str, tuple[str, Shape]] = {"x": ("all", (4, 3, 3)), "v": ("all", (6,))}
        self.read = {"x", "v"}  # blobs that a layer reads, so that no other works in place on them

    def add(self, kind: str, bottoms: list[str], tops: dict[str, tuple[str, Shape]], fields: str = "") -> None:
        name = f"layer{self.text.count('layer {')}"
        ends = [f'bottom: "{bottom}"' for bottom in bottoms] + [f'top: "{top}"' for top in tops]
        if not set(tops) & set(bottoms):
            self.read.update(bottoms)
            if kind not in ("Filter", "Python", "Reduction") and self.draw.random() < 0.1:
                fields += " loss_weight: 0.5" + " loss_weight: 0" * (len(tops) - 1)
                self.read.update(tops)
        self.text += f'layer {{ name: "{name}" type: "{kind}" {" ".join(ends)} {fields} }}\n'
        self.blobs |= tops

    def add_any(self, top: str) -> None:
        """Add a random layer with new tops whose names begin with `top`."""
        draw = self.draw
        x = draw.choice(list(self.blobs)[-5:])
        samples, shape = self.blobs[x]
        first, second = f"{top}a", f"{top}b"
        same = {top: (samples, shape)}
        match draw.choice(KINDS):
            case "product" if len(shape) == 3:
                self.add("Convolution", [x], same, f"convolution_param {{ num_output: {shape[0]} kernel_size: 3 pad: 1 {FILLERS} }}")
            case "product":
                self.add("InnerProduct", [x], {top: (samples, (6,))}, f"inner_product_param {{ num_output: 6 {FILLERS} }}")
            case "TanH":
                self.add("TanH", [x], same)
            case "in place" if x not in self.read:
                self.add("ReLU", [x], {x: (samples, shape)})
            case "square":
                self.add("Power", [x], same, "power_param { scale: 0.5 shift: 1 power: 2 }")
            case "Eltwise":
                self.add("Eltwise", [x, draw.choice([name for name in self.blobs if self.blobs[name] == (samples, shape)])], same)
            case "view":
                kind, fields = draw.choice([("Flatten", ""), ("Reshape", f"reshape_param {{ shape {{ dim: -1 dim: {math.prod(shape)} }} }}")])
                self.add(kind, [x], {top: (samples, (math.prod(shape),))}, fields)
            case "Concat":
                other = draw.choice([name for name, (count, size) in self.blobs.items() if count == samples and size[1:] == shape[1:]])
                self.add("Concat", [x, other], {top: (samples, (shape[0] + self.blobs[other][1][0], *shape[1:]))}, "concat_param { axis: 1 }")
            case "join":
                others = [name for name, (_, size) in self.blobs.items() if size == shape]
                self.add("Concat", [x, *draw.choices(others, k=2)], {top: (top, shape)}, "concat_param { axis: 0 }")
            case "Slice" if shape[0] > 1:
                self.add("Slice", [x], {first: (samples, (1, *shape[1:])), second: (samples, (shape[0] - 1, *shape[1:]))}, "slice_param { slice_point: 1 }")
            case "Split":
                self.add("Split", [x], {first: (samples, shape), second: (samples, shape)})
            case "Pooling" if len(shape) == 3:
                self.add("Pooling", [x], same, f"pooling_param {{ pool: {draw.choice(['MAX', 'AVE'])} kernel_size: 3 pad: 1 stride: 1 }}")
            case "Scale":
                self.add("Scale", [x], same, "scale_param { bias_term: true filler { value: 0.7 } bias_filler { value: 0.1 } }")

    def measure(self, selector: str) -> None:
        """Add a layer that measures its shapes."""
        whole = [name for name, (samples, _) in self.blobs.items() if samples == "all"]
        if self.draw.random() < 0.5:
            bottoms = self.draw.sample(whole, min(len(whole), 2))
            self.add("Filter", [*bottoms, selector], {f"of{selector}{i}": (selector, self.blobs[name][1]) for i, name in enumerate(bottoms)})
        else:
            bottom = self.draw.choice(whole)
            tops = {f"of{selector}{part}": (f"{selector}{part}", self.blobs[bottom][1]) for part in "ab"}
            self.add("Python", [bottom, selector], tops, 'python_param { module: "tests.compiler.parted" layer: "Parted" }')


def random_net(seed: int) -> str:
    """Return the text of a random net with the inputs x, v and the selectors s0 and s1."""
    net = RandomNet(seed)
    measures = dict(zip(net.draw.sample(range(2, LAYERS - 2), 2), ("s0", "s1")))
    for index in range(LAYERS):
        if index in measures:
            net.measure(measures[index])
        else:
            net.add_any(f"b{index}")
    for index, name in enumerate([name for name in net.blobs if name not in ("x", "v") and net.draw.random() < 0.4]):
        net.add("Reduction", [name], {f"loss{index}": ("", ())}, "loss_weight: 1 reduction_param { operation: SUMSQ }")
    return net.text
