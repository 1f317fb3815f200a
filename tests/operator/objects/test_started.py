"""What pods are started with is what the agent takes: flags, environment, and the configuration of every role."""

from __future__ import annotations

from pathlib import Path

import pytest

from kgpu.agent.driver_place import DriverPlace
from kgpu.agent.options import AgentOptions
from kgpu.agent.role_options import role_options
from kgpu.agent.roles import ROLES, choose_roles
from kgpu.cli.agent import agent, build_options
from kgpu.deviceplugin.config import resolve
from kgpu.exporter.config import resolve as exporter_settings
from kgpu.formats.plugin_config import PluginConfig
from kgpu.operator.model import Object
from kgpu.operator.rendering.agent_settings import agent_config
from kgpu.toolkit.settings import toolkit_settings
from kgpu.validator.config import without_effect as validator_without_effect
from tests.operator.objects.scenes import CASES, OPERANDS, Case, policy

AGENTS = [name for name in CASES if name.startswith(("agent-", "operands-", "no-cdi", "nri"))]


def containers(name: str) -> list[Object]:
    return [
        container
        for one in CASES[name].rendered().objects
        if one["kind"] == "DaemonSet"
        for container in one["spec"]["template"]["spec"]["containers"]
    ]


@pytest.mark.parametrize("name", AGENTS)
def test_every_container_s_flags_and_environment_are_taken(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for container in containers(name):
        env = {row["name"]: row.get("value", "of-the-pod") for row in container["env"]}
        with monkeypatch.context() as patch:
            for key, value in env.items():
                patch.setenv(key, value)
            command, *flags = container["args"]
            assert command == "agent"
            given = dict(agent.make_context("agent", flags).params)
        options = build_options(given, env)
        assert options.health_address is not None
        assert str(options.host_root) == "/host"
        assert options.auto
        assert [role.name for role in choose_roles(options.roles or [role.name for role in ROLES])]


@pytest.mark.parametrize("name", AGENTS)
def test_every_role_s_part_of_the_configuration_is_taken(name: str) -> None:
    case = CASES[name]
    config = agent_config(case.policy, case.settings, case.observed)
    base = AgentOptions(auto=True, node_name="n", namespace="gpu-operator", env={})
    place = DriverPlace(seen=base.host_root, host="/", source="host")
    by_name = {role.name: role for role in ROLES}
    assert set(config.roles) <= set(by_name)
    for role, told in config.roles.items():
        options = role_options(base, by_name[role], told, config, place)
        if role == "deviceplugin":
            assert resolve(
                PluginConfig(), overrides=options.overrides_of("deviceplugin"), env=options.env
            ).list_strategies


@pytest.mark.parametrize("name", ["operands-default", "operands-full"])
def test_what_an_operand_is_told_is_said_in_its_container_alone(name: str) -> None:
    case = CASES[name]
    config = agent_config(case.policy, case.settings, case.observed)
    assert not any(told.env or told.args for told in config.roles.values())


def test_an_operand_s_own_environment_and_arguments_reach_its_role(monkeypatch: pytest.MonkeyPatch) -> None:
    text = "devicePlugin: {args: [--device-id-strategy=index], env: [{name: PASS_DEVICE_SPECS, value: 'false'}]}"
    case = Case(policy=policy(text), settings=OPERANDS)
    (container,) = [
        container
        for one in case.rendered().objects
        if one["kind"] == "DaemonSet" and one["metadata"]["name"] == "nvidia-device-plugin-daemonset"
        for container in one["spec"]["template"]["spec"]["containers"]
    ]
    env = {row["name"]: row.get("value", "of-the-pod") for row in container["env"]}
    for key, value in env.items():
        monkeypatch.setenv(key, value)
    base = build_options(dict(agent.make_context("agent", container["args"][1:]).params), env)
    assert (base.roles, str(base.validations_dir)) == (("deviceplugin",), "/run/nvidia/validations")
    config = agent_config(case.policy, case.settings, case.observed)
    place = DriverPlace(seen=Path("/run/nvidia/driver"), host="/run/nvidia/driver", source="container")
    (role,) = choose_roles(base.roles)
    options = role_options(base, role, config.roles["deviceplugin"], config, place)
    settings = resolve(PluginConfig(), overrides=options.overrides_of("deviceplugin"), env=options.env)
    assert (settings.id_strategy, settings.pass_device_specs) == ("index", False)
    assert (options.root, settings.driver_root) == (place.seen, "/run/nvidia/driver")


@pytest.mark.parametrize("text", ["{}", "cdi: {enabled: false}", "cdi: {nriPluginEnabled: true}"])
def test_no_role_is_told_by_the_operator_what_changes_nothing(text: str) -> None:
    """It would be a Warning on every node that nobody can do anything about."""
    case = Case(policy=policy(text))
    roles = agent_config(case.policy, case.settings, case.observed).roles
    assert toolkit_settings(roles["toolkit"].env).without_effect == ()
    assert exporter_settings(env=roles["exporter"].env).without_effect == ()
    assert list(validator_without_effect(roles["validator"].env)) == []


def test_a_variable_of_the_validator_s_driver_check_reaches_the_toolkit_that_makes_the_links() -> None:
    links = "validator: {driver: {env: [{name: DISABLE_DEV_CHAR_SYMLINK_CREATION, value: 'true'}]}}"
    for text, wanted in (("{}", True), (links, False)):
        case = Case(policy=policy(text))
        roles = agent_config(case.policy, case.settings, case.observed).roles
        assert toolkit_settings(roles["toolkit"].env).links is wanted
        assert list(validator_without_effect(roles["validator"].env)) == []
