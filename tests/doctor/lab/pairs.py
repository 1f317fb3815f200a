"""Two breakages in one lab at once: drawn by a seed, played, and looked at until both causes are told in their order."""

from __future__ import annotations

import random
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields, is_dataclass, replace
from typing import Any, Final

from kgpu.doctor.model import Finding, Report
from kgpu.doctor.render import as_text
from tests.doctor.lab import peers
from tests.doctor.lab.breaking import Break, Ground, Undo, healthy, until
from tests.doctor.lab.labs import space
from tests.doctor.lab.things import SPACE
from tests.doctor.lab.touching import exclude, touched
from tests.doctor.lab.urgency import urgency

SPACES: Final = (SPACE, peers.SPACE)
"""Namespaces of what is broken; the second of a pair has its own ones, with this behind their names."""
BESIDE: Final = "-2"
_WORDS: Final = re.compile("|".join(rf"(?<![\w./-]){re.escape(name)}(?![\w-])" for name in SPACES))


@dataclass(frozen=True, slots=True)
class Pair:
    first: Break
    second: Break

    def __str__(self) -> str:
        return f"{self.first} + {self.second}"

    def __iter__(self) -> Iterator[Break]:
        yield from (self.first, self.second)


def drawn(carried: Sequence[Break], count: int, *, of: Sequence[Break] = ()) -> list[Pair]:
    """So many pairs of what a lab carries, always the same ones: of different rules, and such as do not exclude each
    other. ``of``: one of the two is among these.
    """
    dice = random.Random("two faults at once")
    found: dict[tuple[str, str], Pair] = {}
    while len(found) < count:
        first, second = dice.choice(of or carried), dice.choice(carried)
        if dice.random() < 0.5:
            first, second = second, first
        beside = moved(second)
        if first.first == second.first or first.host != second.host or exclude(touched(first), touched(beside)):
            continue
        found.setdefault((min(first.what, second.what), max(first.what, second.what)), Pair(first, beside))
    return list(found.values())


def moved(broken: Break) -> Break:
    """The same breakage in namespaces of its own."""
    found: Break = _moved(broken)
    return replace(found, what=broken.what)


def _moved(value: Any) -> Any:
    if isinstance(value, str):
        return _WORDS.sub(lambda hit: hit[0] + BESIDE, value)
    if isinstance(value, dict):
        return {_moved(key): _moved(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(map(_moved, value))
    if is_dataclass(value) and not isinstance(value, type):
        return replace(value, **{one.name: _moved(getattr(value, one.name)) for one in fields(value)})
    return value


def play(ground: Ground, pair: Pair) -> Report:
    """Break both, see that both causes are told and the more urgent first, repair both, see that nothing is told."""
    undos: list[Undo] = []
    try:
        space(ground, SPACE + BESIDE)
        for broken in pair:
            undos.extend(step.do(ground) for step in broken.steps)
        return _told(ground, pair)
    finally:
        for undo in reversed(undos):
            undo()
        healthy(ground, pair.first.host)


def _told(ground: Ground, pair: Pair) -> Report:
    """The report once it is right twice in a row: what is passing does not count."""
    said, right = Report(), 0

    def seen() -> bool:
        nonlocal said, right
        said = ground.look(host=pair.first.host)
        right = 0 if wrong(said, pair) else right + 1
        return right > 1

    until(seen, lambda: f"{pair}: {wrong(said, pair)}:\n{as_text(said)}")
    return said


def wrong(report: Report, pair: Pair) -> str:
    """What of the pair a report does not tell as it should; "" where all is well."""
    places = [place(report, broken) for broken in pair]
    for broken, found in zip(pair, places, strict=True):
        if found is None:
            return f"{broken} is not told"
    ranks = [urgency(broken) for broken in pair]
    if ranks[0] != ranks[1] and (ranks[0] < ranks[1]) != (places[0] < places[1]):  # type: ignore[operator]
        sooner = pair.first if ranks[0] < ranks[1] else pair.second
        return f"{sooner} is the more urgent, and is not told first"
    return ""


def place(report: Report, broken: Break) -> tuple[int, int] | None:
    """Where a report tells of a breakage: at which cause, and how far below it; None for nowhere."""
    for number, root in enumerate(report.findings):
        for below, one in enumerate(root.all()):
            if _is(one, broken):
                return number, below
    return None


def _is(one: Finding, broken: Break) -> bool:
    return one.id == broken.first and (broken.names in str(one.subject) or broken.names in one.cause)
