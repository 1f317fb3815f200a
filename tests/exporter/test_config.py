"""Flags and variables: the replaced exporter's all mean something or say why not, and nothing wrong passes in silence."""

from __future__ import annotations

import pytest

from kgpu.base.errors import ConfigError
from kgpu.exporter.config import resolve
from kgpu.exporter.model import Generation
from kgpu.exporter.options import OPTIONS
from kgpu.exporter.readers import ListenAddress
from kgpu.exporter.settings import Pods
from kgpu.formats.exporter_flags import REFUSED, WITHOUT

FLAGS = [
    "--collectors",
    "--address",
    "--collect-interval",
    "--kubernetes",
    "--use-old-namespace",
    "--cpu-devices",
    "--configmap-data",
    "--remote-hostengine-info",
    "--kubernetes-enable-pod-labels",
    "--kubernetes-enable-pod-uid",
    "--kubernetes-gpu-id-type",
    "--kubernetes-pod-label-allowlist-regex",
    "--devices",
    "--switch-devices",
    "--no-hostname",
    "--fake-gpus",
    "--web-config-file",
    "--web-systemd-socket",
    "--xid-count-window-size",
    "--clock-events-count-window-size",
    "--replace-blanks-in-model-name",
    "--debug",
    "--log-format",
    "--enable-dcgm-log",
    "--dcgm-log-level",
    "--pod-resources-kubelet-socket",
    "--hpc-job-mapping-dir",
    "--nvidia-resource-names",
    "--kubernetes-virtual-gpus",
    "--kubernetes-enable-dra",
    "--disable-startup-validate",
    "--dump-enabled",
    "--dump-directory",
    "--dump-retention",
    "--dump-compression",
    "--enable-gpu-bind-unbind-watch",
    "--gpu-bind-unbind-poll-interval",
    "--enable-pprof",
    "--web-write-timeout",
    "--enable-exporter-metrics",
    "--container-labels",
    "--container-runtime-socket",
]


def test_every_flag_of_the_replaced_exporter_is_known():
    known = {row.flag for row in OPTIONS} | {row.flag for row in WITHOUT}
    assert [flag for flag in FLAGS if flag not in known] == []


def test_names_are_there_once():
    words = [word for row in (*OPTIONS, *WITHOUT, *REFUSED) for word in (row.flag, *row.aliases, *row.envs)]
    assert len(words) == len(set(words))
    assert len({row.attr for row in OPTIONS}) == len(OPTIONS)


def test_defaults():
    given = resolve()
    assert given.address == ListenAddress(host="", port=9400)
    assert (given.interval, given.xid_window, given.write_timeout) == (30.0, 300.0, 30.0)
    assert given.compat == (Generation.B,)
    assert not given.kubernetes
    assert given.without_effect == ()
    assert not given.collectors_given
    assert len(given.settings(hostname="n").counters) == 29


def test_a_flag_is_before_a_variable_and_an_empty_variable_is_none():
    env = {"DCGM_EXPORTER_LISTEN": ":9500", "DCGM_EXPORTER_INTERVAL": "", "DCGM_EXPORTER_KUBERNETES": "true"}
    given = resolve({"address": "127.0.0.1:9600"}, env)
    assert given.address == ListenAddress(host="127.0.0.1", port=9600)
    assert given.interval == 30.0
    assert given.kubernetes
    assert resolve({}, env).address.port == 9500


def test_the_operators_variables_have_their_meaning():
    env = {
        "DCGM_EXPORTER_COLLECTORS": "/etc/dcgm-exporter/dcp-metrics-included.csv",
        "NVIDIA_RESOURCE_NAMES": "a/b, c/d",
    }
    given = resolve({}, env)
    assert given.collectors_given
    assert given.settings(hostname="n").resources == {"a/b", "c/d"}


def test_settings_follow():
    flags = {"compat": "c,b", "pods": "join", "no_hostname": "true", "devices": "g:0", "extra_fields": "false"}
    settings = resolve(flags).settings(hostname="n")
    assert settings.style.generation is Generation.C
    assert settings.style.hostname == ""
    assert settings.pods is Pods.JOIN
    assert settings.pod_labels is None
    assert "DCGM_FI_PROF_SM_ACTIVE" not in {row.name for row in settings.counters}
    assert resolve({"pod_labels": "true"}).settings(hostname="n").pod_labels is not None


def test_what_does_nothing_is_told_with_the_reason():
    given = resolve({"remote_hostengine_info": "localhost:5555"}, {"DCGM_EXPORTER_ENABLE_DCGM_LOG": "true"})
    assert [advice.what for advice in given.without_effect] == [
        "--remote-hostengine-info has no effect", "DCGM_EXPORTER_ENABLE_DCGM_LOG has no effect",
    ]  # fmt: skip
    assert all(advice.why for advice in given.without_effect)


@pytest.mark.parametrize(
    ("flags", "env", "where"),
    [
        ({"config_file": "/c.yaml"}, {}, "--config-file"),
        ({}, {"DCGM_EXPORTER_CONFIG_FILE": "/c.yaml"}, "DCGM_EXPORTER_CONFIG_FILE"),
    ],
)
def test_what_would_export_something_else_is_refused_with_what_there_is(flags, env, where):
    with pytest.raises(ConfigError, match=f"^{where} is refused: ") as refused:
        resolve(flags, env)
    assert "--configmap-data" in refused.value.remedy
    assert resolve({}, {"DCGM_EXPORTER_CONFIG_FILE": ""}).without_effect == ()


@pytest.mark.parametrize(
    ("attr", "value", "what"),
    [
        ("address", "9400", "--address"),
        ("address", ":99999", "--address"),
        ("interval", "30s", "--collect-interval"),
        ("interval", "0", "--collect-interval"),
        ("kubernetes", "yes", "--kubernetes"),
        ("config_map", "name-only", "--configmap-data"),
        ("config_map", "a/b:c", "--configmap-data"),
        ("gpu_id_type", "uuid", "--kubernetes-gpu-id-type"),
        ("pod_label_allowed", "app,(", "--kubernetes-pod-label-allowlist-regex"),
        ("pod_label_allowed", "^[[:alpha:]]$", "--kubernetes-pod-label-allowlist-regex"),
        ("devices", "all", "--devices"),
        ("compat", "d", "--compat"),
        ("compat", "b,b", "--compat"),
        ("compat", ",", "--compat"),
        ("pods", "some", "--pods"),
        ("series_limit", "-1", "--series-limit"),
        ("series_limit", "\u0661", "--series-limit"),
        ("write_timeout", "30", "--web-write-timeout"),
        ("log_format", "xml", "--log-format"),
    ],
)
def test_a_bad_value_is_refused_and_names_its_flag(attr, value, what):
    with pytest.raises(ConfigError) as caught:
        resolve({attr: value})
    assert caught.value.what.startswith(what + ":")
    assert caught.value.expected
    assert caught.value.remedy


def test_a_bad_variable_is_named():
    with pytest.raises(ConfigError, match="DCGM_EXPORTER_INTERVAL"):
        resolve({}, {"DCGM_EXPORTER_INTERVAL": "soon"})


@pytest.mark.parametrize(
    ("text", "address"),
    [("[::1]:9400", ListenAddress(host="::1", port=9400)), ("node:1", ListenAddress(host="node", port=1))],
)
def test_addresses(text, address):
    assert resolve({"address": text}).address == address
