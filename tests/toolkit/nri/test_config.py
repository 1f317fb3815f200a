"""Settings: nobody but the operator's own namespace unless it is said, and nothing is guessed."""

from __future__ import annotations

from pathlib import Path

import pytest

from kgpu.base.errors import ConfigError
from kgpu.toolkit.nri.config import config_from_env, nri_config


def test_the_default_is_the_operators_own_namespace_alone() -> None:
    config = nri_config(namespace="gpu-operator")
    policy = config.policy
    assert (config.socket, config.index) == (Path("/var/run/nri/nri.sock"), 10)
    assert policy.allows("gpu-operator", "")
    assert policy.manages("gpu-operator")
    for other in ("default", "kube-system", "gpu-operator-2", ""):
        assert not policy.allows(other, "default")
        assert not policy.manages(other)
        assert not policy.needs_account(other)


def test_namespaces_and_accounts() -> None:
    policy = nri_config(namespace="ops", allowed="ml, team/trainer,", management="dcgm").policy
    assert policy.allows("ml", "")
    assert policy.allows("team", "trainer")
    assert not policy.allows("team", "default")
    assert not policy.allows("default", "trainer")
    assert policy.needs_account("team")
    assert not policy.needs_account("ml")
    assert policy.manages("dcgm")
    assert not policy.manages("ml")
    assert not policy.allows("dcgm", "")


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("namespace", ""),
        ("namespace", "*"),
        ("allowed", "*"),
        ("allowed", "Team"),
        ("allowed", "team/"),
        ("allowed", "a/b/c"),
        ("management", "ns/account"),
        ("index", "100"),
        ("index", "-1"),
        ("index", "ten"),
        ("index", "9" * 5000),
        ("socket", "nri.sock"),
    ],
)
def test_what_can_not_be_meant_is_refused(name: str, value: str) -> None:
    with pytest.raises(ConfigError) as refused:
        nri_config(**{"namespace": "ops", name: value})
    assert "NRI" in refused.value.remedy


def test_the_environment_of_the_replaced_program() -> None:
    env = {
        "ENABLE_NRI_PLUGIN": "true",
        "NRI_PLUGIN_INDEX": "42",
        "NRI_SOCKET": "unix:///run/other/nri.sock",
        "NRI_NAMESPACE": "gpu-operator",
        "NRI_MANAGEMENT_CDI_DEVICE_NAMESPACES": "monitoring,debug",
        "KGPU_NRI_ALLOWED": "ml",
    }
    config = config_from_env(env, namespace="unused")
    assert config is not None
    assert (config.socket, config.index) == (Path("/run/other/nri.sock"), 42)
    assert config.policy.management == {"gpu-operator", "monitoring", "debug"}
    assert config.policy.namespaces == {"gpu-operator", "ml"}


def test_variables_and_mounts_are_heard_unless_the_installers_variables_say_no() -> None:
    by_env, by_mounts = (
        f"ACCEPT_NVIDIA_VISIBLE_DEVICES_{end}" for end in ("ENVVAR_WHEN_UNPRIVILEGED", "AS_VOLUME_MOUNTS")
    )
    for env, heard in (
        ({}, (True, True)),
        ({by_env: "true", by_mounts: "true"}, (True, True)),
        ({by_env: "false"}, (False, True)),
        ({by_mounts: "false"}, (True, False)),
    ):
        config = config_from_env({"ENABLE_NRI_PLUGIN": "true", **env}, namespace="ops")
        assert config is not None
        for policy in (config.policy, nri_config(env).policy):
            assert (policy.by_env, policy.by_mounts) == heard
    with pytest.raises(ConfigError, match=by_env):
        config_from_env({"ENABLE_NRI_PLUGIN": "true", by_env: "perhaps"}, namespace="ops")


@pytest.mark.parametrize(
    ("read", "named"),
    [
        (lambda: nri_config({"NRI_PLUGIN_INDEX": "x"}), "correct --index (or NRI_PLUGIN_INDEX)"),
        (lambda: nri_config(index="x"), "correct --index (or NRI_PLUGIN_INDEX)"),
        (
            lambda: config_from_env({"ENABLE_NRI_PLUGIN": "1", "NRI_PLUGIN_INDEX": "x"}, namespace="ops"),
            "correct NRI_PLUGIN_INDEX",
        ),
        (lambda: config_from_env({"ENABLE_NRI_PLUGIN": "1"}), "correct NRI_NAMESPACE"),
    ],
)
def test_the_program_names_flag_and_variable_and_the_role_the_variable(read, named) -> None:
    with pytest.raises(ConfigError) as refused:
        read()
    assert refused.value.remedy == named


def test_it_is_off_unless_switched_on() -> None:
    for env in ({}, {"ENABLE_NRI_PLUGIN": "false"}, {"ENABLE_NRI_PLUGIN": "0"}, {"ENABLE_NRI_PLUGIN": ""}):
        assert config_from_env(env, namespace="ops") is None
    with pytest.raises(ConfigError, match="ENABLE_NRI_PLUGIN"):
        config_from_env({"ENABLE_NRI_PLUGIN": "maybe"}, namespace="ops")
    config = config_from_env({"ENABLE_NRI_PLUGIN": "1"}, namespace="ops", socket="/run/x.sock")
    assert config is not None
    assert config.policy.namespaces == {"ops"}
    assert config.socket == Path("/run/x.sock")
    with pytest.raises(ConfigError, match="namespace"):
        config_from_env({"ENABLE_NRI_PLUGIN": "1"})
