"""The configuration file of AMD's exporter: what is in effect, what is told, what is refused."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kgpu.base.errors import ConfigError
from kgpu.exporter.vendors.amd.config import IDLE, parse
from kgpu.exporter.vendors.amd.settings import RocmConfig


def read(**whole):
    return parse(json.dumps(whole), "config.json")


def test_everything_that_is_in_effect() -> None:
    config, told = read(
        ServerPort=5000,
        CommonConfig={
            "MetricsFieldPrefix": "amd_", "HealthService": {"Enable": False}, "Debug": {"EnableAPI": True},
        },
        GPUConfig={
            "Fields": ["GPU_CLOCK", "gpu_health"], "Labels": ["GPU_UUID", "HOSTNAME"],
            "CustomLabels": {"CLUSTER_NAME": "c"}, "ExtraPodLabels": {"WORKLOAD_ID": "amd-workload-id"},
        },
    )  # fmt: skip
    assert config == RocmConfig(
        port=5000, prefix="amd_", fields=frozenset({"GPU_CLOCK", "GPU_HEALTH"}), labels=frozenset({"gpu_uuid"}),
        health_service=False, debug_api=True, custom=(("cluster_name", "c"),), pod_labels=(("workload_id", "amd-workload-id"),),
    )  # fmt: skip
    assert config.asks_pods
    assert told == ()


def test_an_empty_file_is_everything_and_no_fields_are_all() -> None:
    assert read()[0] == RocmConfig()
    assert read(GPUConfig={"Fields": [], "Labels": None})[0].wants("GPU_CLOCK")


@pytest.mark.parametrize("path", IDLE)
def test_what_has_no_effect_is_told_with_the_reason(path: str) -> None:
    group, _, key = path.partition(".")
    config, told = read(**{group: {key: {}} if key else {}})
    assert config == RocmConfig()
    assert [(one.what, one.why) for one in told] == [(f"{path} has no effect", IDLE[path])]


def test_of_the_health_service_the_pace_is_told_and_it_may_be_off() -> None:
    config, told = read(CommonConfig={"HealthService": {"Enable": False, "PollingRate": "30s"}})
    assert not config.health_service
    assert [one.what for one in told] == ["CommonConfig.HealthService PollingRate has no effect"]


def test_a_field_that_is_not_measured_is_told_and_the_others_count() -> None:
    config, told = read(GPUConfig={"Fields": ["GPU_PROF_SM_ACTIVE", "GPU_CLOKC", "GPU_CLOCK"]})
    assert config.fields == {"GPU_CLOCK"}
    assert told[0].why == "profilers disturb each other, and kgpu runs none"
    assert "GPU_CLOCK" in told[1].why


@pytest.mark.parametrize("label", ["KFD_PROCESS_ID", "CARD_SERIES", "CLUSTER_NAME", "NONE"])
def test_a_label_that_nothing_gives_is_told(label: str) -> None:
    assert [one.what for one in read(GPUConfig={"Labels": [label]})[1]] == [f"GPUConfig.Labels {label} has no effect"]


@pytest.mark.parametrize(
    "whole",
    [
        {"ServerPort": 0}, {"ServerPort": "5000"}, {"ServerPort": True}, {"CommonConfig": {"MetricsFieldPrefix": "a-"}},
        {"GPUConfig": {"Fields": "GPU_CLOCK"}}, {"GPUConfig": {"Labels": [1]}}, {"GPUConfig": []}, {"Unknown": 1},
        {"GPUConfig": {"Unknown": 1}}, {"CommonConfig": {"Debug": True}}, {"CommonConfig": {"Debug": {"EnableApi": True}}},
        {"CommonConfig": {"HealthService": {"Enable": "yes"}}},
        {"GPUConfig": {"CustomLabels": {f"l{number}": "x" for number in range(11)}}},
        {"GPUConfig": {"ExtraPodLabels": {f"l{number}": "x" for number in range(21)}}},
        {"GPUConfig": {"CustomLabels": {"pod": "x"}}}, {"GPUConfig": {"CustomLabels": {"a-b": "x"}}},
        {"GPUConfig": {"CustomLabels": {"clock_type": "x"}}}, {"GPUConfig": {"CustomLabels": {"__name__": "x"}}},
        {"GPUConfig": {"CustomLabels": {"a": "x"}, "ExtraPodLabels": {"A": "x"}}},
    ],
)  # fmt: skip
def test_what_can_not_be_followed_is_refused_in_three_parts(whole) -> None:
    with pytest.raises(ConfigError) as refused:
        read(**whole)
    assert refused.value.what
    assert refused.value.expected
    assert refused.value.remedy


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)
_KEYS = st.sampled_from(["ServerPort", "CommonConfig", "GPUConfig", "NICConfig"])
_UNDER = st.sampled_from(["Fields", "Labels", "CustomLabels", "ExtraPodLabels", "MetricsFieldPrefix", "Selector"])


@given(st.text(max_size=60) | st.dictionaries(_KEYS, _JSON | st.dictionaries(_UNDER, _JSON)).map(json.dumps))
def test_any_text_is_settings_or_refused(text: str) -> None:
    try:
        config, _ = parse(text, "config.json")
    except ConfigError:
        return
    assert isinstance(config, RocmConfig)
