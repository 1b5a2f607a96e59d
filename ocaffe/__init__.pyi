"""What type checkers see of `ocaffe`; at run time names are imported when they are first used (`__init__.py`)."""

from ocaffe import classifier as classifier
from ocaffe import coord_map as coord_map
from ocaffe import detector as detector
from ocaffe import draw as draw
from ocaffe import io as io
from ocaffe import layers as layers
from ocaffe import net_spec as net_spec
from ocaffe import proto as proto
from ocaffe import pycaffe as pycaffe
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
from ocaffe.as_caffe import install_as_caffe as install_as_caffe
from ocaffe.classifier import Classifier as Classifier
from ocaffe.detector import Detector as Detector
from ocaffe.errors import Error as Error
from ocaffe.layers.base import layer_type_list as layer_type_list
from ocaffe.net_spec import NetSpec as NetSpec
from ocaffe.net_spec import params as params
from ocaffe.net_spec import to_proto as to_proto
from ocaffe.proto import TEST as TEST
from ocaffe.proto import TRAIN as TRAIN
from ocaffe.pylayer import Layer as Layer
from ocaffe.support import log as log
from ocaffe.support.log import init_log as init_log

__version__: str
