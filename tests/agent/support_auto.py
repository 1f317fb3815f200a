"""An agent under an operator that is the test: fake API server, memory reader, roles made for the test or the real."""

from __future__ import annotations

import asyncio
import contextlib

from kgpu.agent.auto import AutoAgent
from kgpu.agent.host import Host
from kgpu.agent.options import AgentOptions
from kgpu.agent.roles import ROLES
from kgpu.base.http import Address
from kgpu.formats import names
from kgpu.formats.agent_config import AgentConfig, RoleConfig, encode
from kgpu.formats.agent_report import AgentReport, decode
from kgpu.hw.fake_reader import FakeReader
from kgpu.hw.port import Accelerator, Inventory
from kgpu.kube.fake import FakeApi
from kgpu.kube.port import CONFIG_MAPS, NODES

NODE, NAMESPACE = "node-1", "gpu-operator"
PLUGIN_LABEL = names.LABEL_DEPLOY_PREFIX + "device-plugin"
GPU = Accelerator(vendor="nvidia", index=0, uuid="GPU-1", name="H100")
INVENTORY = Inventory(vendor="nvidia", driver_version="580.1", cuda_version=(13, 0), accelerators=(GPU,))


async def eventually(condition, seconds: float = 60):
    """The condition's first true answer."""
    async with asyncio.timeout(seconds):
        while not (found := condition()):  # noqa: ASYNC110 - the condition is another object's state
            await asyncio.sleep(0.01)
        return found


class Cluster:
    """What an operator and a person do to one node."""

    def __init__(self) -> None:
        self.api = FakeApi()
        self.api.put(NODES, {"metadata": {"name": NODE, "labels": {}}})

    @property
    def node(self) -> dict:
        return self.api._objects[(NODES, "", NODE)].shown()

    @property
    def labels(self) -> dict[str, str]:
        return self.node["metadata"].get("labels") or {}

    def label(self, **values: str | None) -> None:
        """Set or (None) remove labels; ``plugin`` is the device plugin's."""
        labels = self.labels
        for word, value in values.items():
            key = names.LABEL_DEPLOY_PREFIX + {"plugin": "device-plugin"}.get(word, word)
            labels.pop(key, None)
            if value is not None:
                labels[key] = value
        self.api.put(NODES, {"metadata": {"name": NODE, "labels": labels}})

    def mark(self, value: str | None) -> None:
        """Where the agent belongs, as the operator says it."""
        labels = {key: old for key, old in self.labels.items() if key != names.AGENT_NODE_LABEL}
        if value is not None:
            labels[names.AGENT_NODE_LABEL] = value
        self.api.put(NODES, {"metadata": {"name": NODE, "labels": labels}})

    def tell(self, config: AgentConfig | str) -> None:
        text = config if isinstance(config, str) else encode(config)
        metadata = {"name": names.AGENT_CONFIG_MAP, "namespace": NAMESPACE}
        self.api.put(CONFIG_MAPS, {"metadata": metadata, "data": {names.AGENT_CONFIG_KEY: text}})

    @property
    def report(self) -> AgentReport:
        text = (self.node["metadata"].get("annotations") or {}).get(names.ROLES_ANNOTATION, "{}")
        found = decode(text)
        assert found is not None
        return found


class Started:
    """Roles that run until they are stopped, and a list of what happened to them."""

    def __init__(self) -> None:
        self.log: list[str] = []
        self.options: dict[str, AgentOptions] = {}
        self.hosts: dict[str, Host] = {}

    def role(self, name: str):
        async def start(host, handle) -> None:
            self.log.append(f"+{name}")
            self.options[name] = host.options
            self.hosts[name] = host
            handle.running()
            try:
                await asyncio.Event().wait()
            finally:
                self.log.append(f"-{name}")

        return start


class WatchedAgent(AutoAgent):
    """An agent whose readers of the hardware a test can ask."""

    readers: list[FakeReader]


@contextlib.asynccontextmanager
async def hosted(cluster: Cluster, tmp_path, roles=ROLES, only=(), **given):
    """A running agent."""
    readers: list[FakeReader] = []

    async def open_reader(root):
        readers.append(FakeReader(INVENTORY))
        return readers[-1]

    options = {
        "auto": True, "roles": only, "node_name": NODE, "namespace": NAMESPACE, "kubeconfig": "given", "env": {},
        "state_dir": tmp_path / "state", "host_root": tmp_path / "host", "health_address": Address("127.0.0.1", 0),
        "kubelet_socket": tmp_path / "kubelet.sock", "cdi_dir": tmp_path / "cdi", "shutdown_seconds": 2.0,
    }  # fmt: skip
    opener = given.pop("open_reader", open_reader)
    patience = given.pop("patience", 0.2)
    agent = WatchedAgent(
        AgentOptions(**{**options, **given}), roles, open_reader=opener, api=cluster.api, patience=patience
    )
    agent.readers = readers
    task = asyncio.create_task(agent.run())
    try:
        await eventually(lambda: agent.orders is not None or task.done())
        yield agent
    finally:
        agent.stop.set()
        await asyncio.wait_for(task, 60)


def role_config(**given) -> RoleConfig:
    return RoleConfig(**{"label": PLUGIN_LABEL, **given})


LABELS_LABEL = names.LABEL_DEPLOY_PREFIX + "gpu-feature-discovery"
BOTH = AgentConfig(
    roles={"one": role_config(), "two": RoleConfig(label=LABELS_LABEL)}, generation=3, driver_install_dir="/nowhere"
)


def state(cluster, name):
    found = cluster.report.roles.get(name)
    return found and (found.state, found.why)
