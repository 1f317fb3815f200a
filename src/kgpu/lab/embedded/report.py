"""The status of an embedded lab as plain data: processes with memory, nodes, their GPUs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from kgpu.base.errors import KubeError
from kgpu.lab import processes
from kgpu.lab.nodes import manage
from kgpu.lab.port import EMBEDDED
from kgpu.lab.processes import children, memory
from kgpu.lab.real.status import accelerators

if TYPE_CHECKING:
    from kgpu.lab.embedded.lab import EmbeddedLab

VERSION: Final = "v1.35.4"


def report(lab: EmbeddedLab) -> dict[str, Any]:
    """The whole status; only name, kind, folder and ``running`` false when the lab is not up."""
    if not lab.running:
        return {"name": lab.name, "kind": EMBEDDED, "running": False, "folder": str(lab.folder)}
    state, host = lab.state, manage.status(lab.folder)
    answers = lab.answers()
    return {
        "name": state.name,
        "kind": EMBEDDED,
        "running": True,
        "complete": state.complete,
        "answers": answers,
        "folder": str(lab.folder),
        "kubeconfig": str(lab.kubeconfig),
        "api": f"https://127.0.0.1:{state.port}",
        "profile": state.profile,
        "data": state.data,
        "logs": str(lab.logs),
        "processes": _processes(state.server, host["host"]),
        "versions": {"api server": VERSION},
        "nodes": _nodes(lab) if answers else [],
        "host": host,
        "hardware": {node.node: str(node.root) for node in lab.hardware()},
    }


def _processes(server: processes.ProcessRecord | None, host: int) -> list[dict[str, Any]]:
    """The server, the nodes' host, and the host's children (agents and containers) as one row."""
    rows = [("api server", server.pid if server and processes.alive(server) else 0), ("nodes host", host)]
    entries = [{"name": name, "pid": pid, "restarts": 0, **memory(pid)} for name, pid in rows if pid]
    below = _descendants(host) if host else []
    if below:
        sizes = [memory(pid) for pid in below]
        total = {key: sum(size.get(key, 0) for size in sizes) for key in ("rss_kib", "pss_kib")}
        entries.append({"name": f"agents and containers ({len(below)})", "pid": 0, "restarts": 0, **total})
    return entries


def _descendants(pid: int) -> list[int]:
    child_pids = children(pid)
    return child_pids + [below for child in child_pids for below in _descendants(child)]


def _nodes(lab: EmbeddedLab) -> list[dict[str, Any]]:
    from kgpu.lab.embedded import ready

    try:
        return [_node(item) for item in ready.nodes(lab.kubeconfig)]
    except KubeError:
        return []


def _node(item: dict[str, Any]) -> dict[str, Any]:
    status = item.get("status") or {}
    conditions = status.get("conditions") or ()
    return {
        "name": item["metadata"]["name"],
        "ready": any(condition["type"] == "Ready" and condition["status"] == "True" for condition in conditions),
        "capacity": accelerators(status.get("capacity") or {}),
        "allocatable": accelerators(status.get("allocatable") or {}),
    }
