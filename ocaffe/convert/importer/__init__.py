"""The steps of an import: read an ONNX graph, fold it, match patterns, build a NetParameter. `ocaffe.convert.import_model` runs them."""
