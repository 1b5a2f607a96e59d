"""Weights that a command copies by the names of layers: an error if no name matches, a warning if only some do."""
from __future__ import annotations

from collections.abc import Collection, Mapping

from ocaffe import proto
from ocaffe.cli.flags import Parser
from ocaffe.errors import Error, names_text
from ocaffe.formats.fillers import draw_of
from ocaffe.formats.weights import read_weights
from ocaffe.ir.graph import Graph, Parameter
from ocaffe.shown import Lines
from ocaffe.support import log


def match_flag(parser: Parser) -> None:
    parser.flag("allow_no_match", False, "accept weights of which no layer has the name of a layer of the net")


def check_match(graph: Graph, copied: Mapping[str, Collection[Parameter]], allow_no_match: bool) -> None:
    """Raise Error for a file from which nothing was copied. Warn once if some layers of the net got nothing.

    `copied`: the parameters of `graph` that each file has set.
    """
    own = [node.name for node in graph.nodes if node.params]
    if not own or not copied:
        return
    for file, parameters in copied.items():
        if not parameters and not allow_no_match:
            theirs = [layer.name for layer in read_weights(file).layers if layer.blobs]
            raise Error(
                Lines("no layer of the file has the name of a layer of the net", f"  the file has {_names(theirs)}; the net has {_names(own)}"),
                place=file, fix="give the weights of this net, or give its layers the names in the file; --allow-no-match keeps the values of the fillers",
            )  # fmt: skip
    given = {id(parameter) for parameters in copied.values() for parameter in parameters}
    filled = [node.name for node in graph.nodes if node.params and any(id(parameter) not in given for parameter in node.params)]
    if filled:
        fact = f"{len(own) - len(filled)} of the {len(own)} layers with parameters got them from {', '.join(copied)}"
        log.warning("net.cpp:744", f"{fact}; these keep the values of their fillers: {_names(filled)}")


def warn_frozen(graph: Graph, copied: Mapping[str, Collection[Parameter]]) -> None:
    """Warn of layers with random values that are never learned: lr_mult is 0, and no file has set them."""
    given = {id(parameter) for parameters in copied.values() for parameter in parameters}
    frozen = [each for each in graph.params if not each.learned and id(each) not in given and isinstance(each.filler, proto.FillerParameter)]
    names = [*dict.fromkeys(each.layer for each in frozen if draw_of(each.filler, each.shape) is not None)]
    if names:
        fact = "lr_mult is 0 and no file has the weights, so these layers keep random values of their fillers"
        log.warning("net.cpp:744", f"{fact}: {_names(names)}; give --weights, or remove lr_mult: 0")


def _names(names: list[str]) -> str:
    return names_text(names) or "no layers with weights"
