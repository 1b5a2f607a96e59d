"""Views with gaps of few elements: what a launch reads and writes where no copy of a Slice or Concat is made (ocaffe/passes/concat_views.py).

The innermost axis of such a view can be the batch. Kernels that take its elements for neighbours give wrong values without a word.
"""
from __future__ import annotations

import collections
import pathlib
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from google.protobuf import text_format

from ocaffe import proto
from ocaffe.errors import Error
from ocaffe.formats.text import parse
from ocaffe.ir.recorder import Recorder
from ocaffe.ir.tensor import Ref, Shape
from ocaffe.layers.base import Layer, registry
from tests.layers import gradient_cases
from tests.layers.single import KINDS, Result, run

GOLDEN = pathlib.Path(__file__).parent.parent / "golden"
FORMS = 2  # of a type with a number of bottoms
SHAPES: list[tuple[Shape, Shape]] = [((5, 1, 1, 1), (5, 1, 1, 1)), ((5, 1), (5, 1)), ((5, 1), (5,))]  # of bottom 0 and of the others


def messages() -> Iterator[Any]:
    """Layers of the golden data and of the cases, and a layer of each type without a message."""
    paths = sorted(path for folder in ("layers", "forks") for path in (GOLDEN / folder).glob("*.prototxt") if path.with_suffix(".npz").exists())
    nets = [text_format.Parse(path.read_text(), proto.NetParameter()) for path in paths]
    nets += [parse(case.net.replace("{folder}", "nowhere"), proto.NetParameter) for case in gradient_cases.CASES]
    plain = [proto.LayerParameter(type=name, bottom=["x"] * count, top=["y"]) for name in sorted(registry()) for count in (1, 2, 3)]
    forms: collections.Counter[tuple[str, int]] = collections.Counter()
    for message in [layer for net in nets for layer in net.layer] + plain:
        kind = message.type, len(message.bottom)
        if message.bottom and message.type not in ("Python", "Input") and forms[kind] < FORMS:
            forms[kind] += 1
            message.name = "l"
            for field in ("loss_weight", "propagate_down", "param", "include", "exclude"):
                message.ClearField(field)
            yield message


def made(message: Any, shapes: list[Shape]) -> tuple[Layer, list[Shape]] | None:
    """The layer and the shapes of its tops, or None if it does not take these bottoms or has no kernels."""
    try:
        layer = registry()[message.type].implementation(message)(message, proto.TRAIN)
        least, most = (layer.bottoms, layer.bottoms) if isinstance(layer.bottoms, int) else layer.bottoms
        if not least <= len(shapes) <= (most or len(shapes)):
            return None
        tops = [tuple(shape) for shape in layer.infer(*shapes)]
        return (layer, tops) if layer.moves_data else None
    except (Error, OSError):
        return None


def may_have_gaps(rec: Recorder) -> set[str]:
    """The names of the tensors that could become views of another."""
    uses: dict[Ref, list[Ref]] = collections.defaultdict(list)
    for launch in rec.launches:
        for operand in launch.operands:
            uses[operand.ref.root].append(operand.ref)
    return {root.name for root, refs in uses.items() if all(ref.follows(root) for ref in refs)}


def wrong(device: Any, kind: str, message: Any, shapes: list[Shape], integers: bool) -> str | None:
    """Give gaps to the blobs that may have some. Return the first array that then differs, '' if none does, or None if the layer takes no such bottoms."""
    rng = np.random.default_rng(1)
    arrays = [rng.standard_normal(shapes[0]), *(rng.integers(0, 2, shape) if integers else rng.standard_normal(shape) for shape in shapes[1:])]
    first = made(message, shapes)
    if first is None:
        return None
    layer, tops = first
    params, diffs = [rng.uniform(0.5, 1, spec.shape) for spec in layer.parameters()], [rng.standard_normal(shape) for shape in tops]
    propagate = [layer.force_backward(index) for index in range(len(shapes))] if layer.has_backward else None

    def results(gaps: set[str]) -> Result:
        fresh = made(message, shapes)
        assert fresh is not None
        return run(device, kind, fresh[0], arrays, diffs if layer.has_backward else None, params=params, propagate=propagate, strided=gaps)

    plain = results(set())
    other = results(may_have_gaps(plain.rec))
    for name in ("tops", "diffs", "param_diffs"):
        for index, (a, b) in enumerate(zip(getattr(plain, name), getattr(other, name))):
            if a is not None and not np.allclose(a, b, 1e-4, 1e-5, equal_nan=True):
                return f"{name} {index}"
    return ""


@pytest.mark.unoptimised
@pytest.mark.parametrize("kind", KINDS)
def test_layers_of_views_with_one_element_per_sample(kind: str, device: Any) -> None:
    found, types = {}, set()
    for message in messages():
        for first, others in SHAPES:
            for integers in (False, True)[: len(message.bottom)]:
                what = wrong(device, kind, message, [first, *[others] * (len(message.bottom) - 1)], integers)
                if what is not None:
                    types.add(message.type)
                if what:
                    found[f"{text_format.MessageToString(message, as_one_line=True)} {first} {others}"] = what
    assert found == {} and len(types) > 100
