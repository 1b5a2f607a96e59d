"""N ranks with batch B train like one with batch N x B: all solvers, passes, clipping, shared weights, dropout, random crops, tests."""
from __future__ import annotations

import itertools
import json
import pathlib
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import pytest

from tests.parallel.launch import environment, finished, needs_mpi, python
from tests.parallel.trainings import CASES, ITERATIONS, write_records

pytestmark = needs_mpi
RANKS = (1, 2, 3)
REPEATED = ("SGD", "Adam", "passes and clipping", "synchronized statistics")


@pytest.fixture(scope="module")
def results(device: Any, tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    """Run all trainings on one, two and three ranks. Return the folder of their results."""
    folder = tmp_path_factory.mktemp("trainings")
    run_all(folder, device, RANKS, ITERATIONS, REPEATED)
    return folder


def run_all(folder: pathlib.Path, device: Any, several: Sequence[int], iterations: int, repeated: Iterable[str]) -> None:
    write_records(folder)
    for ranks in several:
        done = finished(python(ranks, "-m", "tests.parallel.trainings", str(folder), str(iterations), *repeated), folder, environment(device))
        assert done.returncode == 0, done.stdout[-4000:]


def values(folder: pathlib.Path, case: str, way: str, ranks: int, rank: int = 0) -> dict[str, np.ndarray]:
    with np.load(folder / f"{case} {way} {ranks} {rank}.npz") as file:
        return dict(file)


def facts(folder: pathlib.Path, ranks: int) -> list[dict[str, Any]]:
    return [json.loads((folder / f"facts {ranks} {rank}.json").read_text()) for rank in range(ranks)]


def distance(found: dict[str, np.ndarray], expected: dict[str, np.ndarray]) -> float:
    """Return the relative L2 distance of all parameters."""
    ours, theirs = (np.concatenate([blob.ravel() for name, blob in each.items() if "/" in name and "history" not in name]) for each in (found, expected))
    return float(np.linalg.norm(ours - theirs) / np.linalg.norm(theirs))


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("ranks", RANKS[1:])
def test_ranks_train_like_one(results: pathlib.Path, case: str, ranks: int) -> None:
    one, several = values(results, case, "window", 1), values(results, case, "window", ranks)
    assert distance(several, one) < 1e-6
    np.testing.assert_allclose(several["train"], one["train"], rtol=1e-5)
    np.testing.assert_allclose(several["test"], one["test"], rtol=1e-5)  # 5 batches are no multiple of the ranks


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("ranks", RANKS[1:])
def test_ranks_repeats_and_carriers_are_equal_to_the_bit(results: pathlib.Path, case: str, ranks: int) -> None:
    equal_to_the_bit(results, case, ranks, ("window", "again", "messages") if case in REPEATED else ("window",))


def equal_to_the_bit(folder: pathlib.Path, case: str, ranks: int, ways: Sequence[str]) -> None:
    first = values(folder, case, "window", ranks)
    for way, rank in itertools.product(ways, range(ranks)):
        other = values(folder, case, way, ranks, rank)
        assert other.keys() == first.keys()
        for name, array in first.items():
            assert np.array_equal(array, other[name]), (way, rank, name)


@pytest.mark.abuse
def test_a_hundred_iterations(device: Any, tmp_path: pathlib.Path) -> None:
    """With the MPI library of this environment."""
    several = (1, 2, 4)
    run_all(tmp_path, device, several, 100, CASES)
    for case, ranks in itertools.product(CASES, several[1:]):
        assert distance(values(tmp_path, case, "window", ranks), values(tmp_path, case, "window", 1)) < 1e-6, (case, ranks)
        equal_to_the_bit(tmp_path, case, ranks, ("window", "again", "messages"))


@pytest.mark.parametrize(("before", "ranks"), [(1, 2), (1, 3), (2, 3)])
def test_another_number_of_ranks_resumes(results: pathlib.Path, before: int, ranks: int) -> None:
    resumed = values(results, "SGD", f"resumed from {before}", ranks)
    assert distance(resumed, values(results, "SGD", "window", 1)) < 1e-6
    for rank in range(1, ranks):
        assert all(np.array_equal(array, resumed[name]) for name, array in values(results, "SGD", f"resumed from {before}", ranks, rank).items())


def test_trainings_learn(results: pathlib.Path) -> None:
    """The distances above would be small too if no training changed its weights."""
    start = values(results, "SGD", "window", 1)["train"]
    assert len(start) == ITERATIONS // 2 and start[-1] < start[0]
    assert distance(values(results, "Adam", "window", 1), values(results, "SGD", "window", 1)) > 1e-3


@pytest.mark.parametrize("ranks", RANKS[1:])
def test_ranks_agree(results: pathlib.Path, ranks: int) -> None:
    """Each result of an Agreement is the largest request of the call before, on all ranks."""
    for found in facts(results, ranks):
        assert found["agreed"] == [0, 0, 1, 0, 2, 0]
        assert found["interleaved"] == ["00", "10", "01"] if ranks == 2 else ["00", "10", "20", "01"]
        assert found["mean"] == [np.float32(sum(range(ranks)) / ranks), pytest.approx(0.1)]
        assert facts(results, ranks)[0]["mean"] == found["mean"]
    assert [found["share"] for found in facts(results, 3)] == [[6, 9], [7, 10], [8, 11]]


@pytest.mark.parametrize(("ranks", "saved"), [(1, [3, 6, 9]), (2, [4, 8]), (3, [4, 8])])
def test_a_snapshot_by_the_clock_is_written_once(results: pathlib.Path, ranks: int, saved: list[int]) -> None:
    """Several ranks write it an iteration after the request of rank 0."""
    assert [found["saved"] for found in facts(results, ranks)] == ranks * [saved]


@pytest.mark.parametrize("ranks", RANKS[1:])
def test_differences_between_ranks_are_named(results: pathlib.Path, ranks: int) -> None:
    for found in facts(results, ranks):
        assert found["equal"] == ""
        assert found["unequal"].startswith(f"rank {ranks - 1} on ") and "has another second than rank 0 on " in found["unequal"]


@pytest.mark.parametrize("ranks", RANKS[1:])
def test_statistics_are_averaged_if_the_solver_says_so(results: pathlib.Path, ranks: int) -> None:
    own, means = facts(results, ranks)[0]["statistics"]
    assert len(own) == len(means) == ranks and all(rank != own[0] for rank in own[1:])
    assert all(rank == means[0] for rank in means)
    np.testing.assert_allclose(means[0], np.mean(own, 0), rtol=1e-5)


@pytest.mark.parametrize("ranks", RANKS[1:])
def test_gradients_of_16_bits(results: pathlib.Path, ranks: int) -> None:
    """The values are rounded to 9 bits on their way, and all ranks get the same bits."""
    one = values(results, "SGD", "window", 1)
    found = [dict(np.load(results / f"SGD sixteen {ranks} {rank}.npz")) for rank in range(ranks)]
    assert all((found[0][name] == each[name]).all() for each in found[1:] for name in one if "/" in name)
    assert 1e-6 < distance(found[0], one) < 1e-2


@pytest.mark.parametrize("ranks", RANKS[1:])
def test_statistics_are_never_rounded_to_16_bits(results: pathlib.Path, ranks: int) -> None:
    one, sixteen = (values(results, "synchronized statistics", way, count)["train"] for way, count in (("window", 1), ("sixteen", ranks)))
    np.testing.assert_allclose(sixteen[0], one[0], rtol=1e-6)  # no gradient has been sent yet
    assert (sixteen[1:] != one[1:]).any()
