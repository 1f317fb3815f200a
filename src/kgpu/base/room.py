"""Which connections a small server keeps when more come than it can carry: pure bookkeeping.

Whoever may reach a port can open connections and say nothing, or ask and not take the answer. So the one that has to go
is the oldest that has not sent a request, and else the oldest that its client keeps open; one peer can have only a few;
and the node's own addresses, from which the kubelet asks whether this process lives, have room of their own. A client
that sends its request at once is answered, however many others are silent.
"""

from __future__ import annotations

import ipaddress
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

MOST: Final = 64
MOST_OF_PEER: Final = 16
MOST_OWN: Final = 32
HOST_IP: Final = "HOST_IP"
"""The variable with the node's addresses (``status.hostIPs``), separated by commas."""

_ROUTES: Final = "/proc/net/route"
_DEFAULT: Final = "00000000"


@dataclass(slots=True, eq=False)
class Guest:
    """One open connection. ``own``: from this node; ``local``: over the loopback interface. ``asked``: its request has
    arrived; ``sending``: its answer is made, and it is for the client to take it; ``answered``: that has left.
    """

    peer: str
    own: bool
    asked: bool = False
    sending: bool = False
    answered: bool = False
    local: bool = False


def guest(peer: str, here: str, node: frozenset[str]) -> Guest:
    """The connection from the address ``peer`` to ``here``, an address of this process; ``node`` are the node's."""
    address = _plain(peer)
    local = not peer or (address is not None and address.is_loopback)  # a Unix socket's peer has no address
    own = address is not None and (local or str(address) in node or address == _plain(here))
    if isinstance(address, ipaddress.IPv6Address):
        # Whoever has one address has the whole network of it.
        return Guest(str(ipaddress.ip_network((address, 64), strict=False)), own, local=local)
    return Guest(str(address), own, local=local)


def make_room(guests: Sequence[Guest], new: Guest) -> tuple[bool, Guest | None]:
    """Whether the new one may stay, and who has to go for it. ``guests`` are in the order in which they came."""
    alike = [other for other in guests if other.own == new.own]
    same = [other for other in alike if other.peer == new.peer]
    if not new.own and len(same) >= MOST_OF_PEER:
        leaves = _first_to_go(same)
    elif len(alike) >= (MOST_OWN if new.own else MOST):
        leaves = _first_to_go(alike)
    else:
        return True, None
    return leaves is not None, leaves


def _first_to_go(guests: Iterable[Guest]) -> Guest | None:
    """The oldest that has not asked, else the oldest that only has to close, else the oldest that is taking its answer;
    nobody who waits for one.
    """
    rows = list(guests)
    silent = next((one for one in rows if not one.asked), None)
    done = silent or next((one for one in rows if one.answered), None)
    return done or next((one for one in rows if one.sending), None)


def node_addresses(environment: str | None = None, routes: str | None = None) -> frozenset[str]:
    """The node's addresses as a pod sees them: what ``HOST_IP`` says, and the gateway, through which a bridge's node
    comes in. The arguments stand in for the variable and for ``/proc/net/route``.
    """
    told = os.environ.get(HOST_IP, "") if environment is None else environment
    found = {str(address) for one in told.split(",") if (address := _plain(one.strip())) is not None}
    return frozenset(found | _gateways(_read(_ROUTES) if routes is None else routes))


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
