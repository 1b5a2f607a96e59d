"""Send batches ahead to a device with its own memory: from pinned memory, on another queue than the kernels, before the run that reads them."""
from __future__ import annotations

from collections import deque
from typing import Any, NamedTuple

import numpy as np

from ocaffe.cl.device import Device
from ocaffe.cl.pinned import is_pinned, pinned, pinner, upload
from ocaffe.data.prefetch import Batch, Prefetcher
from ocaffe.data.shared_buffers import SharedBuffers
from ocaffe.data.source import Source

OPEN = 2  # number of batches that the device may still read when the next one is requested
BUFFERS = 4 + OPEN  # batch buffers of the prefetcher: 4 batches that are ready or being read, besides those in transfer


class Ahead(NamedTuple):
    """A batch that was sent before the run that uses it."""

    batch: Batch
    buffer: Any
    event: Any


class Feed:
    """Send the batches of one source to the buffer that the next run reads. All command lists of a session that read the source share it.

    Results do not depend on a batch sent ahead: a run with another batch or another buffer sends its own batch.
    """

    def __init__(self) -> None:
        self._buffers: list[np.ndarray] = []
        self._shared: SharedBuffers | None = None
        self._source: Source | None = None  # that has them, too
        self._open: deque[tuple[Any, Batch, Prefetcher]] = deque()
        self._ahead: Ahead | None = None
        self._now: Any = None  # the buffer that the last run reads
        self._past: Any = None  # an event that completes when all runs before the last one are done

    def buffers(self, device: Device, source: Source) -> list[np.ndarray]:
        """Return pinned batch buffers for a new prefetcher of `source`. The previous prefetcher must be closed.

        Waits until no transfer reads them. Processes of the source can write to them if the driver pins shared memory.
        """
        ahead, self._ahead = self._ahead, None
        if ahead is not None:
            ahead.event.wait()
        while self._open:
            self._open.popleft()[0].wait()
        if self._shared is not None and self._shared.size == source.nbytes:
            return list(self._shared.own)
        if self._shared is None and (shared := _shared(device, source)) is not None:
            self._shared, self._source, source.shared = shared, source, shared
            return list(shared.own)
        if not self._buffers or self._buffers[0].nbytes != source.nbytes:
            self._buffers = [pinned(device, (source.nbytes,), np.uint8) for _ in range(BUFFERS)]
        return self._buffers

    def take(self, device: Device, prefetcher: Prefetcher, buffer: Any, timed: bool = False) -> Any:
        """Put the next batch into `buffer` for the launches enqueued after this call. Return an event.

        Waits for the batch, and raises the prefetcher's error if reading it failed. `timed`: the transfer runs on the
        kernels' queue, and the event is the transfer's.
        """
        cl = device.cl
        while self._open and (len(self._open) >= OPEN or complete(cl, self._open[0][0])):
            event, batch, owner = self._open.popleft()
            event.wait()
            owner.recycle(batch)
        batch = prefetcher.get()
        before, self._past = self._past, cl.enqueue_marker(device.queue)
        device.queue.flush()  # a command on the other queue may wait for the marker
        ahead, self._ahead = self._ahead, None
        sent: Any = ahead.event if ahead is not None else None
        if ahead is not None and (ahead.batch is not batch or ahead.buffer is not buffer):
            sent.wait()  # not used; wait, because it may write to the same buffer
            sent = None
        fresh = sent is None
        if sent is None:
            # The run before the last may still read this buffer. The last run may too, if another command list ran it.
            after = self._past if buffer is self._now else before
            sent = _send(device, device.queue if timed else device.upload_queue, buffer, batch.data, after)
        self._now = buffer
        self._open.append((sent, batch, prefetcher))
        barrier = cl.enqueue_barrier(device.queue, wait_for=[sent])
        return sent if timed and fresh else barrier

    def send_ahead(self, device: Device, prefetcher: Prefetcher, now: Any, following: Any) -> None:
        """Call this after enqueuing a run that reads `now`. If the next batch is ready, send it to `following`.

        The transfer waits for the runs before, which may still read `following`.
        """
        if self._ahead is not None or now is not self._now or following is now:
            return
        batch = prefetcher.ready()
        if batch is None or batch.data.nbytes > following.size:  # larger images need another buffer
            return
        # Does not wait: on an H100 the call takes 0.03 ms for 38 MB from pinned memory.
        self._ahead = Ahead(batch, following, _send(device, device.upload_queue, following, batch.data, self._past))

    def close(self) -> None:
        """Forget all transfers and batch buffers. OpenCL keeps the memory of transfers in progress."""
        if self._source is not None:
            self._source.unshare()
        self._ahead = None
        self._open.clear()


def _shared(device: Device, source: Source) -> SharedBuffers | None:
    """Return pinned batch buffers that processes of the source can write to, or None if it has none, or if the driver does not pin shared memory."""
    if not source.spare_buffers:
        return None
    try:
        buffers = SharedBuffers(source.nbytes, BUFFERS, source.spare_buffers, pinner(device))
    except OSError:  # the system refuses the file, or its map
        return None
    return buffers if all(map(is_pinned, buffers.own)) else None


def _send(device: Device, queue: Any, buffer: Any, data: np.ndarray, after: Any) -> Any:
    """Enqueue the transfer of a batch to a buffer of the device, after the event `after` if given. Return its event."""
    event = upload(device, queue, buffer, data, after=after)
    queue.flush()
    return event


def complete(cl: Any, event: Any) -> bool:
    """Return whether an event is complete."""
    return bool(event.command_execution_status == cl.command_execution_status.COMPLETE)
