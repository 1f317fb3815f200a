"""Pods of kgpu in both layouts, as an API server has them."""

from __future__ import annotations

from typing import Any

from kgpu.formats import names

NAMESPACE = "gpu-operator"
PLUGIN = "nvidia-device-plugin-daemonset"


def running(name: str = "main") -> dict[str, Any]:
    return {"name": name, "state": {"running": {}}}


def waiting(reason: str, name: str = "main", restarts: int = 0) -> dict[str, Any]:
    return {"name": name, "state": {"waiting": {"reason": reason}}, "restartCount": restarts}


def ended(code: int, name: str) -> dict[str, Any]:
    return {"name": name, "state": {"terminated": {"exitCode": code}}}


def pod(
    app: str, node: str, *, namespace: str = NAMESPACE, ready: bool = True, before: tuple[dict[str, Any], ...] = (),
    containers: tuple[str, ...] = ("main",), statuses: tuple[dict[str, Any], ...] = (), number: int = 0,
    sidecars: tuple[str, ...] = (), **metadata: Any,
) -> dict[str, Any]:  # fmt: skip
    """A pod of that app on that node; ``before`` are the statuses of its init containers."""
    name = f"{app}-{node or 'nowhere'}-{number}"
    init = [
        {"name": one["name"], **({"restartPolicy": "Always"} if one["name"] in sidecars else {})} for one in before
    ]  # fmt: skip
    return {
        "metadata": {
            "name": name, "namespace": namespace, "uid": f"uid-{name}", "labels": {"app": app}, **metadata,
        },
        "spec": {
            **({"nodeName": node} if node else {}), "initContainers": init,
            "containers": [{"name": one} for one in containers],
        },
        "status": {
            "phase": "Running" if ready else "Pending",
            "conditions": [{"type": "Ready", "status": "True" if ready else "False"}],
            "initContainerStatuses": list(before), "containerStatuses": list(statuses),
        },
    }  # fmt: skip


def agent(node: str, **more: Any) -> dict[str, Any]:
    return pod(names.AGENT_DAEMON_SET, node, **more)


def daemon_set(
    name: str = PLUGIN, *, wanted: int = 2, strategy: str = "RollingUpdate", **status: int
) -> dict[str, Any]:
    return {
        "metadata": {"name": name, "namespace": NAMESPACE, "generation": 1},
        "spec": {"updateStrategy": {"type": strategy}, "template": {"metadata": {"labels": {"app": name}}}},
        "status": {
            "observedGeneration": 1, "desiredNumberScheduled": wanted, "updatedNumberScheduled": wanted,
            "numberAvailable": wanted, **status,
        },
    }  # fmt: skip
