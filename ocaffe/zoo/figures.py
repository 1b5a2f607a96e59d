"""Figures of the zoo's nets, from their graphs and plans. No device is needed."""
from __future__ import annotations

from typing import Any, NamedTuple

from ocaffe import proto
from ocaffe.compiler.compile import compile_net
from ocaffe.errors import Error
from ocaffe.formats.text import read_solver
from ocaffe.graph.options import NetOptions
from ocaffe.graph.parameters import ParameterGroup
from ocaffe.ir.graph import Graph
from ocaffe.ir.target import Target
from ocaffe.memory.report import fixed_bytes
from ocaffe.solver.update import Updater
from ocaffe.support.switches import Switches
from ocaffe.zoo import FOLDER
from ocaffe.zoo.templates import graph_of, image_shape, upgraded, without_data

NO_DEVICE = Target(max_allocation=1 << 40)  # of a plan for no certain device


class Figures(NamedTuple):
    """`shape`: channels, height and width of an image. `parameters`: learned ones of the deploy net. `flops`: floating point operations for an image.

    `training`: bytes on the device to train with `batch` images, with the solver's history; None if a blob would have too many values. `running`: bytes
    for one image with the deploy net.
    """

    name: str
    title: str
    shape: tuple[int, int, int]
    parameters: int
    flops: int
    training: int | None
    running: int


def figures(name: str, batch: int) -> Figures:
    """Return the figures of a net of the zoo."""
    folder = FOLDER / name
    train, deploy, solver = upgraded(folder / "train_val.prototxt"), upgraded(folder / "deploy.prototxt"), read_solver(folder / "solver.prototxt")
    shape = image_shape(deploy)
    deploy.layer[0].input_param.shape[0].dim[0] = 1
    graph = graph_of(deploy)
    parameters = sum(parameter.count for parameter in graph.params if parameter.learned)
    flops = sum(node.layer.flops() for node in graph.nodes)
    try:
        training = planned_bytes(graph_of(without_data(train, shape, batch), proto.TRAIN), NetOptions(), solver=solver)
    except Error as problem:
        if "a blob has at most" not in problem.fact:
            raise
        training = None
    running = planned_bytes(graph, NetOptions(backward=False, prepack_weights=True))
    return Figures(name, deploy.name, shape, parameters, flops, training, running)


def published_batch(name: str) -> int:
    """Return the images of an iteration of a net of the zoo, as its train_val.prototxt has them."""
    train, deploy = (upgraded(FOLDER / name / f"{file}.prototxt") for file in ("train_val", "deploy"))
    data = next(layer for layer in without_data(train, image_shape(deploy)).layer if layer.type == "Input")
    return int(data.input_param.shape[0].dim[0])


def planned_bytes(graph: Graph, options: NetOptions, target: Target = NO_DEVICE, solver: Any = None) -> int:
    """Return the bytes that a net takes on the device, with the history of `solver` if one is given."""
    group = ParameterGroup(graph.params)
    made = compile_net(graph, group, target, options, Switches.read(), Updater(group, solver) if solver is not None else None)
    return fixed_bytes([made.recording.schedule]) + made.plan.total
