"""CTCGreedyDecoder: the best path of connectionist temporal classification, and its accuracy."""
from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from ocaffe.errors import shape_text
from ocaffe.ir.graph import Blob
from ocaffe.ir.recorder import Recorder
from ocaffe.ir.tensor import Shape
from ocaffe.kernels.expression.expression import pointwise
from ocaffe.kernels.loss.ctc import decode, sequence_accuracy, targets
from ocaffe.layers.base import Layer, register
from ocaffe.onnx.graph import OnnxGraph


@register("CTCGreedyDecoder")
class CTCGreedyDecoder(Layer):
    """The best class of each of T steps without blanks and repetitions, as N x T x 1 x 1 with -1 after the end, for scores T x N x C.

    One bottom: the top has the sequences. Scores and labels N x L (blanks are left out, a negative label ends the sample): the top (1 x 2 x 1 x 1) has
    the mean of 1 - edit distance / larger length, and the share of samples without an error. The blank is ctc_loss_param { blank_label }, default 0.

    With ctc_decoder_param, or three bottoms, or several tops: bottom 1 has sequence indicators (0 ends a sequence), bottom 2 labels T x N. The tops
    are the sequences; optionally with two bottoms, or as the second of three tops, the negated sums of the scores (N x 1 x 1 x 1); and with three
    bottoms and several tops, the first of the two accuracies (1 x 1 x 1 x 1). blank_index -1 is the last class.

    Sources: dlunion/CC4.0 at 1225991 (first form), ChWick/caffe at 1fed3ec and openvinotoolkit/training_toolbox_caffe at 0796681 (second form; the
    sequences are N x T as in the latter, the accuracy is that of the former), all src/caffe/layers/ctc_decoder_layer.cpp.
    """

    origin = "text recognition forks, OpenVINO"
    message = "ctc_decoder_param"
    bottoms = (1, 3)
    tops = (1, 3)
    has_backward = False

    def form(self, steps: int, samples: int) -> str:
        """Return the remedy for bottoms of wrong shapes."""
        if not self.indicated:
            return f"give labels of {samples} x L as bottom 1; for indicators, {steps} x {samples}, write ctc_decoder_param {{ }}"
        return f"give {steps} x {samples} as each bottom after the scores: indicators, then labels"

    def infer(self, *bottoms: Shape) -> Sequence[Shape]:
        p, x, tops = self.own(), bottoms[0], len(self.param.top)
        self.check(
            len(x) >= 3 and set(x[3:]) <= {1},
            f"bottom 0 is {shape_text(x)}, it must be T x N x C: time steps, samples, classes",
            "add a Reshape or Permute layer that makes T x N x C",
        )
        steps, samples, classes = self.scores = x[:3]
        self.indicated = len(bottoms) > 1 and (self.param.HasField("ctc_decoder_param") or len(bottoms) == 3 or tops > 1)
        rows, values = ((steps, samples), steps * samples) if self.indicated else ((samples,), None)
        fits = all(shape[: len(rows)] == rows and values in (None, math.prod(shape)) for shape in bottoms[1:])
        self.check(fits, f"bottoms are {', '.join(shape_text(shape) for shape in bottoms)}", self.form(steps, samples))
        most = len(bottoms) if self.indicated else 1
        self.check(
            tops <= most,
            f"{tops} tops are given for {len(bottoms)} bottoms",
            f"leave {most} top{'s' * (most > 1)}, or give the indicators, and then the labels, as bottoms 1 and 2",
        )
        field = "blank_index" if self.param.HasField("ctc_decoder_param") else "blank_label of ctc_loss_param"
        blank = p.blank_index if self.param.HasField("ctc_decoder_param") else self.param.ctc_loss_param.blank_label
        self.check(
            -1 <= blank < classes,
            f"{field} is {blank}, bottom 0 has {classes} classes",
            f"set {field} to a class from 0 to {classes - 1}, or to -1 for the last one",
        )
        self.blank = blank if blank >= 0 else classes - 1
        sequences, score, accuracy = (samples, steps, 1, 1), (samples, 1, 1, 1), (1, 1, 1, 1)
        if len(bottoms) == 2 and not self.indicated:
            return [(1, 2, 1, 1)]
        return [sequences, *{(2, 2): [score], (3, 2): [accuracy], (3, 3): [score, accuracy]}.get((len(bottoms), tops), [])]

    def forward(self, rec: Recorder, bottoms: list[Blob], tops: list[Blob]) -> None:
        steps, samples, classes = self.scores
        labels = bottoms[-1] if len(bottoms) == (3 if self.indicated else 2) else None
        grid = (steps, samples)
        indicators = bottoms[1].data.view(grid) if self.indicated else None
        shown = self.indicated or labels is None
        sequences = tops[0].data.view((samples, steps)) if shown else rec.scratch("sequences", (samples, steps))
        decoded = decode(rec, bottoms[0].data.view(self.scores), indicators, sequences, self.blank, self.own().ctc_merge_repeated)
        if self.indicated and len(tops) == len(bottoms):
            pointwise(rec, "y0 = x0", reads=[decoded.totals], writes=[tops[1].data.view((samples,))])
        if labels is not None and (len(tops) > 1 or not shown):
            given = labels.data.view(grid if self.indicated else (samples, labels.count // samples))
            of = targets(rec, [indicators, given] if indicators is not None else [given], steps, classes, self.blank)
            sequence_accuracy(rec, decoded, of, tops[-1].data)

    def onnx(self, graph: OnnxGraph, bottoms: list[Blob], tops: list[Blob]) -> None:
        """Write the sequences of one bottom. The place of a label is the number of labels up to its step; sums over all steps put it there.

        These are products and sums of small whole numbers, because runtimes lack scatters and cumulated sums more often.
        """
        if len(bottoms) > 1:
            raise graph.refused("with sequence indicators or labels it has no ONNX operators", "remove the other bottoms of this layer")
        steps = graph.fixed(bottoms[0], 0)
        scores = graph.reshape(bottoms[0], (*graph.shape(bottoms[0])[:2], self.scores[2]))
        best = graph.cast(graph.op("ArgMax", scores, axis=2, keepdims=0), np.float32)  # T x N
        kept = self._differs(graph, best, float(self.blank))
        if self.own().ctc_merge_repeated and steps > 1:
            repeated = self._differs(graph, graph.part(best, 0, 1, steps), graph.part(best, 0, 0, steps - 1))
            first = graph.op("Add", graph.op("Mul", graph.part(best, 0, 0, 1), 0.0), 1.0)
            kept = graph.op("Mul", kept, graph.op("Concat", first, repeated, axis=0))
        place = graph.op("MatMul", np.tri(steps, dtype=np.float32), kept)  # of each label, from 1 on
        places = np.arange(1, 1 + steps, dtype=np.float32).reshape(-1, 1, 1)
        here = graph.op("Sub", 1.0, self._differs(graph, graph.op("Unsqueeze", place, [0]), places))  # places x T x N
        value = graph.op("Mul", kept, graph.op("Add", best, 1.0))
        sequences = graph.reduce("ReduceSum", graph.op("Mul", here, value), [1], keepdims=False)
        graph.reshape(graph.op("Transpose", graph.op("Sub", sequences, 1.0), perm=[1, 0]), to=tops[0])

    @staticmethod
    def _differs(graph: OnnxGraph, a: str, b: str | float | np.ndarray) -> str:
        """Write 1 where whole numbers differ, else 0."""
        return graph.op("Clip", graph.op("Abs", graph.op("Sub", a, b)), 0.0, 1.0)
