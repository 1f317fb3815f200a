"""Scenes for preflight's checks: a node as its API object and as its own facts, and the driver that it is to get."""

from __future__ import annotations

from typing import Any

from kgpu.doctor.preflight.model import (
    DriverChoice,
    Intent,
    PreflightReport,
    PreflightScene,
    PreflightVerdict,
    RegistryAnswer,
)
from kgpu.doctor.preflight.plan import predict
from kgpu.doctor.snapshot import Snapshot

NODE = "gpu-1"
KERNEL = "6.8.0-45-generic"
IMAGE = "nvcr.io/nvidia/driver:580.95.05-ubuntu24.04"
SPACE = "gpu-operator"
THERE = {IMAGE: RegistryAnswer(exists=True)}
H100, V100, B200 = "2330", "1db1", "2901"


def node(name: str = NODE, **info: Any) -> dict[str, Any]:
    """A node of which discovery has said that it has a GPU, and nothing offers it."""
    about = {
        "kernelVersion": KERNEL, "osImage": "Ubuntu 24.04.2 LTS", "operatingSystem": "linux",
        "containerRuntimeVersion": "containerd://2.1.4", "kubeletVersion": "v1.35.4",
    }  # fmt: skip
    return {
        "kind": "Node",
        "metadata": {"name": name, "uid": name, "labels": {"feature.node.kubernetes.io/pci-10de.present": "true"}},
        "status": {"nodeInfo": about | info, "conditions": [{"type": "DiskPressure", "status": "False"}]},
    }


def host(name: str = NODE, device: str = H100, **more: Any) -> dict[str, Any]:
    """The facts of a node that is fit for a driver container."""
    gpu = {"address": "0000:01:00.0", "vendor": "10de", "device": device, "pciClass": "030200"}
    well = {
        "node": name, "kernel": KERNEL, "headers": True, "secureBoot": False, "modules": {"ext4": 1}, "pci": [gpu],
        "libraries": [], "disks": {"/var/lib/kubelet": {"size": 100 << 30, "free": 60 << 30}},
    }  # fmt: skip
    return {"kind": "HostFacts", "metadata": {"name": name}, **well, **more}


def choice(**more: Any) -> DriverChoice:
    well: dict[str, Any] = {"owner": "the chart", "version": "580.95.05", "image": IMAGE, "os_tag": "ubuntu24.04"}
    return DriverChoice(**(well | more))


def scene(*objects: dict[str, Any], driver: DriverChoice | None = None, **more: Any) -> PreflightScene:
    """Of objects; every node of them is to get the driver. ``more`` are fields of the intent, ``images``, ``refused``."""
    snapshot = Snapshot.of(objects)
    snapshot.sort()
    images, refused = more.pop("images", THERE), more.pop("refused", "")
    drivers = dict.fromkeys(snapshot.nodes, driver or choice())
    intent = Intent(source="the chart", namespace=SPACE, drivers=drivers, **more)
    return PreflightScene(snapshot=snapshot, intent=intent, images=images, refused=refused)


def report(*objects: dict[str, Any], driver: DriverChoice | None = None, **more: Any) -> PreflightReport:
    return predict(scene(*objects, driver=driver, **more))


def ids(found: PreflightReport) -> list[str]:
    """What is predicted to fail."""
    return [one.id for one in found.failures]


def verdict(found: PreflightReport, check: str, name: str = NODE) -> PreflightVerdict:
    return found.verdicts[name][check]
