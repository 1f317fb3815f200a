"""The table that a person reads, and its JSON."""

from __future__ import annotations

from kgpu.lab.conformance import render
from kgpu.lab.conformance.model import ConformanceResult, ResultState, Test


def result(name: str, state: ResultState, message: str = "", seconds: float = 1.0) -> ConformanceResult:
    return ConformanceResult(
        lab="real", test=Test(f"{name} [Conformance]"), state=state, seconds=seconds, message=message
    )


RESULTS = (
    result("[sig-apps] Job should run", ResultState.PASSED),
    result("[sig-apps] Job should fail", ResultState.FAILED, "one\ntwo", 3.0),
    result("[sig-auth] Token should do", ResultState.LEFT_OUT, "no webhooks", 0.0),
    result("[sig-auth] Token should be", ResultState.LEFT_OUT, "no webhooks", 0.0),
    result("[sig-auth] Token should say no", ResultState.SKIPPED, "one node", 0.0),
)


def test_the_table_counts_by_sig() -> None:
    assert render.counts(RESULTS) == [
        ("apps", "1", "1", "0", "0", "4"),
        ("auth", "0", "0", "1", "2", "0"),
        ("all", "1", "1", "1", "2", "4"),
    ]


def test_failures_have_their_message_and_skips_their_reason() -> None:
    text = render.text("real", RESULTS, wall_s=12.3)
    assert text.splitlines()[:2] == [
        "Kubernetes' conformance tests on the real lab, 12 s",
        "sig   passed  failed  skipped  left out  seconds",
    ]
    assert "FAILED [apps] Job should fail (3 s)\n    one\n    two\n" in text
    assert "not run: no webhooks\n    [auth] Token should be\n    [auth] Token should do\n" in text
    assert text.endswith("not run: one node\n    [auth] Token should say no")


def test_json_has_every_test() -> None:
    found = render.to_builtins("real", RESULTS, wall_s=12.34)
    assert found["seconds"] == 12.3
    assert found["sigs"][0] == {"sig": "apps", "passed": 1, "failed": 1, "skipped": 0, "left out": 0, "seconds": 4}
    assert [one["state"] for one in found["tests"]] == ["failed", "passed", "left out", "left out", "skipped"]
    assert found["tests"][0]["message"] == "one\ntwo"
