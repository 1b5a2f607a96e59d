"""Each field of a fork is applied, refused with a remedy, or listed as one without effect. The tables agree with the schema and with the code."""
from __future__ import annotations

import importlib
import pathlib
import re
from typing import Any

import pytest

from ocaffe import proto
from ocaffe.errors import Error
from ocaffe.formats.fork_fields import IGNORED, REFUSED, refused_in, told
from ocaffe.graph.build import build
from ocaffe.layers.base import param_field, registry
from ocaffe.proto import is_repeated
from ocaffe.solver.checks import check_solver

pytestmark = pytest.mark.quick

MADE = importlib.import_module("docs.make_fork_fields")
FIELDS = [*MADE.fields()]
CODE = pathlib.Path(__file__).resolve().parents[2] / "ocaffe"
SOLVER = [key for key in REFUSED if key.startswith("SolverParameter.")]
LAYERS = [key for key in REFUSED if not key.startswith(("SolverParameter.", "NetState."))]


def words_of_code() -> set[str]:
    """Return the words in ocaffe's code beside the tables, among them the ends of names that f-strings make (`{name}_lower`)."""
    texts = [path.read_text(encoding="utf-8") for path in CODE.rglob("*.py") if path.name != "fork_fields.py"]
    return {word for text in texts for word in re.findall(r"\w+", text)}


def test_every_field_is_applied_or_listed() -> None:
    """A field of a message that ocaffe reads is named in the code, or the tables say why not. Nothing is ignored in silence."""
    words, used = words_of_code(), MADE.used_messages()
    layer_fields = {param_field(name) for name in registry()}
    ends = tuple(word for word in words if word.startswith("_"))
    silent = [
        field.key for field in FIELDS
        if field.message in used and field.key not in REFUSED and field.key not in IGNORED
        and field.name not in words and field.name not in layer_fields and not field.name.endswith(ends)
        and re.sub("^(min|max)_", "", field.name) not in words
        and not (field.message in ("LayerParameter", "V1LayerParameter") and field.name.endswith("_param"))  # of types that are refused by name
    ]  # fmt: skip
    assert silent == []


def test_the_schema_has_many_fields_of_forks() -> None:
    assert len(FIELDS) > 700 and {"NVCaffe", "Intel", "SSD", "TSN", "PSPNet", "OpenCL", "deepdetect", "happynear"} <= {field.forks for field in FIELDS}


@pytest.mark.parametrize("key", [*REFUSED, *IGNORED])
def test_tables_name_fields_of_forks(key: str) -> None:
    message, name = key.split(".")
    assert name in getattr(proto, message).DESCRIPTOR.fields_by_name
    assert (key in {field.key for field in FIELDS}) and not (key in REFUSED and key in IGNORED)


def changed(message: Any, name: str) -> None:
    """Set a field of a message to a value other than its default."""
    field = message.DESCRIPTOR.fields_by_name[name]
    if field.message_type is not None:
        target = getattr(message, name)
        (target.add() if is_repeated(field) else target).SetInParent()
        return
    default = field.default_value
    if field.enum_type is not None:
        value: Any = next(each.number for each in field.enum_type.values if each.number != default)
    else:
        value = not default if isinstance(default, bool) else "x" if isinstance(default, str) else (default or 0) + 2
    if is_repeated(field):
        getattr(message, name).append(1 if field.enum_type is None else value)
    else:
        setattr(message, name, value)


def holder(message: str, seen: frozenset[str] = frozenset()) -> list[str] | None:
    """Return the path of fields from a LayerParameter to a message."""
    waiting: list[tuple[Any, list[str]]] = [(proto.LayerParameter.DESCRIPTOR, [])]
    known = {"LayerParameter"}
    while waiting:
        descriptor, path = waiting.pop(0)
        for field in descriptor.fields:
            kind = field.message_type
            if kind is None or kind.name in known or (not path and not field.name.endswith("_param")):
                continue
            if kind.name == message:
                return [*path, field.name]
            known.add(kind.name)
            waiting.append((kind, [*path, field.name]))
    return None


@pytest.mark.parametrize("key", LAYERS)
def test_layers_refuse(key: str) -> None:
    """The error says where, what the fork did, and how the net works without the field. Its default is no error."""
    message, name = key.split(".")
    path = holder(message)
    assert path is not None
    param = proto.LayerParameter(name="it", type="ReLU", bottom=["x"], top=["y"], source_line=7)
    inner: Any = param
    for step in path:
        field = inner.DESCRIPTOR.fields_by_name[step]
        inner = getattr(inner, step).add() if is_repeated(field) else getattr(inner, step)
        if not is_repeated(field):
            inner.SetInParent()
    net = proto.NetParameter(source_file="net.prototxt")
    net.layer.add(name="x", type="Input", top=["x"], input_param={"shape": [{"dim": [1, 2]}]})
    net.layer.add().CopyFrom(param)
    build(net, proto.TEST)
    changed(inner, name)
    net.layer[1].CopyFrom(param)
    with pytest.raises(Error) as caught:
        build(net, proto.TEST)
    assert caught.value.fact == told(key, REFUSED[key]) and caught.value.fix == REFUSED[key].without
    assert "net.prototxt:7" in str(caught.value)


@pytest.mark.parametrize("key", SOLVER)
def test_solvers_refuse(key: str) -> None:
    name = key.split(".")[1]
    solver = proto.SolverParameter(base_lr=0.1, lr_policy="fixed")
    check_solver(solver)
    changed(solver, name)
    with pytest.raises(Error) as caught:
        check_solver(solver, "solver.prototxt")
    assert REFUSED[key].did in caught.value.fact and caught.value.fix == REFUSED[key].without and str(caught.value).startswith("solver.prototxt")


def test_states_refuse() -> None:
    net = proto.NetParameter(source_file="net.prototxt")
    net.state.quantizer_mode = proto.CAFFE_QUANT_OBSERVE
    with pytest.raises(Error, match="quantizer_mode is set, which is not supported: the OpenCL branch"):
        build(net, proto.TEST)


def test_a_solver_does_not_refuse_fields_of_its_nets() -> None:
    """Layers refuse by phase, and a net in the solver may have layers of the other phase."""
    solver = proto.SolverParameter(base_lr=0.1, lr_policy="fixed")
    layer = solver.net_param.layer.add(type="ImageSegData")
    layer.transform_param.scale_factors.append(2)
    assert refused_in(solver) is None and refused_in(layer, inner="_param") is not None


@pytest.mark.parametrize("key", REFUSED)
def test_texts(key: str) -> None:
    did, without = REFUSED[key]
    for text in (did, without):
        assert text and not text.endswith(".") and len(text.split()) <= 25
