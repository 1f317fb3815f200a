"""What the facts of a host say of GPUs of vendors other than NVIDIA: which are lost, hang, need a reset, run hot.

Where kgpu's agent watches the GPUs, its verdicts (``agent_reports``) are of now and are told instead.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator
from typing import Final

from kgpu.base.remedy import Remedy
from kgpu.doctor import remedies
from kgpu.doctor.acts import is_outdated
from kgpu.doctor.agent_reports import is_watched
from kgpu.doctor.host_facts import Gpu, HostFacts
from kgpu.doctor.model import CERTAIN, LIKELY, Evidence, Finding, Level, Subject
from kgpu.doctor.snapshot import Snapshot
from kgpu.doctor.vendor_drivers import DRIVERS, FOR_MACHINES, VendorDriver, cards_of
from kgpu.hw.port import Problem

_FIRMWARE: Final = re.compile(r"firmware load for (?P<file>[\w./-]+) failed")
_NO_MEMORY: Final = "-12"


def is_of_nvidia(gpu: Gpu) -> bool:
    """Whether NVIDIA's driver has told of it; only that was read before facts had vendors."""
    return gpu.vendor not in DRIVERS


def _seen(snapshot: Snapshot) -> Iterator[tuple[HostFacts, Gpu, VendorDriver]]:
    for host in snapshot.hosts.values():
        if host.told_by and is_watched(snapshot, host.node):
            continue
        for gpu in host.gpus or ():
            driver = DRIVERS.get(gpu.vendor)
            if driver is not None and not is_outdated(snapshot, host, gpu.uuid):
                yield host, gpu, driver


def troubled(snapshot: Snapshot, problem: Problem) -> Iterator[Finding]:
    """A finding for each GPU with a trouble of this kind, as its reader has seen it."""
    for host, gpu, driver in _seen(snapshot):
        sentence = gpu.troubles.get(problem)
        if sentence is None:
            continue
        mild = problem is Problem.UNREADABLE
        lines = [at for at, line in enumerate(host.kernel_log or ()) if gpu.pci and gpu.pci in line]
        yield Finding(
            subject=Subject("Node", host.node),
            cause=f"{_name(gpu)} of node {host.node} ({gpu.name or driver.title}): {sentence}",
            evidence=(
                host.cite("gpus", f"GPU {gpu.index}: {problem}: {sentence}"),
                *(host.cite_log(at) for at in lines[-1:]),
            ),
            remedy=(*_look(host, driver), *_cure(host, gpu, driver, problem)),
            confidence=CERTAIN,
            level=Level.NOTE if mild else Level.PROBLEM,
            nodes=(host.node,),
            gpus=(gpu.uuid,),
        )


def _name(gpu: Gpu) -> str:
    return f"GPU {gpu.index}{f' at {gpu.pci}' if gpu.pci else ''}"


def _look(host: HostFacts, driver: VendorDriver) -> tuple[Remedy, ...]:
    return Remedy("on {}:", host.node), Remedy("dmesg | grep -E '{}'", driver.words)


def _cure(host: HostFacts, gpu: Gpu, driver: VendorDriver, problem: Problem) -> tuple[Remedy, ...]:
    """A reset where the vendor's driver can do one and the GPU is on the bus, else a reboot."""
    if problem is Problem.UNREADABLE:
        return (Remedy("compare the versions of driver and firmware; it takes work all the same"),)
    if problem is Problem.UNPROVEN:
        return (Remedy("see whether this driver supports the GPU; it gets no work until then"),)
    if problem is Problem.LOST or not driver.reset:
        return remedies.reboot(host.node, "reseat the card if it comes back")
    return (
        Remedy("let the pods on that GPU end, then reset it:"),
        *(Remedy(step, gpu=gpu.index, pci=gpu.pci) for step in driver.reset),
        Remedy("where that fails:"),
        *remedies.reboot(host.node),
    )


def hot(snapshot: Snapshot) -> Iterator[Finding]:
    """GPUs at or above the temperature that their driver calls critical, or slows them down at."""
    for host, gpu, driver in _seen(snapshot):
        limit, name = gpu.limit
        if not gpu.hot or not name:
            continue
        now = gpu.readings["temperature_c"]
        yield Finding(
            subject=Subject("Node", host.node),
            cause=(
                f"{_name(gpu)} of node {host.node} is at {float(now):.0f} C, and its driver slows it down or stops it "
                f"from {limit:.0f} C on"
            ),
            evidence=(host.cite("gpus", f"GPU {gpu.index}: temperature_c {now}, {name} {limit}"),),
            remedy=(
                Remedy("check fans, air flow and room temperature"),
                Remedy("on {}:", host.node),
                Remedy(driver.heat),
            ),
            confidence=CERTAIN,
            nodes=(host.node,),
            gpus=(gpu.uuid,),
        )


def not_started(snapshot: Snapshot) -> Iterator[Finding]:
    """Cards that a driver has given up when it was loaded, by its own line, while it does not show them now.

    A file of firmware that is missing counts only beside such a line: many are for extras.
    """
    for host in snapshot.hosts.values():
        shown = {gpu.pci.lower() for gpu in host.gpus or ()}
        lines = host.kernel_log or ()
        for driver in DRIVERS.values():
            given_up: dict[str, tuple[int, re.Match[str]]] = {}
            for at, line in enumerate(lines):
                if hit := _refusal(driver).search(line):
                    given_up[_group(hit, "pci")] = at, hit
            for pci, (at, hit) in given_up.items():
                if pci not in shown:
                    yield _not_started(host, driver, pci, at, hit)


@functools.cache
def _refusal(driver: VendorDriver) -> re.Pattern[str]:
    return re.compile(driver.refuses)


def _group(hit: re.Match[str], name: str) -> str:
    return next((text for key, text in hit.groupdict().items() if key.startswith(name) and text), "")


def _not_started(host: HostFacts, driver: VendorDriver, pci: str, at: int, hit: re.Match[str]) -> Finding:
    lines = host.kernel_log or ()
    asked = [
        (at, found) for at, line in enumerate(lines[: at + 1]) if pci in line and (found := _FIRMWARE.search(line))
    ]
    code, device = _group(hit, "code"), _group(hit, "id")
    where = f"the driver could not start the {driver.title} at {pci} of node {host.node}"
    evidence: tuple[Evidence, ...] = (host.cite_log(at),)
    steps: tuple[Remedy, ...]
    if device:
        why = f"this kernel's driver does not support its model ({device}) yet"
        steps = (
            Remedy("run a newer kernel, or let the driver take it all the same, on the kernel's command line:"),
            Remedy("i915.force_probe={}, or xe.force_probe={} with i915.force_probe=!{}", device, device, device),
        )
    elif asked:
        why = f"it has no firmware {asked[-1][1]['file']}"
        evidence = (host.cite_log(asked[-1][0]), *evidence)
        steps = (Remedy(driver.firmware), Remedy("then reboot"))
    elif code == _NO_MEMORY:
        why = "there is no room for its memory window (error -12)"
        steps = (
            Remedy("lspci -vv -s {} | grep Region", pci),
            Remedy("in the BIOS: Above 4G Decoding and Resizable BAR on; or pci=realloc on the kernel's command line"),
        )
    else:
        why = f"error {code}" if code else "its own lines say no more"
        steps = remedies.reboot(host.node, "update its firmware, reseat the card or replace it if it comes back")
    return Finding(
        subject=Subject("Node", host.node),
        cause=f"{where}: {why}",
        evidence=evidence,
        remedy=(*_look(host, driver), *steps),
        confidence=CERTAIN,
        nodes=(host.node,),
    )


def unlisted(snapshot: Snapshot) -> Iterator[Finding]:
    """Cards on the bus that a driver which shows others of its vendor does not show."""
    for host in snapshot.hosts.values():
        for driver in DRIVERS.values():
            shown = {gpu.pci.lower() for gpu in host.gpus or () if gpu.vendor == driver.vendor and gpu.pci}
            cards = [card for card in cards_of(host, driver) if card.driver != FOR_MACHINES]
            gone = [card for card in cards if card.address.lower() not in shown]
            if not shown or not gone:
                continue
            free = [card for card in gone if not card.driver]
            yield Finding(
                subject=Subject("Node", host.node),
                cause=(
                    f"node {host.node} has {len(cards)} {driver.title}s on its bus, and the driver shows {len(shown)}: "
                    f"{', '.join(card.address for card in gone)} is missing"
                    f"{f' (no driver has taken {free[0].address})' if free else ''}"
                ),
                evidence=(
                    host.cite("pci", ", ".join(f"{card.address} {card.driver or 'no driver'}" for card in cards)),
                    host.cite("gpus", ", ".join(sorted(shown))),
                ),
                remedy=(
                    Remedy("on {}:", host.node),
                    Remedy("dmesg | grep -E '{}|{}'", gone[0].address, driver.words),
                    *remedies.reboot(host.node, "reseat the card if it stays away"),
                ),
                confidence=CERTAIN if free else LIKELY,
                nodes=(host.node,),
            )
