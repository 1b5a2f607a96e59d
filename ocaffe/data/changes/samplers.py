"""Random windows of an image, by the BatchSamplers of SSD, and by the jitter of MobileNet-YOLO. Windows and objects are corners as in Boxes."""
from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ocaffe.data.changes.boxes import coverage, jaccard
from ocaffe.data.dice import Dice

# kind of constraint: its value for windows and objects
_MEASURES = {
    "jaccard_overlap": jaccard,
    "sample_coverage": coverage,
    "object_coverage": lambda windows, objects: coverage(objects, windows),
}
_RANGES = (("min_scale", "max_scale"), ("min_aspect_ratio", "max_aspect_ratio"))


class Samplers:
    """BatchSamplers. The windows of all of them are drawn and measured together, because numpy takes as long for ten windows as for hundreds."""

    def __init__(self, samplers: Sequence[Any]) -> None:
        used = [each for each in samplers if each.use_original_image]
        trials = [each.max_trials for each in used]
        ends = np.cumsum(trials, dtype=np.intp).tolist()
        self._rows = [range(end - count, end) for end, count in zip(ends, trials)]  # of each sampler
        self._count = sum(trials)
        self._most = [each.max_sample if each.HasField("max_sample") else None for each in used]
        bounds = np.array([[[getattr(each.sampler, name) for name in names] for names in _RANGES] for each in used]).reshape(-1, 2, 2)
        self._low, self._span = (np.repeat(part, trials, 0) for part in (bounds[..., 0], bounds[..., 1] - bounds[..., 0]))
        self._constraints: list[tuple[str, np.ndarray, np.ndarray, np.ndarray]] = []  # kind, its rows, least and greatest value of each
        kinds = [_kind(each.sample_constraint) for each in used]
        for kind in filter(None, dict.fromkeys(kinds)):
            own = [n for n, other in enumerate(kinds) if other == kind]
            limits = np.array([_limits(used[n].sample_constraint, kind) for n in own], np.float32)
            low, high = (np.repeat(column, [trials[n] for n in own])[:, None] for column in limits.T)
            self._constraints.append((kind, np.concatenate([np.array(self._rows[n], np.intp) for n in own]), low, high))

    def windows(self, objects: np.ndarray, dice: Dice) -> np.ndarray:
        """Return all windows (n x 4) that satisfy their BatchSampler. The caller uses one of them."""
        found = self._draw(dice)
        good = self._satisfying(found, objects)
        chosen = [(np.flatnonzero(good[rows.start : rows.stop]) + rows.start)[:most] for rows, most in zip(self._rows, self._most)]
        return found[np.concatenate(chosen)] if chosen else found

    def _draw(self, dice: Dice) -> np.ndarray:
        """Return a window for each trial: of the sizes and aspect ratios of its sampler, anywhere in the image."""
        draws = dice.uniforms(self._count, 4)
        scale, ratio = (self._low + self._span * draws[:, :2]).T
        area = scale**2
        ratio = np.sqrt(np.clip(ratio, area, 1 / area))
        size = np.minimum(np.stack([scale * ratio, scale / ratio], 1), 1)
        corner = draws[:, 2:] * (1 - size)
        return np.concatenate([corner, corner + size], 1).astype(np.float32)

    def _satisfying(self, windows: np.ndarray, objects: np.ndarray) -> np.ndarray:
        """Return which windows satisfy the SampleConstraints of their samplers.

        A window does if at least one object satisfies the first kind of constraint that is set. SSD also evaluates the later kinds, but they cannot
        change its result.
        """
        good = np.ones(len(windows), bool)
        for kind, rows, low, high in self._constraints:
            values = _MEASURES[kind](windows[rows, None], objects[None])
            good[rows] = ((values >= low) & (values <= high)).any(1)
        return good


def _kind(constraint: Any) -> str:
    """Return the first kind of constraint that is set in a SampleConstraint, or nothing."""
    return next((kind for kind in _MEASURES if constraint.HasField(f"min_{kind}") or constraint.HasField(f"max_{kind}")), "")


def _limits(constraint: Any, kind: str) -> tuple[float, float]:
    low, high = f"min_{kind}", f"max_{kind}"
    return getattr(constraint, low) if constraint.HasField(low) else -np.inf, getattr(constraint, high) if constraint.HasField(high) else np.inf


def jittered(jitter: float, keeps_aspect: bool, dice: Dice) -> np.ndarray:
    """Return one random window (1 x 4): of a fifth of the images all, of a fifth all but jitter / 2 of each side at most, else all but jitter.

    Source: eric612/MobileNet-YOLO, src/caffe/util/sampler.cpp at 0b24609.
    """
    kind, *draws = dice.uniforms(5)
    jitter = 0 if kind < 0.2 else jitter / 2 if kind < 0.4 else jitter
    size = 1 - jitter * np.array([draws[0], draws[0] if keeps_aspect else draws[1]])
    corner = np.array(draws[2:]) * (1 - size)
    return np.concatenate([corner, corner + size])[None].astype(np.float32)
