"""Move copies of persistent values away from the launches that use them, so that other launches run meanwhile.

Solver history and held gradients can be in the host's memory (`Recorder.on_host`). A range of them is recorded with a copy to the device right before its
first use, and one to the host right after its last use.
"""
from __future__ import annotations

from collections import defaultdict

from ocaffe.ir.launch import BeginFetch, BeginStore, EndFetch, EndStore, Launch, Schedule, Transfer
from ocaffe.ir.tensor import Ref

SPREAD = 32 << 20  # bytes: larger ranges stay, since they would take their memory for long


def spread_copies(schedule: Schedule) -> Schedule:
    """Begin to fetch a range when the range before it is needed, and end to store it before the next one is stored.

    A range that is stored and fetched in one schedule is fetched after it is stored.
    """
    copies = [(step, launch) for step, launch in enumerate(schedule) if isinstance(launch, Transfer) and launch.host.persistent]
    fetches, stores = _runs(copies, (BeginFetch, EndFetch)), _runs(copies, (BeginStore, EndStore))
    ends = [(step, launch.host) for step, launch in copies if isinstance(launch, EndStore)]
    begins: list[tuple[int, Ref]] = []  # new steps of the fetches that begin
    before: dict[int, list[int]] = defaultdict(list)  # step -> those that move there
    earliest = next((step for step, launch in enumerate(schedule) if launch.phase != "forward"), 0)
    for run in fetches:
        for step in run:
            if isinstance(launch := schedule[step], BeginFetch):
                stored = max((end + 1 for end, host in ends if end < step and host.overlaps(_host(launch))), default=0)
                begins.append((max(earliest, stored), _host(launch)))
                before[max(earliest, stored)].append(step)
        earliest = run[0]
    for run, following in zip(stores, [*stores[1:], [len(schedule)]]):
        for step in run:
            if isinstance(launch := schedule[step], EndStore):
                fetched = min((begin for begin, host in begins if begin > step and host.overlaps(_host(launch))), default=len(schedule))
                before[min(following[0], fetched)].insert(0, step)
    moved = {step for steps in before.values() for step in steps}
    result: Schedule = []
    for step in range(len(schedule) + 1):
        result += [schedule[each] for each in before.get(step, ())]
        result += [schedule[step]] if step < len(schedule) and step not in moved else []
    return result


def _runs(copies: list[tuple[int, Transfer]], kinds: tuple[type[Transfer], ...]) -> list[list[int]]:
    """The steps of small copies of these kinds. Those of neighbouring steps, such as the copies for one update, are together."""
    result: list[list[int]] = []
    for step, launch in copies:
        if isinstance(launch, kinds) and launch.host.nbytes <= SPREAD:
            if not result or result[-1][-1] != step - 1:
                result.append([])
            result[-1].append(step)
    return result


def _host(launch: Launch) -> Ref:
    assert isinstance(launch, Transfer)
    return launch.host
