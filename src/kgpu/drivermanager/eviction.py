"""Which pods a driver manager evicts from its node, and which it may not. Pure; the rules are kubectl drain's.

This is for a driver container that was replaced by hand. Where an operator upgrades drivers, its own drain does this
(``kgpu.operations.drain``), by the same rules but for three kinds of pods. The drain takes those that have run to their
end, which have no GPU any more; it knows which DaemonSets are gone, and refuses their pods or takes them with force;
and it leaves those that tolerate the cordon and came after it, as another would come at once. Where such a pod has the
driver open, the manager names it as it can't unload the driver.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from kgpu.drivermanager.config import ManagerSettings
from kgpu.drivermanager.model import LocalPod
from kgpu.fit.selector_text import parse_selector
from kgpu.formats import names


@dataclass(frozen=True, slots=True, kw_only=True)
class Eviction:
    """``going`` are the pods to evict, ``refused`` those that may not go, each with why."""

    going: tuple[LocalPod, ...] = ()
    refused: tuple[tuple[LocalPod, str], ...] = ()

    @property
    def pods(self) -> tuple[LocalPod, ...]:
        """All that would have to go."""
        return (*self.going, *(pod for pod, _ in self.refused))


def of_gpu_pods(pods: Iterable[LocalPod], settings: ManagerSettings) -> Eviction:
    """Of the pods that ask for GPUs."""
    return _judged((pod for pod in pods if pod.gpus), settings)


def of_all_pods(pods: Iterable[LocalPod], settings: ManagerSettings) -> Eviction:
    """Of those that ask for GPUs, and of every pod that the drain's selector matches."""
    selector = parse_selector(settings.selector)
    return _judged((pod for pod in pods if pod.gpus or selector.matches(pod.labels)), settings)


def _judged(pods: Iterable[LocalPod], settings: ManagerSettings) -> Eviction:
    going, refused = [], []
    for pod in sorted(pods, key=lambda pod: pod.where):
        if pod.owner == "DaemonSet" or pod.mirror or pod.ended or _stays(pod):
            continue
        why = "" if pod.leaving else _refusal(pod, settings)
        if why:
            refused.append((pod, why))
        else:
            going.append(pod)
    return Eviction(going=tuple(going), refused=tuple(refused))


def _stays(pod: LocalPod) -> bool:
    """Whether its label keeps it from a drain. One with GPUs would keep the driver from being unloaded."""
    return not pod.gpus and pod.labels.get(names.DRIVER_UPGRADE_DRAIN_SKIP) == "true"


def _refusal(pod: LocalPod, settings: ManagerSettings) -> str:
    if pod.empty_dirs and not settings.delete_empty_dir:
        return "it would lose what is in its emptyDir (DRAIN_DELETE_EMPTYDIR_DATA)"
    if not pod.owner and not settings.force:
        return "no controller would make it anew (DRAIN_USE_FORCE)"
    return ""
