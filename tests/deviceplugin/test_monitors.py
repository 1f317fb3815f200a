"""Resources of monitors on nodes with Intel's GPUs, and the words of Intel's plugin for how shares are chosen."""

from __future__ import annotations

from dataclasses import replace

import pytest

from kgpu.agent.plugin_specs import _of_nodes
from kgpu.base.errors import ConfigError
from kgpu.deviceplugin.plan import plan
from kgpu.hw.port import HardwareFinding, Inventory, Problem
from kgpu.hw.vendor import vendor_of
from tests.deviceplugin.test_by_id import I915, NODE, XE, gpu, offered, settings

ON = {"ENABLE_MONITORING": "true"}
SPLIT = {**ON, "MONITORING_MODE": "split"}
PREFIX = "gpu.intel.com/"


def nodes(about: dict[str, object], gpus=NODE) -> dict[str, tuple[str, ...]]:
    resources = plan(gpus, settings(**about)).resources
    return {
        one.name.removeprefix(PREFIX): one.devices[0].unit.device_nodes for one in resources if "monitoring" in one.name
    }


@pytest.mark.parametrize(
    ("about", "expected"),
    [
        ({}, {}),
        ({"MONITORING_MODE": "split"}, {}),
        (ON, {"monitoring": ("/dev/dri/card0", "/dev/dri/card1", "/dev/dri/card2")}),
        (SPLIT, {"xe_monitoring": ("/dev/dri/card0", "/dev/dri/card1"), "i915_monitoring": ("/dev/dri/card2",)}),
        ({**ON, "DENY_IDS": "0xe211"}, {"monitoring": ("/dev/dri/card2",)}),
        ({**ON, "ALLOW_IDS": "0x0bd5"}, {}),
    ],
)
def test_a_monitor_sees_all_gpus_or_those_of_a_driver(about, expected) -> None:
    assert nodes(about) == expected


def test_it_is_one_device_however_gpus_are_shared() -> None:
    chosen = settings(**ON, SHARED_DEV_NUM=10)
    assert offered(chosen) == {XE: 20, I915: 10, f"{PREFIX}monitoring": 1}
    (device,) = plan(NODE, chosen).resource(f"{PREFIX}monitoring").devices
    assert device.id == "all"


def test_a_gpu_that_can_not_be_used_is_left_out_of_it() -> None:
    lost = HardwareFinding(subject="", problem=Problem.LOST, what="gone", expected="", remedy="")
    assert nodes(ON, [NODE[0], replace(NODE[1], findings=(lost,))]) == {"monitoring": ("/dev/dri/card0",)}


def test_on_nodes_of_other_vendors_nothing_is_offered_and_it_is_told() -> None:
    outcome = plan([gpu(0, 0x1060, "", "gaudi")], settings(**ON))
    assert [one.name for one in outcome.resources] == ["habana.ai/gaudi"]
    assert "MonitoringImpossible" in {advice.reason for advice in outcome.advice}


def test_the_cdi_spec_has_what_monitors_are_given_by() -> None:
    inventory = Inventory(vendor="intel", driver_version="", accelerators=tuple(NODE))
    spec = _of_nodes(inventory, settings(**SPLIT, DENY_IDS="0x56c0"), vendor_of("intel"))
    found = {
        device.name: [node.path for node in (device.container_edits.device_nodes or ())] for device in spec.devices
    }
    assert found["xe_monitoring"] == ["/dev/dri/card0", "/dev/dri/card1"]
    assert "i915_monitoring" not in found


@pytest.mark.parametrize(
    ("word", "policy"),
    [("balanced", "distributed"), ("packed", "packed"), ("distributed", "distributed"), ("none", "none")],
)
def test_how_shares_are_chosen_in_the_words_of_intels_plugin(word: str, policy: str) -> None:
    assert settings(ALLOCATION_POLICY=word).shared_policy == policy


def test_what_intels_plugin_has_and_kgpu_has_not_is_refused() -> None:
    refused = [{"ALLOCATION_POLICY": "all"}, {"MONITORING_MODE": "both"}, {"BYPATH": "single"}, {"BYPATH": "all"}]
    for about in refused:
        with pytest.raises(ConfigError):
            settings(**about)


def test_without_links_by_path_there_is_nothing_to_ask_for() -> None:
    assert settings(BYPATH="none") == settings()
    with pytest.raises(ConfigError, match="links in /dev/dri/by-path are not mounted") as caught:
        settings(BYPATH="single")
    assert caught.value.expected == "none"
