"""What every lab has in common, real or embedded: where it is, and what it puts into its cluster."""

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
_MANAGER: Final = "kgpu-lab"
APPLY: Final = ("apply", "-f", str(OBJECTS))
"""The words for kubectl that put them there; ``apply`` does the same without kubectl."""


def labs_root() -> Path:
    """``$XDG_STATE_HOME/kgpu/lab``, or ``~/.local/state/kgpu/lab``: one folder per lab, by name."""
    found = os.environ.get("XDG_STATE_HOME")
    return (Path(found) if found else Path.home() / ".local" / "state") / "kgpu" / "lab"


def objects() -> list[dict[str, Any]]:
    """The objects, in an order in which they can be made."""
    import yaml

    return list(yaml.safe_load_all(OBJECTS.read_text()))


async def apply(api: KubeApi) -> None:
    """Put them there. Raises KubeError."""
    from kgpu.kube.port import Resource

    cluster_wide = {"Namespace", "ClusterRole", "ClusterRoleBinding"}
    for obj in objects():
        group, _, version = obj["apiVersion"].rpartition("/")
        kind = obj["kind"]
        # So that somebody's `kubectl apply` of the same object finds what it is used to.
        text = json.dumps(obj, separators=(",", ":"), sort_keys=True) + "\n"
        obj["metadata"].setdefault("annotations", {})[LAST_APPLIED] = text
        resource = Resource(group, version, f"{kind.lower()}s", kind, namespaced=kind not in cluster_wide)
        await api.apply(resource, obj, manager=_MANAGER)
