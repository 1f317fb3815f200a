"""Metrics made of what others concluded: every watch of every judged GPU, peers by index, silence where nobody knows."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from kgpu.exporter.computed import LINK_STATUS, P2P_READING, SYSTEMS, health, p2p
from kgpu.exporter.model import Unit
from kgpu.hw.fake_reader import sample_inventory
from kgpu.hw.verdicts import DcgmSystem, GpuVerdict

INVENTORY = sample_inventory(3)
A, B, C = INVENTORY.accelerators


def test_a_gpu_has_every_watch_and_a_code_where_one_does_not_pass() -> None:
    bad = (
        DcgmSystem(system="MEM", status=10, code="DCGM_FR_PENDING_ROW_REMAP"),
        DcgmSystem(system="MEM", status=20, code="DCGM_FR_VOLATILE_DBE_DETECTED"),
    )
    made = health(
        [GpuVerdict(uuid=A.uuid, watches=bad), GpuVerdict(uuid=B.uuid), GpuVerdict(uuid="", pci="0000:01:00")]
    )
    assert {one.unit.uuid for one in made} == {A.uuid, B.uuid}
    rows = [(dict(one.labels), one.value) for one in made if one.unit == Unit(A.uuid)]
    assert {labels["health_watch"] for labels, _ in rows} == set(SYSTEMS)
    assert [(labels["health_error_code"], value) for labels, value in rows if value] == [
        ("DCGM_FR_PENDING_ROW_REMAP", 10.0), ("DCGM_FR_VOLATILE_DBE_DETECTED", 20.0),
    ]  # fmt: skip
    assert all(
        one.value == 0 and dict(one.labels)["health_error_code"] == "" for one in made if one.unit.uuid == B.uuid
    )


def test_peers_by_index_and_in_words() -> None:
    made = p2p(INVENTORY, {Unit(A.uuid): {P2P_READING: "1:0 2:5"}, Unit(B.uuid): {P2P_READING: "0:9"}})
    assert [(one.unit.uuid, dict(one.labels), one.value) for one in made] == [
        (A.uuid, {"peer_gpu": "1", "link_status": "OK"}, 0.0),
        (A.uuid, {"peer_gpu": "2", "link_status": "NotSupported"}, 5.0),
        (B.uuid, {"peer_gpu": "0", "link_status": "Unknown"}, 9.0),
    ]


@given(st.text(alphabet="0123456789: x-", max_size=30))
def test_whatever_the_reading_says_peers_are_of_this_node(text: str) -> None:
    for one in p2p(INVENTORY, {Unit(A.uuid): {P2P_READING: text}}):
        assert dict(one.labels)["peer_gpu"] in {"0", "1", "2"}
        assert dict(one.labels)["link_status"] in LINK_STATUS
