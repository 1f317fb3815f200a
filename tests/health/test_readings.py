"""From the reader's names and numbers to what is judged."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kgpu.formats.xid.action import Action
from kgpu.health.config import HealthConfig
from kgpu.health.model import Fault, RememberedGpu
from kgpu.health.plan import judge, on_fault, on_reading
from kgpu.health.readings import by_gpu, reading_of
from kgpu.hw import port
from kgpu.hw.fake_reader import sample_inventory
from kgpu.hw.nvidia.facts import accelerator as judge_gpu
from kgpu.hw.nvidia.facts import unreachable
from kgpu.hw.nvidia.wire import GpuReply, Pulse
from kgpu.hw.port import HardwareFinding, Problem
from tests.budget import tries

GPU = sample_inventory(1).accelerators[0]


def test_what_is_not_read_is_not_known() -> None:
    found = reading_of(GPU, {}, 5.0)
    assert (found.at, found.recovery, found.problems, found.busy) == (5.0, "none", (), None)
    assert (found.ecc_uncorrected, found.rows_failed, found.margin_c, found.fabric_state) == (None, None, None, "")


@pytest.mark.parametrize(
    ("values", "attr", "expected"),
    [
        ({"ecc_uncorrected_volatile": 3}, "ecc_uncorrected", 3),
        ({"retired_pages_sbe": 2, "retired_pages_dbe": 3}, "pages_retired", 5),
        ({"retired_pages_dbe": 3}, "pages_retired", 3),
        ({"remapped_rows_failure": 1}, "rows_failed", True),
        ({"remapped_rows_pending": 0}, "rows_pending", False),
        ({"clock_event_reasons": 0x48}, "slowdown", 0x48),
        ({"utilization_percent": 9}, "busy", False),
        ({"utilization_percent": 10}, "busy", True),
        ({"temperature_c": 80, "slowdown_temperature_c": 87}, "margin_c", 7),
        ({"temperature_margin_c": -2, "temperature_c": 80, "slowdown_temperature_c": 87}, "margin_c", -2),
        ({"memory_temperature_c": 96, "memory_max_temperature_c": 95}, "memory_margin_c", -1),
        ({"temperature_c": 80, "slowdown_temperature_c": 0}, "margin_c", None),
        ({"nvlink_active": 17}, "links_active", 17),
        ({"fabric_state": 3, "fabric_status": 0}, "fabric_state", "completed"),
        ({"fabric_state": 3, "fabric_status": 999}, "fabric_error", "NVML error 999"),
        ({"fabric_state": 3, "fabric_health_mask": 0b01_10_01}, "fabric_health", ("degraded-bandwidth", "route-unhealthy")),
        ({"fabric_state": 3, "fabric_health_mask": 0x100}, "fabric_health", ()),
        ({"fabric_state": 3, "fabric_health_mask": 0x200}, "fabric_health", ("incorrect-configuration",)),
        ({"fabric_state": 77}, "fabric_state", ""),
        ({"pcie_replays": float("nan")}, "pcie_replays", None),
        ({"pcie_replays": "many"}, "pcie_replays", None),
        ({"pcie_replays": 1e300}, "pcie_replays", None),
    ],
)  # fmt: skip
def test_readings_by_their_names(values: dict[str, object], attr: str, expected: object) -> None:
    assert getattr(reading_of(GPU, values, 1.0), attr) == expected


def test_findings_are_problems() -> None:
    finding = HardwareFinding(
        subject=GPU.uuid, problem=Problem.LOST, what="handle: lost", expected="", remedy="", gpu=0
    )
    assert reading_of(replace(GPU, findings=(finding,)), {}, 1.0).problems == (("lost", "handle: lost"),)


@pytest.mark.parametrize(
    ("recovery", "kinds"),
    [("none", ["needs-reset"]), ("unknown", ["needs-reset"]), ("drain-reset", []), ("reboot", [])],
)
def test_what_the_driver_asks_for_is_told_once(recovery: str, kinds: list[str]) -> None:
    finding = HardwareFinding(
        subject=GPU.uuid, problem=Problem.NEEDS_RESET, what="reset required", expected="", remedy="", gpu=0
    )
    found = reading_of(replace(GPU, findings=(finding,), recovery_action=recovery), {}, 1.0)
    assert (found.recovery, [kind for kind, _ in found.problems]) == (recovery, kinds)


@pytest.mark.parametrize(
    ("code", "action", "healthy"),
    [(3, Action.DRAIN, False), (4, Action.RESET_GPU, False), (2, Action.REBOOT, False), (5, Action.INSPECT, True)],
)
def test_a_drain_does_not_become_a_reset(code: int, action: Action, healthy: bool) -> None:
    pulse = Pulse(uuid=GPU.uuid, mig_capable=True, mig=False, mig_pending=False, instances=(), recovery=code)
    gpu = judge_gpu(GpuReply(
        index=0, pulse=pulse, name="X", serial="", minor=0, bus_id="", pci_device_id=0, pci_class=0, numa_node=None,
        memory_bytes=None, compute_capability=None, fabric=None, migs=(), errors=(),
    ))  # fmt: skip
    memory = on_reading(RememberedGpu(gpu=GPU.uuid), reading_of(gpu, {}, 1.0), HealthConfig())
    found = judge(memory, HealthConfig(), 1.0)[1]
    assert (found.action, found.healthy, len(found.evidence)) == (action, healthy, 1)


def test_a_gpu_that_can_not_be_read_was_not_reset() -> None:
    memory = on_fault(RememberedGpu(gpu=GPU.uuid), Fault(code=46, at=1.0), HealthConfig())
    memory = on_reading(memory, reading_of(replace(GPU, recovery_action="reset"), {}, 2.0), HealthConfig())
    finding = HardwareFinding(
        subject=GPU.uuid, problem=Problem.LOST, what="handle: lost", expected="", remedy="", gpu=0
    )
    memory = on_reading(memory, reading_of(unreachable(GPU, 0, finding), {}, 3.0), HealthConfig())
    assert [one.key for one in memory.events] == ["46"]


def test_only_readings_of_whole_gpus_count() -> None:
    rows = [
        port.Reading(uuid="a", values={"x": 1}),
        port.Reading(uuid="a", gpu_instance=2, values={"x": 2}),
        port.Reading(uuid="a", link=2, values={"x": 3}),
    ]
    assert by_gpu(rows) == {"a": {"x": 1}}


NAMES = (
    "ecc_uncorrected_volatile", "remapped_rows_failure", "clock_event_reasons", "temperature_margin_c", "fabric_state",
    "fabric_health_mask", "pcie_width", "pcie_generation", "pcie_replays", "nvlink_active", "utilization_percent",
)  # fmt: skip
VALUES = st.one_of(st.integers(), st.floats(), st.text(max_size=3), st.none(), st.booleans())


@tries(50)
@given(st.lists(st.dictionaries(st.sampled_from(NAMES), VALUES), max_size=4))
def test_no_value_of_a_driver_breaks_anything(rows: list[dict[str, object]]) -> None:
    memory = RememberedGpu(gpu=GPU.uuid)
    for at, values in enumerate(rows):
        memory = on_reading(memory, reading_of(GPU, values, 60.0 * at), HealthConfig())
    judge(memory, HealthConfig(), 1000.0)
