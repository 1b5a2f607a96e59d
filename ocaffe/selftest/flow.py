"""Cases for FlowNet's augmentation (flow_augment.cl), and its reference in numpy."""
from __future__ import annotations

import numpy as np

from ocaffe.kernels.inputs.flow_augment import COEFFICIENTS, DEFAULTS, NEAR, PLACE
from ocaffe.selftest.case import Arrays, Case, layer

VECTORS = np.array([[0.51, 0.56, 0.65], [0.79, 0.01, -0.62], [0.35, -0.83, 0.44]])
EIGENVECTORS = " ".join(f"chromatic_eigvec: {value:g}" for value in VECTORS.ravel())
IMAGE, SAMPLE = (14, 17), (8, 10)  # heights and widths


def coefficients(rng: np.random.Generator, samples: int, *names: str, spread: float = 0.1) -> np.ndarray:
    """Return coefficients as the layers pass them on (N x 42 x 1 x 1). `names` are drawn, the others have their defaults; mirror is 0 or 1."""
    result = np.zeros((samples, COEFFICIENTS, 1, 1))
    for name in names:
        drawn = rng.integers(0, 2, samples) if name == "mirror" else rng.normal(0, spread, samples)
        result[:, PLACE[name], 0, 0] = drawn
    return result


def decoded(stored: np.ndarray, near: float = 0.0) -> dict[str, np.ndarray]:
    """Return the value of each coefficient for each sample."""
    result = {}
    for name, index in PLACE.items():
        value = stored.reshape(len(stored), -1)[:, index]
        value = np.exp(value) if DEFAULTS[name] else value
        result[name] = np.where(np.abs(value - DEFAULTS[name]) < near, DEFAULTS[name], value)
    return result


def maps(c: dict[str, np.ndarray], sample: tuple[int, int], image: tuple[int, int]) -> np.ndarray:
    """Return for each sample the 3 x 3 matrix from its pixels (column, row, 1) to those of the image."""

    def shift(x: float, y: float) -> np.ndarray:
        return np.array([[1, 0, x], [0, 1, y], [0, 0, 1]])

    result = []
    for n in range(len(c["angle"])):
        k, s = np.cos(c["angle"][n]), np.sin(c["angle"][n])
        flip = np.diag([-1.0 if c["mirror"][n] else 1.0, 1, 1])
        turn = np.array([[k, -s, 0], [s, k, 0], [0, 0, 1]])
        zoom = np.diag([1 / c["zoom_x"][n], 1 / c["zoom_y"][n], 1])
        moved = shift(c["dx"][n] * sample[1], c["dy"][n] * sample[0])
        result.append(shift(image[1] / 2, image[0] / 2) @ zoom @ moved @ turn @ flip @ shift(-sample[1] / 2, -sample[0] / 2))
    return np.array(result)


def places(matrices: np.ndarray, sample: tuple[int, int]) -> np.ndarray:
    """Return N x 2 x h x w: the column and row in the image of each pixel of a sample."""
    rows, columns = np.indices(sample)
    return np.einsum("nij,jhw->nihw", matrices, np.stack([columns, rows, np.ones(sample)]))[:, :2]


def power(x: np.ndarray, exponent: np.ndarray) -> np.ndarray:
    return np.copysign(np.abs(x) ** exponent, x)


def moved_images(x: np.ndarray, matrices: np.ndarray, sample: tuple[int, int]) -> np.ndarray:
    """Return the images at the places of the matrices, interpolated between four pixels."""
    at = places(matrices, sample)
    height, width = x.shape[2:]
    column, row = (np.clip(at[:, i], 0, size - 1.05) for i, size in enumerate((width, height)))
    left, upper = np.floor(column).astype(int), np.floor(row).astype(int)
    a, b = (column - left)[:, None], (row - upper)[:, None]
    batch = np.arange(len(x))[:, None, None]
    corner = [[x.transpose(0, 2, 3, 1)[batch, upper + i, left + j].transpose(0, 3, 1, 2) for j in (0, 1)] for i in (0, 1)]
    result: np.ndarray = (1 - b) * ((1 - a) * corner[0][0] + a * corner[0][1]) + b * ((1 - a) * corner[1][0] + a * corner[1][1])
    return result


def along_eigenvectors(y: np.ndarray, x: np.ndarray, c: dict[str, np.ndarray], most: float) -> np.ndarray:
    """Return samples y of images x with colors that are changed along VECTORS."""

    def of(name: str) -> np.ndarray:
        return c[name][:, None, None]

    mean, limit = x.mean((0, 2, 3)), np.abs(np.einsum("kc,nchw->knhw", VECTORS, x)).max((1, 2, 3))
    eig = np.einsum("kc,nchw->nkhw", VECTORS, y - mean[:, None, None]) / limit[:, None, None]
    for k in range(3):
        eig[:, k] = (power(eig[:, k], of(f"pow_nomean{k}")) + of(f"add_nomean{k}")) * of(f"mult_nomean{k}")
    eig += (VECTORS @ mean / limit)[:, None, None]
    eig[:, 0] = (power(eig[:, 0], of("pow_withmean0")) + of("add_withmean0")) * of("mult_withmean0")
    saturation = np.hypot(eig[:, 1], eig[:, 2])
    some = saturation > 1e-2
    changed = np.maximum(saturation ** of("pow_withmean1") + of("add_withmean1"), 0) * of("mult_withmean1")
    k, s = np.cos(of("col_angle")), np.sin(of("col_angle"))
    eig[:, 1], eig[:, 2] = k * eig[:, 1] - s * eig[:, 2], s * eig[:, 1] + k * eig[:, 2]
    eig *= limit[:, None, None]
    longest = np.linalg.norm(limit)
    light = np.linalg.norm(eig, axis=1) / longest
    eig[:, 1:] = np.where(some[:, None], eig[:, 1:] / np.where(some, saturation, 1)[:, None] * changed[:, None], eig[:, 1:])
    light = np.maximum(light ** of("lmult_pow") + of("lmult_add"), 0) * of("lmult_mult") * longest
    length = np.linalg.norm(eig, axis=1)
    eig = np.where((length > 1e-2)[:, None], np.minimum(eig / np.maximum(length, 1e-2)[:, None] * light[:, None], limit[:, None, None]), eig)
    return np.clip(np.einsum("kc,nkhw->nchw", VECTORS, eig), 0, most)


def recolored(y: np.ndarray, c: dict[str, np.ndarray], most: float) -> np.ndarray:
    colored = y * np.stack([c[f"color{k}"] for k in (1, 2, 3)], 1)[:, :, None, None]
    keep = y.sum(1, keepdims=True) / (colored.sum(1, keepdims=True) + 0.01)
    gamma, bright, contrast = (c[name][:, None, None, None] for name in ("gamma", "brightness", "contrast"))
    return np.clip(0.5 + (np.clip(colored * keep, 0, 1) ** gamma + bright - 0.5) * contrast, 0, most)


def shadowed(y: np.ndarray, c: dict[str, np.ndarray], most: float) -> np.ndarray:
    rows, columns = np.indices(y.shape[2:])
    across, down = columns - y.shape[3] // 2, rows - y.shape[2] // 2
    angle, distance, strength = (c[f"shadow_{name}"][:, None, None] for name in ("angle", "distance", "strength"))
    shadow = across * np.cos(angle) + down * np.sin(angle) - distance > 0
    return np.clip(y - (shadow * strength)[:, None], 0, most)


def augmented(x: Arrays, got: Arrays) -> Arrays:
    """DataAugmentation of the images in x0 by the coefficients in x1, in all ways but noise."""
    c = decoded(x["x1"], NEAR)
    y = moved_images(x["x0"], maps(c, SAMPLE, IMAGE), SAMPLE)
    return {"y": shadowed(recolored(along_eigenvectors(y, x["x0"], c, 1.0), c, 1.0), c, 1.0)}


def moved_flow(x: Arrays, got: Arrays) -> Arrays:
    """FlowAugmentation of the flow in x0 by the coefficients of both images."""
    before, after = (maps(decoded(x[name]), SAMPLE, IMAGE) for name in ("x1", "x2"))
    at = places(before, SAMPLE)
    column, row = (np.clip((at[:, i] + 0.5).astype(int), 0, IMAGE[1 - i] - 1) for i in (0, 1))
    batch = np.arange(len(at))[:, None, None]
    end = at + x["x0"].transpose(0, 2, 3, 1)[batch, row, column].transpose(0, 3, 1, 2)
    inverse = np.linalg.inv(after)
    rows, columns = np.indices(SAMPLE)
    return {"y": np.einsum("nij,njhw->nihw", inverse[:, :2, :2], end) + inverse[:, :2, 2, None, None] - np.stack([columns, rows])}


def images(rng: np.random.Generator) -> Arrays:
    names = [name for name in DEFAULTS if name not in ("zoom_x", "zoom_y", "noise", "shadow_distance")]
    given = coefficients(rng, 3, *names)
    given[:, [PLACE["zoom_x"], PLACE["zoom_y"]]] += 0.2
    given[:, PLACE["pow_withmean2"]] = given[:, PLACE["pow_withmean1"]]
    return {"x0": rng.uniform(0, 1, (3, 3, *IMAGE)), "x1": given}


def cases() -> list[Case]:
    crop = f"crop_height: {SAMPLE[0]} crop_width: {SAMPLE[1]}"
    spatial = ("mirror", "dx", "dy", "angle", "zoom_x", "zoom_y")
    return [
        Case("images moved and recolored", layer("DataAugmentation", "x0 x1", "y", f"augmentation_param {{ max_multiplier: 1 {crop} {EIGENVECTORS} }}"),
             images, augmented),
        Case("flow of moved images", layer("FlowAugmentation", "x0 x1 x2", "y", f"augmentation_param {{ {crop} }}"),
             lambda rng: {"x0": rng.standard_normal((3, 2, *IMAGE)), "x1": coefficients(rng, 3, *spatial), "x2": coefficients(rng, 3, *spatial)}, moved_flow),
        Case("coefficients of augmentation", layer("GenerateAugmentationParameters", "x0 x1 x2", "y", "augmentation_param { rotate { mean: 0.1 } "
             "zoom { mean: 0.2 exp: true } squeeze { mean: 0.1 exp: true } contrast { mean: 0.3 exp: true } brightness { mean: 0.26 discretize: true } }"),
             lambda rng: {"x0": coefficients(rng, 3, *DEFAULTS, spread=0.01), "x1": np.zeros((3, 3, *IMAGE)), "x2": np.zeros((3, 3, *SAMPLE))},
             lambda x, got: {"y": x["x0"] + sum(value * (np.arange(COEFFICIENTS) == PLACE[name])[:, None, None] for name, value in {
                 "angle": 0.1, "zoom_x": 0.3, "zoom_y": 0.1, "contrast": 0.3, "brightness": 0}.items())}),
        Case("border of zeros", layer("BlackAugmentation", "x0 x1", "y z", "black_augmentation_param { border { mean: 0.26 } }"),
             lambda rng: {"x0": rng.standard_normal((4, 3, 8, 9)), "x1": rng.standard_normal((4, 2, 8, 9))}, bordered),
    ]  # fmt: skip


def bordered(x: Arrays, got: Arrays) -> Arrays:
    """BlackAugmentation with a border of 2 rows and columns: each sample has it at two sides, above and below, or at all, as its first top shows."""
    inside = np.zeros((3, 1, 8, 9))
    inside[0, :, :, 2:-2] = inside[1, :, 2:-2] = inside[2, :, 2:-2, 2:-2] = 1
    chosen = [min(range(3), key=lambda way: float(np.abs(sample - source * inside[way]).sum())) for sample, source in zip(got["y"], x["x0"])]
    return {name: source * inside[chosen] for name, source in (("y", x["x0"]), ("z", x["x1"]))}
