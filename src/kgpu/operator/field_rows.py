"""Fields in force that this version does not provide yet, as ``kgpu status`` shows them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import msgspec

from kgpu.formats.crd import field_support
from kgpu.formats.crd.clusterpolicy import ClusterPolicySpec
from kgpu.formats.crd.nvidiadriver import NVIDIADriverSpec
from kgpu.operator.model import NvidiaDriver, Policy


@dataclass(frozen=True, slots=True, kw_only=True)
class FieldRow:
    """A field in force that this version does not provide yet: its object, and what is done instead."""

    object: str
    field: str
    instead: str


def field_rows(policy: Policy, drivers: Iterable[NvidiaDriver]) -> tuple[FieldRow, ...]:
    """Return the rows of the policy in force, then of each NVIDIADriver."""
    of_drivers = [(driver.name, driver.unbuilt) for driver in drivers if not driver.deleting]
    objects: list[tuple[str, type[msgspec.Struct], tuple[str, ...]]] = [
        (f"ClusterPolicy/{policy.name}", ClusterPolicySpec, policy.unbuilt),
        *((f"NVIDIADriver/{name}", NVIDIADriverSpec, paths) for name, paths in sorted(of_drivers)),
    ]
    return tuple(
        FieldRow(object=name, field=path, instead=field_support.instead(struct, path))
        for name, struct, paths in objects
        for path in paths
    )
