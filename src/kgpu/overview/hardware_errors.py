"""Pure: what Events, health's reports and the page's own readings tell of hardware errors, as one list of rows.

The same error of a GPU is one row, whoever tells of it. Of nodes that may not be named errors are only counted.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Final, NamedTuple

from kgpu.base.remedy import Remedy
from kgpu.base.times import stamp_of
from kgpu.formats.xid.catalogue import short_name, sxids
from kgpu.overview.model import DAY, HardwareError, KnownCluster, OverviewQuery, ShownError, ToldFinding
from kgpu.top.model import GpuNode, ShownGpu

_SAID: Final = re.compile(r"\((S?Xid) ([0-9]+(?:, [0-9]+)*)")
"""How a cause of the doctor names the numbers that it is about."""
_NUMBERED: Final = re.compile(r"(S?Xid) ([0-9]{1,9})", re.ASCII)
_NAMES_GPU: Final = "GPU-"


class FoundErrors(NamedTuple):
    """The rows, the newest first, how many errors are of nodes without a name, and how many GPUs show an Xid of which
    nobody says when it came.
    """

    rows: tuple[ShownError, ...]
    hidden: int
    undated: int


def found_errors(
    gathered: KnownCluster,
    nodes: Iterable[GpuNode],
    query: OverviewQuery,
    findings: Iterable[ToldFinding],
    *,
    texts: bool,
) -> FoundErrors:
    """The errors that are asked for. ``nodes`` and ``findings`` are without what may not be seen; ``texts``: whether
    texts may be told, which may quote programs of anybody.
    """
    by_name = {node.name: node for node in nodes}
    merged: dict[tuple[str, str, str], tuple[HardwareError, ShownGpu | None]] = {}
    for error in (*gathered.verdicts.value, *gathered.events.value, *_read(gathered, by_name.values())):
        gpu = _gpu(by_name.get(error.node), error)
        key = error.node, gpu.uuid if gpu else error.uuid or f"{error.index} {error.pci}", error.code
        merged[key] = (_joined(merged[key][0], error) if key in merged else error), gpu
    told, named = tuple(findings), gathered.named
    open_ = [row for row in merged.values() if named is None or row[0].node in named]
    rows = [
        _row(error if texts else replace(error, text=""), gpu, told)
        for error, gpu in sorted(open_, key=lambda row: row[0].code)
    ]
    rows.sort(key=lambda row: row.error.at, reverse=True)
    dated = {(node, uuid) for node, uuid, code in merged if code.startswith("Xid ")}
    undated = sum(
        gpu.values.get("last_xid", 0) > 0 and (node.name, gpu.uuid) not in dated
        for node in by_name.values() for gpu in node.gpus
    )  # fmt: skip
    return FoundErrors(tuple(row for row in rows if _wanted(row, query)), len(merged) - len(open_), undated)


def meaning(error: HardwareError) -> str:
    """What it means, by kgpu's own tables; of what has no number what health says of it, as far as that may be told."""
    kind, number = _numbered(error)
    if kind == "Xid":
        return short_name(number)
    if kind == "SXid":
        row = sxids().get(number)
        return row.what if row else "not in the catalogue"
    return error.text


def _numbered(error: HardwareError) -> tuple[str, int]:
    """``Xid`` or ``SXid`` and the number, "" and 0 for an error without one, whatever its name is."""
    found = _NUMBERED.fullmatch(error.code)
    return (found[1], int(found[2])) if found else ("", 0)


def remedy_of(error: HardwareError) -> tuple[Remedy, ...]:
    """What tells more of an error of which the doctor does not speak."""
    kind, number = _numbered(error)
    if kind == "Xid":
        return (Remedy("kgpu xid {}", number),)
    if kind == "SXid":
        return (Remedy("kgpu xid {} --sxid", number),)
    return (Remedy("kgpu doctor node {}", error.node),)


def _read(gathered: KnownCluster, nodes: Iterable[GpuNode]) -> Iterator[HardwareError]:
    """The Xids that came while the page read the exporters."""
    for node in nodes:
        for gpu in node.gpus:
            age = gathered.history.xid_age(gpu.uuid, gathered.now)
            if age is not None and age < DAY and (came := gathered.history.last_xid(gpu.uuid)) is not None:
                at = stamp_of(came.told_at)
                yield HardwareError(node=node.name, code=f"Xid {came.code}", at=at, uuid=gpu.uuid, index=gpu.index)


def _gpu(node: GpuNode | None, error: HardwareError) -> ShownGpu | None:
    """The GPU that it names, by its UUID, or by its number where it has no UUID."""
    if node is None:
        return None
    if error.uuid:
        return next((gpu for gpu in node.gpus if gpu.uuid == error.uuid), None)
    return next((gpu for gpu in node.gpus if error.index is not None and gpu.index == error.index), None)


def _joined(one: HardwareError, other: HardwareError) -> HardwareError:
    """Two that tell of the same."""
    counts = [error.count for error in (one, other) if error.count is not None]
    return replace(
        one, at=max(one.at, other.at), since=min(filter(None, (one.since, other.since)), default=""),
        count=sum(counts) if counts else None, text=one.text or other.text,
    )  # fmt: skip


def _row(error: HardwareError, gpu: ShownGpu | None, findings: tuple[ToldFinding, ...]) -> ShownError:
    place, uuid = (error.index, error.uuid) if gpu is None else (gpu.index, gpu.uuid)
    users = () if gpu is None else gpu.everybody
    return ShownError(
        error=error, place=f"GPU {place}" if place is not None else error.uuid or error.pci, means=meaning(error),
        holders=tuple(dict.fromkeys(user.name if user.namespace else user.pod for user in users)),
        namespaces=frozenset(user.namespace for user in users) - {""},
        finding=next((one for one in findings if _explains(one, error, uuid)), None),
    )  # fmt: skip


def _explains(finding: ToldFinding, error: HardwareError, uuid: str) -> bool:
    """Whether the doctor speaks of this error of this node: its number is a word of what it says."""
    kind, number = _numbered(error)
    if error.node not in finding.nodes and finding.subject != f"Node {error.node}":
        return False
    said = _SAID.search(finding.cause)
    return (
        said is not None and said[1] == kind and str(number) in said[2].split(", ") and _may_be_of(finding.cause, uuid)
    )


def _may_be_of(cause: str, uuid: str) -> bool:
    """Whether it does not name another GPU."""
    return _NAMES_GPU not in cause or bool(uuid and uuid in cause)


def _wanted(row: ShownError, query: OverviewQuery) -> bool:
    if query.node not in ("", row.error.node) or (query.namespace and query.namespace not in row.namespaces):
        return False
    texts = "\n".join((row.error.node, row.place, row.error.code, row.means, *row.holders)).lower()
    return all(word in texts for word in query.words.lower().split())
