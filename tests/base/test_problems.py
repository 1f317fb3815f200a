"""What is inside an exception group decides whether it is an obstacle or a defect."""

from __future__ import annotations

from kgpu.base.errors import ConfigError, HwError
from kgpu.base.problems import describe, obstacle_in

FIRST = ConfigError("a", "b", "c")


def test_an_obstacle_is_found_however_deep():
    assert obstacle_in(FIRST) is FIRST
    assert obstacle_in(ExceptionGroup("", [ExceptionGroup("", [FIRST]), HwError("d", "e", "f")])) is FIRST


def test_anything_else_beside_it_makes_it_a_defect():
    assert obstacle_in(ExceptionGroup("", [FIRST, ValueError()])) is None
    assert obstacle_in(KeyError("x")) is None


def test_description_is_one_line_without_repeats():
    group = ExceptionGroup("", [ValueError("two\nlines"), ValueError("two\nlines"), OSError()])
    assert describe(group) == "ValueError: two lines; OSError"
