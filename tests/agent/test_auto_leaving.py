"""When kgpu leaves a node: what it wrote goes, nothing else, and a policy made anew in between loses nothing."""

from __future__ import annotations

import asyncio
import threading

import msgspec

from kgpu.agent.host import Role
from kgpu.agent.host_files import HostFiles
from kgpu.base.files import write_atomic
from kgpu.base.threads import beside
from kgpu.formats import names
from kgpu.formats.agent_config import AgentConfig, RoleConfig

from .support_auto import BOTH, eventually, hosted, state


async def test_leaving_takes_away_what_kgpu_wrote_and_nothing_else(cluster, tmp_path):
    config = AgentConfig(roles={"features": RoleConfig(), "labels": RoleConfig()}, driver_install_dir="/nowhere")
    cluster.tell(config)
    mine, other = tmp_path / "cdi/mine.json", tmp_path / "cdi/other.json"
    mine.parent.mkdir()
    mine.write_text("kgpu's")
    other.write_text("somebody's")
    cluster.label(team="a")
    async with hosted(cluster, tmp_path) as agent:
        agent._files.wrote(mine)
        await eventually(lambda: names.LABEL_GPU_PRODUCT in cluster.labels and (tmp_path / "state/agent.json").exists())
        cluster.tell(msgspec.structs.replace(config, leaving=True))
        await eventually(lambda: state(cluster, "labels") == ("left", ""))
        assert state(cluster, "features") == ("left", "")
        assert set(cluster.labels) == {names.LABEL_DEPLOY_PREFIX + "team"}
        assert (mine.exists(), other.exists()) == (False, True)
        assert list((tmp_path / "state").iterdir()) == []
        cluster.tell(config)
        await eventually(lambda: names.LABEL_GPU_PRODUCT in cluster.labels)


async def test_leaving_waits_for_an_api_server_that_refuses(cluster, tmp_path):
    cluster.tell(AgentConfig(roles={"labels": RoleConfig()}, driver_install_dir="/nowhere"))
    async with hosted(cluster, tmp_path):
        await eventually(lambda: names.LABEL_GPU_PRODUCT in cluster.labels)
        cluster.api.refuse[("get", "nodes")] = 500
        cluster.tell(AgentConfig(roles={"labels": RoleConfig()}, leaving=True, generation=9))
        await eventually(lambda: state(cluster, "labels") == ("waiting", "Leaving"))
        cluster.api.refuse.clear()
        await eventually(lambda: state(cluster, "labels") == ("left", ""))
        assert names.LABEL_GPU_PRODUCT not in cluster.labels


async def test_a_policy_made_anew_while_kgpu_leaves_loses_nothing_of_what_it_starts(cluster, started, tmp_path):
    removing, go_on = asyncio.Event(), asyncio.Event()

    async def withdraw(_api, _options) -> None:
        started.log.append("withdraw")
        removing.set()
        await go_on.wait()
        started.log.append("withdrawn")

    config = AgentConfig(roles={"one": RoleConfig()}, driver_install_dir="/nowhere")
    cluster.tell(config)
    async with hosted(cluster, tmp_path, (Role("one", started.role("one"), withdraw=withdraw),)) as agent:
        await eventually(lambda: state(cluster, "one") == ("running", ""))
        cluster.tell(msgspec.structs.replace(config, leaving=True))
        await asyncio.wait_for(removing.wait(), 60)
        cluster.tell(config)
        await eventually(lambda: agent.wanted["one"].run)
        assert started.log == ["+one", "-one", "withdraw"]
        go_on.set()
        await eventually(lambda: started.log[-1] == "+one")
        await eventually(lambda: state(cluster, "one") == ("running", ""))
    assert started.log == ["+one", "-one", "withdraw", "withdrawn", "+one", "-one"]


async def test_a_policy_made_anew_while_roles_end_is_not_left(cluster, started, tmp_path):
    ending, go_on, removed = asyncio.Event(), asyncio.Event(), []

    async def slow(host, handle) -> None:
        started.log.append("+one")
        handle.running()
        try:
            await asyncio.Event().wait()
        finally:
            ending.set()
            await go_on.wait()

    async def withdraw(_api, _options) -> None:
        removed.append("one")

    config = AgentConfig(roles={"one": RoleConfig()}, driver_install_dir="/nowhere")
    cluster.tell(config)
    async with hosted(cluster, tmp_path, (Role("one", slow, withdraw=withdraw),)) as agent:
        await eventually(lambda: state(cluster, "one") == ("running", ""))
        cluster.tell(msgspec.structs.replace(config, leaving=True))
        await asyncio.wait_for(ending.wait(), 60)
        cluster.tell(config)
        await eventually(lambda: agent.wanted["one"].run)
        go_on.set()
        await eventually(lambda: started.log == ["+one", "+one"])
    assert removed == []


async def test_leaving_is_not_remembered(cluster, started, roles, tmp_path):
    cluster.tell(BOTH)
    cluster.label(plugin="true")
    memory = tmp_path / "state/agent.json"
    async with hosted(cluster, tmp_path, roles):
        await eventually(lambda: state(cluster, "one") == ("running", "") and memory.exists())
        cluster.api.refuse[("get", "nodes")] = 500  # the clean-up can't go on
        before = memory.read_text()
        blocked = tmp_path / "blocked"
        memory.rename(blocked)
        cluster.tell(msgspec.structs.replace(BOTH, leaving=True))
        await eventually(lambda: "-one" in started.log)
        cluster.label(plugin="true", note="1")  # any news
        await eventually(lambda: state(cluster, "one") == ("left", ""))
    assert not memory.exists()
    assert before == blocked.read_text()


async def test_leaving_keeps_what_somebody_else_put_into_kgpus_folder(cluster, tmp_path):
    config = AgentConfig(roles={"labels": RoleConfig()}, driver_install_dir="/nowhere")
    cluster.tell(config)
    folder = tmp_path / "state"
    (folder / "nvidia-device-plugin").mkdir(parents=True)
    (folder / "nvidia-device-plugin/devices.json").write_text("{}")
    (folder / ".devices.json.x1").write_text("half a file")
    (folder / "notes.txt").write_text("somebody's")
    (folder / "more").mkdir()
    (folder / "more/deep").mkdir()
    (folder / "agent.d").symlink_to(tmp_path)
    async with hosted(cluster, tmp_path):
        await eventually(lambda: (folder / "agent.json").exists())
        cluster.tell(msgspec.structs.replace(config, leaving=True))
        await eventually(lambda: state(cluster, "labels") == ("left", ""))
    assert sorted(path.name for path in folder.iterdir()) == ["agent.d", "more", "notes.txt"]


# A start while the cluster lacks something


async def test_a_process_for_one_role_looks_once_more_before_it_ends(cluster, started, tmp_path, monkeypatch):
    """Its DaemonSet is deleted in the same moment in which the policy switches its role off."""

    async def withdraw(_api, _options) -> None:
        started.log.append("withdraw")

    config = AgentConfig(roles={"one": RoleConfig()}, driver_install_dir="/nowhere")
    cluster.tell(config)
    roles = (Role("one", started.role("one"), withdraw=withdraw),)
    async with hosted(cluster, tmp_path, roles, only=("one",)) as agent:
        await eventually(lambda: started.log == ["+one"])
        monkeypatch.setattr(cluster.api, "_wake", lambda: None)  # the watch is a moment behind
        cluster.tell(msgspec.structs.replace(config, roles={"one": RoleConfig(enabled=False)}))
        agent.stop.set()
        await eventually(lambda: "withdraw" in started.log)
    assert started.log == ["+one", "-one", "withdraw"]


class SlowDisk:
    """Writes that take until ``go_on``."""

    def __init__(self) -> None:
        self.begun, self.go_on, self.done = threading.Event(), threading.Event(), threading.Event()

    def slow(self, write):
        def function(*given, **more) -> None:
            self.begun.set()
            self.go_on.wait(60)
            write(*given, **more)
            self.done.set()

        return function

    async def leaves_nothing(self, cluster, tmp_path) -> None:
        """Once the write is done and the node has been left there is no file."""
        asyncio.get_running_loop().call_later(3.0, self.go_on.set)
        await eventually(lambda: state(cluster, "one") == ("left", ""))
        assert await beside(self.done.wait, 60)
        assert list(tmp_path.glob("state/*")) == []


async def test_a_memory_that_is_written_while_kgpu_leaves_goes_too(cluster, started, tmp_path, monkeypatch):
    disk = SlowDisk()
    monkeypatch.setattr("kgpu.agent.orders.write_atomic", disk.slow(write_atomic))
    cluster.mark("leaving")
    cluster.tell(AgentConfig(roles={"one": RoleConfig()}, driver_install_dir="/nowhere"))
    async with hosted(cluster, tmp_path, (Role("one", started.role("one")),)):
        assert await beside(disk.begun.wait, 60)
        await disk.leaves_nothing(cluster, tmp_path)


async def test_what_a_role_was_writing_when_it_ended_goes_too(cluster, tmp_path):
    disk = SlowDisk()

    async def start(host, handle) -> None:
        handle.running()
        (tmp_path / "state").mkdir(exist_ok=True)
        # As the device plugin does: the write goes on whatever becomes of the role.
        await asyncio.shield(asyncio.create_task(beside(disk.slow((tmp_path / "state/devices.json").write_text), "{}")))

    config = AgentConfig(roles={"one": RoleConfig()}, driver_install_dir="/nowhere")
    cluster.tell(config)
    async with hosted(cluster, tmp_path, (Role("one", start),)):
        assert await beside(disk.begun.wait, 60)
        cluster.tell(msgspec.structs.replace(config, leaving=True))
        await disk.leaves_nothing(cluster, tmp_path)


async def test_a_node_that_was_left_and_belongs_again_remembers_its_orders(cluster, started, tmp_path):
    config = AgentConfig(roles={"one": RoleConfig()}, driver_install_dir="/nowhere")
    memory = tmp_path / "state/agent.json"
    cluster.tell(config)
    async with hosted(cluster, tmp_path, (Role("one", started.role("one")),)):
        for _ in range(2):
            cluster.mark("true")
            await eventually(lambda: state(cluster, "one") == ("running", ""))
            await eventually(memory.exists)
            cluster.mark("leaving")
            await eventually(lambda: state(cluster, "one") == ("left", ""))
            assert not memory.exists()


async def test_what_an_agent_for_the_whole_node_has_left_goes_with_the_operand_that_came_after_it(cluster, tmp_path):
    """The layout was changed: the agent's state is beside the operand's, whose folder is below it."""
    node_state, cdi = tmp_path / "node-state", tmp_path / "cdi"
    mine, changed, of_another = cdi / "mine.json", cdi / "changed.json", node_state / "device-plugin/devices.json"
    for path in (mine, changed, of_another, node_state / "somebodys.txt", node_state / "agent.json"):
        write_atomic(path, "text")
    for name in ("devices.json", "health.db", "health.db-wal"):
        (node_state / name).write_text("text")
    former = HostFiles(node_state)
    former.wrote(mine)
    former.wrote(changed)
    changed.write_text("somebody's")
    config = AgentConfig(roles={"labels": RoleConfig()}, driver_install_dir="/nowhere")
    cluster.tell(config)
    async with hosted(cluster, tmp_path, node_state_dir=node_state):
        await eventually(lambda: names.LABEL_GPU_PRODUCT in cluster.labels)
        assert mine.exists()
        cluster.tell(msgspec.structs.replace(config, leaving=True))
        await eventually(lambda: state(cluster, "labels") == ("left", ""))
    left = {str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*") if path.is_file()}
    assert {"cdi/changed.json", "node-state/somebodys.txt", "node-state/device-plugin/devices.json"} <= left
    assert not {name for name in left if name.startswith(("cdi/mine", "node-state/agent", "node-state/health"))}
    assert not {name for name in left if name.startswith(("node-state/devices", "node-state/host-files"))}
