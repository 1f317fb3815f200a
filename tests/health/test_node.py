"""One node's GPUs: whom an event or line is about, what is written down and told, orders, boots, missing GPUs."""

from __future__ import annotations

from dataclasses import replace

import pytest

from kgpu.formats.xid.action import Action
from kgpu.health.config import HealthConfig
from kgpu.health.klog import parse_message
from kgpu.health.node import ADDRESS, MAX_STRANGERS, HealthOrder, NodeHealth
from kgpu.hw.fake_reader import sample_inventory
from kgpu.hw.port import EventKind, HardwareEvent, HardwareFinding, Problem

T = 1_800_000_000.0
INVENTORY = sample_inventory(2, driver_version="450.1")  # gives no verdicts of its own
A, B = INVENTORY.accelerators
PCI_A = A.pci_bus_id.removesuffix(".0")


def node(**config: object) -> NodeHealth:
    made = NodeHealth(HealthConfig(**config), booted_at=T - 100)  # type: ignore[arg-type]
    made.inventory(INVENTORY, {}, T)
    return made


def say(health: NodeHealth, message: str, at: float = T) -> None:
    line = parse_message(message)
    assert line is not None, message
    health.line(line, at)


def xid(code: int, pci: str = PCI_A, more: str = "") -> str:
    return f"NVRM: Xid (PCI:{pci}{more}): {code}, pid=1, name=train, words"


def actions(health: NodeHealth, at: float = T + 1) -> dict[str, Action]:
    return {name: one.action for name, one in health.judge(at).items()}


def names(health: NodeHealth) -> list[tuple[str, str]]:
    return [(one.kind, one.name) for one in health.take()[0]]


def test_a_line_is_about_the_gpu_at_its_address() -> None:
    health = node()
    say(health, xid(95))
    assert actions(health) == {A.uuid: Action.RESET_GPU, B.uuid: Action.IGNORE}
    assert names(health) == [("xid", "Xid 95"), ("verdict", "GPUNeedsReset")]
    assert actions(health, T + 30) == {A.uuid: Action.RESET_GPU, B.uuid: Action.IGNORE}
    assert health.take() == ([], [])  # said once


@pytest.mark.parametrize("first", ["event", "line"])
def test_the_drivers_event_and_the_logs_line_are_one(first: str) -> None:
    health = node()
    steps = [
        lambda: health.event(HardwareEvent(kind=EventKind.XID, uuid=A.uuid, code=95), T),
        lambda: say(health, xid(95), T + 0.5),
    ]
    for step in steps if first == "event" else reversed(steps):
        step()
    notes = [one for one in health.take()[0] if one.kind == "xid"]
    # The words are added to the note that is there, or there from the start.
    assert [(one.text, one.amends) for one in notes] == (
        [("", False), ("words", True)] if first == "event" else [("words", False)]
    )
    assert health.memories[A.uuid].events[0].count == 1
    say(health, xid(95), T + 60)
    assert [one.amends for one in health.take()[0] if one.kind == "xid"] == [False]
    assert health.memories[A.uuid].events[0].count == 2


def test_other_events_and_events_of_nobody_change_no_gpu() -> None:
    health = node()
    health.event(HardwareEvent(kind=EventKind.DOUBLE_BIT_ECC, uuid=A.uuid), T)
    assert health.take() == ([], [])
    health.event(HardwareEvent(kind=EventKind.XID, code=79), T)
    assert set(actions(health).values()) == {Action.IGNORE}
    assert [one.reason for one in health.take()[1]] == ["XidUnnamed"]


def test_a_gpu_that_only_the_log_knows_is_one_until_the_driver_lists_it() -> None:
    health = NodeHealth(HealthConfig(), booted_at=T - 100)
    say(health, xid(95))
    assert actions(health) == {ADDRESS + PCI_A: Action.RESET_GPU}
    health.inventory(INVENTORY, {}, T + 1)
    assert actions(health) == {A.uuid: Action.RESET_GPU, B.uuid: Action.IGNORE}
    for number in range(50):
        say(health, xid(79, f"00ff:{number:02x}:00"))
    assert sum(name.startswith(ADDRESS) for name in health.memories) == MAX_STRANGERS


def test_the_log_tells_which_uuid_is_where() -> None:
    health = NodeHealth(HealthConfig(), booted_at=T - 100)
    say(health, f"NVRM: GPU at PCI:{PCI_A}: {A.uuid}")
    say(health, xid(95))
    assert set(health.memories) == {A.uuid}


def test_the_sentence_beside_the_number_is_not_a_second_loss() -> None:
    health = node()
    say(health, xid(79))
    say(health, f"NVRM: GPU {PCI_A}.0: GPU has fallen off the bus.", T + 0.1)
    assert health.memories[A.uuid].events[0].count == 1
    other = node()
    say(other, f"NVRM: GPU {PCI_A}.0: GPU has fallen off the bus.")
    assert actions(other)[A.uuid] is Action.REBOOT


def test_a_switchs_error_is_every_gpus() -> None:
    health = node()
    say(health, "nvidia-nvswitch0: SXid (PCI:0000:a9:00.0): 20034, Fatal, Link 30 LTSSM Fault Up")
    assert len(set(actions(health).values())) == 1
    assert actions(health)[A.uuid].withdraws
    say(health, "NVRM: knvlinkUpdatePostRxDetectLinkMask_IMPL: Failed to update Rx Detect Link mask!")
    assert "NVLinkStuck" in [one.reason for one in health.take()[1]]


def test_a_slice_is_named() -> None:
    health = node()
    say(health, xid(13, more=" GPU-I:07 GPU-CI:00"))
    say(health, xid(13))
    assert names(health)[:2] == [("xid", "Xid 13 in GPU instance 7"), ("xid", "Xid 13")]


@pytest.mark.parametrize("word", [A.uuid, "0", "all"])
def test_a_person_sets_a_gpu_healthy(word: str) -> None:
    health = node()
    say(health, xid(95))
    health.judge(T + 1)
    health.take()
    assert A.uuid in health.order(HealthOrder(kind="healthy", gpu=word, at=T + 2, who="me"))
    assert actions(health, T + 3)[A.uuid] is Action.IGNORE
    notes, advice = health.take()
    assert ("order", "set healthy", "me") in [(one.kind, one.name, one.text) for one in notes]
    assert [one.reason for one in advice] == ["GPUHealthy"]


def test_maintenance_mutes_and_ends() -> None:
    health = node()
    assert health.order(HealthOrder(kind="maintenance", gpu="1", at=T, until=T + 60)) == (B.uuid,)
    say(health, xid(95, B.pci_bus_id.removesuffix(".0")))
    found = health.judge(T + 1)[B.uuid]
    assert (found.muted, found.healthy) == ("in maintenance", True)
    assert health.judge(T + 61)[B.uuid].muted == ""
    assert health.order(HealthOrder(kind="maintenance", gpu="7", at=T)) == ()


def test_a_gpu_that_is_not_listed_any_more_is_missing_after_a_while() -> None:
    health = node()
    rest = replace(INVENTORY, accelerators=(B,))
    health.inventory(rest, {}, T + 1)
    assert actions(health, T + 2)[A.uuid] is Action.IGNORE
    health.inventory(rest, {}, T + 100)
    assert actions(health, T + 100)[A.uuid] is Action.REBOOT
    health.inventory(INVENTORY, {}, T + 200)
    health.inventory(INVENTORY, {}, T + 600)
    assert actions(health, T + 600)[A.uuid] is Action.IGNORE


def test_a_gpu_that_did_not_come_back_from_a_boot_is_told_once_and_judged_no_more() -> None:
    health = node()
    say(health, xid(79))
    health.judge(T + 1)
    health.take()
    health.boot(T + 1000)
    for at in (T + 1010, T + 1100):
        health.inventory(replace(INVENTORY, accelerators=(B,)), {}, at)
        assert set(actions(health, at)) == {B.uuid}
    assert [one.reason for one in health.take()[1]] == ["GPUAbsent"]
    assert health.memories[A.uuid].episodes  # for when it comes back


def test_a_boot_ends_it_and_strangers_go() -> None:
    health = node()
    say(health, xid(79))
    say(health, xid(79, "00ff:01:00"))
    health.boot(T + 1000)
    health.inventory(INVENTORY, {}, T + 1010)
    assert actions(health, T + 1011) == {A.uuid: Action.IGNORE, B.uuid: Action.IGNORE}


def test_a_lost_gpu_that_answers_again_is_well() -> None:
    health = node()
    lost = HardwareFinding(subject=A.uuid, problem=Problem.LOST, what="GPU is lost", expected="", remedy="")
    gone = replace(A, findings=(lost,), recovery_action="unknown")
    say(health, xid(79))
    health.inventory(replace(INVENTORY, accelerators=(gone, B)), {}, T + 1)
    assert actions(health, T + 2)[A.uuid] is Action.REBOOT
    health.inventory(INVENTORY, {}, T + 50)
    assert actions(health, T + 51)[A.uuid] is Action.IGNORE


def test_a_later_run_tells_what_is_bad_and_writes_no_second_note() -> None:
    health = node()
    say(health, xid(95))
    health.judge(T + 1)
    later = NodeHealth(HealthConfig(), booted_at=T - 100, memories=dict(health.memories))
    later.judge(T + 2)
    notes, advice = later.take()
    assert (notes, [one.reason for one in advice]) == ([], ["GPUNeedsReset"])


def test_gpus_have_their_numbers_where_people_read() -> None:
    health = node()
    say(health, xid(95))
    say(health, xid(95, "00ff:01:00"))
    health.judge(T + 1)
    what = sorted(one.what for one in health.take()[1])
    assert what[0].startswith(f"GPU 0 ({A.uuid}): Xid 95")
    assert what[1].startswith("The GPU at 00ff:01:00, which the driver does not list: Xid 95")


def test_every_xid_is_counted_once_since_the_boot() -> None:
    health = node()
    health.event(HardwareEvent(kind=EventKind.XID, uuid=A.uuid, code=95), T)
    say(health, xid(95), T + 0.5)  # the same
    say(health, xid(43), T + 1)  # a program's
    say(health, xid(43, more=" GPU-I:05 GPU-CI:00"), T + 2)
    say(health, xid(95), T + 600)
    say(health, xid(13), T - 200)  # of the boot before
    assert health.memories[A.uuid].xids == {"95": 2, "43": 1, "43@5": 1}
    # A run that begins between the event and the line.
    again = NodeHealth(HealthConfig(), booted_at=T - 100, memories={A.uuid: health.memories[A.uuid]})
    again.inventory(INVENTORY, {}, T + 700)
    again.event(HardwareEvent(kind=EventKind.XID, uuid=A.uuid, code=119), T + 701)
    third = NodeHealth(HealthConfig(), booted_at=T - 100, memories=dict(again.memories))
    third.inventory(INVENTORY, {}, T + 702)
    say(third, xid(119), T + 701.5)
    assert third.memories[A.uuid].xids["119"] == 1
    third.boot(T + 5000)
    assert third.memories[A.uuid].xids == {}


def test_a_gpu_that_only_the_log_knew_keeps_its_count() -> None:
    health = NodeHealth(HealthConfig(), booted_at=T - 100)
    say(health, xid(79), T)
    health.inventory(INVENTORY, {}, T + 1)
    say(health, xid(79), T + 900)
    assert health.memories[A.uuid].xids == {"79": 2}
