"""WarpCTCLoss and CtcLoss: connectionist temporal classification."""
from __future__ import annotations

from collections.abc import Sequence

from ocaffe.errors import shape_text
from ocaffe.ir.graph import Blob
from ocaffe.ir.labels import LabelRange
from ocaffe.ir.recorder import Recorder
from ocaffe.ir.tensor import Ref, Shape
from ocaffe.kernels.loss.ctc import ctc_loss, ctc_loss_backward, targets
from ocaffe.layers.base import Layer, register, stated


@register("WarpCTCLoss", "CtcLoss")
class WarpCTCLoss(Layer):
    """Mean over the samples of -log P(labels | scores), for scores T x N x C before the softmax and labels without positions.

    The other bottoms are labels N x L, in which blank_label fills the rest; or sequence indicators (0 starts a sequence) and labels, both T x N, in
    which a negative label ends a sample and blank_label 0 is not counted among the labels; or N lengths, N numbers of labels and labels L x N.
    With ctc_loss_param { time_step }, only the first steps count. A sample that its steps cannot emit has loss and gradient 0, as in warp-ctc. A label
    outside the classes, or the blank among labels that are counted, makes the loss NaN.

    As in the forks, the loss is divided by N, but its gradient is not. Sources: dlunion/CC4.0, src/caffe/layers/warp_ctc_loss_layer.cpp at 1225991
    (WarpCTCLoss); xmfbit/warpctc-caffe, src/caffe/layers/ctc_loss_layer.cpp at bd6181b (CtcLoss, with labels N x L).
    """

    origin = "warp-ctc forks"
    message = "ctc_loss_param"
    bottoms = (2, 4)
    is_loss = True

    def infer(self, *bottoms: Shape) -> Sequence[Shape]:
        p, (x, *others) = self.own(), bottoms
        self.check(
            len(x) >= 3 and set(x[3:]) <= {1},
            f"bottom 0 is {shape_text(x)}, it must be T x N x C: time steps, samples, classes",
            "add a Reshape or Permute layer that makes T x N x C",
        )
        steps, samples, classes = self.scores = x[:3]
        fits = [
            others[0][:1] == (samples,),
            others[0][:2] == others[-1][:2] == (steps, samples),
            all(self.size(shape) == samples for shape in others[:2]) and others[-1][1:2] == (samples,),
        ][len(others) - 1]
        told = ", ".join(f"bottom {i} is {shape_text(shape)}" for i, shape in enumerate(others, 1))
        forms = (
            f"give labels of {samples} x L as bottom 1",
            f"give bottoms 1 and 2 of {steps} x {samples}: indicators, and labels",
            f"give {samples} lengths of the inputs as bottom 1, {samples} of the labels as bottom 2, and labels of L x {samples} as bottom 3",
        )
        self.check(fits, f"bottom 0 is {shape_text(x)}, {told}", forms[len(others) - 1])
        self.check(
            p.alphabet_size in (0, classes),
            f"alphabet_size is {p.alphabet_size}, bottom 0 has {classes} classes",
            f"remove alphabet_size, or set num_output of the layer of the scores to {p.alphabet_size}",
        )
        self.check(p.time_step <= steps, f"time_step is {p.time_step}, bottom 0 has {steps} time steps", f"set time_step to {steps} or less, or remove it")
        self.check(
            0 <= p.blank_label < classes,
            f"{stated(p, 'blank_label')}, bottom 0 has {classes} classes",
            f"set blank_label to a class from 0 to {classes - 1}",
        )
        if len(others) == 1:
            self.labels = {1: LabelRange(self.title, classes)}
        return [()]

    @staticmethod
    def size(shape: Shape) -> int:
        """Return the size of the only axis above 1, or 0 if there are several."""
        long = [n for n in shape if n != 1]
        return long[0] if len(long) == 1 else 0 if long else 1

    def force_backward(self, bottom: int) -> bool:
        return bottom == 0

    def forward(self, rec: Recorder, bottoms: list[Blob], tops: list[Blob]) -> None:
        p, given = self.own(), [self.plain(bottom) for bottom in bottoms[1:]]
        self.targets = targets(rec, given, p.time_step or self.scores[0], self.scores[2], p.blank_label, int(p.blank_label == 0))
        self.paths = ctc_loss(rec, bottoms[0].data.view(self.scores), self.targets, tops[0].data, p.blank_label)

    def plain(self, bottom: Blob) -> Ref:
        """Return a bottom of labels or lengths as a matrix, or as a vector if it has one number per sample."""
        shape = bottom.shape
        lengths = len(self.param.bottom) == 4 and bottom.shape[1:2] != self.scores[1:2]
        return bottom.data.view((bottom.count,)) if lengths else bottom.data.view((shape[0], bottom.count // max(1, shape[0])))

    def backward(self, rec: Recorder, tops: list[Blob], bottoms: list[Blob], propagate: list[bool]) -> None:
        self.no_gradient(propagate, dict.fromkeys(range(1, len(propagate)), "labels"))
        if propagate[0]:
            assert tops[0].diff is not None and bottoms[0].diff is not None
            x, dx = (ref.view(self.scores) for ref in (bottoms[0].data, bottoms[0].diff))
            ctc_loss_backward(rec, x, self.targets, self.paths, tops[0].diff, dx, self.own().blank_label)
