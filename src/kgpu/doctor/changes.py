"""What differs between two looks: findings that have appeared, changed or ended, and evidence lost or got back.

Pure. A finding is the same one as long as its rule and its subject are; it has changed when a person would read
something else: its cause, how sure it is, what to do, whom it hurts, what follows from it. Quoted values do not count,
nor do ages and counts of restarts or messages in a cause: nothing is said while nothing happens, or the same goes on.
"""

from __future__ import annotations

import datetime as dt
import enum
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Final

from kgpu.doctor.model import Finding, Missing, Report, Subject
from kgpu.doctor.render import MARKS, body

_SENTENCE: Final = re.compile(r"(?<=[^.]\.)\s+(?=[A-Z])")
_SPAN: Final = r"\d+ (?:second|minute|hour|day)s?|\d[\dhmsnµ.]*s"
"""How long, in this doctor's words or in those of Kubernetes (``5m0s``)."""
_GROWS: Final = re.compile(
    rf"\b(?:(?P<before>for|since|back-off) (?:{_SPAN})|(?:{_SPAN}) (?P<after>ago|old)|\d+ (?P<what>restart|time)s?)\b"
)
"""What becomes more while things stay as they are. Other spans are limits: ``after 5 minutes``, ``30s``."""


class What(enum.StrEnum):
    """What has become of a finding, or of evidence that can't be got."""

    APPEARED = "appeared"
    CHANGED = "changed"
    ENDED = "ended"
    LOST = "not looked at"
    BACK = "looked at again"


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportChange:
    """One change. ``finding`` is the present one, of ``ENDED`` the last; ``under`` the root that explains it now."""

    what: What
    finding: Finding | None = None
    gap: Missing | None = None
    under: Finding | None = None

    def data(self) -> dict[str, Any]:
        """As JSON."""
        document: dict[str, Any] = {"change": self.what.value}
        if self.finding is not None:
            document["finding"] = self.finding.data()
        if self.gap is not None:
            document["missing"] = self.gap.data()
        if self.under is not None:
            document["follows_from"] = {"id": self.under.id, "subject": str(self.under.subject)}
        return document


def changes(before: Report | None, after: Report) -> tuple[ReportChange, ...]:
    """What has ended, then what has changed, then what has appeared; ``before`` is None at the first look."""
    old, new = _by_key(before.findings if before else ()), _by_key(after.findings)
    folded = {
        (finding.id, finding.subject): root for root in after.findings for finding in root.all() if finding is not root
    }
    differences = [
        ReportChange(what=What.ENDED, finding=finding, under=folded.get((finding.id, finding.subject)))
        for key, finding in old.items()
        if key not in new
    ]
    differences += [
        ReportChange(what=What.CHANGED, finding=finding)
        for key, finding in new.items()
        if key in old and _read(old[key]) != _read(finding)
    ]
    differences += [ReportChange(what=What.APPEARED, finding=finding) for key, finding in new.items() if key not in old]
    return (*differences, *_evidence(before, after))


def _by_key(findings: Iterable[Finding]) -> dict[tuple[str, Subject, int], Finding]:
    """By rule and subject; several of one rule about one subject by their order."""
    findings_by_key: dict[tuple[str, Subject, int], Finding] = {}
    for finding in findings:
        number = 0
        while (finding.id, finding.subject, number) in findings_by_key:
            number += 1
        findings_by_key[finding.id, finding.subject, number] = finding
    return findings_by_key


def _read(one: Finding) -> tuple[Any, ...]:
    """The parts of a finding whose change counts as a change of the finding."""
    return (
        _GROWS.sub(_lasting, one.cause), one.level, one.sureness, one.remedy, frozenset(one.nodes), frozenset(one.pods),
        frozenset((each.id, each.subject) for each in one.all()),
    )  # fmt: skip


def _lasting(hit: re.Match[str]) -> str:
    """The matched words without the number."""
    return hit["before"] or hit["after"] or hit["what"]


def _evidence(before: Report | None, after: Report) -> Iterator[ReportChange]:
    """Sources that fail now and those that work again, compared by name: an error text may hold a time."""
    old = {gap.what: gap for gap in before.missing} if before else {}
    new = {gap.what: gap for gap in after.missing}
    counting = {gap.what for gap in (*after.gaps_that_count, *(before.gaps_that_count if before else ()))}
    yield from (
        ReportChange(what=What.LOST, gap=gap) for what, gap in new.items() if what not in old and what in counting
    )
    yield from (
        ReportChange(what=What.BACK, gap=gap) for what, gap in old.items() if what not in new and what in counting
    )


def stamp(seconds: float) -> str:
    """A time as Kubernetes writes it."""
    return dt.datetime.fromtimestamp(seconds, tz=dt.UTC).isoformat(timespec="seconds").replace("+00:00", "Z")


def as_lines(differences: Iterable[ReportChange], when: str, width: int) -> Iterator[str]:
    """One line for each change; a finding that has appeared is printed in full below its line."""
    for change in differences:
        if change.gap is not None:
            why = f" ({change.gap.why})" if change.gap.why else ""
            yield f"{when} {change.what}: {change.gap.what}{why}"
        if (finding := change.finding) is None:
            continue
        under = f" (it follows from {change.under.id} {change.under.subject})" if change.under else ""
        head = f"{when} {change.what} {MARKS[finding.level]} {finding.id} {finding.subject}"
        yield f"{head}: {first_sentence(finding.cause)}{under}"
        if change.what is What.APPEARED:
            if first_sentence(finding.cause) != finding.cause:
                yield f"  {finding.cause}"
            yield from body(finding, width)


def first_sentence(text: str) -> str:
    """Up to the first full stop before a capital letter."""
    return _SENTENCE.split(text, maxsplit=1)[0]
