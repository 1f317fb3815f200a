"""What the doctor says: findings with the evidence quoted, how sure it is, and what to do about it.

Everything from outside is made printable, cut to a bounded length and freed of secrets here, so that no way of printing
can forget it. The form of ``-o json`` is ``Report.data``.
"""

from __future__ import annotations

import enum
import re
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any, Final

from kgpu.base.printable import one_line
from kgpu.base.remedy import Remedy
from kgpu.doctor.secrets import cleaned

MAX_VALUE: Final = 300
MAX_SENTENCE: Final = 1000
"""How evidence that is missing begins where pods wait and nobody can say why."""

CERTAIN: Final = 0.95
"""The evidence allows nothing else."""
LIKELY: Final = 0.75
"""The usual cause of what is seen; another one is possible."""
POSSIBLE: Final = 0.4
"""One of several; more evidence would decide."""


class Place(enum.IntEnum):
    """The six places where a GPU gets lost, from the bottom up: a fault in one explains what is seen above it."""

    HARDWARE = 1
    KERNEL = 2
    DRIVER = 3
    RUNTIME = 4
    PLUGIN = 5
    CLUSTER = 6

    @property
    def title(self) -> str:
        return _TITLES[self]


_TITLES: Final = {
    Place.HARDWARE: "hardware",
    Place.KERNEL: "kernel driver",
    Place.DRIVER: "driver's user space",
    Place.RUNTIME: "container runtime",
    Place.PLUGIN: "device plugin or DRA driver",
    Place.CLUSTER: "kubelet, scheduler and what runs in the cluster",
}


class Level(enum.StrEnum):
    """``PROBLEM`` needs somebody; ``WAIT`` goes by itself within ``Finding.expected``; ``NOTE`` hurts nobody now."""

    PROBLEM = "problem"
    WAIT = "wait"
    NOTE = "note"


@dataclass(frozen=True, slots=True, order=True)
class Subject:
    """What a finding is about. ``kind`` is Kubernetes' (Pod, Node, ...), or Cluster."""

    kind: str
    name: str = ""
    namespace: str = ""

    def __str__(self) -> str:
        place = f"{self.namespace}/{self.name}" if self.namespace else self.name
        return one_line(f"{self.kind} {place}".rstrip(), MAX_VALUE)


CLUSTER: Final = Subject("Cluster")
FILE: Final = "file "


def in_file(name: str) -> str:
    """The author of what stands in a file; no namespace has such a name."""
    return f"{FILE}{name}"


@dataclass(frozen=True, slots=True)
class Evidence:
    """One thing that was seen: a field of an object, or a line of a file or log. Values are shown, never trusted.

    ``author`` is the namespace in which whoever may write there could have written it: of Events, of what containers
    print and of what they leave as they end; or ``in_file`` of a text that anybody may have written. "" for what the
    cluster itself says.
    """

    object: str = ""
    field: str = ""
    value: str = ""
    file: str = ""
    line: int = 0
    author: str = ""

    def __post_init__(self) -> None:
        for name in ("object", "field", "file"):
            object.__setattr__(self, name, one_line(getattr(self, name), MAX_VALUE))
        object.__setattr__(self, "value", one_line(cleaned(self.value), MAX_VALUE))

    def __str__(self) -> str:
        where = self.object or self.file
        where += f", line {self.line}" if self.line else ""
        what = f"{self.field} = {self.value}" if self.field else self.value
        return f"{where}: {what}" if where else what

    def data(self) -> dict[str, Any]:
        """As JSON, without what is empty."""
        found = {"object": self.object, "field": self.field, "file": self.file, "line": self.line or ""}
        return {**{key: value for key, value in found.items() if value}, "value": self.value}


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeRow:
    """How a node stands to a pod that waits: its amounts of the resource asked for, and every reason against it."""

    node: str
    product: str = ""
    capacity: int = 0
    allocatable: int = 0
    used: int = 0
    reasons: tuple[str, ...] = ()

    def data(self) -> dict[str, Any]:
        """As JSON."""
        return {
            "node": one_line(self.node), "product": one_line(self.product),
            "capacity": self.capacity, "allocatable": self.allocatable,
            "used": self.used, "free": max(self.allocatable - self.used, 0),
            "reasons": [one_line(cleaned(reason), MAX_SENTENCE) for reason in self.reasons],
        }  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One cause. A rule fills in what it knows; ``id`` and ``place`` come from the rule's row.

    ``cause`` is one sentence that names the object at fault. ``remedy``: commands that can be pasted, or sentences.
    What a rule writes behind a command (``kubectl ...  # why``) becomes a sentence above it: zsh takes it for code.
    ``since`` is a time as Kubernetes writes it, "" for unknown; ``expected`` how long waiting is right.
    ``nodes`` and ``pods`` (``namespace/name``) are whom it hurts: they decide what is folded under what.
    ``gpus`` are the uuids of those that it is about, for other rules. ``stays``: told whatever else is told of its
    node, though its rule is a last resort.
    """

    subject: Subject
    cause: str
    evidence: tuple[Evidence, ...] = ()
    remedy: tuple[Remedy, ...] = ()
    confidence: float = LIKELY
    level: Level = Level.PROBLEM
    since: str = ""
    expected: str = ""
    nodes: tuple[str, ...] = ()
    pods: tuple[str, ...] = ()
    gpus: tuple[str, ...] = ()
    table: tuple[NodeRow, ...] = ()
    id: str = ""
    place: Place = Place.CLUSTER
    stays: bool = False
    consequences: tuple[Finding, ...] = ()

    def __post_init__(self) -> None:
        object.__setattr__(self, "cause", one_line(cleaned(self.cause), MAX_SENTENCE))
        for name in ("since", "expected"):
            object.__setattr__(self, name, one_line(getattr(self, name), MAX_VALUE))
        for name in ("nodes", "pods"):
            object.__setattr__(self, name, tuple(one_line(each, MAX_VALUE) for each in getattr(self, name)))
        steps = (part for step in self.remedy for part in _apart(_step(cleaned(step))))
        object.__setattr__(self, "remedy", tuple(map(Remedy.again, steps)))

    @property
    def sureness(self) -> str:
        """The confidence as a word."""
        return "certain" if self.confidence >= CERTAIN else "likely" if self.confidence >= LIKELY else "possible"

    def all(self) -> Iterator[Finding]:
        """Itself and everything folded under it."""
        yield self
        for one in self.consequences:
            yield from one.all()

    def data(self) -> dict[str, Any]:
        """As JSON, in the order for reading."""
        document: dict[str, Any] = {
            "id": self.id,
            "subject": str(self.subject),
            "cause": self.cause,
            "evidence": [cited.data() for cited in self.evidence],
            "remedy": [str(step) for step in self.remedy],
            "confidence": self.confidence,
            "level": self.level.value,
            "place": self.place.title,
        }
        more: dict[str, Any] = {
            "since": self.since,
            "expected": self.expected,
            "nodes": list(self.nodes),
            "pods": list(self.pods),
            "table": [row.data() for row in self.table],
            "consequences": [finding.data() for finding in self.consequences],
        }
        return document | {key: value for key, value in more.items() if value}


_COMMENT: Final = re.compile(
    r"""^(?P<command>(?:[^'"#]|'[^']*'|"(?:[^"\\]|\\.)*"|(?<!\s)#)*?)\s+# (?P<words>.+)$""", re.DOTALL
)


def _apart(step: str) -> tuple[str, ...]:
    """A command and, above it, what was written behind it: zsh runs a comment that is pasted."""
    hit = _COMMENT.match(step)
    if hit is None or "\n" in step:
        return (step,)
    words = hit["words"].rstrip()
    return (words if words.endswith((":", ".", "?")) else f"{words}:", hit["command"])


def _step(text: str) -> str:
    """One printable line: what an object says must not become a command of its own. A heredoc alone has several."""
    lines = text.split("\n")
    if not (lines[0].endswith("<<EOF") and lines[-1] == "EOF"):
        return one_line(text, MAX_SENTENCE)
    return "\n".join(one_line(line, MAX_SENTENCE) for line in lines)


@dataclass(frozen=True, slots=True)
class Missing:
    """Evidence that could not be got: what, why, and how to get it.

    ``slight``: it is not there for anybody (a file that this host does not have, facts that nobody has collected), and
    where nothing is wrong it would not have changed that. What was refused, late or unreadable is never slight.
    ``is_verdict``: ``what`` is a question that nobody can answer without it.
    """

    what: str
    why: str = ""
    how: str = ""
    slight: bool = False
    is_verdict: bool = False

    def __post_init__(self) -> None:
        for name in ("what", "why", "how"):
            object.__setattr__(self, name, one_line(cleaned(getattr(self, name)), MAX_SENTENCE))

    def data(self) -> dict[str, Any]:
        """As JSON."""
        return {key: value for key in ("what", "why", "how", "slight") if (value := getattr(self, key))}


class StepState(enum.StrEnum):
    """``NOT_ASKED``: the pod does not want it. ``UNKNOWN``: nothing that was seen says. ``LATER``: its turn comes."""

    DONE = "done"
    NOT_ASKED = "not asked for"
    WAITS = "waits"
    FAILED = "failed"
    UNKNOWN = "unknown"
    LATER = "later"


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceStep:
    """One step of a pod's way to its accelerators, what is known of it, and the proof."""

    name: str
    state: StepState
    said: str
    evidence: tuple[Evidence, ...] = ()

    def __post_init__(self) -> None:
        object.__setattr__(self, "said", one_line(cleaned(self.said), MAX_VALUE))

    def data(self) -> dict[str, Any]:
        """As JSON."""
        cited = [one.data() for one in self.evidence]
        return {"step": self.name, "state": self.state.value, "said": self.said, "evidence": cited}


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """All that was found, roots first; ``checked`` counts the rules that were asked."""

    findings: tuple[Finding, ...] = ()
    missing: tuple[Missing, ...] = ()
    checked: int = 0
    scope: str = ""
    looked: dict[str, int] = field(default_factory=dict)
    """How many objects of which kind were looked at."""
    stuck: int = 0
    """Pods with accelerators that do not run, and nodes with some that are not Ready, whatever is told of them."""
    trace: tuple[TraceStep, ...] = ()
    """The way of the one pod that was asked for, where that was wanted."""

    @property
    def real(self) -> tuple[Finding, ...]:
        """The findings that somebody has to mind: all but notes."""
        return tuple(one for one in self.findings if one.level is not Level.NOTE)

    @property
    def unjudged(self) -> str:
        """What nobody can say without nodes, "" where there are some, or a host's own facts."""
        waiting = next((gap.what for gap in self.missing if gap.is_verdict), "")
        if waiting or self.looked.get("nodes") or self.looked.get("hosts"):
            return waiting
        return "whether nodes offer their accelerators" if self.looked else ""

    @property
    def exit_code(self) -> int:
        """0: nothing that anybody has to mind; 1: findings; 2: none, but it can't be judged (``unjudged``).

        The command line's code is this one, or 2 where there is no report at all: it could not look.
        """
        if self.real:
            return 1
        return 2 if self.unjudged else 0

    @property
    def gaps_that_count(self) -> tuple[Missing, ...]:
        """The missing evidence that could have changed what is said: all of it where anything is wrong or unknown."""
        if self.real or self.unjudged or self.stuck:
            return self.missing
        return tuple(gap for gap in self.missing if not gap.slight)

    def data(self) -> dict[str, Any]:
        """The form of ``-o json`` and ``-o yaml``."""
        document = {
            "findings": [one.data() for one in self.findings],
            "missing": [one.data() for one in self.missing],
            "checked": self.checked,
            "scope": self.scope,
            "exit_code": self.exit_code,
            "looked": self.looked,
        }
        return document | ({"trace": [step.data() for step in self.trace]} if self.trace else {})


def folded(root: Finding, under: tuple[Finding, ...]) -> Finding:
    """``root`` with further consequences."""
    return replace(root, consequences=(*root.consequences, *under))
