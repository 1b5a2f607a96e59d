"""Layer types of forks that ocaffe does not have. The error for an unknown type names the forks."""
from __future__ import annotations

FOREIGN = {
    "Accum": "FlowNet",
    "AdaptiveBiasChannel": "DeepLab and PSPNet",
    "Affinity": "the OpenCL branch",
    "Augmentation": "FlowNet",
    "BatchReduction": "yjxiong/caffe (temporal-segment-networks)",
    "BiasChannel": "DeepLab and PSPNet",
    "BlackAugmentation": "FlowNet 2",
    "BoxData": "intel/caffe (YOLOv2)",
    "ConnectedComponent": "the OpenCL branch",
    "CropCenter2": "waifu2x",
    "CuDNNBatchNorm": "NVIDIA/caffe 0.15",
    "CustomData": "FlowNet",
    "DataAugmentation": "FlowNet",
    "DenseCRF": "DeepLab and PSPNet",
    "DetectionAccuracy": "MS-CNN",
    "DetectNetTransformation": "NVIDIA/caffe (DIGITS)",
    "DisparityData": "FlowNet 2",
    "DomainTransform": "DeepLab and PSPNet",
    "FloatReader": "FlowNet 2",
    "FloatWriter": "FlowNet 2",
    "FlowAugmentation": "FlowNet",
    "FLOWriter": "FlowNet 2",
    "FrcnnRoiData": "makefile/frcnn",
    "GeneralTriplet": "happynear/caffe-windows",
    "GenerateAugmentationParameters": "FlowNet",
    "Grouping": "ParseNet",
    "ImageGtData": "MS-CNN",
    "ImgReader": "FlowNet 2",
    "ImgWriter": "FlowNet 2",
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
    "PFMWriter": "FlowNet 2",
    "Quantizer": "the OpenCL branch",
    "Reorganize": "winggan/caffe",
    "Scatter": "yjxiong/caffe (temporal-segment-networks)",
    "SegData": "yjxiong/caffe (temporal-segment-networks)",
    "SegmentConsensus": "yjxiong/caffe (temporal-segment-networks)",
    "SpatialProduct": "DeepLab and PSPNet",
    "STLoss": "SpatialTransformerLayer",
    "SyncBN": "yjxiong/caffe (temporal-segment-networks)",
    "TRT": "NVIDIA/caffe",
    "UniqueLabel": "DeepLab and PSPNet",
    "VolumeData": "C3D",
}

NO_FLOW_DATA = "it reads or changes pairs of images and flow; give the net Input layers, or a Python layer, and the rest of it runs"
USE = {  # what a type does, and its replacement
    "Accum": "it resizes images to one size, with aligned corners, and joins them; Interp with height and width and Concat do so",
    "BlackAugmentation": NO_FLOW_DATA,
    "CropCenter2": "no code of it is public; if it cuts the middle out, CropCenter with crop_size does so",
    "CustomData": NO_FLOW_DATA,
    "DataAugmentation": NO_FLOW_DATA,
    "DetectionAccuracy": "it has the accuracy of a branch and the overlap of its boxes; remove it, and the training does not change",
    "DisparityData": NO_FLOW_DATA,
    "FLOWriter": "it writes a file; read the blob by Python, or use HDF5Output",
    "FloatReader": NO_FLOW_DATA,
    "FloatWriter": "it writes a file; read the blob by Python, or use HDF5Output",
    "FlowAugmentation": NO_FLOW_DATA,
    "FrcnnRoiData": "it reads images and boxes from a list, with settings in a JSON file; RoIData gives the same tops from a database that "
    "`ocaffe dataset` makes",
    "GeneralTriplet": "it is a loss on the distances of samples from classes; TripletLoss takes anchors, positive and negative samples",
    "GenerateAugmentationParameters": NO_FLOW_DATA,
    "ImageGtData": "it reads images and makes DetectionLoss's labels from MS-CNN's lists of boxes; give the net Input layers, or a Python layer",
    "ImgReader": NO_FLOW_DATA,
    "ImgWriter": "it writes a file; read the blob by Python, or use HDF5Output",
    "LocLoss": "it is a loss on the numbers of SpatialTransformer; remove it, and the rest of the net trains",
    "PFMWriter": "it writes a file; read the blob by Python, or use HDF5Output",
    "STLoss": "it is a loss on the numbers of SpatialTransformer; remove it, and the rest of the net trains",
    "SegData": "it reads an image and its label image from a list, scales them by scale_ratios and cuts them to a multiple of stride; DenseImageData "
    "with batch_size: 1 reads the same list, without both",
}


def forks_of(layer_type: str) -> str:
    """Return the forks that define a type, or an empty string. Case is ignored."""
    return next((forks for name, forks in FOREIGN.items() if name.lower() == layer_type.lower()), "")


def use_instead(layer_type: str) -> str:
    """Return what a type of FOREIGN does and its replacement, or an empty string. Case is ignored."""
    return next((text for name, text in USE.items() if name.lower() == layer_type.lower()), "")
