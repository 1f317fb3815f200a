"""Addresses of pods that are processes of this machine: the fake ones in the API, and where they are reached."""

from __future__ import annotations

import hashlib
from pathlib import Path


class Addresses:
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
        """An address that a pod of an earlier host process has."""
        self._used.add(address)

    def free(self, address: str) -> None:
        """Its pod is gone."""
        self._used.discard(address)


def loopback(pod_address: str, nodes: Path) -> str:
    """The address of this machine under which a pod's program is reached: 10.A.B.C is 127.D.B.C.

    D follows from A and from the folder of the lab's nodes, so that labs beside each other hardly ever meet.
    """
    parts = pod_address.split(".")
    if parts[0] != "10":
        return pod_address
    own = hashlib.sha256(bytes(nodes)).digest()[0]
    return ".".join(("127", str(1 + (own + int(parts[1])) % 250), *parts[2:]))
