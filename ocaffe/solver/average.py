"""The exponential moving average of the weights (ema_decay). It is on the device; a kernel swaps it with the weights on demand."""
from __future__ import annotations

import contextlib
from collections.abc import Iterator

from ocaffe.cl.session import Session
from ocaffe.compiler.compiled_nets import of_launches
from ocaffe.ir.recorder import Recorder
from ocaffe.solver.update import Updater


class Average:
    """The average of the trained parameters, which `updater` maintains.

    Other parameters, such as BatchNorm's statistics, have no average and keep their present values.
    """

    def __init__(self, session: Session, updater: Updater) -> None:
        assert updater.average is not None
        self.session, self.values = session, updater.average
        self.weights = updater.group.data.view(self.values.shape)
        rec = Recorder(session.device.target, train=False)
        rec.enter("average", "exchange")
        updater.exchange(rec)
        self._exchange = of_launches(session, rec).commands
        self._in_net = False

    def restart(self) -> None:
        """Restart the average from the present weights."""
        self.session.write(self.values, self.session.read(self.weights))

    @contextlib.contextmanager
    def in_net(self, wanted: bool = True) -> Iterator[None]:
        """Context in which the net uses the average as its weights; with `wanted` False, the weights. Contexts can be nested."""
        before = self._in_net
        self._put(wanted)
        try:
            yield
        finally:
            self._put(before)

    def _put(self, in_net: bool) -> None:
        if in_net != self._in_net:
            self.session.bind([self._exchange])
            self._exchange.run()
            self._in_net = in_net
