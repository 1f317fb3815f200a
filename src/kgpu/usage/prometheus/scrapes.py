"""Pure: from series to what an agent's page said at a moment, by device. Rows of metrics.

Whatever a Prometheus adds to a series says from which scrape it is. Several scrapes of one agent (two replicas, two
jobs) say the same, earlier or later: as counters only grow, the largest of each is the newest. ``exported_`` stands
before a name of ours where the target has a label of that name, and ``honor_labels`` is off.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final, TypeAlias

from kgpu.formats.usage import HolderSharing, RecordedHolder, RecordedNode, UsageState
from kgpu.usage.infos import LABEL, MAX_VALUE, label_name
from kgpu.usage.nodes import PRICE_LABELS
from kgpu.usage.prometheus.answer import RangeSeries

DEVICES: Final = "kgpu_usage_device_info"
UPTIME: Final = "kgpu_usage_uptime_seconds"
LOOKED: Final = "kgpu_usage_looked_timestamp_seconds"
STATES: Final = "kgpu_usage_state_seconds_total"
ENERGY: Final = "kgpu_usage_energy_joules_total"
PARTITIONS: Final = "kgpu_usage_partition_info"
HOLDERS: Final = "kgpu_usage_holder_info"
HELD: Final = "kgpu_usage_held_seconds_total"
BUSY: Final = "kgpu_usage_busy_seconds_total"
SM: Final = "kgpu_usage_sm_seconds_total"
MEMORY: Final = "kgpu_usage_memory_gib_seconds_total"
NODES: Final = "kgpu_usage_node_info"
CLUSTER: Final = "cluster"
"""The label by which those who collect several clusters' figures tell them apart."""
_OWN: Final = frozenset({
    "__name__", "UUID", "partition", "namespace", "pod", "container", "uid", "state", "node", "boot", "product",
    "memory_mib", "profile", "owner", "gang", "sharing", "replicas", "units", "claim", "provider_id", "cpus",
})  # fmt: skip
_EXPORTED: Final = "exported_"
_NODE_KEYS: Final[Mapping[str, str]] = {label_name(key): key for key in PRICE_LABELS}

_Labels: TypeAlias = Mapping[str, str]
Source: TypeAlias = frozenset[tuple[str, str]]
"""A scrape's own labels: from where it is."""
UnitId: TypeAlias = tuple[str, str]
"""Device and partition; "" for the device itself."""
HolderId: TypeAlias = tuple[str, str, str, str]
"""Device, uid, container, partition."""
BootId: TypeAlias = tuple[str, str]
"""Node and the name of its counters."""


@dataclass(slots=True)
class ScrapedPage:
    """What one scrape, or all of the same counters together, said. Counters in seconds, joules and GiB seconds."""

    devices: dict[tuple[str, str, str], _Labels] = field(default_factory=dict)
    """By UUID, node and boot: what it is."""
    uptime: dict[BootId, float] = field(default_factory=dict)
    looked: dict[BootId, float] = field(default_factory=dict)
    states: dict[UnitId, dict[UsageState, float]] = field(default_factory=dict)
    energy: dict[str, float] = field(default_factory=dict)
    partitions: dict[UnitId, str] = field(default_factory=dict)
    holders: dict[tuple[HolderId, str], RecordedHolder] = field(default_factory=dict)
    """By whom and boot."""
    counters: dict[tuple[str, HolderId], float] = field(default_factory=dict)
    """By metric and holder."""
    nodes: dict[str, RecordedNode] = field(default_factory=dict)


Moments: TypeAlias = dict[int, dict[Source, ScrapedPage]]
"""By the moment in milliseconds, and by scrape."""


@dataclass(slots=True)
class ScrapesRead:
    """Pages by moment; what was in them besides: label keys, clusters, series that say too little."""

    moments: Moments = field(default_factory=dict)
    labels: set[str] = field(default_factory=set)
    clusters: set[str] = field(default_factory=set)
    unclear: int = 0


def read(series: Mapping[str, Iterable[RangeSeries]]) -> ScrapesRead:
    """The pages that these series, by metric, are from."""
    found = ScrapesRead()
    for metric, several in series.items():
        for one in several:
            _take(found, metric, one)
    return found


def _take(found: ScrapesRead, metric: str, one: RangeSeries) -> None:
    labels = _ours(one.labels)
    source = frozenset(
        item for item in one.labels.items()
        if item[0].removeprefix(_EXPORTED) not in _OWN and not item[0].startswith(LABEL)
    )  # fmt: skip
    put = _PUT[metric](labels)
    if put is None:
        found.unclear += 1
        return
    if metric == DEVICES:
        found.clusters.add(one.labels.get(CLUSTER, ""))
    if metric == HOLDERS:
        found.labels.update(name.removeprefix(LABEL) for name in labels if name.startswith(LABEL))
    for at, value in one.points:
        put(found.moments.setdefault(at, {}).setdefault(source, ScrapedPage()), value)


def _ours(labels: _Labels) -> dict[str, str]:
    """Our labels under our names."""
    found = {
        name: value[:MAX_VALUE] for name, value in labels.items()
        if value and (name in _OWN or (name.startswith(LABEL) and len(name) <= MAX_VALUE))
    }  # fmt: skip
    for name, value in labels.items():
        bare = name.removeprefix(_EXPORTED)
        if bare != name and bare in _OWN:
            found[bare] = value[:MAX_VALUE]
    return found


_Put: TypeAlias = Callable[[ScrapedPage, float], None]
"""How a series' value goes into a page."""


def _device(labels: _Labels) -> _Put | None:
    device, (node, boot) = labels.get("UUID", ""), _boot(labels)
    if not (device and node and boot):
        return None
    return lambda page, _: page.devices.__setitem__((device, node, boot), labels)


def _of_boot(figures: Callable[[ScrapedPage], dict[BootId, float]]) -> Callable[[_Labels], _Put | None]:
    def put(labels: _Labels) -> _Put | None:
        boot = _boot(labels)
        return (lambda page, value: figures(page).__setitem__(boot, value)) if all(boot) else None

    return put


def _state(labels: _Labels) -> _Put | None:
    unit, word = _unit(labels), labels.get("state", "")
    if not unit[0] or word not in _STATE_WORDS:
        return None
    state = UsageState(word)
    return lambda page, value: page.states.setdefault(unit, {}).__setitem__(state, value)


def _energy(labels: _Labels) -> _Put | None:
    device = labels.get("UUID", "")
    return (lambda page, value: page.energy.__setitem__(device, value)) if device else None


def _partition(labels: _Labels) -> _Put | None:
    unit, profile = _unit(labels), labels.get("profile", "")
    return (lambda page, _: page.partitions.__setitem__(unit, profile)) if all(unit) else None


def _holder(labels: _Labels) -> _Put | None:
    holder, boot, who = holder_id(labels), labels.get("boot", ""), _who(labels)
    if not (holder[0] and boot) or who is None:
        return None
    return lambda page, _: page.holders.__setitem__((holder, boot), who)


def _counter(metric: str) -> Callable[[_Labels], _Put | None]:
    def put(labels: _Labels) -> _Put | None:
        key = metric, holder_id(labels)
        return (lambda page, value: page.counters.__setitem__(key, value)) if all(key[1][:2]) else None

    return put


def _node(labels: _Labels) -> _Put | None:
    name = labels.get("node", "")
    if not name:
        return None
    told = {
        key: labels[LABEL + sanitised] for sanitised, key in _NODE_KEYS.items() if labels.get(LABEL + sanitised)
    }  # fmt: skip
    node = RecordedNode(
        node=name, at=_NEVER, labels=told, provider_id=labels.get("provider_id", ""),
        cpus=min(65536, whole(labels.get("cpus", ""))), memory_mib=whole(labels.get("memory_mib", "")),
    )  # fmt: skip
    return lambda page, _: page.nodes.__setitem__(name, node)


def _boot(labels: _Labels) -> BootId:
    return labels.get("node", ""), labels.get("boot", "")


def _unit(labels: _Labels) -> UnitId:
    return labels.get("UUID", ""), labels.get("partition", "")


def holder_id(labels: _Labels) -> HolderId:
    """Whom a holder's series is about."""
    return labels.get("UUID", ""), labels.get("uid", ""), labels.get("container", ""), labels.get("partition", "")


def _who(labels: _Labels) -> RecordedHolder | None:
    """What it says of a holder; None where that is too little."""
    namespace, pod, uid, sharing = (labels.get(name, "") for name in ("namespace", "pod", "uid", "sharing"))
    if not (namespace and pod and uid) or sharing not in _SHARING_WORDS:
        return None
    replicas = min(4096, max(1, whole(labels.get("replicas", ""))))
    told = {name.removeprefix(LABEL): value for name, value in labels.items() if name.startswith(LABEL)}
    return RecordedHolder(
        namespace=namespace, pod=pod, uid=uid, container=labels.get("container", ""),
        partition=labels.get("partition", ""), owner=labels.get("owner", ""), gang=labels.get("gang", ""),
        labels=dict(sorted(told.items())[:64]), sharing=HolderSharing(sharing), replicas=replicas,
        units=min(replicas, max(1, whole(labels.get("units", "")))), claim=labels.get("claim", ""), held_us=0,
    )  # fmt: skip


def whole(text: str) -> int:
    """A whole number of at most 12 digits; 0 for what is none."""
    return int(text) if text.isascii() and text.isdecimal() and len(text) <= 12 else 0


_STATE_WORDS: Final = frozenset(state.value for state in UsageState)
_SHARING_WORDS: Final = frozenset(sharing.value for sharing in HolderSharing)
_NEVER: Final = dt.datetime.fromtimestamp(0, dt.UTC)
_PUT: Final[Mapping[str, Callable[[_Labels], _Put | None]]] = {
    DEVICES: _device,
    UPTIME: _of_boot(lambda page: page.uptime),
    LOOKED: _of_boot(lambda page: page.looked),
    STATES: _state,
    ENERGY: _energy,
    PARTITIONS: _partition,
    HOLDERS: _holder,
    **{metric: _counter(metric) for metric in (HELD, BUSY, SM, MEMORY)},
    NODES: _node,
}
METRICS: Final = tuple(_PUT)
"""All that is asked for."""
