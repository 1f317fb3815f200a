"""Ports for programs of tests that have to be told one."""

from __future__ import annotations

import socket
from typing import Final

_KEPT: Final[list[socket.socket]] = []


def free_port() -> int:
    """A port that nobody else is given before it is listened on, nor while a program on it is started again.

    It stays bound by this process, which keeps all from it but those that name it and may reuse an address, as the
    programs of these tests do.
    """
    found = socket.socket()
    found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    found.bind(("", 0))  # others may listen on any address of this machine
    _KEPT.append(found)
    return int(found.getsockname()[1])
