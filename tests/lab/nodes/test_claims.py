"""Plugins that announce themselves in ``plugins_registry``, and claims that DRA drivers prepare for pods."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from kgpu.kube.port import PODS
from kgpu.kubelet.device_plugin import DevicePluginServer
from kgpu.kubelet.dra_health import HEALTH_SERVICE, HealthStream
from kgpu.kubelet.methods import LIST_POD_RESOURCES, PLUGIN_REGISTRATION, dra_methods
from kgpu.kubelet.model import ClaimDeviceHealth, DeviceCondition, DeviceState, Registration
from kgpu.kubelet.pb import dra_v1_pb2 as dra
from kgpu.kubelet.pb import pluginregistration_v1_pb2 as registry
from kgpu.kubelet.pb import podresources_v1_pb2 as pb
from kgpu.kubelet.rpc import RpcClient, RpcServer, Service
from kgpu.lab.nodes.claims import CLAIMS
from kgpu.lab.nodes.folder import ask_for_reboot
from tests.lab.nodes.support import GPU, Bench, Logic, gpus, pod, until

DRIVER = "gpu.example.com"


class Announced:
    """A registration socket: what it says of itself, and what it was told."""

    def __init__(self, folder: Path, info: Any) -> None:
        self.told: list[tuple[bool, str]] = []
        self._info = info
        answers = {"GetInfo": self._get_info, "NotifyRegistrationStatus": self._notify}
        self.rpc = RpcServer(folder / "x-reg.sock", [Service(PLUGIN_REGISTRATION, answers)])

    async def _get_info(self, _request: Any) -> Any:
        return self._info

    async def _notify(self, request: Any) -> Any:
        self.told.append((request.plugin_registered, request.error))
        return registry.RegistrationStatusResponse()


class Driver:
    """A DRA driver: prepares every claim with one CDI device, unless told to fail."""

    def __init__(self) -> None:
        self.fail = ""
        self.prepared: list[str] = []
        self.unprepared: list[str] = []

    async def prepare(self, request: Any) -> Any:
        reply = dra.NodePrepareResourcesResponse()
        for claim in request.claims:
            row = reply.claims[claim.uid]
            row.error = self.fail
            if not self.fail:
                self.prepared.append(claim.name)
                row.devices.add(pool_name="pool", device_name="gpu-0", cdi_device_ids=["example.com/gpu=one"])
        return reply

    async def unprepare(self, request: Any) -> Any:
        reply = dra.NodeUnprepareResourcesResponse()
        for claim in request.claims:
            self.unprepared.append(claim.name)
            reply.claims[claim.uid].SetInParent()
        return reply


def registry_folder(lab: Bench) -> Path:
    return lab.node_folder / "plugins_registry"


@contextlib.asynccontextmanager
async def announced(lab: Bench, **info: Any) -> AsyncIterator[Announced]:
    await until(registry_folder(lab).is_dir)
    made = Announced(registry_folder(lab), registry.PluginInfo(**info))
    await made.rpc.start()
    try:
        yield made
    finally:
        await made.rpc.close()


@contextlib.asynccontextmanager
async def driver(lab: Bench, version: str = "v1", health: HealthStream | None = None) -> AsyncIterator[Driver]:
    made = Driver()
    path = lab.node_folder / "dra.sock"
    answers = {"NodePrepareResources": made.prepare, "NodeUnprepareResources": made.unprepare}
    services = [Service(dra_methods(version), answers), *([health.service] if health else [])]
    server = RpcServer(path, services)
    await server.start()
    versions = [f"{version}.DRAPlugin", HEALTH_SERVICE]
    async with announced(lab, type="DRAPlugin", name=DRIVER, endpoint=str(path), supported_versions=versions) as one:
        await until(lambda: one.told == [(True, "")])
        yield made
    if health is not None:
        health.close()
    await server.close()


async def claim(lab: Bench, name: str, *pods: str, driver: str = DRIVER) -> None:
    """An allocated claim that the pods may use."""
    results = [{"request": "r", "driver": driver, "pool": "pool", "device": "gpu-0"}]
    status = {
        "allocation": {"devices": {"results": results}},
        "reservedFor": [{"resource": "pods", "name": one, "uid": f"uid-{one}"} for one in pods],
    }
    lab.api.put(
        CLAIMS,
        {
            "apiVersion": CLAIMS.api_version, "kind": "ResourceClaim", "status": status,
            "metadata": {"name": name, "namespace": "default", "uid": f"uid-{name}"},
        },
    )  # fmt: skip


def user(name: str, script: str, claim_name: str) -> dict:
    made = pod(name, script, resources={"claims": [{"name": "c"}]},
               spec_resourceClaims=[{"name": "c", "resourceClaimName": claim_name}])  # fmt: skip
    made["metadata"]["uid"] = f"uid-{name}"
    return made


@pytest.fixture
def cdi(lab: Bench) -> None:
    (lab.node_folder / "cdi").mkdir(parents=True)
    text = '{"cdiVersion": "0.5.0", "kind": "example.com/gpu", "devices": [{"name": "one", "containerEdits": {"env": ["DRA=one"]}}]}'
    (lab.node_folder / "cdi" / "dra.json").write_text(text)


@pytest.mark.parametrize("version", ["v1", "v1beta1"])
@pytest.mark.usefixtures("cdi")
async def test_claims_are_prepared_and_given_back(lab: Bench, version: str) -> None:
    async with driver(lab, version) as made:
        await claim(lab, "shared", "p", "q")
        await lab.create(user("p", "echo $DRA; sleep 600", "shared"))
        await lab.phase_is("p", "Running")
        await lab.create(user("q", "echo $DRA", "shared"))
        await lab.phase_is("q", "Succeeded")
        assert await lab.log("q") == "one\n"
        assert (made.prepared, made.unprepared) == (["shared"], [])
        async with RpcClient(lab.node_folder / "pod-resources" / "kubelet.sock") as client:
            listed = await client.call(LIST_POD_RESOURCES, pb.ListPodResourcesRequest(), timeout=60)
        (row,) = listed.pod_resources[0].containers[0].dynamic_resources
        assert (row.claim_name, row.claim_resources[0].driver_name) == ("shared", DRIVER)
        assert row.claim_resources[0].cdi_devices[0].name == "example.com/gpu=one"
        await lab.api.delete(PODS, "p", namespace="default")
        await lab.is_gone("p")
        assert made.unprepared == ["shared"]


def of_template(name: str, claim_name: str) -> dict:
    """A pod whose claim was made for it: of others the kubelet tells no health."""
    made = pod(name, "sleep 600", resources={"claims": [{"name": "c"}]},
               spec_resourceClaims=[{"name": "c", "resourceClaimTemplateName": "t"}])  # fmt: skip
    made["metadata"]["uid"] = f"uid-{name}"
    made["status"] = {"resourceClaimStatuses": [{"name": "c", "resourceClaimName": claim_name}]}
    return made


@pytest.mark.usefixtures("cdi")
async def test_a_pods_status_tells_how_well_its_devices_are(lab: Bench) -> None:
    def told() -> list[dict]:
        return lab.container("p").get("allocatedResourcesStatus") or []

    def shown(health: str) -> list[dict]:
        return [{"name": "claim:c", "resources": [{"resourceID": "example.com/gpu=one", "health": health}]}]

    health = HealthStream(180)
    await claim(lab, "own", "p")
    owner = {"apiVersion": "v1", "kind": "Pod", "name": "p", "uid": "uid-p", "controller": True}
    own = await lab.api.get(CLAIMS, "own", namespace="default")
    assert own is not None
    lab.api.put(CLAIMS, {**own, "metadata": {**own["metadata"], "ownerReferences": [owner]}})
    async with driver(lab, health=health):
        lab.api.put(PODS, of_template("p", "own"))
        await lab.phase_is("p", "Running")
        await until(lambda: told() == shown("Unknown"))
        for condition in (DeviceCondition.HEALTHY, DeviceCondition.UNHEALTHY, DeviceCondition.HEALTHY):
            health.update([ClaimDeviceHealth(pool="pool", device="gpu-0", condition=condition)])
            await until(lambda condition=condition: told() == shown(condition.value))
        health.close()  # the driver ends
        await until(lambda: told() == shown("Unknown"))


@pytest.mark.usefixtures("cdi")
async def test_a_claim_waits_for_its_driver(lab: Bench) -> None:
    await claim(lab, "one", "p")
    await lab.create(user("p", "echo $DRA", "one"))
    text = f"Failed to prepare dynamic resources: prepare dynamic resources: DRA driver {DRIVER} is not registered"
    assert await lab.event("FailedPrepareDynamicResources") == text
    await until(lambda: lab.state("p")[1].get("reason") == "ContainerCreating")  # told by another task than the event
    async with driver(lab) as made:
        await lab.phase_is("p", "Succeeded")
        await until(lambda: made.unprepared == ["one"])


@pytest.mark.usefixtures("cdi")
async def test_a_failing_driver_is_asked_again(lab: Bench) -> None:
    async with driver(lab) as made:
        made.fail = "out of order"
        await claim(lab, "one", "p")
        await lab.create(user("p", "echo $DRA", "one"))
        text = "NodePrepareResources failed for ResourceClaim one: out of order"
        assert (await lab.event("FailedPrepareDynamicResources")).endswith(text)
        made.fail = ""
        await lab.phase_is("p", "Succeeded")


async def test_claims_of_others_are_refused(lab: Bench) -> None:
    async with driver(lab) as made:
        await claim(lab, "theirs", "somebody")
        await lab.create(user("p", "echo", "theirs"))
        text = "pod p (uid-p) is not allowed to use ResourceClaim theirs (uid-theirs)"
        assert (await lab.event("FailedPrepareDynamicResources")).endswith(text)
        await lab.create(user("q", "echo", "gone"))
        text = 'fetch ResourceClaim gone: resourceclaims.resource.k8s.io "gone" not found'
        await until(lambda: any(one.endswith(text) for one in lab.events("FailedPrepareDynamicResources")))
        assert not made.prepared


@pytest.mark.usefixtures("cdi")
async def test_the_claim_of_extended_resources_is_that_of_the_containers_that_ask_for_them(lab: Bench) -> None:
    async with driver(lab) as made:
        await claim(lab, "p-extended-resources-x", "p")
        wanted = pod("p", "echo $DRA", resources={"limits": {"example.com/gpu": "1"}})
        wanted["metadata"]["uid"] = "uid-p"
        other = {**wanted["spec"]["containers"][0], "name": "other", "command": ["sh", "-c", "echo none: $DRA"]}
        del other["resources"]
        wanted["spec"]["containers"].append(other)
        name = wanted["spec"]["containers"][0]["name"]
        mapping = {"containerName": name, "resourceName": "example.com/gpu", "requestName": "r"}
        wanted["status"] = {
            "extendedResourceClaimStatus": {
                "resourceClaimName": "p-extended-resources-x",
                "requestMappings": [mapping],
            }
        }
        lab.api.put(PODS, wanted)
        await lab.phase_is("p", "Succeeded")
        assert await lab.log("p") == "one\n"
        assert (await lab.log("p", "other")).strip() == "none:"
        await until(lambda: made.unprepared == ["p-extended-resources-x"])


async def test_claims_are_prepared_again_after_a_reboot(lab: Bench, cdi: None) -> None:
    del cdi
    (lab.node_folder / "cdi").rename(lab.node_folder / "cdi-static")  # the other one is in memory
    await claim(lab, "one", "p")
    async with driver(lab) as made:
        wanted = user("p", "echo $DRA; sleep 600", "one")
        wanted["spec"]["restartPolicy"] = "Always"
        await lab.create(wanted)
        await lab.phase_is("p", "Running")
        ask_for_reboot(lab.node_folder)
        await until(lambda: lab.container("p")["restartCount"] == 1 and lab.state("p")[0] == "running")
        assert (made.prepared, made.unprepared) == (["one", "one"], [])


@pytest.mark.usefixtures("cdi")
async def test_prepared_claims_survive_a_restart(lab: Bench) -> None:
    await claim(lab, "one", "p")
    async with driver(lab) as made:
        await lab.create(user("p", "echo $DRA; sleep 600", "one"))
        await lab.phase_is("p", "Running")
        await lab.down()
    await lab.api.delete(PODS, "p", namespace="default", grace=0)
    await lab.up()
    assert lab.node.claims.pods() == {"uid-p"}
    async with driver(lab) as other:
        await until(lambda: other.unprepared == ["one"])
    assert made.unprepared == []
    await until(lambda: not lab.node.claims.pods())


async def test_a_device_plugin_in_the_registry(lab: Bench) -> None:
    server = DevicePluginServer(lab.node_folder, Registration(resource=GPU, endpoint="plugin.sock"), Logic())
    server.update([DeviceState(id="d0")])
    await server.start()
    about = {"type": "DevicePlugin", "name": GPU, "endpoint": str(server.path), "supported_versions": ["v1beta1"]}
    async with announced(lab, **about) as one:
        await until(lambda: one.told == [(True, "")])
        await until(lambda: lab.node.devices.allocatable() == {GPU: 1})
        await lab.create(pod("p", "echo $IDS", resources=gpus(1)))
        await lab.phase_is("p", "Succeeded")
        assert await lab.log("p") == "d0\n"
    await until(lambda: lab.node.devices.allocatable() == {GPU: 0})  # its registration socket went
    await server.close()


@pytest.mark.parametrize(
    ("info", "why"),
    [
        ({"type": "Toaster", "name": "x"}, "no handler registered for plugin type: Toaster at socket"),
        (
            {"type": "DevicePlugin", "name": GPU, "supported_versions": ["v2"]},
            "manager version, v1beta1, is not among plugin supported versions [v2]",
        ),
        (
            {"type": "DevicePlugin", "name": "plain", "supported_versions": ["v1beta1"]},
            "invalid name of device plugin socket",
        ),
        ({"type": "DRAPlugin", "name": DRIVER}, "empty list of supported gRPC services (aka supported versions)"),
        (
            {"type": "DRAPlugin", "name": DRIVER, "supported_versions": ["v9.DRAPlugin"]},
            'none of services supported by the plugin (["v9.DRAPlugin"]) are supported by the kubelet',
        ),
    ],
)
async def test_plugins_that_are_not_taken_are_told_why(lab: Bench, info: dict, why: str) -> None:
    async with announced(lab, **info) as one:
        await until(lambda: bool(one.told))
        registered, error = one.told[0]
        assert not registered
        assert error.startswith("RegisterPlugin error -- ")
        assert why in error
