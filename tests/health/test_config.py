"""The config file: every setting, and what is said about wrong ones."""

from __future__ import annotations

import contextlib
import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kgpu.base.errors import ConfigError
from kgpu.formats.xid.action import Action
from kgpu.health.config import ROWS, HealthConfig, parse_config
from kgpu.health.model import EvidenceSource


def test_nothing_is_the_defaults() -> None:
    assert parse_config("") == HealthConfig()
    assert parse_config("version: v1\n") == HealthConfig()


def test_every_setting_has_a_row() -> None:
    assert {row.attr for row in ROWS} == {field.name for field in dataclasses.fields(HealthConfig)}


def test_all_of_it() -> None:
    config = parse_config("""
version: v1
ignore: {xids: [13, 31], sxids: 24001, checks: [pcie, throttle]}
actions: {xids: {94: reset-gpu}, sxids: {20034: reboot}}
maintenance: [GPU-00000000-0000-0000-0000-000000000001, 3]
driverFirst: false
thresholds: {retiredPages: 10, throttleShare: 0.25, throttleWindow: 20m, marginCelsius: 5}
times: {raiseAfter: 2m, inspectForget: infinite}
repeats: {reset: 1, reboot: 5, window: 240h}
""")
    assert config.ignore_xids == {13, 31}
    assert config.ignore_sxids == {24001}
    assert config.ignore_checks == {EvidenceSource.PCIE, EvidenceSource.THROTTLE}
    assert config.xid_actions == {94: Action.RESET_GPU}
    assert config.sxid_actions == {20034: Action.REBOOT}
    assert config.in_maintenance("GPU-x", 3)
    assert not config.in_maintenance("GPU-x", 2)
    assert config.driver_first is False
    assert (config.retired_pages, config.throttle_share, config.throttle_window, config.margin_c) == (10, 0.25, 1200, 5)
    assert (config.raise_after, config.inspect_forget) == (120, float("inf"))
    assert (config.reset_repeats, config.reboot_repeats, config.repeat_window) == (1, 5, 864000)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("thresholds: {retiredPage: 3}", 'did you mean "retiredPages"?'),
        ("actions: {xids: {94: reset}}", 'did you mean "reset-gpu"?'),
        ("ignore: {checks: [pci]}", 'did you mean "pcie"?'),
        ("xids: [3]", "it belongs in"),
        ("ignore: {xids: [0]}", "no Xid number"),
        ("ignore: {xids: [1.5]}", "no Xid number"),
        ("ignore: {xids: [true]}", "no Xid number"),
        ("actions: {xids: {x: reboot}}", "no Xid number"),
        ("times: {burst: 5}", "no duration"),
        ("times: {burst: -5s}", "no duration"),
        ("times: {burst: soon}", "invalid duration"),
        ("thresholds: {throttleShare: 1.5}", "from 0.01 to 1"),
        ("repeats: {reset: 0}", "1 or more"),
        ("maintenance: [node-1]", "names no GPU"),
        ("version: v2", "unknown version"),
        ("[]", "not a mapping"),
        ("driverFirst: sure", "not a boolean"),
        ("a: [", "well-formed YAML"),
    ],
)
def test_mistakes_are_told_with_what_was_meant(text: str, said: str) -> None:
    with pytest.raises(ConfigError) as refused:
        parse_config(text, source="health.yaml")
    assert said in refused.value.one_line()
    assert "health.yaml" in refused.value.what


@given(st.text(max_size=80))
def test_any_text_is_read_or_refused(text: str) -> None:
    with contextlib.suppress(ConfigError):
        assert isinstance(parse_config(text), HealthConfig)
