"""Layout of a directed acyclic graph in ranks along one direction, by Sugiyama's method: longest paths, barycentres, least squares."""
from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

from ocaffe.errors import Error

SWEEPS = 12
MOST_PARTS = 200_000  # boxes, and pieces of lines: a line has one for each rank that it passes
RANK_GAP = 34.0
NODE_GAP = 22.0
_THREAD = 8.0  # width that an edge takes where it crosses a rank

Point = tuple[float, float]  # along the ranks, across them


class Layout(NamedTuple):
    """The centres of the nodes, the polyline of every edge (from box to box), and the extent of the graph."""

    places: list[Point]
    routes: list[list[Point]]
    extent: Point


def layout(sizes: Sequence[Point], edges: Sequence[tuple[int, int]]) -> Layout:
    """Return the layout. `sizes` are the sizes of the nodes' boxes; every edge leads from an earlier node to a later one.

    Raise Error for more than MOST_PARTS boxes and pieces of lines.
    """
    check_parts(len(sizes) + len(edges))
    ranks = _ranks(len(sizes), edges)
    check_parts(len(sizes) + sum(ranks[target] - ranks[source] for source, target in edges))
    widths = [size[1] for size in sizes]
    node_ranks = list(ranks)
    chains = []  # for each edge: its source, a virtual node in every rank that it crosses, its target
    for source, target in edges:
        chain = [source]
        for rank in range(ranks[source] + 1, ranks[target]):
            chain.append(len(widths))
            widths.append(_THREAD)
            node_ranks.append(rank)
        chains.append([*chain, target])
    before: list[list[int]] = [[] for _ in widths]
    after: list[list[int]] = [[] for _ in widths]
    for chain in chains:
        for first, second in pairwise(chain):
            after[first].append(second)
            before[second].append(first)
    rows: list[list[int]] = [[] for _ in range(max(node_ranks, default=-1) + 1)]
    for node, rank in enumerate(node_ranks):
        rows[rank].append(node)
    _order(rows, before, after)
    across = _across(rows, widths, before, after)
    along, depths, length = _along(rows, sizes)
    low = min((across[node] - widths[node] / 2 for node in range(len(widths))), default=0.0)
    high = max((across[node] + widths[node] / 2 for node in range(len(widths))), default=0.0)
    places = [(along[node_ranks[node]], across[node] - low) for node in range(len(sizes))]
    routes = []
    for chain in chains:
        start, end = chain[0], chain[-1]
        passed = [(node_ranks[node], across[node] - low) for node in chain[1:-1]]
        bends = [(along[rank] + side * depths[rank] / 2, place) for rank, place in passed for side in (-1, 1)]
        routes.append([
            (places[start][0] + sizes[start][0] / 2, places[start][1]), *bends, (places[end][0] - sizes[end][0] / 2, places[end][1]),
        ])  # fmt: skip
    return Layout(places, routes, (length, high - low))


def check_parts(count: int) -> None:
    """Raise Error if a picture has more than MOST_PARTS boxes and pieces of lines. Time and memory grow with their number."""
    if count > MOST_PARTS:
        fact = f"the picture has {count:,} or more boxes and pieces of lines, and the limit is {MOST_PARTS:,}"
        raise Error(fact, fix="draw a file with fewer layers, or one phase by --phase TEST or --phase TRAIN")


def _ranks(count: int, edges: Sequence[tuple[int, int]]) -> list[int]:
    ranks = [0] * count
    for source, target in sorted(edges, key=lambda edge: edge[1]):  # every edge leads to a later node
        ranks[target] = max(ranks[target], ranks[source] + 1)
    targets = {target for _, target in edges}
    nearest: dict[int, int] = {}  # the rank of the first node that a node without inputs feeds: it is moved next to it
    for source, target in edges:
        if source not in targets:
            nearest[source] = min(ranks[target], nearest.get(source, ranks[target]))
    for source, rank in nearest.items():
        ranks[source] = rank - 1
    return ranks


def _order(rows: list[list[int]], before: list[list[int]], after: list[list[int]]) -> None:
    """Sort each row by the positions of its neighbours, in several sweeps in both directions."""
    position = {node: float(index) for row in rows for index, node in enumerate(row)}
    for sweep in range(SWEEPS):
        for row in rows if sweep % 2 == 0 else reversed(rows):
            near = before if sweep % 2 == 0 else after
            wanted = {node: _mean([position[other] for other in near[node]], position[node]) for node in row}
            row.sort(key=wanted.__getitem__)
            position.update((node, float(index)) for index, node in enumerate(row))


def _across(rows: list[list[int]], widths: list[float], before: list[list[int]], after: list[list[int]]) -> list[float]:
    """Return positions across the ranks. Each row is placed by least squares near the means of its neighbours."""
    places = [0.0] * len(widths)
    for row in rows:
        at = 0.0
        for node in row:
            places[node] = at + widths[node] / 2
            at += widths[node] + NODE_GAP
        for node in row:
            places[node] -= at / 2
    for sweep in range(SWEEPS):
        for row in rows if sweep % 2 == 0 else reversed(rows):
            near = before if sweep % 2 == 0 else after
            wanted = [_mean([places[other] for other in near[node]], places[node]) for node in row]
            for node, place in zip(row, _apart(wanted, [widths[node] for node in row])):
                places[node] = place
    return places


def _apart(wanted: list[float], widths: list[float]) -> list[float]:
    """Return the positions nearest to `wanted` that keep the minimum distance: isotonic regression by pooling adjacent violators."""
    offsets = [0.0]
    for first, second in pairwise(widths):
        offsets.append(offsets[-1] + (first + second) / 2 + NODE_GAP)
    pools: list[tuple[float, int]] = []  # mean, count
    for want, offset in zip(wanted, offsets):
        mean, count = want - offset, 1
        while pools and pools[-1][0] > mean:
            other, more = pools.pop()
            mean, count = (mean * count + other * more) / (count + more), count + more
        pools.append((mean, count))
    flat = [mean for mean, count in pools for _ in range(count)]
    return [mean + offset for mean, offset in zip(flat, offsets)]


def _along(rows: list[list[int]], sizes: Sequence[Point]) -> tuple[list[float], list[float], float]:
    """Return centres and depths of the ranks, and the total length."""
    places, depths, at = [], [], 0.0
    for row in rows:
        depth = max((sizes[node][0] for node in row if node < len(sizes)), default=0.0)
        places.append(at + depth / 2)
        depths.append(depth)
        at += depth + RANK_GAP
    return places, depths, max(at - RANK_GAP, 0.0)


def _mean(values: list[float], otherwise: float) -> float:
    return sum(values) / len(values) if values else otherwise
