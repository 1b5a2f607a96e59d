"""ocaffe lint FILE...: report common mistakes in nets and solvers, each with file, line and remedy."""
from __future__ import annotations

from collections.abc import Iterator, Sequence

from ocaffe.cli.flags import Parser, stages, state_flags
from ocaffe.cli.train import imdb_flags, prepared
from ocaffe.convert.targets.table import names, read_table
from ocaffe.errors import Error, within
from ocaffe.lint import JOB_RULES, NET_RULES, NO_EFFECT, TARGET, WEIGHTS, Finding, lint, net_rules, solver_rules  # noqa: F401 (they register themselves)
from ocaffe.shown import say
from ocaffe.support import log

MANY = 3  # maximum number of findings of a rule in a file that are printed one by one


def main(argv: Sequence[str]) -> int:
    parser = Parser("lint", "Find common mistakes in nets and solvers (with their nets). This needs no device. Data is checked if it exists.")
    parser.add_argument("files", metavar="FILE", nargs="*", help="solver or net prototxts")
    parser.flag("ignore", "", "names of rules to leave out, separated by ','")
    parser.flag("weights", "", "also compare the net with this weights file")
    parser.flag("target", "", f"also say what this compiler or Caffe refuses: {', '.join(names())}")
    imdb_flags(parser)
    parser.flag("rules", False, "list the rules")
    state_flags(parser)
    options = parser.parse(argv)
    known = {name: rule.__doc__ or "" for name, rule in (*NET_RULES.items(), *JOB_RULES.items())}
    known[NO_EFFECT] = "A field of an old format that the current layer does not use, such as `mean_file` in image_data_param."
    known[TARGET] = "With --target: layers, fields and sizes that the compiler of a chip, or another Caffe, does not take (docs/targets.md)."
    known[WEIGHTS] = "With --weights: layers without weights, weights without a layer, and shapes that differ."
    ignored = frozenset(options.ignore.split(",")) - {""}
    if ignored - set(known):
        raise Error(f"--ignore names no rule: {', '.join(sorted(ignored - set(known)))}", place="ocaffe lint", fix="`ocaffe lint --rules` lists them")
    if options.rules:
        width = max(map(len, known))
        for name, description in known.items():
            say(f"{name:<{width}}  {' '.join(description.split())}")
        return 0
    if not options.files:
        raise Error("no file is given", place="ocaffe lint", fix="ocaffe lint FILE, with a solver or net prototxt as FILE")
    log.quiet(3)
    prepare = prepared(options)
    with within("ocaffe lint"):
        table = read_table(options.target) if options.target else None
    count = 0
    for path in options.files:
        found = lint(path, ignored, options.level, stages(options.stage), options.weights, prepare, table)
        count += len(found)
        for finding, alike in _grouped(found):
            say(str(finding))
            if alike:
                say(f"  also in line{'s' if len(alike) > 1 else ''} {', '.join(str(each.place.line) for each in alike)}")
    say(f"{count} finding{'s' if count != 1 else ''} in {', '.join(options.files)}")
    return 1 if count else 0


def _grouped(found: list[Finding]) -> Iterator[tuple[Finding, list[Finding]]]:
    """Yield the findings. If a rule has many in one file, yield the first with the others. Those of a target must say the same."""
    groups: dict[tuple[str, str, str], list[Finding]] = {}
    for finding in found:
        groups.setdefault((finding.rule, finding.place.file, finding.fact if finding.rule == TARGET else ""), []).append(finding)
    for group in groups.values():
        if len(group) > MANY and group[0].rule:
            yield group[0], group[1:]
        else:
            yield from ((finding, []) for finding in group)
