"""AnnotatedData: images with boxes for training SSD."""
from __future__ import annotations

from collections.abc import Sequence

from ocaffe.data.source import key_of, upload
from ocaffe.data.sources.annotated import TRANSFORM_FIELDS, AnnotatedSource
from ocaffe.ir.graph import Blob
from ocaffe.ir.recorder import Recorder
from ocaffe.ir.tensor import Shape
from ocaffe.layers.base import Layer, register
from ocaffe.layers.data import transform_of


@register("AnnotatedData")
class AnnotatedData(Layer):
    """Images and their object boxes from a database, augmented together: distort, expand, batch samplers, resize, noise, crop, mirror.

    The second top has one row per box of the batch: image, label, instance, xmin, ymin, xmax, ymax, difficult. Its shape changes with the batch;
    a batch without boxes has one row of -1, and batches with more than 16 boxes may end with such rows. SSD compresses encoded images again between the
    steps; this layer does not.

    Of ocaffe, in TRAIN: `mosaic` shows a window of four images in a square, and `mixup` adds another image with a random share. The boxes of all of them
    remain. The other images are random records of the database, each with its own changes.

    Of MobileNet-YOLO: each batch draws one of several resize_param, with the probability prob. With yolo_data_type 1, the second top has N x 1 x 300 x 5
    boxes: class from 0 on, centre x, centre y, width, height, then zeros. Difficult boxes are left out unless train_diffcult. Without batch_sampler, a
    random window leaves out at most the share yolo_data_jitter of each side.
    """

    bottoms, tops = 0, (1, 2)
    origin = "SSD, MobileNet-YOLO"
    source: AnnotatedSource | None = None

    def infer(self, *bottoms: Shape) -> Sequence[Shape]:
        if self.source is None:
            p = self.param
            for field in ("single_class", "seg_scales"):
                fact = f"annotated_data_param {{ {field} }} (MobileNet-YOLO): no public source defines its effect on AnnotatedData"
                self.check(not self.own().HasField(field), fact, f"remove {field} from annotated_data_param")
            self.source = AnnotatedSource(
                p.data_param,
                self.own(),
                p.transform_param,
                transform_of(self, TRANSFORM_FIELDS),
                len(p.top) > 1,
                place=self.place,
                layer=self.title,
            )
            self.source.key = key_of(self.seed, p.name)
            self.notes = self.source.notes
        return self.source.shapes()

    def forward(self, rec: Recorder, bottoms: list[Blob], tops: list[Blob]) -> None:
        assert self.source is not None
        layout, rows = self.source.layout([top.shape for top in tops])
        staging = upload(rec, self.source, rows.nbytes if rows else layout.nbytes)
        label = tops[1].data if len(tops) > 1 and rows is None else None
        self.source.transform.record(rec, staging, layout, tops[0].data, label)
        if rows is not None:
            rows.record(rec, staging, [tops[1].data])
