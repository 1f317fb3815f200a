"""What kgpu's own agent says of GPUs, as data on their Node: the verdicts of health and of the validator.

They come within seconds, when what the node itself says of its kernel's log is minutes old or was never looked at. And
they say when something is over, which the kernel's log does not.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from kgpu.base.errors import DriverFault
from kgpu.base.plain import text
from kgpu.base.remedy import Remedy
from kgpu.base.times import stamp_of
from kgpu.doctor import matching, remedies
from kgpu.doctor.host_facts import HostFacts, PciDevice, Xid
from kgpu.doctor.kinds import Node
from kgpu.doctor.model import CERTAIN, LIKELY, POSSIBLE, Evidence, Finding
from kgpu.doctor.objects import Condition, seconds
from kgpu.doctor.privileges import is_mighty
from kgpu.doctor.snapshot import Snapshot
from kgpu.formats import agent_report, gpu_report, names, validation_report
from kgpu.formats.gpu_report import UNREADABLE, GpuReport, ReportedGpu
from kgpu.formats.validation_report import UnpassedCheck, UnpassedDevice

_ABSENT: Final = frozenset({DriverFault.NOT_LOADED, DriverFault.VERSION_MISMATCH})
APPLICATION_ERROR: Final = "GPUApplicationError"
"""The reason that the agent gives for an error that a program has made."""
_ROOM: Final = 280
_LAST: Final = 253402300800.0  # the year 10000
FRESH_SECONDS: Final = 900.0
"""What an agent has said for so long is old: three of its heartbeats (``HEARTBEAT_SECONDS`` of ``kgpu.health.run``)."""


def has_ended(node: Node, role: str) -> bool:
    """Whether kgpu's agent on the node says that this role has ended there, or that none is to run."""
    told = {key: value for key, value in node.annotations.items() if agent_report.is_report(key)}
    reports = {key: agent_report.decode(text(value)) for key, value in told.items()}
    whole = reports.pop(agent_report.annotation(""), None)
    found = agent_report.merged(whole, {key: report for key, report in reports.items() if report is not None})
    said = found.roles.get(role) if found is not None else None
    return said is not None and said.state in agent_report.OVER


@dataclass(frozen=True, slots=True, kw_only=True)
class UnwellGpu:
    """One GPU that is not well, in the agent's words. ``gpu`` is its name for people; ``uuid`` and ``pci`` say which it
    is, "" where that is not known. ``works``: it takes work all the same.

    ``parts`` are all that is known of it, in words, and ``facts`` the names of that evidence, such as ``xid:79``.
    ``reason`` is the agent's, "" where it gives none. ``since`` is "" where nobody says it. ``remedy``: what kgpu's own
    tables say of it. ``sure``: how sure it is that it is still so, where nobody keeps the report true, or the driver is
    not there now.
    """

    node: Node
    gpu: str
    uuid: str
    pci: str = ""
    what: str
    parts: tuple[str, ...]
    facts: tuple[str, ...] = ()
    xids: tuple[int, ...] = ()
    remedy: str = ""
    works: bool
    since: str
    evidence: tuple[Evidence, ...]
    reason: str = ""
    sure: float = CERTAIN

    def is_gpu(self, uuid: str) -> bool:
        """Whether it is the GPU of that uuid; never where one of the two is not known."""
        return bool(uuid) and self.uuid == uuid

    def said(self, fact: str) -> str:
        """What is known of it under that name, in words."""
        return next((part for name, part in zip(self.facts, self.parts, strict=False) if name == fact), self.what)


def told(snapshot: Snapshot) -> tuple[UnwellGpu, ...]:
    """The GPUs that agents report as unwell now, of all nodes."""
    return snapshot.once(_all)


def _all(snapshot: Snapshot) -> tuple[UnwellGpu, ...]:
    return tuple(one for node in snapshot.nodes.values() for one in _of(snapshot, node))


def report_of(snapshot: Snapshot, node: Node) -> GpuReport | None:
    """What the node's agent says of its GPUs as data; None where it is older, or says nothing that is understood."""
    return snapshot.once(_reports).get(node.name)


def _reports(snapshot: Snapshot) -> dict[str, GpuReport]:
    read = {node.name: gpu_report.of_node(node.annotations) for node in snapshot.nodes.values()}
    return {name: report for name, report in read.items() if report is not None}


def _of(snapshot: Snapshot, node: Node) -> Iterator[UnwellGpu]:
    report, condition = report_of(snapshot, node), node.condition(names.GPUS_HEALTHY_CONDITION)
    ill = [gpu for gpu in report.gpus if not gpu.muted] if report is not None and condition is not None else []
    sure = _sureness(snapshot, node)
    for gpu in ill:
        yield UnwellGpu(
            node=node, gpu=gpu.name, uuid=gpu.uuid, pci=gpu.pci, what=gpu.what,
            parts=gpu.evidence or (gpu.what,), facts=gpu.facts, xids=gpu.xids, remedy=gpu.remedy, works=gpu.works,
            since=_time(gpu.since), evidence=_cited(node, condition, gpu), reason=gpu.reason, sure=sure,
        )  # fmt: skip
    failed, checked = _failed(snapshot, node), node.condition(names.VALIDATED_CONDITION)
    if failed is None or checked is None or checked.status != "False":
        return
    # Of what is ill already the validator says nothing new; of a GPU that goes on working it does.
    already_ill = {gpu.uuid for gpu in ill if not gpu.works}
    for device in failed.devices:
        if device.is_gpu and device.uuid not in already_ill:
            yield _unproven(node, device, checked, sure)


def _unproven(node: Node, device: UnpassedDevice, checked: Condition, sure: float) -> UnwellGpu:
    trouble = device.trouble
    return UnwellGpu(
        node=node, gpu=device.short_name, uuid=device.uuid, what=trouble.what, parts=(trouble.what,),
        facts=(f"driver:{trouble.problem}",) if trouble.problem else (), works=False, since=checked.since,
        evidence=(checked.cite(),), sure=sure,
    )  # fmt: skip


def _failed(snapshot: Snapshot, node: Node) -> UnpassedCheck | None:
    """The check that fails, as the validator says it as data."""
    return snapshot.once(_failing).get(node.name)


def _failing(snapshot: Snapshot) -> dict[str, UnpassedCheck]:
    read = {node.name: validation_report.of_node(node.annotations) for node in snapshot.nodes.values()}
    return {name: report.failed for name, report in read.items() if report is not None and report.failed is not None}


def _time(at: float) -> str:
    """As objects write times, "" for none and for what is no time."""
    return stamp_of(at) if 0 < at < _LAST else ""


def _cited(node: Node, condition: Condition | None, gpu: ReportedGpu) -> tuple[Evidence, ...]:
    """The condition as far as it is about this GPU, and of the data behind it what the condition does not say."""
    said = f"{condition.status}, {condition.reason}, " if condition is not None else ""
    field = condition.cite().field if condition is not None else "status.conditions"
    first = node.cite(field, _short(f"{said}{gpu_report.sentence(gpu)}"))
    rest = [text for text in gpu.evidence if text != gpu.what]
    if not rest:
        return (first,)
    return first, node.cite(f"metadata.annotations[{names.GPUS_ANNOTATION}]", _short("; ".join(rest)))


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


def says_more(snapshot: Snapshot, node: Node, checked: Condition) -> bool:
    """Whether the validator's condition tells of a failure that is not ``told``: of the node, or of an odd device."""
    if checked.type != names.VALIDATED_CONDITION or checked.status != "False":
        return False
    failed = _failed(snapshot, node)
    return failed is None or failed.trouble is not None or not all(one.is_gpu for one in failed.devices)


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


def _short(text: str) -> str:
    """Cut between words where it is too long to be shown whole."""
    return text if len(text) <= _ROOM else f"{text[:_ROOM].rpartition(' ')[0]} ..."


def as_told(unwell: UnwellGpu, cause: str, *, drain: bool = False) -> Finding:
    """A finding of what is told, with the remedy that is told."""
    first = (remedies.drain(unwell.node.name),) if drain else ()
    return Finding(
        subject=unwell.node.subject,
        cause=cause,
        evidence=unwell.evidence,
        remedy=(
            *first,
            *((Remedy(unwell.remedy),) if unwell.remedy else ()),
            remedies.describe_node(unwell.node.name),
        ),
        confidence=unwell.sure,
        since=unwell.since,
        nodes=(unwell.node.name,),
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
    """A node of which the driver can't be read at all. ``now``: it is so at this moment, as far as anybody can say.

    ``fault`` is why, None where only the condition says so. An agent of before reports had it loses by that: what its
    driver lacks (DRV-01, DRV-06) is then known from the node or from logs alone, and what it says of GPUs stays as sure
    as where the driver answers. Its condition is for people, and is not searched for words.
    """

    node: str
    fault: DriverFault | None
    since: str
    now: bool
    evidence: tuple[Evidence, ...]

    @property
    def absent(self) -> bool:
        """The driver itself is at fault, whatever its GPUs are: what was seen of them is from before."""
        return self.fault in _ABSENT


def unread(snapshot: Snapshot) -> Mapping[str, Unread]:
    """By node, in the agent's words or those of whoever has looked at the node itself. Only of nodes with a GPU of
    NVIDIA's: on others there is no driver to be read, and an image may bring the libraries all the same.
    """
    return snapshot.once(_unread)


def _unread(snapshot: Snapshot) -> dict[str, Unread]:
    by_node: dict[str, Unread] = {}
    for node in snapshot.nodes.values():
        health = node.condition(names.GPUS_HEALTHY_CONDITION) if _has_gpu(snapshot, node.name) else None
        if health is not None and health.status == "Unknown" and health.reason == UNREADABLE:
            now = _said_now(snapshot, node.name) is not None
            report = report_of(snapshot, node)
            by_node[node.name] = Unread(
                node=node.name, fault=report.fault if report else None, since=health.since, now=now,
                evidence=(health.cite(),),
            )  # fmt: skip
    for host in snapshot.hosts.values():
        condition = _said_now(snapshot, host.node)
        if not host.nvml_error or not _has_gpu(snapshot, host.node):
            continue
        if host.told_by and condition is not None and _could_read(condition, host):
            continue
        known = by_node.get(host.node)
        by_node[host.node] = Unread(
            node=host.node, fault=(known.fault if known else None) or host.nvml_fault,
            since=known.since if known else "", now=not host.told_by or condition is not None,
            evidence=(*(known.evidence if known else ()), host.cite("nvml_error")),
        )  # fmt: skip
    return by_node


def without_driver(snapshot: Snapshot, vendor: str, fault: DriverFault) -> Iterator[tuple[Node, Condition, bool]]:
    """The nodes with a vendor's devices whose agent can't read the driver for that reason, with what it says, and
    whether it says so now.
    """
    for node in matching.gpu_nodes(snapshot, vendor):
        health, report = node.condition(names.GPUS_HEALTHY_CONDITION), report_of(snapshot, node)
        unreadable = health is not None and health.status == "Unknown" and health.reason == UNREADABLE
        if health is not None and unreadable and report is not None and report.fault is fault:
            yield node, health, _said_now(snapshot, node.name) is not None


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
    if not host.told_by or not is_watched(snapshot, host.node) or not _speaks(snapshot, host.node):
        return False
    unwell = (gpu for gpu in told(snapshot) if gpu.node.name == host.node)
    return not any(not uuid or gpu.is_gpu(uuid) for gpu in unwell)


def _speaks(snapshot: Snapshot, name: str) -> bool:
    """Whether a node's agent says now of each of its GPUs that is not well."""
    condition = _said_now(snapshot, name)
    return condition is not None and _is_whole(snapshot, name, condition)


def _is_whole(snapshot: Snapshot, name: str, condition: Condition) -> bool:
    """Whether all GPUs that are not well are known by what an agent says; of an older one where it knows of none."""
    node = snapshot.nodes.get(name)
    report = report_of(snapshot, node) if node is not None else None
    return condition.status == "True" if report is None else not report.more


def is_over(snapshot: Snapshot, host: HostFacts, xid: Xid) -> bool:
    """Whether the agent, which follows the kernel's log too, does not count this: it has passed, or was repaired.

    What it has said after the error counts also where no agent is left to say it again.
    """
    if not _said_since(snapshot, host, xid) and not _speaks(snapshot, host.node):
        return False
    return not any(is_of(one, host, xid) for one in told(snapshot) if one.node.name == host.node)


def _said_since(snapshot: Snapshot, host: HostFacts, xid: Xid) -> bool:
    """Whether the agent has said after an error how all GPUs are."""
    node = snapshot.nodes.get(host.node)
    at = host.said_at(host.line_of(xid))
    if node is None or at is None:
        return False
    for row, condition in zip(node.maps("status.conditions"), node.conditions(), strict=True):
        if condition.type == names.GPUS_HEALTHY_CONDITION:
            heartbeat = seconds(row.get("lastHeartbeatTime")) or seconds(condition.since)
            return heartbeat is not None and heartbeat > at and _is_whole(snapshot, host.node, condition)
    return False


def _said_now(snapshot: Snapshot, name: str) -> Condition | None:
    """What the agent says of all GPUs of a node, None where nobody keeps it true (it outlives agents)."""
    return snapshot.once(_all_said).get(name)


def _all_said(snapshot: Snapshot) -> dict[str, Condition]:
    agents = frozenset(
        pod.node
        for pod in matching.pods_of_part(snapshot, matching.AGENT)
        if pod.ready and (is_mighty(pod) or not pod.uid)  # any tenant may call a pod an agent
    )
    alone = bool(snapshot.pods) or snapshot.knows("Pod")
    conditions: dict[str, Condition] = {}
    for node in snapshot.nodes.values():
        ready = node.name in agents
        if not ready and alone:
            continue
        for row, condition in zip(node.maps("status.conditions"), node.conditions(), strict=True):
            if condition.type == names.GPUS_HEALTHY_CONDITION:
                age = snapshot.age(text(row.get("lastHeartbeatTime")) or (condition.since if ready else ""))
                if age is not None and age <= FRESH_SECONDS:
                    conditions[node.name] = condition
                break
    return conditions


def is_of(unwell: UnwellGpu, host: HostFacts, xid: Xid) -> bool:
    """Whether a number in the log of the same node's kernel is told, or may be: of that GPU, where both are known."""
    if xid.code not in unwell.xids:
        return False
    places = [gpu.pci for gpu in host.gpus or () if unwell.is_gpu(gpu.uuid) and gpu.pci]
    places = places or ([unwell.pci] if unwell.pci else [])
    return not places or not xid.pci or any(place.startswith(xid.pci) for place in places)
