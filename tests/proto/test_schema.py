"""The merged schema: BVLC's numbers are unchanged, and the compiled descriptor set matches caffe.proto."""
from __future__ import annotations

import importlib.util
import json
from pathlib import Path

import pytest
from google.protobuf import descriptor_pb2

from ocaffe import proto

pytestmark = pytest.mark.quick

ROOT = Path(__file__).resolve().parents[2]
FIELDS = ROOT.parent / "shared" / "caffe_fields.json"  # BVLC's schema, not part of the repository


def test_descriptor_set_is_compiled_from_the_proto(tmp_path):
    pytest.importorskip("grpc_tools")
    spec = importlib.util.spec_from_file_location("compile_proto", ROOT / "proto" / "compile.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    module.compile_to(tmp_path / "caffe.desc")
    fresh, kept = (
        descriptor_pb2.FileDescriptorSet.FromString(path.read_bytes())
        for path in (tmp_path / "caffe.desc", ROOT / "ocaffe" / "proto" / "caffe.desc")
    )
    assert fresh == kept, "run proto/compile.py"


@pytest.mark.skipif(not FIELDS.exists(), reason="needs BVLC's schema")
def test_bvlc_fields_are_bvlcs():
    for name, message in json.loads(FIELDS.read_text())["messages"].items():
        descriptor = getattr(proto, name).DESCRIPTOR
        for field in message["fields"]:
            ours = descriptor.fields_by_name[field["name"]]
            assert ours.number == field["number"], (name, field)
            label = "repeated" if proto.is_repeated(ours) else "required" if proto.is_required(ours) else "optional"
            assert label == field["label"], (name, field)
            assert ours.has_default_value == ("default" in field), (name, field)
        for enum, values in message.get("enums", {}).items():
            assert {key: descriptor.enum_types_by_name[enum].values_by_name[key].number for key in values} == values
    for name in ("BlobShape", "BlobProto", "Datum"):  # these are stored in databases and weights, so they must equal BVLC's
        known = {field["name"] for field in json.loads(FIELDS.read_text())["messages"][name]["fields"]}
        assert {field.name for field in getattr(proto, name).DESCRIPTOR.fields} == known


def test_numbers_that_files_depend_on():
    layer = proto.LayerParameter.DESCRIPTOR.fields_by_name
    assert {name: layer[name].number for name in ("name", "type", "bottom", "top", "blobs", "convolution_param", "clip_param")} == {
        "name": 1, "type": 2, "bottom": 3, "top": 4, "blobs": 7, "convolution_param": 106, "clip_param": 148,
    }  # fmt: skip
    assert [layer[name].number for name in ("annotated_data_param", "multibox_loss_param", "norm_param")] == [200, 201, 206]
    assert proto.NetParameter.DESCRIPTOR.fields_by_name["layer"].number == 100
    assert proto.LossParameter.NONE == 3  # Intel's PRE_FIXED has this number too, so it has another here
    for message, names in ((proto.LayerParameter, ["source_line"]), (proto.NetParameter, ["source_file", "excluded"]),
                           (proto.SolverState, ["data_cursor", "random_seed", "choices", "ranks"])):  # fmt: skip
        assert all(message.DESCRIPTOR.fields_by_name[name].number >= 50000 for name in names)


def test_no_fork_field_has_a_bvlc_number_of_another_fork():
    """bn_param, interp_param and upsample_param collide with embed_param, input_param, ... in their forks."""
    layer = proto.LayerParameter.DESCRIPTOR.fields_by_name
    assert all(layer[name].number >= 20000 for name in ("bn_param", "interp_param", "upsample_param", "smooth_l1_loss_param"))


def test_module_attributes():
    assert (proto.TRAIN, proto.TEST) == (0, 1)
    assert proto.PoolingParameter.MAX == 0 and proto.PoolingParameter().pool == proto.PoolingParameter.MAX
    assert proto.Phase.Name(1) == "TEST"
    assert proto.NetParameter is proto.NetParameter
    assert "LayerParameter" in dir(proto)
    with pytest.raises(AttributeError, match="NetParametre"):
        proto.NetParametre  # noqa: B018


def test_defaults_that_forks_disagree_on_are_left_to_the_layer():
    for message, field in ((proto.UpsampleParameter, "scale"), (proto.FocalLossParameter, "alpha")):
        assert not message.DESCRIPTOR.fields_by_name[field].has_default_value


def test_another_caffe_proto_in_the_process_does_no_harm():
    from google.protobuf import descriptor_pool

    other = descriptor_pb2.FileDescriptorProto(name="caffe.proto", package="caffe", syntax="proto2")
    other.message_type.add(name="NetParameter")
    try:
        descriptor_pool.Default().Add(other)
    except TypeError:
        pytest.skip("another test has loaded one already")
    assert proto.NetParameter(name="x").name == "x"
