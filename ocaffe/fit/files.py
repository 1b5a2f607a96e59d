"""The files in OUT: their names, whether a killed process has left them, and the weights that remain."""
from __future__ import annotations

import glob
import os
import shutil

from ocaffe import proto
from ocaffe.errors import Error
from ocaffe.evaluation.sidecar import sidecar_of
from ocaffe.formats.filter import filter_net
from ocaffe.formats.text import read_net
from ocaffe.formats.upgrade import upgrade_net
from ocaffe.shown import command, path_word
from ocaffe.support.files import atomic_write, clear_killed, open_plain
from ocaffe.zoo.project import FILES, Project

BEST, LOG, RESULTS, CONFUSION = "best.caffemodel", "train.log", "results.json", "confusion.png"


def unfinished(out: str) -> bool:
    """Return whether a process that was killed has left its files in `out`. The same command goes on with its training."""
    clear_killed(out)
    return all(os.path.isfile(os.path.join(out, name)) for name in FILES) and not os.path.lexists(os.path.join(out, RESULTS))


def keep_best(project: Project) -> str:
    """Give the weights of the best test a short name. Raise Error if the training was stopped before the first one."""
    found = glob.glob(f"{glob.escape(project.prefix)}_best_iter_*.caffemodel")
    if not found:
        fix = f"continue with: {command('ocaffe', 'train', '--solver', path_word(project.path('solver.prototxt')), '--snapshot', 'auto')}"
        raise Error("the training was stopped before a test", place=project.folder, fix=fix)
    best = project.path(BEST)
    newest = max(found, key=os.path.getmtime)
    for source, target in ((newest, best), (sidecar_of(newest), sidecar_of(best))):
        with open_plain(source) as stream, atomic_write(target) as out:
            shutil.copyfileobj(stream, out)
    return best


def batch_in(out: str) -> int:
    """Return the images of an iteration in the files of a training. Raise Error."""
    net = filter_net(upgrade_net(read_net(os.path.join(out, FILES[0]))), proto.NetState(phase=proto.TRAIN))
    batches = (value.batch_size for layer in net.layer for field, value in layer.ListFields() if field.name.endswith("_param") and hasattr(value, "batch_size"))
    return next(batches, 0)
