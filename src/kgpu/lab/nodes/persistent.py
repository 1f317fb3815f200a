"""Where the volumes of a pod's claims are: folders of the lab that all its nodes share, or of the node's own host.

A volume of the lab's own StorageClass is one folder for all nodes, as a network's file system is. Volumes that somebody
made by hand from ``hostPath`` or ``local`` are the node's. All others are empty folders of the pod.
"""

from __future__ import annotations

from pathlib import Path

from kgpu.formats.names import LAB_PROVISIONER
from kgpu.kube.kinds import VOLUME_CLAIMS, VOLUMES
from kgpu.kube.port import Object
from kgpu.lab.nodes.context import NodeContext
from kgpu.lab.nodes.volumes import VolumeError, plain_name


async def places(node: NodeContext, pod: Object) -> dict[str, Path]:
    """The folders by the names that the volumes have in the pod. Raises VolumeError, KubeError, OSError."""
    found: dict[str, Path] = {}
    for volume in pod["spec"].get("volumes") or ():
        if (about := volume.get("persistentVolumeClaim")) is None:
            continue
        bound = await _bound(node, pod["metadata"]["namespace"], str(about.get("claimName") or ""))
        if (path := _place(node, str(volume["name"]), bound)) is not None:
            found[str(volume["name"])] = path
    return found


async def _bound(node: NodeContext, namespace: str, claim_name: str) -> Object:
    """The volume that a claim is bound to."""
    claim = await node.api.get(VOLUME_CLAIMS, claim_name, namespace=namespace)
    name = str(((claim or {}).get("spec") or {}).get("volumeName") or "")
    volume = await node.api.get(VOLUMES, name) if name else None
    if volume is None:
        why = "PVC is not bound" if claim else f'persistentvolumeclaim "{claim_name}" not found'
        raise VolumeError(f"error processing PVC {namespace}/{claim_name}: {why}", "a bound claim", "make its volume")
    return volume


def _place(node: NodeContext, name: str, volume: Object) -> Path | None:
    """The folder; None for a kind of volume that has none here."""
    spec = volume["spec"]
    driver = spec.get("csi") or {}
    if driver.get("driver") == LAB_PROVISIONER:
        place = node.shared / plain_name(str(driver.get("volumeHandle") or ""))
        place.mkdir(parents=True, exist_ok=True)
        return place
    source = spec.get("hostPath") or spec.get("local")
    if source is None:
        return None
    path = node.machine.find(str(source["path"]))
    if str(source.get("type") or "") == "DirectoryOrCreate":
        path.mkdir(parents=True, exist_ok=True)
    if "local" in spec and not path.exists():
        why = (
            f'MountVolume.NewMounter initialization failed for volume "{name}" : path "{source["path"]}" does not exist'
        )
        raise VolumeError(why, "that folder on the node", "make it there")
    return path
