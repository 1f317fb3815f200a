"""What ``kgpu operations show`` says of a driver's upgrade."""

from __future__ import annotations

from typing import Any

import pytest

from kgpu.cli._operations import as_data, details
from kgpu.formats.crd.nodeoperation import WAITING_FOR_PODS
from kgpu.operations.model import Operation, read_operation
from tests.operations.sim_drivers import wanted

SINCE = "2026-01-02T03:04:05Z"
WAITING: dict[str, Any] = {
    "phase": "Draining", "reason": WAITING_FOR_PODS, "phaseSince": SINCE, "startedAt": SINCE, "nodeUID": "n",
    "before": {},
}  # fmt: skip


def upgrade(status: dict[str, Any] | None = None, **spec: Any) -> Operation:
    rollout = {"name": "clusterpolicy-p", "maxParallel": 2, "maxUnavailable": "25%"}
    whole = {"nodeName": "n1", "type": "DriverUpgrade", "driver": wanted(), "rollout": rollout, **spec}
    found = read_operation({"metadata": {"name": "m", "uid": "u"}, "spec": whole, "status": status or {}})
    assert isinstance(found, Operation)
    return found


def row(operation: Operation, name: str) -> str:
    return next((line[10:].strip() for line in details(operation) if line.startswith(name)), "")


def test_the_driver_and_the_rollout_with_its_budget_are_said() -> None:
    shown = upgrade()
    said = "550.90.07 -> 570.86.15 (DaemonSet gpu-operator/nvidia-driver-daemonset)"
    assert row(shown, "driver") == said
    budget = "at most 2 at a time, maxUnavailable 25%, stops after 2 failures in a row"
    assert row(shown, "rollout") == f"clusterpolicy-p: {budget}"
    assert as_data(shown)["spec"]["driver"]["fromVersion"] == "550.90.07"
    assert as_data(shown)["spec"]["rollout"]["maxParallel"] == 2


@pytest.mark.parametrize(("version", "image", "said"), [("", "i:1", "i:1"), ("", "", "digest 2")])
def test_releases_that_nobody_knows(version: str, image: str, said: str) -> None:
    shown = upgrade(driver={**wanted(), "version": version, "image": image, "fromVersion": ""})
    assert row(shown, "driver").startswith(f"unknown -> {said} ")


def test_a_rollout_without_limits() -> None:
    shown = upgrade(rollout={"name": "r", "maxParallel": 0, "maxUnavailable": 3, "stopAfterFailures": 0})
    assert row(shown, "rollout") == "r: any number at a time, maxUnavailable 3"


def test_pods_that_are_waited_for_and_since_when() -> None:
    drain = {"waitFor": {"podSelector": "app=job", "timeoutSeconds": 60}}
    assert row(upgrade(WAITING, drain=drain), "waits for") == f"pods with app=job, since {SINCE}, at most 60 s"
    assert row(upgrade(drain={"waitFor": {"podSelector": "app=job"}}), "waits for") == (
        "pods with app=job, without a limit"
    )
    over = {"phase": "Complete", "result": "Succeeded"}
    assert row(upgrade(over, drain=drain), "waits for") == ""


def test_an_operation_of_another_type_has_none_of_them() -> None:
    found = read_operation({"metadata": {"name": "m", "uid": "u"}, "spec": {"nodeName": "n1", "type": "Maintenance"}})
    assert not {"driver", "rollout", "waits"} & {line.split()[0] for line in details(found)}
