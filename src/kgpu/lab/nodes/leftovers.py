"""What an earlier host process left in a node's folder: containers with their pods, and files of pods that are gone."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from kgpu.lab.nodes import container_processes

CONTAINERS: Final = "c"
LOGS: Final = "logs"
PODS: Final = "pods"


@dataclass(frozen=True, slots=True, kw_only=True)
class ContainerRun:
    """One run of a container that has a folder: ``attempt`` counts from 0, ``started`` is 0 when it never was."""

    folder: Path
    id: str
    pod: str
    container: str
    attempt: int
    started: float


def containers(node: Path) -> list[ContainerRun]:
    """Every run that has a folder; what can't be read belongs to nobody (pod "")."""
    runs = []
    with contextlib.suppress(FileNotFoundError):
        for folder in sorted((node / CONTAINERS).iterdir()):
            config = container_processes.read_json(folder / container_processes.CONFIG) or {}
            state = container_processes.read_state(folder)
            runs.append(
                ContainerRun(
                    folder=folder, id=str(config.get("id") or ""), pod=str(config.get("pod") or ""),
                    container=str(config.get("container") or ""), attempt=_number(config.get("attempt")),
                    started=state.started if state else 0.0,
                )
            )  # fmt: skip
    return runs


def latest(node: Path, pod: str) -> dict[str, ContainerRun]:
    """The last run of each container of a pod, by the container's name."""
    rows = sorted((run for run in containers(node) if run.pod == pod and run.id), key=lambda run: run.attempt)
    return {run.container: run for run in rows}


def sweep(node: Path, pods: Collection[str]) -> list[str]:
    """End and remove whatever belongs to none of ``pods`` (uids); return what was removed."""
    gone = [run.folder for run in containers(node) if run.pod not in pods]
    container_processes.end(*gone)
    for parent in (PODS, LOGS):
        with contextlib.suppress(FileNotFoundError):
            gone += [path for path in (node / parent).iterdir() if path.name.rpartition("_")[2] not in pods]
    for path in gone:
        shutil.rmtree(path, ignore_errors=True)
    return [str(path.relative_to(node)) for path in gone]


def _number(value: Any) -> int:
    return value if isinstance(value, int) else 0
