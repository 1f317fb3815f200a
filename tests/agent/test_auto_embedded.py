"""The same agent on the embedded API server, whose server-side apply and field ownership are the real one's."""

from __future__ import annotations

import asyncio
import contextlib

import msgspec
import pytest

from kgpu.agent.auto import AutoAgent
from kgpu.agent.options import AgentOptions
from kgpu.formats import names
from kgpu.formats.agent_config import AgentConfig, RoleConfig, encode
from kgpu.formats.agent_report import decode
from kgpu.hw.fake_reader import FakeReader
from kgpu.kube.port import CONFIG_MAPS, NODES, Patch, Resource
from kgpu.lab.embedded.core import ApiCore
from kgpu.lab.embedded.core.model import ApiUser
from kgpu.lab.embedded.kinds import Kinds
from kgpu.lab.embedded.local_api import LocalApi
from kgpu.lab.embedded.store import ObjectStore
from kgpu.lab.embedded.types.rules import BuiltinRules

from .support_auto import INVENTORY, NAMESPACE, NODE

NAMESPACES = Resource("", "v1", "namespaces", "Namespace", namespaced=False)
LABEL = names.LABEL_DEPLOY_PREFIX + "gpu-feature-discovery"
CONFIG = AgentConfig(
    roles={"features": RoleConfig(), "labels": RoleConfig(label=LABEL)}, driver_install_dir="/nowhere", generation=5
)


class Embedded:
    """One node on the embedded API server, and others who write to it."""

    def __init__(self) -> None:
        rules = BuiltinRules()
        self.core = ApiCore(Kinds(), ObjectStore(), lambda _: rules, ())
        self.api = self.user("admin")

    def user(self, name: str) -> LocalApi:
        return LocalApi(self.core, ApiUser(name, ("system:masters",)))

    async def begin(self) -> None:
        await self.api.create(NAMESPACES, {"metadata": {"name": NAMESPACE}})
        await self.api.create(NODES, {"metadata": {"name": NODE, "labels": {"team": "a"}}})

    async def tell(self, config: AgentConfig) -> None:
        metadata = {"name": names.AGENT_CONFIG_MAP, "namespace": NAMESPACE}
        data = {names.AGENT_CONFIG_KEY: encode(config)}
        await self.api.apply(CONFIG_MAPS, {"metadata": metadata, "data": data}, manager=names.OPERATOR_FIELD_MANAGER)

    async def node(self):
        return await self.api.get(NODES, NODE)

    async def labels(self) -> dict[str, str]:
        return (await self.node())["metadata"].get("labels") or {}

    async def roles(self) -> dict[str, str]:
        text = ((await self.node())["metadata"].get("annotations") or {}).get(names.ROLES_ANNOTATION, "{}")
        return {name: role.state for name, role in decode(text).roles.items()}

    async def managers(self) -> set[str]:
        return {entry["manager"] for entry in (await self.node())["metadata"].get("managedFields") or ()}

    async def until(self, condition):
        async with asyncio.timeout(60):
            while not await condition():  # noqa: ASYNC110 - the condition is what others write
                await asyncio.sleep(0.02)

    async def roles_are(self, **states):
        async def same():
            return await self.roles() == states

        await self.until(same)


@pytest.fixture
async def cluster():
    cluster = Embedded()
    await cluster.begin()
    return cluster


@pytest.fixture
def host(tmp_path):
    path = tmp_path / "host/proc/sys/kernel/osrelease"
    path.parent.mkdir(parents=True)
    path.write_text("6.1.0\n")
    return tmp_path / "host"


@contextlib.asynccontextmanager
async def hosted(cluster, host, tmp_path):
    async def open_reader(_root):
        return FakeReader(INVENTORY)

    options = AgentOptions(
        auto=True, node_name=NODE, namespace=NAMESPACE, kubeconfig="given", env={}, host_root=host,
        state_dir=tmp_path / "state", validations_dir=tmp_path / "validations", cdi_dir=tmp_path / "cdi",
    )  # fmt: skip
    agent = AutoAgent(options, open_reader=open_reader, api=cluster.user("agent"))
    task = asyncio.create_task(agent.run())
    try:
        yield agent
    finally:
        agent.stop.set()
        await asyncio.wait_for(task, 30)


async def test_label_flips_run_and_stop_the_role_and_its_labels_stay(cluster, host, tmp_path):
    await cluster.tell(CONFIG)
    async with hosted(cluster, host, tmp_path):
        await cluster.roles_are(features="running", labels="stopped")
        await cluster.api.patch(NODES, NODE, {"metadata": {"labels": {LABEL: "true"}}})
        await cluster.roles_are(features="running", labels="running")
        paused = {"metadata": {"labels": {LABEL: names.PAUSED_FOR_DRIVER_UPGRADE}}}
        await cluster.api.patch(NODES, NODE, paused)
        await cluster.roles_are(features="running", labels="stopped")
        labels = await cluster.labels()
        assert (labels["team"], labels[names.LABEL_GPU_PRODUCT]) == ("a", "H100")
        assert {
            names.FIELD_MANAGER,
            names.FEATURES_FIELD_MANAGER,
            names.LABELS_FIELD_MANAGER,
        } <= await cluster.managers()


async def test_leaving_leaves_the_report_alone_as_ours(cluster, host, tmp_path):
    await cluster.tell(CONFIG)
    await cluster.api.patch(NODES, NODE, {"metadata": {"labels": {LABEL: "true"}}})
    async with hosted(cluster, host, tmp_path):
        await cluster.roles_are(features="running", labels="running")
        await cluster.tell(msgspec.structs.replace(CONFIG, leaving=True))
        await cluster.roles_are(features="left", labels="left")
        assert set(await cluster.labels()) == {"team", LABEL}
        ours = {one for one in await cluster.managers() if one.startswith("kgpu")}
        assert ours == {names.FIELD_MANAGER}


async def test_a_node_feature_discovery_that_comes_gets_the_labels(cluster, host, tmp_path):
    """One after the other: a key that it has not published stays kgpu's."""
    await cluster.tell(CONFIG)
    async with hosted(cluster, host, tmp_path):
        await cluster.roles_are(features="running", labels="stopped")
        ours = {key: value for key, value in (await cluster.labels()).items() if key.startswith(names.NFD_PREFIX)}
        assert ours[names.NFD_KERNEL_FULL] == "6.1.0"
        kept = dict([ours.popitem()])
        change = {"metadata": {"labels": dict.fromkeys(ours, "theirs")}}
        await cluster.user("nfd-master").patch(NODES, NODE, change, kind=Patch.MERGE)
        await cluster.tell(msgspec.structs.replace(CONFIG, other_discovery=True))
        await asyncio.sleep(1.0)
        assert kept.items() <= (await cluster.labels()).items()
        assert names.FEATURES_FIELD_MANAGER in await cluster.managers()
        change = {"metadata": {"labels": dict.fromkeys(kept, "theirs")}}
        await cluster.user("nfd-master").patch(NODES, NODE, change, kind=Patch.MERGE)

        async def ours_are_gone():
            return names.FEATURES_FIELD_MANAGER not in await cluster.managers()

        await cluster.until(ours_are_gone)
        labels = await cluster.labels()
        assert {key: value for key, value in labels.items() if key.startswith(names.NFD_PREFIX)} == dict.fromkeys(
            {*ours, *kept}, "theirs"
        )


async def test_what_a_node_feature_discovery_has_left_is_taken_over_on_the_administrators_word(cluster, host, tmp_path):
    left = {
        names.NFD_KERNEL_FULL: "5.4.0",
        names.NFD_OS_ID: "old",
        names.NFD_PREFIX + "usb-ff_1d6b_0001.present": "true",
    }
    await cluster.user("nfd-master").patch(NODES, NODE, {"metadata": {"labels": left}}, kind=Patch.MERGE)
    await cluster.tell(CONFIG)
    async with hosted(cluster, host, tmp_path):
        await cluster.roles_are(features="running", labels="stopped")
        assert left.items() <= (await cluster.labels()).items()
        await cluster.tell(msgspec.structs.replace(CONFIG, take_over_features=True))

        async def taken_over():
            return (await cluster.labels())[names.NFD_KERNEL_FULL] == "6.1.0"

        await cluster.until(taken_over)
        assert names.FEATURES_FIELD_MANAGER in await cluster.managers()
