"""Compare two results of one case. Differences that rounding explains are no findings; double precision decides that (`exact`)."""
from __future__ import annotations

import re
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from tests.oracle.case import Case, is_value
from tests.oracle.graph import Graph
from tests.oracle.peer import Result

TOLERANCE = 1e-4  # of the largest magnitude of an array
SAMPLES = 8  # evaluations with errors of single precision
REACH = 16.0  # times their spread: what rounding explains


@dataclass(frozen=True)
class Finding:
    """A difference. `part` is a part of the arrays, or 'refusal', 'layers', 'types', 'outputs', 'names', 'shape', 'files', 'text'."""

    part: str
    step: int
    name: str
    caffe: Any
    ocaffe: Any
    error: float = float("inf")  # relative to the largest magnitude
    verdict: str = ""  # of the arbitration

    @property
    def key(self) -> str:
        return f"{self.part} {self.step}/{self.name}"

    def __str__(self) -> str:
        where = f"{self.part}, pass {self.step}, {self.name}" if self.name else self.part
        size = f", {self.error:.2g} of the largest magnitude" if np.isfinite(self.error) else ""
        return f"{where}{size}: caffe {_short(self.caffe)}; ocaffe {_short(self.ocaffe)}" + (f" ({self.verdict})" if self.verdict else "")


def _short(value: Any) -> str:
    if isinstance(value, np.ndarray):
        return f"{value.shape} {np.array2string(value.ravel()[:6], precision=6, separator=' ')}"
    return str(value)[:600]


def difference(a: np.ndarray, b: np.ndarray) -> float:
    """The largest difference relative to the largest finite magnitude; infinity if values are infinite or NaN in different places."""
    if not (np.array_equal(np.isnan(a), np.isnan(b)) and np.array_equal(a[np.isinf(a)], b[np.isinf(b)]) and np.array_equal(np.isinf(a), np.isinf(b))):
        return float("inf")
    finite = np.isfinite(a)
    if not finite.any():
        return 0.0
    x, y = a[finite].astype(np.float64), b[finite].astype(np.float64)
    return float(np.abs(x - y).max() / max(np.abs(x).max(), np.abs(y).max(), 1e-30))


def _compare_arrays(case: Case, caffe: Mapping[str, np.ndarray], ocaffe: Mapping[str, np.ndarray]) -> list[Finding]:
    unread = {name for name, spec in case.inputs.items() if not is_value(spec)}
    found = []
    for key, a in caffe.items():
        head, name = key.split("/", 1)
        part, step = head.rsplit(" ", 1)
        if part == "diff" and (name in unread or any(name.startswith(f"{blob}_") and name[len(blob) :].count("_split_") for blob in unread)):
            continue
        if part in ("data", "diff") and case.kept is not None and name not in case.kept:
            continue
        b = ocaffe.get(key)
        if b is None or a.shape != b.shape:
            found.append(Finding("shape", int(step), name, a.shape, "nothing" if b is None else b.shape))
        elif (error := difference(a, b)) > TOLERANCE:
            found.append(Finding(part, int(step), name, a, b, error))
    return found


def compare(case: Case, caffe: Result, ocaffe: Result) -> list[Finding]:
    """The differences, before arbitration. Where both refuse at one stage, the arrays before it are compared."""
    found = []
    early = caffe.refusal and ocaffe.refusal and caffe.stage in ("build", "load", "forward 0")  # ocaffe may refuse before any value is computed
    if caffe.stage != ocaffe.stage and not early:
        found.append(Finding("refusal", _step(caffe.stage), "", _refusal(caffe), _refusal(ocaffe)))
    elif ocaffe.refusal and ocaffe.refusal["error"] != "Error":
        found.append(Finding("refusal", _step(caffe.stage), "", _refusal(caffe), _refusal(ocaffe)))  # an exception that is not ocaffe's
    for fact in ("layers", "types", "outputs"):
        if fact in caffe.facts and fact in ocaffe.facts and caffe.facts[fact] != ocaffe.facts[fact]:
            found.append(Finding(fact, 0, "", caffe.facts[fact], ocaffe.facts[fact]))
    arrays = caffe.arrays if caffe.stage == ocaffe.stage == "end" else {key: array for key, array in caffe.arrays.items() if key in ocaffe.arrays}
    found += _compare_arrays(case, arrays, ocaffe.arrays)
    passes = {finding.step for finding in found if finding.part == "data"}  # there the loss says nothing new
    return [finding for finding in found if finding.part != "loss" or finding.step not in passes]


def _refusal(result: Result) -> str:
    return f"refuses at {result.stage}: {result.refusal['error']}: {result.refusal['message']}" if result.refusal else "runs"


def _step(stage: str) -> int:
    number = re.search(r"\d+$", stage)
    return int(number.group()) if number else 0


class Sampled:
    """Exact arrays, and how far rounding moves each element of them."""

    def __init__(self, first: Mapping[str, np.ndarray], samples: Sequence[Mapping[str, np.ndarray]]) -> None:
        self.first, self.samples = first, samples

    def value(self, finding: Finding) -> tuple[np.ndarray, np.ndarray] | None:
        exact = self.first.get(finding.key)
        if exact is None or exact.shape != np.shape(finding.caffe) or any(finding.key not in sample for sample in self.samples):
            return None
        with np.errstate(all="ignore"):
            return exact, np.max([np.abs(sample[finding.key] - exact) for sample in self.samples], axis=0)


class Arbiter:
    """Double precision for one case. Evaluations are made when the first finding needs them. `graph` has Caffe's arrays."""

    def __init__(self, case: Case, graph: Graph) -> None:
        self.case, self.graph = case, graph
        self.reason, self.unknown = "", set[str]()

    @cached_property
    def exact(self) -> Sampled:
        from tests.oracle import exact

        with _quiet():
            first = exact.Evaluation(self.case, self.graph)
            self.reason, self.unknown = first.stopped, first.unknown
            return Sampled(first.arrays, [exact.Evaluation(self.case, self.graph, noise).arrays for noise in range(SAMPLES)])

    @cached_property
    def of_memory(self) -> Mapping[str, np.ndarray]:
        """What Caffe's shared memory gives."""
        from tests.oracle.memory import Memory

        with _quiet():
            return Memory(self.case, self.graph).arrays

    @cached_property
    def memory(self) -> Sampled:
        from tests.oracle.memory import Memory

        with _quiet():
            return Sampled(self.of_memory, [Memory(self.case, self.graph, noise).arrays for noise in range(SAMPLES)])

    @cached_property
    def free(self) -> list[Mapping[str, np.ndarray]]:
        """Exact arrays with random values in place of NaN."""
        from tests.oracle import exact

        with _quiet():
            return [exact.Evaluation(self.case, self.graph, None, number).arrays for number in range(SAMPLES)]

    def value(self, finding: Finding) -> tuple[np.ndarray, np.ndarray] | None:
        """The exact array of a finding and how far rounding moves each element, or None."""
        value = self.exact.value(finding)
        if value is None:
            self.reason = self.reason or "no exact value"
        elif np.isnan(value[0]).any() and (unknown := self.unknown & _connected(self.graph.net, finding.key)):
            self.reason = f"no rule in double precision: {', '.join(sorted(unknown))}"
            return None
        return value

    def is_memory(self, finding: Finding) -> bool:
        """Whether Caffe's value is that of its shared memory, and ocaffe's is not wrong."""
        if not isinstance(finding.caffe, np.ndarray) or finding.verdict.startswith(("ocaffe", "caffe and")):
            return False
        plain = self.of_memory.get(finding.key)
        if plain is not None and plain.shape == finding.caffe.shape and difference(plain, finding.caffe) <= TOLERANCE:
            return True  # rounding is not needed
        value = self.memory.value(finding)
        if value is None:
            return False
        undefined = np.isnan(value[0]) & np.isfinite(finding.caffe)
        with _quiet():
            return not undefined.any() and _within(finding.caffe, value[0], _reach(*value))

    def depends_on_nan(self, finding: Finding) -> bool:
        """Whether each element that differs depends on a NaN that a layer compares."""
        if not isinstance(finding.caffe, np.ndarray):
            return False
        loose = self.loose(finding)
        if loose is None:
            return False
        with np.errstate(all="ignore"):
            sizes = np.abs(np.stack([sample[finding.key] for sample in self.free]))
            apart = np.abs(finding.caffe.astype(np.float64) - finding.ocaffe) > TOLERANCE * sizes[np.isfinite(sizes)].max(initial=0)
            apart |= ~(np.isfinite(finding.caffe) & np.isfinite(finding.ocaffe)) & ~(np.isnan(finding.caffe) & np.isnan(finding.ocaffe))
        return bool(apart.any() and loose[apart].all())

    def loose(self, finding: Finding) -> np.ndarray | None:
        """The elements that depend on a NaN that a layer compares."""
        samples = [sample[finding.key] for sample in self.free if finding.key in sample]
        if len(samples) < SAMPLES or any(sample.shape != finding.caffe.shape for sample in samples):
            return None
        with np.errstate(all="ignore"):
            stacked = np.stack(samples)
            low, high = np.nan_to_num(stacked).min(0), np.nan_to_num(stacked).max(0)
            return np.isnan(stacked).any(0) | (high - low > 1e-9 * np.maximum(np.abs(high), np.abs(low)))

    def judged(self, finding: Finding) -> Finding | None:
        """The finding with a verdict, or None if rounding explains it."""
        if not isinstance(finding.caffe, np.ndarray):
            return finding
        value = self.value(finding)
        if value is None:
            return replace(finding, verdict=self.reason)
        exact, spread = value
        with np.errstate(all="ignore"):
            reach = _reach(exact, spread)
            wrong = [name for name, array in (("caffe", finding.caffe), ("ocaffe", finding.ocaffe)) if not _within(array, exact, reach)]
            apart = not _within(finding.caffe, finding.ocaffe.astype(np.float64), reach)
            if "ocaffe" in wrong and any(np.isnan(array).any() for array in self.graph.arrays.values()) and (loose := self.loose(finding)) is not None:
                wrong = [name for name in wrong if name == "caffe" or not _within(finding.ocaffe, exact, np.where(loose, np.inf, reach))]
        if not wrong or not apart:
            return None
        where = int(np.nanargmax(np.abs(np.nan_to_num(finding.caffe.astype(float)) - np.nan_to_num(finding.ocaffe.astype(float)))))
        return replace(finding, verdict=f"{' and '.join(wrong)} off; exact {exact.ravel()[where]:.8g}, caffe {finding.caffe.ravel()[where]:.8g}, "
                       f"ocaffe {finding.ocaffe.ravel()[where]:.8g}, rounding {spread.ravel()[where]:.2g}")  # fmt: skip


def _connected(net: Any, key: str) -> set[str]:
    """Return the types of the layers that values or shared parameters connect with a blob or a layer, the last word of the key but for its number."""
    words = key.split("/")
    names, types = {words[1]}, set[str]()
    grew = True
    while grew:
        grew = False
        for layer in net.layer:
            own = {layer.name, *layer.bottom, *layer.top, *(param.name for param in layer.param if param.name)}
            if names & own and not names >= own:
                names |= own
                grew = True
            if names & own:
                types.add(layer.type)
    return types


@contextmanager
def _quiet() -> Iterator[None]:
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        yield


def _reach(exact: np.ndarray, spread: np.ndarray) -> np.ndarray:
    """How far from its exact value an element may be."""
    with np.errstate(all="ignore"):
        return TOLERANCE * np.abs(exact[np.isfinite(exact)]).max(initial=0) + REACH * np.where(np.isfinite(spread), spread, np.inf) + 1e-37


def _within(array: np.ndarray, exact: np.ndarray, reach: np.ndarray) -> bool:
    """Whether all values are within reach of the exact ones. At the end of the range of single precision anything is right."""
    beyond = ~np.isfinite(exact) | (np.abs(exact) > 1e37) | np.isinf(reach)
    return bool(np.all(beyond | (np.abs(array.astype(np.float64) - exact) <= reach)))
