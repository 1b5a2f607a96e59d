"""NetOptions: the settings of a recording. Everything else follows from the graph."""
from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal, get_args

from ocaffe.graph.microbatch import Microbatch
from ocaffe.ir.tensor import Role

Recompute = Literal["auto", "cheap", "none"]  # auto: none on a GPU whose own memory has room for it, else cheap (ADR 20)
ALL = frozenset({"*"})


@dataclass(frozen=True)
class NetOptions:
    """The settings of a recording. Everything else follows from the graph.

    `backward`: record it. `keep`: names of blobs that stay readable after a run; ALL keeps every one. `observed_diffs`: also keep their diffs, and take the
    diffs of net outputs from the user. `accumulate`: add to the gradients instead of overwriting them. `hold_gradients`: the gradients survive the run.
    `fuse`: merge launches and layers between which no script reads. `debug`: compute the numbers of debug_info.
    `recompute`: the values that backward recomputes. `limit`: bytes on the device for all nets of a solver; `beside`: those of them that its other
    nets keep. `microbatch`: the first layers run on parts of the batch. `apart`: any part of the net can run by itself, any number of times; then
    nothing is fused or recomputed, and no value reuses the memory of another. `prepack_weights`: without backward, keep prepacked weights, if the limit allows.
    `in_flight`: average gradients over all ranks before their update. So many bytes of them may be in the exchange while backward continues. None: there is
    one rank. `late_rows`: compute gradients in rows at the end of backward, where the memory of blobs is free, and let so many bytes of them be in
    the exchange. 0: compute them between the layers of the rest of backward. `statistics_ranks`, `on_host`: as in Recorder.
    """

    backward: bool = True
    keep: frozenset[str] = frozenset()
    observed_diffs: bool = False
    accumulate: bool = False
    hold_gradients: bool = False
    fuse: bool = True
    debug: bool = False
    recompute: Recompute = "auto"
    limit: int | None = None
    beside: int = 0
    microbatch: Microbatch | None = None
    apart: bool = False
    prepack_weights: bool = False
    in_flight: int | None = None
    late_rows: int = 0
    statistics_ranks: int = 1
    on_host: frozenset[Role] = frozenset()

    def __post_init__(self) -> None:
        assert self.recompute in get_args(Recompute), f"recompute is {self.recompute!r}, not one of {get_args(Recompute)}"

    def holding_gradients(self, add: bool = True) -> NetOptions:
        """The options of a pass whose gradients a script or a separate update uses. `add`: to those of the pass before; a script clears them."""
        return replace(self, hold_gradients=True, accumulate=add)

    def keeps(self, name: str) -> bool:
        return "*" in self.keep or name in self.keep
