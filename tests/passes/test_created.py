"""Training allocates exactly the planned bytes on the device, as counted by the created buffers."""
from __future__ import annotations

import json
import pathlib
from typing import Any

import pyopencl as cl
import pytest
from google.protobuf import text_format

from ocaffe import proto
from ocaffe.cli import main
from ocaffe.solver.solver import Solver
from tests.passes.test_traps import workplace  # noqa: F401  (a fixture)

pytestmark = pytest.mark.quick

ALLOWED = 1 << 20  # bytes of small buffers beyond the plan


@pytest.mark.parametrize(("net", "settings"), [("lenet", ""), ("cifar10_quick", ""), ("lenet", "iter_size: 3"), ("lenet", "snapshot_diff: true type: 'Adam'")])
def test_buffers_of_a_training_are_the_plan(net: str, settings: str, workplace: pathlib.Path, device: Any, monkeypatch: pytest.MonkeyPatch) -> None:  # noqa: F811
    created: list[int] = []
    original = cl.Buffer

    def counted(context: Any, flags: Any, size: int = 0, hostbuf: Any = None) -> Any:
        if not flags & cl.mem_flags.ALLOC_HOST_PTR:  # such buffers pin host memory (ocaffe/cl/pinned.py)
            created.append(size if hostbuf is None else hostbuf.nbytes)
        return original(context, flags, size, hostbuf)

    text = (workplace / f"zoo/{net}/solver.prototxt").read_text()
    param = text_format.Parse(text, proto.SolverParameter())
    text_format.Merge(settings.replace("type: 'Adam'", ""), param)
    param.type = "Adam" if "Adam" in settings else param.type
    param.snapshot, param.snapshot_after_train, param.test_interval, param.max_iter = 0, False, 2, 5
    pathlib.Path("solver.prototxt").write_text(text_format.MessageToString(param))
    monkeypatch.setattr("ocaffe.cl.device.select_device", lambda *_, **__: device)
    monkeypatch.setattr(device, "close", lambda: None)  # the training below uses it too
    assert main(["plan", "--solver", "solver.prototxt", "--device", device.number, "--json", "plan.json"]) == 0
    planned = json.loads(pathlib.Path("plan.json").read_text())["total_bytes"]
    del param.test_iter[:]
    param.test_iter.append(2)
    monkeypatch.setattr(cl, "Buffer", counted)
    solver = Solver(param, device)
    solver.solve()
    solver.close()
    assert planned <= sum(created) <= planned + ALLOWED
