"""The engine on the embedded API server, with its validation, field managers, evictions and disruption budgets."""

from __future__ import annotations

import asyncio
import contextlib
import copy
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from kgpu.base.errors import KubeError
from kgpu.formats import names
from kgpu.formats.crd.definitions import crds
from kgpu.formats.crd.nodeoperation import NodeOperationSpec, OperationDrain
from kgpu.kube.kinds import CUSTOM_RESOURCE_DEFINITIONS, NODE_OPERATIONS
from kgpu.kube.port import NODES, PODS, KubeRefusedError, Object, Patch, Resource
from kgpu.operations.config import OperationBudget, Share
from kgpu.operations.requests import Word, make_operation, preview, say
from kgpu.operations.run import OperationsController
from tests.lab.embedded.support import Whole, whole

BUDGETS = Resource("policy", "v1", "poddisruptionbudgets", "PodDisruptionBudget")
SETS = Resource("apps", "v1", "replicasets", "ReplicaSet")


@pytest.fixture
async def embedded(tmp_path: Path) -> AsyncIterator[Whole]:
    async with whole(tmp_path, "controllers") as found:
        for crd in crds():
            await found.api.create(CUSTOM_RESOURCE_DEFINITIONS, crd)
        await found.node("n1", **{names.LABEL_GPU_PRESENT: "true"})
        await found.until(lambda: found.core.kinds.stored("kgpu.dev", "nodeoperations"), "the CRD")
        yield found


@contextlib.asynccontextmanager
async def engine(found: Whole, *, allow_force: bool = False) -> AsyncIterator[OperationsController]:
    budget = OperationBudget(max_parallel=9, max_unavailable=Share(percent=100), allow_force=allow_force)
    controller = OperationsController(found.api, budget)
    tasks = [asyncio.create_task(work) for work in (controller.watch(), *controller.term(found.api))]
    try:
        yield controller
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def spec(**drain: Any) -> NodeOperationSpec:
    return NodeOperationSpec(node_name="n1", type="Maintenance", drain=OperationDrain(**drain))


def phase(found: Whole, name: str) -> str:
    obj = found.get(NODE_OPERATIONS, name)
    return str(((obj or {}).get("status") or {}).get("phase"))


def node(found: Whole) -> Object:
    obj = found.get(NODES, "n1")
    assert obj is not None
    return obj


async def kubectl_cordon(found: Whole, *, unschedulable: bool) -> None:
    """As kubectl writes it."""
    change = {"spec": {"unschedulable": unschedulable or None}}
    await found.api.patch(NODES, "n1", change, kind=Patch.STRATEGIC)


async def replicas(found: Whole, count: int) -> list[str]:
    """A ReplicaSet of pods that run on the node; their names."""
    labels = {"app": "web"}
    template = {"metadata": {"labels": labels}, "spec": {"containers": [{"name": "c", "image": "i"}], "nodeName": "n1"}}
    wanted = {"replicas": count, "selector": {"matchLabels": labels}, "template": template}
    await found.create(SETS, {"metadata": {"name": "web", "namespace": "default"}, "spec": wanted})

    async def made() -> list[str]:
        pods = [obj["metadata"]["name"] for obj in (await found.api.list(PODS, namespace="default")).items]
        return pods if len(pods) == count else []

    pods: list[str] = await found.until(made, "the ReplicaSet's pods", 60)
    running = {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}
    for name in pods:
        await found.api.patch(PODS, name, {"status": running}, namespace="default", subresource="status")
    return pods


async def disruption_budget(found: Whole, name: str) -> None:
    """One that lets none of the two pods of ``replicas`` go."""
    selector = {"matchLabels": {"app": "web"}}
    await found.create(
        BUDGETS,
        {"metadata": {"name": name, "namespace": "default"}, "spec": {"minAvailable": 2, "selector": selector}},
    )

    def counted() -> bool:
        obj = found.get(BUDGETS, name, "default")
        return bool(obj and obj.get("status", {}).get("currentHealthy") == 2)

    await found.until(counted, "the budget's status")


async def test_a_maintenance_from_the_wish_to_the_node_as_it_was(embedded: Whole) -> None:
    async with engine(embedded):
        made = await make_operation(embedded.api, "n1", spec())
        await embedded.until(lambda: phase(embedded, made.name) == "Acting", "an empty node")
        assert node(embedded)["spec"]["unschedulable"] is True
        assert node(embedded)["metadata"]["annotations"][names.CORDON_ANNOTATION] == made.uid
        await say(embedded.api, made.name, Word.RESUME)
        await embedded.until(lambda: phase(embedded, made.name) == "Complete", "the end")
        assert "unschedulable" not in node(embedded)["spec"]
        assert names.CORDON_ANNOTATION not in node(embedded)["metadata"].get("annotations", {})


@pytest.mark.parametrize("moment", ["before", "during"])
async def test_a_cordon_of_a_person_stays(embedded: Whole, moment: str) -> None:
    """The API server knows who has set what: kubectl's cordon is another manager's."""
    async with engine(embedded):
        if moment == "before":
            await kubectl_cordon(embedded, unschedulable=True)
        made = await make_operation(embedded.api, "n1", spec())
        await embedded.until(lambda: phase(embedded, made.name) == "Acting", "an empty node")
        if moment == "during":  # kubectl writes nothing where there is nothing to change; another client does
            await embedded.api.apply(NODES, {"metadata": {"name": "n1"}, "spec": {"unschedulable": True}}, manager="jo")
        await say(embedded.api, made.name, Word.RESUME)
        await embedded.until(lambda: phase(embedded, made.name) == "Complete", "the end")
        assert node(embedded)["spec"]["unschedulable"] is True
        assert names.CORDON_ANNOTATION not in node(embedded)["metadata"].get("annotations", {})


async def test_an_uncordon_by_kubectl_ends_it(embedded: Whole) -> None:
    async with engine(embedded):
        made = await make_operation(embedded.api, "n1", spec())
        await embedded.until(lambda: phase(embedded, made.name) == "Acting", "an empty node")
        await kubectl_cordon(embedded, unschedulable=False)
        await embedded.until(lambda: phase(embedded, made.name) == "Complete", "the end")
        obj = embedded.get(NODE_OPERATIONS, made.name)
        assert obj is not None
        assert (obj["status"]["result"], obj["status"]["reason"]) == ("Cancelled", "Uncordoned")
        assert "unschedulable" not in node(embedded)["spec"]


async def test_a_disruption_budget_holds_and_is_named(embedded: Whole) -> None:
    (name, _) = await replicas(embedded, 2)
    await disruption_budget(embedded, "web")
    seen = await preview(embedded.api, "n1", OperationDrain())
    assert seen.blocked[f"default/{name}"] == "its PodDisruptionBudget web allows no disruption now"
    async with engine(embedded):
        made = await make_operation(embedded.api, "n1", spec(timeout_seconds=5))
        await embedded.until(lambda: phase(embedded, made.name) == "Failed", "the end")
        obj = embedded.get(NODE_OPERATIONS, made.name)
        assert obj is not None
        assert "The disruption budget web needs 2 healthy pods and has 2 currently" in obj["status"]["message"]
        assert "unschedulable" not in node(embedded)["spec"]
        assert len((await embedded.api.list(PODS, namespace="default")).items) == 2


async def test_the_definition_keeps_what_was_wished(embedded: Whole) -> None:
    made = await make_operation(embedded.api, "n1", spec())
    for change, said in (
        ({"nodeName": "n2"}, "nodeName is immutable"),
        ({"type": "Repaint"}, "Unsupported value"),
        ({"drain": {"force": True}}, "drain is immutable"),
        ({"durationSeconds": 5}, "durationSeconds is immutable"),
    ):
        with pytest.raises(KubeRefusedError, match=said):
            await embedded.api.patch(NODE_OPERATIONS, made.name, {"spec": change})
    await say(embedded.api, made.name, Word.CANCEL)
    with pytest.raises(KubeRefusedError, match="cancel can't be taken back"):
        await embedded.api.patch(NODE_OPERATIONS, made.name, {"spec": {"cancel": False}})


async def test_the_definition_keeps_what_was_done(embedded: Whole) -> None:
    """An emptied status would be that of an operation that has not begun: its node would reboot again."""
    async with engine(embedded):
        made = await make_operation(embedded.api, "n1", spec())
        await embedded.until(lambda: phase(embedded, made.name) == "Acting", "the hold")
        await say(embedded.api, made.name, Word.RESUME)
        await embedded.until(lambda: phase(embedded, made.name) == "Complete", "the end")
    for change, said in (
        (None, "status.startedAt stays"),
        ({"startedAt": None, "completedAt": None}, "status.startedAt stays"),
        ({"startedAt": "2020-01-01T00:00:00Z"}, "status.startedAt stays"),
        ({"completedAt": None}, "status.completedAt stays"),
        ({"phase": "Pending"}, "an operation that has begun is not Pending"),
        ({"phase": None}, "is not Pending"),
        ({"phase": "Acting"}, "an operation that is over is Complete or Failed"),
    ):
        with pytest.raises(KubeRefusedError, match=said):
            await embedded.api.patch(NODE_OPERATIONS, made.name, {"status": change}, subresource="status")
    await embedded.api.patch(NODE_OPERATIONS, made.name, {"status": {"message": "other words"}}, subresource="status")


@pytest.mark.parametrize(
    "wrong",
    [
        {"type": "Maintenance"},
        {"nodeName": "n1"},
        {"nodeName": "", "type": "Maintenance"},
        {"nodeName": "n1", "type": "Maintenance", "drain": {"timeoutSeconds": 0}},
        {"nodeName": "n1", "type": "Maintenance", "notBefore": "soon"},
        {"nodeName": "n1", "type": "Maintenance", "reason": "x" * 1025},
    ],
)
async def test_the_definition_refuses_what_makes_no_sense(embedded: Whole, wrong: Object) -> None:
    with pytest.raises(KubeRefusedError):
        await embedded.api.create(NODE_OPERATIONS, {"metadata": {"name": "m"}, "spec": wrong})


@pytest.mark.parametrize("budgets", [("web",), ("web", "more")])
async def test_what_budgets_hold_is_deleted_with_its_grace_period_where_that_is_allowed(
    embedded: Whole, budgets: tuple[str, ...]
) -> None:
    """Several budgets make an eviction impossible; the API server says so in another way."""
    pods = await replicas(embedded, 2)
    for name in budgets:
        await disruption_budget(embedded, name)
    marks: dict[str, Object] = {}

    def deleted() -> bool:
        for name in pods:
            obj = embedded.get(PODS, name, "default")
            if obj is not None and "deletionTimestamp" in obj["metadata"]:
                marks[name] = obj
        return len(marks) == len(pods)

    async with engine(embedded, allow_force=True):
        made = await make_operation(embedded.api, "n1", spec(timeout_seconds=5, on_timeout="Force"))
        await embedded.until(deleted, "the deletion of both pods")
        obj = embedded.get(NODE_OPERATIONS, made.name)
        assert obj is not None
        (forced,) = [row for row in obj["status"]["conditions"] if row["type"] == "Forced"]
        assert "the drain's 5 s are over" in forced["message"]
        for pod in marks.values():  # its own grace period, and no word of a disruption: nobody has evicted it
            assert pod["metadata"]["deletionGracePeriodSeconds"] == 30
            kinds = {row["type"] for row in pod["status"]["conditions"] if row["status"] == "True"}
            assert "DisruptionTarget" not in kinds


async def test_where_it_is_not_allowed_it_is_refused_before_the_node_is_touched(embedded: Whole) -> None:
    async with engine(embedded):
        made = await make_operation(embedded.api, "n1", spec(on_timeout="Force"))
        await embedded.until(lambda: phase(embedded, made.name) == "Failed", "the end")
        obj = embedded.get(NODE_OPERATIONS, made.name)
        assert obj is not None
        assert (obj["status"]["reason"], "Cordoned" in str(obj["status"]["conditions"])) == ("Refused", False)
        assert "operations.allowForce=true" in obj["status"]["message"]
        assert "unschedulable" not in node(embedded)["spec"]


async def test_a_definition_of_before_loses_it_and_that_is_told(embedded: Whole) -> None:
    name = "nodeoperations.kgpu.dev"
    obj = embedded.get(CUSTOM_RESOURCE_DEFINITIONS, name)
    assert obj is not None
    versions = copy.deepcopy(obj["spec"]["versions"])
    del versions[0]["schema"]["openAPIV3Schema"]["properties"]["spec"]["properties"]["drain"]["properties"]["onTimeout"]
    await embedded.api.patch(CUSTOM_RESOURCE_DEFINITIONS, name, {"spec": {"versions": versions}})

    with pytest.raises(KubeError, match=r"has lost spec\.drain\.onTimeout; it is cancelled"):
        await make_operation(embedded.api, "n1", spec(on_timeout="Force"))
    (left,) = (await embedded.api.list(NODE_OPERATIONS)).items
    assert left["spec"]["cancel"] is True
