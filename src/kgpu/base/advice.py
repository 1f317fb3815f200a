"""Advice: what is so or was decided, why, on what evidence, and what a person can do about it.

One record becomes the log line, the Event, the status condition and the text of ``kgpu doctor``, so that they never
tell different stories. No program of kgpu takes the text apart again: whoever needs a part reads the record.
Components hand their records to an ``AdviceSink``; only the process that hosts them knows where they go.
"""

from __future__ import annotations

import enum
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Final, Self, TypeAlias

from kgpu.base.errors import UserError, to_do
from kgpu.base.printable import one_line

_EXPECTED: Final = "expected "
"""How the ``why`` of a record of an error begins: no cause, but what should have been."""


class Severity(enum.StrEnum):
    """How much a person should care; WARNING and ERROR also become Kubernetes Events."""

    INFO = "info"
    WARNING = "warning"
    ERROR = "error"

    @property
    def notable(self) -> bool:
        """True for what deserves an Event."""
        return self is not Severity.INFO


@dataclass(frozen=True, slots=True, kw_only=True)
class Advice:
    """One record.

    ``subject`` is what it is about: a device's uuid, a resource or role name, a file; "" for the whole node.
    ``what`` is so and ``why`` are sentences without a final period. ``evidence`` are the observed facts, e.g.
    ``"Xid 79 reported"``. ``remedy`` is what a person can do, "" when nothing is needed. ``reason`` is the CamelCase
    word that an Event or condition carries.
    """

    subject: str = ""
    what: str
    why: str = ""
    evidence: tuple[str, ...] = ()
    severity: Severity = Severity.INFO
    remedy: str = ""
    reason: str = "Decided"

    @property
    def statement(self) -> str:
        """What is so and why, without what can be done."""
        if not self.why:
            return self.what
        return f"{self.what}; {self.why}" if self.why.startswith(_EXPECTED) else f"{self.what}, because {self.why}"

    @property
    def sentence(self) -> str:
        """The statement and what can be done, as conditions have it."""
        return to_do(self.statement, self.remedy)

    def one_line(self) -> str:
        """The whole record as one log line."""
        text = self.statement
        if self.subject and self.subject not in self.what:
            text = f"{self.subject}: {text}"
        if self.evidence:
            text += f" [{'; '.join(self.evidence)}]"
        return " ".join(to_do(text, self.remedy).split())

    def printable(self) -> Self:
        """The same, with whatever it quotes on one line and without characters that drive a terminal."""
        return replace(
            self,
            subject=one_line(self.subject),
            what=one_line(self.what),
            why=one_line(self.why),
            evidence=tuple(map(one_line, self.evidence)),
            remedy=one_line(self.remedy),
        )

    @classmethod
    def from_error(
        cls, error: UserError, *, subject: str = "", reason: str = "Failed", severity: Severity = Severity.WARNING
    ) -> Advice:
        """The same three parts as a record, for an error that was met and survived."""
        return cls(
            subject=subject,
            what=error.what,
            why=_EXPECTED + error.expected,
            severity=severity,
            remedy=error.remedy,
            reason=reason,
        )


AdviceSink: TypeAlias = Callable[[Advice], None]
"""Takes records; never blocks and never raises."""
