"""Compare what two versions of ocaffe make of the same nets: schedules, memory plans and program texts. No device is needed.

    python -m tests.structure.replay record FILE.json [--quick] [--only PATTERN]
    python -m tests.structure.replay compare FILE.json [--renames TABLE.json] [--tokens] [--ignore shown,flops]

`record` describes the nets of the zoo and the cases of `ocaffe selftest`, compiled for several targets in several ways (tests/structure/described.py).
FILE.json has a digest of each description and of each program text. FILE.zip beside it has the descriptions and the texts.
`compare` describes the same again, with the code of this checkout, and shows what differs: the first launches, tensors and programs, and the lines of
texts. Its exit status is 1 if something differs. --only: the names 'NET WAY TARGET' that match the regular expression.

--renames: equal up to renames. The table maps old names to new ones. Every part may be missing:

    {"programs": {"conv_gpu": "convolution_gpu"},               kernel files
     "kernels": {"pooling_gpu.forward": "pooling_gpu.pool"},    functions: also the word in the texts of this program
     "defines": {"BM": "TILE_ROWS"},                            also the word in all texts
     "words": {"LOCATE": "PLACE"},                              other words of all texts
     "names": {"BeginExchange": "ExchangeBegin"}}               other whole values: classes, names of tensors, values of defines

With renames, generated kernels may have other names, because these are digests of their texts. If they have, the texts of launches are compared, but not
how kernels are divided among programs, which follows from their names. The texts of task graphs are compared without the order of their lines.
--tokens: texts are equal apart from comments and white space.
--ignore: fields of launches, tensors and programs that are not compared.
"""
from __future__ import annotations

import argparse
import difflib
import hashlib
import json
import multiprocessing
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import time
import zipfile
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from ocaffe import log
from tests.structure.described import Description, describe, names, prepare

ROOT = pathlib.Path(__file__).resolve().parents[2]
SHOWN_CASES, SHOWN_LINES = 3, 30
PARTS = ("programs", "kernels", "defines", "words", "names")  # of a table of renames
GENERATED, TASK_GRAPH = "generated", "task_graph"  # programs without a file
_COMMENT = re.compile(r"/\*.*?\*/|//[^\n]*", re.DOTALL)
_TOKEN = re.compile(r"\w+|[^\w\s]")


class Record:
    """A recording on disk."""

    def __init__(self, path: pathlib.Path) -> None:
        facts = json.loads(path.read_text())
        self.commit, self.cases = str(facts["commit"]), dict(facts["cases"])
        self._zip = zipfile.ZipFile(path.with_suffix(".zip"))

    def case(self, name: str) -> Description:
        return dict(json.loads(self._zip.read(f"cases/{name}")))

    def text(self, digest: str) -> str:
        return self._zip.read(f"texts/{digest}").decode()


def digest_of(description: Description) -> str:
    return hashlib.sha1(json.dumps(description, sort_keys=True).encode()).hexdigest()[:16]


def plain(description: Description) -> Description:
    """The description as it is read from a file: tuples are lists."""
    return dict(json.loads(json.dumps(description)))


# -- describing ------------------------------------------------------------------------------------------------------

_sent: set[str] = set()  # texts that this process has returned


def _start(folder: str) -> None:
    log.quiet(2)
    prepare(pathlib.Path(tempfile.mkdtemp(dir=folder)))


def _one(name: str) -> tuple[str, Description, dict[str, str]]:
    description, texts = describe(name)
    new = {digest: text for digest, text in texts.items() if digest not in _sent}
    _sent.update(new)
    return name, plain(description), new


def described(wanted: list[str], processes: int) -> Iterator[tuple[str, Description, dict[str, str]]]:
    """Yield each name with its description, and with the texts of programs that came up for the first time in its process."""
    with tempfile.TemporaryDirectory() as folder, multiprocessing.get_context("spawn").Pool(processes, _start, (folder,)) as pool:
        yield from pool.imap_unordered(_one, wanted)


def record(path: pathlib.Path, wanted: list[str], processes: int) -> None:
    """Write the recording, and say what it has."""
    cases: dict[str, str] = {}
    programs: dict[str, str] = {}
    kept: set[str] = set()
    counts: Counter[str] = Counter()
    with zipfile.ZipFile(path.with_suffix(".zip"), "w", zipfile.ZIP_BZIP2) as file:
        for name, description, texts in described(wanted, processes):
            cases[name] = digest_of(description)
            file.writestr(f"cases/{name}", json.dumps(description))
            for digest in sorted(texts.keys() - kept):
                file.writestr(f"texts/{digest}", texts[digest])
            kept |= texts.keys()
            for entry in [*description.get("launches", ()), *description.get("programs", ())]:
                if "text" in entry:
                    programs[entry["text"]] = entry["program"]
            counts.update({part: len(found) for part, found in description.items() if part in ("launches", "programs", "tensors")})
            if "error" in description:
                print(f"{name}: {description['error'].splitlines()[0]}")
    commit = subprocess.run(["git", "describe", "--always", "--dirty"], cwd=ROOT, capture_output=True, text=True).stdout.strip()
    facts = {"commit": commit, "cases": dict(sorted(cases.items())), "programs": dict(sorted(programs.items(), key=lambda item: item[::-1]))}
    path.write_text(json.dumps(facts, indent=0) + "\n")
    print(f"{len(cases)} plans with {counts['launches']} launches, {counts['tensors']} tensors and {len(programs)} program texts in {path}")


# -- renames ---------------------------------------------------------------------------------------------------------


class Renames:
    """A table of renames, applied to an old description and to old texts."""

    def __init__(self, table: Mapping[str, Mapping[str, str]]) -> None:
        if unknown := sorted(table.keys() - set(PARTS)):
            raise SystemExit(f"the table of renames has the part '{unknown[0]}', which is none of {', '.join(PARTS)}")
        self.programs, self.kernels, self.defines, self.words, self.names = (dict(table.get(part, {})) for part in PARTS)

    def __bool__(self) -> bool:
        return any((self.programs, self.kernels, self.defines, self.words, self.names))

    def kernel(self, program: str, function: str) -> tuple[str, str]:
        new = self.kernels.get(f"{program}.{function}", "")
        return (new.rpartition(".")[0], new.rpartition(".")[2]) if new else (self.programs.get(program, program), function)

    def entry(self, entry: Description) -> Description:
        """A launch, a tensor or a program with new names."""
        result = {key: self._value(value) for key, value in entry.items()}
        if "function" in entry:
            result["program"], result["function"] = self.kernel(entry["program"], entry["function"])
        elif "program" in entry:
            result["program"] = self.programs.get(entry["program"], entry["program"])
        if "." in entry.get("shown", ""):
            result["shown"] = ".".join(self.kernel(*entry["shown"].split(".", 1)))
        if "defines" in entry:
            result["defines"] = dict(sorted((self.defines.get(name, name), self._value(value)) for name, value in entry["defines"].items()))
        return result

    def _value(self, value: Any) -> Any:
        if isinstance(value, list):
            return [self._value(one) for one in value]
        if isinstance(value, dict):
            return {key: self._value(one) for key, one in value.items()}
        return self.names.get(value, value) if isinstance(value, str) else value

    def text(self, text: str, program: str, generated: Mapping[str, str]) -> str:
        """A program's text with new words. `generated`: the new names of generated kernels."""
        functions = {}
        for old, new in self.kernels.items():
            family, _, function = old.rpartition(".")
            if program in (family, TASK_GRAPH):
                functions[function] = new.rpartition(".")[2]
        words = {**functions, **self.defines, **self.words, **generated}
        values = {f'"{old}"': f'"{new}"' for old, new in self.names.items()}
        text = re.sub(r"\b(part\d+_)?(\w+)", lambda match: (match[1] or "") + words.get(match[2], match[2]), text) if words else text
        return re.sub(r'"[^"\n]*"', lambda match: values.get(match[0], match[0]), text) if values else text


# -- comparing -------------------------------------------------------------------------------------------------------


class Comparison:
    """Compares the descriptions of this checkout with those of a recording."""

    def __init__(self, old: Record, renames: Renames, tokens: bool, ignored: set[str]) -> None:
        self.old, self.renames, self.tokens, self.ignored = old, renames, tokens, ignored
        self.exact = not renames and not tokens and not ignored
        self.texts: dict[str, str] = {}  # of this checkout
        self._told: set[tuple[str, str]] = set()  # pairs of texts whose difference was shown
        self._same: dict[tuple[str, str], bool] = {}

    def differences(self, name: str, new: Description) -> list[str]:
        """The differences, in lines. The first line of each difference does not begin with a blank."""
        if self.exact and digest_of(new) == self.old.cases[name]:
            return []
        old = self.old.case(name)
        lines: list[str] = []
        generated = self._generated(old, new)
        for part in ("error", *dict.fromkeys([*old, *new])):
            if part in ("launches", "tensors", "programs"):
                lines += self._entries(part, old.get(part, []), new.get(part, []), generated)
            elif part != "error" or part in old or part in new:
                lines += [f"{part} was {old.get(part)}, is {new.get(part)}"] if old.get(part) != new.get(part) else []
        return lines

    def _generated(self, old: Description, new: Description) -> dict[str, str]:
        """New names of generated kernels by old ones, from launches in the same place."""
        pairs = zip(old.get("launches", ()), new.get("launches", ()))
        found = {before["function"]: after["function"] for before, after in pairs if before.get("program") == after.get("program") == GENERATED}
        return {before: after for before, after in found.items() if before != after} if self.renames else {}

    def _entries(self, part: str, old: list[Description], new: list[Description], generated: dict[str, str]) -> list[str]:
        old = [self.renames.entry(entry) for entry in old] if self.renames else old
        old = [{**entry, "function": generated[entry["function"]]} if entry.get("function") in generated else entry for entry in old]
        if part == "programs" and not self.exact:  # new names have another order
            old, new = (sorted((entry for entry in entries if not generated or entry["program"] != GENERATED), key=_place) for entries in (old, new))
        before, after = ([self._compared(entry) for entry in entries] for entries in (old, new))
        if before != after:
            return [f"{part}: {len(before)} before, {len(after)} now", *_short([f"    {line}" for line in _changes(before, after)])]
        wrong = [(was, now) for was, now in zip(old, new) if not self._equal_texts(was, now, generated)]
        lines = [f"{part}: {len(wrong)} of {len(new)} have other texts"] if wrong else []
        for was, now in wrong:
            if (pair := (was["text"], now["text"])) not in self._told and len(lines) < SHOWN_LINES:
                self._told.add(pair)
                lines.append(f"    {_title(now)}")
                lines += _short([f"      {line}" for line in _diff(*(text.splitlines() for text in self._texts(was, now, generated)))])
        return lines

    def _compared(self, entry: Description) -> Description:
        """An entry without its text, which is compared by itself."""
        return {key: value for key, value in entry.items() if key not in self.ignored and key != "text"}

    def _texts(self, old: Description, new: Description, generated: Mapping[str, str]) -> tuple[str, str]:
        """The texts of an old entry, whose names are new already, and of the new one."""
        former = next((before for before, after in self.renames.programs.items() if after == old["program"]), old["program"])
        before, after = self.old.text(old["text"]), self.texts[new["text"]]
        if self.renames:
            before = self.renames.text(before, former, generated)
            before, after = (_sorted(text, new["program"] == TASK_GRAPH) for text in (before, after))
        if self.tokens:
            lines = ([" ".join(_TOKEN.findall(line)) for line in _COMMENT.sub(" ", text).splitlines()] for text in (before, after))
            before, after = ("\n".join(filter(None, one)) for one in lines)
        return before, after

    def _equal_texts(self, old: Description, new: Description, generated: Mapping[str, str]) -> bool:
        if old.get("text") == new.get("text") or "text" in self.ignored:
            return True
        if self.exact:
            return False
        key = old["text"], new["text"]
        if key not in self._same:
            before, after = self._texts(old, new, generated)
            self._same[key] = before == after
        return self._same[key]


def _place(entry: Description) -> str:
    return json.dumps([entry["program"], entry["defines"], entry["options"]])


def _sorted(text: str, whole: bool) -> str:
    """The text with its defines, or all of its lines, in an order that does not depend on former names."""
    lines = text.splitlines()
    end = len(lines) if whole else next((index for index, line in enumerate(lines) if not line.startswith("#define ")), 0)
    return "\n".join(sorted(lines[:end]) + lines[end:])


def _title(entry: Description) -> str:
    """The names of a launch, a tensor or a program."""
    kernel = ".".join(str(entry[key]) for key in ("program", "function") if key in entry)
    return " ".join([*(str(entry[key]) for key in ("phase", "layer", "role", "name", "class") if key in entry), kernel]).strip()


def _changes(before: list[Description], after: list[Description]) -> Iterator[str]:
    """The differences of two lists: fields of entries in the same place, or entries that came or went."""
    old, new = ([json.dumps(entry, sort_keys=True) for entry in entries] for entries in (before, after))
    for kind, a, b, c, d in difflib.SequenceMatcher(None, old, new, autojunk=False).get_opcodes():
        if kind == "replace" and b - a == d - c:
            for place, was, now in zip(range(a, b), before[a:b], after[c:d]):
                yield f"#{place} {_title(was)}"
                yield from (f"    {key}: {was.get(key)} -> {now.get(key)}" for key in dict.fromkeys([*was, *now]) if was.get(key) != now.get(key))
        elif kind != "equal":
            yield from (f"- #{place} {_title(before[place])}" for place in range(a, b))
            yield from (f"+ #{place} {_title(after[place])}" for place in range(c, d))


def _diff(before: list[str], after: list[str]) -> list[str]:
    return [line for line in difflib.unified_diff(before, after, lineterm="", n=1) if not line.startswith(("---", "+++"))]


def _short(lines: list[str]) -> list[str]:
    return lines[:SHOWN_LINES] + ([f"    ... and {len(lines) - SHOWN_LINES} more lines"] if len(lines) > SHOWN_LINES else [])


def compare(comparison: Comparison, wanted: list[str], processes: int, show: Callable[[str], None]) -> int:
    """Compare, show the differences of the first plans, and return the number of plans that differ."""
    known = [name for name in wanted if name in comparison.old.cases]
    wrong = [name for name in wanted if name not in comparison.old.cases]
    for name in wrong:
        show(f"{name}: the recording does not have it")
    failed: list[tuple[str, str]] = []
    for name, description, texts in described(known, processes):
        comparison.texts |= texts
        if lines := comparison.differences(name, description):
            failed.append((name, "; ".join(line.partition(":")[0] for line in lines if not line.startswith(" "))))
            if len(failed) <= SHOWN_CASES:
                show("\n".join([f"== {name}", *lines]))
    if failed:
        show("\n".join(["plans that differ:", *(f"  {name}: {what}" for name, what in sorted(failed))]))
    return len(failed) + len(wrong)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("record", "compare"))
    parser.add_argument("file", type=pathlib.Path)
    parser.add_argument("--quick", action="store_true", help="seven nets and the self-test")
    parser.add_argument("--only", default="")
    parser.add_argument("--renames", type=pathlib.Path)
    parser.add_argument("--tokens", action="store_true")
    parser.add_argument("--ignore", default="")
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1)
    args = parser.parse_args()
    begin = time.time()
    wanted = [name for name in names(args.quick) if re.search(args.only, name)]
    if args.what == "record":
        record(args.file, wanted, args.processes)
        return 0
    old = Record(args.file)
    renames = Renames(json.loads(args.renames.read_text()) if args.renames else {})
    wanted += [name for name in old.cases if name not in wanted and re.search(args.only, name) and not args.quick]
    comparison = Comparison(old, renames, args.tokens, set(filter(None, args.ignore.split(","))))
    wrong = compare(comparison, wanted, args.processes, print)
    print(f"{len(wanted) - wrong} of {len(wanted)} plans are those of {old.commit}{' up to renames' if renames else ''} ({time.time() - begin:.0f} s)")
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main())
