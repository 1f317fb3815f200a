"""What an agent says of its devices at this moment, as JSON: who holds them, and what was seen of them in the last
hours, in stretches of a few minutes. Whoever asks judges it by a window and limits of its own.

Times are those of the machine's clock that never jumps, in whole microseconds since its boot; ``at`` is what the wall
clock said at ``uptime_us``. Stretches of an earlier boot are not in it. Reading is strict and bounded, as an agent's
answer comes over the network.
"""

from __future__ import annotations

import datetime as dt
import enum
from collections.abc import Iterable
from typing import Annotated, Final

import msgspec
from msgspec import Meta

from kgpu.base import typed
from kgpu.base.errors import ConfigError
from kgpu.base.printable import one_line
from kgpu.formats.usage import (
    Amount,
    HolderSharing,
    Labels,
    Name,
    RecordedGpu,
    RecordedNode,
    RecordingHeader,
    Text,
    Uptime,
)
from kgpu.formats.usage import decode as decode_line

VERSION: Final = 1
NOW_PATH: Final = "/usage/now"
LINES_PATH: Final = "/usage/lines"
MAX_BYTES: Final = 8 << 20
"""Of one node's answer. A day of 64 partitions has less."""
BUCKET_US: Final = 300_000_000
"""How long a stretch is, at most."""
DAY_US: Final = 86_400_000_000

Ratio = Annotated[float, Meta(ge=0.0, le=1.0)]
Figure = Annotated[float, Meta(ge=0.0, le=1e9)]


class UsageSource(enum.StrEnum):
    """What a device's activity is measured by."""

    COUNTERS = "counters"
    """The driver's performance counters (NVIDIA's GPM): averages over all of the time since the look before."""
    SAMPLES = "samples"
    """The driver's buffer of utilisation samples: an average over the time since the look before, and its peak."""
    UTILIZATION = "utilization"
    """The driver's utilisation: a part of the last second or so in which anything ran."""
    CARD = "card"
    """A part of a card whose driver measures only the card: what is seen may be another's work."""
    PROCESSES = "processes"
    """The driver does not measure it; that nothing ran is known by there being no process, and no memory of one."""
    NOTHING = "nothing"
    """The driver does not measure it."""


class _SaidRecord(msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True, frozen=True):
    """What all have: no key that is not known."""


class UsageBucket(_SaidRecord, frozen=True, kw_only=True):
    """A stretch: ``watched_us`` of it had readings of activity, of which ``peak`` is the largest and ``mean`` the
    average. ``changed``: a process began or ended; ``contradicted``: a reading contradicted itself.
    """

    begin_us: Uptime
    end_us: Uptime
    watched_us: Amount = 0
    peak: Ratio | None = None
    mean: Ratio | None = None
    power_w: Figure | None = None
    memory_mib: Figure | None = None
    changed: bool = False
    contradicted: bool = False


class UsageLast(_SaidRecord, frozen=True, kw_only=True):
    """The last reading, with the names of ``kgpu.usage.states.UsageReading``."""

    at_us: Uptime
    gr_engine: float | None = None
    gpu_util: float | None = None
    sm: float | None = None
    dram: float | None = None
    encoder: float | None = None
    decoder: float | None = None
    power_w: float | None = None
    memory_mib: float | None = None
    processes: tuple[Name, ...] | None = None
    host_to_device_mib_s: float | None = None
    peak: float | None = None


class HolderSaid(_SaidRecord, frozen=True, kw_only=True):
    """A container that holds it. ``share``: its part, in millionths; ``sm``: of the card's activity its own, where
    several share it and that is measured; ``buckets`` are of that. ``gang``: as in a recording.
    """

    namespace: Name
    pod: Name
    uid: Name
    container: Text = ""
    owner: Text = ""
    gang: Text = ""
    labels: Labels = {}
    sharing: HolderSharing = HolderSharing.WHOLE
    share: Annotated[int, Meta(ge=0, le=1_000_000)] = 1_000_000
    since_us: Uptime = 0
    worked: bool = False
    buckets: tuple[UsageBucket, ...] | None = None


class DeviceSaid(_SaidRecord, frozen=True, kw_only=True):
    """A device, or a partition of it, as it was at the agent's last look. ``held``: False where nobody can say who
    holds it. ``idle_limit_w``: what it can't draw without work. ``busy_us``: when it was last busy by the agent's own
    limit, which may be long before the first of ``buckets``; None where it was not while it was watched.
    """

    device: Name
    partition: Text = ""
    product: Text = ""
    memory_mib: Figure = 0.0
    usable: bool = True
    source: UsageSource = UsageSource.NOTHING
    idle_limit_w: Figure | None = None
    last: UsageLast | None = None
    buckets: Annotated[tuple[UsageBucket, ...], Meta(max_length=1024)] = ()
    held: bool = True
    holders: Annotated[tuple[HolderSaid, ...], Meta(max_length=4096)] = ()
    busy_us: Uptime | None = None


class UsageNow(_SaidRecord, frozen=True, kw_only=True):
    """A node's devices. ``looked_us``: when they were last looked at, ``uptime_us`` when this was said."""

    version: int
    node: Name
    at: Annotated[dt.datetime, Meta(tz=True)]
    boot: Name
    uptime_us: Uptime
    looked_us: Uptime = 0
    devices: Annotated[tuple[DeviceSaid, ...], Meta(max_length=4096)] = ()


class LinesPage(_SaidRecord, frozen=True, kw_only=True, tag_field="kind", tag="kgpu-usage-page"):
    """The first line of an answer with lines of recordings, each with its end: asked again with ``cursor`` there are
    those after them, some of them now where there are ``more``. ``node`` is "" where they are of all nodes; ``labels``
    are the keys of pods' labels that are recorded.
    """

    version: int
    node: Text = ""
    cursor: Name
    more: bool = False
    labels: tuple[Name, ...] = ()


class UsageAnswerError(ConfigError):
    """An agent's answer is not as it must be."""


def encode(now: UsageNow) -> bytes:
    """The document."""
    return msgspec.json.encode(now)


def decode(text: bytes | str, *, place: str) -> UsageNow:
    """The document that ``place`` has answered. Raises UsageAnswerError."""
    if len(text) > MAX_BYTES:
        raise UsageAnswerError(f"{place}: {len(text)} bytes", f"at most {MAX_BYTES}", _REMEDY)
    try:
        now = typed.decode(text, UsageNow)
    except (msgspec.DecodeError, RecursionError, UnicodeError) as error:
        raise UsageAnswerError(f"{place}: {one_line(str(error), 200)}", "what an agent uses", _REMEDY) from error
    if now.version != VERSION:
        raise UsageAnswerError(f"{place}: version {now.version}", f"version {VERSION}", _REMEDY)
    return now


def encode_page(page: LinesPage, lines: Iterable[bytes]) -> bytes:
    """The answer; the lines have their ends."""
    return b"".join((msgspec.json.encode(page), b"\n", *lines))


def decode_page(text: str, *, place: str, node: str = "") -> tuple[LinesPage, list[RecordedGpu | RecordedNode]]:
    """An answer with lines, which have to be about ``node`` where one is given: an agent can't speak for others. Raises
    UsageAnswerError, and RecordingError for a line that is none.
    """
    first, *rest = text.split("\n")
    try:
        page = typed.decode(first, LinesPage)
    except (msgspec.DecodeError, RecursionError, UnicodeError) as error:
        raise UsageAnswerError(f"{place}: {one_line(str(error), 200)}", "a page of lines", _REMEDY) from error
    if page.version != VERSION:
        raise UsageAnswerError(f"{place}: version {page.version}", f"version {VERSION}", _REMEDY)
    lines: list[RecordedGpu | RecordedNode] = []
    for number, line in enumerate(rest, start=2):
        if not line:
            continue
        found = decode_line(line.encode(), place=f"{place}, line {number}")
        if isinstance(found, RecordingHeader) or (node and found.node != node):
            raise UsageAnswerError(f"{place}: line {number} is not about {node}", "lines about its own node", _REMEDY)
        lines.append(found)
    return page, lines


_REMEDY: Final = "see that the agent is of this release of kgpu"
