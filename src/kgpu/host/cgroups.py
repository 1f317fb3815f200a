"""Which pod and container a process is in, by the text of its ``/proc/PID/cgroup``. Pure.

Understands cgroup v1, v2 and both mounted; the kubelet's drivers ``cgroupfs`` and ``systemd``; containerd, CRI-O and
Docker; paths as seen from inside another cgroup namespace (``/../../kubepods-...``), and processes that have made
groups of their own below their container's. The kernel writes this file, but the names in it come from runtimes and,
below the container's group, from the container: only the first container id from the left counts.
"""

from __future__ import annotations

import re
from typing import Final, NamedTuple

_UID: Final = re.compile(
    r"(?:^|-)pod([0-9a-f]{8}(?:[-_][0-9a-f]{4}){3}[-_][0-9a-f]{12}|[0-9a-f]{32})(?:\.slice)?$", re.ASCII
)
# A static pod's uid is a hash without dashes. A slice may stand before the id with colons: containerd under cgroupfs
# with systemd's names ("kubepods-pod1.slice:cri-containerd:<id>").
_CONTAINER: Final = re.compile(r"(?:^|[-:])([0-9a-f]{64})(?:\.scope)?$", re.ASCII)
_HELPERS: Final = ("crio-conmon-", "libpod-conmon-")
"""Groups of processes that stand beside a container."""
_KUBELET: Final = "kubepods"
LONGEST: Final = 4096
"""Characters of one path that are looked at."""


class ContainerPlace(NamedTuple):
    """A pod's uid with dashes (a static pod's: its hash) and a container's id; either is "" when the path has none."""

    pod_uid: str
    container: str


def container_place(text: str) -> ContainerPlace | None:
    """Parse the file's text; None for a process in no pod."""
    best: ContainerPlace | None = None
    for line in text.split("\n"):  # other line ends are parts of names
        # hierarchy:controllers:path, and the path may have colons itself.
        parts = line.split(":", 2)
        place = _of(parts[2][:LONGEST]) if len(parts) == 3 else None
        if place is not None and (best is None or _known_parts(place) > _known_parts(best)):
            best = place
    return best


def _known_parts(place: ContainerPlace) -> int:
    return bool(place.pod_uid) + 2 * bool(place.container)


def _of(path: str) -> ContainerPlace | None:
    uid = container = ""
    kubelet = path.startswith("/..")  # from inside another namespace the kubelet's own group may be out of sight
    for part in path.split("/"):
        for word in part.split(":"):
            kubelet = kubelet or word.startswith(_KUBELET)
            named = _UID.search(word)
            if named and not uid and not container:
                uid = named[1].replace("_", "-")
        held = _CONTAINER.search(part)
        if held and not container and not part.startswith(_HELPERS):
            container = held[1]
    if not kubelet and not uid:
        return None  # a container that is no pod's
    return ContainerPlace(uid, container) if uid or container else None
