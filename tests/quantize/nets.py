"""Small nets with random weights, and images for them."""
from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from ocaffe import proto
from ocaffe.convert.caffe.net import Net
from ocaffe.convert.caffe.rewrite import rewrite
from ocaffe.convert.options import Options
from ocaffe.formats.text import parse
from ocaffe.quantize.images import Images
from ocaffe.quantize.observe import running

BATCH = 8


def text(kind: str, bottom: str, top: str, more: str = "", name: str = "") -> str:
    bottoms = "".join(f' bottom: "{each}"' for each in bottom.split())
    tops = "".join(f' top: "{each}"' for each in top.split())
    return f'layer {{ name: "{name or top.split()[0]}" type: "{kind}"{bottoms}{tops} {more} }}'


def data(*shape: int) -> str:
    return text("Input", "", "data", f"input_param {{ shape {{ {' '.join(f'dim: {size}' for size in shape)} }} }}")


def conv(bottom: str, top: str, outputs: int, kernel: int = 3, more: str = "", kind: str = "Convolution") -> str:
    fillers = 'weight_filler { type: "gaussian" std: 0.3 } bias_filler { type: "gaussian" std: 0.3 }'
    return text(kind, bottom, top, f"convolution_param {{ num_output: {outputs} kernel_size: {kernel} {more} {fillers} }}")


def fc(bottom: str, top: str, outputs: int, more: str = "") -> str:
    fillers = 'weight_filler { type: "gaussian" std: 0.3 } bias_filler { type: "gaussian" std: 0.3 }'
    return text("InnerProduct", bottom, top, f"inner_product_param {{ num_output: {outputs} {more} {fillers} }}")


def net_of(*layers: str, seed: int = 1) -> Net:
    """Return the folded net, with the weights of its fillers."""
    return rewrite(parse("\n".join(layers), proto.NetParameter), None, Options(fold=True, fillers=True, seed=seed)).net


def images_of(net: Net, count: int = 32, seed: int = 0, change: Any = None) -> Images:
    """Return normal images for the only input. `change` may change them in place."""
    name = next(top for layer in net.layers if layer.type == "Input" for top in layer.top)
    given = np.random.default_rng(seed).standard_normal((count, *net.shapes[name][1:])).astype(np.float32)
    if change:
        change(given)

    def arrays() -> Iterator[Mapping[str, np.ndarray]]:
        for begin in range(0, count, BATCH):
            yield {"data": given[begin : begin + BATCH]}

    return Images(count, BATCH, arrays=arrays)


def outputs_of(net: Net, images: Images, device: Any, values: tuple[str, ...] = ()) -> list[np.ndarray]:
    """Return the outputs, or other values, of all images."""
    names = values or tuple(net.outputs)
    found: list[list[np.ndarray]] = [[] for _ in names]
    with running(images.message(net), net.weights(), names, device) as run:
        for _ in images.run(run):
            for name, parts in zip(names, found):
                parts.append(run.blobs[name].data.copy())
    return [np.concatenate(parts) for parts in found]
