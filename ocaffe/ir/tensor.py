"""Ref: a virtual tensor that the planner will place in memory. Plain data; nothing here touches a device."""
from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple

import numpy as np

Shape = tuple[int, ...]
FLOAT = np.dtype(np.float32)
BFLOAT = np.dtype(np.uint16)  # numpy has no bfloat16, the upper half of a float (ocaffe/passes/bf16.py)


class Role(Enum):
    """The purpose of a Ref. It decides whether the planner may recycle its memory."""

    INPUT = "input"  # written from outside before a run: Input blobs, diffs that the user sets
    ACTIVATION = "activation"
    DIFF = "diff"
    PARAMETER = "parameter"
    GRADIENT = "gradient"
    HISTORY = "history"
    SAVED = "saved"  # written in forward for backward of the same layer
    SCRATCH = "scratch"
    OUTPUT = "output"  # read by the host after a run: losses and net outputs
    STATE = "state"  # survives from one run to the next: running statistics, hidden state
    STAGING = "staging"  # a batch on its way from the host, one copy per slot of the ring
    CONSTANT = "constant"
    HOST = "host"  # a value in the host's memory, between a BeginStore and an EndFetch

    __hash__ = object.__hash__  # members are unique. Enum's own hash is a function of Python, and a pass of a small net looks roles up 20 times.


class Layout(NamedTuple):
    """An order of the elements of an image in memory: N, C / channels, spatial axes, channels. Blocks of one channel are Caffe's order."""

    channels: int  # of a block

    def to_planes(self, array: np.ndarray) -> np.ndarray:
        """Values that lie in this layout, in Caffe's order."""
        n, c, *spatial = array.shape
        return np.moveaxis(array.reshape(n, c // self.channels, *spatial, self.channels), -1, 2).reshape(array.shape)

    def from_planes(self, array: np.ndarray) -> np.ndarray:
        """Values in Caffe's order, as they lie in this layout."""
        n, c, *spatial = array.shape
        return np.moveaxis(array.reshape(n, c // self.channels, self.channels, *spatial), 2, -1).reshape(array.shape)


PLANES = Layout(1)
BLOCK = 8  # channels of a block on GPUs: 16 bytes of bfloat16, or 32 of float
BLOCKS_GPU = Layout(BLOCK)
BF16_ROLES = frozenset({Role.ACTIVATION, Role.DIFF})  # roles whose Refs may be bfloat16 in memory
PERSISTENT = frozenset({Role.INPUT, Role.PARAMETER, Role.HISTORY, Role.OUTPUT, Role.STATE, Role.STAGING, Role.CONSTANT})
@dataclass(eq=False)
class Ref:
    """A virtual tensor. A view names its `base` and an `offset` in elements; `stride` is the distance between two samples in elements.

    `value`: the content of a persistent Ref before the first run; a scalar fills it. `persist`: the planner gives a recyclable Ref memory of its own, as
    for blobs that a script reads and gradients that are summed over several passes. `slots` > 1 makes a ring: run number i uses copy i % slots.
    `layout`, of a root: the order of its elements, which ocaffe/passes/layouts.py chooses. The shape stays N, C, spatial axes.
    """

    name: str
    shape: Shape
    role: Role
    dtype: np.dtype = FLOAT
    base: Ref | None = None
    offset: int = 0
    stride: int | None = None
    value: np.ndarray | float | None = None
    persist: bool = False
    slots: int = 1
    reuses_storage: bool = False  # of a view: writing it kills the base's value
    layout: Layout = PLANES

    @property
    def blocked(self) -> bool:
        """Whether the channels of a root are in blocks."""
        return self.layout != PLANES

    @property
    def count(self) -> int:
        return math.prod(self.shape)

    @property
    def nbytes(self) -> int:
        return self.count * self.dtype.itemsize

    @property
    def in_bf16(self) -> bool:
        """Whether it is a blob or diff that is bfloat16 in memory."""
        return self.dtype == BFLOAT and self.role in BF16_ROLES

    @property
    def root(self) -> Ref:
        """The Ref that owns the storage."""
        ref = self
        while ref.base is not None:
            ref = ref.base
        return ref

    @property
    def reuses_root(self) -> bool:
        """Whether writing this view kills a value of its root."""
        return self.base is not None and (self.reuses_storage or self.base.reuses_root)

    @property
    def root_offset(self) -> int:
        """Offset in elements from the start of the root."""
        return self.offset + (self.base.root_offset if self.base is not None else 0)

    @property
    def dense_stride(self) -> int:
        return math.prod(self.shape[1:])

    @property
    def batch_stride(self) -> int:
        """Distance in elements between consecutive samples; a view of the same batch inherits its base's."""
        if self.stride is not None:
            return self.stride
        if self.base is not None and not self.base.is_dense:
            assert self.shape[:1] == self.base.shape[:1], f"{self} is a view of other samples than the strided {self.base}"
            return self.base.batch_stride
        return self.dense_stride

    @property
    def root_end(self) -> int:
        """End of its last element in the root, in elements. For some samples of a strided base it is the end of the base."""
        if self.base is not None and self.stride is None and not self.base.is_dense and self.shape[:1] != self.base.shape[:1]:
            return self.base.root_end
        return self.root_offset + ((self.shape[0] - 1) * self.batch_stride + self.dense_stride if self.shape else 1)

    def overlaps(self, other: Ref) -> bool:
        """Whether writing one may change the other: their extents in one root overlap."""
        return self.root is other.root and self.root_offset < other.root_end and other.root_offset < self.root_end

    @property
    def is_dense(self) -> bool:
        return not self.shape or self.shape[0] == 1 or self.batch_stride == self.dense_stride

    @property
    def persistent(self) -> bool:
        root = self.root
        return root.persist or root.role in PERSISTENT

    def follows(self, root: Ref) -> bool:
        """Whether this view of `root` stays right if `root` gets another stride between samples."""
        ref = self
        while ref is not root:
            if ref.stride is not None or ref.shape[:1] != root.shape[:1] or ref.base is None:
                return False
            ref = ref.base
        return True

    def view(self, shape: Shape, offset: int = 0, stride: int | None = None, name: str | None = None) -> Ref:
        """The same memory seen with another shape, from `offset` elements on."""
        return Ref(name or self.name, tuple(shape), self.role, self.dtype, base=self, offset=offset, stride=stride)

    def on(self, moved: Mapping[Ref, Ref]) -> Ref:
        """The same view of the root that replaces this one's in `moved`; itself, if there is none."""
        root = moved.get(self.root)
        if root is None:
            return self
        if self.base is None:
            return root
        stride = None if self.is_dense else self.batch_stride  # it may inherit the stride of its base
        return Ref(self.name, self.shape, self.role, self.dtype, base=root, offset=self.root_offset, stride=stride)

    def narrow(self) -> None:
        """Change its type and that of its bases to bfloat16."""
        ref: Ref | None = self
        while ref is not None:
            ref.dtype = BFLOAT
            ref = ref.base

    def __repr__(self) -> str:
        return f"<{self.role.value} {self.name} {'x'.join(map(str, self.shape)) or 'scalar'}>"


def widened(array: np.ndarray) -> np.ndarray:
    """bfloat16 values as floats."""
    return (array.astype(np.uint32) << 16).view(np.float32)


def has_whole_blocks(ref: Ref, layout: Layout | None = None) -> bool:
    """Whether a view of an image in blocks has whole blocks of all or some samples, so that it is an image in blocks itself. `layout`: default the root's."""
    root = ref.root
    block, pixels = (layout or root.layout).channels, math.prod(root.shape[2:])
    if ref is root or (ref.shape == root.shape and not ref.root_offset):
        return True
    same = len(ref.shape) > 2 and math.prod(ref.shape[2:]) == pixels and ref.dtype == root.dtype
    return same and ref.shape[1] % block == 0 and ref.root_offset % (block * pixels) == 0


def split_axes(shape: Sequence[int], axis: int, end: int | None = None) -> tuple[int, int, int]:
    """Sizes before, from `axis` up to `end` (default axis + 1), and after: the (outer, middle, inner) form of most layers."""
    end = axis + 1 if end is None else end
    return math.prod(shape[:axis]), math.prod(shape[axis:end]), math.prod(shape[end:])
