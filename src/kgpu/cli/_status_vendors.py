"""What ``kgpu status`` says of nodes with accelerators, whoever offers them.

It goes by the Nodes alone: what the kubelet counts, labels, the agent's reports and the health role's. So it is the
same with kgpu's operator, with agents that nobody operates, and with a vendor's own plugin. It costs one list of Nodes.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from kgpu.base.plain import items, mapping, text
from kgpu.base.printable import one_line
from kgpu.formats import agent_report, gpu_report, names
from kgpu.formats.mig_request import MigLabelState, read_report
from kgpu.formats.support import cuda_of
from kgpu.hw.vendor import Vendor, vendors
from kgpu.operator.allocation import ROLES
from kgpu.operator.model import Allocation
from kgpu.operator.vendors import of_vendor, product

if TYPE_CHECKING:
    from kgpu.formats.agent_report import AgentReport
    from kgpu.formats.gpu_report import GpuReport
    from kgpu.kube.port import Object
    from kgpu.operator.watching import WatchedCluster

_ROOM: Final = 300
"""Characters of what an agent says of a profile; the doctor shows more."""
_TRUE: Final = "true"
_RUNNING: Final = "running"
_COUNT: Final = re.compile(r"[0-9]{1,9}")
_DRIVERS: Final = {
    names.NVIDIA: names.LABEL_CUDA_DRIVER_VERSION_FULL,
    names.AMD: f"{names.AMD_LABEL_PREFIX}driver-version",
}
"""The label that says the driver's version, by vendor; of the others their agent's report does."""
_BY_LABEL: Final = {
    names.NVIDIA: re.compile(re.escape(names.LABEL_GPU_PRESENT)),
    names.AMD: re.compile(
        rf"{re.escape(names.NFD_PREFIX)}(?:amd-gpu|pci-(?:(?:03[\da-f]{{2}}|1200)_)?1002(?:_\w+)*\.present)"
    ),
    names.GAUDI: re.compile(
        rf"{re.escape(names.LABEL_GAUDI_PRESENT)}|{re.escape(names.LABEL_INTEL_FEATURE_GAUDI)}"
        rf"|{re.escape(names.NFD_PREFIX)}pci-(?:\w+_)?1da3(?:_\w+)*\.present"
    ),
    names.INTEL: re.compile(re.escape(names.LABEL_INTEL_FEATURE_GPU)),
}
"""The labels that say of a node that it has a vendor's devices, whether or not they are offered. By the bus alone
Intel's are none: every processor has graphics.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeProblem:
    """What is wrong with the devices of a node; ``stops``: none of them can be used."""

    what: str
    remedy: str
    stops: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class VendorNode:
    """A node with a vendor's devices. ``capacity`` and ``allocatable`` are by resource; ``agent`` is kgpu's version on
    it, "alone" where only its health report shows that there is an agent, "" where nothing does. ``watched``: the
    health role says how the devices are; then ``bad`` take no work, and ``to_look_at`` do. ``claims``: kgpu's DRA
    driver hands the devices out, by what it says itself.
    """

    name: str
    vendor: str
    title: str
    ready: bool
    product: str = ""
    driver: str = ""
    cuda: str = ""
    capacity: dict[str, int] = field(default_factory=dict)
    allocatable: dict[str, int] = field(default_factory=dict)
    agent: str = ""
    watched: bool = False
    bad: int = 0
    to_look_at: int = 0
    claims: bool = False
    problems: tuple[NodeProblem, ...] = ()

    @property
    def works(self) -> bool:
        """Whether the node gives devices to pods."""
        return self.ready and not any(problem.stops for problem in self.problems)

    @property
    def devices(self) -> str:
        """``8/8``."""
        if self.claims and not any(self.allocatable.values()):
            return "by claims"
        amounts = {name: (self.allocatable.get(name, 0), count) for name, count in self.capacity.items()}
        return shown_devices(self.vendor, amounts)

    @property
    def health(self) -> str:
        """In one word or two."""
        if any(problem.stops for problem in self.problems):
            return "FAIL"
        if self.bad:
            return f"{self.bad} ILL"
        return f"{self.to_look_at} look" if self.to_look_at else "ok" if self.watched else "-"


def shown_devices(vendor: str, amounts: Mapping[str, tuple[int, int]]) -> str:
    """How many are allocatable of how many, with the last word of each resource but the vendor's usual one."""
    usual = vendors()[vendor].resource
    shown = (
        f"{free}/{count}{'' if name == usual else ' ' + name.rpartition('/')[2]}"
        for name, (free, count) in amounts.items()
    )
    return ", ".join(shown) or "none yet"


async def read_vendor_nodes(api: WatchedCluster) -> tuple[VendorNode, ...]:
    """Read the Nodes once. Raises KubeError."""
    from kgpu.kube.port import NODES

    listing = await api.list(NODES)
    return vendor_nodes(listing.items)


def vendor_nodes(nodes: Iterable[Object]) -> tuple[VendorNode, ...]:
    """A row for each vendor on each node, by name."""
    rows = (_row(node, vendor) for node in nodes for vendor in vendors().values())
    return tuple(sorted(filter(None, rows), key=lambda row: (row.works, row.name, row.vendor)))


def _row(node: Object, vendor: Vendor) -> VendorNode | None:
    metadata, status = mapping(node.get("metadata")), mapping(node.get("status"))
    labels = {key: text(value) for key, value in mapping(metadata.get("labels")).items()}
    capacity, allocatable = (_amounts(mapping(status.get(key)), vendor) for key in ("capacity", "allocatable"))
    if not any(capacity.values()) and not _is_labelled(labels, vendor):
        return None
    annotations = {key: text(value) for key, value in mapping(metadata.get("annotations")).items()}
    conditions = {text(one.get("type")): one for one in map(mapping, items(status.get("conditions")))}
    said, report = conditions.get(names.GPUS_HEALTHY_CONDITION, {}), gpu_report.of_node(annotations)
    reports = _alive(annotations)
    # What knows of no devices here is no agent of theirs.
    agent = next((one for one in reports if one.gpus or one.driver), None)
    whole = report if said and report is not None else None
    name, claims = text(metadata.get("name")), _gives_claims(reports, vendor.name)
    driver = labels.get(_DRIVERS.get(vendor.name, ""), "") or (agent.driver[:40] if agent else "")
    return VendorNode(
        name=name,
        vendor=vendor.name,
        title=vendor.title,
        ready=text(conditions.get("Ready", {}).get("status")) == "True",
        product=product(labels, vendor.name),
        driver=driver,
        cuda=cuda_of(driver) if vendor.name == names.NVIDIA else "",
        capacity=capacity,
        allocatable=allocatable,
        agent=(agent.version if agent else "") or ("alone" if whole else ""),
        watched=whole is not None,
        bad=whole.bad if whole else 0,
        to_look_at=sum(gpu.works and not gpu.muted for gpu in whole.gpus) if whole else 0,
        claims=claims,
        problems=(
            *_problems(name, vendor, capacity, allocatable, whole, claims=claims),
            *_parted(name, vendor, labels, annotations),
        ),
    )


def _parted(name: str, vendor: Vendor, labels: dict[str, str], annotations: dict[str, str]) -> Iterator[NodeProblem]:
    """What has become of the partition profile that the node's label asks for, where it is not in force."""
    if vendor.name != names.AMD:
        return
    report = read_report(annotations, names.PARTITION_REPORT_ANNOTATION)
    profile = labels.get(names.AMD_PROFILE_LABEL, "")
    if report is None or report.state is not MigLabelState.FAILED or report.config != profile:
        return
    why = one_line(report.message, _ROOM) or report.reason or "nobody says why"
    yield NodeProblem(what=f"the partition profile {one_line(profile, 63)} is not in force: {why}",
                      remedy=f"kgpu doctor node {name}")  # fmt: skip


def _alive(annotations: dict[str, str]) -> list[AgentReport]:
    """What the whole agent, else its processes, say, but for those that have ended."""
    reports = (agent_report.decode(annotations[key]) for key in sorted(filter(agent_report.is_report, annotations)))
    return [report for report in reports if report is not None and not agent_report.has_ended(report)]


def _gives_claims(reports: Iterable[AgentReport], vendor: str) -> bool:
    """Whether the DRA driver works in the device plugin's place, by what kgpu reports of a vendor's devices."""
    said = [report.roles.items() for report in reports if report.vendor == vendor]
    running = {role for roles in said for role, one in roles if one.state == _RUNNING}
    return ROLES[Allocation.DRA] in running and ROLES[Allocation.DEVICE_PLUGIN] not in running


def _amounts(resources: Mapping[str, Any], vendor: Vendor) -> dict[str, int]:
    """How many there are of a vendor's devices and parts of them; monitoring shares count nothing."""
    amounts = sorted(of_vendor(resources, vendor.name).items())
    return {name: int(text(amount)) for name, amount in amounts if _COUNT.fullmatch(text(amount))}


def _is_labelled(labels: dict[str, str], vendor: Vendor) -> bool:
    pattern = _BY_LABEL.get(vendor.name)
    return pattern is not None and any(value == _TRUE and pattern.fullmatch(key) for key, value in labels.items())


def _problems(
    name: str,
    vendor: Vendor,
    capacity: dict[str, int],
    allocatable: dict[str, int],
    report: GpuReport | None,
    *,
    claims: bool,
) -> Iterator[NodeProblem]:
    ask = f"kgpu doctor node {name}"
    if report is not None and report.unreadable:
        yield NodeProblem(what=f"the driver can't be read: {report.unreadable}", remedy=ask, stops=True)
        return
    for gpu in report.gpus if report is not None else ():
        if not gpu.muted:
            state = "works, and should be looked at" if gpu.works else "is not well"
            yield NodeProblem(what=f"{gpu.name} {state}: {gpu.what}", remedy=ask)
    if not any(allocatable.values()):
        if claims:  # of a plugin that was there before, the kubelet keeps the resource
            return
        offered = f"has {sum(capacity.values())}" if capacity else "has"
        yield NodeProblem(what=f"{offered} {vendor.title} devices and offers none", remedy=ask, stops=True)
        return
    bare = {key: count - allocatable.get(key, 0) for key, count in capacity.items() if count > allocatable.get(key, 0)}
    if bare and not (report is not None and report.bad):
        missing = ", ".join(f"{count} of {capacity[key]} {key}" for key, count in bare.items())
        yield NodeProblem(what=f"{missing} can't be given to pods", remedy=ask)
