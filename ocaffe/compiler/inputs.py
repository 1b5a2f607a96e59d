"""`Inputs`: the data sources of a net and their prefetchers."""
from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from ocaffe.cl.command_list import RING
from ocaffe.cl.session import Session
from ocaffe.data.prefetch import Prefetcher
from ocaffe.data.source import Source
from ocaffe.ir.graph import Node
from ocaffe.ir.tensor import Shape
from ocaffe.support import log


class Inputs:
    """The sources of the data layers of a net. Runs take batches from the prefetchers, which count them.

    Several ranks can share the batches of a net: this one takes those with the numbers `first`, `first + stride`, ...
    """

    def __init__(self, nodes: Iterable[Node], session: Session) -> None:
        self._nodes = {node.name: node for node in nodes if node.layer.source is not None}
        self.sources: dict[str, Source] = {name: node.layer.source for name, node in self._nodes.items()}
        self.prefetchers: dict[Any, Prefetcher] = {}
        self.session = session
        self.first, self.stride = 0, 1
        self._start = dict.fromkeys(self.sources, 0)  # the cursor of sources without a prefetcher

    def share(self, rank: int, ranks: int) -> None:
        """Take only the batches of one of several ranks. Call this before `start`."""
        self.first, self.stride = rank, ranks

    @property
    def cursor(self) -> dict[str, int]:
        """The number of batches that runs have taken, by layer. Of several ranks it is a multiple of their number, except after `seek`."""
        return {name: self._taken(name) for name in self.sources}

    def _taken(self, name: str) -> int:
        prefetcher = self.prefetchers.get(self.sources[name])
        return self._start[name] if prefetcher is None else prefetcher.next - self.first

    def seek(self, cursor: Mapping[str, int]) -> None:
        """Continue each source at its batch in `cursor`. Unknown layers are ignored."""
        for name, source in self.sources.items():
            self._start[name] = cursor.get(name, 0)
            if source in self.prefetchers:
                self.prefetchers[source].seek(self._start[name] + self.first)

    def start(self) -> None:
        """Start to read batches, from the cursor on."""
        for name, source in self.sources.items():
            if source not in self.prefetchers:
                device = self.session.device
                buffers = None
                if device.target.streams(source.nbytes):
                    buffers = self.session.feed(source).buffers(device, source)
                begin = self._start[name] + self.first
                self.prefetchers[source] = Prefetcher(source, RING + 1, begin, self.stride, buffers=buffers, log=log.info)

    def next_shapes(self) -> dict[str, Shape]:
        """Return the new shapes of data tops whose shape the next batch changes. For most nets there are none."""
        changed = {}
        for name, source in self.sources.items():
            shapes = self.prefetchers[source].peek().info.shapes
            changed.update({top.name: tuple(shape) for top, shape in zip(self._nodes[name].tops, shapes) if top.shape != tuple(shape)})
        return changed

    def move_to(self, session: Session) -> None:
        """Continue in another session. The prefetchers continue."""
        for source in self.sources.values():
            if source in self.session.feeds:
                session.feeds[source] = self.session.feeds.pop(source)
        self.session = session

    def stop(self, name: str) -> None:
        """Stop to read batches of one layer. `start` continues with the next one."""
        self._start[name] = self._taken(name)
        prefetcher = self.prefetchers.pop(self.sources[name], None)
        if prefetcher is not None:
            prefetcher.close()

    def close(self) -> None:
        """Stop the prefetching threads."""
        for name, source in self.sources.items():
            self.stop(name)
            self.session.end_feed(source)
