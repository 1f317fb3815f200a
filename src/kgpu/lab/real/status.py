"""What a lab looks like right now, as plain data: processes with memory, versions, the node, its GPUs, its pods."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from kgpu.lab.port import REAL
from kgpu.lab.processes import children, memory
from kgpu.lab.real import components, devices
from kgpu.lab.real.model import NODE_NAME
from kgpu.lab.real.plan import AGENT

if TYPE_CHECKING:
    from kgpu.lab.real.cluster import RealLab


def accelerators(quantities: dict[str, str]) -> dict[str, str]:
    """The extended resources among a node's quantities: those with a domain that is not Kubernetes' own."""
    return {name: count for name, count in quantities.items() if "/" in name and "kubernetes.io/" not in name}


def report(lab: RealLab) -> dict[str, Any]:
    """The whole status; ``running`` alone is false when the lab is not up."""
    if not lab.running:
        return {"name": lab.spec.name, "kind": REAL, "running": False, "folder": str(lab.paths.root)}
    lab_state = lab.state
    processes = [
        {"name": entry["name"], "pid": entry["pid"], "restarts": max(0, entry["starts"] - 1), **memory(entry["pid"])}
        for entry in lab.processes()
        if entry["starts"]
    ]
    # The agent is two processes; its cost on a node is both.
    processes += [
        {"name": f"{AGENT} (driver child)", "pid": child, "restarts": 0, **memory(child)}
        for entry in processes
        if entry["name"] == AGENT
        for child in children(entry["pid"])
    ]
    versions = {item.name: components.version_of(item) for item in components.COMPONENTS if components.version_of(item)}
    return {
        "name": lab_state.name,
        "kind": REAL,
        "running": True,
        "complete": lab_state.complete,
        "folder": str(lab.paths.root),
        "kubeconfig": str(lab.kubeconfig),
        "api": lab.network.api_url,
        "profile": lab_state.profile,
        "hw_root": str(lab.hw_root),
        "logs": str(lab.paths.logs),
        "keeper": lab.keeper,
        "processes": processes,
        "versions": versions,
        "nodes": [_node(lab)],
        "hardware": {machine.node: str(machine.root) for machine in lab.hardware()},
        **(_devices(lab) if lab_state.agent and lab_state.complete else {}),
    }


def _devices(lab: RealLab) -> dict[str, Any]:
    """``unhealthy`` devices as the agent sees them, or ``agent_problem`` when it can't be asked."""
    try:
        return {"unhealthy": devices.unhealthy(devices.fetch(lab.keeper))}
    except (OSError, ValueError, LookupError, TypeError) as error:
        return {"unhealthy": [], "agent_problem": f"the agent can't be asked: {error}"}


def _node(lab: RealLab) -> dict[str, Any]:
    done = lab.kubectl_run("get", "node", NODE_NAME, "-o", "json", "--request-timeout=5s")
    if done.returncode != 0:
        return {"name": NODE_NAME, "ready": False, "problem": done.stderr.strip()}
    status = json.loads(done.stdout)["status"]
    ready = any(item["type"] == "Ready" and item["status"] == "True" for item in status.get("conditions", []))
    return {
        "name": NODE_NAME,
        "ready": ready,
        "capacity": accelerators(status.get("capacity", {})),
        "allocatable": accelerators(status.get("allocatable", {})),
    }
