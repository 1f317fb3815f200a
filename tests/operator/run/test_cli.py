"""``kgpu operator``: flags and environment become settings, and what is wrong is explained."""

from __future__ import annotations

import socket
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from kgpu.base.errors import ConfigError
from kgpu.cli import main
from kgpu.cli import operator as command
from kgpu.operator.model import Allocation, NodeLayout

GIVEN: dict[str, Any] = {
    **{row.attr: row.default for row in command.RUN},
    "namespace": "gpu-operator", "image": "kgpu:1", "image_pull_policy": "IfNotPresent", "image_pull_secrets": "a, b",
    "layout": "agent", "discovery": "true", "metrics_address": ":8080", "health_address": "0", "lease_namespace": "",
    "renew_deadline": "10s", "leader_elect": "true",
}  # fmt: skip


def test_settings_of_flags_and_environment() -> None:
    env = {"DRIVER_IMAGE": "driver:1", "OTHER": "x", "EMPTY_IMAGE": ""}
    settings = command.settings_of({**GIVEN, "layout": "operands", "discovery": "F"}, env)
    assert (settings.namespace, settings.image, settings.layout) == ("gpu-operator", "kgpu:1", NodeLayout.OPERANDS)
    assert settings.image_pull_secrets == ("a", "b")
    assert settings.images == {"DRIVER_IMAGE": "driver:1"}
    assert not settings.discovery


def test_monitoring_and_health_of_flags_and_environment() -> None:
    settings = command.settings_of(
        {**GIVEN, "health": "false", "host_facts": "f", "alert_rules": "false", "alerts": "GPUIdle: {enabled: false}", "dashboards": "true",
         "dashboard_labels": '{"a": "b"}'}, {},
    )  # fmt: skip
    assert not settings.health
    assert not settings.host_facts
    told = settings.monitoring
    assert (told.rules, told.dashboards, dict(told.labels)) == (False, True, {"a": "b"})
    names = {alert.name for alert in told.alerts}
    assert "GPUIdle" not in names
    assert "GPUNodeIdle" in names


def test_allocation_of_flags_and_environment() -> None:
    told = command.settings_of({**GIVEN, "allocation": "dra", "dra": "true", "dra_gates": "DynamicMIG=true"}, {})
    assert (told.allocation, told.dra, told.dra_gates) == (Allocation.DRA, True, "DynamicMIG=true")
    usual = command.settings_of(GIVEN, {})
    assert (usual.allocation, usual.dra, usual.dra_gates) == (Allocation.DEVICE_PLUGIN, False, "")


def test_options_of_flags_and_environment() -> None:
    options = command.options_of({**GIVEN, "renew_deadline": "20s"}, {"POD_NAME": "op-1"})
    assert (options.lease_times.duration, options.lease_times.deadline) == (25.0, 20.0)
    assert options.identity.startswith("op-1_")
    assert options.health is None
    assert options.metrics is not None
    assert options.metrics.port == 8080


def both(given: dict[str, Any]) -> None:
    command.settings_of(given, {})
    command.options_of(given, {})


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"namespace": ""}, "OPERATOR_NAMESPACE"),
        ({"image": ""}, "OPERATOR_IMAGE"),
        ({"layout": "agents"}, 'did you mean "agent"'),
        ({"discovery": "maybe"}, "KGPU_DISCOVERY"),
        ({"allocation": "dar"}, 'did you mean "dra"'),
        ({"allocation": "dra"}, "set --dra=true"),
        ({"dra": "maybe"}, "KGPU_DRA"),
        ({"dra": "true", "dra_gates": "DynamicMig=true"}, 'did you mean "DynamicMIG"'),
        ({"dra": "true", "dra_gates": "PassthroughSupport=true"}, "can't be turned on"),
        ({"alerts": "GPUIdel: {enabled: false}"}, 'did you mean "GPUIdle"'),
        ({"alerts": "[GPUIdle]"}, "KGPU_ALERTS"),
        ({"alerts": "{"}, "KGPU_ALERTS"),
        ({"dashboard_labels": "grafana_dashboard: 1"}, "KGPU_DASHBOARD_LABELS"),
        ({"leader_elect": "perhaps"}, "--leader-elect"),
        ({"renew_deadline": "1s"}, "--leader-lease-renew-deadline"),
        ({"renew_deadline": "soon"}, "--leader-lease-renew-deadline"),
        ({"metrics_address": "8080"}, "--metrics-bind-address"),
        ({"health_address": "here"}, "--health-probe-bind-address"),
    ],
)
def test_what_is_wrong_is_named(change: dict[str, str], says: str) -> None:
    with pytest.raises(ConfigError) as caught:
        both({**GIVEN, **change})
    assert says in str(caught.value)


def test_the_replaced_operators_arguments_are_taken(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        kubeconfig = tmp_path / "kubeconfig"
        kubeconfig.write_text(KUBECONFIG)
        words = [
            "gpu-operator", "--leader-elect", "--zap-devel", "--zap-time-encoding=epoch", "--zap-log-level=error",
            "--zap-encoder=json", "--namespace=gpu-operator", "--image=kgpu:1", f"--kubeconfig={kubeconfig}",
            f"--metrics-bind-address={address}",
        ]  # fmt: skip
        assert main.main(words) == 2
    said = capsys.readouterr().err
    assert f"can't listen on {address}" in said


KUBECONFIG = """
apiVersion: v1
kind: Config
current-context: c
contexts: [{name: c, context: {cluster: k, user: u}}]
clusters: [{name: k, cluster: {server: "https://127.0.0.1:1"}}]
users: [{name: u, user: {token: none}}]
"""


@pytest.mark.parametrize(
    ("level", "zap", "wanted"),
    [("info", "", "info"), ("info", "debug", "debug"), ("info", "3", "debug"), ("error", "0", "error")],
)
def test_log_levels(level: str, zap: str, wanted: str) -> None:
    assert command._level(level, zap) == wanted


def test_help_has_examples() -> None:
    for words in (["operator", "--help"], ["operator", "run", "--help"], ["operator", "cleanup", "--help"]):
        found = CliRunner().invoke(main.cli, words)
        assert found.exit_code == 0
        assert "Examples:" in found.output
        assert "zap" not in found.output
