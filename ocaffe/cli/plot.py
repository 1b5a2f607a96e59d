"""ocaffe plot FILE... -o FILE: plot the curves of training logs, or the scores of classes."""
from __future__ import annotations

import os
from collections.abc import Sequence

from ocaffe.cli.flags import Parser, refuse_overwriting
from ocaffe.errors import Error
from ocaffe.evaluation.class_plots import render_classes
from ocaffe.evaluation.class_scores import read_class_scores
from ocaffe.shown import command, say
from ocaffe.support.files import atomic_write
from ocaffe.tools.drawing.figure import FORMATS
from ocaffe.tools.drawing.plots import Curve, panels, render
from ocaffe.tools.training_logs.logs import read_log
from ocaffe.tools.training_logs.tables import CHARTS, Chart, points


def main(argv: Sequence[str]) -> int:
    parser = Parser("plot", "Plot loss, accuracy, scores and learning rate of training logs of ocaffe or Caffe; or the scores of the classes in a test.")
    parser.add_argument("files", metavar="FILE", nargs="+", help="logs (the stderr of `train`), one for each run; or .json files of `test --scores`: "
                                                                 "precision and recall of detectors, IoU of segmentations")  # fmt: skip
    parser.add_argument("-o", "--output", "-output", default="plot.png", help=f"the file to write; its extension selects the format: {', '.join(FORMATS)}")
    parser.flag("seconds", False, "plot over seconds instead of iterations")
    parser.flag("chart", -1, "as plot_training_log.py CHART OUTPUT LOG...: the first FILE is the picture. "
                             + ", ".join(f"{number}: {chart.title}" for number, chart in enumerate(CHARTS)))  # fmt: skip
    options = parser.parse(argv)
    if options.chart >= 0:
        if options.chart >= len(CHARTS) or len(options.files) < 2:
            fact = f"--chart is {options.chart}" if options.chart >= len(CHARTS) else f"{options.files[0]} is the only FILE"
            raise Error(fact, place="ocaffe plot", fix=f"--chart 0 to {len(CHARTS) - 1}, then the picture and at least one log")
        options.output, *options.files = options.files
    kind = os.path.splitext(options.output)[1][1:].lower()
    if kind not in FORMATS:
        raise Error(f"the output is {options.output}", place="ocaffe plot", fix=f"give the output a name that ends in .{', .'.join(FORMATS)}")
    refuse_overwriting("plot", options.files, [options.output])
    scores = [path for path in options.files if path.lower().endswith(".json")]
    if scores and (options.seconds or len(scores) < len(options.files)):
        other = "--seconds" if options.seconds else next(path for path in options.files if path not in scores)
        raise Error(f"{scores[0]} has the scores of a test, and {other} belongs to logs", place="ocaffe plot", fix="plot scores and logs by two commands")
    if options.chart >= 0:
        content = _chart(CHARTS[options.chart], options.files, kind)
    else:
        content = _scores(scores, kind) if scores else _logs(options.files, kind, options.seconds)
    with atomic_write(options.output) as out:
        out.write(content)
    say(f"wrote {options.output}")
    return 0


def _logs(paths: list[str], kind: str, seconds: bool) -> bytes:
    return render(panels(list(zip(_names(paths), map(read_log, paths))), seconds), kind, seconds)


def _other_charts(path: str, chart: Chart) -> str:
    """Return the remedy if a log has no values of `chart`: the numbers of the charts that it has."""
    log = read_log(path)
    have = [str(number) for number, other in enumerate(CHARTS) if points(log, other)[0]]
    tests = "; only the log of a training with tests has scores of tests" if chart.value.startswith("Test") else ""
    return f"the log has the charts {', '.join(have) or 'none'}: {command('ocaffe', 'plot', '--chart', *(have[:1] or ['NUMBER']))} ...{tests}"


def _chart(chart: Chart, paths: list[str], kind: str) -> bytes:
    """Return a chart of plot_training_log.py. Raise Error for a log that has no such values."""
    curves = []
    for name, path in zip(_names(paths), paths):
        x, y = points(read_log(path), chart)
        if not x:
            raise Error(f"it has no values of the chart '{chart.title}'", place=path, fix=_other_charts(path, chart))
        curves.append(Curve(name, chart.value, chart.value.startswith("Test"), x, y))
    return render({chart.title: curves}, kind, chart.seconds)


def _scores(paths: list[str], kind: str) -> bytes:
    names = _names(paths)
    drawn = {
        f"{name}: {output}" if len(names) > 1 else output: scores for name, path in zip(names, paths) for output, scores in read_class_scores(path).items()
    }
    return render_classes(drawn, kind, ", ".join(names))


def _names(paths: list[str]) -> list[str]:
    """Return file names without extension, or whole paths if two of these names are equal."""
    short = [os.path.splitext(os.path.basename(path))[0] for path in paths]
    return short if len(set(short)) == len(short) else paths
