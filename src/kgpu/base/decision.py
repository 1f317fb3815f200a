"""Decision records: what was decided, why, and on what evidence.

One record becomes the log line, the Event, the status condition and the text of ``kgpu doctor``, so that they never
tell different stories. Components make records and hand them to a ``DecisionSink``; only the process that hosts them
knows where they go.
"""

from __future__ import annotations

import enum
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, TypeAlias

from kgpu.base.errors import UserError

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
class Decision:
    """One decision.

    ``subject`` is what it is about: a device's uuid, a resource or role name, a file; "" for the whole node.
    ``what`` was decided and ``why`` are sentences without a final period. ``evidence`` are the observed facts, e.g.
    ``"Xid 79 reported"``. ``remedy`` is what a person can do, "" when nothing is needed. ``reason`` is the CamelCase
    word that an Event or condition carries.
    """

    subject: str
    what: str
    why: str
    evidence: tuple[str, ...] = ()
    severity: Severity = Severity.INFO
    remedy: str = ""
    reason: str = "Decided"

    def one_line(self) -> str:
        """The whole record as one log line."""
        text = f"{self.subject}: {self.what}" if self.subject and self.subject not in self.what else self.what
        if self.why:
            text += f"; {self.why}" if self.why.startswith(_EXPECTED) else f", because {self.why}"
        if self.evidence:
            text += f" [{'; '.join(self.evidence)}]"
        if self.remedy:
            text += f"; to do: {self.remedy}"
        return " ".join(text.split())

    @classmethod
    def from_error(
        cls, error: UserError, *, subject: str = "", reason: str = "Failed", severity: Severity = Severity.WARNING
    ) -> Decision:
        """The same three parts as a record, for an error that was met and survived."""
        return cls(
            subject=subject,
            what=error.what,
            why=_EXPECTED + error.expected,
            severity=severity,
            remedy=error.todo,
            reason=reason,
        )


DecisionSink: TypeAlias = Callable[[Decision], None]
"""Takes records; never blocks and never raises."""
