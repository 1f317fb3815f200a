"""Start here: ``predict(scene)`` asks every check of every node with GPUs and says each answer once.

Pure. It never raises for what a cluster contains, and no node that may have GPUs is passed over in silence: where
nobody knows whether it has any, that is told.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Final

from kgpu.base.advice import Severity
from kgpu.base.remedy import Remedy
from kgpu.doctor import matching
from kgpu.doctor.kinds import Node
from kgpu.doctor.model import Evidence, Finding, Level, Missing
from kgpu.doctor.preflight import cluster, driver, kernel, node, runtime
from kgpu.doctor.preflight.model import (
    PROBE,
    Answer,
    ClusterPreflight,
    DriverChoice,
    NodePreflight,
    NodeScene,
    Prediction,
    PreflightReport,
    PreflightScene,
    PreflightVerdict,
    Unknown,
)
from kgpu.doctor.snapshot import Snapshot
from kgpu.formats.names import NFD_PREFIX

CHECKS: Final[tuple[NodePreflight, ...]] = (
    *kernel.CHECKS, *driver.CHECKS, *runtime.CHECKS, *node.CHECKS,
)  # fmt: skip
CLUSTER_CHECKS: Final[tuple[ClusterPreflight, ...]] = cluster.CHECKS
GPUS: Final = "GPUs"
"""The check of whether a node has any."""
MAX_EVIDENCE: Final = 4
_LINUX: Final = ("", "linux")


@dataclass(slots=True)
class _Said:
    """One answer and whom it is about."""

    check: NodePreflight | ClusterPreflight
    answer: Finding | Missing
    nodes: list[str] = field(default_factory=list)
    evidence: list[Evidence] = field(default_factory=list)


def predict(scene: PreflightScene, wanted: Iterable[str] = ()) -> PreflightReport:
    """The report. ``wanted`` are nodes to look at, taken for ones with GPUs; none: all that are known to have some."""
    named = tuple(wanted)
    nodes = looked_at(scene.snapshot, named)
    said: dict[tuple[object, ...], _Said] = {}
    verdicts: dict[str, dict[str, PreflightVerdict]] = {"": {}}
    for row in CLUSTER_CHECKS:
        answer = row.look(scene)
        verdicts[""][row.name] = _verdict(answer)
        _note(said, row, answer, "")
    for one in nodes:
        view = _view(scene, one)
        verdicts[one.name] = {}
        for check in CHECKS:
            answer = check.look(view)
            verdicts[one.name][check.name] = _verdict(answer)
            _note(said, check, answer, one.name)
    unknown = [] if named else list(_strangers(scene.snapshot))
    for stranger in unknown:
        for name in stranger.nodes:
            verdicts[name] = {GPUS: PreflightVerdict.UNKNOWN}
    rows = list(said.values())
    predictions = sorted(
        (_prediction(row, row.answer) for row in rows if isinstance(row.answer, Finding)), key=lambda one: one.is_note
    )
    return PreflightReport(
        source=scene.intent.source,
        namespace=scene.intent.namespace,
        nodes=tuple(one.name for one in nodes),
        predictions=tuple(predictions),
        unknown=(*unknown, *(_unknown(row, row.answer) for row in rows if isinstance(row.answer, Missing))),
        verdicts=verdicts,
        images=scene.images,
    )


def looked_at(snapshot: Snapshot, wanted: Collection[str]) -> list[Node]:
    """The nodes that a report is about: those of ``wanted`` that are there; without any, all known to have GPUs."""
    if wanted:
        return [snapshot.nodes[name] for name in wanted if name in snapshot.nodes]
    return list(matching.gpu_nodes(snapshot, matching.NVIDIA))


def _view(scene: PreflightScene, one: Node) -> NodeScene:
    host = scene.snapshot.hosts.get(one.name)
    choice = scene.intent.drivers.get(one.name, DriverChoice(enabled=False))
    return NodeScene(scene=scene, node=one, host=None if host is not None and host.hollow else host, driver=choice)


def _verdict(answer: Answer) -> PreflightVerdict:
    match answer:
        case None:
            return PreflightVerdict.FINE
        case Missing():
            return PreflightVerdict.UNKNOWN
        case Finding(level=Level.NOTE):
            return PreflightVerdict.NOTED
        case _:
            return PreflightVerdict.FAILS


def _note(
    said: dict[tuple[object, ...], _Said], check: NodePreflight | ClusterPreflight, answer: Answer, node_name: str
) -> None:
    """Keep an answer; one that several nodes give is kept once."""
    if answer is None:
        return
    key: tuple[object, ...]
    if isinstance(answer, Finding):
        key = (check.name, answer.id, answer.cause, answer.level)
    else:
        key = (check.name, answer.what, answer.why, answer.how)
    kept = said.setdefault(key, _Said(check, answer))
    kept.nodes += [node_name] if node_name else []
    if isinstance(answer, Finding):
        kept.evidence += [row for row in answer.evidence if row not in kept.evidence]


def _prediction(row: _Said, finding: Finding) -> Prediction:
    note = finding.level is Level.NOTE
    return Prediction(
        id=finding.id or row.check.id,
        check=row.check.name,
        subject=str(finding.subject),
        what=finding.cause,
        evidence=tuple(map(str, row.evidence[:MAX_EVIDENCE])),
        remedy="; ".join(finding.remedy),
        steps=tuple(map(Remedy.again, finding.remedy)),
        nodes=tuple(row.nodes) or finding.nodes,
        sureness=finding.sureness,
        severity=Severity.INFO if note else Severity.WARNING,
    )


def _unknown(row: _Said, gap: Missing) -> Unknown:
    return Unknown(
        check=row.check.name, id=row.check.id, what=gap.what, why=gap.why, how=gap.how, nodes=tuple(row.nodes)
    )


def _strangers(snapshot: Snapshot) -> Iterator[Unknown]:
    """Linux nodes of which nobody has said whether they have GPUs: no discovery has run there, nobody has looked."""
    known = {one.name for one in matching.gpu_nodes(snapshot)}
    names = tuple(
        one.name
        for one in snapshot.nodes.values()
        if one.name not in known
        and one.text("status.nodeInfo.operatingSystem") in _LINUX
        and not any(key.startswith(NFD_PREFIX) for key in one.labels)
        and _unseen(snapshot, one.name)
    )
    if names:
        yield Unknown(
            check=GPUS,
            id="TNT-05",
            what="whether they have GPUs",
            why="no feature discovery has labelled them, and no resource or label of a cloud says so",
            how=f"{PROBE}; or name those that have: kgpu preflight --node NODE",
            nodes=names,
        )


def _unseen(snapshot: Snapshot, name: str) -> bool:
    host = snapshot.hosts.get(name)
    return host is None or host.pci is None
