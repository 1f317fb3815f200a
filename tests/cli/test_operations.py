"""``kgpu node`` and ``kgpu operations`` over the API in memory."""

from __future__ import annotations

import json
from typing import Any

import pytest

from kgpu.cli import _operations
from kgpu.cli.main import main
from kgpu.formats import names
from kgpu.formats.gpu_report import ReportedGpu, encode, report
from kgpu.formats.xid.action import Action
from kgpu.kube.kinds import NODE_OPERATIONS
from kgpu.kube.port import LEASES, NODES, Object, Resource
from tests.operations.world import Cluster

Said = pytest.CaptureFixture[str]
SINCE = "2023-11-14T22:13:20Z"


class Moving(Cluster):
    """Each look at an operation sees its next status."""

    def __init__(self) -> None:
        super().__init__()
        self.statuses: list[Object] = []

    async def get(self, resource: Resource, name: str, **where: Any) -> Object | None:
        known = await super().get(resource, name, **where)
        if resource == NODE_OPERATIONS and known is not None and self.statuses:
            known = self.put(NODE_OPERATIONS, {**known, "status": self.statuses.pop(0)})
        return known


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> Moving:
    cluster = Moving()
    cluster.node("n1")
    cluster.node("n2")

    async def close() -> None:
        pass

    monkeypatch.setattr(cluster, "close", close)
    monkeypatch.setattr("kgpu.kube.client.connect", lambda *_args, **_kwargs: cluster)
    monkeypatch.setattr(_operations, "POLL_S", 0.0)
    return cluster


def made(cluster: Cluster) -> Object:
    (stored,) = (stored.obj for (resource, _, _), stored in cluster._objects.items() if resource == NODE_OPERATIONS)
    return stored


def status(phase: str, message: str = "", **more: object) -> Object:
    over = {"result": "Succeeded"} if phase in {"Complete", "Failed", "Restoring"} else {}
    return {"phase": phase, "message": message, "phaseSince": SINCE, "nodeUID": "u", **over, **more}


def test_a_maintenance_is_made_and_followed_until_the_node_is_empty(cluster: Moving, capsys: Said) -> None:
    cluster.statuses = [
        {}, status("Pending", "waits"), status("Pending", "waits"), status("Draining", "1 pod"), status("Acting", "held"),
    ]  # fmt: skip
    assert (
        main(["kgpu", "node", "maintain", "n1", "--reason", "fans", "--for", "2h", "--timeout", "90s", "--force"]) == 0
    )
    obj = made(cluster)
    assert obj["metadata"]["name"].startswith("maintenance-n1-")
    spec = obj["spec"]
    assert (spec["nodeName"], spec["reason"], spec["durationSeconds"]) == ("n1", "fans", 7200)
    assert spec["drain"] == {"timeoutSeconds": 90, "force": True}
    assert spec["nodeUID"]
    name = obj["metadata"]["name"]
    assert capsys.readouterr().out.splitlines() == [
        f"n1: {name} is made", "n1: Pending: waits", "n1: Draining: 1 pod", "n1: Acting: held",
    ]  # fmt: skip


def test_a_maintenance_that_fails_is_exit_code_3(cluster: Moving, capsys: Said) -> None:
    cluster.statuses = [status("Failed", "pods may not go", result="PermanentFailure")]
    assert main(["kgpu", "node", "maintain", "n1", "-o", "json"]) == 3
    (row,) = json.loads(capsys.readouterr().out)
    assert (row["status"]["phase"], row["spec"]["nodeName"]) == ("Failed", "n1")


def test_detach_returns_at_once(cluster: Moving) -> None:
    assert main(["kgpu", "node", "maintain", "n1", "n2", "n1", "--detach"]) == 0
    assert len([row for row in cluster.calls if row[:2] == ("create", "nodeoperations")]) == 2


def test_an_operation_that_nobody_takes_is_told(cluster: Moving, capsys: Said, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_operations, "UNSEEN_S", -1.0)
    cluster.statuses = [{}, {}, status("Acting", "held")]
    assert main(["kgpu", "node", "maintain", "n1"]) == 0
    assert "no operator has looked at it yet" in capsys.readouterr().out


def test_a_deleted_operation_ends_the_wait(cluster: Moving, capsys: Said, monkeypatch: pytest.MonkeyPatch) -> None:
    async def gone(resource: Resource, name: str, **where: Any) -> Object | None:
        return None if resource == NODE_OPERATIONS else await Cluster.get(cluster, resource, name, **where)

    monkeypatch.setattr(cluster, "get", gone)
    assert main(["kgpu", "node", "maintain", "n1"]) == 3
    assert "it was deleted" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["nowhere"], "the cluster has no node nowhere"),
        (["n1", "--for", "soon"], "--for"),
        (["n1", "--timeout", "0s"], "--timeout is 0s"),
        (["n1", "--kubeconfig", "/nowhere"], "there is no file /nowhere"),
    ],
)
@pytest.mark.usefixtures("cluster")
def test_what_is_wrong_is_said(words: list[str], said: str, capsys: Said) -> None:
    assert main(["kgpu", "node", "maintain", *words]) == 2
    assert said in capsys.readouterr().err


def test_a_node_has_one_operation_at_a_time(cluster: Moving, capsys: Said) -> None:
    cluster.operation("m", "n1")
    assert main(["kgpu", "node", "maintain", "n1"]) == 2
    assert "n1 has an operation already: Maintenance m, Pending" in capsys.readouterr().err


def test_a_cluster_without_the_kind_says_what_to_do(cluster: Moving, capsys: Said) -> None:
    cluster.unserved.add(NODE_OPERATIONS)
    assert main(["kgpu", "operations"]) == 2
    assert "the cluster has no kind NodeOperation" in capsys.readouterr().err


def test_a_reboot_is_followed_to_its_end(cluster: Moving, capsys: Said) -> None:
    cluster.statuses = [status("Acting", "asked"), status("Verifying", "booted"), status("Complete", "well")]
    assert main(["kgpu", "node", "reboot", "n1", "--reboot-timeout", "1h"]) == 0
    spec = made(cluster)["spec"]
    assert (spec["type"], spec["actTimeoutSeconds"]) == ("Reboot", 3600)
    assert capsys.readouterr().out.splitlines()[1:] == [
        "n1: Acting: asked",
        "n1: Verifying: booted",
        "n1: Complete: well",
    ]


def test_a_reboot_that_fails_is_exit_code_three(cluster: Moving, capsys: Said) -> None:
    cluster.statuses = [status("Failed", "it has not booted", result="TransientFailure")]
    assert main(["kgpu", "node", "reboot", "n1", "-o", "json"]) == 3
    (row,) = json.loads(capsys.readouterr().out)
    assert row["status"]["result"] == "TransientFailure"


def ill(cluster: Cluster, *gpus: ReportedGpu) -> None:
    """The agent of n1 reports ill GPUs."""
    known = cluster.object(NODES, "n1")
    metadata = {**known["metadata"], "annotations": {names.GPUS_ANNOTATION: encode(report(gpus, count=8, boot="b"))}}
    conditions = [{"type": names.GPUS_HEALTHY_CONDITION, "status": "False"}]
    cluster.put(NODES, {**known, "metadata": metadata, "status": {**known["status"], "conditions": conditions}})


def test_the_gpus_that_need_a_reset_are_reset(cluster: Moving, capsys: Said) -> None:
    ill(
        cluster,
        ReportedGpu(uuid="GPU-1", action=Action.RESET_GPU, what="Xid 48"),
        ReportedGpu(uuid="GPU-2", action=Action.REBOOT, what="Xid 79"),
        ReportedGpu(uuid="GPU-3", action=Action.RESET_GPU, what="Xid 48", muted="by the admin"),
        ReportedGpu(uuid="GPU-4", action=Action.RESET_GPU, what="a row waits to be remapped", works=True),
    )
    cluster.statuses = [status("Verifying", "reset"), status("Complete", "well")]
    assert main(["kgpu", "node", "reset-gpu", "n1"]) == 0
    spec = made(cluster)["spec"]
    assert (spec["type"], list(spec["gpus"])) == ("GpuReset", ["GPU-1"])
    assert capsys.readouterr().out.splitlines()[1:] == ["n1: Verifying: reset", "n1: Complete: well"]


def test_where_no_gpu_needs_a_reset_one_has_to_be_named(cluster: Moving, capsys: Said) -> None:
    assert main(["kgpu", "node", "reset-gpu", "n1"]) == 2
    assert "no GPU of n1 needs a reset" in capsys.readouterr().err
    assert main(["kgpu", "node", "reset-gpu", "n1", "--gpu", "GPU-7", "--gpu", "GPU-7", "--detach"]) == 0
    assert list(made(cluster)["spec"]["gpus"]) == ["GPU-7"]


def test_gpus_are_emptied_and_kept_so(cluster: Moving, capsys: Said) -> None:
    cluster.statuses = [status("Draining", "1 pod"), status("Acting", "held")]
    assert main(["kgpu", "node", "drain-gpu", "n1", "--gpu", "GPU-7", "--for", "2h"]) == 0
    spec = made(cluster)["spec"]
    assert (spec["type"], list(spec["gpus"]), spec["durationSeconds"]) == ("Maintenance", ["GPU-7"], 7200)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["drain-gpu", "n1"], "no GPU is named"),
        (["drain-gpu", "n1", "n2", "--gpu", "GPU-7"], "GPUs of several nodes"),
        (["reset-gpu", "n1", "n2", "--gpu", "GPU-7"], "GPUs of several nodes"),
        (["reset-gpu", "n9"], "no node n9"),
    ],
)
def test_what_is_wrong_with_gpus_is_said(words: list[str], said: str, cluster: Moving, capsys: Said) -> None:
    assert main(["kgpu", "node", *words]) == 2
    assert said in capsys.readouterr().err


def test_a_dry_run_for_gpus_names_the_pods_that_may_hold_them(cluster: Moving, capsys: Said) -> None:
    cluster.pod("web-1", "n1")
    limits = {"resources": {"limits": {"nvidia.com/gpu": "1"}}}
    cluster.pod("train", "n1", spec={"containers": [limits]})
    cluster.pod("notebook", "n1", owner=None, spec={"containers": [limits]})
    assert main(["kgpu", "node", "reset-gpu", "n1", "--gpu", "GPU-7", "--dry-run"]) == 0
    assert capsys.readouterr().out.splitlines() == [
        "n1: stays schedulable; of its pods with GPUs, those that hold one of these:",
        "  MAY NOT GO  default/notebook: no controller would recreate it (force)",
        "  would go    default/train",
    ]


def test_a_reboot_is_not_resumed(cluster: Moving, capsys: Said) -> None:
    cluster.operation("m", "n1", type="Reboot")
    assert main(["kgpu", "operations", "resume", "m"]) == 2
    assert "kgpu operations cancel m" in capsys.readouterr().err
    assert main(["kgpu", "operations", "cancel", "m"]) == 0


def test_a_dry_run_says_who_would_go_and_does_nothing(cluster: Moving, capsys: Said) -> None:
    cluster.pod("web-1", "n1")
    cluster.pod("agent-1", "n1", owner=("DaemonSet", "agent"))
    cluster.daemon_set("agent")
    cluster.pod("operator-1", "n1")
    cluster.pod("operator-2", "n1")
    lease = {"namespace": "default", "name": names.OPERATOR_LEASE}
    cluster.put(LEASES, {"metadata": lease, "spec": {"holderIdentity": "operator-1_6b1c"}})
    assert main(["kgpu", "node", "maintain", "n1", "--dry-run"]) == 0
    assert capsys.readouterr().out.splitlines() == [
        "n1: would be cordoned",
        "  stays       default/agent-1: a DaemonSet's",
        "  stays       default/operator-1: it is kgpu's own operator, which has to give the node back",
        "  would go    default/operator-2",
        "  would go    default/web-1",
    ]
    cluster.pod("notebook", "n1", owner=None)
    assert main(["kgpu", "node", "maintain", "n1", "--dry-run"]) == 3
    out = capsys.readouterr().out
    assert "  MAY NOT GO  default/notebook: no controller would recreate it (force)" in out
    assert "it would fail before any pod is asked to go" in out
    assert main(["kgpu", "node", "maintain", "n1", "--dry-run", "-o", "json"]) == 3
    (row,) = json.loads(capsys.readouterr().out)
    assert {pod["name"]: pod["fate"] for pod in row["pods"]} == {
        "agent-1": "leave",
        "operator-1": "leave",
        "operator-2": "evict",
        "web-1": "evict",
        "notebook": "refuse",
    }
    assert not [row for row in cluster.calls if row[0] == "create"]


def test_the_list_has_what_is_not_over(cluster: Moving, capsys: Said) -> None:
    assert main(["kgpu", "operations"]) == 0
    assert "nothing is being done to nodes" in capsys.readouterr().err
    cluster.operation("m", "n1")
    cluster.put(NODE_OPERATIONS, {**cluster.object(NODE_OPERATIONS, "m"), "status": status("Acting", "held")})
    cluster.operation("old", "n2")
    over = status("Complete", "cancelled", result="Cancelled")
    cluster.put(NODE_OPERATIONS, {**cluster.object(NODE_OPERATIONS, "old"), "status": over})
    cluster.operation("later", "n2", type="Repaint")
    main(["kgpu", "operations", "list"])
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split() == ["NAME", "NODE", "TYPE", "PHASE", "SINCE", "WHAT"]
    assert [line.split()[0] for line in lines[1:]] == ["later", "m"]
    assert "this version can't read it" in lines[1]
    main(["kgpu", "operations", "list", "--all", "--node", "n2"])
    out = capsys.readouterr().out
    assert "Complete (Cancelled)" in out
    assert "n1" not in out
    main(["kgpu", "operations", "-o", "json"])
    rows = {row["name"]: row for row in json.loads(capsys.readouterr().out)}
    assert rows["m"]["status"]["phase"] == "Acting"
    assert "Repaint" in rows["later"]["unreadable"]


def test_show_has_everything(cluster: Moving, capsys: Said) -> None:
    cluster.operation("m", "n1", reason="fans", requestedBy="jo")
    drain = {"total": 3, "gone": 1, "waiting": [{"namespace": "ml", "name": "llm-0", "why": "its budget"}]}
    condition = {"type": "Cordoned", "status": "True", "reason": "Cordoned", "message": "", "lastTransitionTime": SINCE}
    known = {
        **cluster.object(NODE_OPERATIONS, "m"),
        "status": status("Draining", "3 pods", drain=drain, conditions=[condition]),
    }
    cluster.put(NODE_OPERATIONS, known)
    assert main(["kgpu", "operations", "show", "m"]) == 0
    out = capsys.readouterr().out
    for said in ("by         jo", "reason     fans", "1 of 3 gone", "ml/llm-0: its budget", f"{SINCE}  Cordoned"):
        assert said in out


@pytest.mark.parametrize(("word", "field"), [("approve", "approved"), ("cancel", "cancel"), ("resume", "resume")])
def test_a_word_of_a_person(cluster: Moving, capsys: Said, word: str, field: str) -> None:
    cluster.operation("m", "n1", approved=False)
    assert main(["kgpu", "operations", word, "m"]) == 0
    assert cluster.object(NODE_OPERATIONS, "m")["spec"][field] is True
    assert capsys.readouterr().out.startswith("m ")
    assert main(["kgpu", "operations", word, "nowhere"]) == 2
    assert "there is no operation nowhere" in capsys.readouterr().err
    cluster.put(
        NODE_OPERATIONS, {**cluster.object(NODE_OPERATIONS, "m"), "status": status("Complete", result="Succeeded")}
    )
    assert main(["kgpu", "operations", word, "m"]) == 2
    assert "m is over: Complete, Succeeded" in capsys.readouterr().err


def test_the_plan_of_an_operation(cluster: Moving, capsys: Said) -> None:
    cluster.pod("notebook", "n1", owner=None)
    cluster.operation("m", "n1")
    assert main(["kgpu", "operations", "plan", "m"]) == 3
    assert "MAY NOT GO  default/notebook" in capsys.readouterr().out
    cluster.operation("f", "n1", drain={"force": True})
    assert main(["kgpu", "operations", "plan", "f"]) == 0


@pytest.mark.parametrize(
    ("seconds", "text"), [(-5, "0s"), (45, "45s"), (119, "119s"), (120, "2m"), (7300, "2h"), (200_000, "2d")]
)
def test_ages_are_kubectls(seconds: float, text: str) -> None:
    assert _operations.short(seconds) == text
