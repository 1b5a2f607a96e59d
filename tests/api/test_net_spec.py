"""`NetSpec`, `layers`, `params`, `to_proto`."""
from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import ocaffe as caffe
from ocaffe import layers as L
from ocaffe import params as P
from ocaffe import proto
from ocaffe.errors import Error
from ocaffe.formats.text import write_text

pytestmark = pytest.mark.quick


def lenet(batch: int) -> Any:
    n = caffe.NetSpec()
    fillers = [dict(type="gaussian"), dict(type="uniform", max=9)]
    n.data, n.label = L.DummyData(shape=[dict(dim=[batch, 1, 28, 28]), dict(dim=[batch])], data_filler=fillers, ntop=2)
    n.conv1 = L.Convolution(n.data, kernel_size=5, num_output=20, weight_filler=dict(type="xavier"), param=[dict(lr_mult=1), dict(lr_mult=2)])
    n.pool1 = L.Pooling(n.conv1, kernel_size=2, stride=2, pool=P.Pooling.MAX)
    n.ip1 = L.InnerProduct(n.pool1, num_output=50, weight_filler=dict(type="xavier"))
    n.relu1 = L.ReLU(n.ip1, in_place=True)
    n.ip2 = L.InnerProduct(n.relu1, num_output=10, weight_filler=dict(type="xavier"))
    n.loss = L.SoftmaxWithLoss(n.ip2, n.label)
    return n


def test_the_net_of_every_tutorial(device: Any) -> None:
    message = lenet(8).to_proto()
    assert [(layer.name, layer.type) for layer in message.layer] == [
        ("data", "DummyData"), ("conv1", "Convolution"), ("pool1", "Pooling"), ("ip1", "InnerProduct"), ("relu1", "ReLU"), ("ip2", "InnerProduct"),
        ("loss", "SoftmaxWithLoss"),
    ]  # fmt: skip
    data, conv, pool, _, relu, ip2, loss = message.layer
    assert list(data.top) == ["data", "label"] and [list(shape.dim) for shape in data.dummy_data_param.shape] == [[8, 1, 28, 28], [8]]
    assert list(conv.bottom) == ["data"] and list(conv.convolution_param.kernel_size) == [5] and [p.lr_mult for p in conv.param] == [1, 2]
    assert pool.pooling_param.pool == proto.PoolingParameter.MAX
    assert list(relu.bottom) == list(relu.top) == ["ip1"] == list(ip2.bottom) and list(loss.bottom) == ["ip2", "label"]
    net = caffe.Net(message, caffe.TRAIN, device=device)
    assert np.isfinite(net.forward()["loss"]) and net.params["ip1"][0].shape == (50, 20 * 12 * 12)


def test_text_is_read_back() -> None:
    message = lenet(4).to_proto()
    again = proto.NetParameter()
    from google.protobuf import text_format

    text_format.Merge(str(message), again)
    assert again == message and "conv1" in write_text(message)


def test_automatic_names() -> None:
    a, b = L.DummyData(ntop=2, shape=[dict(dim=[1]), dict(dim=[1])])
    split = L.Slice(L.Concat(a, b), ntop=3)
    message = caffe.to_proto(*split, L.ReLU(a), L.ReLU(b))
    assert [layer.name for layer in message.layer] == ["DummyData1", "Concat1", "Slice1", "ReLU1", "ReLU2"]
    assert list(message.layer[0].top) == ["DummyData1", "DummyData2"]
    assert list(message.layer[2].top) == ["Slice1", "Slice2", "Slice3"]
    assert caffe.to_proto(L.ReLU(a)) == L.ReLU(a).to_proto()


def test_silence_names_and_items() -> None:
    n = caffe.NetSpec()
    n["a/b"] = L.Input(shape=dict(dim=[2, 3]))
    n.other = L.Power(n["a/b"], power=2, name="square")
    n.quiet = L.Silence(n.other, ntop=0)
    layers = n.to_proto().layer
    assert [layer.name for layer in layers] == ["a/b", "square", "quiet"] and list(layers[1].top) == ["other"] and not layers[2].top
    assert "other" in n and n.keys() == ["a/b", "other", "quiet"]
    del n.quiet
    more = caffe.NetSpec()
    more.update(n)
    assert more.to_proto() == n.to_proto() and len(more.vals()) == 2
    with pytest.raises(AttributeError, match="no top 'nope'"):
        _ = n.nope


@pytest.mark.parametrize(
    ("type_name", "fields", "told"),
    [
        ("ROIPooling", dict(pooled_h=6, pooled_w=6, spatial_scale=0.0625), "roi_pooling_param"),
        ("PriorBox", dict(min_size=[30], variance=[0.1, 0.1, 0.2, 0.2]), "prior_box_param"),
        ("Interp", dict(height=5, width=5), "interp_param"),
        ("Python", dict(module="m", layer="L", param_str="x"), "python_param"),
    ],
)
def test_layers_of_forks(type_name: str, fields: dict[str, Any], told: str) -> None:
    layer = getattr(L, type_name)(L.Input(shape=dict(dim=[1])), **fields).to_proto().layer[1]
    assert layer.HasField(told)
    for name, value in fields.items():
        found = getattr(getattr(layer, told), name)
        np.testing.assert_allclose(list(found), value) if isinstance(value, list) else pytest.approx(value) == found


def test_values_become_fields() -> None:
    top = L.Input(shape=dict(dim=[1, 2]))
    layer = L.Convolution(top, kernel_size=np.int64(3), num_output=4, pad=[1, 2], include=dict(phase=caffe.TEST), loss_weight=[2.0]).to_proto().layer[1]
    assert list(layer.convolution_param.pad) == [1, 2] and layer.include[0].phase == proto.TEST and list(layer.loss_weight) == [2]
    layer = L.Pooling(top, pool="AVE", global_pooling=True).to_proto().layer[1]
    assert layer.pooling_param.pool == proto.PoolingParameter.AVE and layer.pooling_param.global_pooling
    given = proto.TransformationParameter(scale=0.5)
    assert L.Data(source="x", backend=P.Data.LMDB, transform_param=given).to_proto().layer[0].transform_param.scale == 0.5


@pytest.mark.parametrize(
    ("make", "told"),
    [
        (lambda top: L.Convolution(top, kernel_siz=3).to_proto(), "no field 'kernel_siz'.*kernel_size"),
        (lambda top: L.Convolution(top, num_output="three").to_proto(), "cannot be 'three'"),
        (lambda top: L.Pooling(top, pool="BEST").to_proto(), "BEST"),
        (lambda top: L.ReLU("conv1"), "ReLU input 0 is not a Top"),
        (lambda top: L.ReLU(top, top, in_place=True), "cannot work in place"),
        (lambda top: L.Convolution(top, weight_filler=3).to_proto(), "takes a dict"),
        (lambda top: setattr(caffe.NetSpec(), "a", (top, top)), "tuple"),
    ],
)
def test_refused(make: Any, told: str) -> None:
    with pytest.raises(Error, match=f"(?s){told}"):
        make(L.Input(shape=dict(dim=[1])))


def test_no_such_layer_or_message() -> None:
    with pytest.raises(AttributeError):
        _ = L.conv
    with pytest.raises(AttributeError, match="NopeParameter"):
        _ = P.Nope


def test_parts_that_scripts_reach_into() -> None:
    """Internals that scripts use: the parameters of a layer before it is written, and pycaffe's module functions."""
    from ocaffe.net_spec import assign_proto, param_name_dict

    names = param_name_dict()
    assert (names["Convolution"], names["InnerProduct"], names["SoftmaxWithLoss"]) == ("convolution", "inner_product", "softmax") and "Silence" not in names
    n = caffe.NetSpec()
    n.data = L.Input(shape=dict(dim=[1, 3, 8, 8]))
    n.conv = L.Convolution(n.data, kernel_size=3, num_output=4)
    assert (n.conv.fn.type_name, n.conv.fn.params["num_output"], n.conv.fn.inputs) == ("Convolution", 4, (n.data,))
    n.conv.fn.params["num_output"] = 6
    layer = n.to_proto().layer[1]
    assert layer.convolution_param.num_output == 6
    assign_proto(layer, "convolution_param", dict(pad=[1]))
    assert list(layer.convolution_param.pad) == [1]


def test_deeper_than_pythons_stack() -> None:
    top = L.Input(shape=dict(dim=[1]))
    for _ in range(3000):
        top = L.ReLU(top)
    assert len(top.to_proto().layer) == 3001
