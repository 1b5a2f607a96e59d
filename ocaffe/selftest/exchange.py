"""Cases of `ocaffe selftest` for the kernels of kernels/training/exchange.cl, which average gradients over ranks."""
from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ocaffe.cl.device import Device
from ocaffe.cl.session import Session
from ocaffe.compiler.compiled_nets import of_launches
from ocaffe.ir.kernel import Kernel, modify, read, write
from ocaffe.ir.launch import Schedule
from ocaffe.ir.recorder import Recorder
from ocaffe.ir.target import Target
from ocaffe.ir.tensor import BFLOAT, FLOAT, Ref, Role
from ocaffe.selftest.case import Finding, difference

AVERAGE = Kernel("exchange.average", read("others"), modify("own"))
CONVERT = Kernel("exchange.convert", read("x"), write("y"))

RANKS, RANK, CHUNK, COUNT = 4, 2, 96, 83


@dataclass(frozen=True)
class ExchangeCase:
    """The average of one chunk on rank RANK of RANKS, in floats or, with 16 `bits`, in bfloat16 with conversions before and after."""

    bits: int

    @property
    def name(self) -> str:
        return f"exchange of gradients: {self.bits} bits"

    def record(self, target: Target) -> tuple[Recorder, Ref, Ref]:
        """Return the recorded launches, the chunks of the other ranks, and this rank's chunk."""
        rec = Recorder(target, train=True)
        others, own = Ref("others", ((RANKS - 1) * CHUNK,), Role.INPUT), Ref("own", (COUNT,), Role.INPUT)
        kind, read, written = "float", others, own
        rec.enter("exchange", "update")
        if self.bits == 16:
            kind = "bfloat"
            read, written = (Ref(f"{ref.name} in 16 bits", ref.shape, Role.SCRATCH, BFLOAT) for ref in (others, own))
            for source, packed in ((others, read), (own, written)):
                self._convert(rec, source, packed)
        args = [RANKS, RANK, CHUNK, COUNT, 1 / RANKS]
        rec.launch(AVERAGE(others=read, own=written), args=args, size=(COUNT,), defines={"WIRE": kind})
        if self.bits == 16:
            self._convert(rec, written, own)
        return rec, others, own

    def launches(self, target: Target) -> Schedule:
        """Return the launches that `run` gives a device."""
        return self.record(target)[0].launches

    @staticmethod
    def _convert(rec: Recorder, source: Ref, result: Ref) -> None:
        types = {name: "float" if ref.dtype == FLOAT else "bfloat" for name, ref in (("SOURCE_T", source), ("RESULT_T", result))}
        rec.launch(CONVERT(x=source, y=result), args=[source.count], size=(source.count,), defines=types)

    def run(self, device: Device) -> list[Finding]:
        session = Session(device)
        rec, others, own = self.record(device.target)
        commands = of_launches(session, rec).commands
        session.bind([commands])
        rng = np.random.default_rng(5)
        # Multiples of 1/8 below 4 have at most 5 bits, and their sums at most 7: bfloat16 holds all of them.
        given, mine = (rng.integers(-31, 32, count).astype(np.float32) / 8 for count in (others.count, COUNT))
        session.write(others, given)
        session.write(own, mine)
        commands.run()
        chunks = [chunk[:COUNT] for chunk in given.reshape(RANKS - 1, CHUNK)]
        return [difference("average", session.read(own), (sum(chunks) + mine) / np.float64(RANKS))]


def cases() -> list[ExchangeCase]:
    return [ExchangeCase(32), ExchangeCase(16)]
