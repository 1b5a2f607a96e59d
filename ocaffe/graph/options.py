"""Options: what a recording may vary; everything else follows from the graph."""
from __future__ import annotations

from dataclasses import dataclass

from ocaffe.graph.microbatch import Microbatch

ALL = frozenset({"*"})


@dataclass(frozen=True)
class NetOptions:
    """What a recording may choose; everything else follows from the graph.

    `backward`: record it; `keep`: blobs that stay readable after a run (ALL = every one); `observed_diffs`: keep also their diffs and take
    the diffs of net outputs from the user; `accumulate`: add to the gradients instead of overwriting them; `hold_gradients`: they
    survive the run. `fuse`: merge what nobody looks at. `debug`: compute what debug_info shows.
    `recompute`: compute again what is cheap instead of keeping it; `limit`: bytes on the device that the job must do with, `beside`: those of
    them that its other nets keep; `split`: how the first layers share the batch. `apart`: any part of the net can run by itself, any number of times:
    nothing is merged or computed again, and no value takes the memory of another. `prepare`: without backward, keep what is made of the weights alone, if the
    limit allows it.
    """

    backward: bool = True
    keep: frozenset[str] = frozenset()
    observed_diffs: bool = False
    accumulate: bool = False
    hold_gradients: bool = False
    fuse: bool = True
    debug: bool = False
    recompute: bool = True
    limit: int | None = None
    beside: int = 0
    microbatch: Microbatch | None = None
    apart: bool = False
    prepack_weights: bool = False
    seed: int = 0

    def keeps(self, name: str) -> bool:
        return "*" in self.keep or name in self.keep
