"""Convert weights between .caffemodel and .caffemodel.h5."""
from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from ocaffe import proto
from ocaffe.errors import Error
from ocaffe.formats.text import read_net
from ocaffe.formats.upgrade import upgrade_net
from ocaffe.formats.weights import Weights, read_weights, write_weights

Key = tuple[str, int]  # layer name, blob index


def is_hdf5_name(path: str | Path) -> bool:
    """Whether a file of this name has the HDF5 format. Caffe's rule is .h5; `ocaffe convert` takes .hdf5 too, in any case."""
    return Path(path).suffix.lower() in (".h5", ".hdf5")


def convert_weights(source: str | Path, target: str | Path, prototxt: str | Path | None = None) -> None:
    """Write the weights of `source`, in either format, to `target`. The format is HDF5 if the name of `target` says so.

    Weights files store values by layer name, and Caffe reads nothing else from them. `prototxt`, the net, adds to a
    .caffemodel the layers' parameters and the order of the layers, which HDF5 does not keep. It also tells which layers
    share a blob, because HDF5 stores a shared blob once. Without `prototxt`, a layer without blobs in the file stays without.
    Raises Error if a blob is missing and its owner is unknown, or if a layer of the file is not in the net.
    """
    weights = read_weights(source)
    net = _structure(weights) if prototxt is None else upgrade_net(read_net(prototxt))
    blobs = {layer.name: layer.blobs for layer in reversed(weights.layers)}  # as in Caffe, the first of several layers with one name counts
    if prototxt is not None:
        _all_known(weights, net, prototxt)
    shared = shared_blobs(net)
    if is_hdf5_name(target):
        from ocaffe.formats.hdf5 import write_weights_hdf5

        single = {name: [None if (name, index) in shared else blob for index, blob in enumerate(found)] for name, found in blobs.items()}
        write_weights_hdf5(target, net, single)
    else:
        for name, index in sorted(shared):  # HDF5 has no entry for a layer if other layers own all of its blobs
            found = blobs.setdefault(name, [])
            found += [None] * (index + 1 - len(found))
        full = {name: [_blob(weights, blobs, shared, (name, index)) for index in range(len(found))] for name, found in blobs.items()}
        write_weights(target, net, full)


def _structure(weights: Weights) -> Any:
    """Return a net with the layer names and types of a weights file."""
    net = proto.NetParameter(name=weights.name)
    for layer in weights.layers:
        net.layer.add(name=layer.name, **({"type": layer.type} if layer.type else {}))
    return net


def _all_known(weights: Weights, net: Any, prototxt: str | Path) -> None:
    names = {layer.name for layer in net.layer}
    for layer in weights.layers:
        if layer.blobs and layer.name not in names:
            fix = "give the prototxt of the net that these weights are of"
            raise Error(f"has weights of layer '{layer.name}', which {prototxt} does not have", place=weights.path, fix=fix)


def shared_blobs(net: Any) -> dict[Key, Key]:
    """Map each blob that another layer owns to its owner: the first blob with the same parameter name."""
    owners: dict[str, Key] = {}
    shared = {}
    for layer in net.layer:
        for index, param in enumerate(layer.param):
            key = layer.name, index
            if param.name and owners.setdefault(param.name, key) != key:
                shared[key] = owners[param.name]
    return shared


def _blob(weights: Weights, blobs: dict[str, list[np.ndarray | None]], shared: dict[Key, Key], key: Key) -> np.ndarray:
    """Return the values of a blob, from its own layer or from the layer that owns it."""
    for name, index in (key, shared.get(key, key)):
        held = blobs.get(name, [])
        blob = held[index] if index < len(held) else None
        if blob is not None:
            return blob
    fact = f"does not have blob {key[1]}, which the layer shares with another"
    raise Error(fact, place=weights.path, layer=f"'{key[0]}'", fix="give the net's prototxt, which names the other layer")
