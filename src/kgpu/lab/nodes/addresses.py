"""Addresses of pods that are processes of this machine: the fake ones in the API, and where they are reached."""

from __future__ import annotations

import hashlib
import ipaddress
from pathlib import Path
from typing import Final

_PODS: Final = ipaddress.IPv4Network("10.0.0.0/8")
_FIRST: Final = ipaddress.IPv4Address("127.1.0.0")
_LAST: Final = ipaddress.IPv4Address("127.255.255.255")  # reaches all, so it is nobody's


class PodAddresses:
    """Fake pod addresses of all nodes of a host, 10.244.1.1 onwards; freed ones are given again last."""

    def __init__(self) -> None:
        self._next = 0
        self._used: set[str] = set()

    def take(self) -> str:
        """A free address."""
        for _ in range(1 << 17):
            number = self._next
            self._next = (self._next + 1) % (1 << 17)
            address = f"10.{244 + number // (255 * 254)}.{1 + number // 254 % 255}.{1 + number % 254}"
            if address not in self._used:
                self._used.add(address)
                return address
        return "10.244.0.1"

    def keep(self, address: str) -> None:
        """Mark an address as taken: a pod of an earlier host process has it."""
        self._used.add(address)

    def free(self, address: str) -> None:
        """Give back the address of a pod that is gone."""
        self._used.discard(address)


def loopback(pod_address: str, nodes: Path) -> str:
    """The loopback address of this machine under which the program of a pod at 10.x.y.z is reached.

    A lab's addresses follow each other from one of sixteen million places that the folder of its nodes decides, so that
    labs beside each other don't meet. 127.0.x.y is left to the machine's own programs. What is no such address stays.
    """
    try:
        address = ipaddress.IPv4Address(pod_address)
    except ValueError:
        return pod_address
    if address not in _PODS:
        return pod_address
    own = int.from_bytes(hashlib.sha256(bytes(nodes)).digest()[:3])
    return str(_FIRST + (own + int(address) - int(_PODS.network_address)) % (int(_LAST) - int(_FIRST)))
