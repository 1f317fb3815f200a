"""Logs of containers in files: whose each is, and which run of its container, by its path, its lines or its name.

Pods are known only when every file is read, so that logs are kept until then. Rows of ``_PLACES`` are the paths that
tools give logs: an archive of ``kgpu collect``, OpenShift's must-gather, and a node's own ``/var/log``. Where no pod
was given at all, a log has a pod that stands for its own: nothing is known of it but its name.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Final

from kgpu.doctor import secrets
from kgpu.doctor.kinds import Log
from kgpu.doctor.objects import Key
from kgpu.doctor.snapshot import Snapshot
from kgpu.doctor.sources import engine_lines, probed, tailed

MAX_LOG: Final = 1024 * 1024
MAX_LINES: Final = 5000
MAX_LINE: Final = 2000
NAMESPACE: Final = "NAMESPACE"
"""What stands in commands for a namespace that nothing tells."""
_NO_LOG: Final = b"unable to retrieve container logs for "
_NAME: Final = r"[a-z0-9](?:[a-z0-9.-]{0,251}[a-z0-9])?"
_OWN: Final = re.compile(
    r"(?:^|/)logs/(?P<namespace>[^/]+)/(?P<pod>[^/]+)/(?P<container>[^/]+?)(?P<previous>\.previous)?\.log$"
)
_GATHERED: Final = re.compile(
    rf"(?:^|/)namespaces/(?P<namespace>{_NAME})/pods/(?P<pod>{_NAME})/(?P<container>{_NAME})/(?P=container)/logs/"
    r"(?:current|(?P<previous>previous))(?:\.insecure)?\.log$"
)
_KUBELET: Final = re.compile(
    rf"(?:^|/)(?P<namespace>{_NAME})_(?P<pod>{_NAME})_[0-9a-f-]{{32,36}}/(?P<container>{_NAME})/"
    r"(?P<run>\d{1,9})\.log(?P<rotated>\.\d{8}-\d{6})?$"
)
_LINKED: Final = re.compile(
    rf"(?:^|/)(?P<pod>{_NAME})_(?P<namespace>{_NAME})_(?P<container>{_NAME})-[0-9a-f]{{64}}\.log$"
)
_DUMPED: Final = re.compile(rf"(?:^|/)(?:(?P<namespace>{_NAME})/)?(?P<pod>{_NAME})/logs\.txt$")
"""A file of ``kubectl cluster-info dump --output-directory``: all containers of one pod, between marks."""
_WRITTEN: Final = re.compile(
    rf"(?:^|/)namespaces/{_NAME}/pods/{_NAME}/{_NAME}/|(?:^|/){_NAME}_{_NAME}_[0-9a-f-]{{32,36}}/{_NAME}/"
    rf"|(?:^|/){_NAME}_{_NAME}_{_NAME}-[0-9a-f]{{64}}\.log"
)
"""Where tools keep nothing but what containers have written, under other names too."""
_PLACES: Final = (_OWN, _GATHERED, _KUBELET, _LINKED)
_BY_NAME: Final = re.compile(r"([a-z0-9][a-z0-9.-]*?)(\.previous)?\.log$")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Found:
    """A file's log. ``run``: its place among those of one container; the last is of what runs now."""

    file: str
    namespace: str
    pod: str
    container: str
    data: bytes
    previous: bool = False
    run: tuple[int, str] | None = None
    placed: bool = False
    """Whether it lies where a tool puts it, and has the file for itself."""
    said: bool = True
    """Whether the file's name says whose log it is."""
    forged: bool = False
    """Whether others may have written in it."""


class ContainerLogs:
    """All of them. ``facts`` takes what a node's agent says of the node in a log, and whether that is no one's word."""

    def __init__(self, facts: Callable[[Key, bytes, str, bool], bool]) -> None:
        self._facts = facts
        self._found: list[_Found] = []
        self._named: list[tuple[str, str, bool, bytes]] = []
        self.placed = False
        """Whether any lies where a tool puts it."""
        self.forged: list[str] = []
        """Logs with marks of others in them."""
        self.strangers: list[str] = []
        """Pods that have a log, and were not given themselves among those that were."""

    def by_place(self, name: str, data: bytes) -> bool:
        """Whether a file lies where a tool puts a container's log."""
        for pattern in _PLACES:
            hit = pattern.search(name)
            if hit is None:
                continue
            self.placed = True
            groups = hit.groupdict()
            data = engine_lines.unwrapped(data)
            number, rotated = groups.get("run"), groups.get("rotated")
            run = (int(number), rotated or "~") if number else (0, _first_time(data)) if pattern is _LINKED else None
            self._found.append(
                _Found(
                    file=name, namespace=groups["namespace"], pod=groups["pod"], container=groups["container"],
                    data=data, previous=bool(groups.get("previous")), run=run, placed=True,
                )
            )  # fmt: skip
            return True
        return False

    def by_lines(self, name: str, data: bytes, *, previous: bool = False) -> bool:
        """Whether every line says whose it is."""
        logs = tailed.parts(data)
        self.take(name, logs, previous=previous)
        return bool(logs)

    def take(
        self, name: str, logs: tuple[tailed.TailedLog, ...] | list[tailed.TailedLog], *, previous: bool = False
    ) -> None:
        """Logs that stood in one text."""
        for log in logs:
            self._found.append(
                _Found(
                    file=name, namespace=log.namespace, pod=log.pod, container=log.container, data=log.data,
                    previous=previous, said=_says(name, log), forged=log.forged,
                )
            )  # fmt: skip
            if log.forged:
                self.forged.append(f"the log of Pod {log.namespace}/{log.pod}, container {log.container}, in {name}")

    def by_name(self, name: str, data: bytes) -> None:
        """A file whose name is all that may tell whose log it is, if it is one."""
        hit = _BY_NAME.search(os.path.basename(name))
        previous = bool(hit and hit[2])
        if not self.by_lines(name, data, previous=previous):
            self._named.append((name, hit[1] if hit else "", previous, engine_lines.unwrapped(data)))

    def finish(self, snapshot: Snapshot, *, trusted: bool = True) -> list[tuple[str, bytes]]:
        """Every log to its pod. Gives the files that are of no pod that is known. ``trusted``: what a text says of
        whose it is counts, though its name does not say it.
        """
        by_name: dict[str, list[str]] = {}
        for namespace, pod in snapshot.pods:
            by_name.setdefault(pod, []).append(namespace)
        left: list[tuple[str, bytes]] = []
        for file, named, previous, data in self._named:
            pod = named if named in by_name else _in(os.path.basename(file), by_name)
            if pod:
                self._found.append(_Found(file=file, namespace="", pod=pod, container="", data=data, previous=previous))
            else:
                left.append((file, data))
        known_pods = frozenset(snapshot.pods)
        runs: dict[tuple[str, str, str], list[_Found]] = {}
        snapshot.texts |= {log.file for log in self._found if not log.said and not trusted}
        for log in self._found:
            doubt = _doubt(log, snapshot, by_name)
            namespace = log.namespace or next(iter(by_name.get(log.pod, ())), NAMESPACE)
            key = (namespace, log.pod)
            if known_pods and key not in known_pods:
                self.strangers.append(f"{namespace}/{log.pod}")
            elif key not in snapshot.pods:
                snapshot.add(stand_in(namespace, log.pod, log.container), log.file if doubt else "")
            if log.run is None:
                self._add(snapshot, key, log, log.data, previous=log.previous, said_in=log.file if doubt else "")
            else:
                runs.setdefault((*key, log.container), []).append(log)
            if not log.previous:
                stranger = ("", "" if log.placed else log.pod)
                self._facts(key if key in known_pods else stranger, log.data, log.file, doubt)
        self.strangers = list(dict.fromkeys(self.strangers))
        for (namespace, pod, _), rows in runs.items():
            self._add_runs(snapshot, (namespace, pod), rows)
        return left

    def _add_runs(self, snapshot: Snapshot, key: Key, rows: list[_Found]) -> None:
        """What runs now, with what the kubelet has put aside of it, and the run before."""
        by_run: dict[tuple[int, str], list[_Found]] = {}
        for one in sorted(rows, key=lambda row: row.run or (0, "")):
            assert one.run is not None
            by_run.setdefault((one.run[0], "" if _KUBELET.search(one.file) else one.run[1]), []).append(one)
        for back, parts in enumerate(list(by_run.values())[:-3:-1]):
            self._add(snapshot, key, parts[-1], b"".join(part.data for part in parts), previous=back > 0)

    def _add(
        self, snapshot: Snapshot, key: Key, one: _Found, data: bytes, *, previous: bool, said_in: str = ""
    ) -> None:
        log = Log(
            namespace=key[0], pod=key[1], container=one.container, previous=previous, lines=lines(data), file=one.file,
            said_in=said_in,
        )  # fmt: skip
        snapshot.add_log(log)


def is_written(name: str) -> bool:
    """Whether a path is in a place that has nothing but what containers have written."""
    return _WRITTEN.search(name) is not None


def _says(name: str, part: tailed.TailedLog) -> bool:
    """Whether a file's name says that it is the log of a part's pod."""
    dumped = _DUMPED.search(name)
    if dumped is not None:
        return dumped["pod"] == part.pod and dumped["namespace"] in (None, part.namespace)
    return name.endswith(".log") and bool(_in(os.path.basename(name), [part.pod]))


def _doubt(log: _Found, snapshot: Snapshot, by_name: dict[str, list[str]]) -> bool:
    """Whether another pod may have written it: pods of two namespaces may have one name."""
    ambiguous = not log.namespace and len(by_name.get(log.pod, ())) > 1
    return log.forged or ambiguous or log.file in snapshot.texts


def _first_time(data: bytes) -> str:
    """By what two runs of one container are put in order: the time of the first line."""
    return data[:40].split(b" ", 1)[0].decode("ascii", "replace")


def _in(name: str, pods: Iterable[str]) -> str:
    """The pod whose whole name is in a file's name, the longest of several; "" for none."""
    found = [pod for pod in pods if len(pod) >= _TELLING and pod in name]
    return max(found, key=len, default="")


_TELLING: Final = 6
"""Letters that a pod's name must have to be no accident within another name."""


def stand_in(namespace: str, pod: str, container: str = "", app: str = "") -> dict[str, Any]:
    """A pod of which no more is known than a log of it: not ready, for somebody asks about it."""
    app = app or app_by_name(pod)
    return {
        "kind": "Pod", "metadata": {"name": pod, "namespace": namespace, "labels": {"app": app} if app else {}},
        "spec": {"containers": [{"name": container}] if container else []},
        "status": {"phase": "Running", "conditions": [{"type": "Ready", "status": "False"}]},
    }  # fmt: skip


_PARTS: Final = (
    (
        "nvidia-driver-daemonset",
        "nvidia-driver-daemonset|nvidia-gpu-driver",
        r"NVIDIA Software Installer|nvidia-driver init|modprobe.*nvidia|Installing NVIDIA driver",
    ),
    (
        "nvidia-device-plugin-daemonset",
        "nvidia-device-plugin(?!-mps)|nvidia-gpu-device-plugin",
        (
            r"device plugin|Starting GRPC server for|Starting to serve '|Retr(?:ie|ei)ving plugins|NVML library"
            r"|platform detect|plugin manager"
        ),
    ),
    ("nvidia-device-plugin-mps-control-daemon", "mps-control-daemon", r"mps-control-daemon|MPS daemon"),
    ("nvidia-mig-manager", "mig-manager", r"MIG config|mig-manager|mig-parted"),
    (
        "nvidia-container-toolkit-daemonset",
        "container-toolkit",
        r"nvidia-toolkit|container-toolkit|Flushing config to|nvidia-ctk",
    ),
    ("nvidia-dcgm-exporter", "dcgm-exporter", r"dcgm-exporter|DCGM_FI|nv-hostengine"),
    (
        "nvidia-operator-validator",
        "operator-validator",
        r"driver-validation|toolkit-validation|nvidia-validator|running command (?:chroot|bash) with args",
    ),
    (
        "gpu-operator",
        "^gpu-operator-(?!node-feature)",
        r"gpu-operator|clusterpolicy-controller|controllers\.ClusterPolicy",
    ),
    ("amdgpu-dp-ds", "amdgpu-device-plugin|amdgpu-dp", r"AMD GPU device plugin"),
)
"""The label of a part of a GPU stack, the names that its pods have, and what it says in its log."""
_NAMES: Final = tuple((app, re.compile(named)) for app, named, _ in _PARTS)
_WORDS: Final = tuple((app, re.compile(said)) for app, _, said in _PARTS)


def app_by_name(pod: str) -> str:
    """The label of the part that a pod is by its name, "" for none."""
    return next((app for app, pattern in _NAMES if pattern.search(pod)), "")


def app_by_words(text: str) -> str:
    """The label of the part that says such things in its log, "" for none."""
    return next((app for app, pattern in _WORDS if pattern.search(text)), "")


def lines(data: bytes) -> tuple[str, ...]:
    """The last lines of a log, cut and cleaned; what is packed in it is no line.

    The kubelet answers with one of its own, and no error, where the engine has the log no more.
    """
    if data.startswith(_NO_LOG) and data.count(b"\n") < 2:
        return ()
    said = probed.without(data[-MAX_LOG:]).decode("utf-8", "replace")
    return secrets.lines(line[:MAX_LINE] for line in said.splitlines()[-MAX_LINES:])
