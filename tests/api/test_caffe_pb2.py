"""`proto.caffe_pb2`: messages like those of the module that protoc generates."""
from __future__ import annotations

import pickle

import pytest
from google.protobuf import text_format

from ocaffe import proto
from ocaffe.proto import caffe_pb2


def test_messages_of_third_party_scripts() -> None:
    net, solver, blob = caffe_pb2.NetParameter(), caffe_pb2.SolverParameter(), caffe_pb2.BlobProto()
    text_format.Merge('name: "n" layer { name: "c" type: "Convolution" convolution_param { num_output: 3 } }', net)
    text_format.Parse('base_lr: 0.5 test_iter: 3 test_iter: 4 solver_mode: GPU', solver)
    assert net.layer[0].convolution_param.num_output == 3 and list(solver.test_iter) == [3, 4] and solver.solver_mode == caffe_pb2.SolverParameter.GPU
    blob.shape.dim.extend([1, 2])
    blob.data.extend([1.5, 2.5])
    assert caffe_pb2.BlobProto.FromString(blob.SerializeToString()) == blob
    assert caffe_pb2.TRAIN == 0 and caffe_pb2.TEST == 1 and caffe_pb2.Phase.Value("TEST") == 1 and caffe_pb2.NetParameter is proto.NetParameter
    assert caffe_pb2.V1LayerParameter.LayerType.Name(4) == "CONVOLUTION" and caffe_pb2.LayerParameter().DESCRIPTOR.full_name == "caffe.LayerParameter"


def test_all_that_the_schema_has() -> None:
    for name in ("Datum", "BlobProtoVector", "NetState", "SolverState", "LayerParameter", "V0LayerParameter", "NormalizedBBox", "LabelMap"):
        assert name in dir(caffe_pb2) and getattr(caffe_pb2, name)()
    assert caffe_pb2.DESCRIPTOR.package == "caffe"
    with pytest.raises(AttributeError, match="'Nope'"):
        _ = caffe_pb2.Nope


def test_messages_are_pickled() -> None:
    datum = caffe_pb2.Datum(channels=1, height=1, width=2, data=b"ab", label=3)
    assert pickle.loads(pickle.dumps(datum)) == datum
