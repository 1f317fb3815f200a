"""What pods are started with is what the agent takes: flags, environment, and the configuration of every role."""

from __future__ import annotations

import pytest

from kgpu.agent.driver_place import DriverPlace
from kgpu.agent.options import AgentOptions
from kgpu.agent.role_options import role_options
from kgpu.agent.roles import ROLES, choose_roles
from kgpu.cli.agent import agent, build_options, settle
from kgpu.deviceplugin.config import resolve
from kgpu.formats.plugin_config import PluginConfig
from kgpu.operator.model import Object
from kgpu.operator.objects import agent_config
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
        if not options.auto:
            assert [role.name for role in choose_roles(settle(options).roles)] == list(options.roles)


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
            assert resolve(PluginConfig(), overrides=options.plugin_overrides, env=options.env).list_strategies


@pytest.mark.parametrize(
    ("spec", "root"),
    [("driver: {enabled: false}", "/host"), ("{}", "/run/nvidia/driver"),
     ("driver: {enabled: false}\nhostPaths: {driverInstallDir: /opt/sim}", "/opt/sim")],
)  # fmt: skip
def test_operands_know_where_the_driver_is(spec: str, root: str) -> None:
    case = Case(policy=policy(spec), settings=OPERANDS)
    for one in case.rendered().objects:
        if one["kind"] == "DaemonSet" and one["metadata"]["name"] != "kgpu-node-features":
            (container,) = one["spec"]["template"]["spec"]["containers"]
            env = {row["name"]: row.get("value", "") for row in container["env"]}
            assert str(settle(AgentOptions(roles=("labels",), env=env)).root) == root
