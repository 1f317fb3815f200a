"""Which devices of the lab's node the agent considers unhealthy, and why: read from the agent's ``/statusz``."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping
from typing import Any, Final

from kgpu.lab.real.namespaces import enter

AGENT_PORT: Final = 8090
_TIMEOUT_S: Final = 5.0
_UNHEALTHY: Final = "DeviceUnhealthy"
_RECOVERED: Final = "DeviceRecovered"
# The page is for the node itself, so it is asked for there.
_ASK: Final = f"""
import http.client, sys
connection = http.client.HTTPConnection("127.0.0.1", {AGENT_PORT}, timeout={_TIMEOUT_S})
connection.request("GET", "/statusz")
answer = connection.getresponse()
sys.stdout.buffer.write(answer.read() if answer.status == 200 else b"")
"""


def fetch(keeper: int) -> Mapping[str, Any]:
    """The agent's document, asked for in the node of this keeper. Raises OSError, ValueError or TypeError when there is
    none to read.
    """
    command = enter(keeper, [sys.executable, "-I", "-S", "-c", _ASK])
    try:
        done = subprocess.run(command, capture_output=True, check=False, timeout=4 * _TIMEOUT_S)
    except subprocess.TimeoutExpired as error:
        raise OSError("it does not answer") from error
    if done.returncode:
        raise OSError(done.stderr.decode(errors="replace").strip().rpartition("\n")[2])
    document = json.loads(done.stdout)
    if not isinstance(document, dict):
        raise TypeError("no JSON object")
    return document


def unhealthy(document: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Rows of ``device`` (its UUID), ``gpu`` (its index; None when that is not known), ``why`` and ``remedy``."""
    hardware = document.get("hardware", {})
    index: dict[str, int] = {}
    rows: dict[str, dict[str, Any]] = {}
    for gpu in hardware.get("accelerators", []):
        index |= dict.fromkeys((gpu["uuid"], *(part["uuid"] for part in gpu["partitions"])), gpu["index"])
        if not gpu["usable"]:
            rows[gpu["uuid"]] = _row(
                gpu["uuid"],
                gpu["index"],
                "; ".join(f"{finding['problem']}: {finding['what']}" for finding in gpu["findings"]),
                "; ".join(finding["todo"] for finding in gpu["findings"] if finding["todo"]),
            )
    decisions = {
        row["subject"]: row for row in document.get("decisions", []) if row["reason"] in {_UNHEALTHY, _RECOVERED}
    }
    for subject, row in decisions.items():
        if row["reason"] == _UNHEALTHY:
            rows.setdefault(subject, _row(subject, index.get(subject), row["why"], row["remedy"]))
    if hardware.get("state") == "unavailable":
        rows[""] = _row("", None, hardware["what"], hardware["todo"])
    return sorted(rows.values(), key=lambda row: (row["gpu"] is None, row["gpu"] or 0, row["device"]))


def _row(device: str, gpu: int | None, why: str, remedy: str) -> dict[str, Any]:
    return {"device": device, "gpu": gpu, "why": why or "the driver can't use it", "todo": remedy}
