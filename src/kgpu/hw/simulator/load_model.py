"""The load model on the Python side: the node's clock, steady load, load profiles, and the counters that follow.

The same arithmetic as ``native/include/kgpu_load.h``, which says what the parts are. Whoever changes what a GPU's load
is made of does it inside ``load_change``, with the state's lock held. ``gpu`` is a GPU of a ``DriverState``'s view; one
that is part of no state has no profiles and shows wall time.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

from kgpu.base.errors import ConfigError
from kgpu.base.suggest import did_you_mean
from kgpu.hw.simulator.load_profiles import LOADS
from kgpu.hw.simulator.schema import C

_NS: Final = 1_000_000  # in a millisecond
_RAMP: Final = C["LOAD_RAMP_MS"] * _NS
_ALL_BUSY: Final = 100_000
_WHOLE: Final = 1000

# The clocks event reason behind each counter of throttle_ns, as `kg_throttle_ns` in native/nvml/model.c has it.
_THROTTLE_BITS: Final = (0x4, 0x20, 0x10, 0, 0x1, 0x8, 0x40, 0x80)


# ---- the clock ----


def node_of(view: Any) -> Any:
    """The whole state that a view is part of; None for one that stands alone."""
    while view is not None and not hasattr(view, "clock_rate"):
        view = getattr(view, "_b_base_", None)
    return view


def now_ns(view: Any) -> int:
    """The node's time, ns since the epoch: wall time, unless the node has a clock of its own."""
    node, wall = node_of(view), time.time_ns()
    if node is None or not node.clock_real_ns:
        return wall
    return int(node.clock_node_ns) + max(0, wall - int(node.clock_real_ns)) * int(node.clock_rate)


def set_clock(view: Any, *, ahead_ns: int = 0, rate: int | None = None) -> None:
    """Put the node's clock forward by ``ahead_ns``; ``rate``: how many times as fast as wall time it goes on."""
    node = node_of(view)
    now, old = now_ns(node), int(node.clock_rate) if node.clock_real_ns else 1
    node.clock_node_ns, node.clock_rate = now + ahead_ns, old if rate is None else rate
    node.clock_real_ns = time.time_ns()


def reset_clock(view: Any) -> None:
    """Let the node show wall time again. What came until now is kept, and what is under way goes on from there."""
    node = node_of(view)
    gpus = node.gpu[: node.gpu_count]
    moved = now_ns(node)
    levels = [settle(gpu, moved) for gpu in gpus]
    for gpu in gpus:
        fold_throttle(gpu)
    node.clock_real_ns = node.clock_node_ns = node.clock_rate = 0
    now = now_ns(node)
    for gpu, level in zip(gpus, levels, strict=True):
        gpu.load_since_ns = gpu.throttle_since_ns = now
        for slot in gpu.process:
            if slot.used:
                slot.start_us = max(0, int(slot.start_us) + (now - moved) // 1000)
        head(gpu, now, level)


# ---- load profiles ----


def write_profiles(view: Any) -> None:
    """Put the rows of ``LOADS`` into a new state."""
    view.load_count = len(LOADS)
    for row, (name, profile) in zip(view.load, LOADS.items(), strict=False):
        row.name, row.memory = name.encode(), round(profile.memory * _WHOLE)
        row.phase_count, row.once = len(profile.phases), profile.once
        for place, phase in zip(row.phase, profile.phases, strict=False):
            place.ms, place.value[:] = round(phase.seconds * 1000), phase.values


def profile_number(name: str) -> int:
    """What ``kg_process.load`` says for a profile of ``LOADS``. Raises ConfigError with the nearest known name."""
    if name not in LOADS:
        hint = did_you_mean(name, LOADS)
        what = f'there is no load profile "{name:.40}"{"; " if hint else ""}{hint}'
        raise ConfigError(what, f"one of: {', '.join(LOADS)}", "choose one of them")
    return list(LOADS).index(name) + 1


def profile_area(profile: Any, channel: int, elapsed: int) -> int:
    """Percent x ns of a channel in the first ``elapsed`` ns of a profile."""
    phases = [(int(phase.ms) * _NS, int(phase.value[channel])) for phase in profile.phase[: profile.phase_count]]
    cycle = phases[profile.once :]
    length = sum(ns for ns, _ in cycle)
    total = 0
    for number, (ns, percent) in enumerate(phases):
        if number == profile.once and length:
            rounds, elapsed = divmod(elapsed, length)
            total += rounds * sum(ns * percent for ns, percent in cycle)
        part = min(elapsed, ns)
        total, elapsed = total + part * percent, elapsed - part
    return total


def profiles_area(gpu: Any, channel: int, begin: int, end: int, gi: Any = None) -> int:
    """Percent x ns of a channel that profiles cause in a span: of the whole GPU, or of an instance in its parts."""
    whole = _WHOLE if gi is None or not gpu.sm_count else int(gpu.gi_profile[gi.row].sm) * _WHOLE // gpu.sm_count
    total = 0
    for slot in gpu.process:
        if not slot.used or not slot.load or (gi is not None and slot.gi_id != gi.id):
            continue
        profile = node_of(gpu).load[slot.load - 1]
        start = int(slot.start_us) * 1000
        first, zero = max(begin, start), start - int(slot.load_shift_ms) * _NS
        if end <= first:
            continue
        area = profile_area(profile, channel, end - zero) - profile_area(profile, channel, first - zero)
        total += area * slot.load_scale // _WHOLE * min(int(slot.load_share), whole) // max(1, whole)
    return total


def channel(gpu: Any, which: int, now: int) -> int:
    """What the profiles make of a channel at ``now``, in 1/1000 percent."""
    return profiles_area(gpu, which, now, now + 1000)


def heat(gpu: Any, now: int) -> int:
    """The average of their power over the ramp's time before ``now``, in 1/1000 percent."""
    return profiles_area(gpu, C["LOAD_POWER"], now - _RAMP, now) // (_RAMP // 1000)


# ---- steady load, and both ----


def load_target(gpu: Any) -> int:
    """Where the steady load goes, in 1/1000 percent: what is set by hand plus what kernels of processes cause."""
    total = int(gpu.load_set) + sum(int(slot.sm_util) for slot in gpu.process if slot.used)
    return min(100, total) * 1000


def steady(gpu: Any, now: int) -> int:
    """The steady load at ``now``, on its way from load_prev to load_target."""
    elapsed = min(_RAMP, max(0, now - int(gpu.load_since_ns)))
    return int(gpu.load_prev) + (int(gpu.load_target) - int(gpu.load_prev)) * elapsed // _RAMP


def power_level(gpu: Any) -> int:
    """How far the draw is from idle to full load now, in 1/1000 percent."""
    now = now_ns(gpu)
    return min(_ALL_BUSY, steady(gpu, now) + channel(gpu, C["LOAD_POWER"], now))


def heat_level(gpu: Any) -> int:
    """The same for the temperature."""
    now = now_ns(gpu)
    return min(_ALL_BUSY, steady(gpu, now) + heat(gpu, now))


def utilization(gpu: Any) -> int:
    """GPU_UTIL now, in percent."""
    return min(_ALL_BUSY, int(gpu.load_target) + channel(gpu, C["LOAD_GR"], now_ns(gpu))) // 1000


def settle(gpu: Any, now: int) -> int:
    """Before a change of what the load is made of: store what came until ``now``. The level, for ``head``."""
    begin, goal = int(gpu.load_since_ns), int(gpu.load_target)
    elapsed = max(0, now - begin)
    ramped, level = min(elapsed, _RAMP), steady(gpu, now)
    area = (int(gpu.load_prev) + level) * ramped // 2 + goal * max(0, elapsed - _RAMP)  # 1/1000 percent x ns
    busy = area // _ALL_BUSY
    span = max(0, int(gpu.power_max_mw) - int(gpu.power_idle_mw))
    drawn = busy + profiles_area(gpu, C["LOAD_POWER"], begin, now) // 100
    gpu.energy_mj += (int(gpu.power_idle_mw) * elapsed + span * drawn) // 1_000_000_000
    gpu.busy_ns += busy
    instances = [gi for gi in gpu.gi if gi.used]
    for place in range(C["LOAD_CHANNELS"]):
        gpu.load_done[place] += profiles_area(gpu, place, begin, now)
        for gi in instances:
            gi.load_done[place] += profiles_area(gpu, place, begin, now, gi)
    gpu.load_prev, gpu.load_since_ns = level, now
    return level + heat(gpu, now)


def head(gpu: Any, now: int, level: int) -> None:
    """After it: head for the new steady load; profiles that together want more than there is get their part of it."""
    gpu.load_target = load_target(gpu)
    following = [slot for slot in gpu.process if slot.used and slot.load]
    for slot in following:
        wanted = sum(_peak(gpu, one) for one in following if one.gi_id == slot.gi_id)
        room = 100 - (int(gpu.load_target) // 1000 if slot.gi_id == C["NO_INSTANCE"] else 0)
        slot.load_scale = room * _WHOLE // wanted if wanted > room else _WHOLE
    gpu.load_prev = max(0, level - heat(gpu, now))


def _peak(gpu: Any, slot: Any) -> int:
    profile = node_of(gpu).load[slot.load - 1]
    values = [phase.value for phase in profile.phase[: profile.phase_count]]
    return max((max(value[C["LOAD_GR"]], value[C["LOAD_POWER"]]) for value in values), default=0)


@contextmanager
def load_change(gpu: Any) -> Iterator[int]:
    """Change what a GPU's load is made of; gives the node's time of the change, ns."""
    now = now_ns(gpu)
    level = settle(gpu, now)
    yield now
    head(gpu, now, level)


def fold_throttle(gpu: Any) -> None:
    """Count the time with the forced reasons so far, before they change: counters never go back."""
    now = now_ns(gpu)
    elapsed = max(0, now - int(gpu.throttle_since_ns))
    for place, bit in enumerate(_THROTTLE_BITS):
        if gpu.throttle_forced & bit:
            gpu.throttle_ns[place] += elapsed
    gpu.throttle_since_ns = now
