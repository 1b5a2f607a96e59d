"""`CompiledNets`: the compiled nets of a graph on a session, for several options and shapes. It binds and runs them."""
from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

from ocaffe.cl.actions import Measured
from ocaffe.cl.command_list import CommandList
from ocaffe.cl.session import Arena, Session
from ocaffe.compiler.carried import carried
from ocaffe.compiler.compile import CompiledNet, compile_net, nearest_net
from ocaffe.compiler.inputs import Inputs
from ocaffe.compiler.shapes import Shapes
from ocaffe.graph.options import NetOptions
from ocaffe.graph.parameters import ParameterGroup
from ocaffe.graph.record import Recording, Update
from ocaffe.ir.launch import Schedule
from ocaffe.ir.recorder import Recorder
from ocaffe.ir.tensor import Ref, Role
from ocaffe.memory.plan import plan
from ocaffe.passes.optimise import optimise, pipeline
from ocaffe.support.switches import Switches

SHAPES_KEPT = 32  # command lists for the last few input shapes stay bound


def of_launches(session: Session, rec: Recorder) -> CompiledNet:
    """Return compiled launches that belong to no net, such as a solver's update."""
    target = session.device.target
    schedule, _ = optimise(rec.launches, pipeline(target, fuse=False, share=False, recomputes=False, limited=bool(rec.on_host)))
    placed = plan(schedule, alignment=target.alignment)
    compiled = CompiledNet(Recording(schedule, 0, 0, [], {}, rec.step, {}, {}, {}, {}, []), placed, NetOptions())
    compiled.commands = CommandList(session, schedule, placed, rec.step)
    return compiled


class CompiledNets:
    """The compiled nets of one graph, whose parameters are in `group`. `arena`: for recycled memory; None: the session's."""

    def __init__(self, shapes: Shapes, group: ParameterGroup, inputs: Inputs, session: Session, arena: Arena | None = None) -> None:
        self.shapes, self.group, self.inputs, self.session, self.arena = shapes, group, inputs, session, arena
        self.switches = Switches.read()
        self._made: OrderedDict[Any, CompiledNet] = OrderedDict()

    def all(self) -> list[CompiledNet]:
        """Return those that have not been dropped, the one that was used last at the end."""
        return list(self._made.values())

    def compiled(self, options: NetOptions, update: Update | None = None) -> CompiledNet:
        """Return the compiled net for these options and the present shapes, with `update` at its end.

        The first call compiles it; `bound` binds it to the device.
        """
        kind = (options, update is not None)
        key = (kind, self.shapes.key())
        if key not in self._made:
            made = compile_net(self.shapes.graph, self.group, self.session.device.target, options, self.switches, update)
            made.commands = self._commands(made)
            self._made[key] = made
            self._drop([other for other in self._made if other[0] == kind][:-SHAPES_KEPT])
        self._made.move_to_end(key)
        return self._made[key]

    def _commands(self, made: CompiledNet) -> CommandList:
        options, schedule = made.options, made.recording.schedule
        commands = CommandList(self.session, schedule, made.plan, made.recording.step, self.switches.poison, self.arena, options.apart)
        commands.prefetchers = self.inputs.prefetchers
        return commands

    def unlimited(self, options: NetOptions, update: Update | None = None) -> Schedule:
        """Return the schedule without a memory limit. Nothing is allocated on the device."""
        options = replace(options, limit=None)
        return compile_net(self.shapes.graph, self.group, self.session.device.target, options, self.switches, update).recording.schedule

    def nearest(self, options: NetOptions, update: Update | None, limit: int | None, beside: int) -> CompiledNet:
        """Return the net within a limit, or else the smallest one, without its commands. Nothing is allocated on the device."""
        options = replace(options, limit=limit, beside=beside)
        return nearest_net(self.shapes.graph, self.group, self.session.device.target, options, self.switches, update)

    def bound(self, options: NetOptions, update: Update | None = None) -> CompiledNet:
        """Return the compiled net, bound to the device."""
        compiled = self.compiled(options, update)
        self.session.bind([compiled.commands])
        return compiled

    def run(self, compiled: CompiledNet, start: int = 0, stop: Callable[[Recording], int] | None = None) -> CompiledNet:
        """Enqueue the launches from `start` up to `stop(recording)` (default: all). Return the compiled net that holds the results.

        If a layer's measured extent gives its tops other shapes, the rest of the net runs in the compiled net for those
        shapes. All values that later launches need are copied to it.
        """
        while True:
            try:
                compiled.commands.run(start, None if stop is None else stop(compiled.recording))
                return compiled
            except Measured as measured:
                compiled = self._resized(compiled, measured)
                start = measured.step + 1

    def _resized(self, old: CompiledNet, measured: Measured) -> CompiledNet:
        self.shapes.measured(measured.layer, measured.extent)
        new = self.compiled(old.options, old.update)
        if new is old:
            return old
        # The values are read before binding, because binding may move the arena.
        values = {new.recording.step: old.commands.read(old.recording.step)}
        for source, target in self._carried(old, new, measured):
            if target.root.role is not Role.CONSTANT and (source.root is not target.root or new.commands.outputs.holds(target)):
                values[target] = old.commands.read(source)
        self.bound(old.options, old.update)
        new.commands.go_on(old.commands.runs)
        for ref, array in values.items():
            new.commands.write(ref, array)
        return new

    def _carried(self, old: CompiledNet, new: CompiledNet, measured: Measured) -> Iterator[tuple[Ref, Ref]]:
        """Yield the values to carry over. Raises Error if the two plans keep other values, which happens only under a memory limit."""
        found = carried(old.commands.schedule, new.commands.schedule, measured.step)
        lost = [target for source, target in found or () if source is None]
        if found is None or lost:
            fact = f"needs '{lost[0].name}', which the plan for the old shape has dropped" if lost else "has other launches before this layer"
            assert old.options.limit is not None, f"layer '{measured.layer.param.name}': the plan for its new shape {fact}"
            text = f"with its new shape, the plan {fact} to keep the memory limit"
            raise measured.layer.error(text, "give --memory-limit a larger number, or begin with the largest shape and reshape to smaller ones")
        for source, target in found:
            if source is not None:
                yield source, target

    def move_to(self, session: Session) -> None:
        """Continue in another session. All compiled nets are dropped."""
        self._drop(list(self._made))
        self.session = session

    def forget(self, options: NetOptions) -> None:
        """Free the device resources of the compiled nets for these options."""
        self._drop([key for key, compiled in self._made.items() if compiled.options == options])

    def _drop(self, keys: Sequence[Any]) -> None:
        for key in keys:
            commands = self._made.pop(key).commands
            if commands in self.session.command_lists:
                self.session.release(commands)
