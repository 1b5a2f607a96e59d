"""What a net takes: `net.plan()`, memory, and `net.profile()` and `ocaffe time --profile`, time, by layer and by launch."""
from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

from ocaffe.cl.session import Session
from ocaffe.errors import Error
from ocaffe.ir.graph import Node
from ocaffe.ir.launch import Access, HostCall, Launch, Measure, Upload
from ocaffe.ir.tensor import Ref, Role
from ocaffe.memory.report import size_text
from ocaffe.profiling.peaks import Peaks, measure_peaks


@dataclass(frozen=True)
class NetPlan:
    """Bytes on the device: `fixed` by category (parameters, inputs, what is kept, ...), and `recycled`, which blobs share one after the other.

    `lower_bound`: what no plan could do without of the recycled. `launches`: kernels of a pass. `str()` is a report.
    """

    fixed: dict[str, int]
    recycled: int
    lower_bound: int
    launches: int
    lines: tuple[str, ...]

    @property
    def total(self) -> int:
        """All bytes."""
        return sum(self.fixed.values()) + self.recycled

    def __str__(self) -> str:
        parts = [*self.fixed.items(), ("recycled", self.recycled), ("total", self.total)]
        return "\n".join([*self.lines, *(f"{name:<20}{size_text(size):>10}" for name, size in parts)])


class LayerTime(NamedTuple):
    """Milliseconds of one layer on the device. Layers that run as one count for the first of them."""

    name: str
    type: str
    forward_ms: float
    backward_ms: float


@dataclass(frozen=True)
class LaunchTime:
    """One launch. `flops`: floating point operations of the direct algorithm, where it multiplies; `bytes`: what its operands must move once."""

    layer: str
    phase: str  # 'forward', 'backward', 'update'; 'again': in backward, what forward did already
    kernel: str  # its name, or what a generated one computes
    kind: str  # 'product', 'generated' (pointwise, reductions), 'other' (pooling, softmax, packing, ...), 'transfer', 'host'
    ms: float
    flops: int
    bytes: int
    of_peak: float  # the least time that the device's measured peaks allow, over the time that it took

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
    """Times of an iteration on the device, by its profiling events: of every launch, in their order, and by layer. `str()` is a table by layer.

    `forward_ms`, `backward_ms`, `update_ms`: sums over the launches; `step_ms`: a whole iteration by the clock, nothing measured in between, so that host
    and device overlap. `peaks`: GFLOP/s of float multiply-adds and GB/s of a copy, as measured on the device.
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
        """All launches together."""
        return sum(launch.ms for launch in self.launches)

    @property
    def of_peak(self) -> float:
        """The least time that the peaks allow for all launches, over the time that they took."""
        return sum(launch.of_peak * launch.ms for launch in self.launches) / (self.device_ms or 1.0)

    def _sum(self, *phases: str) -> float:
        return sum(launch.ms for launch in self.launches if launch.phase in phases)

    def by_time(self) -> list[LaunchTime]:
        """The launches, the longest first."""
        return sorted(self.launches, key=lambda launch: -launch.ms)

    def record(self) -> dict[str, Any]:
        """All of it as plain data, for JSON."""
        launches = [{**asdict(launch), "gflops": launch.gflops, "gbytes": launch.gbytes} for launch in self.launches]
        sums = {name: getattr(self, name) for name in ("step_ms", "device_ms", "forward_ms", "backward_ms", "update_ms", "of_peak")}
        layers = [layer._asdict() for layer in self.layers]
        return {"title": self.title, "device": self.device, "peaks": asdict(self.peaks), **sums, "layers": layers, "launches": launches}

    def summary(self) -> Iterator[str]:
        """Lines: the device's peaks, the sums."""
        yield f"{self.title} on {self.device}"
        yield f"measured peaks: {self.peaks.gflops:.0f} GFLOP/s of float multiply-adds, {self.peaks.gbytes:.1f} GB/s of a copy"
        sums = {"forward": self.forward_ms, "backward": self.backward_ms, "update": self.update_ms}
        parts = ", ".join(f"{name} {ms:.3f}" for name, ms in sums.items() if ms)
        yield f"{len(self.launches)} launches, {self.device_ms:.3f} ms on the device ({parts}); an iteration by the clock {self.step_ms:.3f} ms"
        yield f"at the peaks they would take {100 * self.of_peak:.0f} % of that"

    def __str__(self) -> str:
        wide = max([len(layer.name) for layer in self.layers] + [10])
        rows = [*self.layers, LayerTime("all", "", self.forward_ms, self.backward_ms)]
        head = f"{'layer':<{wide}}  {'type':<16}{'forward':>12}{'backward':>12}"
        table = (f"{row.name:<{wide}}  {row.type:<16}{row.forward_ms:>9.3f} ms{row.backward_ms:>9.3f} ms" for row in rows)
        return "\n".join([*self.summary(), "", head, *table])

    def launch_table(self, share: float = 1.0) -> Iterator[str]:
        """Lines: launches, the longest first, until they make this share of the time; the others as a sum."""
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
    """The beginning of what a generated kernel computes."""
    return text if len(text) <= most else text[: most - 3] + "..."


def measure(session: Session, title: str, nodes: Sequence[Node], run: Callable[[int], object], iterations: int) -> NetProfile:
    """Profile `run`, which enqueues so many iterations of command_lists of this session; one more warms up. Raises Error for less than one iteration."""
    if iterations < 1:
        raise Error(f"profile over {iterations} iterations", fix="at least 1")
    peaks = measure_peaks(session)
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
    return LaunchTime(launch.layer, "again" if launch.recomputed else launch.phase, kernel, kind, 1000 * seconds, launch.flops, moved, of_peak)


def _kind(launch: Launch) -> tuple[str, str]:
    """LaunchTime's kind, and a name."""
    if isinstance(launch, Upload):
        return "transfer", "upload"
    if isinstance(launch, (HostCall, Measure)):
        return "host", launch.what
    call = launch.final()
    if call.generated:
        return "generated", launch.what
    return "product" if launch.flops else "other", f"{call.program}.{call.function}"


def moved_bytes(launch: Launch, wanted: Collection[Ref]) -> int:
    """What the operands must move once: each value that is read, each that is written; not the workspace of a launch, which is not among the roots that
    anybody reads (`wanted`). A kernel that has no use for an operand gets another one again."""
    own = [operand for operand in launch.operands if operand.ref.root.role is not Role.SCRATCH or operand.ref.root in wanted]
    moved = {(operand.ref.root, operand.ref.root_offset, operand.ref.shape): operand for operand in own}
    return sum(operand.ref.nbytes * (2 if operand.access is Access.MODIFY else 1) for operand in moved.values())
