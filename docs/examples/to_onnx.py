"""Convert a net to ONNX, and compare what both compute.

    python to_onnx.py deploy.prototxt weights.caffemodel model.onnx

`ocaffe convert` does the same in one command (docs/onnx.md). ONNX Runtime, if it is installed, runs the model here.
"""
from __future__ import annotations

import sys

import numpy as np
import onnx

import ocaffe as caffe
from ocaffe.convert.export import Options, export


def main(deploy: str, weights: str, file: str) -> None:
    exported = export(deploy, weights, Options(dynamic_batch=True))
    onnx.save(exported.model, file)
    print(f"{file}: opset {exported.model.opset_import[0].version}, nodes {', '.join(node.op_type for node in exported.model.graph.node)}")
    try:
        import onnxruntime
    except ImportError:
        print("ONNX Runtime is not installed: the model was not run")
        return
    with caffe.Net(deploy, caffe.TEST, weights=weights) as net:
        name = net.inputs[0]
        image = np.random.default_rng(0).random(net.blobs[name].shape, np.float32)
        ours = net.forward(**{name: image})[net.outputs[0]]
        theirs = onnxruntime.InferenceSession(file).run([net.outputs[0]], {name: image})[0]
        print(f"largest difference to ONNX Runtime {np.abs(ours - theirs).max():.1e}, of values up to {np.abs(ours).max():.2f}")


if __name__ == "__main__":
    main(*sys.argv[1:])
