"""The zoo: nets as prototxts, as published and for your own data, and the addresses of public weights."""
from __future__ import annotations

import pathlib

_INSTALLED, _CHECKOUT = pathlib.Path(__file__).parent / "nets", pathlib.Path(__file__).parents[2] / "zoo"
FOLDER = _INSTALLED if _INSTALLED.is_dir() else _CHECKOUT  # a folder for each net: train_val, solver and deploy.prototxt, and a README.md
