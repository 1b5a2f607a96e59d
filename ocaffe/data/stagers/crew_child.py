"""A process of crew.py: it stages chunks of batches until its parent closes the socket."""
from __future__ import annotations

import contextlib
import json
import mmap
import os
import pickle
import signal
import socket
import sys

_MESSAGE = 1 << 20  # bytes of a request at most


def main() -> None:
    sys.path[:] = json.loads(sys.argv[1])
    tasks, results = (socket.socket(fileno=int(descriptor)) for descriptor in sys.argv[2:4])
    descriptor, size = int(sys.argv[4]), int(sys.argv[5])
    for number in (signal.SIGINT, signal.SIGHUP, signal.SIGTERM):  # to the whole group; the parent decides, and this process ends with it
        signal.signal(number, signal.SIG_IGN)
    import numpy as np

    stage = pickle.load(sys.stdin.buffer)
    memory = np.frombuffer(mmap.mmap(descriptor, os.fstat(descriptor).st_size), np.uint8)
    with contextlib.suppress(OSError):  # the parent has ended
        results.sendall(pickle.dumps((-1, 0, None)))
        message = memoryview(bytearray(_MESSAGE))  # one for all requests: the memory of a new one would be mapped each time
        while received := tasks.recv_into(message):
            (slot, place), number, frame, chunk = pickle.loads(message[:received])
            try:
                result = stage.write(pickle.loads(frame), chunk, memory[place : place + size])
            except Exception:  # the parent tries again, and raises it
                result = None
            results.sendall(pickle.dumps((slot, number, result)))


if __name__ == "__main__":
    main()
