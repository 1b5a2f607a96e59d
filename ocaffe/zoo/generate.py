"""Write train_val.prototxt and deploy.prototxt of the larger nets: python -m ocaffe.zoo.generate [net ...] (none named: all)."""
from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial

from ocaffe.zoo import FOLDER, classifiers, detectors, faces, points, region_detectors, segmenters, text_readers, transformers, yolos
from ocaffe.zoo.net import Net, lines

NETS: dict[str, tuple[str, Callable[[Net], None]]] = {
    "alexnet": ("AlexNet", classifiers.alexnet),
    "caffenet": ("CaffeNet", partial(classifiers.alexnet, pool_first=True)),
    "googlenet": ("GoogLeNet", classifiers.googlenet),
    "vgg16": ("VGG-16", partial(classifiers.vgg, stages=classifiers.VGG16)),
    "vgg19": ("VGG-19", partial(classifiers.vgg, stages=classifiers.VGG19)),
    "squeezenet": ("SqueezeNet-1.1", classifiers.squeezenet),
    "resnet20": ("ResNet-20", partial(classifiers.resnet_cifar, depth=3)),
    "resnet18": ("ResNet-18", partial(classifiers.resnet, depths=(2, 2, 2, 2), bottleneck=False)),
    "resnet50": ("ResNet-50", partial(classifiers.resnet, depths=(3, 4, 6, 3), bottleneck=True)),
    "resnet101": ("ResNet-101", partial(classifiers.resnet, depths=(3, 4, 23, 3), bottleneck=True)),
    "resnet152": ("ResNet-152", partial(classifiers.resnet, depths=(3, 8, 36, 3), bottleneck=True)),
    "densenet121": ("DenseNet-121", partial(classifiers.densenet, depths=(6, 12, 24, 16))),
    "inception_v3": ("Inception-v3", classifiers.inception_v3),
    "mobilenet_v1": ("MobileNet-v1", classifiers.mobilenet_v1),
    "mobilenet_v2": ("MobileNet-v2", classifiers.mobilenet_v2),
    "efficientnet_lite0": ("EfficientNet-Lite0", partial(classifiers.efficientnet_lite, sizes=classifiers.Scaled(224, 1, 1, 0.2))),
    "efficientnet_lite1": ("EfficientNet-Lite1", partial(classifiers.efficientnet_lite, sizes=classifiers.Scaled(240, 1, 1.1, 0.2))),
    "efficientnet_lite2": ("EfficientNet-Lite2", partial(classifiers.efficientnet_lite, sizes=classifiers.Scaled(260, 1.1, 1.2, 0.3))),
    "shufflenet_v2": ("ShuffleNet-v2", classifiers.shufflenet_v2),
    "vit_tiny": ("ViT-Tiny/16", partial(transformers.vit, sizes=transformers.Vit(224, 16, 192, 12, 3))),
    "vit_digits": ("ViT-digits", partial(transformers.vit, sizes=transformers.Vit(28, 4, 64, 4, 4), digits=True)),
    "fcn8s": ("FCN-8s", segmenters.fcn8s),
    "segnet": ("SegNet", segmenters.segnet),
    "segnet_basic": ("SegNet-Basic", segmenters.segnet_basic),
    "unet": ("U-Net", segmenters.unet),
    "mtcnn_pnet": ("PNet", faces.pnet),
    "mtcnn_rnet": ("RNet", faces.rnet),
    "mtcnn_onet": ("ONet", faces.onet),
    "ssd300_vgg16": ("VGG_VOC0712_SSD_300x300", detectors.ssd300_vgg16),
    "mobilenet_ssd": ("MobileNet-SSD", detectors.mobilenet_ssd),
    "ssd_shapes": ("SSD-shapes", detectors.ssd_shapes),
    "crnn": ("CRNN", text_readers.crnn),
    "faster_rcnn_zf": ("ZF", region_detectors.faster_rcnn_zf),
    "mobilenet_yolov3_lite": ("MobileNet-YOLO", yolos.mobilenet_yolov3_lite),
    "point_shapes": ("Point-shapes", points.point_shapes),
    "yolo_shapes": ("YOLO-shapes", yolos.yolo_shapes),
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
