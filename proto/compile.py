#!/usr/bin/env python3
"""Compile caffe.proto into the descriptor set that ocaffe loads: ocaffe/proto/caffe.desc (needs grpcio-tools)."""
from __future__ import annotations

import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
TARGET = HERE.parent / "ocaffe" / "proto" / "caffe.desc"


def compile_to(target: Path) -> None:
    """Write the FileDescriptorSet of caffe.proto, without comments and source positions, to `target`."""
    from grpc_tools import protoc

    status = protoc.main(["protoc", f"-I{HERE}", f"--descriptor_set_out={target}", str(HERE / "caffe.proto")])
    if status:
        raise SystemExit(status)


if __name__ == "__main__":
    compile_to(Path(sys.argv[1]) if len(sys.argv) > 1 else TARGET)
