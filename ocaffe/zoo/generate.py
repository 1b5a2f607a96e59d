"""Write train_val.prototxt and deploy.prototxt of the larger nets: python -m ocaffe.zoo.generate [net ...] (none named: all).

A net is a function over its paper's table. It is called twice: `deploy` leaves out the data, the losses and all that only
learning needs. Layer names are those of the nets as published for Caffe, so that their weights load by name; MobileNet v2's
are counted after its paper's table.
"""
from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, NamedTuple

from ocaffe.zoo import FOLDER

Fields = dict[str, Any]

IMAGENET = "examples/imagenet/ilsvrc12"
CIFAR10 = "examples/cifar10/cifar10"
CLASSES = 1000
TEST_BATCH = 50  # 1,000 of them are the validation set

ENUMS = {
    "TRAIN", "TEST", "LMDB", "MAX", "AVE", "WARP", "LINEAR", "AREA", "NEAREST", "CUBIC", "LANCZOS4", "CENTER", "CENTER_SIZE", "SMOOTH_L1", "SOFTMAX",
    "PER_PREDICTION", "MAX_NEGATIVE", "VALID",
}  # written without quotes

MSRA: Fields = {"type": "msra"}
XAVIER: Fields = {"type": "xavier"}


def gaussian(std: float) -> Fields:
    return {"type": "gaussian", "std": std}


def scalar(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return f'"{value}"' if isinstance(value, str) and value not in ENUMS else str(value)


def lines(fields: Fields, indent: str = "") -> Iterator[str]:
    """Fields in text format. A list is a repeated field; layers and their *_param blocks get several lines, other messages one."""
    for name, value in fields.items():
        for item in value if isinstance(value, list) else [value]:
            if not isinstance(item, dict):
                yield f"{indent}{name}: {scalar(item)}"
            elif name == "layer" or name.endswith("_param"):
                yield f"{indent}{name} {{"
                yield from lines(item, indent + "  ")
                yield f"{indent}}}"
            else:
                yield f"{indent}{name} {{ {' '.join(lines(item))} }}"


class Net:
    """Layers in order. Every method adds some and returns the blob to go on with."""

    def __init__(self, deploy: bool) -> None:
        self.deploy = deploy
        self.layers: list[Fields] = []

    def layer(self, kind: str, name: str, bottom: str | list[str], top: str = "", /, **fields: Any) -> str:
        self.layers.append({"name": name, "type": kind, "bottom": bottom, "top": top or name, **fields})
        return top or name

    def data(
        self, crop: int, batch: int, deploy_batch: int, source: str = IMAGENET, held_out: str = "val", test_batch: int = TEST_BATCH, scale: float = 1,
    ) -> str:  # fmt: skip
        if self.deploy:
            shape = {"dim": [deploy_batch, 3, crop, crop]}
            self.layers.append({"name": "data", "type": "Input", "top": "data", "input_param": {"shape": shape}})
            return "data"
        for phase, part, size in (("TRAIN", "train", batch), ("TEST", held_out, test_batch)):
            transform = {"mirror": phase == "TRAIN", "crop_size": crop, "mean_value": [104, 117, 123]} | ({"scale": scale} if scale != 1 else {})
            source_fields = {"source": f"{source}_{part}_lmdb", "batch_size": size, "backend": "LMDB"}
            data = {"name": "data", "type": "Data", "top": ["data", "label"], "include": {"phase": phase}}
            self.layers.append({**data, "transform_param": transform, "data_param": source_fields})
        return "data"

    def conv(self, name: str, bottom: str, num_output: int, **settings: Any) -> str:
        return self.weighted("Convolution", "convolution_param", name, bottom, num_output=num_output, **settings)

    def fc(self, name: str, bottom: str, num_output: int, **settings: Any) -> str:
        return self.weighted("InnerProduct", "inner_product_param", name, bottom, num_output=num_output, **settings)

    def weighted(
        self, kind: str, message: str, name: str, bottom: str, /,
        weight: Fields = MSRA, bias: float | None = None, decay: int = 1, **shape: Any,
    ) -> str:
        """A layer with weights: their filler, what its bias begins with (None: it has no bias), the weights' decay_mult, its shape."""
        param = [{"lr_mult": 1, "decay_mult": decay}]
        fillers: Fields = {"weight_filler": weight}
        if bias is None:
            shape["bias_term"] = False
        else:
            param.append({"lr_mult": 2, "decay_mult": 0})
            fillers["bias_filler"] = {"type": "constant", "value": bias}
        if self.deploy:
            return self.layer(kind, name, bottom, **{message: shape})
        return self.layer(kind, name, bottom, param=param, **{message: {**shape, **fillers}})

    def batch_norm(self, blob: str, norm: str, scale: str) -> str:
        self.layer("BatchNorm", norm, blob, blob)
        return self.layer("Scale", scale, blob, blob, scale_param={"bias_term": True})

    def relu(self, name: str, blob: str) -> str:
        return self.layer("ReLU", name, blob, blob)

    def relu6(self, name: str, bottom: str) -> str:
        # BVLC Caffe has no ReLU6, and its Clip in place would lose the input that its gradient reads
        return self.layer("Clip", name, bottom, clip_param={"min": 0, "max": 6})

    def pool(self, name: str, bottom: str, pool: str, **window: Any) -> str:
        return self.layer("Pooling", name, bottom, pooling_param={"pool": pool, **window})

    def lrn(self, name: str, bottom: str) -> str:
        return self.layer("LRN", name, bottom, lrn_param={"local_size": 5, "alpha": 0.0001, "beta": 0.75})

    def dropout(self, name: str, blob: str, ratio: float) -> str:
        return self.layer("Dropout", name, blob, blob, dropout_param={"dropout_ratio": ratio})

    def classify(self, blob: str, loss: str = "loss", top1: str = "accuracy", top5: str = "accuracy_top5", **weight: float) -> str:
        """The end of a net: probabilities to deploy; accuracies and loss (with a loss_weight, if given) to train. `top5` may be empty."""
        if self.deploy:
            return self.layer("Softmax", "prob", blob)
        test: Fields = {"include": {"phase": "TEST"}}
        self.layer("Accuracy", top1, [blob, "label"], **test)
        if top5:
            self.layer("Accuracy", top5, [blob, "label"], **test, accuracy_param={"top_k": 5})
        return self.layer("SoftmaxWithLoss", loss, [blob, "label"], **weight)


def fc6_to_8(net: Net, x: str, weight: Fields, bias: float) -> None:
    """The three fully connected layers at the end of AlexNet and VGG."""
    for i in (6, 7):
        x = net.fc(f"fc{i}", x, 4096, weight=weight, bias=bias)
        x = net.dropout(f"drop{i}", net.relu(f"relu{i}", x), 0.5)
    net.classify(net.fc("fc8", x, CLASSES, weight=gaussian(0.01), bias=0))


ALEXNET: list[tuple[Fields, float, bool, bool]] = [  # convolution, its first bias, is a norm behind it, is a pooling behind that
    ({"num_output": 96, "kernel_size": 11, "stride": 4}, 0, True, True),
    ({"num_output": 256, "pad": 2, "kernel_size": 5, "group": 2}, 0.1, True, True),
    ({"num_output": 384, "pad": 1, "kernel_size": 3}, 0, False, False),
    ({"num_output": 384, "pad": 1, "kernel_size": 3, "group": 2}, 0.1, False, False),
    ({"num_output": 256, "pad": 1, "kernel_size": 3, "group": 2}, 0.1, False, True),
]


def alexnet(net: Net, pool_first: bool = False) -> None:
    """`pool_first`: CaffeNet, which pools before it normalises."""
    x = net.data(crop=227, batch=256, deploy_batch=10)
    for i, (window, bias, norm, pool) in enumerate(ALEXNET, 1):
        x = net.relu(f"relu{i}", net.conv(f"conv{i}", x, **window, weight=gaussian(0.01), bias=bias))
        if norm and not pool_first:
            x = net.lrn(f"norm{i}", x)
        if pool:
            x = net.pool(f"pool{i}", x, "MAX", kernel_size=3, stride=2)
        if norm and pool_first:
            x = net.lrn(f"norm{i}", x)
    fc6_to_8(net, x, gaussian(0.005), 0.1)


VGG16 = [(64, 2), (128, 2), (256, 3), (512, 3), (512, 3)]  # channels, convolutions


def vgg16(net: Net) -> None:
    x = net.data(crop=224, batch=64, deploy_batch=10)
    for stage, (channels, depth) in enumerate(VGG16, 1):
        for i in range(1, depth + 1):
            x = net.relu(f"relu{stage}_{i}", net.conv(f"conv{stage}_{i}", x, channels, pad=1, kernel_size=3, bias=0))
        x = net.pool(f"pool{stage}", x, "MAX", kernel_size=2, stride=2)
    fc6_to_8(net, x, MSRA, 0)


INCEPTION = {  # channels of: 1x1, 3x3_reduce, 3x3, 5x5_reduce, 5x5, pool_proj
    "3a": (64, 96, 128, 16, 32, 32),
    "3b": (128, 128, 192, 32, 96, 64),
    "4a": (192, 96, 208, 16, 48, 64),
    "4b": (160, 112, 224, 24, 64, 64),
    "4c": (128, 128, 256, 24, 64, 64),
    "4d": (112, 144, 288, 32, 64, 64),
    "4e": (256, 160, 320, 32, 128, 128),
    "5a": (256, 160, 320, 32, 128, 128),
    "5b": (384, 192, 384, 48, 128, 128),
}


def googlenet(net: Net) -> None:
    def conv(stage: str, name: str, x: str, channels: int, relu: str = "", **window: Any) -> str:
        return net.relu(f"{stage}/relu_{relu or name}", net.conv(f"{stage}/{name}", x, channels, **window, weight=XAVIER, bias=0.2))

    def inception(stage: str, x: str) -> str:
        one, reduce3, three, reduce5, five, proj = INCEPTION[stage]
        stage = f"inception_{stage}"
        columns = [conv(stage, "1x1", x, one, kernel_size=1)]
        reduced = conv(stage, "3x3_reduce", x, reduce3, kernel_size=1)
        columns.append(conv(stage, "3x3", reduced, three, pad=1, kernel_size=3))
        reduced = conv(stage, "5x5_reduce", x, reduce5, kernel_size=1)
        columns.append(conv(stage, "5x5", reduced, five, pad=2, kernel_size=5))
        pooled = net.pool(f"{stage}/pool", x, "MAX", kernel_size=3, stride=1, pad=1)
        columns.append(conv(stage, "pool_proj", pooled, proj, kernel_size=1))
        return net.layer("Concat", f"{stage}/output", columns)

    def classifier(i: int, x: str, loss_weight: float) -> None:
        x = net.fc(f"loss{i}/classifier", x, CLASSES, weight=XAVIER, bias=0)
        net.classify(x, f"loss{i}/loss{i}", f"loss{i}/top-1", f"loss{i}/top-5", loss_weight=loss_weight)

    def auxiliary(i: int, x: str) -> None:
        if net.deploy:
            return
        x = net.pool(f"loss{i}/ave_pool", x, "AVE", kernel_size=5, stride=3)
        x = conv(f"loss{i}", "conv", x, 128, kernel_size=1)
        x = net.relu(f"loss{i}/relu_fc", net.fc(f"loss{i}/fc", x, 1024, weight=XAVIER, bias=0.2))
        classifier(i, net.dropout(f"loss{i}/drop_fc", x, 0.7), 0.3)

    x = net.data(crop=224, batch=32, deploy_batch=10)
    x = conv("conv1", "7x7_s2", x, 64, relu="7x7", pad=3, kernel_size=7, stride=2)
    x = net.lrn("pool1/norm1", net.pool("pool1/3x3_s2", x, "MAX", kernel_size=3, stride=2))
    x = conv("conv2", "3x3_reduce", x, 64, kernel_size=1)
    x = net.lrn("conv2/norm2", conv("conv2", "3x3", x, 192, pad=1, kernel_size=3))
    x = net.pool("pool2/3x3_s2", x, "MAX", kernel_size=3, stride=2)
    x = inception("3b", inception("3a", x))
    x = inception("4a", net.pool("pool3/3x3_s2", x, "MAX", kernel_size=3, stride=2))
    auxiliary(1, x)
    x = inception("4d", inception("4c", inception("4b", x)))
    auxiliary(2, x)
    x = net.pool("pool4/3x3_s2", inception("4e", x), "MAX", kernel_size=3, stride=2)
    x = inception("5b", inception("5a", x))
    x = net.pool("pool5/7x7_s1", x, "AVE", kernel_size=7, stride=1)
    classifier(3, net.dropout("pool5/drop_7x7_s1", x, 0.4), 1)


def resnet(net: Net, depths: tuple[int, ...], bottleneck: bool) -> None:
    def unit(name: str, x: str, channels: int, relu: bool = True, **window: Any) -> str:
        conv = f"res{name}"
        x = net.batch_norm(net.conv(conv, x, channels, **window), f"bn{name}", f"scale{name}")
        return net.relu(f"{conv}_relu", x) if relu else x

    def branch(block: str, x: str, width: int, stride: int) -> str:
        name = f"{block}_branch2"
        if bottleneck:
            x = unit(f"{name}a", x, width, kernel_size=1, stride=stride)
            x = unit(f"{name}b", x, width, pad=1, kernel_size=3)
            return unit(f"{name}c", x, 4 * width, relu=False, kernel_size=1)
        x = unit(f"{name}a", x, width, pad=1, kernel_size=3, stride=stride)
        return unit(f"{name}b", x, width, relu=False, pad=1, kernel_size=3)

    x = net.data(crop=224, batch=32, deploy_batch=1)
    x = net.batch_norm(net.conv("conv1", x, 64, pad=3, kernel_size=7, stride=2), "bn_conv1", "scale_conv1")
    x = net.pool("pool1", net.relu("conv1_relu", x), "MAX", kernel_size=3, stride=2)
    for stage, depth in enumerate(depths, 2):
        width = 16 << stage
        for letter in "abcdef"[:depth] if depth <= 6 else ["a", *(f"b{number}" for number in range(1, depth))]:  # as the deeper nets were published
            block = f"{stage}{letter}"
            stride = 2 if letter == "a" and stage > 2 else 1
            shortcut = x
            if letter == "a" and (stride == 2 or bottleneck):  # the shape changes
                shortcut = unit(f"{block}_branch1", x, 4 * width if bottleneck else width, relu=False, kernel_size=1, stride=stride)
            total = net.layer("Eltwise", f"res{block}", [shortcut, branch(block, x, width, stride)])
            x = net.relu(f"res{block}_relu", total)
    x = net.pool("pool5", x, "AVE", global_pooling=True)
    net.classify(net.fc(f"fc{CLASSES}", x, CLASSES, weight=gaussian(0.01), bias=0))


def resnet_cifar(net: Net, depth: int) -> None:
    """The nets for 32 x 32 images in section 4.2 of the paper: three stages of `depth` blocks. Where the shape changes, the shortcut is a convolution."""
    def unit(name: str, x: str, channels: int, relu: bool = True, **window: Any) -> str:
        x = conv_norm(net, name, x, channels, **window)
        return net.relu(f"{name}/relu", x) if relu else x

    x = net.data(crop=32, batch=128, deploy_batch=1, source=CIFAR10, held_out="test", test_batch=100)
    x = unit("conv1", x, 16, pad=1, kernel_size=3)
    for stage in (1, 2, 3):
        width = 8 << stage
        for i in range(1, depth + 1):
            name, stride, shortcut = f"res{stage}_{i}", 2 if i == 1 and stage > 1 else 1, x
            if stride > 1:
                shortcut = unit(f"{name}/shortcut", x, width, relu=False, kernel_size=1, stride=stride)
            x = unit(f"{name}/conv1", x, width, pad=1, kernel_size=3, stride=stride)
            x = unit(f"{name}/conv2", x, width, relu=False, pad=1, kernel_size=3)
            x = net.relu(f"{name}/relu", net.layer("Eltwise", f"{name}/sum", [shortcut, x]))
    x = net.pool("pool", x, "AVE", global_pooling=True)
    net.classify(net.fc("fc10", x, 10, bias=0), top5="")


FIRE = {2: (16, 64), 3: (16, 64), 4: (32, 128), 5: (32, 128), 6: (48, 192), 7: (48, 192), 8: (64, 256), 9: (64, 256)}  # squeezed channels, expanded twice
POOLED = (3, 5)  # the fire modules with a pooling behind them


def squeezenet(net: Net) -> None:
    """SqueezeNet 1.1."""
    def conv(name: str, relu: str, x: str, channels: int, **settings: Any) -> str:
        return net.relu(relu, net.conv(name, x, channels, **{"weight": XAVIER, "bias": 0, **settings}))

    x = net.data(crop=227, batch=64, deploy_batch=10)
    x = net.pool("pool1", conv("conv1", "relu_conv1", x, 64, kernel_size=3, stride=2), "MAX", kernel_size=3, stride=2)
    for i, (squeezed, expanded) in FIRE.items():
        x = conv(f"fire{i}/squeeze1x1", f"fire{i}/relu_squeeze1x1", x, squeezed, kernel_size=1)
        columns = [conv(f"fire{i}/expand1x1", f"fire{i}/relu_expand1x1", x, expanded, kernel_size=1)]
        columns.append(conv(f"fire{i}/expand3x3", f"fire{i}/relu_expand3x3", x, expanded, pad=1, kernel_size=3))
        x = net.layer("Concat", f"fire{i}/concat", columns)
        if i in POOLED:
            x = net.pool(f"pool{i}", x, "MAX", kernel_size=3, stride=2)
    x = net.dropout("drop9", x, 0.5)
    x = net.pool("pool10", conv("conv10", "relu_conv10", x, CLASSES, kernel_size=1, weight=gaussian(0.01)), "AVE", global_pooling=True)
    net.classify(x)


def conv_norm(net: Net, name: str, x: str, channels: int, **settings: Any) -> str:
    return net.batch_norm(net.conv(name, x, channels, **settings), f"{name}/bn", f"{name}/scale")


MOBILENET_V1 = [  # channels out, stride of the depthwise convolution
    ("conv2_1", 64, 1), ("conv2_2", 128, 2),
    ("conv3_1", 128, 1), ("conv3_2", 256, 2),
    ("conv4_1", 256, 1), ("conv4_2", 512, 2),
    ("conv5_1", 512, 1), ("conv5_2", 512, 1), ("conv5_3", 512, 1), ("conv5_4", 512, 1), ("conv5_5", 512, 1), ("conv5_6", 1024, 2),
    ("conv6", 1024, 1),
]


def mobilenet_v1(net: Net) -> None:
    def unit(name: str, x: str, channels: int, **settings: Any) -> str:
        return net.relu(f"{name}/relu", conv_norm(net, name, x, channels, **settings))

    x = net.data(crop=224, batch=64, deploy_batch=1)
    x = unit("conv1", x, 32, pad=1, kernel_size=3, stride=2)
    channels = 32
    for name, wider, stride in MOBILENET_V1:
        # the paper: very little or no weight decay on the depthwise filters
        x = unit(f"{name}/dw", x, channels, pad=1, kernel_size=3, stride=stride, group=channels, decay=0)
        x = unit(f"{name}/sep", x, wider, kernel_size=1)
        channels = wider
    x = net.pool("pool6", x, "AVE", global_pooling=True)
    net.classify(net.conv("fc7", x, CLASSES, kernel_size=1, weight=gaussian(0.01), bias=0))


MOBILENET_V2 = [  # expansion, channels out, blocks, stride of the first block
    (1, 16, 1, 1),
    (6, 24, 2, 2),
    (6, 32, 3, 2),
    (6, 64, 4, 2),
    (6, 96, 3, 1),
    (6, 160, 3, 2),
    (6, 320, 1, 1),
]


def mobilenet_v2(net: Net) -> None:
    def unit(name: str, x: str, channels: int, **settings: Any) -> str:
        return net.relu6(f"{name}/relu6", conv_norm(net, name, x, channels, **settings))

    x = net.data(crop=224, batch=64, deploy_batch=1)
    x = unit("conv1", x, 32, pad=1, kernel_size=3, stride=2)
    channels = 32
    for stage, (expansion, wider, depth, first_stride) in enumerate(MOBILENET_V2, 2):
        for i in range(1, depth + 1):
            name, stride, shortcut = f"conv{stage}_{i}", first_stride if i == 1 else 1, x
            inner = expansion * channels
            if expansion > 1:
                x = unit(f"{name}/expand", x, inner, kernel_size=1)
            x = unit(f"{name}/dwise", x, inner, pad=1, kernel_size=3, stride=stride, group=inner)
            x = conv_norm(net, f"{name}/linear", x, wider, kernel_size=1)
            if i > 1:
                x = net.layer("Eltwise", f"{name}/sum", [shortcut, x])
            channels = wider
    x = net.pool("pool9", unit("conv9", x, 1280, kernel_size=1), "AVE", global_pooling=True)
    net.classify(net.fc("fc10", x, CLASSES, weight=gaussian(0.01), bias=0))


class Vit(NamedTuple):
    """The sizes of a vision transformer: pixels of the image and of a patch, values of a token, number of blocks and of heads."""

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


NETS: dict[str, tuple[str, Callable[[Net], None]]] = {
    "alexnet": ("AlexNet", alexnet),
    "caffenet": ("CaffeNet", partial(alexnet, pool_first=True)),
    "googlenet": ("GoogLeNet", googlenet),
    "vgg16": ("VGG-16", vgg16),
    "squeezenet": ("SqueezeNet-1.1", squeezenet),
    "resnet20": ("ResNet-20", partial(resnet_cifar, depth=3)),
    "resnet18": ("ResNet-18", partial(resnet, depths=(2, 2, 2, 2), bottleneck=False)),
    "resnet50": ("ResNet-50", partial(resnet, depths=(3, 4, 6, 3), bottleneck=True)),
    "mobilenet_v1": ("MobileNet-v1", mobilenet_v1),
    "mobilenet_v2": ("MobileNet-v2", mobilenet_v2),
    "vit_tiny": ("ViT-Tiny/16", partial(vit, sizes=Vit(224, 16, 192, 12, 3))),
    "vit_digits": ("ViT-digits", partial(vit, sizes=Vit(28, 4, 64, 4, 4), digits=True)),
}


HEADER = "# Written by ocaffe/zoo/generate.py: change it there."


def prototxt(name: str, deploy: bool) -> str:
    """The text of the net `name`, to train and test or to deploy."""
    title, build = NETS[name]
    net = Net(deploy)
    build(net)
    return "\n".join([HEADER, *lines({"name": title, "layer": net.layers})]) + "\n"


def main(names: list[str]) -> None:
    unknown = [name for name in names if name not in NETS]
    if unknown:
        sys.exit(f"no net {unknown[0]!r}; there are {', '.join(NETS)}")
    for name in names or NETS:
        folder = FOLDER / name
        folder.mkdir(exist_ok=True)
        for file, deploy in (("train_val", False), ("deploy", True)):
            (folder / f"{file}.prototxt").write_text(prototxt(name, deploy))


if __name__ == "__main__":
    main(sys.argv[1:])
