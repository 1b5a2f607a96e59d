"""The layers, one file each or one family of pointwise layers together (see docs/layers.md)."""
