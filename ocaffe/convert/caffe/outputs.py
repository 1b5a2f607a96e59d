"""Make each output of a net a blob that no layer reads: in Caffe and its tools, these blobs are the outputs."""
from __future__ import annotations

from ocaffe import proto
from ocaffe.convert.caffe.net import Net


def expose(net: Net) -> int:
    """Copy each output that a layer reads by a Split, which makes the output. Return how many."""
    read = [value for value in net.outputs if net.readers(value) and net.producer(value).bottom]
    for value in read:
        inner, producer = net.fresh(f"{value}.inner"), net.producer(value)
        for reader in list(net.readers(value)):
            net.rewire(reader, value, inner)
        producer.top[:] = [inner if top == value else top for top in producer.top]
        net.shapes[inner] = net.shapes.pop(value)
        net.insert(proto.LayerParameter(name=f"{value}_split", type="Split", bottom=[inner], top=[value]))
    return len(read)
