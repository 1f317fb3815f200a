"""What this machine already routes to, so that a lab's own network overlaps none of it."""

from __future__ import annotations

import ipaddress
import json
import subprocess
from typing import Any

from kgpu.base.errors import LabError


def used_networks() -> list[ipaddress.IPv4Network]:
    """Every IPv4 network in this machine's routing table, default routes left out."""
    done = subprocess.run(
        ["ip", "-j", "-4", "route", "show", "table", "all"], capture_output=True, text=True, check=False
    )
    if done.returncode != 0:
        raise LabError(
            f"ip route failed: {done.stderr.strip() or f'exit code {done.returncode}'}",
            "the networks that this machine routes to, so that the lab's own overlaps none",
            "see what `ip -4 route show table all` says",
        )
    try:
        return parse_routes(json.loads(done.stdout or "[]"))
    except ValueError as error:
        raise LabError(
            f"ip route printed something unexpected: {done.stderr.strip() or error}",
            "JSON, as iproute2 prints it since 2017",
            "use a current iproute2",
        ) from error


def parse_routes(routes: list[dict[str, Any]]) -> list[ipaddress.IPv4Network]:
    """The destinations in ``ip -j route``'s output."""
    networks = []
    for route in routes:
        destination = route.get("dst", "default")
        if destination != "default":
            networks.append(ipaddress.IPv4Network(destination, strict=False))
    return networks
