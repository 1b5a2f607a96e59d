"""A replay notices a changed scalar, text and plan, and accepts the names of a table of renames."""
from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, NamedTuple

import pytest

from tests.structure import replay

NAME = "lenet TRAIN H100"


class Recorded(NamedTuple):
    """A recording, and the same described again."""

    record: replay.Record
    description: dict[str, Any]
    texts: dict[str, str]

    def differences(
        self, fields: tuple[str, str] = ("", ""), words: tuple[str, str] = ("", ""), renames: Mapping[str, Any] = {}, tokens: bool = False, ignored: str = ""
    ) -> list[str]:
        """Compare with a version in which `fields` replaces a text of the description, and `words` one of all program texts."""
        comparison = replay.Comparison(self.record, replay.Renames(renames), tokens, {ignored} - {""})
        description = json.loads(json.dumps(self.description).replace(*fields) if fields[0] else json.dumps(self.description))
        for digest, text in self.texts.items():
            comparison.texts[digest] = text
            comparison.texts[f"{digest}+"] = text.replace(*words)
        for entry in [*description["launches"], *description["programs"]] if words[0] else []:
            if words[0] in self.texts.get(entry.get("text", ""), ""):
                entry["text"] += "+"
        return comparison.differences(NAME, description)


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Recorded:
    path = tmp_path_factory.mktemp("replay") / "base.json"
    replay.record(path, [NAME], 1)
    [(_, description, texts)] = replay.described([NAME], 1)
    return Recorded(replay.Record(path), description, texts)


def test_the_same_code_has_no_difference(recorded: Recorded) -> None:
    assert recorded.record.cases == {NAME: replay.digest_of(recorded.description)}
    assert recorded.differences() == []


def test_a_scalar_is_noticed(recorded: Recorded) -> None:
    first, *more = recorded.differences(('"int32 24"', '"int32 25"'))
    assert first.startswith("launches:") and any("pool1" in line for line in more) and any("scalars" in line and "int32 25" in line for line in more)


def test_a_larger_plan_is_noticed(recorded: Recorded) -> None:
    total = recorded.description["plan"]["total"]
    assert any(line.startswith("plan was") for line in recorded.differences((f'"total": {total}', f'"total": {total + 256}')))


def test_a_launch_less_is_noticed(recorded: Recorded) -> None:
    fewer = {**recorded.description, "launches": recorded.description["launches"][1:]}
    lines = recorded._replace(description=fewer).differences()
    assert lines[0] == "launches: 22 before, 21 now" and lines[1].strip() == "- #0 forward conv1 Launch conv_gpu.forward"


def test_a_text_is_noticed(recorded: Recorded) -> None:
    lines = recorded.differences(words=("barrier(", "barrier ("))
    assert "have other texts" in lines[0] and any(line.strip().startswith("+") and "barrier (" in line for line in lines)


def test_white_space_and_comments_are_no_tokens(recorded: Recorded) -> None:
    assert recorded.differences(words=("barrier(", "barrier /* wait */ ("), tokens=True) == []
    assert recorded.differences(words=("barrier(", "barrier2("), tokens=True) != []


def test_a_kernel_file_may_have_another_name(recorded: Recorded) -> None:
    change, table = ("pooling_gpu", "pool_gpu"), {"programs": {"pooling_gpu": "pool_gpu"}}
    assert recorded.differences(change) != []
    assert recorded.differences(change, renames=table) == []
    assert recorded.differences(("pooling_gpu", "pools_gpu"), renames=table) != []


def test_a_define_may_have_another_name(recorded: Recorded) -> None:
    change, table = ("STEP_TAPS", "TAPS"), {"defines": {"STEP_TAPS": "TAPS"}}
    assert recorded.differences(change, change) != []
    assert recorded.differences(change, change, renames=table) == []
    assert recorded.differences(change, ("STEP_TAPS", "STEP_TAP"), renames=table) != []


def test_a_field_may_be_left_out(recorded: Recorded) -> None:
    change = '"shown": "pooling', '"shown": "a pooling'
    assert recorded.differences(change) != []
    assert recorded.differences(change, ignored="shown") == []


def test_a_table_of_renames_has_known_parts() -> None:
    with pytest.raises(SystemExit, match="the part 'programms', which is none of programs"):
        replay.Renames({"programms": {}})


def test_a_plan_that_the_recording_lacks_is_a_difference(recorded: Recorded) -> None:
    said: list[str] = []
    comparison = replay.Comparison(recorded.record, replay.Renames({}), False, set())
    assert replay.compare(comparison, ["lenet TEST H100"], 1, said.append) == 1
    assert said == ["lenet TEST H100: the recording does not have it"]
