"""Facts from the node's own files: machine type, PCI configuration of NVIDIA functions, AMD's firmware, RDMA ports.

It never raises: what can't be read is None in the result, and the plan keeps the last value. A driver root other than
``/`` uses its own ``sys`` if it has one, so that a simulated root is read and not the machine.
"""

from __future__ import annotations

import os
import re
from typing import Final

from kgpu.discovery.model import LabelSettings, NodeFacts, RdmaFacts, VgpuFacts
from kgpu.discovery.vgpu import CONFIG_SIZE, host_driver, is_vgpu, vendor_capability
from kgpu.formats.names import NVIDIA_PCI_ID

_PCI_DEVICES: Final = "sys/bus/pci/devices"
_AMDGPU: Final = "sys/bus/pci/drivers/amdgpu"
_RDMA: Final = "sys/class/infiniband"
_BUS: Final = re.compile(r"[0-9a-f]{4,8}:[0-9a-f]{2}:[01][0-9a-f]\.[0-7]", re.ASCII)
_HEX: Final = re.compile(r"0x[0-9a-fA-F]{1,8}", re.ASCII)
_RATE: Final = re.compile(r"([0-9]{1,5})(?:\.[0-9]+)? Gb/sec", re.ASCII)
_MOST_GPUS: Final = 64
_MOST_PORTS: Final = 256
_LINK_LAYERS: Final = ("infiniband", "ethernet")
# What AMD's labeller calls a firmware, and the driver's file.
FIRMWARE: Final = (
    ("VCE", "vce"), ("UVD", "uvd"), ("MC", "mc"), ("ME", "me"), ("PFP", "pfp"), ("CE", "ce"), ("RLC", "rlc"),
    ("MEC", "mec"), ("SMC", "smc"), ("SDMA0", "sdma"),
)  # fmt: skip


def read_facts(settings: LabelSettings, root: str = "/") -> NodeFacts:
    """Read the facts below ``root``."""
    present, vgpu = _vgpu(root)
    return NodeFacts(
        machine=_machine(settings.machine_type_file, root), vgpu_present=present, vgpu=vgpu, firmware=_firmware(root),
        rdma=_rdma(root),
    )  # fmt: skip


def _machine(path: str, root: str) -> str | None:
    """The content of the machine type file, from below the root if it is there; None if it can't be read."""
    if not path:
        return None
    inside = os.path.join(root, path.lstrip("/"))
    for candidate in dict.fromkeys((inside, path)):
        try:
            with open(candidate, encoding="utf-8", errors="replace") as file:
                return file.read(4096).strip()
        except OSError:
            continue
    return None


def _vgpu(root: str) -> tuple[bool | None, VgpuFacts | None]:
    """Whether there is a vGPU (None if unknown), and the last one's facts about its host."""
    folder = os.path.join(root, _PCI_DEVICES)
    if not os.path.isdir(folder):
        folder = os.path.join("/", _PCI_DEVICES)
    present, facts = False, None
    try:
        for name in sorted(os.listdir(folder)):
            if _text(os.path.join(folder, name, "vendor")) != f"0x{NVIDIA_PCI_ID}":
                continue
            capability = vendor_capability(_config(os.path.join(folder, name, "config")))
            if capability is not None and is_vgpu(capability):
                present, facts = True, host_driver(capability)
    except (OSError, ValueError):
        return None, None
    return present, facts


def _firmware(root: str) -> dict[str, dict[str, int]]:
    """The versions by PCI address; empty without the driver amdgpu, and with one that has no such files."""
    folder = os.path.join(_with_sys(root), _AMDGPU)
    try:
        buses = [name for name in sorted(os.listdir(folder)) if _BUS.fullmatch(name)][:_MOST_GPUS]
    except OSError:
        return {}
    return {bus: _versions(os.path.join(folder, bus, "fw_version")) for bus in buses}


def _versions(folder: str) -> dict[str, int]:
    """Those that can be read and that a GPU has: 0 stands for none."""
    texts = {name: _text(os.path.join(folder, f"{file}_fw_version")) for name, file in FIRMWARE}
    return {name: version for name, text in texts.items() if _HEX.fullmatch(text) and (version := int(text, 16))}


def _rdma(root: str) -> RdmaFacts | None:
    """The fastest of the active ports; of equals InfiniBand's."""
    folder = os.path.join(_with_sys(root), _RDMA)
    adapters = [os.path.join(folder, name, "ports") for name in _entries(folder)]
    ports = [os.path.join(adapter, name) for adapter in adapters for name in _entries(adapter)]
    active = [found for port in ports if (found := _port(port))]
    if not active:
        return None
    best = max(active, key=lambda one: (one[1], one[0] == _LINK_LAYERS[0]))
    return RdmaFacts(*best, active.count(best))


def _with_sys(root: str) -> str:
    return root if os.path.isdir(os.path.join(root, "sys")) else "/"


def _entries(folder: str) -> list[str]:
    try:
        return os.listdir(folder)[:_MOST_PORTS]
    except OSError:
        return []


def _port(folder: str) -> tuple[str, int] | None:
    """Its link layer and Gbit/s, if it is active: files such as ``4: ACTIVE`` and ``200 Gb/sec (4X HDR)``."""
    link, rate = _text(os.path.join(folder, "link_layer")).lower(), _RATE.match(_text(os.path.join(folder, "rate")))
    if not _text(os.path.join(folder, "state")).startswith("4:") or link not in _LINK_LAYERS or rate is None:
        return None
    return (link, int(rate[1])) if int(rate[1]) else None


def _text(path: str) -> str:
    try:
        with open(path, encoding="ascii", errors="replace") as file:
            return file.read(64).strip()
    except OSError:
        return ""


def _config(path: str) -> bytes:
    with open(path, "rb") as file:
        return file.read(CONFIG_SIZE)
