"""What a kubelet's own files on a node say: which devices it has given to whom, and its settings.

Total: a file that is absent, cut off or of another shape gives None or "".
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import msgspec

from kgpu.base.plain import items, mapping, text
from kgpu.doctor.host_facts import HostFacts
from kgpu.doctor.model import Evidence

CHECKPOINT: Final = "kubelet_internal_checkpoint"
CONFIGS: Final = ("/var/lib/kubelet/config.yaml", "/etc/kubernetes/kubelet/")


@dataclass(frozen=True, slots=True)
class Given:
    """Devices that the kubelet's checkpoint lists for a container."""

    pod_uid: str
    container: str
    resource: str
    devices: tuple[str, ...]


def given(host: HostFacts) -> tuple[str, tuple[Given, ...]] | None:
    """The path of the checkpoint and its entries; None where it is not there or can't be read."""
    path = next((path for path in host.files if path.endswith(CHECKPOINT)), "")
    try:
        checkpoint = mapping(msgspec.json.decode(host.files[path].text)) if path else {}
    except (msgspec.MsgspecError, ValueError):
        return None
    data = mapping(checkpoint.get("Data"))
    if not isinstance(data.get("PodDeviceEntries"), list | None) or "RegisteredDevices" not in data:
        return None
    rows = (mapping(entry) for entry in items(data.get("PodDeviceEntries")))
    return path, tuple(
        Given(text(row.get("PodUID")), text(row.get("ContainerName")), text(row.get("ResourceName")), _devices(row))
        for row in rows
    )


def _devices(row: Mapping[str, Any]) -> tuple[str, ...]:
    """By NUMA node in newer kubelets, a plain list in older ones."""
    ids = row.get("DeviceIDs")
    lists = ids.values() if isinstance(ids, dict) else [ids]
    return tuple(device for group in lists for device in items(group) if isinstance(device, str))


def setting(host: HostFacts | None, name: str) -> tuple[str, Evidence] | None:
    """A setting of the kubelet's configuration files that is plain text, with the line it stands in."""
    pattern = re.compile(rf"^\s*\"?{re.escape(name)}\"?\s*:\s*\"?([\w.-]+)")
    for path, file in host.files.items() if host else ():
        if not path.startswith(CONFIGS):
            continue
        for position, line in enumerate(file.text.splitlines(), 1):
            if host is not None and (hit := pattern.match(line)):
                return hit[1], host.cite_file(path, position, line.strip())
    return None
