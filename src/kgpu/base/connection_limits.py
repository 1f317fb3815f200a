"""Which connections a small server drops when there are too many: pure bookkeeping.

Whoever reaches a port can open connections and send nothing, or not read the answer. So the connection to drop is the
oldest that has not sent a request, else the oldest that its client keeps open. One peer can have only a few
connections. The node's own addresses, from which the kubelet probes this process, have a limit of their own. A client
that sends its request at once is answered, however many others are silent.
"""

from __future__ import annotations

import functools
import ipaddress
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

MOST: Final = 64
MOST_OF_PEER: Final = 16
MOST_OWN: Final = 32
ROOM: Final = (MOST, MOST_OF_PEER, MOST_OWN)
"""How many connections there may be: from elsewhere, of these from one peer, and from this node."""
HOST_IP: Final = "HOST_IP"
"""The variable with the node's addresses (``status.hostIPs``), separated by commas."""

_ROUTES: Final = "/proc/net/route"
_DEFAULT: Final = "00000000"


@dataclass(slots=True, eq=False)
class PeerConnection:
    """One open connection. ``own``: from this node; ``local``: over the loopback interface. ``begun``: something of its
    request has arrived; ``asked``: all of it; ``sending``: its answer is ready and waits for the client to read it;
    ``answered``: the answer is sent.
    """

    peer: str
    own: bool
    asked: bool = False
    sending: bool = False
    answered: bool = False
    local: bool = False
    begun: bool = False


def connection_from(peer: str, local_address: str, node: frozenset[str]) -> PeerConnection:
    """The connection from ``peer`` to this process's ``local_address``; ``node`` has the node's addresses."""
    name, own, local = _origin(peer, local_address, node)
    return PeerConnection(name, own, local=local)


@functools.lru_cache(maxsize=256)  # Prometheus asks every second, from one address
def _origin(peer: str, local_address: str, node: frozenset[str]) -> tuple[str, bool, bool]:
    """What the peer is called, and whether it is on this node and comes over the loopback interface."""
    address = _plain(peer)
    local = not peer or (address is not None and address.is_loopback)  # a Unix socket's peer has no address
    own = address is not None and (local or str(address) in node or address == _plain(local_address))
    if isinstance(address, ipaddress.IPv6Address):
        # Whoever has one address has the whole network of it.
        return str(ipaddress.ip_network((address, 64), strict=False)), own, local
    return str(address), own, local


def make_room(
    connections: Sequence[PeerConnection], new: PeerConnection, room: tuple[int, int, int] = ROOM
) -> tuple[bool, PeerConnection | None]:
    """Whether the new connection may stay, and which one to drop for it. ``connections`` are in order of arrival."""
    most, most_of_peer, most_own = room
    alike = [connection for connection in connections if connection.own == new.own]
    same = [connection for connection in alike if connection.peer == new.peer]
    if not new.own and len(same) >= most_of_peer:
        leaves = _first_to_go(same)
    elif len(alike) >= (most_own if new.own else most):
        leaves = _first_to_go(alike)
    else:
        return True, None
    return leaves is not None, leaves


def _first_to_go(connections: Iterable[PeerConnection]) -> PeerConnection | None:
    """The oldest without a request, else the oldest that is answered, else the oldest that is being sent its answer;
    never one that waits for an answer.
    """
    rows = list(connections)
    silent = next((row for row in rows if not row.asked), None)
    done = silent or next((row for row in rows if row.answered), None)
    return done or next((row for row in rows if row.sending), None)


def node_addresses(environment: str | None = None, routes: str | None = None) -> frozenset[str]:
    """The node's addresses as a pod sees them: what ``HOST_IP`` says, and the gateway, through which a bridge's node
    comes in. The arguments stand in for the variable and for ``/proc/net/route``.
    """
    listed = os.environ.get(HOST_IP, "") if environment is None else environment
    addresses = {str(address) for text in listed.split(",") if (address := _plain(text.strip())) is not None}
    return frozenset(addresses | _gateways(_read(_ROUTES) if routes is None else routes))


def _gateways(routes: str) -> set[str]:
    rows = [line.split() for line in routes.splitlines()[1:]]
    return {
        str(ipaddress.IPv4Address(int(row[2], 16).to_bytes(4, "little")))
        for row in rows
        if len(row) > 7 and row[1] == row[7] == _DEFAULT and row[2] != _DEFAULT
    }


def _read(path: str) -> str:
    try:
        with open(path, encoding="ascii", errors="replace") as file:
            return file.read()
    except OSError:
        return ""


def _plain(text: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    """The address, one of IPv4 in IPv6 as IPv4; None for what is none, such as the peer of a Unix socket."""
    try:
        address = ipaddress.ip_address(text.partition("%")[0])
    except ValueError:
        return None
    return getattr(address, "ipv4_mapped", None) or address
