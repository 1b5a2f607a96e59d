"""Layer types of forks that ocaffe does not have. The error for an unknown type names the forks."""
from __future__ import annotations

FOREIGN = {
    "AdaptiveBiasChannel": "DeepLab and PSPNet",
    "Affinity": "the OpenCL branch",
    "Augmentation": "FlowNet",
    "BatchReduction": "yjxiong/caffe (temporal-segment-networks)",
    "BiasChannel": "DeepLab and PSPNet",
    "BoxData": "intel/caffe (YOLOv2)",
    "ConnectedComponent": "the OpenCL branch",
    "CropCenter2": "waifu2x",
    "CuDNNBatchNorm": "NVIDIA/caffe 0.15",
    "DenseCRF": "DeepLab and PSPNet",
    "DetectionAccuracy": "MS-CNN",
    "DetectNetTransformation": "NVIDIA/caffe (DIGITS)",
    "DomainTransform": "DeepLab and PSPNet",
    "GeneralTriplet": "happynear/caffe-windows",
    "Grouping": "ParseNet",
    "ImageGtData": "MS-CNN",
    "LaneData": "MobileNet-YOLO",
    "LibDNNConvolution": "the OpenCL branch",
    "LibDNNPooling": "the OpenCL branch",
    "LocLoss": "SpatialTransformerLayer",
    "MalisLoss": "the OpenCL branch",
    "MatRead": "DeepLab and PSPNet",
    "MatWrite": "DeepLab and PSPNet",
    "MergeCrop": "the OpenCL branch",
    "MKLBatchNorm": "intel/caffe",
    "MnActivation": "intel/caffe",
    "MOE": "the OpenCL branch",
    "Noise": "the OpenCL branch",
    "NormL2": "arcface-caffe",
    "ParseEvaluate": "ParseNet",
    "ParseOutput": "ParseNet",
    "Quantizer": "the OpenCL branch",
    "Reorganize": "winggan/caffe",
    "Scatter": "yjxiong/caffe (temporal-segment-networks)",
    "SegmentConsensus": "yjxiong/caffe (temporal-segment-networks)",
    "SpatialProduct": "DeepLab and PSPNet",
    "STLoss": "SpatialTransformerLayer",
    "SyncBN": "yjxiong/caffe (temporal-segment-networks)",
    "TRT": "NVIDIA/caffe",
    "UniqueLabel": "DeepLab and PSPNet",
    "VolumeData": "C3D",
}

USE = {  # what a type does, and its replacement
    "CropCenter2": "no code of it is public; if it cuts the middle out, CropCenter with crop_size does so",
    "DetectionAccuracy": "it has the accuracy of a branch and the overlap of its boxes; remove it, and the training does not change",
    "GeneralTriplet": "it is a loss on the distances of samples from classes; TripletLoss takes anchors, positive and negative samples",
    "ImageGtData": "it reads images and makes DetectionLoss's labels from MS-CNN's lists of boxes; give the net Input layers, or a Python layer",
    "LocLoss": "it is a loss on the numbers of SpatialTransformer; remove it, and the rest of the net trains",
    "STLoss": "it is a loss on the numbers of SpatialTransformer; remove it, and the rest of the net trains",
}


def forks_of(layer_type: str) -> str:
    """Return the forks that define a type, or an empty string. Case is ignored."""
    return next((forks for name, forks in FOREIGN.items() if name.lower() == layer_type.lower()), "")


def use_instead(layer_type: str) -> str:
    """Return what a type of FOREIGN does and its replacement, or an empty string. Case is ignored."""
    return next((text for name, text in USE.items() if name.lower() == layer_type.lower()), "")
