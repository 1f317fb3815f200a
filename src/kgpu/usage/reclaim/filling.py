"""Pure: fills a receiver's template with what a message says.

What is filled in may be anybody's: it is made printable, cut, escaped, and never looked at again, so that no name of a
pod can be a field, a link or a mention.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final, TypeAlias

from kgpu.base.printable import one_line
from kgpu.base.times import stamp_of
from kgpu.usage.reclaim.figures import amount, waste
from kgpu.usage.reclaim.guards import span
from kgpu.usage.reclaim.record import NoticeKind, ReclaimNotice
from kgpu.usage.reclaim.templates import KEEP, MessageTemplate, TemplateField

LONGEST: Final = 1400
"""Characters of a filled text, without the command."""
LONGEST_COMMAND: Final = 400
UNKNOWN: Final = "unknown"
FILLED: Final = frozenset({NoticeKind.IDLE, NoticeKind.NODE, NoticeKind.WARNING})
"""Messages that have figures; the others have kgpu's own text."""
Escape: TypeAlias = Callable[[str], str]


def _idle(notice: ReclaimNotice, now: float) -> str:
    return UNKNOWN if notice.since is None else span(now - notice.since)


def _wasted(notice: ReclaimNotice, now: float) -> str:
    cost = waste(notice, now)
    return UNKNOWN if cost is None else amount(cost, notice.currency)


_TEXTS: Final[Mapping[str, Callable[[ReclaimNotice, float], str]]] = {
    "who": lambda one, _: one.who,
    "namespace": lambda one, _: one.namespace or "the cluster",
    "what": lambda one, _: one.what,
    "idle": _idle,
    "since": lambda one, _: UNKNOWN if one.since is None else stamp_of(one.since),
    "wasted": _wasted,
    "perHour": lambda one, _: amount(one.per_hour, one.currency),
    "assumed": lambda one, _: one.assumed,
    "deadline": lambda one, _: "none" if one.deadline is None else stamp_of(one.deadline),
    KEEP: lambda one, _: one.keep,
    "policy": lambda one, _: one.policy,
}
"""Of each field of ``templates.FIELDS``."""


def filled(template: MessageTemplate, notice: ReclaimNotice, now: float, escape: Escape, code: Escape) -> str:
    """The text for a message; ``escape`` and ``code`` are the receiver's."""
    fields = [part for part in template.parts if isinstance(part, TemplateField) and part.name != KEEP]
    plain = sum(len(part) for part in template.parts if isinstance(part, str))
    most = (LONGEST - plain) // max(1, len(fields))

    def text(part: str | TemplateField) -> str:
        if isinstance(part, str):
            return part
        form, length = (code, LONGEST_COMMAND) if part.name == KEEP else (escape, most)
        return fitting(_TEXTS[part.name](notice, now), form, length)

    return "".join(map(text, template.parts))


def fitting(text: str, escape: Escape, most: int) -> str:
    """The text on one line, escaped, and cut before that so that it has no more than ``most`` characters."""
    kept = one_line(text, most)
    while len(escaped := escape(kept)) > most and kept:
        kept = kept[: min(len(kept) - 1, len(kept) * most // len(escaped))]
    return escaped
