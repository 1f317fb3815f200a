"""Pods of a simulated node whose kubelet asks kgpu's DRA driver, over real sockets, for slices and whole GPUs."""

from __future__ import annotations

import asyncio
import json
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from kgpu.dra.metrics import DraMetrics
from kgpu.dra.node_claims import NodeClaims
from kgpu.formats.names import DRA_GPU_DRIVER
from kgpu.kube.port import EVENTS, PODS
from kgpu.kubelet.dra_plugin import DraPluginServer
from kgpu.kubelet.model import ClaimRef
from kgpu.kubelet.pb import dra_v1_pb2 as pb
from kgpu.lab.nodes.claims import CLAIMS
from kgpu.lab.nodes.folder import ask_for_reboot
from tests.dra.node import POOL, Node, spec_file
from tests.lab.nodes.support import Bench, bench, pod, until

SHOW = "echo $NVIDIA_DRIVER $NVIDIA_VISIBLE_DEVICES"
SLICE, OTHER = "gpu-0-mig-0-0", "gpu-0-mig-0-1"


class Site:
    """A node's kubelet, and kgpu's driver beside it, which can be killed and started."""

    def __init__(self, bench: Bench, node: Node) -> None:
        self.bench = bench
        self.node = node
        self.metrics = DraMetrics(driver=DRA_GPU_DRIVER, node=POOL)
        self.server: DraPluginServer
        self.keeping: asyncio.Task[None]

    async def stop(self) -> None:
        self.keeping.cancel()
        await asyncio.gather(self.keeping, return_exceptions=True)
        await self.server.close()

    async def start(self) -> None:
        logic = NodeClaims(
            api=self.bench.api,
            resource=CLAIMS,
            driver=DRA_GPU_DRIVER,
            pool=POOL,
            preparations=await self.node.start(),
            metrics=self.metrics,
        )
        kubelet = self.bench.node_folder
        self.server = DraPluginServer(
            DRA_GPU_DRIVER, logic, plugins=kubelet / "plugins", registrar=kubelet / "plugins_registry"
        )
        await self.server.start()
        self.keeping = asyncio.create_task(self.server.run())
        await until(lambda: self.server.refusal is None)

    async def claim(self, name: str, *devices: str, pods: tuple[str, ...], **config: Any) -> None:
        """An allocated claim that the pods may use."""
        results = [
            {"request": f"r{number}", "driver": DRA_GPU_DRIVER, "pool": POOL, "device": device}
            for number, device in enumerate(devices)
        ]
        status = {
            "allocation": {"devices": {"results": results, **config}},
            "reservedFor": [{"resource": "pods", "name": one, "uid": f"uid-{one}"} for one in pods],
        }
        metadata = {"name": name, "namespace": "default", "uid": f"uid-{name}"}
        self.bench.api.put(
            CLAIMS, {"apiVersion": CLAIMS.api_version, "kind": "ResourceClaim", "status": status, "metadata": metadata}
        )

    async def run(self, name: str, claim: str, script: str = f"{SHOW}; sleep 60", *, policy: str = "Never") -> None:
        made = pod(name, script, resources={"claims": [{"name": "c"}]},
                   spec_resourceClaims=[{"name": "c", "resourceClaimName": claim}])  # fmt: skip
        made["metadata"]["uid"] = f"uid-{name}"
        made["spec"]["restartPolicy"] = policy
        await self.bench.create(made)


@pytest.fixture
async def site() -> AsyncIterator[Site]:
    with tempfile.TemporaryDirectory(prefix="kgpu", ignore_cleanup_errors=True) as name:
        async with bench(Path(name)) as lab:
            node = Node(Path(name) / "gpus")
            (node.folder / "cdi").mkdir(parents=True)
            (lab.node_folder / "cdi-static").symlink_to(node.folder / "cdi")
            await until((lab.node_folder / "plugins_registry").is_dir)
            made = Site(lab, node)
            await made.start()
            yield made
            await made.stop()


async def test_pods_get_their_slices_and_give_them_back(site: Site) -> None:
    await site.claim("two", SLICE, OTHER, pods=("p", "q"))
    await site.run("p", "two")
    await site.bench.phase_is("p", "Running")
    await site.run("q", "two", SHOW)
    await site.bench.phase_is("q", "Succeeded")
    assert await site.bench.log("q") == "here void\n"
    assert len(site.node.slices()) == 2
    await site.bench.api.delete(PODS, "q", namespace="default")
    await site.bench.api.delete(PODS, "p", namespace="default")
    await until(lambda: not site.node.slices())
    await until(lambda: not site.node.record_files())
    assert site.node.spec_files() == set()


async def test_the_driver_is_started_again_under_a_pod(site: Site) -> None:
    await site.claim("one", SLICE, pods=("p",))
    await site.run("p", "one")
    await site.bench.phase_is("p", "Running")
    await site.stop()
    await site.start()
    assert len(site.node.slices()) == 1
    await site.bench.api.delete(PODS, "p", namespace="default")
    await until(lambda: not site.node.record_files())
    assert not site.node.slices()


async def test_what_is_wrong_with_a_claim_is_told_of_its_pod(site: Site) -> None:
    await site.claim("first", SLICE, pods=("p",))
    await site.run("p", "first")
    await site.bench.phase_is("p", "Running")
    await site.claim("second", "gpu-0", pods=("q",))
    await site.run("q", "second")
    await until(lambda: any("claim default/first has gpu-0-mig-0-0" in one for one in _events(site)))
    await site.bench.api.delete(PODS, "p", namespace="default")
    await site.bench.phase_is("q", "Running")
    assert not site.node.slices()


async def test_parameters_of_the_class_and_of_the_claim(site: Site) -> None:
    def given(source: str, interval: str) -> dict[str, Any]:
        parameters = {
            "apiVersion": "resource.nvidia.com/v1beta1", "kind": "GpuConfig",
            "sharing": {"strategy": "TimeSlicing", "timeSlicingConfig": {"interval": interval}},
        }  # fmt: skip
        return {"source": source, "opaque": {"driver": DRA_GPU_DRIVER, "parameters": parameters}}

    config = [given("FromClaim", "Short"), given("FromClaim", "Long"), given("FromClass", "Medium")]
    await site.claim("mine", "gpu-1", pods=("p",), config=config)
    await site.run("p", "mine")
    await site.bench.phase_is("p", "Running")
    assert list(site.node.gpus.intervals.values()) == [3]


async def test_one_bad_claim_of_a_call_does_not_cost_the_others(site: Site) -> None:
    await site.claim("good", "gpu-1", pods=())
    await site.claim("bad", "gpu-77", pods=())
    claims = [pb.Claim(namespace="default", name=name, uid=f"uid-{name}") for name in ("gone", "bad", "good")]
    reply = await site.server._prepare(pb.NodePrepareResourcesRequest(claims=claims))
    errors = {uid: row.error for uid, row in reply.claims.items()}
    assert "claim default/gone does not exist" in errors["uid-gone"]
    assert "the device gpu-77 is not on this node" in errors["uid-bad"]
    assert errors["uid-good"] == ""
    assert [device.device_name for device in reply.claims["uid-good"].devices] == ["gpu-1"]


@pytest.mark.parametrize(
    ("change", "what"),
    [
        ({"uid": "another"}, "is another one: its uid is another"),
        ({"status": {}}, "is not allocated"),
        ({"status": {"allocation": {"devices": {"results": [{"request": 1}]}}}}, "a claim can't be read"),
        (
            {"status": {"allocation": {"devices": {"results": [
                {"request": "r", "driver": DRA_GPU_DRIVER, "pool": "node-2", "device": "gpu-0"}]}}}},
            "gpu-0 is of the pool node-2",
        ),
    ],
)  # fmt: skip
async def test_claims_that_are_not_as_they_should_be(site: Site, change: dict[str, Any], what: str) -> None:
    await site.claim("odd", "gpu-0", pods=())
    found = await site.bench.api.get(CLAIMS, "odd", namespace="default")
    assert found is not None
    altered = json.loads(json.dumps(found))
    altered["metadata"]["uid"] = change.get("uid", "uid-odd")
    altered["status"] = change.get("status", altered["status"])
    site.bench.api.put(CLAIMS, altered)
    request = pb.NodePrepareResourcesRequest(claims=[pb.Claim(namespace="default", name="odd", uid="uid-odd")])
    reply = await site.server._prepare(request)
    assert what in reply.claims["uid-odd"].error


async def test_results_of_other_drivers_are_left_alone(site: Site) -> None:
    await site.claim("both", "gpu-1", pods=())
    found = json.loads(json.dumps(await site.bench.api.get(CLAIMS, "both", namespace="default")))
    found["status"]["allocation"]["devices"]["results"].append(
        {"request": "nic", "driver": "net.example.com", "pool": "other", "device": "gpu-0"}
    )
    site.bench.api.put(CLAIMS, found)
    logic = site.server._logic
    devices = await logic.prepare(ClaimRef(namespace="default", name="both", uid="uid-both"))
    assert [device.device for device in devices] == ["gpu-1"]
    assert site.node.spec_files() == {spec_file("uid-both")}


async def test_a_socket_that_was_removed_is_made_again(site: Site) -> None:
    site.server.refusal = "not asked"
    for name in ("plugins_registry/gpu.nvidia.com-reg.sock", "plugins/gpu.nvidia.com/dra.sock"):
        (site.bench.node_folder / name).unlink()
    await until(lambda: site.server.refusal is None)
    await until((site.bench.node_folder / "plugins/gpu.nvidia.com/dra.sock").exists)


async def test_a_rebooted_machine_prepares_anew(site: Site) -> None:
    await site.claim("one", SLICE, pods=("p",))
    await site.run("p", "one", policy="Always")
    await site.bench.phase_is("p", "Running")
    await site.stop()
    for gpu in list(site.node.driver.state.values()):
        for one in gpu.instances:
            await site.node.driver.destroy(gpu.uuid, one.id, one.compute[0].id)
            await site.node.driver.destroy(gpu.uuid, one.id)
    site.node.boot = "boot-2"
    (site.node.folder / "cdi" / spec_file("uid-one")).unlink()
    ask_for_reboot(site.bench.node_folder)
    await site.start()
    await until(lambda: site.bench.container("p")["restartCount"] == 1 and site.bench.state("p")[0] == "running")
    assert len(site.node.slices()) == 1
    assert site.node.spec_files() == {spec_file("uid-one")}


def _events(site: Site) -> list[str]:
    return [one.shown().get("message", "") for (kind, _, _), one in site.bench.api._objects.items() if kind == EVENTS]
