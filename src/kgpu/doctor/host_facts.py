"""What a node's own files and driver say: written by ``--host`` and the probe, read from archives. All of it optional.

Decoded with msgspec from what may be another version's file: unknown fields are left out, a field of a wrong type makes
the whole host unreadable, which is told as missing evidence.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import msgspec

from kgpu.doctor.model import Evidence
from kgpu.formats import names

KIND: Final = "HostFacts"
API_VERSION: Final = names.DOCTOR_API_VERSION


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


class File(_Facts, frozen=True):
    """A config file, spec or log, cleaned of secrets. ``modified`` in seconds since 1970."""

    text: str = ""
    modified: float | None = None
    problem: str = ""


class Gpu(_Facts, frozen=True):
    """An accelerator as its driver sees it. ``readings`` are those of ``hw/README.md`` by name."""

    index: int = 0
    uuid: str = ""
    name: str = ""
    pci: str = ""
    memory_mib: int | None = None
    mig_capable: bool = False
    mig_enabled: bool = False
    mig_pending: bool = False
    instances: tuple[str, ...] = ()
    """Profiles of its MIG devices."""
    compute: str = ""
    recovery: str = "none"
    problems: tuple[str, ...] = ()
    readings: dict[str, float | str] = {}


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


class Process(_Facts, frozen=True):
    """A process that matters: it holds device files, or hangs. ``state`` as in /proc (``D``: can't be killed)."""

    pid: int
    name: str = ""
    state: str = ""
    holds: tuple[str, ...] = ()


class HostFacts(_Facts, frozen=True):
    """One node from inside. Absent means not looked at, except where a list says otherwise.

    ``modules`` has the reference count of each loaded kernel module. ``files`` are by their path on the host.
    ``present`` says of the paths that were asked for whether they are there; ``units`` the services that run.
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
    dkms: tuple[str, ...] | None = None
    """``nvidia/570.86.15/6.8.0-40-generic`` for each build that DKMS has."""
    pci: tuple[PciDevice, ...] | None = None
    modules: dict[str, int] | None = None
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
    validations: tuple[str, ...] | None = None
    """Names in /run/nvidia/validations."""
    files: dict[str, File] = {}
    present: dict[str, bool] = {}
    units: tuple[str, ...] | None = None
    processes: tuple[Process, ...] | None = None
    gpus: tuple[Gpu, ...] | None = None
    cuda: str = ""
    nvml_error: str = ""
    settings: dict[str, str] = {}
    """Values of /proc/sys by their dotted name."""
    missing: dict[str, str] = {}
    """What could not be looked at, and why."""
    told_by: str = ""
    """The log of the agent that has said this at ``taken``, "" where it was looked at then and there."""

    def cite(self, field: str, value: Any = None) -> Evidence:
        """A field of these facts as evidence."""
        from kgpu.doctor.obj import shown

        given = msgspec.to_builtins(getattr(self, field, None)) if value is None else value
        place = f"Node {self.node}, on the host{f' at {self.taken}' if self.told_by else ''}"
        return Evidence(object=place, field=field.replace("_", " "), value=shown(given))

    def cite_file(self, path: str, line: int = 0, value: str = "") -> Evidence:
        """A line of one of ``files``."""
        return Evidence(object=f"Node {self.node}", file=path, line=line, value=value)

    def cite_log(self, position: int) -> Evidence:
        """A line of the kernel's log by its position."""
        lines = self.kernel_log or ()
        return Evidence(object=f"Node {self.node}", file="kernel log", line=position + 1, value=lines[position])


def decode(data: Mapping[str, Any]) -> HostFacts:
    """From an archive's document; its ``metadata.name`` stands in for ``node``. Raises msgspec.ValidationError."""
    metadata = data.get("metadata")
    name = metadata.get("name") if isinstance(metadata, dict) else None
    facts = msgspec.convert({"node": name if isinstance(name, str) else "", **data}, HostFacts, strict=False)
    return facts


def encode(facts: HostFacts) -> dict[str, Any]:
    """As a document for an archive."""
    found: dict[str, Any] = msgspec.to_builtins(facts)
    return {"apiVersion": API_VERSION, "kind": KIND, "metadata": {"name": facts.node}, **found}
