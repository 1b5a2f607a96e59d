"""The share of the test data that test_iter batches score."""
from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from ocaffe.compiler.network import Network
from ocaffe.data.order import Order


def scored(iterations: int, batch: int, count: int, source: str) -> tuple[str, int] | None:
    """Return what is wrong if `iterations` batches do not score each of the `count` samples of `source` once, and the right test_iter. None if they do.

    A last batch that begins again with the first samples is right where the batch does not divide the count.
    """
    seen, exact = iterations * batch, -(-count // batch)
    if seen < count:
        return f"test_iter {iterations} x batch_size {batch} scores {seen:,} of the {count:,} samples in {source}", exact
    if seen >= count + batch or (seen > count and seen != exact * batch):
        return f"test_iter {iterations} x batch_size {batch} scores {seen:,} samples, and {source} has {count:,}: some count twice", exact
    return None


def repeated(param: Any, tests: Sequence[Network]) -> Iterator[str]:
    """Yield a warning for each data layer of a TEST net of which a test scores samples twice. A part of the samples is a choice, and no mistake."""
    for number, (network, iterations) in enumerate(zip(tests, param.test_iter)):
        for node in network.graph.nodes:
            order = getattr(network.inputs.sources.get(node.name), "order", None)
            if not isinstance(order, Order) or not node.tops or not node.tops[0].shape:
                continue
            batch = node.tops[0].shape[0]
            found = scored(iterations, batch, order.entries, f"the source of layer '{node.name}'")
            if found is not None and iterations * batch > order.entries:
                yield f"TEST net #{number}: {found[0]}; the right test_iter is {found[1]}"
