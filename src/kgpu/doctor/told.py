"""What kgpu's own agent says of GPUs in the node's conditions and events: the verdicts of health and the validator.

They come within seconds, when what the node itself says of its kernel's log is minutes old or was never looked at. And
they say when something is over, which the kernel's log does not.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Final

from kgpu.doctor import matching
from kgpu.doctor.host_facts import HostFacts, PciDevice, Xid
from kgpu.doctor.kinds import Event, Node
from kgpu.doctor.might import is_mighty
from kgpu.doctor.model import CERTAIN, LIKELY, POSSIBLE, Evidence, Finding
from kgpu.doctor.obj import Condition, seconds
from kgpu.doctor.remedies import Step
from kgpu.doctor.snapshot import Snapshot
from kgpu.fit.plain import text
from kgpu.formats import names

_GPU: Final = r"GPU (?:\d+ \(GPU-[0-9a-fA-F-]+\)|GPU-[0-9a-fA-F-]+|at [0-9a-fA-F:.]+)"
_PARTS: Final = re.compile(rf"(?P<gpu>{_GPU}): (?P<what>.*?)(?=\. (?:{_GPU}: |and \d+ more$)|$)")
_NAMED: Final = re.compile(rf"(?P<gpu>{_GPU}): ")
_WORKS: Final = " (it goes on working)"
_TO_DO: Final = "; to do: "
_EVIDENCE: Final = re.compile(r", because the evidence calls for: [^\[]*\[(?P<all>.*)\](?:; to do: |$)")
_CHECKED: Final = re.compile(
    r"(?:^|; )(?:\w+: )?(?P<gpu>GPU \d+) \([^)]*\): (?P<what>.*?); expected .*?; to do: "
    r".*?(?=; GPU \d+ \([^)]*\): |; driver root|$)"
)
_FAILED: Final = re.compile(r"(?:^|; )(?:\w+: )?(?:GPU \d+(?: \([^)]*\))?|GPU at \S+|MIG \d+ \([^)]*\)): ")
"""How the validator begins to speak of one device; where its message does not begin so, the node as a whole fails."""
_XID: Final = re.compile(r"\bXid (?P<code>\d{1,4})\b")
_MORE: Final = re.compile(r"\. and \d+ more$")
_CUT: Final = re.compile(r" and \d+ more$")
_WELL: Final = re.compile(rf"(?P<gpu>{_GPU}) is well(?:,|$)")
_ABSENT: Final = re.compile(
    r"driver not loaded|couldn't communicate with the NVIDIA driver|driver/library version mismatch", re.IGNORECASE
)
_WELL_REASON: Final = "GPUHealthy"
APPLICATION_ERROR: Final = "GPUApplicationError"
"""The reason of an event about an error that a program has made."""
_ROOM: Final = 280
UNREADABLE: Final = "DriverUnreadable"
"""The reason by which the agent says that it can't read the driver at all."""
FRESH_SECONDS: Final = 900.0
"""What an agent has said for so long is old: three of its heartbeats (``HEARTBEAT_SECONDS`` of ``kgpu.health.run``)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Told:
    """One GPU that is not well, in the agent's words. ``works``: it takes work all the same.

    ``reason`` is that of the event about it, "" where there is none any more. ``since`` is "" where nobody says it.
    ``cut``: there is more than it says, so that a number that it does not name is not over for that.
    ``todo``: what kgpu's own catalogue says of its Xid. ``sure``: how sure it is that it is still so, where nobody
    keeps the condition true, or the driver is not there now.
    """

    node: Node
    gpu: str
    what: str
    todo: str
    works: bool
    since: str
    evidence: tuple[Evidence, ...]
    reason: str = ""
    sure: float = CERTAIN
    cut: bool = False

    @property
    def xids(self) -> tuple[int, ...]:
        """The numbers that it names, each once."""
        return _numbers(self.what)


def _numbers(said: str) -> tuple[int, ...]:
    return tuple(dict.fromkeys(int(hit["code"]) for hit in _XID.finditer(said)))


def told(snapshot: Snapshot) -> tuple[Told, ...]:
    """Of every node, what is so now."""
    return snapshot.once(_all)


def _all(snapshot: Snapshot) -> tuple[Told, ...]:
    return tuple(one for node in snapshot.nodes.values() for one in _of(snapshot, node))


def _of(snapshot: Snapshot, node: Node) -> Iterator[Told]:
    seen: set[str] = set()  # what is ill: what the validator says of a GPU that goes on working is news
    sure = _sureness(snapshot, node)
    condition = node.condition(names.GPUS_HEALTHY_CONDITION)
    for hit in _PARTS.finditer(condition.message) if condition else ():
        works = hit["what"].endswith(_WORKS)
        what, to_do, _ = hit["what"].removesuffix(_WORKS).partition(_TO_DO)
        if condition is None or not (works or to_do):  # said to be well by a person
            continue
        seen |= set() if works else {hit["gpu"].partition(" (")[0]}
        event = _event(snapshot, node, hit["gpu"])
        said = event.message if event else ""
        more = _EVIDENCE.search(said)
        # What works all the same leaves the condition True, and that it is since the last real trouble.
        began = event.first if event else "" if works else condition.since
        yield Told(
            node=node, gpu=hit["gpu"], what="; ".join(dict.fromkeys([what, *((more["all"],) if more else ())])),
            todo=_own_advice(snapshot, what), works=works, since=began,
            evidence=(_part(node, condition, hit[0]), *((_quoted(event),) if event else ())),
            reason=event.reason if event else "", sure=sure, cut=more is None and _CUT.search(what) is not None,
        )  # fmt: skip
    checked = node.condition(names.VALIDATED_CONDITION)
    if checked is None or checked.status != "False":
        return
    for hit in _CHECKED.finditer(checked.message):
        if hit["gpu"] not in seen:
            yield Told(
                node=node, gpu=hit["gpu"], what=hit["what"], todo=_own_advice(snapshot, hit["what"]), works=False,
                since=checked.since,
                evidence=(checked.cite(),), sure=sure,
            )  # fmt: skip


def _own_advice(snapshot: Snapshot, said: str) -> str:
    """What the catalogue says of the number that decided, which comes first. What a condition or an event says is to be
    done is quoted with it, and never offered: whoever may write one would give orders to the reader.
    """
    numbers = _numbers(said)
    return snapshot.advice(numbers[0]) if numbers else ""


def ill(snapshot: Snapshot) -> frozenset[str]:
    """The nodes with a GPU that takes no work, or a driver that can't be read."""
    return snapshot.once(_ill)


def _ill(snapshot: Snapshot) -> frozenset[str]:
    return frozenset(one.node.name for one in told(snapshot) if not one.works) | frozenset(unread(snapshot))


def ill_by(snapshot: Snapshot, node: str) -> tuple[Evidence, ...]:
    """What shows that a node is ``ill``."""
    gone = unread(snapshot).get(node)
    found = [each for one in told(snapshot) if one.node.name == node and not one.works for each in one.evidence[:1]]
    return (*(gone.evidence if gone else ()), *dict.fromkeys(found))


def going_on(snapshot: Snapshot) -> frozenset[str]:
    """The nodes with GPUs that are not well, all of which go on working."""
    return frozenset(one.node.name for one in told(snapshot)) - ill(snapshot)


def says_more(checked: Condition) -> bool:
    """Whether the validator's condition tells of a failure that is not ``told``: of the node, or of an odd device."""
    if checked.type != names.VALIDATED_CONDITION or checked.status != "False":
        return False
    parts = _FAILED.findall(checked.message)
    return not _FAILED.match(checked.message) or len(parts) > len(_CHECKED.findall(checked.message))


def _sureness(snapshot: Snapshot, node: Node) -> float:
    gone = unread(snapshot).get(node.name)
    if gone is not None and gone.absent:
        return POSSIBLE
    return CERTAIN if _said_now(snapshot, node.name) is not None or not _is_old(snapshot, node) else LIKELY


def _is_old(snapshot: Snapshot, node: Node) -> bool:
    """Whether it is known that nobody keeps the condition true now: no agent is ready, or its time is long past."""
    row = next((one for one in node.maps("status.conditions") if one.get("type") == names.GPUS_HEALTHY_CONDITION), {})
    age = snapshot.age(text(row.get("lastHeartbeatTime")))
    return age is not None and (age > FRESH_SECONDS or snapshot.knows("Pod") or bool(snapshot.pods))


def _event(snapshot: Snapshot, node: Node, gpu: str) -> Event | None:
    """The latest that says why; what was said before the GPU was well again is history."""
    about = [one for one in snapshot.events(node) if one.message.startswith((f"{gpu}: ", f"{gpu} is well"))]
    well = max((one.when for one in about if not one.warning and one.reason == _WELL_REASON), default=-1.0)
    found = (one for one in about if one.warning and one.when >= well)
    return next((one for one in found if _EVIDENCE.search(one.message)), None)


def _part(node: Node, condition: Condition, said: str) -> Evidence:
    """What a condition says of one GPU: the whole message is about all of them, and would be cut."""
    whole = condition.cite()
    return node.cite(whole.field, _short(f"{condition.status}, {condition.reason}, {said}"))


def _quoted(event: Event) -> Evidence:
    quoted = event.quote()
    return replace(quoted, value=_short(event.message))


def _short(text: str) -> str:
    """Cut between words where it is too long to be shown whole."""
    return text if len(text) <= _ROOM else f"{text[:_ROOM].rpartition(' ')[0]} ..."


def as_told(one: Told, cause: str, *, drain: bool = False) -> Finding:
    """A finding of what is told, with the remedy that is told."""
    first = (Step("kubectl drain {} --ignore-daemonsets --delete-emptydir-data", one.node.name),) if drain else ()
    return Finding(
        subject=one.node.subject,
        cause=cause,
        evidence=one.evidence,
        remedy=(*first, *((Step(one.todo),) if one.todo else ()), Step("kubectl describe node {}", one.node.name)),
        confidence=one.sure,
        since=one.since,
        nodes=(one.node.name,),
    )


def is_watched(snapshot: Snapshot, node: str) -> bool:
    """Whether an agent lives that says of the node's GPUs how they are now."""
    condition = _said_now(snapshot, node)
    return condition is not None and condition.status in ("True", "False")


def is_well(snapshot: Snapshot, host: HostFacts) -> bool:
    """Whether facts were told by an agent that has found all GPUs of the node to be well since then."""
    condition = _said_now(snapshot, host.node) if host.told_by else None
    if condition is None or condition.status != "True":
        return False
    return not any(one.node.name == host.node for one in told(snapshot))


@dataclass(frozen=True, slots=True, kw_only=True)
class Unread:
    """A node of which the driver can't be read at all. ``now``: it is so at this moment, as far as anybody can say."""

    node: str
    said: str
    since: str
    now: bool
    evidence: tuple[Evidence, ...]

    @property
    def absent(self) -> bool:
        """The driver itself is at fault, whatever its GPUs are: what was seen of them is from before."""
        return _ABSENT.search(self.said) is not None


def unread(snapshot: Snapshot) -> Mapping[str, Unread]:
    """By node, in the agent's words or those of whoever has looked at the node itself. Only of nodes with a GPU of
    NVIDIA's: on others there is no driver to be read, and an image may bring the libraries all the same.
    """
    return snapshot.once(_unread)


def _unread(snapshot: Snapshot) -> dict[str, Unread]:
    found: dict[str, Unread] = {}
    for node in snapshot.nodes.values():
        said = node.condition(names.GPUS_HEALTHY_CONDITION) if _has_gpu(snapshot, node.name) else None
        if said is not None and said.status == "Unknown" and said.reason == UNREADABLE:
            now = _said_now(snapshot, node.name) is not None
            found[node.name] = Unread(
                node=node.name, said=said.message, since=said.since, now=now, evidence=(said.cite(),)
            )  # fmt: skip
    for host in snapshot.hosts.values():
        condition = _said_now(snapshot, host.node)
        if not host.nvml_error or not _has_gpu(snapshot, host.node):
            continue
        if host.told_by and condition is not None and _could_read(condition, host):
            continue
        known = found.get(host.node)
        found[host.node] = Unread(
            node=host.node, said=known.said if known else host.nvml_error, since=known.since if known else "",
            now=not host.told_by or condition is not None,
            evidence=(*(known.evidence if known else ()), host.cite("nvml_error")),
        )  # fmt: skip
    return found


def _has_gpu(snapshot: Snapshot, name: str) -> bool:
    """Whether a node has a GPU of NVIDIA's: by its object, by its bus, or because the kernel's log speaks of one."""
    host = snapshot.hosts.get(name)
    if host is not None and (host.xids or any(_is_gpu(one) for one in host.pci or ())):
        return True
    return name in snapshot.once(_with_gpus)


def _is_gpu(device: PciDevice) -> bool:
    return device.vendor == "10de" and device.pci_class.startswith("03")


def _with_gpus(snapshot: Snapshot) -> frozenset[str]:
    return frozenset(node.name for node in matching.gpu_nodes(snapshot, matching.NVIDIA))


def _could_read(condition: Condition, host: HostFacts) -> bool:
    """Whether an agent has read the driver since it told facts by which it could not: that a GPU is ill it also says of
    what it remembers, and then of a time before.
    """
    began, taken = seconds(condition.since), seconds(host.taken)
    later = began is not None and taken is not None and began > taken
    return condition.status == "True" or (condition.status == "False" and later)


def is_well_now(snapshot: Snapshot, host: HostFacts, uuid: str) -> bool:
    """Whether an agent that has told facts of its node says of one of its GPUs by now that it is well."""
    condition = _said_now(snapshot, host.node) if host.told_by else None
    if condition is None or condition.status not in ("True", "False") or _MORE.search(condition.message):
        return False
    return not any(not uuid or uuid in one.gpu for one in told(snapshot) if one.node.name == host.node)


def is_over(snapshot: Snapshot, host: HostFacts, xid: Xid) -> bool:
    """Whether the agent, which follows the kernel's log too, does not count this: it has passed, or was repaired.

    What it has said after the error counts also where no agent is left to say it again.
    """
    if _well_since(snapshot, host, xid):
        return True
    condition = _said_now(snapshot, host.node)
    if condition is None or condition.status not in ("True", "False") or _MORE.search(condition.message):
        return False
    return not any(is_of(one, host, xid) for one in told(snapshot) if one.node.name == host.node)


def _well_since(snapshot: Snapshot, host: HostFacts, xid: Xid) -> bool:
    """Whether the agent has said after an error that all is well, or of each GPU on which it told it that this is."""
    node = snapshot.nodes.get(host.node)
    if node is None:
        return False
    at = host.said_at(host.line_of(xid))
    for row, condition in zip(node.maps("status.conditions"), node.conditions(), strict=True):
        if condition.type == names.GPUS_HEALTHY_CONDITION and condition.status == "True" and at is not None:
            said = seconds(row.get("lastHeartbeatTime")) or seconds(condition.since)
            open_ = any(one.node.name == host.node and is_of(one, host, xid) for one in told(snapshot))
            if said is not None and said > at and not open_:
                return True
    worse: dict[str, float] = {}
    well: dict[str, float] = {}
    for event in snapshot.events(node):
        if event.reason == _WELL_REASON and (hit := _WELL.match(event.message)):
            well[hit["gpu"]] = max(well.get(hit["gpu"], 0.0), event.when)
        elif event.warning and (hit := _NAMED.match(event.message)) and xid.code in _numbers(event.message):
            worse[hit["gpu"]] = max(worse.get(hit["gpu"], 0.0), event.when)
    places = {one.pci for one in host.xids if one.kind == xid.kind and one.code == xid.code and not one.over}
    # An error on more GPUs than it was told of has come since then.
    return 0 < len(places) <= len(worse) and all(well.get(gpu, 0.0) > when for gpu, when in worse.items())


def _said_now(snapshot: Snapshot, name: str) -> Condition | None:
    """What the agent says of all GPUs of a node, None where nobody keeps it true (it outlives agents)."""
    return snapshot.once(_all_said).get(name)


def _all_said(snapshot: Snapshot) -> dict[str, Condition]:
    agents = frozenset(
        one.node
        for one in matching.pods_of_part(snapshot, matching.AGENT)
        if one.ready and (is_mighty(one) or not one.uid)  # any tenant may call a pod an agent
    )
    alone = bool(snapshot.pods) or snapshot.knows("Pod")
    found: dict[str, Condition] = {}
    for node in snapshot.nodes.values():
        ready = node.name in agents
        if not ready and alone:
            continue
        for row, condition in zip(node.maps("status.conditions"), node.conditions(), strict=True):
            if condition.type == names.GPUS_HEALTHY_CONDITION:
                age = snapshot.age(text(row.get("lastHeartbeatTime")) or (condition.since if ready else ""))
                if age is not None and age <= FRESH_SECONDS:
                    found[node.name] = condition
                break
    return found


def is_of(one: Told, host: HostFacts, xid: Xid) -> bool:
    """Whether a number in the log of the same node's kernel is told, or may be: of that GPU, where both are known."""
    if xid.code not in one.xids and not one.cut:
        return False
    places = [gpu.pci for gpu in host.gpus or () if gpu.uuid and gpu.uuid in one.gpu and gpu.pci]
    return not places or not xid.pci or any(place.startswith(xid.pci) for place in places)
