"""What is read of a Gaudi, judged: a row per fact."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kgpu.formats.names import HLML_LIBRARY
from kgpu.hw.gaudi.facts import PRODUCTS, GaudiFacts, accelerator, product
from kgpu.hw.gaudi.hlml import HlmlAnswer, values_of
from kgpu.hw.gaudi.vendor import VENDOR
from kgpu.hw.port import Problem
from kgpu.hw.vendor import GivenDevice
from tests.budget import tries

SOUND = GaudiFacts("0000:19:00.0", minor=3, values={"device": 0x1060, "status": "Operational", "serial": "AN1"})


@pytest.mark.parametrize(
    ("device", "family", "name"),
    [
        *((number, "", "Intel Gaudi") for number in (0x1000, 0x1001, 0x1010, 0x1011)),
        *((number, "", "Intel Gaudi 2") for number in (0x1020, 0x1021, 0x1030)),
        *((number, "", "Intel Gaudi 3") for number in (0x1060, 0x1061, 0x1062, 0x1063)),
        (0, "GAUDI3", "Intel Gaudi 3"), (0x1020, "GAUDI", "Intel Gaudi 2"), (0x9999, "", "Intel Gaudi"),
    ],
)  # fmt: skip
def test_products(device: int, family: str, name: str) -> None:
    assert product(device, family) == name
    assert len(PRODUCTS) == 11


@pytest.mark.parametrize(
    ("status", "problem"),
    [
        ("Operational", None), ("In reset", Problem.UNPROVEN), ("In device creation", Problem.UNPROVEN),
        ("In reset after device release", Problem.UNPROVEN), ("Needs reset", Problem.NEEDS_RESET),
        ("Malfunction", Problem.NEEDS_RESET), ("Disabled", Problem.NEEDS_RESET),
    ],
)  # fmt: skip
def test_what_the_driver_says_of_a_card(status: str, problem: Problem | None) -> None:
    gpu = accelerator(0, replace(SOUND, values={**SOUND.values, "status": status}), None)
    assert [row.problem for row in gpu.findings] == ([problem] if problem else [])
    assert gpu.usable is (problem is None)


@pytest.mark.parametrize(
    ("known", "attribute", "value"),
    [
        ({"values": {"serial": "AN1"}}, "uuid", "AN1"),
        ({"values": {"serial": "AN1"}}, "serial", "AN1"),
        ({"values": {}}, "uuid", "0000:19:00.0"),
        ({"values": {"numa_node": 1}}, "numa_node", 1),
        ({"values": {"numa_node": -1}}, "numa_node", None),
        ({"values": {"module_id": 7}}, "module_id", 7),
        ({"values": {"device": 0x1020}}, "pci_device_id", 0x10201DA3),
        ({"minor": 12, "uverbs": "uverbs3"}, "device_nodes",
         ("/dev/accel/accel12", "/dev/accel/accel_controlD12", "/dev/infiniband/uverbs3")),
        ({"minor": 12}, "device_nodes", ("/dev/accel/accel12", "/dev/accel/accel_controlD12")),
        ({}, "device_nodes", ()),
    ],
)  # fmt: skip
def test_what_a_card_is(known: dict[str, Any], attribute: str, value: Any) -> None:
    assert getattr(accelerator(0, GaudiFacts("0000:19:00.0", **known), None), attribute) == value


def test_the_library_is_where_its_package_puts_it() -> None:
    assert HLML_LIBRARY == "usr/lib/habanalabs/libhlml.so"
    assert (VENDOR.pci_id, VENDOR.resource) == ("1da3", "habana.ai/gaudi")


def test_rows_of_memory_that_wait_need_a_reset() -> None:
    gpu = accelerator(0, replace(SOUND, values={**SOUND.values, "rows_pending": 1}), None)
    assert (gpu.recovery_action, gpu.usable) == ("reset", False)


@pytest.mark.parametrize(
    ("serial", "kept"), [("AN1-b_2", True), ("", False), ("a b", False), ("a\nb", False), ("\u00e9", False)]
)
def test_a_serial_that_no_board_has_is_not_taken(serial: str, kept: bool) -> None:
    assert ("serial" in values_of(HlmlAnswer(id=1, values={"serial": serial, "power": 3}))) is kept


TWO = [
    GivenDevice(
        uuid="AN1",
        minor=3,
        module_id=5,
        device_nodes=("/dev/accel/accel3", "/dev/accel/accel_controlD3", "/dev/infiniband/uverbs3"),
    ),
    GivenDevice(uuid="AN2", minor=11, module_id=0, device_nodes=("/dev/accel/accel11", "/dev/accel/accel_controlD11")),
]


def test_what_containers_are_told() -> None:
    """The numbers of ten and more are whole: the replaced programs take the last digit."""
    assert VENDOR.environment is not None
    expected = {
        "HABANA_VISIBLE_DEVICES": "3,11", "HL_VISIBLE_DEVICES": "/dev/accel/accel3,/dev/accel/accel11",
        "HL_VISIBLE_DEVICES_UUID": "AN1,AN2", "HABANA_VISIBLE_MODULES": "5,0",
    }  # fmt: skip
    assert VENDOR.environment(TWO, whole_node=False) == expected
    expected.pop("HABANA_VISIBLE_MODULES")
    assert VENDOR.environment(TWO, whole_node=True) == expected


@tries(100)
@given(st.dictionaries(st.sampled_from(["serial", "power", "x"]), st.one_of(st.integers(-9, 9), st.text(max_size=9))))
def test_no_answer_of_a_library_is_more_than_left_out(values) -> None:
    kept = values_of(HlmlAnswer(id=1, values=values))
    assert "serial" not in kept or (isinstance(kept["serial"], str) and kept["serial"].isascii())
