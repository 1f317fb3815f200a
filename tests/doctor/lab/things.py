"""Objects and steps that breakages are made of: pods that ask for GPUs, pods that say a line and end, nodes, events."""

from __future__ import annotations

import datetime as dt
from typing import Any

from kgpu.kube.port import Object
from tests.doctor.lab.breaking import Change, Fault, Make, Step

GPU = "nvidia.com/gpu"
CUDA = "nvidia/cuda:12.8.0-base-ubuntu24.04"
SHELL = "registry.example.com/base/ubuntu:24.04"
STAY = ("sleep", "3600")
SPACE = "team-a"
"""The namespace of what is broken; the healthy work is in another."""


def says(*lines: str, code: int = 1, stay: bool = False) -> list[str]:
    """A command that prints lines, then ends with ``code``, or stays."""
    quoted = " ".join("'" + line.replace("'", "'\\''") + "'" for line in lines)
    return ["sh", "-c", f"printf '%s\\n' {quoted}; " + ("exec sleep 3600" if stay else f"exit {code}")]


def template(
    gpus: int | dict[str, Any] = 1, *, command: list[str] | None = None, image: str = CUDA, container: Object | None = None,
    labels: dict[str, str] | None = None, **spec: Any,
) -> Object:  # fmt: skip
    """A pod template with one container; ``gpus`` of nvidia.com/gpu, or limits."""
    limits = {GPU: gpus} if isinstance(gpus, int) and gpus else gpus or {}
    main = {
        "name": "main", "image": image, "command": command or list(STAY), "terminationGracePeriodSeconds": None,
        "resources": {"limits": limits}, **(container or {}),
    }  # fmt: skip
    main.pop("terminationGracePeriodSeconds")
    return {
        "metadata": {"labels": {"app": "broken", **(labels or {})}},
        "spec": {"containers": [main], "terminationGracePeriodSeconds": 0, **spec},
    }


def pod(name: str = "broken", gpus: int | dict[str, Any] = 1, *, namespace: str = SPACE, **about: Any) -> Object:
    made = template(gpus, **about)
    made["metadata"] |= {"name": name, "namespace": namespace}
    return {"kind": "Pod", **made}


def played(made: Object, phase: str, **status: Any) -> Object:
    """A pod with a status that no kubelet of the lab writes; ready when it runs."""
    ready = {"type": "Ready", "status": str(phase == "Running")}
    return {**made, "status": {"phase": phase, "conditions": [ready], **status}}


def deployment(
    name: str, replicas: int, gpus: int | dict[str, Any] = 1, *, strategy: Object | None = None, **about: Any
) -> Object:
    made = template(gpus, labels={"app": name}, **about)
    return {
        "kind": "Deployment", "metadata": {"name": name, "namespace": SPACE},
        "spec": {
            "replicas": replicas, "selector": {"matchLabels": {"app": name}}, "template": made,
            **({"strategy": strategy} if strategy else {}),
        },
    }  # fmt: skip


def job(name: str, gpus: int | dict[str, Any] = 1, *, count: int = 1, indexed: bool = False, **about: Any) -> Object:
    made = template(gpus, **{"restartPolicy": "Never", **about})
    return {
        "kind": "Job", "metadata": {"name": name, "namespace": SPACE},
        "spec": {
            "completions": count, "parallelism": count, "backoffLimit": 0, "template": made,
            **({"completionMode": "Indexed"} if indexed else {}),
        },
    }  # fmt: skip


def make(*objects: Object) -> Make:
    return Make(objects)


def obj(kind: str, name: str, namespace: str = "", **fields: Any) -> Object:
    """Any object; ``metadata`` among the fields is added to."""
    metadata = {"name": name, **({"namespace": namespace} if namespace else {}), **fields.pop("metadata", {})}
    return {"kind": kind, "metadata": metadata, **fields}


def at(ago: float) -> str:
    """The time so many seconds ago, when it is read."""
    return (dt.datetime.now(dt.UTC) - dt.timedelta(seconds=ago)).strftime("%Y-%m-%dT%H:%M:%SZ")


def event(
    about: str, reason: str, message: str, *, namespace: str = SPACE, source: str = "kubelet", ago: float = 0
) -> Object:
    """A Warning about ``Kind/name``, as a component that no lab has would write it."""
    kind, _, name = about.partition("/")
    now = at(ago)
    space = namespace if kind != "Node" else "default"
    return {
        "kind": "Event", "metadata": {"name": f"{name}.played", "namespace": space}, "type": "Warning",
        "reason": reason, "message": message, "count": 1, "firstTimestamp": now, "lastTimestamp": now,
        "source": {"component": source}, "reportingComponent": source,
        "involvedObject": {"kind": kind, "name": name, "apiVersion": "v1", **({"namespace": namespace} if kind != "Node" else {})},
    }  # fmt: skip


def relabel(node: str, labels: dict[str, str | None]) -> Change:
    return Change("Node", node, {"metadata": {"labels": labels}})


def taint(node: str, *taints: Object) -> Change:
    return Change("Node", node, {"spec": {"taints": list(taints)}})


def xid(number: int, *, node: str, gpu: int = 3) -> Step:
    return Fault(node, "xid", {"gpu": gpu, "xid": number})
