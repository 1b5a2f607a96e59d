"""common.h: the operand convention, and Philox compared with its published vectors and a reference in Python."""
from __future__ import annotations

import numpy as np
import pytest

from ocaffe.cl.device import Device
from ocaffe.cl.program import ProgramKey, Programs

SOURCE = """
kernel void philox_words(global const uint* in, global uint* out) {
  const int i = get_global_id(0);
  in += i * 6;
  vstore4(philox((uint4)(in[0], in[1], in[2], in[3]), (uint2)(in[4], in[5])), i, out);
}
kernel void uniform(global const uint* in, global float* out) { out[get_global_id(0)] = uniform01(in[get_global_id(0)]); }
kernel void copy_rows(OPERAND(const float, x), OPERAND_RESTRICT(float, y)) {
  LOCATE(x); LOCATE(y);
  y[get_global_id(1) * y_stride + get_global_id(0)] = x[get_global_id(1) * x_stride + get_global_id(0)];
}
"""
KNOWN = [  # counter, key, answer; from the known-answer file of Random123
    ("00000000 00000000 00000000 00000000", "00000000 00000000", "6627e8d5 e169c58d bc57ac4c 9b00dbd8"),
    ("ffffffff ffffffff ffffffff ffffffff", "ffffffff ffffffff", "408f276d 41c83b0e a20bc7c6 6d5451fd"),
    ("243f6a88 85a308d3 13198a2e 03707344", "a4093822 299f31d0", "d16cfe09 94fdcceb 5001e420 24126ea1"),
]


def words(text: str) -> list[int]:
    return [int(word, 16) for word in text.split()]


def philox(counter: list[int], key: list[int]) -> list[int]:
    """Compute Philox4x32-10 as in the paper: ten rounds of two multiplications; Weyl constants are added to the key between rounds."""
    left0, right0, left1, right1 = counter[0], counter[1], counter[2], counter[3]
    for round in range(10):
        k0, k1 = (key[0] + round * 0x9E3779B9) % 2**32, (key[1] + round * 0xBB67AE85) % 2**32
        high0, low0 = divmod(left0 * 0xD2511F53, 2**32)
        high1, low1 = divmod(left1 * 0xCD9E8D57, 2**32)
        left0, right0, left1, right1 = high1 ^ right0 ^ k0, low1, high0 ^ right1 ^ k1, low0
    return [left0, right0, left1, right1]


@pytest.fixture
def run(device: Device):
    cl = device.cl
    program = Programs(device).build_all([ProgramKey(SOURCE)])[ProgramKey(SOURCE)]

    def launch(name: str, size: tuple[int, ...], out: np.ndarray, *inputs: np.ndarray | np.generic) -> np.ndarray:
        flags = cl.mem_flags.READ_WRITE | cl.mem_flags.COPY_HOST_PTR
        args = [cl.Buffer(device.context, flags, hostbuf=value) if isinstance(value, np.ndarray) else value for value in (*inputs, out)]
        kernel = cl.Kernel(program, name)
        if name == "copy_rows":  # (x, x_offset, x_stride, y_offset, y_stride, y) in the order of the signature
            args = [*args[:3], args[5], *args[3:5]]
        kernel.set_args(*args)
        cl.enqueue_nd_range_kernel(device.queue, kernel, size, None)
        buffer = args[3] if name == "copy_rows" else args[-1]
        cl.enqueue_copy(device.queue, out, buffer)
        return out

    return launch


@pytest.mark.parametrize("counter, key, answer", KNOWN)
def test_reference_gives_the_published_answers(counter: str, key: str, answer: str) -> None:
    assert philox(words(counter), words(key)) == words(answer)


def test_philox(run) -> None:
    random = np.random.default_rng(7).integers(0, 2**32, (61, 6), np.uint32)
    given = np.concatenate([np.array([words(c) + words(k) for c, k, _ in KNOWN], np.uint32), random])
    result = run("philox_words", (len(given),), np.zeros((len(given), 4), np.uint32), given)
    assert result[: len(KNOWN)].tolist() == [words(answer) for _, _, answer in KNOWN]
    assert result.tolist() == [philox(list(map(int, row[:4])), list(map(int, row[4:]))) for row in given]


def test_uniform01_is_exact_and_below_one(run) -> None:
    given = np.array([0, 255, 256, 2**31, 2**32 - 1, 0x12345678], np.uint32)
    result = run("uniform", (len(given),), np.zeros(len(given), np.float32), given)
    assert (result == (given >> 8) / 2**24).all() and result.min() == 0 and result.max() < 1


def test_operands_are_found_by_offset_and_stride(run) -> None:
    slab = np.arange(100, dtype=np.float32)
    out = np.full(40, -1, np.float32)
    result = run("copy_rows", (3, 2), out, slab, np.uint64(10), np.uint64(20), np.uint64(5), np.uint64(7))
    expected = np.full(40, -1, np.float32)
    expected[5:8], expected[12:15] = slab[10:13], slab[30:33]
    assert (result == expected).all()
