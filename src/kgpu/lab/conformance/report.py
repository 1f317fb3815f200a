"""Reads the report that Ginkgo writes of one run of ``e2e.test``; pure.

A test that was selected and of which the report does not say how it ended has failed: with what ended the run, such
as a cluster that was not ready.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from typing import Any, Final

from kgpu.base.errors import LabError
from kgpu.lab.conformance.model import ConformanceResult, ResultState, Test

_STATES: Final = {"passed": ResultState.PASSED, "skipped": ResultState.SKIPPED}
_TEST: Final = "It"
_MESSAGE_LIMIT: Final = 2000
NOT_RUN: Final = "it was not run"


def read(raw: bytes, tests: Iterable[Test], lab: str) -> list[ConformanceResult]:
    """How each of ``tests`` ended. Raises LabError for bytes that are no report."""
    specs = list(_specs(raw))
    by_name = {_name(spec): spec for spec in specs if spec.get("LeafNodeType") == _TEST}
    ended = next((_message(spec) for spec in specs if spec.get("LeafNodeType") != _TEST and _failed(spec)), "")
    return [_result(by_name.get(test.name), test, lab, ended) for test in tests]


def _specs(raw: bytes) -> Iterator[dict[str, Any]]:
    try:
        for suite in json.loads(raw):
            for spec in suite["SpecReports"] or ():
                if not isinstance(spec, dict):
                    raise TypeError("a spec that is no object")
                yield spec
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        raise LabError(
            f"the report of e2e.test can't be read: {error!r:.200}",
            "Ginkgo's JSON report",
            "see what e2e.test printed, in output.log beside it",
        ) from error


def _name(spec: dict[str, Any]) -> str:
    texts = [*(spec.get("ContainerHierarchyTexts") or ()), spec.get("LeafNodeText") or ""]
    return " ".join(str(text) for text in texts if text)


def _failed(spec: dict[str, Any]) -> bool:
    return str(spec.get("State")) not in {"passed", "skipped", "pending"}


def _message(spec: dict[str, Any]) -> str:
    failure = spec.get("Failure") or {}
    text = str(failure.get("Message") or failure.get("ForwardedPanic") or "").strip()
    return text[:_MESSAGE_LIMIT]


def _result(spec: dict[str, Any] | None, test: Test, lab: str, ended: str) -> ConformanceResult:
    state = _STATES.get(str((spec or {}).get("State")), ResultState.FAILED)
    message = _message(spec) if spec is not None else ""
    if spec is None or (state is ResultState.SKIPPED and not message):
        # Ginkgo has the same word for a test that was never reached.
        return ConformanceResult(lab=lab, test=test, state=ResultState.FAILED, message=ended or NOT_RUN)
    if state is ResultState.FAILED and not message:
        message = f"it ended as {spec.get('State')}"
    return ConformanceResult(
        lab=lab, test=test, state=state, seconds=int(spec.get("RunTime") or 0) / 1e9, message=message
    )
