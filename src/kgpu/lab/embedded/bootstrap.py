"""The objects of a fresh cluster: namespaces, the ``kubernetes`` Service, priority classes, RBAC.

They are the real API server's (``data/bootstrap.json``). Existing objects are left as they are.
"""

from __future__ import annotations

import ipaddress
from importlib import resources
from typing import TYPE_CHECKING, Final

from kgpu.formats.names import SERVICE_NAME_LABEL
from kgpu.lab.embedded.core.context import now
from kgpu.lab.embedded.core.model import ApiUser, Call, decode
from kgpu.lab.embedded.kinds import METRICS_GROUP
from kgpu.lab.embedded.rbac import MASTERS
from kgpu.lab.embedded.status import ApiError, Object

if TYPE_CHECKING:
    from kgpu.lab.embedded.core import ApiCore
    from kgpu.lab.embedded.kinds import Kinds

USER: Final = ApiUser("system:apiserver", (MASTERS, "system:authenticated"))
MANAGER: Final = "kube-apiserver"
SERVICE_IP: Final = "10.96.0.1"
# The API refuses Endpoints on the loopback; this address is reserved for documentation and never reachable.
_NOT_REACHABLE: Final = "192.0.2.1"


def objects(address: str, port: int) -> list[Object]:
    """All objects, in an order of creation that works; ``address`` and ``port`` are where the API server listens."""
    parsed = ipaddress.ip_address(address)
    if parsed.is_loopback or parsed.is_unspecified or parsed.version != 4:
        address = _NOT_REACHABLE
    raw = resources.files(__package__).joinpath("data", "bootstrap.json").read_bytes()
    bootstrap_objects: list[Object] = decode(raw)["objects"]
    return [*bootstrap_objects, *_service(address, port), *_metrics()]


def _metrics() -> list[Object]:
    """What metrics-server's manifests say of the metrics API: that it is there, and who may read it."""
    aggregated = {f"rbac.authorization.k8s.io/aggregate-to-{role}": "true" for role in ("admin", "edit", "view")}
    rule = {"apiGroups": [METRICS_GROUP], "resources": ["pods", "nodes"], "verbs": ["get", "list", "watch"]}
    available = {
        "type": "Available", "status": "True", "reason": "Local",
        "message": "Local APIServices are always available",
    }  # fmt: skip
    return [
        {
            "kind": "APIService",
            "apiVersion": "apiregistration.k8s.io/v1",
            "metadata": {"name": f"v1beta1.{METRICS_GROUP}"},
            "spec": {
                "group": METRICS_GROUP, "version": "v1beta1", "groupPriorityMinimum": 100, "versionPriority": 100,
            },
            "status": {"conditions": [available]},
        },
        {
            "kind": "ClusterRole",
            "apiVersion": "rbac.authorization.k8s.io/v1",
            "metadata": {"name": "system:aggregated-metrics-reader", "labels": aggregated},
            "rules": [rule],
        },
    ]  # fmt: skip


def _service(address: str, port: int) -> list[Object]:
    metadata = {"name": "kubernetes", "namespace": "default"}
    https = {"name": "https", "port": port, "protocol": "TCP"}
    return [
        {
            "kind": "Service",
            "apiVersion": "v1",
            "metadata": {**metadata, "labels": {"component": "apiserver", "provider": "kubernetes"}},
            "spec": {
                "type": "ClusterIP",
                "clusterIP": SERVICE_IP,
                "clusterIPs": [SERVICE_IP],
                "ipFamilies": ["IPv4"],
                "ipFamilyPolicy": "SingleStack",
                "ports": [{**https, "port": 443, "targetPort": port}],
            },
        },
        {
            "kind": "Endpoints",
            "apiVersion": "v1",
            "metadata": {**metadata, "labels": {"endpointslice.kubernetes.io/skip-mirror": "true"}},
            "subsets": [{"addresses": [{"ip": address}], "ports": [https]}],
        },
        {
            "kind": "EndpointSlice",
            "apiVersion": "discovery.k8s.io/v1",
            "metadata": {**metadata, "labels": {SERVICE_NAME_LABEL: "kubernetes"}},
            "addressType": "IPv4",
            "endpoints": [{"addresses": [address], "conditions": {"ready": True}}],
            "ports": [https],
        },
    ]


def run(core: ApiCore, kinds: Kinds, *, address: str, port: int) -> None:
    """Create missing objects. Raises ApiError when one is refused, which would be a defect."""
    call = Call(user=USER, manager=MANAGER)
    for obj in objects(address, port):
        kind = kinds.of(obj["apiVersion"], obj["kind"])
        assert kind is not None, obj["kind"]
        metadata = obj["metadata"]
        namespace, name = metadata.get("namespace", ""), metadata["name"]
        try:
            core.get(kind, namespace, name)
        except ApiError as error:
            if error.code != 404:
                raise
            created = core.create(kind, namespace, obj, call).obj
            if obj.get("status"):
                # In a real cluster the API server's own controllers write this, a moment later.
                conditions = [{**condition, "lastTransitionTime": now()} for condition in obj["status"]["conditions"]]
                known = {**created, "status": {**obj["status"], "conditions": conditions}}
                core.update(kind, namespace, name, known, call, subresource="status")
