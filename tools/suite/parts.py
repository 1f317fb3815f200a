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

    ``real``: the tests run on real programs and mostly wait: one process, beside others of its kind. Otherwise they
    need the processor: one process for each core, at a low priority. ``built``: they need the lab's programs or Helm,
    so they begin when those are built. ``seconds``: about how long the part takes; the longest begins first.
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


PARTS: Final = (
    Part(name="without a cluster", paths=("tests",), seconds=420),
    Part(
        name="on the embedded cluster",
        paths=(
            "tests/charts",
            "tests/doctor/test_operated_lab.py",
            "tests/lab",
            "tests/seed_facts",
        ),
        built=True,
        seconds=180,
    ),
    Part(name="real cluster", paths=("tests/lab/real",), real=True, built=True, seconds=600),
    Part(name="real operator", paths=("tests/operator/real",), real=True, built=True, seconds=600),
    Part(name="real engine", paths=("tests/toolkit/real",), real=True, built=True, seconds=400),
)


def part_of(file: str, parts: Sequence[Part] = PARTS) -> Part:
    """The part of a test file; KeyError when none has it."""
    found = [(len(path), number) for number, part in enumerate(parts) for path in part.paths if _below(file, path)]
    if not found:
        raise KeyError(file)
    return parts[max(found)[1]]


def _below(path: str, folder: str) -> bool:
    return path == folder or path.startswith(f"{folder}/")
