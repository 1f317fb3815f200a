"""Switches a simulated machine off and on again, when its folder has the file that asks for it. In between it stays off
for as long as the folder says.

Whoever wants a reboot makes that file; it is removed when all is done. So a host that ends on the way does all of it
again, which is safe: every part changes nothing when it is done twice, and nothing of the node runs in between. More
requests until then are the same one.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import shutil
from pathlib import Path
from typing import Final

from kgpu.base.errors import UserError
from kgpu.formats.names import CDI_DIR, MPS_ROOT, RUN_DIR
from kgpu.lab.nodes import agents, boots, container_processes, driver_programs
from kgpu.lab.nodes.claims import ClaimManager
from kgpu.lab.nodes.folder import POWERED_DOWN, REBOOT, is_off
from kgpu.lab.nodes.machine import NodeMachine
from kgpu.lab.nodes.spec import NodeSpec

log = logging.getLogger(__name__)

BOOT_S: Final = 3.0  # how long a machine takes to come up; times the node's time scale
_POLL_S: Final = 0.2
# Folders that a machine has in memory. /etc/cdi and what is below /var/lib are on its disk.
IN_MEMORY: Final = (RUN_DIR, "/run/nvidia", MPS_ROOT, CDI_DIR)


def is_asked(folder: Path) -> bool:
    """Whether the machine of that folder is to be rebooted, or is just rebooting."""
    return (folder / REBOOT).exists()


async def perform(spec: NodeSpec, folder: Path, its: NodeMachine, claims: ClaimManager) -> None:
    """Reboot a node of which no task runs. Raises OSError; then it is to be done again."""
    log.info("node %s reboots", spec.name)
    work = asyncio.create_task(asyncio.to_thread(_power_cycle, spec, folder, its))
    try:
        await asyncio.shield(work)
    finally:
        await asyncio.wait([work])  # a thread can't be stopped, and whoever takes over must not meet it
    claims.forget_devices()
    await _stay_off(folder)
    await asyncio.sleep(BOOT_S * spec.time_scale)
    boots.begin(folder)
    (folder / REBOOT).unlink(missing_ok=True)


async def _stay_off(folder: Path) -> None:
    if not is_off(folder):
        return
    (folder / POWERED_DOWN).touch()
    while is_off(folder):  # noqa: ASYNC110 - a file says so
        await asyncio.sleep(_POLL_S)
    (folder / POWERED_DOWN).unlink(missing_ok=True)


def _power_cycle(spec: NodeSpec, folder: Path, its: NodeMachine) -> None:
    agents.end_former(folder)
    container_processes.cut_power(folder)
    driver_programs.end(folder)
    # Where the host runs the agent, it has a run folder beside the machine's.
    for place in {*(its.find(path) for path in IN_MEMORY), folder / agents.RUN}:
        _empty(place)
    if spec.has_gpus and not spec.light:
        _restart_hardware(spec, its.root)


def _empty(folder: Path) -> None:
    """Remove what is in a folder; a link to one is no folder of this machine."""
    if folder.is_symlink():
        return
    with contextlib.suppress(FileNotFoundError):
        for entry in list(folder.iterdir()):
            if entry.is_dir() and not entry.is_symlink():
                shutil.rmtree(entry)
            else:
                entry.unlink(missing_ok=True)


def _restart_hardware(spec: NodeSpec, root: Path) -> None:
    """MIG slices outlive no reboot; those of the node's own layout are made again, as a service does at the boot.

    A machine with damaged hardware starts all the same: that is told in the log.
    """
    from kgpu.hw.simulator.reboot import reboot

    if not (root / "state").exists():  # it is made, with its layout, when the node comes up
        return
    try:
        reboot(root)
        agents.cut_slices(spec, root)
    except UserError as error:
        log.warning("node %s: %s", spec.name, error.one_line())
