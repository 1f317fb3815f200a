"""The operator on an API server that has OpenShift's kinds: what it makes, what it follows, and what it leaves behind."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, Final

import pytest

from kgpu.formats import names
from kgpu.formats.crd.definitions import crds
from kgpu.kube import kinds
from kgpu.kube.port import CONFIG_MAPS, Object
from kgpu.operator.cluster_reading import read_cluster
from kgpu.operator.survey import labelled, survey
from tests import openshift
from tests.lab.embedded.support import Whole, whole
from tests.operator.run.test_on_the_embedded_api import operator, operators, policy
from tests.operator.world import NAMESPACE, PCI

RHCOS: Final = "416.94.202409191851-0"
DAEMON_SET: Final = f"nvidia-driver-daemonset-{RHCOS}"
NODE: Final[dict[str, Any]] = {
    PCI: "true", "kubernetes.io/os": "linux", names.NFD_OS_ID: "rhcos", names.NFD_OS_VERSION: "4.16",
    names.NFD_OSTREE_VERSION: RHCOS,
}  # fmt: skip
DRIVER: Final = {"enabled": True, "repository": "nvcr.io/nvidia", "image": "driver", "version": "580.95.05"}
MONITORED: Final = "openshift.io/cluster-monitoring"


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[Whole]:
    async with whole(tmp_path, "controllers") as found:
        for crd in (*crds(), *openshift.definitions()):
            await found.api.create(kinds.CUSTOM_RESOURCE_DEFINITIONS, crd)
        for namespace in (NAMESPACE, openshift_namespace()):
            await found.create(kinds.NAMESPACES, {"metadata": {"name": namespace}})
        await found.api.create(
            kinds.SERVICE_ACCOUNTS, {"metadata": {"name": names.AGENT_DAEMON_SET, "namespace": NAMESPACE}}
        )
        await found.node("n1", taints=(), **NODE)
        for resource in (kinds.CLUSTER_POLICIES, *openshift.SCHEMAS):
            await found.until(lambda kind=resource: found.core.kinds.stored(kind.group, kind.plural), "the kinds")  # type: ignore[misc]
        history = {"history": [{"state": "Completed", "version": "4.16.3"}]}
        await found.api.create(kinds.CLUSTER_VERSIONS, {"metadata": {"name": "version"}, "status": history})
        proxy = {"httpProxy": "http://proxy:3128", "trustedCA": {"name": "corp"}}
        await found.api.create(kinds.PROXIES, {"metadata": {"name": "cluster"}, "spec": proxy})
        yield found


def openshift_namespace() -> str:
    return str(openshift.stream()["metadata"]["namespace"])


def one_set(found: Whole) -> Object:
    live = found.get(kinds.DAEMON_SETS, DAEMON_SET, NAMESPACE)
    assert live is not None
    return live


def digest_in(daemon_set: Object) -> str:
    (driver,) = [
        one for one in daemon_set["spec"]["template"]["spec"]["containers"] if one["name"] == names.DRIVER_CONTAINER
    ]
    return str(next(row["value"] for row in driver["env"] if row["name"] == names.ENV_DRIVER_CONFIG_DIGEST))


def pod(found: Whole) -> Object | None:
    live = found.get(kinds.DAEMON_SETS, DAEMON_SET, NAMESPACE)
    return None if live is None else live["spec"]["template"]["spec"]


def image_of(found: Whole) -> str:
    """That of the toolkit, "" without one."""
    spec = pod(found)
    named = {one["name"]: one["image"] for one in (spec or {"containers": ()})["containers"]}
    return str(named.get("openshift-driver-toolkit-ctr", ""))


async def test_a_driver_is_built_in_the_toolkit_as_soon_as_there_is_one(cluster: Whole) -> None:
    async with operator(cluster) as one:
        await policy(cluster, driver=DRIVER)
        await cluster.until(lambda: pod(cluster), "the driver")
        await cluster.until(one.settled.is_set, "rest")
        assert image_of(cluster) == ""
        text = one.figures.text()
        assert "gpu_operator_openshift_driver_toolkit_enabled -1" in text
        assert "gpu_operator_openshift_driver_toolkit_imagestream_missing 1" in text

        await cluster.api.create(kinds.IMAGE_STREAMS, openshift.stream(**{RHCOS: "quay.io/toolkit:1"}))
        await cluster.until(lambda: image_of(cluster) == "quay.io/toolkit:1", "the toolkit")
        spec = pod(cluster)
        assert spec is not None
        env = {row["name"]: row.get("value") for row in spec["containers"][0]["env"]}
        assert (env["OPENSHIFT_VERSION"], env["http_proxy"]) == ("4.16", "http://proxy:3128")
        await cluster.until(one.settled.is_set, "rest")
        await cluster.until(lambda: "driver_toolkit_enabled 1" in one.figures.text(), "the figure")

        # `kgpu status` sees the same toolkit, else it would call each driver due for an upgrade.
        reading = await read_cluster(cluster.api, NAMESPACE)
        (known,) = reading.observed.policies
        shown = survey(labelled(reading.observed, known, reading.settings), reading.settings, known)
        assert digest_in(shown.view.wanted[DAEMON_SET]) == digest_in(one_set(cluster))

        await cluster.api.delete(kinds.IMAGE_STREAMS, "driver-toolkit", namespace=openshift_namespace())
        await cluster.until(lambda: "imagestream_missing 1" in one.figures.text(), "the figure")
        assert image_of(cluster) == "quay.io/toolkit:1"


async def test_what_openshift_writes_stays_and_what_is_kgpus_goes(cluster: Whole) -> None:
    async with operator(cluster) as one:
        await policy(cluster, driver=DRIVER)
        name = "gpu-operator-trusted-ca"
        await cluster.until(lambda: cluster.get(CONFIG_MAPS, name, NAMESPACE), "the certificates' place")
        await cluster.until(one.settled.is_set, "rest")
        role = cluster.get(kinds.ROLES, "nvidia-driver", NAMESPACE)
        assert role is not None
        assert [rule["resourceNames"] for rule in role["rules"]] == [["kgpu-driver"]]
        await cluster.api.patch(CONFIG_MAPS, name, {"data": {"ca-bundle.crt": "certificates"}}, namespace=NAMESPACE)
        await cluster.until(one.settled.is_set, "rest")
        written = dict(one.figures.writes)
        # A change of the policy is a pass that looks at everything.
        change = {"spec": {"operator": {"runtimeClass": "other"}}}
        await cluster.api.patch(kinds.CLUSTER_POLICIES, "cluster-policy", change)
        await cluster.until(lambda: cluster.get(kinds.RUNTIME_CLASSES, "other"), "the change")
        await cluster.until(one.settled.is_set, "rest")
        live = cluster.get(CONFIG_MAPS, name, NAMESPACE)
        assert live is not None
        assert live["data"] == {"ca-bundle.crt": "certificates"}
        assert one.figures.writes.get("Role", 0) == written.get("Role", 0)
        own = cluster.get(kinds.NAMESPACES, NAMESPACE)
        assert own is not None
        assert own["metadata"]["labels"][MONITORED] == "true"

        await cluster.api.delete(kinds.CLUSTER_POLICIES, "cluster-policy")

        async def clean() -> bool:
            left = cluster.get(kinds.NAMESPACES, NAMESPACE)
            assert left is not None
            return await operators(cluster) == set() and MONITORED not in left["metadata"]["labels"]

        await cluster.until(clean, "everything to go")
