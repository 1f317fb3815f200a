"""Ginkgo's report: how each selected test ended, and that what is not told has failed."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kgpu.base.errors import LabError
from kgpu.lab.conformance import report
from kgpu.lab.conformance.model import ResultState, Test

TEST = Test("[sig-apps] Job should delete a job [Conformance]")


def spec(state: str, message: str = "", kind: str = "It", **about: Any) -> dict[str, Any]:
    """A row of the report, as Ginkgo writes it."""
    names = {"ContainerHierarchyTexts": ["[sig-apps] Job"], "LeafNodeText": "should delete a job [Conformance]"}
    failure = {"Failure": {"Message": message}} if message else {}
    return {**(names if kind == "It" else {}), "LeafNodeType": kind, "State": state, "RunTime": 25 * 10**8, **failure,
            **about}  # fmt: skip


def read(*specs: dict[str, Any]) -> tuple[ResultState, str]:
    [found] = report.read(json.dumps([{"SpecReports": list(specs)}]).encode(), [TEST], "embedded")
    return found.state, found.message


@pytest.mark.parametrize(
    ("row", "state", "message"),
    [
        (spec("passed"), ResultState.PASSED, ""),
        (spec("failed", "no such job"), ResultState.FAILED, "no such job"),
        (spec("timedout", "A suite timeout occurred"), ResultState.FAILED, "A suite timeout occurred"),
        (spec("panicked", Failure={"ForwardedPanic": "nil pointer"}), ResultState.FAILED, "nil pointer"),
        (spec("interrupted"), ResultState.FAILED, "it ended as interrupted"),
        (spec("skipped", "Requires at least 2 nodes"), ResultState.SKIPPED, "Requires at least 2 nodes"),
        (spec("skipped"), ResultState.FAILED, "it was not run"),
    ],
)
def test_how_a_test_ended(row: dict[str, Any], state: ResultState, message: str) -> None:
    assert read(row) == (state, message)


def test_what_ended_the_run_is_why_its_tests_failed() -> None:
    before = spec("failed", "nodes are not ready", kind="SynchronizedBeforeSuite")
    assert read(before) == (ResultState.FAILED, "nodes are not ready")
    assert read() == (ResultState.FAILED, "it was not run")


def test_the_time_is_read_in_seconds() -> None:
    [found] = report.read(json.dumps([{"SpecReports": [spec("passed")]}]).encode(), [TEST], "real")
    assert (found.lab, found.seconds) == ("real", 2.5)


@given(st.binary(max_size=60) | st.recursive(st.none() | st.text(), lambda inner: st.lists(inner) | st.dictionaries(
    st.sampled_from(["SpecReports", "State"]), inner)).map(lambda value: json.dumps(value).encode()))  # fmt: skip
def test_any_bytes_are_a_report_or_an_error(raw: bytes) -> None:
    try:
        found = report.read(raw, [TEST], "real")
    except LabError:
        return
    assert [one.state for one in found] == [ResultState.FAILED]
