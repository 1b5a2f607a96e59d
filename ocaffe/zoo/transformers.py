"""Vision transformers of the zoo."""
from __future__ import annotations

from typing import NamedTuple

from ocaffe.zoo.net import CLASSES, Fields, Net, gaussian


class Vit(NamedTuple):
    """The sizes of a vision transformer: pixels of the image and of a patch, values of a token, number of transformer blocks and of heads."""

    image: int
    patch: int
    width: int
    depth: int
    heads: int


VIT_FILLER = gaussian(0.02)


def vit(net: Net, sizes: Vit, digits: bool = False) -> None:
    """Vision transformer with the normalization before each branch. `digits`: gray images of digits instead of ImageNet.

    Pad makes room for the class token. Row 0 of the learned table that Bias adds is the token and its position.
    """
    def norm(name: str, x: str) -> str:
        x = net.layer("LayerNorm", name, x, layer_norm_param={"axis": -1, "eps": 1e-6})
        return net.layer("Scale", f"{name}/scale", x, x, scale_param={"axis": -1, "bias_term": True}, **learned(2))

    def learned(count: int) -> Fields:
        """Norms and positions have no weight decay, as the net was published."""
        return {} if net.deploy else {"param": [{"lr_mult": 1, "decay_mult": 0}] * count}

    def dense(name: str, x: str, outputs: int) -> str:
        return net.fc(name, x, outputs, weight=VIT_FILLER, bias=0, axis=2)

    def heads(name: str, x: str) -> str:
        x = net.layer("Reshape", f"{name}/split", x, reshape_param={"shape": {"dim": [0, 0, sizes.heads, -1]}})
        return net.layer("Permute", f"{name}/heads", x, permute_param={"order": [0, 2, 1, 3]})

    def attention(name: str, x: str) -> str:
        tops = [f"{name}/{part}" for part in "qkv"]
        qkv = dense(f"{name}/qkv", x, 3 * sizes.width)
        net.layers.append({"name": f"{name}/parts", "type": "Slice", "bottom": qkv, "top": tops, "slice_param": {"axis": 2}})
        q, k, v = (heads(top, top) for top in tops)
        scores = net.layer("MatMul", f"{name}/scores", [q, k], matmul_param={"transpose_b": True})
        scores = net.layer("Power", f"{name}/scaled", scores, power_param={"scale": (sizes.width // sizes.heads) ** -0.5})
        weights = net.layer("Softmax", f"{name}/weights", scores, softmax_param={"axis": 3})
        x = net.layer("Permute", f"{name}/tokens", net.layer("MatMul", f"{name}/mixed", [weights, v]), permute_param={"order": [0, 2, 1, 3]})
        return dense(f"{name}/proj", net.layer("Reshape", f"{name}/joined", x, reshape_param={"shape": {"dim": [0, 0, -1]}}), sizes.width)

    x = small_digits(net) if digits else net.data(crop=sizes.image, batch=64, deploy_batch=1, scale=0.017)
    x = net.conv("patches", x, sizes.width, kernel_size=sizes.patch, stride=sizes.patch, weight=VIT_FILLER, bias=0)
    x = net.layer("Reshape", "patches/flat", x, reshape_param={"shape": {"dim": [0, 0, -1]}})
    x = net.layer("Permute", "patches/tokens", x, permute_param={"order": [0, 2, 1]})
    x = net.layer("Pad", "token", x, pad_param={"axis": 1, "begin": [1, 0], "end": [0, 0]})
    x = net.layer("Bias", "positions", x, bias_param={"axis": 1, "num_axes": 2, **({} if net.deploy else {"filler": VIT_FILLER})}, **learned(1))
    for i in range(1, sizes.depth + 1):
        x = net.layer("Eltwise", f"block{i}/sum1", [x, attention(f"block{i}/attention", norm(f"block{i}/norm1", x))])
        hidden = net.layer("Gelu", f"block{i}/gelu", dense(f"block{i}/fc1", norm(f"block{i}/norm2", x), 4 * sizes.width))
        x = net.layer("Eltwise", f"block{i}/sum2", [x, dense(f"block{i}/fc2", hidden, sizes.width)])
    net.layers.append({"name": "class", "type": "Slice", "bottom": norm("norm", x), "top": ["class", "rest"], "slice_param": {"axis": 1, "slice_point": 1}})
    net.layers.append({"name": "rest", "type": "Silence", "bottom": "rest"})
    if digits:
        net.classify(net.fc("head", "class", 10, weight=VIT_FILLER, bias=0), top5="")
    else:
        net.classify(net.fc("head", "class", CLASSES, weight=VIT_FILLER, bias=0))


def small_digits(net: Net) -> str:
    """Data layers of the digits that `ocaffe dataset digits` writes."""
    if net.deploy:
        net.layers.append({"name": "data", "type": "Input", "top": "data", "input_param": {"shape": {"dim": [1, 1, 28, 28]}}})
        return "data"
    for phase, part, batch in (("TRAIN", "train", 64), ("TEST", "test", 60)):
        source = {"source": f"examples/digits/digits_{part}_lmdb", "batch_size": batch, "backend": "LMDB"}
        data = {"name": "digits", "type": "Data", "top": ["data", "label"], "include": {"phase": phase}}
        net.layers.append({**data, "transform_param": {"scale": 0.00390625}, "data_param": source})
    return "data"
