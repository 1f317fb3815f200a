"""The role ``probe``: writes facts about this node's files, kernel and driver to the agent's log for ``kgpu doctor``.

It writes them at the start, when something that matters has changed (files, the PCI bus, modules, the kernel log, the
driver's inventory, links and heat of devices other than NVIDIA's), and at least once an hour. It needs no port and no
permission: whoever may read the agent's log or an archive of it has the facts. If something keeps changing, the
intervals grow.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import time
from collections.abc import Callable, Hashable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

from kgpu.agent.host import Closing, Host, Role, kernel_log, validations_dir
from kgpu.base.boot import boot_id
from kgpu.base.supervise import RoleHandle
from kgpu.base.threads import beside
from kgpu.formats.names import CDI_DIR, KUBELET_DEVICE_PLUGIN_DIR, NVIDIA, VALIDATIONS_DIR
from kgpu.hw.port import DriverReleasedError, Reader

if TYPE_CHECKING:
    from kgpu.agent.options import AgentOptions
    from kgpu.agent.shared_reader import SharedReader
    from kgpu.host.engines.paths import MountedPaths

LOOK: Final = 30.0  # seconds between checks for changes
AGAIN: Final = 3600.0  # seconds after which the facts are written in any case
PAUSE: Final = 60.0  # seconds between two changes that are written, at first
LONGEST: Final = 900.0
HANGS: Final = 60.0  # seconds after which a read of the host's files counts as hanging
_WELL: Final = "what kgpu doctor wants to know of this node is in this agent's log"
_READ: Final = 65536

T = TypeVar("T")


async def probe(host: Host, handle: RoleHandle) -> None:
    """Write the facts until cancelled."""
    from kgpu.doctor.sources.host import fingerprint

    options = host.options
    log = kernel_log(options)
    view, words = host.reader.view(), KernelWords(log)

    def look() -> tuple[bool, Hashable]:
        return words.said(), (fingerprint(host_paths(options)), _inventory(host.reader))

    async with contextlib.aclosing(Closing(view)):
        pause = PAUSE
        while True:
            begin, driver = time.monotonic(), await _driver(host, view)
            _, known = await _read(handle, look)
            await _read(handle, partial(_say, options, log, driver))
            handle.running(_WELL)
            changed = False
            while (age := time.monotonic() - begin) < AGAIN and not (changed and age >= pause):
                await asyncio.sleep(LOOK)
                spoke, now = await _read(handle, look)
                changed = changed or spoke or now != known or await _passed(host, view, driver)
            pause = min(2 * pause, LONGEST) if changed else PAUSE


async def _driver(host: Host, reader: Reader) -> dict[str, Any]:
    """What the driver says, once this process may ask it."""
    from kgpu.doctor.sources.host import driver_facts

    while True:
        with contextlib.suppress(DriverReleasedError):
            return await driver_facts(reader)
        ordered = host.ordered
        while ordered is not None and ordered.released:
            await ordered.changed(ordered.revision)


async def _passed(host: Host, reader: Reader, before: dict[str, Any]) -> bool:
    """Whether what passes by itself is otherwise than ``before``: a port's link, heat. NVIDIA's driver is not asked: it
    says such things in the kernel's log.
    """
    from kgpu.doctor.sources.host import driver_facts, passing

    inventory = host.reader.last_inventory
    if inventory is None or inventory.vendor == NVIDIA:
        return False
    with contextlib.suppress(DriverReleasedError):
        return passing(await driver_facts(reader)) != passing(before)
    return False


async def _read(handle: RoleHandle, read: Callable[[], T]) -> T:
    """Read files of the host in a thread. Any of them may hang for good (a disk, a driver): the role then reports that,
    can still be stopped, and continues once there is an answer. It reads nothing else meanwhile.
    """
    task = asyncio.create_task(beside(read))
    try:
        hangs = not (await asyncio.wait((task,), timeout=HANGS))[0]
        if hangs:
            handle.running(
                f"a look at the host's files has not ended after {HANGS:.0f} seconds (a disk, a network file system or "
                "a driver does not answer): kgpu doctor learns nothing new of this node until it does",
                "HostLookHangs",
            )
        answer = await task
    finally:
        task.cancel()
    if hangs:
        handle.running(_WELL)
    return answer


def _say(options: AgentOptions, log: Path | None, driver: dict[str, Any]) -> None:
    from kgpu.doctor import host_facts
    from kgpu.doctor.sources.host import gather
    from kgpu.doctor.sources.probed import line

    facts = host_facts.encode(gather(host_paths(options), node=options.node_name, log_path=log)) | driver
    facts["bootId"] = facts.get("bootId") or boot_id()  # without it nobody knows whether the facts still hold
    print(line(facts), flush=True)  # noqa: T201 - not a log message: it has no timestamp


def host_paths(options: AgentOptions) -> MountedPaths:
    """The host's paths as this process sees them; some folders have mounts or options of their own.

    The PCI bus is the first with an accelerator among those that the role ``features`` reads: its labels must not look
    wrong because the two roles read different buses.
    """
    from kgpu.doctor.sources.host import has_accelerator
    from kgpu.host import pci
    from kgpu.host.engines.paths import MountedPaths

    mounts = {
        CDI_DIR: options.cdi_dir,
        VALIDATIONS_DIR: validations_dir(options),
        KUBELET_DEVICE_PLUGIN_DIR.rstrip("/"): options.kubelet_socket.parent,
    }
    for root in options.pci_roots:
        if has_accelerator(root / pci.DEVICES):
            mounts[f"/{pci.DEVICES}"] = root / pci.DEVICES
            break
    return MountedPaths.at(options.host_root, mounts)


def _inventory(reader: SharedReader) -> Hashable:
    """The parts of the last inventory that matter, without asking the driver; None if it is not known."""
    inventory = reader.last_inventory
    if inventory is None or reader.last_error is not None:
        return None
    return tuple(
        (gpu.uuid, gpu.mig_enabled, len(gpu.partitions), gpu.recovery_action, len(gpu.findings))
        for gpu in inventory.accelerators
    )


class KernelWords:
    """Tells whether the kernel has logged something that matters since the last call; never if it can't be read.

    The log is closed when nothing uses this object any more, not even a call that hangs.
    """

    def __init__(self, log: Path | None) -> None:
        self._log = log
        self._descriptor = -1

    def __del__(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)

    def said(self) -> bool:
        """Whether something that matters was logged; False on the first call, which opens the log. It may hang."""
        from kgpu.doctor.host_facts import matters

        if self._descriptor < 0:
            self._open()
            return False
        matched = False
        while True:
            try:
                data = os.read(self._descriptor, _READ)
            except BrokenPipeError:  # overwritten before it was read: assume that it mattered
                matched = True
                continue
            except OSError:
                break
            if not data:
                break
            matched = matched or matters(data.decode("utf-8", "replace"))
        return matched

    def _open(self) -> None:
        with contextlib.suppress(OSError):
            if self._log is not None:
                self._descriptor = os.open(self._log, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
                os.lseek(self._descriptor, 0, os.SEEK_END)


ROLE: Final = Role("probe", probe, orders=("driver_install_dir", "validations_dir"))
