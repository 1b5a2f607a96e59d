"""Run jobs with one Caffe: `python -m tests.oracle.worker caffe`, or `ocaffe [FAULT]`.

A job is a line of JSON on stdin. Its answer is a line of JSON on stdout. Arrays are in files `<part>.npz` in the job's folder, so that the parts before a
refusal remain. A real Caffe ends its process when it refuses; therefore each of its jobs runs in a child process. This module and `values` need numpy only.
"""
from __future__ import annotations

import json
import os
import resource
import sys
from typing import Any

import numpy as np

from tests.oracle import values

MEMORY = 8 << 30  # bytes that a job of the real Caffe may reserve
SECONDS = 100  # of processor time
DEBUG = os.environ.get("OCAFFE_DEBUG", "")
caffe: Any = None


class Job:
    """One job while it runs. `stage` says what ran last."""

    def __init__(self, order: dict[str, Any]) -> None:
        self.order, self.folder, self.seed = order, order["folder"], order["seed"]
        self.facts: dict[str, Any] = {}
        self.stage = "build"

    def path(self, name: str) -> str:
        return os.path.join(self.folder, name)

    def write(self, name: str, text: str) -> str:
        with open(self.path(name), "w") as out:
            out.write(text)
        return self.path(name)

    def keep(self, part: str, arrays: dict[str, Any]) -> None:
        np.savez(self.path(part.replace(" ", "-") + ".npz"), **{f"{part}/{name}": np.array(array, np.float32) for name, array in arrays.items()})

    def enter(self, stage: str) -> None:
        """Note the stage in a file, for the process may end in it."""
        self.stage = stage
        self.write("stage", json.dumps({"stage": stage, **self.facts}))

    def fill(self, net: Any) -> None:
        """Draw the parameters."""
        for layer, blobs in net.params.items():
            specs = self.order["weights"].get(layer, [])
            for index, blob in enumerate(blobs):
                spec = specs[index] if index < len(specs) else values.WEIGHTS
                blob.data[...] = self.rounded(values.draw(spec, blob.data.shape, self.seed, "weights", layer, index), layer, index)

    def feed(self, net: Any, step: int) -> None:
        for name, spec in self.order["inputs"].items():
            if name in net.blobs:
                blob = net.blobs[name]
                blob.data[...] = self.rounded(values.draw(spec, blob.data.shape, self.seed, "input", name, step), name, step)

    def rounded(self, array: np.ndarray, *key: object) -> np.ndarray:
        """The values, with errors like those of rounding if the order has the number of a `noise`."""
        noise = self.order.get("noise")
        return array if noise is None else array * (1 + values.draw(("normal", values.ROUNDING), array.shape, self.seed, "noise", noise, *key))


def parameters(net: Any, what: str) -> dict[str, Any]:
    return {f"{layer}/{index}": getattr(blob, what) for layer, blobs in net.params.items() for index, blob in enumerate(blobs)}


def run_net(job: Job) -> None:
    order = job.order
    phase = caffe.TRAIN if order["phase"] == "TRAIN" else caffe.TEST
    job.enter("build")
    kept = order.get("kept") if caffe.__name__ == "ocaffe" else None
    options = {} if kept is None else {"keep": kept}
    net = caffe.Net(job.write("net.prototxt", order["text"]), phase, level=order.get("level", 0), stages=order.get("stages", []), **options)
    names = [name for name in net.blobs if kept is None or name in kept]
    job.facts.update(layers=list(net._layer_names), types=[layer.type for layer in net.layers], outputs=list(net.outputs))
    if order.get("load"):
        job.enter("load")
        net.copy_from(order["load"])
    else:
        job.fill(net)
    if order.get("memory"):
        shape, classes = order["memory"]["shape"], order["memory"]["classes"]
        data = values.draw(values.NORMAL, shape, job.seed, "memory", "data")
        net.set_input_arrays(data, values.draw(("integers", 0, classes), shape[:1], job.seed, "memory", "labels"))
    if order["phase"] == "TEST" and order["backward"] and names:  # ocaffe plans a TEST net with diffs once one was read
        net.blobs[names[0]].diff.sum()
    for step, change in enumerate(order["steps"]):
        job.enter(f"forward {step}")
        for name, shape in change.get("shapes", {}).items():
            net.blobs[name].reshape(*shape)
        if change.get("reshape"):
            net.reshape()
        job.feed(net, step)
        for blobs in net.params.values():
            for blob in blobs:
                blob.diff[...] = 0
        returned = net.forward()
        job.keep(f"output {step}", returned)
        job.keep(f"data {step}", {name: net.blobs[name].data for name in names})
        if order.get("kept") is None:
            job.keep(f"loss {step}", {"loss": sum(float(net.blob_loss_weights[name]) * np.sum(net.blobs[name].data, dtype=np.float64) for name in names)})
        job.keep(f"parameter {step}", parameters(net, "data"))
        if order["backward"]:
            job.enter(f"backward {step}")
            for name in order["diffs"]:
                if name in net.outputs and not net.blob_loss_weights[name]:
                    net.blobs[name].diff[...] = values.draw(values.NORMAL, net.blobs[name].diff.shape, job.seed, "diff", name, step)
            net.backward()
            job.keep(f"diff {step}", {name: net.blobs[name].diff for name in names})
            job.keep(f"parameter diff {step}", parameters(net, "diff"))
    if order.get("save"):
        job.enter("save")
        net.save(job.path("net.caffemodel"))


def run_solver(job: Job) -> None:
    """Train. The order has `first` and `last` iterations, `snapshot` (an iteration), and `restore` (a state file, or none)."""
    order = job.order
    os.chdir(job.folder)
    job.write("net.prototxt", order["text"])
    job.enter("build")
    solver = caffe.get_solver(job.write("solver.prototxt", order["solver"] + f'\nnet: "net.prototxt"\nsnapshot_prefix: "{job.path("snap")}"\n'))
    if order.get("restore"):
        job.enter("restore")
        solver.restore(order["restore"])
    else:
        job.fill(solver.net)
    for step in range(order["first"], order["last"]):
        job.enter(f"step {step}")
        job.feed(solver.net, step)
        solver.step(1)
        job.keep(f"parameter {step}", parameters(solver.net, "data"))
        job.keep(f"loss {step}", {"loss": solver.net.blobs["loss"].data})
        if order["snapshot"] == step + 1:
            solver.snapshot()
    job.facts["files"] = sorted(name for name in os.listdir(job.folder) if name.startswith("snap"))


def run_spec(job: Job) -> None:
    """Run a script that writes a prototxt with NetSpec into `text`."""
    job.enter("spec")
    names = {"caffe": caffe, "L": caffe.layers, "P": caffe.params, "to_proto": caffe.to_proto}
    exec(job.order["script"], names)  # the oracle's own generator wrote it
    job.facts["text"] = names["text"]


def run_types(job: Job) -> None:
    job.facts["types"] = sorted(caffe.layer_type_list())


RUNS = {"net": run_net, "solver": run_solver, "spec": run_spec, "types": run_types}


def used() -> float:
    """Processor time of this process and of its children, which compile, in seconds."""
    return sum(usage.ru_utime + usage.ru_stime for usage in map(resource.getrusage, (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)))


def answer(order: dict[str, Any]) -> dict[str, Any]:
    job = Job(order)
    start = used()
    os.environ["OCAFFE_DEBUG"] = ",".join(filter(None, [DEBUG, order.get("debug", "")]))
    try:
        RUNS[order["kind"]](job)
        refusal = None
    except Exception as error:
        refusal = {"stage": job.stage, "error": type(error).__name__, "message": str(error)}
    return {"refusal": refusal, "seconds": used() - start, **job.facts}


def answer_in_child(order: dict[str, Any]) -> dict[str, Any]:
    """Answer from a child process. If it dies, the answer has glog's message of the fatal error."""
    log, said = os.path.join(order["folder"], "log"), os.path.join(order["folder"], "answer")
    child = os.fork()
    if child == 0:
        errors = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(errors, 1)
        os.dup2(errors, 2)
        resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
        resource.setrlimit(resource.RLIMIT_CPU, (SECONDS, SECONDS))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        result = answer(order)
        with open(said, "w") as out:
            json.dump(result, out)
        os._exit(0)
    status, usage = os.wait4(child, 0)[1:]
    if os.path.exists(said):
        with open(said) as text:
            return json.load(text)
    with open(log, errors="replace") as text:
        lines = text.read().splitlines()
    fatal = [line for line in lines if line[:1] in ("F", "E")] or lines[:3]
    with open(os.path.join(order["folder"], "stage")) as text:
        facts = json.load(text)
    stage = facts.pop("stage")
    refusal = {"stage": stage, "error": f"signal {status & 127}", "message": " | ".join(fatal)[:1000]}
    return {"refusal": refusal, "seconds": usage.ru_utime + usage.ru_stime, **facts}


def main() -> None:
    global caffe
    program, *fault = sys.argv[1:]
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # other lines of stdout go to stderr
    if program == "ocaffe":
        import ocaffe

        caffe = ocaffe
        if fault:
            from tests.oracle import faults

            faults.plant(fault[0])
    else:
        import caffe as real

        caffe = real
    run = answer if program == "ocaffe" else answer_in_child
    print("ready", file=out, flush=True)
    for line in sys.stdin:
        print(json.dumps(run(json.loads(line))), file=out, flush=True)


if __name__ == "__main__":
    main()
