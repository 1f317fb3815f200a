"""What a node's own files and driver say: written by ``--host`` and the probe, read from archives. All of it optional.

Decoded with msgspec from what may be another version's file: unknown fields are left out, a field of a wrong type makes
the whole host unreadable, which is told as missing evidence.
"""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Collection, Mapping
from typing import Any, Final

import msgspec

from kgpu.base.errors import DriverFault
from kgpu.base.typed import convert
from kgpu.doctor.model import Evidence, in_file
from kgpu.formats import names

KIND: Final = "HostFacts"
API_VERSION: Final = names.DOCTOR_API_VERSION
_STAMP: Final = re.compile(r"(?:\d+,\d+,(?P<usec>\d{1,18}),[^;]*;|\[ *(?P<seconds>\d{1,12}\.\d{1,9})\] )")
"""When a line was said, counted from the boot: a record of ``/dev/kmsg``, or a line of dmesg."""
_LOADED: Final = re.compile(r"NVRM: loading NVIDIA .*Kernel Module")
_LOG_WORDS: Final = re.compile(
    r"NVRM|nvidia|nouveau|Xid|amdgpu|kfd|habanalabs|i915|\bxe [\da-f]{4}:|lockdown|secure ?boot|module verification"
    r"|Key was rejected"
    r"|unsigned module|AER|pcieport|Out of memory|oom-kill|apparmor=\"DENIED\"|avc:|BAR \d|MCE|EDAC|hung_task"
    r"|blocked for more",
    re.IGNORECASE,
)
_MODE: Final = re.compile(r"[0-7]{1,5}")
_LIMITS: Final = ("critical_temperature_c", "slowdown_temperature_c")
"""Readings of the temperature at which a device slows down or stops; Intel's drivers give none."""
HOT: Final = 100.0
"""Celsius that are too many where a driver names no limit: at them Intel's plugin withdraws a card by default."""
KERNEL_LOG: Final = "kernel log"
PCI_DEVICES: Final = "PCI devices"
PROCESSES: Final = "processes"
"""What ``missing`` calls these."""
_EVERYWHERE: Final = frozenset({KERNEL_LOG, PCI_DEVICES, PROCESSES})


def is_slight(what: str, why: str) -> bool:
    """Whether it is merely absent, as kernel modules are in a container; ``_EVERYWHERE`` lists what every host has."""
    return why == os.strerror(errno.ENOENT) and what not in _EVERYWHERE


def matters(line: str) -> bool:
    """Whether a line of the kernel's log is one of those that are kept."""
    return _LOG_WORDS.search(line) is not None


class _Facts(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    pass


class PciDevice(_Facts, frozen=True):
    """A device on the bus. ``vendor``, ``device`` and ``pci_class`` are hex without 0x (``10de``, ``030200``)."""

    address: str
    vendor: str = ""
    device: str = ""
    pci_class: str = ""
    driver: str = ""
    numa_node: int | None = None
    lost: bool = False
    """Its config space reads as ones: fallen off the bus (``rev ff``)."""
    link_width: int | None = None
    link_width_max: int | None = None
    link_speed: str = ""
    link_speed_max: str = ""
    hypervisor: bool = False
    iommu: str = ""
    """What the IOMMU does with its memory accesses: ``identity`` passes them through, ``DMA`` and ``DMA-FQ`` translate
    them; "" where it has none, or a kgpu without this field has looked."""


class DeviceAccess(_Facts, frozen=True):
    """Who besides root may open device files: those of ``path``, a pattern, that have this group and mode."""

    path: str
    gid: int
    group: str = ""
    """The group's name on the host, "" where it has none."""
    mode: str = ""
    """Octal, such as 0660."""

    def lets(self, groups: Collection[int]) -> bool:
        """Whether a process that is in these groups, and is not root, may read and write them."""
        mode = int(self.mode, 8) if _MODE.fullmatch(self.mode) else 0
        return mode & 0o6 == 0o6 or (self.gid in groups and mode & 0o60 == 0o60)

    @property
    def shown(self) -> str:
        """For people."""
        return f"{self.path}: group {f'{self.group} ({self.gid})' if self.group else self.gid}, mode {self.mode}"


class File(_Facts, frozen=True):
    """A config file, spec or log, cleaned of secrets. ``modified`` in seconds since 1970."""

    text: str = ""
    modified: float | None = None
    problem: str = ""


class Gpu(_Facts, frozen=True):
    """An accelerator as its driver sees it. ``readings`` are those of ``hw/README.md`` by name. ``problems`` are for
    people; ``lost`` is why the driver can't reach it, in words, "" where it can.
    """

    index: int = 0
    vendor: str = ""
    """As in ``kgpu.hw.vendor``; "" where a kgpu without this field has looked."""
    uuid: str = ""
    name: str = ""
    pci: str = ""
    mode: str = ""
    """How its driver parts it (``cpx_nps4``), "" where it can't be parted so."""
    memory_mib: int | None = None
    mig_capable: bool = False
    mig_enabled: bool = False
    mig_pending: bool = False
    instances: tuple[str, ...] = ()
    """Profiles of its MIG devices."""
    compute: str = ""
    recovery: str = "none"
    problems: tuple[str, ...] = ()
    troubles: dict[str, str] = {}
    """What is wrong in words, by its kind as in ``kgpu.hw.port.Problem``."""
    lost: str = ""
    ports_down: tuple[int, ...] = ()
    """Its own network ports that lead out of the machine and have no link."""
    readings: dict[str, float | str] = {}

    @property
    def limit(self) -> tuple[float, str]:
        """The temperature that its driver calls too high, and that reading's name; ``HOT`` and "" where it has none."""
        found = ((self.readings.get(name), name) for name in _LIMITS)
        return next(((now, name) for now, name in found if isinstance(now, float | int) and now > 0), (HOT, ""))

    @property
    def hot(self) -> bool:
        """Whether it is at its limit."""
        now = self.readings.get("temperature_c")
        return isinstance(now, float | int) and now >= self.limit[0]


class Xid(_Facts, frozen=True):
    """A number in the kernel's log with what it calls for. ``kind`` is xid or sxid; ``action`` is health's word."""

    code: int
    kind: str = "xid"
    pci: str = ""
    count: int = 1
    first: str = ""
    last: str = ""
    text: str = ""
    process: str = ""
    what: str = ""
    action: str = ""
    advice: str = ""
    bucket: str = ""
    recovery: str = ""
    over: bool = False
    """Before the last boot that the log has."""


class DiskSpace(_Facts, frozen=True):
    """A file system, in bytes: its size, and what of it is free."""

    size: int = 0
    free: int = 0


class HostProcess(_Facts, frozen=True):
    """A process that matters: it holds device files, or hangs. ``state`` as in /proc (``D``: can't be killed)."""

    pid: int
    name: str = ""
    state: str = ""
    holds: tuple[str, ...] = ()


class HostFacts(_Facts, frozen=True):
    """One node from inside. Absent means not looked at, except where a list says otherwise.

    ``modules`` has the reference count of each loaded kernel module, 0 for one that is built into the kernel.
    ``files`` are by their path on the host. ``present`` says of the paths that were asked for whether they are
    there; ``units`` the services that run.
    """

    node: str = ""
    taken: str = ""
    boot_id: str = ""
    boot_time: float | None = None
    kernel: str = ""
    architecture: str = ""
    os_release: dict[str, str] = {}
    command_line: str = ""
    hypervisor: bool | None = None
    secure_boot: bool | None = None
    headers: bool | None = None
    headers_offered: bool | None = None
    """The lists of the node's package manager have the headers of the running kernel."""
    disks: dict[str, DiskSpace] = {}
    """By the folder that is on it: the kubelet's, and the engines' for images."""
    dkms: tuple[str, ...] | None = None
    """``nvidia/570.86.15/6.8.0-40-generic`` for each build of an accelerator's driver that DKMS has."""
    pci: tuple[PciDevice, ...] | None = None
    modules: dict[str, int] | None = None
    module_versions: dict[str, str] = {}
    """Of the modules of accelerators' drivers, where they say one; a kernel's own module says none."""
    blacklist: dict[str, str] = {}
    """By module of an accelerator's driver, the file or the command line that forbids to load it."""
    kernel_log: tuple[str, ...] | None = None
    xids: tuple[Xid, ...] = ()
    driver_version: str = ""
    driver_open: bool | None = None
    """The loaded module is the open one."""
    library_version: str = ""
    driver_root: str = ""
    libraries: tuple[str, ...] | None = None
    firmware: tuple[str, ...] | None = None
    devices: tuple[str, ...] | None = None
    """Names below /dev: nvidia0, nvidiactl, nvidia-uvm, kfd, accel/accel0, char/195:0, ..."""
    device_access: tuple[DeviceAccess, ...] = ()
    """Of the device files that programs in containers open."""
    validations: tuple[str, ...] | None = None
    """Names in /run/nvidia/validations."""
    files: dict[str, File] = {}
    present: dict[str, bool] = {}
    units: tuple[str, ...] | None = None
    processes: tuple[HostProcess, ...] | None = None
    gpus: tuple[Gpu, ...] | None = None
    cuda: str = ""
    nvml_error: str = ""
    nvml_fault: DriverFault | None = None
    """Why the driver can't be used, for programs: None where it can, and where a kgpu without this field has looked."""
    settings: dict[str, str] = {}
    """Values of /proc/sys by their dotted name."""
    missing: dict[str, str] = {}
    """What could not be looked at, and why."""
    told_by: str = ""
    """The log of the agent that has said this at ``taken``, "" where it was looked at then and there."""
    said_in: str = ""
    """The text in which it was found, where anybody may have written that."""

    @property
    def _author(self) -> str:
        return in_file(self.said_in) if self.said_in else ""

    @property
    def hollow(self) -> bool:
        """Whether no machine was seen: its PCI bus was not there, nor anything of its /proc or its driver.

        So it is where the root that was looked at is another folder, or an image's: then silence proves nothing.
        """
        seen = (self.kernel, self.boot_id, self.boot_time, self.modules, self.processes, self.gpus, self.devices)
        return PCI_DEVICES in self.missing and not any(seen)

    def cite(self, field: str, value: Any = None) -> Evidence:
        """A field of these facts as evidence."""
        from kgpu.doctor.objects import shown

        content = msgspec.to_builtins(getattr(self, field, None)) if value is None else value
        place = f"Node {self.node}, on the host{f' at {self.taken}' if self.told_by else ''}"
        return Evidence(object=place, field=field.replace("_", " "), value=shown(content), author=self._author)

    def cite_file(self, path: str, line: int = 0, value: str = "") -> Evidence:
        """A line of one of ``files``."""
        return Evidence(object=f"Node {self.node}", file=path, line=line, value=value, author=self._author)

    def line_of(self, xid: Xid, *, first: bool = False) -> int:
        """The position of an Xid's last line in the kernel's log, or of its first; -1 where it is not there."""
        word = "SXid" if xid.kind == "sxid" else "Xid"
        place = xid.pci.removeprefix("0000:").lower()  # some lines leave the domain out
        lines = self.kernel_log or ()
        order = range(len(lines))
        for position in order if first else reversed(order):
            line = lines[position]
            if (
                f"{word} (PCI" in line
                and (f" {xid.code}," in line or f": {xid.code}" in line)
                and place in line.lower()
            ):
                return position
        return -1

    def said_at(self, position: int) -> float | None:
        """When a line of the kernel's log was said, in seconds since 1970; None where line or boot have no time."""
        lines = self.kernel_log or ()
        hit = _STAMP.match(lines[position]) if 0 <= position < len(lines) else None
        if hit is None or self.boot_time is None:
            return None
        return self.boot_time + (int(hit["usec"]) / 1e6 if hit["usec"] else float(hit["seconds"]))

    def loaded_after(self, position: int) -> int:
        """The position of a later line by which the driver says that it is loaded anew, -1 for none."""
        lines = self.kernel_log or ()
        positions = (at for at in range(position + 1, len(lines)) if "NVRM: loading" in lines[at])
        return next((at for at in positions if position >= 0 and _LOADED.search(lines[at])), -1)

    def cite_log(self, position: int) -> Evidence:
        """A line of the kernel's log by its position."""
        lines = self.kernel_log or ()
        return Evidence(
            object=f"Node {self.node}", file="kernel log", line=position + 1, value=lines[position], author=self._author
        )


def decode(data: Mapping[str, Any]) -> HostFacts:
    """From an archive's document; its ``metadata.name`` stands in for ``node``. Raises msgspec.ValidationError.

    What it says is to be done about an Xid is not taken over: whoever may write facts would give orders to the reader.
    """
    metadata = data.get("metadata")
    name = metadata.get("name") if isinstance(metadata, dict) else None
    facts = convert({"node": name if isinstance(name, str) else "", **data}, HostFacts, strict=False)
    return msgspec.structs.replace(facts, xids=tuple(msgspec.structs.replace(xid, advice="") for xid in facts.xids))


def encode(facts: HostFacts) -> dict[str, Any]:
    """As a document for an archive."""
    fields: dict[str, Any] = msgspec.to_builtins(facts)
    return {"apiVersion": API_VERSION, "kind": KIND, "metadata": {"name": facts.node}, **fields}
