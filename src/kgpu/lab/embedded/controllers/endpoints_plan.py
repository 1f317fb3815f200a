"""Endpoints and EndpointSlices of a Service: which pods, under which ports. Pure.

Rules of kube-controller-manager's endpoint and endpointslice controllers, for one address family: at most 100 endpoints
a slice, pods with different numbers for one named port in different slices.
"""

from __future__ import annotations

import datetime as dt
import ipaddress
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from kgpu.formats.names import SERVICE_NAME_LABEL, SLICE_MANAGER_LABEL
from kgpu.kube.port import Object, labels_of, name_of, namespace_of
from kgpu.lab.embedded.controllers.kinds import SERVICES
from kgpu.lab.embedded.controllers.meta import owner_reference, spec_of, stamp, status_of, uid_of
from kgpu.lab.embedded.controllers.pods import is_ready, is_terminal, node_of

TRIGGER: Final = "endpoints.kubernetes.io/last-change-trigger-time"
SERVICE_NAME: Final = SERVICE_NAME_LABEL
MANAGED_BY: Final = SLICE_MANAGER_LABEL
MANAGER: Final = "endpointslice-controller.k8s.io"
_HEADLESS: Final = "service.kubernetes.io/headless"
_MANAGED_LABELS: Final = {"endpoints.kubernetes.io/managed-by": "endpoint-controller"}
_PER_SLICE: Final = 100

Ports = tuple[tuple[str, int, str, str], ...]
"""Name, number, protocol and appProtocol of each."""


def has_endpoints(service: Object) -> bool:
    """Whether Endpoints are managed: not for Services without a selector (a person sets them) or external names."""
    spec = spec_of(service)
    return bool(spec.get("selector")) and spec.get("type") != "ExternalName"


def _number(pod: Object, port: Object) -> int | None:
    """The pod's number for a service port; None when it has no container port of that name."""
    target = port.get("targetPort")
    if target is None or target == 0:
        target = port.get("port")
    if isinstance(target, int):
        return target
    if isinstance(target, str) and target.isdecimal():
        return int(target)
    protocol = port.get("protocol") or "TCP"
    for container in spec_of(pod).get("containers") or ():
        for container_port in container.get("ports") or ():
            if container_port.get("name") == target and (container_port.get("protocol") or "TCP") == protocol:
                return int(container_port["containerPort"])
    return None


def ports_of(service: Object, pod: Object) -> Ports:
    """The service's ports, with this pod's port numbers."""
    return tuple(
        (port.get("name") or "", number, port.get("protocol") or "TCP", port.get("appProtocol") or "")
        for port in spec_of(service).get("ports") or ()
        if (number := _number(pod, port)) is not None
    )


def _port_rows(ports: Ports, *, slices: bool) -> list[Object]:
    rows = []
    for name, number, protocol, app in ports:
        row: Object = {"name": name} if name or slices else {}
        row |= {"port": number, "protocol": protocol}
        rows.append({**row, "appProtocol": app} if app else row)
    return rows


def address_of(pod: Object) -> str:
    return str(status_of(pod).get("podIP") or "")


def _by_address(pod: Object) -> tuple[int, bytes]:
    try:
        address = ipaddress.ip_address(address_of(pod))
    except ValueError:
        return 0, address_of(pod).encode()
    return address.version, address.packed


def members(service: Object, pods: Iterable[Object], *, terminating: bool) -> list[Object]:
    """The pods that are endpoints of the service; ``terminating``: also those being deleted."""
    selector = spec_of(service).get("selector") or {}
    return sorted(
        (
            pod
            for pod in pods
            if selector.items() <= labels_of(pod).items()
            and not is_terminal(pod)
            and address_of(pod)
            and (terminating or not pod["metadata"].get("deletionTimestamp"))
        ),
        key=_by_address,
    )


def _target(pod: Object) -> Object:
    return {"kind": "Pod", "namespace": namespace_of(pod), "name": name_of(pod), "uid": uid_of(pod)}


def _hostname(service: Object, pod: Object) -> str:
    spec = spec_of(pod)
    return str(spec.get("hostname") or "") if spec.get("subdomain") == name_of(service) else ""


def _service_labels(service: Object) -> dict[str, str]:
    labels = {key: value for key, value in labels_of(service).items() if key != _HEADLESS}
    return {**labels, _HEADLESS: ""} if spec_of(service).get("clusterIP") == "None" else labels


def plan_endpoints(service: Object, pods: Iterable[Object]) -> Object:
    """The Endpoints object's labels and subsets."""
    publish = bool(spec_of(service).get("publishNotReadyAddresses"))
    groups: dict[Ports, tuple[list[Object], list[Object]]] = {}
    for pod in members(service, pods, terminating=publish):
        address: Object = {"ip": address_of(pod), "nodeName": node_of(pod), "targetRef": _target(pod)}
        if hostname := _hostname(service, pod):
            address["hostname"] = hostname
        ports = ports_of(service, pod)
        if not ports and spec_of(service).get("ports"):
            continue
        ready = publish or is_ready(pod)
        groups.setdefault(ports, ([], []))[0 if ready else 1].append(address)
    subsets = []
    for ports, (ready_ones, others) in groups.items():
        subset: Object = {"addresses": ready_ones} if ready_ones else {}
        subset |= {"notReadyAddresses": others} if others else {}
        subsets.append({**subset, "ports": _port_rows(ports, slices=False)} if ports else subset)
    return {"labels": {**_service_labels(service), **_MANAGED_LABELS}, "subsets": subsets}


def _endpoint(service: Object, pod: Object, zones: Mapping[str, str]) -> Object:
    publish = bool(spec_of(service).get("publishNotReadyAddresses"))
    serving, ending = is_ready(pod), bool(pod["metadata"].get("deletionTimestamp"))
    conditions = {"ready": publish or (serving and not ending), "serving": serving, "terminating": ending}
    endpoint: Object = {
        "addresses": [address_of(pod)],
        "conditions": conditions,
        "nodeName": node_of(pod),
        "targetRef": _target(pod),
    }
    if hostname := _hostname(service, pod):
        endpoint["hostname"] = hostname
    zone = zones.get(node_of(pod))
    return {**endpoint, "zone": zone} if zone else endpoint


@dataclass(frozen=True, slots=True)
class SlicePlan:
    """Slices to create, to change (the old one and its new parts) and to delete."""

    create: tuple[Object, ...]
    change: tuple[tuple[Object, Object], ...]
    delete: tuple[Object, ...]


def _key(endpoint: Object) -> str:
    return str((endpoint.get("targetRef") or {}).get("uid") or endpoint.get("addresses"))


def _new_slice(service: Object, rows: list[Object], endpoints: list[Object], labels: Any, now: dt.datetime) -> Object:
    return {
        "metadata": {
            "generateName": f"{name_of(service)}-",
            "namespace": namespace_of(service),
            "labels": labels,
            "annotations": {TRIGGER: stamp(now)},
            "ownerReferences": [owner_reference(SERVICES, service)],
        },
        "addressType": (spec_of(service).get("ipFamilies") or ["IPv4"])[0],
        "endpoints": endpoints,
        "ports": rows,
    }


def plan_slices(
    service: Object,
    pods: Iterable[Object],
    slices: Sequence[Object],
    zones: Mapping[str, str],
    now: dt.datetime,
) -> SlicePlan:
    """Change as few slices as possible; ``zones`` by node."""
    wanted: dict[Ports, dict[str, Object]] = {}
    for pod in members(service, pods, terminating=True):
        endpoint = _endpoint(service, pod, zones)
        ports = ports_of(service, pod)
        if ports or not spec_of(service).get("ports"):
            wanted.setdefault(ports, {})[_key(endpoint)] = endpoint
    wanted = wanted or {(): {}}  # a service without endpoints has one empty slice
    labels = {**_service_labels(service), SERVICE_NAME: name_of(service), MANAGED_BY: MANAGER}
    create: list[Object] = []
    change: list[tuple[Object, Object]] = []
    used: set[str] = set()
    for ports, endpoints in wanted.items():
        rows = _port_rows(ports, slices=True)
        mine = [endpoint_slice for endpoint_slice in slices if (endpoint_slice.get("ports") or []) == rows]
        left = dict(endpoints)
        kept = []
        for endpoint_slice in mine:
            stay = [left.pop(_key(old)) for old in endpoint_slice.get("endpoints") or () if _key(old) in left]
            kept.append((endpoint_slice, stay))
        for _, stay in kept:
            while left and len(stay) < _PER_SLICE:
                stay.append(left.pop(next(iter(left))))
        for endpoint_slice, stay in kept:
            if not stay and (endpoints or used):
                continue  # nothing is left in it
            used.add(uid_of(endpoint_slice))
            new = {"labels": labels, "endpoints": stay}
            if (endpoint_slice.get("endpoints") or []) != stay or labels_of(endpoint_slice) != labels:
                change.append((endpoint_slice, new))
        rest = list(left.values())
        create += [
            _new_slice(service, rows, rest[start : start + _PER_SLICE], labels, now)
            for start in range(0, len(rest), _PER_SLICE)
        ]
        if not endpoints and not mine:
            create.append(_new_slice(service, rows, [], labels, now))
    delete = tuple(endpoint_slice for endpoint_slice in slices if uid_of(endpoint_slice) not in used)
    return SlicePlan(tuple(create), tuple(change), delete)
