"""Random NetSpec scripts. Both programs run them, and the prototxts must be equal."""
from __future__ import annotations

import random
import re

from tests.oracle.judge import Finding
from tests.oracle.oracle import Oracle

SOURCES = (
    "n.data, n.label = L.Input(shape=[dict(dim=[2, 3, 8, 8]), dict(dim=[2])], ntop=2)",
    "n.data, n.label = L.Data(batch_size=3, backend=P.Data.LMDB, source='x', transform_param=dict(scale=1. / 255, mirror=True), ntop=2, "
    "include=dict(phase=caffe.TRAIN))",
    "n.data = L.Input(input_param=dict(shape=dict(dim=[2, 3, 8, 8]))); n.label = L.DummyData(shape=dict(dim=[2]))",
    "n['data'], n['label'] = L.ImageData(source='list.txt', batch_size=2, transform_param=dict(mean_value=[104, 117, 123], crop_size=8), ntop=2)",
)
LAYERS = (  # of a bottom {b}, any other bottom {o}, and a number {i}
    "L.Convolution({b}, kernel_size=3, num_output=4, weight_filler=dict(type='xavier'), bias_filler=dict(type='constant', value=0.1))",
    "L.Convolution({b}, kernel_size=[3, 2], num_output=2, param=[dict(lr_mult=1, decay_mult=1), dict(lr_mult=2, decay_mult=0)], name='named{i}')",
    "L.Convolution({b}, kernel_h=3, kernel_w=1, num_output=2, engine=P.Convolution.CAFFE, param=[dict(name='w{i}'), dict(name='b{i}')])",
    "L.Deconvolution({b}, convolution_param=dict(num_output=2, kernel_size=4, stride=2, weight_filler=dict(type='bilinear')), param=dict(lr_mult=0))",
    "L.Pooling({b}, pool=P.Pooling.AVE, kernel_size=2, stride=2)", "L.Pooling({b}, pool=P.Pooling.MAX, global_pooling=True)",
    "L.InnerProduct({b}, num_output=7, weight_filler=dict(type='gaussian', std=0.005))", "L.ReLU({b}, in_place=True)", "L.ReLU({b}, negative_slope=0.1)",
    "L.Eltwise({b}, {o}, operation=P.Eltwise.SUM, coeff=[1, -1])", "L.Concat({b}, {o}, axis=0)", "L.Concat({b}, L.Power(L.TanH({o}), power=2), axis=-1)",
    "L.Dropout({b}, dropout_ratio=0.25, in_place=True)", "L.BatchNorm({b}, use_global_stats=False, eps=1e-3)",
    "L.Scale(L.BatchNorm({b}, in_place=True), bias_term=True, in_place=True)", "L.LRN({b}, norm_region=P.LRN.WITHIN_CHANNEL, alpha=1e-4)",
    "L.Reshape({b}, shape=dict(dim=[0, -1, 2]))", "L.Python({b}, module='m', layer='X', param_str='a \"q\"')", "L.Sigmoid({b}, propagate_down=[False])",
    "L.LSTM({b}, n.label, recurrent_param=dict(num_output=3, weight_filler=dict(type='uniform', min=-0.08, max=0.08)))",
    "L.Slice({b}, slice_point=1, ntop=2)[1]", "L.Slice({b}, ntop=3, axis=1)[0]", "L.Accuracy({b}, n.label, include=dict(phase=caffe.TEST, stage=['a', 'b']))",
    "L.Split({b}, ntop=2)[0]", "L.Crop({b}, n.data, offset=[1, 2])",
)  # fmt: skip
LOSSES = ("SoftmaxWithLoss", "EuclideanLoss", "SigmoidCrossEntropyLoss")
FIELDS = ("", ", loss_weight=2", ", loss_param=dict(ignore_label=255, normalization=P.Loss.VALID)", ", propagate_down=[1, 0]")


def random_script(seed: int) -> str:
    draw = random.Random(seed)
    lines, blobs = ["n = caffe.NetSpec()", draw.choice(SOURCES)], ["n.data"]
    for number in range(draw.randint(1, 8)):
        bottom, other = draw.choice(blobs[-2:]), draw.choice(blobs)
        made = draw.choice(LAYERS).format(b=bottom, o=other, i=number)
        match draw.randrange(6):
            case 0:
                lines.append(f"n.s{number} = L.Silence({bottom}, ntop=0)")
                continue
            case 1:
                lines.append(f"n.a{number}, n.t{number} = L.Slice({made}, ntop=2, axis=1)")
            case 2:
                lines.append(f"t{number} = {made}")
                blobs.append(f"t{number}")
                continue
            case _:
                lines.append(f"n.t{number} = {made}")
        blobs.append(f"n.t{number}")
    if draw.random() < 0.6:
        lines.append(f"n.loss = L.{draw.choice(LOSSES)}({blobs[-1]}, n.label{draw.choice(FIELDS)})")
    lines.append(draw.choice(["text = str(n.to_proto())", f"text = str(to_proto({blobs[-1]}))"]))
    return "\n".join(lines)


def _rounded(text: str) -> str:
    """Versions of protobuf print floats with other numbers of digits."""
    return re.sub(r"(?<=: )-?\d[\d.e+-]*$", lambda number: f"{float(number.group()):.6g}", text, flags=re.M)


def findings(oracle: Oracle, seed: int) -> list[Finding]:
    order = {"kind": "spec", "seed": seed, "script": random_script(seed)}
    caffe, ocaffe = oracle.caffe.run(order), oracle.ocaffe.run(order)
    oracle.counts.specs += 1
    for peer, result in ((oracle.caffe, caffe), (oracle.ocaffe, ocaffe)):
        peer.forget(result)
    if caffe.refusal or ocaffe.refusal:
        return [] if caffe.refusal and ocaffe.refusal else [Finding("refusal", 0, "", caffe.refusal or "runs", ocaffe.refusal or "runs")]
    a, b = _rounded(caffe.facts["text"]), _rounded(ocaffe.facts["text"])
    return [] if a == b else [Finding("text", 0, "", a, b)]
