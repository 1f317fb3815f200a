"""Where a port of a pod is reached on this machine, if it is the pod's own.

All processes of the machine share the loopback, where each pod has an address; so whoever may forward a port to a pod
must not come to another's program by it. A program that listens on localhost alone is the pod's own, too, where the
pod has no network of its own.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Final

from kgpu.lab.nodes import listeners

LOCAL: Final = ("127.0.0.1", "::1")


@dataclass(frozen=True, slots=True, kw_only=True)
class PodPlace:
    """A pod on the node in ``folder``; ``address``: that of this machine at which its programs are reached."""

    uid: str
    folder: Path
    address: str

    def reach(self, port: int) -> str:
        """The address at which a program of the pod answers on the port, "" for none. Reads ``/proc``: milliseconds."""
        for address in (self.address, *LOCAL):
            if listeners.is_pods(self.uid, self.folder, address, port):
                return address
        return ""
