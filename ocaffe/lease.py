"""How long the buffers of a session live: as long as one of its nets."""
from __future__ import annotations

import contextlib
import weakref
from typing import TYPE_CHECKING

from ocaffe.cl.session import Session

if TYPE_CHECKING:
    from ocaffe.engine import Engine


class Lease:
    """Keeps the buffers of a session; all nets and solvers that share it hold one. With the last of them the buffers go."""

    def __init__(self, session: Session, owns_device: bool = False) -> None:
        self.session, self.owns_device = session, owns_device
        self.engines: weakref.WeakSet[Engine] = weakref.WeakSet()

    def close(self) -> None:
        """Free all buffers; the nets of the session are of no use from here on."""
        for engine in self.engines:
            engine.closed = True
            engine.network.close()
        self.session.dispose()
        if self.owns_device and self.session.device.context is not None:
            self.session.device.close()

    def __del__(self) -> None:
        with contextlib.suppress(Exception):  # the interpreter may be going down
            self.close()
