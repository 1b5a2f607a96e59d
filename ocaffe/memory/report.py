"""The memory plan as text: bytes by category, the peak, and the Refs that are live there."""
from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from ocaffe import proto
from ocaffe.errors import NoRoom, shape_text
from ocaffe.ir.graph import Graph
from ocaffe.ir.launch import Schedule, Transfer, roots
from ocaffe.ir.target import Target
from ocaffe.ir.tensor import Ref, Role
from ocaffe.memory.plan import MemoryPlan
from ocaffe.shown import Lines

ROLES = {
    Role.PARAMETER: "parameters", Role.HISTORY: "solver history", Role.STAGING: "staging ring", Role.INPUT: "inputs", Role.STATE: "state",
    Role.CONSTANT: "constants", Role.OUTPUT: "outputs", Role.GRADIENT: "held gradients", Role.SCRATCH: "prepared weights",
}  # fmt: skip

OF_ALL_LAYERS = (Role.PARAMETER, Role.HISTORY, Role.GRADIENT)


def size_text(size: float) -> str:
    """Bytes for people: `9.6 GiB`, `512 KiB`."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if size < 1024 or unit == "GiB":
            return f"{size:.0f} {unit}" if unit == "B" or size >= 100 else f"{size:.1f} {unit}"
        size /= 1024
    raise AssertionError


def size_texts(first: float, second: float) -> tuple[str, str]:
    """Two sizes for people, in units small enough to tell them apart: `1.4 GiB` and `700 MiB`, but `1437 MiB` and `1400 MiB`."""
    found = size_text(first), size_text(second)
    for exponent, unit in ((2, "MiB"), (1, "KiB"), (0, "B")):
        if found[0] != found[1] or first == second:
            break
        found = f"{first / 1024**exponent:.0f} {unit}", f"{second / 1024**exponent:.0f} {unit}"
    return found


def kept_on_host(schedules: Iterable[Schedule]) -> set[Ref]:
    """The persistent Refs in the host's memory: those that only copies access."""
    copied: set[Ref] = set()
    used: set[Ref] = set()
    for schedule in schedules:
        for launch in schedule:
            (copied if isinstance(launch, Transfer) else used).update(operand.ref.root for operand in launch.operands if operand.ref.root.persistent)
    return copied - used


def host_bytes(schedules: Sequence[Schedule], plans: Iterable[MemoryPlan]) -> int:
    """Bytes in the host's memory of nets that share it."""
    return sum(root.nbytes for root in kept_on_host(schedules)) + max(sum(plan.host_slabs) for plan in plans)


def persistent(schedules: list[Schedule]) -> dict[Role, int]:
    """Bytes by role of the memory of the device that is never recycled. Each Ref counts once."""
    refs: set[Ref] = {ref for schedule in schedules for ref in roots(schedule) if ref.persistent} - kept_on_host(schedules)
    result: dict[Role, int] = {}
    for ref in refs:
        result[ref.role] = result.get(ref.role, 0) + ref.nbytes * ref.slots
    return result


def fixed_bytes(schedules: list[Schedule]) -> int:
    """Bytes of the memory that is never recycled, with every slot of its rings."""
    return sum(persistent(schedules).values())


def bytes_beside(schedules: Sequence[Schedule]) -> list[int]:
    """For each of the nets of a solver: the bytes that the others keep."""
    return [fixed_bytes([*schedules]) - fixed_bytes([schedule]) for schedule in schedules]


def check_buffers(schedule: Schedule, target: Target) -> None:
    """Raise Error if a tensor is larger than a buffer of the device may be. It names the layer that uses the tensor first."""
    for launch in schedule:
        for ref in (operand.ref.root for operand in launch.operands):
            if ref.nbytes <= target.largest_buffer:
                continue
            place = "all layers" if ref.role in OF_ALL_LAYERS else f"layer '{launch.layer}'"
            samples = ref.shape[0] * target.largest_buffer // ref.nbytes if ref.shape and place != "all layers" else 0
            raise NoRoom(
                f"{place}: the tensor {ref.name} ({shape_text(ref.shape)}) takes {size_text(ref.nbytes)}, and a buffer of '{target.name}' at most "
                f"{size_text(target.largest_buffer)} (CL_DEVICE_MAX_MEM_ALLOC_SIZE)",
                fix=f"lower batch_size from {ref.shape[0]} to {samples}; a solver's iter_size adds up the gradients of several batches"
                if samples
                else "choose a device with larger buffers; `ocaffe device_query` lists each one's Maximum allocation",
            )


def too_large(graph: Graph, schedule: Schedule, plan: MemoryPlan, beside: int, limit: int, batch: tuple[int, int], tried: str) -> NoRoom:
    """The error for a net that does not fit into `limit` bytes: the largest tensors, and the batch that would fit.

    `beside`: bytes that other nets of the solver keep. `batch`: the size that fits (0: none) and the present one. `tried`: the savings that were tried.
    """
    refs = {*(life.ref for life in plan.live_at(plan.peak_step)), *(ref for ref in roots(schedule) if ref.persistent)}
    largest = sorted(refs, key=lambda ref: (-ref.nbytes * ref.slots, ref.name, ref.role.value))[:5]
    names = ", ".join(f"{ref.name} ({ref.role.value}, {shape_text(ref.shape)}, {size_text(ref.nbytes * ref.slots)})" for ref in largest)
    fixed, (fits, present) = fixed_bytes([schedule]) + beside, batch
    needed, allowed = size_texts(fixed + plan.total, limit)
    return NoRoom(
        Lines(
            f"the {proto.Phase.Name(graph.phase)} net needs {needed}, {allowed} are allowed",
            f"  parameters, solver history and input buffers {size_text(fixed)}, blobs and gradients {size_text(plan.total)} {tried}",
            f"  largest: {names}",
        ),
        place=graph.message.source_file or None,
        fix=f"batch_size {fits} (it is {present}), or a higher --memory-limit" if fits else "a higher --memory-limit",
    )


def report(name: str, schedule: Schedule, plan: MemoryPlan) -> Iterator[str]:
    """The lines of one plan: sizes, the bound, the peak and the Refs that are live there."""
    ratio = plan.total / plan.lower_bound if plan.lower_bound else 1.0
    yield f"{name}: {len(schedule)} launches, recycled {size_text(plan.total)} in {len(plan.slabs)} slab(s)"
    yield f"  lower bound {size_text(plan.lower_bound)}, plan / bound {ratio:.3f}"
    if plan.lives:
        launch = schedule[min(plan.peak_step, len(schedule) - 1)]
        yield f"  peak at step {plan.peak_step}, {launch.phase} of '{launch.layer}' ({launch.what}), where live:"
        for life in sorted(plan.live_at(plan.peak_step), key=lambda life: -life.size)[:5]:
            yield f"    {life.ref.name:<32} {shape_text(life.ref.shape):<24} {size_text(life.size):>9}  {life.ref.role.value}"


def dump(schedule: Schedule, plan: MemoryPlan) -> Iterator[str]:
    """Every launch with its operands and their places. Those of a task graph have its number."""
    for step, launch in enumerate(schedule):
        operands = []
        for operand in launch.operands:
            root = operand.ref.root
            place = f"@{plan.places[root][0]}:{plan.places[root][1]}" if root in plan.places else f"@{root.role.value}"
            operands.append(f"{operand.access.value} {operand.ref.name}{place}")
        graph = "" if launch.graph is None else f"graph {launch.graph}"
        yield f"{step:4d} {launch.phase:<8} {graph:<8} {launch.layer:<24} {launch.what:<32} {', '.join(operands)}"
