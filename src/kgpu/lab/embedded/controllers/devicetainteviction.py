"""Pods whose claims have devices with a NoExecute taint that the claims don't tolerate go, at once or after a time.

Taints are the devices' own, in ResourceSlices, and those of DeviceTaintRules. Source: devicetainteviction of Kubernetes
1.35. The rules' status (EvictionInProgress) is not written.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final, TypeAlias

from kgpu.base.plain import items, mapping, number
from kgpu.base.times import moment_of
from kgpu.fit.devices import read
from kgpu.fit.devices.model import DeviceKey
from kgpu.kube.informer import Key
from kgpu.kube.port import PODS, KubeRefusedError, Object, Resource, name_of, namespace_of
from kgpu.lab.embedded.controllers.cluster import ControllerContext
from kgpu.lab.embedded.controllers.controller import KeysOf, ObjectController
from kgpu.lab.embedded.controllers.kinds import DEVICE_TAINT_RULES, RESOURCE_CLAIMS, RESOURCE_SLICES
from kgpu.lab.embedded.controllers.meta import deleting, key_of, spec_of, status_of, uid_of
from kgpu.lab.embedded.controllers.pods import node_of
from kgpu.lab.embedded.controllers.resourceclaim_plan import claim_names
from kgpu.lab.embedded.controllers.tainteviction import with_disruption
from kgpu.lab.embedded.controllers.taints import taint as taint_of
from kgpu.lab.embedded.controllers.taints import toleration as toleration_of

Part: TypeAlias = Mapping[str, Any]
NO_EXECUTE: Final = "NoExecute"
_REASON: Final = "DeviceTaintManagerEviction"


def evicting(obj: Object | None) -> list[Object]:
    """The NoExecute taints that a slice gives to its devices, with the devices, or a rule to those that it selects."""
    spec = spec_of(obj or {})
    if "taint" in spec:
        return [spec] if mapping(spec["taint"]).get("effect") == NO_EXECUTE else []
    return [
        {"pool": spec.get("pool"), "device": device.get("name"), "taint": taint}
        for device in map(mapping, items(spec.get("devices")))
        for taint in map(mapping, items(device.get("taints")))
        if taint.get("effect") == NO_EXECUTE
    ]


class DeviceTaintEvictionController(ObjectController):
    """``rules``: DeviceTaintRules are served."""

    name = "device-taint-eviction-controller"

    def __init__(self, cluster: ControllerContext, *, rules: bool) -> None:
        super().__init__(cluster)
        self._pods = cluster.cache(PODS)
        self._claims = cluster.cache(RESOURCE_CLAIMS)
        self._slices = cluster.cache(RESOURCE_SLICES)
        self._rules = cluster.cache(DEVICE_TAINT_RULES) if rules else None
        self._pods.index("resource-claim", lambda pod: [(namespace_of(pod), name) for name in claim_names(pod)])
        self._due: set[Key] = set()
        """Pods that are to go later."""

    def sources(self) -> Mapping[Resource, KeysOf]:
        rules: dict[Resource, KeysOf] = {DEVICE_TAINT_RULES: self._all_keys} if self._rules is not None else {}
        return {PODS: self._pod_keys, RESOURCE_CLAIMS: self._claim_keys, RESOURCE_SLICES: self._all_keys, **rules}

    def _pod_keys(self, old: Object | None, new: Object | None) -> Iterable[Key]:
        if new is None:
            return [key_of(old)] if old is not None and key_of(old) in self._due else []
        same = old is not None and node_of(old) == node_of(new) and list(claim_names(old)) == list(claim_names(new))
        return [] if same or not claim_names(new) else [key_of(new)]

    def _claim_keys(self, old: Object | None, new: Object | None) -> Iterable[Key]:
        if old is not None and new is not None and status_of(old) == status_of(new):
            return []
        return [key_of(pod) for pod in self._pods.select("resource-claim", key_of(new or old or {}))]

    def _all_keys(self, old: Object | None, new: Object | None) -> Iterable[Key]:
        """Taints are rare: all pods with claims are looked at again."""
        return [] if evicting(old) == evicting(new) else [key_of(pod) for pod in self._pods if claim_names(pod)]

    async def sync(self, key: Key) -> float | None:
        pod = self._pods.get(key)
        if pod is None or self._pods.is_doomed(pod) or deleting(pod):
            self._due.discard(key)
            return None
        moments = [moment for claim in self._claims_of(pod) for moment in self._moments(claim)] if node_of(pod) else []
        if not moments:
            if key in self._due:
                self._due.discard(key)
                self._emit(pod, "Cancelling deletion")
            return None
        self._due.add(key)
        now = self.cluster.now()
        left = (min(moments) - now).total_seconds()
        if left > 0:
            return left
        self._due.discard(key)
        self._emit(pod, "Marking for deletion")
        await self._evict(pod, now)
        return None

    def _claims_of(self, pod: Object) -> Iterator[Object]:
        """The allocated claims that the pod uses."""
        for name in claim_names(pod):
            claim = self._claims.get((namespace_of(pod), name))
            status = status_of(claim) if claim is not None else {}
            users = {user.get("uid") for user in map(mapping, items(status.get("reservedFor")))}
            if claim is not None and status.get("allocation") and uid_of(pod) in users:
                yield claim

    def _moments(self, claim: Object) -> Iterator[dt.datetime]:
        """When the pods of a claim have to go, for each taint that it does not tolerate for ever."""
        allocation = mapping(status_of(claim).get("allocation"))
        for result in map(mapping, items(mapping(allocation.get("devices")).get("results"))):
            key = DeviceKey(*(str(result.get(part) or "") for part in ("driver", "pool", "device")))
            for taint in self._taints(key):
                left = _tolerated(result, taint)
                added = moment_of(taint.get("timeAdded"))
                if left is not None and added is not None:
                    yield added + dt.timedelta(seconds=left)

    def _taints(self, key: DeviceKey) -> Iterator[Part]:
        for piece in self._newest(key):
            for device in map(mapping, items(spec_of(piece).get("devices"))):
                if device.get("name") == key.device:
                    yield from map(mapping, items(device.get("taints")))
        for obj in self._rules if self._rules is not None else ():
            rule = read.taint_rule(obj)
            if rule is not None and rule.selects and rule.concerns(key):
                yield mapping(spec_of(obj).get("taint"))

    def _newest(self, key: DeviceKey) -> list[Object]:
        """The slices of the device's pool, of its newest generation."""
        found = [
            piece
            for piece in self._slices
            if spec_of(piece).get("driver") == key.driver
            and mapping(spec_of(piece).get("pool")).get("name") == key.pool
        ]
        generations = [number(mapping(spec_of(piece)["pool"]).get("generation")) for piece in found]
        newest = max(generations, default=0)
        return [piece for piece, generation in zip(found, generations, strict=True) if generation == newest]

    def _emit(self, pod: Object, words: str) -> None:
        metadata = {"name": name_of(pod), "namespace": namespace_of(pod), "uid": uid_of(pod)}
        about: Object = {"apiVersion": "v1", "kind": "Pod", "metadata": metadata}
        self.emit(about, "Normal", _REASON, words)

    async def _evict(self, pod: Object, now: dt.datetime) -> None:
        words = "Device Taint manager: deleting due to NoExecute taint"
        conditions = with_disruption(pod, "DeletionByDeviceTaintManager", words, now)
        try:
            await self.cluster.patch(PODS, key_of(pod), {"status": {"conditions": conditions}}, subresource="status")
        except KubeRefusedError as refused:
            if refused.code != 404:
                raise
            return
        await self.cluster.delete(PODS, pod)


def _tolerated(result: Part, taint: Part) -> float | None:
    """For how many seconds a device's taint is tolerated, None for ever; 0 for not at all and for other effects."""
    if taint.get("effect") != NO_EXECUTE:
        return None
    shortest: float | None = None
    for row in map(mapping, items(result.get("tolerations"))):
        if row.get("effect") != NO_EXECUTE or not toleration_of(dict(row)).tolerates(taint_of(dict(taint))):
            continue
        if row.get("tolerationSeconds") is None:
            return None
        seconds = max(0.0, float(number(row["tolerationSeconds"])))
        shortest = seconds if shortest is None else min(shortest, seconds)
    return shortest or 0.0
