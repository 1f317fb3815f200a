"""Families under the names of AMD's exporter: units, labels, partitions, pods, percentages."""

from __future__ import annotations

import pytest

from kgpu.exporter.model import PodFacts
from kgpu.exporter.vendors.amd.page import RocmFamilies
from kgpu.exporter.vendors.amd.rows import MADE, ROWS, UNMEASURED, Of
from kgpu.exporter.vendors.amd.settings import RocmConfig
from tests.exporter.made import holding
from tests.exporter.vendors.amd.made import BUS, SETTINGS, gpu, look, page, series

ORDER = [
    "serial_number",
    "gpu_id",
    "pod",
    "namespace",
    "container",
    "job_id",
    "job_user",
    "job_partition",
    "card_model",
    "hostname",
    "gpu_partition_id",
    "gpu_compute_partition_type",
    "gpu_memory_partition_type",
    "deployment_mode",
]


@pytest.mark.parametrize(
    ("key", "value", "name", "expected"),
    [
        ("energy_mj", 2.5, "gpu_energy_consumed", 2500),
        ("power_w", 132.5, "gpu_power_usage", 132.5),
        ("socket_power_w", 90.0, "gpu_package_power", 90),
        ("average_socket_power_w", 91.0, "gpu_average_package_power", 91),
        ("temperature_c", 40.0, "gpu_junction_temperature", 40),
        ("edge_temperature_c", 37.0, "gpu_edge_temperature", 37),
        ("memory_temperature_c", 33.0, "gpu_memory_temperature", 33),
        ("utilization_percent", 7.0, "gpu_gfx_activity", 7),
        ("memory_utilization_percent", 8.0, "gpu_umc_activity", 8),
        ("soc_voltage_mv", 800.0, "gpu_voltage", 800),
        ("pcie_speed_gts", 32.0, "pcie_speed", 32),
        ("pcie_max_speed_gts", 64.0, "pcie_max_speed", 64),
        ("pcie_replays", 3.0, "pcie_replay_count", 3),
        ("pcie_recoveries", 4.0, "pcie_recovery_count", 4),
        ("pcie_naks_sent", 5.0, "pcie_nack_sent_count", 5),
        ("pcie_naks_received", 6.0, "pcie_nack_received_count", 6),
        ("pcie_traffic", 11.0, "pcie_bandwidth", 11),
        ("memory_max_gb_per_s", 5300.0, "gpu_vram_max_bandwidth", 5300),
        ("gtt_total_mib", 1000.0, "gpu_total_gtt", 1000),
        ("ecc_uncorrected_umc", 2.0, "gpu_ecc_uncorrect_umc", 2),
        ("ecc_corrected_pcie_bif", 1.0, "gpu_ecc_correct_bif", 1),
        ("ecc_deferred_volatile", 9.0, "gpu_ecc_deferred_total", 9),
        ("residency_steps", 100.0, "gpu_violation_current_accumulated_counter", 100),
        ("power_residency", 12.0, "gpu_violation_ppt_residency_accumulated", 12),
    ],
)
def test_a_reading_has_the_peers_name_and_unit(key: str, value: float, name: str, expected: float) -> None:
    assert series(page(look(gpu(), **{key: value})), name, "gpu_id") == {("0",): expected}


def test_free_memory_is_what_is_not_used() -> None:
    text = page(look(gpu(), memory_total_mib=196592.0, memory_used_mib=283.0))
    found = [series(text, f"gpu_{which}_vram", "gpu_id")["0",] for which in ("total", "used", "free")]
    assert found == [196592, 283, 196309]


def test_the_labels_of_every_series_are_the_peers_in_its_order() -> None:
    line = next(row for row in page(look(gpu(), power_w=1.0)).splitlines() if row.startswith("gpu_power_usage{"))
    assert [pair.partition("=")[0] for pair in line[line.index("{") + 1 : line.index("}")].split(",")] == ORDER
    wanted = {"serial_number": "S0", "pod": "", "card_model": "AMD Instinct MI300X", "hostname": "n",
              "gpu_compute_partition_type": "spx", "gpu_memory_partition_type": "nps1"}  # fmt: skip
    assert series(page(look(gpu(), power_w=1.0)), "gpu_power_usage", *wanted) == {tuple(wanted.values()): 1}


def test_optional_labels_come_when_they_are_asked_for() -> None:
    config = RocmConfig(
        labels=frozenset({"gpu_uuid", "pod_uuid", "driver_version"}), custom=(("cluster_name", "c"),),
        pod_labels=(("team", "acme/team"),),
    )  # fmt: skip
    facts = {
        "holdings": (holding("p", BUS, resource="amd.com/gpu"),),
        "pods": {("team", "p"): PodFacts(uid="u", labels={"acme/team": "red"})},
    }
    text = page(look(gpu(), power_w=1.0, more=facts), config)
    names = ("gpu_uuid", "pod_uuid", "driver_version", "cluster_name", "team")
    assert series(text, "gpu_power_usage", *names) == {(BUS, "u", "6.14", "c", "red"): 1}


def test_clocks_and_links_are_numbered() -> None:
    values = {"clock_system_0_mhz": 2100.0, "clock_system_7_mhz": 2000.0, "clock_memory_8_mhz": 1300.0}
    text = page(look(gpu(), **values, xgmi_6_rx_kib=5.0))
    assert series(text, "gpu_clock", "clock_type", "clock_index") == {
        ("system", "0"): 2100, ("system", "7"): 2000, ("memory", "8"): 1300,
    }  # fmt: skip
    assert series(text, "gpu_xgmi_link_rx", "link_index") == {("6",): 5}


def test_sensors_are_the_first_partitions_and_partitions_count_as_gpus() -> None:
    busy = {"part_0_xcc_0_busy_percent": 10.0, "part_1_xcc_0_busy_percent": 20.0, "utilization_percent": 50.0}
    text = page(look(gpu(0, 2, "dpx_nps1"), gpu(1), power_w=9.0, **busy), healthy={BUS: False})
    assert series(text, "gpu_power_usage", "gpu_id", "gpu_partition_id") == {("0", "0"): 9, ("2", "0"): 9}
    assert series(text, "gpu_gfx_busy_instantaneous", "gpu_id", "xcc_index")["1", "0"] == 20
    assert series(text, "gpu_gfx_activity", "gpu_id") == {("2",): 50}
    assert series(text, "gpu_nodes_total", "hostname") == {("n",): 3}
    assert series(text, "gpu_health", "gpu_id") == {("0",): 0, ("1",): 0}


def test_each_partition_has_its_pod() -> None:
    held = (
        holding("a", BUS, resource="amd.com/gpu"), holding("b", "amdgpu_xcp_1", resource="amd.com/gpu"),
    )  # fmt: skip
    busy = {"part_0_xcc_0_busy_percent": 1.0, "part_1_xcc_0_busy_percent": 2.0}
    text = page(look(gpu(0, 2, "dpx_nps1"), more={"holdings": held}, **busy))
    assert series(text, "gpu_gfx_busy_instantaneous", "gpu_id", "pod", "namespace", "container") == {
        ("0", "a", "team", "main"): 1, ("1", "b", "team", "main"): 2,
    }  # fmt: skip


def test_health_is_told_only_where_somebody_judges() -> None:
    assert series(page(look(gpu())), "gpu_health", "gpu_id") == {}
    assert series(page(look(gpu()), healthy={BUS: True}), "gpu_health", "gpu_id") == {("0",): 1}


@pytest.mark.parametrize(
    ("before", "expected"),
    [
        ({"power_residency": 10.0, "residency_steps": 100.0}, {("0",): 25}),
        ({"power_residency": 10.0, "residency_steps": 200.0}, {}),  # no step since
        ({"power_residency": 90.0, "residency_steps": 100.0}, {}),  # a reset between
        (None, {}),
    ],
)
def test_a_percentage_is_of_the_steps_since_the_reading_before(before, expected) -> None:
    text = page(look(gpu(), before=before, power_residency=35.0, residency_steps=200.0))
    assert series(text, "gpu_violation_ppt_residency_percentage", "gpu_id") == expected


def test_a_reading_that_failed_is_counted_and_costs_its_series_alone() -> None:
    seen = look(gpu(), failures={"power_w": "timeout"}, temperature_c=40.0)
    found = RocmFamilies().plan(seen, SETTINGS, RocmConfig(), {})
    assert dict(found.errors) == {("gpu_power_usage", "timeout"): 1}
    assert "gpu_junction_temperature" in {family.name for family in found.families}


def test_fields_and_prefix_are_in_effect() -> None:
    config = RocmConfig(prefix="amd_", fields=frozenset({"GPU_POWER_USAGE"}))
    found = RocmFamilies().plan(look(gpu(), power_w=1.0, temperature_c=2.0), SETTINGS, config, {})
    assert [family.name for family in found.families] == ["amd_gpu_power_usage"]


def test_no_two_rows_make_the_same_series() -> None:
    keys = [(row.name, row.labels) for row in ROWS]
    assert len(set(keys)) == len(keys)
    assert not set(MADE) & {row.name for row in ROWS}
    assert all(("{}" in row.key) == bool(row.index) for row in ROWS)
    assert all(row.key.startswith("part_{}_") == (row.of is Of.PART) for row in ROWS)


BLOCKS = [
    "total",
    "sdma",
    "gfx",
    "mmhub",
    "athub",
    "bif",
    "hdp",
    "xgmi_wafl",
    "df",
    "smn",
    "sem",
    "mp0",
    "mp1",
    "fuse",
    "umc",
    "mca",
    "vcn",
    "jpeg",
    "ih",
    "mpio",
]
HELD_BACK = [
    "processor_hot_residency",
    "ppt_residency",
    "socket_thermal_residency",
    "vr_thermal_residency",
    "hbm_thermal_residency",
]
SLOWED = ["low_utilization"] + [f"gfx_clock_below_host_limit_{why}" for why in ("power", "thermal", "total")]
# Every name of a GPU's metrics that AMD's exporter documents, by family.
NAMES = [
    *[
        "gpu_nodes_total",
        "gpu_voltage",
        "gpu_gfx_voltage",
        "gpu_memory_voltage",
        "gpu_package_power",
        "gpu_average_package_power",
    ],
    *[
        "gpu_power_usage",
        "gpu_energy_consumed",
        "gpu_edge_temperature",
        "gpu_junction_temperature",
        "gpu_memory_temperature",
    ],
    *[
        "gpu_hbm_temperature",
        "gpu_gfx_activity",
        "gpu_umc_activity",
        "gpu_mma_activity",
        "gpu_vcn_activity",
        "gpu_jpeg_activity",
    ],
    *["gpu_gfx_busy_instantaneous", "gpu_vcn_busy_instantaneous", "gpu_jpeg_busy_instantaneous", "gpu_clock"],
    *[
        "gpu_min_clock",
        "gpu_max_clock",
        "pcie_speed",
        "pcie_max_speed",
        "pcie_bandwidth",
        "pcie_replay_count",
        "pcie_recovery_count",
    ],
    *["pcie_replay_rollover_count", "pcie_nack_sent_count", "pcie_nack_received_count", "pcie_bidirectional_bandwidth"],
    *["pcie_rx", "pcie_tx", "gpu_vram_max_bandwidth", "gpu_health", "gpu_afid_errors", "gpu_process_cu_occupancy"],
    *["gpu_violation_current_accumulated_counter", "gpu_xgmi_link_rx", "gpu_xgmi_link_tx", "gpu_prof_sm_active"],
    *(f"gpu_{which}_{memory}" for which in ("total", "used", "free") for memory in ("vram", "visible_vram", "gtt")),
    *(f"gpu_ecc_{kind}_{block}" for kind in ("correct", "uncorrect", "deferred") for block in BLOCKS),
    *(f"gpu_xgmi_nbr_{n}_{what}_tx" for n in (0, 1) for what in ("nop", "req", "resp", "beats")),
    *(f"gpu_xgmi_nbr_{n}_tx_thrput" for n in range(6)),
    *(f"gpu_violation_{why}_{form}" for why in (*HELD_BACK, *SLOWED) for form in ("accumulated", "percentage")),
]


@pytest.mark.parametrize("name", NAMES)
def test_every_documented_name_is_there_or_has_a_reason(name: str) -> None:
    there = name in MADE or name in {row.name for row in ROWS}
    assert there is not any(name.upper().startswith(start) for start, _ in UNMEASURED)


def test_no_name_is_ones_own() -> None:
    assert {*MADE, *(row.name for row in ROWS)} <= set(NAMES)
