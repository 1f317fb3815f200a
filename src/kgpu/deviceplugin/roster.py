"""Keeps accelerators that were seen before in the list while they can't be read. Pure, apart from load and save.

A GPU that fell off the bus may vanish from the enumeration or lose its facts. The node's capacity must stay the same,
with that device unhealthy, even if the agent starts only afterwards. A device leaves the roster when the hardware was
evidently exchanged: another device took its place, none of the remembered ones is left, or the machine was rebooted.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import msgspec

from kgpu.base.advice import Advice, Severity
from kgpu.base.files import write_atomic
from kgpu.base.typed import convert, decode
from kgpu.deviceplugin.health import Illness
from kgpu.hw.port import Accelerator, HardwareFinding, Inventory, Problem

log = logging.getLogger(__name__)

FILE_NAME = "devices.json"
FILE_VERSION = 1
COARSE_SECONDS = 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class PluginMemory:
    """What survives a restart. ``source`` is the driver that the devices belong to, ``boot`` the boot ID; ``config`` is
    the text of the last good configuration, ``mig_strategy`` the one that it was good with, "" of older versions.
    """

    version: int = FILE_VERSION
    boot: str = ""
    source: str = ""
    accelerators: tuple[Accelerator, ...] = ()
    resources: tuple[str, ...] = ()
    illnesses: tuple[Illness, ...] = ()
    config: str | None = None
    mig_strategy: str = ""


def merge(known: Sequence[Accelerator], inventory: Inventory) -> tuple[tuple[Accelerator, ...], list[Advice]]:
    """The inventory, completed with what is known about devices that it lacks or can't read."""
    advice: list[Advice] = []
    by_uuid = {gpu.uuid: gpu for gpu in known}
    merged: dict[str, Accelerator] = {}
    read = {gpu.uuid for gpu in inventory.accelerators if gpu.uuid}
    for gpu in inventory.accelerators:
        old = by_uuid.get(gpu.uuid) or _nameless(gpu, known, read)
        current = gpu if old is None or gpu.name else _with_facts_of(old, gpu)
        if current.uuid:
            merged[current.uuid] = current
    if read and known and not (read & by_uuid.keys()):
        advice.append(
            Advice(
                subject="",
                what=f"{len(known)} remembered devices are forgotten",
                why="none of them is there and others are: the hardware was exchanged",
                reason="DevicesExchanged",
            )
        )
        return _ordered(merged.values()), advice
    for gpu in known:
        if gpu.uuid in merged:
            continue
        successor = _successor(gpu, merged.values())
        if successor is None:
            merged[gpu.uuid] = _missing(gpu)
            continue
        advice.append(
            Advice(
                subject=gpu.uuid,
                what="The device is not offered any more",
                why=f"{successor.uuid} has taken its place at {gpu.pci_bus_id or f'index {gpu.index}'}",
                reason="DeviceReplaced",
            )
        )
    return _ordered(merged.values()), advice


def _with_facts_of(old: Accelerator, blank: Accelerator) -> Accelerator:
    return replace(old, findings=blank.findings or old.findings, recovery_action=blank.recovery_action)


def _ordered(accelerators: Iterable[Accelerator]) -> tuple[Accelerator, ...]:
    return tuple(sorted(accelerators, key=lambda gpu: (gpu.index, gpu.uuid)))


def _nameless(gpu: Accelerator, known: Sequence[Accelerator], read: set[str]) -> Accelerator | None:
    """The remembered device behind an unreadable one without a uuid, None if there is none."""
    if gpu.uuid:
        return None
    candidates = [old for old in known if old.uuid not in read]
    same_place = [old for old in candidates if gpu.pci_bus_id and old.pci_bus_id == gpu.pci_bus_id]
    return next(iter(same_place or [old for old in candidates if old.index == gpu.index]), None)


def _successor(gpu: Accelerator, present: Iterable[Accelerator]) -> Accelerator | None:
    for other in present:
        if gpu.pci_bus_id and other.pci_bus_id == gpu.pci_bus_id and other.uuid != gpu.uuid:
            return other
    return None


def _missing(gpu: Accelerator) -> Accelerator:
    finding = HardwareFinding(
        subject=gpu.uuid,
        problem=Problem.MISSING,
        what=f"GPU {gpu.index} ({gpu.pci_bus_id or gpu.uuid}) was seen before and is not enumerated any more",
        expected="every GPU of this boot to stay enumerable",
        remedy="look for Xid 79 in the kernel log; reset the GPU or restart the machine",
    )
    return replace(gpu, findings=(finding,))


def load(folder: Path, *, source: str, boot: str) -> tuple[PluginMemory, list[Advice]]:
    """Load what ``save`` has written for the same driver and boot; otherwise without devices, with advice on errors."""
    path = folder / FILE_NAME
    fresh = PluginMemory(boot=boot, source=source)
    try:
        tree = decode(path.read_bytes(), dict[str, Any])
        if tree.get("version") != FILE_VERSION:
            return fresh, [_unused(path, f"it is not of version {FILE_VERSION}")]
        memory = convert(tree, PluginMemory)
    except FileNotFoundError:
        return fresh, []
    except (OSError, msgspec.MsgspecError, UnicodeDecodeError) as problem:
        return fresh, [_unused(path, f"the file can't be read: {problem}")]
    if memory.boot != boot:
        # A machine that was off may have other hardware, and after a boot the kubelet starts from the plugins' lists.
        return replace(fresh, config=memory.config, mig_strategy=memory.mig_strategy), []
    if memory.source != source:
        return replace(memory, source=source, accelerators=(), illnesses=()), []
    return memory, []


def coarse(memory: PluginMemory) -> PluginMemory:
    """The memory without changes that are not worth a write: every reading renews the time of a pending illness."""
    return replace(
        memory, illnesses=tuple(replace(illness, last=illness.last // COARSE_SECONDS) for illness in memory.illnesses)
    )


def _unused(path: Path, why: str) -> Advice:
    return Advice(
        subject=str(path),
        what="The remembered devices are not used",
        why=why,
        severity=Severity.WARNING,
        remedy="nothing: it is rewritten",
        reason="MemoryUnreadable",
    )


def save(folder: Path, memory: PluginMemory) -> Advice | None:
    """Write the file atomically. An error is returned as advice, as the plugin works without the file."""
    try:
        write_atomic(folder / FILE_NAME, msgspec.json.format(msgspec.json.encode(memory), indent=1))
    except OSError as problem:
        return Advice(
            subject=str(folder / FILE_NAME),
            what="Known devices are not remembered across restarts",
            why=f"the file can't be written: {problem.strerror}",
            severity=Severity.WARNING,
            remedy=f"make {folder} a writable folder of the host",
            reason="MemoryUnwritable",
        )
    return None
