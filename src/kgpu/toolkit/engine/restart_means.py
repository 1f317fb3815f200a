"""What to do about an engine that a SIGHUP did not end, decided from what the kernel says of its process.

A process ignores SIGHUP when whoever started it did, as ``nohup`` does; the kernel then drops the signal.
Another means must not be worse than none: a unit is restarted only when it is the engine's own (one that a start-up
script runs in would be run again), and what nobody would start again is not ended.
"""

from __future__ import annotations

import enum
import posixpath
import re
import signal
from dataclasses import dataclass
from typing import Final

# A unit of the system's manager; those below a user's manager are not its own.
_UNIT: Final = re.compile(r"/([^/]+)\.service(?:/|$)")


class Means(enum.Enum):
    """What comes after SIGHUP; NONE: only a person can help."""

    SYSTEMD = "systemd"
    SIGTERM = "SIGTERM"
    NONE = "none"


@dataclass(frozen=True, slots=True)
class ProcessFacts:
    """The texts of ``/proc/PID/status`` and ``/proc/PID/cgroup``, "" where they can't be read."""

    status: str = ""
    cgroup: str = ""

    @property
    def ignores_hangup(self) -> bool:
        """Whether SIGHUP has no effect on it for certain."""
        return bool(int(self._field("SigIgn") or "0", 16) >> signal.SIGHUP - 1 & 1)

    @property
    def parent(self) -> int:
        """The pid of its parent, 0 when it is not known."""
        return int(self._field("PPid") or "0")

    @property
    def unit(self) -> str:
        """The unit of the system's manager that it runs in, without ``.service``; "" for none."""
        paths = [line.split(":", 2)[-1] for line in self.cgroup.splitlines()]
        found = (_UNIT.search(path) for path in paths if "/user.slice/" not in f"{path}/")
        return next((hit[1] for hit in found if hit), "")

    def _field(self, name: str) -> str:
        return next((line.split()[1] for line in self.status.splitlines() if line.startswith(f"{name}:")), "")


def next_means(facts: ProcessFacts, service: str, *, systemd: bool) -> Means:
    """What makes it read its config. ``service`` is the engine's unit; ``systemd``: the host is run by it."""
    name = posixpath.basename(service).removesuffix(".service")
    if systemd and name and facts.unit == name:
        return Means.SYSTEMD
    # Under systemd, what has lost its parent and is no unit's main process was started by hand: it would not come back.
    if systemd and facts.parent <= 1:
        return Means.NONE
    return Means.SIGTERM
