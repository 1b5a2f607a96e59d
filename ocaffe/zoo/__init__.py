"""The zoo: nets as prototxts, as published and for your own data, and the addresses of public weights."""
from __future__ import annotations

import pathlib

FOLDER = pathlib.Path(__file__).parent / "nets"  # a folder for each net: train_val, solver and deploy.prototxt, and a README.md
