"""Targets: what the compilers of chips read of Caffe's files, and the rewrites that make a net of it.

A target is a table of data (`tables/NAME.json`, read by `table.py`). `rewriter.py` walks a net and compares each layer with the table. A layer that the
table refuses becomes simpler layers by a rule of `rules`, which are compared again. `view.py` lets layers work on values whose axes are in another
order, so that no layer has to permute them.
"""
