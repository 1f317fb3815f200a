"""A picture of a whole cluster: every object of every kind, without what changes by itself."""

from __future__ import annotations

import json
from typing import Any

from kgpu.lab.real.cluster import RealLab

Picture = dict[str, Any]

# What the cluster itself makes and changes all the time.
FLEETING = {
    "events",
    "events.events.k8s.io",
    "leases.coordination.k8s.io",
    "endpoints",
    "ipaddresses.networking.k8s.io",
}
_NOT_COMPARED = ("resourceVersion", "managedFields", "generation")


def take(lab: RealLab) -> Picture:
    """``Kind namespace/name`` -> the object, for all that the API server lists."""
    found: Picture = {}
    kinds = lab.kubectl("api-resources", "--verbs=list", "-o", "name").split()
    for kind in sorted(set(kinds) - FLEETING):
        done = lab.kubectl_run("get", kind, "--all-namespaces", "-o", "json", "--chunk-size=0")
        if done.returncode != 0 and "NotFound" in done.stderr:  # the kind went meanwhile
            continue
        assert done.returncode == 0, done.stderr
        for obj in json.loads(done.stdout)["items"]:
            metadata = obj["metadata"]
            name = f"{obj['kind']} {metadata.get('namespace', '')}/{metadata['name']}"
            found[name] = _still(obj)
    return found


def _still(obj: Any) -> Any:
    metadata = {key: value for key, value in obj["metadata"].items() if key not in _NOT_COMPARED}
    kept = {key: value for key, value in obj.items() if key not in {"status", "metadata"}} | {"metadata": metadata}
    if obj["kind"] == "Node":
        conditions = sorted(one["type"] for one in obj["status"].get("conditions", []))
        kept["conditions"] = conditions
    return kept


def difference(before: Picture, after: Picture) -> list[str]:
    """What is more, what is less, what is not the same; a line for each."""
    more = [f"left behind: {name}" for name in sorted(after.keys() - before.keys())]
    less = [f"missing: {name}" for name in sorted(before.keys() - after.keys())]
    other = [
        f"changed: {name}: {json.dumps(before[name])[:400]} -> {json.dumps(after[name])[:400]}"
        for name in sorted(before.keys() & after.keys())
        if before[name] != after[name]
    ]
    return [*more, *less, *other]
