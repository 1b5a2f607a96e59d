"""Processes stage the same bytes as threads. Their errors, their deaths and their end do not differ from those of threads for the user."""
from __future__ import annotations

import errno
import gc
import io
import os
import pathlib
import signal
import subprocess
import sys
import time
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from PIL import Image

import ocaffe
from ocaffe import proto
from ocaffe.data.prefetch import Prefetcher
from ocaffe.data.shared_buffers import SharedBuffers, address
from ocaffe.data.source import Share
from ocaffe.data.sources.database_images import ImageSource
from ocaffe.errors import Error
from ocaffe.formats.blob import write_blobproto
from tests.data.small_databases import batch_of, image, png, raw, samples, source, write

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="needs sockets that keep messages whole")
RANDOM = {"crop_size": 20, "mirror": True}


def jpeg(number: int, size: tuple[int, int] = (40, 48)) -> bytes:
    buffer = io.BytesIO()
    Image.fromarray(image(number, (*size, 3))).save(buffer, "JPEG", quality=80)
    return proto.Datum(data=buffer.getvalue(), label=number, encoded=True).SerializeToString()


def until(condition: Callable[[], Any]) -> None:
    deadline = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.005)


@pytest.fixture
def hurried() -> Iterator[Callable[..., ImageSource]]:
    made: list[ImageSource] = []

    def make(path: str, batch: int, step: int = 1, shared: int = 0, **fields: Any) -> ImageSource:
        """`shared`: the number of buffers of the consumer that the processes can write to."""
        made.append(source(path, batch, workers=3, **fields))
        if shared:
            assert made[-1].spare_buffers > 0
            made[-1].shared = SharedBuffers(made[-1].nbytes, shared, made[-1].spare_buffers)
        made[-1].hurry(step)
        assert made[-1]._crew is not None
        until(lambda: made[-1]._crew.ready)  # type: ignore[union-attr]
        return made[-1]

    yield make
    for each in made:
        each.close()


def same(first: ImageSource, second: ImageSource, index: int, buffer: np.ndarray | None = None) -> bool:
    """Whether batch number `index` has the same images and labels."""
    return all(np.array_equal(a, b) for a, b in zip(samples(first, index), samples(second, index, buffer)))


def children(made: ImageSource) -> list[subprocess.Popen[bytes]]:
    assert made._crew is not None
    return list(made._crew._state.children)


@pytest.mark.parametrize("kind", ["jpeg", "png", "large raw", "several sizes", "shuffled"])
def test_same_bytes(hurried: Callable[..., ImageSource], tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    sizes = [(44, 60), (40, 48), (20, 20)]  # the first ones have the most bytes
    records = {
        "png": lambda n: png(n, (3, 40, 48)), "large raw": lambda n: raw(n, (3, 110, 120)), "several sizes": lambda n: jpeg(n, sizes[n // 2 % 3]),
    }.get(kind, jpeg)  # fmt: skip
    path = write(tmp_path / "db", [records(n) for n in range(12)])
    fields: dict[str, Any] = {"transform": {} if kind == "several sizes" else RANDOM, "shuffle": kind == "shuffled"}
    batch = 2 if kind == "several sizes" else 5
    plain, crew = source(path, batch, **fields), hurried(path, batch, **fields)
    prefetcher = Prefetcher(crew, 3)
    run, staged = crew._threads.run, []
    with monkeypatch.context() as patched:
        patched.setattr(crew._threads, "run", lambda parts: [staged.append(1), *run(parts)][1:])  # type: ignore[func-returns-value]
        batches = [prefetcher.get() for _ in range(9)]
    prefetcher.close()
    assert len(staged) < len(batches)  # threads stage a batch only while the processes have no free slot
    for index, taken in enumerate(batches):
        assert same(plain, crew, index, taken.data)
    for index in (9, 10, 3, 30, 4, 5):  # after a jump the processes may be busy with other batches
        assert same(plain, crew, index)
    assert crew._crew is not None and crew._crew.ready and sum(crew.effort.seconds().values()) > 0


def test_processes_write_to_the_buffers_of_the_consumer(hurried: Callable[..., ImageSource], tmp_path: pathlib.Path) -> None:
    """No batch is copied. The consumer has as many buffers as before, each is in one place, and a new prefetcher has them, too."""
    path = write(tmp_path / "db", [jpeg(n) for n in range(12)])
    plain, made = source(path, 5, transform=RANDOM), hurried(path, 5, shared=4, transform=RANDOM)
    assert made.shared is not None and made._crew is not None
    state = made._crew._state
    state.copy = None  # type: ignore[assignment, method-assign]  # a call would fail
    first = {address(buffer) for buffer in made.shared.own}
    for start in (0, 20):
        prefetcher = Prefetcher(made, 5, start, buffers=list(made.shared.own))
        for index in range(start, start + 20):
            batch = prefetcher.get()
            assert same(plain, plain, index, batch.data)
            prefetcher.recycle(batch)
        prefetcher.close()
        own, theirs = ({address(buffer) for buffer in buffers} for buffers in (made.shared.own, [slot.memory for slot in state.slots]))
        assert len(own) == 4 and len(theirs) == len(state.slots) == made.spare_buffers and not own & theirs
        assert own != first
        assert made._crew.ready


def test_an_error_exchanges_no_buffer(hurried: Callable[..., ImageSource], tmp_path: pathlib.Path) -> None:
    path = write(tmp_path / "db", [b"bad" if n == 4 else jpeg(n) for n in range(12)])
    plain, made = source(path, 3, transform=RANDOM), hurried(path, 3, shared=2, transform=RANDOM)
    assert made.shared is not None and made._crew is not None
    buffer = made.shared.own[0]
    for _ in range(3):
        with pytest.raises(Error, match=r"record 4 \(key '00000004'\)"):
            made.fill(1, buffer)
        assert made.shared.own[0] is buffer and all(slot.memory is not buffer for slot in made._crew._state.slots)
    info = made.fill(0, buffer)
    assert info.buffer is not None and info.buffer is not buffer and made.shared.own[0] is info.buffer
    assert same(plain, plain, 0, info.buffer)


def test_processes_end_with_the_consumer_whose_buffers_they_have(hurried: Callable[..., ImageSource], tmp_path: pathlib.Path) -> None:
    path = write(tmp_path / "db", [jpeg(n) for n in range(9)])
    plain, made = source(path, 3, transform=RANDOM), hurried(path, 3, shared=2, transform=RANDOM)
    assert made.shared is not None
    buffer = made.fill(0, made.shared.own[0]).buffer
    first, alive = children(made), weakref.ref(made.shared)
    made.unshare()
    assert made._crew is None and made.shared is None and all(child.poll() is not None for child in first)
    until(lambda: gc.collect() >= 0 and alive() is None)
    assert buffer is not None and same(plain, plain, 0, buffer) and same(plain, made, 1)
    made.hurry()
    until(lambda: children(made) and made._crew.ready)  # type: ignore[union-attr]
    assert same(plain, made, 2)


def test_buffers_that_cannot_be_pinned(tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]) -> None:
    """An exception of the driver ends the processes. Threads go on."""

    def pin(buffer: np.ndarray) -> np.ndarray:
        raise OSError(errno.ENOMEM, "Cannot allocate memory")

    path = write(tmp_path / "db", [jpeg(n) for n in range(9)])
    plain, made = source(path, 3, transform=RANDOM), source(path, 3, workers=3, transform=RANDOM)
    made.shared = SharedBuffers(made.nbytes, 0, made.spare_buffers, pin)
    made.hurry()
    until(lambda: children(made) and all(child.poll() is not None for child in children(made)))
    assert "Threads decode from now on" in capsys.readouterr().err and same(plain, made, 0)
    made.close()


def test_buffers_of_another_consumer_are_copied_to(hurried: Callable[..., ImageSource], tmp_path: pathlib.Path) -> None:
    path = write(tmp_path / "db", [jpeg(n) for n in range(9)])
    plain, made = source(path, 3, transform=RANDOM), hurried(path, 3, shared=2, transform=RANDOM)
    buffer = np.empty(made.nbytes, np.uint8)
    assert made.fill(0, buffer).buffer is None and same(plain, plain, 0, buffer)


def test_only_batches_that_are_taken_are_requested(hurried: Callable[..., ImageSource], tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of several ranks that test, each takes every so many-th batch."""
    path = write(tmp_path / "db", [jpeg(n) for n in range(12)])
    plain, crew = source(path, 5, transform=RANDOM), hurried(path, 5, 4, transform=RANDOM)
    planned, plan = set(), crew._plan

    def noted(index: int) -> Any:
        planned.add(index)
        return plan(index)

    monkeypatch.setattr(crew, "_plan", noted)
    prefetcher = Prefetcher(crew, 3, 2, 4)
    taken = {index: prefetcher.get().data for index in range(2, 60, 4)}
    prefetcher.close()
    assert len(planned) > len(taken) and all(index % 4 == 2 for index in planned)
    assert all(same(plain, crew, index, buffer) for index, buffer in taken.items())


def test_errors(hurried: Callable[..., ImageSource], tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]) -> None:
    records = [jpeg(n) for n in range(9)]
    damaged = proto.Datum.FromString(records[4])
    damaged.data = damaged.data[:-60]
    records[4] = damaged.SerializeToString()
    path = write(tmp_path / "db", records)
    with pytest.raises(Error, match=r"record 4 \(key '00000004'\): it cannot be decoded.*truncated"):
        batch_of(hurried(path, 3, transform=RANDOM), 1)
    skipping = hurried(path, 3, transform={**RANDOM, "skip_bad_records": 1})
    plain = source(path, 3, transform={**RANDOM, "skip_bad_records": 1})
    for index in range(6):
        assert same(plain, skipping, index)
    assert skipping._first.labels(batch_of(skipping, 1)).tolist() == [3, 5, 5]
    assert capsys.readouterr().err.count("Skipped bad record 1 of at most 1: database") == 2


@pytest.mark.parametrize("shuffle", [False, True])
def test_ranks_replace_bad_records_alike(hurried: Callable[..., ImageSource], tmp_path: pathlib.Path, shuffle: bool) -> None:
    """Each rank finds its bad records itself. Together they read the batch of one rank."""
    path = write(tmp_path / "db", [b"bad" if n in (3, 4, 11, 19) else jpeg(n) for n in range(20)])
    fields: dict[str, Any] = {"shuffle": shuffle, "transform": {**RANDOM, "skip_bad_records": 4}}
    alone, ranks = source(path, 8, **fields), [hurried(path, 4, **fields) for _ in range(2)]
    for number, rank in enumerate(ranks):
        rank.share = Share(number, 2)
    for index in (0, 1, 2, 9, 4):
        images, labels = samples(alone, index)
        for number, rank in enumerate(ranks):
            theirs = samples(rank, index)
            assert np.array_equal(theirs[0], images[number::2]) and np.array_equal(theirs[1], labels[number::2])


def test_images_of_other_sizes(hurried: Callable[..., ImageSource], tmp_path: pathlib.Path) -> None:
    made = hurried(write(tmp_path / "db", [jpeg(0), jpeg(1), jpeg(2, (30, 30)), jpeg(3)]), 4)
    with pytest.raises(Error, match=r"record 2 .*the image is 3 x 30 x 30, the first one of its batch is 3 x 40 x 48 \(key '00000000'\)"):
        batch_of(made, 0)


def test_large_images_are_left_to_threads(hurried: Callable[..., ImageSource], tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ocaffe.data.stagers.crew._PIXELS", 3 * 1500)
    path = write(tmp_path / "db", [jpeg(n, (40, 48) if n % 3 else (30, 48)) for n in range(9)])
    made, plain = hurried(path, 3, transform=RANDOM), source(path, 3, transform=RANDOM)
    assert all(same(plain, made, index) for index in range(6))


def test_a_dead_process(hurried: Callable[..., ImageSource], tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write(tmp_path / "db", [jpeg(n) for n in range(9)])
    made, plain = hurried(path, 4, transform=RANDOM), source(path, 4, transform=RANDOM)
    batch_of(made, 0)
    os.kill(children(made)[1].pid, signal.SIGKILL)
    for index in range(1, 9):
        assert same(plain, made, index)
    until(lambda: all(child.poll() is not None for child in children(made)))
    assert "Threads decode from now on" in capsys.readouterr().err


def test_a_request_too_long_for_a_socket(hurried: Callable[..., ImageSource], tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write(tmp_path / "db", [jpeg(n) for n in range(9)])
    made, plain = hurried(path, 4, transform=RANDOM), source(path, 4, transform=RANDOM)
    assert made._crew is not None
    made._crew._state.sent = lambda found: bytes(1 << 20)  # thousands of labels of a list
    assert all(same(plain, made, index) for index in range(3))
    until(lambda: all(child.poll() is not None for child in children(made)))
    until(lambda: "ended: Message too long. Threads decode from now on" in capsys.readouterr().err)


def test_processes_end_with_their_source(hurried: Callable[..., ImageSource], tmp_path: pathlib.Path) -> None:
    path = write(tmp_path / "db", [jpeg(n) for n in range(9)])
    made = hurried(path, 4)
    started = children(made)
    made.close()
    assert all(child.poll() is not None for child in started)
    other = source(path, 4, workers=3)
    other.hurry()
    until(lambda: children(other) and other._crew.ready)  # type: ignore[union-attr]
    started = children(other)
    other = None  # type: ignore[assignment]  # without close
    gc.collect()
    until(lambda: all(child.poll() is not None for child in started))


def test_an_end_during_the_start(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The mean makes the settings larger than a pipe, so that they are still being written when the processes are killed."""
    monkeypatch.setattr("ocaffe.data.stagers.crew._END", 0.0)
    write_blobproto(str(tmp_path / "mean"), np.zeros((3, 200, 200), np.float32))
    made = source(write(tmp_path / "db", [jpeg(0, (200, 200))]), 1, workers=3, transform={"mean_file": str(tmp_path / "mean")})
    made.hurry()
    until(lambda: len(children(made)) == 3)
    started = children(made)
    made.close()
    until(lambda: all(child.poll() is not None and child.stdin is not None and child.stdin.closed for child in started))


def test_the_package_need_not_be_in_a_path(hurried: Callable[..., ImageSource], tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An editable install is found by a hook of the import, which the processes do not have."""
    root = pathlib.Path(ocaffe.__file__).parents[1]
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [path for path in sys.path if path and pathlib.Path(path).resolve() != root])
    hurried(write(tmp_path / "db", [jpeg(n) for n in range(4)]), 4)  # until they are ready


AT_EXIT = """
import atexit, sys, threading, time
atexit.register(lambda: print([thread.name for thread in threading.enumerate() if thread.name == "ocaffe crew"]))  # runs last
from ocaffe.data.stagers import crew
from tests.data.small_databases import source
run = crew._State.run
crew._State.run = lambda state: (run(state), time.sleep(0.5))  # the thread ends late
made = source(sys.argv[1], 4, workers=3)
made.hurry()
while not made._crew.ready: time.sleep(0.01)
"""


@pytest.mark.parametrize("end", ["", "made.close()", "del made"])
def test_no_thread_is_left_when_the_interpreter_ends(tmp_path: pathlib.Path, end: str) -> None:
    """It could be the last one to refer to pinned memory."""
    path = write(tmp_path / "db", [jpeg(n) for n in range(4)])
    run = subprocess.run([sys.executable, "-c", AT_EXIT + end, path], capture_output=True, text=True, check=False)
    assert run.returncode == 0 and run.stdout == "[]\n", run.stderr


PARENT = """
import sys, time
from tests.data.small_databases import source
made = source(sys.argv[1], 4, workers=3)
made.hurry()
while not made._crew.ready: time.sleep(0.01)
print(*[child.pid for child in made._crew._state.children], flush=True)
time.sleep(60)
"""


def test_processes_end_with_a_killed_parent(tmp_path: pathlib.Path) -> None:
    path = write(tmp_path / "db", [jpeg(n) for n in range(4)])
    with subprocess.Popen([sys.executable, "-c", PARENT, path], stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        numbers = [int(word) for word in parent.stdout.readline().split()]
        assert len(numbers) == 3
        parent.kill()
    until(lambda: not any(alive(number) for number in numbers))


def alive(number: int) -> bool:
    try:
        return pathlib.Path(f"/proc/{number}/stat").read_text().rpartition(") ")[2][0] != "Z"
    except OSError:
        return False


def test_who_does_not_start_processes(tmp_path: pathlib.Path) -> None:
    for made in (source(write(tmp_path / "small", [raw(0)]), 1, workers=3), source(write(tmp_path / "few", [jpeg(0)]), 1, workers=2)):
        made.hurry()
        assert made._crew is None


def test_processes_that_cannot_start(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def refused(*_: Any) -> Any:
        raise OSError(errno.EMFILE, "Too many open files")

    monkeypatch.setattr("socket.socketpair", refused)
    made = source(write(tmp_path / "db", [jpeg(0)]), 1, workers=3)
    made.hurry()
    made.hurry()
    assert capsys.readouterr().err.count("No processes can decode images: Too many open files. Threads do it") == 1
    assert batch_of(made, 0).size
    made.close()


def test_waiting_starts_them(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ocaffe.data.prefetch._PATIENCE", 0.0)
    made = source(write(tmp_path / "db", [jpeg(n) for n in range(4)]), 4, workers=3)
    prefetcher = Prefetcher(made, 2)
    for _ in range(10_000):
        prefetcher.recycle(prefetcher.get())
        if made._crew is not None:
            break
    assert made._crew is not None
    prefetcher.close()
    made.close()


def test_labels(hurried: Callable[..., ImageSource], tmp_path: pathlib.Path) -> None:
    made = hurried(write(tmp_path / "db", [jpeg(n) for n in range(6)]), 3, transform=RANDOM)
    assert made._first.labels(batch_of(made, 1)).dtype == np.float32 and made._first.labels(batch_of(made, 1)).tolist() == [3, 4, 5]
