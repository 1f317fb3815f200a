"""What the end of a container's log says of how it goes: it works, or waits and says so again and again."""

from __future__ import annotations

import dataclasses
import re
from typing import Final

from kgpu.doctor.kinds import Container, Log, Pod
from kgpu.doctor.model import Evidence
from kgpu.doctor.snapshot import Snapshot

_RECENT: Final = 300.0
"""Seconds within which who works says something."""
_LAST: Final = 6
"""Lines at the end that are looked at."""
_TIMES: Final = 3
_FURTHER: Final = ("  expected: ", "  to do: ")
"""How the lines begin that follow the first one of an error of kgpu's programs."""
"""How often the same must be said to be a loop that waits."""
_DONE: Final = re.compile(
    r"(?P<part>\d{1,3}(?:\.\d{1,3})?) ?%|(?P<of>\d[\d.,]*) ?[KMGT]?i?B? ?(?:/|of) ?\d[\d.,]* ?[KMGT]i?B\b"
)
_STAMP: Final = re.compile(r"\W{0,3}(\d{4}-\d\d-\d\d)[T ](\d\d:\d\d:\d\d)(?:[.,]\d{1,9})?(Z|[+-]\d\d:?\d\d)?")
_CHANGES: Final = re.compile(r"\d+(?:[.:,]\d+)*|[|/\\#=>.-]{2,}")
"""What differs from line to line of one message: times, counts, bars."""


def works(snapshot: Snapshot, pod: Pod, container: Container) -> bool:
    """Whether a container's log shows that it gets on: a share of something that has grown, or words of just now that
    are not the same again and again.
    """
    said = last_lines(snapshot, pod, container)
    shares = [hit["part"] or hit["of"] for line in said if (hit := _DONE.search(line))]
    if said and _DONE.search(said[-1]):
        return len(shares) == 1 or len(set(shares)) > 1
    return bool(said) and not _repeats(said) and _is_recent(snapshot, said[-1])


def waits(snapshot: Snapshot, pod: Pod, container: Container) -> bool:
    """Whether a container says the same again and again."""
    return _repeats(last_lines(snapshot, pod, container))


def last_lines(snapshot: Snapshot, pod: Pod, container: Container) -> tuple[str, ...]:
    """The last lines that are not empty of what it writes now."""
    found = _current(snapshot, pod, container)
    return tuple([line for line in found.lines if line.strip()][-_LAST:]) if found else ()


def says_now(snapshot: Snapshot, pod: Pod, container: Container) -> Evidence | None:
    """The last line of what it writes now."""
    found = _current(snapshot, pod, container)
    at = _last_said(found) if found else None
    return found.cite(at) if found and at is not None else None


def _current(snapshot: Snapshot, pod: Pod, container: Container) -> Log | None:
    """The log that a container writes now."""
    logs = (log for log in snapshot.logs_of(pod) if not log.previous)
    return next((log for log in logs if log.container in ("", container.name)), None)


def _last_said(log: Log) -> int | None:
    """The position of the last line that is not empty."""
    return next((at for at in range(len(log.lines) - 1, -1, -1) if log.lines[at].strip()), None)


def last_line(snapshot: Snapshot, pod: Pod, container: Container) -> Evidence | None:
    """The last that a container has written before it ended. An error of kgpu's is quoted with what was expected and
    what there is to do, which stand in lines of their own.
    """
    for log in sorted(snapshot.logs_of(pod), key=lambda one: not one.previous):
        if log.container in ("", container.name):
            found = _last_said(log)
            if found is not None:
                return _whole(log, found)
    return None


def _whole(log: Log, last: int) -> Evidence:
    """The line, or the lines of the error that it ends."""
    begin = last - len(_FURTHER)
    further = log.lines[begin + 1 : last + 1]
    if begin < 0 or not all(map(str.startswith, further, _FURTHER)):
        return log.cite(last)
    first = log.cite(begin)
    return dataclasses.replace(first, value="; ".join([first.value, *map(str.strip, further)]))


def _repeats(said: tuple[str, ...]) -> bool:
    same = [_CHANGES.sub("", line) for line in said]
    return any(same.count(line) >= _TIMES for line in same[-2:])


def _is_recent(snapshot: Snapshot, line: str) -> bool:
    hit = _STAMP.match(line)
    age = snapshot.age(f"{hit[1]}T{hit[2]}{hit[3] or 'Z'}") if hit else None
    return age is not None and age <= _RECENT
