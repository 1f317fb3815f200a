"""The content of ``/healthz``, ``/readyz`` and ``/statusz``: pure functions of the agent's state.

``/healthz`` is about the process alone: while it answers, it is healthy, because restarting it would stop the working
roles along with the one that waits. ``/readyz`` is about the roles.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping
from typing import Any

from kgpu.base.advice import Advice
from kgpu.base.errors import UserError
from kgpu.base.http import Response
from kgpu.base.supervise import RoleStatus
from kgpu.formats.config_choice import ConfigText
from kgpu.hw.port import Accelerator, Inventory


def healthz() -> Response:
    """200, as the process answers."""
    return Response(200, "ok\n")


def readyz(roles: Iterable[RoleStatus]) -> Response:
    """200 if every role runs, otherwise 503 with what each of the others lacks."""
    rows = list(roles)
    lines = [
        f"[{'+' if role.ready else '-'}]{role.name} {role.state}" + (f": {role.line}" if role.line else "")
        for role in rows
    ]
    ready = bool(rows) and all(role.ready for role in rows)
    return Response(200 if ready else 503, "\n".join([*lines, "ready" if ready else "not ready", ""]))


def readyz_auto(roles: Iterable[RoleStatus], off: Collection[str], *, known: bool, problem: str) -> Response:
    """``readyz`` for an agent whose roles come and go: roles that are ``off`` on this node need not run.

    ``known`` says whether there are orders. A ``problem`` with them is shown; the last good ones stay in force.
    """
    rows = list(roles)
    lines = [
        f"[{'+' if role.ready else ' ' if role.name in off else '-'}]{role.name} {role.state}"
        + (f": {role.line}" if role.line else "")
        for role in rows
    ]
    orders = problem or ("known" if known else "not known yet")
    lines.append(f"[{'+' if known and not problem else '-'}]orders {orders}")
    ready = known and all(role.ready or role.name in off for role in rows)
    return Response(200 if ready else 503, "\n".join([*lines, "ready" if ready else "not ready", ""]))


def role_row(role: RoleStatus, now: float) -> dict[str, Any]:
    """One role for JSON; ``since_seconds`` is how long it has been in its state."""
    return {
        "name": role.name,
        "state": str(role.state),
        "reason": role.line,
        "since_seconds": round(now - role.since, 1),
        "restarts": role.restarts,
    }


def accelerator_row(device: Accelerator) -> dict[str, Any]:
    """One accelerator for JSON."""
    return {
        "index": device.index,
        "uuid": device.uuid,
        "name": device.name,
        "usable": device.usable,
        "findings": [
            {"problem": str(finding.problem), "what": finding.sentence, "todo": finding.remedy}
            for finding in device.findings
        ],
        "partitions": [{"uuid": part.uuid, "profile": part.profile} for part in device.partitions],
    }


def hardware(inventory: Inventory | None, error: UserError | None) -> dict[str, Any]:
    """The last reading for JSON; ``state`` is ``ok``, ``unread`` or ``unavailable``."""
    state = "unavailable" if error is not None else "unread" if inventory is None else "ok"
    row: dict[str, Any] = {"state": state}
    if error is not None:
        row |= {"what": error.what, "expected": error.expected, "todo": error.remedy}
    if inventory is not None:
        row |= {
            "vendor": str(inventory.vendor),
            "driver_version": inventory.driver_version,
            "accelerators": [accelerator_row(device) for device in inventory.accelerators],
            "findings": [
                {"problem": str(finding.problem), "what": finding.sentence, "todo": finding.remedy}
                for finding in inventory.findings
            ],
        }
    return row


def config_row(config: ConfigText | None) -> dict[str, Any]:
    """The last configuration for JSON, without its text."""
    if config is None:
        return {"name": "", "problem": "not known yet"}
    return {
        "name": config.name,
        "bytes": len(config.text.encode()),
        "problem": config.problem.one_line() if config.problem is not None else "",
    }


def advice_row(advice: Advice) -> dict[str, Any]:
    """One record for JSON."""
    return {
        "subject": advice.subject,
        "what": advice.what,
        "why": advice.why,
        "evidence": list(advice.evidence),
        "severity": str(advice.severity),
        "remedy": advice.remedy,
        "reason": advice.reason,
    }


def statusz(document: Mapping[str, Any]) -> Response:
    """The whole document as indented JSON."""
    return Response(200, json.dumps(document, indent=2) + "\n", "application/json")
