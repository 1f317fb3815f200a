"""AMD's ``gpu_metrics`` file: sizes and places of every version as a C compiler lays them out, and hostile files."""

from __future__ import annotations

import contextlib
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kgpu.formats.amd_gpu_metrics import TABLES, GpuMetricsError, decode, encode, table
from tests.budget import tries

# version -> bytes, as the C declarations have them with natural alignment
SIZES = {(1, 3): 120, (1, 4): 288, (1, 5): 360, (1, 6): 1664, (1, 7): 2208, (1, 8): 3872}
# version, field -> offset and type
PLACES = [
    ((1, 3), "temperature_hotspot", 6, "H"),
    ((1, 3), "average_socket_power", 22, "H"),
    ((1, 3), "energy_accumulator", 24, "Q"),
    ((1, 3), "current_gfxclk", 54, "H"),
    ((1, 3), "gfx_activity_acc", 80, "I"),
    ((1, 3), "indep_throttle_status", 112, "Q"),
    ((1, 4), "temperature_hotspot", 4, "H"),
    ((1, 4), "energy_accumulator", 24, "Q"),
    ((1, 4), "pcie_bandwidth_acc", 64, "Q"),
    ((1, 4), "current_uclk", 280, "H"),
    ((1, 5), "curr_socket_power", 10, "H"),
    ((1, 5), "energy_accumulator", 88, "Q"),
    ((1, 6), "energy_accumulator", 16, "Q"),
    ((1, 6), "gfxclk_lock_status", 56, "I"),
    ((1, 6), "pcie_nak_rcvd_count_acc", 124, "I"),
    ((1, 6), "firmware_timestamp", 256, "Q"),
    ((1, 6), "num_partition", 306, "H"),
    ((1, 6), "pcie_lc_perf_other_end_recovery", 1656, "I"),
    ((1, 7), "mem_max_bandwidth", 16, "Q"),
    ((1, 7), "current_uclk", 336, "H"),
    ((1, 7), "pcie_lc_perf_other_end_recovery", 2200, "I"),
    ((1, 8), "num_partition", 338, "H"),
    ((1, 8), "pcie_lc_perf_other_end_recovery", 3864, "I"),
]


@pytest.mark.parametrize("version", TABLES)
def test_sizes(version) -> None:
    assert table(version).size == SIZES[version] == len(encode(version, {}))


@pytest.mark.parametrize(("version", "name", "offset", "code"), PLACES)
def test_places(version, name: str, offset: int, code: str) -> None:
    data = encode(version, {name: 7})
    assert struct.unpack_from(f"={code}", data, offset) == (7,)
    assert decode(data)[name] == 7


@pytest.mark.parametrize("version", TABLES)
def test_what_the_gpu_does_not_have_is_none(version) -> None:
    found = decode(encode(version, {"average_gfx_activity": 0}))
    assert found.pop("average_gfx_activity") == 0
    flat = [one for value in found.values() for one in (value if isinstance(value, tuple) else (value,))]
    assert set(flat) == {None}


def test_instances_keep_their_order() -> None:
    found = decode(encode((1, 8), {"xgmi_read_data_acc": (1, 2, 3), "xcp7.gfx_busy_inst": (9,)}))
    assert found["xgmi_read_data_acc"] == (1, 2, 3, None, None, None, None, None)
    assert found["xcp7.gfx_busy_inst"] == (9, *[None] * 7)


@pytest.mark.parametrize(
    ("data", "what"),
    [
        (b"", "0 bytes"),
        (b"\x01\x02", "2 bytes"),
        (struct.pack("=HBB", 120, 1, 9), "version 1.9"),
        (struct.pack("=HBB", 120, 2, 4) + bytes(116), "version 2.4"),
        (encode((1, 3), {})[:-1], "119 bytes"),
        (struct.pack("=HBB", 288, 1, 3) + bytes(284), "says it has 288"),
    ],
)
def test_what_is_none_is_told(data: bytes, what: str) -> None:
    with pytest.raises(GpuMetricsError, match=what) as caught:
        decode(data)
    assert "1.3, 1.4" in caught.value.expected


def test_an_unknown_field_is_a_mistake_of_the_caller() -> None:
    with pytest.raises(KeyError, match="nonsense"):
        encode((1, 3), {"nonsense": 1})


@tries(200)
@given(st.binary(max_size=4000))
def test_any_file_is_decoded_or_refused(data: bytes) -> None:
    with contextlib.suppress(GpuMetricsError):
        assert decode(data)


@tries(100)
@given(st.sampled_from(sorted(TABLES)), st.data())
def test_what_is_written_is_read(version, data) -> None:
    fields = [field for field in table(version).fields if field.count is None]
    field = data.draw(st.sampled_from(fields))
    value = data.draw(st.integers(0, field.absent - 1))
    assert decode(encode(version, {field.name: value}))[field.name] == value
