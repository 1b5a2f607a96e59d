"""Builds ONNX graphs: the graph that layers write their nodes into, and the rules that are too long for their layers."""
