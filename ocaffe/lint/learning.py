"""Rules for every way to learn nothing: settings of the solver that make each update 0, and nets in which no parameter gets a gradient."""
from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from ocaffe.errors import Error
from ocaffe.ir.graph import Blob, Graph, Node
from ocaffe.lint.rules import Finding, Job, View, job_rule, net_rule
from ocaffe.solver.policies import given

RULE = "nothing-learned"


def _starts_above_0(solver: Any) -> bool:
    """Return whether a warm-up or min_lr gives rates above 0, whatever the policy does."""
    warm = (solver.warmup_iter and solver.warmup_start_lr) or (solver.rampup_interval and solver.rampup_lr)
    return bool(solver.min_lr or warm or ((solver.warmup_iter or solver.rampup_interval) and solver.base_lr))


SOLVER: tuple[tuple[str, Callable[[Any], bool], str, str], ...] = (  # a field, whether it makes all updates 0, the consequence, and the remedy
    ("base_lr", lambda s: s.lr_policy != "multifixed" and not s.base_lr and not _starts_above_0(s), "every learning rate is 0", "base_lr: 0.01"),
    ("stagelr[0]", lambda s: s.lr_policy == "multifixed" and not any(s.stagelr) and not _starts_above_0(s), "every learning rate is 0", "stagelr: 0.01"),
    ("max_iter", lambda s: s.max_iter <= 0, "no iteration is run", "max_iter: 10000"),
    ("clip_gradients", lambda s: s.clip_gradients == 0, "every gradient is scaled to 0", "remove clip_gradients, or set clip_gradients: 10"),
    ("momentum2", lambda s: s.type in ("Adam", "AdamW") and s.momentum2 == 1, "the correction of Adam is 0, and so is every update", "momentum2: 0.999"),
    ("delta", lambda s: s.type == "AdaDelta" and s.delta == 0, "the first update is 0, and so are all others", "delta: 1e-6"),
)


@job_rule
def nothing_updated(job: Job) -> Iterator[Finding]:
    """A solver without an update that is not 0: no base_lr or max_iter, or clip_gradients: 0."""
    for field, stops, consequence, fix in SOLVER if job.solver is not None else ():
        if stops(job.solver):
            name = field.removesuffix("[0]")
            value = getattr(job.solver, name)
            told = f"is {value if name == field else value[0]:g}" if given(job.solver, name) else "is not given"
            yield job.finding("nothing-updated", field, f"{name} {told}: {consequence}, and nothing is learned", fix)


@net_rule
def nothing_learned(view: View) -> Iterator[Finding]:
    """A TRAIN net in which no parameter gets a gradient: all lr_mult are 0, or a propagate_down: false or a layer without backward is in the way."""
    try:
        graph = view.shaped if view.train and view.losses else None
    except Error:  # `impossible` reports it
        return
    layers = {layer.name: layer for layer in view.layers}
    nodes = graph.nodes if graph is not None else []
    own = [node for node in nodes if node.name in layers and any(wanted.learned for wanted in node.layer.parameters())]
    if graph is None or _learning(graph, reaches=True):
        return
    if not own:
        fact, path = "no layer of the TRAIN net has parameters: nothing is learned", "type"
        yield view.finding(RULE, view.layers[view.losses[0]], fact, "add layers with parameters, such as InnerProduct or Convolution", path)
    elif not any(parameter.learned for node in own for parameter in node.params):
        fact = f"every lr_mult in the net is 0 ({len(own)} layers with parameters): nothing is learned"
        yield view.finding(RULE, layers[own[-1].name], fact, "remove lr_mult: 0 from the layers that should learn", "param[0].lr_mult")
    else:
        for node, reason, fix, path in _barriers(graph):
            if node.name in layers:
                yield view.finding(RULE, layers[node.name], f"{reason}, so that no layer with parameters learns", fix, path)


def _learning(graph: Graph, reaches: bool) -> bool:
    """Return whether the gradient of a loss comes to a parameter that learns. Not `reaches`: barriers are ignored."""
    reached = {top for node in graph.nodes for top in node.tops if top.loss_weight}
    for node in reversed(graph.nodes):
        if not reached.intersection(node.tops):
            continue
        if any(parameter.learned for parameter in node.params) and (node.layer.has_backward or not reaches):
            return True
        reached.update(bottom for index, bottom in enumerate(node.bottoms) if not reaches or _barrier(node, index) is None)
    return False


def _barriers(graph: Graph) -> Iterator[tuple[Node, str, str, str]]:
    """Yield the layers that the gradient comes to and does not pass, each with the reason, the remedy, and the field, the last layer first."""
    reached: set[Blob] = {top for node in graph.nodes for top in node.tops if top.loss_weight}
    for node in reversed(graph.nodes):
        if not reached.intersection(node.tops):
            continue
        found = [_barrier(node, index) for index in range(len(node.bottoms))]
        wanted = [barrier for barrier, bottom in zip(found, node.bottoms) if barrier is not None and _leads_to_parameters(bottom)]
        if wanted:
            yield (node, *wanted[0])
        reached.update(bottom for barrier, bottom in zip(found, node.bottoms) if barrier is None)


def _leads_to_parameters(blob: Blob) -> bool:
    """Return whether a layer with parameters that learn is behind `blob`."""
    todo, seen = [blob], set()
    while todo:
        node = todo.pop().producer
        if node is None or node in seen:
            continue
        seen.add(node)
        if any(parameter.learned for parameter in node.params):
            return True
        todo += node.bottoms
    return False


def _barrier(node: Node, index: int) -> tuple[str, str, str] | None:
    """Return why no gradient passes from the tops of `node` to its bottom `index`, with the remedy and the field; None if it passes."""
    param, name = node.layer.param, node.bottoms[index].name
    down = list(param.propagate_down)
    if down and not down[index]:
        return f"propagate_down: false keeps the gradient from '{name}'", "remove propagate_down: false", f"propagate_down[{index}]"
    if not node.layer.has_backward:
        return f"{node.type} has no gradient for '{name}'", "replace it by a layer with a gradient", "type"
    if not node.layer.force_backward(index):
        return f"bottom {index} of a {node.type} is for labels, which get no gradient", "give scores as bottom 0, labels as bottom 1", f"bottom[{index}]"
    for kind, field, value in ZEROS:
        if node.type == kind and getattr(node.layer.own(), field) == value:
            return f"{field}: {value:g} makes the gradient of '{name}' 0", f"set {field} to a number other than 0", f"{kind.lower()}_param.{field}"
    if node.type == "Eltwise" and list(node.layer.own().coeff)[index : index + 1] == [0.0]:
        return f"coeff: 0 makes the gradient of '{name}' 0", "set coeff to a number other than 0", f"eltwise_param.coeff[{index}]"
    return None


ZEROS = (("Power", "scale", 0), ("Power", "power", 0), ("Reduction", "coeff", 0), ("Exp", "scale", 0))  # types, and values of fields of constant layers
