"""Merges what was remembered of a GPU with what was learnt before that could be read. Pure.

The new memory may have read the whole kernel log again: what the old one had settled does not come back.
"""

from __future__ import annotations

from dataclasses import replace

from kgpu.formats.xid.buckets import RECOVERY
from kgpu.health import plan
from kgpu.health.config import HealthConfig
from kgpu.health.model import CheckState, RememberedGpu


def merged(old: RememberedGpu, new: RememberedGpu, config: HealthConfig) -> RememberedGpu:
    """Merge two memories of one GPU and one boot; where they differ, what was seen last counts."""
    fewer = old.ecc is not None and new.ecc is not None and new.ecc < old.ecc
    if (old.recovery in RECOVERY and new.recovery == "none") or fewer:
        old = plan.on_reset(old, new.read_at)
    accepted_at = max(old.accepted_at, new.accepted_at)
    known = {event.name: event for event in old.events}
    settled = old.read_at - config.settle
    fresh = {
        event.name: event
        for event in new.events
        if event.last > accepted_at and (event.name in known or event.last > settled)
    }
    episodes = {*old.episodes}
    for name, at in new.episodes:
        if at > accepted_at and not any(
            name == known_name and abs(at - when) <= config.burst for known_name, when in old.episodes
        ):
            episodes.add((name, at))
    held = {condition.evidence.name: condition for condition in old.conditions}
    held |= {
        condition.evidence.name: _longer(held.get(condition.evidence.name), condition) for condition in new.conditions
    }
    return replace(
        new,
        events=tuple({**known, **fresh}.values())[-plan.MAX_EVENTS :],
        conditions=tuple(held.values()),
        samples=(*old.samples, *new.samples)[-plan.MAX_SAMPLES :],
        slow_minutes=tuple(sorted({*old.slow_minutes, *new.slow_minutes})),
        episodes=tuple(sorted(episodes, key=lambda episode: episode[1]))[-plan.MAX_EPISODES :],
        accepted={**old.accepted, **new.accepted},
        accepted_at=accepted_at,
        maintenance_until=max(old.maintenance_until, new.maintenance_until),
        links=max(old.links, new.links),
        recovery=old.recovery if new.recovery == "unknown" else new.recovery,
        ecc=old.ecc if new.ecc is None else new.ecc,
        index=old.index if new.index is None else new.index,
        driver=old.driver if new.driver is None else new.driver,
        read_at=max(old.read_at, new.read_at),
        # Not their sum: the log is read again from the boot on.
        xids={key: max(old.xids.get(key, 0), new.xids.get(key, 0)) for key in {**old.xids, **new.xids}},
        since=old.since if old.action is new.action and old.since else new.since,
    )


def _longer(old: CheckState | None, new: CheckState) -> CheckState:
    return new if old is None else replace(new, since=min(old.since, new.since), raised=old.raised or new.raised)
