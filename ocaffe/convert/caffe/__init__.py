"""Rewrites of Caffe nets for deployment. `rewrite` runs them and `verify` compares the result with the source.

`net` has the form that all of them work on. Each pass is a file with a function from a Net to the number of changes: `modern` writes forks' layers as
BVLC's, `remove` removes layers without effect, `fold` and `through` fold norms into products. `outputs` and `strip` prepare the message to write.
`affine` and `products` have the numbers of these layers. `prepare` makes preprocessing a part of the net.
"""
