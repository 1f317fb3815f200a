"""Whose program answers on a port of a pod's address: the pod's own, or another of this machine.

A pod's address is one of the loopback's, and all processes share it: whoever listens on every address listens on each
pod's, too. The kernel names each listening socket by its inode, and each process's sockets by theirs, so a listener is
the pod's when a process that the pod's shims started holds its socket. The address alone would not tell: a pod's own
program may listen on every address, as most do, and a stranger may listen on the pod's.
"""

from __future__ import annotations

import contextlib
import ipaddress
import os
import re
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from kgpu.lab.nodes import container_processes, leftovers

TABLES: Final = ("/proc/net/tcp", "/proc/net/tcp6")
_LISTENS: Final = "0A"
_SOCKET: Final = re.compile(r"socket:\[(\d+)\]")
_EVERY: Final = frozenset({"0.0.0.0", "::"})
_STEP: Final = -1 if sys.byteorder == "little" else 1


@dataclass(frozen=True, slots=True)
class Listener:
    """A listening TCP socket; ``address`` "" for every one."""

    address: str
    port: int
    inode: str


def parse(table: str) -> list[Listener]:
    """The listening sockets in the text of ``/proc/net/tcp`` or ``tcp6``; other lines are ignored."""
    listeners = []
    for line in table.splitlines():
        fields = line.split()
        if len(fields) < 10 or fields[3] != _LISTENS:
            continue
        address, _, port = fields[1].partition(":")
        with contextlib.suppress(ValueError):
            listeners.append(Listener(_address(address), int(port, 16), fields[9]))
    return listeners


def _address(text: str) -> str:
    """The address in the kernel's 32-bit words, each in this machine's byte order. Raises ValueError."""
    data = b"".join(bytes.fromhex(text[at : at + 8])[::_STEP] for at in range(0, len(text), 8))
    address = ipaddress.ip_address(data)
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    shown = str(mapped or address)
    return "" if shown in _EVERY else shown


def accepting_inodes(listeners: Iterable[Listener], address: str, port: int) -> set[str]:
    """The inodes of the sockets, one of which accepts a connection to the address.

    As the kernel chooses: sockets bound to the address come before those bound to every address.
    """
    on_port = [listener for listener in listeners if listener.port == port]
    return {listener.inode for listener in on_port if listener.address == address} or {
        listener.inode for listener in on_port if not listener.address
    }


def is_pods(uid: str, node: Path, address: str, port: int) -> bool:
    """Whether a connection to that address of this machine leads to a program of the pod, on the node in that folder.

    False also when nobody listens, and when it can't be known. Reads ``/proc``: milliseconds.
    """
    wanted = accepting_inodes((row for path in TABLES for row in parse(_text(path))), address, port)
    if not wanted or not uid:
        return False
    folders = [run.folder for run in leftovers.containers(node) if run.pod == uid]
    for pid in container_processes.processes_of(*folders):
        wanted -= sockets_of(pid)
        if not wanted:
            return True
    return False


def sockets_of(pid: int) -> set[str]:
    """The inodes of a process's sockets; none for a process that has ended or may not be inspected."""
    inodes: set[str] = set()
    with contextlib.suppress(OSError), os.scandir(f"/proc/{pid}/fd") as entries:
        for entry in entries:
            with contextlib.suppress(OSError):
                if hit := _SOCKET.fullmatch(os.readlink(entry.path)):
                    inodes.add(hit[1])
    return inodes


def _text(path: str) -> str:
    try:
        return Path(path).read_text("ascii", "replace")
    except OSError:
        return ""
