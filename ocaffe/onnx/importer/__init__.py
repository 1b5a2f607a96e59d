"""Reading an ONNX graph, folding and matching it, and building a NetParameter. `ocaffe.onnx.import_model` puts the steps together."""
