"""The field table: complete, consistent, and every conversion as the documents have it."""

from __future__ import annotations

import math
import re

import pytest

from kgpu.exporter.field_table import all_fields, find, known_names
from kgpu.exporter.fields import FieldScope, render_value, spell
from kgpu.exporter.model import Generation, MetricKind
from kgpu.exporter.rows.renamed import RENAMED

USUAL = [
    "SM_CLOCK",
    "MEM_CLOCK",
    "MEMORY_TEMP",
    "GPU_TEMP",
    "POWER_USAGE",
    "TOTAL_ENERGY_CONSUMPTION",
    "PCIE_REPLAY_COUNTER",
    "GPU_UTIL",
    "MEM_COPY_UTIL",
    "ENC_UTIL",
    "DEC_UTIL",
    "XID_ERRORS",
    "FB_FREE",
    "FB_USED",
    "FB_RESERVED",
    "NVLINK_BANDWIDTH_TOTAL",
    "VGPU_LICENSE_STATUS",
    "UNCORRECTABLE_REMAPPED_ROWS",
    "CORRECTABLE_REMAPPED_ROWS",
    "ROW_REMAP_FAILURE",
]
USUAL_PROF = ["GR_ENGINE_ACTIVE", "PIPE_TENSOR_ACTIVE", "DRAM_ACTIVE", "PCIE_TX_BYTES", "PCIE_RX_BYTES"]
OF_THE_DOCUMENTS = [
    "GPU_UTIL",
    "MEM_COPY_UTIL",
    "FB_FREE",
    "FB_USED",
    "GPU_TEMP",
    "POWER_USAGE",
    "SM_CLOCK",
    "XID_ERRORS",
    "PCIE_TX_THROUGHPUT",
    "PCIE_RX_THROUGHPUT",
]
OF_VERSION_1 = [
    "sm_clock",
    "memory_clock",
    "memory_temp",
    "gpu_temp",
    "power_usage",
    "total_energy_consumption",
    "pcie_tx_throughput",
    "pcie_rx_throughput",
    "pcie_replay_counter",
    "gpu_utilization",
    "mem_copy_utilization",
    "enc_utilization",
    "dec_utilization",
    "xid_errors",
    "power_violation",
    "thermal_violation",
    "sync_boost_violation",
    "board_limit_violation",
    "low_util_violation",
    "reliability_violation",
    "fb_free",
    "fb_used",
    "ecc_sbe_volatile_total",
    "ecc_dbe_volatile_total",
    "ecc_sbe_aggregate_total",
    "ecc_dbe_aggregate_total",
    "retired_pages_sbe",
    "retired_pages_dbe",
    "retired_pages_pending",
    "nvlink_flit_crc_error_count_total",
    "nvlink_data_crc_error_count_total",
    "nvlink_replay_error_count_total",
    "nvlink_recovery_error_count_total",
    "nvlink_bandwidth_total",
    "fi_prof_gr_engine_active",
    "fi_prof_sm_active",
    "fi_prof_sm_occupancy",
    "fi_prof_pipe_tensor_active",
    "fi_prof_dram_active",
    "fi_prof_pcie_tx_bytes",
    "fi_prof_pcie_rx_bytes",
]


def test_the_usual_set_is_25_series_and_one_label():
    usual = [field for field in all_fields() if field.default]
    expected = {f"DCGM_FI_DEV_{name}" for name in USUAL} | {f"DCGM_FI_PROF_{name}" for name in USUAL_PROF}
    assert {field.name for field in usual if field.kind is not MetricKind.LABEL} == expected
    assert len(expected) == 25
    assert [field.name for field in usual if field.kind is MetricKind.LABEL] == ["DCGM_FI_DRIVER_VERSION"]


@pytest.mark.parametrize("name", OF_THE_DOCUMENTS)
def test_every_metric_of_the_documents_is_known(name):
    spelled = find(f"DCGM_FI_DEV_{name}")
    assert spelled is not None
    assert (spelled.field.name, spelled.modern) == (f"DCGM_FI_DEV_{name}", False)


def test_all_41_names_of_version_1_are_known():
    assert len(OF_VERSION_1) == 41
    assert [name for name in OF_VERSION_1 if find(f"dcgm_{name}") is None] == []


def test_ids_and_names_are_unique_and_fit_for_prometheus():
    fields = all_fields()
    assert len({field.id for field in fields}) == len(fields)
    names = [spelled for field in fields for spelled in (field.name, *field.aliases)]
    names += [field.modern.name for field in fields if field.modern]
    assert len(set(names)) == len(names) == len(list(known_names()))
    assert all(re.fullmatch(r"[a-zA-Z_:][a-zA-Z0-9_:]*", name) for name in names)


def test_every_row_says_where_its_value_comes_from_and_has_a_help_of_one_line():
    for field in all_fields():
        assert field.computed or all(source.reading and source.call for source in field.sources), field.name
        assert re.fullmatch(r"[^\n\"\\]{4,}\.", field.help), field.name
        assert not field.computed or field.name.startswith("DCGM_EXP_")


@pytest.mark.parametrize(
    ("name", "reading", "text"),
    [
        ("DCGM_FI_DEV_SM_CLOCK", 1980.0, "1980"),
        ("DCGM_FI_DEV_SM_CLOCK_HERTZ", 1980.0, "1980000000"),
        ("DCGM_FI_DEV_POWER_USAGE", 63.456, "63.456000"),
        ("DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION", 168185.0, "168185"),
        ("DCGM_FI_DEV_GPU_ENERGY_JOULES_TOTAL", 168185.0, "168.185000"),
        ("DCGM_FI_DEV_GPU_UTIL", 87.0, "87"),
        ("DCGM_FI_DEV_GPU_UTIL_RATIO", 87.0, "0.870000"),
        ("DCGM_FI_DEV_FB_USED", 5.99, "5"),
        ("DCGM_FI_DEV_FB_USED_BYTES", 5.5, str(5 * (1 << 20) + (1 << 19))),
        ("DCGM_FI_DEV_GPU_TEMP", 200.0, "200"),
        ("DCGM_FI_DEV_GPU_TEMP", 201.0, None),
        ("DCGM_FI_DEV_GPU_TEMP", math.nan, None),
        ("DCGM_FI_PROF_GR_ENGINE_ACTIVE", 12.3456, "0.123456"),
        ("DCGM_FI_PROF_GR_ENGINE_UTIL_RATIO", 12.3456, "0.123456"),
        ("DCGM_FI_PROF_PCIE_TX_BYTES", 2.0, "2097152"),
    ],
)
def test_values_are_converted_and_written_as_users_know_them(name, reading, text):
    spelled = find(name)
    assert spelled is not None
    assert render_value(spelled, reading, spelled.field.sources[0].factor) == text


def test_a_factor_does_not_turn_a_whole_number_into_the_one_below():
    spelled = find("DCGM_FI_DEV_NVLINK_BANDWIDTH_TOTAL")
    for number in range(2000):
        assert render_value(spelled, number * 1000.0, 0.001) == str(number)


def test_gpm_numbers_of_links_are_the_other_way_round():
    for link in range(18):
        tx, rx = find(f"DCGM_FI_PROF_NVLINK_L{link}_TX_BYTES"), find(f"DCGM_FI_PROF_NVLINK_L{link}_RX_BYTES")
        assert (tx.field.id, tx.field.sources[0].call) == (1040 + 2 * link, f"GPM {63 + 2 * link}")
        assert (rx.field.id, rx.field.sources[0].call) == (1041 + 2 * link, f"GPM {62 + 2 * link}")


def test_a_generation_changes_names_and_types_only():
    bandwidth = find("DCGM_FI_DEV_NVLINK_BANDWIDTH_TOTAL").field
    kinds = [spell(bandwidth, generation).kind(generation) for generation in Generation]
    assert kinds == [MetricKind.COUNTER, MetricKind.GAUGE, MetricKind.GAUGE]
    assert spell(bandwidth, Generation.C).name == "DCGM_FI_DEV_NVLINK_THROUGHPUT_BYTES_PER_SECOND"
    assert spell(bandwidth, Generation.A).name == spell(bandwidth, Generation.B).name == bandwidth.name


def test_memory_and_activity_are_of_instances_and_power_is_of_the_gpu():
    scopes = {
        name: find(f"DCGM_FI_{name}").field.scope for name in ("DEV_FB_USED", "PROF_DRAM_ACTIVE", "DEV_POWER_USAGE")
    }
    assert list(scopes.values()) == [FieldScope.INSTANCE, FieldScope.INSTANCE, FieldScope.GPU]


@pytest.mark.parametrize(
    ("number", "name", "other"),
    [
        (314, "DCGM_FI_DEV_ECC_SBE_VOL_L1", None),
        (323, "DCGM_FI_DEV_ECC_DBE_VOL_TEX", None),
        (329, "DCGM_FI_DEV_ECC_DBE_AGG_DEV", None),
        (336, "DCGM_FI_DEV_ECC_SBE_VOL_CBU", None),
        (345, "DCGM_FI_DEV_ECC_DBE_AGG_SRM", None),
        (480, "DCGM_FI_DEV_NVLINK_BANDWIDTH_L11", "DCGM_FI_DEV_NVLINK_THROUGHPUT_L11"),
        (446, "DCGM_FI_DEV_NVLINK_BANDWIDTH_L12", "DCGM_FI_DEV_NVLINK_THROUGHPUT_L12"),
        (496, "DCGM_FI_DEV_NVLINK_BANDWIDTH_L17", "DCGM_FI_DEV_NVLINK_THROUGHPUT_L17"),
        (1024, "DCGM_FI_PROF_NVDEC7_ACTIVE", "DCGM_FI_PROF_NVDEC_UTIL_7_RATIO"),
        (1034, "DCGM_FI_PROF_NVOFA1_ACTIVE", "DCGM_FI_PROF_NVOFA_UTIL_1_RATIO"),
        (1083, "DCGM_FI_PROF_PEERMEM_CACHE_MISS", None),
        (1209, "DCGM_FI_DEV_NVLINK_COUNT_LOCAL_LINK_INTEGRITY_ERRORS", "DCGM_FI_DEV_NVLINK_INTEGRITY_ERROR_TOTAL"),
        (63, "DCGM_FI_DEV_CUDA_COMPUTE_CAPABILITY", "DCGM_FI_CUDA_GPU_COMPUTE_CAPABILITY"),
    ],
)
def test_numbers_and_spellings_are_those_of_the_published_header(number, name, other):
    assert find(name).field.id == number
    assert other is None or find(other).field.id == number


def test_every_renamed_field_is_there():
    assert [name for name in RENAMED if find(name) is None] == []
