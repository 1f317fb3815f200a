"""NVIDIADriver objects: what is wrong with one, and which Node belongs to which.

A node belongs to the one NVIDIADriver whose selector names it, otherwise to the default one. Two that select the same
node, or two defaults, change nothing on any node: a driver must not be replaced because of a mistake. Checks and their
order are the replaced operator's.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Final

import msgspec

from kgpu.base.advice import Advice
from kgpu.fit import read
from kgpu.fit.selectors import NodeTerm
from kgpu.formats import names
from kgpu.operator.model import ClusterNode, NvidiaDriver

GDS_NEEDS_OPEN: Final = (2, 17, 5)
CONFLICT: Final = "ConflictingNodeSelector"
FAILED: Final = "ReconcileFailed"
"""The reason of an NVIDIADriver that can't be used, such as one that can select no node."""
UNMET: Final = "PrerequisiteNotMet"


@dataclass(frozen=True, slots=True, kw_only=True)
class Assignment:
    """``owner`` by node name, None when conflicts leave all nodes as they are; ``problems`` by driver name."""

    owner: Mapping[str, str] | None = field(default_factory=dict)
    problems: Mapping[str, Advice] = field(default_factory=dict)

    def of(self, node: str) -> str | None:
        """For ``labels.label_plan``: the owner's name, "" for none, None to leave the label as it is."""
        return None if self.owner is None else self.owner.get(node, "")


def assign(drivers: Iterable[NvidiaDriver], nodes: Iterable[ClusterNode]) -> Assignment:
    """Assign every GPU node its NVIDIADriver; ``nodes`` are those with GPUs."""
    staying = [driver for driver in drivers if not driver.deleting]
    problems = {driver.name: problem for driver in staying if (problem := _own_problem(driver)) is not None}
    usable = [driver for driver in staying if not _unusable(problems.get(driver.name))]
    defaults = [driver for driver in usable if driver.spec.default]
    specific = [(driver, _terms(driver)) for driver in usable if not driver.spec.default]
    lame = {driver.name for driver in staying} - {driver.name for driver in usable}
    owner: dict[str, str] = {}
    clashes: dict[frozenset[str], list[str]] = {}
    for node in nodes:
        hits = [driver.name for driver, terms in specific if _selects(driver, terms, node)]
        if len(hits) > 1:
            clashes.setdefault(frozenset(hits), []).append(node.name)
        elif hits:
            owner[node.name] = hits[0]
        elif (before := node.labels.get(names.LABEL_DRIVER_OWNER)) in lame:
            owner[node.name] = before  # its driver keeps running while the manifest is wrong
        elif len(defaults) == 1:
            owner[node.name] = defaults[0].name
    for group, clashing in sorted(clashes.items(), key=lambda item: sorted(item[0])):
        for name in sorted(group):
            others = ", ".join(sorted(group - {name}))
            problems.setdefault(name, _clash(name, others, sorted(clashing)))
    if len(defaults) > 1:
        every = ", ".join(sorted(driver.name for driver in defaults))
        two = Advice(
            reason=FAILED,
            what=f"multiple default NVIDIADrivers found: {every}",
            remedy="set default: true on one only",
        )
        for driver in defaults:
            problems.setdefault(driver.name, two)
    return Assignment(owner=None if clashes or len(defaults) > 1 else owner, problems=problems)


def _clash(name: str, others: str, nodes: list[str]) -> Advice:
    more = f" (+{len(nodes) - 5} more)" if len(nodes) > 5 else ""
    return Advice(
        reason=CONFLICT,
        what=f"multiple NVIDIADrivers match the same node: {name} and {others} both select "
        f"{', '.join(nodes[:5])}{more}; no node changes its driver until that ends",
        remedy="make their nodeSelectors disjoint",
    )


def _unusable(problem: Advice | None) -> bool:
    """A driver with a reserved selector or that can't be read selects nothing."""
    return problem is not None and problem.reason == FAILED


def _own_problem(driver: NvidiaDriver) -> Advice | None:
    checks = (_unreadable, _reserved, _default_with_selector, _precompiled, _gds)
    return next((problem for check in checks if (problem := check(driver)) is not None), None)


def _unreadable(driver: NvidiaDriver) -> Advice | None:
    return driver.problem and replace(driver.problem, reason=FAILED)


def _reserved(driver: NvidiaDriver) -> Advice | None:
    affinity = driver.spec.node_affinity
    terms = affinity.required.node_selector_terms if affinity and affinity.required else ()
    keys = {*driver.spec.node_selector, *(expression.key for term in terms for expression in term.match_expressions)}
    if names.LABEL_DRIVER_OWNER in keys:
        return Advice(
            reason=FAILED,
            what=f"label {names.LABEL_DRIVER_OWNER} is reserved for the operator and can't be used in a selector",
            remedy="select nodes by another label",
        )
    return None


def _default_with_selector(driver: NvidiaDriver) -> Advice | None:
    if not (driver.spec.default and driver.spec.node_selector):
        return None
    return Advice(
        reason=FAILED, what="a default NVIDIADriver can't have a nodeSelector", remedy="remove one of the two"
    )


def _precompiled(driver: NvidiaDriver) -> Advice | None:
    on = [
        title
        for title, block in (("GPUDirect Storage", driver.spec.gds), ("GDRCopy", driver.spec.gdrcopy))
        if block is not None and block.enabled
    ]
    if not (driver.spec.use_precompiled and on):
        return None
    return Advice(
        reason=UNMET,
        what=f"{' and '.join(on)} can't be used with precompiled drivers",
        remedy="set usePrecompiled: false",
    )


def _gds(driver: NvidiaDriver) -> Advice | None:
    gds = driver.spec.gds
    if gds is None or not gds.enabled or driver.spec.kernel_module_type == "open":
        return None
    version = gds.version or ""
    if not (version.startswith("sha256:") or _numbers(version) >= GDS_NEEDS_OPEN):
        return None
    return Advice(
        reason=UNMET,
        what=f"GPUDirect Storage {version[:20]} needs the open kernel modules (v2.17.5 and later, and images by "
        "digest)",
        remedy="set kernelModuleType: open",
    )


def _numbers(version: str) -> tuple[int, ...]:
    parts = version.lstrip("v").partition("-")[0].split(".")
    return tuple(int(part) for part in parts if part.isascii() and part.isdigit())[:3]


def _terms(driver: NvidiaDriver) -> tuple[NodeTerm, ...] | None:
    affinity = driver.spec.node_affinity
    if affinity is None or affinity.required is None:
        return None
    return read.node_terms(msgspec.to_builtins(affinity.required))


def _selects(driver: NvidiaDriver, terms: tuple[NodeTerm, ...] | None, node: ClusterNode) -> bool:
    labels = node.labels
    if not all(labels.get(key) == value for key, value in driver.spec.node_selector.items()):
        return False
    return terms is None or any(term.matches(labels, node.name) for term in terms)
