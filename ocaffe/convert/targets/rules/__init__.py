"""The rules of targets: each makes simpler layers of one that a target refuses, exactly or with a stated error.

activations: elementwise functions. linear: products with constant matrices along axes. moves: permutations of axes. norms: normalizations. joins: layers
that read values in another order. spelled: forms of a layer that say more. values: products of two values, and constants. windows: convolutions, poolings,
pads and resizing. `retarget` applies them to a net.
"""
from ocaffe.convert.targets.rules import activations, joins, linear, moves, norms, spelled, values, windows  # noqa: F401 (they register their rules)
