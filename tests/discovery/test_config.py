"""Flag before environment before file before default, for every setting; and values that are refused."""

from __future__ import annotations

import math
from typing import Any

import pytest

from kgpu.base.errors import ConfigError
from kgpu.discovery.config import OPTIONS, ProgramSettings, resolve
from kgpu.discovery.model import LabelledResource, MigStrategy, SharingInForce, SharingStrategy
from kgpu.formats.plugin_config import PluginConfig
from kgpu.formats.plugin_config_parse import parse_config
from kgpu.formats.settings import Setting

# Four different raw values per setting: flag, first variable, second variable, file; and what they mean.
VALUES: dict[str, list[tuple[Any, Any]]] = {
    "mig_strategy": [("single", MigStrategy.SINGLE), ("mixed", MigStrategy.MIXED), ("none", MigStrategy.NONE)],
    "sleep_interval": [("5s", 5.0), ("1m30s", 90.0), ("infinite", math.inf)],
    "output_file": [("/a", "/a"), ("", ""), ("/c", "/c")],
    "machine_type_file": [("/a", "/a"), ("", ""), ("/c", "/c")],
    "device_discovery_strategy": [("nvml", "nvml"), ("auto", "auto"), ("nvml", "nvml")],
}
BOOLEANS = [("true", True), ("false", False), ("T", True)]


@pytest.mark.parametrize("option", [one for one in OPTIONS if one.envs], ids=lambda option: option.attr)
def test_precedence(option: Setting) -> None:
    flag, env, file = VALUES.get(option.attr, BOOLEANS)
    config = PluginConfig(flags={option.key: file[0]})
    variables = {option.envs[-1]: env[0]}

    def value(**sources: Any) -> Any:
        return getattr(resolve(sources.pop("config", PluginConfig()), **sources), option.attr)

    assert value() == option.default == getattr(ProgramSettings(), option.attr)
    assert value(config=config) == file[1]
    assert value(config=config, env=variables) == env[1]
    assert value(config=config, env=variables, overrides={option.attr: flag[0]}) == flag[1]
    if len(option.envs) > 1:
        assert value(env={option.envs[0]: flag[0], **variables}) == flag[1], "the first variable wins"


def test_what_was_given_is_known() -> None:
    settings = resolve(PluginConfig(flags={"flags.gfd.oneshot": True}), env={"GFD_NO_TIMESTAMP": "1"})
    assert settings.given == {"oneshot", "no_timestamp"}


@pytest.mark.parametrize(
    ("attr", "value", "said"),
    [
        ("mig_strategy", "singlex", "unknown strategy: singlex"),
        ("oneshot", "yes", "not a boolean"),
        ("sleep_interval", "60", "invalid duration"),
        ("sleep_interval", "0s", "not possible"),
        ("sleep_interval", "-1s", "not possible"),
        ("device_discovery_strategy", "tegra", "invalid --device-discovery-strategy option tegra"),
    ],
)
def test_values_that_are_refused_name_their_source(attr: str, value: str, said: str) -> None:
    option = next(row for row in OPTIONS if row.attr == attr)
    for sources, where in (
        ({"overrides": {attr: value}}, option.flag),
        ({"env": {option.envs[0]: value}}, option.envs[0]),
    ):
        with pytest.raises(ConfigError) as caught:
            resolve(PluginConfig(), **sources)  # type: ignore[arg-type]
        assert said in caught.value.what
        assert caught.value.what.startswith(where)


def test_file_to_label_settings() -> None:
    text = """
version: v1
flags:
  migStrategy: single
  gfd: {noTimestamp: true, sleepInterval: 1m30s, machineTypeFile: /machine}
sharing:
  timeSlicing:
    renameByDefault: true
    resources:
    - {name: nvidia.com/gpu, replicas: 4}
    - {name: mig-1g.10gb, replicas: 2, rename: small}
"""
    found = resolve(parse_config(text)).labels()
    assert (found.mig_strategy, found.timestamp, found.interval) == (MigStrategy.SINGLE, False, 90)
    assert found.machine_type_file == "/machine"
    assert found.sharing == SharingInForce(
        SharingStrategy.TIME_SLICING,
        (
            LabelledResource("nvidia.com/gpu", 4, renamed=True),
            LabelledResource("nvidia.com/mig-1g.10gb", 2, renamed=True),
        ),
    )


@pytest.mark.parametrize(("text", "interval"), [("5", 5e-9), ("infinite", None), ("500ms", 0.5)])
def test_intervals_in_the_file(text: str, interval: float | None) -> None:
    config = parse_config(f"flags: {{gfd: {{sleepInterval: {text}}}}}")
    assert resolve(config).labels().interval == interval


def test_mps_in_the_file() -> None:
    text = "sharing: {mps: {resources: [{name: nvidia.com/gpu, replicas: 10}]}}"
    found = resolve(parse_config(text)).labels().sharing
    assert found == SharingInForce(SharingStrategy.MPS, (LabelledResource("nvidia.com/gpu", 10),))
