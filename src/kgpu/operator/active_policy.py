"""Which ClusterPolicy is in force, and when the operator keeps its hands off.

The oldest policy wins, ties go by name; the others' status names it. A policy that is being deleted does not count.
Where another GPU operator works, kgpu does nothing at all: two of them would fight over nodes and drivers.
"""

from __future__ import annotations

from dataclasses import dataclass

from kgpu.base.advice import Advice, Severity
from kgpu.formats import releases
from kgpu.operator.model import ObservedCluster, Policy


@dataclass(frozen=True, slots=True, kw_only=True)
class ActivePolicy:
    """``policy`` is in force, None without one; ``ignored`` are the others, ``leaving`` those being deleted.

    ``foreign`` names the other GPU operator that makes kgpu do nothing, "" for none; ``foreign_version`` is its
    release.
    """

    policy: Policy | None = None
    ignored: tuple[Policy, ...] = ()
    leaving: tuple[Policy, ...] = ()
    foreign: str = ""
    foreign_version: str = ""


def choose_policy(observed: ObservedCluster) -> ActivePolicy:
    """Choose the policy in force."""
    staying = sorted(
        (policy for policy in observed.policies if not policy.deleting),
        # Without a creation time the object has not been stored: it sorts last.
        key=lambda policy: (not policy.created, policy.created, policy.name),
    )
    return ActivePolicy(
        policy=staying[0] if staying else None,
        ignored=tuple(staying[1:]),
        leaving=tuple(policy for policy in observed.policies if policy.deleting),
        foreign=observed.foreign_operator,
        foreign_version=observed.foreign_version,
    )


def ignored(policy: Policy, winner: Policy) -> Advice:
    """The warning that a policy is not the one in force."""
    return Advice(
        subject=f"ClusterPolicy/{policy.name}",
        what=f"ClusterPolicy {policy.name} is ignored: one is in force per cluster, the oldest, and that is "
        f"ClusterPolicy {winner.name}",
        remedy=f"delete one of the two (kubectl delete clusterpolicy {policy.name})",
        severity=Severity.WARNING,
        reason="Ignored",
    )


def hands_off(foreign: str, version: str = "", *, policy: str = "") -> Advice:
    """The warning that nothing is done while another GPU operator works, with the steps to take over."""
    namespace, _, name = foreign.rpartition("/")
    where = f" -n {namespace}" if namespace else ""
    release = releases.told(version)
    return Advice(
        subject=f"ClusterPolicy/{policy}",
        what=f"kgpu does nothing here because another GPU operator works in this cluster (Deployment {foreign}"
        f"{', ' if release else ''}{release}) and two would fight over nodes and drivers",
        remedy="to take over without touching workloads, stop the other one "
        f"(kubectl{where} scale deployment {name} --replicas=0), and kgpu goes on with the same ClusterPolicy and "
        "node labels; if it was installed in another namespace, uninstall its release there, as kgpu does not look "
        "after that one's DaemonSets; otherwise uninstall kgpu",
        severity=Severity.WARNING,
        reason="ForeignOperator",
    )
