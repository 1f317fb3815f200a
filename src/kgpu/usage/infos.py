"""Pure: what an agent tells Prometheus besides counters: what devices, partitions, holders and the node are.

A series for each device, partition and holder, for as long as it is there, so that a join by ``UUID``, ``partition``
and ``uid`` says whose a counter is. ``boot`` is the name of the counters; ``kgpu_usage_uptime_seconds`` is until when
they count. ``kgpu.usage.prometheus`` reads it back.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Final

from kgpu.base.metric_text import head, label_text
from kgpu.formats.usage import RecordedNode
from kgpu.usage.gathering import Gathered, TrackedHolder

LABEL: Final = "label_"
MAX_VALUE: Final = 512
"""Characters of a label's value, as in a recording."""
_NO_LETTER: Final = re.compile(r"[^a-zA-Z0-9_]")


def label_name(key: str) -> str:
    """A Kubernetes label's key as the name of a metric's label, as kube-state-metrics has it: without its prefix."""
    return _NO_LETTER.sub("_", key)


def lines(gathered: Gathered, now_s: float, node: str, about: RecordedNode | None) -> Iterator[str]:
    """``now_s``: seconds since 1970 at the last look, 0 before the first one; ``about``: what the node is, if known."""
    yield from head("kgpu_usage_device_info", "gauge", "1 for each device, with what it is.")
    for device, gpu in gathered.devices.items():
        labels = _labels(
            UUID=device, node=node, boot=gathered.boot, product=gpu.product, memory_mib=str(gpu.memory_mib)
        )
        yield f"kgpu_usage_device_info{labels} 1"
    yield from head("kgpu_usage_partition_info", "gauge", "1 for each partition of a device.")
    for device, gpu in gathered.devices.items():
        for part, unit in gpu.parts.items():
            yield f"kgpu_usage_partition_info{_labels(UUID=device, partition=part, profile=unit.profile)} 1"
    yield from head("kgpu_usage_holder_info", "gauge", "1 for each container that holds a device, with what it is.")
    for device, gpu in gathered.devices.items():
        for holder in gpu.holders.values():
            yield f"kgpu_usage_holder_info{_holder(device, gathered.boot, holder)} 1"
    if now_s:
        which = _labels(node=node, boot=gathered.boot)
        yield from head("kgpu_usage_uptime_seconds", "gauge", "The machine's uptime at the last look.")
        yield f"kgpu_usage_uptime_seconds{which} {gathered.uptime_us / 1e6:.6f}"
        yield from head("kgpu_usage_looked_timestamp_seconds", "gauge", "When the last look was.")
        yield f"kgpu_usage_looked_timestamp_seconds{which} {now_s:.6f}"
    if about is not None:
        yield from head("kgpu_usage_node_info", "gauge", "1, with what the node's price depends on.")
        labels = _labels(
            node=node, provider_id=about.provider_id, cpus=str(about.cpus), memory_mib=str(about.memory_mib),
            **_prefixed(about.labels),
        )  # fmt: skip
        yield f"kgpu_usage_node_info{labels} 1"


def _holder(device: str, boot: str, holder: TrackedHolder) -> str:
    who = holder.who
    return _labels(
        UUID=device, partition=who.partition, namespace=who.namespace, pod=who.pod, container=who.container,
        uid=who.uid, boot=boot, owner=who.owner, gang=who.gang, sharing=who.sharing.value, replicas=str(who.replicas),
        units=str(who.units), claim=who.claim, **_prefixed(who.labels),
    )  # fmt: skip


def _prefixed(labels: Mapping[str, str]) -> dict[str, str]:
    """Each name once, whatever keys there are: a name that is there twice would cost the whole page."""
    found: dict[str, str] = {}
    for key, value in labels.items():
        found.setdefault(LABEL + label_name(key), value)
    return found


def _labels(**labels: str) -> str:
    """Without what is empty: to Prometheus that is the same."""
    return label_text(**{name: value[:MAX_VALUE] for name, value in labels.items() if value})
