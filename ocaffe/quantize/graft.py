"""Put a rewritten net in the place of the layers that it was made of: between the data layers and the losses of a training's net."""
from __future__ import annotations

import os
from collections.abc import Container
from typing import Any

from ocaffe import proto
from ocaffe.convert.export import for_inference
from ocaffe.convert.options import Options
from ocaffe.errors import Error
from ocaffe.formats.text import read_net
from ocaffe.formats.upgrade import upgrade_net
from ocaffe.quantize.places import moves

INTEGERS = ("Convolution", "InnerProduct")  # the types that compute with integers
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


def quantized_files(folder: str) -> tuple[str, str]:
    """Return the net that rounds and its weights, in the folder of `ocaffe quantize`. Raise Error if they are not there."""
    files = [os.path.join(folder, name) for name in (QUANTIZED_NET, QUANTIZED_WEIGHTS)]
    missing = [name for name in files if not os.path.exists(name)]
    if missing:
        raise Error(f"{missing[0]} does not exist", place="--quantized", fix="give the folder that `ocaffe quantize` wrote")
    return files[0], files[1]


def quantized_net(message: Any, folder: str, level: int = 0, stages: tuple[str, ...] = (), integers: bool = False) -> Any:
    """Return the net that rounds as a chip does, from the folder of `ocaffe quantize`, with the data layers and measures of `message`.

    `integers`: Convolution and InnerProduct compute with integers.
    """
    upgraded = upgrade_net(message)
    body = read_net(quantized_files(folder)[0])
    if integers:
        with_integers(body)
    return graft(upgraded, body, replaced(upgraded, Options(level=level, stages=stages)))


def with_integers(net: Any) -> int:
    """Make the products of a net with FakeQuantize layers compute with integers where they can. Return their number."""
    grids, count = dict[str, Any](), 0  # by blob: the settings of the FakeQuantize whose grid it is on
    for layer in net.layer:
        given = grids.get(layer.bottom[0]) if layer.bottom else None
        settings = layer.weight_quantization_param
        if layer.type in INTEGERS and layer.HasField("weight_quantization_param") and given is not None and settings.bits <= 8:
            settings.input_scale, settings.input_zero_point = given.scale, given.zero_point
            count += 1
        for top in layer.top:
            if layer.type == "FakeQuantize":
                grids[top] = layer.fake_quantize_param
            elif given is not None and moves(layer):
                grids[top] = given
            else:
                grids.pop(top, None)
    return count
