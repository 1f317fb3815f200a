"""Findings that rest on words alone which a tenant can write: Events of its namespace and what its containers print,
also where somebody has saved that into a file among others which does not say what it is.

Such a finding is likely at most, and orders nothing that takes work away from others or changes what it rests on:
anybody who may run a pod could else have a node drained, or another driver put on the fleet. The words of the GPU stack
count in full: its namespace has pods with rights on the node that no tenant is given. What is quoted beside the words
counts only where somebody else has written it: the author's own objects bear no witness.
"""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Final

from kgpu.base.remedy import Remedy
from kgpu.doctor import matching
from kgpu.doctor.model import CERTAIN, FILE, LIKELY, Evidence, Finding, Subject, in_file
from kgpu.doctor.snapshot import Snapshot
from kgpu.doctor.steps import without

_NO_TENANTS: Final = frozenset({"LimitRange", "ResourceQuota"})
"""Namespaced kinds that a namespace's admin may read and not write, by Kubernetes' own ClusterRole ``admin``."""
_KUBECTL: Final = r"\bkubectl (?:-n (?P<within>\S+) )?"
_ENDS: Final = re.compile(
    rf"{_KUBECTL}(?:drain|cordon|taint|delete|scale|label nodes?|rollout|(?P<piped>replace))\b"
    r"|\breboot\b|nvidia-smi (?:-r|--gpu-reset)\b|\b(?:amd-smi|rocm-smi|xpu-smi|hl-smi)\b.*reset|\bmachine off\b"
    r"|\brmmod\b|\bmodprobe -r\b|\bhelm uninstall\b"
)
"""Steps that end work."""
_ALTERS: Final = re.compile(
    rf"{_KUBECTL}(?:annotate|edit|label|patch(?! --local)|set|(?P<piped>apply(?!.*<<)))\b"
    r"|\bhelm (?:install|upgrade)\b|\boc adm\b|\bsystemctl (?:disable|edit|kill|restart|stop)\b|\bsetsebool\b"
    r"|\bnvidia-smi\b.* (?:-c|-mig|mig)\b|\bamd-smi set\b|\bapt(?:-get)? (?:remove|purge)\b"
)
"""Steps that change what others' work rests on: operands of the fleet, services of a node, modes of its GPUs."""
_FROM: Final = re.compile(r"kubectl -n (\S+) (?:create|get) ")
"""What begins a line of commands that hand an object on."""
_FIRST: Final = "only {words}: see {where} itself before anything is taken from it"


def weighed(finding: Finding, snapshot: Snapshot) -> Finding:
    """Return the finding with its confidence limited by its evidence; unchanged where more than words supports it."""
    authors = {_author(evidence, snapshot) for evidence in finding.evidence} - {""}
    doubtful = _doubtful(finding, authors, snapshot)
    if not doubtful and not _unproven(finding, authors, snapshot):
        return finding
    unsafe = takes_from_others if doubtful else ends_others_work
    kept = tuple(without(finding.remedy, lambda step: unsafe(step, authors)))
    if kept != finding.remedy:
        where = f"on {Subject('Node', finding.nodes[0])}" if finding.nodes else "in the cluster"
        kept = (Remedy(_FIRST, words=_words(_worst(authors)), where=where), *kept)
    return replace(finding, confidence=min(finding.confidence, LIKELY if doubtful else CERTAIN), remedy=kept)


def _doubtful(finding: Finding, authors: set[str], snapshot: Snapshot) -> bool:
    """Whether words alone speak for it, or a file that anybody may have written is one of those that it rests on."""
    if any(author.startswith(FILE) for author in authors):
        return True
    if not authors or not authors.isdisjoint(snapshot.once(_trusted)):
        return False
    return all(evidence.author or _is_own(evidence, authors) for evidence in finding.evidence)


def _unproven(finding: Finding, authors: set[str], snapshot: Snapshot) -> bool:
    """Whether it rests on words alone, of namespaces of which nobody has read that they are the stack's.

    Whoever hands over a log or a list of events knows what they are, so that such a finding counts, and settings may be
    changed for it; what is in them may be a tenant's all the same, and no work is ended for it.
    """
    proven = snapshot.once(matching.trusted)
    return bool(authors) and authors.isdisjoint(proven) and all(evidence.author for evidence in finding.evidence)


def _author(evidence: Evidence, snapshot: Snapshot) -> str:
    return in_file(evidence.file) if evidence.file in snapshot.texts else evidence.author


def _worst(authors: set[str]) -> str:
    """The author to name: a file before a namespace."""
    return min(authors, key=lambda author: (not author.startswith(FILE), author))


def _words(author: str) -> str:
    if author.startswith(FILE):
        return f"the text in {author.removeprefix(FILE)} says so, which a container may have printed"
    return f"words of namespace {author} say so"


def _is_own(evidence: Evidence, authors: set[str]) -> bool:
    """Whether it is about an object of the namespace of one of them (``Pod NAMESPACE/NAME``) that they may write."""
    kind, _, path = evidence.object.partition(" ")
    namespace, slash, _ = path.partition("/")
    return bool(slash) and namespace in authors and kind not in _NO_TENANTS


def takes_from_others(step: str, authors: set[str]) -> bool:
    """Whether a step may end work outside the authors' own namespaces, or change what that rests on."""
    return ends_others_work(step, authors) or _reaches_beyond(_ALTERS, step, authors)


def ends_others_work(step: str, authors: set[str]) -> bool:
    """Whether a step may end work outside the authors' own namespaces."""
    return _reaches_beyond(_ENDS, step, authors)


def _reaches_beyond(commands: re.Pattern[str], step: str, authors: set[str]) -> bool:
    head = _FROM.match(step)
    home = head[1] if head else None
    return any((hit["within"] or (home if hit["piped"] else None)) not in authors for hit in commands.finditer(step))


def _trusted(snapshot: Snapshot) -> frozenset[str]:
    """Where no pod's object was read all namespaces count: whoever hands over a log alone, or what kubectl prints for
    people, knows where it is from.
    """
    known = any(pod.uid for pod in snapshot.pods.values() if pod.source not in snapshot.texts)
    authors = {namespace for namespace, _ in snapshot.logs} | {event.namespace for event in snapshot.all_events()}
    return snapshot.once(matching.trusted) | (frozenset() if known else authors)
