"""What all labs share, real or embedded: their folder, their state files, and the objects that each cluster has."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from kgpu.formats.names import LAST_APPLIED

if TYPE_CHECKING:
    from kgpu.kube.port import KubeApi

OBJECTS: Final = Path(__file__).parent / "objects.yaml"
CONFIG_MAP: Final = "gpu-operator/device-plugin-config"
FIRST_NODE: Final = "gpu-node-1"
EMBEDDED_STATE: Final = "embedded.json"
REAL_STATE: Final = "lab.json"
"""The state file in a lab's folder; its name tells which kind of lab is there."""
MANAGER: Final = "kgpu-lab"
"""Who the lab's own objects say that they are managed by."""
VOLUMES_FOLDER: Final = "volumes"
"""In the lab's folder: a folder for each persistent volume of the lab's own StorageClass."""
KUBECTL_APPLY: Final = ("apply", "-f", str(OBJECTS))
"""kubectl's arguments that create the objects; ``apply_objects`` does the same without kubectl."""


def labs_root() -> Path:
    """``$XDG_STATE_HOME/kgpu/lab``, or ``~/.local/state/kgpu/lab``: one folder per lab, by name."""
    state_home = os.environ.get("XDG_STATE_HOME")
    return (Path(state_home) if state_home else Path.home() / ".local" / "state") / "kgpu" / "lab"


def objects() -> list[dict[str, Any]]:
    """The objects of every lab, in an order in which they can be created."""
    import yaml

    return list(yaml.safe_load_all(OBJECTS.read_text()))


async def apply_objects(api: KubeApi) -> None:
    """Create or update the objects in the cluster. Raises KubeError."""
    from kgpu.kube.port import Resource

    cluster_wide = {"Namespace", "ClusterRole", "ClusterRoleBinding"}
    for obj in objects():
        group, _, version = obj["apiVersion"].rpartition("/")
        kind = obj["kind"]
        # As `kubectl apply` writes it, so that a later `kubectl apply` of the same object works as usual.
        text = json.dumps(obj, separators=(",", ":"), sort_keys=True) + "\n"
        obj["metadata"].setdefault("annotations", {})[LAST_APPLIED] = text
        resource = Resource(group, version, f"{kind.lower()}s", kind, namespaced=kind not in cluster_wide)
        await api.apply(resource, obj, manager=MANAGER)
