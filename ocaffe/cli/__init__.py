"""The command line: `ocaffe <command> [flags]`, one module per command. All of gflags' spellings of flags work."""
from __future__ import annotations

import importlib
import os
import sys
import traceback
from collections.abc import Sequence

from ocaffe import __version__, log
from ocaffe.cli.flags import CAFFE_COMMANDS
from ocaffe.errors import Error

COMMANDS = {
    "train": "train or finetune a model",
    "fit": "train a net on a folder of your own images: from the folder to a tested net in one command",
    "predict": "print the best classes of images, by the result of fit or by any net",
    "new": "write the files to train a net on your own images",
    "sweep": "train with every combination of some settings, one training a device",
    "test": "score a model",
    "time": "benchmark model execution time, layer by layer",
    "device_query": "show the OpenCL devices",
    "selftest": "compare every kernel family with numpy on a device",
    "compare": "compare a net on two devices, or optimised and plain, layer by layer",
    "tune": "measure the fastest kernels for a net on a device",
    "plan": "show the memory plan of a net or solver, without a device",
    "convert": "convert a model from or to ONNX, or weights from or to HDF5",
    "zoo": "list the nets of the zoo; `zoo get` downloads public weights",
    "layers": "list the layer types with their parameters",
    "dataset": "make databases of class folders, or of mnist, cifar10 or digits",
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
    "plot": "plot curves of one or several logs",
    "summary": "show layers, shapes, parameters, MACs and memory of a net, without a device",
    "lint": "find common mistakes in a net or solver, without a device",
    "install-links": "make all commands callable by their names in Caffe",
}


def usage() -> str:
    lines = ["usage: ocaffe <command> <flags>", "", "commands:"]
    lines += [f"  {name:<25} {text}" for name, text in COMMANDS.items()]
    lines += ["", "`ocaffe <command> --help` lists the flags; `ocaffe --version` prints the version."]
    return "\n".join(lines)


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return the exit status. An Error is printed to stderr and gives status 1."""
    _open_standard_streams()
    args = list(sys.argv[1:] if argv is None else argv)
    if args and args[0] in ("--version", "-version"):
        print(f"ocaffe version {__version__}")
        return 0
    command = _command(args)
    if command is None:
        wanted = args and args[0] in ("--help", "-help", "-h", "help")
        print(usage(), file=sys.stdout if wanted else log.stderr)
        return 0 if wanted else 1
    log.configure("caffe" if command in CAFFE_COMMANDS else command)
    debug = "--debug" in args
    if debug:
        args.remove("--debug")
    module = importlib.import_module(f"ocaffe.cli.{command.replace('-', '_')}")
    try:
        return int(module.main(args) or 0)
    except BrokenPipeError:  # `ocaffe plan | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except KeyboardInterrupt:
        print("interrupted", file=log.stderr)
    except Exception as problem:
        error = _error(problem)
        if error is None:
            raise
        if debug:
            traceback.print_exc()
        print(f"error: {error}", file=log.stderr)
    return 1


def _error(problem: Exception) -> Error | None:
    """Return the Error to print for an exception, or None for a bug of ocaffe."""
    if isinstance(problem, Error):
        return problem
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
