"""Bad input of ``kgpu agent``: three parts, exit code 2, nothing started, never a traceback; and what options become."""

from __future__ import annotations

import os
from pathlib import Path

import click
import pytest

from kgpu.agent.options import ConfigMapRef, LabelsSink
from kgpu.cli import agent as command
from kgpu.cli._common import driver_root_here
from kgpu.cli.main import main
from kgpu.deviceplugin.config import FLAGS, resolve
from kgpu.discovery.config import OPTIONS
from kgpu.formats.names import ENV_HW_STATE
from kgpu.formats.plugin_config import PluginConfig
from tests.host.tree import simulated

FILES = {
    "malformed.yaml": "version: v1\nsharing: [unclosed",
    "unknown-key.yaml": "version: v1\nsharing:\n  timeSlicing:\n    resources:\n    - {name: gpu, replica: 4}\n",
    "misplaced-key.yaml": "version: v1\nflags:\n  renameByDefault: true\n",
    "wrong-type.yaml": "version: v1\nsharing:\n  timeSlicing:\n    resources:\n    - {name: nvidia.com/gpu, replicas: ten}\n",
    "contradiction.yaml": "version: v1\nsharing:\n"
    "  timeSlicing: {resources: [{name: nvidia.com/gpu, replicas: 2}]}\n  mps: {resources: [{name: nvidia.com/gpu, replicas: 2}]}\n",
    "bad-name.yaml": "version: v1\nsharing:\n  timeSlicing:\n    resources:\n    - {name: 'nvidia.com/GP U', replicas: 2}\n",
    "wrong-version.yaml": "version: v7\n",
    "list.yaml": "- a\n- b\n",
    "binary.yaml": "\x00\x01",
}


@pytest.fixture(autouse=True)
def nothing_starts(monkeypatch):
    """The agent itself must not be reached, nor this machine's environment be seen."""

    def refuse(coroutine):
        coroutine.close()
        raise AssertionError("the agent was started")

    monkeypatch.setattr(command, "run_async", refuse)
    for variable in ("KUBECONFIG", "NODE_NAME", "CONFIG_FILE", "KUBERNETES_SERVICE_HOST", "KGPU_DEBUG", ENV_HW_STATE):
        monkeypatch.delenv(variable, raising=False)


def refused(capsys, *words: str) -> str:
    assert main(["kgpu", "agent", *words]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert "Traceback" not in err
    lines = err.rstrip("\n").split("\n")
    assert lines[0].startswith("kgpu: ")
    assert any(line.startswith("  expected: ") for line in lines)
    assert any(line.startswith("  to do: ") for line in lines)
    return err


@pytest.mark.parametrize("name", FILES)
def test_a_config_file_that_is_wrong_from_the_start(name, tmp_path, capsys):
    path = tmp_path / name
    path.write_text(FILES[name])
    assert str(path) in refused(capsys, "--config-file", str(path))


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--config-file", "/no/such/file"], "No such file"),
        (["--config-file", "/"], "/"),
        (["--roles", "deviceplugn"], 'did you mean "deviceplugin"?'),
        (["--roles", ","], "no role"),
        (["--kubeconfig", "/no/such/file"], "there is no file /no/such/file"),
        (["--labels-sink", "nowhere"], "'nowhere' is not one of"),
        (["--labels-sink", "node"], "NODE_NAME"),
        (["--config-map", "a/b/c", "--node-name", "n"], "NAMESPACE/NAME"),
        (["--config-map", "a/b"], "NODE_NAME"),
        (["--fallback-strategies", "namedd"], 'did you mean "named"'),
        (["--health-address", "localhost"], "HOST:PORT"),
        (["--mig-strategy", "singlle"], "singlle"),
        (["--device-list-strategy", "env-var"], "env-var"),
        (["--imex-channel-ids", "1"], "channelIDs must be [] or [0]"),
        (["--gds-enabled=perhaps"], "perhaps"),
        (["--sleep-interval", "soon"], "soon"),
        (["--no-such-flag"], "--no-such-flag"),
        (["--log-level", "loud"], "'loud' is not one of"),
    ],
)
def test_flags_that_are_wrong(words, says, capsys):
    assert says in refused(capsys, *words)


def test_environment_that_is_wrong(capsys, monkeypatch):
    monkeypatch.setenv("MIG_STRATEGY", "triplle")
    assert "triplle" in refused(capsys)


@pytest.fixture
def options_of(monkeypatch):
    """The options that the agent would have been started with."""

    real = command.settle

    def build(*words: str):
        seen: list = []
        monkeypatch.setattr(command, "settle", lambda options: seen.append(real(options)) or Stop.now())
        assert main(["kgpu", "agent", *words]) == 77
        return seen[0]

    class Stop:
        @staticmethod
        def now():
            raise click.exceptions.Exit(77)

    return build


def test_options_become_what_they_say(options_of, tmp_path):
    options = options_of(
        "--roles", "labels", "--root", str(tmp_path), "--node-name", "n", "--config-map", "gpu/configs",
        "--labels-sink", "nodefeature", "--health-address", "[::1]:99", "--state-dir", "/s", "--fallback-strategies", "empty",
    )  # fmt: skip
    assert options.roles == ("labels",)
    assert options.root == tmp_path
    assert options.config_map == ConfigMapRef("gpu", "configs")
    assert options.sink is LabelsSink.NODE_FEATURE
    assert str(options.health_address) == "[::1]:99"
    assert options.state_dir == Path("/s")
    assert [str(fallback) for fallback in options.fallbacks] == ["empty"]
    assert options.overrides_of("deviceplugin")["container_driver_root"] == str(tmp_path)


def test_only_flags_that_were_given_are_overrides(options_of):
    options = options_of()
    assert options.overrides_of("deviceplugin") == {"container_driver_root": "/"}
    assert options.overrides_of("labels") == {}
    assert options.root is None


@pytest.mark.parametrize(
    ("words", "environment", "host"),
    [
        ([], {}, "{root}"),
        (["--driver-root", "/"], {}, "/"),
        ([], {"NVIDIA_DRIVER_ROOT": "/run/nvidia/driver"}, None),
    ],
)
def test_the_host_has_the_driver_where_it_is_here_unless_told(  # noqa: PLR0917
    words, environment, host, options_of, monkeypatch, tmp_path
):
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    options = options_of("--root", str(tmp_path), *words)
    assert options.overrides_of("deviceplugin").get("driver_root") == (host and host.format(root=tmp_path))


def test_a_flag_of_both_components_reaches_both(options_of):
    options = options_of("--mig-strategy", "mixed", "--no-timestamp", "--gds-enabled=false", "--pass-device-specs")
    assert options.overrides_of("deviceplugin")["mig_strategy"] == "mixed"
    assert options.overrides_of("labels") == {"mig_strategy": "mixed", "no_timestamp": "true"}
    assert options.overrides_of("deviceplugin")["gds_enabled"] == "false"
    assert options.overrides_of("deviceplugin")["pass_device_specs"] == "true"


def test_the_replaced_programs_environment_says_where_the_driver_is(options_of, monkeypatch, tmp_path):
    monkeypatch.setenv("DRIVER_ROOT_CTR_PATH", str(tmp_path / "not-mounted-yet"))
    assert options_of().root == tmp_path / "not-mounted-yet"


@pytest.mark.parametrize(
    ("seen", "host", "root"),
    [
        ("/driver-root", "/host/driver", "/host/driver"),
        ("/not/there/yet", "/host/driver", "/not/there/yet"),
        ("/", "/x", "/"),
    ],
)
def test_the_usual_mount_counts_only_where_it_is(seen, host, root, monkeypatch):
    monkeypatch.setattr("os.path.isdir", lambda _path: False)
    settings = resolve(PluginConfig(), overrides={"container_driver_root": seen, "driver_root": host}, env={})
    assert driver_root_here(settings) == Path(root)


def test_the_usual_mount_beats_the_hosts_own_path_where_it_is(monkeypatch):
    monkeypatch.setattr("os.path.isdir", lambda path: path == "/driver-root")
    settings = resolve(PluginConfig(), overrides={"driver_root": "/host/driver"}, env={})
    assert driver_root_here(settings) == Path("/driver-root")


def test_a_simulated_root_names_its_state(options_of, tmp_path):
    simulated(tmp_path)
    assert options_of("--root", str(tmp_path)).env[ENV_HW_STATE] == str(tmp_path / "state")


def test_every_flag_of_the_components_is_there():
    names = {name for parameter in command.agent.get_params(click.Context(command.agent)) for name in parameter.opts}
    assert {row.flag for row in FLAGS} <= names
    assert {row.flag for row in OPTIONS if row.attr not in command.REPLACED_LABEL_OPTIONS} <= names


def test_auto_needs_to_know_its_node(capsys):
    assert "--auto needs to know which node this is" in refused(capsys, "--auto")


def test_auto_needs_the_operators_namespace(capsys):
    assert "NAMESPACE" in refused(capsys, "--auto", "--node-name", "n", "--namespace", "")


def test_auto_takes_its_environment(monkeypatch):
    for variable, value in {"NODE_NAME": "n", "NAMESPACE": "gpu", "KGPU_HOST_ROOT": "/host", "KGPU_AUTO": "1"}.items():
        monkeypatch.setenv(variable, value)
    context = command.agent.make_context("agent", [])
    given = {name: value for name, value in context.params.items() if name not in {"log_level", "log_format"}}
    options = command.build_options(given, os.environ)
    assert (options.auto, options.node_name, options.namespace) == (True, "n", "gpu")
    assert (options.host_root, options.validations_dir) == (Path("/host"), None)


def test_the_gate_is_off_unless_a_folder_is_named():
    assert build().validations_dir is None
    assert build("--wait-for-validation", "/v").validations_dir == Path("/v")


def build(*words: str):
    context = command.agent.make_context("agent", list(words))
    given = {name: value for name, value in context.params.items() if name not in {"log_level", "log_format"}}
    return command.build_options(given, {})


@pytest.mark.parametrize(("words", "roles"), [((), ()), (("--roles", "toolkit, labels"), ("toolkit", "labels"))])
def test_auto_takes_roles_that_are_given_and_all_of_them_without(monkeypatch, words, roles):
    arguments = ["--auto", "--node-name", "n", "--namespace", "gpu", *words]
    given = dict(command.agent.make_context("agent", arguments).params)
    assert command.build_options(given, {}).roles == roles


def test_without_auto_device_plugin_and_labels_are_run():
    assert command.build_options(dict(command.agent.make_context("agent", []).params), {}).roles == (
        "deviceplugin",
        "labels",
    )


def test_a_wrong_role_is_refused_with_auto_too(capsys):
    assert 'did you mean "labels"' in refused(capsys, "--auto", "--roles", "labelss", "--node-name", "n")


def test_what_follows_two_dashes_is_for_the_role(capsys):
    words = ["--auto", "--roles=exporter,health", "--node-name=n", "--namespace=n"]
    context = command.agent.make_context("agent", [*words, "--", "-f", "x", "--", "--roles=y"])
    options = command.build_options(dict(context.params), {})
    assert options.role_args == ("-f", "x", "--", "--roles=y")
    assert options.roles == ("exporter", "health")
    assert command.build_options(dict(command.agent.make_context("agent", words).params), {}).role_args == ()
    assert "there is no role for the arguments after --: -f x" in refused(capsys, "--roles=exporter", "--", "-f", "x")
    assert "unexpected extra argument" in refused(capsys, *words, "exporter")
