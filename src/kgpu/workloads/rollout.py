"""How far a DaemonSet or Deployment has come with new pods, as ``kubectl rollout status`` counts. Pure."""

from __future__ import annotations

import datetime as dt
from dataclasses import dataclass
from typing import Final

from kgpu.base.plain import mapping, number, text
from kgpu.kube.kinds import DAEMON_SETS
from kgpu.kube.port import Object, Resource

RESTARTED: Final = "kubectl.kubernetes.io/restartedAt"
"""The annotation of a pod template that ``kubectl rollout restart`` sets."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RolloutProgress:
    """``new`` of ``wanted`` pods are of the present template and available. ``done``: all, and no old ones are left."""

    new: int
    wanted: int
    done: bool


def progress(kind: Resource, obj: Object) -> RolloutProgress:
    """Of the object as it is now."""
    status, spec = mapping(obj.get("status")), mapping(obj.get("spec"))
    seen = number(status.get("observedGeneration")) >= number(mapping(obj.get("metadata")).get("generation"))
    if kind == DAEMON_SETS:
        wanted = number(status.get("desiredNumberScheduled"))
        updated, available = number(status.get("updatedNumberScheduled")), number(status.get("numberAvailable"))
        others = 0
    else:
        wanted = number(spec.get("replicas"), 1)
        updated, available = number(status.get("updatedReplicas")), number(status.get("availableReplicas"))
        others = number(status.get("replicas")) - updated
    new = min(updated, available) if seen else 0
    return RolloutProgress(new=new, wanted=wanted, done=seen and new >= wanted and others <= 0)


def replaces_by_itself(obj: Object) -> bool:
    """Whether a changed template makes new pods, and not only pods that are deleted do."""
    return text(mapping(mapping(obj.get("spec")).get("updateStrategy")).get("type")) != "OnDelete"


def restarted(now: dt.datetime) -> Object:
    """The change that makes new pods."""
    annotations = {RESTARTED: now.astimezone(dt.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")}
    return {"spec": {"template": {"metadata": {"annotations": annotations}}}}
