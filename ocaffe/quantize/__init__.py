"""Integers of 8 bits for nets that are trained in floats: `ocaffe quantize`.

    prototxt, weights ─rewrite─▶ Net ─equalise─▶ Net ─observe─▶ histograms ─choose─▶ Table ─simulated─▶ net of FakeQuantize layers ─reconstruct─▶ weights

`scheme` says what a chip's integers are, `places` which values it rounds. `observe` counts the values of calibration images, `thresholds` has the methods
that choose a range from the counts, `choose` takes the best for each value. `quantize` takes the best for the whole net. `equalise`, `correct` and
`reconstruct` change weights so that rounding costs less. `simulate` inserts the rounding into a net. `formats` writes the tables that chips' tools read.
"""
