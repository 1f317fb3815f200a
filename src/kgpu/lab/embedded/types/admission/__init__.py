"""Admission as a default kube-apiserver has it: the plugins that are on, in their order.

``chain()`` gives fresh plugins; mutating ones have ``mutating = True``. They look objects up in ``ObjectLookup``; those
that follow writes have ``attach(core)``. Off, as by default: PodNodeSelector, ExtendedResourceToleration,
AlwaysPullImages. Not implemented: PodSecurity, webhooks and mutating policies.
"""

from __future__ import annotations

from kgpu.lab.embedded.core.model import Admission
from kgpu.lab.embedded.policy.plugin import ValidatingPolicies
from kgpu.lab.embedded.types.admission.cluster import (
    DefaultStorageClass,
    NamespaceLifecycle,
    NodeRestriction,
    StorageObjectInUseProtection,
    TaintNodesByCondition,
)
from kgpu.lab.embedded.types.admission.devices import DeviceAdminAccess
from kgpu.lab.embedded.types.admission.limits import LimitBounds, LimitDefaults
from kgpu.lab.embedded.types.admission.pods import DefaultTolerationSeconds, Priority, RuntimeClass, ServiceAccount
from kgpu.lab.embedded.types.admission.quotas import ResourceQuota
from kgpu.lab.embedded.types.admission.services import ServiceAddresses


def chain() -> tuple[Admission, ...]:
    """Every plugin, in the real order."""
    return (
        NamespaceLifecycle(),
        LimitDefaults(),
        ServiceAccount(),
        TaintNodesByCondition(),
        Priority(),
        DefaultTolerationSeconds(),
        DefaultStorageClass(),
        StorageObjectInUseProtection(),
        RuntimeClass(),
        ServiceAddresses(),
        DeviceAdminAccess(),
        NodeRestriction(),
        LimitBounds(),
        ValidatingPolicies(),
        ResourceQuota(),
    )
