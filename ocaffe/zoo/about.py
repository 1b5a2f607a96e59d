"""The sentences of each net's README.md. docs/make_zoo.py adds the figures and the commands."""
from __future__ import annotations

from typing import NamedTuple


class About(NamedTuple):
    """A net for people, in Markdown. `paper`: its source. `net`: in which layers and settings it follows or leaves this source.

    `output`: the classes, and the boxes of a detector. `data`: the data of the published training. `sizes`: other sizes of images that it takes.
    `start`: before the training. `result`: of the training.
    """

    title: str
    paper: str
    net: str
    output: str
    data: str
    sizes: str = ""
    start: str = ""
    result: str = "not trained here"


def _imagenet(side: int = 256) -> str:
    convert = f"convert_imageset --resize_height={side} --resize_width={side} --shuffle train/ train.txt examples/imagenet/ilsvrc12_train_lmdb"
    return f"Caffe's `{convert}`, likewise `ilsvrc12_val_lmdb`"


def _faces(side: int, sample: str, more: str = "") -> str:
    return (
        f"databases `examples/mtcnn/mtcnn{side}_train_lmdb` and `mtcnn{side}_val_lmdb` of MTCNNDatum messages (proto/caffe.proto), as the tools of the MTCNN "
        f"forks write them: a sample with {sample}. Labels are 1 (face), 0 (none) and -1 (part of a face: only its box is learned){more}"
    )


def _lite(number: int, scale: str, side: int = 256) -> About:
    return About(
        f"EfficientNet-Lite{number}", 'Tan, Le, "EfficientNet: rethinking model scaling for convolutional neural networks", 2019',
        f"{scale}; as Google published the Lite nets: ReLU6, no squeeze and excitation. TensorFlow's padding is a window with a row and a column more, of "
        "zeros in the published weights; SGD with the paper's schedule, where the paper used RMSProp, and no stochastic depth",
        THOUSAND, _imagenet(side), start=f"`ocaffe zoo get efficientnet_lite{number}` makes a caffemodel of public weights",
    )  # fmt: skip


THOUSAND, TEN, VOC_CLASSES = "1,000 classes", "10 classes", "20 classes and the background"
ALEXNET = 'Krizhevsky, Sutskever, Hinton, "ImageNet classification with deep convolutional neural networks", 2012'
LENET = 'LeCun, Bottou, Bengio, Haffner, "Gradient-based learning applied to document recognition", 1998'
MTCNN = 'Zhang, Zhang, Li, Qiao, "Joint face detection and alignment using multi-task cascaded convolutional networks", 2016'
RESNET = 'He, Zhang, Ren, Sun, "Deep residual learning for image recognition", 2015'
SEGNET = 'Badrinarayanan, Kendall, Cipolla, "SegNet: a deep convolutional encoder-decoder architecture for image segmentation", 2015'
SEGNET_BN = "Its BN has the statistics of the batch, also in deployment. For weights with the statistics of all images set `bn_mode: INFERENCE`"
SSD = 'Liu, Anguelov, Erhan, and others, "SSD: single shot multibox detector", 2016'
VGG = 'Simonyan, Zisserman, "Very deep convolutional networks for large-scale image recognition", 2014'
VIT = 'Dosovitskiy and others, "An image is worth 16x16 words: transformers for image recognition at scale", 2021'
MTCNN_LOSSES = "losses with the weights of the paper, without its selection of hard samples"
FIXED_RATES = "the paper's solver, but rates that fall at fixed iterations"
CAMVID = (
    "CamVid, 367 and 101 images. Each line of `examples/camvid/train.txt` and `val.txt` names an image and a label image, relative to `examples/camvid`: gray "
    "levels 0 to 10, and 11 for other pixels, which are ignored. The loss has weights for these classes"
)
VOC = ("PASCAL VOC 2007 and 2012 as databases `examples/VOC0712/VOC0712_trainval_lmdb` and `VOC0712_test_lmdb`, which SSD's "
       "`data/VOC0712/create_data.sh` makes by `convert_annoset`")  # fmt: skip

ABOUT = {
    "alexnet": About(
        "AlexNet", ALEXNET, "as in Caffe's bvlc_alexnet: grouped convolutions, normalization before pooling, dropout", THOUSAND, _imagenet(),
    ),
    "caffenet": About("CaffeNet", ALEXNET, "as Caffe's bvlc_reference_caffenet: AlexNet with pooling before normalization", THOUSAND, _imagenet()),
    "cifar10_quick": About(
        "CIFAR-10 quick", 'Krizhevsky, "Learning multiple layers of features from tiny images", 2009 (the data)',
        "three 5 x 5 convolutions with pooling, two fully connected layers; Caffe's quick example, its two solvers joined by multistep", TEN,
        "`ocaffe dataset cifar10 examples/cifar10` (makes the mean image as well)",
    ),
    "crnn": About(
        "CRNN", 'Shi, Bai, Yao, "An end-to-end trainable neural network for image-based sequence recognition", 2015; here with fewer channels',
        "six convolutions with batch normalization, 32 columns as time steps, an LSTM in each direction, CTC loss; Adam", "ten digits and the blank",
        "lines of digits: `ocaffe dataset text examples/text`", result="docs/ocr.md has the share of whole texts",
    ),
    "densenet121": About(
        "DenseNet-121", 'Huang, Liu, van der Maaten, Weinberger, "Densely connected convolutional networks", 2016',
        "growth 32; names as in shicai's DenseNet-Caffe, with its mean and scale; the paper's solver", THOUSAND, _imagenet(),
    ),
    "efficientnet_lite0": _lite(0, "width and depth 1.0"),
    "efficientnet_lite1": _lite(1, "width 1.0, depth 1.1"),
    "efficientnet_lite2": _lite(2, "width 1.1, depth 1.2", 300),
    "faster_rcnn_zf": About(
        "Faster R-CNN with ZF",
        'Ren, He, Girshick, Sun, "Faster R-CNN: towards real-time object detection with region proposal networks", 2015, and Zeiler, Fergus, "Visualizing and '
        'understanding convolutional networks", 2013',
        "layers and solver as in py-faster-rcnn's models/pascal_voc/ZF/faster_rcnn_end2end, whose weights load by name; its test net ends with the detections",
        f"9 anchors for each cell, 300 regions; {VOC_CLASSES}", VOC, sizes="the largest one",
        start="the published training begins from weights of a classifier with these layers",
    ),
    "fcn8s": About(
        "FCN-8s", 'Long, Shelhamer, Darrell, "Fully convolutional networks for semantic segmentation", 2015',
        "VGG-16 with three scores, trained at once: layers as in the authors' voc-fcn8s-atonce. 6,816 parameters are fixed: the upsampling and the two "
        "scales. Deconvolution has a group for each class, so that the filler `bilinear` is right. For the authors' weights remove `group: 21`",
        "21 classes",
        "`ocaffe dataset masks VOC2012/JPEGImages VOC2012/SegmentationClass examples/voc --lists VOC2012/ImageSets/Segmentation`: classes 0 to 20, and 255 "
        "for borders, which are ignored. The authors trained on 8,498 images of SBD",
        sizes="or any other size", start="begin from VGG-16, as docs/segmentation.md describes",
    ),
    "googlenet": About(
        "GoogLeNet", 'Szegedy, Liu, Jia, and others, "Going deeper with convolutions", 2015',
        "as in Caffe's bvlc_googlenet: nine inception modules, three losses (weights 0.3, 0.3, 1), the quick solver. Deployment needs no auxiliary classifiers",
        THOUSAND, _imagenet(),
    ),
    "inception_v3": About(
        "Inception v3", 'Szegedy, Vanhoucke, Ioffe, Shlens, Wojna, "Rethinking the Inception architecture for computer vision", 2015',
        "names and layout of soeaver's caffe-model, which follow the authors' net: MAX pooling in its last Inception block, where torchvision has AVE; no "
        "auxiliary classifier; SGD with the paper's rates, where the paper used RMSProp",
        THOUSAND, _imagenet(320),
    ),
    "lenet": About(
        "LeNet", LENET, "two 5 x 5 convolutions with max pooling, two fully connected layers; the variant of Caffe's MNIST example, with one ReLU", TEN,
        "`ocaffe dataset mnist examples/mnist`", result="99.09 % of the 10,000 test images after 10,000 iterations (Intel's CPU runtime)",
    ),
    "lenet_digits": About(
        "LeNet on digits", LENET, "the net of lenet on a set small enough to train in seconds: 1,437 handwritten digits, 360 more to test", TEN,
        "`ocaffe dataset digits examples/digits`", result="the share of the 360 test images that are right is logged every 250 iterations",
    ),
    "mobilenet_ssd": About(
        "MobileNet-SSD", 'Howard and others, "MobileNets", 2017, and Liu and others, "SSD: single shot multibox detector", 2016',
        "layers and boxes as in chuanqi305's MobileNet-SSD, whose weights load by name", f"1,917 boxes; {VOC_CLASSES}", VOC,
    ),
    "mobilenet_v1": About(
        "MobileNet v1", 'Howard, Zhu, Chen, and others, "MobileNets: efficient convolutional neural networks for mobile vision applications", 2017',
        "width 1.0; depthwise layers are Convolutions with `group` = channels; SGD with Inception v3's schedule, where the paper used RMSProp",
        THOUSAND, _imagenet(),
    ),
    "mobilenet_v2": About(
        "MobileNet v2", 'Sandler, Howard, Zhu, Zhmoginov, Chen, "MobileNetV2: inverted residuals and linear bottlenecks", 2018',
        "width 1.0; ReLU6 is a Clip, so that BVLC Caffe reads it too; SGD with the paper's schedule, where the paper used RMSProp with momentum",
        THOUSAND, _imagenet(),
    ),
    "mobilenet_yolov3_lite": About(
        "MobileNet-YOLOv3-Lite", 'Howard and others, "MobileNets", 2017, and Redmon and Farhadi, "YOLOv3: an incremental improvement", 2018',
        "layers, anchors and solver as in eric612's MobileNet-YOLO (models/yolov3 at 90c78bb), whose weights with BatchNorm load by name. The published "
        "training takes images of 320 to 608 pixels in turn", "2,535 boxes; 20 classes", VOC, sizes="or other multiples of 32",
        start="the published training begins from weights, with a tenth of the rate for MobileNet's layers",
    ),
    "mtcnn_onet": About(
        "MTCNN: O-Net", MTCNN, f"refines the boxes of R-Net and finds five points; layers as in the authors' det3; {MTCNN_LOSSES}", "2 classes",
        _faces(48, "label, box and points", ". Samples with a box have five points too, so choose faces with known points, such as those of CelebA"),
    ),
    "mtcnn_pnet": About(
        "MTCNN: P-Net", MTCNN,
        f"proposes boxes; layers as in the authors' det1. It is convolutional, so that images have any size in deployment; {MTCNN_LOSSES}", "2 classes",
        _faces(12, "label and box"),
    ),
    "mtcnn_rnet": About(
        "MTCNN: R-Net", MTCNN, f"refines the boxes of P-Net; layers as in the authors' det2; {MTCNN_LOSSES}", "2 classes", _faces(24, "label and box"),
    ),
    "point_shapes": About(
        "Point-shapes",
        "none; a detector without anchors that is small enough to train on a CPU. It is assigned as TOOD is (Feng, Zhong, Gao, Scott, Huang, 2021)",
        "the backbone of ssd_shapes, a pyramid of four maps (Lin and others, 2017), and two convolutions on each, for boxes and for scores; Adam",
        "1,360 boxes; 10 classes and the background",
        "scenes of digits: `ocaffe dataset shapes scenes --images 5000 --size 128x128`, then `ocaffe dataset voc scenes examples/shapes`",
        sizes="or other multiples of 32",
    ),
    "resnet101": About(
        "ResNet-101", RESNET,
        f"3 + 4 + 23 + 3 bottleneck blocks, stride in their first 1 x 1 convolution; layers as in the authors' Caffe net; {FIXED_RATES}", THOUSAND, _imagenet(),
    ),
    "resnet152": About(
        "ResNet-152", RESNET,
        f"3 + 8 + 36 + 3 bottleneck blocks, stride in their first 1 x 1 convolution; layers as in the authors' Caffe net; {FIXED_RATES}", THOUSAND, _imagenet(),
    ),
    "resnet18": About("ResNet-18", RESNET, f"residual blocks of two 3 x 3 convolutions; no biases in convolutions; {FIXED_RATES}", THOUSAND, _imagenet()),
    "resnet20": About(
        "ResNet-20", f"{RESNET}, section 4.2",
        "for small images: three stages of three residual blocks; shortcuts are 1 x 1 convolutions where the shape changes", TEN,
        "`ocaffe dataset cifar10 examples/cifar10`",
    ),
    "resnet50": About(
        "ResNet-50", RESNET,
        "bottleneck blocks, stride in their first 1 x 1 convolution; no biases in convolutions (the authors' Caffe weights have one in conv1); "
        f"{FIXED_RATES}", THOUSAND, _imagenet(),
    ),
    "segnet": About(
        "SegNet", SEGNET,
        "layers as in the authors' segnet_train, of their fork of Caffe: the 13 convolutions of VGG-16, and the same ones in reverse order. "
        f"{SEGNET_BN}", "11 classes", CAMVID,
        start="the published training begins from VGG-16: `ocaffe zoo get vgg16` has the weights of its convolutions",
    ),
    "segnet_basic": About(
        "SegNet-Basic", SEGNET, f"layers as in the authors' segnet_basic, of their fork of Caffe. {SEGNET_BN}", "11 classes", CAMVID,
    ),
    "shufflenet_v2": About(
        "ShuffleNet v2", 'Ma, Zhang, Zheng, Sun, "ShuffleNet V2: practical guidelines for efficient CNN architecture design", 2018',
        "width 1.0; names as in farmingyard's ShuffleNet, with groups instead of its type ConvolutionDepthwise; the solver of the paper", THOUSAND, _imagenet(),
    ),
    "squeezenet": About(
        "SqueezeNet 1.1",
        'Iandola, Han, Moskewicz, Ashraf, Dally, Keutzer, "SqueezeNet: AlexNet-level accuracy with 50x fewer parameters and <0.5MB model size", 2016',
        "version 1.1 of its authors: fire modules of 1 x 1 and 3 x 3 convolutions, no fully connected layer", THOUSAND, _imagenet(),
    ),
    "ssd300_vgg16": About(
        "SSD300 with VGG-16", SSD, "layers, boxes and solver as in the authors' models/VGGNet/VOC0712/SSD_300x300", f"8,732 boxes; {VOC_CLASSES}", VOC,
        start="the published training begins from VGG-16: `ocaffe zoo get vgg16` has the weights of its convolutions up to conv5_3",
    ),
    "ssd_shapes": About(
        "SSD-shapes", "none; an SSD (Liu and others, 2016) that is small enough to train on a CPU",
        "ten convolutions with batch normalization, and predictions on maps of 32 x 32 to 4 x 4; Adam", "6,112 boxes; 10 classes and the background",
        "scenes of digits: `ocaffe dataset shapes scenes --images 5000 --size 128x128`, then `ocaffe dataset voc scenes examples/shapes`",
    ),
    "unet": About(
        "U-Net", 'Ronneberger, Fischer, Brox, "U-Net: convolutional networks for biomedical image segmentation", 2015',
        "figure 1 of the paper with the authors' layer names. The 3 x 3 convolutions are padded, so that the scores have the size of the image. The paper's "
        "have no padding, and their scores are smaller: 388 for 572 pixels",
        "2 classes",
        "the 30 training images of the ISBI challenge of 2012, 24 to train and 6 to test. Each line of `examples/em/train.txt` and `val.txt` names an image "
        "and a label image with gray levels 0 and 1, relative to `examples/em`",
        sizes="or other multiples of 16",
    ),
    "vgg16": About("VGG-16", VGG, f"configuration D with {FIXED_RATES}, and He's initial weights (`msra`)", THOUSAND, _imagenet()),
    "vgg19": About("VGG-19", VGG, f"configuration E with {FIXED_RATES}, and He's initial weights (`msra`)", THOUSAND, _imagenet()),
    "vit_digits": About(
        "ViT on digits", VIT, "vit_tiny for small images: patches of 4 x 4, 4 transformer blocks, 4 heads, 64 values per token", TEN,
        "`ocaffe dataset digits examples/digits`",
        result="96.7 % of the 360 test images; LeNet, which knows that neighbors belong together, gets more from so few images",
    ),
    "yolo_shapes": About(
        "YOLO-shapes", "none; a YOLOv3 (Redmon and Farhadi, 2018) that is small enough to train on a CPU",
        "eleven convolutions with batch normalization, and predictions on maps of 8 x 8 and 16 x 16; Adam", "960 boxes; 10 classes",
        "scenes of digits: `ocaffe dataset shapes scenes --images 5000 --size 128x128`, then `ocaffe dataset voc scenes examples/shapes`",
        sizes="or other multiples of 16",
    ),
    "vit_tiny": About(
        "ViT-Tiny/16", f"{VIT}; the size is DeiT-Tiny's (Touvron and others, 2021)",
        "12 transformer blocks, 3 heads, 192 values per token; the class token is row 0 of the table of positions; no dropout. LayerNorm, Gelu and Pad are "
        "layers of ocaffe, MatMul is synopsys-caffe's",
        THOUSAND, _imagenet(),
    ),
}  # fmt: skip
