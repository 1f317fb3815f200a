"""What Prometheus' own discovery of a cluster's endpoints finds: Debian's is built without it.

From the API server's objects to targets with the same labels, as far as ServiceMonitors ask for them.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import Any

Object = dict[str, Any]
KINDS = ("Service", "Endpoints", "Pod", "Node")
"""What ``targets`` needs of the namespace."""
_META = "__meta_kubernetes_"


def targets(objects: Iterable[Object]) -> list[Object]:
    """A target per address and port of every Endpoints object."""
    by_name = {(one["kind"], one["metadata"]["name"]): one for one in objects}
    return [
        {"targets": [f"{address['ip']}:{port['port']}"], "labels": _labels(one, address, port, by_name)}
        for (kind, _), one in sorted(by_name.items())
        if kind == "Endpoints"
        for subset in one.get("subsets") or ()
        for address in subset.get("addresses") or ()
        for port in subset.get("ports") or ()
    ]


def _labels(endpoints: Object, address: Object, port: Object, known: dict[tuple[str, str], Object]) -> dict[str, str]:
    name = endpoints["metadata"]["name"]
    found = {
        f"{_META}namespace": endpoints["metadata"]["namespace"],
        f"{_META}endpoints_name": name,
        f"{_META}endpoint_port_name": port.get("name", ""),
        f"{_META}endpoint_ready": "true",
        **dict(_of_object("service", known.get(("Service", name)))),
        **dict(_of_object("node", known.get(("Node", address.get("nodeName", ""))))),
    }
    pod = known.get(("Pod", address.get("targetRef", {}).get("name", "")))
    if pod is not None:
        found |= {**dict(_of_object("pod", pod)), f"{_META}pod_node_name": pod["spec"].get("nodeName", "")}
        for container in pod["spec"]["containers"]:
            if port["port"] in {one["containerPort"] for one in container.get("ports", ())}:
                found[f"{_META}pod_container_name"] = container["name"]
    return found


def _of_object(kind: str, found: Object | None) -> Iterator[tuple[str, str]]:
    if found is not None:
        yield f"{_META}{kind}_name", found["metadata"]["name"]
        for key, value in found["metadata"].get("labels", {}).items():
            yield f"{_META}{kind}_label_{re.sub('[^a-zA-Z0-9_]', '_', key)}", value
