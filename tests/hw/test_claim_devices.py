"""Each device that is published has a name from which its accelerator, or its part, is found again."""

from __future__ import annotations

from dataclasses import replace

import pytest

from kgpu.dra.devices import node_devices
from kgpu.dra.model import PublishRules
from kgpu.formats.names import DRA_AMD_DRIVER, DRA_GAUDI_DRIVER, DRA_GPU_DRIVER
from kgpu.hw.claim_devices import claimed_unit
from kgpu.hw.port import Inventory
from tests.dra.samples import gaudi, mi300x


@pytest.mark.parametrize("inventory", [mi300x(), mi300x(parts=2), gaudi()])
def test_what_is_published_is_found_again(inventory: Inventory) -> None:
    node = node_devices(inventory, PublishRules())
    assert node.devices
    for device in node.devices:
        assert claimed_unit(node.driver, device.name, inventory) == device.uuid


@pytest.mark.parametrize(
    ("driver", "name"),
    [
        (DRA_AMD_DRIVER, "gpu-0-500"), (DRA_AMD_DRIVER, "gpu-0"), (DRA_AMD_DRIVER, "gpu-0-128-x"),
        (DRA_AMD_DRIVER, ""), (DRA_GAUDI_DRIVER, "0000-55-00-0-0x74a1"), (DRA_GPU_DRIVER, "gpu-0-128"),
        ("gpu.example.com", "gpu-0-128"),
    ],
)  # fmt: skip
def test_anything_else_is_none_of_the_nodes(driver: str, name: str) -> None:
    inventory = mi300x()
    assert claimed_unit(driver, name, inventory) == ""
    assert claimed_unit(driver, name, replace(inventory, accelerators=())) == ""
