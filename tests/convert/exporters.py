"""Call PyTorch's two exporters without their output, and add the layers that an imported net needs for training."""
from __future__ import annotations

import contextlib
import io
import warnings
from pathlib import Path
from typing import Any

from ocaffe import proto


def export(net: Any, x: Any, path: Path, opset: int, dynamo: bool, *, norms: bool = True, open_batch: bool = False) -> None:
    """Write the inference net.

    `norms` keeps batch normalizations, which both exporters otherwise fold into convolutions. With `open_batch` the model accepts any batch.
    """
    import torch

    options: dict[str, Any] = {"input_names": ["input"], "output_names": ["output"], "opset_version": opset, "dynamo": dynamo}
    if dynamo:
        options |= {"optimize": not norms, "verbose": False, "external_data": False}
        options |= {"dynamic_shapes": ({0: torch.export.Dim("batch")},)} if open_batch else {}
    else:
        options |= {"do_constant_folding": False, "training": torch.onnx.TrainingMode.PRESERVE} if norms else {}
        options |= {"dynamic_axes": {"input": {0: "batch"}}} if open_batch else {}
    with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
        warnings.simplefilter("ignore")
        torch.onnx.export(net.eval(), (x,), str(path), **options)


def gradients_of_both(device: Any, folder: Path, net: Any, x: Any, dynamo: bool, *, open_batch: bool = False) -> tuple[Any, Any, list[tuple[Any, Any]]]:
    """Export and import a net, and run both forward and backward from one random gradient of the output, PyTorch in double precision.

    With `open_batch` the model is exported with the first two samples and accepts any batch. Returns the imported net, its message, and pairs of an array
    and PyTorch's tensor that must agree: the outputs, and the gradients of the input.
    """
    import torch

    import ocaffe
    from ocaffe.convert.import_model import convert

    prototxt, weights = folder / "net.prototxt", folder / "net.caffemodel"
    export(net, x[:2] if open_batch else x, folder / "net.onnx", 18 if dynamo else 17, dynamo, open_batch=open_batch)
    message = convert(folder / "net.onnx", prototxt, weights)
    prototxt.write_text("force_backward: true\n" + prototxt.read_text())
    imported = ocaffe.Net(str(prototxt), ocaffe.TRAIN, weights=str(weights), device=device, keep=["input", "output"])
    imported.blobs["input"].reshape(*x.shape)
    y = imported.forward(input=x.numpy())["output"]
    x = x.double().requires_grad_()
    expected = net.double()(x)
    dy = torch.randn(expected.shape, generator=torch.Generator().manual_seed(1)).double()
    expected.backward(dy)
    imported.blobs["output"].diff[...] = dy.float().numpy()
    imported.backward()
    return imported, message, [(y, expected.detach()), (imported.blobs["input"].diff, x.grad)]


def trained(deploy: Any, batch: int, output: str) -> Any:
    """Return the net for fine-tuning: with another batch, labels and a loss."""
    net = proto.NetParameter()
    net.CopyFrom(deploy)
    net.layer[0].input_param.shape[0].dim[0] = batch
    label = net.layer.add(name="label", type="Input", top=["label"])
    label.input_param.shape.add().dim.append(batch)
    net.layer.add(name="loss", type="SoftmaxWithLoss", bottom=[output, "label"], top=["loss"])
    return net
