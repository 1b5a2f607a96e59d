"""Rules of LSTM and GRU."""
from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from ocaffe.convert.importer.builder import Builder
from ocaffe.convert.importer.graph import Node
from ocaffe.convert.importer.rules import operator
from ocaffe.convert.importer.rules.shape import flatten_to, slice_axes
from ocaffe.errors import shape_text
from ocaffe.ir.tensor import Shape

Blobs = list[np.ndarray]
STATE = 5  # the input that is the first initial state


def _lstm(node: Node, weight: np.ndarray, recurrent: np.ndarray, bias: np.ndarray) -> Blobs:
    """Return Caffe's blobs. ONNX has the gates in the order i, o, f, g, Caffe in the order i, f, o, g. ONNX has two biases."""

    def ordered(array: np.ndarray) -> np.ndarray:
        i, o, f, g = np.split(array, 4)
        return np.concatenate([i, f, o, g])

    return [ordered(weight), ordered(np.add(*np.split(bias, 2))), ordered(recurrent)]


def _gru(node: Node, weight: np.ndarray, recurrent: np.ndarray, bias: np.ndarray) -> Blobs:
    """Return the blobs of ocaffe's GRU. With linear_before_reset, the second bias of the candidate stays apart."""
    first, second = np.split(bias, 2)
    (z, r, n), (z_h, r_h, n_h) = np.split(first, 3), np.split(second, 3)
    linear = bool(node.get("linear_before_reset", 0))
    joined = np.concatenate([z + z_h, r + r_h, n if linear else n + n_h])
    return [weight, joined, *np.split(recurrent, 3), *([n_h] if linear else [])]


class Kind(NamedTuple):
    """An operator: its states, its gates, its activations for each direction, and its weights as Caffe's blobs."""

    states: int
    gates: int
    activations: list[str]
    blobs: Callable[[Node, np.ndarray, np.ndarray, np.ndarray], Blobs]


KINDS = {"LSTM": Kind(2, 4, ["Sigmoid", "Tanh", "Tanh"], _lstm), "GRU": Kind(1, 3, ["Sigmoid", "Tanh"], _gru)}


@operator(*KINDS)
def recurrent(net: Builder, node: Node) -> None:
    """Add a layer for each direction. The backward direction is between two Reverse layers.

    With initial states of zero, cont is 0 in the first step. Given initial states, and a final cell that the net reads, need expose_hidden.
    """
    kind, x = KINDS[node.op], net.bottom(node)
    directions, units = _sizes(net, node, kind, net.shape(x))
    steps, sequences, _ = net.shape(x)
    node.outputs[0] = node.outputs[0] or net.free(f"{node.name}_steps")  # an omitted output; blobs are named after it
    _check(net, node, kind, directions)
    given = not all(_is_zero(net, node.input(index)) for index in range(STATE, STATE + kind.states))
    exposed = given or _reads(net, node, 2)
    zeros = net.layer(node, "Reduction", [x], {"axis": 2, "coeff": 0}, part="zeros")  # T x N, so that the net takes any batch
    indicator = np.array([given] + [True] * (steps - 1), np.float32)
    cont = net.layer(node, "Bias", [zeros], {"axis": 0}, part="cont", blobs=[indicator], learn=False)
    initial = _initial_states(net, node, kind, zeros) if exposed else []
    fields: dict[str, Any] = {"num_output": units} | ({"expose_hidden": True, "state_gradient": True} if exposed else {})
    if node.get("linear_before_reset", 0):
        fields["linear_before_reset"] = 1
    parts = [_direction(net, node, kind, [x, cont, *initial], fields, number) for number in range(directions)]
    if _reads(net, node, 0):
        hidden = [_reversed(net, node, tops[0], "restored") if name == "reverse" else tops[0] for name, tops in parts]
        if not node.get("joined"):
            hidden = [flatten_to(net, node, blob, (steps, 1, sequences, units), f"direction{number}") for number, blob in enumerate(hidden)]
        net.alias(node, _joined(net, node, hidden, 2 if node.get("joined") else 1, "joined"))
    if _reads(net, node, 1):
        last = [slice_axes(net, node, tops[0], {0: (steps - 1, steps)}, f"{name}_last", last=False) for name, tops in parts]
        net.alias(node, _joined(net, node, last, 0, "last"), 1)
    if _reads(net, node, 2):
        net.alias(node, _joined(net, node, [tops[2] for _, tops in parts], 0, "cell"), 2)
    read = {blob for layer in net.message.layer for blob in layer.bottom} | set(net.same.values())
    unread = [blob for _, tops in parts for blob in tops if blob not in read]
    if unread:
        net.layer(node, "Silence", unread, part="rest", tops=[])


def _direction(net: Builder, node: Node, kind: Kind, bottoms: list[str], fields: dict[str, Any], number: int) -> tuple[str, list[str]]:
    """Add the layer of a direction. Return the direction's name and the layer's tops. In the backward direction they are in reversed time.

    `bottoms` are the input, cont, and the initial states of all directions.
    """
    name = "reverse" if number or node.get("direction", "forward") == "reverse" else "forward"
    weight, product = net.constant(node, 1), net.constant(node, 2)
    bias = net.constant(node, 3, np.zeros((len(weight), 2 * weight.shape[1]), np.float32))
    x, cont, *states = bottoms
    own = [_reversed(net, node, x, "reversed") if name == "reverse" else x, cont]
    own += [slice_axes(net, node, state, {0: (number, number + 1)}, f"{name}_state{index}_", last=False) for index, state in enumerate(states)]
    tops = [net.free(f"{node.outputs[0]}_{name}{state}") for state in ("", "_h", "_c")[: len(own) - 1]]
    blobs, passed = kind.blobs(node, weight[number], product[number], bias[number]), [index != 1 for index in range(len(own))]
    net.layer(node, node.op, own, fields, part=name, tops=tops, blobs=blobs, propagate=passed)
    return name, tops


def _sizes(net: Builder, node: Node, kind: Kind, x: Shape) -> tuple[int, int]:
    """Return the directions and the units. Raises Error if one of the inputs has another shape than these and x (T x N x I) demand."""
    net.check(node, len(x) == 3, f"its input X is {shape_text(x)}; it has time steps, sequences and values", "export with an input of three axes")
    directions = 2 if node.get("direction", "forward") == "bidirectional" else 1
    rows = net.constant(node, 2).shape[1:2]
    units = node.get("hidden_size", rows[0] // kind.gates if rows else 0)
    wide, state = kind.gates * units, (directions, x[1], units)
    wanted = {"W": (1, (directions, wide, x[2])), "R": (2, (directions, wide, units)), "B": (3, (directions, 2 * wide))}
    wanted |= {name: (STATE + index, state) for index, name in enumerate(("initial_h", "initial_c")[: kind.states])}
    for name, (index, shape) in wanted.items():
        tensor = node.input(index)
        given = net.graph.shape(tensor) if tensor else shape
        if tensor in net.graph.repeated:  # it has one value for all sequences
            shape = tuple(1 if axis == net.graph.repeated[tensor] else size for axis, size in enumerate(shape))
        fact = f"its input {name} ('{tensor}') is {shape_text(given)}; direction, hidden_size {units} and X of {shape_text(x)} need {shape_text(shape)}"
        net.check(node, given == shape, fact, f"export with {name} of {shape_text(shape)}")
    return directions, units


def _check(net: Builder, node: Node, kind: Kind, directions: int) -> None:
    """Refuse the forms that the layers do not compute."""
    given = [name if isinstance(name, str) else name.decode() for name in node.get("activations", [])]
    known = ", ".join(kind.activations)
    fact = f"its activations are {', '.join(given)}"
    net.check(node, given in ([], kind.activations * directions), fact, f"export with activations {known} for each direction")
    for name in ("clip", "input_forget"):
        net.check(node, not node.get(name), f"{name} is {node.get(name)}, and an {node.op} layer has no {name}", f"export without {name}")
    net.check(node, not node.get("layout"), "layout is 1: the batch comes before the time steps", "export with layout 0 (batch_first=False)")
    fact = "it has sequence_lens: sequences of different lengths in a batch"
    net.check(node, not node.input(4), fact, "export without sequence_lens, for sequences of one length")
    net.check(node, not node.input(7), "it has peepholes (input P), and an LSTM layer has none", "export without peepholes")


def _is_zero(net: Builder, tensor: str) -> bool:
    """Whether an initial state is omitted or zeros."""
    return not tensor or (tensor in net.graph.constants and not net.graph.constants[tensor].any())


def _reads(net: Builder, node: Node, output: int) -> bool:
    return output < len(node.outputs) and node.outputs[output] in net.wanted


def _reversed(net: Builder, node: Node, x: str, part: str) -> str:
    return net.layer(node, "Reverse", [x], part=part)


def _initial_states(net: Builder, node: Node, kind: Kind, zeros: str) -> list[str]:
    """Return the initial states (directions x N x H). Zeros are computed, so that the net takes any batch."""
    directions, _, units = net.constant(node, 2).shape
    states = []
    for index in range(STATE, STATE + kind.states):
        if not _is_zero(net, node.input(index)):
            states.append(net.bottom(node, index))
            continue
        top = slice_axes(net, node, zeros, {0: (0, 1)}, f"state{index}_", last=False)
        top = net.layer(node, "Reshape", [top], {"shape": {"dim": [0, 0, 1]}}, part=f"state{index}_axes")
        top = net.layer(node, "Tile", [top], {"axis": 2, "tiles": units}, part=f"state{index}_units")
        states.append(top if directions == 1 else net.layer(node, "Tile", [top], {"axis": 0, "tiles": directions}, part=f"state{index}"))
    return states


def _joined(net: Builder, node: Node, blobs: list[str], axis: int, part: str) -> str:
    return blobs[0] if len(blobs) == 1 else net.layer(node, "Concat", blobs, {"axis": axis}, part=part)
