"""Whose accelerators a node has: by the labels of its PCI devices and by what its agent reads. Pure.

A node is served for one vendor, the first of ``VENDORS``, as its agent reads one driver: NVIDIA's cards come before a
processor's graphics beside them. The records of ``kgpu.hw`` say the rest, and the operands which roles have something
to do there.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Any, Final

from kgpu.formats import names
from kgpu.formats.agent_report import AgentReport
from kgpu.formats.operands import OPERANDS, roles_on
from kgpu.hw.vendor import Vendor, vendors

VENDORS: Final[Mapping[str, Vendor]] = vendors()
"""By name, in the order in which drivers are looked for."""
SERVED: Final = frozenset({names.NVIDIA, names.AMD, names.GAUDI})
"""Those that are served unless the administrator says otherwise: most desktop processors have graphics of Intel."""
_TRUE: Final = "true"
_OF_LABEL: Final = {label: name for name, row in VENDORS.items() for label in row.pci_labels}


def _borne(taint: str, effect: str = "NoSchedule") -> dict[str, str]:
    return {"key": taint, "operator": "Exists", "effect": effect}


GPU_TOLERATION: Final = _borne(names.GPU_RESOURCE)
PARTITION_TOLERATION: Final = _borne(names.AMD_PARTITION_TAINT, "NoExecute")
"""Of the taint that users of AMD's device config manager set while a node is parted."""
TOLERATIONS: Final = (
    *(
        _borne(resource)
        for row in VENDORS.values()
        for resource in dict.fromkeys((row.resource, *row.resources))
        if "*" not in resource
    ),
    PARTITION_TOLERATION,
)
"""What kgpu's pods bear unless the policy says otherwise. Nodes are tainted with the names of their devices' resources,
as Kubernetes' ExtendedResourceToleration expects it; and AMD's taint stands while GPUs are parted, which an agent does.
"""


def seen(labels: Mapping[str, str], report: AgentReport | None, served: Collection[str] | None = None) -> str:
    """The vendor that PCI labels or the agent's report name, of those that are ``served`` (None: of all); "" without
    one.
    """
    found = {name for label, name in _OF_LABEL.items() if labels.get(label) == _TRUE}
    if report is not None and report.gpus > 0:
        found.add(report.vendor)
    return next((name for name in VENDORS if name in found and (served is None or name in served)), "")


def pci_labels(served: Iterable[str]) -> tuple[str, ...]:
    """The Node labels by which accelerators of these vendors are known."""
    wanted = frozenset(served)
    return tuple(label for label, name in _OF_LABEL.items() if name in wanted)


def is_accelerator(resource: str, vendor: str = "") -> bool:
    """Whether an extended resource counts accelerators, of this vendor or of any."""
    rows = [VENDORS[vendor]] if vendor else VENDORS.values()
    return any(row.counts(resource) for row in rows)


def of_vendor(resources: Mapping[str, Any], vendor: str) -> dict[str, Any]:
    """Those resources that count accelerators of this vendor."""
    return {name: count for name, count in resources.items() if is_accelerator(name, vendor)}


def deployed(vendor: str, without: Collection[str] = ()) -> tuple[str, ...]:
    """The ends of the labels ``nvidia.com/gpu.deploy.<x>`` of operands that serve a vendor's nodes, but for roles."""
    roles = roles_on(vendor).difference(without)
    return tuple(dict.fromkeys(row.deploy for row in OPERANDS if row.role in roles and row.deploy))


def product(labels: Mapping[str, str], vendor: str) -> str:
    """What a node's devices of this vendor are called, by kgpu's labels, else by those of AMD's labeller; "" where no
    label says it.
    """
    amd = labels.get(names.LABEL_AMD_GPU_PRODUCT_NAME, "") if vendor == names.AMD else ""
    return labels.get(f"{VENDORS[vendor].resource}.product", "") or amd
