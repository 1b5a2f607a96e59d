"""The recorder: layers call it, and it appends launches. It knows which diffs are accumulated."""
from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import numpy as np

from ocaffe.ir.graph import Blob
from ocaffe.ir.kernel import Access, Can, Given, Kernel, Slot
from ocaffe.ir.launch import (
    BeginExchange,
    BeginFetch,
    BeginStore,
    Call,
    Empty,
    EndExchange,
    EndFetch,
    EndStore,
    Epilogue,
    EpilogueScalars,
    HostCall,
    Launch,
    Measure,
    Operand,
    transfer,
)
from ocaffe.ir.target import Target
from ocaffe.ir.tensor import FLOAT, PLANES, Ref, Role, Shape
from ocaffe.ir.tuned import Tuned

# 32-bit words of the step buffer, which holds the values that change from run to run. Kernels read `step[STEP_ITERATION]`.
# SAMPLE and OTHER_RANKS number samples over all ranks of a training: sample n of this rank has the number n * (OTHER_RANKS + 1) + SAMPLE.
STEP_WORDS = ("RATE", "ITERATION", "PASS", "SAMPLE", "SCALE", "OTHER_RANKS", "MOMENTUM", "DECAY")
STEP_FLOATS = ("RATE", "SCALE", "MOMENTUM", "DECAY")  # the others are unsigned integers
STEP = {name: index for index, name in enumerate(STEP_WORDS)}
MAX_COMPLETION_COUNTERS = 8192  # completion counters of one launch, one for each result of a last-block reduction


class Recorder:
    """Collects the launches of one schedule.

    Layers call `launch` (or the operations in `ocaffe.kernels`, which do). Rules for a layer:

    * In forward it writes its tops. In backward it writes the diffs of its parameters, and of the bottoms with `propagate`.
    * A diff may hold a sum already: pass `int(rec.accumulates(ref))` to the kernel, which adds if it is 1.
    * A Ref that backward reads outlives forward. Read as few as possible.
    """

    def __init__(
        self,
        target: Target,
        *,
        train: bool,
        seed: int = 0,
        accumulate_gradients: bool = False,
        fuse: bool = True,
        prepack_weights: bool = False,
        statistics_ranks: int = 1,
        on_host: frozenset[Role] = frozenset(),
    ) -> None:
        self.target = target
        self.train = train
        self.seed = seed
        self.fuse = fuse
        self.statistics_ranks = statistics_ranks  # BatchNorm takes the statistics of the batches of so many ranks
        self.on_host = on_host  # solver history and held gradients, of these roles, are in the host's memory while no launch uses them
        self.prepack_weights = prepack_weights  # results that depend on weights alone are kept, so packing costs nothing in the long run
        self.launches: list[Launch] = []
        self.phase = "forward"
        self.layer = ""
        self.step = Ref("step", (8,), Role.STATE, np.dtype(np.uint32), value=0)
        # All launches find zeros here: a kernel that counts in it (IS_LAST_BLOCK in kernels/common/common.h) resets it.
        self.completion_counters = Ref("completion_counters", (MAX_COMPLETION_COUNTERS,), Role.CONSTANT, np.dtype(np.uint32), value=0)
        self.in_rows: dict[Ref, Iterator[tuple[int, Ref]]] = {}  # gradients that are computed and used some rows at a time (ocaffe/graph/record.py)
        self._accumulate_gradients = accumulate_gradients
        self._written: set[Ref] = set()  # diffs that an earlier node of this backward wrote
        self._pending: set[Ref] = set()  # diffs that the current node writes

    # -- nodes -------------------------------------------------------------------------------------------------------

    def enter(self, layer: str, phase: str) -> None:
        """Begin a node. From now on the diffs that earlier nodes wrote count as written."""
        self._written |= self._pending
        self._pending = set()
        self.layer, self.phase = layer, phase

    def written(self, ref: Ref) -> bool:
        """Whether an earlier node of this backward wrote the diff."""
        return ref.root in self._written or ref in self._written

    def accumulates(self, ref: Ref) -> bool:
        """Whether a backward kernel must add to `ref` instead of overwriting it."""
        if ref.role is Role.GRADIENT:
            return self._accumulate_gradients or ref in self._written
        return self.phase == "backward" and ref.role in (Role.DIFF, Role.INPUT) and self._diff_key(ref) in self._written

    @staticmethod
    def _diff_key(ref: Ref) -> Ref:
        """The key of a diff in the sets: a gradient within its group, or the root of a diff and all its views."""
        return ref if ref.role is Role.GRADIENT else ref.root

    @property
    def channel_block(self) -> int:
        """Channels per block in nets on CPUs whose channels may be in blocks (ocaffe/passes/layouts_cpu.py): those without backward. Else 0."""
        possible = self.prepack_weights and self.fuse and not self.train and self.target.is_cpu
        return self.target.blocks.channels if possible and self.target.blocks != PLANES else 0

    def blocked_channels(self, channels: int) -> int:
        """Channels in whole blocks for so many channels, or 0 if a third more of them would be empty."""
        width = self.channel_block
        whole = -(-channels // width) * width if width else 0
        return whole if 4 * channels >= 3 * whole else 0

    @contextmanager
    def prefer(self, *names: str) -> Iterator[None]:
        """Choices recorded within take the first of these candidates that they have, for tests and benchmarks. It is an error if they have none.

        ocaffe/kernels/convolution/choose.py has the names of algorithms. The name of a tile begins with a digit; it counts for products, too.
        """
        target = self.target
        self.target = replace(target, tuned=Tuned(preferred=names))
        try:
            yield
        finally:
            self.target = target

    # -- launches ----------------------------------------------------------------------------------------------------

    def launch(
        self,
        given: Given,
        *,
        args: Sequence[Any] = (),
        size: Sequence[int],
        local: Sequence[int] | None = None,
        defines: Mapping[str, object] | None = None,
        inplace: Sequence[tuple[str, str]] = (),
        details: Any = None,
    ) -> None:
        """Record the call of a kernel: `rec.launch(KERNEL(x=x, y=y), ...)`.

        Kernel arguments: the operands in the order of the declaration, each as (pointer, ulong offset, ulong batch stride), then `args`. An int becomes an
        OpenCL int, a float a float; pass numpy scalars for other types. EpilogueScalars are those of an epilogue that passes may extend. `size`: work-items;
        with `local` it is rounded up to a multiple of it (the kernel checks bounds). `inplace`: pairs of operands, one that is read and one that is written,
        that may share memory. `details`: see Launch.
        """
        kernel, refs = given.kernel, given.refs
        used = [self._operand(refs[slot.name], slot) for slot in kernel.slots if slot.name in refs or not slot.optional]
        if 0 in size:
            self.add(Empty(self.layer, self.phase, used, Kernel(kernel.name)))
            return
        program, function = kernel.name.split(".")
        scalars, epilogue = _without_names(args)
        call = Call(
            program,
            function,
            tuple((name, str(value)) for name, value in sorted((defines or {}).items())),
            scalars,
            tuple(int(n) for n in size),
            tuple(int(n) for n in local) if local is not None else None,
        )
        self.add(Launch(self.layer, self.phase, used, kernel, call, inplace=tuple(inplace), epilogue=epilogue, details=details))

    @contextmanager
    def counted(self, flops: int) -> Iterator[None]:
        """Count the launches recorded within as one operation of so many FLOPs. Its products share them, unless an operation within was counted itself."""
        first = len(self.launches)
        yield
        made = self.launches[first:]
        if made and not any(launch.flops for launch in made):
            products = [launch for launch in made if launch.call is not None and not launch.kernel.can.helper] or made[-1:]
            for launch in products:
                launch.flops = flops // len(products)

    def measure(self, layer: Any, extent: Ref | Callable[..., tuple[Any, ...]], reads: Sequence[Ref] = ()) -> None:
        """Record that the top shapes of `layer` depend on data.

        `extent`: an int32 Ref that holds the measured size once it is computed, or a function that gets the command list and returns the size.
        The size becomes `layer.extent`, from which `infer` makes the shapes. If they change, the rest of the net is recorded again. Launches that
        the layer records after this call may rely on the shapes of its tops.
        """
        if isinstance(extent, Ref):
            ref, reads = extent, [extent]
            run: Callable[..., tuple[Any, ...]] = lambda commands: tuple(int(n) for n in commands.read(ref).reshape(-1))  # noqa: E731
        else:
            run = extent
        self.add(Measure(self.layer, self.phase, self.operands(reads, ()), measured=layer, run=run))

    def host(
        self, run: Callable[..., None], *, reads: Sequence[Ref] = (), writes: Sequence[Ref] = (), modifies: Sequence[Ref] = (), what: str = "host"
    ) -> None:
        """Record a step in Python. `run(commands)` gets the bound command list and calls commands.read(ref) and commands.write(ref, array) on these Refs.

        `run` must hold Refs, not blobs, whose Refs change when the net is recorded again.
        """
        self.add(HostCall(self.layer, self.phase, self.operands(reads, writes, modifies), Kernel(what, can=Can(side_effect=True)), run=run))

    def average(self, ref: Ref) -> None:
        """Record the average of `ref`, a root, over all ranks. The device waits for it."""
        average = Kernel("average over ranks", can=Can(side_effect=True))
        self.add(BeginExchange(self.layer, self.phase, [Operand(ref, Access.READ)], average, exact=True))
        self.add(EndExchange(self.layer, self.phase, [Operand(ref, Access.MODIFY)], average))

    def fetch(self, host: Ref, here: Ref) -> None:
        """Record a copy from the host's memory to the device."""
        for kind in (BeginFetch, EndFetch):
            self.add(transfer(kind, self.layer, self.phase, host, here))

    def store(self, here: Ref, host: Ref) -> None:
        """Record a copy to the host's memory."""
        for kind in (BeginStore, EndStore):
            self.add(transfer(kind, self.layer, self.phase, here, host))

    @contextmanager
    def on_device(self, ref: Ref, stores: bool = True) -> Iterator[Ref]:
        """A Ref for launches recorded within: `ref` itself, or its copy on the device if its role is on the host. `stores`: they change it."""
        role = ref.root.role
        if role not in self.on_host or not ref.persistent:
            yield ref
            return
        here = self.scratch(ref.name, ref.shape, role=Role.GRADIENT if role is Role.GRADIENT else Role.SCRATCH)
        self.fetch(ref, here)
        yield here
        if stores:
            self.store(here, ref)

    def empty(self, reads: Sequence[Ref], writes: Sequence[Ref], modifies: Sequence[Ref] = (), what: str = "") -> None:
        """Record a launch over no elements."""
        self.add(Empty(self.layer, self.phase, self.operands(reads, writes, modifies), Kernel(what)))

    def operands(self, reads: Sequence[Ref], writes: Sequence[Ref], modifies: Sequence[Ref] = ()) -> list[Operand]:
        """Operands x0, .., y0, .., m0, .. in argument order; a written diff that accumulates counts as modified."""
        result = [Operand(ref, Access.READ, f"x{index}") for index, ref in enumerate(reads)]
        result += [self._operand(ref, Slot(f"y{index}", Access.WRITE)) for index, ref in enumerate(writes)]
        result += [Operand(ref, Access.MODIFY, f"m{index}") for index, ref in enumerate(modifies)]
        return result

    def _operand(self, ref: Ref, slot: Slot) -> Operand:
        return Operand(ref, Access.MODIFY if slot.access is Access.WRITE and self.accumulates(ref) else slot.access, slot.name)

    def add(self, launch: Launch) -> None:
        """Append a finished launch and note the diffs that it writes."""
        self.launches.append(launch)
        if launch.phase == "backward":
            self._pending |= {self._diff_key(ref) for ref in launch.writes}

    def gradient_rows(self, gradient: Ref) -> Iterator[tuple[int, Ref]]:
        """Yield (first row, Ref for these rows) for all rows of a parameter's gradient, in order. There is one range unless the parameter is large.

        A layer with `gradient_in_rows` writes the gradient of its first parameter this way, as its last step, because each range may be used at once.
        """
        return self.in_rows.get(gradient) or iter([(0, gradient)])

    # -- Refs --------------------------------------------------------------------------------------------------------

    def scratch(self, name: str, shape: Shape, dtype: Any = FLOAT, role: Role = Role.SCRATCH) -> Ref:
        """Memory for the launches of this node alone. Use Role.DIFF for a gradient, because float16 products scale gradients."""
        return Ref(f"{self.layer}.{name}", tuple(shape), role, np.dtype(dtype))

    def saved(self, name: str, shape: Shape, dtype: Any = FLOAT) -> Ref:
        """Memory that forward writes and backward of the same layer reads. Keep the Ref in an attribute of the layer."""
        return Ref(f"{self.layer}.{name}", tuple(shape), Role.SAVED, np.dtype(dtype))

    def constant(self, name: str, value: np.ndarray) -> Ref:
        """A constant, uploaded once when the schedule is bound."""
        return Ref(f"{self.layer}.{name}", value.shape, Role.CONSTANT, value.dtype, value=value)

    # -- aliases -----------------------------------------------------------------------------------------------------

    def alias(self, top: Blob, bottom: Blob) -> None:
        """Forward of a layer that moves no data (Reshape, Flatten, Split, Dropout in TEST): the top is a view of the bottom."""
        top.data = bottom.data.view(top.shape, name=top.name)

    def holds_values(self, diff: Ref) -> None:
        """Note that a diff holds values although no launch wrote it: a loss weight, or values that the user set."""
        self._pending.add(diff.root)

    def diff_of(self, bottom: Blob) -> Ref:
        """The diff of a bottom, made if there is none yet."""
        if bottom.diff is None:
            bottom.diff = Ref(f"{bottom.name}.diff", bottom.shape, Role.DIFF)
        return bottom.diff

    def key(self, what: str = "") -> tuple[np.uint32, np.uint32]:
        """The Philox key of the current layer: seed and layer name."""
        return np.uint32(self.seed & 0xFFFFFFFF), np.uint32(zlib.crc32(f"{self.layer}/{what}".encode()) ^ (self.seed >> 32 & 0xFFFFFFFF))


def _without_names(args: Sequence[Any]) -> tuple[tuple[np.generic, ...], Epilogue | None]:
    """Kernel scalars, and the indices of those that belong to a fusable epilogue."""
    scalars: list[np.generic] = []
    epilogue: Epilogue | None = None
    for arg in args:
        if not isinstance(arg, EpilogueScalars):
            scalars.append(scalar(arg))
            continue
        first = len(scalars)
        scalars += [scalar(bool(arg.has_bias)), scalar(bool(arg.accumulate)), *(np.float32(value) for value in arg.activation)]
        if arg.fusable:
            epilogue = Epilogue(first, first + 1, tuple(range(first + 2, len(scalars))), arg.bounds)
    return tuple(scalars), epilogue


def scalar(value: Any) -> np.generic:
    """The OpenCL type of a kernel argument: int for int and bool, float for float, numpy scalars as they are."""
    if isinstance(value, np.generic):
        return value
    if isinstance(value, (bool, int)):
        return np.int32(value)
    return np.float32(value)
