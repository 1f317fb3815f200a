"""Cluster addresses and node ports of Services, as the real server's allocators give them."""

from __future__ import annotations

import ipaddress
import random
from typing import Final

from kgpu.lab.embedded.core.model import ObjectLookup, Review
from kgpu.lab.embedded.status import Object, bad_value, invalid

NETWORK: Final = ipaddress.ip_network("10.96.0.0/12")
_PORTS: Final = range(30000, 32768)
_TAKEN: Final = "failed to allocate IP {0}: provided IP is already allocated"


class ServiceAddresses:
    """Gives a Service its address, families and ports, or refuses an address that is in use or out of range."""

    mutating = True

    def admit(self, review: Review, reads: ObjectLookup) -> None:
        if review.kind.key != ("", "services") or review.subresource or review.operation not in {"CREATE", "UPDATE"}:
            return
        spec = review.obj["spec"]
        own = review.obj["metadata"].get("uid") or (review.old or {}).get("metadata", {}).get("uid")
        others = [service["spec"] for service in reads.list("", "services") if service["metadata"].get("uid") != own]
        if review.old is not None:
            _keep(spec, review.old["spec"])
        if spec.get("type") == "ExternalName":
            return
        primary, addresses = spec.get("clusterIP"), spec.get("clusterIPs")
        if primary and not addresses:
            spec["clusterIPs"] = [primary]
        if not spec.get("clusterIP") and not spec.get("clusterIPs"):
            allocated = {address for service_spec in others for address in service_spec.get("clusterIPs") or ()}
            spec["clusterIP"] = _free_address(allocated)
            spec["clusterIPs"] = [spec["clusterIP"]]
        elif spec.get("clusterIP") not in {"None", None} and review.old is None:
            self._check_address(review, others)
        spec.setdefault("ipFamilies", ["IPv4"])
        spec.setdefault("ipFamilyPolicy", "SingleStack")
        if spec.get("type") == "NodePort" or (
            spec.get("type") == "LoadBalancer" and spec.get("allocateLoadBalancerNodePorts") is not False
        ):
            _node_ports(spec, others)

    @staticmethod
    def _check_address(review: Review, others: list[Object]) -> None:
        address = review.obj["spec"]["clusterIP"]
        try:
            inside = ipaddress.ip_address(address) in NETWORK
        except ValueError:
            return
        words = ""
        if not inside:
            words = f"failed to allocate IP {address}: the provided network does not match the current range"
        elif any(address in (service_spec.get("clusterIPs") or ()) for service_spec in others):
            words = _TAKEN.format(address)
        if words:
            name = str(review.obj["metadata"].get("name") or "")
            errors = [bad_value("spec.clusterIPs", review.obj["spec"]["clusterIPs"], words)]
            raise invalid("", "Service", name, errors)


def _keep(spec: Object, old: Object) -> None:
    """Keep the addresses and node ports that an update leaves out."""
    if "ExternalName" in {spec.get("type"), old.get("type")}:
        return
    for field in ("clusterIP", "clusterIPs", "ipFamilies", "ipFamilyPolicy"):
        if field not in spec and field in old and not (field == "clusterIPs" and spec.get("clusterIP")):
            spec[field] = old[field]
    if spec.get("type") in {"NodePort", "LoadBalancer"}:
        ports = {(port.get("protocol"), port.get("port")): port.get("nodePort") for port in old.get("ports") or ()}
        for port in spec.get("ports") or ():
            known = ports.get((port.get("protocol"), port.get("port")))
            if not port.get("nodePort") and known:
                port["nodePort"] = known


def _free_address(allocated: set[str]) -> str:
    first = int(NETWORK.network_address)
    while True:
        address = str(ipaddress.ip_address(first + random.randrange(257, NETWORK.num_addresses - 1)))  # noqa: S311
        if address not in allocated:
            return address


def _node_ports(spec: Object, others: list[Object]) -> None:
    allocated = {port.get("nodePort") for other in others for port in other.get("ports") or ()}
    allocated |= {port.get("nodePort") for port in spec.get("ports") or ()}
    for port in spec.get("ports") or ():
        if not port.get("nodePort"):
            port["nodePort"] = next(number for number in random.sample(_PORTS, len(_PORTS)) if number not in allocated)
            allocated.add(port["nodePort"])
