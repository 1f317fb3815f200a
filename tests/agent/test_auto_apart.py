"""A process per role on one node: each takes its own orders and no others', and together they are a whole agent."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import msgspec
import pytest

from kgpu.agent.auto import AutoAgent
from kgpu.agent.roles import Role, choose_roles
from kgpu.formats import agent_report, names
from kgpu.formats.agent_config import AgentConfig, RoleConfig
from kgpu.formats.agent_report import AgentReport
from kgpu.hw.open import open_reader
from kgpu.kube.port import NODES
from kgpu.kubelet.fake import FakeKubelet

from .support_auto import NODE, Cluster, Started, eventually, hosted

DEPLOY = {
    "features": "",
    "toolkit": "container-toolkit",
    "validator": "operator-validator",
    "deviceplugin": "device-plugin",
    "labels": "gpu-feature-discovery",
}
EVERY_LABEL = {word: "true" for word in DEPLOY.values() if word}


def config(**changes) -> AgentConfig:
    roles = {name: RoleConfig(label=names.LABEL_DEPLOY_PREFIX + word if word else "") for name, word in DEPLOY.items()}
    return AgentConfig(**{"roles": roles, "generation": 1, "driver_install_dir": "/nowhere", **changes})


@pytest.fixture
def cluster() -> Cluster:
    return Cluster()


def said(cluster: Cluster, role: str) -> AgentReport | None:
    """What the role's own process says on the Node."""
    text = (cluster.node["metadata"].get("annotations") or {}).get(agent_report.annotation(role))
    return None if text is None else agent_report.decode(text)


def state(cluster: Cluster, role: str) -> tuple[str, str] | None:
    report = said(cluster, role)
    found = report and report.roles.get(role)
    return found and (found.state, found.why)


def alone(cluster: Cluster, folder: Path, role: str, rows: tuple[Role, ...] | None = None, **given):
    """The process for one role."""
    given = {"state_dir": folder / "state" / role, "only": (role,), **given}
    return hosted(cluster, folder, rows or choose_roles((role,)), **given)


def managers(cluster: Cluster) -> set[str]:
    return {one["manager"] for one in cluster.node["metadata"].get("managedFields") or ()}


@contextlib.asynccontextmanager
async def five(cluster: Cluster, folder: Path, root: Path) -> AsyncIterator[tuple[dict[str, AutoAgent], FakeKubelet]]:
    """All of them on a simulated machine, with a kubelet."""

    async def reader(_root: Path | None):
        return open_reader(driver_root=root)

    cluster.tell(config(driver_install_dir=str(root)))
    cluster.label(**EVERY_LABEL)
    agents: dict[str, AutoAgent] = {}
    async with FakeKubelet(folder / "kubelet") as kubelet, contextlib.AsyncExitStack() as stack:
        for role in DEPLOY:
            agents[role] = await stack.enter_async_context(
                alone(cluster, folder, role, open_reader=reader, kubelet_socket=kubelet.socket,
                      validations_dir=folder / "validations")
            )  # fmt: skip
        yield agents, kubelet


def offer(kubelet: FakeKubelet) -> int:
    return kubelet.allocatable().get(names.GPU_RESOURCE, 0)


async def test_five_processes_are_a_whole_agent(
    cluster: Cluster, tmp_path: Path, sim_root: Callable[..., Path]
) -> None:
    root = sim_root(gpus=2)
    async with five(cluster, tmp_path, root) as (agents, kubelet):
        await eventually(lambda: offer(kubelet) == 2, 60)
        await eventually(lambda: {role: state(cluster, role) for role in DEPLOY if role != "validator"} == {
            role: ("running", "") for role in DEPLOY if role != "validator"
        })  # fmt: skip
        assert names.LABEL_GPU_PRODUCT in cluster.labels
        spec = tmp_path / "cdi/nvidia.com-gpu.json"
        assert spec.exists()
        facts = said(cluster, "toolkit")
        assert facts is not None
        assert (facts.gpus, facts.driver_source) == (2, "container")
        assert {len(said(cluster, role).roles) for role in DEPLOY} == {1}  # type: ignore[union-attr]

        cluster.label(**{"device-plugin": names.PAUSED_FOR_DRIVER_UPGRADE})
        await eventually(lambda: state(cluster, "deviceplugin") == ("stopped", "Paused"))
        await eventually(lambda: offer(kubelet) == 0)
        assert state(cluster, "labels") == ("running", "")
        cluster.label(**{"device-plugin": "true"})
        await eventually(lambda: offer(kubelet) == 2, 60)

        cluster.tell(config(driver_install_dir=str(root), leaving=True))
        await eventually(lambda: {state(cluster, role) for role in DEPLOY} == {("left", "")}, 60)
        assert set(cluster.labels) == {names.LABEL_DEPLOY_PREFIX + word for word in EVERY_LABEL}
        assert not spec.exists()
        assert not [path for path in (tmp_path / "validations").iterdir() if not path.is_dir()]
        assert all(agent.left for agent in agents.values())


async def test_each_takes_away_only_what_is_its_own(cluster: Cluster, tmp_path: Path) -> None:
    (tmp_path / "host/proc/sys/kernel").mkdir(parents=True)
    (tmp_path / "host/proc/sys/kernel/osrelease").write_text("6.1\n")
    cluster.tell(config())
    cluster.label(**EVERY_LABEL)
    async with alone(cluster, tmp_path, "features"), alone(cluster, tmp_path, "labels"):
        await eventually(lambda: {names.NFD_KERNEL_FULL, names.LABEL_GPU_PRODUCT} <= cluster.labels.keys())
        roles = {**config().roles, "labels": RoleConfig(enabled=False)}
        cluster.tell(config(roles=roles))
        await eventually(lambda: names.LABEL_GPU_PRODUCT not in cluster.labels)
        await eventually(lambda: state(cluster, "labels") == ("stopped", "Disabled"))
        assert names.NFD_KERNEL_FULL in cluster.labels


async def test_a_process_that_is_ended_right_after_the_order_still_cleans_up(cluster: Cluster, tmp_path: Path) -> None:
    cluster.tell(config())
    cluster.label(**EVERY_LABEL)
    async with alone(cluster, tmp_path, "labels") as agent:
        await eventually(lambda: names.LABEL_GPU_PRODUCT in cluster.labels)
        cluster.tell(config(roles={**config().roles, "labels": RoleConfig(enabled=False)}))
        await eventually(lambda: not agent.wanted["labels"].run)
    assert names.LABEL_GPU_PRODUCT not in cluster.labels


async def test_who_has_ended_says_so_and_its_facts_stay(cluster: Cluster, tmp_path: Path) -> None:
    started = Started()
    cluster.tell(config())
    cluster.label(**EVERY_LABEL)
    rows = (Role("labels", started.role("labels")),)
    async with alone(cluster, tmp_path, "labels", rows):
        await eventually(lambda: state(cluster, "labels") == ("running", ""))
    assert state(cluster, "labels") == ("stopped", agent_report.ENDED)
    cluster.api.set_down(False)  # an agent that ends closes it
    async with alone(cluster, tmp_path, "labels", rows):
        await eventually(lambda: state(cluster, "labels") == ("running", ""))


async def test_the_whole_agent_takes_away_what_single_ones_have_said(cluster: Cluster, tmp_path: Path) -> None:
    started = Started()
    cluster.tell(config())
    cluster.label(**EVERY_LABEL)
    rows = (Role("labels", started.role("labels")),)
    async with alone(cluster, tmp_path, "labels", rows):
        await eventually(lambda: state(cluster, "labels") == ("running", ""))
    cluster.api.set_down(False)
    async with hosted(cluster, tmp_path, rows):
        await eventually(lambda: said(cluster, "labels") is None)
        await eventually(lambda: cluster.report.roles["labels"].state == "running")
    assert agent_report.manager("labels") not in managers(cluster)


async def test_environment_and_arguments_of_its_own_container_count(cluster: Cluster, tmp_path: Path) -> None:
    started = Started()
    (row,) = choose_roles(("deviceplugin",))
    rows = (Role(row.name, started.role(row.name), flags=row.flags),)
    cluster.tell(config())
    cluster.label(**EVERY_LABEL)
    given = {"env": {"MIG_STRATEGY": "single"}, "overrides": {"deviceplugin": {"id_strategy": "index"}}}
    async with alone(cluster, tmp_path, "deviceplugin", rows, **given):
        await eventually(lambda: "+deviceplugin" in started.log)
    options = started.options["deviceplugin"]
    assert (options.env["MIG_STRATEGY"], options.overrides_of("deviceplugin")["id_strategy"]) == ("single", "index")


async def test_an_argument_that_its_role_does_not_have_is_said_and_ends_no_process(
    cluster: Cluster, tmp_path: Path
) -> None:
    started = Started()
    (row,) = choose_roles(("exporter",))
    role = dataclasses.replace(row, start=started.role("exporter"))
    cluster.tell(config(roles={"exporter": RoleConfig()}))
    async with alone(cluster, tmp_path, "exporter", (role,), role_args=("--collectrs=/x",)) as agent:
        await eventually(lambda: state(cluster, "exporter") == ("waiting", "BadArguments"))
        report = said(cluster, "exporter")
        assert report is not None
        assert 'there is no flag "--collectrs=/x"; did you mean "collectors"?' in report.roles["exporter"].reason
        assert not agent.stop.is_set()
    assert started.log == []


async def test_a_node_that_was_deleted_is_not_made_anew_by_last_words(cluster: Cluster, tmp_path: Path) -> None:
    started = Started()
    cluster.tell(config())
    cluster.label(**EVERY_LABEL)
    async with alone(cluster, tmp_path, "labels", (Role("labels", started.role("labels")),)):
        await eventually(lambda: state(cluster, "labels") == ("running", ""))
        await cluster.api.delete(NODES, NODE)
    assert not [key for key in cluster.api._objects if key[0] == NODES]


def test_the_annotation_of_a_role_is_a_key_that_kubernetes_takes() -> None:
    for role in choose_roles(["features", "toolkit", "validator", "deviceplugin", "labels", "node-status"]):
        assert len(agent_report.annotation(role.name).partition("/")[2]) <= 63
    assert msgspec.json.decode(agent_report.encode(AgentReport())) == {}
