"""Do two labs tell the same story? The same scenario's results on both, step by step, without what may differ.

What may differ is what two real clusters would differ in: times, ages, identities, addresses, random endings of names.
Everything else is a difference, and a difference between the embedded and the real lab is a bug in the embedded one.
"""

from __future__ import annotations

import difflib
import re
from dataclasses import asdict, dataclass
from itertools import zip_longest
from typing import Any, Final

from kgpu.lab.scenarios.run import ScenarioResult, StepResult

# Applied in this order: what is replaced, and by what.
_VARIABLE: Final = tuple(
    (re.compile(pattern, re.MULTILINE), word)
    for pattern, word in (
        (r"kubectl-edit-\d+", "kubectl-edit-<id>"),
        (r"(?<=pod-template-hash=)[a-z0-9]+", "<hash>"),
        # How often it is told depends on how fast pods come and go.
        (r"^Waiting for [^\n]*\.\.\.$\n?", ""),
        (r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}", "<uid>"),
        (r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?(Z|[+-]\d\d:\d\d)", "<time>"),
        (r"[A-Z][a-z]{2}, \d\d [A-Z][a-z]{2} \d{4} \d\d:\d\d:\d\d [+-]\d{4}", "<time>"),
        (r"\b(\d{1,3}\.){3}\d{1,3}(:\d+)?\b", "<address>"),
        # pods of a ReplicaSet, then of a Job, DaemonSet or ReplicaSet alone
        (r"-[bcdf-hj-np-tv-z2456789]{6,10}-[bcdf-hj-np-tv-z2456789]{5}\b", "-<hash>-<id>"),
        (r"(?<=[a-z0-9])-(?=[a-z0-9]*\d)[bcdf-hj-np-tv-z2456789]{8,10}\b", "-<hash>"),
        (r"(?<=[a-z0-9])-[bcdf-hj-np-tv-z2456789]{5}\b(?=$|[\s\"':,/)])", "-<id>"),
        (r"(?<![\w.-])(\d+[dhms]){1,2}(?![\w.-])", "<age>"),
        # an Event that came again since: how often depends on how long ago it first came
        (r"<age> \(x\d+ over <age>\)", "<age>"),
        (r"\s+$", ""),
        (r"[ \t]{2,}", "  "),
    )
)


# What Kubernetes puts before the message of an Event from the tenth similar one on.
_COMBINED: Final = "(combined from similar events): "


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """A step that went differently. ``lines`` is a unified diff of what the two printed, or what else is wrong."""

    scenario: str
    step: str
    command: str
    lines: tuple[str, ...]

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def normal(text: str) -> str:
    """The text with everything replaced that differs between any two clusters."""
    for pattern, word in _VARIABLE:
        text = pattern.sub(word, text)
    return text


def compare(first: ScenarioResult, second: ScenarioResult) -> tuple[Difference, ...]:
    """Where two runs of one scenario differ, in the order of the steps."""
    differences = []
    for left, right in zip_longest(first.steps, second.steps):
        lines = _step(left, right, first.backend, second.backend)
        if lines:
            known = left or right
            assert known is not None
            differences.append(
                Difference(scenario=first.scenario, step=known.title, command=known.command, lines=lines)
            )
    return tuple(differences)


def _step(left: StepResult | None, right: StepResult | None, first: str, second: str) -> tuple[str, ...]:
    if left is None or right is None:
        return (f"only {second if left is None else first} came this far",)
    failures = [f"{name}: {step.why}" for name, step in ((first, left), (second, right)) if not step.ok]
    if left.varies:
        return tuple(failures)
    before, after = (_lines(step.output, once=bool(left.repeats)) for step in (left, right))
    return (*failures, *difflib.unified_diff(before, after, fromfile=first, tofile=second, lineterm="", n=0))


def _lines(text: str, *, once: bool) -> list[str]:
    """Sorted: what runs at the same time, as pods in a list, may come in any order. ``once``: each line only once."""
    lines = normal(text).splitlines()
    return sorted({line.replace(_COMBINED, "") for line in lines} if once else lines)
