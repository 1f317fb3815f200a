"""What works for which vendor: the rows of docs/reference/vendors.md.

A capability is one ``Capability``, a cell one line of it, and a cell says where it is tested. ``held`` asks the
vendor's own record (``kgpu.hw.vendor.Vendor``) where that decides; ``tests/test_vendor_table.py`` fails where the two
differ, and where a test that is named is not there.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Final

from kgpu.formats.names import AMD, GAUDI, INTEL, NVIDIA
from kgpu.hw.vendor import Vendor, vendors

ORDER: Final = (NVIDIA, AMD, GAUDI, INTEL)


class Level(enum.StrEnum):
    """How much of a capability a vendor's devices have."""

    YES = "yes"
    PARTLY = "partly"
    NO = "no"


@dataclass(frozen=True, slots=True)
class Cell:
    """``words`` say what there is, or why there is nothing. ``test`` is ``FILE::NAME`` below tests, "" for nothing."""

    level: Level
    words: str
    test: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Capability:
    """One row; ``held`` is whether a vendor's record has it, None where no record says."""

    name: str
    cells: Mapping[str, Cell]
    held: Callable[[Vendor], bool] | None = None


def _yes(words: str, test: str) -> Cell:
    return Cell(Level.YES, words, test)


def _partly(words: str, test: str) -> Cell:
    return Cell(Level.PARTLY, words, test)


def _no(words: str) -> Cell:
    return Cell(Level.NO, words)


_AMD_AGENT: Final = "agent/test_amd_end_to_end.py::"
_GAUDI_AGENT: Final = "agent/test_gaudi_end_to_end.py::"
_INTEL_AGENT: Final = "agent/test_intel_end_to_end.py::"
_MIXED: Final = "lab/test_mixed_vendors.py::"
_AMD_GIVEN: Final = f"{_AMD_AGENT}test_gpus_are_offered_with_their_numa_nodes_and_given_with_their_nodes_alone"
_AMD_ERRORS: Final = (
    f"{_AMD_AGENT}test_an_uncorrectable_error_is_a_verdict_with_the_logs_line_and_ends_with_the_drivers_reset"
)
_AMD_PARTS: Final = f"{_AMD_AGENT}test_partitions_have_one_name_by_single_and_one_for_each_mode_by_mixed"
_AMD_CDI: Final = f"{_AMD_AGENT}test_with_cdi_the_spec_has_nodes_and_no_hook"
_GAUDI_GIVEN: Final = f"{_GAUDI_AGENT}test_cards_are_offered_by_serial_and_given_with_nodes_and_variables"
_GAUDI_FAULT: Final = f"{_GAUDI_AGENT}test_a_fault_takes_one_card_and_it_comes_back_without_a_restart"
_GAUDI_CDI: Final = f"{_GAUDI_AGENT}test_with_cdi_the_spec_has_nodes_and_no_hook_and_the_variables_still_come"
_INTEL_LOST: Final = f"{_INTEL_AGENT}test_a_gpu_of_i915_is_withdrawn_while_it_is_lost_and_denied_by_its_id"
_INTEL_SHARED: Final = f"{_INTEL_AGENT}test_a_gpu_of_xe_is_shared_by_a_number_and_given_with_its_nodes"
_NVIDIA_FAULT: Final = f"{_MIXED}test_a_faulty_gpu_is_withdrawn_alone_and_comes_back"
_EACH_POD: Final = f"{_MIXED}test_each_pod_lands_on_its_vendor_and_sees_its_devices_and_no_other"
_READINGS: Final = "exporter/test_gaudi.py::test_readings_are_shown_with_the_vendors_devices"
_AMD_PAGE: Final = "exporter/vendors/amd/test_page.py::test_simulated_nodes_have_power_energy_memory_and_errors"
_TOP: Final = "top/test_reading.py::test_a_node_of_any_vendor_without_an_exporter_is_shown"
_HOSTS: Final = "doctor/test_vendor_hosts.py::test_the_first_finding_names_cause_and_remedy"
_ANSWERS: Final = "validator/test_file_driver.py::test_a_healthy_node_passes_and_nobody_calls_compute_proven"
_STATUS: Final = "cli/test_status_vendors.py::test_one_table_has_the_nodes_of_every_vendor_with_and_without_an_operator"
_GAUDI_PAGE: Final = "exporter/vendors/gaudi/test_gaudi_page.py::test_every_name_of_the_replaced_exporter_is_there"
_CLAIMS: Final = "lab/test_dra_vendors.py::test_each_claim_gets_its_vendors_device_and_no_other"
_OPERATED: Final = "lab/test_operator_vendors.py::test_labels_roles_and_conditions_are_those_of_the_vendor"
_LABELS: Final = f"{_MIXED}test_all_are_labelled_in_their_own_words"

CAPABILITIES: Final = (
    Capability(
        name="device plugin",
        cells={
            NVIDIA: _yes(
                "GPUs and MIG devices", "deviceplugin/test_run.py::test_eight_gpus_are_registered_and_allocated"
            ),
            AMD: _yes("GPUs and partitions", _AMD_GIVEN),
            GAUDI: _yes("cards, with Habana's variables", _GAUDI_GIVEN),
            INTEL: _yes("by driver, i915 or xe", _INTEL_LOST),
        },
        held=lambda vendor: bool(vendor.resource),
    ),
    Capability(
        name="labels",
        cells={
            NVIDIA: _yes("GPU feature discovery's", _LABELS),
            AMD: _yes("ROCm labeller's, and kgpu's", _LABELS),
            GAUDI: _yes("Habana's, and kgpu's", _LABELS),
            INTEL: _yes("Intel's, and kgpu's", _LABELS),
        },
    ),
    Capability(
        name="health",
        cells={
            NVIDIA: _yes("NVML and Xids", _NVIDIA_FAULT),
            AMD: _yes("RAS counters, KFD, bus, kernel log", _AMD_ERRORS),
            GAUDI: _yes("status, memory errors, bus", _GAUDI_FAULT),
            INTEL: _partly("lost or hanging GPUs; its drivers count no errors", _INTEL_LOST),
        },
    ),
    Capability(
        name="metrics",
        cells={
            NVIDIA: _yes("DCGM's names", "agent/roles/test_exporter.py::test_faults_of_one_gpu_while_it_is_scraped"),
            AMD: _yes("DCGM's names, and AMD's exporter's", _AMD_PAGE),
            GAUDI: _yes("DCGM's names, and those of Gaudi's exporter", _GAUDI_PAGE),
            INTEL: _partly("DCGM's names, for what its drivers show", _READINGS),
        },
    ),
    Capability(
        name="claims (DRA)",
        cells={
            NVIDIA: _yes(
                "GPUs and MIG devices",
                "lab/test_dra.py::test_a_gpu_by_cel_and_slices_of_the_other_that_are_made_and_go",
            ),
            AMD: _yes("GPUs and partitions", _CLAIMS),
            GAUDI: _yes("cards", _CLAIMS),
            INTEL: _no("not yet"),
        },
    ),
    Capability(
        name="partitions are offered",
        cells={
            NVIDIA: _yes("MIG devices", "mig/test_simulated.py::test_every_default_config_that_fits_is_made"),
            AMD: _yes("by mode, such as cpx_nps4", _AMD_PARTS),
            GAUDI: _no("a card can't be parted"),
            INTEL: _no("tiles are not offered"),
        },
    ),
    Capability(
        name="partitions are made",
        cells={
            NVIDIA: _yes(
                "MIG layouts",
                "mig/test_apply.py::test_a_failure_at_any_step_ends_in_the_former_layout_or_the_wanted_one",
            ),
            AMD: _yes(
                "modes, by profile",
                "lab/test_partition_label.py::test_a_label_becomes_sixty_four_devices_and_eight_again",
            ),
            GAUDI: _no("a card can't be parted"),
            INTEL: _no("tiles are not made"),
        },
        held=lambda vendor: bool(vendor.partitioner or vendor.modes),
    ),
    Capability(
        name="sharing",
        cells={
            NVIDIA: _yes(
                "time-slicing and MPS",
                "lab/test_mps.py::test_four_pods_have_a_quarter_each_and_the_other_gpu_stays_whole",
            ),
            AMD: _no("each GPU, or part of it, has one container"),
            GAUDI: _no("a card has one user"),
            INTEL: _partly("by a number of shares", _INTEL_SHARED),
        },
        held=lambda vendor: bool(vendor.sharing),
    ),
    Capability(
        name="CDI",
        cells={
            NVIDIA: _yes("specs with the driver's files", _EACH_POD),
            AMD: _yes("device nodes", _AMD_CDI),
            GAUDI: _yes("device nodes", _GAUDI_CDI),
            INTEL: _yes("device nodes", _EACH_POD),
        },
        held=lambda vendor: vendor.cdi_specs,
    ),
    Capability(
        name="validator",
        cells={
            NVIDIA: _yes(
                "a program computes on every device", "validator/test_run.py::test_a_whole_node_passes_and_says_so"
            ),
            AMD: _partly("the driver and the KFD answer; nothing computes", _ANSWERS),
            GAUDI: _partly("the driver answers; nothing computes", _ANSWERS),
            INTEL: _partly("the driver answers; nothing computes", _ANSWERS),
        },
    ),
    Capability(
        name="doctor",
        cells={
            NVIDIA: _yes(
                "all rules but those of other vendors",
                "doctor/lab/test_workloads.py::test_the_first_finding_names_the_cause",
            ),
            AMD: _yes("driver, KFD, partitions, faults; AMD's operator", _HOSTS),
            GAUDI: _yes("driver, faults, huge pages, releases, runtime", _HOSTS),
            INTEL: _yes("driver, faults, which of the two resources", _HOSTS),
        },
    ),
    Capability(
        name="status",
        cells={
            NVIDIA: _yes("nodes, operands, drivers", "cli/test_status.py::test_all_well_fits_on_few_lines"),
            AMD: _yes("nodes, devices, operands, health", _STATUS),
            GAUDI: _yes("nodes, devices, operands, health", _STATUS),
            INTEL: _yes("nodes, devices, operands, health", _STATUS),
        },
    ),
    Capability(
        name="top",
        cells={
            NVIDIA: _yes("all columns", "top/test_reading.py::test_this_nodes_driver_with_a_lost_gpu"),
            AMD: _yes("load, memory, temperature, power", _TOP),
            GAUDI: _yes("load, memory, temperature, power", _TOP),
            INTEL: _partly("temperature; its drivers tell no load", _TOP),
        },
    ),
    Capability(
        name="operator",
        cells={
            NVIDIA: _yes(
                "ClusterPolicy and NVIDIADriver",
                "lab/test_operator.py::test_the_readme_shows_the_table_that_this_lab_has",
            ),
            AMD: _yes(
                "ClusterPolicy and DeviceConfig; drivers by KMM",
                "lab/test_operator_vendors.py::test_amds_default_device_config_is_followed_and_goes",
            ),
            GAUDI: _yes("ClusterPolicy", _OPERATED),
            INTEL: _partly("ClusterPolicy, where `vendors` names it", _OPERATED),
        },
    ),
)


def head() -> tuple[str, ...]:
    """The titles over the columns."""
    return ("", *(vendors()[name].title for name in ORDER))


def lines() -> Iterator[tuple[str, ...]]:
    """The table's lines: the level, what there is, and a link to the file of the test."""
    for row in CAPABILITIES:
        yield (row.name, *(_shown(row.cells[name]) for name in ORDER))


def _shown(cell: Cell) -> str:
    path = PurePosixPath(cell.test.partition("::")[0])
    link = f" ([test](../../tests/{path}))" if cell.test else ""
    return f"**{cell.level}**: {cell.words}{link}"
