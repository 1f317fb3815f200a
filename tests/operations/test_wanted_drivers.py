"""Which driver a node is to run, for people who ask for an upgrade: by the operator's own DaemonSet and pod."""

from __future__ import annotations

from typing import Any

import pytest

from kgpu.base.errors import ConfigError
from kgpu.kube.fake import FakeApi
from kgpu.kube.kinds import CLUSTER_POLICIES, DAEMON_SETS
from kgpu.kube.port import NODES, PODS
from kgpu.operations.wanted_drivers import wanted_driver

OLD, NEW = "nvcr.io/nvidia/driver:550.54.15-ubuntu22.04", "nvcr.io/nvidia/driver:570.86.15-ubuntu22.04"
LABELS = {"app.kubernetes.io/component": "nvidia-driver"}


def template(image: str, **node_selector: str) -> dict[str, Any]:
    env = [{"name": "DRIVER_CONFIG_DIGEST", "value": f"digest-of-{image[-20:]}"}]
    containers = [{"name": "nvidia-driver-ctr", "image": image, "env": env}]
    annotations = {"kgpu.dev/driver-digest-version": "1"}
    spec = {"nodeSelector": node_selector, "containers": containers}
    return {"metadata": {"annotations": annotations, "labels": LABELS}, "spec": spec}


def cluster(namespace: str = "gpu-operator") -> FakeApi:
    """A node whose driver pod is of the former driver."""
    api = FakeApi()
    api.put(CLUSTER_POLICIES, {"metadata": {"name": "cluster-policy"}, "status": {"namespace": namespace}})
    api.put(NODES, {"metadata": {"name": "one", "labels": {"gpu": "yes"}}})
    daemon_set(api, namespace, "nvidia-driver-daemonset")
    driver_pod(api, namespace, OLD)
    return api


def daemon_set(api: FakeApi, namespace: str, name: str, **node_selector: str) -> None:
    metadata = {"name": name, "namespace": namespace, "labels": LABELS}
    api.put(DAEMON_SETS, {"metadata": metadata, "spec": {"template": template(NEW, **node_selector)}})


def driver_pod(
    api: FakeApi, namespace: str, image: str, name: str = "driver-one", *, ready: bool = True, **metadata: str
) -> None:
    made = template(image)
    owner = {"kind": "DaemonSet", "name": "nvidia-driver-daemonset", "controller": True}
    made["metadata"] |= {"name": name, "namespace": namespace, "ownerReferences": [owner], **metadata}
    made["spec"]["nodeName"] = "one"
    made["status"] = {"conditions": [{"type": "Ready", "status": "True" if ready else "False"}]}
    api.put(PODS, made)


@pytest.mark.parametrize("namespace", ["gpu-operator", "gpus"])
async def test_it_is_what_the_operators_daemon_set_asks_for(namespace: str) -> None:
    found = await wanted_driver(cluster(namespace), "one")
    assert (found.namespace, found.daemon_set, found.image) == (namespace, "nvidia-driver-daemonset", NEW)
    assert (found.from_version, found.version) == ("550.54.15", "570.86.15")


async def test_what_a_tenant_labels_as_a_driver_says_nothing() -> None:
    api = cluster()
    daemon_set(api, "tenant", "nvidia-driver-daemonset")
    driver_pod(api, "tenant", NEW)
    assert (await wanted_driver(api, "one")).namespace == "gpu-operator"


async def test_daemon_sets_for_other_nodes_do_not_count_and_two_for_this_one_are_named() -> None:
    api = cluster()
    daemon_set(api, "gpu-operator", "of-others", gpu="no")
    assert (await wanted_driver(api, "one")).daemon_set == "nvidia-driver-daemonset"
    daemon_set(api, "gpu-operator", "of-this", gpu="yes")
    with pytest.raises(ConfigError, match="gpu-operator/nvidia-driver-daemonset, gpu-operator/of-this"):
        await wanted_driver(api, "one")


async def test_a_node_that_is_not_there_or_has_no_driver_of_kgpu_is_refused() -> None:
    with pytest.raises(ConfigError, match="no node two"):
        await wanted_driver(cluster(), "two")
    api = FakeApi()
    api.put(NODES, {"metadata": {"name": "one"}})
    with pytest.raises(ConfigError, match="are none"):
        await wanted_driver(api, "one")


async def test_a_pod_that_fails_at_that_driver_may_be_tried_again() -> None:
    api = cluster()
    driver_pod(api, "gpu-operator", NEW, ready=False)
    assert (await wanted_driver(api, "one")).version == "570.86.15"


async def test_a_node_whose_pod_is_of_that_driver_is_refused_and_a_pod_that_goes_does_not_count() -> None:
    api = cluster()
    driver_pod(api, "gpu-operator", NEW)
    with pytest.raises(ConfigError, match=r"is of driver 570\.86\.15 already"):
        await wanted_driver(api, "one")
    driver_pod(api, "gpu-operator", NEW, deletionTimestamp="2026-01-01T00:00:00Z")
    assert (await wanted_driver(api, "one")).from_version == ""
