"""OCAFFE_DEBUG: the words that it may have, mistakes in it, and the variables of older versions that it replaces."""
from __future__ import annotations

import os
import pathlib
import re

import pytest

from ocaffe.cli import main
from ocaffe.errors import Error
from ocaffe.support import parent
from ocaffe.support.switches import _GONE, _WORDS, VARIABLE, Switches
from ocaffe.zoo import FOLDER

ROOT = pathlib.Path(__file__).resolve().parents[2]
LENET = str(FOLDER / "lenet" / "deploy.prototxt")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", Switches()),
        ("verify, poison", Switches(verify=True, poison=True)),
        ("verify=1,poison=0,fuse=1", Switches(verify=True)),
        ("plan=none", Switches(share=False)),
        ("plan=separate", Switches(share=False, separate=True)),
        ("fuse=0,join=0,wgmma=0", Switches(fuse=False, join=False, wgmma=False)),
        ("fence=off", Switches(fence="OFF")),
        ("fence=scope", Switches(fence="SCOPE")),
        ("limits=max_work_group=64:local_memory=16384", Switches(limits=(("max_work_group", 64), ("local_memory", 16384)))),
        ("gradient_scale=4096", Switches(gradient_scale=4096)),
    ],
)
def test_words(text: str, expected: Switches, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, text)
    assert Switches.read() == expected


@pytest.mark.parametrize(
    ("word", "fact", "fix"),
    [
        ("fuze=0", "the word 'fuze=0' is unknown", "export OCAFFE_DEBUG=verify=1|the words are verify, poison, plan=none"),
        ("1", "the word '1' is unknown", "export OCAFFE_DEBUG=verify=1|the words are"),
        ("fuse=off", "'fuse' is 'off'", "export OCAFFE_DEBUG=verify=1,fuse=0"),
        ("verify=yes", "'verify' is 'yes'", "export OCAFFE_DEBUG=verify"),
        ("plan", "'plan' is ''", "export OCAFFE_DEBUG=verify=1,plan=none|other values are separate"),
        ("plan=some", "'plan' is 'some'", "export OCAFFE_DEBUG=verify=1,plan=none|other values are separate"),
        ("fence=CPU", "'fence' is 'CPU'", "export OCAFFE_DEBUG=verify=1,fence=off|other values are PTX, SCOPE, AMD"),
        ("limits=group=64", "'limits' is 'group=64'", "export OCAFFE_DEBUG=verify=1,limits=max_work_group=NUMBER:local_memory=NUMBER:max_allocation=NUMBER"),
        ("gradient_scale=1000", "'gradient_scale' is '1000'", "export OCAFFE_DEBUG=verify=1,gradient_scale=1|other values are 2, 4, 8, ..., 16777216"),
        ("poison,poison=0", "'poison' is given twice", "export OCAFFE_DEBUG=verify=1,poison"),
    ],
)
def test_mistakes(word: str, fact: str, fix: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, f"verify=1,{word}" if not word.startswith("verify") else word)
    with pytest.raises(Error) as caught:
        Switches.read()
    line, _, more = fix.partition("|")
    said = str(caught.value.fix).splitlines()
    assert caught.value.fact == fact and said[0] == line and more in "".join(said[1:])
    assert str(caught.value.place) == f"OCAFFE_DEBUG={os.environ[VARIABLE]}"


OLD = {  # values of 0.1's variables, and the words in their place
    "VERIFY": ("1", "verify=1"), "PLAN": ("none", "plan=none"), "POISON": ("1", "poison=1"), "FUSE": ("0", "fuse=0"), "JOIN": ("0", "join=0"),
    "WGMMA": ("0", "wgmma=0"), "FENCE": ("SCOPE", "fence=SCOPE"), "GRADIENT_SCALE": ("2048", "gradient_scale=2048"), "RECOMPUTE": ("none", ""),
    "LIMITS": ("max_work_group=64,local_memory=16384", "limits=max_work_group=64:local_memory=16384"),
}  # fmt: skip


@pytest.mark.parametrize("name", _GONE)
def test_variables_of_older_versions(name: str, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    """The command ends with one error, and the remedy works as it stands."""
    value, word = OLD[name]
    monkeypatch.setenv(VARIABLE, "")
    monkeypatch.setenv(f"OCAFFE_{name}", value)
    assert main(["summary", LENET]) == 1
    said = capfd.readouterr().err
    assert said.count("error:") == 1 and f"OCAFFE_{name} is set in the environment, and ocaffe no longer reads it" in said
    unset, found, kept = said[said.index("fix: ") + len("fix: ") :].splitlines()
    assert unset == f"unset OCAFFE_{name}; grep -n OCAFFE_{name} ~/.bashrc ~/.profile" and "remove the line" in found
    monkeypatch.delenv(f"OCAFFE_{name}")
    if word:
        assert re.fullmatch(rf"    to keep the effect \([a-zA-Z ]{{20,}}\): export {VARIABLE}={word}", kept)
        monkeypatch.setenv(*kept.rpartition("export ")[2].split("=", 1))
        assert Switches.read() != Switches()
    else:
        assert "--recompute none" in kept
    assert main(["summary", LENET]) == 0


def test_several_variables_of_older_versions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, "verify")
    for name, value in (("FUSE", "0"), ("POISON", "1"), ("PLAN", "all"), ("JOIN", "")):
        monkeypatch.setenv(f"OCAFFE_{name}", value)
    with pytest.raises(Error) as caught:
        Switches.read()
    assert caught.value.fact.startswith("OCAFFE_PLAN, OCAFFE_POISON, OCAFFE_FUSE are set")
    assert str(caught.value.fix).startswith("unset OCAFFE_PLAN OCAFFE_POISON OCAFFE_FUSE; grep")
    assert str(caught.value.fix).endswith(": export OCAFFE_DEBUG=verify,poison=1,fuse=0")


def test_the_page_lists_the_words_and_the_variables() -> None:
    text = (ROOT / "docs" / "pipeline.md").read_text(encoding="utf-8")
    listed = re.findall(r"^\| `(\w+)", text[text.index("## Debug switches") : text.index("## Other variables")], re.MULTILINE)
    assert list(dict.fromkeys(listed)) == list(_WORDS)
    variables = set(re.findall(r"\| `(OCAFFE_\w+)", text))
    read = {name for path in (ROOT / "ocaffe").rglob("*.py") for name in re.findall(r'"(OCAFFE_[A-Z_]+)"', path.read_text(encoding="utf-8"))}
    assert variables == read - {VARIABLE}


@pytest.mark.parametrize("variable", [VARIABLE, parent.VARIABLE])
def test_one_file_reads_it(variable: str) -> None:
    assert len([path for path in (ROOT / "ocaffe").rglob("*.py") if f'"{variable}"' in path.read_text(encoding="utf-8")]) == 1
