"""What is told: rows of the verdict file, and the Node's condition."""

from __future__ import annotations

from dataclasses import replace

from msgspec import structs

from kgpu.formats.gpu_remedies import RESET, words
from kgpu.formats.gpu_report import MAX_MESSAGE, rendered
from kgpu.formats.xid.action import Action
from kgpu.health.model import EvidenceSource, GpuEvidence, HealthVerdict, RememberedGpu
from kgpu.health.publish import gpu_verdict, report_of

XID = GpuEvidence(
    source=EvidenceSource.XID, key="95", what="Xid 95: memory error", action=Action.RESET_GPU, text="a\x1b[31m", count=3
)
PROGRAM = GpuEvidence(source=EvidenceSource.XID, key="13", what="Xid 13: exception", action=Action.RESTART_APP)
LATER = structs.replace(XID, key="64", urgent=False)
WELL = HealthVerdict(gpu="GPU-1")
BAD = HealthVerdict(
    gpu="GPU-2", action=Action.RESET_GPU, healthy=False, evidence=(XID, LATER, PROGRAM), remedy_key=RESET, since=5.0
)
MILD = HealthVerdict(gpu="GPU-3", action=Action.RESTART_APP, evidence=(PROGRAM,), remedy_key="bucket/RESTART_APP")
MUTED = HealthVerdict(gpu="GPU-4", evidence=(XID,), muted="in maintenance")
STRANGER = replace(BAD, gpu="PCI-0000:19:00")


def condition(verdicts, *, unreadable: str = ""):
    return rendered(
        report_of([(row(one, None if one is STRANGER else 1), one) for one in verdicts], unreadable=unreadable)
    )


def row(verdict: HealthVerdict, index: int | None = 1):
    return gpu_verdict(verdict, RememberedGpu(gpu=verdict.gpu, index=index), pci="0000:07:00.0")


def test_a_row_has_the_causes_of_the_withdrawal_alone() -> None:
    found = row(BAD)
    assert (found.withdraws, found.action, found.reason, found.causes) == (
        True,
        "reset-gpu",
        "GPUNeedsReset",
        ("xid:95",),
    )
    assert found.what == "Xid 95: memory error and 2 more"
    assert found.evidence[0].startswith("Xid 95: memory error (3 times): a")
    assert "\x1b" not in "".join(found.evidence)
    assert (row(WELL).withdraws, row(WELL).what, row(MILD).causes) == (False, "well", ())
    assert (row(MUTED).reason, row(MUTED).withdraws) == ("GPUMuted", False)
    assert (row(STRANGER, None).uuid, row(STRANGER, None).pci) == ("", "0000:19:00")


def test_the_condition() -> None:
    assert condition([WELL, WELL]).message == "2 of 2 GPUs are well"
    assert condition([WELL]).status == "True"
    mild = condition([WELL, MILD, MUTED])
    assert (mild.status, mild.reason) == ("True", "GPUsHealthy")
    assert "1 of 3 GPUs are well" in mild.message
    assert "it goes on working" in mild.message
    assert "in maintenance" in mild.message
    bad = condition([WELL, BAD, STRANGER])
    assert (bad.status, bad.reason) == ("False", "GPUNeedsReset")
    assert f"GPU 1 (GPU-2): Xid 95: memory error and 2 more; to do: {words(RESET)}" in bad.message
    assert "GPU at 0000:19:00" in bad.message


def test_the_strongest_gives_the_reason() -> None:
    worse = replace(BAD, gpu="GPU-9", action=Action.REPLACE)
    assert condition([BAD, worse]).reason == "GPUNeedsReplacement"


def test_what_can_not_be_known_is_unknown() -> None:
    assert (condition([]).status, condition([]).reason) == ("Unknown", "NoGPUs")
    unreadable = condition([WELL], unreadable="no library")
    assert (unreadable.status, unreadable.reason) == ("Unknown", "DriverUnreadable")
    assert condition([BAD], unreadable="no library").status == "False"


def test_a_message_has_an_end() -> None:
    long = replace(BAD, evidence=(structs.replace(XID, what="x" * 5000),))
    assert len(condition([long] * 64).message) <= MAX_MESSAGE
