"""What the embedded cluster takes and does nothing about, as docs/explanation/embedded-cluster.md says: no controller acts.

That nothing comes of an object is looked at once something has come of a later one.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from kgpu.kube.kinds import DEPLOYMENTS, SERVICE_ACCOUNTS, SERVICES
from kgpu.kube.port import NODES, PODS, Object
from kgpu.lab.embedded.controllers.kinds import AUTOSCALERS, ENDPOINT_SLICES, STORAGE_CLASSES, VOLUME_CLAIMS, VOLUMES
from tests.lab.embedded.support import Whole, whole

CONTAINERS = [{"name": "c", "image": "registry.invalid/none"}]


@pytest.fixture
async def lab(tmp_path: Path) -> AsyncIterator[Whole]:
    async with whole(tmp_path) as found:
        await found.node("n1")
        await found.until(lambda: found.get(SERVICE_ACCOUNTS, "default"))
        # A new node is tainted until the controllers have seen that it is ready.
        await found.until(lambda: not (found.get(NODES, "n1") or {})["spec"].get("taints"))
        yield found


async def pod(lab: Whole, name: str, **spec: object) -> None:
    await lab.create(
        PODS, {"metadata": {"name": name, "labels": {"app": "a"}}, "spec": {"containers": CONTAINERS, **spec}}
    )


def node_of(lab: Whole, name: str) -> str:
    return str((lab.get(PODS, name) or {})["spec"].get("nodeName", ""))


async def test_an_autoscaler_has_no_metrics_of_other_servers(lab: Whole) -> None:
    template = {"metadata": {"labels": {"app": "a"}}, "spec": {"containers": CONTAINERS}}
    spec = {"replicas": 3, "selector": {"matchLabels": {"app": "a"}}, "template": template}
    await lab.create(DEPLOYMENTS, {"metadata": {"name": "web"}, "spec": spec})
    target = {"apiVersion": "apps/v1", "kind": "Deployment", "name": "web"}
    metric = {"metric": {"name": "gpu_utilization"}, "target": {"type": "AverageValue", "averageValue": "60"}}
    limits = {"maxReplicas": 5, "scaleTargetRef": target, "metrics": [{"type": "Pods", "pods": metric}]}
    await lab.create(AUTOSCALERS, {"metadata": {"name": "web"}, "spec": limits})

    def conditions() -> list[tuple[str, str, str]]:
        status = (lab.get(AUTOSCALERS, "web") or {}).get("status") or {}
        return [(one["type"], one["status"], one["reason"]) for one in status.get("conditions") or ()]

    await lab.until(conditions, "its first look")
    assert conditions() == [
        ("AbleToScale", "True", "SucceededGetScale"), ("ScalingActive", "False", "FailedGetPodsMetric"),
    ]  # fmt: skip
    assert (lab.get(DEPLOYMENTS, "web") or {})["spec"]["replicas"] == 3


async def claim(lab: Whole, name: str, of: str) -> None:
    size = {"requests": {"storage": "1Gi"}}
    spec: Object = {"accessModes": ["ReadWriteOnce"], "resources": size, "storageClassName": of}
    await lab.create(VOLUME_CLAIMS, {"metadata": {"name": name}, "spec": spec})


def phase(lab: Whole, name: str) -> str:
    return str((lab.get(VOLUME_CLAIMS, name) or {})["status"]["phase"])


async def test_a_volume_is_made_for_a_claim_of_the_labs_own_provisioner_alone(lab: Whole) -> None:
    for name, provisioner in (("ours", "kgpu.dev/local"), ("theirs", "csi.example.org")):
        await lab.create(STORAGE_CLASSES, {"metadata": {"name": name}, "provisioner": provisioner})

    await claim(lab, "a", "theirs")
    await claim(lab, "b", "")
    await claim(lab, "c", "ours")
    await lab.until(lambda: phase(lab, "c") == "Bound", "the lab's volume")
    assert [phase(lab, name) for name in "ab"] == ["Pending", "Pending"]
    (volume,) = await lab.all(VOLUMES)
    assert volume["spec"]["claimRef"]["name"] == "c"
    assert volume["spec"]["csi"] == {"driver": "kgpu.dev/local", "volumeHandle": volume["metadata"]["name"]}


async def test_a_volume_that_somebody_made_is_bound_to_a_claim_that_it_fits(lab: Whole) -> None:
    spec = {"capacity": {"storage": "2Gi"}, "accessModes": ["ReadWriteOnce"], "hostPath": {"path": "/tmp/none"}}
    await lab.create(VOLUMES, {"metadata": {"name": "mine"}, "spec": spec})
    await claim(lab, "a", "")
    await lab.until(lambda: phase(lab, "a") == "Bound", "the volume")
    assert (lab.get(VOLUME_CLAIMS, "a") or {})["spec"]["volumeName"] == "mine"


async def test_a_service_gets_an_address_and_its_endpoints(lab: Whole) -> None:
    ports = [{"port": 80, "targetPort": 8080}]
    await lab.create(SERVICES, {"metadata": {"name": "web"}, "spec": {"selector": {"app": "a"}, "ports": ports}})
    assert (lab.get(SERVICES, "web") or {})["spec"]["clusterIP"].count(".") == 3
    await pod(lab, "p")
    await lab.until(lambda: node_of(lab, "p"), "a node")
    ready = [{"type": "Ready", "status": "True"}]
    status = {"podIP": "10.244.0.7", "podIPs": [{"ip": "10.244.0.7"}], "phase": "Running", "conditions": ready}
    await lab.api.patch(PODS, "p", {"status": status}, namespace="default", subresource="status")

    async def addresses() -> list[str]:
        slices = [one for one in await lab.all(ENDPOINT_SLICES) if one["metadata"]["name"].startswith("web-")]
        return [address for one in slices for row in one.get("endpoints") or () for address in row["addresses"]]

    assert await lab.until(addresses, "the pod's address") == ["10.244.0.7"]
