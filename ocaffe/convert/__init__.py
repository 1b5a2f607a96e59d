"""Export of nets to ONNX and import of ONNX models.

Export: `export` walks the graph of a net and calls every layer's `Layer.onnx`, which writes the layer's nodes into an `ocaffe.onnx.graph.OnnxGraph`.
`deploy` reduces a training prototxt to the net for inference. `fold` and `half` implement options. `model` writes the file. `verify` runs the net and
the model and compares them.

Import: `import_model` converts a model with the steps in `importer`. `import_verify` and `import_summary` compare and describe a model.

Caffe to Caffe: `caffe` rewrites a net for deployment.
"""
