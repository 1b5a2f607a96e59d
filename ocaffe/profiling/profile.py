"""Memory of a net (`net.plan()`), and times by layer and by launch (`net.profile()`, `ocaffe time --profile`)."""
from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

from ocaffe.cl.peaks import Peaks, measure_peaks
from ocaffe.cl.session import Session
from ocaffe.errors import Error
from ocaffe.ir.graph import Node
from ocaffe.ir.launch import HOST, Access, Launch, Upload
from ocaffe.ir.tensor import Ref, Role
from ocaffe.memory.report import size_text


@dataclass(frozen=True)
class NetPlan:
    """Bytes on the device: `fixed` by category (parameters, inputs, kept blobs, ...), and `recycled` memory, which blobs reuse in turn.

    `lower_bound`: the least recycled memory of any plan. `launches`: number of kernels of a pass. `str()` is a report.
    """

    fixed: dict[str, int]
    recycled: int
    lower_bound: int
    launches: int
    lines: tuple[str, ...]

    @property
    def total(self) -> int:
        """Total number of bytes."""
        return sum(self.fixed.values()) + self.recycled

    def __str__(self) -> str:
        parts = [*self.fixed.items(), ("recycled", self.recycled), ("total", self.total)]
        return "\n".join([*self.lines, *(f"{name:<20}{size_text(size):>10}" for name, size in parts)])


class LayerTime(NamedTuple):
    """Milliseconds of one layer on the device. The time of fused layers counts for the first of them."""

    name: str
    type: str
    forward_ms: float
    backward_ms: float


@dataclass(frozen=True)
class LaunchTime:
    """One launch. `flops`: floating point operations of a product by the direct algorithm. `bytes`: bytes of its operands, each moved once.

    `graph`: the number of the task graph that runs it outside of a profile, if it is part of one.
    """

    layer: str
    phase: str  # 'forward', 'backward', 'update'; 'again': recomputed in backward
    kernel: str  # its name, or the expression of a generated kernel
    kind: str  # 'product', 'generated' (pointwise, reductions), 'other' (pooling, softmax, packing, ...), 'transfer', 'host'
    ms: float
    flops: int
    bytes: int
    of_peak: float  # minimum time at the device's measured peaks, divided by the measured time
    graph: int | None = None

    @property
    def gflops(self) -> float:
        """GFLOP/s."""
        return 1e-6 * self.flops / self.ms if self.ms else 0.0

    @property
    def gbytes(self) -> float:
        """GB/s."""
        return 1e-6 * self.bytes / self.ms if self.ms else 0.0


@dataclass(frozen=True)
class NetProfile:
    """Times of an iteration on the device, from profiling events: of every launch in order, and by layer. `str()` is a table by layer.

    `forward_ms`, `backward_ms`, `update_ms`: sums over the launches. `step_ms`: wall time of a whole iteration without
    profiling, so that host and device overlap. `peaks`: measured GFLOP/s of float multiply-adds and GB/s of a copy.
    """

    title: str
    device: str
    peaks: Peaks
    launches: tuple[LaunchTime, ...]
    layers: tuple[LayerTime, ...]
    step_ms: float

    @property
    def forward_ms(self) -> float:
        return self._sum("forward")

    @property
    def backward_ms(self) -> float:
        return self._sum("backward", "again")

    @property
    def update_ms(self) -> float:
        return self._sum("update")

    @property
    def device_ms(self) -> float:
        """Sum over all launches."""
        return sum(launch.ms for launch in self.launches)

    @property
    def of_peak(self) -> float:
        """Minimum time of all launches at the peaks, divided by their measured time."""
        return sum(launch.of_peak * launch.ms for launch in self.launches) / (self.device_ms or 1.0)

    def _sum(self, *phases: str) -> float:
        return sum(launch.ms for launch in self.launches if launch.phase in phases)

    def by_time(self) -> list[LaunchTime]:
        """Return the launches, longest first."""
        return sorted(self.launches, key=lambda launch: -launch.ms)

    def record(self) -> dict[str, Any]:
        """Return the profile as plain data, for JSON."""
        launches = [{**asdict(launch), "gflops": launch.gflops, "gbytes": launch.gbytes} for launch in self.launches]
        sums = {name: getattr(self, name) for name in ("step_ms", "device_ms", "forward_ms", "backward_ms", "update_ms", "of_peak")}
        layers = [layer._asdict() for layer in self.layers]
        return {"title": self.title, "device": self.device, "peaks": asdict(self.peaks), **sums, "layers": layers, "launches": launches}

    def summary(self) -> Iterator[str]:
        """Yield lines with the device's peaks and the sums."""
        yield f"{self.title} on {self.device}"
        yield f"measured peaks: {self.peaks.gflops:.0f} GFLOP/s of float multiply-adds, {self.peaks.gbytes:.1f} GB/s of a copy"
        sums = {"forward": self.forward_ms, "backward": self.backward_ms, "update": self.update_ms}
        parts = ", ".join(f"{name} {ms:.3f}" for name, ms in sums.items() if ms)
        yield f"{len(self.launches)} launches, {self.device_ms:.3f} ms on the device ({parts}); wall time of an iteration {self.step_ms:.3f} ms"
        graphs = [launch.graph for launch in self.launches if launch.graph is not None]
        if graphs:
            yield f"outside of a profile, the device runs {len(graphs)} of the launches in {len(set(graphs))} task graph{'s' * (len(set(graphs)) > 1)}"
        yield f"at peak rates they would take {100 * self.of_peak:.0f} % of this time"

    def __str__(self) -> str:
        wide = max([len(layer.name) for layer in self.layers] + [10])
        rows = [*self.layers, LayerTime("all", "", self.forward_ms, self.backward_ms)]
        head = f"{'layer':<{wide}}  {'type':<16}{'forward':>12}{'backward':>12}"
        table = (f"{row.name:<{wide}}  {row.type:<16}{row.forward_ms:>9.3f} ms{row.backward_ms:>9.3f} ms" for row in rows)
        return "\n".join([*self.summary(), "", head, *table])

    def launch_table(self, share: float = 1.0) -> Iterator[str]:
        """Yield a table of launches, longest first, up to this share of the time. One line has the sum of the others."""
        wide = max([len(launch.layer) for launch in self.launches] + [5])
        yield f"{'ms':>9}{'':>7}  {'GFLOP/s':>9}{'GB/s':>8}{'of peak':>9}  {'phase':<9} {'layer':<{wide}}  kernel"
        left = self.device_ms
        for index, launch in enumerate(self.by_time()):
            if index and left < (1 - share) * self.device_ms:
                yield f"{left:>9.3f}  in {len(self.launches) - index} more launches"
                return
            left -= launch.ms
            rate = f"{launch.gflops:.1f}" if launch.flops else ""
            part = f"{100 * launch.ms / (self.device_ms or 1.0):.1f} %"
            yield (f"{launch.ms:>9.3f}{part:>7}  {rate:>9}{launch.gbytes:>8.1f}{100 * launch.of_peak:>7.0f} %  {launch.phase:<9} "
                   f"{launch.layer:<{wide}}  {shortened(launch.kernel)}")  # fmt: skip


def shortened(text: str, most: int = 60) -> str:
    """Return a text of at most `most` characters, shortened at the end."""
    return text if len(text) <= most else text[: most - 3] + "..."


def measure(session: Session, title: str, nodes: Sequence[Node], run: Callable[[int], object], iterations: int) -> NetProfile:
    """Profile `run`, which enqueues a number of iterations of command lists of this session.

    One more iteration warms up. Raises Error for less than one iteration.
    """
    if iterations < 1:
        raise Error(f"profile over {iterations} iterations", fix="1 or more iterations")
    peaks = measure_peaks(session.device, session.programs)
    finish = session.device.queue.finish
    run(1)
    finish()
    begin = time.perf_counter()
    run(iterations)
    finish()
    step = time.perf_counter() - begin
    with session.timed() as timeline:
        for _ in range(iterations):
            run(1)
            session.device.queue.finish()
            timeline.collect()
    seconds = timeline.seconds()
    wanted = {ref.root for launch in seconds for ref in launch.reads}
    launches = tuple(_launch_time(launch, taken, moved_bytes(launch, wanted), peaks) for launch, taken in seconds.items())
    layers = tuple(LayerTime(node.name, node.type, *(_of(node.name, launches, phases) for phases in (("forward",), ("backward", "again")))) for node in nodes)
    return NetProfile(title, str(session.device.info), peaks, launches, layers, 1000 * step / iterations)


def _of(layer: str, launches: Sequence[LaunchTime], phases: Sequence[str]) -> float:
    return sum(launch.ms for launch in launches if launch.layer == layer and launch.phase in phases)


def _launch_time(launch: Launch, seconds: float, moved: int, peaks: Peaks) -> LaunchTime:
    kind, kernel = _kind(launch)
    of_peak = peaks.seconds(launch.flops, moved) / seconds if seconds else 0.0
    return LaunchTime(launch.layer, "again" if launch.recomputed else launch.phase, kernel, kind, 1000 * seconds, launch.flops, moved, of_peak, launch.graph)


def _kind(launch: Launch) -> tuple[str, str]:
    """Return kind and kernel of a LaunchTime."""
    if isinstance(launch, Upload):
        return "transfer", "upload"
    if isinstance(launch, HOST):
        return "host", launch.what
    call = launch.final()
    if call.generated:
        return "generated", launch.what
    return "product" if launch.flops else "other", f"{call.program}.{call.function}"


def moved_bytes(launch: Launch, wanted: Collection[Ref]) -> int:
    """Return the bytes of the operands that a launch reads and writes, each counted once.

    The workspace of a single launch does not count: it is not among the roots that launches read (`wanted`). An operand that
    a kernel does not use is a repetition of another one, and so counts once.
    """
    own = [operand for operand in launch.operands if operand.ref.root.role is not Role.SCRATCH or operand.ref.root in wanted]
    moved = {(operand.ref.root, operand.ref.root_offset, operand.ref.shape): operand for operand in own}
    return sum(operand.ref.nbytes * (2 if operand.access is Access.MODIFY else 1) for operand in moved.values())
