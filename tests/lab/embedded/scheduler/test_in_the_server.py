"""The scheduler in the server's own process, on its defaults, admission and versions, beside the controllers."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from kgpu.kube.port import NODES, PODS, Object, Resource
from kgpu.lab.embedded.controllers.kinds import DEPLOYMENTS, SERVICE_ACCOUNTS
from kgpu.lab.embedded.controllers.meta import condition
from tests.lab.embedded.support import Whole, whole

PRIORITY_CLASSES = Resource("scheduling.k8s.io", "v1", "priorityclasses", "PriorityClass", namespaced=False)
GPU = "nvidia.com/gpu"
UNHELPFUL = (
    "no new claims to deallocate, preemption: 0/2 nodes are available: 2 Preemption is not helpful for scheduling."
)


def spec(gpus: int = 0, **more: object) -> Object:
    container: Object = {"name": "c", "image": "registry.invalid/none"}
    if gpus:
        container["resources"] = {"limits": {GPU: str(gpus)}}
    return {"containers": [container], **more}


def term(app: str) -> Object:
    return {"topologyKey": "kubernetes.io/hostname", "labelSelector": {"matchLabels": {"app": app}}}


@pytest.fixture
async def lab(tmp_path: Path) -> AsyncIterator[Whole]:
    async with whole(tmp_path) as lab:
        await lab.node("a", disk="fast")
        await lab.node("b")
        await lab.until(lambda: lab.get(SERVICE_ACCOUNTS, "default"))
        # A new node is tainted until the controllers have seen that it is ready.
        await lab.until(lambda: not any((lab.get(NODES, name) or {})["spec"].get("taints") for name in "ab"))
        yield lab


async def make(lab: Whole, name: str, made: Object, **labels: str) -> None:
    await lab.create(PODS, {"metadata": {"name": name, "labels": labels}, "spec": made})


def node_of(lab: Whole, name: str) -> str:
    return ((lab.get(PODS, name) or {}).get("spec") or {}).get("nodeName", "")


async def bound(lab: Whole, name: str) -> str:
    return str(await lab.until(lambda: node_of(lab, name), f"a node for {name}"))


async def refused(lab: Whole, name: str, message: str = "") -> str:
    """The message, when condition and Event both have it. A scheduler that has not seen all yet says something else."""

    async def said() -> str:
        found = condition(lab.get(PODS, name) or {"metadata": {}}, "PodScheduled") or {}
        text = str(found.get("message") or "")
        told = [event[:3] for event in await lab.events(name)]  # a later attempt may have said it again
        return text if message in text and ("Warning", "FailedScheduling", text) in told else ""

    return str(await lab.until(said, f"a refusal of {name}"))


async def test_a_binding_says_so_in_condition_and_event(lab: Whole):
    await make(lab, "p", spec(1))
    node = await bound(lab, "p")
    told = await lab.until(lambda: lab.events("p"))
    assert told == [("Normal", "Scheduled", f"Successfully assigned default/p to {node}", 1)]
    scheduled = condition(lab.get(PODS, "p") or {}, "PodScheduled") or {}
    assert scheduled["status"] == "True"


@pytest.mark.parametrize(
    ("made", "message"),
    [
        (spec(3), f"0/2 nodes are available: 2 Insufficient {GPU}. {UNHELPFUL}"),
        (
            spec(nodeSelector={"disk": "slow"}),
            f"0/2 nodes are available: 2 node(s) didn't match Pod's node affinity/selector. {UNHELPFUL}",
        ),
        (
            spec(3, nodeSelector={"disk": "fast"}),
            f"0/2 nodes are available: 1 Insufficient {GPU}, 1 node(s) didn't match Pod's node affinity/selector. {UNHELPFUL}",
        ),
        (
            spec(affinity={"podAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [term("none")]}}),
            f"0/2 nodes are available: 2 node(s) didn't match pod affinity rules. {UNHELPFUL}",
        ),
    ],
    ids=["resources", "selector", "both", "affinity"],
)
async def test_a_refusal_has_the_reason(lab: Whole, made: Object, message: str):
    await make(lab, "p", made)
    assert await refused(lab, "p", message) == message


async def test_taints_keep_away_who_does_not_tolerate_them(tmp_path: Path):
    async with whole(tmp_path) as lab:
        taint = {"key": GPU, "value": "present", "effect": "NoSchedule"}
        for name in ("a", "b"):
            await lab.node(name, taints=[taint])
        await lab.until(lambda: lab.get(SERVICE_ACCOUNTS, "default"))
        await make(lab, "p", spec(1))
        await refused(lab, "p", f"0/2 nodes are available: 2 node(s) had untolerated taint(s). {UNHELPFUL}")
        await make(lab, "q", spec(1, tolerations=[{"key": GPU, "operator": "Exists"}]))
        assert await bound(lab, "q") in ("a", "b")


async def test_a_deployment_is_spread_as_it_asks(lab: Whole):
    rule = {
        "maxSkew": 1, "topologyKey": "kubernetes.io/hostname", "whenUnsatisfiable": "DoNotSchedule",
        "labelSelector": {"matchLabels": {"app": "web"}},
    }  # fmt: skip
    labels = {"app": "web"}
    template = {"metadata": {"labels": labels}, "spec": spec(topologySpreadConstraints=[rule])}
    made = {"replicas": 6, "selector": {"matchLabels": labels}, "template": template}
    await lab.create(DEPLOYMENTS, {"metadata": {"name": "web"}, "spec": made})

    async def placed() -> Counter[str]:
        return Counter(one["spec"].get("nodeName", "") for one in await lab.all(PODS))

    async def all_placed() -> bool:
        found = await placed()
        return found.total() == 6 and not found[""]

    await lab.until(all_placed, "six pods on nodes")
    assert await placed() == {"a": 3, "b": 3}


async def test_anti_affinity_keeps_two_apart_and_refuses_the_third(lab: Whole):
    apart = {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [term("web")]}}
    for name in ("p", "q"):
        await make(lab, name, spec(affinity=apart), app="web")
    assert {await bound(lab, "p"), await bound(lab, "q")} == {"a", "b"}
    await make(lab, "r", spec(affinity=apart), app="web")
    await refused(
        lab, "r",
        "0/2 nodes are available: 2 node(s) didn't match pod anti-affinity rules. no new claims to deallocate, "
        "preemption: 0/2 nodes are available: 2 No preemption victims found for incoming pod.",
    )  # fmt: skip


async def test_a_gated_pod_waits_for_its_gate(lab: Whole):
    await make(lab, "p", spec(schedulingGates=[{"name": "example.com/wait"}]))
    waiting = condition(lab.get(PODS, "p") or {}, "PodScheduled") or {}
    assert waiting["reason"] == "SchedulingGated"
    await make(lab, "q", spec())
    await bound(lab, "q")
    assert node_of(lab, "p") == ""
    await lab.api.patch(PODS, "p", {"spec": {"schedulingGates": []}}, namespace="default")
    assert await bound(lab, "p")


async def test_priority_makes_room_and_keeps_it(lab: Whole):
    await lab.create(PRIORITY_CLASSES, {"metadata": {"name": "high"}, "value": 1000})
    for name in ("p", "q"):
        await make(lab, name, spec(2))
        await bound(lab, name)
    await make(lab, "high", spec(2, priorityClassName="high"))
    nominated = await lab.until(lambda: (lab.get(PODS, "high") or {})["status"].get("nominatedNodeName"))
    victim = next(name for name in ("p", "q") if node_of(lab, name) == nominated)
    gone = await lab.until(lambda: condition(lab.get(PODS, victim) or {"metadata": {}}, "DisruptionTarget"))
    assert (gone["reason"], gone["message"]) == (
        "PreemptionByScheduler", "default-scheduler: preempting to accommodate a higher priority pod",
    )  # fmt: skip
    await lab.until(lambda: (lab.get(PODS, victim) or {})["metadata"].get("deletionTimestamp"), "the victim's end")
    # There is no kubelet here that ends it: while it lasts, its room is nobody's.
    await make(lab, "late", spec(2))
    await refused(lab, "late", "Insufficient")
    await lab.api.delete(PODS, victim, namespace="default", grace=0)
    assert await bound(lab, "high") == nominated
    assert node_of(lab, "late") == ""
    uid = (lab.get(PODS, "high") or {})["metadata"]["uid"]

    async def told() -> bool:
        return ("Normal", "Preempted", f"Preempted by pod {uid} on node {nominated}", 1) in await lab.events(victim)

    await lab.until(told, "what is told of the victim")


async def test_room_that_comes_free_is_taken(lab: Whole):
    for name in ("p", "q"):
        await make(lab, name, spec(2))
    for name in ("p", "q"):
        await bound(lab, name)
    await make(lab, "r", spec(2))
    await refused(lab, "r")
    await lab.api.delete(PODS, "p", namespace="default", grace=0)
    assert await bound(lab, "r")
