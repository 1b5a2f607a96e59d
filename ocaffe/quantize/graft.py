"""Put a rewritten net in the place of the layers that it was made of: between the data layers and the losses of a training's net."""
from __future__ import annotations

from collections.abc import Container
from pathlib import Path
from typing import Any

from ocaffe import proto
from ocaffe.convert.export import for_inference
from ocaffe.convert.options import Options
from ocaffe.errors import Error
from ocaffe.formats.text import read_net
from ocaffe.formats.upgrade import upgrade_net

QUANTIZED_NET, QUANTIZED_WEIGHTS = "quantized.prototxt", "quantized.caffemodel"  # with FakeQuantize layers


def replaced(message: Any, options: Options) -> set[str]:
    """Return the names of the layers of a net from which the net for inference is made. Its inputs are not among them."""
    deployed = for_inference(message, None, options).message
    return {layer.name for layer in deployed.layer if layer.type != "Input"}


def graft(message: Any, body: Any, names: Container[str]) -> Any:
    """Return the message of a net with the layers of `body`, without its inputs, in place of the layers called `names`.

    All layers keep their rules of phase and stage. Those of the body have none, so both phases have them.
    """
    made = proto.NetParameter()
    made.CopyFrom(message)
    del made.layer[:]
    own = [layer for layer in body.layer if layer.type != "Input"]
    first = next((index for index, layer in enumerate(message.layer) if layer.name in names), len(message.layer))
    for layer in message.layer[:first]:
        made.layer.add().CopyFrom(layer)
    later = [layer for layer in message.layer[first:] if layer.name not in names]
    wanted = {name for layer in own for name in layer.bottom}
    early = [layer for layer in later if not layer.bottom and wanted.intersection(layer.top)]  # data layers behind the first layer of the body
    for layer in (*early, *own, *(each for each in later if not any(each is other for other in early))):
        made.layer.add().CopyFrom(layer)
    return made


def quantized_net(message: Any, folder: str, level: int = 0, stages: tuple[str, ...] = ()) -> Any:
    """Return the net that rounds as a chip does, from the folder of `ocaffe quantize`, with the data layers and measures of `message`."""
    file = Path(folder) / QUANTIZED_NET
    if not file.exists():
        raise Error(f"{folder} has no {QUANTIZED_NET}", place="--quantized", fix="give the folder that `ocaffe quantize` wrote")
    upgraded = upgrade_net(message)
    return graft(upgraded, read_net(str(file)), replaced(upgraded, Options(level=level, stages=stages)))
