"""A selector for more memory than devices have: what to ask for is what there is, on devices of every vendor."""

from __future__ import annotations

import json

import pytest

from kgpu.doctor.model import Finding
from kgpu.doctor.plan import diagnose
from kgpu.doctor.snapshot import Snapshot
from kgpu.formats import names
from tests.doctor.example import base

TAKEN = 1767268800.0  # 2026-01-01T12:00:00Z


def told(driver: str, memory: str, expression: str) -> Finding:
    cluster = json.loads(json.dumps(base("dra")).replace("gpu.nvidia.com", driver).replace("81559Mi", memory))
    claim = next(one for one in cluster if one["kind"] == "ResourceClaim")
    claim["spec"]["devices"]["requests"][0]["exactly"]["selectors"] = [{"cel": {"expression": expression}}]
    found = diagnose(Snapshot.of(cluster, taken=TAKEN), strict=True).findings
    (finding,) = [each for one in found for each in one.all() if each.id == "DRA-06"]
    return finding


@pytest.mark.parametrize(
    ("driver", "has", "asked", "most"),
    [
        (names.DRA_GPU_DRIVER, "81559Mi", "80Gi", "79Gi"),
        (names.DRA_AMD_DRIVER, "196592Mi", "380Gi", "191Gi"),
        (names.DRA_GAUDI_DRIVER, "128Gi", "192Gi", "128Gi"),
    ],
)
def test_what_to_ask_for_is_what_the_nearest_device_has(driver: str, has: str, asked: str, most: str) -> None:
    expression = f'device.capacity["{driver}"].memory.compareTo(quantity("{asked}")) >= 0'
    remedy = " ".join(told(driver, has, expression).remedy)
    assert f"(that device has {has}: ask for {most} at most)" in remedy
    assert "80 GB" not in remedy


def test_of_memory_nothing_is_said_where_nobody_asks_for_it() -> None:
    remedy = " ".join(told(names.DRA_AMD_DRIVER, "196592Mi", 'device.attributes["gpu.amd.com"].type == "cpu"').remedy)
    assert "at most" not in remedy
