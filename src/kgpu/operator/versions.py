"""Which versions go together: the documents' support matrix as rows, and what of a cluster is outside of it.

Sources: the GPU operator's platform support page for 26.3 and 26.7 (Kubernetes, containerd, CRI-O, NRI), Kubernetes'
feature gates (CDI devices of device plugins), NVIDIA's release notes (MIG with some drivers of the 570 series) and
CUDA's table of driver branches. A version that can't be read is no finding. Nothing here stops anything: findings
become the condition ``SupportedVersions``, Events, and lines of ``kgpu status``.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Final, TypeAlias

from kgpu.formats import names
from kgpu.formats.crd.clusterpolicy import Cdi
from kgpu.operator import conditions
from kgpu.operator.labels import is_gpu, mig_capable, opted_out
from kgpu.operator.model import Node, Object, Observed, Policy

Version: TypeAlias = tuple[int, ...]
REASON: Final = "UnsupportedVersion"
CONDITION: Final = "SupportedVersions"
SHOWN: Final = 5

_NUMBER: Final = re.compile(r"[^0-9]*([0-9]+(?:\.[0-9]+)*)", re.ASCII)


@dataclass(frozen=True, slots=True)
class Range:
    """Versions from ``low`` to ``high``, both included; ``high`` counts with all that begins with it."""

    low: Version
    high: Version

    def has(self, version: Version) -> bool:
        return self.low <= version and version[: len(self.high)] <= self.high

    def __str__(self) -> str:
        return f"{dotted(self.low)} to {dotted(self.high)}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Supported:
    """One row: a thing, the versions of it that are supported, and what to do outside of them."""

    what: str
    ranges: tuple[Range, ...]
    remedy: str
    said: str = ""
    """The ranges in words, where their numbers are not how people write them."""


KUBERNETES: Final = Supported(
    what="Kubernetes", ranges=(Range((1, 32), (1, 36)),), remedy="bring the cluster to a supported version"
)
RUNTIMES: Final = {
    "containerd": Supported(
        what="containerd", ranges=(Range((1, 7), (2, 2)),), remedy="bring containerd to a supported version"
    ),
    "cri-o": Supported(
        what="CRI-O", ranges=(Range((1, 32), (1, 36)),), remedy="use the CRI-O of the kubelet's version"
    ),
}
NRI: Final = {
    "containerd": Supported(
        what="containerd with the NRI plugin",
        ranges=(Range((1, 7, 30), (1, 7)), Range((2, 1), (2, 2))),
        remedy="upgrade containerd, or set cdi.nriPluginEnabled: false",
    ),
    "cri-o": Supported(
        what="CRI-O with the NRI plugin", ranges=(), remedy="set cdi.nriPluginEnabled: false: CRI-O is not supported"
    ),
    "docker": Supported(
        what="Docker with the NRI plugin", ranges=(), remedy="set cdi.nriPluginEnabled: false: Docker has no NRI"
    ),
}
CDI_DEVICES: Final = Supported(
    what="the kubelet, for CDI devices of device plugins",
    ranges=(Range((1, 29), (9,)),),
    remedy="upgrade the kubelet, or set cdi.enabled: false",
)
# Systems for which driver containers exist; versions as far as the image names have them.
DRIVER_SYSTEMS: Final = {
    "ubuntu": Supported(
        what="a driver container for Ubuntu",
        ranges=(Range((22, 4), (22, 4)), Range((24, 4), (24, 4)), Range((26, 4), (26, 4))),
        said="22.04, 24.04 and 26.04",
        remedy="use a supported release, or install the driver on the node and set driver.enabled: false",
    ),
    "rhel": Supported(
        what="a driver container for Red Hat Enterprise Linux",
        ranges=(Range((8,), (10,)),),
        remedy="use a supported release, or install the driver on the node and set driver.enabled: false",
    ),
    "rocky": Supported(
        what="a driver container for Rocky Linux",
        ranges=(Range((9,), (10,)),),
        remedy="use a supported release, or install the driver on the node and set driver.enabled: false",
    ),
}
NO_DRIVER_SYSTEMS: Final = frozenset({"talos", "bottlerocket", "flatcar", "amzn", "fedora", "cos"})
"""Systems that bring their driver themselves: no driver container is published for them."""

MIG_BROKEN_DRIVERS: Final = frozenset({"570.124.06", "570.133.20", "570.148.08", "570.158.01"})
MIG_FIXED_DRIVER: Final = "580.65.06"

# The newest CUDA that programs may use with the drivers of a branch, newest branch first.
CUDA_BY_BRANCH: Final = (
    (595, "13.2"),
    (590, "13.1"),
    (580, "13.0"),
    (575, "12.9"),
    (570, "12.8"),
    (565, "12.7"),
    (560, "12.6"),
    (555, "12.5"),
    (550, "12.4"),
    (545, "12.3"),
    (535, "12.2"),
    (530, "12.1"),
    (525, "12.0"),
    (515, "11.7"),
    (510, "11.6"),
    (470, "11.4"),
)
OLDEST_BRANCH: Final = 535
"""Older branches get no fixes any more."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """Something outside of the matrix; ``subject`` is ``Node/<name>`` where one node has it, "" otherwise. ``what``
    does not name the nodes.
    """

    what: str
    remedy: str
    subject: str = ""
    nodes: tuple[str, ...] = ()

    def line(self) -> str:
        """All of it, with up to five nodes."""
        more = f" (+{len(self.nodes) - SHOWN} more)" if len(self.nodes) > SHOWN else ""
        where = f", on {', '.join(self.nodes[:SHOWN])}{more}" if self.nodes else ""
        return f"{self.what}{where}; to do: {self.remedy}"


def check(observed: Observed, policy: Policy | None) -> tuple[Finding, ...]:
    """Everything that is outside of the matrix; GPU nodes with the same trouble are one finding."""
    found: list[Finding] = []
    if not _within(KUBERNETES, observed.kube_version):
        what = f"Kubernetes {dotted(observed.kube_version)} is not supported: {_ranges(KUBERNETES)}"
        found.append(Finding(what=what, remedy=KUBERNETES.remedy))
    groups: dict[tuple[str, str], list[str]] = {}
    known: dict[tuple[object, ...], tuple[tuple[str, str], ...]] = {}
    for node in observed.nodes:
        if not is_gpu(node) or opted_out(node):
            continue
        facts = _facts(node)
        if facts not in known:  # thousands of nodes are of a few kinds
            known[facts] = tuple(finding for rule in _RULES for finding in rule(node, policy))
        for line in known[facts]:
            groups.setdefault(line, []).append(node.name)
    for (what, remedy), nodes in sorted(groups.items()):
        named = sorted(nodes)
        found.append(
            Finding(
                what=what,
                remedy=remedy,
                subject=f"Node/{named[0]}" if len(named) == 1 else "",
                nodes=tuple(named),
            )
        )
    return tuple(found)


def condition(findings: Iterable[Finding]) -> Object:
    """The condition of ClusterPolicy; it warns and holds nothing up."""
    lines = [finding.line() for finding in findings]
    if lines:
        return conditions.condition(CONDITION, "False", REASON, "; ".join(lines))
    return conditions.condition(CONDITION, "True", "Supported", "nothing is outside of the support matrix")


def cuda_of(driver: str) -> str:
    """The newest CUDA of a driver's branch, "" when it is not known: ``580.65.06`` gives ``13.0``."""
    branch = parse(driver)[:1]
    return next((cuda for low, cuda in CUDA_BY_BRANCH if branch and branch[0] >= low), "")


def parse(version: str) -> Version:
    """The leading numbers of a version such as ``v1.35.2+k3s1``; () when there are none."""
    found = _NUMBER.match(version[:100])
    return tuple(int(part) for part in found[1].split(".")[:6]) if found else ()


def dotted(version: Version) -> str:
    """As people write it."""
    return ".".join(map(str, version))


def _facts(node: Node) -> tuple[object, ...]:
    driver = node.report.driver if node.report else ""
    source = node.report.driver_source if node.report else ""
    system = (node.os_id, node.os_version)
    return node.runtime, node.runtime_version, node.kubelet, *system, driver, source, mig_capable(node)


def _within(row: Supported, version: Version) -> bool:
    return not version or any(one.has(version) for one in row.ranges)


def _ranges(row: Supported) -> str:
    listed = row.said or " and ".join(map(str, row.ranges))
    return f"supported is {listed}" if listed else "no version is supported"


_Lines: TypeAlias = Iterator[tuple[str, str]]
_Rule: TypeAlias = Callable[[Node, "Policy | None"], _Lines]


def _cdi(policy: Policy | None) -> Cdi:
    return (policy.spec.cdi if policy is not None else None) or Cdi()


def _runtime(node: Node, _policy: Policy | None) -> _Lines:
    row = RUNTIMES.get(node.runtime)
    if row is not None and not _within(row, parse(node.runtime_version)):
        yield f"{row.what} {node.runtime_version} is not supported: {_ranges(row)}", row.remedy


def _nri(node: Node, policy: Policy | None) -> _Lines:
    row = NRI.get(node.runtime)
    if row is None or not _cdi(policy).nri_plugin_enabled:
        return
    if not row.ranges or not _within(row, parse(node.runtime_version)):
        yield f"{row.what}, {node.runtime_version or 'any version'}: {_ranges(row)}", row.remedy


def _kubelet(node: Node, policy: Policy | None) -> _Lines:
    version = parse(node.kubelet)
    if policy is not None and _cdi(policy).enabled and not _within(CDI_DEVICES, version):
        yield f"kubelet {node.kubelet} passes no CDI devices: {_ranges_from(CDI_DEVICES)}", CDI_DEVICES.remedy


def _ranges_from(row: Supported) -> str:
    return f"supported from {dotted(row.ranges[0].low)}"


def _system(node: Node, policy: Policy | None) -> _Lines:
    host = node.report is not None and node.report.driver_source == "host"
    preinstalled = node.labels.get(names.LABEL_DEPLOY_PREFIX + "driver") not in (None, "", "true")
    if policy is None or policy.spec.driver.enabled is False or host or preinstalled:
        return
    row = DRIVER_SYSTEMS.get(node.os_id)
    if row is not None and not _within(row, parse(node.os_version)):
        yield f"{row.what} {node.os_version} is not published: {_ranges(row)}", row.remedy
    if node.os_id in NO_DRIVER_SYSTEMS:
        yield (
            f"no driver container is published for {node.os_id} {node.os_version}",
            "use the system's own driver and set driver.enabled: false",
        )


def _driver(node: Node, policy: Policy | None) -> _Lines:
    driver = node.report.driver[:40] if node.report else ""
    strategy = policy.spec.mig.strategy if policy is not None and policy.spec.mig is not None else None
    if driver in MIG_BROKEN_DRIVERS and strategy in ("single", "mixed") and mig_capable(node):
        yield (
            f"driver {driver} leaves pods with MIG devices pending",
            f"use driver {MIG_FIXED_DRIVER} or later, 570.172.08 or later of that branch, or 570.86.15",
        )
    branch = parse(driver)[:1]
    if branch and branch < (OLDEST_BRANCH,):
        yield f"driver {driver} is of a branch without fixes", f"use branch {OLDEST_BRANCH} or later"


_RULES: Final[tuple[_Rule, ...]] = (_runtime, _nri, _kubelet, _system, _driver)
