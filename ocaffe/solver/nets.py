"""The messages of a solver's TRAIN and TEST nets, in Caffe's order and with its checks."""
from __future__ import annotations

import os
from collections.abc import Callable
from functools import partial
from typing import Any

from ocaffe import proto
from ocaffe.compiler.network import phase_net
from ocaffe.data.bad_records import skip_bad_records
from ocaffe.errors import Error
from ocaffe.formats.nearby import MissingPath
from ocaffe.formats.states import unnamed_stages
from ocaffe.support import log

Make = Callable[[], Any]  # makes a message when called


def net_messages(param: Any, read: Callable[[str], Any], file: str | None = None) -> tuple[Make, list[Make]]:
    """Return functions that make the messages of the TRAIN net and of the TEST nets, filtered for their phase.

    The caller calls them one after the other, because each writes Caffe's log line. The TEST nets are test_net_param, then
    test_net, then the generic net for the remaining test_iter entries.
    """
    given = [name for name in ("net", "net_param", "train_net", "train_net_param") if param.HasField(name)]
    if len(given) != 1:
        fact = f"{len(given)} train nets given ({', '.join(given) or 'none'})"
        raise Error(fact, place=file, fix="keep one of them, and remove the others" if given else 'name the net: net: "train_val.prototxt"')
    if param.test_iter and param.test_interval <= 0:
        fix = "set test_interval to the iterations between two tests, or remove test_iter"
        raise Error(f"test_iter is given, but test_interval is {param.test_interval}", place=file, fix=fix)
    generic = getattr(param, given[0])
    named = f"{given[0]} file: {generic}" if isinstance(generic, str) else given[0]
    sources: list[tuple[str, Any]] = [("test_net_param", message) for message in param.test_net_param]
    sources += [(f"test_net file: {path}", path) for path in param.test_net]
    if given[0] in ("net", "net_param"):
        sources += [(named, generic)] * (len(param.test_iter) - len(sources))
    if len(sources) != len(param.test_iter):
        fix = f"give {len(sources)} test_iter, one for each test net"
        raise Error(f"{len(param.test_iter)} test_iter given for {len(sources)} test nets", place=file, fix=fix)
    if param.test_state and len(param.test_state) != len(sources):
        fact = f"{len(param.test_state)} test_state given for {len(sources)} test nets"
        raise Error(fact, place=file, fix=f"give {len(sources)} test_state, one for each test net, or none")

    def message(name: str, source: Any, phase: int, state: Any) -> Any:
        if isinstance(source, str) and not os.path.exists(source):
            raise MissingPath(f"the file '{source}' of the field {name} does not exist", source, name, f"correct {name}", place=file)
        net = phase_net(read(source) if isinstance(source, str) else source, phase, state=state)
        for stage, near, found in unnamed_stages(state.stage, net):
            log.warning("net.cpp:296", f"no rule of a layer names the stage '{stage}'" + (f"; did you mean '{near}'?" if near else "") + f" ({found})")
        for layer in net.layer:
            if layer.type == "AssistedExcitation" and not layer.assisted_excitation_param.HasField("max_iter"):
                layer.assisted_excitation_param.max_iter = param.max_iter
        return skip_bad_records(net, param.skip_bad_records)

    def train() -> Any:
        log.info("solver.cpp:102", f"Creating training net from {named}" if isinstance(generic, str) else f"Creating training net specified in {named}.")
        return message(given[0], generic, proto.TRAIN, param.train_state)

    def test(index: int) -> Any:
        name, source = sources[index]
        log.info("solver.cpp:190", f"Creating test net (#{index}) specified by {name}")
        return message(name.split()[0], source, proto.TEST, param.test_state[index] if param.test_state else proto.NetState())

    return train, [partial(test, index) for index in range(len(sources))]
