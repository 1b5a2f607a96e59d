"""Fields of Caffe's forks that ocaffe refuses, and those that have no effect here. It applies all others as the fork does.

The layer builder, the solver and the data sources refuse by these tables; docs/fork-fields.md is made of them.
"""
from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from google.protobuf.message import Message

from ocaffe.proto import is_repeated


class Refused(NamedTuple):
    """The effect of a field in its fork, and the remedy: how far the net works without it."""

    did: str
    without: str
    converted: Callable[[Any], str] | None = None  # the remedy with the values of a message, where they have a place in ocaffe's fields

    def of(self, message: Any) -> Refused:
        """Return the same with the remedy for a message that has the field."""
        return self if self.converted is None else self._replace(without=self.converted(message))


def _written(p: Any, names: str) -> str:
    """Return those of the fields `names` that the user wrote."""
    found = [name for name in names.split() if p.HasField(name)]
    return " and ".join(filter(None, [", ".join(found[:-1]), found[-1]]))


def _erase(p: Any) -> str:
    """happynear's erase_ratio is a probability, scale_min and scale_max are shares of the width, and an aspect is height / width."""
    if not p.erase_ratio:
        return "remove it: without erase_ratio the fork erases nothing"
    area = f"min_area: {p.scale_min**2:.3g} max_area: {p.scale_max**2:.3g}"
    aspect = f"min_aspect: {1 / max(p.aspect_max, 1e-3):.3g} max_aspect: {1 / max(p.aspect_min, 1e-3):.3g}"
    names = _written(p, "erase_ratio scale_min scale_max aspect_min aspect_max")
    return f"replace {names} by erase {{ prob: {p.erase_ratio:g} {area} {aspect} }}, which erases as often and about as much"


def _turned(p: Any) -> str:
    """MobileNet-YOLO turns by whole degrees to either side, and scales by a factor of a range."""
    turn = f"rotation: {p.max_rotation_angle} " if p.max_rotation_angle else ""
    scaled = p.enable_classf_aug or p.HasField("min_scaling_factor") or p.HasField("max_scaling_factor")
    zoom = f"min_zoom: {p.min_scaling_factor:g} max_zoom: {p.max_scaling_factor:g} " if scaled else ""
    if not turn + zoom:
        return "remove it: affine has prob, and distort_param has brightness_prob and contrast_prob"
    names = _written(p, "enable_classf_aug min_scaling_factor max_scaling_factor max_rotation_angle")
    return f"replace {names} by affine {{ {turn}{zoom}}}"


def _contrast(p: Any) -> str:
    if not p.contrast_brightness_adjustment:
        return "remove it; distort_param changes contrast, brightness, saturation and hue, and nothing smooths images or shifts colors"
    often = f"{p.apply_probability:g}"
    light = f"brightness_prob: {often} brightness_delta: {p.max_brightness_shift}"
    contrast = f"contrast_prob: {often} contrast_lower: {p.min_contrast:g} contrast_upper: {p.max_contrast:g}"
    names = _written(p, "contrast_brightness_adjustment min_contrast max_contrast max_brightness_shift")
    return f"replace {names} by distort_param {{ {light} {contrast} }}"


def _perspective(p: Any) -> str:
    own = p.geometry_param
    least = 1 / (1 + own.zoom_factor) if own.zoom_out else 1
    most = 1 + own.zoom_factor if own.zoom_in else 1
    slant = math.degrees(math.atan(own.persp_factor / 2)) if own.persp_horizontal or own.persp_vertical else 0
    return f"replace it by affine {{ prob: {own.prob:g} min_zoom: {least:.3g} max_zoom: {most:.3g} shear: {slant:.2g} }}, which comes near"


def _face(p: Any) -> str:
    zoom = f"min_zoom: {p.min_random_scale:g} max_zoom: {p.max_random_scale:g}"
    move = f" translation: T, where T is {p.max_random_shift} / the side of the image" if p.max_random_shift else ""
    slant = math.degrees(math.atan(p.max_shear_ratio))
    return f"remove it, and for images without points use affine {{ rotation: {p.max_rotate_angle:g} shear: {slant:.3g} {zoom} }}{' with' * bool(move)}{move}"


def _shorter_side(least: int, most: int) -> str:
    return f"random_resize_param {{ min_size: {least} max_size: {most} }} of transform_param"


def _custom(p: Any) -> str:
    """CustomData reads Datums with raw values."""
    return f'write type: "CustomData": it reads {p.source or "the database"} if its records are raw pixels, not image files; else remove the field'


def _pooled(p: Any) -> str:
    if len(p.pooled_size) > 2:
        return "remove it: ROIPooling takes regions of images, not of volumes"
    return f"replace it by pooled_h: {p.pooled_size[0]} pooled_w: {p.pooled_size[-1]}"


def _crop_sides(p: Any) -> str:
    given = [(old, f"{new}: {getattr(p, old)}") for old, new in (("crop_width", "crop_w"), ("crop_height", "crop_h")) if getattr(p, old)]
    return f"replace {' and '.join(old for old, _ in given)} by {' '.join(new for _, new in given)}"


def _table(*groups: tuple[str, str, Any]) -> dict[str, Any]:
    """Return {"Message.field": value} from groups of a message, the names of its fields, and their value."""
    return {f"{message}.{name}": value for message, names, value in groups for name in names.split()}


_NO_AUGMENTATION = "remove it: the net is the same, and training has less variety of images"
_OPENCL_NUMBERS = "everything is computed in float32, or with the format of --math"

REFUSED: dict[str, Refused] = _table(
    ("SolverParameter", "plateau_winsize", Refused(
        "SSD and Intel's fork lower the rate by gamma when the smoothed loss has not fallen for so many iterations",
        'lr_policy: "multistep" with the iterations in the fork\'s log, or best_output and early_stopping')),
    ("SolverParameter", "larc_turbo", Refused(
        "NVCaffe lowers each parameter's rate by the correlation of its gradient with its history, which no snapshot keeps",
        "remove larc_turbo: larc itself works")),
    ("SolverParameter", "test_and_snapshot_last_epochs", Refused(
        "NVCaffe tests and saves after each of the last epochs", "remove it, and set test_interval and snapshot to the iterations of an epoch")),
    ("SolverParameter", "solver_data_type", Refused(
        "NVCaffe keeps the parameters of the solver in this type",
        "remove it: parameters are float32, and `ocaffe train --math` chooses the format of products")),
    ("SolverParameter", "data_type", Refused(
        "the OpenCL branch computes in this type", "remove it: everything is computed in float32, or with the format of `ocaffe train --math`")),
    ("SolverParameter", "disabled_update", Refused(
        "Intel's fork runs forward and backward, but does not update the parameters", "remove it, and set base_lr: 0; `ocaffe time` measures without updates")),
    ("SolverParameter", "test_offset", Refused(
        "Intel's fork tests so many iterations after each multiple of test_interval", "remove it: tests come at multiples of test_interval")),
    ("SolverParameter", "group_id", Refused(
        "TSN divides the ranks of MPI into groups of this number", "remove it: all ranks form one group")),
    ("SolverParameter", "amsgrad adabelief", Refused(
        "deepdetect changes the second moment of Adam: its maximum, or the spread around the first moment", 'remove it: type: "Adam" trains as usual')),
    ("SolverParameter", "lookahead", Refused(
        "deepdetect moves slow weights towards the trained ones every lookahead_steps iterations", "remove it; ema_decay averages weights in another way")),
    ("SolverParameter", "gc", Refused("deepdetect subtracts the mean of each filter's gradient", "remove it: the net trains without it")),
    ("SolverParameter", "lr_dropout", Refused(
        "deepdetect updates each weight with this probability only", "remove it: every weight is updated")),
    ("SolverParameter", "clip_weights clamp_weights_lower clamp_weights_upper", Refused(
        "happynear/caffe-windows limits the weights after each update", "remove it, and raise weight_decay if weights grow")),
    ("NetState", "quantizer_mode", Refused(
        "the OpenCL branch observes the ranges of values, or rounds to them", "remove it: values are not quantized")),
    ("TransformationParameter", "scale_factors", Refused(
        "PSPNet scales each image by one of these",
        "replace it by affine { min_zoom: SMALLEST max_zoom: LARGEST } of your factors, or use a layer of type ImageSegData",
        lambda p: f"replace it by affine {{ min_zoom: {min(p.scale_factors):g} max_zoom: {max(p.scale_factors):g} }}, or use a layer of type ImageSegData")),
    ("TransformationParameter", "bgr2rgb cvt_bgr2rgb", Refused(
        "Intel's fork and MobileNet-YOLO turn the order of the channels", "remove it, and swap channels 0 and 2 of the first layer's weights")),
    ("TransformationParameter", "flow", Refused(
        "Intel's fork sets channel 2 of mirrored samples to 255 - value",
        "remove it and mirror, or read the flow by a layer of type VideoData with is_flow: true")),
    ("TransformationParameter", "pad", Refused(
        "Intel's fork surrounds each crop with so many zeros", "remove it, and give the first layer the pad",
        lambda p: f"remove it, and make the pad of the first layer larger by {p.pad}")),
    ("TransformationParameter", "original_image stride upper_size upper_height upper_width", Refused(
        "TSN's SegData and its data for whole images take crops whose sides are multiples of stride and at most upper_size",
        "SegData has all but original_image; elsewhere crop_size, or multi_scale with scale_ratios, give samples of one size")),
    ("TransformationParameter", "is_flow multi_scale fix_crop more_fix_crop max_distort scale_ratios", Refused(
        "TSN takes crops of several sizes from fixed places, or changes the sign of mirrored flow",
        "replace it by random_resized_crop { }, or use a layer of type VideoData, which has it, or SegData, which has scale_ratios")),
    ("TransformationParameter", "num_labels", Refused("NVCaffe declares it, and no layer of it reads it", "remove it")),
    ("TransformationParameter", "rotate", Refused("deepdetect turns images by multiples of 90 degrees",
        "replace it by random_90_deg_rot: true, which does the same")),
    ("TransformationParameter", "geometry_param", Refused(
        "deepdetect shows images in a random perspective, nearer or farther",
        "replace it by affine with min_zoom, max_zoom and shear, which comes near", _perspective)),
    ("TransformationParameter", "untransformed_top", Refused("deepdetect adds a top with the images before the transform", "remove it and that top")),
    ("TransformationParameter", "center_crop", Refused("happynear takes the middle crop in TRAIN too", "remove it: crops are random in TRAIN")),
    ("TransformationParameter", "erase_ratio scale_min scale_max aspect_min aspect_max", Refused(
        "happynear erases a random rectangle of a sample", "replace it by erase, whose prob is erase_ratio, and whose areas are the squares of the scales",
        _erase)),
    ("TransformationParameter", "enable_classf_aug min_scaling_factor max_scaling_factor max_rotation_angle apply_probability", Refused(
        "MobileNet-YOLO turns and scales images of classifiers",
        "replace it by affine, with max_rotation_angle as rotation and the scaling factors as min_zoom and max_zoom", _turned)),
    ("TransformationParameter", "contrast_brightness_adjustment smooth_filtering min_contrast max_contrast max_brightness_shift max_smooth max_color_shift",
     Refused("MobileNet-YOLO changes contrast, brightness, sharpness and colors",
        "replace it by distort_param, which changes contrast, brightness, saturation and hue", _contrast)),
    ("TransformationParameter", "min_side min_side_min min_side_max", Refused(
        "MobileNet-YOLO resizes the shorter side", "replace it by random_resize_param, with your sizes as min_size and max_size",
        lambda p: f"replace {_written(p, 'min_side min_side_min min_side_max')} by "
                  f"{_shorter_side(p.min_side or p.min_side_min, p.min_side or p.min_side_max)}")),
    ("BatchNormParameter", "disable_mean disable_variance", Refused(
        "happynear subtracts no mean, or does not divide by the deviation", "remove it, and train again: the weights fit the fork's layer only")),
    ("AccuracyParameter", "min_is_better", Refused("happynear counts the smallest score as the answer",
        "remove it, and put a Power layer with scale: -1 before this layer")),
    ("CenterLossParameter", "distance_type", Refused("happynear measures the distance to the centre in another way", "remove it: the distance is L2")),
    ("ConvolutionParameter", "shape_offset", Refused("happynear adds to the size of a Deconvolution's top",
        "remove it, and set pad, or put a Crop layer behind this one")),
    ("DropoutParameter", "sqrt_scale", Refused("happynear scales by 1 / sqrt(1 - dropout_ratio)", "remove it: the layer scales by 1 / (1 - dropout_ratio)")),
    ("FillerParameter", "alpha", Refused("happynear's msra filler allows for the slope of a PReLU",
        'use type: "gaussian" with std: sqrt(2 / ((1 + alpha^2) n)), where n is the number of inputs',
        lambda p: f'use type: "gaussian" with std: {math.sqrt(2 / (1 + p.alpha**2)):.4g} / sqrt(n), where n is the number of inputs of an output')),
    ("FillerParameter", "diag_val", Refused("the filler type diagonal of FlowNet 2 fills the diagonal of filters",
        'replace the filler by type: "constant"; then train from the weights of the fork, `ocaffe train --weights FILE`, which replace what a filler wrote')),
    ("HDF5DataParameter", "image", Refused("deepdetect applies transform_param to HDF5 data", "remove it, and prepare the values beforehand")),
    ("ImageDataParameter", "short_side", Refused(
        "NVCaffe resizes the shorter side of each image",
        "remove it, and set min_size and max_size of random_resize_param in transform_param to its value, which does the same",
        lambda p: f"replace it by {_shorter_side(p.short_side, p.short_side)}, which does the same")),
    ("ImageDataParameter", "dataset_share_per_node", Refused("NVCaffe reads this share of the list on each node", "remove it: each rank reads its own part")),
    ("ImageDataParameter", "min_height min_width", Refused(
        "Intel's fork enlarges smaller images",
        "remove it, and set min_size and max_size of random_resize_param in transform_param, which resizes all images",
        lambda p: f"replace {_written(p, 'min_height min_width')} by {_shorter_side(*[max(p.min_height, p.min_width)] * 2)}, which resizes all images")),
    ("ImageDataParameter", "label_size", Refused("deepdetect reads so many labels from each line", "replace it by label_count, which does the same",
        lambda p: f"replace it by label_count: {p.label_size}, which does the same")),
    ("ImageDataParameter", "label_cut_start label_cut_end balance_class balance_by", Refused(
        "happynear leaves out classes, or draws all classes equally often", "remove it, and write a list with the lines that you want")),
    ("ImageDataParameter", "face_transform face_mirror face_point_num max_shear_ratio max_aspect_ratio max_rotate_angle min_random_scale max_random_scale "
     "max_random_shift", Refused("happynear moves, turns and shears images and points of faces",
                                 "remove it, and for images without points use affine, with your limits as rotation, shear, min_zoom and max_zoom",
                                 _face)),
    ("DenseImageDataParameter", "rotate", Refused(
        "deepdetect turns images and labels by multiples of 90 degrees", "remove it, and set random_90_deg_rot: true in transform_param")),
    ("DenseImageDataParameter", "one_hot_nclasses", Refused(
        "deepdetect gives each class a plane of the labels", "remove it: the losses here take one plane of class numbers")),
    ("DenseImageDataParameter", "label_divide_factor", Refused(
        "ENet resizes the labels to 1/label_divide_factor of new_height and new_width",
        "remove it, and reduce the labels by a StridedSlice layer with steps of label_divide_factor",
        lambda p: f"remove it, and reduce the labels by a StridedSlice layer: "
                  f"strided_slice_param {{ axis: 2 step: {p.label_divide_factor} axis: 3 step: {p.label_divide_factor} }}")),
    ("DataParameter", "shuffle_buffer_size", Refused("ParseNet shuffles the records within a buffer",
        "replace it by shuffle: true, which shuffles all records")),
    ("DataParameter", "block_size disk_reader_threads encoding permute_every_iter preselection_file preselection_label "
     "rand_permute rand_permute_order rand_permute_seed range_end range_start slice_point subtract verbose", Refused(
         "it is a field of FlowNet's layer CustomData",
         'write type: "CustomData" if the records of the database are raw pixels, not image files; else remove it', _custom)),
    ("DataParameter", "huge_video_dataset limit_samples", Refused(
        "other layers of FlowNet 2, which its public code lacks, read files of another format (BinaryDB)",
        'remove it, write the samples to an LMDB, and use type: "CustomData"')),
    ("MemoryDataParameter", "transpose", Refused("happynear exchanges height and width", "remove it, and transpose the arrays")),
    ("DetectionOutputParameter", "output_logits", Refused("deepdetect adds a bottom and a top with the scores before the softmax",
        "remove it, that bottom and that top")),
    ("DetectionEvaluateParameter", "output_logits", Refused("deepdetect adds a bottom with the scores before the softmax", "remove it, and that bottom")),
    ("NonMaximumSuppressionParameter", "soft_nms", Refused(
        "deepdetect lowers the scores of overlapping boxes instead of removing them", "remove it: overlapping boxes are removed, as in SSD")),
    ("AnnotatedDataParameter", "seg_resize_width seg_resize_height difficult_label_warmup", Refused(
        "MobileNet-YOLO reads label images too, or leaves out difficult objects at first", "remove it: boxes are read")),
    ("InnerDistanceParameter", "update_center_only", Refused("happynear passes no gradient to the bottom",
        "remove it, and set propagate_down: false in the layer")),
    ("InterpParameter", "mode", Refused("deepdetect takes the nearest pixel", "use a layer of type Upsample, which repeats pixels")),
    ("PoolingParameter", "blobs_lr blobs_a_min", Refused("happynear's deformation pooling learns a penalty of places", "remove it, and set pool: MAX")),
    ("SoftmaxParameter", "scaling_temperature", Refused("deepdetect divides the scores by it",
        "remove it, and put a Power layer with scale: 1 / temperature before this layer",
        lambda p: f"remove it, and put a Power layer before this layer: power_param {{ scale: {1 / (p.scaling_temperature or 1):g} }}")),
    ("SoftmaxParameter", "class_weight hard_ratio hard_mining_label cutting_point label_smooth_factor", Refused(
        "happynear's SoftmaxWithLoss weights classes, keeps the hardest samples, or smooths labels",
        "remove it; InfogainLoss weights classes, SoftmaxWithLossOHEM keeps the hardest samples, label_smoothing of loss_param smooths")),
    ("Yolov3Parameter", "iou_thresh max_delta accumulate label_smooth_eps", Refused(
        "the newest MobileNet-YOLO limits gradients and changes which boxes count", "remove it: the loss is that of the versions before")),
    ("Yolov3DetectionOutputParameter", "gaussian_box", Refused("MobileNet-YOLO predicts a deviation for each side", "remove it: scores are not weighted")),
    ("BNParameter", "var_eps moving_average decay across_spatial", Refused(
        "ParseNet's BN has other running statistics", "remove it: the BN of PSPNet takes momentum and eps, that of SegNet bn_mode")),
    ("ConvolutionParameter", "fusion_type coeff", Refused(
        "Intel's fork adds another bottom to the result", "remove it and that bottom, and add them by an Eltwise layer behind this one")),
    ("ConvolutionParameter", "eltwise_param", Refused(
        "the OpenCL branch adds another bottom to the result", "remove it and that bottom, and add them by an Eltwise layer behind this one")),
    ("DenseBlockParameter", "use_dropout", Refused("caffe_ocr drops values behind each convolution", "remove it, or write the block as layers with Dropout")),
    ("InnerProductParameter", "relu", Refused("Intel's fork ends the layer with a ReLU", "remove it, and put a ReLU layer behind this one")),
    ("InnerProductParameter", "normalize", Refused("happynear normalizes the weights", "remove it; a Normalize layer normalizes inputs, not weights")),
    ("LRNParameter", "fuse_type pooling_param", Refused("the OpenCL branch pools the result", "remove it, and put a Pooling layer behind this one")),
    ("MultiBoxLossParameter", "ignore_difficult_gt", Refused(
        "NVCaffe leaves out the predictions of difficult objects", "remove it; use_difficult_gt: false leaves out the objects themselves")),
    ("NormalizeParameter", "fix_scale", Refused(
        "ParseNet keeps the scale unless fix_scale is false", "remove it: the scale is learned if its lr_mult is not 0")),
    ("NormalizeParameter", "bp_norm fix_gradient", Refused("happynear changes the gradient", "remove it: the gradient is that of the formula")),
    ("PoolingParameter", "torch_pooling", Refused("NVCaffe rounds the size of the top as Torch does", 'remove it, and set round_mode: FLOOR')),
    ("PoolingParameter", "bin_size bin_h bin_w", Refused("ParseNet pools into so many bins",
        "use a layer of type SPP, or set kernel_h and kernel_w for one size of image")),
    ("RegionLossParameter", "softmax_tree class_map", Refused(
        "YOLO9000 has a tree of classes", "remove it, and give labels from 1 to num_class")),
    ("ReshapeParameter", "pixelshuffler", Refused("Intel's fork moves channels into pixels",
        "remove it, and put a ShuffleChannel or Reorg layer behind this one")),
    ("ROIPoolingParameter", "pooled_size", Refused("Intel's fork pools volumes", "remove it, and set pooled_h and pooled_w", _pooled)),
    ("VideoDataParameter", "video_type video_file device_id", Refused(
        "SSD decodes a video file or reads a camera",
        "write the frames to a folder, and read them by ImageData, or by source and the other fields of TSN in video_data_param")),
    ("TransformationParameter", "crop_width crop_height", Refused("PSPNet's ImageSegData has these names for the sides of the crop",
        "replace them by crop_w and crop_h", _crop_sides)),
    ("NoiseParameter", "bias gaussian_std uniform_range mu sigma", Refused(
        "happynear's and the OpenCL branch's Noise layers add random numbers", "remove the Noise layer: it has an effect in TRAIN alone")),
)  # fmt: skip

IGNORED: dict[str, str] = _table(
    ("NetParameter", "default_forward_type default_backward_type default_forward_math default_backward_math",
     "NVCaffe's formats of values and products: float32 here, and --math chooses the format of products"),
    ("NetParameter", "global_grad_scale global_grad_scale_adaptive", "NVCaffe scales gradients of float16 and scales them back before the update"),
    ("NetParameter", "default_conv_algos_override default_cudnn_math_override", "NVCaffe's choice of cuDNN's algorithms"),
    ("NetParameter", "reduce_buckets eltwise_mem_sharing", "NVCaffe's exchange of gradients, and its memory"),
    ("NetParameter", "engine compile_net_state", "Intel's choice of kernels, and of layers that it merges without another result"),
    ("NetParameter", "multinode", "Intel's distribution of layers over machines"),
    ("NetParameter", "mem_param", "TSN's sharing of memory, which ocaffe plans itself"),
    ("NetParameter", "data_type quantizer autotune reduced_memory_inference", f"settings of the OpenCL branch: {_OPENCL_NUMBERS}"),
    ("SolverParameter", "per_parameter_reduce", "NVCaffe's exchange of gradients"),
    ("SolverParameter", "store_blobs_in_old_format", "NVCaffe's form of blobs in snapshots; snapshots have BVLC Caffe's form"),
    ("SolverParameter", "engine device", "the choice of kernels or of a device; --device chooses one"),
    ("SolverParameter", "richness", "TSN's memory for gradients"),
    ("SolverParameter", "log_avg_gradient_norm test_before_snapshot", "ParseNet's log lines, and a test before each snapshot"),
    ("SolverParameter", "lookahead_steps lookahead_alpha", "of lookahead, which is refused"),
    ("SolverParameter", "rectified decoupled_wd_t0 decoupled_wd_mult", "of deepdetect's types RADAM and ADAMW; type AdamW is PyTorch's"),
    ("LayerParameter", "forward_type backward_type forward_math backward_math cudnn_math_override debug",
     "NVCaffe's formats of values and products, and its checks: float32 here, and --math chooses the format of products"),
    ("LayerParameter", "engine multinode mn_grad_compress_param mn_activation_param split_param",
     "Intel's choice of kernels, and its distribution over machines"),
    ("LayerParameter", "reshape_every_iter", "FlowNet 2: whether a layer takes new shapes in each iteration. It has no effect where shapes stay"),
    ("LayerParameter", "quantization_param", "the ranges of Intel's 8-bit nets: the layer computes in float32, whose result they approximate"),
    ("LayerParameter", "bottom_data_type compute_data_type top_data_type bottom_quantizer top_quantizer net_quantizer blobs_quantizer autotune device "
     "bottom_shared_index top_shared_index", f"settings of the OpenCL branch: {_OPENCL_NUMBERS}"),
    ("TransformationParameter", "use_gpu_transform display forward_packing", "NVCaffe's place of the transform, its display, and its order in memory"),
    ("TransformationParameter", "random_seed", "NVCaffe's seed of this layer: random_seed of the solver gives all seeds"),
    ("TransformationParameter", "debug_params", "MobileNet-YOLO shows the images"),
    ("AugmentationParameter", "write_augmented write_mean", "FlowNet's log of coefficients, and its file of the mean, which the weights have"),
    ("ConcatParameter", "per_fla_fuse", "Intel merges layers without another result"),
    ("ConvolutionParameter", "parallel_degree", "GLP4NN's number of kernels that run at the same time"),
    ("ConvolutionParameter", "cudnn_convolution_algo_seeker conv_algos_override conv_algorithm cudnn_flavor", "the choice of an algorithm"),
    ("LRNParameter", "unit_test_mode unit_test_fuse_kernel", "tests of the OpenCL branch"),
    ("MemoryDataParameter", "share_in_parallel", "an option of several solvers in one process"),
    ("DenseBlockParameter", "dropout_amount", "of use_dropout, which is refused"),
    ("DetectionOutputParameter", "visualize_threshold save_file", "SSD's pictures of detections: `ocaffe detect` draws them"),
    ("DetectionOutputParameter", "objectness_score", "RefineDet's threshold for a fourth and fifth bottom, which ocaffe's layer does not take"),
    ("MultiBoxLossParameter", "objectness_score", "RefineDet's threshold for further bottoms, which ocaffe's layer does not take"),
    ("NonMaximumSuppressionParameter", "theta", "of soft_nms, which is refused"),
    ("FocalLossParameter", "engine", "the choice of kernels"),
    ("EvalDetectionParameter", "constriant", "Intel's fork does not read it"),
    ("SaveOutputParameter", "output_format output_name_prefix num_test_image", "the form of SSD's files of detections: `ocaffe detect` writes them"),
    ("VideoDataParameter", "skip_frames", "of SSD's VideoData, which is refused"),
    ("YoloSegParameter", "use_hardsigmoid", "of the layer type YoloSeg"),
    ("SolverState", "minimum_loss iter_last_event", "of lr_policy plateau, which is refused"),
    ("AnnotatedDatum", "record_id", "NVCaffe's number of a record, which the key of the database has"),
)  # fmt: skip


def key_of(message: Message, name: str) -> str:
    """Return the key of a field in the tables."""
    return f"{message.DESCRIPTOR.name}.{name}"


def refused_in(message: Message, allowed: frozenset[str] = frozenset(), inner: str | None = None) -> tuple[str, Refused] | None:
    """Return the first of `all_refused_in`, None if there is none."""
    return next(all_refused_in(message, allowed, inner), None)


def all_refused_in(message: Message, allowed: frozenset[str] = frozenset(), inner: str | None = None) -> Iterator[tuple[str, Refused]]:
    """Yield the refused fields in a message that do not have their defaults. `allowed`: keys that the caller applies.

    `inner`: look into the messages in fields whose name ends with this, and into all within them; None: not at all.
    """
    for field, value in message.ListFields():
        key = key_of(message, field.name)
        listed = is_repeated(field)
        if key in REFUSED and key not in allowed and (listed or value != field.default_value):
            yield key, REFUSED[key].of(message)
        if field.message_type is not None and inner is not None and field.name.endswith(inner):
            for each in value if listed else (value,):
                yield from all_refused_in(each, allowed, "")


def told(key: str, refused: Refused) -> str:
    """Return the fact of an error for a refused field."""
    return f"{key.split('.')[1]} is set, which is not supported: {refused.did}"
