"""HorizontalPodAutoscalers: their targets get the replicas that their metrics ask for."""

from __future__ import annotations

import functools
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from kgpu.base.errors import KubeError
from kgpu.kube.informer import Key
from kgpu.kube.port import PODS, Object, Resource, labels_of
from kgpu.lab.embedded.controllers import hpa_metrics, hpa_plan
from kgpu.lab.embedded.controllers.cluster import ControllerContext
from kgpu.lab.embedded.controllers.controller import KeysOf, ObjectController, refusal_text
from kgpu.lab.embedded.controllers.hpa_metrics import MetricError, MetricReading, ScalingQuestion
from kgpu.lab.embedded.controllers.kinds import AUTOSCALERS
from kgpu.lab.embedded.controllers.meta import key_of, set_condition, spec_of, stamp, status_of
from kgpu.lab.embedded.controllers.served import ServedKinds
from kgpu.lab.embedded.selectors import matches, parse_labels

PERIOD: Final = 15.0  # seconds between looks; --horizontal-pod-autoscaler-sync-period
_SCALE: Final = "scale"
_UNABLE: Final = "the HPA was unable to compute the replica count: "


class _NoCountError(Exception):
    """The metrics give no number of replicas; what there is of them is in the status."""


class _ScalingLook:
    """One look at an autoscaler: its status as it will be written."""

    def __init__(self, obj: Object, now: str) -> None:
        self.obj = obj
        self.spec = spec_of(obj)
        self.status: Object = dict(status_of(obj))
        self._now = now

    def condition(self, kind: str, value: bool, reason: str, message: str) -> None:
        new = {"type": kind, "status": "True" if value else "False", "reason": reason, "message": message}
        rows = self.status.get("conditions") or ()
        self.status["conditions"] = set_condition(rows, {**new, "lastTransitionTime": self._now})

    def measured(self, current: int, metrics: Sequence[Object] | None) -> None:
        self.status["currentReplicas"] = current
        self.status["currentMetrics"] = list(metrics) if metrics else None
        self.status.setdefault("desiredReplicas", 0)

    def scaled(self, desired: int, *, now: bool) -> None:
        self.status["desiredReplicas"] = desired
        if now:
            self.status["lastScaleTime"] = self._now


class HorizontalController(ObjectController):
    name = "horizontal-pod-autoscaler"

    def __init__(self, cluster: ControllerContext, kinds: ServedKinds) -> None:
        super().__init__(cluster)
        self._kinds = kinds
        self._autoscalers = cluster.cache(AUTOSCALERS)
        self._pods = cluster.cache(PODS)
        self._histories: dict[Key, hpa_plan.History] = {}

    def sources(self) -> Mapping[Resource, KeysOf]:
        return {AUTOSCALERS: self._keys, PODS: lambda *_: ()}

    def _keys(self, old: Object | None, new: Object | None) -> Iterable[Key]:
        if new is None:
            if old is not None:
                self._histories.pop(key_of(old), None)
            return ()
        # Its own writes of the status are no reason to look again before the time has come.
        return () if old is not None and spec_of(old) == spec_of(new) else (key_of(new),)

    async def sync(self, key: Key) -> float | None:
        obj = self._autoscalers.get(key)
        if obj is None:
            return None
        look = _ScalingLook(obj, stamp(self.cluster.now()))
        await self._reconcile(key, look)
        await self.cluster.set_status(AUTOSCALERS, obj, look.status)
        return PERIOD

    async def _reconcile(self, key: Key, look: _ScalingLook) -> None:
        try:
            target, scale = await self._scale(key[0], look.spec.get("scaleTargetRef") or {})
        except LookupError as error:
            text = str(error.args[0])
            self.emit(look.obj, "Warning", "FailedGetScale", text)
            able = f"the HPA controller was unable to get the target's current scale: {text}"
            look.condition("AbleToScale", False, "FailedGetScale", able)
            look.status.setdefault("desiredReplicas", 0)
            return
        able = "the HPA controller was able to get the target's current scale"
        look.condition("AbleToScale", True, "SucceededGetScale", able)
        current = int(spec_of(scale).get("replicas") or 0)
        history = self._histories.setdefault(key, hpa_plan.History())
        if not history.recommendations:
            history.recommendations.append(hpa_plan.Moment(time.monotonic(), current))
        try:
            desired, reason, metrics = await self._desired(look, key[0], scale, current, history)
        except _NoCountError:
            return
        if desired != current:
            await self._rescale(look, target, key, (current, desired), reason)
        look.measured(current, metrics)
        look.scaled(desired, now=desired != current)

    async def _scale(self, namespace: str, reference: Object) -> tuple[Resource, Object]:
        """The target's kind and its Scale. Raises LookupError with what Kubernetes says."""
        await self._kinds.ready()
        api_version, kind, name = (str(reference.get(part) or "") for part in ("apiVersion", "kind", "name"))
        served = self._kinds.of(api_version, kind)
        if served is None:
            raise LookupError(f'no matches for kind "{kind}" in group "{api_version.rpartition("/")[0]}"')
        try:
            # The port reads no subresources; a patch that changes nothing answers with it.
            scale = await self.cluster.api.patch(served.resource, name, {}, namespace=namespace, subresource=_SCALE)
        except KubeError as error:
            raise LookupError(refusal_text(error)) from error
        return served.resource, scale

    async def _desired(
        self, look: _ScalingLook, namespace: str, scale: Object, current: int, history: hpa_plan.History
    ) -> tuple[int, str, Sequence[Object] | None]:
        """The replicas to have, why, and the metrics' rows. Raises _NoCountError."""
        low, most = hpa_plan.least(look.spec), int(look.spec["maxReplicas"])
        if current == 0 and low != 0:
            why = "scaling is disabled since the replica count of the target is zero"
            look.condition("ScalingActive", False, "ScalingDisabled", why)
            return 0, "", None
        if current > most:
            return most, "Current number of replicas above Spec.MaxReplicas", None
        if current < low:
            return low, "Current number of replicas below Spec.MinReplicas", None
        wanted, name, metrics = await self._wanted(look, namespace, scale, current)
        reason = f"{name} above target" if wanted > current else "All metrics below target"
        decision = hpa_plan.decide(look.spec, history, current, wanted, time.monotonic())
        look.condition("AbleToScale", True, *decision.able)
        look.condition("ScalingLimited", decision.limited, *decision.limit)
        return decision.replicas, reason, metrics

    async def _wanted(
        self, look: _ScalingLook, namespace: str, scale: Object, current: int
    ) -> tuple[int, str, Sequence[Object]]:  # fmt: skip
        """The most replicas that a metric asks for, its name, and the rows of all. Raises _NoCountError."""
        question = self._question(look, namespace, scale, current)
        readings: list[MetricReading] = []
        errors: list[MetricError] = []
        rows: list[Object] = []
        metrics = look.spec.get("metrics") or ()
        for metric in metrics:
            try:
                reading = await hpa_metrics.read(self.cluster.api, metric, question)
            except MetricError as error:
                self.emit(look.obj, "Warning", error.reason, str(error))
                errors.append(error)
                rows.append({"type": ""})
            else:
                readings.append(reading)
                rows.append(reading.status)
        best = max(readings, key=lambda reading: reading.replicas, default=None)
        # With a metric that can't be had it may go up, not down.
        if best is None or (errors and best.replicas < current):
            self._uncounted(look, current, rows, errors)
        assert best is not None
        text = f"the HPA was able to successfully calculate a replica count from {best.name}"
        look.condition("ScalingActive", True, "ValidMetricFound", text)
        return best.replicas, best.name, rows

    def _question(self, look: _ScalingLook, namespace: str, scale: Object, current: int) -> ScalingQuestion:
        text = str(status_of(scale).get("selector") or "")
        if not text:
            self.emit(look.obj, "Warning", "SelectorRequired", "selector is required")
            look.condition("ScalingActive", False, "InvalidSelector", "the HPA target's scale is missing a selector")
            self._failed(look, current, [], "selector is required")
        chosen = functools.partial(matches, parse_labels(text))

        def pods() -> list[Object]:
            return [pod for pod in self._pods.select("namespace", namespace) if chosen(labels_of(pod))]

        return ScalingQuestion(
            namespace=namespace, current=current, pods=pods, selects=chosen, now=self.cluster.now(),
            tolerance=hpa_plan.tolerance_of(look.spec),
        )  # fmt: skip

    def _uncounted(
        self, look: _ScalingLook, current: int, rows: Sequence[Object], errors: Sequence[MetricError]
    ) -> None:
        first = errors[0]
        look.condition("ScalingActive", False, first.reason, f"{_UNABLE}{first}")
        begun = f"invalid metrics ({len(errors)} invalid out of {len(rows)}), first error is: "
        self._failed(look, current, rows, f"{begun}{first.prefix}: {first}")

    def _failed(self, look: _ScalingLook, current: int, rows: Sequence[Object], text: str) -> None:
        look.measured(current, rows)
        self.emit(look.obj, "Warning", "FailedComputeMetricsReplicas", text)
        raise _NoCountError(text)

    async def _rescale(
        self, look: _ScalingLook, target: Resource, key: Key, sizes: tuple[int, int], reason: str
    ) -> None:  # fmt: skip
        """Scale the target. Raises KubeError when that is refused; it is tried again then."""
        current, desired = sizes
        name = str(look.spec["scaleTargetRef"]["name"])
        change: Object = {"spec": {"replicas": desired}}
        try:
            # Past the caches: the answer is a Scale, with the identity of the target.
            await self.cluster.api.patch(target, name, change, namespace=key[0], subresource=_SCALE)
        except KubeError as error:
            text = refusal_text(error)
            self.emit(look.obj, "Warning", "FailedRescale", f"New size: {desired}; reason: {reason}; error: {text}")
            refused = f"the HPA controller was unable to update the target scale: {text}"
            look.condition("AbleToScale", False, "FailedUpdateScale", refused)
            look.measured(current, look.status.get("currentMetrics"))
            await self.cluster.set_status(AUTOSCALERS, look.obj, look.status)
            raise
        done = f"the HPA controller was able to update the target scale to {desired}"
        look.condition("AbleToScale", True, "SucceededRescale", done)
        self.emit(look.obj, "Normal", "SuccessfulRescale", f"New size: {desired}; reason: {reason}")
        hpa_plan.remember_change(look.spec, self._histories[key], current, desired, time.monotonic())
