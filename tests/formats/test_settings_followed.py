"""A setting that is said to need no restart is one that its component takes over while it runs, and no other is."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from kgpu.agent.options import AgentOptions, ConfigMapRef
from kgpu.agent.remembered_config import DefaultConfig
from kgpu.agent.run import Agent
from kgpu.cli import agent as agent_cli
from kgpu.cli import cdi, config_manager, ctk_system, operator, runtime, validate
from kgpu.deviceplugin import config as plugin
from kgpu.deviceplugin.core import PluginCore
from kgpu.deviceplugin.model import HostDevices
from kgpu.deviceplugin.roster import PluginMemory
from kgpu.discovery import config as labels
from kgpu.exporter import options as exporter
from kgpu.exporter.config import resolve as exporter_options
from kgpu.exporter.reload import CountersSource, vendor_page
from kgpu.exporter.web_access import WebAccess
from kgpu.formats import exporter_flags
from kgpu.formats.config_choice import ConfigText
from kgpu.formats.names import AMD, ENV_HEALTH_CONFIG_FILE
from kgpu.formats.plugin_config_parse import parse_config
from kgpu.formats.settings import Restart, Setting, put
from kgpu.health import config as health
from kgpu.health.settings import SOURCES, HealthSettings
from kgpu.kube.fake import FakeApi
from kgpu.toolkit import settings as toolkit
from kgpu.toolkit.nri import config as nri
from kgpu.validator import config as validator


def followed(rows: tuple[Setting, ...]) -> set[str]:
    return {row.attr for row in rows if row.restart is Restart.NONE}


def of_key(rows: tuple[Setting, ...], *, live: bool) -> list[Setting]:
    """The rows of a config file that take effect at once, or only at the start."""
    return [row for row in rows if row.key and not row.idle and (row.restart is Restart.NONE) is live]


OTHER: dict[str, Any] = {
    "mig_strategy": "mixed", "list_strategies": ["cdi-cri"], "id_strategy": "index", "shared_policy": "packed",
    "discovery_strategy": "nvml", "device_discovery_strategy": "nvml", "imex_channel_ids": [0], "sleep_interval": "90s",
}  # fmt: skip
"""Another value than the default of those that do not take any text."""


def other(row: Setting) -> Any:
    return OTHER.get(row.attr, not row.default if isinstance(row.default, bool) else "/other")


def config_with(row: Setting) -> str:
    tree: dict[str, Any] = {"version": "v1"}
    put(tree, row.key, other(row))
    return json.dumps(tree)


@pytest.mark.parametrize("row", of_key(plugin.FLAGS, live=True), ids=lambda row: row.attr)
def test_the_device_plugin_takes_over_what_another_config_says(row: Setting) -> None:
    core = PluginCore(
        overrides={}, env={}, report=lambda _: None, facts=lambda _settings: HostDevices(), memory=PluginMemory()
    )
    core.configure(ConfigText(name="first", text="version: v1"))
    before = getattr(core.settings, row.attr)
    core.configure(ConfigText(name="second", text=config_with(row)))
    assert getattr(core.settings, row.attr) != before


def test_the_device_plugin_starts_again_for_the_rest() -> None:
    """Which driver is read, and whether to end without one, is settled before there is a core."""
    assert {row.attr for row in of_key(plugin.FLAGS, live=False)} == {
        "fail_on_init_error", "driver_root", "container_driver_root",
    }  # fmt: skip


@pytest.mark.parametrize("row", [row for row in labels.OPTIONS if row.key], ids=lambda row: row.attr)
def test_labels_take_over_what_is_said_to_be_followed_and_nothing_else(row: Setting) -> None:
    one, two = (
        labels.resolve(parse_config(text, source="x"), overrides={}, env={})
        for text in ("version: v1", config_with(row))
    )
    assert one != two
    assert (one.labels() != two.labels()) is (row.restart is Restart.NONE)


def changed(row: Setting) -> Any:
    """Another value of a row of the health role's configuration."""
    sets = {"ignore.checks": ["pcie"], "ignore.xids": [13], "ignore.sxids": [13], "maintenance": ["all"]}
    if row.key in sets or isinstance(row.default, bool):
        return sets.get(row.key, not row.default)
    if row.key.startswith("actions."):
        return {94: "reset-gpu"}
    return "7s" if row.key.startswith("times.") or row.key.lower().endswith("window") else 1 if row.default != 1 else 2


@pytest.mark.parametrize("row", health.ROWS, ids=lambda row: row.key)
def test_the_health_role_takes_over_its_file(row: Setting, tmp_path: Path) -> None:
    file = tmp_path / "health.yaml"
    file.write_text("version: v1")
    settings = HealthSettings({ENV_HEALTH_CONFIG_FILE: str(file)}, lambda advice: pytest.fail(advice.one_line()))
    settings.look()
    before = settings.current()
    tree: dict[str, Any] = {"version": "v1"}
    put(tree, row.key, changed(row))
    file.write_text(json.dumps(tree))
    settings.look()
    assert row.restart is Restart.NONE
    assert getattr(settings.current(), row.attr) != getattr(before, row.attr)


def test_the_exporter_follows_what_is_said_to_be_followed(tmp_path: Path) -> None:
    counters, web = tmp_path / "counters.csv", tmp_path / "web.yaml"
    counters.write_text("DCGM_FI_DEV_GPU_TEMP, gauge, x.\n")
    web.write_text("{}")
    amd = tmp_path / "config.json"
    amd.write_text("{}")
    options = exporter_options(
        {"collectors": str(counters), "config_map": "ns:name", "web_config": str(web), "amd_config": str(amd)}
    )
    source = CountersSource(options, lambda _: None, api=FakeApi)
    page = vendor_page(AMD, options, lambda _: None)
    assert page is not None
    web_access = WebAccess(options.web_config, lambda _: None)
    sources = {state.source for state in (*source.followed(), web_access.followed(), *page.followed())}
    names = {
        "collectors": f"file {counters}", "config_map": "ConfigMap ns/name", "web_config": f"file {web}",
        "amd_config": f"file {amd}",
    }  # fmt: skip
    assert followed(exporter.OPTIONS) == names.keys()
    assert sources == {*names.values()}


def test_the_agent_follows_what_is_said_to_be_followed(tmp_path: Path) -> None:
    values: dict[str, Any] = {
        "config_file": tmp_path / "config.yaml", "config_map": ConfigMapRef(namespace="ns", name="configs"),
        "default_config": "default", "labels_file": tmp_path / "labels",
    }  # fmt: skip

    def source(**given: Any) -> object:
        options = AgentOptions(node_name="n1", state_dir=tmp_path, **given)
        return Agent._config_source(SimpleNamespace(options=options, api=FakeApi))  # type: ignore[arg-type]

    assert {
        name for name, value in values.items() if not isinstance(source(**{name: value}), DefaultConfig)
    } == followed(agent_cli.OPTIONS)


def test_nothing_else_is_said_to_be_followed() -> None:
    assert followed(SOURCES) == {"file"}
    assert followed(config_manager.FLAGS) == {"srcdir"}
    tables: list[tuple[Setting, ...]] = [
        cdi.OPTIONS, ctk_system.LINK_FLAGS, ctk_system.NODE_FLAGS, operator.RUN, runtime.PLACE_FLAGS,
        runtime.WANTED_FLAGS, runtime.RESTART_FLAGS, validate.PEER_FLAGS, exporter_flags.WITHOUT, toolkit.OPTIONS,
        toolkit.WITHOUT, nri.ROWS, validator.VARIABLES, validator.IDLE,
    ]  # fmt: skip
    assert [row.attr for rows in tables for row in rows if row.restart is not Restart.PROCESS] == []
