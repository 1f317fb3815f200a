"""Keys of ConfigMaps as files for roles: there before the role starts, and always what the cluster has."""

from __future__ import annotations

import asyncio
import contextlib
from pathlib import Path

import pytest

from kgpu.agent.config_map_files import ConfigMapFiles
from kgpu.agent.leaving import empty
from kgpu.base.clock import SystemClock
from kgpu.base.supervise import RoleHandle
from kgpu.formats.agent_config import AgentConfig, ConfigKey, decode, encode
from kgpu.kube.fake import FakeApi
from kgpu.kube.port import CONFIG_MAPS

from .support_auto import BOTH, LABELS_LABEL, eventually, hosted, role_config, state

NAMESPACE = "gpu-operator"
LAYOUTS = {"CONFIG_FILE": ConfigKey(config_map="layouts", key="config.yaml")}


def put(api, name, **data):
    api.put(CONFIG_MAPS, {"metadata": {"name": name, "namespace": NAMESPACE}, "data": {"config.yaml": "", **data}})


@contextlib.asynccontextmanager
async def following(api, folder, wanted, **options):
    files = ConfigMapFiles(lambda: api, namespace=NAMESPACE, folder=folder, **options)
    files.want(wanted)
    task = asyncio.create_task(files.run(RoleHandle("files", SystemClock())))
    try:
        yield files
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def path_of(files, role="mig-manager", variable="CONFIG_FILE"):
    return Path((await eventually(lambda: files.env(role)))[variable])


async def test_a_file_follows_its_key_and_goes_with_it(tmp_path):
    api = FakeApi()
    put(api, "layouts", **{"config.yaml": "one"})
    async with following(api, tmp_path, {"mig-manager": LAYOUTS}) as files:
        file = await path_of(files)
        assert file.read_text() == "one"
        put(api, "layouts", **{"config.yaml": "two"})
        await eventually(lambda: file.read_text() == "two")
        await api.delete(CONFIG_MAPS, "layouts", namespace=NAMESPACE)
        await eventually(lambda: not file.exists())


async def test_another_config_map_is_another_content_of_the_same_file(tmp_path):
    api = FakeApi()
    put(api, "layouts", **{"config.yaml": "one"})
    put(api, "others", **{"config.yaml": "two"})
    async with following(api, tmp_path, {"mig-manager": LAYOUTS}) as files:
        file = await path_of(files)
        files.want({"mig-manager": {"CONFIG_FILE": ConfigKey(config_map="others", key="config.yaml")}})
        assert files.env("mig-manager") is None, "nobody starts with what was there before"
        assert await path_of(files) == file
        assert file.read_text() == "two"


async def test_without_the_api_server_the_last_content_stays(tmp_path):
    class Silent(FakeApi):
        async def list(self, *_args, **_options):
            await asyncio.Event().wait()

    left = tmp_path / "config-map.mig-manager.CONFIG_FILE"
    left.write_text("of the last time")
    async with following(Silent(), tmp_path, {"mig-manager": LAYOUTS}, patience=0.05) as files:
        assert await path_of(files) == left
        assert left.read_text() == "of the last time"


async def test_a_role_without_files_waits_for_none(tmp_path):
    async with following(FakeApi(), tmp_path, {"mig-manager": LAYOUTS}) as files:
        assert files.env("health") == {}


def test_who_leaves_takes_the_files_along(tmp_path):
    (tmp_path / "config-map.mig-manager.CONFIG_FILE").write_text("x")
    (tmp_path / "somebody-elses").write_text("x")
    empty(tmp_path)
    assert [file.name for file in tmp_path.iterdir()] == ["somebody-elses"]


def test_the_document_keeps_them():
    config = AgentConfig(roles={"mig-manager": role_config(files=LAYOUTS, where="a/b")})
    assert decode(encode(config), source="test") == config


@pytest.mark.usefixtures("nothing_flushed_on_the_loop")
async def test_a_role_starts_with_its_file_in_place(cluster, started, roles, tmp_path):
    put(cluster.api, "layouts", **{"config.yaml": "one"})
    one = role_config(files=LAYOUTS)
    cluster.tell(AgentConfig(roles={"one": one, "two": BOTH.roles["two"]}, driver_install_dir="/nowhere"))
    cluster.label(plugin="true", **{LABELS_LABEL.rpartition(".")[2]: "true"})
    async with hosted(cluster, tmp_path, roles):
        await eventually(lambda: state(cluster, "one") == ("running", ""))
        file = Path(started.options["one"].env["CONFIG_FILE"])
        assert await asyncio.to_thread(file.read_text) == "one"
        assert "CONFIG_FILE" not in started.options["two"].env


@pytest.mark.usefixtures("nothing_flushed_on_the_loop")
async def test_a_role_with_nothing_to_do_does_not_run(cluster, started, roles, tmp_path):
    """As MPS where nothing is shared by it: no process, and no reader of the driver."""
    where = LABELS_LABEL
    one = role_config(where=where)
    cluster.tell(AgentConfig(roles={"one": one}, driver_install_dir="/nowhere"))
    cluster.label(plugin="true")
    async with hosted(cluster, tmp_path, roles):
        await eventually(lambda: state(cluster, "one") == ("stopped", "NotNeeded"))
        assert started.log == []
        cluster.label(**{where.rpartition(".")[2]: "true"})
        await eventually(lambda: state(cluster, "one") == ("running", ""))
