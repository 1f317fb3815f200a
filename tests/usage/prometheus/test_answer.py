"""Values that no counter has are left out, each by itself."""

from __future__ import annotations

import contextlib
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kgpu.usage.prometheus.answer import PrometheusError, decode
from tests.budget import tries


def body(*values: Any, **more: Any) -> bytes:
    result = [{"metric": {"UUID": "GPU-1"}, "values": list(values)}]
    return json.dumps({"status": "success", "data": {"resultType": "matrix", "result": result}, **more}).encode()


@pytest.mark.parametrize(
    "value", ["NaN", "+Inf", "-Inf", "-1", "-0.001", "1e300", "1e13", "", "many", "1" * 50, 7, None, ["1"], {}]
)
def test_a_value_that_can_t_be_is_left_out_and_counted(value: Any) -> None:
    found = decode(body([1, "1"], [2, value], [3, "3"]), "it")
    assert (found.series[0].points, found.refused) == ([(1000, 1.0), (3000, 3.0)], 1)


def test_moments_that_can_t_be_are_left_out() -> None:
    found = decode(body([-1, "1"], [1e300, "1"], [1.5, "1"]), "it")
    assert (found.series[0].points, found.refused) == ([(1500, 1.0)], 2)


def test_warnings_are_few_and_printable() -> None:
    found = decode(body(warnings=["a\x1b[2J\nb" + "x" * 1000] * 500), "it")
    assert len(found.warnings) == 20
    assert found.warnings[0].startswith("a�[2J b")
    assert len(found.warnings[0]) == 200


@tries(300)
@given(st.one_of(st.binary(max_size=200), st.recursive(
    st.none() | st.booleans() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=4)
    | st.dictionaries(st.sampled_from(["status", "data", "result", "metric", "values", "resultType", "warnings"]), inner),
    max_leaves=20,
).map(lambda data: json.dumps(data).encode())))  # fmt: skip
def test_whatever_comes_is_an_answer_or_an_error(said: bytes) -> None:
    with contextlib.suppress(PrometheusError):
        assert decode(said, "it").refused >= 0
