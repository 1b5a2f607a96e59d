"""Classifiers of the zoo: convolutional nets for images of one class each.

Layer names are those of the nets as published for Caffe, so that their weights load by name; MobileNet v2's are counted
after its paper's table.
"""
from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any, NamedTuple

from ocaffe.zoo.net import CLASSES, MSRA, XAVIER, Fields, Net, gaussian

CIFAR10 = "examples/cifar10/cifar10"


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
VGG19 = [(64, 2), (128, 2), (256, 4), (512, 4), (512, 4)]


def vgg(net: Net, stages: list[tuple[int, int]]) -> None:
    x = net.data(crop=224, batch=64, deploy_batch=10)
    for stage, (channels, depth) in enumerate(stages, 1):
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

    def branch(place: str, x: str, width: int, stride: int) -> str:
        name = f"{place}_branch2"
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
            place = f"{stage}{letter}"
            stride = 2 if letter == "a" and stage > 2 else 1
            shortcut = x
            if letter == "a" and (stride == 2 or bottleneck):  # the shape changes
                shortcut = unit(f"{place}_branch1", x, 4 * width if bottleneck else width, relu=False, kernel_size=1, stride=stride)
            total = net.layer("Eltwise", f"res{place}", [shortcut, branch(place, x, width, stride)])
            x = net.relu(f"res{place}_relu", total)
    x = net.pool("pool5", x, "AVE", global_pooling=True)
    net.classify(net.fc(f"fc{CLASSES}", x, CLASSES, weight=gaussian(0.01), bias=0))


def resnet_cifar(net: Net, depth: int) -> None:
    """The nets for 32 x 32 images in section 4.2 of the paper: three stages of `depth` residual blocks. A shortcut is a convolution where the shape changes."""
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


MOBILENET_V2 = [  # expansion, channels out, residual blocks, stride of the first one
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


EFFICIENTNET_LITE = [  # expansion, channels out, blocks, side of the depthwise window, stride of the first block
    (1, 16, 1, 3, 1),
    (6, 24, 2, 3, 2),
    (6, 40, 2, 5, 2),
    (6, 80, 3, 3, 2),
    (6, 112, 3, 5, 1),
    (6, 192, 4, 5, 2),
    (6, 320, 1, 3, 1),
]


class Scaled(NamedTuple):
    """A member of the family EfficientNet-Lite: the side of its images, factors of channels and of blocks, the ratio of its dropout."""

    side: int
    width: float
    depth: float
    dropped: float

    def channels(self, given: int) -> int:
        """Return a multiple of 8 near the scaled number, at least nine tenths of it."""
        exact = given * self.width
        near = max(8, int(exact + 4) // 8 * 8)
        return near if near >= 0.9 * exact else near + 8

    def stages(self) -> Iterator[tuple[int, int, int, int, int]]:
        """Yield EFFICIENTNET_LITE with the own numbers. The first and the last stage are not deeper."""
        for i, (expansion, channels, depth, side, stride) in enumerate(EFFICIENTNET_LITE):
            deeper = depth if i in (0, len(EFFICIENTNET_LITE) - 1) else math.ceil(depth * self.depth)
            yield expansion, self.channels(channels), deeper, side, stride


def same(image: int, side: int, stride: int) -> Fields:
    """Return the window whose output has ceil(image / stride) pixels, as TensorFlow's padding SAME.

    TensorFlow pads an even image by one pixel more behind it than in front of it. A window that is larger by one row and one column, with zeros in them,
    computes the same with equal pads (ocaffe/zoo/efficientnet.py).
    """
    pads = max(0, (math.ceil(image / stride) - 1) * stride + side - image)
    return {"pad": (pads + 1) // 2, "kernel_size": side + pads % 2, "stride": stride}


def efficientnet_lite(net: Net, sizes: Scaled) -> None:
    """Blocks are numbered from 0 on, as in the package whose weights ocaffe/zoo/efficientnet.py reads."""
    def normed(name: str, x: str, channels: int, **settings: Any) -> str:
        return net.batch_norm(net.conv(name, x, channels, **settings), f"{name}/bn", f"{name}/scale", eps=0.001)

    def unit(name: str, x: str, channels: int, **settings: Any) -> str:
        return net.relu6(f"{name}/relu6", normed(name, x, channels, **settings))

    x = net.data(crop=sizes.side, batch=64, deploy_batch=1, mean=(127,), scale=1 / 128)
    x = unit("stem", x, 32, **same(sizes.side, 3, 2))
    channels, image, number = 32, math.ceil(sizes.side / 2), 0
    for expansion, wider, depth, side, first_stride in sizes.stages():
        for i in range(depth):
            name, stride, shortcut, inner = f"block{number}", first_stride if i == 0 else 1, x, expansion * channels
            if expansion > 1:
                x = unit(f"{name}/expand", x, inner, kernel_size=1)
            x = unit(f"{name}/depthwise", x, inner, **same(image, side, stride), group=inner)
            x = normed(f"{name}/project", x, wider, kernel_size=1)
            if i:
                x = net.layer("Eltwise", f"{name}/sum", [shortcut, x])
            channels, image, number = wider, math.ceil(image / stride), number + 1
    x = net.pool("pool", unit("head", x, 1280, kernel_size=1), "AVE", global_pooling=True)
    net.classify(net.fc("fc", net.dropout("drop", x, sizes.dropped), CLASSES, weight=gaussian(0.01), bias=0))


EXACT_MEAN = (103.94, 116.78, 123.68)  # MEAN with two digits more
SCALE = 0.017  # about 1 / standard deviation


def densenet(net: Net, depths: tuple[int, ...], growth: int = 32) -> None:
    """DenseNet of bottleneck layers, with half of the channels after each dense block but the last. Names as in shicai's DenseNet-Caffe."""
    def normed(name: str, relu: str, x: str) -> str:
        return net.relu(relu, net.batch_norm(x, f"{name}/bn", f"{name}/scale", f"{name}/bn"))

    x = net.data(crop=224, batch=32, deploy_batch=1, mean=EXACT_MEAN, scale=SCALE)
    x = normed("conv1", "relu1", net.conv("conv1", x, 64, pad=3, kernel_size=7, stride=2))
    x = net.pool("pool1", x, "MAX", kernel_size=3, stride=2, pad=1, round_mode="FLOOR")
    channels = 64
    for stage, depth in enumerate(depths, 2):
        for i in range(1, depth + 1):
            name = f"{stage}_{i}"
            inner = net.conv(f"conv{name}/x1", normed(f"conv{name}/x1", f"relu{name}/x1", x), 4 * growth, kernel_size=1)
            grown = net.conv(f"conv{name}/x2", normed(f"conv{name}/x2", f"relu{name}/x2", inner), growth, pad=1, kernel_size=3)
            x = net.layer("Concat", f"concat_{name}", [x, grown])
        channels = (channels + depth * growth) // 2
        x = normed(f"conv{stage}_blk", f"relu{stage}_blk", x)
        if stage < 1 + len(depths):
            x = net.pool(f"pool{stage}", net.conv(f"conv{stage}_blk", x, channels, kernel_size=1), "AVE", kernel_size=2, stride=2)
    x = net.pool("pool5", x, "AVE", global_pooling=True)
    net.classify(net.conv("fc6", x, CLASSES, kernel_size=1, weight=gaussian(0.01), bias=0))


def wide(side: int) -> Fields:
    """A window of 1 x `side` pixels that keeps the size of the image."""
    return {"pad_h": 0, "pad_w": side // 2, "kernel_h": 1, "kernel_w": side}


def high(side: int) -> Fields:
    """A window of `side` x 1 pixels that keeps the size of the image."""
    return {"pad_h": side // 2, "pad_w": 0, "kernel_h": side, "kernel_w": 1}


INCEPTION_A = [("a1", 32), ("a2", 64), ("a3", 64)]  # Inception block, channels of its projected pooling
INCEPTION_B = [("b1", 128), ("b2", 160), ("b3", 160), ("b4", 192)]  # Inception block, channels between its convolutions
INCEPTION_C = [("c1", "AVE"), ("c2", "MAX")]  # Inception block, its pooling: MAX as in the net that was published with the paper


def inception_v3(net: Net) -> None:
    """Inception v3 without the auxiliary classifier. Names as in soeaver's caffe-model."""
    def conv(name: str, x: str, channels: int, relu: str = "", **window: Any) -> str:
        x = net.batch_norm(net.conv(name, x, channels, **window, weight=XAVIER), f"{name}_bn", f"{name}_scale", eps=0.001)
        return net.relu(relu or f"{name}_relu", x)

    def pool(name: str, x: str, pool: str) -> str:
        return net.pool(name, x, pool, kernel_size=3, stride=1, pad=1)

    def same_size(name: str, x: str, projected: int) -> str:
        five = conv(f"{name}_5x5", conv(f"{name}_5x5_reduce", x, 48, kernel_size=1), 64, pad=2, kernel_size=5)
        three = conv(f"{name}_3x3_1", conv(f"{name}_3x3_reduce", x, 64, kernel_size=1), 96, pad=1, kernel_size=3)
        three = conv(f"{name}_3x3_2", three, 96, pad=1, kernel_size=3)
        projection = conv(f"{name}_pool_proj", pool(f"{name}_pool", x, "AVE"), projected, kernel_size=1)
        return net.layer("Concat", f"{name}_output", [conv(f"{name}_1x1", x, 64, kernel_size=1), five, three, projection])

    def factored(name: str, x: str, inner: int) -> str:
        short = conv(f"{name}_1x7", conv(f"{name}_1x7_reduce", x, inner, kernel_size=1), inner, **wide(7))
        short = conv(f"{name}_7x1", short, 192, **high(7))
        long = conv(f"{name}_7x1_2", conv(f"{name}_7x1_reduce", x, inner, kernel_size=1), inner, **high(7))
        long = conv(f"{name}_7x1_3", conv(f"{name}_1x7_2", long, inner, **wide(7)), inner, **high(7))
        long = conv(f"{name}_1x7_3", long, 192, **wide(7))
        projection = conv(f"{name}_1x1", pool(f"{name}_pool_ave", x, "AVE"), 192, kernel_size=1)
        return net.layer("Concat", f"{name}_concat", [conv(f"{name}_1x1_2", x, 192, kernel_size=1), short, long, projection])

    def expanded(name: str, x: str, pooling: str) -> str:
        columns = [conv(f"{name}_1x1_2", x, 320, kernel_size=1)]
        inner = conv(f"{name}_1x3_reduce", x, 384, kernel_size=1)
        columns += [conv(f"{name}_1x3", inner, 384, **wide(3)), conv(f"{name}_3x1", inner, 384, **high(3))]
        inner = conv(f"{name}_3x3", conv(f"{name}_3x3_reduce", x, 448, kernel_size=1), 384, pad=1, kernel_size=3)
        columns += [conv(f"{name}_1x3_2", inner, 384, **wide(3)), conv(f"{name}_3x1_2", inner, 384, **high(3))]
        return net.layer("Concat", f"{name}_concat", [*columns, conv(f"{name}_1x1", pool(f"{name}_pool", x, pooling), 192, kernel_size=1)])

    x = net.data(crop=299, batch=32, deploy_batch=1, mean=(128, 128, 128), scale=0.0078125)
    x = conv("conv1_3x3_s2", x, 32, "conv1_3x3_relu", kernel_size=3, stride=2)
    x = conv("conv2_3x3_s1", x, 32, "conv2_3x3_relu", kernel_size=3)
    x = conv("conv3_3x3_s1", x, 64, "conv3_3x3_relu", pad=1, kernel_size=3)
    x = net.pool("pool1_3x3_s2", x, "MAX", kernel_size=3, stride=2)
    x = conv("conv4_3x3", conv("conv4_3x3_reduce", x, 80, "conv4_relu_3x3_reduce", kernel_size=1), 192, "conv4_relu_3x3", kernel_size=3)
    x = net.pool("pool2_3x3_s2", x, "MAX", kernel_size=3, stride=2)
    for name, projected in INCEPTION_A:
        x = same_size(f"inception_{name}", x, projected)
    reduced: Fields = {"kernel_size": 3, "stride": 2}  # a pooling beside a convolution rounds as that does, so that images of every size fit
    three = conv("reduction_a_3x3_2", conv("reduction_a_3x3_2_reduce", x, 64, kernel_size=1), 96, pad=1, kernel_size=3)
    columns = [conv("reduction_a_3x3", x, 384, **reduced), conv("reduction_a_3x3_3", three, 96, **reduced)]
    x = net.layer("Concat", "reduction_a_concat", [*columns, net.pool("reduction_a_pool", x, "MAX", **reduced, round_mode="FLOOR")])
    for name, inner in INCEPTION_B:
        x = factored(f"inception_{name}", x, inner)
    columns = [conv("reduction_b_3x3", conv("reduction_b_3x3_reduce", x, 192, kernel_size=1), 320, **reduced)]
    seven = conv("reduction_b_1x7", conv("reduction_b_1x7_reduce", x, 192, kernel_size=1), 192, **wide(7))
    columns.append(conv("reduction_b_3x3_2", conv("reduction_b_7x1", seven, 192, **high(7)), 192, **reduced))
    x = net.layer("Concat", "reduction_b_concat", [*columns, net.pool("reduction_b_pool", x, "MAX", **reduced, round_mode="FLOOR")])
    for name, pooling in INCEPTION_C:
        x = expanded(f"inception_{name}", x, pooling)
    x = net.dropout("pool_8x8_s1_drop", net.pool("pool_8x8_s1", x, "AVE", global_pooling=True), 0.2)
    net.classify(net.fc("classifier", x, CLASSES, weight=XAVIER, bias=0))


SHUFFLENET_V2 = [(116, 4), (232, 8), (464, 4)]  # channels, units


def shufflenet_v2(net: Net) -> None:
    """ShuffleNet v2 with width 1.0. Names as in farmingyard's ShuffleNet."""
    def conv(name: str, x: str, channels: int, relu: bool = True, **window: Any) -> str:
        x = net.batch_norm(net.conv(name, x, channels, **window), f"{name}_bn", f"{name}_scale")
        return net.relu(f"{name}_relu", x) if relu else x

    def depthwise(name: str, x: str, channels: int, stride: int) -> str:
        return conv(name, x, channels, relu=False, kernel_size=3, stride=stride, pad=1, group=channels)

    x = net.data(crop=224, batch=64, deploy_batch=1, mean=EXACT_MEAN, scale=SCALE)
    x = net.pool("pool1", conv("conv1", x, 24, pad=1, kernel_size=3, stride=2), "MAX", kernel_size=3, stride=2)
    unit, before = 0, 24
    for channels, depth in SHUFFLENET_V2:
        half = channels // 2
        for i in range(depth):
            unit += 1
            left, right, stride = f"branch{unit}_1", f"branch{unit}_2", 1
            if i == 0:
                right_in, stride = x, 2
                left_out = conv(f"{left}_conv2", depthwise(f"{left}_conv1", x, before, stride), half, kernel_size=1)
            else:
                net.layers.append({"name": f"slice{unit}", "type": "Slice", "bottom": x, "top": [left, right], "slice_param": {"slice_point": half, "axis": 1}})
                left_out, right_in = left, right
            x = depthwise(f"{right}_conv2", conv(f"{right}_conv1", right_in, half, kernel_size=1), half, stride)
            x = net.layer("Concat", f"concat{unit}", [left_out, conv(f"{right}_conv3", x, half, kernel_size=1)])
            x = net.layer("ShuffleChannel", f"shuffle{unit}", x, shuffle_channel_param={"group": 2})
        before = channels
    x = net.pool("pool_ave", conv("conv5", x, 1024, kernel_size=1), "AVE", global_pooling=True)
    net.classify(net.conv("fc1000", x, CLASSES, kernel_size=1, weight=gaussian(0.01), bias=0))
