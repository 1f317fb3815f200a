"""What kgpu's own agent says of GPUs in the node's conditions and events: the verdicts of health and the validator.

They come within seconds, when what the node itself says of its kernel's log is minutes old or was never looked at. And
they say when something is over, which the kernel's log does not.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from kgpu.doctor import matching
from kgpu.doctor.host_facts import HostFacts, Xid
from kgpu.doctor.kinds import Event, Node
from kgpu.doctor.model import CERTAIN, Evidence, Finding
from kgpu.doctor.obj import Condition
from kgpu.doctor.snapshot import Snapshot
from kgpu.fit.plain import text
from kgpu.formats import names

_GPU: Final = r"GPU (?:\d+ \(GPU-[0-9a-fA-F-]+\)|GPU-[0-9a-fA-F-]+|at [0-9a-fA-F:.]+)"
_PARTS: Final = re.compile(rf"(?P<gpu>{_GPU}): (?P<what>.*?)(?=\. (?:{_GPU}: |and \d+ more$)|$)")
_WORKS: Final = " (it goes on working)"
_TO_DO: Final = "; to do: "
_EVIDENCE: Final = re.compile(r", because the evidence calls for: [^\[]*\[(?P<all>.*)\](?:; to do: |$)")
_CHECKED: Final = re.compile(
    r"(?:^|; )\w+: (?P<gpu>GPU \d+) \([^)]*\): (?P<what>.*?); expected .*?; to do: (?P<todo>.*?)(?:; driver root|$)"
)
_XID: Final = re.compile(r"\bXid (?P<code>\d{1,4})\b")
_MORE: Final = re.compile(r"\. and \d+ more$")
FRESH_SECONDS: Final = 900.0
"""What an agent has said for so long is old: three of its heartbeats (``HEARTBEAT_SECONDS`` of ``kgpu.health.run``)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Told:
    """One GPU that is not well, in the agent's words. ``works``: it takes work all the same."""

    node: Node
    gpu: str
    what: str
    todo: str
    works: bool
    since: str
    evidence: tuple[Evidence, ...]

    @property
    def xids(self) -> tuple[int, ...]:
        """The numbers that it names, each once."""
        return tuple(dict.fromkeys(int(hit["code"]) for hit in _XID.finditer(self.what)))


def told(snapshot: Snapshot) -> tuple[Told, ...]:
    """Of every node, what is so now."""
    return snapshot.once(_all)


def _all(snapshot: Snapshot) -> tuple[Told, ...]:
    return tuple(one for node in snapshot.nodes.values() for one in _of(snapshot, node))


def _of(snapshot: Snapshot, node: Node) -> Iterator[Told]:
    seen: set[str] = set()
    condition = node.condition(names.GPUS_HEALTHY_CONDITION)
    for hit in _PARTS.finditer(condition.message) if condition else ():
        works = hit["what"].endswith(_WORKS)
        what, to_do, todo = hit["what"].removesuffix(_WORKS).partition(_TO_DO)
        if condition is None or not (works or to_do):  # said to be well by a person
            continue
        seen.add(hit["gpu"].partition(" (")[0])
        event = _event(snapshot, node, hit["gpu"])
        said = event.message if event else ""
        more = _EVIDENCE.search(said)
        yield Told(
            node=node, gpu=hit["gpu"], what="; ".join(dict.fromkeys([what, *((more["all"],) if more else ())])),
            todo=todo or (said.rpartition(_TO_DO)[2] if _TO_DO in said else ""), works=works, since=condition.since,
            evidence=(condition.cite(), *((event.quote(),) if event else ())),
        )  # fmt: skip
    checked = node.condition(names.VALIDATED_CONDITION)
    if checked is None or checked.status != "False":
        return
    for hit in _CHECKED.finditer(checked.message):
        if hit["gpu"] not in seen:
            yield Told(
                node=node, gpu=hit["gpu"], what=hit["what"], todo=hit["todo"], works=False, since=checked.since,
                evidence=(checked.cite(),),
            )  # fmt: skip


def _event(snapshot: Snapshot, node: Node, gpu: str) -> Event | None:
    """The latest that says why."""
    found = (one for one in snapshot.events(node) if one.warning and one.message.startswith(f"{gpu}: "))
    return next((one for one in found if _EVIDENCE.search(one.message)), None)


def as_told(one: Told, cause: str, *, drain: bool = False) -> Finding:
    """A finding of what is told, with the remedy that is told."""
    first = (f"kubectl drain {one.node.name} --ignore-daemonsets --delete-emptydir-data",) if drain else ()
    return Finding(
        subject=one.node.subject,
        cause=cause,
        evidence=one.evidence,
        remedy=(*first, *((one.todo,) if one.todo else ()), f"kubectl describe node {one.node.name}"),
        confidence=CERTAIN,
        since=one.since,
        nodes=(one.node.name,),
    )


def is_well(snapshot: Snapshot, host: HostFacts) -> bool:
    """Whether facts were told by an agent that has found all GPUs of the node to be well since then."""
    condition = _said_now(snapshot, host.node) if host.told_by else None
    if condition is None or condition.status != "True":
        return False
    return not any(one.node.name == host.node for one in told(snapshot))


def is_over(snapshot: Snapshot, host: HostFacts, xid: Xid) -> bool:
    """Whether the agent, which follows the kernel's log too, does not count this: it has passed, or was repaired."""
    condition = _said_now(snapshot, host.node)
    if condition is None or condition.status not in ("True", "False") or _MORE.search(condition.message):
        return False
    return not any(is_of(one, host, xid) for one in told(snapshot) if one.node.name == host.node)


def _said_now(snapshot: Snapshot, name: str) -> Condition | None:
    """What the agent says of all GPUs of a node, None where nobody keeps it true (it outlives agents)."""
    node = snapshot.nodes.get(name)
    if node is None:
        return None
    ready = any(one.ready for one in matching.pods_of_part(snapshot, matching.AGENT, node=name))
    if not ready and (snapshot.pods or snapshot.knows("Pod")):
        return None
    for row, condition in zip(node.maps("status.conditions"), node.conditions(), strict=True):
        if condition.type == names.GPUS_HEALTHY_CONDITION:
            age = snapshot.age(text(row.get("lastHeartbeatTime")) or (condition.since if ready else ""))
            return condition if age is not None and age <= FRESH_SECONDS else None
    return None


def is_of(one: Told, host: HostFacts, xid: Xid) -> bool:
    """Whether a number in the log of the same node's kernel is told: of that GPU, where both are known."""
    if xid.code not in one.xids:
        return False
    places = [gpu.pci for gpu in host.gpus or () if gpu.uuid and gpu.uuid in one.gpu and gpu.pci]
    return not places or not xid.pci or any(place.startswith(xid.pci) for place in places)
