"""Writes the scheduler's decisions as kube-scheduler does: bindings, the PodScheduled condition, preemptions, Events.

No method raises for an API server's refusal: it is logged, and the loop decides what to do next.
"""

from __future__ import annotations

import datetime as dt
import logging
from collections.abc import Callable
from typing import Final

from kgpu.base.errors import KubeError
from kgpu.fit import FitVerdict, PodView
from kgpu.kube.port import PODS, KubeApi, KubeRefusedError, Object, Patch, name_of, namespace_of
from kgpu.lab.embedded.controllers.meta import stamp
from kgpu.lab.embedded.controllers.recorder import Recorder

log = logging.getLogger(__name__)

NORMAL: Final = "Normal"
WARNING: Final = "Warning"
# The API server's limit for an Event's message, and what kube-scheduler puts where it cuts.
_LONGEST: Final = 1024
_CUT: Final = " ..."


class SchedulerWriter:
    """Writes a scheduler's decisions to the API."""

    def __init__(self, api: KubeApi, recorder: Recorder, name: str, now: Callable[[], dt.datetime]) -> None:
        self._api = api
        self._recorder = recorder
        self._name = name
        self._now = now

    async def bind(self, pod: Object, node: str) -> bool:
        """Bind the pod to the node; False when that failed."""
        metadata = {key: pod["metadata"][key] for key in ("name", "namespace", "uid") if key in pod["metadata"]}
        binding = {
            "apiVersion": "v1",
            "kind": "Binding",
            "metadata": metadata,
            "target": {"apiVersion": "v1", "kind": "Node", "name": node},
        }
        try:
            await self._api.create(PODS, binding, subresource="binding")
        except KubeError as error:
            log.warning("binding %s/%s to %s: %s", namespace_of(pod), name_of(pod), node, error.one_line())
            if not (isinstance(error, KubeRefusedError) and error.code in (404, 409)):
                self._emit(pod, WARNING, "FailedScheduling", f"binding rejected: {error.what}")
            return False
        where = f"{namespace_of(pod)}/{name_of(pod)} to {node}"
        self._emit(pod, NORMAL, "Scheduled", f"Successfully assigned {where}")
        return True

    def waits(self, pod: Object, node: str) -> None:
        """Tell that the pod's devices are still to be attached to its node."""
        words = f"waiting for binding conditions for device on node {node}"
        self._emit(pod, NORMAL, "BindingConditionsPending", words)

    async def refuse(self, pod: Object, fit_verdict: FitVerdict, nominated: str | None) -> None:
        """Write that the pod fits nowhere, and the nominated node; None leaves that as it is."""
        self._emit(pod, WARNING, "FailedScheduling", fit_verdict.message)
        change = _status_change(pod, fit_verdict, nominated, stamp(self._now()))
        if change:
            await self._patch(pod, change)

    async def withdraw(self, pod: Object) -> None:
        """Clear the pod's nominated node."""
        if (pod.get("status") or {}).get("nominatedNodeName"):
            await self._patch(pod, {"nominatedNodeName": None})

    async def preempt(self, victim: Object, pod: PodView, node: str) -> None:
        """Evict a pod for one of higher priority."""
        condition = {
            "type": "DisruptionTarget",
            "status": "True",
            "reason": "PreemptionByScheduler",
            "message": f"{pod.scheduler}: preempting to accommodate a higher priority pod",
            "lastProbeTime": None,
            "lastTransitionTime": stamp(self._now()),
        }
        if not await self._patch(victim, {"conditions": [condition]}):
            return
        metadata = victim["metadata"]
        try:
            await self._api.delete(PODS, name_of(victim), namespace=namespace_of(victim), uid=metadata.get("uid", ""))
        except KubeError as error:
            log.warning("preempting %s/%s: %s", namespace_of(victim), name_of(victim), error.one_line())
            return
        self._emit(victim, NORMAL, "Preempted", f"Preempted by pod {pod.uid} on node {node}")

    async def _patch(self, pod: Object, status: Object) -> bool:
        change = {"status": status}
        try:
            await self._api.patch(
                PODS,
                name_of(pod),
                change,
                namespace=namespace_of(pod),
                subresource="status",
                kind=Patch.STRATEGIC,
            )
        except KubeError as error:
            log.debug("status of %s/%s: %s", namespace_of(pod), name_of(pod), error.one_line())
            return False
        return True

    def _emit(self, pod: Object, type_: str, reason: str, message: str) -> None:
        raw = message.encode()
        if len(raw) > _LONGEST:
            message = raw[: _LONGEST - len(_CUT)].decode(errors="ignore") + _CUT
        self._recorder.emit(self._name, pod, type_, reason, message)


def _status_change(pod: Object, fit_verdict: FitVerdict, nominated: str | None, at: str) -> Object:
    """The part of the status that must change, empty for none."""
    status = pod.get("status") or {}
    change: Object = {}
    if nominated is not None and (status.get("nominatedNodeName") or "") != nominated:
        change["nominatedNodeName"] = nominated or None
    conditions: list[Object] = status.get("conditions") or []
    known: Object = next((entry for entry in conditions if entry.get("type") == "PodScheduled"), {})
    wanted = {"type": "PodScheduled", "status": "False", "reason": fit_verdict.reason, "message": fit_verdict.message}
    if generation := pod["metadata"].get("generation"):
        wanted["observedGeneration"] = generation
    if any(known.get(key) != value for key, value in wanted.items()):
        since = known.get("lastTransitionTime") if known.get("status") == "False" else None
        change["conditions"] = [{**wanted, "lastProbeTime": None, "lastTransitionTime": since or at}]
    return change
