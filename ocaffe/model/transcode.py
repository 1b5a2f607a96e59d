"""Weights from one format to the other: .caffemodel to .caffemodel.h5 and back."""
from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from ocaffe import proto
from ocaffe.errors import Error
from ocaffe.model.text import read_net
from ocaffe.model.upgrade import upgrade_net
from ocaffe.model.weights import Weights, read_weights, write_weights

Key = tuple[str, int]  # name of a layer, number of a blob


def is_hdf5_name(path: str | Path) -> bool:
    """Whether a file of this name is to be HDF5, as Caffe decides it."""
    return str(path).endswith(".h5")


def convert_weights(source: str | Path, target: str | Path, prototxt: str | Path | None = None) -> None:
    """Write the weights of `source`, in either format, to `target`: HDF5 if its name ends in .h5.

    Weights files hold values by the names of layers, which is all that Caffe reads. `prototxt`, the net, gives a .caffemodel the layers' parameters,
    and an order that HDF5 does not keep; and it says where a blob is that several layers share, which HDF5 has but once: without it, what has no blobs
    there has none. Raises Error where a blob is left out and nothing says whose it is, and where a layer of the file is not in the net.
    """
    weights = read_weights(source)
    net = _structure(weights) if prototxt is None else upgrade_net(read_net(prototxt))
    blobs = {layer.name: layer.blobs for layer in reversed(weights.layers)}  # of layers of one name Caffe takes the first as well
    if prototxt is not None:
        _all_known(weights, net, prototxt)
    shared = _shared(net)
    if is_hdf5_name(target):
        from ocaffe.model.hdf5 import write_weights_hdf5

        single = {name: [None if (name, index) in shared else blob for index, blob in enumerate(found)] for name, found in blobs.items()}
        write_weights_hdf5(target, net, single)
    else:
        for name, index in sorted(shared):  # HDF5 has nothing for a layer all of whose blobs are another's
            found = blobs.setdefault(name, [])
            found += [None] * (index + 1 - len(found))
        full = {name: [_blob(weights, blobs, shared, (name, index)) for index in range(len(found))] for name, found in blobs.items()}
        write_weights(target, net, full)


def _structure(weights: Weights) -> Any:
    """What a weights file tells of its net: names and types."""
    net = proto.NetParameter(name=weights.name)
    for layer in weights.layers:
        net.layer.add(name=layer.name, **({"type": layer.type} if layer.type else {}))
    return net


def _all_known(weights: Weights, net: Any, prototxt: str | Path) -> None:
    names = {layer.name for layer in net.layer}
    for layer in weights.layers:
        if layer.blobs and layer.name not in names:
            raise Error(f"has weights of layer '{layer.name}', which {prototxt} does not have", place=weights.path, fix="give the prototxt of this net")


def _shared(net: Any) -> dict[Key, Key]:
    """The blobs that are another layer's, and which of that one: the first with the same name of parameter owns it."""
    owners: dict[str, Key] = {}
    shared = {}
    for layer in net.layer:
        for index, param in enumerate(layer.param):
            key = layer.name, index
            if param.name and owners.setdefault(param.name, key) != key:
                shared[key] = owners[param.name]
    return shared


def _blob(weights: Weights, blobs: dict[str, list[np.ndarray | None]], shared: dict[Key, Key], key: Key) -> np.ndarray:
    """The values of a blob, be they the layer's own or those of the blob's owner."""
    for name, index in (key, shared.get(key, key)):
        held = blobs.get(name, [])
        blob = held[index] if index < len(held) else None
        if blob is not None:
            return blob
    fact = f"does not have blob {key[1]}, which the layer shares with another"
    raise Error(fact, place=weights.path, layer=f"'{key[0]}'", fix="give the net's prototxt, which says with which")
