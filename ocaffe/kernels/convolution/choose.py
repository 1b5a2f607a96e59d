"""The choice of the kernels that compute a convolution. No other file chooses: files with kernels estimate and record.

Candidates come best first. A tuned table may change the order of those that `ocaffe tune` measures, and `Recorder.prefer` selects one by name. They are
made one after another: the estimates of those after the best are not computed.
"""
from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal, TypeVar

from ocaffe.ir.recorder import Recorder
from ocaffe.ir.tuned import Problem, named
from ocaffe.kernels.convolution import conv_unroll
from ocaffe.kernels.convolution.blocks_gpu import conv_blocks, conv_blocks_first, conv_depthwise_blocks
from ocaffe.kernels.convolution.dense_cpu import conv_cpu, conv_pointwise_cpu
from ocaffe.kernels.convolution.dense_gpu import conv_gpu
from ocaffe.kernels.convolution.depthwise import conv_depthwise, conv_narrow_cpu
from ocaffe.kernels.convolution.geometry.conv_geometry import ConvGeometry
from ocaffe.kernels.convolution.geometry.conv_window import product_shape
from ocaffe.kernels.convolution.winograd import winograd_cpu, winograd_gpu
from ocaffe.kernels.matmul.gemm_gpu import Choice, cost, ranked

Direction = Literal["forward", "backward_data", "backward_filter"]
# Records a direction with the operands x, w, bias, y; or dy, w, dx and perhaps bias=bias; or x, dy, dw.
Record = Callable[..., None]
T = TypeVar("T")
WINOGRAD, DIRECT = "winograd", "direct"


@dataclass(frozen=True)
class Candidate:
    """A way to compute a direction of a convolution: its names, which Recorder.prefer knows, and the function that records it."""

    names: tuple[str, ...]
    record: Record


def _ways(forward: Record, backward_data: Record, backward_filter: Record) -> dict[Direction, Record]:
    return {"forward": forward, "backward_data": backward_data, "backward_filter": backward_filter}


UNROLL = _ways(conv_unroll.forward, conv_unroll.backward_data, conv_unroll.backward_filter)
DEPTHWISE = _ways(conv_depthwise.forward, conv_depthwise.backward_data, conv_depthwise.backward_filter)
DEPTHWISE_BLOCKS = _ways(conv_depthwise_blocks.forward, conv_depthwise_blocks.backward_data, conv_depthwise_blocks.backward_filter)
NARROW = _ways(conv_narrow_cpu.forward, conv_narrow_cpu.backward_data, conv_narrow_cpu.backward_filter)
DIRECT_CPU = _ways(conv_cpu.forward, conv_cpu.gather, conv_cpu.backward_filter)
POINTWISE_CPU = _ways(conv_pointwise_cpu.forward, conv_pointwise_cpu.backward_data, conv_pointwise_cpu.backward_filter)
WINOGRAD_CPU = _ways(winograd_cpu.forward, winograd_cpu.backward_data, winograd_cpu.backward_filter)
BLOCKS = _ways(conv_blocks.forward, conv_blocks.backward_data, conv_blocks.backward_filter)
PRODUCT_GPU = _ways(conv_gpu.forward, conv_gpu.backward_data, conv_gpu.backward_filter)
WINOGRAD_GPU = _ways(winograd_gpu.forward, winograd_gpu.backward_data, winograd_gpu.backward_filter)


def record(rec: Recorder, direction: Direction, g: ConvGeometry, *operands: Any, **bias: Any) -> None:
    """Record a direction by the best candidate, or by the one that is preferred."""
    _record(rec, direction, g, candidates(rec, direction, g), *operands, **bias)


def _record(rec: Recorder, direction: Direction, g: ConvGeometry, found: Iterable[Candidate], *operands: Any, **bias: Any) -> None:
    wanted = rec.target.tuned.preferred
    best = named(wanted, f"{direction} {g}", found, lambda each: each.names)[0] if wanted else next(iter(found))
    best.record(rec, g, *operands, **bias)


def candidates(rec: Recorder, direction: Direction, g: ConvGeometry) -> Iterator[Candidate]:
    """All ways to compute a direction on the recorder's target, the best first."""
    if len(g.size) > 3:
        yield Candidate(("unroll",), partial(UNROLL[direction], product=partial(_flat, direction)))
        return
    if g.depthwise:
        yield from _depthwise(rec, direction, g)
    yield from _dense(rec, direction, g)


def _flat(direction: Direction, rec: Recorder, g: ConvGeometry, *operands: Any) -> None:
    """Record the product of unrolled samples."""
    _record(rec, direction, g, _dense(rec, direction, g), *operands)


def _depthwise(rec: Recorder, direction: Direction, g: ConvGeometry) -> Iterator[Candidate]:
    if not conv_depthwise.possible(rec, g, direction):
        return
    if rec.target.is_cpu and conv_narrow_cpu.wins(rec, g):
        yield Candidate(("narrow",), NARROW[direction])
    blocked = [Candidate(("blocks",), DEPTHWISE_BLOCKS[direction])] if conv_depthwise_blocks.possible(rec.target, g) else []
    yield from _around(rec, direction, g, blocked, [Candidate(("depthwise",), DEPTHWISE[direction])])


def _dense(rec: Recorder, direction: Direction, g: ConvGeometry) -> Iterable[Candidate]:
    """The ways for filters over several channels. They compute depthwise convolutions, too."""
    if rec.target.is_cpu:
        return _dense_cpu(rec, direction, g)
    return _around(rec, direction, g, _blocks(rec, direction, g), _dense_gpu(rec, direction, g))


def _around(rec: Recorder, direction: Direction, g: ConvGeometry, blocked: Iterable[Candidate], others: Iterable[Candidate]) -> Iterable[Candidate]:
    """The kernels on channels in blocks come first where they pay, else last."""
    pays = direction != "forward" or conv_blocks.pays(rec, g)
    return itertools.chain(blocked, others) if pays else itertools.chain(others, blocked)


def _dense_cpu(rec: Recorder, direction: Direction, g: ConvGeometry) -> Iterator[Candidate]:
    back = direction == "backward_data"
    gathers = not back or conv_cpu.gathers(g)
    scatter = Candidate(("scatter",), conv_cpu.scatter)
    if not gathers:
        yield scatter
    if not back or conv_cpu.can_gather(g):
        yield from _products_cpu(rec, direction, g)
    if back and gathers:
        yield scatter


def _products_cpu(rec: Recorder, direction: Direction, g: ConvGeometry) -> Iterator[Candidate]:
    seen = g.turned if direction == "backward_data" else g
    if winograd_cpu.possible(rec.target, seen):
        filters = direction == "backward_filter"
        cheaper = winograd_cpu.filters_cheaper(rec, seen) if filters else winograd_cpu.cheaper(rec, seen)
        problem = Problem("backward_filter" if filters else "forward", seen, rec.target.math)
        for way in _tuned(rec, problem, [WINOGRAD, DIRECT] if cheaper else [DIRECT, WINOGRAD]):
            yield Candidate((way,), (WINOGRAD_CPU if way == WINOGRAD else DIRECT_CPU)[direction])
        return
    if g.pointwise:
        yield Candidate(("pointwise",), POINTWISE_CPU[direction])
    yield Candidate((DIRECT,), DIRECT_CPU[direction])


def _blocks(rec: Recorder, direction: Direction, g: ConvGeometry) -> Iterator[Candidate]:
    if conv_blocks.possible(rec.target, g, direction):
        yield Candidate(("blocks",), BLOCKS[direction])
    if conv_blocks_first.possible(rec.target, g, direction):
        yield Candidate(("blocks first",), conv_blocks_first.forward if direction == "forward" else conv_blocks_first.backward_filter)


def _dense_gpu(rec: Recorder, direction: Direction, g: ConvGeometry) -> Iterator[Candidate]:
    """Tiles and splits of the direct product, and Winograd's algorithm, in the order of their estimates."""
    target, shape, filters = rec.target, product_shape(g, direction), direction == "backward_filter"
    found = ranked(target, conv_gpu.tiles(target, g, direction), *shape)
    direct = [choice for choice in found if filters or not choice.tile.patches or choice.splits == 1]
    ways: list[Choice | str] = [*direct]
    if winograd_gpu.possible(g):
        slower = bool(target.tuned.preferred) or winograd_gpu.cost(target, g, direction) >= cost(target, direct[0], *shape)
        ways.insert(int(slower), WINOGRAD)
    for way in _tuned(rec, Problem(direction, g, target.math), ways):
        if isinstance(way, Choice):
            yield Candidate((conv_gpu.kind(way.tile), str(way)), partial(PRODUCT_GPU[direction], choice=way))
        else:
            yield Candidate((WINOGRAD,), WINOGRAD_GPU[direction])
    if winograd_gpu.possible(g) and not filters:
        for out in winograd_gpu.SIDES:
            yield Candidate((f"{WINOGRAD} {out}",), partial(WINOGRAD_GPU[direction], out=out))


def _tuned(rec: Recorder, problem: Problem, ways: list[T]) -> Iterator[T]:
    """These ways, with the one that a tuned table names first."""
    tuned = rec.target.tuned
    best = ways[0] if tuned.preferred else tuned.choose(problem, ways)
    yield best
    yield from (way for way in ways if way is not best)
