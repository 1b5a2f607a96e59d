"""The command line: `ocaffe <command> [flags]`, one module per command. All of gflags' spellings of flags work."""
from __future__ import annotations

import importlib
import os
import re
import sys
import traceback
from collections.abc import Sequence

from ocaffe import __version__
from ocaffe.cl.discovery import start_trials
from ocaffe.cli.flags import CAFFE_COMMANDS, nearest
from ocaffe.errors import Error
from ocaffe.shown import Lines, NotPrinted, lines_of, printing, say
from ocaffe.support import log
from ocaffe.support.files import NotPlain
from ocaffe.support.here import GONE, REMEDY, working_folder

_HALF = re.compile("[\udc80-\udcff]")  # bytes of a name that is not UTF-8, as Python holds them
GROUPS: dict[str, dict[str, str]] = {
    "Your own images": {
        "fit": "train a net on a folder of your own images: from the folder to a tested net in one command",
        "predict": "print the best classes of images, by the result of fit or by any net",
        "new": "write the files to train a net on your own images",
        "zoo": "list the nets of the zoo; `zoo get` downloads public weights",
    },
    "Caffe's commands": {
        "train": "train or finetune a model",
        "test": "score a model",
        "time": "benchmark model execution time, layer by layer",
        "device_query": "show the OpenCL devices",
    },
    "Understand a net or a training": {
        "plan": "show the memory plan of a net or solver, without a device and without data",
        "summary": "show layers, shapes, parameters, MACs and memory of a net, without a device",
        "lint": "find common mistakes in a net or solver, without a device",
        "plot": "plot curves of one or several logs, or the scores of classes",
        "layers": "list the layer types; `layers TYPE` shows the parameters of one",
        "compare": "compare a net on two devices, or with the dump of another tool, layer by layer",
    },
    "Many trainings, faster nets": {
        "sweep": "train with every combination of some settings, one training a device",
        "tune": "measure the fastest kernels for a net on a device",
        "selftest": "compare every kernel family with numpy on a device",
        "report": "write a file about your device, to attach to an issue",
    },
    "Data and formats": {
        "convert": "convert a Caffe model to ONNX, or an ONNX model to Caffe, or weights from or to HDF5",
        "quantize": "give a trained net the integers of 8 bits that chips have",
        "dataset": "make databases of class folders, of boxes or masks in public formats, of mnist, cifar10 or digits",
    },
    "Caffe's tools": {
        "convert_imageset": "write image files and labels to a database",
        "convert_annoset": "write image files and boxes to a database (SSD)",
        "create_label_map": "make a label map from class names (SSD)",
        "compute_image_mean": "compute the mean image of a database",
        "extract_features": "write blobs of a net to databases",
        "upgrade_net_proto_text": "upgrade a net to the current format",
        "upgrade_net_proto_binary": "upgrade a caffemodel to the current format",
        "upgrade_solver_proto_text": "upgrade a solver to the current format",
        "classify": "classify images",
        "detect": "classify windows of images",
        "draw_net": "draw a net as SVG or PNG",
        "parse_log": "write the numbers of a log as CSV",
    },
    "The command line": {
        "install-links": "make all commands callable by their names in Caffe",
        "completion": "print a script that completes commands and flags in bash, zsh or fish",
    },
}
ON_A_DEVICE = frozenset({
    "classify", "compare", "detect", "device_query", "extract_features", "fit", "predict", "quantize", "report", "selftest", "sweep", "test", "time", "train",
    "tune",
})  # fmt: skip
COMMANDS = {name: text for group in GROUPS.values() for name, text in group.items()}
_LESS = "give a smaller size, batch or file; or end other programs; or raise the limit of memory, if `ulimit -v` shows one"
INTERRUPTED = 130  # exit status, as of shells


def usage() -> Lines:
    lines = ["usage: ocaffe <command> <flags>"]
    for title, commands in GROUPS.items():
        lines += ["", f"{title}:", *(f"  {name:<25} {text}" for name, text in commands.items())]
    lines += ["", "`ocaffe <command> --help` lists the flags; `ocaffe --version` prints the version."]
    return Lines(*lines)


def _unknown(args: Sequence[str]) -> Error:
    """Return the Error for arguments without a command. It names the nearest command."""
    name = next((arg for arg in args if not arg.startswith("-")), args[0])
    near = nearest(name, COMMANDS)
    fix = f"did you mean `ocaffe {near[0]}`?" if near else "`ocaffe --help` lists the commands"
    return Error(f"'{name}' is no command", place="ocaffe", fix=fix)


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return the exit status. An Error is printed to stderr and gives status 1."""
    try:
        try:
            return _main(argv)
        finally:
            if sys.stdout is not None and not sys.stdout.closed:
                with printing():
                    sys.stdout.flush()
    except BrokenPipeError:  # `ocaffe plan | head`
        _drop_output()
    except NotPrinted as problem:
        _drop_output()
        log.tell(str(Error(f"cannot be written: {problem.strerror}", place="stdout", fix="lead it to another file, on a disk with room")), mark="error:")
    return 1


def _drop_output() -> None:
    """Let what is left of the output vanish. Python writes it at the end, which would fail again."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _main(argv: Sequence[str] | None) -> int:
    _open_standard_streams()
    args = list(sys.argv[1:] if argv is None else argv)
    if args and args[0] in ("--version", "-version"):
        say(f"ocaffe version {__version__}")
        return 0
    command = _command(args)
    if command is None:
        wanted = args and args[0] in ("--help", "-help", "-h", "help")
        if args and not wanted:
            log.tell(str(_unknown(args)), mark="error:")
        else:
            (say if wanted else log.tell)(usage())
        return 0 if wanted else 1
    debug = "--debug" in args
    if debug:
        args.remove("--debug")
    try:
        log.configure("caffe" if command in CAFFE_COMMANDS else command)
        if command in ON_A_DEVICE:
            start_trials()
        module = importlib.import_module(f"ocaffe.cli.{command.replace('-', '_')}")
        return int(module.main(args) or 0)
    except (BrokenPipeError, NotPrinted):
        raise
    except KeyboardInterrupt:
        log.tell("interrupted")
        return INTERRUPTED
    except Exception as problem:
        error = _error(problem)
        if error is None:
            raise
        if debug:
            log.tell(lines_of(traceback.format_exc().rstrip("\n")))
        text = _with_working_folder(error)
        log.tell(text, mark="error:")
        if log.records and not log.stderr.isatty():  # a file or a pipe: `tail -1` finds it under a long log
            log.tell(f"ocaffe {command} failed: {one_line(text)}")
    return 1


def one_line(text: str) -> str:
    """Return the text of an error as one line."""
    return " ".join(text.split())


def _with_working_folder(error: Error) -> str:
    """Return the text of an error. A working folder that no longer exists can be its cause, because relative names lead to no file then."""
    if error.fact == GONE or working_folder() is not None:
        return str(error)
    return Lines(str(error), f"  note: {GONE}, so a relative name leads to no file: {REMEDY}")


def _error(problem: Exception) -> Error | None:
    """Return the Error to print for an exception, or None for a bug of ocaffe."""
    if isinstance(problem, Error):
        return problem
    if isinstance(problem, FileNotFoundError) and "temporary directory" in str(problem):  # Python's `tempfile` has tried TMPDIR, /tmp and others
        return Error("no folder for temporary files can be written", place="ocaffe", fix="free room on its disk, or let TMPDIR name a folder on another disk")
    if isinstance(problem, FileNotFoundError) and problem.filename is None and working_folder() is None:
        return Error(GONE, place="ocaffe", fix=f"{REMEDY}, or give absolute names")
    if isinstance(problem, (NotPlain, IsADirectoryError, PermissionError)) and problem.filename:
        fix = "remove it, or let it be a plain file that you may read and write"
        return Error(f"the file cannot be used: {problem.strerror}", place=os.fsdecode(problem.filename), fix=fix)
    if isinstance(problem, UnicodeEncodeError) and _HALF.search(problem.object):
        return Error("the name is not UTF-8, and prototxts hold UTF-8 alone", place=problem.object, fix="rename the file or folder, or move it into another")
    if isinstance(problem, MemoryError):
        text = str(problem) or "the system gives no more"
        return Error(f"the command needs more memory than there is: {text}", place="ocaffe", fix=_LESS)
    from ocaffe.cl.failure import device_failure  # most commands run without OpenCL

    return device_failure(problem)


def _open_standard_streams() -> None:
    """Open stdin, stdout and stderr if they are closed. Else the next file, for example a snapshot, gets the number to which libraries print."""
    while (handle := os.open(os.devnull, os.O_RDWR)) <= 2:
        pass
    os.close(handle)


def _command(args: list[str]) -> str | None:
    """Remove the command from the arguments and return it. As with gflags, it may come after flags."""
    for index, arg in enumerate(args):
        if arg in COMMANDS:
            return args.pop(index)
        if not arg.startswith("-") and (index == 0 or "=" in args[index - 1]):
            return None
    return None
