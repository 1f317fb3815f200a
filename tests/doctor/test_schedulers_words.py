"""Where no node is known a pod that waits has the scheduler's words for its cause."""

from __future__ import annotations

from typing import Any

from kgpu.doctor.model import LIKELY
from tests.doctor.small import node, report, waits

MESSAGE = "0/3 nodes are available: 3 Insufficient nvidia.com/gpu."


def says(pod: dict[str, Any], message: str = MESSAGE) -> dict[str, Any]:
    condition = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": message}
    return {**pod, "status": {**pod.get("status", {}), "conditions": [condition]}}


def test_the_pod_waits_in_the_schedulers_words() -> None:
    found = report(says(waits(gpus=16)))
    (one,) = found.real
    assert (one.id, one.confidence) == ("SCH-00", LIKELY)
    assert "asks for 16 nvidia.com/gpu" in one.cause
    assert '"0/3 nodes are available: 3 Insufficient nvidia.com/gpu"' in one.cause
    assert found.exit_code == 1


def test_pods_of_which_it_says_the_same_are_told_once() -> None:
    first, second = waits(), waits()
    second["metadata"] = {**second["metadata"], "name": "another"}
    (one,) = report(says(first), says(second)).real
    assert len(one.pods) == 2
    assert "(and 1 other pod)" in one.cause


def test_without_a_word_of_it_nothing_is_claimed() -> None:
    found = report(says(waits(), ""))
    assert (found.real, found.exit_code) == ((), 2)


def test_where_nodes_are_known_the_cause_is_worked_out() -> None:
    (one,) = report(node(), says(waits(gpus=99))).real
    assert "the scheduler says" not in one.cause
