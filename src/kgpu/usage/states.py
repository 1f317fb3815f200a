"""Pure: what a device or partition is doing, from readings over a window, by rules that never guess idleness.

Idle is only what was watched through the whole window and never active, drew no power that work would need, and saw no
process come or go; what lacks readings or contradicts itself is ``unknown``, which is never idle. ``GPU_UTIL`` says
that some kernel ran, not that the GPU was used; so it can refute idleness and prove no use. The CPU's load proves
neither.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Final, NamedTuple

import msgspec

from kgpu.formats.usage import UsageState

FLICKER: Final = 1.05
"""A ratio a little above 1 is rounding and counts as 1; one further above, or below 0, is no reading at all."""


class StateRow(NamedTuple):
    """A state: what it means, whose the time is, and what is done about it."""

    state: UsageState
    means: str
    payer: str
    action: str


STATES: Final = (
    StateRow(UsageState.FREE, "healthy, and no pod holds it", "idle pool", "pack, or let the node pool shrink"),
    StateRow(UsageState.HELD_EMPTY, "held, without process or memory", "holder", "reclaim"),
    StateRow(UsageState.HELD_IDLE, "held, not active through the window", "holder", "notify, reclaim"),
    StateRow(UsageState.HUNG, "several GPUs of one gang stand still after work", "holder", "notify, never kill"),
    StateRow(UsageState.WAITING, "not active, while others of its gang are, on any node", "holder", ""),
    StateRow(UsageState.STARVED, "hardly active, while data or the CPU is at work", "holder", "advise"),
    StateRow(UsageState.INEFFICIENT, "engines busy, few multiprocessors active", "holder", "advise to share"),
    StateRow(UsageState.BUSY, "everything else that is held", "holder", ""),
    StateRow(UsageState.DOWN, "bad or lost, in repair, or leaked memory without a pod", "platform", "see its health"),
    StateRow(UsageState.UNKNOWN, "readings missing or contradictory", "platform", ""),
)
WASTED: Final = frozenset({UsageState.HELD_EMPTY, UsageState.HELD_IDLE, UsageState.HUNG})
"""States in which a holder pays for what it does not use."""
WORKING: Final = frozenset({UsageState.BUSY, UsageState.INEFFICIENT, UsageState.STARVED})
NOT_IDLE: Final = WORKING | {UsageState.WAITING}
YOUNG: Final = "its pod is younger than the time for which it has to be idle and the warm-up"
"""Why what has not been held for so long counts as busy."""


class IdleRules(msgspec.Struct, frozen=True, kw_only=True):
    """Seconds, and ratios of 1. ``idle_below`` is 0.05 for alerts and 0.01 for reclaim, ``window`` an hour, 30 minutes
    for a node, and 2 hours or more for reclaim; a workload that compiles or stages data longer has its own.
    """

    idle_below: float = 0.05
    window: float = 3600.0
    coverage: float = 0.9
    warm_up: float = 900.0
    power_margin: float = 0.15
    longest_gap: float = 60.0
    starved_below: float = 0.15
    engines_busy: float = 0.40
    few_multiprocessors: float = 0.25
    data_mib_s: float = 50.0
    cpu_busy: float = 0.5
    contradiction: float = 0.20
    mass_share: float = 0.30


USUAL_RULES: Final = IdleRules()


class UsageReading(msgspec.Struct, frozen=True, kw_only=True):
    """One reading: ratios of 1, watts, MiB; None is what is not known. ``at`` is in seconds.

    ``processes`` are names of those on the device, which stay the same as long as they live. ``host_to_device_mib_s``
    is what comes over PCIe, ``cpu`` how busy the holders' CPUs are.

    ``peak`` is the most active moment that is known, where signals are averages or there are none.

    With ``span`` it sums up that many seconds until ``at``, ``watched`` of which had readings of activity: ``peak`` is
    the most active of them, ``power_w`` the most that was drawn; ``contradicted`` is whether one of them contradicted
    itself, ``changed`` whether a process began or ended.
    """

    at: float
    gr_engine: float | None = None
    gpu_util: float | None = None
    sm: float | None = None
    dram: float | None = None
    encoder: float | None = None
    decoder: float | None = None
    tensor: float | None = None
    power_w: float | None = None
    memory_mib: float | None = None
    processes: frozenset[str] | None = None
    host_to_device_mib_s: float | None = None
    cpu: float | None = None
    span: float = 0.0
    watched: float = 0.0
    peak: float | None = None
    contradicted: bool = False
    changed: bool = False

    @property
    def begin(self) -> float:
        """When what it says begins."""
        return self.at - self.span


class WatchedDevice(msgspec.Struct, frozen=True, kw_only=True):
    """What a device or partition is besides its readings.

    ``held_since``: when the youngest pod on it was bound, None where none is. ``idle_floor_w``: what the model draws
    without work, None where that is not known. ``usable``: its health's verdict, and that it is not in repair.
    ``requests`` and ``user_seen``: requests served within the window, and when a user was last there; either keeps a
    holder from being reclaimed.
    """

    held_since: float | None = None
    memory_mib: float = 0.0
    idle_floor_w: float | None = None
    usable: bool = True
    requests: int | None = None
    user_seen: float | None = None


class UsageVerdict(msgspec.Struct, frozen=True, kw_only=True):
    """``idle_since``: the end of the last reading that was busy, None where none of them was or it is not idle.
    ``kept``: why it is not to be reclaimed though it is idle.
    """

    state: UsageState
    why: str
    coverage: float = 0.0
    idle_since: float | None = None
    kept: tuple[str, ...] = ()


def ratio(value: float | None) -> float | None:
    """The reading, clamped to 0 to 1; None for an outlier."""
    if value is None or not 0.0 <= value <= FLICKER:
        return None
    return min(1.0, value)


_SIGNALS: Final = ("gr_engine", "gpu_util", "sm", "dram", "encoder", "decoder")


def activity(reading: UsageReading) -> float | None:
    """The largest of all signals that are known; None where none is."""
    known = [value for name in _SIGNALS if (value := ratio(getattr(reading, name))) is not None]
    return max(known, default=ratio(reading.peak))


def covered(readings: Sequence[UsageReading], now: float, rules: IdleRules = USUAL_RULES) -> float:
    """The part of the window that readings with a known activity stand for: one of a moment until the next or the
    longest gap, one with a span for what was watched of it.
    """
    known = sorted((one for one in readings if activity(one) is not None and one.at <= now), key=lambda one: one.at)
    begin, seen = now - rules.window, 0.0
    for one, after in zip(known, [*(later.begin for later in known[1:]), now], strict=False):
        if one.span:
            seen += max(0.0, one.at - max(one.begin, begin)) * min(1.0, one.watched / one.span)
        else:
            seen += max(0.0, min(after, one.at + rules.longest_gap) - max(one.at, begin))
    return min(1.0, seen / rules.window)


def contradicts(reading: UsageReading, device: WatchedDevice, rules: IdleRules = USUAL_RULES) -> bool:
    """Whether its engines say that nothing runs, while utilisation or power says that something does."""
    if reading.contradicted:
        return True
    if ratio(reading.gr_engine) != 0.0:
        return False
    return (ratio(reading.gpu_util) or 0.0) >= rules.contradiction or _draws_power(reading, device, rules)


def _draws_power(reading: UsageReading, device: WatchedDevice, rules: IdleRules) -> bool:
    floor = device.idle_floor_w
    return None not in (floor, reading.power_w) and reading.power_w > floor * (1 + rules.power_margin)  # type: ignore[operator]


def judge(
    readings: Iterable[UsageReading], now: float, device: WatchedDevice, rules: IdleRules = USUAL_RULES, *,
    last_busy: float | None = None,
) -> UsageVerdict:  # fmt: skip
    """The state now, by the readings of the window; older ones only say since when, later ones do not count.

    ``last_busy``: when it was busy last, by whoever has watched it for longer than there are readings.
    """
    begin = now - rules.window
    past = sorted((one for one in readings if one.at <= now), key=lambda one: one.at)
    known = [one for one in past if one.at >= begin - rules.longest_gap]
    coverage = covered(known, now, rules)

    def verdict(state: UsageState, why: str, **more: float | tuple[str, ...] | None) -> UsageVerdict:
        return UsageVerdict(state=state, why=why, coverage=coverage, **more)  # type: ignore[arg-type]

    if not device.usable:
        return verdict(UsageState.DOWN, "its health's verdict, or a repair, takes it out of use")
    last = next((one for one in reversed(known) if not one.span), None)  # what sums up says nothing of now
    now_active = activity(last) if last is not None and now - last.at <= rules.longest_gap else None
    if last is None or now_active is None:
        return verdict(UsageState.UNKNOWN, "there is no reading of its activity now")
    if contradicts(last, device, rules):
        return verdict(UsageState.UNKNOWN, "its engines say nothing runs, utilisation or power says otherwise")
    if device.held_since is None:
        if _occupied(last, device):
            return verdict(UsageState.DOWN, "leaked: a process or memory is on it, and no pod holds it")
        return verdict(UsageState.FREE, "no pod holds it")
    if now_active < rules.idle_below:
        refuted = _not_idle(known, now, device, rules, coverage)
        if refuted is None:
            state, why = (
                (UsageState.HELD_IDLE, "not active through the window") if _may_be_occupied(last, device)
                else (UsageState.HELD_EMPTY, "no process and no memory on it, through the window")
            )  # fmt: skip
            since = _idle_since(past, rules, last_busy)
            return verdict(state, why, idle_since=since, kept=_kept(device, begin))
        return verdict(*refuted)
    if now_active < rules.starved_below and _is_fed(last, rules):
        return verdict(UsageState.STARVED, "hardly active, while data comes in or the CPU works")
    engines, multiprocessors = ratio(last.gr_engine), ratio(last.sm)
    if (
        multiprocessors is not None
        and multiprocessors < rules.few_multiprocessors
        and (max(engines or 0.0, ratio(last.gpu_util) or 0.0) >= rules.engines_busy)
    ):
        return verdict(UsageState.INEFFICIENT, "something always runs, on few of its multiprocessors")
    return verdict(UsageState.BUSY, "active")


def _occupied(reading: UsageReading, device: WatchedDevice) -> bool:
    """Whether there is a process, or more memory than the driver's own."""
    floor = max(300.0, 0.01 * device.memory_mib)
    return bool(reading.processes) or (reading.memory_mib or 0.0) > floor


def _may_be_occupied(reading: UsageReading, device: WatchedDevice) -> bool:
    """The same, or nothing is known of it."""
    return _occupied(reading, device) or (reading.processes is None and reading.memory_mib is None)


def _is_fed(reading: UsageReading, rules: IdleRules) -> bool:
    return (reading.host_to_device_mib_s or 0.0) >= rules.data_mib_s or (reading.cpu or 0.0) >= rules.cpu_busy


def _not_idle(
    known: Sequence[UsageReading], now: float, device: WatchedDevice, rules: IdleRules, coverage: float
) -> tuple[UsageState, str] | None:
    """The state and why, for one that is not active at this moment and still not idle; None for one that is idle."""
    window = [one for one in known if one.at >= now - rules.window]
    held_since = device.held_since if device.held_since is not None else now
    young = now - held_since < rules.window + rules.warm_up
    own = (one for one in window if one.begin >= held_since)
    # In this order: the first that holds is told.
    rows = (
        (young and any((activity(one) or 0.0) >= rules.idle_below for one in own), UsageState.BUSY, "it was active"),
        (young, UsageState.BUSY, YOUNG),
        (coverage < rules.coverage, UsageState.UNKNOWN, "too much of the window has no readings"),
        (any(contradicts(one, device, rules) for one in window), UsageState.UNKNOWN,
         "within the window, engines said nothing runs, utilisation or power said otherwise"),
        (any((activity(one) or 0.0) >= rules.idle_below for one in window), UsageState.BUSY, "it was active"),
        (any(_draws_power(one, device, rules) for one in window), UsageState.UNKNOWN, "it draws more than an idle one"),
        (any(one.changed for one in window)
         or len({one.processes for one in window if one.processes is not None}) > 1, UsageState.BUSY,
         "a process began or ended within the window"),
    )  # fmt: skip
    return next(((state, why) for holds, state, why in rows if holds), None)


def _idle_since(past: Sequence[UsageReading], rules: IdleRules, last_busy: float | None) -> float | None:
    """When the last busy reading ended: at the next one, or with the longest gap. Where none was busy it is
    ``last_busy``, if that was before them: within them, the rules' own limit counts.
    """
    for at in range(len(past) - 1, -1, -1):
        if (activity(past[at]) or 0.0) >= rules.idle_below:
            if past[at].span:
                return past[at].at
            end = past[at].at + rules.longest_gap
            return min(end, past[at + 1].at) if at + 1 < len(past) else end
    if last_busy is None or not past:
        return last_busy
    return min(last_busy, past[0].at - past[0].span)


def _kept(device: WatchedDevice, begin: float) -> tuple[str, ...]:
    rows = (
        (bool(device.requests), "it has served requests within the window"),
        (device.user_seen is not None and device.user_seen >= begin, "a user was there within the window"),
    )
    return tuple(why for holds, why in rows if holds)


def judge_gang(
    members: Mapping[str, UsageVerdict], were_busy: Collection[str], beside: Iterable[UsageState] = ()
) -> Mapping[str, UsageVerdict]:
    """The members of a gang, judged together: none is idle while another works, or may do so unseen, and two or more
    that stand still after work are hung; those that are down do not count. ``were_busy``: which have been busy since
    the gang began. ``beside``: what devices do that members share with others.
    """
    states = {one.state for one in members.values()} | set(beside)
    idle = [name for name, one in members.items() if one.state in WASTED]
    if states & NOT_IDLE:
        state, why, named = UsageState.WAITING, "others of its gang are at work", idle
    elif UsageState.UNKNOWN in states:
        state, why, named = UsageState.UNKNOWN, "what others of its gang do is not known", idle
    else:
        state, why = UsageState.HUNG, "all GPUs of its gang stand still after work"
        named = [name for name in idle if members[name].state is not UsageState.HELD_EMPTY and name in were_busy]
        if len(named) < 2:
            return members
    since = state is UsageState.HUNG
    return {
        name: UsageVerdict(
            state=state, why=why, coverage=one.coverage, idle_since=one.idle_since if since else None,
            kept=one.kept if since else (),
        ) if name in named else one
        for name, one in members.items()
    }  # fmt: skip


def gang_key(namespace: str, gang: str, uid: str) -> str:
    """By what the devices of one gang are found: a pod without one is its own."""
    return f"{namespace}/{gang}" if gang else uid


def judge_gangs(
    verdicts: Sequence[UsageVerdict], holders: Sequence[Collection[str]], were_busy: Collection[str]
) -> list[UsageVerdict]:
    """Verdicts of which those of one gang are judged together. ``holders``: the ``gang_key`` of all that hold each;
    ``were_busy``: those of which something has worked.
    """
    found = list(verdicts)
    places: dict[str, list[int]] = {}
    for place, keys in enumerate(holders):
        for key in set(keys):
            places.setdefault(key, []).append(place)
    for gang, held in places.items():
        if len(held) < 2:
            continue
        members = {str(place): verdicts[place] for place in held if set(holders[place]) == {gang}}
        beside = [verdicts[place].state for place in held if str(place) not in members]
        for name, verdict in judge_gang(members, tuple(members) if gang in were_busy else (), beside).items():
            found[int(name)] = verdict
    return found


def judge_tenant(card: UsageVerdict, own_sm: Sequence[float] | None, rules: IdleRules = USUAL_RULES) -> UsageVerdict:
    """A tenant of a shared GPU: idle with the whole card, else by the activity of its own processes through the window,
    unknown where that is not measured: the card's utilisation is everybody's.
    """
    if card.state not in WORKING:
        return card
    if not own_sm:
        return UsageVerdict(state=UsageState.UNKNOWN, why="its part of the card's activity is not measured")
    if max(own_sm) < rules.idle_below and card.coverage >= rules.coverage:
        return UsageVerdict(state=UsageState.HELD_IDLE, why="others use the card, it does not", coverage=card.coverage)
    return card


class MassIdle(msgspec.Struct, frozen=True):
    """So much turned idle at once that it is in doubt: on these nodes, on all where none is named."""

    why: str
    nodes: frozenset[str] = frozenset()

    def concerns(self, node: str) -> bool:
        """Whether what a node says is in doubt."""
        return not self.nodes or node in self.nodes


DOUBTFUL: Final = WASTED - {UsageState.HELD_EMPTY}
"""Idle states by activity alone: where processes and memory are gone, too, the work has ended."""


def mass_idle(
    worked: Collection[tuple[str, str]],
    lately: Collection[tuple[str, str]],
    states: Mapping[tuple[str, str], UsageState],
    rules: IdleRules = USUAL_RULES,
) -> MassIdle | None:
    """Whether too much turned idle at once: a large part of all that are known, of those that worked ``lately``; or a
    node's GPUs, two or more of those that ``worked`` when they were last looked at. Such a thing is a broken counter
    far more often than the end of all work. Keys are node and device.
    """
    known = {key for key, state in states.items() if state is not UsageState.UNKNOWN}
    idle = {key for key in known if states[key] in DOUBTFUL}
    turned = idle.intersection(lately)
    if len(turned) > 1 and len(turned) > rules.mass_share * len(known):
        return MassIdle(f"{len(turned)} of {len(known)} GPUs turned idle at once")
    by_node: dict[str, set[tuple[str, str]]] = {}
    for key in known.intersection(worked):
        by_node.setdefault(key[0], set()).add(key)
    nodes = frozenset(node for node, keys in by_node.items() if len(keys) > 1 and keys <= idle)
    return MassIdle(nodes_turned_idle(nodes), nodes) if nodes else None


def nodes_turned_idle(nodes: Iterable[str]) -> str:
    """That some nodes are in doubt, for people."""
    known = sorted(nodes)
    more = f" and {len(known) - 3} more" if len(known) > 3 else ""
    return f"all GPUs of node {', '.join(known[:3])}{more} turned idle at once"


def looks_kept_busy(readings: Iterable[UsageReading], device: WatchedDevice, rules: IdleRules = USUAL_RULES) -> bool:
    """Whether a device is always a little at work, with hardly any memory, no tensor cores and no data coming in: as
    programs do that only keep a GPU from being called idle. For reports; nothing is done by it.
    """
    seen = [one for one in readings if activity(one) is not None]
    return len(seen) > 1 and all(
        (activity(one) or 0.0) >= rules.idle_below
        and ratio(one.tensor) == 0.0
        and one.memory_mib is not None
        and one.memory_mib <= 0.05 * device.memory_mib
        and (one.host_to_device_mib_s or 0.0) < rules.data_mib_s
        for one in seen
    )
