"""The source of Data layers: the content of a batch, which depends only on its number, and the messages for bad records."""
from __future__ import annotations

import pathlib
import threading
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from ocaffe import proto
from ocaffe.data.prefetch import Prefetcher
from ocaffe.data.sources.database_images import RESTART
from ocaffe.errors import Error
from ocaffe.formats.blob import write_blobproto
from tests.data.small_databases import batch_of, image, png, raw, samples, source, write

pytestmark = pytest.mark.quick

SIZES = [(3, 9, 7), (3, 6, 8), (3, 5, 5), (3, 12, 10), (3, 6, 8), (3, 7, 7), (3, 6, 8)]


@pytest.fixture
def raws(tmp_path: pathlib.Path) -> str:
    return write(tmp_path / "raws", [raw(n) for n in range(7)])


@pytest.fixture
def pngs(tmp_path: pathlib.Path) -> str:
    return write(tmp_path / "pngs", [png(n) for n in range(7)])


@pytest.fixture
def odd(tmp_path: pathlib.Path) -> str:
    """Write encoded images of several sizes."""
    return write(tmp_path / "odd", [png(n, size) for n, size in enumerate(SIZES)])


@pytest.mark.parametrize("make", [raw, png])
def test_batches_wrap(tmp_path: pathlib.Path, make: Callable[[int], bytes]) -> None:
    made = source(write(tmp_path / "db", [make(n) for n in range(7)]), 3)
    assert made.shapes() == [(3, 3, 6, 8), (3,)]
    for index in (0, 1, 2, 3, 9, 2, 10**9):  # also backward and with a large number
        images, labels = samples(made, index)
        numbers = [(3 * index + i) % 7 for i in range(3)]
        assert labels.tolist() == numbers
        assert (images == np.stack([image(n) for n in numbers])).all()


def test_batch_larger_than_the_database(raws: str) -> None:
    assert samples(source(raws, 16), 1)[1].tolist() == [(16 + i) % 7 for i in range(16)]


def test_the_end_is_noted_once_an_epoch(raws: str) -> None:
    made = source(raws, 2)
    assert [bool(made.fill(index, np.empty(0, np.uint8)).notes) for index in range(7)] == [False, False, False, True, False, False, True]
    assert made.fill(3, np.empty(0, np.uint8)).notes == (RESTART,)


def test_opening_is_noted(raws: str) -> None:
    assert source(raws, 2).notes == (("db_lmdb.cpp:35", f"Opened lmdb {raws}"), ("data_layer.cpp:45", "output data size: 2,3,6,8"))


def test_force_color_of_raw_images_is_noted(raws: str, pngs: str) -> None:
    note = ("data_transformer.cpp:55", "force_color and force_gray only for encoded datum")
    assert note in source(raws, 2, transform={"force_gray": True}).notes
    assert note not in source(pngs, 2, transform={"force_gray": True}).notes


def test_without_labels(raws: str) -> None:
    made = source(raws, 2, labels=False)
    assert made.shapes() == [(2, 3, 6, 8)] and made.fill(0, np.empty(0, np.uint8)).shapes == ((2, 3, 6, 8),)


def test_parts_are_aligned(odd: str) -> None:
    layout = source(odd, 3, transform={"crop_size": 5})._first
    assert layout.table_at % 64 == layout.label_at % 64 == layout.nbytes % 64 == 0
    assert layout.table_at >= 3 * layout.image and layout.label_at >= layout.table_at + 3 * 32


def test_floats(tmp_path: pathlib.Path) -> None:
    values = [np.random.default_rng(n).normal(size=(2, 3, 4)).astype(np.float32) for n in range(3)]
    datums = [proto.Datum(channels=2, height=3, width=4, float_data=value.ravel(), label=n) for n, value in enumerate(values)]
    made = source(write(tmp_path / "floats", [datum.SerializeToString() for datum in datums]), 3)
    assert (samples(made, 0)[0] == np.stack(values)).all() and samples(made, 0)[0].dtype == np.float32


# -- crop and mirror


def test_the_crop_alone_is_staged(tmp_path: pathlib.Path, odd: str) -> None:
    made = source(odd, 3, train=False, transform={"crop_size": 5})
    late = [raw(n, size) for n, size in enumerate([(3, 9, 7)] * 4 + [(3, 5, 6), (3, 20, 20)])]
    uniform = source(write(tmp_path / "late", late), 3, train=False, transform={"crop_size": 5})
    assert (uniform._first.height, uniform._first.width) == (made._first.height, made._first.width) == (5, 5)
    for each, sizes in ((made, SIZES), (uniform, [(3, 9, 7)] * 4 + [(3, 5, 6), (3, 20, 20)])):
        for index in range(4):
            images, labels = samples(each, index)
            assert images.shape == (3, 3, 5, 5)
            for got, label in zip(images, labels.astype(int)):
                _, height, width = sizes[label]
                y, x = (height - 5) // 2, (width - 5) // 2
                assert (got == image(label, sizes[label])[:, y : y + 5, x : x + 5]).all()
    table = uniform._first.table(batch_of(uniform, 1))
    assert table[:, :6].tolist() == [[5, 5, 0, 0, 2, 1], [5, 5, 0, 0, 0, 0], [5, 5, 0, 0, 7, 7]]  # the position in the mean is relative to the whole image


def test_rectangular_crop(raws: str) -> None:
    assert source(raws, 2, transform={"crop_h": 4, "crop_w": 7}).shapes()[0] == (2, 3, 4, 7)


@pytest.mark.parametrize("train", [True, False])
def test_draws_are_fair(tmp_path: pathlib.Path, train: bool) -> None:
    made = source(write(tmp_path / "one", [raw(0, (1, 6, 9))]), 4000, train=train, transform={"crop_size": 4, "mirror": True})
    table = made._first.table(batch_of(made, 0))
    y, x, mirror = table[:, 4], table[:, 5], table[:, 6]
    assert set(mirror) == {0, 1} and abs(mirror.mean() - 0.5) < 0.03  # in both phases, as in Caffe
    if not train:
        assert set(y) == {1} and set(x) == {2}
        return
    for values, choices in ((y, 3), (x, 6)):
        shares = np.bincount(values, minlength=choices) / len(values)
        assert len(shares) == choices and np.abs(shares - 1 / choices).max() < 0.03
    assert abs(np.corrcoef([y, x, mirror]) - np.eye(3)).max() < 0.06
    assert abs(np.corrcoef(x[:-1], x[1:])[0, 1]) < 0.06


# -- what a batch depends on

RANDOM = {"crop_size": 5, "mirror": True}


@pytest.mark.parametrize("kind", ["raws", "pngs", "odd"])
def test_workers_and_order_do_not_matter(kind: str, request: pytest.FixtureRequest) -> None:
    path = request.getfixturevalue(kind)
    one, four = (source(path, 4, workers=workers, transform=RANDOM, rand_skip=5) for workers in (1, 4))
    forwards = [samples(one, index) for index in range(6)]
    backwards = [samples(four, index) for index in reversed(range(6))][::-1]
    assert all(equal(a, b) for a, b in zip(forwards, backwards))
    assert not equal(forwards[0], forwards[1])
    prefetcher = Prefetcher(four, 2)
    try:
        batches = [prefetcher.get() for _ in range(3)]
        prefetcher.seek(1)
        batches += [prefetcher.get() for _ in range(2)]
    finally:
        prefetcher.close()
        four.close()
    assert [batch.index for batch in batches] == [0, 1, 2, 1, 2]
    assert all(equal(samples(one, batch.index, batch.data), forwards[batch.index]) for batch in batches)


def test_decoders_end_with_their_source(pngs: str) -> None:
    def decoders() -> set[threading.Thread]:
        return {thread for thread in threading.enumerate() if thread.name.startswith("ocaffe decode")}

    before = decoders()  # those of sources of other tests may end at any time
    made = source(pngs, 4, workers=3)
    samples(made, 0)
    assert decoders() - before
    del made  # without close
    deadline = time.monotonic() + 10
    while decoders() - before:
        assert time.monotonic() < deadline
        time.sleep(0.001)


def equal(first: tuple[np.ndarray, ...], second: tuple[np.ndarray, ...]) -> bool:
    return all(np.array_equal(a, b) for a, b in zip(first, second))


def test_batch_size_does_not_change_the_draws(raws: str) -> None:
    """Record number n has the same crop in a batch of 2 and in a batch of 6. Split batches need this."""
    small, large = (source(raws, batch, transform=RANDOM) for batch in (2, 6))
    parts = [samples(small, index) for index in range(3)]
    images, labels = samples(large, 0)
    assert (np.concatenate([part[0] for part in parts]) == images).all() and np.concatenate([part[1] for part in parts]).tolist() == labels.tolist()


def test_the_key_decides(raws: str) -> None:
    first, second = source(raws, 7, transform=RANDOM), source(raws, 7, transform=RANDOM)
    second.key = (1, 3)
    assert not equal(samples(first, 0), samples(second, 0))


def test_rand_skip(raws: str) -> None:
    starts = []
    for seed in range(60):
        made = source(raws, 1, rand_skip=4)
        made.key = (seed, 0)
        starts.append(int(samples(made, 0)[1][0]))
        assert samples(made, 1)[1][0] == (starts[-1] + 1) % 7
    assert set(starts) == {0, 1, 2, 3}


@pytest.mark.parametrize("rand_skip", [0, 5])
def test_shuffle_draws_a_new_order_each_epoch(raws: str, rand_skip: int) -> None:
    made = source(raws, 2, shuffle=True, rand_skip=rand_skip)
    order = np.concatenate([samples(made, index)[1] for index in range(14)])
    whole = [order[at : at + 7].tolist() for at in range(0, 28, 7)] if not rand_skip else []
    assert all(sorted(epoch) == list(range(7)) for epoch in whole)
    assert len({tuple(epoch) for epoch in whole}) == len(whole) and list(range(7)) not in whole
    assert np.bincount(order.astype(int), minlength=7).min() >= 3  # with rand_skip, epochs start within a batch
    assert equal(samples(made, 5), samples(source(raws, 2, shuffle=True, rand_skip=rand_skip), 5))


# -- errors


def failure(call: Callable[[], Any]) -> Error:
    with pytest.raises(Error) as caught:
        call()
    return caught.value


def test_sizes_differ_within_a_batch(odd: str) -> None:
    one = source(odd, 1)
    assert [one.fill(index, np.empty(0, np.uint8)).shapes[0][1:] for index in range(7)] == SIZES
    error = failure(lambda: samples(source(odd, 3), 0))
    expected = "the image is 3 x 6 x 8, the first one of its batch is 3 x 9 x 7 (key '00000000')"
    assert error.fact == f"database {odd}, record 1 (key '00000001'): {expected}"
    assert "crop_size" in str(error.fix) and "batch_size: 1" in str(error.fix)


def test_corrupt_record(tmp_path: pathlib.Path) -> None:
    path = write(tmp_path / "bad", [raw(0), raw(1)[:40], raw(2)])
    error = failure(lambda: samples(source(path, 3), 0))
    assert error.fact.startswith(f"database {path}, record 1 (key '00000001'): it is not a Datum: ")


def test_corrupt_image(tmp_path: pathlib.Path) -> None:
    good = proto.Datum.FromString(png(0, (3, 40, 40)))
    path = write(tmp_path / "bad", [png(1, (3, 40, 40)), proto.Datum(data=good.data[:600], label=1, encoded=True).SerializeToString()])
    for workers in (1, 3):
        error = failure(lambda workers=workers: samples(source(path, 2, workers=workers), 0))
        assert error.fact.startswith(f"database {path}, record 1 (key '00000001'): it cannot be decoded: ")
    path = write(tmp_path / "worse", [proto.Datum(data=b"text", encoded=True).SerializeToString()])
    assert "record 0 (key '00000000'): it is not an image file" in failure(lambda: source(path, 1)).fact
    path = write(tmp_path / "nothing", [proto.Datum(encoded=True).SerializeToString()])
    assert "it is encoded, but has no data" in failure(lambda: source(path, 1)).fact


def test_wrong_number_of_values(tmp_path: pathlib.Path) -> None:
    datum = proto.Datum(channels=2, height=3, width=4, float_data=[0.5] * 23, label=1)
    error = failure(lambda: source(write(tmp_path / "floats", [datum.SerializeToString()]), 1))
    assert "23 float_data for an image of 2 x 3 x 4, which has 24" in error.fact


def test_missing_label(tmp_path: pathlib.Path) -> None:
    datum = proto.Datum.FromString(raw(1))
    datum.ClearField("label")
    path = write(tmp_path / "unlabelled", [raw(0), datum.SerializeToString()])
    error = failure(lambda: samples(source(path, 2), 0))
    assert "record 1 (key '00000001'): it has no label" in error.fact and "second top" in str(error.fix)
    assert samples(source(path, 2, labels=False), 0)[0].shape == (2, 3, 6, 8)


def test_kinds_of_data_differ(tmp_path: pathlib.Path) -> None:
    floats = proto.Datum(channels=3, height=6, width=8, float_data=[0.0] * 144, label=1).SerializeToString()
    path = write(tmp_path / "mixed", [raw(0), floats])
    assert "it has float_data, the first record has bytes" in failure(lambda: samples(source(path, 2), 0)).fact
    mixed = samples(source(write(tmp_path / "mixed2", [floats, raw(0)]), 2), 0)[0]  # byte images are accepted among float images
    assert (mixed[1] == image(0)).all() and not mixed[0].any()


def test_channels_differ(tmp_path: pathlib.Path) -> None:
    path = write(tmp_path / "channels", [raw(0), raw(1, (1, 6, 8))])
    error = failure(lambda: samples(source(path, 2, transform={"crop_size": 4}), 0))
    assert "the image has 1 channels, the first record has 3" in error.fact and "force_color" in str(error.fix)


def test_crop_larger_than_the_image(raws: str, odd: str) -> None:
    assert "the crop of 7 x 7 is larger than the image of 6 x 8" in failure(lambda: source(raws, 1, transform={"crop_size": 7})).fact
    error = failure(lambda: samples(source(odd, 4, transform={"crop_size": 6}), 0))
    assert "record 2 (key '00000002'): the crop of 6 x 6 is larger than the image of 5 x 5" in error.fact


def test_mean_file(raws: str, odd: str, tmp_path: pathlib.Path) -> None:
    wrong, right = str(tmp_path / "wrong.binaryproto"), str(tmp_path / "right.binaryproto")
    write_blobproto(wrong, np.zeros((3, 8, 6), np.float32))
    write_blobproto(right, np.zeros((3, 9, 7), np.float32))
    error = failure(lambda: source(raws, 1, transform={"mean_file": wrong}))
    assert f"mean_file {wrong} is 3 x 8 x 6, the image is 3 x 6 x 8" in error.fact and "compute_image_mean" in str(error.fix)
    error = failure(lambda: samples(source(odd, 2, transform={"mean_file": right, "crop_size": 5}), 0))
    assert "record 1" in error.fact and "is 3 x 9 x 7, the image is 3 x 6 x 8" in error.fact
    assert "mean_file no.binaryproto does not exist" in failure(lambda: source(raws, 1, transform={"mean_file": "no.binaryproto"})).fact
    write_blobproto(wrong, np.zeros((2, 3, 8, 6), np.float32))
    assert "is 2 x 3 x 8 x 6, not channels x height x width" in failure(lambda: source(raws, 1, transform={"mean_file": wrong})).fact


def test_mean_values(raws: str) -> None:
    error = failure(lambda: source(raws, 1, transform={"mean_value": [1, 2]}))
    assert "2 mean_value given for images of 3 channels" in error.fact and error.fix == "give mean_value once, or 3 times"
    assert "mean_file and mean_value" in failure(lambda: source(raws, 1, transform={"mean_value": [1], "mean_file": "m"})).fact


def test_contradictions_and_what_is_not_supported(raws: str) -> None:
    assert failure(lambda: source(raws, 0)).fact == "batch_size is 0"
    assert "force_color and force_gray" in failure(lambda: source(raws, 1, transform={"force_color": True, "force_gray": True})).fact
    assert "give crop_size alone, or crop_h and crop_w" in str(failure(lambda: source(raws, 1, transform={"crop_size": 4, "crop_h": 4, "crop_w": 4})).fix)
    assert "crop_h 4, crop_w 0" in failure(lambda: source(raws, 1, transform={"crop_h": 4})).fact
    assert failure(lambda: source(raws, 1, transform={"max_distort": 3})).fact.startswith("transform_param field 'max_distort' is not supported here: TSN")
    assert failure(lambda: source(raws, 1, shuffle_buffer_size=3)).fact == (
        "data_param field 'shuffle_buffer_size' is not supported here: ParseNet shuffles the records within a buffer"
    )
    source(raws, 1, transform={"max_distort": 1}, cache=True, prefetch=9)  # the default value, and settings that change no result


def test_errors_get_place_and_layer(raws: str) -> None:
    made = source(raws, 2)
    made.place, made.layer = "net.prototxt:3", "'data' (Data)"  # type: ignore[assignment]
    with pytest.raises(Error, match=r"^net.prototxt:3: layer 'data' \(Data\)\n  the fact\n  fix: the fix$"), made.located():
        raise Error("the fact", fix="the fix")


def test_force_encoded_color(tmp_path: pathlib.Path) -> None:
    path = write(tmp_path / "gray", [png(0, (1, 6, 8))])
    assert source(path, 1).shapes()[0] == (1, 1, 6, 8)
    made = source(path, 1, force_encoded_color=True)
    assert made.shapes()[0] == (1, 3, 6, 8) and (samples(made, 0)[0][0] == image(0, (1, 6, 8))).all()
