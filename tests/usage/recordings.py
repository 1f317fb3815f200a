"""Recordings for tests: a recorder of one node that counts as an agent does, second by second."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from kgpu.formats import names
from kgpu.formats.usage import (
    VERSION,
    RecordedGpu,
    RecordedHolder,
    RecordedNode,
    RecordedPartition,
    RecordingHeader,
    RecordLine,
    UsageState,
    encode,
)
from kgpu.usage.recording import UsageRecording, parse
from kgpu.usage.segments import Timeline, timeline

SECOND = 1_000_000
HOUR = 3600 * SECOND
BEGIN = dt.datetime(2026, 7, 20, tzinfo=dt.UTC)
BEGIN_US = int(BEGIN.timestamp()) * SECOND
A100 = "NVIDIA-A100-SXM4-40GB"


def holder(name: str = "pod", **fields: Any) -> RecordedHolder:
    return RecordedHolder(
        **{"namespace": "team", "pod": name, "uid": f"uid-{name}", "container": "main", "held_us": 0, **fields}
    )


def node(name: str = "n1", *, at: dt.datetime = BEGIN, instance_type: str = "", **fields: Any) -> RecordedNode:
    labels = {names.LABEL_INSTANCE_TYPE: instance_type} if instance_type else {}
    return RecordedNode(node=name, at=at, labels={**labels, **fields.pop("labels", {})}, **fields)


@dataclass(slots=True, kw_only=True)
class Device:
    """A device whose time is passed with ``spend``; a line is written for each stretch."""

    node: str = "n1"
    device: str = "GPU-1"
    product: str = A100
    boot: str = "boot-1"
    now_us: int = 0
    uptime_us: int = 1000 * SECOND
    energy_uj: int | None = None
    partitions: tuple[tuple[str, str], ...] = ()
    lines: list[RecordedGpu] = field(default_factory=list)
    states: dict[str, dict[UsageState, int]] = field(default_factory=dict)
    counters: dict[tuple[str, str, str], dict[str, int]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.write(())

    def write(self, holders: Iterable[RecordedHolder]) -> None:
        self.lines.append(
            RecordedGpu(
                node=self.node, device=self.device, product=self.product, boot=self.boot, uptime_us=self.uptime_us,
                at=BEGIN + dt.timedelta(microseconds=self.now_us), states_us=dict(self.states.get("", {})),
                energy_uj=self.energy_uj, holders=tuple(holders),
                partitions=tuple(
                    RecordedPartition(id=name, profile=profile, states_us=dict(self.states.get(name, {})))
                    for name, profile in self.partitions
                ),
            )
        )  # fmt: skip

    def spend(
        self, seconds: float, *holders: RecordedHolder, state: UsageState | None = None,
        states: Mapping[str, UsageState] | None = None, busy: float | None = None, sm: float | None = None,
        watts: float = 0, watched: bool = True,
    ) -> Device:  # fmt: skip
        """Pass time in which these held it. ``state`` is that of the device and of each partition that ``states`` does
        not name. ``busy`` and ``sm`` are parts of the time."""
        spent = int(seconds * SECOND)
        usual = state or (UsageState.BUSY if holders else UsageState.FREE)
        for name in ("", *(one for one, _ in self.partitions)):
            if watched:
                sums = self.states.setdefault(name, {})
                now = (states or {}).get(name, usual)
                sums[now] = sums.get(now, 0) + spent
        written = []
        for one in holders:
            sums = self.counters.setdefault(one.key, {"held_us": 0, "busy_us": 0, "sm_us": 0})
            sums["held_us"] += spent
            sums["busy_us"] += int(spent * (busy or 0))
            sums["sm_us"] += int(spent * (sm or 0))
            given = {name: getattr(one, name) for name in one.__struct_fields__}
            activity = {
                "busy_us": sums["busy_us"] if busy is not None else None,
                "sm_us": sums["sm_us"] if sm is not None else None,
            }
            written.append(RecordedHolder(**{**given, "held_us": sums["held_us"], **activity}))
        if self.energy_uj is not None:
            self.energy_uj += int(watts * spent)
        self.now_us += spent
        self.uptime_us += spent
        self.write(written)
        return self


def lines(*devices: Device, nodes: Iterable[RecordedNode] = (), labels: tuple[str, ...] = ()) -> list[RecordLine]:
    header = RecordingHeader(version=VERSION, cluster="test", labels=labels)
    return [header, *nodes, *(line for device in devices for line in device.lines)]


def recording(*devices: Device, **more: Any) -> UsageRecording:
    return parse([encode(line) for line in lines(*devices, **more)], source="usage.jsonl")


def timeline_of(*devices: Device, **more: Any) -> Timeline:
    return timeline(recording(*devices, **more))


def write(path: Path, *devices: Device, **more: Any) -> Path:
    path.write_bytes(b"".join(encode(line) for line in lines(*devices, **more)))
    return path
