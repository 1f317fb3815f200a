"""Nodes out of the text that ``kubectl describe nodes`` prints, which is all that a must-gather folder has of them.

Total: lines of no known form are left out. What the text cuts or does not have is not there: describe shows no
capacity of what a node never had, and times in another form than Kubernetes writes elsewhere.
"""

from __future__ import annotations

import datetime as dt
import email.utils
import itertools
import re
from collections.abc import Iterator, Sequence
from typing import Any, Final

_NODE: Final = re.compile(r"^Name:[ \t]+(\S+)[ \t]*$", re.MULTILINE)
_FIELD: Final = re.compile(r"^([A-Z][A-Za-z -]*):[ \t]*(.*)$")
_COLUMNS: Final = re.compile(r"  +")
_TAINT: Final = re.compile(r"([^=:\s]+)(?:=([^:\s]*))?:(NoSchedule|PreferNoSchedule|NoExecute)$")
_TIME: Final = re.compile(r"[A-Z][a-z]{2}, \d\d [A-Z][a-z]{2} \d{4} \d\d:\d\d:\d\d [+-]\d{4}")
_INFO: Final = {
    "Boot ID": "bootID", "Kernel Version": "kernelVersion", "OS Image": "osImage", "Architecture": "architecture",
    "Operating System": "operatingSystem", "Container Runtime Version": "containerRuntimeVersion",
    "Kubelet Version": "kubeletVersion",
}  # fmt: skip


def nodes(text: str) -> Iterator[dict[str, Any]]:
    """One object for each node."""
    starts = [hit.start() for hit in _NODE.finditer(text)]
    for start, end in itertools.pairwise((*starts, len(text))):
        yield _node(text[start:end])


def _node(text: str) -> dict[str, Any]:
    rows_by_field = fields(text)
    first = {name: rows[0] if rows else "" for name, rows in rows_by_field.items()}
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {
            "name": first["Name"],
            "labels": dict(pairs(rows_by_field.get("Labels", ()), "=")),
            "annotations": dict(pairs(rows_by_field.get("Annotations", ()), ":")),
            "creationTimestamp": time_of(first.get("CreationTimestamp", "")),
        },
        "spec": {
            "taints": [_taint(hit) for row in rows_by_field.get("Taints", ()) if (hit := _TAINT.match(row))],
            "unschedulable": first.get("Unschedulable") == "true",
        },
        "status": {
            "capacity": dict(pairs(rows_by_field.get("Capacity", ()), ":")),
            "allocatable": dict(pairs(rows_by_field.get("Allocatable", ()), ":")),
            "conditions": list(_conditions(rows_by_field.get("Conditions", ()))),
            "nodeInfo": {
                _INFO[name]: value for name, value in pairs(rows_by_field.get("System Info", ()), ":") if name in _INFO
            },
        },
    }


def fields(text: str) -> dict[str, list[str]]:
    """The rows of every field at the left edge, the first beside its name. What else is at the left edge ends it."""
    rows_by_field: dict[str, list[str]] = {}
    rows: list[str] = []
    for line in text.splitlines():
        hit = _FIELD.match(line)
        if hit:
            rows = rows_by_field.setdefault(hit[1], [])
        elif line[:1] not in ("", " ", "\t"):
            rows = []
        value = hit[2] if hit else line
        if value.strip():
            rows.append(value.strip())
    return rows_by_field


def pairs(rows: Sequence[str], between: str) -> Iterator[tuple[str, str]]:
    """Rows of ``NAME BETWEEN VALUE``."""
    for row in rows:
        name, mark, value = row.partition(between)
        if mark and name:
            yield name.strip(), value.strip()


def _taint(hit: re.Match[str]) -> dict[str, str]:
    return {"key": hit[1], "effect": hit[3], **({"value": hit[2]} if hit[2] else {})}


def _conditions(rows: list[str] | tuple[()]) -> Iterator[dict[str, str]]:
    names = ("type", "status", "lastHeartbeatTime", "lastTransitionTime", "reason", "message")
    for row in rows:
        cells = _COLUMNS.split(row, maxsplit=5)
        if len(cells) < 5 or cells[1] not in ("True", "False", "Unknown"):
            continue
        found = dict(zip(names, cells, strict=False))
        yield {name: time_of(value) if name.endswith("Time") else value for name, value in found.items()}


def time_of(text: str) -> str:
    """As Kubernetes writes it elsewhere, "" for what is no time."""
    if not _TIME.fullmatch(text):
        return ""
    try:
        when = email.utils.parsedate_to_datetime(text)
    except ValueError:
        return ""
    return when.astimezone(dt.UTC).isoformat().replace("+00:00", "Z")
