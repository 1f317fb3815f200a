"""Opaque parameters of claims: what NVIDIA's webhook takes and refuses, and what it should have refused in words."""

from __future__ import annotations

import contextlib
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kgpu.base.errors import ConfigError
from kgpu.base.quantity import Quantity
from kgpu.formats.dra_config import (
    ClaimDeviceConfig,
    ClaimMps,
    ClaimTimeSlicing,
    parse_parameters,
)
from kgpu.formats.dra_parameters import MPS_GATE, TIME_SLICING_GATE
from kgpu.formats.names import DRA_PARAMETERS

BOTH = (TIME_SLICING_GATE, MPS_GATE)
SLICED: dict[str, Any] = {"strategy": "TimeSlicing"}
SHARED: dict[str, Any] = {"strategy": "MPS"}


def of(kind: str = "GpuConfig", **fields: Any) -> dict[str, Any]:
    return {"apiVersion": DRA_PARAMETERS, "kind": kind, **fields}


@pytest.mark.parametrize(
    ("parameters", "type_", "sharing"),
    [
        (of(), "gpu", None),
        (of(sharing=None), "gpu", None),
        (of("MigDeviceConfig"), "mig", None),
        (of(sharing=SLICED), "gpu", ClaimTimeSlicing(0)),
        (of(sharing=SLICED | {"timeSlicingConfig": {}}), "gpu", ClaimTimeSlicing(0)),
        (of(sharing=SLICED | {"timeSlicingConfig": {"interval": "Default"}}), "gpu", ClaimTimeSlicing(0)),
        (of(sharing=SLICED | {"timeSlicingConfig": {"interval": "Long"}}), "gpu", ClaimTimeSlicing(3)),
        (of("MigDeviceConfig", sharing=SLICED), "mig", ClaimTimeSlicing(None)),
        (of(sharing=SHARED), "gpu", ClaimMps()),
        (of(sharing=SHARED | {"mpsConfig": {}}), "gpu", ClaimMps()),
        (
            of("MigDeviceConfig", sharing=SHARED | {"mpsConfig": {"defaultActiveThreadPercentage": 50}}),
            "mig", ClaimMps(threads=50),
        ),
        (
            of(sharing=SHARED | {"mpsConfig": {
                "defaultPinnedDeviceMemoryLimit": "10Gi", "defaultPerDevicePinnedMemoryLimit": {"0": "2Gi"},
            }}),
            "gpu", ClaimMps(memory=Quantity.parse("10Gi"), by_device={"0": Quantity.parse("2Gi")}),
        ),
    ],
)  # fmt: skip
def test_what_is_taken(parameters: Any, type_: str, sharing: Any) -> None:
    assert parse_parameters(parameters, BOTH) == ClaimDeviceConfig(type_, sharing)


@pytest.mark.parametrize(
    ("parameters", "what"),
    [
        ("no object", "no object is not an object"),
        (None, "nothing is not an object"),
        ({}, "apiVersion: unknown version nothing"),
        ({"apiVersion": "gpu.nvidia.com/v1alpha1", "kind": "GpuConfig"}, "unknown version gpu.nvidia.com/v1alpha1"),
        (of("GpuConfg"), "kind: unknown kind GpuConfg"),
        (of("VfioDeviceConfig"), "kind: unknown kind VfioDeviceConfig"),
        (of("ComputeDomainChannelConfig"), "kind: unknown kind ComputeDomainChannelConfig"),
        (of(kind=["GpuConfig"]), "kind: unknown kind"),
        (of(shraing={}), 'unknown field "shraing"'),
        (of(sharing=[]), "sharing: [] is not an object"),
        (of(sharing={}), "sharing.strategy: unknown strategy nothing"),
        (of(sharing={"strategy": "Fabric"}), "sharing.strategy: unknown strategy Fabric"),
        (of(sharing=SLICED | {"timeSlicingConfig": {"interval": "Invalid Interval"}}), "interval: Invalid Interval"),
        (of(sharing=SLICED | {"timeSlicingConfig": {"interval": 3}}), "unknown time-slice interval: 3"),
        (of(sharing=SLICED | {"timeSlicingConfig": {"interwal": "Short"}}), 'unknown field "interwal"'),
        (of(sharing=SLICED | {"mpsConfig": {}}), "sharing.mpsConfig: it has no effect with the strategy TimeSlicing"),
        (of(sharing=SHARED | {"timeSlicingConfig": {}}), "it has no effect with the strategy MPS"),
        (of("MigDeviceConfig", sharing=SLICED | {"timeSlicingConfig": {}}), 'unknown field "timeSlicingConfig"'),
        (of(sharing=SHARED | {"mpsConfig": {"defaultActiveThreadPercentage": -1}}), "-1 is no percentage"),
        (of(sharing=SHARED | {"mpsConfig": {"defaultActiveThreadPercentage": 101}}), "101 is no percentage"),
        (of(sharing=SHARED | {"mpsConfig": {"defaultActiveThreadPercentage": True}}), "True is no percentage"),
        (of(sharing=SHARED | {"mpsConfig": {"defaultPinnedDeviceMemoryLimit": "1023Ki"}}), "1023Ki is no limit"),
        (of(sharing=SHARED | {"mpsConfig": {"defaultPinnedDeviceMemoryLimit": "lots"}}), "'lots' is not a quantity"),
        (of(sharing=SHARED | {"mpsConfig": {"defaultPerDevicePinnedMemoryLimit": {"0": "-1Gi"}}}), "-1Gi is no limit"),
        (of(sharing=SHARED | {"mpsConfig": {"defaultPerDevicePinnedMemoryLimit": ["1Gi"]}}), "is not an object"),
    ],
)
def test_what_is_refused(parameters: Any, what: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_parameters(parameters, BOTH)
    assert what in caught.value.what
    assert caught.value.expected
    assert caught.value.remedy


@pytest.mark.parametrize(("sharing", "gate"), [(SLICED, TIME_SLICING_GATE), (SHARED, MPS_GATE)])
def test_a_strategy_needs_its_feature_gate(sharing: dict[str, Any], gate: str) -> None:
    with pytest.raises(ConfigError, match="is not enabled") as caught:
        parse_parameters(of(sharing=sharing), set(BOTH) - {gate})
    assert gate in caught.value.expected
    assert parse_parameters(of(sharing=sharing), (), stored=True).sharing is not None


def test_what_is_stored_may_have_fields_of_another_version() -> None:
    parameters = of(later=1, sharing=SLICED | {"much": "later", "timeSlicingConfig": {"interval": "Short", "x": 1}})
    assert parse_parameters(parameters, (), stored=True) == ClaimDeviceConfig("gpu", ClaimTimeSlicing(1))


ONE, TWO = "GPU-1", "GPU-2"


@pytest.mark.parametrize(
    ("memory", "by_device", "limits"),
    [
        (None, {}, {}),
        ("2Gi", {}, {ONE: 2048, TWO: 2048}),
        ("2Gi", {"0": "1Gi"}, {ONE: 1024, TWO: 2048}),
        ("2Gi", {ONE: "1Gi", TWO: "1G"}, {ONE: 1024, TWO: 953}),
        (None, {"1": "1Mi"}, {TWO: 1}),
    ],
)
def test_limits_of_memory_by_device(memory: str | None, by_device: dict[str, str], limits: dict[str, int]) -> None:
    mps = ClaimMps(
        memory=Quantity.parse(memory) if memory else None,
        by_device={device: Quantity.parse(limit) for device, limit in by_device.items()},
    )
    assert mps.limits([ONE, TWO]) == limits


@pytest.mark.parametrize("device", ["2", "-1", "GPU-3", "", "1" * 5000, "\u0661"])
def test_a_limit_of_a_device_that_the_claim_does_not_have_is_refused(device: str) -> None:
    with pytest.raises(ConfigError, match="which the claim does not have"):
        ClaimMps(by_device={device: Quantity.parse("1Gi")}).limits([ONE, TWO])


ANY = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from([
        "apiVersion", "kind", "sharing", "strategy", "timeSlicingConfig", "interval", "mpsConfig",
        "defaultActiveThreadPercentage", "defaultPinnedDeviceMemoryLimit", "defaultPerDevicePinnedMemoryLimit", "x",
    ]), inner, max_size=4),
)  # fmt: skip


@given(ANY, st.sampled_from(["GpuConfig", "MigDeviceConfig"]), st.booleans())
def test_whatever_comes_is_read_or_refused_in_words(value: Any, kind: str, stored: bool) -> None:
    parameters = value | of(kind) if isinstance(value, dict) else of(kind, sharing=value)
    with contextlib.suppress(ConfigError):
        assert parse_parameters(parameters, BOTH, stored=stored).type in ("gpu", "mig")
