"""Move the copies of solver history away from the update that uses it, so that other launches run meanwhile.

With `Recorder.history_on_host` history is in the host's memory. Each update fetches its range right before, and stores it right after.
"""
from __future__ import annotations

from collections import defaultdict

from ocaffe.ir.launch import BeginFetch, EndFetch, EndStore, Schedule, Transfer
from ocaffe.ir.tensor import Role

SPREAD = 32 << 20  # bytes: larger ranges stay, since they would take their memory during all of backward


def spread_history(schedule: Schedule) -> Schedule:
    """Begin to fetch history after the update before, and end to store it before the next one, so that other launches run meanwhile."""
    updates: list[list[int]] = []  # the steps of the copies of each update
    for step, launch in enumerate(schedule):
        if isinstance(launch, Transfer) and launch.host.root.role is Role.HISTORY and launch.host.nbytes <= SPREAD:
            if isinstance(launch, BeginFetch) and (not updates or isinstance(schedule[updates[-1][-1]], EndStore)):
                updates.append([])
            updates[-1].append(step)
    if not updates:
        return schedule
    before: dict[int, list[int]] = defaultdict(list)  # step -> those that move there
    begin = next(step for step, launch in enumerate(schedule) if launch.phase != "forward")
    for steps, following in zip(updates, [*updates[1:], []]):
        end = next((step for step in following if isinstance(schedule[step], EndFetch)), len(schedule))
        for step in steps:
            if isinstance(schedule[step], BeginFetch):
                before[begin].append(step)
            elif isinstance(schedule[step], EndStore):
                before[end].append(step)
        begin = steps[-1] + 1
    moved = {step for steps in before.values() for step in steps}
    result: Schedule = []
    for step in range(len(schedule) + 1):
        result += [schedule[each] for each in before.get(step, ())]
        result += [schedule[step]] if step < len(schedule) and step not in moved else []
    return result
