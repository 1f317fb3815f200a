"""PersistentVolumeClaims: a fitting volume is bound, or one of the lab's own provisioner is created.

A StorageClass whose provisioner is ``LAB_PROVISIONER`` needs no other: its volumes are folders of the lab, which all
its nodes have, bound at once or when the first pod has a node, by the volumeBindingMode. A folder goes with its volume
where the class says Delete.
"""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Final

from kgpu.base.quantity import Quantity
from kgpu.formats.names import LAB_PROVISIONER
from kgpu.kube.informer import Key
from kgpu.kube.port import PODS, KubeRefusedError, Object, Resource, annotations_of, labels_of, name_of, namespace_of
from kgpu.lab.embedded.controllers.cluster import ControllerContext
from kgpu.lab.embedded.controllers.controller import KeysOf, ObjectController
from kgpu.lab.embedded.controllers.kinds import STORAGE_CLASSES, VOLUME_CLAIMS, VOLUMES
from kgpu.lab.embedded.controllers.meta import deleting, key_of, selects, spec_of, status_of, uid_of
from kgpu.lab.embedded.controllers.pods import is_terminal, node_of

PROVISIONER: Final = LAB_PROVISIONER
_PROTECTION: Final = "kubernetes.io/pvc-protection"
_BY_CONTROLLER: Final = "pv.kubernetes.io/bound-by-controller"
_COMPLETED: Final = "pv.kubernetes.io/bind-completed"
_SELECTED_NODE: Final = "volume.kubernetes.io/selected-node"


def wanted_storage(claim: Object) -> Quantity:
    return Quantity.parse((spec_of(claim).get("resources") or {}).get("requests", {}).get("storage", "0"))


def fits(volume: Object, claim: Object) -> bool:
    """Whether the volume may be bound to the claim."""
    spec, wanted = spec_of(volume), spec_of(claim)
    reserved = spec.get("claimRef")
    if reserved is not None and (reserved.get("namespace"), reserved.get("name")) != key_of(claim):
        return False
    if reserved is not None and reserved.get("uid") not in (None, "", uid_of(claim)):
        return False
    return (
        not deleting(volume)
        and (spec.get("storageClassName") or "") == (wanted.get("storageClassName") or "")
        and set(wanted.get("accessModes") or ()) <= set(spec.get("accessModes") or ())
        and spec.get("volumeMode", "Filesystem") == wanted.get("volumeMode", "Filesystem")
        and (wanted.get("selector") is None or selects(wanted["selector"], labels_of(volume)))
        and Quantity.parse((spec.get("capacity") or {}).get("storage", "0")) >= wanted_storage(claim)
    )


def best_volume(volumes: Iterable[Object], claim: Object) -> Object | None:
    """The smallest fitting volume; one reserved for the claim comes first."""
    fitting = [volume for volume in volumes if fits(volume, claim)]

    def key(volume: Object) -> tuple[bool, Quantity, str]:
        spec = spec_of(volume)
        return "claimRef" not in spec, Quantity.parse((spec.get("capacity") or {}).get("storage", "0")), name_of(volume)

    return min(fitting, key=key, default=None)


def new_volume(claim: Object, storage_class: Object) -> Object:
    """A volume of the lab's own provisioner for the claim."""
    name = f"pvc-{uid_of(claim)}"
    spec = spec_of(claim)
    return {
        "metadata": {"name": name, "annotations": {"pv.kubernetes.io/provisioned-by": PROVISIONER}},
        "spec": {
            "capacity": {"storage": str(wanted_storage(claim))},
            "accessModes": list(spec.get("accessModes") or ()),
            "volumeMode": spec.get("volumeMode", "Filesystem"),
            "persistentVolumeReclaimPolicy": storage_class.get("reclaimPolicy", "Delete"),
            "storageClassName": name_of(storage_class),
            "csi": {"driver": PROVISIONER, "volumeHandle": name},
            "claimRef": claim_reference(claim),
        },
    }


def claim_reference(claim: Object) -> Object:
    return {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "namespace": namespace_of(claim),
        "name": name_of(claim),
        "uid": uid_of(claim),
    }


def claims_of(pod: Object) -> list[str]:
    """The names of the claims that a pod uses."""
    return [
        str(volume["persistentVolumeClaim"].get("claimName"))
        for volume in spec_of(pod).get("volumes") or ()
        if volume.get("persistentVolumeClaim")
    ]


class VolumeController(ObjectController):
    name = "persistentvolume-controller"
    workers = 1

    def __init__(self, cluster: ControllerContext, folder: Path | None = None) -> None:
        super().__init__(cluster)
        self._folder = folder
        self._claims = cluster.cache(VOLUME_CLAIMS)
        self._volumes = cluster.cache(VOLUMES)
        self._classes = cluster.cache(STORAGE_CLASSES)
        self._pods = cluster.cache(PODS)
        self._pods.index("claim", lambda pod: [(namespace_of(pod), name) for name in claims_of(pod)])

    def sources(self) -> Mapping[Resource, KeysOf]:
        # Keys of claims are (namespace, name), of volumes ("", name).
        return {
            VOLUME_CLAIMS: self._claim_keys,
            VOLUMES: self._volume_keys,
            STORAGE_CLASSES: lambda *_: (),
            PODS: self._pod_keys,
        }

    def _claim_keys(self, old: Object | None, new: Object | None) -> Iterable[Key]:
        obj = new if new is not None else old
        if obj is None:
            return ()
        volume = str(spec_of(obj).get("volumeName") or "")
        return [key_of(obj), ("", volume)] if volume else [key_of(obj)]

    def _volume_keys(self, old: Object | None, new: Object | None) -> Iterable[Key]:
        obj = new if new is not None else old
        if obj is None:
            return ()
        if old is None or spec_of(old).get("claimRef") != spec_of(obj).get("claimRef"):
            waiting = [key_of(claim) for claim in self._claims if not spec_of(claim).get("volumeName")]
            return [key_of(obj), *waiting]
        return [key_of(obj)]

    @staticmethod
    def _pod_keys(old: Object | None, new: Object | None) -> Iterable[Key]:
        obj = new if new is not None else old
        if obj is None or (old is not None and new is not None and is_terminal(old) == is_terminal(new)
                           and node_of(old) == node_of(new)):  # fmt: skip
            return ()
        return [(namespace_of(obj), name) for name in claims_of(obj)]

    async def sync(self, key: Key) -> float | None:
        if not key[0]:
            await self._sync_volume(key)
            return None
        claim = self._claims.get(key)
        if claim is None:
            return None
        if deleting(claim):
            await self._release_claim(claim)
            return None
        volume = str(spec_of(claim).get("volumeName") or "")
        if volume:
            bound = self._volumes.get(("", volume))
            if bound is None:
                await self._lost(claim)
            else:
                await self._bind(claim, bound)
            return None
        bound = best_volume(self._volumes, claim)
        if bound is None:
            bound = await self._provision(claim)
        if bound is not None:
            await self._bind(claim, bound)
        return None

    async def _provision(self, claim: Object) -> Object | None:
        """Return a new volume, or None after an Event with the reason."""
        if not status_of(claim).get("phase"):
            await self.cluster.set_status(VOLUME_CLAIMS, claim, {**status_of(claim), "phase": "Pending"})
        name = spec_of(claim).get("storageClassName")
        if not name:
            text = "no persistent volumes available for this claim and no storage class is set"
            self.emit(claim, "Normal", "FailedBinding", text)
            return None
        storage_class = self._classes.get(("", name))
        if storage_class is None:
            text = f'storageclass.storage.k8s.io "{name}" not found'
            self.emit(claim, "Warning", "ProvisioningFailed", text)
            return None
        users = [pod for pod in self._pods.select("claim", key_of(claim)) if not is_terminal(pod)]
        chosen = _SELECTED_NODE in annotations_of(claim) or any(node_of(pod) for pod in users)
        if storage_class.get("volumeBindingMode") == "WaitForFirstConsumer" and not chosen:
            text = "waiting for first consumer to be created before binding"
            if users:
                names = ", ".join(sorted(name_of(pod) for pod in users))
                self.emit(claim, "Normal", "WaitForPodScheduled", f"waiting for pod {names} to be scheduled")
            else:
                self.emit(claim, "Normal", "WaitForFirstConsumer", text)
            return None
        if storage_class.get("provisioner") != PROVISIONER:
            provisioner = storage_class.get("provisioner")
            text = (
                f"Waiting for a volume to be created either by the external provisioner '{provisioner}' "
                "or manually by the system administrator. If volume creation is delayed, please verify that the "
                "provisioner is running and correctly registered."
            )
            self.emit(claim, "Normal", "ExternalProvisioning", text)
            return None
        if spec_of(claim).get("volumeMode") == "Block":
            text = f"failed to provision volume: {PROVISIONER} makes file systems, and no block devices"
            self.emit(claim, "Warning", "ProvisioningFailed", text)
            return None
        try:
            volume = await self.cluster.create(VOLUMES, new_volume(claim, storage_class))
        except KubeRefusedError as refused:
            if refused.code != 409:
                raise
            return self._volumes.get(("", f"pvc-{uid_of(claim)}"))
        self.emit(claim, "Normal", "ProvisioningSucceeded", f"Successfully provisioned volume {name_of(volume)}")
        return volume

    async def _bind(self, claim: Object, volume: Object) -> None:
        reference = spec_of(volume).get("claimRef")
        if reference is None or reference.get("uid") != uid_of(claim):
            if reference is not None and reference.get("uid"):
                return  # another claim's
            change: Object = {"spec": {"claimRef": claim_reference(claim)}}
            if reference is None:
                change["metadata"] = {"annotations": {_BY_CONTROLLER: "yes"}}
            volume = await self.cluster.patch(VOLUMES, key_of(volume), change)
        if status_of(volume).get("phase") != "Bound":
            await self.cluster.set_status(VOLUMES, volume, {**status_of(volume), "phase": "Bound"})
        if spec_of(claim).get("volumeName") != name_of(volume) or _COMPLETED not in annotations_of(claim):
            annotations = {_COMPLETED: "yes"}
            if not spec_of(claim).get("volumeName"):
                annotations[_BY_CONTROLLER] = "yes"
            change = {"metadata": {"annotations": annotations}, "spec": {"volumeName": name_of(volume)}}
            claim = await self.cluster.patch(VOLUME_CLAIMS, key_of(claim), change)
        spec = spec_of(volume)
        status = {"phase": "Bound", "accessModes": spec.get("accessModes"), "capacity": spec.get("capacity")}
        await self.cluster.set_status(VOLUME_CLAIMS, claim, {**status_of(claim), **status})

    async def _lost(self, claim: Object) -> None:
        if _COMPLETED in annotations_of(claim) and status_of(claim).get("phase") != "Lost":
            text = "Bound claim has lost its PersistentVolume. Data on the volume is lost!"
            await self.cluster.set_status(VOLUME_CLAIMS, claim, {"phase": "Lost"})
            self.emit(claim, "Warning", "ClaimLost", text)

    async def _release_claim(self, claim: Object) -> None:
        """Remove the pvc-protection finalizer once no pod uses the claim."""
        finalizers = claim["metadata"].get("finalizers") or ()
        users = [pod for pod in self._pods.select("claim", key_of(claim)) if not is_terminal(pod)]
        if _PROTECTION in finalizers and not users:
            rest = [finalizer for finalizer in finalizers if finalizer != _PROTECTION]
            await self.cluster.patch(VOLUME_CLAIMS, key_of(claim), {"metadata": {"finalizers": rest or None}})

    async def _sync_volume(self, key: Key) -> None:
        volume = self._volumes.get(key)
        if volume is None:
            return
        reference = spec_of(volume).get("claimRef")
        phase = status_of(volume).get("phase")
        if reference is None or not reference.get("uid"):
            if phase != "Available" and not deleting(volume):
                await self.cluster.set_status(VOLUMES, volume, {**status_of(volume), "phase": "Available"})
            await self._protect(volume, used=False)
            return
        claim = self._claims.get((str(reference.get("namespace")), str(reference.get("name"))))
        if claim is not None and uid_of(claim) == reference["uid"]:
            await self._protect(volume, used=True)
            return
        if spec_of(volume).get("persistentVolumeReclaimPolicy") == "Delete" and (
            annotations_of(volume).get("pv.kubernetes.io/provisioned-by") == PROVISIONER
        ):
            if not deleting(volume):
                await self._discard(volume)
                await self.cluster.delete(VOLUMES, volume)
        elif phase == "Bound":
            await self.cluster.set_status(VOLUMES, volume, {**status_of(volume), "phase": "Released"})
        await self._protect(volume, used=False)

    async def _discard(self, volume: Object) -> None:
        """Remove the folder of a volume: its claim is gone, which goes after the last pod that used it."""
        handle = (spec_of(volume).get("csi") or {}).get("volumeHandle")
        if self._folder is not None and handle == name_of(volume):  # a name is one part of a path
            await asyncio.to_thread(shutil.rmtree, self._folder / handle, ignore_errors=True)

    async def _protect(self, volume: Object, *, used: bool) -> None:
        """Remove the pv-protection finalizer of a deleted volume once no claim is bound to it."""
        known = self._volumes.get(key_of(volume))
        finalizers = list(known["metadata"].get("finalizers") or ()) if known is not None else []
        if known is not None and deleting(known) and not used and "kubernetes.io/pv-protection" in finalizers:
            finalizers.remove("kubernetes.io/pv-protection")
            await self.cluster.patch(VOLUMES, key_of(volume), {"metadata": {"finalizers": finalizers or None}})
