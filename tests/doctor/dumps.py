"""Writes a cluster as the tools do that users have: the same objects and logs in each tool's own layout."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import yaml

Objects = list[dict[str, Any]]
UID = "2f6b1d0c-9f1e-4c9e-8a53-0d7c5a4d1e77"
STAMP = "2026-01-01T11:59:{:02d}.123456789Z"
_SCOPED = {"Node": "core/nodes", "ClusterPolicy": "nvidia.com/clusterpolicies"}


def logs(objects: Objects) -> list[tuple[str, str, str, list[str]]]:
    """Namespace, pod, container and lines of each log."""
    rows = [one for one in objects if one["kind"] == "PodLog"]
    return [(one["metadata"]["namespace"], one["metadata"]["name"], one["container"], one["lines"]) for one in rows]


def plain(objects: Objects, *kinds: str) -> Objects:
    """The objects that Kubernetes itself has, of some kinds or all."""
    return [
        one for one in objects if one["kind"] not in ("PodLog", "HostFacts") and (not kinds or one["kind"] in kinds)
    ]


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def typed_list(kind: str, objects: Objects) -> str:
    """As kubectl prints a typed list: its items have no kind."""
    items = [{key: value for key, value in one.items() if key != "kind"} for one in objects]
    return (
        json.dumps({"kind": f"{kind}List", "apiVersion": "v1", "metadata": {}, "items": items or None}, indent=4) + "\n"
    )


def _dumped(objects: Objects) -> Iterable[tuple[str, str]]:
    """The parts of ``kubectl cluster-info dump`` in their order: path, and text."""
    yield "nodes.json", typed_list("Node", plain(objects, "Node"))
    spaces = sorted({one["metadata"].get("namespace", "") for one in plain(objects)} - {""})
    for space in spaces:
        mine = [one for one in plain(objects) if one["metadata"].get("namespace") == space]
        for kind, name in (
            ("Event", "events"), ("ReplicationController", "replication-controllers"), ("Service", "services"),
            ("DaemonSet", "daemonsets"), ("Deployment", "deployments"), ("ReplicaSet", "replicasets"), ("Pod", "pods"),
        ):  # fmt: skip
            yield f"{space}/{name}.json", typed_list(kind, [one for one in mine if one["kind"] == kind])
        for pod in (one for one in mine if one["kind"] == "Pod"):
            parts = []
            for container in [*pod["spec"].get("initContainers", ()), *pod["spec"]["containers"]]:
                whose = f"container {container['name']} of pod {space}/{pod['metadata']['name']}"
                said = [
                    line
                    for namespace, name, which, lines in logs(objects)
                    if (namespace, name, which) == (space, pod["metadata"]["name"], container["name"])
                    for line in lines
                ]
                body = "".join(f"{line}\n" for line in said)
                parts.append(f"==== START logs for {whose} ====\n{body}==== END logs for {whose} ====\n")
            yield f"{space}/{pod['metadata']['name']}/logs.txt", "".join(parts)


def cluster_info_folder(objects: Objects, place: Path) -> Path:
    """``kubectl cluster-info dump --output-directory``."""
    for name, text in _dumped(objects):
        write(place / name, text)
    return place


def cluster_info_output(objects: Objects, place: Path) -> Path:
    """``kubectl cluster-info dump > FILE``."""
    write(place / "dump.txt", "".join(text for _, text in _dumped(objects)))
    return place / "dump.txt"


def must_gather(objects: Objects, place: Path) -> Path:
    """``oc adm must-gather``: an object a file, logs with times."""
    top = place / "must-gather.local.5527218350214514621" / "quay-io-openshift-release-dev-ocp-v4-0-sha256-ab12"
    write(place / top.parent / "timestamp", "2026-01-01 12:00:00 +0000 UTC m=+0.1\n")
    write(top / "version", "openshift/must-gather\n4.16.3\n")
    write(top / "event-filter.html", '<!doctype html>\n<html><body><table id="events"></table></body></html>\n')
    for one in plain(objects):
        name, space = one["metadata"]["name"], one["metadata"].get("namespace", "")
        text = "---\n" + yaml.safe_dump(one)
        if not space:
            write(
                top
                / "cluster-scoped-resources"
                / _SCOPED.get(one["kind"], f"x/{one['kind'].lower()}s")
                / f"{name}.yaml",
                text,
            )
        elif one["kind"] == "Pod":
            write(top / "namespaces" / space / "pods" / name / f"{name}.yaml", text)
    for space in {one["metadata"].get("namespace", "") for one in plain(objects)} - {""}:
        rest = [one for one in plain(objects) if one["metadata"].get("namespace") == space and one["kind"] != "Pod"]
        for kind in {one["kind"] for one in rest}:
            items = [one for one in rest if one["kind"] == kind]
            document = {"apiVersion": "v1", "kind": f"{kind}List", "items": items}
            write(top / "namespaces" / space / "core" / f"{kind.lower()}s.yaml", "---\n" + yaml.safe_dump(document))
    for space, pod, container, lines in logs(objects):
        folder = top / "namespaces" / space / "pods" / pod / container / container / "logs"
        write(folder / "current.log", "".join(f"{STAMP.format(at % 60)} {line}\n" for at, line in enumerate(lines)))
        write(folder / "previous.log", "")
    return place


def operator_gather(objects: Objects, place: Path) -> Path:
    """The GPU operator's own must-gather: its pods in one file, a log and a description a pod."""
    items = plain(objects, "Pod")
    document = {"apiVersion": "v1", "kind": "List", "metadata": {"resourceVersion": ""}, "items": items}
    write(place / "gpu_operand_pods.yaml", yaml.safe_dump(document))
    write(place / "gpu_nodes.descr", "".join(map(_described, plain(objects, "Node"))))
    write(place / "cluster_policy.missing", "")
    write(place / "gpu_nodes.labels", "gpu-1\n- nvidia.com/gpu.present=true\n")
    for _, pod, container, lines in logs(objects):
        write(place / f"gpu_operand_pod_{pod}.log", "".join(f"[pod/{pod}/{container}] {line}\n" for line in lines))
        write(place / f"gpu_operand_pod_{pod}.previous.log", "")
    write(place / "must-gather.log", "Using ARTIFACT_DIR=/must-gather\n")
    write(place / "must-gather.stderr.log", "+ kubectl get nodes\n")
    return place


def _described(node: dict[str, Any]) -> str:
    labels = "\n                    ".join(
        f"{key}={value}" for key, value in node["metadata"].get("labels", {}).items()
    )
    status = node["status"]
    amounts = "".join(
        f"{title}:\n" + "".join(f"  {key}:  {value}\n" for key, value in status[field].items())
        for title, field in (("Capacity", "capacity"), ("Allocatable", "allocatable"))
    )
    ready = "  Ready   True    Thu, 01 Jan 2026 10:00:00 +0000   Thu, 01 Jan 2026 00:00:00 +0000   KubeletReady   kubelet is posting ready status\n"
    return (
        f"Name:               {node['metadata']['name']}\nRoles:              <none>\nLabels:             {labels}\n"
        "CreationTimestamp:  Thu, 01 Jan 2026 00:00:00 +0000\nTaints:             <none>\nUnschedulable:      false\n"
        f"Conditions:\n  Type    Status  LastHeartbeatTime                 LastTransitionTime                Reason         Message\n{ready}{amounts}"
        "System Info:\n  Kernel Version:  6.8.0-40-generic\nEvents:  <none>\n\n\n"
    )


def cri(lines: list[str]) -> str:
    """As containerd keeps a log: a long line comes in parts."""
    rows = []
    for at, line in enumerate(lines):
        half = len(line) // 2
        rows += [f"{STAMP.format(at % 60)} stderr P {line[:half]}", f"{STAMP.format(at % 60)} stderr F {line[half:]}"]
    return "".join(f"{row}\n" for row in rows)


def kubelet_logs(objects: Objects, place: Path) -> Path:
    """A node's ``/var/log/pods``."""
    for space, pod, container, lines in logs(objects):
        folder = place / "pods" / f"{space}_{pod}_{UID}" / container
        write(folder / "0.log", cri(["this was before"]))
        write(folder / "1.log.20260101-115800", cri(["this was put aside"]))
        write(folder / "1.log", cri(lines))
    return place


def linked_logs(objects: Objects, place: Path) -> Path:
    """A node's ``/var/log/containers``, with what its links point to."""
    for space, pod, container, lines in logs(objects):
        write(place / "containers" / f"{pod}_{space}_{container}-{'0f' * 32}.log", cri(lines))
    return place


def docker_logs(objects: Objects, place: Path) -> Path:
    """The same by Docker."""
    for space, pod, container, lines in logs(objects):
        rows = [json.dumps({"log": f"{line}\n", "stream": "stderr", "time": STAMP.format(0)}) for line in lines]
        write(place / "containers" / f"{pod}_{space}_{container}-{'0f' * 32}.log", "\n".join(rows) + "\n")
    return place
