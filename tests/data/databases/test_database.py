"""Databases: reading by number, and the messages for unreadable ones."""
from __future__ import annotations

import errno
import gc
import importlib.util
import os
import pathlib
import shutil
import struct
import subprocess
import sys
import tempfile
import types
from collections.abc import Iterator, Sequence
from typing import Any

import lmdb
import pytest

from ocaffe.data.databases import database
from ocaffe.data.databases.database import Reader, open_database
from ocaffe.data.databases.leveldb_manifest import live_files
from ocaffe.errors import Error
from tests.data.small_databases import LEVELDB, LMDB, write

pytestmark = pytest.mark.quick

GOLDEN = pathlib.Path(__file__).parents[2] / "golden"
needs_plyvel = pytest.mark.skipif(importlib.util.find_spec("plyvel") is None, reason="needs plyvel")


@pytest.fixture
def ten(tmp_path: pathlib.Path) -> str:
    return write(tmp_path / "ten", [b"value %d" % i for i in range(10)])


@pytest.mark.parametrize("random", [False, True])
def test_read_by_number(ten: str, random: bool) -> None:
    reader = Reader(open_database(ten, LMDB), random)
    for first, count in [(0, 1), (1, 3), (3, 1), (9, 1), (2, 8), (0, 10), (5, 2)]:
        count = 1 if random else count
        items = reader.read(first, count)
        assert [(bytes(key), bytes(value)) for key, value in items] == [(b"%08d" % i, b"value %d" % i) for i in range(first, first + count)]


def test_larger_than_the_default_map(tmp_path: pathlib.Path) -> None:
    path = write(tmp_path / "large", [bytes(3 << 20)] * 4)
    assert len(Reader(open_database(path, LMDB)).read(3)[0][1]) == 3 << 20


def test_one_environment_serves_all(ten: str) -> None:
    first, second = open_database(ten, LMDB), open_database(os.path.relpath(ten), LMDB)
    assert first is second  # LMDB refuses to open it twice
    del first, second
    gc.collect()
    lmdb.open(ten, lock=False).close()  # the database is closed when no reader uses it


@pytest.mark.parametrize("named", [True, False])
def test_lmdbs_that_caffe_does_not_write(tmp_path: pathlib.Path, named: bool) -> None:
    with lmdb.open(str(tmp_path), max_dbs=1) as environment, environment.begin(write=True) as transaction:
        transaction.put(b"train" if named else b"0", b"x", db=environment.open_db(b"train", transaction) if named else None)
    if not named:  # the flag of a key with several values; lmdb for Python cannot set it in the main database
        file = tmp_path / "data.mdb"
        node = struct.pack("=HHHH", 1, 0, 0, 1) + b"0x"
        assert node in file.read_bytes()
        file.write_bytes(file.read_bytes().replace(node, struct.pack("=HHHH", 1, 0, 4, 1) + b"0x"))
    with pytest.raises(Error) as caught:
        Reader(open_database(str(tmp_path), LMDB)).read(0)
    fact, fix = caught.value.fact, str(caught.value.fix)
    assert "record 0" not in fact and ("the named database 'train'" if named else "the key '0' has several values (dupsort)") in fact
    assert ('leave out env.open_db(b"train")' if named else "opened without dupsort") in fix


def failure(path: object, backend: int = LMDB) -> Error:
    with pytest.raises(Error) as caught:
        open_database(str(path), backend)
    return caught.value


def test_missing(tmp_path: pathlib.Path) -> None:
    error = failure(tmp_path / "no_lmdb")
    assert f"the database {tmp_path}/no_lmdb does not exist" == error.fact and os.getcwd() in str(error.fix)
    assert "source is empty" in failure("").fact


def test_a_file(ten: str, tmp_path: pathlib.Path) -> None:
    error = failure(os.path.join(ten, "data.mdb"))
    assert "is a file, and a database is a folder" in error.fact and error.fix == f'source: "{ten}"'
    (tmp_path / "list.txt").write_text("x")
    assert "data.mdb" in str(failure(tmp_path / "list.txt").fix)


def test_not_a_database(tmp_path: pathlib.Path) -> None:
    assert f"{tmp_path} is no LMDB database: it has no file data.mdb" in failure(tmp_path).fact
    (tmp_path / "data.mdb").write_bytes(b"")
    assert "is empty (0 bytes)" in failure(tmp_path).fact
    (tmp_path / "data.mdb").write_bytes(os.urandom(20000))
    assert "cannot be opened as LMDB: its data.mdb is not an LMDB file" in failure(tmp_path).fact
    name = tmp_path / "data.mdb"
    unpack = f"unpack it: mv {name} {name}.gz && gunzip {name}.gz"
    for content, kind, fix in ((b"<!DOCTYPE html><html>", "a web page", "download the file itself"), (b"\x1f\x8b\x08", "a gzip archive", unpack)):
        name.write_bytes(content.ljust(20000, b"\0"))
        assert f"its data.mdb is {kind}" in failure(tmp_path).fact and fix in str(failure(tmp_path).fix)


def test_the_other_backend(ten: str) -> None:
    error = failure(GOLDEN / "files" / "leveldb_raw")
    assert "it is one of LEVELDB" in error.fact and error.fix == "backend: LEVELDB"
    error = failure(ten, LEVELDB)
    assert "it is one of LMDB" in error.fact and error.fix == "backend: LMDB"
    assert failure(ten, 2).fact == "backend DATUMFILE is not supported"


def test_empty(tmp_path: pathlib.Path) -> None:
    assert "has no records" in failure(write(tmp_path / "empty", [])).fact


def test_open_elsewhere_in_the_process(ten: str, capsys: pytest.CaptureFixture[str]) -> None:
    """LMDB opens a database only once in a process. A script may open it before and after the reader, and write to it; the reader sees the old records."""
    with lmdb.open(ten) as before, before.begin() as transaction:
        reader = Reader(open_database(ten, LMDB))
        assert transaction.get(b"00000003") == b"value 3"
    with lmdb.open(ten) as after:
        for _ in range(4):
            with after.begin(write=True) as transaction:
                transaction.delete(b"00000003")
                transaction.put(b"00000004", b"other" * 999)
        assert [bytes(value) for _, value in reader.read(0, 10)] == [b"value %d" % i for i in range(10)]
    assert not capsys.readouterr().err


@pytest.mark.parametrize("random", [False, True])
def test_the_process_of_the_slot_is_killed(ten: str, random: bool) -> None:
    """Then nothing keeps the pages, so that a change is an error."""
    database = open_database(ten, LMDB)
    reader = Reader(database, random)
    assert len(reader.read(0, 10)) == 10
    slot: Any = database._slot  # type: ignore[attr-defined]
    slot._child.kill()
    slot._child.wait()
    assert len(reader.read(0, 10)) == 10
    in_another_process(WRITER, ten)
    with pytest.raises(Error, match="the database was changed while it was read"):
        reader.read(0, 10)


def in_another_process(code: str, *words: str) -> str:
    """Run `code` with `words` as its arguments. Return its output."""
    return subprocess.run([sys.executable, "-c", code, *words], stdout=subprocess.PIPE, text=True, check=False).stdout


WRITER = """
import lmdb, sys
with lmdb.open(sys.argv[1], map_size=1 << 26) as environment:
    for turn in range(4):
        with environment.begin(write=True) as transaction:
            for number in range(1000):
                transaction.put(b"%08d" % (7 * number), bytes([turn]) * 900)
"""


@pytest.mark.parametrize("random", [False, True])
def test_a_writer_beside_a_reader(ten: str, random: bool) -> None:
    """A reader slot keeps the records as they were when the database was opened."""
    reader = Reader(open_database(ten, LMDB), random)
    in_another_process(WRITER, ten)
    assert [(bytes(key), bytes(value)) for key, value in reader.read(0, 10)] == [(b"%08d" % i, b"value %d" % i) for i in range(10)]
    del reader
    gc.collect()
    assert open_database(ten, LMDB).entries > 1000


def test_slots_of_killed_processes_are_freed(ten: str) -> None:
    lmdb.open(ten).close()
    for _ in range(2):
        in_another_process("import lmdb, os, sys; reading = lmdb.open(sys.argv[1], readonly=True).begin(); os.kill(os.getpid(), 9)", ten)
    database = open_database(ten, LMDB)
    slots = in_another_process("import lmdb, sys; print(lmdb.open(sys.argv[1], readonly=True).readers())", ten)
    slot: Any = database._slot  # type: ignore[attr-defined]
    assert slots.split()[3:4] == [str(slot._child.pid)] and len(slots.splitlines()) < 4, slots
    del database, slot


@pytest.mark.parametrize("reason", ["Read-only file system", "No space left on device"])
def test_without_a_lock_file(ten: str, reason: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    opened = os.open

    def refuse(path: str, flags: int, *mode: int) -> int:
        if flags & os.O_CREAT:
            raise OSError(getattr(errno, {"R": "EROFS", "N": "ENOSPC"}[reason[0]]), reason)
        return opened(path, flags, *mode)

    monkeypatch.setattr(os, "open", refuse)
    reader = Reader(open_database(ten, LMDB))
    assert f"{ten} is read without a reader slot ({reason})." in capsys.readouterr().err
    assert len(reader.read(0, 10)) == 10 and os.listdir(ten) == ["data.mdb"]
    in_another_process(WRITER, ten)
    with pytest.raises(Error, match="was changed while it was read") as caught:
        reader.read(0, 10)
    assert "let no process write" in str(caught.value.fix)


@pytest.mark.parametrize("locked", [False, True])
def test_a_lock_file_that_cannot_be_written(ten: str, locked: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    if locked:
        lmdb.open(ten).close()
    monkeypatch.setattr(os, "access", lambda path, mode: False)  # as on a read-only file system; root may write everywhere else
    assert len(Reader(open_database(ten, LMDB)).read(0, 10)) == 10
    assert "without a reader slot (lock.mdb cannot be written)" in capsys.readouterr().err


def test_a_lock_file_that_is_none(ten: str, capsys: pytest.CaptureFixture[str]) -> None:
    (pathlib.Path(ten) / "lock.mdb").mkdir()
    assert len(Reader(open_database(ten, LMDB)).read(0, 10)) == 10
    assert "without a reader slot (Is a directory)" in capsys.readouterr().err


def test_all_slots_are_taken(ten: str, capsys: pytest.CaptureFixture[str]) -> None:
    with lmdb.open(ten, max_readers=1):
        pass
    hold = "import lmdb, sys; reading = lmdb.open(sys.argv[1], readonly=True, max_readers=1).begin(); print(1, flush=True); sys.stdin.read()"
    with subprocess.Popen([sys.executable, "-c", hold, ten], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other:
        assert other.stdout is not None and other.stdin is not None and other.stdout.readline()
        assert len(Reader(open_database(ten, LMDB)).read(0, 10)) == 10
        assert "(Environment maxreaders limit reached)" in capsys.readouterr().err
        other.stdin.close()


def test_a_file_that_shrinks(tmp_path: pathlib.Path) -> None:
    """With a memory map the process would end by SIGBUS."""
    path = write(tmp_path / "cut", [bytes(5000)] * 20)
    readers = [Reader(open_database(path, LMDB), random) for random in (False, True)]
    os.truncate(os.path.join(path, "data.mdb"), 20000)
    for reader in readers:
        with pytest.raises(Error, match=r"record 0: data\.mdb ends at byte 20,000, and a record needs [0-9,]+"):
            reader.read(0, 20)
    os.truncate(os.path.join(path, "data.mdb"), 0)
    with pytest.raises(Error, match=r"data\.mdb ends at byte 0"):
        readers[0].read(0)


def test_truncated(tmp_path: pathlib.Path) -> None:
    path = write(tmp_path / "cut", [bytes(5000)] * 20)
    file = pathlib.Path(path) / "data.mdb"
    size = file.stat().st_size
    os.truncate(file, size // 2 + 100)
    error = failure(path)
    assert f"data.mdb is truncated: it has {size // 2 + 100:,} bytes and needs {size:,}" in error.fact


def test_a_damaged_page(tmp_path: pathlib.Path) -> None:
    shutil.copytree(GOLDEN / "files" / "lmdb_raw", tmp_path / "bad", copy_function=shutil.copyfile)
    file = tmp_path / "bad" / "data.mdb"
    pages = bytearray(file.read_bytes())
    pages[8192:12288] = b"\xff" * 4096
    file.chmod(0o644)
    file.write_bytes(pages)
    with pytest.raises(Error) as caught:
        Reader(open_database(str(tmp_path / "bad"), LMDB)).read(0, 12)
    assert f"database {tmp_path}/bad, record 0: page 2 of data.mdb is damaged" == caught.value.fact


def test_leveldb_without_plyvel(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "plyvel", None)
    error = failure(GOLDEN / "files" / "leveldb_raw", LEVELDB)
    assert "needs the package plyvel" in error.fact
    assert "pip install plyvel" in str(error.fix) and "convert_imageset" in str(error.fix)


@needs_plyvel
@pytest.mark.parametrize("random", [False, True])
def test_leveldb_is_read_like_lmdb(random: bool) -> None:
    database = open_database(str(GOLDEN / "files" / "leveldb_raw"), LEVELDB)
    same = Reader(open_database(str(GOLDEN / "files" / "lmdb_raw"), LMDB))
    reader = Reader(database, random)
    assert database.entries == 12
    for record in (0, 1, 7, 3, 11, 0):
        ((key, value),), ((expected_key, expected),) = reader.read(record), same.read(record)
        assert (bytes(key), bytes(value)) == (bytes(expected_key), bytes(expected))
    assert len(reader.read(0 if random else 5, 1 if random else 7)) == (1 if random else 7)


@needs_plyvel
def test_leveldb_stays_as_it_is() -> None:
    """Reading must not write to the folder or lock it, as the LevelDB library does."""
    folder = GOLDEN / "files" / "leveldb_raw"
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    temporary = set(pathlib.Path(tempfile.gettempdir()).glob("ocaffe-leveldb-*"))
    database = open_database(str(folder), LEVELDB)
    Reader(database).read(0, 12)
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before
    del database
    gc.collect()
    assert set(pathlib.Path(tempfile.gettempdir()).glob("ocaffe-leveldb-*")) <= temporary


@needs_plyvel
def test_leveldb_that_is_none(tmp_path: pathlib.Path) -> None:
    (tmp_path / "CURRENT").write_text("nonsense")
    fact = failure(tmp_path, LEVELDB).fact
    assert f"{tmp_path} cannot be opened as LevelDB" in fact and "ocaffe-leveldb" not in fact


class Damage(Exception):
    """An error of the library."""


@pytest.mark.parametrize("problem", [Damage("a block is damaged"), OSError(5, "Input/output error"), ValueError("number out of range"), SystemError("bad")])
@pytest.mark.parametrize("where", ["open", "keys", "read"])
def test_errors_of_the_library(where: str, problem: Exception, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The library raises errors of many types, and each becomes an Error with a remedy. This runs without the library."""

    class Cursor:
        def seek_to_first(self) -> None:
            raise problem

        seek = seek_to_first

        def close(self) -> None:
            closed.append(self)

    class DB:
        def __init__(self, folder: str, **options: Any) -> None:
            if where == "open":
                raise problem

        def iterator(self, **options: Any) -> Iterator[bytes]:
            assert options["verify_checksums"]
            yield b"0"
            if where == "keys":
                raise problem

        def raw_iterator(self, **options: Any) -> Cursor:
            assert options["verify_checksums"]
            return Cursor()

        def close(self) -> None:
            closed.append(self)

    closed: list[Any] = []
    monkeypatch.setitem(sys.modules, "plyvel", types.SimpleNamespace(DB=DB))
    monkeypatch.setattr(database, "_counted", lambda path, names: 1)
    write_manifest(tmp_path)
    with pytest.raises(Error, match=str(problem.args[-1])) as caught:
        Reader(open_database(str(tmp_path), LEVELDB), random=where == "keys").read(0)
    assert str(tmp_path) in caught.value.fact and caught.value.fix
    del caught
    problem.__traceback__ = problem.__context__ = None
    gc.collect()
    assert [type(each).__name__ for each in closed] == ([] if where == "open" else ["Cursor", "DB"]), "an iterator that outlives the database ends the process"


@needs_plyvel
@pytest.mark.parametrize("damage", ["half", "records"])
def test_a_damaged_leveldb_ends_no_process(damage: str, tmp_path: pathlib.Path) -> None:
    leveldb(tmp_path / "db", 200, compacted=True)
    table = max((tmp_path / "db").glob("*.ldb"))
    content = bytearray(table.read_bytes())
    if damage == "half":
        del content[len(content) // 2 :]
    else:
        content[100:1000] = bytes(900)
    table.write_bytes(content)
    net = tmp_path / "net.prototxt"
    net.write_text(f'layer {{ name: "d" type: "Data" top: "d" data_param {{ source: "{tmp_path}/db" batch_size: 4 backend: LEVELDB }} }}')
    done = subprocess.run([sys.executable, "-m", "ocaffe", "plan", "--model", str(net)], capture_output=True, text=True, timeout=120)
    assert done.returncode == 1 and "is damaged" in done.stderr, (done.returncode, done.stderr)


@pytest.mark.skipif(sys.platform == "win32", reason="no pipes")
def test_a_pipe_in_a_leveldb(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "plyvel", types.SimpleNamespace(DB=None))
    write_manifest(tmp_path, tables=[3])
    os.mkfifo(tmp_path / "000003.ldb")
    with pytest.raises(Error, match="it is a pipe, not a plain file"):
        open_database(str(tmp_path), LEVELDB)
    (tmp_path / "MANIFEST-000001").unlink()
    os.mkfifo(tmp_path / "MANIFEST-000001")
    with pytest.raises(Error, match="it is a pipe, not a plain file"):
        open_database(str(tmp_path), LEVELDB)


def leveldb(path: pathlib.Path, records: int, compacted: bool = False) -> str:
    """Write a LevelDB of random values by the library. `compacted`: they are in tables, else in the log."""
    import plyvel

    made = plyvel.DB(str(path), create_if_missing=True)
    for index in range(records):
        made.put(b"%08d" % index, os.urandom(80))
    if compacted:
        made.compact_range()
    made.close()
    return str(path)


def write_manifest(folder: pathlib.Path, tables: Sequence[int] = (), after: int = 9) -> None:
    """Write CURRENT and the manifest of a LevelDB with these tables. `after`: the number of the next new file."""
    change = b"\x02\x00" + bytes([3, after]) + b"".join(bytes([7, 0, number, 1, 1, 65, 1, 66]) for number in tables)
    (folder / "CURRENT").write_bytes(b"MANIFEST-000001\n")
    (folder / "MANIFEST-000001").write_bytes(bytes(4) + struct.pack("<HB", len(change), 1) + change)


def test_only_the_files_of_the_manifest_are_read(tmp_path: pathlib.Path) -> None:
    """LevelDB would overwrite another file by the name of its next table, also through a link."""
    write_manifest(tmp_path, tables=[3, 4])
    for name in ("000003.ldb", "000004.sst", "000005.ldb", "000006.log", "MANIFEST-000009", "thesis.txt"):
        (tmp_path / name).write_text("x")
    assert live_files(str(tmp_path)) == ["CURRENT", "MANIFEST-000001", "000003.ldb", "000004.sst", "000006.log"]
    write_manifest(tmp_path, tables=[3, 9])
    with pytest.raises(ValueError, match="not below 9"):
        live_files(str(tmp_path))
    for text in ("../other/MANIFEST-000001\n", "root:x:0:0", ""):
        (tmp_path / "CURRENT").write_text(text)
        with pytest.raises(ValueError, match="CURRENT has no name of a manifest"):
            live_files(str(tmp_path))


def test_damaged_manifests(tmp_path: pathlib.Path) -> None:
    write_manifest(tmp_path, tables=[3, 4])
    whole = (tmp_path / "MANIFEST-000001").read_bytes()
    for content in (whole[:-1], whole[:7] + b"\x7f" + whole[8:], whole[:6] + b"\x03" + whole[7:], whole + b"\x01"):
        (tmp_path / "MANIFEST-000001").write_bytes(content)
        with pytest.raises(ValueError, match=r"cut|damaged|unknown"):
            live_files(str(tmp_path))


@needs_plyvel
@pytest.mark.skipif(sys.platform == "win32", reason="links need a right")
@pytest.mark.parametrize("name", ["000005.ldb", "MANIFEST-000004", "000004.dbtmp", "CURRENT", "lost/LOG"])
def test_no_link_of_a_leveldb_is_followed(name: str, tmp_path: pathlib.Path) -> None:
    path = leveldb(tmp_path / "ten", 10)
    victim = tmp_path / "thesis.txt"
    victim.write_text("precious")
    link = pathlib.Path(path, pathlib.Path(name).name)
    link.unlink(missing_ok=True)
    link.symlink_to(victim)
    try:
        assert open_database(path, LEVELDB).entries == 10
    except Error as error:
        assert name == "CURRENT" and "precious" not in str(error)
    assert victim.read_text() == "precious"


@needs_plyvel
@pytest.mark.parametrize("size", [1 << 35, 1 << 62, (1 << 64) - 5])
def test_a_table_that_ends_the_library(size: int, tmp_path: pathlib.Path) -> None:
    """The footer of a table has the size of its index."""
    leveldb(tmp_path / "db", 200, compacted=True)
    table = max((tmp_path / "db").glob("*.ldb"))
    content = table.read_bytes()
    number = b""
    while size >= 128:
        number, size = number + bytes([size & 127 | 128]), size >> 7
    handles = (b"\x00\x08\x00" + number + bytes([size])).ljust(40, b"\0")[:40]
    table.write_bytes(content[:-48] + handles + content[-8:])
    with pytest.raises(Error, match="is damaged: "):
        open_database(str(tmp_path / "db"), LEVELDB)


@needs_plyvel
@pytest.mark.parametrize("random", [False, True])
def test_a_cursor_outlives_the_name_of_its_database(random: bool, tmp_path: pathlib.Path) -> None:
    cursor = open_database(leveldb(tmp_path / "db", 10), LEVELDB).cursor(random)
    gc.collect()
    assert len(cursor.find([3])) == 1 and cursor.find([9])[0][0] == b"00000009"


CYCLE = """import gc, sys
from ocaffe.data.databases.database import open_database
cursor = open_database(sys.argv[1], int(sys.argv[2])).cursor(True)
cursor.find([3])
cursor.itself = cursor
del cursor
gc.collect()
"""


@needs_plyvel
def test_a_cycle_with_a_leveldb_ends_no_process(tmp_path: pathlib.Path) -> None:
    """Weak references within a cycle are gone before its objects are freed."""
    done = subprocess.run([sys.executable, "-c", CYCLE, leveldb(tmp_path / "db", 10), str(LEVELDB)], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, (done.returncode, done.stderr)


@needs_plyvel
def test_a_cut_log_is_a_warning(tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]) -> None:
    leveldb(tmp_path / "db", 20)
    log = max((tmp_path / "db").glob("*.log"))
    log.write_bytes(log.read_bytes()[:-200])
    assert 10 < open_database(str(tmp_path / "db"), LEVELDB).entries < 20
    assert f"{log.name} is cut" in capsys.readouterr().err


@pytest.mark.skipif(sys.platform == "win32", reason="links need a right")
def test_a_lock_that_is_a_link_is_not_written(ten: str, tmp_path: pathlib.Path) -> None:
    victim = tmp_path / "thesis.txt"
    victim.write_text("precious")
    lock = pathlib.Path(ten, "lock.mdb")
    lock.unlink(missing_ok=True)
    lock.symlink_to(victim)
    assert open_database(ten, LMDB).entries == 10
    assert victim.read_text() == "precious"
