"""Pure: nodes have no name for who may not list nodes, but those on which he sees a pod: its spec says where it is.

Sums and states stay. What the doctor says of such nodes, of the cluster as a whole, or quoting what somebody may not
see is not told; it is counted as hidden. Who sees the pods of every namespace knows every node by them.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

import msgspec

from kgpu.overview.model import HardwareError, KnownCluster, Told, ToldEvidence, ToldFinding, ToldReport, ViewerRights
from kgpu.overview.rights import quotes
from kgpu.top.model import GpuNode, NodeTrouble

NOT_SAID: Final = "no answer now; whoever may list nodes is told why"
_SILENT: Final = NodeTrouble(what="it can't be read", remedy="ask whoever runs the cluster")
_UNTOLD: Final = ToldFinding(id="", subject="Pod /", cause="", level="")
"""It is of a namespace that nobody sees, so that it is counted and not told."""


def told_to(gathered: KnownCluster, rights: ViewerRights) -> KnownCluster:
    """What is known, without what somebody with these rights is not told of nodes and in evidence."""
    sees = rights.namespaces
    if sees is None:
        return gathered
    if rights.nodes:
        findings = tuple(_with_evidence(one, _ToldNodes(sees)) for one in gathered.report.value.findings)
        return replace(gathered, report=replace(gathered.report, value=ToldReport(findings=findings)))
    names = _names(gathered)
    named = frozenset(node.name for node in gathered.nodes if _has_pods_of(node, sees))
    aliases = {name: f"hidden {number}" for number, name in enumerate(names, 1) if name not in named}
    hidden = tuple(aliases)
    may = _ToldNodes(sees, named)
    findings = tuple(_told(one, may, hidden) for one in gathered.report.value.findings)
    idleness = gathered.idleness.value
    silent = {
        aliases.get(name, name): why if name in named else NOT_SAID
        for name, why in idleness.silent.items()
        if name in {"*", ""} or name in aliases or name in named
    }
    return replace(
        gathered,
        nodes=tuple(_unnamed(node, aliases) for node in gathered.nodes),
        read_at={aliases.get(name, name): at for name, at in gathered.read_at.items()},
        named=named,
        report=_quiet(replace(gathered.report, value=ToldReport(findings=findings))),
        idleness=_quiet(replace(gathered.idleness, value=msgspec.structs.replace(idleness, silent=silent))),
        waiting=_quiet(gathered.waiting),
        limits=_quiet(gathered.limits),
        events=_quiet(_renamed(gathered.events, aliases)),
        verdicts=_quiet(_renamed(gathered.verdicts, aliases)),
    )


@dataclass(frozen=True, slots=True)
class _ToldNodes:
    """The namespaces and nodes that may be named; ``nodes`` None for all, and for all else than pods and nodes."""

    namespaces: frozenset[str]
    nodes: frozenset[str] | None = None

    def evidence(self, row: ToldEvidence) -> bool:
        """Whether what an object has may be quoted."""
        kind, _, name = row.object.partition(" ")
        space, slash, _ = name.partition("/")
        if slash:
            return space in self.namespaces
        return self.nodes is None or (kind == "Node" and name.partition(",")[0] in self.nodes)

    def subject(self, finding: ToldFinding) -> bool:
        """Whether it is about a node that may be named, or about something in a namespace, which others judge."""
        kind, _, name = finding.subject.partition(" ")
        return "/" in name or (kind == "Node" and self.nodes is not None and name in self.nodes)


def _names(gathered: KnownCluster) -> list[str]:
    """Every node that anything is told of, those with GPUs first."""
    found = dict.fromkeys(node.name for node in gathered.nodes)
    findings = list(gathered.report.value.findings)
    while findings:
        one = findings.pop()
        findings += one.consequences
        kind, _, name = one.subject.partition(" ")
        found.update(dict.fromkeys((*one.nodes, *((name,) if kind == "Node" else ()))))
    found.update(dict.fromkeys(name for name in gathered.idleness.value.silent if name not in {"*", ""}))
    found.update(dict.fromkeys(error.node for error in (*gathered.events.value, *gathered.verdicts.value)))
    return list(found)


def _has_pods_of(node: GpuNode, sees: Collection[str]) -> bool:
    return any(user.namespace in sees for gpu in node.gpus for user in gpu.everybody)


def _unnamed(node: GpuNode, aliases: Mapping[str, str]) -> GpuNode:
    alias = aliases.get(node.name)
    trouble = None if node.trouble is None else _SILENT  # it names pods of the exporters
    if alias is None:
        return replace(node, trouble=trouble, remark=None)
    gpus = tuple(replace(gpu, reason="", action="") if gpu.reason or gpu.action else gpu for gpu in node.gpus)
    return replace(node, name=alias, hostname="", gpus=gpus, trouble=trouble, remark=None, through="")


def _told(finding: ToldFinding, may: _ToldNodes, hidden: tuple[str, ...]) -> ToldFinding:
    told = _with_evidence(finding, may)
    return told if may.subject(finding) and not quotes(told, hidden) else _UNTOLD


def _with_evidence(finding: ToldFinding, may: _ToldNodes) -> ToldFinding:
    """With the evidence that may be quoted, and the nodes that may be named."""
    return msgspec.structs.replace(
        finding,
        evidence=tuple(row for row in finding.evidence if may.evidence(row)),
        nodes=tuple(name for name in finding.nodes if may.nodes is None or name in may.nodes),
        consequences=tuple(_with_evidence(one, may) for one in finding.consequences),
    )


def _renamed(told: Told[tuple[HardwareError, ...]], aliases: Mapping[str, str]) -> Told[tuple[HardwareError, ...]]:
    return replace(told, value=tuple(replace(one, node=aliases.get(one.node, one.node)) for one in told.value))


def _quiet(told: Told[Any]) -> Told[Any]:
    """Without what a program has said as it failed, which may name anything."""
    return replace(told, trouble=NOT_SAID) if told.trouble else told
