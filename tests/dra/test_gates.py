"""Feature gates: defaults, what is refused and what is told; and that nothing is taken without a word."""

from __future__ import annotations

import pytest

from kgpu.base.errors import ConfigError
from kgpu.dra.drivers import DRIVERS, unused_gates
from kgpu.dra.gates import GATES, read_gates
from kgpu.formats.names import AMD, GAUDI, NVIDIA

DEFAULTS = {
    "DynamicMIG": False, "NVMLDeviceHealthCheck": False, "TimeSlicingSettings": False, "MPSSupport": False,
    "PassthroughSupport": False, "DeviceMetadata": False, "IMEXDaemonsWithDNSNames": True,
    "ComputeDomainCliques": True, "CrashOnNVLinkFabricErrors": True,
}  # fmt: skip


def test_defaults_are_those_of_nvidias_driver() -> None:
    gates = read_gates("")
    assert gates.enabled == DEFAULTS
    assert gates.notes == ()


def test_gates_of_another_vendor_are_told() -> None:
    gates = read_gates("DynamicMIG=true,TimeSlicingSettings=true,MPSSupport=false")
    assert unused_gates(DRIVERS[NVIDIA], gates) == ()
    for vendor in (AMD, GAUDI):
        assert unused_gates(DRIVERS[vendor], gates) == ("DynamicMIG", "TimeSlicingSettings")
        assert unused_gates(DRIVERS[vendor], read_gates("NVMLDeviceHealthCheck=true")) == ()
        assert unused_gates(DRIVERS[vendor], read_gates("")) == ()


def test_gates_that_are_built() -> None:
    assert read_gates("DynamicMIG=true").dynamic_mig
    assert read_gates(" NVMLDeviceHealthCheck=True , MPSSupport=false,").health_check
    assert not read_gates("DynamicMIG=0").dynamic_mig
    sharing = {"TimeSlicingSettings", "MPSSupport"}
    assert read_gates("TimeSlicingSettings=true,MPSSupport=true").on & sharing == sharing
    assert not read_gates("").on & sharing


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("DynamicMig=true", 'did you mean "DynamicMIG"?'),
        ("Nonsense=true", 'there is no gate "Nonsense"'),
        ("DynamicMIG", "has no value"),
        ("DynamicMIG=", "has no value"),
        ("DynamicMIG=perhaps", "is not a boolean"),
        ("DynamicMIG=true,DynamicMIG=false", "as true and as false"),
        ("DynamicMIG=true,PassthroughSupport=true", "exclude each other"),
        ("DynamicMIG=true,NVMLDeviceHealthCheck=true", "exclude each other"),
        ("MPSSupport=true,DynamicMIG=true", "exclude each other"),
        ("PassthroughSupport=true,NVMLDeviceHealthCheck=true", "exclude each other"),
        ("DeviceMetadata=true", "needs PassthroughSupport"),
        ("IMEXDaemonsWithDNSNames=false", "ComputeDomainCliques needs"),
        ("PassthroughSupport=true", "can't be turned on"),
    ],
)
def test_what_is_refused(text: str, says: str) -> None:
    with pytest.raises(ConfigError) as caught:
        read_gates(text)
    assert says in caught.value.what
    assert caught.value.expected
    assert caught.value.remedy


def test_a_gate_that_changes_nothing_is_told_in_either_sense() -> None:
    for value in ("true", "false"):
        (note,) = read_gates(f"CrashOnNVLinkFabricErrors={value}").notes
        assert "CrashOnNVLinkFabricErrors changes nothing here" in note


def test_no_gate_is_taken_without_a_word() -> None:
    for gate in GATES:
        assert gate.about or gate.unbuilt or gate.idle, gate.name
