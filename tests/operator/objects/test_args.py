"""``args`` of the policy's sections: taken by the role as by the replaced program, or told to change nothing; in no case
do they end a pod.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from kgpu.agent.driver_place import DriverPlace
from kgpu.agent.role_options import role_options
from kgpu.agent.roles import choose_roles
from kgpu.base.advice import Advice
from kgpu.base.errors import ConfigError
from kgpu.cli.agent import agent, build_options
from kgpu.exporter.config import resolve
from kgpu.operator.rendering.agent_settings import agent_config
from tests.operator.objects.scenes import OPERANDS, SETTINGS, Case, policy

LAYOUTS = {"agent": SETTINGS, "operands": OPERANDS}
HOST_DRIVER = "driver: {enabled: false}\n"


def told(case: Case) -> list[Advice]:
    return [one for one in case.rendered().advice if one.reason == "ArgumentsIgnored"]


def role_s(case: Case, daemon_set: str, role: str, monkeypatch: pytest.MonkeyPatch):
    """The role's options, as the process of its pod has them that was started with the container's own arguments.

    In the layout of one agent, as the agent has them from its document.
    """
    config = agent_config(case.policy, case.settings, case.observed)
    name = daemon_set if case.settings is OPERANDS else "kgpu-agent"
    (container,) = [
        container
        for one in case.rendered().objects
        if one["kind"] == "DaemonSet" and one["metadata"]["name"] == name
        for container in one["spec"]["template"]["spec"]["containers"]
    ]
    env = {row["name"]: row.get("value", "of-the-pod") for row in container["env"]}
    with monkeypatch.context() as patch:
        for key, value in env.items():
            patch.setenv(key, value)
        base = build_options(dict(agent.make_context("agent", container["args"][1:]).params), env)
    place = DriverPlace(seen=Path("/host"), host="/", source="host")
    (row,) = choose_roles([role])
    return role_options(base, row, config.roles[role], config, place)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize(
    "args", ['[-f, /etc/mine.csv, "-c=1000", --kubernetes=false]', '[--collectors=/etc/mine.csv, -c, "1000", -k=false]']
)
def test_the_exporter_takes_them_as_the_replaced_one(layout: str, args: str, monkeypatch: pytest.MonkeyPatch) -> None:
    case = Case(policy=policy(f"{HOST_DRIVER}dcgmExporter: {{args: {args}}}"), settings=LAYOUTS[layout])
    options = role_s(case, "nvidia-dcgm-exporter", "exporter", monkeypatch)
    given = resolve(options.overrides_of("exporter"), options.env)
    assert (given.collectors, given.interval, given.kubernetes) == ("/etc/mine.csv", 1.0, False)
    assert not told(case)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_flag_of_the_exporter_that_does_nothing_is_told_with_the_reason(
    layout: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = "dcgmExporter: {args: [-r, 'nvidia-dcgm:5555', --enable-dcgm-log, '-s=g', --debug]}"
    case = Case(policy=policy(HOST_DRIVER + text), settings=LAYOUTS[layout])
    first, second = told(case)
    assert first.what.endswith("metrics exporter: args --remote-hostengine-info --enable-dcgm-log")
    assert "no DCGM" in first.why
    assert (second.what.rpartition(" ")[2], "NVSwitches" in second.why) == ("--switch-devices", True)
    options = role_s(case, "nvidia-dcgm-exporter", "exporter", monkeypatch)
    assert resolve(options.overrides_of("exporter"), options.env).debug


SCRIPT = "args: ['/bin/entrypoint.sh --no-daemon', --debug]"


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize(
    "row",
    [
        ("toolkit: {%s}", "nvidia-container-toolkit-daemonset", "toolkit", "container toolkit", "toolkit.env"),
        ("validator: {%s}", "nvidia-operator-validator", "validator", "validator", "validator.cuda.env"),
        ("nodeStatusExporter: {enabled: true, %s}", "nvidia-node-status-exporter", "node-status",
         "node status exporter", "remove args"),
    ],
)  # fmt: skip
def test_words_of_a_shell_are_told_to_change_nothing_and_the_role_runs(
    layout: str, row: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    text, daemon_set, role, title, instead = row
    case, bare = (
        Case(policy=policy(HOST_DRIVER + text % words), settings=LAYOUTS[layout])
        for words in (SCRIPT, "repository: ''")
    )
    (one,) = told(case)
    assert f"section of the {title}: args /bin/entrypoint.sh --no-daemon --debug" in one.what
    assert "a shell" in one.why
    assert instead in one.remedy
    assert one.severity.notable
    assert one.subject.startswith("ClusterPolicy/")
    role_s(case, daemon_set, role, monkeypatch)
    assert not told(bare)
    assert bare.rendered().objects == case.rendered().objects


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize(
    "row",
    [
        ("dcgmExporter: {args: [--collectrs=/x]}", "nvidia-dcgm-exporter", "exporter", "--collectrs=/x"),
        ("devicePlugin: {args: [--config-file=/x]}", "nvidia-device-plugin-daemonset", "deviceplugin", "--config-file"),
        ("gfd: {args: [oneshot]}", "gpu-feature-discovery", "labels", "oneshot"),
    ],
)
def test_what_a_role_does_not_have_is_the_role_s_error_and_not_the_process_s(
    layout: str, row: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    text, daemon_set, role, named = row
    case = Case(policy=policy(HOST_DRIVER + text), settings=LAYOUTS[layout])
    with pytest.raises(ConfigError, match="there is no flag") as refused:
        role_s(case, daemon_set, role, monkeypatch)
    assert named in refused.value.what
    assert "ClusterPolicy" in refused.value.remedy


def test_an_operand_that_is_off_is_not_told_of() -> None:
    assert not told(Case(policy=policy(f"{HOST_DRIVER}toolkit: {{enabled: false, args: [x]}}")))
