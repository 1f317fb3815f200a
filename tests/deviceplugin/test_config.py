"""Flags, environment, file, default: who wins, and what is refused."""

from __future__ import annotations

import json
from dataclasses import fields
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kgpu.base.advice import Advice
from kgpu.base.errors import ConfigError
from kgpu.deviceplugin import config as config_module
from kgpu.deviceplugin.config import FLAGS, PluginSettings, printable, resolve
from kgpu.deviceplugin.core import PluginCore
from kgpu.deviceplugin.model import HostDevices
from kgpu.deviceplugin.roster import PluginMemory
from kgpu.formats.config_choice import ConfigText
from kgpu.formats.plugin_config import PluginConfig
from kgpu.formats.plugin_config_parse import parse_config
from kgpu.formats.settings import FlagShape

SAMPLES = {
    FlagShape.SWITCH: (["true", "false"], [True, False]),
    FlagShape.TEXT: (["/a", "/b"], ["/a", "/b"]),
    FlagShape.LIST: (["a", "b"], [("a",), ("b",)]),
}
IDS = (["0xe211", "0x56c0"], [("0xe211",), ("0x56c0",)])
OF_THEIR_OWN = {
    "imex_channel_ids": (["0", ""], [(0,), ()]),
    "shared_dev_num": (["2", "3"], [2, 3]),
    "allow_ids": IDS,
    "deny_ids": IDS,
    "by_path": (["none", "none"], ["none", "none"]),  # the only value that there is
}


def samples(flag):
    if flag.choices:
        first, second = flag.choices[:2]
        if flag.shape is FlagShape.LIST:
            return [first, second], [(first,), (second,)]
        return [first, second], [first, second]
    return OF_THEIR_OWN.get(flag.attr) or SAMPLES[flag.shape]


def test_defaults_of_table_and_settings_are_the_same() -> None:
    assert resolve(PluginConfig(), overrides={}, env={}) == PluginSettings()
    assert {flag.attr for flag in FLAGS} | {"gpus", "mig", "sharing"} == {
        field.name for field in fields(PluginSettings)
    }


@pytest.mark.parametrize("flag", FLAGS, ids=lambda flag: flag.attr)
def test_flag_beats_environment_beats_file_beats_default(flag) -> None:
    texts, values = samples(flag)
    config = PluginConfig(flags={flag.key: values[0]} if flag.key else {})

    def got(overrides=None, env=None) -> object:
        return getattr(resolve(config, overrides=overrides or {}, env=env or {}), flag.attr)

    assert got() == (values[0] if flag.key else flag.default)
    for name in flag.envs:
        assert got(env={name: texts[1]}) == values[1]
    assert got({flag.attr: texts[0]}, {flag.envs[0]: texts[1]}) == values[0]
    if len(flag.envs) > 1:
        assert got(env={flag.envs[0]: texts[0], flag.envs[1]: texts[1]}) == values[0]


def test_every_key_of_the_table_is_read_from_the_file() -> None:
    text = """
    flags:
      migStrategy: single
      failOnInitError: false
      mpsRoot: /mps
      nvidiaDriverRoot: /driver
      nvidiaDevRoot: /devroot
      gdrcopyEnabled: true
      gdsEnabled: true
      mofedEnabled: true
      deviceDiscoveryStrategy: nvml
      plugin:
        passDeviceSpecs: true
        deviceListStrategy: [cdi-cri, envvar]
        deviceIDStrategy: index
        cdiAnnotationPrefix: a/
        nvidiaCTKPath: /ctk
        containerDriverRoot: /ctr
        sharedDevicesAllocationPolicy: packed
    imex: {channelIDs: [0], required: true}
    """
    settings = resolve(parse_config(text), overrides={}, env={})
    for flag in FLAGS:
        if flag.key:
            assert getattr(settings, flag.attr) != flag.default, flag.key
    tree = printable(settings)
    assert tree["flags"]["plugin"]["deviceListStrategy"] == ["cdi-cri", "envvar"]
    # What is printed is a config file again, and means the same.
    assert resolve(parse_config(json.dumps(tree | {"resources": {}})), overrides={}, env={}) == settings


@pytest.mark.parametrize(
    ("overrides", "env", "text"),
    [
        ({"mig_strategy": "dual"}, {}, "unknown MIG strategy: dual"),
        ({}, {"DEVICE_LIST_STRATEGY": "envvar,foo"}, "invalid --device-list-strategy option: invalid strategy: foo"),
        ({}, {"DEVICE_LIST_STRATEGY": ""}, "invalid --device-list-strategy option"),
        ({}, {"DEVICE_ID_STRATEGY": "serial"}, "invalid --device-id-strategy option: serial"),
        ({}, {"SHARED_DEVICES_ALLOCATION_POLICY": "x"}, "invalid --shared-devices-allocation-policy option: x"),
        ({"discovery_strategy": "vfio"}, {}, "invalid --device-discovery-strategy option vfio"),
        ({"imex_channel_ids": ("0", "1")}, {}, "channelIDs must be [] or [0]; found [0 1]"),
        ({}, {"IMEX_CHANNEL_IDS": "zero"}, "IMEX_CHANNEL_IDS"),
        ({}, {"PASS_DEVICE_SPECS": "yes"}, "PASS_DEVICE_SPECS"),
        ({"shared_policy": "x"}, {}, "--shared-devices-allocation-policy (or --allocation-policy): "),
        ({"gds_enabled": "maybe"}, {}, "--gds-enabled: "),
        ({}, {"CDI_FEATURE_FLAGS": "disable-nvsandboxutil"}, "disable-nvsandboxutil"),
    ],
)
def test_what_is_wrong_says_the_known_words_in_three_parts(overrides, env, text: str) -> None:
    with pytest.raises(ConfigError) as refused:
        resolve(PluginConfig(), overrides=overrides, env=env)
    assert text in refused.value.what
    assert refused.value.expected
    assert refused.value.remedy


MPS = "sharing: {mps: {resources: [{name: nvidia.com/gpu, replicas: 4}]}}"


def test_mps_needs_a_root_and_no_mixed_mig() -> None:
    config = parse_config(MPS)
    with pytest.raises(ConfigError, match="using MPS requires --mps-root to be specified"):
        resolve(config, overrides={}, env={})
    with pytest.raises(ConfigError, match="using --mig-strategy=mixed is not supported with MPS"):
        resolve(config, overrides={"mig_strategy": "mixed"}, env={"MPS_ROOT": "/mps"})
    tree = printable(resolve(config, overrides={}, env={"MPS_ROOT": "/mps"}))
    assert tree["sharing"]["mps"]["failRequestsGreaterThanOne"] is True


def test_an_empty_variable_counts_except_for_choices() -> None:
    env = {"MIG_STRATEGY": "", "GDS_ENABLED": "", "NVIDIA_DRIVER_ROOT": "", "FAIL_ON_INIT_ERROR": ""}
    settings = resolve(PluginConfig(flags={"flags.migStrategy": "mixed"}), overrides={}, env=env)
    assert (settings.mig_strategy, settings.driver_root, settings.fail_on_init_error) == ("mixed", "", False)


@given(st.dictionaries(st.sampled_from([env for flag in FLAGS for env in flag.envs]), st.text(max_size=20)))
def test_any_environment_is_settings_or_a_three_part_error(env: dict[str, str]) -> None:
    parts = None
    try:
        json.dumps(printable(resolve(PluginConfig(), overrides={}, env=env)))
    except ConfigError as problem:
        parts = problem
    assert parts is None or (parts.expected and parts.remedy)


@pytest.mark.parametrize(
    ("env", "told"),
    [
        ({}, []),
        ({"NVIDIA_CTK_PATH": "/usr/bin/nvidia-ctk"}, []),
        ({"NVIDIA_CTK_PATH": "/opt/nvidia-ctk"}, ["--nvidia-cdi-hook-path"]),
        ({"CDI_FEATURE_FLAGS": "disable-nvsandboxutils"}, ["--cdi-feature-flags"]),
        ({"CDI_DISABLE_HOOKS": "all"}, []),  # so it is: there are none
        ({"CDI_DISABLE_HOOKS": "update-ldcache"}, ["--cdi-disable-hooks"]),
    ],
)
def test_what_has_no_effect_is_told_where_it_is_asked_for(env: dict[str, str], told: list[str]) -> None:
    reported: list[Advice] = []
    core = PluginCore(
        overrides={}, env=env, report=reported.append, facts=lambda _settings: HostDevices(), memory=PluginMemory()
    )
    core.configure(ConfigText(name="config", text=""))
    found = [one for one in reported if one.reason == "SettingWithoutEffect"]
    assert [one.subject for one in found] == told
    assert all(one.what.endswith("has no effect") and one.remedy for one in found)


def test_every_setting_is_read_or_told_to_have_no_effect() -> None:
    """Accepted means in effect, or told."""
    folder = Path(config_module.__file__).parent
    sources = {one.name: one.read_text() for one in folder.glob("*.py")}
    rest = "".join(text for name, text in sources.items() if name != "config.py")
    own = sources["config.py"].partition("def resolve(")[0].partition("def host_dev_root")[2]
    agent = "".join(one.read_text() for one in (folder.parent / "agent").rglob("*.py"))
    cli = (folder.parent / "cli" / "device_plugin.py").read_text()
    unread = [flag.attr for flag in FLAGS if not flag.idle and f".{flag.attr}" not in rest + own + agent + cli]
    assert unread == []
