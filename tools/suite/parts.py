"""The parts of the test suite as data, and which test file is in which.

A file belongs to the part that names the nearest folder above it, or itself. That is all there is to say about a new
test: where its file stands decides when it runs.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final, Literal


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """``paths`` are folders and files, from the repository's root.

    A part is one process. ``on``: its tests mostly wait for that, which lives by the clock; a few such parts run beside
    each other, when the lab's programs and Helm are built. The others need the processor: as many run as there are
    cores, at a low priority. ``seconds``: about how long the part takes; the longest begins first.
    """

    name: str
    paths: tuple[str, ...]
    seconds: int = 0
    on: Literal["", "an embedded cluster", "real programs"] = ""

    @property
    def real(self) -> bool:
        return self.on == "real programs"

    def ignored(self, parts: Iterable[Part]) -> list[str]:
        """What lies below the part's paths and belongs to others."""
        return sorted(
            path
            for other in parts
            if other != self
            for path in other.paths
            if any(path != own and _below(path, own) for own in self.paths)
        )


def _labs(name: str, seconds: int, *paths: str) -> Part:
    return Part(name=name, paths=paths, seconds=seconds, on="an embedded cluster")


def _real(name: str, seconds: int, *paths: str) -> Part:
    return Part(name=name, paths=paths, seconds=seconds, on="real programs")


_DRIVERS: Final = (
    "tests/lab/test_driver_failures.py",
    "tests/lab/test_driver_rollout.py",
    "tests/lab/test_driver_sides.py",
    "tests/lab/test_driver_upgrade.py",
)
# Seconds are of a machine with two cores that does all of this at once.
PARTS: Final = (
    # Without a cluster.
    Part(name="doctor", paths=("tests/doctor",), seconds=430),
    Part(name="hardware", paths=("tests/hw", "tests/native", "tests/toolkit", "tests/host"), seconds=370),
    Part(name="processes", paths=("tests/agent", "tests/cli", "tests/monitoring", "tests/operator"), seconds=1450),
    Part(name="embedded API", paths=("tests/lab/embedded",), seconds=250),
    Part(name="everything else", paths=("tests",), seconds=980),
    # On the embedded cluster, with kubectl and Helm.
    _labs("doctor's labs", 500, "tests/doctor/lab", "tests/doctor/test_operated_lab.py"),
    _labs("embedded cluster", 1100, "tests/lab", "tests/charts", "tests/seed_facts"),
    _labs("drivers on the embedded cluster", 620, *_DRIVERS),
    # On real programs: each part has a cluster or an engine of its own.
    _real("stories", 680, "tests/lab/real/test_conform.py"),
    _real("real cluster", 1260, "tests/lab/real"),
    _real("Kubernetes' own tests", 230, "tests/lab/real/test_conformance.py"),
    _real("repairs", 150, "tests/lab/real/test_xid_stories.py"),
    _real(
        "operator's breakages",
        340,
        "tests/operator/real/test_breakages.py",
        "tests/operator/real/test_without_gpus.py",
    ),
    _real(
        "operator's toolkit",
        460,
        "tests/operator/real/test_takeover.py",
        "tests/operator/real/test_toolkit.py",
        "tests/operator/real/test_toolkit_ways.py",
    ),
    _real(
        "operator's rights",
        900,
        "tests/operator/real/test_admission.py",
        "tests/operator/real/test_claims.py",
        "tests/operator/real/test_rights.py",
        "tests/operator/real/test_stolen_token.py",
    ),
    _real("real operator", 900, "tests/operator/real"),
    _real(
        "real engine",
        170,
        "tests/toolkit/real",
        "tests/toolkit/engine/test_live.py",
        "tests/toolkit/engine/test_real_containerd.py",
        "tests/host/engines/test_oracle.py",
    ),
)


def part_of(file: str, parts: Sequence[Part] = PARTS) -> Part:
    """The part of a test file; KeyError when none has it."""
    found = [(len(path), number) for number, part in enumerate(parts) for path in part.paths if _below(file, path)]
    if not found:
        raise KeyError(file)
    return parts[max(found)[1]]


def _below(path: str, folder: str) -> bool:
    return path == folder or path.startswith(f"{folder}/")
