"""Expressions, compared with numpy in float64, on every device, with the kernels of both device classes."""
from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from ocaffe.ir.launch import Access
from ocaffe.ir.recorder import STEP, Recorder
from ocaffe.ir.target import Target
from ocaffe.ir.tensor import Ref, Role, Shape
from ocaffe.kernels.expression.expression import pointwise, reduce
from tests.harness import execute, of_kind

pytestmark = pytest.mark.quick

SHAPES: list[Shape] = [(), (1,), (7,), (1, 1, 3), (64, 3), (2, 3, 4, 5), (3, 5, 7, 7), (4, 1000), (2, 3, 33, 31), (40000,), (3, 2, 64, 65), (200, 2, 2)]


@pytest.fixture(params=["cpu", "gpu"])
def kind(request: pytest.FixtureRequest) -> str:
    return request.param


def recorder(device: Any, kind: str, phase: str = "forward") -> Recorder:
    rec = Recorder(of_kind(device.target, kind), train=True, seed=5)
    rec.enter("layer", phase)
    return rec


def tensor(name: str, shape: Shape, strided: bool = False, role: Role = Role.ACTIVATION, dtype: Any = np.float32) -> Ref:
    if not strided or not shape:
        return Ref(name, shape, role, np.dtype(dtype))
    stride = math.prod(shape[1:]) + 3
    return Ref(f"{name}.root", (shape[0] * stride + 9,), role, np.dtype(dtype)).view(shape, 5, stride, name)


def close(actual: np.ndarray, expected: np.ndarray, tolerance: float = 1e-5) -> None:
    assert actual.shape == expected.shape
    scale = max(float(np.abs(expected).max(initial=0)), 1e-30)
    assert float(np.abs(actual.astype(np.float64) - expected).max(initial=0)) <= tolerance * scale


def draw(shape: Shape, seed: int = 0) -> np.ndarray:
    return np.random.default_rng([seed, *shape]).standard_normal(shape).astype(np.float32)


class Checks:
    """Feeds and expected results of several launches that run together, because building kernels takes most of the time."""

    def __init__(self) -> None:
        self.feeds: dict[Ref, np.ndarray] = {}
        self.expected: list[tuple[Ref, np.ndarray, float]] = []

    def feed(self, ref: Ref, values: np.ndarray) -> np.ndarray:
        """Set the value of a Ref and return it in float64."""
        self.feeds[ref] = values
        return values.astype(np.float64)

    def expect(self, ref: Ref, values: np.ndarray, tolerance: float = 1e-5) -> None:
        self.expected.append((ref, np.asarray(values), tolerance))

    def run(self, rec: Recorder, device: Any) -> None:
        got = execute(rec, device.context, self.feeds, [ref for ref, _, _ in self.expected])
        for (ref, expected, tolerance), values in zip(self.expected, got):
            assert values.dtype == ref.dtype, ref
            assert values.shape == expected.shape, ref
            scale = max(float(np.abs(expected).max(initial=0)), 1e-30)
            error = float(np.abs(values.astype(np.float64) - expected).max(initial=0))
            assert error <= tolerance * scale, f"{ref}: error {error} of {scale}"


# -- pointwise -----------------------------------------------------------------------------------------------------------------------------


def test_shapes(device: Any, kind: str) -> None:
    rec, checks = recorder(device, kind), Checks()
    for shape in SHAPES:
        for strided in (False, True):
            a, b, y, z = (tensor(name, shape, strided and name != "b") for name in "abyz")
            text = "float t = x0 * s + x1; y0 = t > 0 ? t : -2 * t; y1 = fmax(x0, x1) / n"
            pointwise(rec, text, reads=[a, b], writes=[y, z], scalars={"s": 0.75, "n": 3})
            u, v = checks.feed(a, draw(shape, 1)), checks.feed(b, draw(shape, 2))
            t = u * 0.75 + v
            checks.expect(y, np.where(t > 0, t, -2 * t))
            checks.expect(z, np.maximum(u, v) / 3)
    assert len(rec.launches) == 2 * len(SHAPES)
    checks.run(rec, device)


BROADCASTS: list[tuple[Shape, Shape, int]] = [
    ((4, 3, 5, 7), (3,), 1),
    ((4, 3, 5, 7), (), 0),
    ((4, 3, 5, 7), (4, 3), 0),
    ((4, 3, 5, 7), (7,), 3),
    ((4, 3, 5, 7), (3, 5), 1),
    ((4, 3, 5, 7), (5, 7), 2),
    ((4, 3, 5, 7), (4,), 0),
    ((4, 3, 5, 7), (4, 1, 5, 1), 0),
    ((4, 3, 5, 7), (4, 3, 5, 7), 0),
    ((64, 20, 12, 12), (20,), 1),
    ((2, 3, 2, 3, 2, 3, 2), (3, 1, 3, 1, 3), 1),
    ((70000, 2, 3), (2,), 1),
    ((5, 1000), (1000,), 1),
]


def test_broadcast(device: Any, kind: str) -> None:
    rec, checks = recorder(device, kind), Checks()
    for shape, own, axis in BROADCASTS:
        for strided in (False, True):
            a, y, b = tensor("a", shape, strided), tensor("y", shape, strided), tensor("b", own)
            pointwise(rec, "y0 = x0 * x1 + 1", reads=[a, (b, axis)], writes=[y])
            u, v = checks.feed(a, draw(shape, 1)), checks.feed(b, draw(own, 2))
            checks.expect(y, u * v.reshape((1,) * axis + own + (1,) * (len(shape) - axis - len(own))) + 1)
    checks.run(rec, device)


def test_other_shape_of_equal_count(device: Any, kind: str) -> None:
    rec = recorder(device, kind)
    a, y = tensor("a", (4, 3, 5), strided=True), tensor("y", (4, 15))
    pointwise(rec, "y0 = -x0", reads=[a], writes=[y])
    u = draw((4, 3, 5))
    (got,) = execute(rec, device.context, {a: u}, [y])
    assert (got == -u.reshape(4, 15)).all()


def test_single_column_of_a_batch(device: Any, kind: str) -> None:
    """One channel of a 1 x 1 blob: the stride of elements is the batch stride, in reads and writes."""
    rec = recorder(device, kind)
    wide, other = Ref("wide", (50, 6), Role.ACTIVATION), Ref("other", (50, 4), Role.ACTIVATION)
    a, y = wide.view((50, 1), 2, 6), other.view((50, 1), 3, 4)
    pointwise(rec, "y0 = x0 + 1", reads=[a], writes=[y])
    u, before = draw((50, 6)), draw((50, 4), 3)
    got, after = execute(rec, device.context, {wide: u, other: before}, [y, other])
    close(got, u[:, 2:3].astype(np.float64) + 1)
    assert (after[:, :3] == before[:, :3]).all()


def test_integers(device: Any, kind: str) -> None:
    rec, checks = recorder(device, kind), Checks()
    for dtype in (np.uint8, np.int32, np.uint32):
        for shape in [(7,), (3, 4, 5), (5, 33), (40001,)]:
            a, y, z = tensor("a", shape, True, dtype=dtype), tensor("y", shape, True, dtype=dtype), tensor("z", shape)
            pointwise(rec, "y0 = x0 * 1.5; y1 = x0 / 4", reads=[a], writes=[y, z])
            u = checks.feed(a, np.random.default_rng(1).integers(0, 200, shape).astype(dtype))
            checks.expect(y, np.minimum(np.trunc(u * 1.5), 255) if dtype == np.uint8 else np.trunc(u * 1.5), 0)
            checks.expect(z, u / 4)
    checks.run(rec, device)


def test_no_reads_and_modifies(device: Any, kind: str) -> None:
    rec = recorder(device, kind)
    y, m = tensor("y", (3, 37), strided=True), tensor("m", (3, 37))
    pointwise(rec, "y0 = 0; m0 = f * m0 + 1", writes=[y], modifies=[m], scalars={"f": 0.5})
    u = draw((3, 37))
    got = execute(rec, device.context, {m: u}, [y, m])
    assert (got[0] == 0).all()
    close(got[1], 0.5 * u.astype(np.float64) + 1)


def test_operators(device: Any, kind: str) -> None:
    """Comparisons convert to numbers and numbers convert to conditions as needed."""
    rec = recorder(device, kind)
    a, b, c = (tensor(name, (37,)) for name in "abc")
    y = [tensor(f"y{i}", (37,)) for i in range(5)]
    text = "y0 = (x0 > 0) + (x1 <= x0 && !(x2 == 2)); y1 = x2 ? x0 : x1; y2 = x0 < 0 || x1 < 0; y3 = x0 > 0 ? x1 > 0 ? 1 : 2 : 3; y4 = -x0 - -1e-1 * 1 / 2"
    pointwise(rec, text, reads=[a, b, c], writes=y)
    u, v, w = draw((37,), 1), draw((37,), 2), np.arange(37, dtype=np.float32) % 3
    got = execute(rec, device.context, {a: u, b: v, c: w}, y)
    expected = [
        (u > 0) * 1.0 + ((v <= u) & (w != 2)),
        np.where(w != 0, u, v),
        (u < 0) | (v < 0),
        np.where(u > 0, np.where(v > 0, 1, 2), 3),
        -u + np.float64(0.05),
    ]
    for mine, theirs in zip(got, expected):
        close(mine, np.asarray(theirs, np.float64))


def test_functions(device: Any, kind: str) -> None:
    """Every function, on a length with whole vectors and a tail."""
    unary = ["fabs", "exp", "exp2", "expm1", "sin", "cos", "tanh", "erf", "floor", "ceil", "rint", "trunc", "sign"]
    positive = ["log", "log2", "log1p", "sqrt", "rsqrt"]
    binary = {"fmin": np.minimum, "fmax": np.maximum, "pow": np.power, "fmod": np.fmod, "copysign": np.copysign}
    rec = recorder(device, kind)
    a, b, p = (tensor(name, (101,)) for name in "abp")
    y = [tensor(f"y{i}", (101,)) for i in range(len(unary) + len(positive) + len(binary))]
    terms = [f"{name}(x0)" for name in unary] + [f"{name}(x2)" for name in positive] + [f"{name}({'x2' if name == 'pow' else 'x0'}, x1)" for name in binary]
    pointwise(rec, "; ".join(f"y{i} = {term}" for i, term in enumerate(terms)), reads=[a, b, p], writes=y)
    u, v = 3 * draw((101,), 1), draw((101,), 2)
    w = np.abs(u) + np.float32(0.1)
    got = iter(execute(rec, device.context, {a: u, b: v, p: w}, y))
    x, x1, x2 = u.astype(np.float64), v.astype(np.float64), w.astype(np.float64)
    for name in unary:
        close(next(got), np.vectorize(math.erf)(x) if name == "erf" else getattr(np, name)(x))
    for name in positive:
        close(next(got), 1 / np.sqrt(x2) if name == "rsqrt" else getattr(np, name)(x2))
    for name, function in binary.items():
        close(next(got), function(x2 if name == "pow" else x, x1))


def test_accumulates_in_backward(device: Any, kind: str) -> None:
    """The first writer of a diff overwrites NaN, later writers add. Elements that two vectors cover are added once."""
    rec, checks = recorder(device, kind, "backward"), Checks()
    refs = [(tensor("a", shape), tensor("diff", shape, True, Role.DIFF)) for shape in [(3, 4, 37), (50,), (3,), (41000,)]]
    for number in range(3):
        rec.enter(f"layer{number}", "backward")
        for a, diff in refs:
            pointwise(rec, "y0 = s * x0", reads=[a], writes=[diff], scalars={"s": 1.0 + number})
    for a, diff in refs:
        checks.expect(diff, 6 * checks.feed(a, draw(a.shape)))
    checks.run(rec, device)


def test_kernels_of_equal_text_are_one(device: Any, kind: str) -> None:
    rec = recorder(device, kind)
    for shape, s in [((3, 100), 0.5), ((60, 50), 2.0)]:
        pointwise(rec, "y0 = s * x0", reads=[tensor("a", shape)], writes=[tensor("y", shape)], scalars={"s": s})
    first, second = (launch.final() for launch in rec.launches)
    assert first.program == second.program and first.function == second.function and first.generated
    assert first.scalars != second.scalars
    assert rec.launches[0].final() == first


def test_inplace_pairs() -> None:
    rec = Recorder(Target(), train=True)
    a, b, y, wide = tensor("a", (4, 5)), tensor("b", (4, 5)), tensor("y", (4, 5)), tensor("wide", (4, 5), dtype=np.int32)
    channel = tensor("channel", (5,))

    def pairs(reads: Sequence[Any], write: Ref) -> tuple[tuple[str, str], ...]:
        pointwise(rec, "y0 = " + " + ".join(f"x{i}" for i in range(len(reads))), reads=reads, writes=[write])
        return rec.launches[-1].inplace

    assert pairs([a, b], y) == (("x0", "y0"), ("x1", "y0"))
    assert pairs([a, (channel, 1)], y) == (("x0", "y0"),)
    assert pairs([a, wide], y) == (("x0", "y0"),)
    assert pairs([a, (a.view((5,), 0), 1)], y) == (), "the broadcast read would see what was written"
    rec.enter("first", "backward")
    diff = tensor("diff", (4, 5), role=Role.DIFF)
    assert pairs([a], diff) == (("x0", "y0"),)
    rec.enter("second", "backward")
    assert pairs([a], diff) == (), "an accumulating write needs what it holds"
    assert rec.launches[-1].operands[1].access is Access.MODIFY


def test_in_place(device: Any, kind: str) -> None:
    """The launches' `inplace` holds: the second operand in the first one's memory gives the same result."""
    rec, checks = recorder(device, kind), Checks()
    for shape in [(37,), (3, 50), (40001,), (5, 3, 7, 7)]:
        a, c = tensor("a", shape, strided=True), tensor("c", shape[1:2])
        pointwise(rec, "y0 = x0 * x0 + x1", reads=[a, (c, 1 if len(shape) > 1 else 0)], writes=[a])
        u, v = checks.feed(a, draw(shape, 1)), checks.feed(c, draw(c.shape, 2))
        checks.expect(a, u**2 + v.reshape(v.shape + (1,) * max(0, len(shape) - 2)))
    checks.run(rec, device)


@pytest.mark.parametrize(
    "text, fact",
    [
        ("y0 = x0 $ 1", "cannot read"),
        ("y0 = x0 +", "a value expected"),
        ("y0 = foo(x0)", "no function 'foo'"),
        ("y0 = fmax(x0)", "takes 2 arguments"),
        ("y0 = x0 + q", "uses q"),
        ("y0 = (x0", "expected"),
        ("t = x0", "does not assign y0"),
        ("exp = x0", "cannot be assigned"),
        ("", "nothing is assigned"),
        ("y0 = x0 x0", "expected"),
        ("y0 = x1", "uses x1"),
    ],
)
def test_mistakes_in_texts(text: str, fact: str) -> None:
    rec = Recorder(Target(), train=True)
    with pytest.raises(ValueError, match=fact.replace("(", r"\(")):
        pointwise(rec, text, reads=[tensor("a", (3,))], writes=[tensor("y", (3,))])
    assert not rec.launches


# -- random numbers ------------------------------------------------------------------------------------------------------------------------


def philox(counter: np.ndarray, key: Sequence[int]) -> np.ndarray:
    """Compute Philox4x32-10 of counters (.., 4)."""
    c = [counter[..., i].astype(np.uint64) for i in range(4)]
    k = [int(key[0]), int(key[1])]
    low = np.uint64(0xFFFFFFFF)
    for _ in range(10):
        p0, p2 = c[0] * np.uint64(0xD2511F53), c[2] * np.uint64(0xCD9E8D57)
        c = [(p2 >> np.uint64(32)) ^ c[1] ^ np.uint64(k[0]), p2 & low, (p0 >> np.uint64(32)) ^ c[3] ^ np.uint64(k[1]), p0 & low]
        k = [(k[0] + 0x9E3779B9) & 0xFFFFFFFF, (k[1] + 0xBB67AE85) & 0xFFFFFFFF]
    return np.stack(c, -1).astype(np.uint32)


def test_philox_reference() -> None:
    """The reference gives the known answers of the authors' test vectors."""
    assert [hex(w) for w in philox(np.zeros(4, np.uint32), (0, 0))] == ["0x6627e8d5", "0xe169c58d", "0xbc57ac4c", "0x9b00dbd8"]
    ones = np.full(4, 0xFFFFFFFF, np.uint32)
    assert [hex(w) for w in philox(ones, (0xFFFFFFFF, 0xFFFFFFFF))] == ["0x408f276d", "0x41c83b0e", "0xa20bc7c6", "0x6d5451fd"]


def uniforms(shape: Shape, key: Sequence[int], iteration: int = 0, part: int = 0, sample: int = 0) -> np.ndarray:
    samples = shape[0] if shape else 1
    e = np.arange(math.prod(shape[1:]), dtype=np.uint32)
    counter = np.zeros((samples, len(e), 4), np.uint32)
    counter[..., 0] = e // 64 * 16 + e % 16
    counter[..., 1] = (sample + np.arange(samples, dtype=np.uint32))[:, None]
    counter[..., 2], counter[..., 3] = iteration, part
    words = np.take_along_axis(philox(counter, key), np.broadcast_to((e // 16 % 4)[None, :, None], (samples, len(e), 1)).astype(np.int64), -1)[..., 0]
    return ((words >> 8) * np.float32(2.0**-24)).astype(np.float32).reshape(shape)


def test_random(device: Any, kind: str) -> None:
    """Random numbers are the same on every device, for all strides and device classes."""
    rec, checks = recorder(device, kind), Checks()
    for shape in [(), (1,), (100,), (3, 10), (5, 64), (2, 3, 7, 9), (3, 1, 500), (2, 4096)]:
        for strided in (False, True):
            a, y = tensor("a", shape, strided), tensor("y", shape, strided)
            pointwise(rec, "y0 = uniform + x0", reads=[a], writes=[y], random="mask")
            checks.feed(a, np.zeros(shape, np.float32))
            checks.expect(y, uniforms(shape, rec.key("mask"), 7, 2, 1000), 0)
    step = np.zeros(8, np.uint32)
    step[[STEP["ITERATION"], STEP["PASS"], STEP["SAMPLE"]]] = 7, 2, 1000
    checks.feed(rec.step, step)
    checks.run(rec, device)


def test_random_beside_a_broadcast(device: Any, kind: str) -> None:
    """Rows that do not start at a multiple of SHARED_COUNTERS."""
    rec = recorder(device, kind)
    c, y = tensor("c", (5,)), tensor("y", (3, 5, 41))
    pointwise(rec, "y0 = uniform * x0", reads=[(c, 1)], writes=[y], random="")
    v = np.arange(1, 6, dtype=np.float32)
    (got,) = execute(rec, device.context, {c: v}, [y])
    close(got, uniforms((3, 5, 41), rec.key()).astype(np.float64) * v[:, None], 1e-7)


def test_random_streams_differ() -> None:
    u = uniforms((4, 10000), (1, 2))
    assert u.min() >= 0 and u.max() < 1 and abs(u.mean() - 0.5) < 0.01 and abs(u.var() - 1 / 12) < 0.003
    others = [uniforms((4, 10000), (1, 3)), uniforms((4, 10000), (1, 2), 1), uniforms((4, 10000), (1, 2), 0, 1), u[::-1]]
    for other in others:
        assert abs(np.corrcoef(u.ravel(), other.ravel())[0, 1]) < 0.03


# -- reductions ----------------------------------------------------------------------------------------------------------------------------

REDUCTIONS: list[tuple[Shape, tuple[int, ...]]] = [
    ((), ()),
    ((1,), (0,)),
    ((5,), (0,)),
    ((1000,), (0,)),
    ((300001,), (0,)),
    ((4, 3, 5, 7), (0, 2, 3)),
    ((4, 3, 5, 7), (1,)),
    ((4, 3, 5, 7), (2,)),
    ((4, 3, 5, 7), (3,)),
    ((4, 3, 5, 7), (0,)),
    ((4, 3, 5, 7), (1, 3)),
    ((4, 3, 5, 7), (0, 2)),
    ((4, 3, 5, 7), (0, 1, 2, 3)),
    ((2, 3, 2, 3, 2, 3), (0, 2, 4)),
    ((2, 3, 2, 3, 2, 3), (1, 3, 5)),
    ((3000, 10), (0,)),
    ((64, 500), (0,)),
    ((64, 500), (1,)),
    ((700, 3, 4), (2,)),
    ((16, 3, 90, 90), (0, 2, 3)),
    ((2, 3, 200, 400), (0, 2, 3)),
    ((40000, 3), (0,)),
    ((8, 1), (0,)),
    ((9, 1), (1,)),  # the innermost axis is kept, and the elements of a view are apart
    ((70, 1, 1), (1, 2)),
]


def test_reduce(device: Any, kind: str) -> None:
    rec, checks = recorder(device, kind), Checks()
    text, finish = "v0 = x0 * x1; float t = x0 - 1; v1 = t * t", "y0 = v0 / n; y1 = v1 + s"
    for shape, axes in REDUCTIONS:
        for strided in (False, True):
            kept = tuple(n for d, n in enumerate(shape) if d not in axes)
            a, b, y, z = tensor("a", shape, strided), tensor("b", shape), tensor("y", kept, strided), tensor("z", kept)
            n = math.prod(shape) // math.prod(kept)
            reduce(rec, text, reads=[a, b], writes=[y, z], axes=axes, finish=finish, scalars={"n": n, "s": 2.5})
            u, v = checks.feed(a, draw(shape, 1)), checks.feed(b, draw(shape, 2))
            size = np.abs(u * v).sum(axes).max() / max(np.abs((u * v).sum(axes)).max(), 1e-30)
            checks.expect(y, (u * v).sum(axes) / n, 1e-6 * size)
            checks.expect(z, ((u - 1) ** 2).sum(axes) + 2.5, 2e-6)
    checks.run(rec, device)


def test_reduce_max(device: Any, kind: str) -> None:
    rec, checks = recorder(device, kind), Checks()
    for shape, axes in REDUCTIONS:
        a, y = tensor("a", shape, True), tensor("y", tuple(n for d, n in enumerate(shape) if d not in axes))
        reduce(rec, "v0 = x0", reads=[a], writes=[y], axes=axes, op="max")
        checks.expect(y, checks.feed(a, draw(shape, 1) - 9).max(axes), 0)
    checks.run(rec, device)


def test_reduce_in_two_stages(device: Any, kind: str) -> None:
    """A large reduction to few values takes two launches without last-block reduction. Small reductions, or those to many values, take one."""
    for shape, axes, launches in [((1 << 20,), (0,), 2), ((512, 3, 40, 40), (0, 2, 3), 2), ((64, 10), (0,), 1), ((100,), (0,), 1)]:
        rec = recorder(device, kind)
        for fence in {"", rec.target.device_fence}:
            rec.target, rec.launches = dataclasses.replace(rec.target, compute_units=8, device_fence=fence), []
            reduce(rec, "v0 = x0", reads=[tensor("a", shape)], writes=[tensor("y", tuple(n for d, n in enumerate(shape) if d not in axes))], axes=axes)
            assert len(rec.launches) == (1 if rec.target.last_block_reduction else launches)


def test_chunks(device: Any, kind: str) -> None:
    """Any number of chunks gives the sum, also more chunks than rows. `finish` may read values that are constant along the reduced axes."""
    rec, checks = recorder(device, kind), Checks()
    target = rec.target
    for shape, axes in [((5, 3, 60000), (0, 2)), ((100000, 3), (0,)), ((70, 3, 3000), (0, 2)), ((3, 7, 40000), (1, 2))]:
        kept = tuple(n for d, n in enumerate(shape) if d not in axes)
        axis = next(d for d in range(len(shape)) if d not in axes)
        a, shift = tensor("a", shape, True), tensor("shift", kept)
        u, s = checks.feed(a, draw(shape)), checks.feed(shift, draw(kept, 1))
        for units, fence in ((1, ""), (3, ""), (3, target.device_fence), (64, target.device_fence)):
            rec.target = dataclasses.replace(target, compute_units=units, device_fence=fence)
            y, m, once = tensor("y", kept), tensor("m", kept), tensor("once", (1,))
            reduce(
                rec,
                "v0 = x0 - x1",
                reads=[a, (shift, axis)],
                writes=[y],
                modifies=[m, once],
                axes=axes,
                finish="y0 = x1 + v0 / n; m0 = 0.5 * m0 + v0; m1 = m1 + 1",
                scalars={"n": math.prod(shape) // math.prod(kept)},
            )
            before = checks.feed(m, draw(kept, 2))
            checks.feed(once, np.array([4.0], np.float32))
            checks.expect(y, u.mean(axes), 1e-6 / np.abs(u.mean(axes)).max())
            checks.expect(m, 0.5 * before + (u - s.reshape([n if d == axis else 1 for d, n in enumerate(shape)])).sum(axes))
            checks.expect(once, np.array([5.0]), 0)
    assert {launch.kernel.can.side_effect for launch in rec.launches} == {False, True}
    checks.run(rec, device)


def test_reduce_accumulates(device: Any, kind: str) -> None:
    rec, checks = recorder(device, kind, "backward"), Checks()
    cases = [((64, 500), (0,)), ((4, 3, 50), (0, 2)), ((300000,), (0,))]
    refs = [(tensor("a", shape), tensor("y", tuple(n for d, n in enumerate(shape) if d not in axes), role=Role.DIFF)) for shape, axes in cases]
    for number in range(2):
        rec.enter(f"layer{number}", "backward")
        for (_, axes), (a, y) in zip(cases, refs):
            reduce(rec, "v0 = x0", reads=[a], writes=[y], axes=axes)
    for (_, axes), (a, y) in zip(cases, refs):
        u = checks.feed(a, draw(a.shape))
        checks.expect(y, 2 * u.sum(axes), 1e-6 * np.abs(u).sum() / np.abs(u.sum(axes)).max())
    checks.run(rec, device)


def test_sum_of_ten_million(device: Any, kind: str) -> None:
    """The error is at most 1e-5, also if all additions round in the same direction."""
    rec = recorder(device, kind)
    a, y, z = tensor("a", (10_000_001,)), tensor("y", ()), tensor("z", ())
    reduce(rec, "v0 = x0; v1 = 0.1", reads=[a], writes=[y, z], axes=[0], finish="y0 = v0; y1 = v1")
    u = np.random.default_rng(0).random(10_000_001, np.float32)
    got = execute(rec, device.context, {a: u}, [y, z])
    assert abs(got[0] / u.sum(dtype=np.float64) - 1) <= 1e-5
    assert abs(got[1] / (np.float64(np.float32(0.1)) * len(u)) - 1) <= 1e-5


def test_reduce_of_varying_read_in_finish() -> None:
    rec = Recorder(Target(), train=True)
    reduce(rec, "v0 = x0", reads=[tensor("a", (3, 4))], writes=[tensor("y", (4,))], axes=[0], finish="y0 = v0 * x0")
    with pytest.raises(AssertionError, match="varies along the reduced axes"):
        rec.launches[0].final()
