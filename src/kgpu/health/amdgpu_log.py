"""Lines that the driver amdgpu writes to the kernel log, as rows: what each means for the GPU, and what it calls for.

The driver numbers no errors. A row's pattern is matched where the message begins, after ``amdgpu 0000:c3:00.0:``, which
the kernel itself writes before what a driver says of a device. Formats and meaning are those of the driver's sources
(``amdgpu_ras.c``, ``amdgpu_device.c``, ``amdgpu_ras_eeprom.c``, ``gmc_v*.c``, ``kfd_int_process_v*.c``).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from kgpu.base.advice import Severity
from kgpu.formats import gpu_remedies as remedies
from kgpu.formats.xid.action import Action

_RAS: Final = (
    r"(?:\{[0-9]{1,20}\} ?)?(?:socket: [0-9]{1,3},? ?(?:die: [0-9]{1,3},? ?)?)?(?:(?:xcd|hbm):[^,]{1,20},? ?)?"
)
_HEAD: Final = re.compile(
    r"amdgpu (?P<domain>[0-9a-f]{4,8}):(?P<bus>[0-9a-f]{2}):(?P<device>[0-9a-f]{2})\.[0-7]: (?:amdgpu: )?"
    r"(?:\[drm(?::\w{1,80}(?: \[amdgpu\])?)?\] )?(?:\*ERROR\* )?"
)
_RESET: Final = re.compile(r"GPU reset\([0-9]{1,10}\) succeeded!")
_FALSE_COUNT: Final = 0xFFFF0
"""What drivers add to both counts at each look at a GPU whose power is off: its registers read as ones."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DriverLine:
    """One kind of line. ``count`` is the group of ``pattern`` with a number of errors, "" for none: 0 is no error."""

    key: str
    pattern: re.Pattern[str]
    what: str
    action: Action
    remedy_key: str
    severity: Severity = Severity.ERROR
    count: str = ""


ROWS: Final = (
    DriverLine(
        key="ras-uncorrectable", count="count",
        pattern=re.compile(
            _RAS + r"(?P<count>[0-9]{1,20}) (?:new )?uncorrectable hardware errors "
            r"detected in (?:total in )?\w{1,20} block"
        ),
        what="uncorrectable errors in its memory or logic", action=Action.RESET_GPU, remedy_key=remedies.RESET_AMD,
    ),
    DriverLine(
        key="ras-event", pattern=re.compile(r"uncorrectable hardware error ?\(ERREVENT_ATHUB_INTERRUPT\) detected!"),
        what="an uncorrectable error on its way to memory", action=Action.RESET_GPU, remedy_key=remedies.RESET_AMD,
    ),
    DriverLine(
        key="poison-reset", pattern=re.compile(r"RAS poison consumption, fall ?back to gpu reset flow"),
        what="a program has used bad memory, and could not be ended alone", action=Action.RESET_GPU,
        remedy_key=remedies.RESET_AMD,
    ),
    DriverLine(
        key="poison", pattern=re.compile(r"RAS poison consumption, unmap queue flow succeed"),
        what="a program has used bad memory, and was ended", action=Action.RESTART_APP,
        remedy_key=remedies.RESTART_APP, severity=Severity.WARNING,
    ),
    DriverLine(
        key="bad-pages",
        pattern=re.compile(r"(?:RAS records:[0-9]{1,10} exceed|Saved bad pages ?\(?[0-9]{1,10}\)? reaches) threshold"),
        what="it has more bad memory pages than its driver allows", action=Action.REPLACE, remedy_key=remedies.REPLACE,
    ),
    DriverLine(
        key="lost", pattern=re.compile(r"device lost from bus!"), what="GPU has fallen off the bus",
        action=Action.REBOOT, remedy_key=remedies.REBOOT,
    ),
    DriverLine(
        key="reset-failed",
        pattern=re.compile(
            r"GPU (?:Recovery Failed: -[0-9]{1,4}|reset end with ret = -[0-9]{1,4}|reset\([0-9]{1,10}\) failed)"
        ),
        what="its driver could not reset it", action=Action.REBOOT, remedy_key=remedies.REBOOT,
    ),
    DriverLine(
        key="init-failed", pattern=re.compile(r"Fatal error during GPU init"),
        what="its driver could not start it", action=Action.REBOOT, remedy_key=remedies.REBOOT,
    ),
    DriverLine(
        key="ring-timeout", pattern=re.compile(r"ring \S{1,32} timeout, "),
        what="work on it did not end, and its driver has ended that", action=Action.RESTART_APP,
        remedy_key=remedies.RESTART_APP, severity=Severity.WARNING,
    ),
    DriverLine(
        key="page-fault", pattern=re.compile(r"\[(?:gfx|mm)hub[0-9]{0,2}\] (?:no-retry )?page fault \("),
        what="a program has used an address that is not its own", action=Action.RESTART_APP,
        remedy_key=remedies.RESTART_APP, severity=Severity.WARNING,
    ),
)  # fmt: skip
BY_KEY: Final[Mapping[str, DriverLine]] = {row.key: row for row in ROWS}


@dataclass(frozen=True, slots=True, kw_only=True)
class AmdgpuLine:
    """A line about the GPU at ``pci``: a row's ``key``, "" where the driver says that it has reset the GPU. ``text`` is
    what it says.
    """

    pci: str
    key: str
    text: str


def parse(message: str) -> AmdgpuLine | None:
    """What a kernel message says of a GPU; None for all other lines, and for a count that is none."""
    head = _HEAD.match(message)
    if head is None:
        return None
    pci = f"{head['domain'][-4:]}:{head['bus']}:{head['device']}"
    text = message[head.end() :]
    if _RESET.match(text):
        return AmdgpuLine(pci=pci, key="", text=text)
    for row in ROWS:
        hit = row.pattern.match(text)
        if hit is not None:
            counts = not row.count or int(hit[row.count]) % _FALSE_COUNT
            return AmdgpuLine(pci=pci, key=row.key, text=text) if counts else None
    return None
