"""What ``upgradePolicy`` of the ClusterPolicy, or of an NVIDIADriver, says about upgrades, as parts of a NodeOperation.

The fields of a NodeOperation are those of ``kgpu.formats.crd.nodeoperation``, built here as plain data.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Final

from kgpu.base.advice import Advice
from kgpu.formats.crd.common import Drain, PodDeletion, UpgradePolicy, WaitForCompletion
from kgpu.formats.crd.nodeoperation import MOST
from kgpu.operator.model import NvidiaDriver, Object, Policy

FOR_EVER: Final = MOST
"""Seconds that stand for no limit: the largest number that a NodeOperation takes."""
_SHARE: Final = re.compile(r"[0-9]{1,6}|0*(?:[0-9]{1,2}|100)%", re.ASCII)


@dataclass(frozen=True, slots=True, kw_only=True)
class UpgradeRules:
    """How the nodes of one object get a new driver. ``asked_by`` is the object as ``Kind name``.

    ``problem`` is why no upgrade can be made from this policy, None if it can be carried out.
    """

    asked_by: str
    auto: bool = False
    rollout: Object = field(default_factory=dict)
    drain: Object = field(default_factory=dict)
    problem: Advice | None = None


def rules_of(owner: Policy | NvidiaDriver) -> UpgradeRules:
    """The rules of a ClusterPolicy's driver, or of an NVIDIADriver."""
    if isinstance(owner, NvidiaDriver):
        # Without a policy an NVIDIADriver upgrades by itself, as the replaced operator's definition has it.
        usual = UpgradePolicy(auto_upgrade=True)
        return _rules("NVIDIADriver", owner.name, owner.spec.upgrade_policy or usual, "spec.upgradePolicy")
    policy = owner.spec.driver.upgrade_policy or UpgradePolicy()
    return _rules("ClusterPolicy", owner.name, policy, "spec.driver.upgradePolicy")


def _rules(kind: str, name: str, policy: UpgradePolicy, path: str) -> UpgradeRules:
    share = "25%" if policy.max_unavailable is None else str(policy.max_unavailable)
    problem = None
    if not _SHARE.fullmatch(share):
        problem = Advice(
            what=f'{path}.maxUnavailable of {kind} {name} is "{share:.40}", so that no driver is upgraded',
            remedy=f"set it to a number of nodes such as 1, or a percentage such as 25%: kubectl edit {kind.lower()} "
            f"{name}",
        ).printable()
    return UpgradeRules(
        asked_by=f"{kind} {name}",
        auto=policy.auto_upgrade,
        rollout={
            "name": f"{kind.lower()}-{name}",
            "maxParallel": min(policy.max_parallel_upgrades, MOST),
            "maxUnavailable": share if problem else _budget(share),
        },
        drain=_drain(policy),
        problem=problem,
    )


def _budget(share: str) -> int | str:
    """A number of nodes, or a percentage without leading zeros, as a NodeOperation takes it."""
    return f"{int(share[:-1])}%" if share.endswith("%") else int(share)


def _drain(policy: UpgradePolicy) -> Object:
    """How a node is emptied: of the pods that hold GPUs, or with ``drain.enable`` of all that its selector names."""
    whole = policy.drain if policy.drain is not None and policy.drain.enable else None
    how: Drain | PodDeletion = whole or policy.pod_deletion or PodDeletion()
    drain: Object = {
        "timeoutSeconds": _limit(how.timeout_seconds),
        "force": how.force,
        "deleteEmptyDirData": how.delete_empty_dir,
    }
    if whole is None:
        drain["onlyGpuPods"] = True
    elif whole.pod_selector:
        drain["podSelector"] = whole.pod_selector
    waiting = policy.wait_for_completion or WaitForCompletion()
    if waiting.pod_selector:
        drain["waitFor"] = {
            "podSelector": waiting.pod_selector,
            "timeoutSeconds": min(waiting.timeout_seconds, FOR_EVER),
        }
    return drain


def _limit(seconds: int) -> int:
    """A time limit in seconds; 0 stands for none."""
    return min(seconds, FOR_EVER) or FOR_EVER
