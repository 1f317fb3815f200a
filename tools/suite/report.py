"""What the parts' JUnit files say: how many passed, which failed, what took longest."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final
from xml.etree import ElementTree as ET

SLOWEST: Final = 50
_OUTCOMES: Final = {"failure": "failed", "error": "failed", "skipped": "skipped"}


@dataclass(frozen=True, slots=True)
class Case:
    """One test: its outcome is ``passed``, ``failed`` or ``skipped``; ``seconds`` with its fixtures' part of it, and of
    these ``cpu_s`` of processor time, 0 where the machine does not tell.
    """

    name: str
    outcome: str
    seconds: float
    cpu_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Took:
    """A part that has ended: its seconds, those of processor time (None where the machine does not tell), its tests."""

    seconds: float
    cpu_s: float | None = None
    cases: Sequence[Case] = ()


def read(path: Path) -> list[Case]:
    """The tests of a JUnit file; none when it was never written. A test that failed and left an error is one."""
    try:
        root = ET.parse(path).getroot()  # noqa: S314 - pytest wrote it
    except (FileNotFoundError, ET.ParseError):
        return []
    found: dict[str, Case] = {}
    for element in root.iter("testcase"):
        name = f"{element.get('classname', '')}::{element.get('name', '')}"
        outcomes = {_OUTCOMES[child.tag] for child in element if child.tag in _OUTCOMES}
        outcome = next((word for word in ("failed", "skipped") if word in outcomes), "passed")
        before = found.get(name)
        if before and before.outcome == "failed":
            outcome = "failed"
        seconds = float(element.get("time", 0)) + (before.seconds if before else 0)
        cpu_s = sum(float(one.get("value", 0)) for one in element.iter("property") if one.get("name") == "cpu")
        found[name] = Case(name, outcome, seconds, cpu_s + (before.cpu_s if before else 0))
    return list(found.values())


def text(parts: Mapping[str, Took], *, slowest: int = SLOWEST) -> str:
    """The report: the tests that took longest and that computed most, what each part took, and the closing line."""
    cases = [case for took in parts.values() for case in took.cases]
    longest = sorted(cases, key=lambda case: -case.seconds)[:slowest]
    lines = [f"the {len(longest)} slowest tests", *(f"{case.seconds:8.1f} s  {case.name}" for case in longest)]
    busiest = [case for case in sorted(cases, key=lambda case: -case.cpu_s)[:slowest] if case.cpu_s]
    if busiest:
        lines += ["", f"the {len(busiest)} tests with the most processor time"]
        lines += [f"{case.cpu_s:8.1f} s  {case.name}" for case in busiest]
    lines += ["", "what each part took, and of that processor time"]
    width = max((len(name) for name in parts), default=0)
    for name, took in parts.items():
        computed = "" if took.cpu_s is None else clock(took.cpu_s)
        lines.append(f"  {name:{width}}  {clock(took.seconds):>6}  {computed:>6}  {counted(took.cases)}")
    return "\n".join([*lines, "", counted(cases)])


def counted(cases: Sequence[Case]) -> str:
    """``N passed, N failed``, and the skipped where there are any."""
    count = Counter(case.outcome for case in cases)
    skipped = f", {count['skipped']} skipped" if count["skipped"] else ""
    return f"{count['passed']} passed, {count['failed']} failed{skipped}"


def clock(seconds: float) -> str:
    """Minutes and seconds: ``12:05``."""
    return f"{int(seconds) // 60}:{int(seconds) % 60:02}"
