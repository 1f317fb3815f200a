"""The upgrade of a driver is told before it is done: by ``kgpu node upgrade-driver --dry-run`` and ``operations plan``."""

from __future__ import annotations

import json
from typing import Any

import pytest

from kgpu.cli._upgrade_steps import span
from kgpu.cli.main import main
from kgpu.formats.crd.nodeoperation import ROLLOUT_STOPPED, WAITING_FOR_PODS
from kgpu.kube.kinds import NODE_OPERATIONS
from kgpu.kube.port import NODES, PODS, Object
from tests.cli.test_operations import Moving, Said, cluster, with_driver
from tests.operations.sim_drivers import wanted

__all__ = ["cluster"]

GPU = {"containers": [{"resources": {"limits": {"nvidia.com/gpu": "1"}}}]}
SINCE = "2026-01-02T03:04:05Z"
BEGUN: Object = {"phaseSince": SINCE, "startedAt": SINCE, "nodeUID": "u", "before": {}}
EXCHANGE = (
    "the node's agent lets go of the driver (60 s at most), the driver's pod gpu-operator/driver-x is deleted, and the "
    "next one loads 570.133.20 (at most 1h)"
)
ROLLOUT = {"name": "clusterpolicy-p", "maxParallel": 1, "maxUnavailable": "25%"}


def upgrade(cluster: Moving, name: str, node: str, status: Object | None = None, **spec: Any) -> None:
    usual = {"driver": wanted(), "drain": {"onlyGpuPods": True}}
    cluster.operation(name, node, type="DriverUpgrade", **{**usual, **spec})
    if status:
        known = cluster.object(NODE_OPERATIONS, name)
        cluster.put(NODE_OPERATIONS, {**known, "status": status})


def plan(capsys: Said, *names: str) -> list[Object]:
    capsys.readouterr()
    assert main(["kgpu", "operations", "plan", *names, "-o", "json"]) in (0, 3)
    rows: list[Object] = json.loads(capsys.readouterr().out)
    return rows


def step(row: Object, name: str) -> Object:
    return next((one for one in row["steps"] if one["name"] == name), {})


def test_a_dry_run_says_every_step_in_its_order_with_pods_and_limits(cluster: Moving, capsys: Said) -> None:
    with_driver(cluster, running="1")
    cluster.pod("train", "n1", spec=GPU)
    cluster.pod("web", "n1")
    assert main(["kgpu", "node", "upgrade-driver", "n1", "--dry-run"]) == 0
    assert capsys.readouterr().out.splitlines() == [
        "n1: driver 550.54.15 -> 570.133.20 (DaemonSet gpu-operator/driver)",
        "  1. begin      it begins when the budget of all operations on nodes lets it",
        "  2. cordon     no new pod comes to the node",
        "  3. empty      pods with GPUs are evicted; if one is left then, it fails (at most 5m)",
        "     would go    default/train",
        f"  4. exchange   {EXCHANGE}",
        "  5. verify     the node is Ready and validated, and offers the GPUs that it had (at most 15m)",
        "  6. give back  pods may come again",
    ]  # fmt: skip
    assert not [row for row in cluster.calls if row[0] == "create"]


def test_what_it_empties_and_how_long_follow_the_options(cluster: Moving, capsys: Said) -> None:
    with_driver(cluster, running="1")
    cluster.pod("web", "n1")
    options = ["--whole-node", "--timeout", "90s", "--on-timeout", "force", "--upgrade-timeout", "2h", "--ask"]
    assert main(["kgpu", "node", "upgrade-driver", "n1", "--dry-run", *options]) == 0
    out = capsys.readouterr().out
    assert "  1. begin      it waits until somebody approves it\n" in out
    assert "pods are evicted; what disruption budgets still hold then is deleted (at most 90s)" in out
    assert "     would go    default/web\n" in out
    assert "570.133.20 (at most 2h)" in out


def test_a_pod_with_a_gpu_that_may_not_go_makes_it_fail(cluster: Moving, capsys: Said) -> None:
    with_driver(cluster, running="1")
    cluster.pod("notebook", "n1", owner=None, spec=GPU)
    cluster.pod("shell", "n1", owner=None)
    assert main(["kgpu", "node", "upgrade-driver", "n1", "--dry-run"]) == 3
    out = capsys.readouterr().out
    assert "     MAY NOT GO  default/notebook: no controller would recreate it (force)" in out
    assert "n1: it would fail before any pod is asked to go" in out
    assert "shell" not in out
    assert main(["kgpu", "node", "upgrade-driver", "n1", "--dry-run", "-o", "json"]) == 3
    (row,) = json.loads(capsys.readouterr().out)
    assert (row["refused"], row["ofGpus"]) == (True, False)


def test_a_dry_run_says_that_the_node_is_cordoned_or_has_an_operation(cluster: Moving, capsys: Said) -> None:
    with_driver(cluster, running="1")
    node = cluster.object(NODES, "n1")
    cluster.put(NODES, {**node, "spec": {"unschedulable": True}})
    cluster.operation("m", "n1")
    assert main(["kgpu", "node", "upgrade-driver", "n1", "--dry-run"]) == 0
    out = capsys.readouterr().out
    assert "none can be made while n1 has the operation m, which is Pending" in out
    assert "it is cordoned already" in out
    assert "it stays cordoned, as it was before" in out


def test_a_node_without_such_a_driver_is_refused_in_a_dry_run_too(cluster: Moving, capsys: Said) -> None:
    assert main(["kgpu", "node", "upgrade-driver", "n1", "--dry-run"]) == 2
    assert "which driver n1 is to run is not known" in capsys.readouterr().err


def test_the_data_has_the_driver_the_steps_and_where_it_is(cluster: Moving, capsys: Said) -> None:
    upgrade(cluster, "d1", "n1", {**BEGUN, "phase": "Acting"})
    (row,) = plan(capsys, "d1")
    assert (row["type"], row["operation"], row["phase"]) == ("DriverUpgrade", "d1", "Acting")
    assert row["driver"] == wanted()
    assert [one["name"] for one in row["steps"]] == ["begin", "cordon", "empty", "exchange", "verify", "give back"]
    assert [one["name"] for one in row["steps"] if one["now"]] == ["exchange"]
    assert step(row, "begin")["what"] == "it has begun"
    assert [one["atMostSeconds"] for one in row["steps"]] == [None, None, 300.0, 3600.0, 900.0, None]


def test_pods_that_are_waited_for_are_named_and_have_no_limit_with_0(cluster: Moving, capsys: Said) -> None:
    for name, labels in (("job-b", {"job": "x"}), ("job-a", {"job": "x"}), ("web", {})):
        cluster.pod(name, "n1", metadata={"labels": labels})
    wait = {"podSelector": "job=x"}
    upgrade(cluster, "d1", "n1", {**BEGUN, "phase": "Draining", "reason": WAITING_FOR_PODS}, drain={"waitFor": wait})
    (row,) = plan(capsys, "d1")
    assert step(row, "wait") == {
        "name": "wait", "phase": "Draining", "atMostSeconds": None, "now": True,
        "what": "for pods with job=x to end by themselves: default/job-a, default/job-b",
    }  # fmt: skip
    assert not step(row, "empty")["now"]
    upgrade(cluster, "d2", "n2", drain={"waitFor": {**wait, "timeoutSeconds": 60}})
    (row,) = plan(capsys, "d2")
    assert step(row, "wait")["atMostSeconds"] == 60.0
    assert step(row, "wait")["what"].endswith(": none is there now")


def test_what_it_waits_for_before_it_begins(cluster: Moving, capsys: Said) -> None:
    upgrade(cluster, "d1", "n1", {**BEGUN, "phase": "Draining"}, rollout=ROLLOUT)
    upgrade(cluster, "d2", "n2", rollout=ROLLOUT)
    upgrade(cluster, "other", "n9", rollout={**ROLLOUT, "name": "another"})
    cluster.node("n3")
    why = "the rollout clusterpolicy-p has stopped after 2 failures in a row (n7: no headers)"
    waits = {"phase": "Pending", "reason": ROLLOUT_STOPPED, "message": why, "phaseSince": SINCE}
    upgrade(cluster, "d3", "n3", waits, rollout=ROLLOUT)
    (row,) = plan(capsys, "d3")
    said = step(row, "begin")
    assert said["now"] is True
    assert said["what"] == f"{why}; before it: n1 (d1, Draining), n2 (d2, Pending)"
    (row,) = plan(capsys, "d2")
    assert step(row, "begin")["what"].endswith("before it: n1 (d1, Draining)")


def test_one_that_waits_for_a_person_says_how_to_let_it_begin(cluster: Moving, capsys: Said) -> None:
    upgrade(cluster, "d1", "n1", approved=False)
    assert main(["kgpu", "operations", "plan", "d1"]) == 0
    assert "it waits until somebody approves it: kgpu operations approve d1  <- now" in capsys.readouterr().out


def test_one_that_is_over_has_no_steps(cluster: Moving, capsys: Said) -> None:
    upgrade(cluster, "d1", "n1", {**BEGUN, "phase": "Complete", "result": "Succeeded"})
    assert main(["kgpu", "operations", "plan", "d1"]) == 0
    first = "n1: driver 550.90.07 -> 570.86.15 (DaemonSet gpu-operator/nvidia-driver-daemonset): d1 is over, Succeeded"
    assert capsys.readouterr().out.splitlines() == [first]


def test_several_plans_come_in_the_order_in_which_they_are_named(cluster: Moving, capsys: Said) -> None:
    upgrade(cluster, "d1", "n1")
    upgrade(cluster, "d2", "n2")
    assert [row["node"] for row in plan(capsys, "d2", "d1")] == ["n2", "n1"]


def test_the_list_says_from_which_driver_to_which(cluster: Moving, capsys: Said) -> None:
    upgrade(cluster, "d1", "n1", {**BEGUN, "phase": "Acting", "message": "the driver's pod: it pulls"})
    assert main(["kgpu", "operations"]) == 0
    assert "550.90.07 -> 570.86.15: the driver's pod: it pulls" in capsys.readouterr().out


def test_a_pod_of_the_driver_that_is_ending_is_not_the_one_that_goes(cluster: Moving, capsys: Said) -> None:
    with_driver(cluster, running="1")
    (pod,) = (row.obj for (kind, _, _), row in cluster._objects.items() if kind == PODS)
    pod["metadata"]["deletionTimestamp"] = SINCE
    cluster.put(PODS, pod)
    assert main(["kgpu", "node", "upgrade-driver", "n1", "--dry-run"]) == 0
    assert "the driver's pod is deleted" in capsys.readouterr().out


EVIL = "\x1b[2J\u202e\nn1: all is well\r"


def test_what_whoever_asks_writes_does_not_drive_the_terminal(cluster: Moving, capsys: Said) -> None:
    cluster.pod("job", "n1", metadata={"labels": {"job": "x"}})
    driver = wanted() | {"version": EVIL, "fromVersion": EVIL, "daemonSet": EVIL}
    rollout = {**ROLLOUT, "name": EVIL}
    drain = {"waitFor": {"podSelector": f"job=x,{EVIL}"}}
    status = {"phase": "Pending", "phaseSince": SINCE, "message": EVIL}
    upgrade(cluster, "d1", "n1", status, driver=driver, rollout=rollout, drain=drain, reason=EVIL, requestedBy=EVIL)
    for words in (["list"], ["show", "d1"], ["plan", "d1"]):
        assert main(["kgpu", "operations", *words]) in (0, 3)
        out = capsys.readouterr().out
        assert "all is well" in out, words
        assert out.replace("\n", "").isprintable(), words
        assert not any(line.startswith("n1: all is well") for line in out.splitlines()), words


@pytest.mark.parametrize(
    ("seconds", "said"),
    [(1, "1s"), (90, "90s"), (60, "1m"), (5400, "90m"), (3600, "1h"), (86400, "24h"), (2**31 - 1, "68 years")],
)
def test_limits_are_said_as_people_give_them(seconds: float, said: str) -> None:
    assert span(seconds) == said
