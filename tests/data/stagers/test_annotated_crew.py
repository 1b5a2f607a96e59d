"""Processes stage the batches of AnnotatedData with the same bytes and errors as threads."""
from __future__ import annotations

import io
import os
import pathlib
import signal
import sys
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np
import pytest
from PIL import Image

from ocaffe import proto
from ocaffe.data.prefetch import Prefetcher
from ocaffe.data.source import Share
from ocaffe.data.sources.annotated import AnnotatedSource
from ocaffe.ir.labels import LabelRange
from tests.data.pictures import batch_of, failure, used
from tests.data.small_databases import image, write
from tests.data.sources.test_annotated import source
from tests.data.stagers.test_crew import until

pytestmark = [pytest.mark.quick, pytest.mark.skipif(sys.platform != "linux", reason="needs sockets that keep messages whole")]
DISTORT = "distort_param { brightness_prob: 0.5 brightness_delta: 32 contrast_prob: 0.5 hue_prob: 0.5 hue_delta: 18 saturation_prob: 1 random_order_prob: 0.5 }"
EXPAND = "expand_param { prob: 0.5 max_expand_ratio: 2 } mean_value: 90"
NOISE = "noise_param { hist_eq: true saltpepper: true saltpepper_param { fraction: 0.1 value: 9 } }"
RESIZE = "resize_param { height: 30 width: 32 interp_mode: LINEAR interp_mode: AREA interp_mode: LANCZOS4 }"
SIZES = "resize_param { prob: 0.5 height: 20 width: 25 } resize_param { prob: 0.5 height: 40 width: 50 }"
SAMPLERS = "batch_sampler { max_trials: 9 sampler { min_scale: 0.4 } sample_constraint { min_jaccard_overlap: 0.2 } } batch_sampler { }"


def scene(number: int, boxes: int = 3, size: tuple[int, int] = (40, 48), **fields: Any) -> bytes:
    """Return an AnnotatedDatum with a JPEG file."""
    file, rng = io.BytesIO(), np.random.default_rng(number)
    Image.fromarray(image(number, (*size, 3))).save(file, "JPEG", quality=80)
    message = proto.AnnotatedDatum(**{"type": 0, **fields})
    message.datum.CopyFrom(proto.Datum(data=file.getvalue(), label=number, encoded=True))
    for label in range(1, boxes + 1):
        x, y = rng.uniform(0, 0.6, 2)
        message.annotation_group.add(group_label=label).annotation.add().bbox.CopyFrom(proto.NormalizedBBox(xmin=x, ymin=y, xmax=x + 0.4, ymax=y + 0.3))
    return message.SerializeToString()


@pytest.fixture
def hurried() -> Iterator[Callable[..., AnnotatedSource]]:
    made: list[AnnotatedSource] = []

    def make(path: str, batch: int, *settings: str, step: int = 1, workers: int = 3, **fields: Any) -> AnnotatedSource:
        made.append(source(path, batch, *settings, workers=workers, **fields))
        made[-1].hurry(step)
        until(lambda: made[-1]._crew is not None and made[-1]._crew.ready)
        return made[-1]

    yield make
    for each in made:
        each.close()


def parts(made: AnnotatedSource, index: int, buffer: np.ndarray | None = None) -> list[bytes]:
    """Return the bytes of batch number `index` (in `buffer`) that the device reads."""
    return used(made, made.fill(index, np.empty(0, np.uint8)).shapes, batch_of(made, index) if buffer is None else buffer)


@pytest.mark.parametrize(
    ("settings", "data"),
    [
        ((f"{DISTORT} {EXPAND} {NOISE} {RESIZE} mirror: true crop_size: 28 emit_constraint {{ emit_type: CENTER }}", SAMPLERS), "shuffle: true rand_skip: 3"),
        ((f"{SIZES} mirror: true", "yolo_data_type: 1"), ""),
        (("crop_size: 24",), ""),
        ((f"{DISTORT} {EXPAND} {RESIZE} mirror: true mosaic {{ prob: 0.6 }} mixup {{ prob: 0.4 }}", SAMPLERS), "shuffle: true rand_skip: 3"),
    ],
    ids=["all", "lists", "labels", "joined"],
)
def test_same_bytes(hurried: Callable[..., AnnotatedSource], tmp_path: pathlib.Path, settings: tuple[str, ...], data: str) -> None:
    fields = {} if len(settings) > 1 else {"type": None}
    path = write(tmp_path / "db", [scene(n, n % 4 * 9, **fields) for n in range(11)])
    plain, made = source(path, 5, *settings, data=data), hurried(path, 5, *settings, data=data, workers=3 + len(data) // 20)
    prefetcher, staged = Prefetcher(made, 3), []
    run = made._threads.run
    made._threads.run = lambda tasks: [staged.append(1), *run(tasks)][1:]  # type: ignore[method-assign,func-returns-value,assignment]
    for index in range(7):
        taken = prefetcher.get()
        assert used(plain, taken.info.shapes, taken.data) == parts(plain, index)
    prefetcher.close()
    assert len(staged) < 7  # threads stage a batch only while the processes have no free slot
    for index in (9, 2, 30, 3):  # as after a resume
        assert parts(made, index) == parts(plain, index)
    assert made._crew is not None and made._crew.ready and sum(made.effort.seconds().values()) > 0


def test_ranks_share_a_batch(hurried: Callable[..., AnnotatedSource], tmp_path: pathlib.Path) -> None:
    settings = f"{DISTORT} {EXPAND} {RESIZE}", SAMPLERS
    path = write(tmp_path / "db", [scene(n) for n in range(11)])
    alone, ranks = source(path, 6, *settings), [hurried(path, 3, *settings, step=2), source(path, 3, *settings)]
    for number, rank in enumerate(ranks):
        rank.share = Share(number, 2)
    for index in (0, 2, 4, 11):
        whole = alone._first.pixels(batch_of(alone, index))
        for number, rank in enumerate(ranks):
            assert np.array_equal(rank._first.pixels(batch_of(rank, index)), whole[number::2])


def test_images_larger_than_the_first(hurried: Callable[..., AnnotatedSource], tmp_path: pathlib.Path) -> None:
    path = write(tmp_path / "db", [scene(n, size=(40 + 8 * (n % 3), 48)) for n in range(6)])
    made, plain = hurried(path, 1, "mirror: true"), source(path, 1, "mirror: true")
    assert [parts(made, index) for index in range(8)] == [parts(plain, index) for index in range(8)]


def test_errors(hurried: Callable[..., AnnotatedSource], tmp_path: pathlib.Path) -> None:
    damaged = proto.AnnotatedDatum.FromString(scene(4))
    damaged.datum.data = damaged.datum.data[:-60]
    records = {1: b"\x0a\xff", 4: damaged.SerializeToString(), 7: scene(7, size=(44, 48)), 10: scene(10, boxes=9)}
    path = write(tmp_path / "db", [records.get(n, scene(n)) for n in range(15)])
    settings = DISTORT, "anno_type: BBOX"
    made, plain = hurried(path, 3, *settings), source(path, 3, *settings)
    for each in (made, plain):
        each.limits[1] = [LabelRange("loss", 5)]
    facts = ("record 1 (key '00000001'): it is not an AnnotatedDatum", "record 4 (key '00000004'): it cannot be decoded", "3 x 44 x 48", "record 10")
    for index, fact in enumerate(facts):
        mine, other = (failure(partial(batch_of, each, index)) for each in (made, plain))
        assert fact in mine.fact and (mine.fact, mine.fix, mine.place, mine.layer) == (other.fact, other.fix, other.place, other.layer)
    assert parts(made, 4) == parts(plain, 4) and made._crew is not None and made._crew.ready


def test_large_images_are_left_to_threads(hurried: Callable[..., AnnotatedSource], tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ocaffe.data.stagers.crew._PIXELS", 3 * 1500)
    path = write(tmp_path / "db", [scene(n, size=(40, 48) if n % 3 else (30, 48)) for n in range(9)])
    made, plain = hurried(path, 3, RESIZE, SAMPLERS), source(path, 3, RESIZE, SAMPLERS)
    assert [parts(made, index) for index in range(4)] == [parts(plain, index) for index in range(4)]


def test_a_dead_process(hurried: Callable[..., AnnotatedSource], tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write(tmp_path / "db", [scene(n) for n in range(9)])
    made, plain = hurried(path, 4, RESIZE, SAMPLERS), source(path, 4, RESIZE, SAMPLERS)
    assert parts(made, 0) == parts(plain, 0) and made._crew is not None
    children = list(made._crew._state.children)
    os.kill(children[1].pid, signal.SIGKILL)
    assert [parts(made, index) for index in range(1, 9)] == [parts(plain, index) for index in range(1, 9)]
    until(lambda: all(child.poll() is not None for child in children))
    assert "Threads decode from now on" in capsys.readouterr().err


def test_processes_end_with_their_source(hurried: Callable[..., AnnotatedSource], tmp_path: pathlib.Path) -> None:
    made = hurried(write(tmp_path / "db", [scene(n) for n in range(4)]), 4)
    assert made._crew is not None
    children = list(made._crew._state.children)
    made.close()
    assert len(children) == 3 and all(child.poll() is not None for child in children)
