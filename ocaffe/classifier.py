"""`Classifier`: computes class scores of images."""
from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import numpy as np

from ocaffe.cl.device import Device
from ocaffe.errors import WrongValue, shape_text
from ocaffe.io import centre, resize_image
from ocaffe.io import oversample as ten_crops
from ocaffe.tools.recognise import ImageNet

CROPS = 10  # crops per image of `oversample`


class Classifier(ImageNet):
    """A net that classifies images: `Classifier(deploy, weights, image_dims=(256, 256), mean=..., raw_scale=255, channel_swap=(2, 1, 0))`."""

    def __init__(
        self,
        model_file: str,
        pretrained_file: str,
        image_dims: Sequence[int] | None = None,
        mean: np.ndarray | None = None,
        input_scale: float | None = None,
        raw_scale: float | None = None,
        channel_swap: Sequence[int] | None = None,
        *,
        keep: Iterable[str] | None = None,
        device: Device | str | None = None,
    ) -> None:
        """Load a net and set the preprocessing of images.

        `image_dims`: height and width to which images are resized before they are cropped. The default is the size of the net's input.
        `mean`: channels x height x width, or a value per channel.
        `raw_scale`: factor before the mean is subtracted; `input_scale`: factor after it.
        `channel_swap`: (2, 1, 0) converts RGB to BGR.
        `keep`, `device`: as for Net.

        Raises Error for a net without an image input.
        """
        super().__init__(
            model_file, pretrained_file, mean=mean, input_scale=input_scale, raw_scale=raw_scale, channel_swap=channel_swap, keep=keep, device=device
        )
        self.image_dims = np.array(self.size if image_dims is None else image_dims)

    def predict(self, inputs: Iterable[np.ndarray], oversample: bool = True) -> np.ndarray:
        """Return the scores of the net's first output for each image (height x width x channels): n x classes.

        With `oversample` the result is the mean over ten crops (four corners and the centre, each also mirrored), else that of the central crop.

        Raises Error for images with another number of channels, and if image_dims are smaller than the net's input.
        """

        def crops() -> Iterator[np.ndarray]:
            for image in inputs:
                resized = resize_image(image, (int(self.image_dims[0]), int(self.image_dims[1])))
                if oversample:
                    yield from ten_crops([resized], self.size)
                else:
                    y, x = centre(resized.shape, self.size)
                    if min(y, x) < 0:
                        fact = f"the net takes {shape_text(self.size)}, the images become {shape_text(resized.shape[:2])}"
                        raise WrongValue(fact, fix=f"give image_dims (--images_dim) of at least {shape_text(self.size)}")
                    yield resized[y : y + self.size[0], x : x + self.size[1]]

        scores = self.scores(crops())
        return scores.reshape(len(scores) // CROPS, CROPS, -1).mean(1) if oversample else scores
