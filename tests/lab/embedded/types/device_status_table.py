"""Statuses of claims and of pods with claims, good and bad: the second half of ``device_table``."""

from __future__ import annotations

from typing import Any

from tests.lab.embedded.types.device_objects import CLAIM, DRIVER, TERM, UID
from tests.lab.embedded.types.row import Object, Row, laid

RESULT: Object = {"request": "gpu", "driver": DRIVER, "pool": "n1", "device": "gpu-0"}
CONSUMER: Object = {"resource": "pods", "name": "p", "uid": UID}
KNOWN: Object = {"driver": DRIVER, "pool": "n1", "device": "gpu-0"}


def allocated(*results: Object, **over: Any) -> Object:
    return {"allocation": {"devices": {"results": list(results or [RESULT]), **over}}}


def result(**over: Any) -> Object:
    return allocated({**RESULT, **over})


def device_status(**over: Any) -> Object:
    return {**allocated(), "devices": [{**KNOWN, **over}]}


def condition(**over: Any) -> Object:
    whole = {
        "type": "Ready",
        "status": "True",
        "reason": "R",
        "message": "",
        "lastTransitionTime": "2026-01-02T03:04:05Z",
    }
    return device_status(conditions=[{key: value for key, value in {**whole, **over}.items() if value is not None}])


# The status to write, of a claim without one.
STATUSES: dict[str, Object] = {
    "allocated": allocated(),
    "reserved": {**allocated(), "reservedFor": [CONSUMER]},
    "only-reserved": {"reservedFor": [CONSUMER]},
    "reserved-twice": {**allocated(), "reservedFor": [CONSUMER, {**CONSUMER, "name": "q"}]},
    "reserved-empty": {**allocated(), "reservedFor": [{}]},
    "many-reserved": {**allocated(), "reservedFor": [{**CONSUMER, "uid": f"u{number}"} for number in range(257)]},
    "most-reserved": {**allocated(), "reservedFor": [{**CONSUMER, "uid": f"u{number}"} for number in range(256)]},
    "request": result(request="other"),
    "request-name": result(request="A"),
    "no-request": result(request=None),
    "driver": result(driver="A_B"),
    "no-driver": result(driver=None),
    "pool": result(pool="A"),
    "no-pool": result(pool=None),
    "device": result(device="A"),
    "share": result(shareID=UID),
    "share-length": result(shareID="a"),
    "share-upper": result(shareID=UID.upper()),
    "share-urn": result(shareID=f"urn:uuid:{UID}"),
    "share-format": result(shareID=UID.replace("-", "_")),
    "consumed": result(consumedCapacity={"memory": "1Gi"}),
    "binding": result(bindingConditions=["a"]),
    "admin": result(adminAccess=True),
    "no-results": allocated(results=[]),
    "many-results": allocated(*({**RESULT, "device": f"gpu-{number}"} for number in range(33))),
    "config": allocated(config=[{"source": "FromClass", "requests": ["gpu"], "opaque": {"driver": "a", "parameters": {"b": 1}}}]),
    "config-source": allocated(config=[{"source": "Else", "opaque": {"driver": "a", "parameters": {"b": 1}}}]),
    "config-no-source": allocated(config=[{"opaque": {"driver": "a", "parameters": {"b": 1}}}]),
    "config-opaque": allocated(config=[{"source": "FromClaim"}]),
    "config-request": allocated(config=[{"source": "FromClaim", "requests": ["b"], "opaque": {"driver": "a", "parameters": {"b": 1}}}]),
    "many-configs": allocated(config=[{"source": "FromClaim", "opaque": {"driver": "a", "parameters": {"b": 1}}}] * 65),
    "selector": {"allocation": {"devices": {"results": [RESULT]}, "nodeSelector": {"nodeSelectorTerms": [TERM]}}},
    "selector-none": {"allocation": {"devices": {"results": [RESULT]}, "nodeSelector": {"nodeSelectorTerms": []}}},
    "timestamp": {"allocation": {"devices": {"results": [RESULT]}, "allocationTimestamp": "2026-01-02T03:04:05Z"}},
    "devices": device_status(data={"a": 1}),
    "devices-other": {**allocated(), "devices": [{**KNOWN, "device": "gpu-1"}]},
    "devices-share": device_status(shareID=UID),
    "devices-unallocated": {"devices": [KNOWN]},
    "devices-twice": {**allocated(), "devices": [KNOWN, KNOWN]},
    "devices-driver": device_status(driver=""),
    "devices-data": device_status(data={"a": "b" * 10 * 1024}),
    "condition": condition(),
    "condition-type": condition(type="a b"),
    "condition-status": condition(status="Yes"),
    "condition-reason": condition(reason="a b"),
    "condition-no-reason": condition(reason=""),
    "condition-generation": condition(observedGeneration=-1),
    "condition-message": condition(message="a" * 32769),
    "conditions-twice": device_status(conditions=[condition()["devices"][0]["conditions"][0]] * 2),
    "conditions-many": device_status(conditions=[{**condition()["devices"][0]["conditions"][0], "type": f"t{number}"} for number in range(9)]),
    "network": device_status(networkData={"interfaceName": "eth0", "ips": ["10.0.0.1/24", "2001:db8::1/64"], "hardwareAddress": "a"}),
    "network-address": device_status(networkData={"ips": ["10.0.0.1"]}),
    "network-form": device_status(networkData={"ips": ["2001:DB8::1/64"]}),
    "network-twice": device_status(networkData={"ips": ["10.0.0.1/24", "10.0.0.1/24"]}),
    "network-many": device_status(networkData={"ips": [f"10.0.0.{number}/24" for number in range(17)]}),
    "network-name": device_status(networkData={"interfaceName": "a" * 257, "hardwareAddress": "a" * 129}),
}  # fmt: skip

# The status to write over one that is allocated, reserved, and has a device's status.
FIRST: Object = {**device_status(data={"a": 1}), "reservedFor": [CONSUMER]}
LATER: dict[str, Object] = {
    "reserve": {"reservedFor": [CONSUMER, {**CONSUMER, "uid": "other"}]},
    "release": {"reservedFor": []},
    "reallocate": {"allocation": {"devices": {"results": [{**RESULT, "device": "gpu-1"}]}}},
    "deallocate": {"allocation": None, "reservedFor": None},
    "deallocate-reserved": {"allocation": None},
    "select": {"allocation": {"nodeSelector": {"nodeSelectorTerms": [TERM]}}},
    "data": {"devices": [{**KNOWN, "data": {"b": 2}}]},
}


MAPPING: Object = {"containerName": "c", "resourceName": "example.com/gpu", "requestName": "r"}
POD: Object = {
    "apiVersion": "v1", "kind": "Pod", "metadata": {"name": "with-claims"},
    "spec": {
        "containers": [{"name": "c", "image": "i", "resources": {"limits": {"example.com/gpu": "1"}}}],
        "resourceClaims": [{"name": "gpu", "resourceClaimTemplateName": "t"}],
    },
}  # fmt: skip


def mapped(*mappings: Object, name: str = "x") -> Object:
    return {"extendedResourceClaimStatus": {"resourceClaimName": name, "requestMappings": list(mappings)}}


# The status to write of a pod with a claim and an extended resource.
POD_STATUSES: dict[str, Object] = {
    "claims": {"resourceClaimStatuses": [{"name": "gpu", "resourceClaimName": "x"}]},
    "claims-needless": {"resourceClaimStatuses": [{"name": "gpu"}]},
    "claims-other": {"resourceClaimStatuses": [{"name": "b", "resourceClaimName": "x"}]},
    "claims-name": {"resourceClaimStatuses": [{"name": "gpu", "resourceClaimName": "A"}]},
    "extended": mapped(MAPPING),
    "extended-nothing": mapped(),
    "extended-twice": mapped(MAPPING, MAPPING),
    "extended-container": mapped({**MAPPING, "containerName": "d"}),
    "extended-resource": mapped({**MAPPING, "resourceName": "cpu"}),
    "extended-request": mapped({**MAPPING, "requestName": "A"}),
    "extended-name": mapped(MAPPING, name="A"),
    "extended-no-name": mapped(MAPPING, name=""),
}


def rows() -> list[Row]:
    claim = laid(CLAIM, {"metadata": {"name": "status"}})
    found = [
        Row(f"status/{name}", claim, patch={"status": status}, subresource="status")
        for name, status in STATUSES.items()
    ]
    held = laid(CLAIM, {"metadata": {"name": "held"}})
    found += [
        Row(f"held/{name}", held, patch={"status": status}, subresource="status", first={"status": FIRST})
        for name, status in LATER.items()
    ]
    found += [
        Row(f"pod-status/{name}", POD, patch={"status": status}, subresource="status")
        for name, status in POD_STATUSES.items()
    ]
    return found
