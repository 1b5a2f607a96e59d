"""Python layers: user classes that compute on numpy arrays of the blobs, between launches on the device."""
from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Sequence
from typing import Any

import numpy as np

from ocaffe import pylayer
from ocaffe.as_caffe import install_as_caffe
from ocaffe.errors import Error, of_type
from ocaffe.ir.graph import Blob
from ocaffe.ir.recorder import Recorder
from ocaffe.ir.tensor import Ref, Shape
from ocaffe.layers.base import Layer, LayerClass, ParamBlob, register, registry
from ocaffe.pylayer import Array, Arrays, Phase
from ocaffe.shown import command

OF_DATA = "roi_data_layer.layer"
NATIVE = {  # well-known Python layers and the layers that replace them on the device
    (OF_DATA, "RoIDataLayer"): "RoIData",
    ("rpn.proposal_layer", "ProposalLayer"): "Proposal",
    ("rpn.anchor_target_layer", "AnchorTargetLayer"): "AnchorTarget",
    ("rpn.proposal_target_layer", "ProposalTargetLayer"): "ProposalTarget",
}
METHODS = ("setup", "reshape", "forward")


def _importing(module: str, reason: ImportError) -> str:
    """Return the remedy for a module that cannot be imported: it is missing, or one that it imports."""
    if reason.name is None or module.split(".")[0] == reason.name.split(".")[0]:
        return f"if it lies in FOLDER, run `PYTHONPATH=FOLDER ocaffe ..`; or correct python_param {{ module: \"{module}\" }}"
    return f"install {reason.name}, which {module} imports, or run `PYTHONPATH=FOLDER ocaffe ..`, if it lies in FOLDER"


@register("Python")
class Python(Layer):
    """A layer written in Python: the class `layer` of `module` with the methods setup, reshape, forward and backward.

    The module must be on the Python path. The object has `param_str` as an attribute. The device waits while the layer runs, and its blobs are copied
    to the host and back. The modules rpn.proposal_layer, rpn.anchor_target_layer and rpn.proposal_target_layer of py-faster-rcnn are not imported: the
    layers Proposal, AnchorTarget and ProposalTarget replace them. RoIData replaces roi_data_layer.layer where its param_str names a source, or where
    the module does not exist. With another number of bottoms the module is imported: forks have classes of the same names (FPN).
    """

    bottoms, tops = (0, None), (0, None)
    bottom: Sequence[Array] = ()
    top: Sequence[Array] = ()

    @classmethod
    def implementation(cls, param: Any) -> LayerClass:
        p = param.python_param
        if p.module == OF_DATA and "source" not in p.param_str and importlib.util.find_spec(OF_DATA.partition(".")[0]):
            return cls  # the script of py-faster-rcnn that runs gives its roidb to this layer
        native = registry().get(NATIVE.get((p.module, p.layer), ""), cls)
        least, most = (native.bottoms,) * 2 if isinstance(native.bottoms, int) else native.bottoms
        fits = not param.bottom or least <= len(param.bottom) <= (len(param.bottom) if most is None else most)
        return native if fits else cls  # a fork's class of the same name

    def force_backward(self, bottom: int) -> bool:
        return True

    def infer(self, *bottoms: Shape) -> Sequence[Shape]:
        if self.inner is None:
            self.bottom = [Array(()) for _ in bottoms]
            mine = dict(zip(self.param.bottom, self.bottom))
            self.top = [mine.get(name) or Array(()) for name in self.param.top]  # in place, bottom and top are one array, as in Caffe
        for array, shape in zip(self.bottom, bottoms):
            array.reshape(*shape)
        if self.inner is None:
            self.inner = self._create()
            self._call("setup", self.bottom, self.top)
        if self.extent is None:
            self._call("reshape", self.bottom, self.top)
        shapes: Any = self.extent if self.extent is not None else [top.shape for top in self.top]
        return list(shapes)

    def _create(self) -> Any:
        p = self.param.python_param
        if "caffe" not in sys.modules and importlib.util.find_spec("caffe") is None:
            install_as_caffe()  # because such modules usually import caffe
        try:
            module = importlib.import_module(p.module)
        except ImportError as reason:
            fix = _importing(p.module, reason)
            if not self.param.bottom:
                shapes = ",".join(f"{name}:1{size}" for name, size in zip(self.param.top, ("x3x224x224", *[""] * len(self.param.top))))
                fix += f"; plan, summary and time need it not with {command('--shape', shapes)} (with the right sizes)"
            raise self.error(f"the module '{p.module}' cannot be imported: {reason}", fix) from reason
        except Exception as reason:  # whatever the user's code raises
            raise self._raised(f"the module '{p.module}'", reason) from reason
        cls = getattr(module, p.layer, None)
        self.check(
            isinstance(cls, type),
            f"the module '{p.module}' has no class '{p.layer}'",
            f"set layer to a class of {getattr(module, '__file__', None) or p.module}",
        )
        missing = [method for method in METHODS if not callable(getattr(cls, method, None))]
        self.check(
            not missing,
            f"{p.module}.{p.layer} has no method {' and no '.join(missing)}, so it is not a layer",
            "derive it from caffe.Layer, and define setup, reshape, forward and backward",
        )
        assert cls is not None
        try:
            made = cls(self.param) if issubclass(cls, pylayer.Layer) else cls()
            made.param_str = made.param_str_ = p.param_str
            made.phase = Phase(self.phase)
            made.blobs = self.arrays = Arrays()
        except Exception as reason:
            raise self._raised(f"{p.module}.{p.layer}", reason) from reason
        return made

    def _raised(self, what: str, reason: Exception) -> Error:
        return of_type(self.error(f"{what} raised {type(reason).__name__}: {reason}", f"correct the code at {pylayer.place_of(reason)}"), reason)

    def _call(self, method: str, *args: Any) -> None:
        of_net, self.inner._of_net = getattr(self.inner, "_of_net", None), None  # while a method runs, its parameters are the arrays
        try:
            getattr(self.inner, method)(*args)
        except Error:
            raise
        except Exception as reason:
            p = self.param.python_param
            raise self._raised(f"{p.module}.{p.layer}.{method}", reason) from reason
        finally:
            self.inner._of_net = of_net

    def given(self, name: str, values: np.ndarray) -> None:
        for array in {id(top): top for top, other in zip(self.top, self.param.top) if other == name}.values():
            array.data[...] = values

    def parameters(self) -> Sequence[ParamBlob]:
        return [ParamBlob(blob.shape, blob.data) for blob in self.arrays]

    def measures(self, tops: Sequence[Blob]) -> bool:
        return True

    def forward(self, rec: Recorder, bottoms: list[Blob], tops: list[Blob]) -> None:
        # Other recordings may run in between and change the blobs' Refs, so the host steps hold Refs, not blobs.
        inputs, outputs = [bottom.data for bottom in bottoms], [top.data for top in tops]
        params = [parameter.data for parameter in self.params]

        def measure(commands: Any) -> tuple[Any, ...]:
            for array, ref in zip([*self.bottom, *self.arrays], [*inputs, *params]):
                array.data = commands.read(ref)
            self._call("reshape", self.bottom, self.top)
            self._call("forward", self.bottom, self.top)  # here, because many layers reshape their tops in forward
            return tuple(top.shape for top in self.top)

        def hand_over(commands: Any) -> None:
            for array, ref in zip([*self.top, *self.arrays], [*outputs, *params]):
                commands.write(ref, array.data)

        rec.measure(self, measure, [*inputs, *params])
        rec.host(hand_over, reads=inputs, writes=outputs, modifies=params, what="Python forward")

    def backward(self, rec: Recorder, tops: list[Blob], bottoms: list[Blob], propagate: list[bool]) -> None:
        wanted = [(array, bottom.diff) for array, bottom, want in zip(self.bottom, bottoms, propagate) if want and bottom.diff is not None]
        learned = [(array, parameter.diff) for array, parameter in zip(self.arrays, self.params) if parameter.diff is not None]
        diffs: list[Ref] = [top.diff for top in tops if top.diff is not None]
        sums = {ref for _, ref in [*wanted, *learned] if rec.accumulates(ref)}

        def run(commands: Any) -> None:
            for array, ref in zip(self.top, diffs):
                array.diff = commands.read(ref)
            for array, ref in learned:
                array.diff = commands.read(ref) if ref in sums else np.zeros(ref.shape, np.float32)
            self._call("backward", self.top, list(propagate), self.bottom)
            for array, ref in wanted:
                commands.write(ref, array.diff + commands.read(ref) if ref in sums else array.diff)
            for array, ref in learned:
                commands.write(ref, array.diff)

        # The arrays still hold the data of the forward pass, so the device need not keep them.
        rec.host(run, reads=diffs, writes=[ref for _, ref in [*wanted, *learned]], what="Python backward")
