"""The integers of a product's weights, in numpy: those that the device computes for a layer with a weight_quantization_param."""
from __future__ import annotations

from typing import Any

import numpy as np

from ocaffe.ir.layer import WeightOutputs

SMALLEST = 1e-30  # a scale of which a logarithm is taken


def weight_scales(array: np.ndarray, form: WeightOutputs, param: Any) -> np.ndarray:
    """Return the scales of a WeightQuantizationParameter, as an array that broadcasts to `form.shape`: one for each output, or one.

    A scale is the largest magnitude over the largest integer, or the next power of two. It is 0 for weights that are all 0.
    """
    kept = form.kept if param.per_channel else ()
    axes = tuple(axis for axis in range(len(form.shape)) if axis not in kept)
    largest = np.abs(np.asarray(array, np.float32).reshape(form.shape)).max(axis=axes, keepdims=True, initial=0)
    scales = largest / np.float32(most_of(param))
    if param.power_of_two:
        scales = np.where(scales > 0, np.exp2(np.ceil(np.log2(np.maximum(scales, SMALLEST)))), 0)
    return scales.astype(np.float32)


def weight_integers(array: np.ndarray, form: WeightOutputs, param: Any) -> tuple[np.ndarray, np.ndarray]:
    """Return the integers of weights, in `form.shape` and still as floats, and their scales (`weight_scales`)."""
    scales, most = weight_scales(array, form, param), np.float32(most_of(param))
    safe = np.where(scales > 0, scales, np.float32(1))
    return np.clip(np.rint(np.asarray(array, np.float32).reshape(form.shape) / safe), -most, most), scales


def most_of(param: Any) -> int:
    """Return the largest integer."""
    return int(2 ** (param.bits - 1) - 1)
