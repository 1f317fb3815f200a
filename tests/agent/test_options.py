"""Options that contradict each other, and roles and ConfigMaps that don't exist, are refused in three parts."""

from __future__ import annotations

from pathlib import Path

import pytest

from kgpu.agent.options import AgentOptions, ConfigMapRef, LabelsSink, parse_config_map
from kgpu.agent.roles import ROLES, choose_roles
from kgpu.agent.roles.labels import _outcome
from kgpu.base.errors import ConfigError

BASE = {"roles": ("labels",), "env": {}}


@pytest.mark.parametrize(
    ("given", "sink"),
    [
        ({}, LabelsSink.NONE),
        ({"node_name": "n"}, LabelsSink.NONE),
        ({"kubeconfig": "k"}, LabelsSink.NONE),
        ({"kubeconfig": "k", "node_name": "n"}, LabelsSink.NODE_FEATURE),
        ({"env": {"KUBERNETES_SERVICE_HOST": "10.0.0.1"}, "node_name": "n"}, LabelsSink.NODE_FEATURE),
        ({"kubeconfig": "k", "node_name": "n", "labels_sink": LabelsSink.FILE}, LabelsSink.FILE),
    ],
)
def test_where_labels_go(given, sink):
    options = AgentOptions(**{**BASE, **given})
    options.check()
    assert options.sink is sink


@pytest.mark.parametrize(
    "given",
    [
        {"config_file": Path("a"), "config_map": ConfigMapRef("a", "b"), "node_name": "n"},
        {"config_map": ConfigMapRef("a", "b")},
        {"labels_sink": LabelsSink.NODE_FEATURE},
        {"labels_sink": LabelsSink.NODE},
        {"kubelet_socket": Path("")},
        {"roles": ("exporter",), "role_args": ("-f", "x"), "node_name": "n"},
        {"roles": (), "role_args": ("-f", "x"), "auto": True, "node_name": "n", "namespace": "n"},
    ],
)
def test_contradictions_are_refused(given):
    with pytest.raises(ConfigError):
        AgentOptions(**{**BASE, **given}).check()


@pytest.mark.parametrize(
    ("text", "ref"),
    [("gpu/configs", ConfigMapRef("gpu", "configs")), ("configs", ConfigMapRef("own", "configs"))],
)
def test_config_map_references(text, ref):
    assert parse_config_map(text, "own") == ref


@pytest.mark.parametrize("text", ["", "/", "a/", "/b", "a/b/c"])
def test_what_names_no_config_map(text):
    with pytest.raises(ConfigError, match="NAMESPACE/NAME"):
        parse_config_map(text, "own")


def test_roles_are_chosen_once_in_the_tables_order_by_any_of_their_names():
    words = [word for role in reversed(ROLES) for word in (role.name, *role.aliases)]
    assert choose_roles(words) == ROLES


@pytest.mark.parametrize(
    ("words", "says"), [(["deviceplugn"], "did you mean"), (["x"], "there is no role"), ([], "no role")]
)
def test_unknown_and_missing_roles(words, says):
    with pytest.raises(ConfigError, match=says) as caught:
        choose_roles(words)
    assert "validator, deviceplugin" in caught.value.expected


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({}, "no API server configured; --labels-sink file writes them"),
        ({"kubeconfig": "/k"}, "no node name: give --node-name, or set NODE_NAME"),
        ({"labels_sink": LabelsSink.NONE}, "--labels-sink none"),
        ({"labels_sink": LabelsSink.FILE}, ""),
    ],
)
def test_labels_that_go_nowhere_are_not_called_published(given, says):
    told = _outcome(AgentOptions(roles=("labels",), env={}, **given)) % 26
    assert told == (f"26 labels made; there is nowhere to publish them ({says})" if says else "26 labels published")
