"""``kgpu node`` and ``kgpu operations`` over the API in memory."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

import pytest

from kgpu.base.errors import ConfigError
from kgpu.cli import _operations
from kgpu.cli.main import main
from kgpu.formats import names
from kgpu.formats.crd.nodeoperation import NodeOperationSpec
from kgpu.formats.gpu_report import ReportedGpu, encode, report
from kgpu.formats.xid.action import Action
from kgpu.kube.kinds import DAEMON_SETS, DISRUPTION_BUDGETS, NODE_OPERATIONS
from kgpu.kube.port import CONFIG_MAPS, LEASES, NODES, PODS, KubeRefusedError, Object, Resource
from kgpu.operations.requests import make_operation
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


def a_driver(image: str, digest: str) -> Object:
    containers = [{"name": names.DRIVER_CONTAINER, "image": image,
                   "env": [{"name": names.ENV_DRIVER_CONFIG_DIGEST, "value": digest}]}]  # fmt: skip
    return {
        "metadata": {"annotations": {names.DRIVER_DIGEST_VERSION: names.THIS_DRIVER_DIGEST_VERSION}},
        "spec": {"containers": containers, "nodeSelector": {"gpus": "true"}},
    }


def with_driver(cluster: Cluster, *, running: str, node: str = "n1", owned: bool = True) -> None:
    """A DaemonSet that installs driver 570 on nodes with GPUs, and the node's pod of it, or one that nobody owns."""
    component = {names.COMPONENT_LABEL: names.DRIVER_COMPONENT}
    template = a_driver("nvcr.io/nvidia/driver:570.133.20-ubuntu22.04", "2")
    place = {"name": "driver", "namespace": "gpu-operator", "labels": component}
    cluster.put(DAEMON_SETS, {"metadata": place, "spec": {"template": template}})
    known = cluster.object(NODES, node)
    known["metadata"]["labels"]["gpus"] = "true"
    cluster.put(NODES, known)
    pod = a_driver("nvcr.io/nvidia/driver:550.54.15-ubuntu22.04", running)
    owners = [{"kind": "DaemonSet", "name": "driver", "controller": True, "uid": "d"}] if owned else []
    own = {"name": "driver-x", "namespace": "gpu-operator", "labels": component, "ownerReferences": owners}
    pod["metadata"] |= own
    pod["spec"]["nodeName"] = node
    pod["status"] = {"conditions": [{"type": "Ready", "status": "True"}]}
    cluster.put(PODS, pod)


def test_an_upgrade_of_a_driver_knows_what_the_node_is_to_run(cluster: Moving, capsys: Said) -> None:
    with_driver(cluster, running="1")
    assert main(["kgpu", "node", "upgrade-driver", "n1", "--upgrade-timeout", "2h", "--detach"]) == 0
    spec = made(cluster)["spec"]
    assert (spec["type"], spec["actTimeoutSeconds"], spec["drain"]["onlyGpuPods"]) == ("DriverUpgrade", 7200, True)
    assert spec["driver"] == {
        "namespace": "gpu-operator", "daemonSet": "driver", "digest": "2", "version": "570.133.20",
        "image": "nvcr.io/nvidia/driver:570.133.20-ubuntu22.04", "fromVersion": "550.54.15",
    }  # fmt: skip
    assert "driverupgrade-n1-" in capsys.readouterr().out


def test_a_driver_that_runs_already_or_that_nobody_installs_is_not_upgraded(cluster: Moving, capsys: Said) -> None:
    with_driver(cluster, running="2")
    assert main(["kgpu", "node", "upgrade-driver", "n1"]) == 2
    assert "is of driver 570.133.20 already" in capsys.readouterr().err
    assert main(["kgpu", "node", "upgrade-driver", "n2"]) == 2
    assert "the DaemonSets that install one there are none" in capsys.readouterr().err
    assert main(["kgpu", "node", "upgrade-driver", "n9"]) == 2
    assert "no node n9" in capsys.readouterr().err


def test_a_driver_pod_that_nobody_owns_is_exchanged_even_if_it_is_of_that_driver(cluster: Moving) -> None:
    with_driver(cluster, running="2", owned=False)
    assert main(["kgpu", "node", "upgrade-driver", "n1", "--detach"]) == 0
    assert made(cluster)["spec"]["driver"]["digest"] == "2"


def test_a_pod_of_another_namespace_that_poses_as_a_driver_is_none(cluster: Moving) -> None:
    with_driver(cluster, running="1")
    posing = a_driver("evil:570.1-ubuntu22.04", "2")
    labels = {names.COMPONENT_LABEL: names.DRIVER_COMPONENT}
    posing["metadata"] |= {"name": "a", "namespace": "default", "labels": labels}
    posing["spec"]["nodeName"] = "n1"
    cluster.put(PODS, posing)
    assert main(["kgpu", "node", "upgrade-driver", "n1", "--detach"]) == 0
    assert made(cluster)["spec"]["driver"]["fromVersion"] == "550.54.15"


def test_a_node_that_is_to_get_another_object_s_driver_is_upgraded_to_that(cluster: Moving) -> None:
    """After a failure it is a person who tries again; by its labels the node is still the former DaemonSet's."""
    with_driver(cluster, running="2")
    known = cluster.object(DAEMON_SETS, "driver", "gpu-operator")
    cluster.put(DAEMON_SETS, {**known, "metadata": {**known["metadata"], "name": "next", "uid": "next"}})
    assert main(["kgpu", "node", "upgrade-driver", "n1"]) == 2, "by its labels it could be either's"
    node = cluster.object(NODES, "n1")
    node["metadata"]["annotations"] = {names.NEXT_DRIVER: "next"}
    cluster.put(NODES, node)
    assert main(["kgpu", "node", "upgrade-driver", "n1", "--detach"]) == 0
    assert made(cluster)["spec"]["driver"]["daemonSet"] == "next"


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


@pytest.mark.parametrize(
    ("words", "wanted"), [((), {}), (("--on-timeout", "fail"), {}), (("--on-timeout", "force"), {"onTimeout": "Force"})]
)
@pytest.mark.parametrize(
    "command", [("maintain",), ("reboot",), ("drain-gpu", "--gpu", "GPU-1"), ("reset-gpu", "--gpu", "GPU-1")]
)
def test_pods_past_budgets(cluster: Moving, command: tuple[str, ...], words: tuple[str, ...], wanted: Object) -> None:
    assert main(["kgpu", "node", *command, "n1", "--detach", *words]) == 0
    assert made(cluster)["spec"]["drain"] == {"timeoutSeconds": 300, **wanted}


def test_a_dry_run_says_what_would_be_forced(cluster: Moving, capsys: Said) -> None:
    cluster.pod("web-1", "n1", metadata={"labels": {"app": "web"}})
    cluster.pod("web-2", "n1")
    selector = {"matchLabels": {"app": "web"}}
    budget = {
        "metadata": {"name": "web", "namespace": "default"},
        "spec": {"selector": selector},
        "status": {"disruptionsAllowed": 0},
    }
    cluster.put(DISRUPTION_BUDGETS, budget)
    held = "  would go    default/web-1: its PodDisruptionBudget web allows no disruption now"
    assert main(["kgpu", "node", "maintain", "n1", "--dry-run"]) == 0
    assert held in capsys.readouterr().out.splitlines()
    forced = ["kgpu", "node", "maintain", "n1", "--dry-run", "--on-timeout", "force", "--timeout", "90s"]
    assert main(forced) == 0
    lines = capsys.readouterr().out.splitlines()
    assert f"{held}; after 90 s it would be deleted" in lines
    assert "  would go    default/web-2" in lines
    assert main([*forced, "-o", "json"]) == 0
    (row,) = json.loads(capsys.readouterr().out)
    assert {pod["name"]: pod["forced"] for pod in row["pods"]} == {"web-1": True, "web-2": False}


def _forgetting(cluster: Moving, monkeypatch: pytest.MonkeyPatch) -> None:
    """An API server whose definition of the kind is older."""
    create = cluster.create

    async def older(resource: Resource, obj: Object, **more: Any) -> Object:
        if resource == NODE_OPERATIONS:
            kept = {key: value for key, value in obj["spec"]["drain"].items() if key != "onTimeout"}
            obj = {**obj, "spec": {**obj["spec"], "drain": kept}}
        return await create(resource, obj, **more)

    monkeypatch.setattr(cluster, "create", older)


def test_an_older_definition_is_told_and_the_operation_cancelled(
    cluster: Moving, capsys: Said, monkeypatch: pytest.MonkeyPatch
) -> None:
    _forgetting(cluster, monkeypatch)
    assert main(["kgpu", "node", "reboot", "n1", "--detach", "--on-timeout", "force"]) != 0
    said = capsys.readouterr().err
    assert "has lost spec.drain.onTimeout; it is cancelled" in said
    assert "kgpu crds apply" in said
    assert made(cluster)["spec"]["cancel"] is True


def test_an_older_definition_is_told_to_who_may_not_cancel(
    cluster: Moving, capsys: Said, monkeypatch: pytest.MonkeyPatch
) -> None:
    _forgetting(cluster, monkeypatch)

    async def refused(*_args: object, **_more: object) -> Object:
        raise KubeRefusedError("no", "", "", code=403)

    monkeypatch.setattr(cluster, "patch", refused)
    assert main(["kgpu", "node", "reboot", "n1", "--detach", "--on-timeout", "force"]) != 0
    assert "it goes on without; to cancel it: kgpu operations cancel reboot-n1-" in capsys.readouterr().err


async def test_only_a_maintenance_lasts(cluster: Moving) -> None:
    spec = NodeOperationSpec(node_name="n1", type="Reboot", duration_seconds=60)
    with pytest.raises(ConfigError, match="a Reboot is to last 60 s"):
        await make_operation(cluster, "n1", spec)
    await make_operation(cluster, "n1", NodeOperationSpec(node_name="n1", type="Maintenance", duration_seconds=60))


def test_who_asks_waits_for_approval(cluster: Moving, capsys: Said) -> None:
    assert main(["kgpu", "node", "reboot", "n1", "--ask", "--reason", "kernel"]) == 0
    obj = made(cluster)
    assert obj["spec"]["approved"] is False
    name = obj["metadata"]["name"]
    assert capsys.readouterr().out == f"n1: {name} is made, and waits for approval: kgpu operations approve {name}\n"


@pytest.mark.parametrize("code", [403, 422])
def test_who_may_not_let_it_begin_is_told_to_ask(
    cluster: Moving, capsys: Said, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    said = f"nodeoperations is forbidden: ValidatingAdmissionPolicy '{names.APPROVAL_POLICY}' denied request: ..."

    async def refused(*_args: object, **_more: object) -> Object:
        raise KubeRefusedError("create nodeoperations was refused", "", "", code=code, message=said)

    cluster.operation("m", "n2", approved=False)
    monkeypatch.setattr(cluster, "patch", refused)
    assert main(["kgpu", "operations", "approve", "m"]) != 0
    error = capsys.readouterr().err
    assert "you may not approve m" in error
    assert "the ClusterRole kgpu-node-operations has that right" in error
    monkeypatch.setattr(cluster, "create", refused)
    assert main(["kgpu", "node", "reboot", "n1"]) != 0
    error = capsys.readouterr().err
    assert "you may not let a Reboot begin" in error
    assert "expected: the right to approve: the verb approve on nodeoperations.kgpu.dev" in error
    assert "to do: ask for it: the same command with --ask" in error


@pytest.mark.parametrize("message", ["no such right", "ValidatingAdmissionPolicy 'mine' denied request"])
def test_another_refusal_is_told_as_it_is(
    cluster: Moving, capsys: Said, monkeypatch: pytest.MonkeyPatch, message: str
) -> None:
    async def refused(*_args: object, **_more: object) -> Object:
        raise KubeRefusedError(message, "x", "y", code=403)

    cluster.operation("m", "n2", approved=False)
    monkeypatch.setattr(cluster, "create", refused)
    monkeypatch.setattr(cluster, "patch", refused)
    for words in (["node", "reboot", "n1"], ["operations", "approve", "m"]):
        assert main(["kgpu", *words]) != 0
        error = capsys.readouterr().err
        assert message in error
        assert "--ask" not in error


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


EVIDENCE = {"namespace": "gpu-operator", "name": "kgpu-evidence-r", "sizeBytes": 9}


def held(cluster: Moving, **more: object) -> None:
    """A node that is held for replacement, with its evidence."""
    known = cluster.operation("r", "n1", type="Replace")
    cluster.put(NODE_OPERATIONS, {**known, "status": status("Acting", "held", evidence=EVIDENCE, **more)})
    metadata = {
        "name": EVIDENCE["name"], "namespace": "gpu-operator", "ownerReferences": [{"uid": known["metadata"]["uid"]}],
    }  # fmt: skip
    content = {"bundle.tar.gz": base64.b64encode(b"\x1f\x8barchive").decode()}
    cluster.put(CONFIG_MAPS, {"metadata": metadata, "binaryData": content})


def test_a_replacement_is_followed_until_the_node_is_held(cluster: Moving, capsys: Said) -> None:
    cluster.statuses = [{}, status("Cordoning", "evidence"), status("Draining", "1 pod"), status("Acting", "held")]
    assert main(["kgpu", "node", "replace", "n1", "--reason", "Xid 79 again"]) == 0
    spec = made(cluster)["spec"]
    assert (spec["type"], spec["reason"], spec["nodeName"]) == ("Replace", "Xid 79 again", "n1")
    assert capsys.readouterr().out.splitlines()[-1] == "n1: Acting: held"
    cluster.statuses = [{}, status("Failed", "a pod stays", result="TransientFailure")]
    assert main(["kgpu", "node", "replace", "n2"]) == 3


def test_a_replacement_is_resumed(cluster: Moving, capsys: Said) -> None:
    held(cluster)
    assert main(["kgpu", "operations", "resume", "r"]) == 0
    assert made(cluster)["spec"]["resume"] is True


def test_a_bundle_is_fetched(cluster: Moving, capsys: Said, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    held(cluster)
    monkeypatch.chdir(tmp_path)
    assert main(["kgpu", "operations", "bundle", "r"]) == 0
    assert (tmp_path / "r.tar.gz").read_bytes() == b"\x1f\x8barchive"
    assert "kgpu doctor --from r.tar.gz" in capsys.readouterr().out
    assert main(["kgpu", "operations", "show", "r"]) == 0
    assert "ConfigMap gpu-operator/kgpu-evidence-r, 1 KiB: kgpu operations bundle r" in capsys.readouterr().out


def test_a_bundle_goes_to_stdout(cluster: Moving, capsysbinary: pytest.CaptureFixture[bytes]) -> None:
    held(cluster)
    assert main(["kgpu", "operations", "bundle", "r", "-o", "-"]) == 0
    assert capsysbinary.readouterr().out == b"\x1f\x8barchive"


def test_a_bundle_that_is_not_there_is_told(cluster: Moving, capsys: Said) -> None:
    cluster.operation("m", "n1")
    assert main(["kgpu", "operations", "bundle", "m"]) == 2
    assert "m has no evidence bundle" in capsys.readouterr().err
    assert main(["kgpu", "operations", "bundle", "none"]) == 2
    assert "there is no operation none" in capsys.readouterr().err


def test_why_there_is_no_evidence_is_shown(cluster: Moving, capsys: Said) -> None:
    known = cluster.operation("r", "n1", type="Replace")
    row = {
        "type": "EvidenceCollected",
        "status": "False",
        "message": "it hung",
        "lastTransitionTime": SINCE,
        "reason": "R",
    }
    cluster.put(NODE_OPERATIONS, {**known, "status": status("Acting", "held", conditions=[row])})
    assert main(["kgpu", "operations", "show", "r"]) == 0
    assert "EvidenceCollected: False, it hung" in capsys.readouterr().out
