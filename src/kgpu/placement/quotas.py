"""Another limit in a namespace's ResourceQuotas, and the pods that controllers could not create before it. Pure.

Amounts are counted as the API server's admission does for pods: requests, limits, and pods themselves. A limit that
was not there counts the pods that exist. A quota with scopes counts only some pods, and is not changed here.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Final

from kgpu.base.errors import ConfigError
from kgpu.base.plain import items, mapping, number, text
from kgpu.base.printable import counted, one_line
from kgpu.base.suggest import did_you_mean
from kgpu.fit.model import CPU, MEMORY, PODS, STORAGE, QuotaView
from kgpu.fit.outside_scheduler import quota_amount, quota_asks
from kgpu.placement import workloads
from kgpu.placement.model import Origin, PodToPlace, SetQuota
from kgpu.placement.state import Object, PlacementState

NEW: Final = "what-if"
"""What a quota is called that a question makes."""
_WHOLE: Final = (CPU, MEMORY, STORAGE, PODS, "count/pods", *(f"limits.{name}" for name in (CPU, MEMORY, STORAGE)))
_BEGIN: Final = ("requests.", "hugepages-")


def is_counted(key: str) -> bool:
    """Whether pods take anything of what the key limits, as far as it is known here."""
    return key in _WHOLE or key.startswith(_BEGIN)


def apply(state: PlacementState, change: SetQuota) -> str:
    """Set the limit, and let controllers create what it held back. Raises ConfigError."""
    quotas = _meant(state, change)
    for quota in quotas:
        hard = {key: amount for key, amount in quota.hard.items() if key != change.key}
        used = dict(quota.used)
        if change.amount is not None:
            hard[change.key] = change.amount
            used.setdefault(change.key, _used(state, change.namespace, change.key))
        state.snapshot.put(replace(quota, hard=hard, used=used))
    limit = "no limit" if change.amount is None else quota_amount(change.key, change.amount)
    where = f"{change.namespace}/{', '.join(quota.name for quota in quotas)}"
    back = list(_held_back(state, change.namespace))
    state.waiting += back
    more = f"; controllers create {counted(len(back), 'pod')} that they could not before" if back else ""
    return f"quota {where}: {change.key} {limit}{more}"


def _meant(state: PlacementState, change: SetQuota) -> list[QuotaView]:
    """The quota of that name, or those that have the key; a new one where there is none to change."""
    own = {quota.name: quota for quota in state.snapshot.shelf.quotas.values() if quota.namespace == change.namespace}
    named = [own[change.quota]] if change.quota in own else []
    scoped = next((quota for quota in named if quota.scoped), None)
    if scoped is not None:
        raise ConfigError(
            f"quota {one_line(scoped.name, 80)} has scopes: which pods it counts is not known here",
            "a quota without scopes", "leave its name out, or name another one",
        )  # fmt: skip
    found = named or [
        quota for quota in own.values() if not change.quota and not quota.scoped and change.key in quota.hard
    ]
    if found:
        return found
    if change.amount is None or (change.quota and own):
        near = did_you_mean(change.quota, own) if change.quota else ""
        raise ConfigError(
            f"no quota of namespace {one_line(change.namespace, 80)} "
            + (f"is called {one_line(change.quota, 80)}" if change.quota else f"limits {one_line(change.key, 80)}")
            + (f"; {near}" if near else ""),
            f"one of {', '.join(sorted(own))}" if own else "a quota to change", "kubectl get resourcequotas -A",
        )  # fmt: skip
    _check_known(state, change)
    return [QuotaView(namespace=change.namespace, name=change.quota or NEW)]


def _check_known(state: PlacementState, change: SetQuota) -> None:
    """A limit of what no node has and no pod asks for is a slip. Raises ConfigError."""
    resource = change.key.removeprefix("requests.")
    snapshot = state.snapshot
    known = {name for node in snapshot.nodes.values() for name in node.view.allocatable}
    known |= {name for pod in snapshot.pods.values() for name in pod.requests}
    if "/" not in resource or resource.startswith("count/") or resource in known:
        return
    near = did_you_mean(resource, known)
    offered = ", ".join(sorted(name for name in known if "/" in name))
    raise ConfigError(
        f"no node offers {one_line(resource, 80)}, and no pod asks for it" + (f"; {near}" if near else ""),
        f"requests. of one of {offered}" if offered else "a resource that nodes offer", "correct --quota",
    )  # fmt: skip


def unseen(state: PlacementState, namespaces: Iterable[str]) -> Iterator[str]:
    """Which quotas are left out of account, as they count only some of the pods."""
    wanted = set(namespaces)
    for quota in state.snapshot.shelf.quotas.values():
        if quota.scoped and quota.namespace in wanted:
            where = f"{one_line(quota.namespace, 80)}/{one_line(quota.name, 80)}"
            yield f"quota {where} has scopes, so that it counts some pods alone: it is not looked at"


def _used(state: PlacementState, namespace: str, key: str) -> int:
    pods = (pod for pod in state.snapshot.pods.values() if pod.namespace == namespace)
    return sum(quota_asks(pod).get(key, 0) for pod in pods)


def _held_back(state: PlacementState, namespace: str) -> Iterator[PodToPlace]:
    """Pods that are missing to a ReplicaSet that says that it can't create them, and to a Job none of whose pods has
    failed; not those that an earlier change has brought already.
    """
    if any(row.origin is Origin.CREATED and row.pod.namespace == namespace for row in state.waiting):
        return
    for kind, missing in (("ReplicaSet", _of_replica_set), ("Job", _of_job)):
        for (space, name), obj in sorted(state.objects.get(kind, {}).items()):
            there = len(workloads.pods_of_workload(state, namespace, kind, name)) if space == namespace else 0
            template = mapping(mapping(obj.get("spec")).get("template"))
            count = min(missing(obj, there), workloads.MAX_PODS) if space == namespace and template else 0
            for at in range(count):
                key = (namespace, f"{name}-new-{at}")
                pod = workloads.made_pod(state, template, key, owner=f"{kind}/{name}")
                yield PodToPlace(pod=pod, origin=Origin.CREATED)


def _of_replica_set(obj: Object, there: int) -> int:
    conditions = map(mapping, items(mapping(obj.get("status")).get("conditions")))
    fails = any(row.get("type") == "ReplicaFailure" and row.get("status") == "True" for row in conditions)
    return max(0, number(mapping(obj.get("spec")).get("replicas"), 1) - there) if fails else 0


def _of_job(obj: Object, there: int) -> int:
    spec, status = mapping(obj.get("spec")), mapping(obj.get("status"))
    if spec.get("suspend") is True or number(status.get("failed")) or text(status.get("completionTime")):
        return 0
    wanted = number(spec.get("parallelism"), 1)
    if spec.get("completions") is not None:
        wanted = min(wanted, number(spec.get("completions"), 1) - number(status.get("succeeded")))
    return max(0, wanted - there)
