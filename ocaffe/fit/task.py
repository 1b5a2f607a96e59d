"""Kinds of data that nets learn: the interface of all tasks, and of the result of a test."""
from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from typing import Any, ClassVar, NamedTuple

from ocaffe.cl.device import Device
from ocaffe.errors import Error
from ocaffe.fit.page import Data, Group
from ocaffe.fit.see import Seen
from ocaffe.ir.target import Target
from ocaffe.zoo.project import Choices, Project, check_begin


class Wanted(NamedTuple):
    """The inputs of the user. `data`: a folder or file; `seen`: its kind. `out`: the folder for all files. `net`: of the zoo, or a file, '' for a choice.

    `choices` are the flags. `target`: the device of the training. `again`: a killed process has left its files in `out`.
    """

    data: str
    seen: Seen
    out: str
    net: str
    choices: Choices
    target: Target
    again: bool


class Choice(NamedTuple):
    """A net that the task has chosen, and the reason as a sentence."""

    net: str
    why: str


class Result(ABC):
    """The result of a test, on images that were not trained on."""

    @abstractmethod
    def record(self) -> dict[str, Any]:
        """Return the figures for results.json."""

    @abstractmethod
    def lines(self) -> Iterator[str]:
        """Yield the lines of the table by class, and of the most frequent mistakes."""

    @abstractmethod
    def sentence(self) -> str:
        """Return the score in one sentence that can go on, such as "accuracy 98.0 % on 200 images"."""

    @abstractmethod
    def pictures(self) -> dict[str, bytes]:
        """Return the contents of pictures, by their names in OUT. Many of one kind are in a folder."""

    def groups(self) -> Sequence[Group]:
        """Return images for the page, beside the pictures in folders."""
        return []


class Task(ABC):
    """A kind of data, with the nets that learn it. `name`: as --task has it. `score`: the measure that chooses the best snapshot, for people.

    `predict_flags`, `test_flags`: of the commands that are printed at the end.
    """

    name: ClassVar[str]
    score: ClassVar[str]
    predict_flags: ClassVar[tuple[str, ...]] = ()
    test_flags: ClassVar[tuple[str, ...]] = ()

    @abstractmethod
    def project(self, wanted: Wanted) -> Project:
        """Find the data, and write the files of the training. Raise Error, and then write nothing."""

    def prepare(self, project: Project, device: Device) -> str:
        """Do what precedes the training and needs the device. Return a line about it for the user, '' if there is nothing to do. Raise Error."""
        return ""

    @abstractmethod
    def test(self, project: Project, weights: str, device: Device) -> Result:
        """Return the result of the weights on the images for testing."""

    def data(self, project: Project) -> Data:
        """Return what the page says about the data."""
        return Data()

    def check_net(self, net: str, fits: Callable[[str], bool], nets: str) -> None:
        """Raise Error if the user gave a net that does not learn this. `fits` judges a net, `nets` names some that fit."""
        if net and not fits(net):
            raise Error(f"--net is {net}, which does not learn {self.name}", place="ocaffe fit", fix=f"leave it out, or give another net: --net {nets}")

    def check(self, wanted: Wanted, fits: Callable[[str], bool], nets: str) -> None:
        """Raise Error, before data are converted, if OUT has a training or a link, or as `check_net` does."""
        check_begin(wanted.out, wanted.again)
        self.check_net(wanted.net, fits, nets)

    def check_parts(self, wanted: Wanted) -> None:
        """Raise Error for a --val beside a data set that has its parts within it."""
        if wanted.choices.val:
            fact = f"--val is {wanted.choices.val}, and the parts of {self.name} are in the data set"
            raise Error(fact, place="ocaffe fit", fix="leave it out; without a part for testing --test 0.2 divides the images")
