"""What is predicted of a cluster's settings happens: each is told before it is made, in a lab that kgpu's operator runs.

Two nodes with different releases of their system run their drivers, and nothing is predicted of them. Then each story asks the preflight
about what is to come (values for the chart, or a plugin's pod that is there already), makes it so, waits for what was
predicted, asks the doctor, and takes it back.
"""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import pytest
import yaml
from click.testing import CliRunner

from kgpu.cli.doctor import look, parse_target
from kgpu.cli.preflight import preflight as preflight_command
from kgpu.doctor.model import Report
from kgpu.formats import agent_report
from kgpu.formats.names import (
    GPU_RESOURCE,
    KUBELET_DEVICE_PLUGIN_DIR,
    NFD_OS_ID,
    NFD_OS_VERSION,
    ROLES_ANNOTATION,
)
from kgpu.kubelet.model import DeviceState
from kgpu.lab.common import FIRST_NODE
from kgpu.lab.embedded.lab import EmbeddedLab
from kgpu.lab.nodes import driver_image, manage
from kgpu.lab.nodes.machine import PLUGINS
from kgpu.lab.port import kubectl as run_kubectl
from kgpu.lab.real import build
from tests.kubelet.followers import Plugin
from tests.lab.driver_container import (
    DRIVER,
    DRIVER_PODS,
    NEW,
    Object,
    driver_lab,
    driver_pod,
    get,
    is_up,
    node,
    status,
    until,
)

pytestmark = pytest.mark.timeout(1800)
OTHER: Final = "other-1"
OLDER: Final = {NFD_OS_ID: "ubuntu", NFD_OS_VERSION: "22.04"}
FOREIGN: Final = 5
"""How many GPUs the other plugin offers on a node that has two."""


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedLab]:
    """A lab with nodes of two releases of Ubuntu, each with its driver and two GPUs."""
    if not build.find_kubectl():
        pytest.skip("no kubectl here")
    yield from map(settled, driver_lab(tmp_path_factory.mktemp("operated")))


def settled(lab: EmbeddedLab) -> EmbeddedLab:
    """The lab with the second node, once both have the driver that it comes with."""
    change(lab, driver={"upgradePolicy": {"autoUpgrade": False}})
    manage.add_to_running(
        lab.folder, "l4", gpus=2, driver="container", name_prefix="other", time_scale=0.05, labels=OLDER
    )
    until(lab, lambda: all(drivers(lab).values()), "a driver's pod on both nodes")
    was = version(lab)
    until(lab, lambda: all(is_up(lab, was, name) for name in (FIRST_NODE, OTHER)), f"driver {was} on both nodes")
    return lab


def version(lab: EmbeddedLab) -> str:
    """The driver that the ClusterPolicy asks for."""
    return str(get(lab, "clusterpolicy", "cluster-policy")["spec"]["driver"]["version"])


def change(lab: EmbeddedLab, **spec: Any) -> None:
    """Merge into the ClusterPolicy's spec."""
    patch = json.dumps({"spec": spec})
    run_kubectl(lab, "patch", "clusterpolicy", "cluster-policy", "--type=merge", "--patch", patch)


def renew(lab: EmbeddedLab) -> None:
    """Have the drivers' pods made anew."""
    run_kubectl(lab, "delete", *DRIVER_PODS, "--wait=false")


def policy(lab: EmbeddedLab) -> str:
    """All that the ClusterPolicy's status says."""
    return json.dumps(get(lab, "clusterpolicy", "cluster-policy")["status"])


def predicted(lab: EmbeddedLab, values: Path | None = None, **wanted: Any) -> dict[str, list[str]]:
    """The ids of what is predicted to fail with these values for the chart, and on which nodes."""
    words = ["--kubeconfig", str(lab.kubeconfig), "--no-registry", "-o", "json"]
    if values is not None:
        (values / "values.yaml").write_text(yaml.safe_dump(wanted))
        words += ["--values", str(values / "values.yaml")]
    done = CliRunner().invoke(preflight_command, words)
    assert done.exit_code in (0, 1), done.output
    rows = json.loads(done.stdout)["predictions"]
    return {one["id"]: one["nodes"] for one in rows if one["level"] == "problem"}


def doctor(lab: EmbeddedLab) -> Report:
    return asyncio.run(look(parse_target((), ""), "", str(lab.kubeconfig), ""))


def finds(lab: EmbeddedLab, rule: str) -> bool:
    return rule in [one.id for one in doctor(lab).findings]


def drivers(lab: EmbeddedLab) -> dict[str, str]:
    """The uids of the drivers' pods, by node."""
    return {name: driver_pod(lab, name).get("metadata", {}).get("uid", "") for name in (FIRST_NODE, OTHER)}


def test_nothing_is_predicted_of_a_cluster_where_all_is_well(lab: EmbeddedLab) -> None:
    assert predicted(lab) == {}


PLUGIN: Final[Object] = {
    "apiVersion": "v1", "kind": "Pod", "metadata": {"name": "static-plugin", "namespace": "kube-system"},
    "spec": {
        "nodeName": FIRST_NODE, "terminationGracePeriodSeconds": 0,
        "containers": [{
            "name": "plugin", "image": "nvcr.io/nvidia/k8s-device-plugin:v0.17.0",
            "volumeMounts": [{"name": "plugins", "mountPath": KUBELET_DEVICE_PLUGIN_DIR}],
        }],
        "volumes": [{"name": "plugins", "hostPath": {"path": KUBELET_DEVICE_PLUGIN_DIR}}],
    },
}  # fmt: skip


class OtherPlugin:
    """The program of the other plugin's pod, of which the lab has no image: it offers ``FOREIGN`` GPUs."""

    def __init__(self, folder: Path) -> None:
        self._loop = asyncio.new_event_loop()
        self._plugin = Plugin(folder, "static", resource=GPU_RESOURCE)
        self._plugin.server.update([DeviceState(id=f"share-{number}") for number in range(FOREIGN)])

    def register(self) -> None:
        """Say to the kubelet that it is there, as it does at its start and after each of the kubelet's."""
        asyncio.run_coroutine_threadsafe(self._plugin.register(), self._loop).result(60)

    @contextmanager
    def running(self) -> Iterator[None]:
        thread = threading.Thread(target=self._loop.run_forever)
        thread.start()
        try:
            yield
        finally:
            asyncio.run_coroutine_threadsafe(self._plugin.server.close(), self._loop).result(60)
            self._loop.call_soon_threadsafe(self._loop.stop)
            thread.join()
            self._loop.close()


def offers(lab: EmbeddedLab, gpus: int) -> bool:
    return bool(node(lab)["status"]["allocatable"].get(GPU_RESOURCE, "0") == str(gpus))


def plugin_is_off(lab: EmbeddedLab) -> bool:
    """Whether the agent has followed the policy; the other plugin's end alone leaves the node without GPUs, too."""
    report = agent_report.decode(node(lab)["metadata"]["annotations"].get(ROLES_ANNOTATION, "{}"))
    role = report.roles.get("deviceplugin") if report is not None else None
    return role is not None and role.state == "stopped"


def test_of_two_device_plugins_the_one_that_comes_last_takes_the_node(lab: EmbeddedLab) -> None:
    change(lab, devicePlugin={"enabled": False})
    until(lab, lambda: offers(lab, 0), "kgpu's plugin is gone")
    run_kubectl(lab, "apply", "--filename", "-", stdin=json.dumps(PLUGIN))
    other = OtherPlugin(lab.nodes / FIRST_NODE / PLUGINS)
    with other.running():
        other.register()
        until(lab, lambda: offers(lab, FOREIGN), "the other plugin's GPUs")
        until(lab, lambda: predicted(lab) == {"OPR-20": [FIRST_NODE]}, "the other plugin is predicted to be in the way")
        change(lab, devicePlugin={"enabled": True})
        until(lab, lambda: offers(lab, 2), "kgpu's plugin has taken the node's GPUs from the other one")
        other.register()
        until(lab, lambda: offers(lab, FOREIGN), "the other one has taken them back")
        until(lab, lambda: finds(lab, "DPL-20"), "the doctor says that there are two")
    run_kubectl(lab, "delete", "pod", "static-plugin", "--namespace", "kube-system", "--wait=false")
    change(lab, devicePlugin={"enabled": False})
    until(lab, lambda: offers(lab, 0) and plugin_is_off(lab), "neither is there")
    change(lab, devicePlugin={"enabled": True})
    until(lab, lambda: offers(lab, 2), "kgpu's plugin alone")
    until(lab, lambda: predicted(lab) == {}, "nothing is predicted any more")


def test_gds_with_precompiled_drivers_is_refused_and_the_drivers_stay(lab: EmbeddedLab, tmp_path: Path) -> None:
    gds = {"enabled": True, "repository": "nvcr.io/nvidia/cloud-native", "image": "nvidia-fs", "version": "v2.5.1"}
    before, was = drivers(lab), version(lab)
    found = predicted(lab, tmp_path, driver={"usePrecompiled": True, "version": "570"}, gds=gds)
    assert found["DRV-26"] == []
    change(lab, driver={"usePrecompiled": True, "version": "570"}, gds=gds)
    until(lab, lambda: "gds with precompiled drivers" in policy(lab), "the operator refuses them")
    assert '"state": "notReady"' in policy(lab)
    assert finds(lab, "DRV-26")
    assert drivers(lab) == before
    change(lab, driver={"usePrecompiled": False, "version": was}, gds={"enabled": False})
    until(lab, lambda: '"state": "ready"' in policy(lab), "the policy is ready")
    assert drivers(lab) == before


def pool(name: str) -> Object:
    return {
        "apiVersion": "nvidia.com/v1alpha1", "kind": "NVIDIADriver", "metadata": {"name": name},
        "spec": {
            "driverType": "gpu", "repository": "nvcr.io/nvidia", "image": "driver", "version": NEW,
            "nodeSelector": {"kubernetes.io/hostname": FIRST_NODE},
        },
    }  # fmt: skip


def test_two_nvidiadrivers_of_one_node_change_no_driver(lab: EmbeddedLab, tmp_path: Path) -> None:
    before = drivers(lab)
    for name in ("one", "two"):
        run_kubectl(lab, "apply", "--filename", "-", stdin=json.dumps(pool(name)))
    assert predicted(lab) == {}, "they are off"
    assert predicted(lab, tmp_path, driver={"nvidiaDriverCRD": {"enabled": True}}) == {"DRV-10": [FIRST_NODE]}
    change(lab, driver={"useNvidiaDriverCRD": True})

    def conflicts() -> bool:
        rows = json.loads(run_kubectl(lab, "get", "nvidiadrivers", "--output", "json"))["items"]
        return len(rows) == 2 and all("ConflictingNodeSelector" in json.dumps(one.get("status")) for one in rows)

    until(lab, conflicts, "both say that they select one node")
    assert finds(lab, "DRV-10")
    assert drivers(lab) == before
    change(lab, driver={"useNvidiaDriverCRD": False})
    run_kubectl(lab, "delete", "nvidiadriver", "one", "two")


def test_an_image_by_digest_fails_on_the_node_of_another_system(lab: EmbeddedLab, tmp_path: Path) -> None:
    digest = f"sha256:{driver_image.digest_of(f'{NEW}-ubuntu24.04')}"
    assert predicted(lab, tmp_path, driver={"version": digest}) == {"DRV-29": []}
    change(lab, driver={"version": digest})

    def wanted() -> bool:
        sets = get(lab, "daemonsets", *DRIVER_PODS[1:])["items"]
        return bool(sets) and all(digest in json.dumps(one) for one in sets)

    until(lab, wanted, "the driver of that digest is wanted")
    renew(lab)
    until(lab, lambda: is_up(lab, NEW), "it is up where its system is")
    until(lab, lambda: bool(status(driver_pod(lab, OTHER), DRIVER).get("restartCount")), "it fails elsewhere")
    logs = lab.kubectl_run(
        "logs", *DRIVER_PODS[1:3], driver_pod(lab, OTHER)["metadata"]["name"], "-c", DRIVER, "--previous"
    )
    assert "Could not resolve Linux kernel version" in logs.stdout
    assert not status(driver_pod(lab, OTHER), DRIVER).get("ready")
    until(lab, lambda: finds(lab, "DRV-29"), "the doctor says that one image is for one system")
