"""The clean-up takes everything of kgpu's away, in order, whether the operator runs or not, and nothing of the users'."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from kgpu.base.clock import VirtualClock
from kgpu.base.errors import KubeError
from kgpu.formats import agent_config, agent_report, names
from kgpu.formats.operands import BY_NAME
from kgpu.kube import kinds
from kgpu.kube.fake import FakeApi
from kgpu.kube.port import CONFIG_MAPS, LEASES, NODE_FEATURES, NODES, PODS, Object
from kgpu.operator.cleanup import Limits, clean_up
from kgpu.operator.leaving import has_left, outliving_policy
from kgpu.operator.model import ClusterPlan
from tests.operator.run.support import Meddled, Wish, cluster, config_map, daemon_set, running, silence
from tests.operator.run.test_killed import kept
from tests.operator.world import NAMESPACE


def agent_pod(node: str, *, ready: bool = True) -> Object:
    owner = {"kind": "DaemonSet", "name": names.AGENT_DAEMON_SET, "controller": True}
    metadata = {
        "name": f"agent-{node}", "namespace": NAMESPACE, "ownerReferences": [owner],
    }  # fmt: skip
    condition = {"type": "Ready", "status": "True" if ready else "False"}
    return {"metadata": metadata, "spec": {"nodeName": node}, "status": {"conditions": [condition], "phase": "Running"}}


async def say(api: FakeApi, node: str, state: str) -> None:
    """What the agent of a node reports."""
    told = agent_report.encode(agent_report.AgentReport(roles={"toolkit": agent_report.role(state)}))
    body = {"metadata": {"name": node, "annotations": {names.ROLES_ANNOTATION: told}}}
    await api.apply(NODES, body, manager=names.FIELD_MANAGER)


def agents_leave(api: FakeApi, *nodes: str) -> Any:
    """Agents on these nodes, that do what the configuration says."""

    async def live() -> None:
        while True:
            found = await api.get(CONFIG_MAPS, names.AGENT_CONFIG_MAP, namespace=NAMESPACE)
            if found and agent_config.decode(found["data"][names.AGENT_CONFIG_KEY], source="").leaving:
                break
        for node in nodes:
            await say(api, node, "left")

    return asyncio.create_task(live())


def ending_pods(api: FakeApi, *nodes: str) -> tuple[Meddled, list[Any]]:
    """The agents' pods on these nodes end when their DaemonSet goes."""
    ends: list[Any] = []
    meddled = Meddled(api)

    def end(verb: str, plural: str, name: str) -> None:
        if (verb, plural, name) == ("delete", "daemonsets", names.AGENT_DAEMON_SET):
            gone = [api.delete(PODS, f"agent-{node}", namespace=NAMESPACE, grace=0) for node in nodes]
            ends.extend(map(asyncio.ensure_future, gone))

    meddled.after = end
    return meddled, ends


def agent_objects() -> tuple[Object, Object]:
    text = agent_config.encode(agent_config.AgentConfig(generation=3))
    return config_map(names.AGENT_CONFIG_MAP, **{names.AGENT_CONFIG_KEY: text}), daemon_set(names.AGENT_DAEMON_SET)


async def installed(nodes: int = 2) -> tuple[FakeApi, dict[Any, Any]]:
    """A cluster after an install with agents, and what was there before."""
    api = cluster(nodes, policy=True)
    clean = kept(api)
    async with running(api):
        pass
    for number in range(nodes):
        await say(api, f"n{number}", "running")
        label = {"metadata": {"name": f"n{number}", "labels": {"nvidia.com/gpu.count": "8"}}}
        await api.apply(NODES, label, manager=names.LABELS_FIELD_MANAGER)
        condition = {"type": names.VALIDATED_CONDITION, "status": "True"}
        status = {"metadata": {"name": f"n{number}"}, "status": {"conditions": [condition]}}
        await api.apply(NODES, status, manager=names.VALIDATOR_FIELD_MANAGER, subresource="status")
    api.put(LEASES, {"metadata": {"name": names.OPERATOR_LEASE, "namespace": NAMESPACE}})
    return api, clean


async def clean(api: Any, seconds: float = 120.0, *, leave: float = 20.0) -> tuple[list[str], float]:
    """Run it; what it said, and how long it took."""
    clock, said = VirtualClock(), list[str]()
    task = asyncio.create_task(
        clean_up(api, NAMESPACE, Limits(whole=seconds, leave=leave), say=said.append, clock=clock)
    )
    while not task.done():
        await clock.advance(0.1)
    await task
    return said, clock.monotonic()


async def test_everything_goes_and_doing_it_again_does_no_harm() -> None:
    api, before = await installed()
    api.put(CONFIG_MAPS, {"metadata": {"name": "users", "namespace": NAMESPACE}})
    said, _ = await clean(api)
    assert kept(api) == before
    for number in range(2):
        node = await api.get(NODES, f"n{number}")
        assert node is not None
        assert names.ROLES_ANNOTATION not in node["metadata"].get("annotations", {})
        assert [one["type"] for one in node["status"]["conditions"]] == ["Ready"]
        assert "managedFields" not in node["metadata"]
    assert await api.get(LEASES, names.OPERATOR_LEASE, namespace=NAMESPACE) is None
    assert await api.get(CONFIG_MAPS, "users", namespace=NAMESPACE) is not None
    assert await api.get(kinds.CLUSTER_POLICIES, "cluster-policy") is not None
    assert said[-1] == "done"
    assert (await clean(api))[0] == ["agents clean up their hosts", "done"]


async def test_the_operator_is_stopped_first() -> None:
    api, before = await installed()
    labels = {"app": "gpu-operator"}
    api.put(
        kinds.DEPLOYMENTS,
        {"metadata": {"name": "op", "namespace": NAMESPACE, "labels": labels}, "spec": {"replicas": 1}},
    )
    owner = {"kind": "ReplicaSet", "name": "op-1", "controller": True}
    api.put(
        PODS, {"metadata": {"name": "op-1-x", "namespace": NAMESPACE, "labels": labels, "ownerReferences": [owner]}}
    )
    first = len(api.calls)

    def stop(verb: str, plural: str, _name: str) -> None:
        if (verb, plural) == ("patch", "deployments"):
            task = api.delete(PODS, "op-1-x", namespace=NAMESPACE)
            tasks.append(asyncio.ensure_future(task))

    tasks: list[Any] = []
    meddled = Meddled(api)
    meddled.after = stop
    await clean(meddled)
    verbs = [call for call in api.calls[first:] if call[0] in ("patch", "delete", "apply")]
    assert verbs[0] == ("patch", "deployments", "op")
    assert kept(api) == before


@pytest.mark.parametrize(("away", "leads"), [(True, False), (True, True), (False, False)])
async def test_an_operators_pod_on_a_node_that_is_away(away: bool, leads: bool) -> None:
    """Its kubelet may be gone while it works: it counts as gone where its Lease is not renewed, too."""
    api, _ = await installed()
    metadata = {"namespace": NAMESPACE, "labels": {"app": "gpu-operator"}}
    api.put(kinds.DEPLOYMENTS, {"metadata": {"name": "op", **metadata}, "spec": {"replicas": 1}})
    owner = {"ownerReferences": [{"kind": "ReplicaSet", "name": "op-1", "controller": True}]}
    api.put(PODS, {"metadata": {"name": "op-1-x", **metadata, **owner}, "spec": {"nodeName": "n1"}})
    if away:
        status = {"status": {"conditions": [{"type": "Ready", "status": "Unknown"}]}}
        await api.patch(NODES, "n1", status, subresource="status")
    meddled = Meddled(api)

    def renew(verb: str, plural: str, _name: str) -> None:
        if leads and (verb, plural) == ("get", LEASES.plural):
            stamp = {"holderIdentity": "op-1-x", "renewTime": str(len(api.calls))}
            api.put(LEASES, {"metadata": {"name": names.OPERATOR_LEASE, "namespace": NAMESPACE}, "spec": stamp})

    meddled.before = renew
    if away and not leads:
        said, took = await clean(meddled, leave=5)
        assert 30 <= took < 60
        assert "node n1 is away: the operator's pod there does not lead, and is not waited for" in said
        assert said[-1] == "done"
    else:
        with pytest.raises(KubeError, match="stopping Deployment op"):
            await clean(meddled, seconds=90, leave=5)


async def test_agents_are_told_and_waited_for_before_anything_goes() -> None:
    api, before = await installed()
    for node in ("n0", "n1"):
        api.put(PODS, agent_pod(node))
    leaving = agents_leave(api, "n0", "n1")
    meddled, ends = ending_pods(api, "n0", "n1")
    _, took = await clean(meddled)
    await asyncio.gather(leaving, *ends)
    assert took < 20
    assert kept(api) == before


async def test_an_agent_that_says_nothing_is_waited_for_no_longer_than_told() -> None:
    api, before = await installed()
    api.put(PODS, agent_pod("n1"))

    meddled, _ = ending_pods(api, "n1")
    said, took = await clean(meddled, leave=7)
    assert 7 <= took < 20
    assert any("n1" in line and "files may remain" in line for line in said)
    assert kept(api) == before


async def test_too_long_is_an_error_that_names_the_step() -> None:
    api, _ = await installed()
    api.put(PODS, agent_pod("n1"))
    with pytest.raises(KubeError, match="waiting for 1 pods to end"):
        await clean(api, seconds=30, leave=5)


@pytest.mark.parametrize("change", ["away", "deleted"])
async def test_a_node_that_is_away_holds_nothing_up(change: str) -> None:
    """Nobody but its kubelet ends its pods; what is on all Nodes goes nevertheless."""
    api, before = await installed()
    api.put(PODS, agent_pod("n1"))
    if change == "away":
        status = {"status": {"conditions": [{"type": "Ready", "status": "Unknown"}]}}
        await api.patch(NODES, "n1", status, subresource="status")
    else:
        await api.delete(NODES, "n1")
    said, took = await clean(api, leave=5)
    assert took < 20
    assert any("node n1 is away" in line for line in said)
    assert said[-1] == "done"
    n0 = await api.get(NODES, "n0")
    assert n0 is not None
    assert "managedFields" not in n0["metadata"]
    assert await api.get(CONFIG_MAPS, names.AGENT_CONFIG_MAP, namespace=NAMESPACE) is None
    assert {key for key in kept(api) if key not in before} <= {key for key in kept(api) if "n1" in str(key)}


async def test_answers_that_do_not_come_are_waited_for() -> None:
    api, before = await installed()
    meddled, number = Meddled(api), 0

    def fail(_verb: str, _plural: str, _name: str) -> None:
        nonlocal number
        number += 1
        if number % 4 == 0 and number < 200:
            raise silence()

    meddled.before = fail
    await clean(meddled)
    assert kept(api) == before


async def test_pods_that_act_on_nodes_go_and_those_of_others_stay() -> None:
    api, _ = await installed()
    for namespace in (NAMESPACE, "tenant"):
        labels = {"app": names.ACT_APP}
        api.put(PODS, {"metadata": {"name": "kgpu-act-1", "namespace": namespace, "labels": labels}, "spec": {}})
    await clean(api)
    acts = [obj for obj in (await api.list(PODS)).items if obj["metadata"]["name"] == "kgpu-act-1"]
    assert [obj["metadata"]["namespace"] for obj in acts] == ["tenant"]


@pytest.mark.parametrize("may", [True, False])
async def test_drivers_that_their_daemon_set_has_left_go_too(may: bool) -> None:
    api = cluster(1, policy=True)
    component = {names.COMPONENT_LABEL: names.DRIVER_COMPONENT}
    api.put(
        PODS, {"metadata": {"name": "left", "namespace": NAMESPACE, "labels": component}, "spec": {"nodeName": "n0"}}
    )
    api.put(PODS, {"metadata": {"name": "other", "namespace": NAMESPACE}, "spec": {"nodeName": "n0"}})
    api.put(
        PODS, {"metadata": {"name": "theirs", "namespace": "other", "labels": component}, "spec": {"nodeName": "n0"}}
    )
    if not may:
        api.refuse["delete", "pods"] = 403
    said, _ = await clean(api)
    gone = {name for verb, plural, name in api.calls if (verb, plural) == ("delete", "pods")}
    assert gone == {"left"}
    assert any("may delete no pods" in line for line in said) is not may


async def test_suggestions_go_and_operations_of_people_and_records_stay() -> None:
    api, _ = await installed()
    for name, by, phase in (
        ("suggested", names.REMEDIATION_REQUESTER, "Pending"),
        ("new", names.REMEDIATION_REQUESTER, ""),
        ("done", names.REMEDIATION_REQUESTER, "Complete"),
        ("jos", "jo", "Pending"),
    ):
        status = {"status": {"phase": phase}} if phase else {}
        api.put(kinds.NODE_OPERATIONS, {"metadata": {"name": name}, "spec": {"requestedBy": by}, **status})
    await clean(api)
    assert [obj["metadata"]["name"] for obj in (await api.list(kinds.NODE_OPERATIONS)).items] == ["done", "jos"]


async def test_only_our_node_features_go() -> None:
    api, _ = await installed()
    name = f"{names.NODE_FEATURE_PREFIX}n0"
    body = {"metadata": {"name": name, "namespace": NAMESPACE}, "spec": {"labels": {"a": "b"}}}
    await api.apply(NODE_FEATURES, body, manager=names.LABELS_FIELD_MANAGER)
    api.put(NODE_FEATURES, {"metadata": {"name": "n0", "namespace": "nfd"}, "spec": {}})
    api.put(NODE_FEATURES, {"metadata": {"name": f"{names.NODE_FEATURE_PREFIX}n1", "namespace": "nfd"}, "spec": {}})
    await clean(api)
    left = [one["metadata"]["name"] for one in (await api.list(NODE_FEATURES)).items]
    assert left == ["n0", f"{names.NODE_FEATURE_PREFIX}n1"]


async def test_the_operator_lets_agents_leave_when_its_policy_goes() -> None:
    api, wish = cluster(2), Wish(*agent_objects())
    async with running(api, planner=wish) as run:
        for node in ("n0", "n1"):
            api.put(PODS, agent_pod(node))
            await say(api, node, "running")
        await run.settled()
        wish.want(run, ClusterPlan())
        await run.clock.advance(5)
        found = await api.get(CONFIG_MAPS, names.AGENT_CONFIG_MAP, namespace=NAMESPACE)
        assert found is not None
        config = agent_config.decode(found["data"][names.AGENT_CONFIG_KEY], source="")
        assert (config.leaving, config.generation) == (True, 3)
        await say(api, "n0", "left")
        await run.clock.advance(2)
        assert await api.get(kinds.DAEMON_SETS, names.AGENT_DAEMON_SET, namespace=NAMESPACE) is not None
        await say(api, "n1", "left")
        await run.until(lambda: ("delete", "daemonsets", names.AGENT_DAEMON_SET) in api.calls, seconds=3)


def operand_pod(node: str, operand: str) -> Object:
    pod = agent_pod(node)
    pod["metadata"]["name"] = f"{operand}-{node}"
    pod["metadata"]["ownerReferences"][0]["name"] = BY_NAME[operand].daemon_set
    return pod


async def say_apart(api: FakeApi, node: str, role: str, state: str) -> None:
    """What the process of one role reports."""
    told = agent_report.encode(agent_report.AgentReport(roles={role: agent_report.role(state)}))
    body = {"metadata": {"name": node, "annotations": {agent_report.annotation(role): told}}}
    await api.apply(NODES, body, manager=agent_report.manager(role))


async def test_every_operand_of_a_node_leaves_before_any_goes() -> None:
    sets = [BY_NAME[name].daemon_set for name in ("toolkit", "gfd")]
    api, wish = cluster(1), Wish(agent_objects()[0], *map(daemon_set, sets))
    async with running(api, planner=wish) as run:
        for operand in ("toolkit", "gfd"):
            api.put(PODS, operand_pod("n0", operand))
            await say_apart(api, "n0", BY_NAME[operand].role, "running")
        await say(api, "n0", "left")  # of a whole agent that was there before
        await run.settled()
        wish.want(run, ClusterPlan())
        await run.clock.advance(5)
        await say_apart(api, "n0", "toolkit", "left")
        await run.clock.advance(2)
        assert not [call for call in api.calls if call[:2] == ("delete", "daemonsets")]
        await say_apart(api, "n0", "labels", "left")
        await run.until(lambda: {("delete", "daemonsets", name) for name in sets} <= set(api.calls), seconds=3)


async def test_an_operand_that_goes_keeps_its_rights_until_its_pods_are_gone() -> None:
    operand = BY_NAME["gfd"]
    (config, _), account = agent_objects(), config_map(operand.account)
    account = {**account, "apiVersion": "v1", "kind": "ServiceAccount"}
    account.pop("data", None)
    api, wish = cluster(1), Wish(config, daemon_set("stays"), account)
    async with running(api, planner=wish) as run:
        api.put(PODS, operand_pod("n0", "gfd"))
        await run.settled()
        wish.want(run, ClusterPlan(objects=(config, daemon_set("stays"))))
        await run.settled()
        assert await api.get(kinds.SERVICE_ACCOUNTS, operand.account, namespace=NAMESPACE) is not None
        await api.delete(PODS, "gfd-n0", namespace=NAMESPACE, grace=0)
        await run.until(lambda: ("delete", "serviceaccounts", operand.account) in api.calls, seconds=3)


def test_what_is_in_no_namespace_outlives_the_policy_without_an_owner() -> None:
    owner = {"apiVersion": "apps/v1", "kind": "Deployment", "name": "op", "uid": "u"}
    for kind in ("ClusterRole", "ClusterRoleBinding"):
        metadata = {"name": BY_NAME["gfd"].account, "ownerReferences": [{"kind": "ClusterPolicy", "name": "p"}]}
        assert "ownerReferences" not in outliving_policy({"kind": kind, "metadata": metadata}, owner)["metadata"]


async def test_a_policy_that_comes_back_while_agents_leave_is_carried_out() -> None:
    api, wish = cluster(1), Wish(*agent_objects())
    plan = wish.plan
    async with running(api, planner=wish) as run:
        api.put(PODS, agent_pod("n0"))
        await run.settled()
        wish.want(run, ClusterPlan())
        await run.clock.advance(3)
        wish.want(run, plan)
        await run.settled()
        found = await api.get(CONFIG_MAPS, names.AGENT_CONFIG_MAP, namespace=NAMESPACE)
        assert found is not None
        assert not agent_config.decode(found["data"][names.AGENT_CONFIG_KEY], source="").leaving
        await run.clock.advance(60)
        assert await api.get(kinds.DAEMON_SETS, names.AGENT_DAEMON_SET, namespace=NAMESPACE) is not None


def test_only_what_agents_need_to_leave_outlives_the_policy() -> None:
    owner = {"apiVersion": "apps/v1", "kind": "Deployment", "name": "op", "uid": "u"}
    mine = {"kind": "ClusterPolicy", "name": "p"}
    needed, other = daemon_set(names.AGENT_DAEMON_SET), daemon_set("other")
    for obj in (needed, other):
        obj["metadata"]["ownerReferences"] = [mine]
    assert outliving_policy(other, owner) == other
    assert outliving_policy(needed, owner)["metadata"]["ownerReferences"][0]["name"] == "op"
    assert "ownerReferences" not in outliving_policy(needed, None)["metadata"]


@pytest.mark.parametrize(
    ("states", "left"),
    [(("left", "stopped"), True), (("left",), True), (("stopped",), False), (("left", "running"), False), ((), False)],
)
def test_who_has_left(states: tuple[str, ...], left: bool) -> None:
    roles = {f"r{number}": agent_report.role(state) for number, state in enumerate(states)}
    assert has_left(agent_report.AgentReport(roles=roles)) is left
    assert not has_left(None)


@pytest.mark.parametrize("label", [names.KGPU, "gpu-operator"])
async def test_a_wrong_namespace_takes_nothing_from_a_fleet_that_works(label: str) -> None:
    api = FakeApi()
    pods = {"metadata": {"labels": {"app": "gpu-operator", names.NAME_LABEL: label}}}
    metadata = {"name": "gpu-operator", "namespace": NAMESPACE, "labels": {"app": "gpu-operator"}}
    await api.apply(kinds.DEPLOYMENTS, {"metadata": metadata, "spec": {"replicas": 1, "template": pods}}, manager="x")
    node: Object = {"metadata": {"name": "n1", "labels": {names.LABEL_GPU_PRESENT: "true"}}}
    await api.apply(NODES, node, manager=names.OPERATOR_FIELD_MANAGER)
    cleaning = clean_up(api, "gpu-operatr", Limits(leave=0.1), say=lambda _line: None)
    if label == names.KGPU:
        with pytest.raises(KubeError, match=f"{NAMESPACE}/gpu-operator") as refused:
            await cleaning
        assert f"--namespace {NAMESPACE}" in refused.value.remedy
    else:  # another operator is no reason to leave kgpu's labels
        await cleaning
    left = await api.get(NODES, "n1")
    assert left is not None
    assert (names.LABEL_GPU_PRESENT in (left["metadata"].get("labels") or {})) is (label == names.KGPU)
