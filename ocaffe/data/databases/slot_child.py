"""Child process that holds a reader slot of an LMDB: the library opens a database only once in a process, and scripts open theirs too.

Run it as a file and never import it: `python slot_child.py SYS_PATH DATABASE MODE`, SYS_PATH as JSON, MODE of a new lock file. It writes the number of its
transaction, and a new one for each line of stdin; or `!` and the reason why there is no slot. It ends with its parent, which closes stdin.
"""
from __future__ import annotations

import json
import signal
import sys


def main() -> None:
    sys.path[:] = json.loads(sys.argv[1])
    for number in (signal.SIGINT, getattr(signal, "SIGHUP", signal.SIGINT), signal.SIGTERM):  # to the whole group; the parent decides
        signal.signal(number, signal.SIG_IGN)
    import lmdb

    try:
        environment = lmdb.open(sys.argv[2], readonly=True, create=False, mode=int(sys.argv[3]))
        environment.reader_check()  # frees the slots of processes that were killed
        while True:
            transaction = environment.begin()
            print(transaction.id(), flush=True)
            if not sys.stdin.readline():
                return
            transaction.abort()
    except (OSError, lmdb.Error) as problem:
        print(f"!{problem.strerror if isinstance(problem, OSError) else problem}", flush=True)


if __name__ == "__main__":
    main()
