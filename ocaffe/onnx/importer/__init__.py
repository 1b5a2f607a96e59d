"""The steps of an import: read an ONNX graph, fold it, match patterns, build a NetParameter. `ocaffe.onnx.import_model` runs them."""
