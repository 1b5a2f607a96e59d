"""ONNX: nets to it (export, verify) and from it.

`export` walks the graph of a net and asks every layer for its ONNX nodes (`Layer.onnx`); `graph` is what the layers write into; `deploy` makes of a
training prototxt what is left of it in use; `pooling`, `detection` and `regions` are the rules that are too long for their layers; `fold` and `half`
are options; `model` makes the file; `verify` runs both and compares.
"""
