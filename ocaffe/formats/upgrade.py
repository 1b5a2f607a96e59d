"""Upgrade the messages of nets and solvers in older Caffe formats to today's format. The tables are in `legacy`."""
from __future__ import annotations

import difflib
from collections.abc import Callable
from typing import Any

from ocaffe import proto
from ocaffe.errors import Error, Place
from ocaffe.formats import legacy

Log = Callable[[str], None]


def upgrade_net(net: Any, log: Log | None = None) -> Any:
    """Replace old forms in `net`: V0 and V1 layers with their blobs, `input` fields and the `param` of BatchNorm.

    Return `net` itself if nothing needs an upgrade, else a new message. `log` gets one line per step and one per field
    that today's layer does not have. Raises Error if the net contradicts itself.
    """
    say = log or (lambda line: None)
    where = f" of {net.source_file}" if net.source_file else ""
    steps = (
        (_has_v0, _upgrade_v0, "the V0 layers"),
        (_has_v1, _upgrade_v1, "the V1 layers"),
        (_has_input, _upgrade_input, "the input fields"),
        (_has_batch_norm_params, _upgrade_batch_norm, "the params of BatchNorm layers"),
    )
    upgraded = net
    for needed, step, what in steps:
        if needed(upgraded):
            if upgraded is net:
                upgraded = proto.NetParameter()
                upgraded.CopyFrom(net)
            step(upgraded, say)
            say(f"Upgraded {what}{where} from an old format")
    _check_layers(upgraded, say)
    return upgraded


def upgrade_solver(solver: Any, log: Log | None = None) -> Any:
    """Replace `solver_type` (an enum) by `type` (a string). Return `solver` itself if it has no `solver_type`."""
    if not solver.HasField("solver_type"):
        return solver
    if solver.HasField("type"):
        raise Error(f"the solver has both type: {solver.type!r} and the older solver_type", fix="remove solver_type")
    name = solver.DESCRIPTOR.fields_by_name["solver_type"].enum_type.values_by_number[solver.solver_type].name
    if name not in legacy.SOLVER_TYPES:
        raise Error(f"solver_type {name} is not supported", fix=f"set solver_type to one of {', '.join(legacy.SOLVER_TYPES)}")
    upgraded = proto.SolverParameter()
    upgraded.CopyFrom(solver)
    upgraded.ClearField("solver_type")
    upgraded.type = legacy.SOLVER_TYPES[name]
    if log:
        log(f"Upgraded solver_type: {name} to type: {upgraded.type!r}")
    return upgraded


def v1_type(number: int) -> str:
    """Return today's type name of the V1 enum value `number`, or '' if the schema does not have it (a fork can)."""
    value = proto.V1LayerParameter.DESCRIPTOR.enum_types_by_name["LayerType"].values_by_number.get(number)
    return legacy.V1_TYPES[value.name] if value else ""


def v0_type(name: str) -> str:
    """Return today's type name of the V0 type `name`, or '' if it is unknown."""
    return legacy.V1_TYPES[legacy.V0_TYPES[name]] if name in legacy.V0_TYPES else ""


def _place(net: Any, layer: Any) -> Place:
    return Place(net.source_file or "net", layer.source_line)


# V0


def _has_v0(net: Any) -> bool:
    return any(layer.HasField("layer") for layer in net.layers)


def _upgrade_v0(net: Any, say: Log) -> None:
    _fold_padding(net)
    layers = [_from_v0(net, layer, say) if layer.HasField("layer") else layer for layer in net.layers]
    del net.layers[:]
    net.layers.extend(layers)


def _fold_padding(net: Any) -> None:
    """Remove V0 padding layers. The layer after each one gets its pad."""
    producer: dict[str, Any] = {}
    for layer in net.layers:
        for index, name in enumerate(layer.bottom):
            source = producer.get(name)
            if source is None or source.layer.type != "padding":
                continue
            if layer.layer.type not in ("conv", "pool") or len(layer.bottom) != 1 or len(source.bottom) != 1 or len(source.top) != 1:
                raise Error(
                    f"the padding layer {source.layer.name!r} feeds a layer of type {layer.layer.type!r}; it must have one bottom and "
                    "one top and feed a conv or pool layer with one bottom",
                    place=_place(net, layer), fix="remove the padding layer, and set pad in the conv or pool layer behind it",
                )
            layer.layer.pad = source.layer.pad
            layer.bottom[index] = source.bottom[0]
        producer.update((name, layer) for name in layer.top)
    kept = [layer for layer in net.layers if layer.layer.type != "padding"]
    del net.layers[:]
    net.layers.extend(kept)


def _from_v0(net: Any, old: Any, say: Log) -> Any:
    """Return a V1 layer with the connections of `old` and the settings of its V0 layer."""
    v0 = old.layer
    if v0.type not in legacy.V0_TYPES:
        near = difflib.get_close_matches(v0.type.lower(), legacy.V0_TYPES, 1)
        fix = (f'did you mean type: "{near[0]}"? ' if near else "") + f"the types of this old form are {', '.join(sorted(legacy.V0_TYPES))}"
        raise Error(f"unknown V0 layer type {v0.type!r}", place=_place(net, old), layer=repr(v0.name), fix=fix)
    new = proto.V1LayerParameter(
        bottom=old.bottom,
        top=old.top,
        name=v0.name,
        blobs=v0.blobs,
        blobs_lr=v0.blobs_lr,
        weight_decay=v0.weight_decay,
        source_line=old.source_line,
    )
    new.type = proto.V1LayerParameter.LayerType.Value(legacy.V0_TYPES[v0.type])
    for field, value in v0.ListFields():
        if field.name in ("name", "type", "blobs", "blobs_lr", "weight_decay"):
            continue
        if field.name in legacy.V0_TRANSFORM:
            setattr(new.transform_param, legacy.V0_TRANSFORM[field.name], value)
        elif field.name == "hdf5_output_param" and v0.type == "hdf5_output":
            new.hdf5_output_param.CopyFrom(value)
        elif field.name in legacy.V0_FIELDS and v0.type in legacy.V0_FIELDS[field.name][1]:
            _set(getattr(new, legacy.V0_PARAMS[v0.type]), legacy.V0_FIELDS[field.name][0], value)
        else:
            say(f"{_place(net, old)}: a V0 layer of type {v0.type!r} has no use for {field.name!r}; it is dropped")
    return new


def _set(message: Any, name: str, value: Any) -> None:
    field = message.DESCRIPTOR.fields_by_name[name]
    if field.message_type:
        getattr(message, name).CopyFrom(value)
    elif proto.is_repeated(field):
        getattr(message, name).append(value)
    else:
        setattr(message, name, value)


# V1


def _has_v1(net: Any) -> bool:
    return len(net.layers) > 0


def _upgrade_v1(net: Any, say: Log) -> None:
    if net.layer:
        raise Error(
            f"the net mixes {len(net.layers)} old-style `layers` with {len(net.layer)} new-style `layer`",
            place=_place(net, net.layer[0]),
            fix="write all of them as `layer { }`, with types in quotes",
        )
    for old in net.layers:
        _from_v1(old, net.layer.add())
    net.ClearField("layers")


def _from_v1(old: Any, new: Any) -> None:
    for name in ("bottom", "top", "include", "exclude", "blobs", "loss_weight"):
        getattr(new, name).extend(getattr(old, name))
    for name in ("name", "source_line"):
        if old.HasField(name):
            setattr(new, name, getattr(old, name))
    if old.HasField("type"):
        new.type = v1_type(old.type)
    specs: list[Any] = []
    for old_name, new_name in (
        ("param", "name"),
        ("blob_share_mode", "share_mode"),
        ("blobs_lr", "lr_mult"),
        ("weight_decay", "decay_mult"),
    ):
        for index, value in enumerate(getattr(old, old_name)):
            if index == len(specs):
                specs.append(new.param.add())
            setattr(specs[index], new_name, value)
    for field, value in old.ListFields():
        if field.name.endswith("_param"):
            getattr(new, field.name).CopyFrom(value)
    _move_transform(old, new)


def _move_transform(old: Any, new: Any) -> None:
    data_param = legacy.V1_DATA_PARAMS.get(proto.V1LayerParameter.LayerType.Name(old.type))
    if data_param is None or not new.HasField(data_param):
        return
    data = getattr(new, data_param)
    for name in legacy.V1_TRANSFORM:
        if data.HasField(name):
            setattr(new.transform_param, name, getattr(data, name))
            data.ClearField(name)


# input fields


def _has_input(net: Any) -> bool:
    return len(net.input) > 0


def _upgrade_input(net: Any, say: Log) -> None:
    """Replace `input` and its `input_shape` or `input_dim` (four per input) by one Input layer at the front."""
    count = len(net.input)
    if net.input_shape:
        shapes = [list(shape.dim) for shape in net.input_shape]
        given = f"{len(shapes)} input_shape"
    else:
        shapes = [list(net.input_dim[i : i + 4]) for i in range(0, len(net.input_dim), 4)]
        given = f"{len(net.input_dim)} input_dim"
    if shapes and (len(shapes) != count or (not net.input_shape and len(net.input_dim) % 4)):
        raise Error(
            f"the net has {count} input and {given}",
            place=net.source_file or "net",
            fix=f"give {count} input_shape, or {4 * count} input_dim: one, or four, for each input",
        )
    if shapes:
        layers = list(net.layer)
        del net.layer[:]
        new = net.layer.add(name="input", type="Input", top=net.input)
        for shape in shapes:
            new.input_param.shape.add(dim=shape)
        net.layer.extend(layers)
    for name in ("input", "input_shape", "input_dim"):
        net.ClearField(name)


# BatchNorm


def _has_batch_norm_params(net: Any) -> bool:
    return any(
        layer.type == "BatchNorm" and len(layer.param) == 3 and any(p.lr_mult or p.decay_mult for p in layer.param) for layer in net.layer
    )


def _upgrade_batch_norm(net: Any, say: Log) -> None:
    """Set the learning rates of BatchNorm's three blobs to 0: they are running statistics, which a solver must not change."""
    for layer in net.layer:
        if layer.type == "BatchNorm" and len(layer.param) == 3:
            for spec in layer.param:
                spec.lr_mult = 0
                spec.decay_mult = 0


def _check_layers(net: Any, say: Log) -> None:
    for layer in net.layer:
        learns = any(layer.batch_norm_param.HasField(name) for name in legacy.NVCAFFE_BATCH_NORM)
        if layer.type == "BatchNorm" and len(layer.param) < 3 and not learns:
            for index, spec in enumerate(layer.param):
                if spec.lr_mult:
                    raise Error(
                        f"param {index} has lr_mult {spec.lr_mult:g}, but BatchNorm's blobs are running statistics, which are not learned",
                        place=_place(net, layer),
                        layer=f"{layer.name!r} (BatchNorm)",
                        fix="remove its `param { }` (gamma and beta are learned by a Scale layer behind it), or if the net is NVCaffe's: "
                        "batch_norm_param { scale_bias: true }",
                    )
        for name in ("data_param", "image_data_param", "window_data_param"):
            if layer.HasField(name):
                unused = [key for key in legacy.V1_TRANSFORM if getattr(layer, name).HasField(key) and (name, key) != ("window_data_param", "scale")]
                if unused:
                    say(f"{_place(net, layer)}: {', '.join(unused)} of {name} have no effect, as in Caffe; move them to transform_param")
