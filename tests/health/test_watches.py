"""Evidence in DCGM's words: the sheet's rules, each system once, and nothing for what DCGM does not watch."""

from __future__ import annotations

import pytest

from kgpu.formats.xid.action import Action
from kgpu.health.checks import CHECKS
from kgpu.health.model import EvidenceSource, GpuEvidence
from kgpu.health.watches import _CHECKS, FAIL, WARN, watches
from kgpu.hw.verdicts import DcgmSystem


def xid(code: int, gi: int | None = None) -> GpuEvidence:
    return GpuEvidence(source=EvidenceSource.XID, key=str(code), what="", action=Action.RESET_GPU, gpu_instance=gi)


@pytest.mark.parametrize(
    ("codes", "system", "status"),
    [
        ((48, 74, 79, 95, 119, 120, 140), "ALL", FAIL),
        ((94,), "ALL", WARN),
        ((31, 32, 43, 63), "MEM", WARN),
        ((64,), "MEM", FAIL),
        ((38, 39, 42), "PCIE", WARN),
        ((60, 61, 62), "THERMAL", WARN),
        ((54, 56, 57, 58, 78), "POWER", WARN),
        ((67, 73, 121, 137), "NVLINK", WARN),
    ],
)
def test_xids_are_about_the_systems_of_the_rules(codes: tuple[int, ...], system: str, status: int) -> None:
    for code in codes:
        (found,) = watches([xid(code)], "none")
        assert (found.system, found.status) == (system, status)


def test_each_system_and_code_once_and_the_drivers_verdict_beside() -> None:
    found = watches([xid(31), xid(43, gi=3), xid(95), xid(13)], "drain-reset")
    assert found == (
        DcgmSystem(system="ALL", status=FAIL, code="DCGM_FR_UNCONTAINED_ERROR"),
        DcgmSystem(system="DRIVER", status=FAIL, code="DCGM_FR_GPU_RECOVERY_DRAIN_RESET"),
        DcgmSystem(system="MEM", status=WARN, code="DCGM_FR_XID_ERROR"),
    )


def test_an_sxid_is_no_xid_and_nothing_known_is_nothing() -> None:
    assert (
        watches([GpuEvidence(source=EvidenceSource.SXID, key="79", what="", action=Action.RESET_GPU)], "unknown") == ()
    )
    assert watches([], "none") == ()


def test_every_row_is_of_a_check_that_there_is() -> None:
    assert set(_CHECKS) <= {check.name for check in CHECKS}
