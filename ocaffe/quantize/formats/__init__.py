"""The tables that chips' tools read: one file for each format. A format is written for the scheme whose integers it holds, so that the chip computes
what the simulation does."""
from __future__ import annotations

from ocaffe.quantize.formats.amct import amct
from ocaffe.quantize.formats.ncnn import ncnn
from ocaffe.quantize.formats.tpu_mlir import tpu_mlir

FORMATS = {"ncnn.table": ncnn, "tpu-mlir.table": tpu_mlir, "amct.txt": amct}  # by the name of the file; a function returns None for other schemes
