"""The drivers of vendors other than NVIDIA on a node: a row for each, and what the facts of a host prove of one.

NVIDIA's driver has libraries, containers and versions of its own (rules DRV and KRN); these are kernel modules that
show files. A driver counts as loaded also where it is built into the kernel.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final

from kgpu.base.errors import DriverFault
from kgpu.base.remedy import Remedy
from kgpu.doctor import matching
from kgpu.doctor.agent_reports import without_driver
from kgpu.doctor.host_facts import HostFacts, PciDevice
from kgpu.doctor.kinds import Node
from kgpu.doctor.model import CERTAIN, LIKELY, Evidence, Finding, Subject
from kgpu.doctor.snapshot import Snapshot
from kgpu.formats import names

_CLASSES: Final = ("03", "12")  # displays; processing accelerators
_GRAPHICS_OF_PROCESSOR: Final = ":00:"
"""Bus 0, where the graphics of Intel's processors are: nobody buys a node for them."""
FOR_MACHINES: Final = "vfio-pci"
"""The driver that holds a device for virtual machines."""
_PCI: Final = r"[\da-f]{4}:[\da-f]{2}:[\da-f]{2}\.\d"


@dataclass(frozen=True, slots=True, kw_only=True)
class VendorDriver:
    """``modules`` are needed all, or one of them where ``any_of``. ``load`` are the steps that load them, ``reset``
    those that reset one device, with a place for ``gpu`` (its number) and ``pci``; none where only a reboot does.
    ``words`` is what its lines in the kernel's log have, ``heat`` the command that shows temperatures. ``refuses`` is a
    pattern of the line by which it gives a card up, with its address as ``pci``; ``firmware`` installs its firmware.
    """

    vendor: str
    title: str
    pci_id: str
    modules: tuple[str, ...]
    any_of: bool = False
    load: tuple[str, ...]
    reset: tuple[str, ...] = ()
    words: str
    heat: str
    refuses: str
    firmware: str


AMD: Final = VendorDriver(
    vendor=matching.AMD,
    title="AMD GPU",
    pci_id=names.AMD_PCI_ID,
    modules=(names.AMD_DRIVER,),
    load=(
        "modprobe amdgpu",
        "where there is no such module:",
        "apt-get install amdgpu-dkms",
        "or a DeviceConfig with spec.driver.enable: true",
    ),
    reset=("amd-smi reset --gpureset --gpu {gpu}",),
    words="amdgpu|kfd",
    heat="amd-smi metric --temperature --power",
    refuses=(
        rf"amdgpu: probe of (?P<pci>{_PCI}) failed with error (?P<code>-\d+)"
        rf"|amdgpu (?P<pci_2>{_PCI}): probe with driver amdgpu failed with error (?P<code_2>-\d+)"
        rf"|amdgpu (?P<pci_3>{_PCI}): .*Fatal error during GPU init"
    ),
    firmware="apt-get install linux-firmware amdgpu-dkms-firmware; update-initramfs -u",
)
GAUDI: Final = VendorDriver(
    vendor=matching.GAUDI,
    title="Gaudi card",
    pci_id=names.GAUDI_PCI_ID,
    modules=names.GAUDI_MODULES,
    load=(
        f"modprobe -a {' '.join(names.GAUDI_MODULES)}; hl-smi",
        "without them:",
        "apt-get install habanalabs-dkms habanalabs-firmware",
    ),
    reset=("hl-smi -r -i {pci}",),
    words="habanalabs",
    heat="hl-smi -q -d TEMPERATURE",
    refuses=rf"habanalabs (?P<pci>{_PCI}): .*Device is NOT usable",
    firmware="apt-get install --reinstall habanalabs-firmware",
)
INTEL: Final = VendorDriver(
    vendor=matching.INTEL,
    title="Intel GPU",
    pci_id=names.INTEL_PCI_ID,
    modules=names.INTEL_DRIVERS,
    any_of=True,
    load=(
        "modprobe xe || modprobe i915",
        "where neither takes the card: a kernel that has its driver, such as 6.8 with i915 or 6.12 with xe",
    ),
    words=r"i915|\bxe\b",
    heat="grep . /sys/class/drm/card*/device/hwmon/hwmon*/temp*_input",
    refuses=(
        rf"(?:i915|xe) (?P<pci>{_PCI}): .*[Yy]our graphics device (?P<id>[\da-f]{{4}}) is not (?:properly|officially) "
        rf"supported|(?:i915|xe) (?P<pci_2>{_PCI}): .*(?:probe (?:with driver \w+ )?failed with error (?P<code>-\d+)"
        r"|Device initialization failed)"
    ),
    firmware="apt-get install linux-firmware; update-initramfs -u",
)
DRIVERS: Final = {row.vendor: row for row in (AMD, GAUDI, INTEL)}


def hosts_of(snapshot: Snapshot, driver: VendorDriver) -> Iterator[tuple[HostFacts, Node | None, list[PciDevice]]]:
    """Hosts that are known to have a vendor's devices by their bus or their Node, with the Node and those devices."""
    labelled = {node.name for node in matching.gpu_nodes(snapshot, driver.vendor)}
    for host in snapshot.hosts.values():
        cards = cards_of(host, driver)
        if cards or host.node in labelled:
            yield host, snapshot.nodes.get(host.node), cards


def cards_of(host: HostFacts, driver: VendorDriver) -> list[PciDevice]:
    """A vendor's devices on a host's bus, without the graphics in Intel's processors."""
    return [
        device
        for device in host.pci or ()
        if device.vendor == driver.pci_id
        and device.pci_class[:2] in _CLASSES
        and not (driver is INTEL and _GRAPHICS_OF_PROCESSOR in device.address)
    ]


def missing_modules(host: HostFacts, driver: VendorDriver) -> tuple[str, ...]:
    """The modules that a driver lacks; empty where it is loaded, or where nobody has looked."""
    if host.modules is None:
        return ()
    gone = tuple(module for module in driver.modules if module not in host.modules)
    return () if driver.any_of and len(gone) < len(driver.modules) else gone


def not_loaded(snapshot: Snapshot, driver: VendorDriver) -> Iterator[Finding]:
    """Nodes with a vendor's devices on the bus and without its driver, and what keeps the driver out; and those of
    which kgpu's agent alone says so.
    """
    known: set[str] = set()
    for finding in _seen_on_hosts(snapshot, driver):
        known.update(finding.nodes)
        yield finding
    for node, said, now in without_driver(snapshot, driver.vendor, DriverFault.NOT_LOADED):
        if node.name not in known:
            yield Finding(
                subject=node.subject,
                cause=f"the driver of the {driver.title}s of node {node.name} is not loaded ({_modules(driver)})",
                evidence=(said.cite(),),
                remedy=(Remedy("on {}:", node.name), *map(Remedy, driver.load)),
                confidence=CERTAIN if now else LIKELY,
                since=said.since,
                nodes=(node.name,),
            )


def _modules(driver: VendorDriver) -> str:
    return (" or " if driver.any_of else ", ").join(driver.modules)


def _seen_on_hosts(snapshot: Snapshot, driver: VendorDriver) -> Iterator[Finding]:
    for host, node, cards in hosts_of(snapshot, driver):
        gone = missing_modules(host, driver)
        offers = node is not None and any(
            node.allocatable(name) for name in node.resources() if matching.vendor_of(name) == driver.vendor
        )
        if not cards or not gone or offers or host.hollow:
            continue
        why, evidence, steps = _obstacle(host, driver, gone, cards)
        many = f"{len(cards)} {driver.title}{'' if len(cards) == 1 else 's'} on its bus"
        there = [module for module in driver.modules if module in (host.modules or {})]
        yield Finding(
            subject=Subject("Node", host.node),
            cause=f"node {host.node} has {many}, and {_said(driver, gone)}{why}",
            evidence=(
                host.cite("pci", ", ".join(card.address for card in cards)),
                host.cite("modules", ", ".join(there) or f"none of {', '.join(driver.modules)}"),
                *evidence,
            ),
            remedy=(Remedy("on {}:", host.node), *steps),
            confidence=CERTAIN if node is not None or not host.said_in else LIKELY,
            nodes=(host.node,),
        )


def _said(driver: VendorDriver, gone: tuple[str, ...]) -> str:
    if driver.any_of:
        return f"neither of the modules {' and '.join(gone)} is loaded"
    return f"the module {gone[0]} is not loaded" if len(gone) == 1 else f"the modules {', '.join(gone)} are not loaded"


def _obstacle(
    host: HostFacts, driver: VendorDriver, gone: tuple[str, ...], cards: Iterable[PciDevice]
) -> tuple[str, tuple[Evidence, ...], tuple[Remedy, ...]]:
    """What keeps the modules out, as the end of a sentence; evidence for that; and the steps."""
    load = tuple(map(Remedy, driver.load))
    barred = next((module for module in gone if module in host.blacklist), "")
    if barred:
        place = host.blacklist[barred]
        step = Remedy(
            "take {} out of {}, unless another driver is to replace the kernel's own: then load that", barred, place
        )
        if place.startswith("/proc"):
            step = Remedy("take {} out of the kernel's command line, and reboot", barred)
        return f": {place} forbids it", (host.cite("blacklist", f"{barred}: {place}"),), (step, *load)
    held = next((card for card in cards if card.driver == FOR_MACHINES), None)
    if held is not None:
        return (
            f": {held.address} is held for virtual machines",
            (host.cite("pci", f"{held.address} driver {FOR_MACHINES}"),),
            (Remedy("take its id out of the options of vfio-pci, or driverctl unset-override {}", held.address), *load),
        )
    if "nomodeset" in host.command_line.split():
        step = Remedy(
            "take nomodeset out of the kernel's command line, and reboot: graphics drivers refuse to load by it"
        )
        return ": the kernel was started with nomodeset", (host.cite("command_line", "nomodeset"),), (step,)
    built = [row for row in host.dkms or () if row.startswith(gone[0])]
    if built and host.kernel and not any(row.endswith(f"/{host.kernel}") for row in built):
        return (
            f": DKMS has not built it for the kernel {host.kernel}",
            (host.cite("dkms", ", ".join(built)), host.cite("kernel")),
            (Remedy("apt-get install linux-headers-$(uname -r); dkms autoinstall"), *load[:1]),
        )
    return "", (), load
