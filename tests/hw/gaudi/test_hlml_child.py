"""What is called of ``libhlml``, and what becomes of each of its return codes."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from kgpu.hw.gaudi.hlml_child import MORE, ROWS, HlmlLibrary

ROOT = Path(__file__).parent.parent.parent.parent
# by what is asked, the calls of the published library that are made, and those that nothing here needs
CALLS = {
    "life": (("hlml_init",), ("hlml_init_with_flags", "hlml_shutdown")),
    "handles": (
        ("hlml_device_get_handle_by_pci_bus_id",),
        ("hlml_device_get_count", "hlml_device_get_handle_by_index", "hlml_device_get_handle_by_UUID"),
    ),
    "identity": (
        ("hlml_device_get_serial", "hlml_device_get_uuid", "hlml_device_get_name", "hlml_get_mac_addr_info"),
        ("hlml_device_get_pci_info", "hlml_device_get_minor_number", "hlml_device_get_module_id"),
    ),
    "telemetry": (
        (
            "hlml_device_get_clock_info", "hlml_device_get_max_clock_info", "hlml_device_get_utilization_rates",
            "hlml_device_get_memory_info", "hlml_device_get_temperature", "hlml_device_get_temperature_threshold",
            "hlml_device_get_power_usage", "hlml_device_get_power_management_default_limit",
            "hlml_device_get_total_energy_consumption", "hlml_device_get_pcie_throughput",
            "hlml_device_get_pcie_replay_counter", "hlml_device_get_curr_pcie_link_generation",
            "hlml_device_get_curr_pcie_link_width",
        ),
        ("hlml_device_get_clocks_throttle_reasons", "hlml_device_get_violation_status"),
    ),
    "reliability": (
        (
            "hlml_device_get_ecc_mode", "hlml_device_get_total_ecc_errors", "hlml_device_get_replaced_rows",
            "hlml_device_get_replaced_rows_pending_status",
        ),
        ("hlml_device_get_memory_error_counter", "hlml_device_err_inject"),
    ),
    "network": (("hlml_nic_get_link",), ("hlml_nic_get_statistics",)),
    "affinity": ((), ("hlml_device_get_cpu_affinity",)),
    "events": ((), ("hlml_device_register_events", "hlml_event_set_create", "hlml_event_set_wait")),
}  # fmt: skip
CARD = b"0000:19:00.0"


class RecordedLibrary:
    """Answers each call with a code, 0 where none is set, and keeps what was called."""

    def __init__(self, codes: dict[str, int] | None = None, *, absent: frozenset[str] = frozenset()) -> None:
        self.codes, self.absent, self.called = codes or {}, absent, ["hlml_init"]

    def __getattr__(self, name: str) -> Callable[..., int]:
        if name in self.absent:
            raise AttributeError(name)
        self.called.append(name)
        return lambda *_arguments: self.codes.get(name, 0)


def read(library: Any, *, more: bool = True) -> dict[str, Any]:
    made = HlmlLibrary.__new__(HlmlLibrary)
    made._library = library
    return made.read(CARD.decode(), more)


def test_every_call_is_one_of_the_librarys_and_no_other_is_made() -> None:
    library = RecordedLibrary()
    read(library)
    # A card without ports is asked for none of them.
    assert {*library.called, "hlml_nic_get_link"} == {name for made, _ in CALLS.values() for name in made}


@pytest.mark.parametrize("group", CALLS)
def test_the_stand_in_has_what_is_called(group: str) -> None:
    exported = set(re.findall(r"\b(hlml_\w+)", (ROOT / "native/hlml/hlml.c").read_text()))
    assert set(CALLS[group][0]) <= exported


def test_what_only_those_who_measure_ask_for_is_asked_of_them_alone() -> None:
    library = RecordedLibrary()
    read(library, more=False)
    only_measured = {name for _, name, *_ in MORE} - {name for _, name, *_ in ROWS}
    assert only_measured
    assert only_measured.isdisjoint(library.called)
    assert "hlml_get_mac_addr_info" not in library.called


# the library's code for one figure -> what becomes of it: not there, named as failed, or the card is lost
CODES = [
    *((code, "failed") for code in (1, 2, 5, 6, 7, 9, 10, 20, 49)),
    *((code, "absent") for code in (3, 21)),
    (15, "lost"),
    (0, "value"),
]


@pytest.mark.parametrize(("code", "becomes"), CODES)
@pytest.mark.parametrize(("key", "call"), [("power", "hlml_device_get_power_usage"), ("memory_total", "hlml_device_get_memory_info")])  # fmt: skip
def test_what_becomes_of_a_code(code: int, becomes: str, key: str, call: str) -> None:
    answer = read(RecordedLibrary({call: code}))
    assert (key in answer["values"]) is (becomes == "value")
    assert (key in answer["failed"]) is (becomes == "failed")
    assert answer["code"] == (15 if becomes == "lost" else 0)


@pytest.mark.parametrize("code", [1, 2, 6, 9, 15])
def test_a_card_that_the_library_does_not_know_is_the_librarys_answer(code: int) -> None:
    answer = read(RecordedLibrary({"hlml_device_get_handle_by_pci_bus_id": code}))
    assert answer == {"code": code, "values": {}, "failed": []}


def test_a_call_that_an_older_library_has_not_is_a_figure_less() -> None:
    answer = read(RecordedLibrary(absent=frozenset({"hlml_device_get_ecc_mode"})))
    assert "ecc_mode" not in answer["values"]
    assert answer["failed"] == []
