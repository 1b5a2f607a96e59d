"""Nets as Python functions: the layers in order, and their text.

A net is a function over its paper's table. It is called twice: `deploy` leaves out the data, the losses and all that only
learning needs.
"""
from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

Fields = dict[str, Any]

IMAGENET = "examples/imagenet/ilsvrc12"
CLASSES = 1000
TEST_BATCH = 50  # 1,000 of them are the validation set
MEAN = (104, 117, 123)  # of ImageNet: blue, green, red

ENUMS = {  # written without quotes
    "TRAIN", "TEST", "LMDB", "MAX", "AVE", "FLOOR", "LEARN", "WARP", "LINEAR", "AREA", "NEAREST", "CUBIC", "LANCZOS4", "CENTER", "CENTER_SIZE", "SMOOTH_L1",
    "SOFTMAX", "PER_PREDICTION", "MAX_NEGATIVE", "VALID", "REPLICATE", "WITHIN_CHANNEL",
}  # fmt: skip

MSRA: Fields = {"type": "msra"}
XAVIER: Fields = {"type": "xavier"}


def gaussian(std: float) -> Fields:
    return {"type": "gaussian", "std": std}


def scalar(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return f'"{value}"' if isinstance(value, str) and value not in ENUMS else str(value)


def lines(fields: Fields, indent: str = "") -> Iterator[str]:
    """Fields in text format. A list is a repeated field; layers and their *_param messages get several lines, other messages one."""
    for name, value in fields.items():
        for item in value if isinstance(value, list) else [value]:
            if not isinstance(item, dict):
                yield f"{indent}{name}: {scalar(item)}"
            elif name == "layer" or name.endswith("_param"):
                yield f"{indent}{name} {{"
                yield from lines(item, indent + "  ")
                yield f"{indent}}}"
            else:
                yield f"{indent}{name} {{ {' '.join(lines(item))} }}"


class Net:
    """Layers in order. Every method adds some and returns the blob to go on with."""

    def __init__(self, deploy: bool) -> None:
        self.deploy = deploy
        self.layers: list[Fields] = []

    def layer(self, kind: str, name: str, bottom: str | list[str], top: str = "", /, **fields: Any) -> str:
        self.layers.append({"name": name, "type": kind, "bottom": bottom, "top": top or name, **fields})
        return top or name

    def data(
        self, crop: int, batch: int, deploy_batch: int, source: str = IMAGENET, held_out: str = "val", test_batch: int = TEST_BATCH,
        mean: Sequence[float] = MEAN, scale: float = 1,
    ) -> str:  # fmt: skip
        if self.deploy:
            shape = {"dim": [deploy_batch, 3, crop, crop]}
            self.layers.append({"name": "data", "type": "Input", "top": "data", "input_param": {"shape": shape}})
            return "data"
        for phase, part, size in (("TRAIN", "train", batch), ("TEST", held_out, test_batch)):
            transform = {"mirror": phase == "TRAIN", "crop_size": crop, "mean_value": list(mean)} | ({"scale": scale} if scale != 1 else {})
            source_fields = {"source": f"{source}_{part}_lmdb", "batch_size": size, "backend": "LMDB"}
            data = {"name": "data", "type": "Data", "top": ["data", "label"], "include": {"phase": phase}}
            self.layers.append({**data, "transform_param": transform, "data_param": source_fields})
        return "data"

    def conv(self, name: str, bottom: str, num_output: int, **settings: Any) -> str:
        return self.weighted("Convolution", "convolution_param", name, bottom, num_output=num_output, **settings)

    def fc(self, name: str, bottom: str, num_output: int, **settings: Any) -> str:
        return self.weighted("InnerProduct", "inner_product_param", name, bottom, num_output=num_output, **settings)

    def weighted(
        self, kind: str, message: str, name: str, bottom: str, /,
        weight: Fields = MSRA, bias: float | None = None, decay: int = 1, **shape: Any,
    ) -> str:
        """A layer with weights: their filler, what its bias begins with (None: it has no bias), the weights' decay_mult, its shape."""
        param = [{"lr_mult": 1, "decay_mult": decay}]
        fillers: Fields = {"weight_filler": weight}
        if bias is None:
            shape["bias_term"] = False
        else:
            param.append({"lr_mult": 2, "decay_mult": 0})
            fillers["bias_filler"] = {"type": "constant", "value": bias}
        if self.deploy:
            return self.layer(kind, name, bottom, **{message: shape})
        return self.layer(kind, name, bottom, param=param, **{message: {**shape, **fillers}})

    def batch_norm(self, bottom: str, norm: str, scale: str, top: str = "", **settings: float) -> str:
        """BatchNorm with `settings`, and Scale: in place, or with the blob `top` as result."""
        top = self.layer("BatchNorm", norm, bottom, top or bottom, **({"batch_norm_param": settings} if settings else {}))
        return self.layer("Scale", scale, top, top, scale_param={"bias_term": True})

    def relu(self, name: str, blob: str) -> str:
        return self.layer("ReLU", name, blob, blob)

    def relu6(self, name: str, bottom: str) -> str:
        # BVLC Caffe has no ReLU6, and its Clip in place would lose the input that its gradient reads
        return self.layer("Clip", name, bottom, clip_param={"min": 0, "max": 6})

    def pool(self, name: str, bottom: str, pool: str, **window: Any) -> str:
        return self.layer("Pooling", name, bottom, pooling_param={"pool": pool, **window})

    def lrn(self, name: str, bottom: str) -> str:
        return self.layer("LRN", name, bottom, lrn_param={"local_size": 5, "alpha": 0.0001, "beta": 0.75})

    def dropout(self, name: str, blob: str, ratio: float) -> str:
        return self.layer("Dropout", name, blob, blob, dropout_param={"dropout_ratio": ratio})

    def classify(self, blob: str, loss: str = "loss", top1: str = "accuracy", top5: str = "accuracy_top5", **weight: float) -> str:
        """The end of a net: probabilities to deploy; accuracies and loss (with a loss_weight, if given) to train. `top5` may be empty."""
        if self.deploy:
            return self.layer("Softmax", "prob", blob)
        test: Fields = {"include": {"phase": "TEST"}}
        self.layer("Accuracy", top1, [blob, "label"], **test)
        if top5:
            self.layer("Accuracy", top5, [blob, "label"], **test, accuracy_param={"top_k": 5})
        return self.layer("SoftmaxWithLoss", loss, [blob, "label"], **weight)
