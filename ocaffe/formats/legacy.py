"""Tables that map the types and fields of Caffe's two older layer formats to today's names.

V0 (2013): `layers { layer { name type ...all fields of all types... } bottom top }`, types like "innerproduct".
V1 (2014): `layers { name type bottom top ..._param { } }`, types are an enum like INNER_PRODUCT.
"""
from __future__ import annotations

V0_TYPES = {  # V0 type -> V1 type
    "accuracy": "ACCURACY",
    "bnll": "BNLL",
    "concat": "CONCAT",
    "conv": "CONVOLUTION",
    "data": "DATA",
    "dropout": "DROPOUT",
    "euclidean_loss": "EUCLIDEAN_LOSS",
    "flatten": "FLATTEN",
    "hdf5_data": "HDF5_DATA",
    "hdf5_output": "HDF5_OUTPUT",
    "im2col": "IM2COL",
    "images": "IMAGE_DATA",
    "infogain_loss": "INFOGAIN_LOSS",
    "innerproduct": "INNER_PRODUCT",
    "lrn": "LRN",
    "multinomial_logistic_loss": "MULTINOMIAL_LOGISTIC_LOSS",
    "pool": "POOLING",
    "relu": "RELU",
    "sigmoid": "SIGMOID",
    "softmax": "SOFTMAX",
    "softmax_loss": "SOFTMAX_LOSS",
    "split": "SPLIT",
    "tanh": "TANH",
    "window_data": "WINDOW_DATA",
}

V0_PARAMS = {  # V0 type -> today's message with its fields
    "concat": "concat_param",
    "conv": "convolution_param",
    "data": "data_param",
    "dropout": "dropout_param",
    "hdf5_data": "hdf5_data_param",
    "hdf5_output": "hdf5_output_param",
    "images": "image_data_param",
    "infogain_loss": "infogain_loss_param",
    "innerproduct": "inner_product_param",
    "lrn": "lrn_param",
    "pool": "pooling_param",
    "window_data": "window_data_param",
}

V0_FIELDS: dict[str, tuple[str, tuple[str, ...]]] = {  # V0 field -> (its name in that message, the V0 types with this field)
    "num_output": ("num_output", ("conv", "innerproduct")),
    "biasterm": ("bias_term", ("conv", "innerproduct")),
    "weight_filler": ("weight_filler", ("conv", "innerproduct")),
    "bias_filler": ("bias_filler", ("conv", "innerproduct")),
    "pad": ("pad", ("conv", "pool")),
    "kernelsize": ("kernel_size", ("conv", "pool")),
    "group": ("group", ("conv",)),
    "stride": ("stride", ("conv", "pool")),
    "pool": ("pool", ("pool",)),
    "dropout_ratio": ("dropout_ratio", ("dropout",)),
    "local_size": ("local_size", ("lrn",)),
    "alpha": ("alpha", ("lrn",)),
    "beta": ("beta", ("lrn",)),
    "k": ("k", ("lrn",)),
    "source": ("source", ("data", "hdf5_data", "images", "window_data", "infogain_loss")),
    "batchsize": ("batch_size", ("data", "hdf5_data", "images", "window_data")),
    "rand_skip": ("rand_skip", ("data", "images")),
    "shuffle_images": ("shuffle", ("images",)),
    "new_height": ("new_height", ("images",)),
    "new_width": ("new_width", ("images",)),
    "concat_dim": ("concat_dim", ("concat",)),
    "det_fg_threshold": ("fg_threshold", ("window_data",)),
    "det_bg_threshold": ("bg_threshold", ("window_data",)),
    "det_fg_fraction": ("fg_fraction", ("window_data",)),
    "det_context_pad": ("context_pad", ("window_data",)),
    "det_crop_mode": ("crop_mode", ("window_data",)),
}

V0_TRANSFORM = {"scale": "scale", "meanfile": "mean_file", "cropsize": "crop_size", "mirror": "mirror"}  # V0 field -> field of transform_param, for every type

V1_TYPES = {  # V1 type -> today's type
    "NONE": "",
    "ABSVAL": "AbsVal",
    "ACCURACY": "Accuracy",
    "ARGMAX": "ArgMax",
    "BNLL": "BNLL",
    "CONCAT": "Concat",
    "CONTRASTIVE_LOSS": "ContrastiveLoss",
    "CONVOLUTION": "Convolution",
    "DATA": "Data",
    "DECONVOLUTION": "Deconvolution",
    "DROPOUT": "Dropout",
    "DUMMY_DATA": "DummyData",
    "EUCLIDEAN_LOSS": "EuclideanLoss",
    "ELTWISE": "Eltwise",
    "EXP": "Exp",
    "FLATTEN": "Flatten",
    "HDF5_DATA": "HDF5Data",
    "HDF5_OUTPUT": "HDF5Output",
    "HINGE_LOSS": "HingeLoss",
    "IM2COL": "Im2col",
    "IMAGE_DATA": "ImageData",
    "INFOGAIN_LOSS": "InfogainLoss",
    "INNER_PRODUCT": "InnerProduct",
    "LRN": "LRN",
    "MEMORY_DATA": "MemoryData",
    "MULTINOMIAL_LOGISTIC_LOSS": "MultinomialLogisticLoss",
    "MVN": "MVN",
    "POOLING": "Pooling",
    "POWER": "Power",
    "RELU": "ReLU",
    "SIGMOID": "Sigmoid",
    "SIGMOID_CROSS_ENTROPY_LOSS": "SigmoidCrossEntropyLoss",
    "SILENCE": "Silence",
    "SOFTMAX": "Softmax",
    "SOFTMAX_LOSS": "SoftmaxWithLoss",
    "SPLIT": "Split",
    "SLICE": "Slice",
    "TANH": "TanH",
    "WINDOW_DATA": "WindowData",
    "THRESHOLD": "Threshold",
    "CROP": "Crop",
    "PARSE_OUTPUT": "ParseOutput",
    "PARSE_EVALUATE": "ParseEvaluate",
}

V1_DATA_PARAMS = {"DATA": "data_param", "IMAGE_DATA": "image_data_param", "WINDOW_DATA": "window_data_param"}
V1_TRANSFORM = ("scale", "mean_file", "crop_size", "mirror")  # fields of V1_DATA_PARAMS that moved to transform_param

NVCAFFE_BATCH_NORM = ("scale_bias", "scale_filler", "bias_filler")  # fields of a BatchNorm whose scale and bias NVCaffe learns, whatever param says
SOLVER_TYPES = {"SGD": "SGD", "NESTEROV": "Nesterov", "ADAGRAD": "AdaGrad", "RMSPROP": "RMSProp", "ADADELTA": "AdaDelta", "ADAM": "Adam"}
