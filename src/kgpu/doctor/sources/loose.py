"""Texts of any name that hold no objects: what kubectl prints, a kernel's log, or the log of one container alone.

What they are is known by what they say. They are put together last, when it is known which objects there are: an object
itself beats its description, and a kernel's log without a name is of the only GPU node that there is.
"""

# ruff: noqa: E501 - a row of a table stays on its line
from __future__ import annotations

import datetime as dt
import re
import time
from collections.abc import Iterator
from typing import Any, Final

from kgpu.base.printable import one_line
from kgpu.doctor import matching, secrets
from kgpu.doctor.kinds import Log
from kgpu.doctor.model import Missing
from kgpu.doctor.obj import seconds
from kgpu.doctor.snapshot import Snapshot
from kgpu.doctor.sources import printed

_KERNEL: Final = re.compile(
    r"\bNVRM: |\bnouveau\b.*: |\bnvidia[\w-]*: (?:loading|module|disagrees|Unknown symbol)|\bamdgpu\b.*: "
)
_JOURNAL: Final = re.compile(
    r"^(?:[A-Z][a-z]{2} [ \d]\d \d\d:\d\d:\d\d|\d{4}-\d\d-\d\dT\S+) (?P<host>[\w.-]+) kernel: ", re.MULTILINE
)
_OF_GPU: Final = re.compile(r"NVRM|nouveau|nvidia|amdgpu|habanalabs", re.IGNORECASE)
_MAX_LINES: Final = 20_000
_MAX_LINE: Final = 2000
_MAX_TEXT: Final = 16 * 1024 * 1024
"""What is longer is no text that a person has printed."""
_WHOSE: Final = (
    (re.compile(r"NVIDIA Software Installer|nvidia-driver init|modprobe.*nvidia|Installing NVIDIA driver"), "nvidia-driver-daemonset"),
    (re.compile(r"device plugin|Starting GRPC server for|Starting to serve '|Retr(?:ie|ei)ving plugins|NVML library|platform detect|plugin manager"), "nvidia-device-plugin-daemonset"),
    (re.compile(r"mps-control-daemon|MPS daemon"), "nvidia-device-plugin-mps-control-daemon"),
    (re.compile(r"MIG config|mig-manager|mig-parted"), "nvidia-mig-manager"),
    (re.compile(r"nvidia-toolkit|container-toolkit|Flushing config to|nvidia-ctk"), "nvidia-container-toolkit-daemonset"),
    (re.compile(r"dcgm-exporter|DCGM_FI|nv-hostengine"), "nvidia-dcgm-exporter"),
    (re.compile(r"driver-validation|toolkit-validation|nvidia-validator|running command (?:chroot|bash) with args"), "nvidia-operator-validator"),
    (re.compile(r"gpu-operator|clusterpolicy-controller|controllers\.ClusterPolicy"), "gpu-operator"),
)  # fmt: skip
"""Words by which a lone log is known to be a part's, and the label that this part has."""


class Loose:
    """All of them."""

    def __init__(self) -> None:
        self._printed: list[tuple[str, printed.Printed]] = []
        self._kernel: list[tuple[str, str]] = []
        self._lone: list[tuple[str, str]] = []

    def add(self, name: str, data: bytes, *, alone: bool) -> bool:
        """Whether it is any of these. ``alone``: it is all that there is, so that it is somebody's log at least."""
        if len(data) > _MAX_TEXT or b"\x00" in data:
            return False
        text = data.decode("utf-8", "replace")
        found = printed.read(text)
        if found:
            self._printed.append((name, found))
        elif _KERNEL.search(text):
            self._kernel.append((name, text))
        elif alone and text.strip():
            self._lone.append((name, text))
        else:
            return False
        return True

    def finish(self, snapshot: Snapshot) -> None:
        """Everything into the snapshot."""
        for _, found in self._printed:
            for one in [*found.objects, *map(_named, found.rows), *_befallen(found.told)]:
                _add_unknown(snapshot, one)
        if self._printed:
            snapshot.taken = snapshot.taken or time.time()
        printed_at = _moment(snapshot, [found for _, found in self._printed])
        for name, found in self._printed:
            for row in found.told:
                snapshot.add(_dated(row, printed_at), name)
            if found.rows:
                why = "a list of pods does not say what they ask for or run"
                snapshot.missing.append(
                    Missing(f"the pods behind {one_line(name, 200)}", why, "kubectl get pods -A -o yaml")
                )
        for name, text in self._kernel:
            _kernel(snapshot, name, text)
        for name, text in self._lone:
            _log_alone(snapshot, name, text)


def _named(pod: dict[str, Any]) -> dict[str, Any]:
    """A pod of which no more is known than its name: under a usual name of a part it counts as that part."""
    name = pod["metadata"]["name"]
    app = next((app for _, app in _WHOSE if name.startswith(f"{app}-")), "")
    return {**pod, "metadata": {**pod["metadata"], **({"labels": {"app": app}} if app else {})}}


def _befallen(rows: list[printed.Told]) -> Iterator[dict[str, Any]]:
    """Pods of which warnings alone tell."""
    for row in rows:
        about = row.event["involvedObject"]
        if about["kind"] == "Pod" and row.event["type"] == "Warning":
            metadata = {"name": about["name"], "namespace": about["namespace"] or "default"}
            status = {"phase": "Pending", "conditions": [{"type": "Ready", "status": "False"}]}
            yield _named(
                {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": {"containers": []}, "status": status}
            )


def _add_unknown(snapshot: Snapshot, one: dict[str, Any]) -> None:
    metadata = one["metadata"]
    if one["kind"] == "Node":
        known = metadata["name"] in snapshot.nodes
    else:
        known = (metadata["namespace"], metadata["name"]) in snapshot.pods
    if not known:
        snapshot.add(one, "")


def _moment(snapshot: Snapshot, every: list[printed.Printed]) -> float:
    """When the texts were printed: a pod's start and the age of its first event tell it, else the latest time known."""
    found = [snapshot.taken]
    for one in every:
        began = {
            (obj["metadata"].get("namespace", ""), obj["metadata"]["name"]): seconds(obj["status"].get("startTime"))
            for obj in one.objects
        }
        for row in one.told:
            about = row.event["involvedObject"]
            start = began.get((about["namespace"], about["name"]))
            if start is not None and row.event["reason"] == "Scheduled":
                found.append(start + row.first)
    return max(found)


def _dated(row: printed.Told, now: float) -> dict[str, Any]:
    times = {"firstTimestamp": _time(now - row.first), "lastTimestamp": _time(now - row.last)}
    return {**row.event, **times}


def _time(moment: float) -> str:
    return dt.datetime.fromtimestamp(max(moment, 0.0), dt.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def _kernel(snapshot: Snapshot, name: str, text: str) -> None:
    hit = _JOURNAL.search(text)
    nodes = matching.gpu_nodes(snapshot) or list(snapshot.nodes.values())
    node = hit["host"] if hit else nodes[0].name if len(nodes) == 1 else printed.NODE
    known = snapshot.hosts.get(node)
    if known is not None and known.kernel_log is not None:
        return
    told = secrets.lines(line[:_MAX_LINE] for line in text.splitlines()[-_MAX_LINES:] if _OF_GPU.search(line))
    snapshot.add({"kind": "HostFacts", "metadata": {"name": node}, "kernelLog": list(told)}, name)


def _log_alone(snapshot: Snapshot, name: str, text: str) -> None:
    """A pod that stands for whoever has written it: not ready, for somebody asks about it."""
    app = next((app for pattern, app in _WHOSE if pattern.search(text)), "")
    if not snapshot.pods:
        pod = {
            "kind": "Pod", "metadata": {"name": printed.POD, "namespace": "NAMESPACE", "labels": {"app": app} if app else {}},
            "spec": {"containers": []}, "status": {"phase": "Running", "conditions": [{"type": "Ready", "status": "False"}]},
        }  # fmt: skip
        snapshot.add(pod, "")
    key = next(iter(snapshot.pods))
    lines = secrets.lines(line[:_MAX_LINE] for line in text.splitlines()[-_MAX_LINES:])
    snapshot.add_log(Log(namespace=key[0], pod=key[1], container="", previous=False, lines=lines, file=name))
