"""Options of an export to ONNX."""
from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from ocaffe import proto
from ocaffe.convert.deploy import Preprocessing
from ocaffe.ir.tensor import Shape


@dataclass(frozen=True)
class Options:
    """The settings of an export.

    `activate`: losses are replaced by their Softmax or Sigmoid. `cut_at`: the blobs that become outputs. `shapes`: shapes of inputs. `fillers`:
    parameters without weights get the values of their fillers. `bake`: mean and scale of the data layer become part of the model;
    `beside` are those of a net without a data layer.
    """

    opset: int = 17
    dynamic_batch: bool = False
    fold: bool = False
    fp16: bool = False
    raw_detection: bool = False
    bake: bool = False
    beside: Preprocessing | None = None
    activate: bool = False
    fillers: bool = False
    cut_at: Sequence[str] = ()
    shapes: Mapping[str, Shape] = field(default_factory=dict)
    phase: int = proto.TEST
    level: int = 0
    stages: tuple[str, ...] = ()
    seed: int = 0
    unknown_fields: bool = False
