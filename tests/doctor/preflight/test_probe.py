"""The probe's pods: what they may, what they say, how they fail; and that they are gone on every way out."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from kgpu.base.errors import ConfigError
from kgpu.doctor import host_facts
from kgpu.doctor.preflight.probe import CONTAINER, HostProbe, ProbeResult, ProbeSettings, pod
from kgpu.doctor.snapshot import Snapshot
from kgpu.doctor.sources import probed
from kgpu.kube import kinds
from kgpu.kube.fake import FakeApi
from kgpu.kube.port import PODS, KubeRefusedError, Object, Resource

SPACE = "gpu-operator"


class Cluster(FakeApi):
    """Its kubelets end pods at once, each as ``ends`` says for its node."""

    def __init__(self, **ends: str) -> None:
        super().__init__()
        self.ends = ends
        self.made: list[Object] = []
        self.asked = asyncio.Event()
        self.says: Object = {}
        self.log: bytes | None = None
        self.put(kinds.NAMESPACES, {"metadata": {"name": SPACE}})

    async def create(self, resource: Resource, obj: Object, *, subresource: str = "") -> Object:
        made = await super().create(resource, obj, subresource=subresource)
        self.made.append(obj)
        if resource == PODS:
            node = obj["spec"]["nodeName"]
            if self.ends.get(node) == "refused":
                await super().delete(PODS, obj["metadata"]["name"], namespace=SPACE, grace=0)
                said = 'pods "x" is forbidden: violates PodSecurity "baseline:latest": hostPath volumes'
                raise KubeRefusedError(said, "a pod that is allowed", "label the namespace", code=403)
            status = {"phase": self.ends.get(node, "Succeeded")}
            self.put(PODS, {**made, "status": status})
        return made

    async def get(self, resource: Resource, name: str, *, namespace: str = "") -> Object | None:
        self.asked.set() if resource == PODS else None
        return await super().get(resource, name, namespace=namespace)

    async def logs(self, namespace: str, pod: str, container: str, **_: Any) -> bytes:
        assert (namespace, container) == (SPACE, CONTAINER)
        facts = host_facts.encode(host_facts.HostFacts(node="some container", kernel="6.8.0")) | self.says
        return f"{probed.line(facts)}\n".encode() if self.log is None else self.log

    async def left(self) -> list[str]:
        rows = [await self.list(resource, namespace=SPACE) for resource in (PODS, kinds.SERVICE_ACCOUNTS)]
        return [one["metadata"]["name"] for row in rows for one in row.items]


class Hesitant(Cluster):
    """It refuses the first request to delete each thing."""

    def __init__(self) -> None:
        super().__init__()
        self.heard: set[str] = set()

    async def delete(self, resource: Resource, name: str, **about: Any) -> bool:
        if name not in self.heard:
            self.heard.add(name)
            raise KubeRefusedError("too many requests", "patience", "wait", code=429)
        return await super().delete(resource, name, **about)


async def look(api: Cluster, *nodes: str, seconds: float = 20.0) -> ProbeResult:
    settings = ProbeSettings(namespace=SPACE, image="kgpu.dev/kgpu:1", seconds=seconds)
    return await HostProbe(api, api, settings).look(nodes)


async def test_each_node_is_looked_at_and_nothing_is_left() -> None:
    api = Cluster()
    found = await look(api, "a", "b")
    assert sorted(found.facts) == ["a", "b"]
    assert found.facts["a"]["node"] == "a", "a pod speaks for the node that it is on, whatever it says"
    assert found.failed == {}
    assert await api.left() == []


FORGED: Object = {"metadata": {"name": "cluster-policy"}, "spec": {"driver": {"enabled": False}}}


@pytest.mark.parametrize(
    "says",
    [
        {"kind": "ClusterPolicy", **FORGED},
        {"kind": "List", "items": [{"kind": "ClusterPolicy", **FORGED}, {"kind": "HostFacts", "node": "b"}]},
        {"kind": "", "items": [{"kind": "Node", "metadata": {"name": "b"}}]},
        {"kind": "HostFacts", "metadata": {"name": "b"}, "node": "b"},
    ],
)
async def test_a_node_speaks_of_itself_alone(says: Object) -> None:
    api = Cluster()
    api.says = says
    snapshot = Snapshot()
    for document in (await look(api, "a")).facts.values():
        snapshot.add(document)
    assert list(snapshot.hosts) == ["a"]
    assert (dict(snapshot.nodes), snapshot.kinds) == ({}, {})


@pytest.mark.parametrize("log", [b"", b"\xff\x00", b'{"kgpu.dev/host-facts":1,"facts":"eJw="}\n', b"{" * 100_000])
async def test_what_is_no_line_of_facts_leaves_the_node_unknown(log: bytes) -> None:
    api = Cluster()
    api.log = log
    found = await look(api, "a")
    assert found.facts == {}
    assert found.failed == {"a": "its pod has printed nothing that could be read"}


async def test_its_pods_have_no_rights_and_only_read() -> None:
    api = Cluster()
    await look(api, "a")
    account, made = api.made
    spec = made["spec"]
    assert account["kind"] == "ServiceAccount"
    assert spec["serviceAccountName"] == account["metadata"]["name"]
    assert spec["automountServiceAccountToken"] is account["automountServiceAccountToken"] is False
    assert spec["activeDeadlineSeconds"] > 0
    (container,) = spec["containers"]
    assert container["securityContext"]["capabilities"] == {"drop": ["ALL"]}
    assert "privileged" not in container["securityContext"]
    assert all(mount["readOnly"] for mount in container["volumeMounts"])
    assert container["resources"]["limits"]["memory"]


async def test_pod_security_that_refuses_it_is_told_and_no_more_are_tried() -> None:
    api = Cluster(**{f"n{number}": "refused" for number in range(40)})
    found = await look(api, *api.ends)
    assert "violates PodSecurity" in found.refused
    assert sum(one["kind"] == "Pod" for one in api.made) < 40
    assert await api.left() == []


async def test_a_pod_that_fails_or_does_not_end_is_unknown_with_a_reason() -> None:
    api = Cluster(a="Failed", b="Pending")
    found = await look(api, "a", "b", "c", seconds=0.05)
    assert sorted(found.failed) == ["a", "b"]
    assert "has ended" in found.failed["a"]
    assert "within 0.05 seconds" in found.failed["b"]
    assert sorted(found.facts) == ["c"]
    assert await api.left() == []


async def test_nothing_is_left_when_it_is_interrupted() -> None:
    api = Cluster(a="Running")
    task = asyncio.create_task(look(api, "a"))
    await api.asked.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert await api.left() == []


async def test_what_can_not_be_deleted_is_tried_again_and_then_told() -> None:
    api = Cluster()
    api.refuse[("delete", "pods")] = 403
    found = await look(api, "a")
    (pod_name,) = (one["metadata"]["name"] for one in api.made if one["kind"] == "Pod")
    assert list(found.left) == [f"Pod {pod_name}"]
    assert sorted(found.facts) == ["a"], "what was seen counts all the same"
    assert await api.left() == [pod_name]
    slow = Hesitant()
    assert (await look(slow, "a")).left == {}
    assert await slow.left() == []


async def test_nor_when_no_pod_can_be_made() -> None:
    api = Cluster()
    api.refuse[("create", "pods")] = 403
    found = await look(api, "a")
    assert sorted(found.failed) == ["a"]
    assert found.refused == ""
    assert await api.left() == []


async def test_a_namespace_that_is_not_there_is_an_error_in_three_parts() -> None:
    api = Cluster()
    settings = ProbeSettings(namespace="nowhere", image="x")
    with pytest.raises(ConfigError, match="there is no namespace nowhere") as raised:
        await HostProbe(api, api, settings).look(["a"])
    assert "kubectl create namespace nowhere" in raised.value.remedy


def test_the_pod_is_bound_to_its_node_and_says_where_it_is() -> None:
    made = pod("p", "node-7", "account", ProbeSettings(namespace=SPACE, image="kgpu.dev/kgpu:1"))
    assert made["spec"]["nodeName"] == "node-7"
    assert {"name": "NODE_NAME", "value": "node-7"} in made["spec"]["containers"][0]["env"]
