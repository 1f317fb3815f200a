"""Waits for an embedded cluster's first nodes (Node Ready, GPUs allocatable), and applies the lab's own objects."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from kgpu.base.errors import LabError
from kgpu.formats.names import (
    AMD_RESOURCE_PREFIX,
    DEFAULT_STORAGE_CLASS,
    GAUDI_RESOURCE,
    INTEL_RESOURCE_PREFIX,
    LAB_PROVISIONER,
    LAB_STORAGE_CLASS,
    LABEL_AMD_GPU_PRODUCT_NAME,
    LABEL_GAUDI_PRESENT,
    LABEL_GPU_PRODUCT,
    LABEL_INTEL_FEATURE_GPU,
    NVIDIA_DOMAIN,
)
from kgpu.kube.kinds import STORAGE_CLASSES
from kgpu.kube.port import NODES, KubeApi, Object
from kgpu.lab import common
from kgpu.lab.nodes import manage

_POLL_S: Final = 0.1
_RESOURCES: Final = (f"{NVIDIA_DOMAIN}/", AMD_RESOURCE_PREFIX, GAUDI_RESOURCE, INTEL_RESOURCE_PREFIX)
_CLASS: Final[Object] = {
    "apiVersion": "storage.k8s.io/v1",
    "kind": "StorageClass",
    "metadata": {"name": LAB_STORAGE_CLASS, "annotations": {DEFAULT_STORAGE_CLASS: "true"}},
    "provisioner": LAB_PROVISIONER,
    "reclaimPolicy": "Delete",
    "volumeBindingMode": "WaitForFirstConsumer",
}
_PRODUCTS: Final = (LABEL_GPU_PRODUCT, LABEL_AMD_GPU_PRODUCT_NAME, LABEL_GAUDI_PRESENT, LABEL_INTEL_FEATURE_GPU)


def apply_lab_objects(kubeconfig: Path) -> None:
    """Apply the lab's own objects to the cluster. Raises LabError, KubeError."""
    asyncio.run(_apply(kubeconfig))


async def _apply(kubeconfig: Path) -> None:
    api = _connect(kubeconfig)
    try:
        await common.apply_objects(api)
        await api.apply(STORAGE_CLASSES, _CLASS, manager=common.MANAGER)
    finally:
        await api.close()


def _connect(kubeconfig: Path) -> KubeApi:
    from kgpu.kube.client import connect

    return connect(str(kubeconfig))


def wait_for_hardware(root: Path, seconds: float, folder: Path) -> None:
    """Wait until the node's host has made its simulated driver. Raises LabError."""
    until = time.monotonic() + seconds
    while not (root / "state").exists():
        if time.monotonic() > until or not manage.host_running(folder):
            log = folder / manage.HOST / "log"
            raise LabError(f"{root} was not made\n{_tail(log)}".rstrip(), "a simulated driver", f"look into {log}")
        time.sleep(_POLL_S)


def nodes(kubeconfig: Path) -> list[Object]:
    """The Node objects. Raises KubeError."""

    async def ask() -> list[Object]:
        api = _connect(kubeconfig)
        try:
            return list((await api.list(NODES)).items)
        finally:
            await api.close()

    return asyncio.run(ask())


def lacking(node: Object | None, *, gpus: bool, boot: str = "") -> str:
    """What a node lacks to be ready, as a text; "" for nothing. ``gpus``: it must offer some, and be labelled.

    ``boot``: which boot of its machine it must be of.
    """
    if node is None:
        return "it has not registered"
    status = node.get("status") or {}
    if boot and (status.get("nodeInfo") or {}).get("bootID") != boot:
        return "it has not come back after its reboot"
    conditions = {condition["type"]: condition["status"] for condition in status.get("conditions") or ()}
    if conditions.get("Ready") != "True":
        return "it is not Ready"
    offered = [
        name
        for name, count in (status.get("allocatable") or {}).items()
        if name.startswith(_RESOURCES) and count != "0"
    ]
    if gpus and not offered:
        return "it offers no GPUs"
    labels = (node.get("metadata") or {}).get("labels") or {}
    return "it has no GPU labels" if gpus and not any(label in labels for label in _PRODUCTS) else ""


def _tail(log: Path, lines: int = 8) -> str:
    try:
        return "\n".join(f"    {line[:240]}" for line in log.read_text(errors="replace").splitlines()[-lines:])
    except OSError:
        return ""


def wait_for_nodes(
    kubeconfig: Path, wanted: dict[str, bool], seconds: float, folder: Path, boots: Mapping[str, str] | None = None
) -> None:
    """Wait until each node is ready; the value is whether it must offer GPUs. ``folder``: of the lab's nodes.

    ``boots``: for nodes that were rebooted, of which boot they must be.

    Raises LabError, also when the host of the nodes has ended, and KubeError.
    """
    asyncio.run(_wait(kubeconfig, wanted, seconds, folder, boots or {}))


def wait_for_boots(lab: Path, names: Sequence[str], seconds: float) -> None:
    """Wait until machines that boot are up, and their nodes ready again. ``lab``: the lab's folder.

    Raises LabError and KubeError as ``wait_for_nodes``.
    """
    boots, there = manage.wait_until_booted(lab, names, seconds), manage.listing(lab)
    wanted = {name: there[name].has_gpus and there[name].agent for name in names if name in there}
    wait_for_nodes(manage.place(lab)[0], wanted, seconds, manage.nodes_dir(lab), boots)


async def _wait(
    kubeconfig: Path, wanted: dict[str, bool], seconds: float, folder: Path, boots: Mapping[str, str]
) -> None:
    log = folder / manage.HOST / "log"
    until = time.monotonic() + seconds
    api = _connect(kubeconfig)
    try:
        while True:
            present = {node["metadata"]["name"]: node for node in (await api.list(NODES)).items}
            missing = {
                name: lacking(present.get(name), gpus=gpus, boot=boots.get(name, "")) for name, gpus in wanted.items()
            }
            missing = {name: why for name, why in missing.items() if why}
            if not missing:
                return
            if dark := manage.off(folder.parent, missing):
                raise LabError(
                    f"node {dark[0]} is switched off", "a machine that runs", f"kgpu lab node start {dark[0]}"
                )
            alive = manage.host_running(folder)
            if time.monotonic() > until or not alive:
                message = "; ".join(f"node {name}: {why} after {seconds:.0f} s" for name, why in missing.items())
                if not alive:
                    message = "the host of the simulated nodes has ended"
                raise LabError(
                    f"{message}\n{_tail(log)}".rstrip(),
                    "nodes that are Ready and offer their GPUs",
                    f'look into {log}; then "kgpu lab down" and try again',
                )
            await asyncio.sleep(_POLL_S)
    finally:
        await api.close()
