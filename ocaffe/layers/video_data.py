"""VideoData: frames of videos and their labels."""
from __future__ import annotations

from collections.abc import Sequence

from ocaffe.data.source import key_of, upload
from ocaffe.data.sources.video import VideoSource
from ocaffe.ir.graph import Blob
from ocaffe.ir.recorder import Recorder
from ocaffe.ir.tensor import Shape
from ocaffe.layers.base import Layer, register
from ocaffe.layers.data import transform_of

CROPS = frozenset({"is_flow", "multi_scale", "fix_crop", "more_fix_crop", "max_distort", "scale_ratios"})


@register("VideoData")
class VideoData(Layer):
    """Frames of videos as channels: num_segments times new_length frames of each video, from folders of image files (TSN), and labels N x 1 x 1 x 1.

    A line of `source` is a folder, its number of frames, and the label. name_pattern names a frame by its number, from 1 on: "image_%04d.jpg", and with
    modality FLOW two files: "flow_%c_%04d.jpg" with x and y for %c. In TRAIN a segment's frames start at random, else they are in its middle.

    In TRAIN, multi_scale, fix_crop and more_fix_crop choose the sizes and places of crops, which are resized to crop_size. With is_flow, mirrored
    samples have 255 - value in the channels of x. Source: the VideoData of temporal-segment-networks, with length_first, step and rand_step of its
    branch 3D. SSD's VideoData, which decodes a video file or reads a camera, is refused.
    """

    bottoms, tops = 0, (1, 2)
    origin = "TSN, SSD"
    own_fields = frozenset({*(f"TransformationParameter.{name}" for name in CROPS), "VideoDataParameter.video_type", "VideoDataParameter.video_file"})
    source: VideoSource | None = None

    def infer(self, *bottoms: Shape) -> Sequence[Shape]:
        if self.source is None:
            p = self.param.transform_param
            transform = transform_of(self, CROPS)
            self.source = VideoSource(self.own(), p, transform, len(self.param.top) > 1, place=self.place, layer=self.title)
            self.source.key = key_of(self.seed, self.param.name)
            self.notes = self.source.notes
        return self.source.shapes()

    def forward(self, rec: Recorder, bottoms: list[Blob], tops: list[Blob]) -> None:
        assert self.source is not None
        layout = self.source.layout()
        staging = upload(rec, self.source, layout.nbytes)
        self.source.transform.record(rec, staging, layout, tops[0].data, tops[1].data if len(tops) > 1 else None)
