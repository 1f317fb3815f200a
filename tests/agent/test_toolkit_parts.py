"""The toolkit on this node: whose engine is touched, which parts run, and what leaving takes back."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from kgpu.agent import toolkit_parts
from kgpu.agent.host import Host
from kgpu.agent.host_files import HostFiles
from kgpu.agent.options import AgentOptions
from kgpu.agent.remembered_config import DefaultConfig
from kgpu.agent.shared_reader import SharedReader
from kgpu.base.clock import SystemClock
from kgpu.base.errors import ConfigError
from kgpu.base.supervise import RoleHandle, RoleState
from kgpu.host.root import DriverRoot
from kgpu.hw.fake_reader import FakeReader, sample_inventory
from kgpu.hw.simulator import operate
from kgpu.kube.fake import FakeApi
from kgpu.toolkit.host_engines import HostEngines
from kgpu.toolkit.nri.config import nri_config
from kgpu.toolkit.settings import toolkit_settings
from kgpu.toolkit.spec_keeper import MANAGEMENT_NAME, SPEC_NAME

SECONDS = 60.0
CONFIG = b"version = 2  # a comment\n"


@pytest.fixture
def options(tmp_path: Path) -> AgentOptions:
    (tmp_path / "host/etc/containerd").mkdir(parents=True)
    (tmp_path / "host/etc/containerd/config.toml").write_bytes(CONFIG)
    return AgentOptions(
        roles=("toolkit",),
        host_root=tmp_path / "host",
        state_dir=tmp_path / "state",
        cdi_dir=tmp_path / "cdi",
        env={},
    )


@pytest.mark.parametrize(
    ("root", "env", "touched"),
    [("/host", {}, True), ("/", {}, False), ("/", {"RUNTIME": "containerd"}, True)],
)
def test_an_agent_on_the_host_itself_touches_an_engine_only_when_told_which(
    options: AgentOptions, root: str, env: dict[str, str], touched: bool
) -> None:
    given = dataclasses.replace(options, host_root=Path(root))
    assert toolkit_parts._has_engine(given, toolkit_settings(env)) is touched


def test_links_to_device_nodes_are_kept_on_a_real_driver_unless_somebody_says_no(tmp_path: Path, sim_root: Any) -> None:
    real = DriverRoot.at(tmp_path, dev="/", dev_host="/")
    simulated = DriverRoot.at(sim_root("l4", gpus=1), dev="/", dev_host="/")
    assert toolkit_parts._has_links(real, toolkit_settings({}))
    assert not toolkit_parts._has_links(simulated, toolkit_settings({}))
    assert not toolkit_parts._has_links(real, toolkit_settings({"DISABLE_DEV_CHAR_SYMLINK_CREATION": "true"}))


def test_the_nri_plugin_honours_the_hosts_config_toml(options: AgentOptions) -> None:
    config = nri_config(namespace="gpu-operator")
    assert toolkit_parts.honoured(config, options) == config
    (options.host_root / "etc/nvidia-container-runtime").mkdir()
    file = options.host_root / "etc/nvidia-container-runtime/config.toml"
    file.write_text(
        'disable-require = true\nsupported-driver-capabilities = "utility"\n'
        "accept-nvidia-visible-devices-envvar-when-unprivileged = false\n"
    )
    policy = toolkit_parts.honoured(config, options).policy
    assert (policy.requirements, policy.capabilities, policy.by_env) == (False, frozenset({"utility"}), False)
    file.write_text("disable-require = 3")
    with pytest.raises(ConfigError):
        toolkit_parts.honoured(config, options)


async def test_leaving_gives_the_engine_its_config_back_and_takes_specs_along(options: AgentOptions) -> None:
    settings = toolkit_settings({"RUNTIME_RESTART_MODE": "none"})
    engines = HostEngines(options.host_root, options.state_dir)
    place = await engines.find(settings)
    assert place is not None
    await engines.configure(place, settings.wanted(), None)
    config = options.host_root / "etc/containerd"
    assert _files(config) != {"config.toml": CONFIG}
    files = HostFiles(options.state_dir)
    options.cdi_dir.mkdir()
    for name in (SPEC_NAME, MANAGEMENT_NAME):
        (options.cdi_dir / name).write_text("{}")
        files.wrote(options.cdi_dir / name)
    (options.cdi_dir / "theirs.json").write_text("{}")
    for _ in range(2):  # it may be asked for again
        await toolkit_parts.withdraw(FakeApi(), options)
    assert _files(config) == {"config.toml": CONFIG}
    assert list(_files(options.cdi_dir)) == ["theirs.json"]


def _files(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


class Role:
    """The role in a task."""

    def __init__(self, options: AgentOptions, root: Path) -> None:
        version = operate.snapshot(root)["driver_version"]
        place = {"driver_root": str(root), "container_driver_root": str(root)}
        self.options = dataclasses.replace(options, root=root, overrides={"deviceplugin": place})
        reader = FakeReader(sample_inventory(1, driver_version=version))

        async def opened() -> FakeReader:
            return reader

        self.told: list[Any] = []
        self.host = Host(
            options=self.options,
            reader=SharedReader(opened),
            config=DefaultConfig(),
            decide=self.told.append,
            api=FakeApi,
            files=HostFiles(options.state_dir),
        )
        self.handle = RoleHandle("toolkit", SystemClock())

    async def until(self, condition: Callable[[], object]) -> None:
        task = asyncio.create_task(toolkit_parts.toolkit(self.host, self.handle))
        try:
            async with asyncio.timeout(SECONDS):
                while not condition():
                    assert not task.done(), task.exception()
                    await asyncio.sleep(0.01)
        finally:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task


async def test_a_node_without_an_engine_is_well_and_has_its_spec(options: AgentOptions, sim_root: Any) -> None:
    (options.host_root / "etc/containerd/config.toml").unlink()
    role = Role(options, sim_root("hgx-h100", gpus=1))
    await role.until(lambda: role.handle.status.state is RoleState.RUNNING)
    assert "no container engine" in role.handle.status.reason
    assert (options.cdi_dir / SPEC_NAME).exists()


async def test_an_engine_that_does_not_run_is_left_alone_and_the_spec_is_written(
    options: AgentOptions, sim_root: Any
) -> None:
    role = Role(options, sim_root("hgx-h100", gpus=1))
    await role.until(lambda: (options.cdi_dir / SPEC_NAME).exists() and role.handle.status.state is RoleState.WAITING)
    assert "not touched" in role.handle.status.reason
    assert _files(options.host_root / "etc/containerd") == {"config.toml": CONFIG}


async def test_the_nri_plugin_leaves_the_engine_alone(options: AgentOptions, sim_root: Any) -> None:
    told = {"ENABLE_NRI_PLUGIN": "true", "NRI_NAMESPACE": "gpu-operator", "NO_RUNTIME_CONFIG": "false"}
    role = Role(dataclasses.replace(options, env=told), sim_root("hgx-h100", gpus=1))
    await role.until(lambda: (options.cdi_dir / MANAGEMENT_NAME).exists() and role.handle.status.reason)
    assert _files(options.host_root / "etc/containerd") == {"config.toml": CONFIG}


async def test_a_wrong_setting_is_said(options: AgentOptions, sim_root: Any) -> None:
    role = Role(dataclasses.replace(options, env={"RUNTIME": "containrd"}), sim_root("hgx-h100", gpus=1))
    with pytest.raises(ConfigError, match="containerd"):
        await toolkit_parts.toolkit(role.host, role.handle)
