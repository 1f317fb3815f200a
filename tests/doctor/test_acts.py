"""Facts of a node that are older than an act of kgpu's on it: they say nothing of what the act has changed."""

from __future__ import annotations

from typing import Any

import pytest

from kgpu.doctor.plan import diagnose
from kgpu.doctor.snapshot import Snapshot
from tests.doctor.small import TAKEN, node, plugin
from tests.doctor.test_node_operations import Object, operation

READ = "2026-01-01T11:30:00Z"
LATER = "2026-01-01T11:40:00Z"
EARLIER = "2026-01-01T11:20:00Z"


def facts(taken: str = READ, **about: Any) -> Object:
    """What gpu-1 says of GPU-1, by default that a row of its memory waits for a reset."""
    gpu = {"index": 0, "uuid": "GPU-1", "pci": "0000:07:00.0", "readings": {"remapped_rows_pending": 1}} | about
    return {"kind": "HostFacts", "metadata": {"name": "gpu-1"}, "taken": taken, "gpus": [gpu]}


def act(kind: str = "GpuReset", *gpus: str, at: str = LATER, done: str = "True", uid: str = "gpu-1") -> Object:
    """The record of one that is over."""
    row = {"type": "ActDone", "status": done, "reason": "Done", "message": "", "lastTransitionTime": at}
    spec = {"type": kind, "gpus": list(gpus)}
    return operation(
        "r", spec=spec, phase="Complete", result="Succeeded", conditions=[row], nodeUID=uid, completedAt=at
    )


def told(*objects: Object) -> set[str]:
    known = node()
    known["metadata"]["uid"] = "gpu-1"
    report = diagnose(Snapshot.of((known, plugin(), *objects), taken=TAKEN), strict=True)
    return {each.id for root in report.findings for each in root.all()}


@pytest.mark.parametrize(
    ("record", "counts"),
    [
        (act("GpuReset", "GPU-1"), False),
        (act("Reboot"), False),
        (act("GpuReset", "GPU-2"), True),
        (act("GpuReset", "GPU-1", at=EARLIER), True),
        (act("GpuReset", "GPU-1", at=READ), True),
        (act("GpuReset", "GPU-1", done="Unknown"), True),
        (act("GpuReset", "GPU-1", uid="another"), True),
        (act("Maintenance"), True),
    ],
)
def test_a_reading_from_before_an_act_on_its_gpu_does_not_count(record: Object, counts: bool) -> None:
    assert ("HW-04" in told(facts(), record)) is counts


def test_nor_does_what_the_driver_asked_for_before_it() -> None:
    asked = facts(readings={}, recovery="reset")
    assert "HW-14" in told(asked)
    assert "HW-14" not in told(asked, act("GpuReset", "GPU-1"))


def test_nor_a_number_in_the_kernels_log_from_before_it() -> None:
    logged = facts(readings={}) | {"xids": [{"code": 95, "pci": "0000:07:00"}]}
    assert "HW-02" in told(logged)
    assert "HW-02" not in told(logged, act("GpuReset", "GPU-1"))
    assert "HW-02" in told(logged, act("GpuReset", "GPU-2"))


def test_nor_how_many_gpus_there_were_before_a_reboot() -> None:
    bus = [{"address": f"0000:0{each}:00.0", "vendor": "10de", "pciClass": "030200"} for each in (7, 8)]
    fewer = facts(readings={}) | {"pci": bus}
    assert "HW-09" in told(fewer)
    assert "HW-09" in told(fewer, act("GpuReset", "GPU-1"))
    assert "HW-09" not in told(fewer, act("Reboot"))
