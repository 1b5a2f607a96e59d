"""Share parameters between nets (Caffe's ShareTrainedLayersWith), such as siamese branches or a TEST net beside the trained net."""
from __future__ import annotations

import numpy as np

from ocaffe.api.engine import Engine
from ocaffe.errors import Error, shape_text


def share(mine: Engine, theirs: Engine) -> None:
    """Make the layers of `mine` use the parameters of equally named layers of `theirs`.

    The buffers of both nets move into one session, so that both nets see values that a script writes into either. A solver's
    net keeps its session; then the other net moves. Raises Error for other shapes; nothing has changed then.
    """
    if mine is theirs:
        return
    pairs = []
    nodes = {node.name: node for node in theirs.network.graph.nodes}
    for node in mine.network.graph.nodes:
        if not node.params or node.name not in nodes:
            continue
        others = nodes[node.name].params
        if len(others) != len(node.params) or any(a.shape != b.shape for a, b in zip(node.params, others)):
            here, there = (", ".join(shape_text(p.shape) for p in params) for params in (node.params, others))
            fact = f"the parameters are {here} here and {there} in the other net"
            raise Error(fact, layer=f"'{node.name}' ({node.type})", fix="make the layers equal, or give one of them another name")
        pairs += list(zip(node.params, others))
    if mine.session.device.context != theirs.session.device.context:
        fact = f"the nets are on two devices, {mine.session.device.name} and {theirs.session.device.name}"
        raise Error(fact, fix="call set_device or set_mode_cpu once, before both nets are made")
    if mine.fixed and theirs.fixed and mine.session is not theirs.session:
        raise Error("both nets belong to solvers, each with its own parameters", fix="share with a Net(...), or copy by save and copy_from")
    mine.before()
    theirs.before()
    if mine.fixed:
        for parameter, other in pairs:
            if parameter.data is not other.data:
                mine.write(parameter.data, np.asarray(theirs.read(other.data)))
        keeper, joiner = mine, theirs
        pairs = [(other, parameter) for parameter, other in pairs]
    else:
        keeper, joiner = theirs, mine
    mine.after()
    theirs.after()
    if keeper.session is not joiner.session:
        lease = joiner.lease
        keeper.session.adopt(joiner.session)
        for engine in list(lease.engines):  # includes nets that already share with `joiner`
            engine.move(keeper.lease)
    changed = False
    for parameter, other in pairs:
        changed = changed or parameter.data is not other.data
        parameter.data = other.data
    if changed:
        joiner.move(keeper.lease)
