"""Segmentation nets of the zoo: a class for each pixel. They learn from lists of images and label images.

Layer names are those of the authors' Caffe nets.
"""
from __future__ import annotations

from typing import Any

from ocaffe.zoo.classifiers import VGG16
from ocaffe.zoo.net import MSRA, Fields, Net, gaussian

VOC = "examples/voc"
VOC_CLASSES = 21
VOC_BORDER = 255  # the label of pixels at the borders of objects, which have no class
VOC_MEAN = (104.00699, 116.66877, 122.67892)

CAMVID = "examples/camvid"
CAMVID_CLASSES = 11
CAMVID_VOID = 11
# median of the classes' frequencies / frequency, of the training images: sky, building, pole, road, pavement, tree, sign, fence, car, pedestrian, bicyclist
CAMVID_WEIGHTS = [0.2595, 0.1826, 4.5640, 0.1417, 0.9051, 0.3826, 9.6446, 1.8418, 0.6823, 6.2478, 7.3614]

EM = "examples/em"


def pairs(net: Net, shape: tuple[int, int, int], source: str, batch: int, transform: Fields | None = None) -> str:
    """Data layers of images and label images, from the lists train.txt and val.txt in the folder `source`. Names in the lists are relative to it."""
    if net.deploy:
        net.layers.append({"name": "data", "type": "Input", "top": "data", "input_param": {"shape": {"dim": [1, *shape]}}})
        return "data"
    for phase, part, size in (("TRAIN", "train", batch), ("TEST", "val", 1)):
        images: Fields = {"source": f"{source}/{part}.txt", "root_folder": f"{source}/", "batch_size": size}
        images |= {"shuffle": True} if phase == "TRAIN" else {}
        images |= {"is_color": False} if shape[0] == 1 else {}
        data = {"name": "data", "type": "DenseImageData", "top": ["data", "label"], "include": {"phase": phase}}
        net.layers.append({**data, **({"transform_param": transform} if transform else {}), "dense_image_data_param": images})
    return "data"


def pixel_loss(net: Net, scores: str, ignored: int | None = None, **loss: Any) -> None:
    """The end of a net to train: accuracy and loss of the pixels with another label than `ignored`."""
    if net.deploy:
        return
    skipped: Fields = {} if ignored is None else {"ignore_label": ignored}
    accuracy = {"accuracy_param": skipped} if skipped else {}
    net.layer("Accuracy", "accuracy", [scores, "label"], include={"phase": "TEST"}, **accuracy)
    net.layer("SoftmaxWithLoss", "loss", [scores, "label"], **({"loss_param": skipped | loss} if skipped or loss else {}))


FUSED = [(4, 0.01, 5, "upscore_pool4", 2), (3, 0.0001, 9, "upscore8", 8)]  # pooling, factor of its values, offset of the crop, next upsampling, its factor


def fcn8s(net: Net) -> None:
    """FCN-8s, trained at once. The first padding is so large that images of any size have scores; Crop removes what it added."""
    def fixed(**more: Any) -> Fields:
        return {} if net.deploy else {"param": [{"lr_mult": 0}], **more}

    def score(name: str, x: str) -> str:
        return net.conv(name, x, VOC_CLASSES, kernel_size=1, weight=gaussian(0.01), bias=0)

    def upsampled(name: str, x: str, factor: int) -> str:
        """Bilinear interpolation, each class for itself."""
        shape = {"num_output": VOC_CLASSES, "bias_term": False, "kernel_size": 2 * factor, "stride": factor, "group": VOC_CLASSES}
        filler = {} if net.deploy else {"weight_filler": {"type": "bilinear"}}
        return net.layer("Deconvolution", name, x, **fixed(), convolution_param={**shape, **filler})

    def cropped(name: str, x: str, like: str, offset: int) -> str:
        return net.layer("Crop", name, [x, like], crop_param={"axis": 2, "offset": offset})

    x = pairs(net, (3, 500, 500), VOC, batch=1, transform={"mean_value": list(VOC_MEAN)})
    for stage, (channels, depth) in enumerate(VGG16, 1):
        for i in range(1, depth + 1):
            pad = 100 if stage == i == 1 else 1
            x = net.relu(f"relu{stage}_{i}", net.conv(f"conv{stage}_{i}", x, channels, pad=pad, kernel_size=3, bias=0))
        x = net.pool(f"pool{stage}", x, "MAX", kernel_size=2, stride=2)
    for i, side in ((6, 7), (7, 1)):
        x = net.dropout(f"drop{i}", net.relu(f"relu{i}", net.conv(f"fc{i}", x, 4096, kernel_size=side, bias=0)), 0.5)
    x = upsampled("upscore2", score("score_fr", x), 2)
    for stage, scale, offset, name, factor in FUSED:
        pool = f"pool{stage}"
        scaled = net.layer("Scale", f"scale_{pool}", pool, **fixed(scale_param={"filler": {"type": "constant", "value": scale}}))
        x = net.layer("Eltwise", f"fuse_{pool}", [x, cropped(f"score_{pool}c", score(f"score_{pool}", scaled), x, offset)])
        x = upsampled(name, x, factor)
    # unnormalized: the published rate belongs to the sum over all pixels
    pixel_loss(net, cropped("score", x, "data", 31), VOC_BORDER, normalize=False)


def normalized(net: Net, name: str, x: str, channels: int, **shape: Any) -> str:
    """A convolution of SegNet and its BN."""
    x = net.conv(name, x, channels, bias=0, **shape)
    fillers = {} if net.deploy else {"scale_filler": {"type": "constant", "value": 1}, "shift_filler": {"type": "constant", "value": 0.001}}
    return net.layer("BN", f"{name}_bn", x, x, bn_param={"bn_mode": "LEARN", **fillers})


def pooled(net: Net, i: int, x: str) -> str:
    """Pooling with a second top, the places of the maxima."""
    pooling = {"pool": "MAX", "kernel_size": 2, "stride": 2}
    net.layers.append({"name": f"pool{i}", "type": "Pooling", "bottom": x, "top": [f"pool{i}", f"pool{i}_mask"], "pooling_param": pooling})
    return f"pool{i}"


def unpooled(net: Net, i: int, x: str, top: str = "", odd: bool = False) -> str:
    """Put values at the places where pooling i found its maxima. `odd`: its input has an odd number of rows."""
    return net.layer("Upsample", f"upsample{i}", [x, f"pool{i}_mask"], top, upsample_param={"scale": 2, **({"pad_out_h": True} if odd else {})})


def camvid_loss(net: Net, scores: str) -> None:
    # the mean over the pixels is the default of SegNet's fork (its caffe.proto), and the published rate belongs to it
    pixel_loss(net, scores, CAMVID_VOID, normalize=True, weight_by_label_freqs=True, class_weighting=CAMVID_WEIGHTS)
    if net.deploy:
        net.layer("Softmax", "prob", scores)


def segnet_basic(net: Net) -> None:
    """SegNet-Basic. A decoder puts the values where the encoder's pooling found its maxima."""
    x = net.lrn("norm", pairs(net, (3, 360, 480), CAMVID, batch=4))
    for i in (1, 2, 3, 4):
        x = pooled(net, i, net.relu(f"relu{i}", normalized(net, f"conv{i}", x, 64, pad=3, kernel_size=7)))
    for i in (4, 3, 2, 1):
        x = normalized(net, f"conv_decode{i}", unpooled(net, i, x, odd=i == 4), 64, pad=3, kernel_size=7)  # the third pooling has 45 rows
    camvid_loss(net, net.conv("conv_classifier", x, CAMVID_CLASSES, kernel_size=1, bias=0))


def segnet(net: Net) -> None:
    """SegNet. The encoder is the convolutions of VGG-16. The decoder has the same ones in reverse order, and the last one computes the scores."""
    def unit(name: str, x: str, channels: int) -> str:
        return net.relu(name.replace("conv", "relu"), normalized(net, name, x, channels, pad=1, kernel_size=3))

    x = pairs(net, (3, 360, 480), CAMVID, batch=4)
    for stage, (channels, depth) in enumerate(VGG16, 1):
        for i in range(1, depth + 1):
            x = unit(f"conv{stage}_{i}", x, channels)
        x = pooled(net, stage, x)
    for stage, (channels, depth) in reversed([*enumerate(VGG16, 1)]):
        x = unpooled(net, stage, x, f"pool{stage}_D", odd=stage >= 4)  # these poolings have 45 and 23 rows
        for i in range(depth, 1, -1):
            x = unit(f"conv{stage}_{i}_D", x, channels)
        if stage > 1:
            x = unit(f"conv{stage}_1_D", x, VGG16[stage - 2][0])
    camvid_loss(net, net.conv("conv1_1_D", x, CAMVID_CLASSES, pad=1, kernel_size=3, bias=0))


UNET = (64, 128, 256, 512, 1024)  # channels, from the full size of the image down to a sixteenth


def unet(net: Net) -> None:
    """U-Net. Letters are successive maps of a level, down (d) and up (u). The 3 x 3 convolutions are padded, so that scores have the size of the image."""
    def two(level: str, steps: tuple[str, str], x: str, channels: int) -> str:
        for step in steps:
            x = net.relu(f"relu_{level}{step[-1]}", net.conv(f"conv_{level}{step}", x, channels, pad=1, kernel_size=3, bias=0))
        return x

    x = pairs(net, (1, 512, 512), EM, batch=1, transform={"mean_value": 128, "scale": 0.0078125})
    levels: list[str] = []
    for level, channels in enumerate(UNET):
        if levels:
            x = net.pool(f"pool_d{level - 1}c-{level}a", x, "MAX", kernel_size=2, stride=2)
        x = two(f"d{level}", ("a-b", "b-c"), x, channels)
        if level >= 3:
            x = net.dropout(f"dropout_d{level}c", x, 0.5)
        levels.append(x)
    below = "d4c"
    for level in (3, 2, 1, 0):
        grown = net.weighted("Deconvolution", "convolution_param", f"upconv_{below}_u{level}a", x, num_output=UNET[level], kernel_size=2, stride=2, bias=0)
        x = two(f"u{level}", ("b-c", "c-d"), net.layer("Concat", f"concat_d{level}c_u{level}a-b", [grown, levels[level]]), UNET[level])
        below = f"u{level}d"
    x = net.conv("conv_u0d-score", x, 2, kernel_size=1, weight=MSRA, bias=0)
    pixel_loss(net, x)
    if net.deploy:
        net.layer("Softmax", "prob", x)
