"""What kubectl prints for people, as far as it tells anything: described pods, tables of events, and lone logs.

Total: lines of no known form are left out, and what a text does not have is not there. Ages ("5m12s (x3 over 10m)") are
kept as seconds before the text was printed; who puts the texts together knows when that was.
"""

from __future__ import annotations

import itertools
import re
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from kgpu.doctor.sources import described

_BLOCK: Final = re.compile(r"^Name:[ \t]+\S+[ \t]*$", re.MULTILINE)
_EVENTS: Final = re.compile(
    r"^(?:NAMESPACE +)?LAST SEEN +TYPE +REASON +OBJECT +(?:SUBOBJECT +SOURCE +)?MESSAGE", re.MULTILINE
)
_PODS: Final = re.compile(r"^(?:NAMESPACE +)?NAME +READY +STATUS +RESTARTS +AGE", re.MULTILINE)
_ROW: Final = re.compile(r"  +")
_AGE: Final = re.compile(r"(?:(\d+)y)?(?:(\d+)d)?(?:(\d+)h)?(?:(\d+)m)?(?:(\d+)s)?")
_OFTEN: Final = re.compile(r"(?P<last>\S+)(?: \(x(?P<count>\d+) over (?P<first>\S+)\))?")
_SECONDS: Final = (365 * 86400, 86400, 3600, 60, 1)
_KEY: Final = re.compile(r"^(?P<indent> *)(?P<key>[^:]+):(?:\s+(?P<value>.*))?$")
_STATES: Final = {"State": "state", "Last State": "lastState"}
_KINDS: Final = {
    "pod": "Pod",
    "node": "Node",
    "daemonset": "DaemonSet",
    "deployment": "Deployment",
    "replicaset": "ReplicaSet",
    "job": "Job",
    "statefulset": "StatefulSet",
    "resourceclaim": "ResourceClaim",
}
MAX_ROWS: Final = 20_000
NODE, POD, CONTAINER = "NODE", "POD", "CONTAINER"
"""What stands in commands for a name that no text has."""


@dataclass(frozen=True, slots=True)
class PrintedEvent:
    """An event, and how many seconds before the print it came first and last."""

    event: dict[str, Any]
    first: float
    last: float


@dataclass(slots=True)
class Printed:
    """What a text has. ``rows``: pods of a list, which says nothing of what they ask for or run."""

    objects: list[dict[str, Any]] = field(default_factory=list)
    told: list[PrintedEvent] = field(default_factory=list)
    rows: list[dict[str, Any]] = field(default_factory=list)

    def __bool__(self) -> bool:
        return bool(self.objects or self.told or self.rows)


def read(text: str) -> Printed:
    """Return the objects, events and pod rows found in what kubectl printed."""
    printed = Printed(rows=[row for part in _parts(text, _PODS) for row in _listed(part)])
    for block in _parts(text, _BLOCK):
        if re.search(r"^(?:Containers|Init Containers|Node-Selectors|QoS Class):", block, re.MULTILINE):
            _pod(block, printed)
        elif re.search(r"^(?:Capacity|System Info|Non-terminated Pods|Unschedulable):", block, re.MULTILINE):
            nodes = list(described.nodes(block))
            rows = described.fields(block).get("Events", ())
            printed.objects += nodes
            printed.told += [event for node in nodes for event in _events(rows, "Node", node["metadata"]["name"], "")]
    for part in _parts(text, _EVENTS):
        printed.told += _table(part)
    return printed


def _parts(text: str, head: re.Pattern[str]) -> Iterator[str]:
    """From each head to the next."""
    starts = [hit.start() for hit in head.finditer(text)]
    for start, end in itertools.pairwise((*starts, len(text))):
        yield text[start:end]


def seconds(age: str) -> float:
    """``2d3h`` as seconds; 0 for what is none, such as ``<unknown>``."""
    hit = _AGE.fullmatch(age)
    return (
        float(sum(int(part) * unit for part, unit in zip(hit.groups(), _SECONDS, strict=True) if part)) if hit else 0.0
    )


def _pod(block: str, printed: Printed) -> None:
    tree, fields = _tree(block), described.fields(block)
    name, namespace = _text(tree, "Name"), _text(tree, "Namespace") or "default"
    node = _text(tree, "Node").partition("/")[0]
    kind, _, owner_name = _text(tree, "Controlled By").partition("/")
    metadata: dict[str, Any] = {
        "name": name,
        "namespace": namespace,
        "labels": dict(described.pairs(fields.get("Labels", ()), "=")),
    }
    if owner_name:
        metadata["ownerReferences"] = [{"kind": kind, "name": owner_name, "controller": True}]
    spec: dict[str, Any] = {"nodeName": node if node not in ("", "<none>") else ""}
    began = described.time_of(_text(tree, "Start Time"))
    status: dict[str, Any] = {"phase": _text(tree, "Status").partition(" ")[0], "startTime": began}
    if reason := _text(tree, "Reason"):
        status["reason"] = reason
    if message := _text(tree, "Message"):
        status["message"] = message
    for title, key in (("Init Containers", "initContainers"), ("Containers", "containers")):
        rows = [_container(container, body) for container, body in _map(tree, title).items()]
        spec[key] = [row for row, _ in rows]
        status["initContainerStatuses" if key == "initContainers" else "containerStatuses"] = [
            row_status for _, row_status in rows
        ]
    if selector := dict(described.pairs(fields.get("Node-Selectors", ()), "=")):
        spec["nodeSelector"] = selector
    status["conditions"] = [
        {"type": cells[0], "status": cells[1]}
        for row in fields.get("Conditions", ())
        if len(cells := row.split()) == 2 and cells[1] in ("True", "False", "Unknown")
    ]
    printed.objects.append({"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec, "status": status})
    printed.told += _events(fields.get("Events", ()), "Pod", name, namespace)


def _container(name: str, body: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    tree = body if isinstance(body, dict) else {}
    resources = {key: _amounts(tree, title) for key, title in (("limits", "Limits"), ("requests", "Requests"))}
    env = [{"name": key, "value": value} for key, value in _map(tree, "Environment").items() if isinstance(value, str)]
    words = {key: list(_map(tree, title)) for key, title in (("command", "Command"), ("args", "Args"))}
    spec: dict[str, Any] = {"name": name, "image": _text(tree, "Image"), "resources": resources, "env": env}
    spec |= {key: rows for key, rows in words.items() if rows}
    count = _text(tree, "Restart Count")
    status: dict[str, Any] = {
        "name": name, "image": _text(tree, "Image"), "ready": _text(tree, "Ready") == "True",
        "restartCount": int(count) if count.isdecimal() and len(count) < 9 else 0,
    }  # fmt: skip
    for title, key in _STATES.items():
        if state := _state(tree.get(title)):
            status[key] = state
    return spec, status


def _amounts(tree: dict[str, Any], title: str) -> dict[str, str]:
    return {key: value for key, value in _map(tree, title).items() if isinstance(value, str)}


def _state(entry: Any) -> dict[str, Any]:
    """``Waiting`` with its reason below it, as Kubernetes has it."""
    tree = entry if isinstance(entry, dict) else {"": entry}
    word = str(tree.get("") or "").lower()
    if word not in ("waiting", "running", "terminated"):
        return {}
    code = _text(tree, "Exit Code")
    row: dict[str, Any] = {
        key: value for key, title in (("reason", "Reason"), ("message", "Message")) if (value := _text(tree, title))
    }
    row |= {"exitCode": int(code)} if code.lstrip("-").isdecimal() and len(code) < 6 else {}
    row |= {
        key: when
        for key, title in (("startedAt", "Started"), ("finishedAt", "Finished"))
        if (when := described.time_of(_text(tree, title)))
    }
    return {word: row}


def _tree(block: str) -> dict[str, Any]:
    """The indented ``Key: value`` lines as maps; the value beside a key that has lines below it is its "" there.

    A line without a colon below a key (a command's words) is a key of its own.
    """
    root: dict[str, Any] = {}
    stack: list[tuple[int, dict[str, Any], str]] = [(-1, root, "")]
    for line in block.splitlines()[:MAX_ROWS]:
        if not line.strip():
            continue
        hit = _KEY.match(line)
        indent = len(line) - len(line.lstrip(" "))
        while len(stack) > 1 and stack[-1][0] >= indent:
            stack.pop()
        at, holder, key = stack[-1]
        here = holder
        if at >= 0:
            beside = holder.get(key)
            if not isinstance(beside, dict):
                holder[key] = beside = {"": beside} if beside else {}
            here = beside
        name, value = (hit["key"].strip(), (hit["value"] or "").strip()) if hit else (line.strip(), "")
        here.setdefault(name, value)
        stack.append((indent, here, name))
    return root


def _text(tree: dict[str, Any], key: str) -> str:
    found = tree.get(key)
    said = found.get("", "") if isinstance(found, dict) else found
    return said if isinstance(said, str) else ""


def _map(tree: dict[str, Any], key: str) -> dict[str, Any]:
    found = tree.get(key)
    return {name: value for name, value in found.items() if name} if isinstance(found, dict) else {}


def _events(rows: Sequence[str], kind: str, name: str, namespace: str) -> list[PrintedEvent]:
    """The table at the end of a description: Type, Reason, Age, From, Message."""
    found = []
    for row in rows[:MAX_ROWS]:
        cells = _ROW.split(row, maxsplit=4)
        if len(cells) == 5 and cells[0] in ("Normal", "Warning"):
            level, reason, age, source, message = cells
            found.append(_told((level, reason, message, source), age, (kind, namespace, name)))
    return found


def _table(text: str) -> list[PrintedEvent]:
    """``kubectl get events``: the rows below the head, until one has another form."""
    head, *rows = text.splitlines()[:MAX_ROWS]
    everywhere, wide = head.startswith("NAMESPACE"), "SUBOBJECT" in head
    events = []
    for row in rows:
        cells = _ROW.split(row.rstrip(), maxsplit=4 + everywhere + 2 * wide)
        if len(cells) < 5 + everywhere:
            break
        namespace = cells.pop(0) if everywhere else "default"
        age, level, reason, about, *other_cells = cells
        kind, _, name = about.partition("/")
        if level in ("Normal", "Warning") and name:
            events.append(
                _told((level, reason, other_cells[-1], ""), age, (_KINDS.get(kind.lower(), kind), namespace, name))
            )
    return events


_COUNT: Final = re.compile(r"(?P<ready>\d{1,4})/(?P<all>\d{1,4})")
_RUNS: Final = frozenset(
    {"Running", "Completed", "Succeeded", "Pending", "Terminating", "Failed", "ContainerCreating", "PodInitializing"}
)
_PHASES: Final = {"Completed": "Succeeded", "Succeeded": "Succeeded", "Running": "Running", "Failed": "Failed"}


def _listed(text: str) -> Iterator[dict[str, Any]]:
    """``kubectl get pods``: the rows below the head, until one has another form."""
    head, *rows = text.splitlines()[:MAX_ROWS]
    columns = {title: at for at, title in enumerate(head.split())}
    for row in rows:
        cells = re.sub(r"(?<=\d) \([^)]*ago\)", "", row).split()
        if len(cells) < 4 + ("NAMESPACE" in columns) or (count := _COUNT.fullmatch(cells[columns["READY"]])) is None:
            break
        yield _row(cells, columns, count)


def _row(cells: list[str], columns: dict[str, int], count: re.Match[str]) -> dict[str, Any]:
    name, status, again = (cells[columns[title]] for title in ("NAME", "STATUS", "RESTARTS"))
    namespace = cells[columns["NAMESPACE"]] if "NAMESPACE" in columns else "default"
    node = cells[columns["NODE"]] if "NODE" in columns and columns["NODE"] < len(cells) else ""
    ready = count["ready"] == count["all"] and status == "Running"
    word = status.removeprefix("Init:")
    waits = {"waiting": {"reason": word}} if word not in _RUNS and not _COUNT.fullmatch(word) else {}
    container = {
        "name": CONTAINER, "ready": ready, "restartCount": int(again) if again.isdecimal() and len(again) < 9 else 0,
        "state": waits or ({"running": {}} if status == "Running" else {"waiting": {"reason": "PodInitializing"}}),
    }  # fmt: skip
    return {
        "apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "namespace": namespace},
        # The short list has no nodes; of what is more than pending there is one.
        "spec": {
            "nodeName": node.replace("<none>", "") or ("" if status == "Pending" else NODE),
            "containers": [{"name": CONTAINER}],
        },
        "status": {
            "phase": _PHASES.get(status, "Pending" if status in _RUNS else "Running"),
            "conditions": [{"type": "Ready", "status": str(ready)}],
            **({"containerStatuses": [container]} if status not in ("Completed", "Succeeded") else {}),
        },
    }  # fmt: skip


def _told(words: tuple[str, str, str, str], age: str, about: tuple[str, str, str]) -> PrintedEvent:
    level, reason, message, source = words
    hit = _OFTEN.match(age)
    last = seconds(hit["last"]) if hit else 0.0
    first = seconds(hit["first"]) if hit and hit["first"] else last
    kind, namespace, name = about
    event = {
        "apiVersion": "v1",
        "kind": "Event",
        "type": level,
        "reason": reason,
        "message": message,
        "metadata": {
            "namespace": namespace or "default",
            "name": f"{name}.{zlib.crc32(f'{reason} {message}'.encode()):x}",
        },
        "involvedObject": {"kind": kind, "namespace": namespace, "name": name},
        "source": {"component": source},
        "count": int(hit["count"]) if hit and hit["count"] else 1,
    }
    return PrintedEvent(event, first, last)
