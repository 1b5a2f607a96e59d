"""Nets written in Python: `NetSpec`, `layers`, `params`, `to_proto`. This is pycaffe's module name; the code is in ocaffe/layers/spec.py."""
from __future__ import annotations

from collections import OrderedDict as OrderedDict
from typing import Any

from ocaffe import layers as layers
from ocaffe.layers.spec import Function as Function
from ocaffe.layers.spec import Layers as Layers
from ocaffe.layers.spec import NetSpec as NetSpec
from ocaffe.layers.spec import Parameters as Parameters
from ocaffe.layers.spec import Top as Top
from ocaffe.layers.spec import assign_proto as assign_proto
from ocaffe.layers.spec import layer_maker as layer_maker
from ocaffe.layers.spec import param_name_dict as param_name_dict
from ocaffe.layers.spec import params as params
from ocaffe.layers.spec import to_proto as to_proto
from ocaffe.proto import caffe_pb2 as caffe_pb2


def __getattr__(name: str) -> Any:
    """Return pycaffe's `_param_names`. It is made at the first access, because it needs the modules of all layers."""
    if name != "_param_names":
        raise AttributeError(f"module 'ocaffe.net_spec' has no attribute {name!r}")
    return param_name_dict()
