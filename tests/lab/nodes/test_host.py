"""The host follows its folder: nodes come, change and go; what is wrong with one does not touch the others."""

from __future__ import annotations

import asyncio
import shutil
from pathlib import Path

import pytest

from kgpu.base.errors import LabError
from kgpu.kube.fake import FakeApi
from kgpu.kube.port import NODES, PODS, Object, Patch, Resource
from kgpu.lab.nodes import folder as node_folder
from kgpu.lab.nodes import host as host_module
from kgpu.lab.nodes import node as node_module
from kgpu.lab.nodes import objects
from kgpu.lab.nodes.host import NodeHost
from kgpu.lab.nodes.spec import SPEC_FILE
from tests.lab.nodes.hosting import allocatable, hosting, lease, light, node, ready, write
from tests.lab.nodes.support import until


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host_module, "SETTLE_S", 0.02)


async def test_many_nodes_come_up_a_few_at_a_time(folder: Path) -> None:
    api = FakeApi()
    names = [f"n-{number}" for number in range(1, 41)]
    write(folder, *map(light, names))
    async with hosting(folder, api):
        await ready(api, *names)
        conditions = [one for name in names for one in (node(api, name) or {})["status"]["conditions"]]
        assert {one["status"] for one in conditions if one["type"] == "Ready"} == {"True"}
        owners = [(lease(api, name) or {})["metadata"]["ownerReferences"][0]["uid"] for name in names]
        assert owners == [(node(api, name) or {})["metadata"]["uid"] for name in names]
    # Each is one create of a Node and one of a Lease: with a thousand, every call counts.
    creates = [name for verb, plural, name in api.calls if verb == "create" and plural in {"nodes", "leases"}]
    assert sorted(creates) == sorted(names * 2)


async def test_a_restart_keeps_the_nodes(folder: Path) -> None:
    api = FakeApi()
    write(folder, light("a"), light("b"))
    async with hosting(folder, api):
        await ready(api, "a", "b")
    before = {name: (node(api, name) or {})["metadata"]["uid"] for name in "ab"}
    write(folder, light("c"))
    async with hosting(folder, api) as host:
        await until(lambda: all(name in host.nodes and host.nodes[name].registered.is_set() for name in "abc"))
        await ready(api, "a", "b", "c")
    assert {name: (node(api, name) or {})["metadata"]["uid"] for name in "ab"} == before


async def test_known_nodes_renew_their_leases_while_they_wait_for_their_turn(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    api = FakeApi()
    write(folder, light("a"), light("b"))
    async with hosting(folder, api):
        await ready(api, "a", "b")
    old = {name: (lease(api, name) or {})["spec"]["renewTime"] for name in "ab"}
    monkeypatch.setattr(objects, "RENEW_SECONDS", 0.05)
    monkeypatch.setattr(host_module, "REGISTRATIONS", 1)
    monkeypatch.setattr(node_module.SimNode, "_start_agent", _never)
    async with hosting(folder, api) as host:
        await until(lambda: all((lease(api, name) or {})["spec"]["renewTime"] > old[name] for name in "ab"))
        assert not any(one.registered.is_set() for one in host.nodes.values())


async def _never(_self: object) -> dict[str, str]:
    await asyncio.Event().wait()
    return {}


async def test_a_node_that_is_refused_keeps_nobody_from_coming(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Choosy(FakeApi):
        async def create(self, resource: Resource, obj: Object, *, subresource: str = "") -> Object:
            self.refuse = {("create", "nodes"): 403} if obj["metadata"].get("name") == "a" else {}
            return await super().create(resource, obj, subresource=subresource)

    monkeypatch.setattr(host_module, "REGISTRATIONS", 1)
    api = Choosy()
    write(folder, light("a"), light("b"), light("c"))
    async with hosting(folder, api):
        await ready(api, "b", "c")
        assert node(api, "a") is None


async def test_an_outage_is_waited_for(folder: Path) -> None:
    api = FakeApi()
    api.set_down(True)
    write(folder, light("a"))
    async with hosting(folder, api):
        await until(lambda: len(api.calls) > 2)
        api.set_down(False)
        await ready(api, "a")


async def test_removing_a_folder_removes_the_node_its_lease_and_its_pods(folder: Path) -> None:
    api = FakeApi()
    write(folder, light("a"), light("b"))
    async with hosting(folder, api) as host:
        await ready(api, "a", "b")
        container = {"name": "main", "image": "example.com/any:1"}
        about = {
            "metadata": {"name": "p", "namespace": "default"},
            "spec": {"nodeName": "a", "containers": [container]},
        }
        await api.create(PODS, about)
        await until(lambda: bool(host.nodes["a"].workers))
        shutil.rmtree(folder / "nodes" / "a")
        await until(lambda: node(api, "a") is None and lease(api, "a") is None)
        await until(lambda: (PODS, "default", "p") not in api._objects)
        assert allocatable(api, "b") == "2"
        assert (lease(api, "b") or {})["spec"]["holderIdentity"] == "b"


async def test_a_removal_that_was_interrupted_is_done_by_the_next_host(folder: Path) -> None:
    api = FakeApi()
    write(folder, light("a"), light("b"))
    async with hosting(folder, api):
        await ready(api, "a", "b")
    node_folder.mark_for_removal(folder / "nodes" / "a")
    async with hosting(folder, api):
        await until(lambda: node(api, "a") is None and lease(api, "a") is None)
        await until(lambda: not (folder / "nodes" / "a").exists())
        await ready(api, "b")


async def test_a_removal_that_the_api_server_keeps_waiting_does_not_stop_the_folder(folder: Path) -> None:
    api = FakeApi()
    write(folder, light("a"))
    async with hosting(folder, api):
        await ready(api, "a")
        api.refuse["delete", "nodes"] = 500
        node_folder.mark_for_removal(folder / "nodes" / "a")
        await until(lambda: ("delete", "nodes", "a") in api.calls)
        write(folder, light("b"))
        await ready(api, "b")
        assert node(api, "a") is not None
        del api.refuse["delete", "nodes"]
        await until(lambda: node(api, "a") is None)


@pytest.mark.parametrize(
    "text", ["", "{", "[]", '{"name": "bad"}', '{"name": "other", "profile": "cpu"}', "\0", "[" * 100_000]
)
async def test_a_wrong_node_does_not_take_the_others_along(folder: Path, text: str) -> None:
    api = FakeApi()
    write(folder, light("a"), light("z"))
    path = folder / "nodes" / "bad" / SPEC_FILE
    path.parent.mkdir()
    path.write_text(text)
    async with hosting(folder, api):
        await ready(api, "a", "z")
        assert node(api, "bad") is None
        write(folder, light("bad"))  # and when it is right it comes
        await ready(api, "bad")


async def test_a_node_json_that_goes_wrong_later_leaves_its_node_as_it_was(folder: Path) -> None:
    api = FakeApi()
    write(folder, light("a"))
    async with hosting(folder, api) as host:
        await ready(api, "a")
        (folder / "nodes" / "a" / SPEC_FILE).write_text("{")
        write(folder, light("b"))
        await ready(api, "a", "b")
        assert host.nodes["a"].registered.is_set()


async def test_a_changed_node_starts_again(folder: Path) -> None:
    api = FakeApi()
    write(folder, light("a", labels={"pool": "one"}))
    async with hosting(folder, api):
        await ready(api, "a")
        uid = (node(api, "a") or {})["metadata"]["uid"]
        write(folder, light("a", gpus=4, labels={"pool": "two"}))
        await ready(api, "a", gpus=4)
        assert (node(api, "a") or {})["metadata"]["labels"]["pool"] == "two"
        assert (node(api, "a") or {})["metadata"]["uid"] == uid


async def test_nodes_are_told_little(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """At rest a node costs its lease and nothing else."""
    monkeypatch.setattr(objects, "RENEW_SECONDS", 0.05)
    api = FakeApi()
    write(folder, light("a"))
    async with hosting(folder, api):
        await ready(api, "a")
        del api.calls[:]
        await until(lambda: len(api.calls) >= 6)
    assert set(api.calls) == {("patch", "leases", "a")}


async def test_a_node_that_was_not_heard_of_for_a_while_says_that_it_is_well(folder: Path) -> None:
    """As after a laptop's suspend: the controllers find a lease that is too old, and call the node unknown."""

    def told() -> dict[str, str]:
        return {one["type"]: one["status"] for one in (node(api, "a") or {})["status"]["conditions"]}

    api = FakeApi()
    write(folder, light("a"))
    async with hosting(folder, api) as host:
        await ready(api, "a")
        well = told()
        for refused in ({}, {("patch", "nodes"): 500}):
            old = (lease(api, "a") or {})["spec"]["renewTime"]
            silent = [{"type": kind, "status": "Unknown"} for kind in well]
            await api.patch(NODES, "a", {"status": {"conditions": silent}}, subresource="status", kind=Patch.STRATEGIC)
            api.refuse = refused
            await until(lambda: (lease(api, "a") or {})["spec"]["renewTime"] > old)  # noqa: B023
            api.refuse = {}
            await until(lambda: told() == well)
        await until(lambda: not host.nodes["a"].doubted.is_set())


async def test_one_host_for_a_folder(folder: Path) -> None:
    api = FakeApi()
    async with hosting(folder, api) as first:
        await until(lambda: (first.folder / "host" / "ready").exists())
        with pytest.raises(LabError, match="another process hosts the nodes"):
            await NodeHost(first.folder, api, folder / "kubeconfig", address="127.0.0.1", ca=b"", mode="plain").run()


async def test_nodes_of_others_are_left_alone(folder: Path) -> None:
    api = FakeApi()
    api.put(NODES, {"metadata": {"name": "real-1"}})
    write(folder, light("a"))
    async with hosting(folder, api):
        await ready(api, "a")
        node_folder.mark_for_removal(folder / "nodes" / "a")
        await until(lambda: node(api, "a") is None)
    assert node(api, "real-1") is not None
    assert not [call for call in api.calls if call[2] == "real-1"]
