"""The ClusterPolicy in force and the commands that change it.

Its name is read from the cluster; the charts' default stands in only where no ClusterPolicy was read.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from kgpu.base.remedy import Remedy
from kgpu.doctor import remedies
from kgpu.doctor.objects import Obj
from kgpu.doctor.snapshot import Snapshot

USUAL: Final = "cluster-policy"
"""The name that both charts give it."""
MIXED: Final = {"mig": {"strategy": "mixed"}}


def in_force(snapshot: Snapshot) -> Obj | None:
    """Return the ClusterPolicy that counts: the operator ignores all but one."""
    policies = list(snapshot.all("ClusterPolicy"))
    return next((policy for policy in policies if policy.text("status.state") != "ignored"), None)


def name(snapshot: Snapshot) -> str:
    """Its name, the usual one where none was read."""
    policy = in_force(snapshot)
    return policy.name if policy is not None else USUAL


def change(snapshot: Snapshot, spec: Mapping[str, Any], why: str = "") -> Remedy:
    """The command that sets these fields of its spec and leaves the others as they are; ``why`` stands above it."""
    command = remedies.patch_policy(name(snapshot), {"spec": spec})
    return command.why(why) if why else command
