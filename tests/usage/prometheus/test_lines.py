"""Whatever devices, partitions, shares, gangs and boots there are: from scrapes come the rows that lines give."""

from __future__ import annotations

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kgpu.formats.usage import HolderSharing, RecordedGpu, RecordedHolder, UsageState
from kgpu.usage.infos import label_name
from kgpu.usage.prometheus.reading import recorded_by
from tests.budget import tries
from tests.usage.prometheus.fleet import reported, seconds
from tests.usage.prometheus.scraped import Scrapes
from tests.usage.recordings import BEGIN_US, Device, holder, recording

BEGIN = BEGIN_US // 1_000_000
MIG = (("MIG-1", "3g.20gb"), ("MIG-2", "2g.10gb"))
PODS = (
    holder("whole", owner="Job/a", labels={"team": "x"}),
    holder("one", namespace="web", sharing=HolderSharing.TIME_SLICING, replicas=4, units=2, owner="Deployment/w"),
    holder("two", namespace="web", sharing=HolderSharing.TIME_SLICING, replicas=4),
    holder("claimed", sharing=HolderSharing.CLAIM, claim="c1"),
    holder("rank", namespace="ml", gang="JobSet/ring", owner="JobSet/ring"),
)
IN_PARTS = (holder("first", partition="MIG-1"), holder("second", namespace="web", partition="MIG-2"))
STATES = st.sampled_from([None, UsageState.HELD_IDLE, UsageState.DOWN, UsageState.INEFFICIENT])


def scrape(scrapes: Scrapes, line: RecordedGpu) -> None:
    """The page of an agent that has just written that line."""
    at, boot = line.at.timestamp(), {"node": line.node, "boot": line.boot}
    target = {"instance": f"{line.node}/{line.device}"}

    def put(name: str, value: float, **labels: str) -> None:
        scrapes.put(f"kgpu_usage_{name}", {**target, **{key: text for key, text in labels.items() if text}}, at, value)

    put("device_info", 1, UUID=line.device, product=line.product, memory_mib=str(line.memory_mib), **boot)
    put("uptime_seconds", line.uptime_us / 1e6, **boot)
    put("looked_timestamp_seconds", at, **boot)
    if line.energy_uj is not None:
        put("energy_joules_total", line.energy_uj / 1e6, UUID=line.device)
    for part in line.partitions:
        put("partition_info", 1, UUID=line.device, partition=part.id, profile=part.profile)
    for name, states in (("", line.states_us), *((part.id, part.states_us) for part in line.partitions)):
        for state, amount in states.items():
            put("state_seconds_total", amount / 1e6, UUID=line.device, partition=name, state=state)
    for one in line.holders:
        _scrape_holder(put, line, one)


def _scrape_holder(put: object, line: RecordedGpu, one: RecordedHolder) -> None:
    who = {
        "UUID": line.device, "partition": one.partition, "namespace": one.namespace, "pod": one.pod,
        "container": one.container, "uid": one.uid,
    }  # fmt: skip
    put(  # type: ignore[operator]
        "holder_info", 1, **who, boot=line.boot, owner=one.owner, gang=one.gang, sharing=one.sharing, claim=one.claim,
        replicas=str(one.replicas), units=str(one.units),
        **{f"label_{label_name(key)}": value for key, value in one.labels.items()},
    )  # fmt: skip
    for name, amount in (("held", one.held_us), ("busy", one.busy_us), ("sm", one.sm_us)):
        if amount is not None:
            put(f"{name}_seconds_total", amount / 1e6, **who)  # type: ignore[operator]


@st.composite
def passed(draw: st.DrawFn) -> list[Device]:
    """Two devices of two nodes, one of them in parts, through stretches of whole minutes; perhaps a reboot."""
    devices = [
        Device(node="n1", device="GPU-1", energy_uj=0),
        Device(node="n2", device="GPU-2", partitions=MIG if draw(st.booleans()) else ()),
    ]
    for device in devices:
        pods = IN_PARTS if device.partitions else PODS
        known = draw(st.booleans())
        for _ in range(draw(st.integers(1, 8))):
            held = draw(st.lists(st.sampled_from(pods), unique_by=lambda one: one.pod, max_size=3))
            busy = draw(st.sampled_from([0.0, 0.5])) if known else None
            seconds = 60 * draw(st.integers(1, 90))
            keys, parts = {one.key for one in held}, {one.partition for one in held}
            device.counters = {
                key: sums for key, sums in device.counters.items() if key in keys
            }  # who ends is forgotten
            free = [name for name in ("", *(part for part, _ in device.partitions)) if name not in parts]
            device.spend(
                seconds, *held, states=dict.fromkeys(free, UsageState.FREE) if device.partitions else {}, state=draw(STATES) if held else None, busy=busy, sm=busy, watts=200,
                watched=draw(st.integers(0, 5)) > 0,
            )  # fmt: skip
        if draw(st.booleans()):
            device.boot, device.uptime_us, device.states, device.counters = "boot-2", 30_000_000, {}, {}
            device.energy_uj = None if device.energy_uj is None else 0
            free = ["", "MIG-2"] if device.partitions else []
            device.spend(600, *pods[:1], busy=0.5 if known else None, states=dict.fromkeys(free, UsageState.FREE))
    return devices


@tries(80)
@given(passed(), st.sampled_from(["owner", "node", "label:team"]))
def test_the_rows_are_those_of_the_lines(devices: list[Device], by: str) -> None:
    scrapes = Scrapes()
    for device in devices:
        for line in device.lines:
            scrape(scrapes, line)
    end = max(BEGIN + device.now_us // 1_000_000 for device in devices)
    own = recording(*devices, labels=("team",))
    found = asyncio.run(recorded_by(scrapes, begin=BEGIN, end=end, newest=2**40))
    found.labels = ("team",)
    ours, theirs = (reported(one, by, BEGIN, end) for one in (found, own))
    assert seconds(ours).keys() == seconds(theirs).keys()
    for name, row in seconds(theirs).items():
        assert seconds(ours)[name] == pytest.approx(row, abs=0.001), name
    assert ours.total.cost == theirs.total.cost
    assert ours.total.sums.energy_uj == theirs.total.sums.energy_uj
