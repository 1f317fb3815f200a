"""What a node's agent says of its roles: the value of the Node annotation ``kgpu.dev/roles``, one JSON object.

Where a node has a process per role, each writes ``kgpu.dev/roles.<role>``; ``merged`` makes one report of them all.
The operator and ``kgpu status`` read it; ``kubectl describe node`` shows it. It is written when something changes and
is short by construction: reasons are cut. It comes from a node, so readers trust its shape only after decoding, which
cuts it, too. A report in a format that a reader does not know is None to it, as one that is not there.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import msgspec

from kgpu.base import typed
from kgpu.base.printable import one_line
from kgpu.formats import names
from kgpu.formats.operands import BLIND

FORMAT: Final = 1
"""Of the JSON object. ``version`` was taken: it is kgpu's own."""
MAX_REASON: Final = 400
"""Characters of a reason; a Node's annotations have room for 256 KiB together."""
MAX_WORD: Final = 100
"""Characters of a version, a state, and the name of a role."""
MAX_ROLES: Final = 32
_WORDS: Final = ("version", "vendor", "driver", "driver_source", "cuda")
MAX_BYTES: Final = 64 << 10

OVER: Final = frozenset({"stopped", "left"})
"""States of a role that does nothing more."""
ENDED: Final = "Ended"
"""``why`` of roles whose process has ended in order: what it has said is no longer so, its facts are the last known."""


class RoleReport(msgspec.Struct, frozen=True, omit_defaults=True, rename="camel", kw_only=True):
    """``state``: ``starting``, ``running``, ``waiting``, ``failed``, ``stopped`` (its label or the policy says so) or
    ``left``. ``reason`` is one line: what it does, or what it waits for. ``why`` is a CamelCase word. ``remedy`` is
    what the agent says can be done; of an agent older than this field it is the end of ``reason``.
    """

    state: str
    reason: str = ""
    why: str = ""
    remedy: str = ""


class AgentReport(msgspec.Struct, frozen=True, omit_defaults=True, rename="camel", kw_only=True):
    """``version`` is kgpu's; ``generation`` the one of the configuration that the agent acts on; facts as found here:
    ``vendor`` is whose accelerators it reads, ``driver`` is the driver's version, ``driver_source`` is ``host`` or
    ``container``, "" when there is none.
    ``format`` is FORMAT; an agent that says none writes the first.
    """

    format: int = FORMAT
    version: str = ""
    generation: int = 0
    roles: dict[str, RoleReport] = msgspec.field(default_factory=dict)
    vendor: str = names.NVIDIA
    driver: str = ""
    driver_source: str = ""
    cuda: str = ""
    gpus: int = 0


def encode(report: AgentReport) -> str:
    """One line of JSON with sorted keys."""
    return msgspec.json.encode(report, order="sorted").decode()


def decode(text: str) -> AgentReport | None:
    """None for what is no report, or one of a format that is not known: a node's annotation may hold anything. All
    text in a report is printable, and it has no more of anything than the bounds above.
    """
    report = typed.read(text, AgentReport, most=MAX_BYTES)
    if report is None or report.format != FORMAT:
        return None
    # An agent of kgpu's writes what fits: with thousands of nodes, to look is cheaper than to copy.
    plain = text.isprintable() and "\\" not in text
    return report if plain and _fits(report) else _bounded(report)


def _fits(report: AgentReport) -> bool:
    if len(report.roles) > MAX_ROLES:
        return False
    words = [*(getattr(report, name) for name in _WORDS), *report.roles]
    reasons: list[str] = []
    for said in report.roles.values():
        words += (said.state, said.why)
        reasons += (said.reason, said.remedy)
    return max(map(len, words)) <= MAX_WORD and max(map(len, reasons), default=0) <= MAX_REASON


def _bounded(report: AgentReport) -> AgentReport:
    words = {name: one_line(getattr(report, name), MAX_WORD) for name in _WORDS}
    roles = {one_line(name, MAX_WORD): _short(said) for name, said in list(report.roles.items())[:MAX_ROLES]}
    return msgspec.structs.replace(report, roles=roles, **words)


def _short(said: RoleReport) -> RoleReport:
    return RoleReport(
        state=one_line(said.state, MAX_WORD),
        reason=one_line(said.reason, MAX_REASON),
        why=one_line(said.why, MAX_WORD),
        remedy=one_line(said.remedy, MAX_REASON),
    )


def role(state: str, reason: str = "", why: str = "", remedy: str = "") -> RoleReport:
    """A report whose texts are one line each and fit."""
    return RoleReport(
        state=state, reason=one_line(reason, MAX_REASON), why=why, remedy=one_line(remedy, MAX_REASON)
    )  # fmt: skip


def annotation(part: str) -> str:
    """The key of the annotation of a process: ``part`` is "" for the whole agent, else the name of its role."""
    return f"{names.ROLES_ANNOTATION_PREFIX}{part}" if part else names.ROLES_ANNOTATION


def is_report(key: str) -> bool:
    """True for the key of an annotation that some process of kgpu's writes."""
    return key == names.ROLES_ANNOTATION or key.startswith(names.ROLES_ANNOTATION_PREFIX)


def manager(part: str) -> str:
    """The field manager with which that process writes its annotation."""
    return f"{names.ROLE_FIELD_MANAGER_PREFIX}{part}" if part else names.FIELD_MANAGER


def has_ended(report: AgentReport) -> bool:
    """True when the process that wrote it has ended."""
    return bool(report.roles) and all(role_report.why == ENDED for role_report in report.roles.values())


def ended(report: AgentReport) -> AgentReport:
    """The last report of a process: its roles have ended, but for those that had left or stopped before."""
    last = {
        name: role_report if role_report.state in OVER else role("stopped", "its process has ended", ENDED)
        for name, role_report in report.roles.items()
    }
    return msgspec.structs.replace(report, roles=last)


def merged(whole: AgentReport | None, parts: Mapping[str, AgentReport]) -> AgentReport | None:
    """One report of a node's processes, by role and the whole agent's; None when there is none.

    A running process counts before an ended one, and a role's own process before the whole agent. Driver facts come
    from processes that open the driver.
    """
    own = [report for _, report in sorted(parts.items())]
    every = [*own, *([whole] if whole is not None else [])]
    order = [*(report for report in every if not has_ended(report)), *(report for report in every if has_ended(report))]
    if len(order) < 2:
        return order[0] if order else None
    roles: dict[str, RoleReport] = {}
    for report in reversed(order):
        roles |= report.roles
    seers = [report for report in order if report.driver or not BLIND.issuperset(report.roles)] or order
    living = [report for report in seers if not has_ended(report)] or seers
    facts = next((report for report in living if report.driver), living[0])
    first = whole if whole is not None and not has_ended(whole) else order[0]
    return AgentReport(
        version=first.version,
        generation=first.generation,
        roles=roles,
        vendor=facts.vendor,
        driver=facts.driver,
        driver_source=facts.driver_source
        or next((report.driver_source for report in living if report.driver_source), ""),
        cuda=facts.cuda,
        gpus=facts.gpus,
    )
