"""What amdgpu writes to the kernel log: lines of its sources and of users' reports, and what follows from them."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kgpu.base.printable import one_line
from kgpu.formats import gpu_remedies as remedies
from kgpu.formats.names import AMD
from kgpu.formats.xid.action import Action
from kgpu.health.amdgpu_log import ROWS, parse
from kgpu.health.config import HealthConfig
from kgpu.health.klog import LineKind, parse_message, parse_record, parse_record_event, read_lines
from kgpu.health.model import EvidenceSource, Fault
from kgpu.health.node import HealthOrder, NodeHealth
from kgpu.hw.fake_reader import sample_inventory

T = 1_800_000_000.0
GPU = "amdgpu 0000:07:00.0: amdgpu: "
LINES = [
    ("2 uncorrectable hardware errors detected in umc block", "ras-uncorrectable"),
    ("socket: 4, die: 0 3 new uncorrectable hardware errors detected in gfx block", "ras-uncorrectable"),
    ("socket: 0 2 uncorrectable hardware errors detected in gfx block", "ras-uncorrectable"),
    ("{17} socket: 2, die: 1, 5 uncorrectable hardware errors detected in total in umc block", "ras-uncorrectable"),
    ("{17}socket: 2, die: 1, 1 new uncorrectable hardware errors detected in umc block", "ras-uncorrectable"),
    ("uncorrectable hardware error(ERREVENT_ATHUB_INTERRUPT) detected!", "ras-event"),
    ("RAS poison consumption, fall back to gpu reset flow: client id 27", "poison-reset"),
    ("RAS poison consumption, unmap queue flow succeed: client id 27", "poison"),
    ("RAS records:129 exceed threshold:128, GPU will not be initialized. Replace this GPU or increase the threshold",
     "bad-pages"),
    ("Saved bad pages 256 reaches threshold value 256", "bad-pages"),
    ("Saved bad pages(256) reaches threshold value(256).", "bad-pages"),
    ("device lost from bus!", "lost"),
    ("GPU Recovery Failed: -19", "reset-failed"),
    ("GPU reset end with ret = -19", "reset-failed"),
    ("GPU reset(4) failed", "reset-failed"),
    ("GPU reset(4) failed with error -62", "reset-failed"),
    ("Fatal error during GPU init", "init-failed"),
    ("ring gfx_0.0.0 timeout, signaled seq=13441142, emitted seq=13441144", "ring-timeout"),
    ("[drm:amdgpu_job_timedout [amdgpu]] *ERROR* ring sdma0 timeout, signaled seq=16060, emitted seq=16062",
     "ring-timeout"),
    ("[gfxhub] page fault (src_id:0 ring:24 vmid:3 pasid:32773)", "page-fault"),
    ("[gfxhub0] no-retry page fault (src_id:0 ring:24 vmid:3 pasid:32771, for process python pid 4 thread python pid 4)",
     "page-fault"),
    ("[mmhub] page fault (src_id:0 ring:8 vmid:1 pasid:32777)", "page-fault"),
]  # fmt: skip
NOTHING = [
    "no uncorrectable hardware errors detected in umc block",
    "0 uncorrectable hardware errors detected in umc block",
    "1048560 uncorrectable hardware errors detected in umc block",  # a GPU whose power is off
    "3145680 uncorrectable hardware errors detected in umc block",
    "1048560 correctable hardware errors detected in umc block",
    "7 new correctable hardware errors detected in umc block",
    "GPU reset begin!",
    "GPU reset succeeded, trying to resume",
    "GPU reset end with ret = 0",
    "[gfxhub0] retry page fault (src_id:0 ring:0 vmid:3 pasid:32769)",  # memory that moves: served, and no error
    "MEM ECC is active.",
    "RAS: optional ras ta ucode is not available",
    "ring gfx_0.0.0 uses VM inv eng 0 on hub 0",
]


def test_every_row_has_a_line() -> None:
    assert {key for _, key in LINES} == {row.key for row in ROWS}
    assert all(remedies.words(row.remedy_key) for row in ROWS)


@pytest.mark.parametrize(("text", "key"), LINES)
def test_a_line_is_its_rows(text: str, key: str) -> None:
    line = parse_message(GPU + text)
    assert line is not None
    assert (line.kind, line.key, line.pci) == (LineKind.DRIVER, key, "0000:07:00")
    older = parse_message(f"amdgpu 0000:07:00.0: {text}")
    assert older is not None
    assert older.key == key


@pytest.mark.parametrize("text", NOTHING)
def test_other_lines_are_no_errors(text: str) -> None:
    assert parse_message(GPU + text) is None


def test_a_reset_by_the_driver_is_read() -> None:
    line = parse_message(f"{GPU}GPU reset(4) succeeded!")
    assert line is not None
    assert (line.kind, line.pci) == (LineKind.RESET, "0000:07:00")


@pytest.mark.parametrize(
    "message",
    ["device lost from bus!", "amdgpu: device lost from bus!", "x amdgpu 0000:07:00.0: amdgpu: device lost from bus!",
     "amdgpu 0000:07: amdgpu: device lost from bus!", "nouveau 0000:07:00.0: amdgpu: device lost from bus!"],
)  # fmt: skip
def test_a_message_that_does_not_begin_as_the_drivers_is_not_its(message: str) -> None:
    assert parse_message(message) is None


def test_a_program_can_not_forge_a_line() -> None:
    def event(priority: int) -> object:
        record = parse_record(f"{priority},7,1000,-;{GPU}device lost from bus!\n".encode())
        assert record is not None
        return parse_record_event(record)

    assert event(3) is not None
    assert event(3 + (1 << 3)) is None


def test_lines_are_found_in_the_text_of_a_log() -> None:
    log = [
        "[Sat Jan  7 14:25:56 2023] amdgpu 0000:e3:00.0: amdgpu: uncorrectable hardware error(ERREVENT_ATHUB_INTERRUPT) detected!",
        "Sep 04 14:48:52 HOSTNAME kernel: amdgpu 0000:03:00.0: amdgpu: ring gfx_0.0.0 timeout, signaled seq=1, emitted seq=2",
        "kern  :err   : 2038-01-19T00:00:00,000000+00:00 amdgpu 0000:de:00.0: amdgpu: GPU Recovery Failed: -19",
    ]
    assert [(line.pci, line.key) for line in read_lines(log)] == [
        ("0000:e3:00", "ras-event"), ("0000:03:00", "ring-timeout"), ("0000:de:00", "reset-failed"),
    ]  # fmt: skip


@given(st.text(max_size=300))
def test_any_text_gives_an_answer(text: str) -> None:
    parse(text)
    parse(GPU + text)


INVENTORY = sample_inventory(2)
A, B = INVENTORY.accelerators
AT_A = f"amdgpu {A.pci_bus_id.lower()}: amdgpu: "


def node(**config: object) -> NodeHealth:
    made = NodeHealth(HealthConfig(**config), booted_at=T - 100)  # type: ignore[arg-type]
    made.inventory(INVENTORY, {}, T)
    return made


def say(health: NodeHealth, text: str, at: float = T) -> None:
    line = parse_message(AT_A + text)
    assert line is not None
    health.line(line, at)


def actions(health: NodeHealth, at: float = T + 1) -> list[Action]:
    verdicts = health.judge(at)
    return [verdicts[A.uuid].action, verdicts[B.uuid].action]


def test_the_gpu_that_is_named_is_judged_with_the_line_as_evidence() -> None:
    health = node()
    say(health, "2 uncorrectable hardware errors detected in umc block")
    verdict = health.judge(T + 1)[A.uuid]
    assert (verdict.action, verdict.healthy) == (Action.RESET_GPU, False)
    (fact,) = verdict.evidence
    assert fact.name == "driver-log:ras-uncorrectable"
    assert fact.text == "2 uncorrectable hardware errors detected in umc block"
    assert actions(health)[1] is Action.IGNORE
    assert next((note.kind, note.name) for note in health.take()[0]) == ("driver", "ras-uncorrectable")
    assert not health.memories[A.uuid].xids, "nobody counts it as an Xid"


def test_a_reset_by_the_driver_ends_what_a_reset_cures_and_nothing_else() -> None:
    health = node()
    say(health, "2 uncorrectable hardware errors detected in umc block")
    say(health, "GPU reset(1) succeeded!", T + 5)
    assert actions(health, T + 6) == [Action.IGNORE, Action.IGNORE]
    say(health, "Saved bad pages(256) reaches threshold value(256).", T + 7)
    say(health, "GPU reset(2) succeeded!", T + 8)
    assert actions(health, T + 9) == [Action.REPLACE, Action.IGNORE]
    say(health, "ring sdma0 timeout, signaled seq=1, emitted seq=2", T + 20)
    say(health, "GPU reset(2) succeeded!", T + 10)  # of before
    assert health.judge(T + 21)[A.uuid].evidence[1].key == "ring-timeout"


def test_readings_of_an_amd_gpu_call_for_amds_own_program() -> None:
    health = NodeHealth(HealthConfig(), booted_at=T - 100)
    health.inventory(replace(INVENTORY, vendor=AMD), {A.uuid: {"ecc_uncorrected_volatile": 3}}, T)
    verdict = health.judge(T + 1)[A.uuid]
    assert (verdict.action, verdict.remedy_key) == (Action.RESET_GPU, remedies.RESET_AMD)
    assert [fact.remedy_key for fact in verdict.evidence] == [remedies.RESET_AMD]


def test_an_error_of_a_program_takes_no_gpu_away_and_is_forgotten() -> None:
    health = node()
    say(health, "[gfxhub] page fault (src_id:0 ring:24 vmid:3 pasid:32773)")
    verdict = health.judge(T + 1)[A.uuid]
    assert (verdict.action, verdict.healthy) == (Action.RESTART_APP, True)
    assert actions(health, T + 100_000)[0] is Action.IGNORE


def test_what_comes_back_after_its_reset_calls_for_more() -> None:
    health = node()
    found = []
    for number in range(6):
        at = T + 1000 * number
        say(health, "2 uncorrectable hardware errors detected in umc block", at)
        found.append(actions(health, at + 1)[0])
        say(health, "GPU reset(1) succeeded!", at + 5)
    assert found[0] is Action.RESET_GPU
    assert Action.REBOOT in found


def test_a_person_may_ignore_the_log_and_call_a_gpu_well() -> None:
    health = node(ignore_checks=frozenset({EvidenceSource.LOG}))
    say(health, "device lost from bus!")
    assert actions(health)[0] is Action.IGNORE
    health = node()
    say(health, "device lost from bus!")
    assert actions(health)[0] is Action.REBOOT
    health.order(HealthOrder(kind="healthy", gpu=A.uuid, at=T + 2))
    assert actions(health, T + 3)[0] is Action.IGNORE


def test_a_key_that_there_is_not_is_evidence_of_nothing() -> None:
    from kgpu.health.faults import evidence_of

    assert evidence_of(Fault(code=0, key="of-a-later-kgpu", at=T), HealthConfig()) is None


def test_a_long_line_is_cut_for_people() -> None:
    health = node()
    say(health, "ring gfx timeout, " + "x" * 5000)
    (fact,) = health.judge(T + 1)[A.uuid].evidence
    assert fact.text == one_line(fact.text, 200)
