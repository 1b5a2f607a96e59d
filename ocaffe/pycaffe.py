"""pycaffe's module that completes the classes of its extension module. Here the classes are whole, so it has only their names."""
from __future__ import annotations

from collections import OrderedDict as OrderedDict

from ocaffe import _caffe as _caffe
from ocaffe import io as io
from ocaffe._caffe import NCCL as NCCL
from ocaffe._caffe import AdaDeltaSolver as AdaDeltaSolver
from ocaffe._caffe import AdaGradSolver as AdaGradSolver
from ocaffe._caffe import AdamSolver as AdamSolver
from ocaffe._caffe import NesterovSolver as NesterovSolver
from ocaffe._caffe import Net as Net
from ocaffe._caffe import RMSPropSolver as RMSPropSolver
from ocaffe._caffe import SGDSolver as SGDSolver
from ocaffe._caffe import Timer as Timer
