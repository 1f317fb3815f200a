"""When one node has no work for an agent any more: it takes away what it wrote there, and looks for features until its end."""

from __future__ import annotations

import asyncio
from pathlib import Path

import msgspec
import pytest

from kgpu.agent.roles import choose_roles
from kgpu.formats import names
from kgpu.formats.agent_config import AgentConfig, RoleConfig
from kgpu.kube.port import NODE_FEATURES

from .support_auto import LABELS_LABEL, eventually, hosted, state

CONFIG = AgentConfig(
    roles={"features": RoleConfig(), "labels": RoleConfig(label=LABELS_LABEL)},
    generation=3,
    driver_install_dir="/nowhere",
)
PCI = names.NFD_PCI_NVIDIA[0]


@pytest.fixture
def host(tmp_path: Path) -> Path:
    """A node with a GPU on its PCI bus."""
    root = tmp_path / "host"
    files = {
        "sys/bus/pci/devices/0000:01:00.0/class": "0x030200",
        "sys/bus/pci/devices/0000:01:00.0/vendor": "0x10de",
        "proc/sys/kernel/osrelease": "6.8.0-40-generic",
    }
    for name, content in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(content)
    return root


async def test_it_leaves_but_for_the_features(cluster, tmp_path, host):
    cluster.tell(CONFIG)
    cluster.label(**{"gpu-feature-discovery": "true"})
    cluster.mark("true")
    mine = tmp_path / "cdi/mine.json"
    mine.parent.mkdir()
    mine.write_text("kgpu's")
    async with hosted(cluster, tmp_path, host_root=host) as agent:
        agent._files.wrote(mine)
        await eventually(lambda: names.LABEL_GPU_PRODUCT in cluster.labels and PCI in cluster.labels)
        await eventually((tmp_path / "state/agent.json").exists)
        cluster.label(**{"gpu-feature-discovery": None})
        cluster.mark("leaving")
        await eventually(lambda: state(cluster, "labels") == ("left", ""))
        assert state(cluster, "features") == ("running", "")
        assert names.LABEL_GPU_PRODUCT not in cluster.labels
        assert PCI in cluster.labels
        assert not mine.exists()
        assert list((tmp_path / "state").iterdir()) == []
        # The operator takes its label away: the agent that is about to end has still left, and remembers nothing.
        cluster.mark(None)
        await eventually(lambda: names.AGENT_NODE_LABEL not in agent.orders.labels)
        agent._apply(agent.orders.config, agent.orders)
        assert agent.report().roles["labels"].state == "left"
        assert list((tmp_path / "state").iterdir()) == []
    assert PCI in cluster.labels
    assert names.ROLES_ANNOTATION not in (cluster.node["metadata"].get("annotations") or {})


async def test_a_role_that_is_still_there_when_it_leaves_keeps_no_label(cluster, tmp_path, host):
    """The order to leave comes while the clean-up waits for the API server, before anybody has stopped the role."""
    cluster.tell(CONFIG)
    cluster.label(**{"gpu-feature-discovery": "true"})
    cluster.mark("true")
    get, asked = cluster.api.get, []

    async def slow_get(resource, name, **given):
        if resource is NODE_FEATURES and not asked:
            asked.append(name)
            cluster.mark("leaving")
            while agent.orders.labels[names.AGENT_NODE_LABEL] != "leaving":  # noqa: ASYNC110 - none sees it sooner
                await asyncio.sleep(0)
        return await get(resource, name, **given)

    cluster.api.get = slow_get
    async with hosted(cluster, tmp_path, host_root=host) as agent:
        await eventually(lambda: asked)
        await eventually(lambda: state(cluster, "labels") == ("left", ""))
        assert names.LABEL_GPU_PRODUCT not in cluster.labels
        assert PCI in cluster.labels


async def test_a_gpu_that_comes_back_starts_what_has_left(cluster, tmp_path, host):
    cluster.tell(CONFIG)
    cluster.mark("leaving")
    async with hosted(cluster, tmp_path, host_root=host):
        await eventually(lambda: state(cluster, "labels") == ("left", ""))
        cluster.mark("true")
        cluster.label(**{"gpu-feature-discovery": "true"})
        await eventually(lambda: names.LABEL_GPU_PRODUCT in cluster.labels)
        await eventually(lambda: state(cluster, "labels") == ("running", ""))


async def test_an_uninstall_after_that_takes_the_features_too(cluster, tmp_path, host):
    cluster.tell(CONFIG)
    cluster.mark("leaving")
    async with hosted(cluster, tmp_path, host_root=host):
        await eventually(lambda: state(cluster, "labels") == ("left", "") and PCI in cluster.labels)
        cluster.tell(msgspec.structs.replace(CONFIG, leaving=True))
        await eventually(lambda: state(cluster, "features") == ("left", ""))
        assert set(cluster.labels) == {names.AGENT_NODE_LABEL}


async def test_from_the_finder_to_the_agent_and_back_no_label_is_missing_for_a_moment(cluster, tmp_path, host):
    cluster.tell(CONFIG)
    cluster.api.close = stays_open  # one of two that use it ends first
    seen: list[dict[str, str]] = []
    tell_watchers = cluster.api._wake

    def wake() -> None:
        seen.append(dict(cluster.labels))
        tell_watchers()

    finder = {"roles": choose_roles(["features"]), "only": ("features",), "host_root": host}
    async with hosted(cluster, tmp_path / "finder", **finder):
        await eventually(lambda: PCI in cluster.labels)
        published = {key: value for key, value in cluster.labels.items() if key.startswith(names.NFD_PREFIX)}
        cluster.api._wake = wake
        cluster.mark("true")
        agent = hosted(cluster, tmp_path / "agent", host_root=host)
        await agent.__aenter__()
        await eventually(lambda: state(cluster, "features") == ("running", ""))
    await eventually(lambda: not of_roles(cluster))  # a whole agent takes away what the finder has left behind
    cluster.mark("leaving")
    await eventually(lambda: state(cluster, "labels") == ("left", ""))
    cluster.mark(None)
    async with hosted(cluster, tmp_path / "finder", **finder):
        await agent.__aexit__(None, None, None)
        await eventually(lambda: of_roles(cluster))
    assert len(seen) > 5
    assert [labels for labels in seen if not published.items() <= labels.items()] == []
    assert names.ROLES_ANNOTATION not in cluster.node["metadata"]["annotations"]


async def stays_open() -> None:
    """Of an API server that others use as well."""


def of_roles(cluster) -> list[str]:
    """The reports of processes for one role."""
    annotations = cluster.node["metadata"].get("annotations") or {}
    return [key for key in annotations if key.startswith(names.ROLES_ANNOTATION_PREFIX)]
