"""The catalogue: complete, and with NVIDIA's action for every number."""

from __future__ import annotations

import pytest

from kgpu.base.advice import Severity
from kgpu.formats.xid.action import Action
from kgpu.formats.xid.buckets import GUIDANCE, RECOVERY, Bucket
from kgpu.formats.xid.catalogue import LAST_XID, guidance, reports_recovery, switch_guidance, sxids, xids
from kgpu.hw.recovery import RECOVERY_ACTIONS


def numbers(text: str) -> set[int]:
    """``8, 39-41`` as numbers."""
    found: set[int] = set()
    for part in text.split(","):
        first, _, last = part.strip().partition("-")
        found |= set(range(int(first), int(last or first) + 1))
    return found


# NVIDIA's catalogue, column "immediate action", as published; every number that is not here is CONTACT_SUPPORT.
PUBLISHED = {
    "RESTART_APP": "8, 11, 13, 25, 31, 32, 39-41, 60, 68-72, 75-77, 80, 82-86, 88, 89, 94, 96-105, 126-135, 139",
    "RESET_GPU": "46, 62, 64, 95, 109, 110, 119, 120, 136, 140, 143, 155, 156, 158",
    "RESTART_BM": "79",
    "RESTART_VM": "151",
    "WORKFLOW_XID_48": "48",
    "WORKFLOW_XID_45": "45",
    "WORKFLOW_NVLINK_ERR": "74",
    "WORKFLOW_NVLINK5_ERR": "144-150",
    "CHECK_MECHANICALS": "54",
    "UPDATE_SWFW": "78",
    "CHECK_UVM": "159",
    "XID_154": "154",
    "IGNORE": "14, 37, 38, 43, 44, 63, 66, 67, 92, 93, 106-108, 121, 137, 141, 152, 153, 157, 160, 161",
    "": "162-172",
}
BUCKET_OF = {code: bucket for bucket, text in PUBLISHED.items() for code in numbers(text)} | {
    code: "CONTACT_SUPPORT"
    for code in range(1, LAST_XID + 1)
    if not any(code in numbers(text) for text in PUBLISHED.values())
}
# What kgpu calls for, by bucket; numbers whose row knows better are named.
ACTION_OF = {
    "RESTART_APP": "restart-app",
    "RESET_GPU": "reset-gpu",
    "RESTART_BM": "reboot",
    "RESTART_VM": "reboot",
    "WORKFLOW_XID_48": "reset-gpu",
    "WORKFLOW_XID_45": "ignore",
    "WORKFLOW_NVLINK_ERR": "reset-gpu",
    "WORKFLOW_NVLINK5_ERR": "inspect",
    "CHECK_MECHANICALS": "inspect",
    "UPDATE_SWFW": "inspect",
    "CHECK_UVM": "inspect",
    "XID_154": "inspect",
    "IGNORE": "ignore",
    "CONTACT_SUPPORT": "inspect",
    "": "inspect",
}
EXCEPTIONS = {162: "ignore"}


def test_the_catalogue_is_complete_and_in_order() -> None:
    assert list(xids()) == list(range(1, 173))
    assert len(BUCKET_OF) == 172


@pytest.mark.parametrize("code", range(1, 173))
def test_every_xid_has_nvidias_action(code: int) -> None:
    row = xids()[code]
    assert str(row.immediate) == BUCKET_OF[code]
    assert str(guidance(code).action) == EXCEPTIONS.get(code, ACTION_OF[BUCKET_OF[code]])
    assert row.mnemonic.isupper()
    assert row.what
    assert row.cause
    assert guidance(code).advice


def test_an_error_of_a_program_never_takes_a_gpu_or_node_away() -> None:
    for code in (13, 31, 43, 45, 68, 94):
        assert guidance(code).action in {Action.IGNORE, Action.RESTART_APP}


def test_mnemonics_are_unique_and_families_are_whole() -> None:
    names = [row.mnemonic for row in xids().values()]
    assert len(set(names)) == len(names)
    for engine, last in (("CE", 19), ("NVDEC", 7), ("NVJPG", 7), ("NVENC", 3), ("OFA", 1)):
        assert {f"ROBUST_CHANNEL_{engine}{number}_ERROR" for number in range(last + 1)} <= set(names)


def test_unused_numbers_name_no_product() -> None:
    for row in xids().values():
        assert bool(row.products) == row.used
        assert set(row.on) <= set("AHBG")
    assert xids()[121].products == ("GB200",)


@pytest.mark.parametrize(
    ("code", "driver", "follows"),
    [(79, 565, True), (79, 550, False), (109, 565, False), (109, 570, True), (46, 580, False), (158, 535, True),
     (79, None, False), (999, 580, False)],
)  # fmt: skip
def test_which_drivers_give_their_own_verdict(code: int, driver: int | None, follows: bool) -> None:
    assert reports_recovery(code, driver) is follows


def test_an_unknown_number_is_for_a_person() -> None:
    assert guidance(173).action is Action.INSPECT
    assert guidance(10**9).action is Action.INSPECT


def test_every_bucket_has_guidance() -> None:
    assert set(GUIDANCE) == set(Bucket)
    assert set(RECOVERY) | {"none"} == set(RECOVERY_ACTIONS.values())


def test_sxids() -> None:
    assert len(sxids()) == 93
    kinds = [row.kind for row in sxids().values()]
    assert kinds.count("always-fatal") == 21
    assert all(code >= 10_000 for code in sxids())


@pytest.mark.parametrize(
    ("code", "fatal", "action"),
    [
        (12020, None, Action.REBOOT),
        (23017, None, Action.REBOOT),
        (20034, True, Action.RESET_GPU),
        (11004, False, Action.REBOOT),
        (12028, False, Action.REBOOT),
        (24003, False, Action.IGNORE),
        (22013, False, Action.IGNORE),
        (10004, False, Action.INSPECT),
        (28006, False, Action.IGNORE),
        (28006, True, Action.RESET_GPU),
        (28006, None, Action.INSPECT),
    ],
)
def test_actions_of_sxids(code: int, fatal: bool | None, action: Action) -> None:
    assert switch_guidance(code, fatal=fatal).action is action


def test_severity_grows_with_the_action() -> None:
    for code in xids():
        found = guidance(code)
        if found.action.withdraws:
            assert found.severity is Severity.ERROR
        if found.action is Action.IGNORE:
            assert found.severity is not Severity.ERROR
