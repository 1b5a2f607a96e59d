"""Layer types of forks that ocaffe does not have. The error for an unknown type names the forks."""
from __future__ import annotations

FOREIGN = {
    "Accum": "FlowNet",
    "AdaptiveBiasChannel": "DeepLab and PSPNet",
    "Affinity": "the OpenCL branch",
    "Augmentation": "FlowNet",
    "BatchReduction": "yjxiong/caffe (temporal-segment-networks)",
    "BiasChannel": "DeepLab and PSPNet",
    "BoxData": "intel/caffe (YOLOv2)",
    "ConnectedComponent": "the OpenCL branch",
    "CropCenter2": "waifu2x",
    "CuDNNBatchNorm": "NVIDIA/caffe 0.15",
    "CustomData": "FlowNet",
    "DataAugmentation": "FlowNet",
    "DenseCRF": "DeepLab and PSPNet",
    "DetectNetTransformation": "NVIDIA/caffe (DIGITS)",
    "DomainTransform": "DeepLab and PSPNet",
    "FlowAugmentation": "FlowNet",
    "GenerateAugmentationParameters": "FlowNet",
    "Grouping": "ParseNet",
    "ImageSegData": "DeepLab and PSPNet",
    "LaneData": "MobileNet-YOLO",
    "LibDNNConvolution": "the OpenCL branch",
    "LibDNNPooling": "the OpenCL branch",
    "MOE": "the OpenCL branch",
    "MKLBatchNorm": "intel/caffe",
    "MalisLoss": "the OpenCL branch",
    "MatRead": "DeepLab and PSPNet",
    "MatWrite": "DeepLab and PSPNet",
    "MergeCrop": "the OpenCL branch",
    "MnActivation": "intel/caffe",
    "Noise": "the OpenCL branch",
    "NormL2": "arcface-caffe",
    "ParseEvaluate": "ParseNet",
    "ParseOutput": "ParseNet",
    "Quantizer": "the OpenCL branch",
    "Reorganize": "winggan/caffe",
    "Scatter": "yjxiong/caffe (temporal-segment-networks)",
    "SegData": "yjxiong/caffe (temporal-segment-networks)",
    "SegmentConsensus": "yjxiong/caffe (temporal-segment-networks)",
    "SpatialProduct": "DeepLab and PSPNet",
    "SyncBN": "yjxiong/caffe (temporal-segment-networks)",
    "TRT": "NVIDIA/caffe",
    "UniqueLabel": "DeepLab and PSPNet",
    "VolumeData": "C3D",
}


def forks_of(layer_type: str) -> str:
    """Return the forks that define a type, or an empty string. Case is ignored."""
    return next((forks for name, forks in FOREIGN.items() if name.lower() == layer_type.lower()), "")
