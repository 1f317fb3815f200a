"""Which versions in a cluster are outside of the support matrix (``kgpu.formats.support``).

A version that can't be parsed is no finding. Findings hold nothing up: they become the condition ``SupportedVersions``,
Events, and lines of ``kgpu status``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Final, TypeAlias

from kgpu.base.advice import Advice, Severity
from kgpu.base.errors import to_do
from kgpu.formats import names
from kgpu.formats.crd.clusterpolicy import Cdi
from kgpu.formats.support import (
    CDI_DEVICES,
    DRIVER_SYSTEMS,
    KUBERNETES,
    MIG_BROKEN_DRIVERS,
    MIG_FIXED_DRIVER,
    NO_DRIVER_SYSTEMS,
    NRI,
    OLDEST_BRANCH,
    RUNTIMES,
    dotted,
    parse,
)
from kgpu.operator import conditions
from kgpu.operator.labels import is_gpu, mig_capable, opted_out
from kgpu.operator.model import ClusterNode, Object, ObservedCluster, Policy

REASON: Final = "UnsupportedVersion"
CONDITION: Final = "SupportedVersions"
SHOWN: Final = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class Unsupported(Advice):
    """Something outside of the matrix; ``subject`` is ``Node/<name>`` where one node has it, "" otherwise. ``what``
    does not name the nodes.
    """

    severity: Severity = Severity.WARNING
    reason: str = REASON
    nodes: tuple[str, ...] = ()

    @property
    def on_nodes(self) -> str:
        """``what`` with up to five of its nodes."""
        more = f" (+{len(self.nodes) - SHOWN} more)" if len(self.nodes) > SHOWN else ""
        where = f", on {', '.join(self.nodes[:SHOWN])}{more}" if self.nodes else ""
        return f"{self.what}{where}"

    def line(self) -> str:
        """What, nodes and remedy as one line."""
        return to_do(self.on_nodes, self.remedy)


def check(observed: ObservedCluster, policy: Policy | None) -> tuple[Unsupported, ...]:
    """Return what is outside of the matrix; GPU nodes with the same problem are one finding."""
    findings: list[Unsupported] = []
    if not KUBERNETES.has(observed.kube_version):
        what = f"Kubernetes {dotted(observed.kube_version)} is not supported: {KUBERNETES.words}"
        findings.append(Unsupported(what=what, remedy=KUBERNETES.remedy))
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
        findings.append(
            Unsupported(
                what=what,
                remedy=remedy,
                subject=f"Node/{named[0]}" if len(named) == 1 else "",
                nodes=tuple(named),
            )
        )
    return tuple(findings)


def condition(findings: Iterable[Unsupported]) -> Object:
    """The condition of the ClusterPolicy; it warns and holds nothing up."""
    lines = [finding.line() for finding in findings]
    if lines:
        return conditions.condition(CONDITION, "False", REASON, "; ".join(lines))
    return conditions.condition(CONDITION, "True", "Supported", "nothing is outside of the support matrix")


def _facts(node: ClusterNode) -> tuple[object, ...]:
    driver = node.report.driver if node.report else ""
    source = node.report.driver_source if node.report else ""
    system = (node.os_id, node.os_version)
    return node.runtime, node.runtime_version, node.kubelet, *system, driver, source, mig_capable(node)


_Lines: TypeAlias = Iterator[tuple[str, str]]
_Rule: TypeAlias = Callable[[ClusterNode, "Policy | None"], _Lines]


def _cdi(policy: Policy | None) -> Cdi:
    return (policy.spec.cdi if policy is not None else None) or Cdi()


def _runtime(node: ClusterNode, _policy: Policy | None) -> _Lines:
    row = RUNTIMES.get(node.runtime)
    if row is not None and not row.has(parse(node.runtime_version)):
        yield f"{row.what} {node.runtime_version} is not supported: {row.words}", row.remedy


def _nri(node: ClusterNode, policy: Policy | None) -> _Lines:
    row = NRI.get(node.runtime)
    if row is None or not _cdi(policy).nri_plugin_enabled:
        return
    if not row.ranges or not row.has(parse(node.runtime_version)):
        yield f"{row.what}, {node.runtime_version or 'any version'}: {row.words}", row.remedy


def _kubelet(node: ClusterNode, policy: Policy | None) -> _Lines:
    version = parse(node.kubelet)
    if policy is not None and _cdi(policy).enabled and not CDI_DEVICES.has(version):
        yield f"kubelet {node.kubelet} passes no CDI devices: {CDI_DEVICES.lowest}", CDI_DEVICES.remedy


def _system(node: ClusterNode, policy: Policy | None) -> _Lines:
    host = node.report is not None and node.report.driver_source == "host"
    preinstalled = node.labels.get(names.LABEL_DEPLOY_PREFIX + "driver") not in (None, "", "true")
    if policy is None or policy.spec.driver.enabled is False or host or preinstalled:
        return
    row = DRIVER_SYSTEMS.get(node.os_id)
    if row is not None and not row.has(parse(node.os_version)):
        yield f"{row.what} {node.os_version} is not published: {row.words}", row.remedy
    if node.os_id in NO_DRIVER_SYSTEMS:
        yield (
            f"no driver container is published for {node.os_id} {node.os_version}",
            "use the system's own driver and set driver.enabled: false",
        )


def _driver(node: ClusterNode, policy: Policy | None) -> _Lines:
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
