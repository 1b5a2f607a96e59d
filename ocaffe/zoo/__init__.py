"""The zoo: nets as prototxts, as published and for your own data, and the addresses of public weights."""
from __future__ import annotations

import pathlib

_TOP = pathlib.Path(__file__).parents[2]
_IN_CHECKOUT = (_TOP / "setup.py").is_file() and (_TOP / "zoo").is_dir()  # else an installation, whose nets are in the package
# A folder for each net: train_val, solver and deploy.prototxt, and a README.md.
FOLDER = _TOP / "zoo" if _IN_CHECKOUT else pathlib.Path(__file__).parent / "nets"
