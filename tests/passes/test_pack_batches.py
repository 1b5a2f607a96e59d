"""Batches of packs (ocaffe/passes/pack_batches.py)."""
from __future__ import annotations

from ocaffe.ir.kernel import Can, Kernel
from ocaffe.ir.launch import Access, Launch, Operand
from ocaffe.ir.tensor import Ref, Role
from ocaffe.passes import jobs, pack_batches


def pack(filters: Ref, phase: str = "forward", count: int = 64) -> Launch:
    from ocaffe.ir.recorder import Recorder
    from ocaffe.ir.target import Target

    rec = Recorder(Target(kind="gpu", compute_units=4), train=True)
    rec.enter("conv", phase)
    args = [8, 8, 1, 1, 0, 32, 16, count, count]
    rec.launch(pack_batches.PACK(filters0=filters, packed0=rec.scratch("packed", (count * 4,))), args=args, size=(count,), local=(32,))
    return rec.launches[0]


def filters(name: str) -> Ref:
    return Ref(name, (8, 8, 1, 1), Role.PARAMETER)


def test_one_launch_for_each_phase() -> None:
    schedule = [pack(filters("a")), pack(filters("b"), count=32), pack(filters("c"), "backward"), pack(filters("d"))]
    packed = [ref for launch in schedule if launch.phase == "forward" for ref in launch.writes]
    forward, backward = pack_batches.batch_packs(schedule)
    call = forward.final()
    assert (call.size, call.scalars[-1], call.defines) == ((160,), 160, (("JOBS", "3"),))
    assert forward.writes == packed and [ref.name for ref in forward.reads] == ["a", "b", "d"]
    assert backward is schedule[2]


def test_limits() -> None:
    schedule = [pack(filters(str(i))) for i in range(jobs.MOST_JOBS + 1)]
    assert [len(launch.reads) for launch in pack_batches.batch_packs(schedule)] == [jobs.MOST_JOBS, 1]
    half = pack_batches.MOST_BYTES // 2 // 16
    schedule = [pack(filters(str(i)), count=half) for i in range(3)]
    assert [len(launch.reads) for launch in pack_batches.batch_packs(schedule)] == [2, 1]


def test_changed_filters_are_packed_again() -> None:
    a, b = filters("a"), filters("b")
    update = Launch("conv", "forward", [Operand(b, Access.MODIFY)], Kernel("update", can=Can(side_effect=True)))
    schedule = [pack(a), update, pack(b), pack(a)]
    result = pack_batches.batch_packs(schedule)
    assert [[ref.name for ref in launch.reads] for launch in result] == [["a"], ["b"], ["b", "a"]]
