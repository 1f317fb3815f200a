"""The health role's config file: what to ignore, which actions replace the catalogue's, thresholds, and times.

A YAML file, read strictly: an unknown key is an error that says which one was probably meant. Every setting is a row of
``ROWS``; the file's sections are the part of the key before the dot.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from kgpu.base.errors import ConfigError
from kgpu.base.suggest import did_you_mean
from kgpu.formats.duration import INFINITE, parse_duration
from kgpu.formats.settings import Restart, Setting, read_unchanged, resolve
from kgpu.formats.settings_file import table_of, values_of
from kgpu.formats.strict import Problems, Reader, boolean, raw, read_table, whole
from kgpu.formats.xid.action import Action
from kgpu.formats.yaml import Path, load_document
from kgpu.health.model import EvidenceSource

SHOWN: Final = 5  # problems in one message
MAX_CODE: Final = 99_999
MAX_ITEMS: Final = 1000
_GPU: Final = re.compile(r"all|GPU-[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}|[0-9]{1,3}", re.ASCII)


@dataclass(frozen=True, slots=True, kw_only=True)
class HealthConfig:
    """What the file can set. Times are seconds.

    ``ignore_xids``, ``ignore_sxids`` and ``ignore_checks`` are evidence that is not looked at. ``xid_actions`` and
    ``sxid_actions`` replace the catalogue's. ``maintenance`` names GPUs (UUID, index or ``all``) whose evidence is not
    acted on. The thresholds and times are explained by their row in ``ROWS``.
    """

    ignore_xids: frozenset[int] = frozenset()
    ignore_sxids: frozenset[int] = frozenset()
    ignore_checks: frozenset[EvidenceSource] = frozenset()
    xid_actions: Mapping[int, Action] = field(default_factory=dict)
    sxid_actions: Mapping[int, Action] = field(default_factory=dict)
    maintenance: frozenset[str] = frozenset()
    driver_first: bool = True
    uncorrectable_rows: int = 512
    retired_pages: int = 63
    pcie_replay_factor: float = 1.0
    nvlink_crc_per_second: float = 100.0
    nvlink_errors_per_hour: float = 1.0
    nvlink_links: int = 0
    throttle_share: float = 0.6
    throttle_window: float = 600.0
    margin_c: float = 0.0
    raise_after: float = 60.0
    clear_after: float = 300.0
    hung_after: float = 15.0
    burst: float = 180.0
    settle: float = 5.0
    app_forget: float = 600.0
    inspect_forget: float = 86400.0
    reset_repeats: int = 2
    reset_window: float = 86400.0
    reboot_repeats: int = 3
    repeat_window: float = 30 * 86400.0

    def in_maintenance(self, gpu: str, index: int | None = None) -> bool:
        """True when the config names the GPU, by its UUID, its index, or all of them."""
        names = {gpu, "all"} | (set() if index is None else {str(index)})
        return bool(names & self.maintenance)


def _codes(problems: Problems, path: Path, value: Any) -> frozenset[int] | None:
    items = value if isinstance(value, list) else [value]
    found = [whole(item) for item in items[:MAX_ITEMS]]
    bad = [item for item, code in zip(items, found, strict=False) if code is None or not 0 < code <= MAX_CODE]
    if bad or len(items) > MAX_ITEMS:
        problems.add(path, f"{raw(bad[0] if bad else value)} is no Xid number", "numbers, such as [13, 31]")
        return None
    return frozenset(code for code in found if code is not None)


def _checks(problems: Problems, path: Path, value: Any) -> frozenset[EvidenceSource] | None:
    known = {str(source): source for source in EvidenceSource}
    items = value if isinstance(value, list) else [value]
    for item in items:
        if not isinstance(item, str) or item not in known:
            hint = did_you_mean(item, known) if isinstance(item, str) else ""
            problems.add(path, f"there is no check {raw(item)}", f"some of {', '.join(known)}", hint)
            return None
    return frozenset(known[item] for item in items)


def _actions(problems: Problems, path: Path, value: Any) -> Mapping[int, Action] | None:
    known = {str(action): action for action in Action}
    if not isinstance(value, dict):
        problems.add(path, f"{raw(value)} is not a mapping", "Xid numbers with actions, such as {94: reset-gpu}")
        return None
    actions: dict[int, Action] = {}
    for key, item in value.items():
        text = str(key)
        place = (*path, key)
        if not (text.isascii() and text.isdecimal() and 0 < int(text[:6]) <= MAX_CODE and len(text) <= 5):
            problems.add(place, f"{raw(key)} is no Xid number", "a number")
        elif not isinstance(item, str) or item not in known:
            hint = did_you_mean(item, known) if isinstance(item, str) else ""
            problems.add(place, f"there is no action {raw(item)}", f"one of {', '.join(known)}", hint)
        else:
            actions[int(text)] = known[item]
    return actions


def _gpus(problems: Problems, path: Path, value: Any) -> frozenset[str] | None:
    items = [str(item) for item in (value if isinstance(value, list) else [value])]
    for item in items:
        if not _GPU.fullmatch(item):
            problems.add(path, f"{raw(item)} names no GPU", "UUIDs (GPU-...), indices, or all")
            return None
    return frozenset(items)


def _seconds(problems: Problems, path: Path, value: Any) -> float | None:
    try:
        nanoseconds = parse_duration(str(value)) if isinstance(value, str) else None
    except ConfigError as error:
        problems.add(path, error.what, error.expected)
        return None
    if nanoseconds is None or nanoseconds < 0:
        problems.add(path, f"{raw(value)} is no duration", "a number with a unit in quotes or plain, such as 5m or 24h")
        return None
    return float("inf") if nanoseconds >= INFINITE else nanoseconds / 1e9


def _count(least: int) -> Reader:
    def read(problems: Problems, path: Path, value: Any) -> int | None:
        number = whole(value)
        if number is None or not least <= number <= 10**9:
            problems.add(path, f"{raw(value)} is not possible", f"a whole number, {least} or more")
            return None
        return number

    return read


def _real(least: float, most: float) -> Reader:
    def read(problems: Problems, path: Path, value: Any) -> float | None:
        if isinstance(value, bool) or not isinstance(value, int | float) or not least <= value <= most:
            problems.add(path, f"{raw(value)} is not possible", f"a number from {least:g} to {most:g}")
            return None
        return float(value)

    return read


_DEFAULTS: Final = HealthConfig()


def _row(key: str, attr: str, read: Reader, text: str) -> Setting:
    default = getattr(_DEFAULTS, attr)
    return Setting(
        attr=attr, key=key, read_file=read, read=read_unchanged, default=default, help=text, restart=Restart.NONE
    )  # fmt: skip


ROWS: Final = (
    _row("ignore.xids", "ignore_xids", _codes, "Xids that are never evidence"),
    _row("ignore.sxids", "ignore_sxids", _codes, "SXids that are never evidence"),
    _row("ignore.checks", "ignore_checks", _checks, "kinds of evidence that are not looked at, such as pcie"),
    _row("actions.xids", "xid_actions", _actions,
         "another action than the catalogue's, such as {94: reset-gpu}"),
    _row("actions.sxids", "sxid_actions", _actions, "the same for SXids"),
    _row("maintenance", "maintenance", _gpus,
         "GPUs (UUID, index, all) whose evidence is kept but not acted on"),
    _row("driverFirst", "driver_first", boolean,
         "the driver's own verdict beats the catalogue, where it gives one"),
    _row("thresholds.uncorrectableRows", "uncorrectable_rows", _count(1),
         "rows replaced for uncorrectable errors from which a person should look"),
    _row("thresholds.retiredPages", "retired_pages", _count(1),
         "retired pages from which the GPU is to be replaced"),
    _row("thresholds.pcieReplayFactor", "pcie_replay_factor", _real(0.01, 1e6),
         "PCIe replays per minute, as a multiple of what is normal for the link's speed and width"),
    _row("thresholds.nvlinkCrcPerSecond", "nvlink_crc_per_second", _real(0.01, 1e9),
         "CRC errors of all NVLinks"),
    _row("thresholds.nvlinkErrorsPerHour", "nvlink_errors_per_hour", _real(0.01, 1e9),
         "replays and recoveries of all NVLinks"),
    _row("thresholds.nvlinkLinks", "nvlink_links", _count(0),
         "NVLinks that must be up; 0: as many as ever were"),
    _row("thresholds.throttleShare", "throttle_share", _real(0.01, 1.0),
         "share of the window's minutes in which hardware slowed the GPU down"),
    _row("thresholds.throttleWindow", "throttle_window", _seconds, "the window of throttleShare"),
    _row("thresholds.marginCelsius", "margin_c", _real(-50, 50),
         "how near to its limit a GPU's temperature may be"),
    _row("times.raiseAfter", "raise_after", _seconds, "how long a check must be true before it counts"),
    _row("times.clearAfter", "clear_after", _seconds, "how long it must be false before it is over"),
    _row("times.hungAfter", "hung_after", _seconds,
         "the same as raiseAfter, for a driver that does not answer"),
    _row("times.burst", "burst", _seconds, "Xids of one GPU that are no further apart are one trouble"),
    _row("times.settle", "settle", _seconds,
         "how long the driver may take to give its own verdict after an Xid"),
    _row("times.appForget", "app_forget", _seconds, "an error of a program is over after this"),
    _row("times.inspectForget", "inspect_forget", _seconds, "what a person should look at is over after this"),
    _row("repeats.reset", "reset_repeats", _count(1),
         "resets for one reason after which a reboot is called for"),
    _row("repeats.resetWindow", "reset_window", _seconds, "the time in which resets are counted"),
    _row("repeats.reboot", "reboot_repeats", _count(1),
         "reboots for one reason after which replacing is called for"),
    _row("repeats.window", "repeat_window", _seconds, "the time in which reboots are counted"),
)  # fmt: skip


def _version(problems: Problems, path: Path, value: Any) -> str | None:
    if value != "v1":
        problems.add(path, f"unknown version: {raw(value)}", "v1")
    return "v1"


TABLE: Final = {"version": _version, **table_of(ROWS)}


def parse_config(content: str | bytes, *, source: str = "health config") -> HealthConfig:
    """The file's content. Raises ConfigError for the first problem, with the next few after it."""
    document = load_document(content, source=source)
    problems = Problems(source, document, TABLE)
    tree = read_table(problems, (), document.value, TABLE)
    if problems.found:
        first = problems.found[0]
        rest = [problem.complaint for problem in problems.found[1:SHOWN]]
        raise ConfigError("; ".join([first.what, *rest]), first.expected, first.remedy)
    return HealthConfig(**resolve(ROWS, file=values_of(ROWS, tree)).values)
