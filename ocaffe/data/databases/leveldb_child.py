"""Child process that reads all records of a LevelDB once: the library ends its process by a signal, or takes memory without limit, where a table is damaged.

Run it as a file and never import it: `python leveldb_child.py SYS_PATH FOLDER BYTES`, SYS_PATH as JSON. It writes the number of records, or `!` and the
reason why they cannot be read. BYTES: of memory that it may have.
"""
from __future__ import annotations

import contextlib
import json
import sys


def main() -> None:
    sys.path[:] = json.loads(sys.argv[1])
    import plyvel

    with contextlib.suppress(ImportError, ValueError, OSError):  # Windows has no limits
        import resource

        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # an abort is an expected result here: write no core file
        resource.setrlimit(resource.RLIMIT_AS, (int(sys.argv[3]), int(sys.argv[3])))
    try:
        database = plyvel.DB(sys.argv[2], create_if_missing=False, paranoid_checks=True)
        records, count = database.raw_iterator(verify_checksums=True, fill_cache=False), 0
        records.seek_to_first()
        while records.valid():
            count += 1
            records.next()  # the other iterator skips damaged blocks
        database.close()
        print(count, flush=True)
    except Exception as problem:  # the library has its own errors, and Python's for numbers out of range
        told = problem.args[0] if problem.args else ""
        text = told.decode("utf-8", "backslashreplace") if isinstance(told, bytes) else str(problem)
        print(f"!{' '.join(text.split()) or type(problem).__name__}", flush=True)


if __name__ == "__main__":
    main()
