"""Links in /dev/char to the driver's device nodes, kept right for as long as the toolkit role runs.

systemd rewrites the device rules of running containers on every daemon-reload from /dev/char/MAJOR:MINOR: without the
link a container loses its GPU then. Control nodes that the driver has numbers for and that are missing are made first.
Both stay when kgpu leaves: running containers need them, and the next boot makes /dev anew.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from kgpu.base.advice import Advice, AdviceSink, Severity
from kgpu.base.clock import Clock, SystemClock
from kgpu.base.errors import HostError
from kgpu.base.inotify import ENTRIES, folder_changes, nearest_existing
from kgpu.base.service import Complaint
from kgpu.base.threads import beside
from kgpu.host.dev_files import DriverNumbers, FakeDevFiles, RealDevFiles, dev_folder, read_facts
from kgpu.host.dev_nodes import (
    CAPS_FOLDER,
    DEV_CHAR,
    DeviceFileAction,
    DeviceFileStep,
    apply,
    control_nodes,
    existing_nodes,
    plan_links,
    plan_nodes,
)
from kgpu.host.writable import writable

log = logging.getLogger(__name__)

CALM_SECONDS: Final = 60.0
PAUSE_SECONDS: Final = 0.5
"""The wait after a change: a driver that is being loaded makes its nodes one after the other."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LinksContext:
    """``host_root`` is the host's ``/`` as this process sees it; ``driver_root`` is the host's own path."""

    host_root: Path
    driver_root: str
    report: AdviceSink
    files: RealDevFiles | FakeDevFiles | None = None
    facts: Callable[[], DriverNumbers] = read_facts
    control: bool = True
    clock: Clock = field(default_factory=SystemClock)


async def run(ctx: LinksContext, tell: Callable[[bool, str], None]) -> None:
    """Keep the links right until cancelled. A folder that can't be written is reported once, and tried again."""
    complaint = Complaint(ctx.report)
    folders = folder_changes(
        lambda: {nearest_existing(folder) for folder in _folders(ctx)}, seconds=CALM_SECONDS, mask=ENTRIES
    )
    async with contextlib.aclosing(folders) as changes:
        async for changed in changes:
            if changed:
                await ctx.clock.sleep(PAUSE_SECONDS)
            tell(True, await _keep(ctx, complaint))


async def _keep(ctx: LinksContext, complaint: Complaint) -> str:
    """Make the links; return what keeps them from being made, "" if nothing does."""
    try:
        for step in await beside(bring_in_line, ctx):
            log.info("%s", step)
    except (OSError, HostError) as error:
        why = error.one_line() if isinstance(error, HostError) else error.strerror
        problem = f"the links in {DEV_CHAR} can't be made: {why}"
        complaint.tell(_advice(problem))
        return problem
    complaint.over()
    return ""


def bring_in_line(ctx: LinksContext) -> tuple[DeviceFileStep, ...]:
    """Make what is missing or wrong; return the steps that changed something. Raises OSError and HostError."""
    files = ctx.files or RealDevFiles(ctx.host_root)
    dev = dev_folder(files, ctx.driver_root)
    missing: tuple[DeviceFileStep, ...] = ()
    if ctx.control:
        nodes = control_nodes(ctx.facts().majors, dev=dev).nodes
        missing = tuple(step for step in plan_nodes(files, nodes) if step.changes)
    links = _changing(plan_links(files, existing_nodes(files, dev=dev))) if not missing else ()
    if not missing and not links:
        return ()
    with writable(_local(ctx, folder) for folder in (dev, DEV_CHAR)):
        apply(files, missing)
        links = _changing(plan_links(files, existing_nodes(files, dev=dev)))
        apply(files, links)
    return (*missing, *links)


def _changing(steps: Iterable[DeviceFileStep]) -> tuple[DeviceFileStep, ...]:
    for step in steps:
        if step.action is DeviceFileAction.SKIP:
            log.debug("%s", step)
    return tuple(step for step in steps if step.changes)


def _folders(ctx: LinksContext) -> tuple[Path, ...]:
    own = f"{ctx.driver_root.rstrip('/')}/dev"
    return tuple(_local(ctx, one) for one in dict.fromkeys(("/dev", f"/dev/{CAPS_FOLDER}", DEV_CHAR, own)))


def _local(ctx: LinksContext, path: str) -> Path:
    return ctx.host_root / path.lstrip("/")


def _advice(problem: str) -> Advice:
    return Advice(
        subject=DEV_CHAR,
        what=problem,
        why="a container loses its GPUs when systemd reloads its units and a device node has no link there",
        severity=Severity.WARNING,
        reason="DeviceLinksNotMade",
        remedy="let the agent write to it, or run `nvidia-ctk system create-dev-char-symlinks`",
    )
