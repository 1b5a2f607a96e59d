"""The net as a graph: Blob, Parameter, Node, Graph. Plain data; nothing here touches a device."""
from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from ocaffe.errors import Error, Place
from ocaffe.ir.tensor import Ref, Shape

if TYPE_CHECKING:
    from ocaffe.ir.layer import AbstractLayer


@dataclass(eq=False)
class Blob:
    """One value of a named blob. A layer that works in place makes a new Blob of the same name (single assignment)."""

    name: str
    shape: Shape
    producer: Node | None = None
    consumer: Node | None = None  # inserted Split layers leave at most one
    data: Ref = None  # type: ignore[assignment]  # set while the net is recorded, as is `diff`
    diff: Ref | None = None
    loss_weight: float = 0.0

    @property
    def count(self) -> int:
        return math.prod(self.shape)


@dataclass(eq=False)
class Parameter:
    """A learnable (or running) blob of a layer; layers that name the same ParamSpec share one."""

    layer: str  # the owner
    index: int
    shape: Shape
    filler: Any  # FillerParameter
    name: str = ""  # ParamSpec name, empty if not shared
    lr_mult: float = 1.0
    decay_mult: float = 1.0
    propagate: bool = True  # whether a gradient is wanted (Caffe: param_propagate_down)
    users: list[tuple[str, int, Shape]] = field(default_factory=list)  # layer, index and shape there
    explicit: set[str] = field(default_factory=set)  # multipliers that the prototxt states
    place: Place | None = None
    data: Ref = None  # type: ignore[assignment]
    diff: Ref | None = None  # set while the net is recorded
    source: Parameter | None = None  # the owner's parameter, if this is it in the shape of another layer

    @property
    def count(self) -> int:
        return math.prod(self.shape)

    def in_shape(self, shape: Shape) -> Parameter:
        """Return the parameter as a layer sees it that shares it in another shape (share_mode: PERMISSIVE)."""
        return replace(self, shape=shape, source=self)

    @property
    def learned(self) -> bool:
        return self.lr_mult != 0

    def __str__(self) -> str:
        return f"{self.layer}/{self.index}"


@dataclass(eq=False)
class Node:
    """A layer of a net, with its bottoms and tops."""

    name: str
    type: str
    layer: AbstractLayer
    bottoms: list[Blob]
    tops: list[Blob]
    params: list[Parameter] = field(default_factory=list)
    propagate: list[bool] = field(default_factory=list)  # which bottoms get a diff
    backward: bool = False
    place: Place | None = None
    unfit: Error | None = None  # why the layer cannot run with the present input shapes; its tops keep their old shapes

    def __repr__(self) -> str:
        return f"<{self.type} {self.name}>"


@dataclass(eq=False)
class Graph:
    """The net of one phase with its shapes; `blobs` maps each name to its last value, in order of first appearance."""

    message: Any  # the NetParameter with splits, as a snapshot writes it
    phase: int
    nodes: list[Node]
    blobs: dict[str, Blob]
    first: dict[str, Blob]  # each name's first value: the user writes to it, and its diff is the name's diff after backward
    inputs: list[Blob]
    outputs: list[Blob]  # sorted by name, as Caffe's std::set of available blobs is (docs/quirks.md, quirk 24)
    seed: int  # of all random numbers of the net
    params: list[Parameter]  # without repetition of shared ones, in the order of Caffe's learnable_params
    reshaped: list[Parameter] = field(default_factory=list)  # those that layers see in another shape than the owner's
    held: dict[tuple[str, Shape], Ref] = field(default_factory=dict)  # Refs that are set from outside; every recording uses the same ones
    unchecked: list[tuple[Node, int]] = field(default_factory=list)  # losses, each with a bottom, whose labels are checked on the device
    guard: Ref | None = None  # for these: updates do nothing once it is not 0 (ocaffe/kernels/loss/labels.py)
    counts: dict[tuple[Shape, ...], int] = field(default_factory=dict)  # values of all blobs, by the shapes that are fed; measured shapes change none
    prepacked: dict[Any, Ref] = field(default_factory=dict)  # prepacked weights, for all shapes (ocaffe/passes/prepacked_weights.py)

    def forget_refs(self) -> None:
        """Remove the Refs of a recording. Parameters keep their data, which all recordings share."""
        for node in self.nodes:
            for top in node.tops:
                top.data = top.diff = None  # type: ignore[assignment]
        for parameter in (*self.params, *self.reshaped):
            parameter.diff = None
