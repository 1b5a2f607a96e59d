"""Cut an ONNX model into pieces that correspond to layers, and bound the rounding errors of each piece.

The model is cut at every value that is also a blob of the net. Each piece gets the net's own values, so differences do not accumulate and nothing after
a piece hides its error. All pieces are one model, which runs once.

The bound is a condition number (Higham, Accuracy and Stability of Numerical Algorithms, chapter 1). It is measured as in Monte Carlo arithmetic (Parker,
1997): the piece runs again with inputs that are perturbed by random relative errors. A product or a reduction so gets the root of the sum of squares of
its terms. Cancellation inside of a piece counts too.
"""
from __future__ import annotations

import contextlib
from collections.abc import Container, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import onnx
from onnx import TensorProto, helper

from ocaffe.support.process_memory import pieces as parts_of

SINGLE, HALF = 2.0**-24, 2.0**-11  # unit roundoffs
ROUNDINGS, SUMS = 16, 64  # accepted units: of other pieces, and of pieces that sum (docs/onnx.md has the largest measured)
NOISE = 16  # size of the perturbations in units: larger than the rounding of the result, small enough to be linear
SAMPLES = (False, False, True)  # whether whole numbers are perturbed; a result of few numbers may by chance hardly change in one sample
PREFIX = "computed by a piece: "
# Operators that runtimes compute by approximations with an absolute error, in units of 4. The error counts where the exact result is near 0.
SATURATING = {"Sigmoid", "Tanh", "Softmax", "LogSoftmax", "Softplus", "Erf", "Gelu", "Elu", "Selu", "Celu", "Mish", "LSTM", "GRU", "RNN", "Scan", "Loop",
              "Exp", "Sin", "Cos", "Swish", "Attention"}  # fmt: skip
FLOOR = 0.25
# Operators that sum many numbers. The error of a sum grows with its length and depends on the order, which the perturbation does not show.
SUMMING = {"Conv", "ConvTranspose", "Gemm", "MatMul", "Einsum", "AveragePool", "GlobalAveragePool", "CumSum", "ReduceMean", "ReduceSum", "ReduceL1",
           "ReduceL2", "ReduceSumSquare", "ReduceLogSum", "ReduceLogSumExp", "LpNormalization", "InstanceNormalization", "LayerNormalization",
           "GroupNormalization", "LRN", "LSTM", "GRU", "RNN", "Scan", "Loop",
           "Attention"}  # fmt: skip

Arrays = Mapping[str, np.ndarray]


@dataclass(frozen=True)
class Piece:
    """The values that a piece reads, and its operators."""

    inputs: frozenset[str] = frozenset()
    operators: frozenset[str] = frozenset()


def pieces(model: onnx.ModelProto, values: set[str]) -> dict[str, Piece]:
    """Return the piece that computes each of `values` from others of `values` and the inputs of the model."""
    found, own = {info.name: Piece(frozenset([info.name])) for info in model.graph.input}, dict[str, Piece]()
    for node in model.graph.node:
        read = [Piece(frozenset([name])) if name in values else found.get(name, Piece()) for name in reads(node)]
        operators = frozenset([node.op_type]).union(*(part.operators for part in read))
        piece = Piece(frozenset().union(*(part.inputs for part in read)), operators)
        found |= dict.fromkeys(node.output, piece)
        own |= {name: piece for name in node.output if name in values}
    return own


def reads(node: onnx.NodeProto) -> list[str]:
    """Return the values that a node reads, also those that its subgraphs read from outside."""
    own = [name for graph in subgraphs(node) for name in (*(name for other in graph.node for name in reads(other)), *(info.name for info in graph.output))]
    return [*filter(None, node.input), *own]


def subgraphs(node: onnx.NodeProto) -> list[onnx.GraphProto]:
    return [graph for attribute in node.attribute for graph in ([attribute.g] if attribute.type == onnx.AttributeProto.GRAPH else attribute.graphs)]


def prune(graph: onnx.GraphProto) -> None:
    """Remove the nodes that no output needs, also in subgraphs. onnx's reference evaluator would run them."""
    wanted = {info.name for info in graph.output}
    for number in reversed(range(len(graph.node))):
        node = graph.node[number]
        if wanted.isdisjoint(node.output):
            del graph.node[number]
            continue
        for inner in subgraphs(node):
            prune(inner)
        wanted.update(reads(node))


@contextlib.contextmanager
def cut(model: onnx.ModelProto, values: set[str]) -> Iterator[None]:
    """Make `values` inputs of the model, and PREFIX + value what the model computes for them. On exit the model is as before.

    The model is changed in place: a copy would double the weights' memory.
    """
    graph = model.graph
    inputs, known = list(graph.input), list(graph.value_info)
    kinds = kinds_of(model)
    made = [(node, i, name) for node in graph.node for i, name in enumerate(node.output) if name in values]
    try:
        for node, i, name in made:
            node.output[i] = PREFIX + name
        del graph.value_info[:]
        graph.input.extend(helper.make_tensor_value_info(name, kinds.get(name, TensorProto.FLOAT), None) for _, _, name in made)
        yield
    finally:
        for node, i, name in made:
            node.output[i] = name
        del graph.input[:]
        graph.input.extend(inputs)
        graph.value_info.extend(known)


def kinds_of(model: onnx.ModelProto) -> dict[str, int]:
    """Return the types of the values, except those that only subgraphs have. Models of other tools may lack the inner ones."""
    from ocaffe.convert.model import detached

    slim = detached(model, "")[0]
    infos = [*onnx.shape_inference.infer_shapes(slim).graph.value_info, *model.graph.value_info, *model.graph.input, *model.graph.output]
    return {info.name: info.type.tensor_type.elem_type for info in infos if info.type.tensor_type.elem_type}


def perturbed(feeds: Arrays, unit: float, samples: Sequence[bool] = SAMPLES, exact: Container[str] = ()) -> Iterator[dict[str, np.ndarray]]:
    """Yield samples of the inputs with random relative errors of NOISE units. `samples` says of each whether whole numbers are perturbed.

    Whole numbers are exact and may be indices or flags. Only pieces that sum read the sample that perturbs them: pixels are whole numbers too. The inputs
    `exact` are perturbed in no sample: the model has them as whole numbers, and a runtime would make 0 of a divisor of 0.99999.
    """
    for seed, whole in enumerate(samples):
        yield sample(feeds, unit, seed, whole, exact)


def sample(feeds: Arrays, unit: float, seed: int, whole: bool, exact: Container[str] = ()) -> dict[str, np.ndarray]:
    """Return one of the samples of `perturbed`. A caller that drops it before the next one needs less memory."""
    rng, size = np.random.default_rng(seed), np.float32(NOISE * unit)
    return {name: x if name in exact else _moved(x, 1 + rng.standard_normal(x.shape, np.float32) * size, whole) for name, x in feeds.items()}


def _moved(x: np.ndarray, factors: np.ndarray, whole: bool) -> np.ndarray:
    """Return the values times the factors, and whole numbers as they are unless `whole`."""
    with np.errstate(all="ignore"):  # of values that overflow
        return np.where((x == np.rint(x)) & (not whole), x, x * factors).astype(x.dtype)


def change(piece: Piece, value: np.ndarray, other: np.ndarray, whole: bool) -> float:
    """Return the largest change from the result `value` of a piece to `other`, that for a sample of `perturbed` inputs. `whole`: as SAMPLES says."""
    if whole and not piece.operators & SUMMING:
        return 0.0
    largest = 0.0
    for part in parts_of(value):
        before, after = value.reshape(-1)[part].astype(np.float64), other.reshape(-1)[part]
        with np.errstate(all="ignore"):
            largest = max(largest, float(np.abs(np.where(np.isfinite(before) & np.isfinite(after), after - before, 0)).max(initial=0)))
    return largest


def rounding(piece: Piece, value: np.ndarray, moved: float, feeds: Arrays, unit: float) -> float:
    """Return the bound of a piece's rounding error: of its inputs, of its result, and of saturating operators.

    `value` is the result for `feeds`, `moved` the largest `change` by `perturbed` inputs.
    """
    finite, sums = np.isfinite(value), bool(piece.operators & SUMMING)
    total = moved / NOISE + unit * float(np.abs(value[finite]).max(initial=0))
    if piece.operators & SATURATING:
        sizes = (float(np.abs(feeds[name][np.isfinite(feeds[name])]).max(initial=0)) for name in piece.inputs if name in feeds)
        total += unit * FLOOR * max((1.0, *sizes))
    return (SUMS if sums else ROUNDINGS) * total
