"""Marks of names in kernel files: the text of a program on its own, and of a program that is a routine."""
from __future__ import annotations

from ocaffe.cl.marks import as_routine, unmarked

TEXT = """#define TWICE(v) half_of(v) * 4
typedef float8 OWN(vec);
static float OWN(half_of)(float v) { return v / 2; }
kernel void ENTRY(scale)(global float* x) { x[get_global_id(0)] = TWICE(1); }
"""


def test_a_program_on_its_own_has_no_marks() -> None:
    text = unmarked(TEXT)
    assert "typedef float8 vec;" in text and "static float half_of(float v)" in text and "kernel void scale(global float* x)" in text
    assert unmarked(text) == text


def test_a_routine() -> None:
    lines = as_routine(TEXT, "part3_").split("\n")
    begin, end = lines.index("typedef float8 vec;"), lines.index("#undef vec")
    assert lines[: begin - 1] == ["#undef TWICE", *(f"#define {name} part3_{name}" for name in ("half_of", "scale", "vec"))]
    assert "kernel void scale(WORK_ITEM, global float* x) { x[get_global_id(0)] = TWICE(1); }" in lines[begin:end]
    assert {"#undef half_of", "#undef scale", "#undef vec", "#undef TWICE"} <= set(lines[begin:]), "nothing is defined behind it"
