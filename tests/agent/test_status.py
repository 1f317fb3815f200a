"""The pages: alive is not ready, ready names what is missing, and the document is complete JSON."""

from __future__ import annotations

import json

from kgpu.agent import status
from kgpu.base.advice import Advice, Severity
from kgpu.base.errors import ConfigError, HwError
from kgpu.base.supervise import RoleState, RoleStatus
from kgpu.formats.config_choice import ConfigText, problem_text
from kgpu.hw.port import Accelerator, HardwareFinding, Inventory, Problem


def role(name: str, state: RoleState, reason: str = "") -> RoleStatus:
    return RoleStatus(name=name, state=state, reason=reason, since=10.0, restarts=2)


GOOD = role("labels", RoleState.RUNNING)
WAITING = role("deviceplugin", RoleState.WAITING, "no kubelet socket")


def test_ready_needs_every_role():
    assert status.readyz([GOOD]).status == 200
    page = status.readyz([GOOD, WAITING])
    assert page.status == 503
    assert page.body.splitlines() == [
        "[+]labels running",
        "[-]deviceplugin waiting: no kubelet socket",
        "not ready",
    ]
    assert status.readyz([]).status == 503


def test_alive_even_when_a_role_waits():
    assert status.healthz().status == 200


def test_a_role_as_data():
    assert status.role_row(WAITING, 12.34) == {
        "name": "deviceplugin",
        "state": "waiting",
        "reason": "no kubelet socket",
        "since_seconds": 2.3,
        "restarts": 2,
    }


def test_hardware_names_devices_and_their_trouble():
    lost = HardwareFinding(
        subject="GPU-2", problem=Problem.LOST, what="it fell off the bus", expected="a GPU", remedy="reboot"
    )
    inventory = Inventory(
        vendor="nvidia",
        driver_version="580.1",
        accelerators=(
            Accelerator(vendor="nvidia", index=0, uuid="GPU-1", name="H100"),
            Accelerator(vendor="nvidia", index=1, uuid="GPU-2", name="H100", findings=(lost,)),
        ),
    )
    row = status.hardware(inventory, None)
    assert row["state"] == "ok"
    assert [device["usable"] for device in row["accelerators"]] == [True, False]
    assert row["accelerators"][1]["findings"][0]["what"] == "it fell off the bus"
    broken = status.hardware(inventory, HwError("no driver", "a driver", "install it"))
    assert broken["state"] == "unavailable"
    assert broken["todo"] == "install it"
    assert status.hardware(None, None) == {"state": "unread"}


def test_a_configuration_is_named_not_shown():
    assert status.config_row(ConfigText(name="file x", text="secret")) == {"name": "file x", "bytes": 6, "problem": ""}
    assert "no such" in status.config_row(problem_text("file x", ConfigError("no such", "b", "c")))["problem"]
    assert status.config_row(None)["problem"] == "not known yet"


def test_the_document_is_json():
    advice = Advice(subject="s", what="w", why="y", evidence=("e",), severity=Severity.ERROR, remedy="r")
    page = status.statusz({"roles": [status.role_row(GOOD, 11)], "decisions": [status.advice_row(advice)]})
    found = json.loads(page.body)
    assert page.content_type == "application/json"
    assert found["decisions"][0]["evidence"] == ["e"]
