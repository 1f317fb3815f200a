"""The binary ``gpu_metrics`` file of AMD's driver, versions 1.3 to 1.8: tables of fields, decoding, encoding.

The file is a C struct in the machine's byte order with natural alignment, behind a header of size, format and content
revision. Revisions are no extensions of one another, so each has its own table. A field with all bits set is one that
the GPU does not have. Version 1.9 and later hold kernel pointers and say nothing to readers of the file.
"""

from __future__ import annotations

import functools
import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final, TypeAlias

from kgpu.base.errors import UserError

Version: TypeAlias = tuple[int, int]
MetricValue: TypeAlias = "int | tuple[int | None, ...] | None"
"""A field's value, or those of its instances; None where the GPU has none."""
MAX_BYTES: Final = 1 << 16
_HEADER: Final = struct.Struct("=HBB")
_WIDTHS: Final = {"H": 0xFFFF, "I": 0xFFFF_FFFF, "Q": 0xFFFF_FFFF_FFFF_FFFF}
PARTITIONS: Final = 8

_HEAD: Final = (
    "temperature_hotspot:H temperature_mem:H temperature_vrsoc:H curr_socket_power:H average_gfx_activity:H"
    " average_umc_activity:H"
)
_RESIDENCIES: Final = (
    "accumulation_counter:I prochot_residency_acc:I ppt_residency_acc:I socket_thm_residency_acc:I"
    " vr_thm_residency_acc:I hbm_thm_residency_acc:I gfxclk_lock_status:I"
)
_BUSES: Final = (
    "pcie_link_width:H pcie_link_speed:H xgmi_link_width:H xgmi_link_speed:H gfx_activity_acc:I mem_activity_acc:I"
    " pcie_bandwidth_acc:Q pcie_bandwidth_inst:Q pcie_l0_to_recov_count_acc:Q pcie_replay_count_acc:Q"
    " pcie_replay_rover_count_acc:Q"
)
_NAKS: Final = "pcie_nak_sent_count_acc:I pcie_nak_rcvd_count_acc:I"
_XGMI: Final = "xgmi_read_data_acc:8Q xgmi_write_data_acc:8Q"
_CLOCKS: Final = (
    "firmware_timestamp:Q current_gfxclk:8H current_socclk:4H current_vclk0:4H current_dclk0:4H current_uclk:H"
)
_BUSY: Final = "gfx_busy_inst:8I jpeg_busy:{jpeg}H vcn_busy:4H gfx_busy_acc:8Q"
_END: Final = "pcie_lc_perf_other_end_recovery:I"


def _partitions(fields: str) -> str:
    """The fields of each partition, which are a struct of eight bytes' alignment."""
    return " ".join(f"xcp{number}.{field}" for number in range(PARTITIONS) for field in f":0Q {fields}".split())


TABLES: Final[Mapping[Version, str]] = {
    (1, 3): (
        "temperature_edge:H temperature_hotspot:H temperature_mem:H temperature_vrgfx:H temperature_vrsoc:H"
        " temperature_vrmem:H average_gfx_activity:H average_umc_activity:H average_mm_activity:H"
        " average_socket_power:H energy_accumulator:Q system_clock_counter:Q average_gfxclk_frequency:H"
        " average_socclk_frequency:H average_uclk_frequency:H average_vclk0_frequency:H average_dclk0_frequency:H"
        " average_vclk1_frequency:H average_dclk1_frequency:H current_gfxclk:H current_socclk:H current_uclk:H"
        " current_vclk0:H current_dclk0:H current_vclk1:H current_dclk1:H throttle_status:I current_fan_speed:H"
        " pcie_link_width:H pcie_link_speed:H padding:H gfx_activity_acc:I mem_activity_acc:I temperature_hbm:4H"
        " firmware_timestamp:Q voltage_soc:H voltage_gfx:H voltage_mem:H padding1:H indep_throttle_status:Q"
    ),
    (1, 4): (
        f"{_HEAD} vcn_activity:4H energy_accumulator:Q system_clock_counter:Q throttle_status:I gfxclk_lock_status:I"
        f" {_BUSES} {_XGMI} {_CLOCKS} padding:H"
    ),
    (1, 5): (
        f"{_HEAD} vcn_activity:4H jpeg_activity:32H energy_accumulator:Q system_clock_counter:Q throttle_status:I"
        f" gfxclk_lock_status:I {_BUSES} {_NAKS} {_XGMI} {_CLOCKS} padding:H"
    ),
    (1, 6): (
        f"{_HEAD} energy_accumulator:Q system_clock_counter:Q {_RESIDENCIES} {_BUSES} {_NAKS} {_XGMI} {_CLOCKS}"
        f" num_partition:H {_partitions(_BUSY.format(jpeg=32))} {_END}"
    ),
    (1, 7): (
        f"{_HEAD} mem_max_bandwidth:Q energy_accumulator:Q system_clock_counter:Q {_RESIDENCIES} {_BUSES} {_NAKS}"
        f" {_XGMI} xgmi_link_status:8H padding:H {_CLOCKS} num_partition:H"
        f" {_partitions(_BUSY.format(jpeg=32) + ' gfx_below_host_limit_acc:8Q')} {_END}"
    ),
    (1, 8): (
        f"{_HEAD} mem_max_bandwidth:Q energy_accumulator:Q system_clock_counter:Q {_RESIDENCIES} {_BUSES} {_NAKS}"
        f" {_XGMI} xgmi_link_status:8H padding:H {_CLOCKS} num_partition:H"
        " "
        + _partitions(
            _BUSY.format(jpeg=40) + " gfx_below_host_limit_ppt_acc:8Q gfx_below_host_limit_thm_acc:8Q"
            " gfx_low_utilization_acc:8Q gfx_below_host_limit_total_acc:8Q"
        )
        + f" {_END}"
    ),
}


class GpuMetricsError(UserError):
    """The file can't be understood."""


@dataclass(frozen=True, slots=True)
class GpuMetricsField:
    """A field: its name, the code of its type, and how many there are; None for a single one."""

    name: str
    code: str
    count: int | None

    @property
    def absent(self) -> int:
        """The value of one that the GPU does not have."""
        return _WIDTHS[self.code]


@dataclass(frozen=True, slots=True)
class GpuMetricsTable:
    """One version's fields and layout; ``size`` counts the header and the end's padding."""

    fields: tuple[GpuMetricsField, ...]
    layout: struct.Struct

    @property
    def size(self) -> int:
        return self.layout.size


@functools.cache
def table(version: Version) -> GpuMetricsTable:
    """The table of a version. Raises KeyError for one that is not in ``TABLES``."""
    rows = [row.split(":") for row in TABLES[version].split()]
    fields = tuple(
        GpuMetricsField(name, code[-1], int(code[:-1]) if len(code) > 1 else None)
        for name, code in rows
        if code != "0Q"
    )
    return GpuMetricsTable(fields, struct.Struct("@HBB" + "".join(code for _, code in rows) + "0Q"))


def decode(data: bytes) -> dict[str, MetricValue]:
    """The fields by name. Raises GpuMetricsError for another version, a wrong size, or no such file at all."""
    if len(data) < _HEADER.size:
        raise _bad(f"it has {len(data)} bytes")
    size, form, content = _HEADER.unpack_from(data)
    if (form, content) not in TABLES:
        raise _bad(f"it is of version {form}.{content}")
    layout = table((form, content))
    if size != layout.size or len(data) < size:
        raise _bad(f"version {form}.{content} with {len(data)} bytes that says it has {size}")
    values = layout.layout.unpack_from(data)[3:]
    return dict(_named(layout.fields, values))


def encode(version: Version, values: Mapping[str, int | tuple[int, ...]]) -> bytes:
    """The file with these fields; all others are such as the GPU does not have. Raises KeyError for unknown ones."""
    layout = table(version)
    unknown = values.keys() - {field.name for field in layout.fields}
    if unknown:
        raise KeyError(f"version {version} has no {', '.join(sorted(unknown))}")
    flat: list[int] = []
    for field in layout.fields:
        given = values.get(field.name, ())
        items = given if isinstance(given, tuple) else (given,)
        length = field.count or 1
        flat += (*items, *[field.absent] * (length - len(items)))[:length]
    return layout.layout.pack(layout.size, *version, *flat)


def _named(fields: tuple[GpuMetricsField, ...], values: tuple[int, ...]) -> Iterator[tuple[str, MetricValue]]:
    place = 0
    for field in fields:
        length = field.count or 1
        found = tuple(None if value == field.absent else value for value in values[place : place + length])
        place += length
        yield field.name, found[0] if field.count is None else found


def _bad(what: str) -> GpuMetricsError:
    known = ", ".join(f"{form}.{content}" for form, content in TABLES)
    return GpuMetricsError(
        f"gpu_metrics can't be decoded: {what}", f"one of the versions {known}", "see which driver version is loaded"
    )
