"""How operations on nodes are shown and followed, for ``kgpu node`` and ``kgpu operations``.

Whoever may ask for an operation writes some of its texts: what is none to be seen does not reach the terminal.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

import click

from kgpu.base.printable import in_columns, one_line, printable
from kgpu.cli._common import print_json
from kgpu.formats.partition_mode import parse_mode

if TYPE_CHECKING:
    from kgpu.kube.port import KubeApi
    from kgpu.operations.model import Operation, UnreadableOperation
    from kgpu.operations.requests import Preview

POLL_S: Final = 0.5
UNSEEN_S: Final = 10.0
"""Seconds after which an operation that nobody has looked at is worth a word."""
FAILED: Final = 3
_COLORS: Final = {"Complete": "green", "Failed": "red", "Pending": "yellow"}
_UNSEEN: Final = (
    "no operator has looked at it yet: one of this version has to run, with operations.enabled; see `kgpu status`"
)


def as_data(operation: Operation | UnreadableOperation) -> dict[str, Any]:
    """For JSON."""
    import msgspec

    from kgpu.operations.model import Operation

    if not isinstance(operation, Operation):
        return {"name": operation.name, "uid": operation.uid, "node": operation.node, "unreadable": operation.problem}
    return {
        "name": operation.name,
        "uid": operation.uid,
        "spec": msgspec.to_builtins(operation.spec),
        "status": msgspec.to_builtins(operation.status) | {"phase": str(operation.phase)},
    }


def table(rows: Sequence[Operation | UnreadableOperation], now: float) -> list[str]:
    """One line each, with a heading."""
    from kgpu.operations.model import Operation, moment_of

    lines: list[tuple[str, ...]] = [("NAME", "NODE", "TYPE", "PHASE", "SINCE", "WHAT")]
    for row in rows:
        if isinstance(row, Operation):
            since = moment_of(row.status.phase_since)
            age = "" if since is None else short(now - since)
            result = f" ({row.status.result})" if row.ended and row.status.result != "Succeeded" else ""
            lines.append((row.name, row.node, row.spec.type, f"{row.phase}{result}", age, _what(row)))
        else:
            lines.append((row.name, row.node, "?", "?", "", f"this version can't read it: {row.problem}"))
    return in_columns([tuple(map(one_line, line)) for line in lines])


def _what(operation: Operation) -> str:
    """What is going on; of an upgrade, from which driver to which, and of a change of MIG slices, to which config."""
    driver, message = operation.spec.driver, operation.status.message
    if operation.spec.mig is not None:
        return f"{operation.spec.mig.config}{': ' if message else ''}{message}"
    if driver is None:
        return message
    wanted = driver.version or driver.image or driver.digest
    return f"{driver.from_version or 'unknown'} -> {wanted}{': ' if message else ''}{message}"


def short(seconds: float) -> str:
    """A span as kubectl writes ages: 45s, 12m, 3h, 2d."""
    for unit, size, most in (("s", 1, 120), ("m", 60, 120 * 60), ("h", 3600, 48 * 3600)):
        if seconds < most:
            return f"{max(0, int(seconds)) // size}{unit}"
    return f"{int(seconds) // 86400}d"


def details(operation: Operation | UnreadableOperation) -> list[str]:
    """Everything of one operation."""
    from kgpu.operations.model import Operation

    if not isinstance(operation, Operation):
        return [printable(f"{operation.name}: this version of kgpu can't read it: {operation.problem}")]
    spec, status = operation.spec, operation.status
    rows = [
        ("operation", operation.name),
        ("node", f"{operation.node} ({status.node_uid or 'not seen yet'})"),
        ("type", spec.type),
        ("driver", _driver(operation)),
        ("rollout", _rollout(operation)),
        ("waits for", _waits(operation)),
        ("GPUs", ", ".join(spec.gpus)),
        ("MIG", _mig(operation)),
        ("by", spec.requested_by),
        ("reason", spec.reason),
        ("phase", f"{status.phase}{', since ' + status.phase_since if status.phase_since else ''}"),
        ("until", status.phase_deadline or ""),
        ("result", status.result),
        ("what", status.message),
        ("cordoned", "already before" if status.before is not None and status.before.unschedulable else ""),
    ]
    lines = [f"{name:<10} {value}" for name, value in rows if value]
    if status.drain is not None:
        lines.append(f"{'pods':<10} {status.drain.gone} of {status.drain.total} gone")
        lines += [f"{'':<10} {pod.namespace}/{pod.name}: {pod.why}" for pod in status.drain.waiting]
    if status.evidence is not None:
        where = f"ConfigMap {status.evidence.namespace}/{status.evidence.name}"
        size = f"{status.evidence.size_bytes // 1024 + 1} KiB"
        lines.append(f"{'evidence':<10} {where}, {size}: kgpu operations bundle {operation.name}")
    for condition in sorted(status.conditions, key=lambda condition: condition.last_transition_time):
        why = f", {condition.message}" if condition.message and condition.status == "False" else ""
        word = "" if condition.status == "True" else f": {condition.status}{why}"
        lines.append(f"{condition.last_transition_time}  {condition.type}{word}")
    return [printable(line) for line in lines]


def _driver(operation: Operation) -> str:
    """Which driver an upgrade exchanges for which."""
    driver = operation.spec.driver
    if driver is None:
        return ""
    wanted = driver.version or driver.image or f"digest {driver.digest}"
    return f"{driver.from_version or 'unknown'} -> {wanted} (DaemonSet {driver.namespace}/{driver.daemon_set})"


def _mig(operation: Operation) -> str:
    """How a change of MIG slices cuts each GPU."""
    mig = operation.spec.mig
    if mig is None:
        return ""
    rows = (f"{row.gpu} {_slices(row.devices) if row.enabled else 'without MIG'}" for row in mig.layouts)
    return f"{mig.config} (drain: {mig.drain}): {'; '.join(rows)}"


def _slices(devices: Mapping[str, int]) -> str:
    mode = next(iter(devices), "")
    if parse_mode(mode) is not None:
        return mode
    return ", ".join(f"{count} of {name}" for name, count in sorted(devices.items())) or "no slices"


def _rollout(operation: Operation) -> str:
    """The rollout that an operation belongs to, and its budget."""
    rollout = operation.spec.rollout
    if rollout is None:
        return ""
    parallel = f"at most {rollout.max_parallel} at a time" if rollout.max_parallel else "any number at a time"
    stops = f", stops after {rollout.stop_after_failures} failures in a row" if rollout.stop_after_failures else ""
    return f"{rollout.name}: {parallel}, maxUnavailable {rollout.max_unavailable}{stops}"


def _waits(operation: Operation) -> str:
    """Which pods are waited for before any is asked to go, and since when, while they are."""
    from kgpu.formats.crd.nodeoperation import WAITING_FOR_PODS

    wanted, status = operation.spec.drain.wait_for, operation.status
    if wanted is None or operation.ended:
        return ""
    limit = f"at most {wanted.timeout_seconds} s" if wanted.timeout_seconds else "without a limit"
    since = f", since {status.phase_since}" if status.reason == WAITING_FOR_PODS and status.phase_since else ""
    return f"pods with {wanted.pod_selector}{since}, {limit}"


def show_previews(previews: Sequence[Preview], output: str) -> None:
    """Print what emptying nodes would do; exit code 3 where a pod may not go, but for GPUs, as it may hold none."""
    if output == "json":
        print_json([_preview_data(preview) for preview in previews])
    else:
        click.echo("\n".join(line for preview in previews for line in _preview_lines(preview)))
    if any(preview.refused and not preview.of_gpus for preview in previews):
        raise click.exceptions.Exit(FAILED)


def _preview_heading(preview: Preview) -> str:
    if preview.of_gpus:
        return f"{preview.node.name}: stays schedulable; of its pods with GPUs, those that hold one of these:"
    return f"{preview.node.name}: {'cordoned already' if preview.node.unschedulable else 'would be cordoned'}"


def _preview_lines(preview: Preview) -> list[str]:
    """What emptying a node would do."""
    from kgpu.cli._upgrade_steps import is_upgrade, upgrade_lines
    from kgpu.operations.drain import Fate

    words = {Fate.EVICT: "would go", Fate.LEAVE: "stays", Fate.REFUSE: "MAY NOT GO"}
    pods = []
    for row in preview.pods:
        why = row.why or preview.why_held(row.pod)
        pods.append(f"  {words[row.fate]:<11} {row.pod.where}{': ' + why if why else ''}")
    lines = upgrade_lines(preview, pods) if is_upgrade(preview) else [_preview_heading(preview), *pods]
    if preview.refused and not preview.of_gpus:
        lines.append(f"{preview.node.name}: it would fail before any pod is asked to go")
    return [printable(line) for line in lines]


def _preview_data(preview: Preview) -> dict[str, Any]:
    """For JSON."""
    from kgpu.cli._upgrade_steps import is_upgrade, upgrade_data

    return {
        "node": preview.node.name,
        **(upgrade_data(preview) if is_upgrade(preview) else {}),
        "cordoned": preview.node.unschedulable,
        "ofGpus": preview.of_gpus,
        "refused": bool(preview.refused) and not preview.of_gpus,
        "pods": [
            {
                "namespace": row.pod.namespace,
                "name": row.pod.name,
                "fate": str(row.fate),
                "why": row.why or preview.blocked.get(row.pod.where, ""),
                "forced": preview.forces(row.pod),
            }
            for row in preview.pods
        ],
    }


async def follow(
    api: KubeApi, names: Iterable[str], until: Callable[[Operation], bool], *, say: Callable[[str], None]
) -> list[Operation | UnreadableOperation]:
    """Say what happens to operations until ``until`` holds for each, or it is over or deleted. Raises KubeError."""
    import asyncio

    from kgpu.kube.kinds import NODE_OPERATIONS
    from kgpu.operations.model import Operation, read_operation

    open_names, last = list(names), dict.fromkeys(names, ("", ""))
    ends: dict[str, Operation | UnreadableOperation] = {}
    begin, unseen_told = time.monotonic(), False
    while open_names:
        for name in tuple(open_names):
            obj = await api.get(NODE_OPERATIONS, name)
            if obj is None:
                say(f"{name}: it was deleted; its node is given back")
                open_names.remove(name)
                continue
            known = ends[name] = read_operation(obj)
            phase, message = _look(known)
            if (phase, message) != last[name] and phase:
                news = "" if message == last[name][1] else f": {message}"
                last[name] = (phase, message)
                say(f"{known.node}: {click.style(phase, fg=_COLORS.get(phase))}{one_line(news)}")
            if not isinstance(known, Operation) or known.ended or until(known):
                open_names.remove(name)
        unseen = [name for name in open_names if not last[name][0]]
        if unseen and not unseen_told and time.monotonic() - begin > UNSEEN_S:
            unseen_told = True
            say(f"{unseen[0]}: {_UNSEEN}")
        if open_names:
            await asyncio.sleep(POLL_S)
    return [ends[name] for name in names if name in ends]


def _look(operation: Operation | UnreadableOperation) -> tuple[str, str]:
    """Phase and message; ("", "") while nobody has looked at it."""
    from kgpu.operations.model import Operation

    if not isinstance(operation, Operation):
        return "unreadable", f"this version of kgpu can't read {operation.name}: {operation.problem}"
    if operation.status.phase_since is None:
        return "", ""
    return str(operation.phase), operation.status.message
