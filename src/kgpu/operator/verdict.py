"""What an operand's verdict is: its condition, the nodes on which it does not work and why."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from kgpu.formats.operands import Operand
from kgpu.operator.causes import Cause

SHOWN: Final = 5
"""Nodes that one condition names."""

NOT_LOOKED_AT: Final = "not looked at: "
"""Begin of the note on nodes that may have undiscovered GPUs."""


@dataclass(frozen=True, slots=True)
class NodeCause:
    """A cause on a node; ``node`` is "" for what concerns the whole cluster."""

    node: str
    cause: Cause


@dataclass(frozen=True, slots=True, kw_only=True)
class OperandVerdict:
    """One operand: ``status`` and ``reason`` of its condition, its nodes, and what is wrong where."""

    operand: Operand
    status: str
    reason: str
    on: frozenset[str] = frozenset()
    """The nodes on which it should work."""

    off: frozenset[str] = frozenset()
    """The nodes on which a label of its own switches it off."""

    findings: tuple[NodeCause, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def holds_up(self) -> bool:
        """True when this keeps the policy from being ready."""
        return self.status == "False"

    @property
    def message(self) -> str:
        """The message of its condition."""
        if not self.findings:
            return "; ".join(self.notes)
        bad = {finding.node for finding in self.findings if finding.node}
        counted = [f"{max(0, len(self.on) - len(bad))} of {len(self.on)} nodes"] if bad else []
        return "; ".join([*counted, findings_text(self.findings), *self.notes])


def findings_text(findings: Iterable[NodeCause]) -> str:
    """The findings as text: up to five nodes with cause and remedy, grouped by these, the most frequent first."""
    groups: dict[str, list[str]] = {}
    for finding in findings:
        groups.setdefault(finding.cause.line(), []).append(finding.node)
    parts, left, more = [], SHOWN, 0
    for line, nodes in sorted(groups.items(), key=lambda item: (-len(item[1]), item[0])):
        named = [node for node in nodes if node]
        if not named:
            parts.append(line)
            continue
        shown = sorted(named)[:left]
        left -= len(shown)
        rest = len(named) - len(shown)
        if shown:
            parts.append(f"{'node' if len(named) == 1 else 'nodes'} {', '.join(shown)}{and_more(rest)}: {line}")
        else:
            more += rest
    return "; ".join(parts) + and_more(more)


def and_more(count: int) -> str:
    return f" (+{count} more)" if count else ""


def verdict_of(operand: Operand, nodes: list[str], findings: tuple[NodeCause, ...], notes: list[str]) -> OperandVerdict:
    if findings:
        return OperandVerdict(
            operand=operand,
            status="False",
            reason=most_frequent(findings),
            on=frozenset(nodes),
            findings=findings,
            notes=tuple(notes),
        )
    count = len(nodes)
    first = f"{count} of {count} nodes" if count else "no node wants it now"
    return OperandVerdict(operand=operand, status="True", reason="Ready", on=frozenset(nodes), notes=(first, *notes))


def unique(findings: list[NodeCause]) -> tuple[NodeCause, ...]:
    """The findings without duplicates, such as those about the whole cluster."""
    return tuple(dict.fromkeys(findings))


def most_frequent(findings: Iterable[NodeCause]) -> str:
    """The most frequent reason; failures come before passing causes."""
    counts: dict[str, int] = {}
    for finding in findings:
        counts[finding.cause.reason] = counts.get(finding.cause.reason, 0) + 1
    failing = {finding.cause.reason for finding in findings if not finding.cause.passing}
    return min(failing or counts, key=lambda reason: (-counts[reason], reason))


def some_nodes(nodes: list[str]) -> str:
    return f"{', '.join(sorted(nodes)[:SHOWN])}{and_more(len(nodes) - SHOWN) if len(nodes) > SHOWN else ''}"
