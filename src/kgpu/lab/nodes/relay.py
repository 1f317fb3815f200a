"""Lets a node reach a container that has a network of its own: ``python -I -S relay.py CONFIG PID``.

Whatever the container of process PID listens on by TCP, this listens on too, at the pod's address of this machine, and
passes connections on. A program of its own with nothing but the standard library, because one runs beside each such
container, started by its shim; it ends with the container.
"""

from __future__ import annotations

import ctypes
import json
import os
import select
import signal
import socket
import sys

CLONE_NEWUSER, CLONE_NEWNET = 0x10000000, 0x40000000
LOOK_MS = 100  # between looks at what the container listens on
CONNECT_S = 5.0
BACKLOG = 64
_LISTENS = "0A"
_libc = ctypes.CDLL(None, use_errno=True)


def ports_in(table: str) -> set[int]:
    """The ports of the listening sockets in a ``/proc/PID/net/tcp`` or ``tcp6``."""
    rows = [line.split() for line in table.splitlines()[1:]]
    return {int(row[1].rpartition(":")[2], 16) for row in rows if len(row) > 3 and row[3] == _LISTENS}


def listening(pid: int) -> set[int]:
    """What the container listens on; nothing once it has ended."""
    ports: set[int] = set()
    for name in ("tcp", "tcp6"):
        try:
            with open(f"/proc/{pid}/net/{name}", encoding="ascii") as file:
                ports |= ports_in(file.read())
        except OSError:
            continue
    return ports


def follow(listeners: dict[int, socket.socket], wanted: set[int], address: str) -> None:
    """Listen on the wanted ports and no others; one that another program of this machine has is tried again later."""
    for port in listeners.keys() - wanted:
        listeners.pop(port).close()
    for port in wanted - listeners.keys():
        server = socket.socket()
        try:
            server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            server.bind((address, port))
            server.listen(BACKLOG)
        except OSError:
            server.close()
        else:
            listeners[port] = server


def enter(pid: int) -> None:
    """Be in the container's network, with its user's rights where that is another user namespace. Raises OSError."""
    for name, flag in (("user", CLONE_NEWUSER), ("net", CLONE_NEWNET)):
        if os.readlink(f"/proc/{pid}/ns/{name}") == os.readlink(f"/proc/self/ns/{name}"):
            continue
        space = os.open(f"/proc/{pid}/ns/{name}", os.O_RDONLY)
        if _libc.setns(space, flag) != 0:
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number))
        os.close(space)


def connect(addresses: list[str], port: int) -> socket.socket:
    """A connection to the first of the addresses that answers. Raises OSError."""
    for address in addresses[:-1]:
        try:
            return socket.create_connection((address, port), CONNECT_S)
        except OSError:
            continue
    return socket.create_connection((addresses[-1], port), CONNECT_S)


def copy(left: socket.socket, right: socket.socket) -> None:
    """Copy data in both directions until both sides have ended."""
    to = {left: right, right: left}
    while to:
        for source in select.select(list(to), (), ())[0]:
            data = source.recv(65536)
            target = to[source]
            if data:
                target.sendall(data)
            else:
                del to[source]
                target.shutdown(socket.SHUT_WR)


def serve(accepted: socket.socket, pid: int, port: int, addresses: list[str]) -> None:
    """One connection, in a process of its own; never returns."""
    try:
        enter(pid)
        inner = connect(addresses, port)
        inner.settimeout(None)
        copy(accepted, inner)
    except OSError:
        os._exit(1)  # whoever called sees the connection end
    os._exit(0)


def main(config_path: str, pid: int) -> int:
    """Until the container has ended."""
    with open(config_path, encoding="utf-8") as file:
        network = json.load(file)["network"]
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # the kernel forgets ended children
    ended = os.pidfd_open(pid)
    listeners: dict[int, socket.socket] = {}
    while True:
        follow(listeners, listening(pid), network["outside"])
        poll = select.poll()
        poll.register(ended, select.POLLIN)
        for server in listeners.values():
            poll.register(server, select.POLLIN)
        ready = {fd for fd, _ in poll.poll(LOOK_MS)}
        if ended in ready:
            return 0
        for port, server in listeners.items():
            if server.fileno() in ready:
                accepted, _ = server.accept()
                if os.fork() == 0:
                    serve(accepted, pid, port, ["127.0.0.1", network["inside"]])
                accepted.close()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], int(sys.argv[2])))
