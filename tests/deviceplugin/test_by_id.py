"""Devices left out by their PCI ids, and shares by a number, as Intel's device plugin is told."""

from __future__ import annotations

import pytest

from kgpu.base.errors import ConfigError
from kgpu.deviceplugin.config import PluginSettings, resolve
from kgpu.deviceplugin.plan import plan
from kgpu.formats.plugin_config import PluginConfig, Sharing, SharingKind
from kgpu.hw.port import Accelerator

XE, I915 = "gpu.intel.com/xe", "gpu.intel.com/i915"


def gpu(index: int, device: int, driver: str = "xe", vendor: str = "intel") -> Accelerator:
    return Accelerator(
        vendor=vendor, index=index, uuid=f"0000:0{index}:00.0", name="GPU", pci_device_id=device << 16, mode=driver,
        device_nodes=(f"/dev/dri/card{index}",),
    )  # fmt: skip


NODE = [gpu(0, 0xE211), gpu(1, 0xE211), gpu(2, 0x56C0, "i915")]


def settings(**about: object) -> PluginSettings:
    return resolve(PluginConfig(), overrides={}, env={key: str(value) for key, value in about.items()})


def offered(chosen: PluginSettings, gpus=NODE) -> dict[str, int]:
    return {resource.name: len(resource.devices) for resource in plan(gpus, chosen).resources}


@pytest.mark.parametrize(
    ("about", "expected"),
    [
        ({}, {XE: 2, I915: 1}),
        ({"ALLOW_IDS": "0xe211"}, {XE: 2}),
        ({"DENY_IDS": "0xe211"}, {I915: 1}),
        ({"ALLOW_IDS": "0xe211,0x56c0"}, {XE: 2, I915: 1}),
        ({"SHARED_DEV_NUM": 10}, {XE: 20, I915: 10}),
        ({"SHARED_DEV_NUM": 3, "DENY_IDS": "0x56c0"}, {XE: 6}),
        ({"ALLOW_IDS": "0x0bd5"}, {}),
    ],
)
def test_what_is_offered(about: dict[str, object], expected: dict[str, int]) -> None:
    assert offered(settings(**about)) == expected


def test_what_is_left_out_is_told_with_its_id() -> None:
    told = [advice for advice in plan(NODE, settings(DENY_IDS="0xe211")).advice if advice.reason == "LeftOutById"]
    assert [advice.subject for advice in told] == ["0000:00:00.0", "0000:01:00.0"]
    assert "0xe211" in told[0].why


def test_shares_of_other_vendors_are_not_made_and_it_is_told() -> None:
    gaudi = [gpu(0, 0x1060, "", "gaudi")]
    assert offered(settings(SHARED_DEV_NUM=4), gaudi) == {"habana.ai/gaudi": 1}
    assert "SharingImpossible" in {advice.reason for advice in plan(gaudi, settings(SHARED_DEV_NUM=4)).advice}


@pytest.mark.parametrize(
    ("about", "what"),
    [
        ({"SHARED_DEV_NUM": 0}, "no number of shares"), ({"SHARED_DEV_NUM": "ten"}, "no number of shares"),
        ({"SHARED_DEV_NUM": 101}, "no number of shares"), ({"ALLOW_IDS": "e211"}, "no PCI device id"),
        ({"DENY_IDS": "0xE211"}, "no PCI device id"), ({"ALLOW_IDS": "0xe211", "DENY_IDS": "0xe211"}, "allowed and denied"),
    ],
)  # fmt: skip
def test_what_can_not_be_meant_is_refused(about: dict[str, object], what: str) -> None:
    with pytest.raises(ConfigError, match=what):
        settings(**about)


def test_shares_are_said_once() -> None:
    with pytest.raises(ConfigError, match="sharing block"):
        resolve(PluginConfig(sharing=Sharing(kind=SharingKind.TIME_SLICING)), overrides={"shared_dev_num": 2}, env={})
