"""Each field of a fork is applied, refused with a remedy, or listed as one without effect. The tables agree with the schema and with the code."""
from __future__ import annotations

import importlib
import pathlib
import re
from typing import Any

import pytest
from google.protobuf import text_format

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
    assert caught.value.fact == told(key, REFUSED[key]) and caught.value.fix == REFUSED[key].of(inner).without
    assert "net.prototxt:7" in str(caught.value)


@pytest.mark.parametrize("key", SOLVER)
def test_solvers_refuse(key: str) -> None:
    name = key.split(".")[1]
    solver = proto.SolverParameter(base_lr=0.1, lr_policy="fixed")
    check_solver(solver)
    changed(solver, name)
    with pytest.raises(Error) as caught:
        check_solver(solver, "solver.prototxt")
    assert REFUSED[key].did in caught.value.fact and caught.value.fix == REFUSED[key].of(solver).without and str(caught.value).startswith("solver.prototxt")


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
    did, without, _ = REFUSED[key]
    for text in (did, without):
        assert text and not text.endswith(".") and len(text.split()) <= 25


@pytest.mark.parametrize(
    ("message", "text", "fix"),
    [
        ("TransformationParameter", "erase_ratio: 0.3",
         "replace erase_ratio by erase { prob: 0.3 min_area: 0.0004 max_area: 0.16 min_aspect: 0.333 max_aspect: 3.03 }, which erases as often and about "
         "as much"),
        ("TransformationParameter", "scale_max: 0.5", "remove it: without erase_ratio the fork erases nothing"),
        ("TransformationParameter", "max_rotation_angle: 12", "replace max_rotation_angle by affine { rotation: 12 }"),
        ("TransformationParameter", "scale_factors: [0.5, 1, 1.75]",
         "replace it by affine { min_zoom: 0.5 max_zoom: 1.75 }, or use a layer of type ImageSegData"),
        ("TransformationParameter", "min_side_min: 100 min_side_max: 130",
         "replace min_side_min and min_side_max by random_resize_param { min_size: 100 max_size: 130 } of transform_param"),
        ("TransformationParameter", "contrast_brightness_adjustment: true max_brightness_shift: 9",
         "replace contrast_brightness_adjustment and max_brightness_shift by distort_param { brightness_prob: 0.5 brightness_delta: 9 contrast_prob: 0.5 "
         "contrast_lower: 0.8 contrast_upper: 1.2 }"),
        ("TransformationParameter", "crop_width: 473", "replace crop_width by crop_w: 473"),
        ("ImageDataParameter", "label_size: 4", "replace it by label_count: 4, which does the same"),
        ("SoftmaxParameter", "scaling_temperature: 4", "remove it, and put a Power layer before this layer: power_param { scale: 0.25 }"),
        ("ROIPoolingParameter", "pooled_size: 7", "replace it by pooled_h: 7 pooled_w: 7"),
    ],
)
def test_remedies_keep_the_values(message: str, text: str, fix: str) -> None:
    """The remedy has the user's numbers in ocaffe's fields. A prototxt can have its text."""
    param = text_format.Parse(text, getattr(proto, message)())
    found = refused_in(param)
    assert found is not None and found[1].without == fix
    written = re.search(r"(\w+ \{ .* \})(, which| of transform_param|, or|$)", fix)
    if written is not None and message == "TransformationParameter":
        text_format.Parse(written[1], proto.TransformationParameter())
