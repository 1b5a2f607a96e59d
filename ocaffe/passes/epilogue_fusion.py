"""Epilogue fusion: operations that follow a product become the last step of its kernel.

They are factors and offsets per channel (BatchNorm with running statistics, Scale), a residual sum, a ReLU, a Clip. The kernel then writes
activation(factor * product + offset + previous content), if no other launch reads the values between (kernels/matmul/epilogue.h).
"""
from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from ocaffe.ir.kernel import BIAS, Access
from ocaffe.ir.launch import NO_ACTIVATION, Bias, Epilogue, Launch, Schedule
from ocaffe.ir.tensor import Ref, Role
from ocaffe.kernels.expression.expression import Affine, Bounded, ChannelAffine, Pointwise, Relu, ResidualSum, factors_and_offsets


def fuse_epilogues(schedule: Schedule) -> Schedule:
    """The schedule without the launches that products compute in their epilogues.

    Residual sums are left alone where backward follows: the overwritten summand could not be recomputed. And a product that is computed in steps would add
    in another order, which a memory limit must not change.
    """
    return _Epilogues(schedule, not any(launch.phase == "backward" for launch in schedule)).fused()


class _Epilogues:
    """One walk over the schedule. Each expression joins the product that computes its input, if it can."""

    def __init__(self, schedule: Schedule, sums: bool) -> None:
        self.schedule, self.sums = schedule, sums
        self.writers: dict[Ref, list[int]] = defaultdict(list)
        self.readers: dict[Ref, list[int]] = defaultdict(list)
        for step, launch in enumerate(schedule):
            for root in {ref.root for ref in launch.writes}:
                self.writers[root].append(step)
            for root in {ref.root for ref in launch.reads}:
                self.readers[root].append(step)
        self.products: dict[int, list[int]] = {}  # first step of a product -> all its steps, each of which writes another region of its result
        for steps in self.writers.values():
            kinds = {(schedule[step].layer, schedule[step].phase, schedule[step].kernel.name, schedule[step].epilogue) for step in steps}
            if len(steps) > 1 and len(kinds) == 1 and schedule[steps[0]].epilogue is not None:
                self.products[steps[0]] = steps
        self.affine: dict[int, list[Affine]] = defaultdict(list)  # first step of a product -> its factors and offsets, in order
        self.summed: dict[Ref, int] = {}  # root of a summand -> the step of the product that adds to it
        self.gone: set[int] = set()

    def fused(self) -> Schedule:
        for step, launch in enumerate(self.schedule):
            expression = launch.lower
            if not isinstance(expression, Pointwise) or launch.kernel.can.side_effect:
                continue
            means = expression.means
            if isinstance(means, Relu):
                self._activation(step, launch, (means.slope,))
            elif isinstance(means, Bounded):
                self._activation(step, launch, (NO_ACTIVATION[0], means.lower, means.upper))
            elif isinstance(means, ChannelAffine):
                self._affine(step, launch, expression)
            elif isinstance(means, ResidualSum) and self.sums:
                self._sum(step, launch)
        result: Schedule = []
        for step, launch in enumerate(self.schedule):
            if step in self.affine:
                result.append(self._table(step, launch))
            if step not in self.gone:
                result.append(launch)
        return result

    def _product(self, x: Ref, y: Ref) -> int | None:
        """The step of the product that computes x, or of its first step if it has several; None if that product cannot write y instead of x."""
        if x.base is not None or x.persist or x.role is not Role.ACTIVATION or x.shape != y.shape or not self.writers[x]:
            return None
        step, *others = self.writers[x]
        if self._steps(step) != [step, *others] or len(set(self.readers[x]) - set(others)) != 1:
            return None
        launch = self.schedule[step]
        if launch.epilogue is None or launch.call is None or step in self.gone:
            return None
        activation = (launch.scalar(index) for index in launch.epilogue.activation)
        return step if all(given == none for given, none in zip(activation, NO_ACTIVATION)) else None

    def _steps(self, step: int) -> list[int]:
        return self.products.get(step, [step])

    def _accumulates(self, step: int) -> bool:
        launch = self.schedule[step]
        assert launch.epilogue is not None
        return bool(launch.scalar(launch.epilogue.accumulate))

    def _set(self, step: int, index: Callable[[Epilogue], int], value: np.generic) -> None:
        """Set one scalar of a product's epilogue, in all launches of the product."""
        for launch in (self.schedule[each] for each in self._steps(step)):
            assert launch.epilogue is not None
            launch.set_scalar(index(launch.epilogue), value)

    def _writes(self, step: int, x: Ref, y: Ref, access: Access = Access.WRITE) -> None:
        """Let the product write y instead of x."""
        for launch in (self.schedule[each] for each in self._steps(step)):
            launch.operands = [
                replace(op, ref=_same_region(op.ref, x, y), access=access if access is Access.MODIFY else op.access) if op.ref.root is x else op
                for op in launch.operands
            ]
        self.writers[y.root] = sorted({*self._steps(step), *self.writers[y.root]} - self.gone)

    def _activation(self, step: int, launch: Launch, activation: Sequence[float]) -> None:
        x, y = launch.reads[0], launch.writes[0]
        product, summed = self._product(x, y), self.summed.get(x.root)
        if product is not None and self._knows(product, activation):
            self._writes(product, x, y)
        elif product is None and summed is not None and self._knows(summed, activation) and self._ends(x.root, step, summed) and _free(y):
            product = summed
            for each in (self.schedule[each] for each in self._steps(product)):
                each.operands = [replace(op, ref=_same_region(op.ref, x, y)) if x in (op.ref, op.ref.base) else op for op in each.operands]
            self._lay(y, x.root)
        else:
            return
        if len(activation) > 1:
            self._bound(product)
        for number, value in enumerate(activation):
            self._set(product, lambda epilogue, number=number: epilogue.activation[number], np.float32(value))  # type: ignore[misc]
        self.gone.add(step)

    def _knows(self, step: int, activation: Sequence[float]) -> bool:
        """Whether a product's epilogue has all these scalars."""
        launch = self.schedule[step]
        assert launch.epilogue is not None
        return len(activation) <= len(launch.epilogue.activation) or launch.epilogue.bounds

    def _bound(self, step: int) -> None:
        """Give a product's epilogue scalars for bounds, if it has none."""
        for launch in (self.schedule[each] for each in self._steps(step)):
            epilogue = launch.epilogue
            assert epilogue is not None and launch.call is not None
            if len(epilogue.activation) < len(NO_ACTIVATION):
                first = len(launch.call.scalars)
                bounds = NO_ACTIVATION[1:]
                launch.define(*map(np.float32, bounds), BOUNDS=1)
                launch.epilogue = epilogue._replace(activation=(*epilogue.activation, *range(first, first + len(bounds))))

    def _ends(self, root: Ref, step: int, product: int) -> bool:
        """Whether `step` is the only launch that reads `root` after `product`."""
        return all(other == step or other < product for other in self.readers[root])

    def _affine(self, step: int, launch: Launch, expression: Pointwise) -> None:
        x, y = launch.reads[0], launch.writes[0]
        product = self._product(x, y)
        if product is None or self._accumulates(product) or len(x.shape) < 2:
            return
        written = next(op.ref for op in self.schedule[product].operands if op.ref.root is x)
        affine = expression.per_channel(launch.operands, x.shape[1])
        made = max((max(self.writers[ref.root], default=-1) for ref in launch.reads[1:]), default=-1)
        if affine is None or written.shape != x.shape or made >= product:
            return
        self.affine[product].append(affine)
        self.gone.add(step)
        self._writes(product, x, y)

    def _sum(self, step: int, launch: Launch) -> None:
        """Let the later of the two products add to the other summand, in its memory."""
        y = launch.writes[0]
        if not _free(y) or launch.operands[-1].access is not Access.WRITE:
            return
        pairs = [(self._product(x, y), x, z) for x, z in (launch.reads, launch.reads[::-1])]
        for product, x, z in sorted(pairs, key=lambda pair: -(pair[0] or 0)):
            if product is not None and not self._accumulates(product) and self._overwritable(z, y, product, step):
                self._set(product, lambda epilogue: epilogue.accumulate, np.int32(1))
                self.gone.add(step)
                self._writes(product, x, y, Access.MODIFY)
                self._lay(y, z.root)
                self.summed[z.root] = product
                return

    def _lay(self, y: Ref, root: Ref) -> None:
        """Make y a view of `root` that reuses its storage."""
        y.base, y.offset, y.stride, y.reuses_storage = root, 0, None, True
        self.writers[root] = sorted({*self.writers[root], *self.writers.pop(y)} - self.gone)
        self.readers[root] = sorted({*self.readers[root], *self.readers.pop(y, [])} - self.gone)

    def _overwritable(self, z: Ref, y: Ref, product: int, step: int) -> bool:
        """Whether z is complete before `product`, which does not read it, and no launch but `step` reads it afterwards."""
        root = z.root
        return (
            root.role is Role.ACTIVATION and not root.persist and root.slots == 1
            and z.is_dense and z.count == root.count == y.count and z.dtype == root.dtype == y.dtype
            and bool(self.writers[root]) and max(self.writers[root]) < product
            and all(other == step or other < product for other in self.readers[root])
        )  # fmt: skip

    def _table(self, step: int, product: Launch) -> Launch:
        """The launch, before the product, that computes the table of offsets and factors."""
        assert product.epilogue is not None
        mode = product.scalar(product.epilogue.bias)
        table, launch = factors_and_offsets(product, self.affine[step], product[BIAS] if mode else None)
        for each in (self.schedule[each] for each in self._steps(step)):
            each.put(BIAS, table)
        self._set(step, lambda epilogue: epilogue.bias, np.int32(Bias.TABLE))
        return launch


def _same_region(ref: Ref, x: Ref, y: Ref) -> Ref:
    """The region of y that corresponds to the region `ref` of x: all of it, or the samples of a microbatch."""
    offset = ref.root_offset - x.root_offset
    if ref.shape == y.shape and not offset:
        return y
    return y.view(ref.shape, offset, None if ref.is_dense else ref.batch_stride)


def _free(y: Ref) -> bool:
    """Whether y may become a view of another value."""
    return y.base is None and not y.persist and y.role is Role.ACTIVATION and y.slots == 1
