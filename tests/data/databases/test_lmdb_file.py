"""LmdbFile reads what the LMDB library wrote, and damage is an exception, never a crash or a hang."""
from __future__ import annotations

import pathlib
from collections.abc import Sequence

import lmdb
import numpy as np
import pytest

from ocaffe.data.databases.lmdb_file import Anywhere, Arena, Damaged, Forward, LmdbFile, Snapshot

pytestmark = pytest.mark.quick


def made(folder: pathlib.Path, seed: int) -> dict[bytes, bytes]:
    """Write an LMDB with random sizes of keys and values, some of them replaced or deleted later. Return its records."""
    rng = np.random.default_rng(seed)
    largest = int(rng.choice([20, 900, 30_000]))
    records: dict[bytes, bytes] = {}
    with lmdb.open(str(folder), map_size=1 << 28, sync=False) as environment:
        for _ in range(3):
            with environment.begin(write=True) as transaction:
                for _ in range(int(rng.integers(1, 300))):
                    key = rng.bytes(int(rng.integers(1, 500)) if seed % 2 else 8)
                    records[key] = rng.bytes(int(rng.integers(0, largest)))
                    transaction.put(key, records[key])
                for key in list(records)[:: int(rng.integers(2, 9))]:
                    del records[key]
                    transaction.delete(key)
    return dict(sorted(records.items()))


def snapshot(folder: pathlib.Path) -> Snapshot:
    file = LmdbFile(str(folder / "data.mdb"))
    return Snapshot(file, file.metas()[0], protected=True)


def read(places: Forward | Anywhere, records: Sequence[int]) -> list[tuple[bytes, bytes]]:
    state, spots = places._snapshot, places.find(records)
    return [(state.key(spot), bytes(value)) for spot, value in zip(spots, state.values(spots, Arena()))]


@pytest.mark.parametrize("seed", range(8))
def test_all_records_in_any_order(tmp_path: pathlib.Path, seed: int) -> None:
    records = list(made(tmp_path, seed).items())
    state = snapshot(tmp_path)
    assert state.meta.entries == len(records)
    rng = np.random.default_rng(seed)
    for make in (Forward, Anywhere):
        reader = make(state)
        assert read(reader, range(len(records))) == records
        for _ in range(20):
            chosen = rng.integers(0, len(records), 7).tolist()
            assert read(reader, chosen) == [records[number] for number in chosen]
        last = len(records) - 1
        assert read(reader, [last, 0, 1]) == [records[last], records[0], records[1]]  # after the last record comes the first


def test_a_record_beyond_the_end(tmp_path: pathlib.Path) -> None:
    records = list(made(tmp_path, 0).items())
    assert read(Forward(snapshot(tmp_path)), range(len(records) + 3)) == records


def test_values_longer_than_one_read(tmp_path: pathlib.Path) -> None:
    values = [bytes([number]) * (3 << 20) for number in range(3)]
    with lmdb.open(str(tmp_path), map_size=1 << 26) as environment, environment.begin(write=True) as transaction:
        for number, value in enumerate(values):
            transaction.put(b"%d" % number, value)
    assert [value for _, value in read(Forward(snapshot(tmp_path)), range(3))] == values


@pytest.mark.parametrize("seed", range(4))
def test_damage_is_an_exception(tmp_path: pathlib.Path, seed: int) -> None:
    made(tmp_path, seed)
    file = tmp_path / "data.mdb"
    sound, rng = file.read_bytes(), np.random.default_rng(seed)
    caught = 0
    for _ in range(150):
        content = bytearray(sound[: rng.integers(1, len(sound)) if rng.random() < 0.2 else None])
        page = int(rng.integers(len(sound) // 4096)) * 4096
        for _ in range(int(rng.integers(1, 9))):
            at = page + int(rng.choice([rng.integers(160), rng.integers(4096)]))
            content[min(at, len(content) - 1)] = int(rng.choice([0, 1, 255, rng.integers(256)]))
        file.write_bytes(content)
        for make in (Forward, Anywhere):
            try:
                state = snapshot(tmp_path)
                read(make(state), range(min(state.meta.entries, 2000) or 1))
            except Damaged:
                caught += 1
    assert caught > 30


def test_a_tree_without_end(tmp_path: pathlib.Path) -> None:
    """All children of the root are made the root's first leaf."""
    with lmdb.open(str(tmp_path), map_size=1 << 26) as environment, environment.begin(write=True) as transaction:
        for number in range(300):
            transaction.put(b"%08d" % number, bytes(500))
    state = snapshot(tmp_path)
    file = tmp_path / "data.mdb"
    content, root = bytearray(file.read_bytes()), state.meta.root * state.meta.page_size
    leaf = next(state.leaves())[0]
    nodes = np.frombuffer(content, np.uint16, (int.from_bytes(content[root + 12 : root + 14], "little") - 16) // 2, root + 16)
    for node in nodes.tolist():
        content[root + node : root + node + 6] = leaf.to_bytes(6, "little")
    del nodes
    file.write_bytes(content)
    state = snapshot(tmp_path)
    assert len(read(Forward(state), range(300))) <= 300
    with pytest.raises(Damaged, match="more than the 5 records of its meta page"):
        Anywhere(Snapshot(state.file, state.meta._replace(entries=5), protected=True))
    with pytest.raises(Damaged, match="and its meta page says 5000"):
        Anywhere(Snapshot(state.file, state.meta._replace(entries=5000), protected=True)).find([4999])


@pytest.mark.parametrize(
    ("at", "value", "fact"),
    [(16, b"\0\0\0\0", "not an LMDB file"), (20, b"\3\0\0\0", "version 3"), (40, b"\7\0\0\0", "pages of 7 bytes"), (94, b"\xff\0", "depth 255")],
)
def test_damaged_meta_pages(tmp_path: pathlib.Path, at: int, value: bytes, fact: str) -> None:
    made(tmp_path, 0)
    file = tmp_path / "data.mdb"
    content = bytearray(file.read_bytes())
    content[at : at + len(value)] = value
    file.write_bytes(content)
    with pytest.raises(Damaged, match=fact):
        LmdbFile(str(file)).metas()
