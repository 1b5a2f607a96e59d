"""pycaffe's extension module: the names that C++ defines there. Vectors of C++ are lists here."""
from __future__ import annotations

from ocaffe import __version__ as __version__
from ocaffe.api.blob import Blob as Blob
from ocaffe.api.net import Net as Net
from ocaffe.api.processes import NCCL as NCCL
from ocaffe.api.processes import has_nccl as has_nccl
from ocaffe.api.processes import set_multiprocess as set_multiprocess
from ocaffe.api.processes import set_solver_count as set_solver_count
from ocaffe.api.processes import set_solver_rank as set_solver_rank
from ocaffe.api.processes import solver_count as solver_count
from ocaffe.api.processes import solver_rank as solver_rank
from ocaffe.api.pysolver import AdaDeltaSolver as AdaDeltaSolver
from ocaffe.api.pysolver import AdaGradSolver as AdaGradSolver
from ocaffe.api.pysolver import AdamSolver as AdamSolver
from ocaffe.api.pysolver import NesterovSolver as NesterovSolver
from ocaffe.api.pysolver import RMSPropSolver as RMSPropSolver
from ocaffe.api.pysolver import SGDSolver as SGDSolver
from ocaffe.api.pysolver import Solver as Solver
from ocaffe.api.pysolver import get_solver as get_solver
from ocaffe.api.runtime import Timer as Timer
from ocaffe.api.runtime import set_device as set_device
from ocaffe.api.runtime import set_mode_cpu as set_mode_cpu
from ocaffe.api.runtime import set_mode_gpu as set_mode_gpu
from ocaffe.api.runtime import set_random_seed as set_random_seed
from ocaffe.layers.base import layer_type_list as layer_type_list
from ocaffe.proto import LayerParameter as LayerParameter
from ocaffe.proto import SolverParameter as SolverParameter
from ocaffe.pylayer import Arrays
from ocaffe.pylayer import Layer as Layer
from ocaffe.support import log as log
from ocaffe.support.log import init_log as init_log

BlobVec = Arrays
RawBlobVec = LayerVec = StringVec = IntVec = DtypeVec = NetVec = BoolVec = list
