"""Bottoms with other numbers of axes, or without elements: a layer infers its tops or refuses with an Error, whose remedy comes from the shapes."""
from __future__ import annotations

import collections
import functools
import itertools
import pathlib
from collections.abc import Iterator, Sequence
from typing import Any

import pytest

from ocaffe import proto
from ocaffe.errors import Error
from ocaffe.ir.tensor import Shape
from ocaffe.layers.base import registry
from tests.layers.test_coverage import nets

SHAPES: Sequence[Shape] = (
    (), (0,), (1,), (6,), (0, 3), (2, 3), (2, 3, 4), (2, 0, 4), (2, 3, 4, 5), (2, 3, 0, 5), (2, 3, 1, 1), (1, 1, 4, 7), (1, 2, 3, 4, 5), (1,) * 6,
)  # fmt: skip
MESSAGES = 4  # of a layer type


@functools.cache
def messages() -> dict[str, list[Any]]:
    """The first different messages of each layer type with bottoms."""
    found: dict[str, dict[str, Any]] = collections.defaultdict(dict)
    for net in nets():
        for param in net.layer:
            if param.type in registry() and param.bottom and param.type != "Python":
                plain = proto.LayerParameter()
                plain.CopyFrom(param)
                plain.name = "layer"
                found[param.type].setdefault(str(plain), plain)
    return {kind: list(texts.values())[:MESSAGES] for kind, texts in sorted(found.items())}


def bottoms(count: int) -> Iterator[tuple[Shape, ...]]:
    """All pairs of shapes; of more bottoms, equal shapes, and one that differs."""
    if count <= 2:
        yield from itertools.product(SHAPES, repeat=count)
        return
    for shape in SHAPES:
        yield (shape,) * count
        for other, place in itertools.product(SHAPES, range(count)):
            yield tuple(other if index == place else shape for index in range(count))


@pytest.mark.parametrize("kind", messages())
def test_bottoms_of_any_shape(kind: str, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for param in messages()[kind]:
        for shapes in bottoms(len(param.bottom)):
            try:
                layer = registry()[kind].implementation(param)(param, proto.TRAIN)
                tops = layer.infer(*shapes)
                layer.parameters()
            except Error as error:
                assert error.fix, f"{shapes}: {error}"
                continue
            except Exception as error:
                raise AssertionError(f"{shapes}\n{param}") from error
            assert all(size >= 0 for shape in tops for size in shape), f"{shapes} -> {tops}\n{param}"
