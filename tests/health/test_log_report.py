"""A whole log: counts, and the one action that follows for each device."""

from __future__ import annotations

import io

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kgpu.formats.xid.action import Action
from kgpu.health.klog import MAX_LINE, read_lines
from kgpu.health.log_report import MAX_ROWS, LogReport, bounded_lines, summarise

BOOT = "Linux version 6.1.0-18-amd64 (debian-kernel@lists.debian.org) #1 SMP"


def report(*messages: str) -> LogReport:
    return summarise(read_lines(f"[{number}.5] {message}" for number, message in enumerate(messages)))


def xid(code: int, text: str = "x", at: str = "0000:04:00") -> str:
    return f"NVRM: Xid (PCI:{at}): {code}, pid=12, name=python, {text}"


def told(old: int, new: int) -> str:
    return xid(154, f"GPU recovery action changed from 0x{old} (A) to 0x{new} (B)")


def test_counts_first_and_last() -> None:
    found = report(xid(13), "else", xid(13), xid(31), xid(13, at="0000:05:00"))
    assert [(device.pci, [(row.code, row.count) for row in device.rows]) for device in found.devices] == [
        ("0000:04:00", [(13, 2), (31, 1)]), ("0000:05:00", [(13, 1)]),
    ]  # fmt: skip
    row = found.devices[0].rows[0]
    assert (row.first, row.last, row.processes) == ("0.5", "2.5", ["python (pid 12)"])
    assert found.action is Action.RESTART_APP


@pytest.mark.parametrize(
    ("messages", "action"),
    [
        ((), Action.IGNORE),
        ((xid(43),), Action.IGNORE),
        ((xid(94), xid(48), xid(63)), Action.RESTART_APP),
        ((xid(94), xid(48), xid(95)), Action.RESET_GPU),
        ((xid(79),), Action.REBOOT),
        ((xid(95), told(0, 2)), Action.REBOOT),
        ((xid(95), told(0, 1), told(1, 0)), Action.IGNORE),
        ((xid(95), told(0, 1), told(1, 0), xid(54)), Action.INSPECT),
        ((xid(999),), Action.INSPECT),
        ((xid(79), told(0, 2), BOOT), Action.IGNORE),
        ((xid(79), told(0, 2), BOOT, xid(13)), Action.RESTART_APP),
        ((BOOT, xid(79)), Action.REBOOT),
        (("NVRM: GPU 0000:04:00.0: GPU has fallen off the bus.", BOOT), Action.IGNORE),
        (("nvidia-nvswitch0: SXid (PCI:0000:a9:00.0): 12020, Fatal, Link 30 egress",), Action.REBOOT),
        (("NVRM: knvlinkUpdatePostRxDetectLinkMask_IMPL: Failed to update Rx Detect Link mask!",), Action.REBOOT),
    ],
)
def test_the_action_that_follows(messages: tuple[str, ...], action: Action) -> None:
    assert report(*messages).action is action


def test_a_lost_gpu_is_counted_once() -> None:
    lost = "NVRM: GPU 0000:04:00.0: GPU has fallen off the bus."
    (device,) = report(xid(79), lost).devices
    assert [(row.code, row.count) for row in device.rows] == [(79, 1)]
    (alone,) = report(lost).devices
    assert [(row.code, row.count) for row in alone.rows] == [(79, 1)]


def test_uuids_are_named() -> None:
    uuid = "GPU-c43f0536-e751-7211-d7a7-78c95249ee7d"
    (device,) = report(f"NVRM: GPU at PCI:0000:04:00: {uuid}", xid(13)).devices
    assert device.uuid == uuid


def test_a_flood_of_different_lines_is_bounded() -> None:
    found = report(*(xid(1 + number % 90_000) for number in range(MAX_ROWS + 10)))
    assert sum(len(device.rows) for device in found.devices) == MAX_ROWS
    assert found.left_out == 10


def test_the_rest_of_a_long_line_is_no_line() -> None:
    line = b"x" * MAX_LINE + xid(79).encode() + b"\n"
    data = line + xid(13).encode() + b"\n"
    assert [
        row.code for device in summarise(read_lines(bounded_lines(io.BytesIO(data)))).devices for row in device.rows
    ] == [13]


@given(st.binary(max_size=400))
def test_any_file_is_answered(data: bytes) -> None:
    assert summarise(read_lines(bounded_lines(io.BytesIO(data)))).action in Action
