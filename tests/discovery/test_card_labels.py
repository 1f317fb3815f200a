"""Labels of nodes with Gaudi accelerators and Intel GPUs."""

from __future__ import annotations

from dataclasses import replace

import pytest

from kgpu.discovery.model import LabelSettings, NodeFacts
from kgpu.discovery.plan import plan
from kgpu.hw.open import open_reader
from kgpu.hw.port import Accelerator, Inventory

GPU = Accelerator(vendor="intel", index=0, uuid="a", name="x", pci_device_id=0x0BD58086, pci_class=0x038000)


async def labels_of(root) -> dict[str, str]:
    reader = open_reader(driver_root=root)
    found = plan(await reader.inventory(), LabelSettings(), NodeFacts()).labels
    await reader.close()
    return dict(found)


@pytest.mark.parametrize(
    ("profile", "product", "memory"), [("gaudi2", "Intel-Gaudi-2", "98304"), ("gaudi3", "Intel-Gaudi-3", "131072")]
)
async def test_a_gaudi_node(sim_root, profile: str, product: str, memory: str) -> None:
    labels = await labels_of(sim_root(profile))
    assert labels["habana.ai/hpu-present"] == "true"
    assert labels["intel.feature.node.kubernetes.io/gaudi"] == "true"
    assert labels["habana.ai/gaudi.count"] == "8"
    assert labels["habana.ai/gaudi.product"] == product
    assert labels["habana.ai/gaudi.memory"] == memory
    assert not [key for key in labels if key.startswith(("nvidia.com/", "amd.com/"))]


async def test_a_node_with_intel_gpus(sim_root) -> None:
    labels = await labels_of(sim_root("max1550"))
    expected = {
        "intel.feature.node.kubernetes.io/gpu": "true", "gpu.intel.com/device.count": "8",
        "gpu.intel.com/device-id.0380-0bd5.present": "true", "gpu.intel.com/device-id.0380-0bd5.count": "8",
        "gpu.intel.com/family": "Max_Series", "gpu.intel.com/product": "Max_1550",
    }  # fmt: skip
    assert {key: labels.get(key) for key in expected} == expected


@pytest.mark.parametrize(("profile", "driver", "other"), [("arc", "xe", "i915"), ("max1550", "i915", "xe")])
async def test_an_intel_gpus_resource_labels_are_those_of_its_driver(
    sim_root, profile: str, driver: str, other: str
) -> None:
    labels = await labels_of(sim_root(profile))
    assert int(labels[f"gpu.intel.com/{driver}.count"]) > 0
    assert labels[f"gpu.intel.com/{driver}.product"]
    assert not [key for key in labels if key.startswith(f"gpu.intel.com/{other}.")]


def test_gpus_of_both_drivers_have_the_labels_of_both() -> None:
    gpus = [replace(GPU, index=at, uuid=str(at), mode=mode) for at, mode in enumerate(("i915", "xe", "xe"))]
    made = plan(Inventory(vendor="intel", driver_version="6.8", accelerators=gpus), LabelSettings(), NodeFacts())
    counts = {key: value for key, value in made.labels.items() if key.endswith((".count", ".product"))}
    assert (counts["gpu.intel.com/i915.count"], counts["gpu.intel.com/xe.count"]) == ("1", "2")
    assert not [one for one in made.advice if one.reason == "SeveralModels"]


def test_models_that_differ_have_no_product_and_families_that_differ_no_family() -> None:
    flex = replace(GPU, index=1, uuid="b", pci_device_id=0x56C08086)
    flex140 = replace(flex, index=2, uuid="c", pci_device_id=0x56C18086)

    def labels(*gpus: Accelerator) -> set[str]:
        made = plan(Inventory(vendor="intel", driver_version="6.8", accelerators=gpus), LabelSettings(), NodeFacts())
        return {key for key in made.labels if key in ("gpu.intel.com/family", "gpu.intel.com/product")}

    assert labels(GPU) == {"gpu.intel.com/family", "gpu.intel.com/product"}
    assert labels(flex, flex140) == {"gpu.intel.com/family"}
    assert labels(GPU, flex) == set()
