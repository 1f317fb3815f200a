"""GPU nodes in trouble of which no other rule tells anything: what the node says is told, so that none is passed over."""

# ruff: noqa: E501 - a row of a table stays on its line
from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

from kgpu.doctor import matching
from kgpu.doctor.model import CERTAIN, Finding, Place
from kgpu.doctor.rule import Rule
from kgpu.doctor.snapshot import Snapshot

_GPU_CONDITION: Final = re.compile(r"xid|nvidia|nvlink|accelerat|(?<!amd)gpu", re.IGNORECASE)


def troubled(snapshot: Snapshot) -> Iterator[Finding]:
    """GPU nodes that are not Ready, or of which a condition tells a fault of a GPU."""
    for node in matching.gpu_nodes(snapshot):
        for one in node.conditions():
            good = "True" if one.type.endswith("Ready") else "False"
            if one.status in (good, "") or (one.type != "Ready" and not _GPU_CONDITION.search(one.type)):
                continue
            if one.type != "Ready" and one.status == "Unknown":
                continue
            said = ": ".join(word for word in (one.reason, one.message) if word)
            what = "is not Ready" if one.type == "Ready" else f"has the condition {one.type}={one.status}"
            warning = next((event for event in snapshot.events(node) if event.warning), None)
            yield Finding(
                subject=node.subject,
                cause=f"Node {node.name} {what}" + (f": {said}" if said else ""),
                evidence=(one.cite(), *((warning.quote(),) if warning else ())),
                remedy=(f"kubectl describe node {node.name}", "on the node: journalctl -u kubelet --since -1h"),
                confidence=CERTAIN,
                since=one.since,
                nodes=(node.name,),
            )


RULES: Final = (
    Rule(
        "NODE-00", "A GPU node is in trouble", Place.PLUGIN, troubled,
        "The kubelet does not report, reports trouble, or a watcher on the node has set a condition about its GPUs. "
        "Pods go to other nodes meanwhile.",
        explains=("SCH-*", "TNT-01"), last_resort=True,
    ),
)  # fmt: skip
