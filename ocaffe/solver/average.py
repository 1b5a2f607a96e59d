"""The exponential moving average of the weights (ema_decay). It lives on the device; where it is wanted in the net, it and the weights change places."""
from __future__ import annotations

import contextlib
from collections.abc import Iterator

from ocaffe.cl.session import Session
from ocaffe.compiler.network import CompiledNet
from ocaffe.ir.recorder import Recorder
from ocaffe.solver.update import Updater


class Average:
    """The average that `updater` maintains, of the parameters that are trained. Others (BatchNorm's statistics) have none: beside the average stand their
    present values."""

    def __init__(self, session: Session, updater: Updater) -> None:
        assert updater.average is not None
        self.session, self.values = session, updater.average
        self.weights = updater.group.data.view(self.values.shape)
        rec = Recorder(session.device.target, train=False)
        rec.enter("average", "update")
        updater.exchange(rec)
        self._exchange = CompiledNet.of_launches(session, rec).commands
        self._in_net = False

    def restart(self) -> None:
        """Begin anew from the present weights."""
        self.session.write(self.values, self.session.read(self.weights))

    @contextlib.contextmanager
    def in_net(self, wanted: bool = True) -> Iterator[None]:
        """Within, the net has the average for weights; with `wanted` false the weights themselves, also inside of another `in_net`."""
        before = self._in_net
        self._put(wanted)
        try:
            yield
        finally:
            self._put(before)

    def _put(self, in_net: bool) -> None:
        if in_net != self._in_net:
            if self._exchange not in self.session.command_lists:
                self.session.bind([self._exchange])
            self._exchange.run()
            self._in_net = in_net
