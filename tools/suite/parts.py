"""The parts of the test suite as data, and which test file is in which.

A file belongs to the part that names the nearest folder above it, or itself. That is all there is to say about a new
test: where its file stands decides when it runs.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """``paths`` are folders and files, from the repository's root.

    A part is one process. ``real``: its tests run on real programs and mostly wait, beside others of their kind.
    Otherwise they need the processor: as many at a time as there are cores, at a low priority. ``built``: they need
    the lab's programs or Helm, so they begin when those are built. ``seconds``: about how long the part takes; the
    longest begins first.
    """

    name: str
    paths: tuple[str, ...]
    real: bool = False
    built: bool = False
    seconds: int = 0

    def ignored(self, parts: Iterable[Part]) -> list[str]:
        """What lies below the part's paths and belongs to others."""
        return sorted(
            path
            for other in parts
            if other != self
            for path in other.paths
            if any(path != own and _below(path, own) for own in self.paths)
        )


# Seconds are of a machine with two cores that does all of this at once.
PARTS: Final = (
    # Without a cluster.
    Part(name="doctor", paths=("tests/doctor",), seconds=280),
    Part(name="hardware", paths=("tests/hw", "tests/native", "tests/toolkit", "tests/host"), seconds=260),
    Part(name="processes", paths=("tests/agent", "tests/cli", "tests/monitoring", "tests/operator"), seconds=250),
    Part(name="embedded API", paths=("tests/lab/embedded",), seconds=250),
    Part(name="everything else", paths=("tests",), seconds=240),
    # On the embedded cluster, with kubectl and Helm.
    Part(
        name="doctor's labs", paths=("tests/doctor/lab", "tests/doctor/test_operated_lab.py"), built=True, seconds=240
    ),
    Part(name="embedded cluster", paths=("tests/lab", "tests/charts", "tests/seed_facts"), built=True, seconds=240),
    # On real programs: each part has a cluster or an engine of its own.
    Part(name="stories", paths=("tests/lab/real/test_conform.py",), real=True, built=True, seconds=600),
    Part(name="real cluster", paths=("tests/lab/real",), real=True, built=True, seconds=400),
    Part(
        name="Kubernetes' own tests",
        paths=("tests/lab/real/test_conformance.py",),
        real=True,
        built=True,
        seconds=120,
    ),
    Part(
        name="operator's breakages",
        paths=("tests/operator/real/test_breakages.py",),
        real=True,
        built=True,
        seconds=350,
    ),
    Part(
        name="operator's toolkit",
        paths=(
            "tests/operator/real/test_takeover.py",
            "tests/operator/real/test_toolkit.py",
            "tests/operator/real/test_toolkit_ways.py",
        ),
        real=True,
        built=True,
        seconds=300,
    ),
    Part(name="real operator", paths=("tests/operator/real",), real=True, built=True, seconds=500),
    Part(name="real engine", paths=("tests/toolkit/real",), real=True, built=True, seconds=300),
)


def part_of(file: str, parts: Sequence[Part] = PARTS) -> Part:
    """The part of a test file; KeyError when none has it."""
    found = [(len(path), number) for number, part in enumerate(parts) for path in part.paths if _below(file, path)]
    if not found:
        raise KeyError(file)
    return parts[max(found)[1]]


def _below(path: str, folder: str) -> bool:
    return path == folder or path.startswith(f"{folder}/")
