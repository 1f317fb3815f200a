"""The labels of AMD's node labeller, by the rules of the replaced program."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from kgpu.discovery.amd_labels import amd_labels
from kgpu.discovery.model import LabelSettings, NodeFacts
from kgpu.discovery.plan import plan
from kgpu.discovery.tables import LabelledNode
from kgpu.hw.amd.client import AmdReader
from kgpu.hw.port import Accelerator, Inventory, Partition
from kgpu.hw.simulator.amd import operate

VEGA = Accelerator(
    vendor="amd", index=0, uuid="0000:19:00.0", name="Vega 10 [Radeon (TM) Instinct MI25]", pci_device_id=0x68601002,
    memory_mib=17163091968 >> 20, compute_units=64, simds=256, family="AI",
)  # fmt: skip


def labels(*gpus: Accelerator, **about: str) -> dict[str, str]:
    inventory = Inventory(vendor="amd", accelerators=gpus, **{"driver_version": "6.10.5", **about})
    view = LabelledNode(inventory=inventory, gpus=gpus, settings=LabelSettings(), facts=NodeFacts(), timestamp=None)
    return dict(amd_labels(view))


def test_equal_gpus_have_plain_keys_and_beta_counts() -> None:
    got = labels(VEGA, replace(VEGA, index=1, uuid="0000:1a:00.0"), library_version="0C1A")
    expected = {"family": "AI", "device-id": "6860", "vram": "16G", "simd-count": "256", "cu-count": "64"}
    for key, value in expected.items():
        assert got[f"amd.com/gpu.{key}"] == got[f"beta.amd.com/gpu.{key}"] == value
        assert got[f"beta.amd.com/gpu.{key}.{value}"] == "2"
        assert f"amd.com/gpu.{key}.{value}" not in got
    assert got["amd.com/gpu.driver-version"] == "6.10.5"
    assert got["amd.com/gpu.driver-src-version"] == "0C1A"
    assert "beta.amd.com/gpu.driver-version" not in got
    assert got["amd.com/gpu.compute-partitioning-supported"] == "false"
    assert "amd.com/gpu.compute-memory-partition" not in got


def test_different_gpus_have_counts_under_both_prefixes_and_no_plain_key() -> None:
    got = labels(VEGA, VEGA, replace(VEGA, memory_mib=32752))
    for prefix in ("amd.com", "beta.amd.com"):
        assert got[f"{prefix}/gpu.vram.16G"] == "2"
        assert got[f"{prefix}/gpu.vram.32G"] == "1"
        assert f"{prefix}/gpu.vram" not in got


@pytest.mark.parametrize(
    ("change", "key", "value"),
    [
        ({"family": "GC_11_0_0"}, "family", "GC_11_0_0"),
        ({"pci_device_id": 0x0BD51002}, "device-id", "0bd5"),
        ({"name": "AMD Radeon (TM) Pro W7900"}, "product-name", "AMD_Radeon_TM_Pro_W7900"),
        ({"memory_mib": 15 * 1024 + 511}, "vram", "15G"),
        ({"memory_mib": 15 * 1024 + 513}, "vram", "16G"),
        ({"simds": 416}, "simd-count", "416"),
        ({"compute_units": 104}, "cu-count", "104"),
    ],
)
def test_what_is_counted_has_the_peers_form(change: dict[str, Any], key: str, value: str) -> None:
    got = labels(replace(VEGA, **change))
    assert got[f"amd.com/gpu.{key}"] == got[f"beta.amd.com/gpu.{key}"] == value
    assert got[f"beta.amd.com/gpu.{key}.{value}"] == "1"


def test_the_kernels_own_driver_has_labels_without_a_version() -> None:
    got = labels(VEGA, driver_version="")
    assert (got["amd.com/gpu.driver-version"], got["amd.com/gpu.driver-src-version"]) == ("", "")


@pytest.mark.parametrize(
    ("modes", "both", "compute", "memory"),
    [
        (("spx_nps1", "spx_nps1"), "spx_nps1", "true", "true"),
        (("spx_nps1", "cpx_nps4"), None, "true", "true"),
        (("spx", "spx"), "spx", "true", "false"),
        (("", ""), None, "false", "false"),
    ],
)
def test_partitioning_is_told_where_gpus_agree(
    modes: tuple[str, ...], both: str | None, compute: str, memory: str
) -> None:
    got = labels(*(replace(VEGA, index=at, uuid=str(at), mode=mode) for at, mode in enumerate(modes)))
    assert got.get("amd.com/gpu.compute-memory-partition") == both
    assert got["amd.com/gpu.compute-partitioning-supported"] == compute
    assert got["amd.com/gpu.memory-partitioning-supported"] == memory
    assert not [key for key in got if key.startswith("beta.") and "partition" in key]


def test_parts_are_counted_by_what_a_pod_gets() -> None:
    part = Partition(
        uuid="p", index="0:0", parent_uuid=VEGA.uuid, profile="cpx_nps4", gpu_instance=0, compute_instance=0,
        memory_mib=24574, multiprocessors=38,
    )  # fmt: skip
    got = labels(replace(VEGA, mode="cpx_nps4", partitions=(part,) * 8, simds=1216, compute_units=304))
    assert got["amd.com/gpu.vram"] == "24G"
    assert got["amd.com/gpu.cu-count"] == "38"
    assert got["amd.com/gpu.simd-count"] == "152"
    assert got["beta.amd.com/gpu.cu-count.38"] == "8"
    assert got["amd.com/gpu.compute-memory-partition"] == "cpx_nps4"
    assert got["amd.com/gpu.memory-partitioning-supported"] == "true"


async def test_a_simulated_node_is_labelled_and_a_new_mode_takes_old_labels_away(sim_root) -> None:
    root = sim_root("mi300x")
    reader = AmdReader(driver_root=root, deadline=60.0)
    before = plan(await reader.inventory(), LabelSettings(), NodeFacts()).labels
    assert before["amd.com/gpu.product-name"] == "AMD_Instinct_MI300X_OAM"
    assert before["amd.com/gpu.vram"] == "192G"
    assert before["amd.com/gpu.cu-count"] == "304"
    assert before["beta.amd.com/gpu.device-id.74a1"] == "8"
    assert before["amd.com/gpu.count"] == "8"
    assert not [key for key in before if key.startswith("nvidia.com/")]
    operate.set_partition(root, range(8), "cpx")
    after = plan(await reader.inventory(), LabelSettings(), NodeFacts(), previous=before).labels
    assert after["amd.com/gpu.cu-count"] == "38"
    assert "beta.amd.com/gpu.cu-count.304" not in after
    await reader.close()
