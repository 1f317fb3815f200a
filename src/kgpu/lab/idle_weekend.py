"""A fleet that stands idle over weekends, as a usage recording: what the bill in the documents was about.

What GPUs do and who holds them is given; the agent's own counting (``kgpu.usage.gathering``) makes lines of it, over a
clock that goes on by a minute at a time, and an hour's lines become one as in the history. All GPUs do the same:
one is counted, and its lines are those of each under its own name.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator
from typing import Final

import msgspec
from msgspec import structs

from kgpu.formats.names import LABEL_GPU_PRODUCT
from kgpu.formats.usage import RecordedGpu, RecordedNode, RecordingHeader, encode
from kgpu.formats.usage_now import UsageSource
from kgpu.usage.gathering import Gathered, Gathering
from kgpu.usage.looks import LookedDevice, LookedHolder, UsageLook
from kgpu.usage.rollup import rolled_up
from kgpu.usage.states import UsageReading

FRIDAY: Final = dt.datetime(2026, 7, 17, tzinfo=dt.UTC)
IDLE_FROM: Final = dt.timedelta(hours=18)
"""Since Friday's midnight, as the others are: from 06:00 on pods train, from 18:00 on they only hold their GPUs,"""
IDLE_UNTIL: Final = dt.timedelta(days=3, hours=6)
"""and on Monday at 06:00 they train again, until the next weekend or noon."""
BEGIN: Final = dt.timedelta(hours=6)
STEP: Final = dt.timedelta(minutes=1)
WEEK: Final = dt.timedelta(days=7)
GPUS: Final = 8
PRODUCT: Final = "NVIDIA-A100-SXM4-40GB"
MEMORY_MIB: Final = 40_960.0
_PROCESS: Final = frozenset({"1"})
_AT_WORK: Final = UsageReading(at=0.0, gpu_util=0.97, power_w=380.0, memory_mib=33_000.0, processes=_PROCESS)
_IDLE: Final = UsageReading(at=0.0, gpu_util=0.0, power_w=62.0, memory_mib=33_000.0, processes=_PROCESS)


def recording(*, nodes: int = 16, weekends: int = 1) -> Iterator[bytes]:
    """The recording's lines, each with its end."""
    yield encode(RecordingHeader(version=1, cluster="idle-weekend"))
    lines = counted(weekends)
    for number in range(nodes):
        node = f"gpu-{number:02}"
        yield encode(RecordedNode(node=node, at=FRIDAY + BEGIN, gpus=GPUS, labels={LABEL_GPU_PRODUCT: PRODUCT}))
        for line in (_of(line, node, gpu) for gpu in range(GPUS) for line in lines):
            yield encode(line)


def counted(weekends: int) -> list[RecordedGpu]:
    """What an agent writes of one GPU, by the hour."""
    gathering = Gathering("node", Gathered(boot="boot-1"))
    last = FRIDAY + IDLE_UNTIL + dt.timedelta(hours=6) + (weekends - 1) * WEEK
    by_hour: dict[dt.datetime, list[RecordedGpu]] = {}
    at = FRIDAY + BEGIN
    while at <= last:
        for line in gathering.take(_look(at)).lines:
            by_hour.setdefault(line.at.replace(minute=0), []).append(line)
        at += STEP
    return [line for lines in by_hour.values() for line in rolled_up(lines)]


def _look(at: dt.datetime) -> UsageLook:
    """What an agent finds at that moment."""
    uptime = at - FRIDAY
    shown = _IDLE if IDLE_FROM < uptime % WEEK <= IDLE_UNTIL else _AT_WORK
    reading = structs.replace(shown, at=uptime.total_seconds())
    gpu = LookedDevice(
        device="GPU", product=PRODUCT, memory_mib=MEMORY_MIB, reading=reading, source=UsageSource.UTILIZATION,
        idle_limit_w=240.0,
    )  # fmt: skip
    holder = LookedHolder(namespace="research", pod="train", uid="train", container="main", owner="StatefulSet/train")
    uptime_us = int(uptime.total_seconds() * 1e6)
    return UsageLook(at=at, uptime_us=uptime_us, devices=(gpu,), holders={"GPU": (holder,)})


def _of(line: RecordedGpu, node: str, gpu: int) -> RecordedGpu:
    """The line as it is of another GPU, which a pod of its own holds."""
    place = f"{node}-{gpu}"
    holders = tuple(
        msgspec.structs.replace(one, pod=f"{one.pod}-{place}", uid=f"{one.uid}-{place}") for one in line.holders
    )
    return msgspec.structs.replace(line, node=node, device=f"{line.device}-{place}", holders=holders)
