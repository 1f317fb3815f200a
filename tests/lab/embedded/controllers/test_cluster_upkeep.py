"""Garbage collection, nodes, daemons, services, budgets, claims: all controllers on the fake API."""

from __future__ import annotations

import datetime as dt

from kgpu.formats.names import LAB_PROVISIONER
from kgpu.kube.port import CONFIG_MAPS, LEASES, NODES, PODS, Object, labels_of, name_of
from kgpu.lab.embedded.controllers.kinds import (
    DAEMON_SETS,
    DEPLOYMENTS,
    DISRUPTION_BUDGETS,
    ENDPOINT_SLICES,
    ENDPOINTS,
    JOBS,
    REPLICA_SETS,
    SERVICES,
    STATEFUL_SETS,
    STORAGE_CLASSES,
    VOLUME_CLAIMS,
    VOLUMES,
)
from kgpu.lab.embedded.controllers.meta import condition
from kgpu.lab.embedded.controllers.node_plan import GRACE, ready_status
from kgpu.lab.embedded.controllers.nodettl import TTL, next_step

from .conftest import Api, World, controllers, ended, stamp, until, workload


def owned(name: str, owner: Object, *, namespace: str = "default", blocks: bool = False) -> Object:
    reference = {"apiVersion": "v1", "kind": "ConfigMap", "name": name_of(owner), "uid": owner["metadata"]["uid"]}
    if blocks:
        reference["blockOwnerDeletion"] = True
    return {"metadata": {"name": name, "namespace": namespace, "ownerReferences": [reference]}}


def plain(name: str, **metadata: object) -> Object:
    return {"metadata": {"name": name, "namespace": "default", **metadata}}


async def test_foreground_deletion_waits_for_those_that_block(world: World):
    owner = await world.api.create(CONFIG_MAPS, plain("owner"))
    held = owned("held", owner, blocks=True)
    held["metadata"]["finalizers"] = ["test/hold"]
    await world.api.create(CONFIG_MAPS, held)
    await world.api.create(CONFIG_MAPS, owned("free", owner))
    await world.api.delete(CONFIG_MAPS, "owner", namespace="default", propagation="Foreground")
    await until(lambda: world.get(CONFIG_MAPS, "held")["metadata"].get("deletionTimestamp"), "the dependent's deletion")
    assert world.get(CONFIG_MAPS, "owner") is not None
    await world.api.patch(CONFIG_MAPS, "held", {"metadata": {"finalizers": None}}, namespace="default")
    await until(lambda: not any(world.get(CONFIG_MAPS, name) for name in ("owner", "held", "free")))


async def test_one_living_owner_keeps_an_object_and_the_dead_one_is_forgotten(world: World):
    one, two = [await world.api.create(CONFIG_MAPS, plain(name)) for name in ("one", "two")]
    child = owned("child", one)
    child["metadata"]["ownerReferences"] += owned("x", two)["metadata"]["ownerReferences"]
    await world.api.create(CONFIG_MAPS, child)
    await world.api.delete(CONFIG_MAPS, "one", namespace="default")
    await until(lambda: [o["name"] for o in world.get(CONFIG_MAPS, "child")["metadata"]["ownerReferences"]] == ["two"])


async def test_an_owner_in_another_namespace_is_no_owner(world: World):
    owner = await world.api.create(CONFIG_MAPS, plain("owner"))
    await world.api.create(CONFIG_MAPS, owned("stray", owner, namespace="elsewhere"))
    await until(lambda: world.get(CONFIG_MAPS, "stray", "elsewhere") is None)


def node(name: str, **spec: object) -> Object:
    ready = {"type": "Ready", "status": "True", "lastHeartbeatTime": stamp(), "lastTransitionTime": stamp()}
    return {"metadata": {"name": name, "labels": {"host": name}}, "spec": spec, "status": {"conditions": [ready]}}


def daemon(**template: object) -> Object:
    found = workload("agent", updateStrategy={"type": "RollingUpdate", "rollingUpdate": {"maxUnavailable": 1}})
    found["spec"]["template"]["spec"] |= template
    return found


async def test_daemons_run_where_selector_and_taints_let_them(world: World):
    gpu = {"key": "nvidia.com/gpu", "effect": "NoSchedule"}
    world.api.put(NODES, node("n2", unschedulable=True))
    world.api.put(NODES, node("n3", taints=[gpu]))
    await world.api.create(DAEMON_SETS, daemon())
    seen = await until(
        lambda: (d := world.get(DAEMON_SETS, "agent")) and d.get("status", {}).get("numberReady") == 2 and d
    )
    assert {key: value for key, value in seen["status"].items() if key != "observedGeneration"} == {
        "currentNumberScheduled": 2, "desiredNumberScheduled": 2, "numberAvailable": 2, "numberMisscheduled": 0,
        "numberReady": 2, "updatedNumberScheduled": 2,
    }  # fmt: skip
    names = set()
    for pod in world.all(PODS):
        required = pod["spec"]["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
        names.update(required["nodeSelectorTerms"][0]["matchFields"][0]["values"])
    assert names == {"n1", "n2"}  # cordoned nodes too, as daemons tolerate that
    await world.api.patch(NODES, "n3", {"spec": {"taints": None}})
    await until(lambda: len(world.all(PODS)) == 3)


async def test_a_silent_kubelet_makes_its_node_unknown_and_its_pods_go():
    world, now = World(Api()), dt.datetime.now(dt.UTC)
    world.api.put(NODES, node("silent"))
    old = {
        "metadata": {"name": "silent", "namespace": "kube-node-lease"},
        "spec": {"renewTime": "2020-01-01T00:00:00.000000Z"},
    }
    world.api.put(LEASES, old)
    ready = {"type": "Ready", "status": "True", "lastTransitionTime": stamp()}
    status = {"phase": "Running", "conditions": [ready]}
    for name, seconds in (("brief", 0), ("patient", 10000)):
        tolerations = [
            {
                "key": "node.kubernetes.io/unreachable",
                "operator": "Exists",
                "effect": "NoExecute",
                "tolerationSeconds": seconds,
            }
        ]
        world.api.put(
            PODS, {**plain(name), "spec": {"nodeName": "silent", "tolerations": tolerations}, "status": status}
        )

    async with controllers(world.api, now=lambda: now):
        await until(lambda: world.events("RegisteredNode"), "the node to be known")
        now += dt.timedelta(seconds=GRACE + 1)
        world.api.put(NODES, node("alive"))  # heard of now, and no time goes by any more
        await until(lambda: ready_status(world.get(NODES, "silent")) == "Unknown", "the node")
        taints = await until(lambda: len(t := world.get(NODES, "silent")["spec"].get("taints") or []) == 2 and t)
        assert {(one["key"], one["effect"]) for one in taints} == {
            ("node.kubernetes.io/unreachable", "NoSchedule"), ("node.kubernetes.io/unreachable", "NoExecute"),
        }  # fmt: skip
        await until(lambda: (p := world.get(PODS, "brief")) is None or p["metadata"].get("deletionTimestamp"))
        await until(
            lambda: ("brief", "TaintManagerEviction", "Marking for deletion Pod default/brief") in world.events()
        )
        assert ("silent", "NodeNotReady", "Node silent status is now: NodeNotReady") in world.events()
    found = condition(world.get(NODES, "silent"), "Ready")
    assert (found["reason"], found["message"]) == ("NodeStatusUnknown", "Kubelet stopped posting node status.")
    patient = world.get(PODS, "patient")
    assert condition(patient, "Ready")["status"] == "False"
    assert not patient["metadata"].get("deletionTimestamp")
    assert ready_status(world.get(NODES, "alive")) == "True"


async def test_a_service_finds_its_pods(world: World):
    ports = [{"name": "http", "port": 80, "targetPort": 8080, "protocol": "TCP"}]
    await world.api.create(SERVICES, {**plain("web"), "spec": {"selector": {"app": "web"}, "ports": ports}})
    empty = await until(lambda: world.all(ENDPOINT_SLICES))
    assert empty[0]["endpoints"] == []
    await world.api.create(REPLICA_SETS, workload(replicas=1))
    pod = await until(lambda: [p for p in world.all(PODS) if p.get("status", {}).get("phase") == "Running"])
    status = {**pod[0]["status"], "podIP": "10.0.0.7"}
    await world.api.patch(PODS, name_of(pod[0]), {"status": status}, namespace="default", subresource="status")
    found = await until(lambda: (e := world.get(ENDPOINTS, "web")) and e.get("subsets"))
    assert found[0]["addresses"][0]["ip"] == "10.0.0.7"
    assert found[0]["ports"] == [{"name": "http", "port": 8080, "protocol": "TCP"}]
    slices = await until(lambda: (s := world.all(ENDPOINT_SLICES)) and s[0]["endpoints"] and s)
    assert len(slices) == 1
    assert slices[0]["endpoints"][0]["conditions"] == {"ready": True, "serving": True, "terminating": False}
    assert labels_of(slices[0])["kubernetes.io/service-name"] == "web"
    await world.api.delete(SERVICES, "web", namespace="default")
    await until(lambda: not world.all(ENDPOINT_SLICES) and world.get(ENDPOINTS, "web") is None)


async def test_a_budget_counts_what_may_be_evicted(world: World):
    await world.api.create(DEPLOYMENTS, workload(replicas=4))
    budget = {**plain("keep"), "spec": {"maxUnavailable": "25%", "selector": {"matchLabels": {"app": "web"}}}}
    await world.api.create(DISRUPTION_BUDGETS, budget)
    found = await until(
        lambda: (b := world.get(DISRUPTION_BUDGETS, "keep")) and b.get("status", {}).get("disruptionsAllowed") and b
    )
    counts = {
        key: found["status"][key] for key in ("currentHealthy", "desiredHealthy", "expectedPods", "disruptionsAllowed")
    }
    assert counts == {"currentHealthy": 4, "desiredHealthy": 3, "expectedPods": 4, "disruptionsAllowed": 1}
    assert condition(found, "DisruptionAllowed")["reason"] == "SufficientPods"


async def test_a_stateful_set_comes_up_in_order_with_its_claims(world: World):
    await world.api.create(STORAGE_CLASSES, {"metadata": {"name": "standard"}, "provisioner": LAB_PROVISIONER})
    claim = {
        "metadata": {"name": "data"},
        "spec": {
            "accessModes": ["ReadWriteOnce"],
            "storageClassName": "standard",
            "resources": {"requests": {"storage": "1Gi"}},
        },
    }
    await world.api.create(STATEFUL_SETS, workload("db", replicas=2, serviceName="db", volumeClaimTemplates=[claim]))
    found = await until(
        lambda: (s := world.get(STATEFUL_SETS, "db")) and s.get("status", {}).get("readyReplicas") == 2 and s
    )
    assert found["status"]["currentRevision"] == found["status"]["updateRevision"]
    assert sorted(name_of(pod) for pod in world.all(PODS)) == ["db-0", "db-1"]
    assert world.get(PODS, "db-1")["metadata"]["labels"]["apps.kubernetes.io/pod-index"] == "1"
    claims = await until(
        lambda: [c for c in world.all(VOLUME_CLAIMS) if c.get("status", {}).get("phase") == "Bound"][1:]
    )
    assert claims
    assert {one["status"]["phase"] for one in world.all(VOLUMES)} == {"Bound"}
    said = {"Create Pod db-0 in StatefulSet db successful", "Create Claim data-db-0 Pod db-0 in StatefulSet db success"}
    await until(lambda: said <= {message for _, _, message in world.events("SuccessfulCreate")}, "what is told of them")
    await world.api.patch(STATEFUL_SETS, "db", {"spec": {"replicas": 1}}, namespace="default")
    await until(lambda: [name_of(pod) for pod in world.all(PODS)] == ["db-0"])


async def test_a_finished_job_goes_after_its_time(world: World):
    world.behave = ended("Succeeded")
    await world.api.create(JOBS, workload("brief", completions=1, backoffLimit=0, ttlSecondsAfterFinished=1))
    # The end is told in whole seconds, so that the Job itself may go in the moment in which it is complete.
    await until(lambda: world.events("Completed"), "the Job's end")
    await until(lambda: world.get(JOBS, "brief") is None and not world.all(PODS), "the Job to go")


async def test_nodes_say_how_long_what_they_read_may_be_old(world: World):
    await until(lambda: ttls(world) == {"n1": "0"}, "the first annotation")
    for number in range(2, 102):
        world.api.put(NODES, {"metadata": {"name": f"n{number}", "annotations": {"other": "x"}}})
    await until(lambda: set(ttls(world).values()) == {"15"} and len(ttls(world)) == 101, "the next step")
    assert world.get(NODES, "n7")["metadata"]["annotations"]["other"] == "x"
    await world.api.patch(NODES, "n7", {"metadata": {"annotations": {TTL: "soon"}}})
    await until(lambda: ttls(world)["n7"] == "15", "the wrong one to be put right")
    for number in range(90, 102):
        await world.api.delete(NODES, f"n{number}")
    await until(lambda: set(ttls(world).values()) == {"0"}, "the step back")


def ttls(world: World) -> dict[str, str | None]:
    return {name_of(node): node["metadata"].get("annotations", {}).get(TTL) for node in world.all(NODES)}


def test_steps_of_cluster_sizes_overlap():
    grown = [0]
    for nodes in (100, 101, 500, 501, 1000, 1001, 2000, 2001, 10_000):
        grown.append(next_step(grown[-1], nodes))
    assert grown[1:] == [0, 1, 1, 2, 2, 3, 3, 4, 4]
    shrunk = [4]
    for nodes in (1800, 1799, 900, 899, 450, 449, 90, 89, 0):
        shrunk.append(next_step(shrunk[-1], nodes))
    assert shrunk[1:] == [4, 3, 3, 2, 2, 1, 1, 0, 0]
    assert (next_step(0, 5000), next_step(4, 1)) == (4, 0)
