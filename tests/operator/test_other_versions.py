"""An operator beside agents of another version: what today's agents write stands in ``agent_reports.json`` byte for byte.

An operator of this version goes on reading that from older agents, and one of an older version reads it from today's. So
these bytes change only with the version in them, and what a reader makes of a version that it does not know is told here.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from kgpu.formats import agent_report, gpu_report, names, validation_report
from kgpu.formats.gpu_remedies import REBOOT, words
from kgpu.formats.gpu_report import ReportedGpu
from kgpu.formats.validation_report import CheckTrouble, UnpassedCheck, UnpassedDevice
from kgpu.formats.xid.action import Action
from kgpu.operations import model as operations
from kgpu.operations.config import RemediationPolicy, Strongest
from kgpu.operations.remediation import remediate
from kgpu.operator.gpu_health import gpus_of
from kgpu.operator.model import Object
from kgpu.operator.nodes import project, read_node
from kgpu.operator.overview import ShownProblem
from tests.operator.test_overview import seen
from tests.operator.world import node_object, world

WRITTEN: dict[str, str] = json.loads((Path(__file__).parent / "agent_reports.json").read_text())
"""The annotations of a node by key: GPU 1 was called healthy by a person, 3 is lost, 5 is being worked on."""
BOOT = "735a11fb-3ca3-441e-8146-2dc01602b0c7"
GPUS = gpu_report.report(
    [
        ReportedGpu(uuid="GPU-1", index=1, reason="GPUMuted", facts=("xid:95",), muted="called healthy by a person"),
        ReportedGpu(
            uuid="GPU-3", index=3, pci="0000:1b:00.0", action=Action.REBOOT, reason="GPUNeedsReboot", since=1.5,
            what="GPU is lost", remedy_key=REBOOT, facts=("xid:79", "driver:lost"), evidence=("Xid 79", "GPU is lost"),
        ),
        ReportedGpu(uuid="GPU-5", index=5, action=Action.REBOOT, reason="GPUMuted", muted="in maintenance"),
    ],
    count=8, boot=BOOT,
)  # fmt: skip
LOST = CheckTrouble(what="GPU 3 is lost", expected="an answer", remedy="reboot the node", problem="lost")
CHECKS = validation_report.report(
    (
        UnpassedCheck(
            check="driver", status="failed", devices=(UnpassedDevice(uuid="GPU-3", gpu="GPU-3", name="GPU 3", trouble=LOST),)
        ),
        UnpassedCheck(check="cuda", status="waiting", trouble=CheckTrouble(what="the driver check comes first")),
    ),
    BOOT,
)  # fmt: skip
ROLES = agent_report.AgentReport(
    version="1", generation=1, driver="580.65.06", driver_source="host", cuda="13.0", gpus=8,
    roles={
        "deviceplugin": agent_report.role("running", "7 of 8 GPUs"),
        "health": agent_report.role("waiting", "can't write", "Obstructed", "free space"),
    },
)  # fmt: skip
LATER_FIELDS = {"newField": {"a": [1]}}
INVALID = ("False", "DriverFailed", "driver: GPU 3: GPU 3 is lost; to do: reboot the node")


def changed(text: str, version: int | None = None, **fields: Any) -> str:
    """A report with these fields, in it and in each of its rows. That of roles has no version of its form."""
    tree = json.loads(text)
    roles = tree.get("roles", {})
    rows = [*roles.values(), *tree.get("checks", []), *(tree["gpus"] if not roles and "gpus" in tree else [])]
    for part in (tree, *rows, *(device for row in rows for device in row.get("devices", []))):
        part |= fields
    return json.dumps(tree if roles or version is None else {**tree, "version": version})


def node(**fields: Any) -> Object:
    """The node as the operator reads it, with more or other fields in the reports; the conditions are for people."""
    reports = {key: changed(text, **fields) if fields else text for key, text in WRITTEN.items()}
    made: Object = node_object(validated=INVALID)
    made["metadata"]["annotations"] = reports
    made["metadata"]["uid"] = "uid"
    made["metadata"]["labels"][names.LABEL_GPU_PRESENT] = "true"
    made["status"]["nodeInfo"]["bootID"] = BOOT
    shown = gpu_report.rendered(GPUS)
    made["status"]["conditions"].append(
        {
            "type": names.GPUS_HEALTHY_CONDITION, "status": shown.status, "reason": shown.reason,
            "message": shown.message,
        }
    )  # fmt: skip
    return made


def problems(read: Object) -> dict[str, ShownProblem]:
    return {problem.reason: problem for problem in seen(world(read)).problems}


def reboots(read: Object) -> list[str]:
    """What the engine does by itself about the node."""
    policy = RemediationPolicy(strongest=Strongest.REBOOT)
    node = operations.read_node(read)
    return [wanted.spec.reason for wanted in remediate({node.name: node}, (), policy, 1e9).create]


def test_an_agent_writes_what_operators_of_before_read() -> None:
    assert {
        names.GPUS_ANNOTATION: gpu_report.encode(GPUS),
        names.VALIDATION_ANNOTATION: validation_report.encode(CHECKS),
        names.ROLES_ANNOTATION: agent_report.encode(ROLES),
    } == WRITTEN, "another form of a report needs another version, or an older operator reads it wrongly"


@pytest.mark.parametrize("more", [{}, LATER_FIELDS], ids=["as of today", "with fields of a later agent"])
def test_mutes_maintenance_and_verdicts_are_read(more: dict[str, Any]) -> None:
    read = node(**more)
    known = read_node(project(read))
    assert (known.gpus, known.validation, known.report) == (GPUS, CHECKS, ROLES)
    ill = gpus_of(known)
    assert ([gpu.index for gpu in ill.ill], ill.bad, ill.untold) == ([3], 1, "")
    found = problems(read)
    assert found["GPUNotWell"].what == "GPU 3 (GPU-3) is not well: GPU is lost"
    assert words(REBOOT) in found["GPUNotWell"].remedy
    assert found["DriverFailed"].what == "driver: GPU 3: GPU 3 is lost; expected an answer"
    assert '"reboot the node"' in found["DriverFailed"].remedy
    assert reboots(read) == ["GPU 3 (GPU-3): GPU is lost"]


def test_of_a_later_version_what_it_tells_people_is_passed_on() -> None:
    """Nothing is made of the GPUs that people have muted or work on, and nothing is done by itself."""
    read = node(version=2)
    known = read_node(project(read))
    assert (known.gpus, known.validation, known.report) == (None, None, ROLES)
    ill = gpus_of(known)
    assert (ill.ill, ill.bad) == ((), 1)
    found = problems(read)
    told = found["GPUNotWell"].what
    assert (
        told == f"its GPUs are not all well, as an agent of another version says: {gpu_report.rendered(GPUS).message}"
    )
    assert all(text in told for text in ("called healthy by a person", "GPU is lost", "in maintenance"))
    assert found["DriverFailed"].what == INVALID[2]
    assert reboots(read) == []


def test_mutes_and_maintenance_of_a_later_version_are_no_trouble() -> None:
    read = node(version=2)
    muted = gpu_report.rendered(gpu_report.report([gpu for gpu in GPUS.gpus if gpu.muted], count=8))
    read["status"]["conditions"][-1] |= {"status": muted.status, "reason": muted.reason, "message": muted.message}
    assert muted.status == "True"
    assert "GPUNotWell" not in problems(read)
