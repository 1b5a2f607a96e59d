"""Several devices: `--gpu 0,1` starts one process per device by MPI's mpiexec. In each of them, the command runs again as a rank."""
from __future__ import annotations

import argparse
import contextlib
import os
import select
import signal
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import FrameType

from ocaffe.cl.device import Device, DeviceInfo, choose_several, list_devices, no_opencl, open_device
from ocaffe.cli.flags import Parser
from ocaffe.errors import Error
from ocaffe.parallel.mpiexec import ENVIRONMENT, ends_with, find_mpiexec
from ocaffe.parallel.transports import TRANSPORTS
from ocaffe.parallel.world import World, first_of_host, join, ranks_expected
from ocaffe.support import log, parent
from ocaffe.support.interpreter import interpreter


def rank_flags(parser: Parser) -> None:
    parser.flag("exchange", "auto", "transport of gradients between several devices", choices=TRANSPORTS)
    parser.flag("gradient_bits", 32, "bits of a gradient's value on its way between devices: 32, or 16 (bfloat16) to halve the traffic of --exchange mpi")


def listed(options: argparse.Namespace) -> list[DeviceInfo]:
    """Return the devices that --gpu or --device lists. Empty: neither lists several."""
    if options.gpu != "all" and "," not in (options.gpu or options.device):
        return []
    devices = list_devices()
    if not devices:
        raise no_opencl()
    return choose_several(devices, options.device or None, options.gpu or None)


def started_ranks(command: str, argv: Sequence[str], options: argparse.Namespace) -> int | None:
    """Run the command on several devices if the flags list several. Return the exit status. None: this process runs the command itself."""
    count = len(listed(options))
    if count < 2 or ranks_expected()[0] > 1:
        return None
    mpiexec = find_mpiexec()
    if not mpiexec:
        raise Error(f"{count} devices are chosen, and there is no mpiexec to start one process for each", fix="pip install mpi4py mpich")
    return _run([*mpiexec, "-n", str(count), interpreter(), "-m", "ocaffe", command, *argv])


def _run(command: Sequence[str]) -> int:
    """Run mpiexec. Signals go to rank 0, which agrees with the others on their effect. Name the rank that ended first if it could not do so itself."""
    with tempfile.TemporaryDirectory(prefix="ocaffe-ranks-") as folder:
        environment = {**os.environ, **ENVIRONMENT, **parent.telling(ranks=folder)}
        # In a session of its own, or else a terminal's Ctrl-C would reach mpiexec too, which would kill the ranks.
        process = subprocess.Popen(command, env=environment, stdin=subprocess.DEVNULL, start_new_session=True, preexec_fn=ends_with(os.getpid()))
        ranks = _Ranks(Path(folder), process)
        with _forwarded(ranks):
            ranks.watch()
            status = process.wait()
        if ranks.lost:
            log.tell("interrupted" if ranks.signalled else f"error: {ranks.lost}")
            status = status or 1  # a library can end a process with status 0
        return 0 if status == 0 else status if 0 < status < 126 else 1


class _Ranks:
    """The ranks that mpiexec has started, as they tell in the files of a folder: one file per rank with its process.

    A rank removes its file at its end. If it reports an error, it removes all files: the other ranks are ended because of it.
    """

    def __init__(self, folder: Path, starter: subprocess.Popen[bytes]) -> None:
        self.folder, self.starter = folder, starter
        self.lost = ""  # about the rank that ended first without a word
        self.signalled = False
        self._handles: dict[int, Path] = {}  # of processes, with the files of their ranks

    def told(self) -> dict[Path, int]:
        """Return the processes of the ranks by their files."""
        result = {}
        for path in sorted(self.folder.glob("rank *")):
            with contextlib.suppress(OSError, ValueError):
                result[path] = int(path.read_text())
        return result

    def watch(self) -> None:
        """Return when the ranks have ended. Note the first one that was killed."""
        seen: set[Path] = set()
        while self.starter.poll() is None and not self.lost:
            ended: list[Path] = []
            for path, process in self.told().items():
                if path not in seen and hasattr(os, "pidfd_open"):
                    seen.add(path)
                    try:
                        self._handles[os.pidfd_open(process)] = path
                    except OSError:  # it has ended already
                        ended.append(path)
            handles = [] if ended else self._ended()
            ended += [self._handles.pop(handle) for handle in handles]
            for handle in handles:
                os.close(handle)
            if lost := [path.name for path in ended if path.exists()]:  # several if this process saw them too late to know the first one
                self.lost = _killed(" or ".join(sorted(lost)))
        for handle in self._handles:
            os.close(handle)
        if not self.lost and (left := self.told()):  # seen too late to know the first one
            self.lost = _killed(" or ".join(path.name for path in left))

    def _ended(self) -> list[int]:
        """Wait a short time. Return the handles of processes that have ended."""
        if self._handles:
            return select.select(list(self._handles), [], [], 0.2)[0]
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.starter.wait(0.2)
        return []

    def send(self, number: int) -> None:
        """Send a signal to rank 0, or to mpiexec if the ranks have not begun."""
        self.signalled = True
        if os.name == "nt":  # its Ctrl-C reaches all ranks by itself, and os.kill would end one without a snapshot
            return
        first = next(iter(self.told().values()), None)
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.starter.pid if first is None else first, number)


def _killed(names: str) -> str:
    return f"{names} was killed, or a library ended it; if no one did, the system did for lack of memory. The other ranks were ended"


@contextlib.contextmanager
def _forwarded(ranks: _Ranks) -> Iterator[None]:
    numbers = [getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name)]

    def forward(number: int, frame: FrameType | None) -> None:
        ranks.send(number)

    before = {number: signal.signal(number, forward) for number in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextlib.contextmanager
def ranked() -> Iterator[World]:
    """Context of a command that may be one of several ranks. If a rank raises, all end."""
    try:
        world = join()
    except Error as problem:
        if first_of_host():
            raise
        raise SystemExit(1) from problem  # the first rank of this host prints the same
    folder = parent.told("ranks") if world.several else ""
    with world.together(before=lambda: _forget(folder, "rank *")):
        name = f"rank {world.rank} of {world.size} on {world.hosts[world.rank]} (process {os.getpid()})"
        if folder:
            (Path(folder) / name).write_text(str(os.getpid()))
        yield world
        _forget(folder, name)


def _forget(folder: str, pattern: str) -> None:
    """Remove files of ranks, so that the process that started them does not report that they were killed."""
    for path in Path(folder).glob(pattern) if folder else ():
        path.unlink(missing_ok=True)


def rank_device(options: argparse.Namespace, world: World) -> Device | None:
    """Open the device of this rank, by the number of the rank on its host. It is one of the listed devices, or of those like the best one.

    None: one device is chosen for all ranks, or there is one rank.
    """
    chosen = listed(options)
    if chosen and world.local_size > len(chosen):
        fact = f"{world.local_size} ranks on {world.hosts[world.rank]}, and {len(chosen)} devices are chosen"
        raise Error(fact, fix=f"start {len(chosen)} ranks on each host, or choose {world.local_size} devices")
    if not chosen and world.several and not (options.gpu or options.device or os.environ.get("OCAFFE_DEVICE")):
        devices = [device for device in list_devices() if not device.unusable]
        best = max(devices, key=DeviceInfo.rank, default=None)
        chosen = [device for device in devices if best and (device.kind, device.target.runtime) == (best.kind, best.target.runtime)]
    return open_device(chosen[world.local_rank % len(chosen)], options.math, options.kind) if chosen else None
