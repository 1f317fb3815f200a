"""The role's settings: the replaced installer's variables, the first that is set counts, every mistake named."""

from __future__ import annotations

import contextlib
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kgpu.base.advice import Severity
from kgpu.base.errors import ConfigError
from kgpu.formats import names
from kgpu.formats.settings import Setting
from kgpu.host.engines.model import Engine, RuntimeHandler
from kgpu.operator.operands import toolkit as toolkit_operand
from kgpu.toolkit.settings import OF_NRI, OPTIONS, WITHOUT, ToolkitSettings, toolkit_settings


def test_without_a_word_the_node_decides() -> None:
    found = toolkit_settings({})
    assert found == ToolkitSettings()
    assert found.configure
    assert found.handlers == ("nvidia", "nvidia-cdi", "nvidia-legacy")
    assert found.wanted().default == ""


def test_what_the_operator_says_is_the_usual() -> None:
    env = {
        "ROOT": "/usr/local/nvidia",
        "CDI_ENABLED": "true",
        "NVIDIA_RUNTIME_SET_AS_DEFAULT": "false",
        "NVIDIA_CONTAINER_RUNTIME_MODE": "cdi",
        "CRIO_CONFIG_MODE": "config",
    }
    assert toolkit_settings(env) == ToolkitSettings()


@pytest.mark.parametrize(
    ("env", "field", "expected"),
    [
        ({"RUNTIME": "cri-o"}, "engine", Engine.CRIO),
        ({"RUNTIME": "Docker"}, "engine", Engine.DOCKER),
        ({"CONTAINERD_CONFIG": "/etc/x.toml"}, "config", "/etc/x.toml"),
        ({"CONTAINERD_CONFIG": "/etc/x.toml"}, "engine", Engine.CONTAINERD),
        ({"DOCKER_CONFIG": "/etc/docker/daemon.json"}, "engine", Engine.DOCKER),
        ({"RUNTIME": "crio", "CONTAINERD_CONFIG": "/x"}, "engine", Engine.CRIO),
        ({"RUNTIME_CONFIG": "/a", "CONTAINERD_CONFIG": "/b"}, "config", "/a"),
        ({"RUNTIME_DROP_IN_CONFIG": ""}, "drop_in", ""),
        ({"RUNTIME_DROP_IN_CONFIG": "/etc/containerd/conf.d/50.toml"}, "drop_in", "/etc/containerd/conf.d/50.toml"),
        ({"CONTAINERD_SOCKET": "unix:///run/k3s/containerd/containerd.sock"}, "socket", "/run/k3s/containerd/containerd.sock"),
        ({"RUNTIME_RESTART_MODE": "None"}, "restart", "none"),
        ({"CONTAINERD_RUNTIME_CLASS": "gpu"}, "runtime", "gpu"),
        ({"CONTAINERD_SET_AS_DEFAULT": "1"}, "default", True),
        ({"RUNTIME_ENABLE_CDI": "false"}, "cdi", False),
        ({"CREATE_DEVICE_NODES": ""}, "control_nodes", False),
        ({"CREATE_DEVICE_NODES": "none"}, "control_nodes", False),
        ({"CREATE_DEVICE_NODES": "control"}, "control_nodes", True),
        (
            {"NVIDIA_CONTAINER_RUNTIME_MODES_CDI_ANNOTATION_PREFIXES": "cdi.k8s.io/, nvidia.cdi.k8s.io/"},
            "annotations",
            ("cdi.k8s.io/", "nvidia.cdi.k8s.io/"),
        ),
    ],
)  # fmt: skip
def test_each_variable(env: dict[str, str], field: str, expected: object) -> None:
    assert getattr(toolkit_settings(env), field) == expected


def test_the_policys_runtime_class_is_a_handler_and_may_be_the_default() -> None:
    wanted = toolkit_settings({"NVIDIA_RUNTIME_NAME": "gpu", "NVIDIA_RUNTIME_SET_AS_DEFAULT": "true"}).wanted()
    assert wanted.handlers[0] == RuntimeHandler("gpu")
    assert {one.name for one in wanted.handlers} == {"gpu", "nvidia", "nvidia-cdi", "nvidia-legacy"}
    assert wanted.default == "gpu"


def test_runtime_config_override_has_effect() -> None:
    """The replaced program still advertises it and then ignores it."""
    told = {"options": {"SystemdCgroup": True}, "pod_annotations": ["x"]}
    assert toolkit_settings({"RUNTIME_CONFIG_OVERRIDE": json.dumps(told)}).wanted().options == told
    assert toolkit_settings({"CONTAINERD_RUNTIME_CONFIG_OVERRIDE": "{}"}).wanted().options == {}


def test_the_spec_folder_is_one_that_the_engine_reads() -> None:
    assert "/opt/cdi" in toolkit_settings({"CDI_OUTPUT_DIR": "/opt/cdi"}).wanted().cdi_dirs


@pytest.mark.parametrize(
    ("env", "text"),
    [
        ({"RUNTIME": "containrd"}, 'did you mean "containerd"'),
        ({"RUNTIME_RESTART_MODE": "systmd"}, 'did you mean "systemd"'),
        ({"CONTAINERD_CONFIG": "etc/containerd/config.toml"}, "absolute path"),
        ({"CONTAINERD_CONFIG": "/etc/../../x"}, "absolute path"),
        ({"RUNTIME_CONFIG_OVERRIDE": "[1]"}, "JSON object"),
        ({"RUNTIME_CONFIG_OVERRIDE": "[" * 100_000}, "JSON object"),
        ({"RUNTIME_CONFIG_OVERRIDE": "[" * 10_000}, "JSON object"),
        ({"NO_RUNTIME_CONFIG": "maybe"}, "true or false"),
        ({"CONTAINERD_RUNTIME_CLASS": "../x"}, "runtime handler"),
        ({"CREATE_DEVICE_NODES": "controlx"}, 'did you mean "control"'),
    ],
)
def test_a_mistake_names_the_variable(env: dict[str, str], text: str) -> None:
    with pytest.raises(ConfigError, match=text) as refused:
        toolkit_settings(env)
    assert next(iter(env)) in refused.value.what
    assert len(refused.value.what) < 200


def test_the_engine_is_left_alone_where_told_or_where_nri_does_it() -> None:
    told = toolkit_settings({"NO_RUNTIME_CONFIG": "true"}, nri=True)
    assert (told.configure, told.why_not) == (False, "NO_RUNTIME_CONFIG says so")
    nri = toolkit_settings({}, nri=True)
    assert not nri.configure
    assert "NRI" in nri.why_not


def test_links_to_device_nodes_are_kept_unless_somebody_says_no() -> None:
    assert toolkit_settings({}).links
    assert toolkit_settings({"DISABLE_DEV_CHAR_SYMLINK_CREATION": "false"}).links
    assert not toolkit_settings({"DISABLE_DEV_CHAR_SYMLINK_CREATION": "true"}).links


def test_wishes_about_a_runtime_shim_are_named() -> None:
    found = toolkit_settings({"NVIDIA_CONTAINER_RUNTIME_MODE": "legacy", "CRIO_CONFIG_MODE": "hook"})
    assert [(one.subject, one.evidence) for one in found.without_effect] == [
        ("NVIDIA_CONTAINER_RUNTIME_MODE", ("NVIDIA_CONTAINER_RUNTIME_MODE: 'legacy'",)),
        ("CRIO_CONFIG_MODE", ("CRIO_CONFIG_MODE: 'hook'",)),
    ]
    assert all(one.severity is Severity.WARNING and one.remedy for one in found.without_effect)


@pytest.mark.parametrize("row", WITHOUT, ids=lambda row: row.envs[0])
def test_each_variable_that_changes_nothing_is_told_unless_it_says_what_is_so(row: Setting) -> None:
    for name in row.envs:
        assert [one.subject for one in toolkit_settings({name: "something else"}).without_effect] == [name]
        for usual in ("", *row.usual):
            assert toolkit_settings({name: usual}).without_effect == ()


@pytest.mark.parametrize("row", OF_NRI, ids=lambda row: row.envs[0])
def test_settings_of_the_nri_plugin_are_not_told_where_it_runs(row: Setting) -> None:
    assert toolkit_settings({row.envs[0]: "something else"}, nri=True).without_effect == ()


def test_the_operator_hands_over_no_variable_that_nobody_reads() -> None:
    handed = {variable.name for variable in toolkit_operand.SPEC.env}
    assert handed - {name for row in (*OPTIONS, *WITHOUT) for name in row.envs} == {names.ENV_NRI_ENABLED}


VARIABLES = sorted({name for row in (*OPTIONS, *WITHOUT) for name in row.envs})


@given(st.dictionaries(st.sampled_from(VARIABLES), st.text(max_size=40), max_size=4))
def test_any_text_is_settings_or_a_config_error(env: dict[str, str]) -> None:
    with contextlib.suppress(ConfigError):
        assert set(toolkit_settings(env).handlers) >= {"nvidia", "nvidia-cdi", "nvidia-legacy"}
