"""The role ``probe``: what this node's files, kernel and driver say, as a line of the agent's log for ``kgpu doctor``.

Said at the start, when something that matters has changed (files, the PCI bus, modules, a word of the kernel's log,
what the driver's inventory says), and at least once an hour. No port and no right is needed: who may read the agent's
log has it, and so has every archive of logs. What changes all the time is told at longer and longer intervals.
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
from kgpu.formats.names import CDI_DIR, KUBELET_DEVICE_PLUGIN_DIR, VALIDATIONS_DIR

if TYPE_CHECKING:
    from kgpu.agent.options import AgentOptions
    from kgpu.agent.shared_reader import SharedReader
    from kgpu.host.engines.paths import MountedPaths

LOOK: Final = 30.0  # seconds between looks at whether something has changed
AGAIN: Final = 3600.0  # seconds after which everything is said in any case
PAUSE: Final = 60.0  # seconds between two changes that are told, at first
LONGEST: Final = 900.0
HANGS: Final = 60.0  # seconds after which a look at the host's files hangs
_WELL: Final = "what kgpu doctor wants to know of this node is in this agent's log"
_READ: Final = 65536

T = TypeVar("T")


async def probe(host: Host, handle: RoleHandle) -> None:
    """Until cancelled."""
    from kgpu.doctor.sources.host import driver_facts, fingerprint

    options = host.options
    log = kernel_log(options)
    view, words = host.reader.view(), KernelWords(log)

    def look() -> tuple[bool, Hashable]:
        return words.said(), (fingerprint(host_paths(options)), _inventory(host.reader))

    async with contextlib.aclosing(Closing(view)):
        pause = PAUSE
        while True:
            begin, driver = time.monotonic(), await driver_facts(view)
            _, known = await _read(handle, look)
            await _read(handle, partial(_say, options, log, driver))
            handle.running(_WELL)
            changed = False
            while (age := time.monotonic() - begin) < AGAIN and not (changed and age >= pause):
                await asyncio.sleep(LOOK)
                spoke, now = await _read(handle, look)
                changed = changed or spoke or now != known
            pause = min(2 * pause, LONGEST) if changed else PAUSE


async def _read(handle: RoleHandle, read: Callable[[], T]) -> T:
    """What reads files of the host, any of which may hang for good (a disk, a driver): the role tells that, ends
    nevertheless when it is told to, and goes on when there is an answer. No more is asked meanwhile.
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
    facts["bootId"] = facts.get("bootId") or boot_id()  # without it nobody knows whether they are still true
    print(line(facts), flush=True)  # noqa: T201 - not a message: a line of its own, without a time before it


def host_paths(options: AgentOptions) -> MountedPaths:
    """The host's paths as this process sees them: of some folders it knows better than through the host's root.

    The PCI bus is the first that has an accelerator, of those that the role ``features`` makes labels from: a label
    must not be taken for a lie because the two looked at different buses.
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
    """What is known without asking the driver."""
    inventory = reader.last_inventory
    if inventory is None or reader.last_error is not None:
        return None
    return tuple(
        (gpu.uuid, gpu.mig_enabled, len(gpu.partitions), gpu.recovery_action, len(gpu.findings))
        for gpu in inventory.accelerators
    )


class KernelWords:
    """Whether the kernel has said something that matters since one asked last; never, where it can't be read.

    The log is closed when nobody uses this any more, not even a call that hangs.
    """

    def __init__(self, log: Path | None) -> None:
        self._log = log
        self._descriptor = -1

    def __del__(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)

    def said(self) -> bool:
        """False the first time: from then on it is listened to. May take long, and hang."""
        from kgpu.doctor.host_facts import matters

        if self._descriptor < 0:
            self._open()
            return False
        matched = False
        while True:
            try:
                data = os.read(self._descriptor, _READ)
            except BrokenPipeError:  # overwritten before it was read: something was said
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


ROLE: Final = Role("probe", probe)
