"""Layer types and fields of forks that ocaffe does not have. Errors for unknown names say the fork and the replacement."""
from __future__ import annotations

from typing import NamedTuple

FOREIGN = {
    "AdaptiveBiasChannel": "DeepLab and PSPNet",
    "Affinity": "the OpenCL branch",
    "AlignDataTransform": "JAA-Net",
    "Atlas": "Tengine_Atlas",
    "Augmentation": "FlowNet",
    "AUMaskBasedLand": "JAA-Net",
    "BatchReduction": "yjxiong/caffe (temporal-segment-networks)",
    "BBoxOutput": "caffe_3d_faster_rcnn",
    "BdctToSpatial": "caffe_deep_learning_for_steganalysis",
    "BiasChannel": "DeepLab and PSPNet",
    "BNConv": "caffe_deep_learning_for_steganalysis",
    "BNData": "Lyp100208/Caffe_action",
    "BoxData": "intel/caffe (YOLOv2)",
    "BoxFeatures": "caffe-tvg",
    "Combination": "JAA-Net",
    "CompactData": "bogger/caffe-multilabel",
    "ConnectedComponent": "the OpenCL branch",
    "ConvolutionData": "Lyp100208/Caffe_action",
    "ConvolutionSK": "early versions of the OpenCL branch",
    "COVARIANCE": "DeepLogCORAL",
    "CPFPConversion": "fpga_caffe",
    "CropCenter2": "waifu2x",
    "CuDNNBatchNorm": "NVIDIA/caffe 0.15",
    "DataHeatmap": "caffe-heatmap",
    "DecodeRois": "MaskYolo_Caffe",
    "DenseCRF": "DeepLab and PSPNet",
    "DetectionAccuracy": "MS-CNN",
    "DetectNetTransformation": "NVIDIA/caffe (DIGITS)",
    "Division": "JAA-Net",
    "DomainTransform": "DeepLab and PSPNet",
    "Duplicate": "LearnableDilationNetwork",
    "EuclideanLoss2": "JAA-Net",
    "EuclideanLossHeatmap": "caffe-heatmap",
    "FlowWarping": "caffe_video_segmentation",
    "GeneralTriplet": "happynear/caffe-windows",
    "GradientScaler": "ddtm/caffe",
    "Grouping": "ParseNet",
    "HalfConversion": "fpga_caffe",
    "HWCN": "fpga_caffe",
    "ImageDataSteganalysisJpegDct": "caffe_deep_learning_for_steganalysis",
    "ImageGtData": "MS-CNN",
    "ImageLabelDataClass": "caffe-tvg",
    "ImageLabelDataIndex": "caffe-tvg",
    "ImageLabelDataIndexDet": "caffe-tvg",
    "ImResize": "caffe_rtpose",
    "InnerProductAll": "Lyp100208/Caffe_action",
    "InterClass": "SphereFace+",
    "KLDivLoss": "an unpublished fork",
    "KpsBoxData": "MaskYolo_Caffe",
    "L2Loss": "bogger/caffe-multilabel",
    "LabelsequenceAccuracy": "caffe_ocr, crnn.caffe",
    "LaneData": "MobileNet-YOLO",
    "LibDNNConvolution": "the OpenCL branch",
    "LibDNNPooling": "the OpenCL branch",
    "LocLoss": "SpatialTransformerLayer",
    "MalisLoss": "the OpenCL branch",
    "MaskBoxData": "MaskYolo_Caffe",
    "MatRead": "DeepLab and PSPNet",
    "MatWrite": "DeepLab and PSPNet",
    "MHDRoiData": "caffe_3d_faster_rcnn",
    "MKLBatchNorm": "intel/caffe",
    "MnActivation": "intel/caffe",
    "MOE": "the OpenCL branch",
    "MOVINGAVERAGE": "DeepLogCORAL",
    "MultiBoxFocalLoss": "ssd-focal_loss_caffe",
    "MultiLabelImageData": "PG-CNN",
    "MultiROIPooling": "PG-CNN",
    "MultiSoftmax": "caffe-3dnormal",
    "MultiStageMeanfield": "CRF-RNN",
    "Nms": "caffe_rtpose",
    "Noise": "the OpenCL branch",
    "Norm": "caffe-3dnormal",
    "NormL2": "arcface-caffe",
    "NSSLoss": "an unpublished fork",
    "OCLCRHWCN": "fpga_caffe",
    "OCLHWCNInnerProduct": "fpga_caffe",
    "OCLPoolingHWCN": "fpga_caffe",
    "OPData": "OpenPose's training",
    "ParseEvaluate": "ParseNet",
    "ParseOutput": "ParseNet",
    "PerClassAccuracy": "HoldenCaulfieldRye/caffe",
    "PhotonMapping": "caffe_illu",
    "PoolingNum": "Lyp100208/Caffe_action",
    "PwAttend": "DRFN",
    "Quantize": "DeepSkeleton",
    "Quantizer": "the OpenCL branch",
    "QuantTruncAbs": "caffe_deep_learning_for_steganalysis",
    "ReLUPlus": "caffe_feedback",
    "ReLURecover": "caffe_deep_learning_for_steganalysis",
    "Reorganize": "winggan/caffe",
    "Rescale": "DeepSkeleton",
    "RoiGen": "MaskYolo_Caffe",
    "RPNOutput": "caffe_3d_faster_rcnn",
    "SampleTriplet": "yuqj1991/caffe_train",
    "Scatter": "yjxiong/caffe (temporal-segment-networks)",
    "SegmentConsensus": "yjxiong/caffe (temporal-segment-networks)",
    "SequenceAccuracy": "HDSR-with-RNN",
    "SetLoss2": "GGL",
    "SigmoidCrossEntropyLossWeighted": "luolongqiang/caffe",
    "SigmoidLoss": "caffe-3dnormal",
    "SimpleNormalize": "yuqj1991/caffe_train",
    "SLLSTM": "Lyp100208/Caffe_action",
    "SpatialProduct": "DeepLab and PSPNet",
    "SpatialWta": "caffe_convLSTM_WTA",
    "STLoss": "SpatialTransformerLayer",
    "Switch": "caffe_rtpose",
    "SyncBN": "yjxiong/caffe (temporal-segment-networks)",
    "TripletData": "caffe_video_face",
    "TRT": "NVIDIA/caffe",
    "Truncation": "LearnableDilationNetwork",
    "UniqueLabel": "DeepLab and PSPNet",
    "VarLoss": "GGL",
    "VideoDataRNN": "Lyp100208/Caffe_action",
    "VolumeData": "C3D",
    "WeightedSoftmaxWithLoss": "several forks",
    "WindowSegBinary": "DeconvNet",
    "WindowSegData": "DeconvNet",
    "XCLProgram": "fpga_caffe",
    "YoloLoss": "luolongqiang/caffe",
}

INPUTS = "give the net Input layers, or a Python layer"
USE = {  # what a type does, and its replacement
    "AlignDataTransform": f"JAA-Net's data layers move images and points of faces alike; {INPUTS}",
    "Atlas": "it runs an .om file on Huawei's chip, and its values are not in the net; give the net that the .om file was made of",
    "AUMaskBasedLand": "it draws a map around each point of a face; a Python layer can do so",
    "BBoxOutput": "it is the end of a detector in volumes; read its bottoms by Python",
    "BdctToSpatial": "it turns DCT coefficients of JPEG files into pixels; decode the files beforehand",
    "BNConv": "a Python layer can compute it",
    "BNData": "a Python layer can compute it",
    "BoxFeatures": "it makes features of detections for a CRF; a Python layer can do so",
    "Combination": "it joins the squares of Division to one image again; Slice and Concat layers over the axes 2 and 3 do so",
    "CompactData": "it reads JPEG images from a database; Data does so for encoded records",
    "ConvolutionData": "a Python layer can compute it",
    "ConvolutionSK": "it is a Convolution with holes between the weights; Convolution with dilation in place of kstride does so",
    "COVARIANCE": "it computes the covariance of the samples; a Python layer can do so",
    "CPFPConversion": "it changes the format of numbers for an FPGA; remove it",
    "CropCenter2": "no code of it is public; if it cuts the middle out, CropCenter with crop_size does so",
    "DataHeatmap": f"it reads images with points, and draws a heat map for each; {INPUTS}",
    "DecodeRois": "it makes regions of a detector's output and their targets; a Python layer can do so",
    "DetectionAccuracy": "it has the accuracy of a branch and the overlap of its boxes; remove it, and the training does not change",
    "Division": "it cuts an image into squares; Slice layers over the axes 2 and 3 do so",
    "Duplicate": "it repeats a number over an image; Tile layers do so",
    "EuclideanLoss2": "it divides the loss by the distance of the eyes; EuclideanLoss does not",
    "EuclideanLossHeatmap": "it sums the squares over the maps that have a point; EuclideanLoss does so over all",
    "FlowWarping": "it moves pixels by a flow field; FlowWarp does so too, with the flow as its second bottom",
    "GeneralTriplet": "it is a loss on the distances of samples from classes; TripletLoss takes anchors, positive and negative samples",
    "GradientScaler": "it multiplies gradients by a factor that changes with the iterations, for the training against a domain classifier; MMDLoss "
    "adapts to another domain in another way. In TEST, remove it",
    "HalfConversion": "it changes the format of numbers for an FPGA; remove it",
    "HWCN": "it changes the order of the axes for an FPGA; remove it, and all layers take N x C x H x W",
    "ImageDataSteganalysisJpegDct": f"it reads the DCT coefficients of JPEG files; {INPUTS}, or HDF5Data",
    "ImageGtData": f"it reads images and makes DetectionLoss's labels from MS-CNN's lists of boxes; {INPUTS}",
    "ImageLabelDataClass": f"it reads images with labels in MATLAB files; {INPUTS}",
    "ImageLabelDataIndex": "it reads images with label images from a list; DenseImageData does so",
    "ImageLabelDataIndexDet": f"it reads images, label images and detections; {INPUTS}",
    "ImResize": "it enlarges heat maps by bicubic interpolation to the size of the video; Interp with height and width does so bilinearly",
    "InnerProductAll": "a Python layer can compute it",
    "InterClass": "it pushes the centres of classes apart; remove it, and the rest of the net trains as SphereFace",
    "KLDivLoss": "no code of it is public; SoftmaxWithLoss takes probabilities as its second bottom, with the same gradient",
    "KpsBoxData": f"it reads images with boxes, masks and points; {INPUTS}",
    "L2Loss": "no code of it is public; EuclideanLoss is half the sum of squares, divided by the batch size",
    "LabelsequenceAccuracy": "it decodes sequences and compares them with the labels; CTCGreedyDecoder with the labels as a bottom does so, or "
    "remove it",
    "LocLoss": "it is a loss on the numbers of SpatialTransformer; remove it, and the rest of the net trains",
    "MaskBoxData": f"it reads images with boxes and masks; {INPUTS}",
    "MHDRoiData": f"it reads volumes from .mhd files; {INPUTS}",
    "MOVINGAVERAGE": "it averages over iterations; a Python layer can do so",
    "MultiBoxFocalLoss": "it is MultiBoxLoss with a focal loss of the classes; MultiBoxLoss with mining_type: MAX_NEGATIVE trains the same net",
    "MultiLabelImageData": f"it reads images with several labels and points; {INPUTS}, or ImageData with label_count",
    "MultiROIPooling": "it cuts a region out around each point of a face; ROIPooling does so for a list of regions",
    "MultiSoftmax": "it is a Softmax over the channels; Softmax does so",
    "MultiStageMeanfield": "it refines the classes of pixels by a dense CRF; remove it, and the layer before it gives the classes",
    "Nms": "it lists the peaks of heat maps; remove it, and find them in the maps by Python",
    "Norm": "it divides by the norm over the channels; Normalize does so",
    "NSSLoss": "no code of it is public; a Python layer can compute it",
    "OCLCRHWCN": "it is a Convolution with a ReLU on an FPGA; write Convolution and ReLU",
    "OCLHWCNInnerProduct": "it is an InnerProduct on an FPGA; write InnerProduct",
    "OCLPoolingHWCN": "it is a Pooling on an FPGA; write Pooling",
    "OPData": f"it reads people's joints and draws heat maps; {INPUTS}",
    "PerClassAccuracy": "it is the mean of the accuracies of the classes; Accuracy with a second top has them",
    "PhotonMapping": "it computes the light of a picture from photons; a Python layer can do so",
    "PoolingNum": "a Python layer can compute it",
    "PwAttend": "it weights pixels by a map; Eltwise with operation: PROD does so after Tile",
    "Quantize": "it turns distances into classes; write the classes to the label files",
    "QuantTruncAbs": "a Python layer can compute it",
    "ReLUPlus": "it lets through the values that raise a chosen class, for pictures of a net; ReLU is the layer of the trained net",
    "ReLURecover": "a Python layer can compute it",
    "Rescale": "it scales distances and marks those in range; a Python layer can do so",
    "RoiGen": "it makes regions of a detector's output; a Python layer can do so",
    "RPNOutput": "it chooses proposals in volumes; Proposal does so in images",
    "SampleTriplet": "it chooses triplets in a batch; a Python layer can do so",
    "SequenceAccuracy": "no code of it is public; remove it, and the training does not change",
    "SetLoss2": "it is a loss on the means of the classes in a batch; TripletLoss takes anchors, positive and negative samples",
    "SigmoidCrossEntropyLossWeighted": "it weights the terms of positive and negative labels; SigmoidCrossEntropyLoss does not",
    "SigmoidLoss": "no code of it is public; SigmoidCrossEntropyLoss is the usual one",
    "SimpleNormalize": "no code of it is public; L2Norm makes samples of length 1",
    "SLLSTM": "a Python layer can compute it",
    "SpatialWta": "it keeps the largest value of each window, and sets the others to 0; Pooling with a mask and Unpooling do so",
    "STLoss": "it is a loss on the numbers of SpatialTransformer; remove it, and the rest of the net trains",
    "Switch": "no code of it is public; remove it, and name the bottom that you want",
    "TripletData": f"it reads triplets of images; three ImageData layers, or {INPUTS}",
    "Truncation": "it limits values; Clip with min and max does so",
    "VarLoss": "it is the spread of the samples of a class around their mean; CenterLoss is near to it",
    "VideoDataRNN": "it reads clips for a recurrent net; VideoData reads clips",
    "WeightedSoftmaxWithLoss": "forks weight classes in several ways; InfogainLoss, or SoftmaxWithLoss with weight_by_label_freqs and "
    "class_weighting, weights them",
    "WindowSegBinary": f"it cuts windows with label images out of images; {INPUTS}",
    "WindowSegData": f"it cuts windows with label images out of images; {INPUTS}, or DenseImageData with whole images",
    "XCLProgram": "it loads a program onto an FPGA; remove it, and write Convolution, Pooling and InnerProduct for the layers that use it",
    "YoloLoss": "it is the loss of YOLO version 1; RegionLoss is that of version 2",
}


class ForeignField(NamedTuple):
    """A field, or a value of an enum, that no layer here knows: its fork, its effect there, and the remedy."""

    fork: str
    did: str
    instead: str


PARAMS = {  # fields of LayerParameter that are not named after their type
    "box_term_param": "BoxFeatures",
    "image_label_data_param": "ImageLabelDataIndex",
    "mhd_data_param": "MHDRoiData",
    "op_transform_param": "OPData",
    "visualise": "DataHeatmap",
    "xcl_param": "XCLProgram",
}

_PRUNING = "it prunes filters during the training", "remove it: the net trains without pruning"
_OTHER_FORMAT = "the file is no net of BVLC Caffe", "write the layers as `layer { }`, with the fields of `ocaffe layers TYPE`"
FIELDS: dict[str, ForeignField] = {  # "Message.field", or "Message.VALUE" of an enum
    "DataParameter.IMAGEDB": ForeignField("MyCaffe", "images come from a database server", "LMDB, with a database of `ocaffe convert_imageset`"),
    "DataParameter.get_mirror_crop": ForeignField("JAA-Net", "it adds tops with the mirror and crop of each sample", "remove it and those tops"),
    "ImageDataParameter.label": ForeignField("DeBlurNet", "label: false reads a list without labels", "remove it, and write a label after each file name"),
    "ImageDataParameter.new_dim": ForeignField(
        "yihui-he/caffe-pro", "it resizes the shorter side",
        "random_resize_param { min_size: N max_size: N } of transform_param does the same, where N is the value of new_dim"
    ),
    "ImageDataParameter.sample_num": ForeignField("yuqj1991/caffe_train", "it reads so many images of each class for a batch", "remove it"),
    "LayerParameter.prune_param": ForeignField("Caffe_IncReg", *_PRUNING),
    "MultiBoxLossParameter.FocalLoss": ForeignField(
        "SSD_windows_caffe", "the loss of the classes is a focal loss over all priors", "conf_loss_type: SOFTMAX with mining_type: MAX_NEGATIVE"
    ),
    "NetParameter.config_file": ForeignField("dl_caffepro", *_OTHER_FORMAT),
    "NetStateRule.RUN": ForeignField("MyCaffe", "the layer is in the net that runs after the training", "phase: TEST"),
    "SoftmaxParameter.pos_cid": ForeignField(
        "a fork with WeightedSoftmaxWithLoss", "pos_mult weights the class pos_cid", "InfogainLoss with a matrix that weights the classes"
    ),
    "SolverParameter.prune_method": ForeignField("Caffe_IncReg", *_PRUNING),
    "SolverParameter.save_blob": ForeignField("caffe_video_face", "it writes the values of blobs to files", "remove it, and read the blobs by Python"),
    "SolverParameter.stepearly": ForeignField(
        "caffe-hash", "it belongs to lr_policy stepearly, whose code is not public", 'lr_policy: "multistep", and early_stopping'
    ),
    "SolverParameter.use_polyak": ForeignField(
        "caffe_deep_learning_for_steganalysis", "tests use the mean of the last parameters", "ema_decay, which averages parameters in another way"
    ),
    "SolverParameter.visualization_net": ForeignField("caffe_feedback", "the file is for a program that draws pictures of a net", "give a solver or a net"),
    "TransformationParameter.invalid_detection_mode": ForeignField("caffe-tvg", "it says what happens to detections outside of a crop", "remove it"),
    "TransformationParameter.resize_w": ForeignField(
        "MaskYolo_Caffe", "it resizes images and boxes", "resize_param { height: H width: W }, where W is the value of resize_w and H that of resize_h"
    ),
    "TransformationParameter.use_imagedb_mean": ForeignField("MyCaffe", "it subtracts the mean of a database server", "mean_file: `ocaffe compute_image_mean`"),
    "V0LayerParameter.conv_param": ForeignField("dl_caffepro", *_OTHER_FORMAT),
    "V0LayerParameter.data_bigfile_param": ForeignField("dl_caffepro", *_OTHER_FORMAT),
    "V0LayerParameter.img_files": ForeignField("BitScalableDeepHash", *_OTHER_FORMAT),
    "V1LayerParameter.GATHER": ForeignField("Lyp100208/Caffe_action", "it collects the samples of several processes", "remove it: each rank uses its own"),
    "V1LayerParameter.RESIZE": ForeignField("caffe-3dnormal", "it resizes blobs", "an Interp layer, written as `layer { }`"),
    "VideoDataParameter.root_folder": ForeignField("Lyp100208/Caffe_action", "it stands before the paths of the list", "write whole paths in the list"),
}

LABELS = ("caffe-multilabel gives the labels of an image in tops of their own", "use HDF5Data, which has any number of tops")
TOPS = {"Data": LABELS, "ImageData": LABELS}  # what a fork does with more tops than the type has here


def forks_of(layer_type: str) -> str:
    """Return the forks that define a type, or an empty string. Case is ignored."""
    return next((forks for name, forks in FOREIGN.items() if name.lower() == layer_type.lower()), "")


def use_instead(layer_type: str) -> str:
    """Return what a type of FOREIGN does and its replacement, or an empty string. Case is ignored."""
    return next((text for name, text in USE.items() if name.lower() == layer_type.lower()), "")


def told(message: str, name: str) -> tuple[str, str] | None:
    """Return (fact, remedy) for a field or an enum value that a message does not have. The fact continues "... has no NAME". None if no fork is known."""
    field = FIELDS.get(f"{message}.{name}")
    if field is not None:
        return f"it is of {field.fork}: {field.did}", field.instead
    if message not in ("LayerParameter", "V1LayerParameter"):
        return None
    plain = name.removesuffix("_param").replace("_", "").lower()
    kind = PARAMS.get(name) or next((each for each in FOREIGN if each.lower() == plain), "")
    return (f"it is of the layer type {kind} of {forks_of(kind)}", use_instead(kind) or "give the net without that layer") if kind else None
