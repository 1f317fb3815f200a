"""Whether GPUs of a machine may be reset now: rules by platform, MIG, and who has them open. Pure.

Sources: nvidia-smi(1), ``--gpu-reset``; NVIDIA's "GPU memory error management" and Fabric Manager guide on systems with
NVSwitch. Before Ampere all GPUs that NVLink joins are reset together; nvidia-smi refuses less and names what is
missing, so that is not repeated here.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from kgpu.base.errors import HostError
from kgpu.formats.crd.nodeoperation import MAX_GPUS
from kgpu.host.device_holders import DeviceHolder

PERSISTENCE_DAEMON: Final = "nvidia-persiste"  # nvidia-persistenced, as the kernel cuts names
FABRIC_MANAGER: Final = "nv-fabricmanage"
_UUID: Final = re.compile(r"GPU-[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
_GA100: Final = 0x20  # the upper byte of the PCI device ids of A100 and A800
_NAMED: Final = 6


@dataclass(frozen=True, slots=True, kw_only=True)
class ResettableGpu:
    """A GPU as the driver lists it. ``bus_id`` is ``0000:17:00.0``, ``minor`` that of its device node, ``pci_device``
    its PCI device id, 0 if unknown. ``persistence`` is whether persistence mode is on, ``instances`` whether it has MIG
    instances; None if that can't be read. ``needs_reset``: the driver says only that.
    """

    uuid: str
    bus_id: str
    minor: int
    pci_device: int = 0
    persistence: bool | None = False
    instances: bool | None = False
    needs_reset: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class MachineGpus:
    """All GPUs of a machine by UUID. ``switched``: NVSwitches join them."""

    gpus: Mapping[str, ResettableGpu]
    switched: bool = False
    fabric_manager: bool = False


def check_uuids(uuids: Sequence[str]) -> None:
    """Raise HostError unless these are the UUIDs of one reset."""
    if not 0 < len(uuids) <= MAX_GPUS or len(set(uuids)) < len(uuids):
        raise HostError(f"{len(uuids)} GPUs", f"1 to {MAX_GPUS}, each once", "give each GPU that is to be reset once")
    for uuid in uuids:
        if not _UUID.fullmatch(uuid):
            raise HostError(f"{uuid[:100]!r} is not the UUID of a GPU", "GPU-, and 32 digits", "see `nvidia-smi -L`")


def check_machine(uuids: Collection[str], machine: MachineGpus) -> None:
    """Raise HostError if these GPUs can't be reset on this machine, whoever uses them."""
    for uuid in uuids:
        gpu = machine.gpus.get(uuid)
        if gpu is None:
            raise HostError(
                f"the driver does not list GPU {uuid}", f"one of {len(machine.gpus)} that it lists",
                "reboot the node if the GPU has fallen off the bus",
            )  # fmt: skip
        if gpu.instances:
            raise HostError(
                f"GPU {uuid} has MIG instances, which a reset removes", "a GPU without",
                "empty it and remove its instances, or reboot the node",
            )  # fmt: skip
        if gpu.instances is None and not gpu.needs_reset:
            raise HostError(
                f"whether GPU {uuid} has MIG instances can't be read", "an answer of nvidia-smi", "reboot the node"
            )
    _check_switches(uuids, machine)


def _check_switches(uuids: Collection[str], machine: MachineGpus) -> None:
    """A100 with NVSwitch: Fabric Manager trains the links of a GPU that is reset alone."""
    left_out = machine.gpus.keys() - set(uuids)
    if not machine.switched or machine.fabric_manager or not left_out:
        return
    if any(machine.gpus[uuid].pci_device >> 8 == _GA100 for uuid in uuids):
        raise HostError(
            "Fabric Manager does not run, and without it the GPUs of this machine are reset all together",
            "nvidia-fabricmanager, or all GPUs in one reset", "start nvidia-fabricmanager, or reboot the node",
        )  # fmt: skip


def check_unused(holders: Sequence[DeviceHolder]) -> None:
    """Raise HostError if anybody has one of the GPUs open."""
    if holders:
        named = ", ".join(str(holder) for holder in holders[:_NAMED])
        more = f" and {len(holders) - _NAMED} more" if len(holders) > _NAMED else ""
        raise HostError(
            f"in use by {named}{more}", "GPUs that no process has open", "end what uses them, then reset them again"
        )


def besides_persistence(holders: Sequence[DeviceHolder]) -> tuple[DeviceHolder, ...]:
    """Without the daemon that keeps GPUs open for persistence mode: it closes them once that is off."""
    return tuple(holder for holder in holders if holder.program != PERSISTENCE_DAEMON)


def persistent(uuids: Collection[str], machine: MachineGpus) -> tuple[str, ...]:
    """Those of the GPUs whose persistence mode has to be switched off for the reset, and on again.

    A GPU that says nothing of itself has the mode of all others.
    """
    known = {gpu.persistence for gpu in machine.gpus.values()} - {None}
    usual = known == {True}
    modes = {uuid: machine.gpus[uuid].persistence for uuid in uuids}
    return tuple(uuid for uuid, mode in modes.items() if mode or (mode is None and usual))
