"""What a user asks, as words of a command line, made into changes to a cluster. Raises ConfigError, never guesses."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from kgpu.base.errors import ConfigError
from kgpu.base.printable import one_line
from kgpu.base.quantity import Quantity
from kgpu.base.suggest import did_you_mean
from kgpu.placement import quotas, templates, workloads
from kgpu.placement.model import AddNodes, Change, CutGpus, DrainNode, ScaleWorkload, SetQuota, ShareGpus, SubmitPods
from kgpu.placement.state import PlacementState

_DIGITS: Final = 6
_KINDS: Final[Mapping[str, str]] = {
    "deployment": "Deployment", "deploy": "Deployment", "replicaset": "ReplicaSet", "rs": "ReplicaSet",
    "statefulset": "StatefulSet", "sts": "StatefulSet", "job": "Job",
}  # fmt: skip
"""Kinds with replicas, by the words that kubectl knows them by."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WhatIfQuestion:
    """``defrag_for`` is 0 for no plan; ``resource`` "" for the one that most nodes offer."""

    add_nodes: tuple[str, ...] = ()
    drain: tuple[str, ...] = ()
    mig: tuple[str, ...] = ()
    replicas: tuple[str, ...] = ()
    quota: tuple[tuple[str, str], ...] = ()
    """Each a namespace, or NAMESPACE/QUOTA, and KEY=AMOUNT."""
    scale: tuple[str, ...] = ()
    manifests: tuple[Mapping[str, Any], ...] = ()
    count: int = 1
    gang: bool = False
    namespace: str = "default"
    defrag_for: int = 0
    resource: str = ""
    pack: bool = False


def changes(question: WhatIfQuestion, state: PlacementState) -> Iterator[Change]:
    """In the order in which they are made: nodes come, go and change, then workloads, then pods."""
    for words in question.add_nodes:
        wanted, count = counted(words, "--add-nodes", "TYPE_OR_NODE=N")
        yield AddNodes(template=templates.template(state, wanted), count=count)
    for node in question.drain:
        yield DrainNode(node=node)
    for words in question.mig:
        node, layout = pair(words, "--mig", "NODE=all-1g.10gb, all-balanced, all-disabled, or 3g.40gb:1,1g.10gb:4")
        yield CutGpus(node=node, layout=layout)
    for words in question.replicas:
        node, count = counted(words, "--replicas", "NODE=N")
        yield ShareGpus(node=node, replicas=count)
    for where, words in question.quota:
        yield _quota(where, words)
    for words in question.scale:
        yield _scale(words)
    if question.manifests:
        yield SubmitPods(
            objects=question.manifests, count=question.count, gang=question.gang, namespace=question.namespace
        )


_QUOTA_FORM: Final = "NAMESPACE[/QUOTA] KEY=AMOUNT, or KEY=none for no limit"


def _quota(where: str, words: str) -> SetQuota:
    key, amount = pair(words, "--quota", _QUOTA_FORM)
    namespace, _, name = where.partition("/")
    shown = one_line(f"--quota {where} {words}", 160)
    if not namespace:
        raise ConfigError(f"{shown} names no namespace", _QUOTA_FORM, "--quota ml requests.nvidia.com/gpu=16, say")
    if not quotas.is_counted(key):
        extended = "/" in key and not key.startswith(("limits.", "count/"))
        why = "Kubernetes counts requests of it alone" if extended else "what pods take of it is not known"
        raise ConfigError(
            f"{shown}: {why}",
            "requests.NAME of a resource, cpu, memory, ephemeral-storage, limits. of these, hugepages-SIZE, pods",
            f"write requests.{one_line(key, 80)}" if extended else "leave it out",
        )  # fmt: skip
    if amount.lower() == "none":
        return SetQuota(namespace=namespace, key=key, amount=None, quota=name)
    nanos = Quantity.parse(amount).nanos
    if nanos < 0:
        raise ConfigError(f"{shown}: less than nothing", _QUOTA_FORM, "correct --quota")
    return SetQuota(namespace=namespace, key=key, amount=nanos, quota=name)


def _scale(words: str) -> ScaleWorkload:
    where, count = counted(words, "--scale", "NAMESPACE/KIND/NAME=N")
    parts = where.split("/")
    kind = _KINDS.get(parts[1].lower(), "") if len(parts) == 3 else ""
    if not kind or not all(parts):
        near = did_you_mean(parts[1].lower(), _KINDS) if len(parts) == 3 else ""
        raise ConfigError(
            f"--scale {one_line(words, 120)} names no workload" + (f"; {near}" if near else ""),
            "NAMESPACE/KIND/NAME=N with one of " + ", ".join(sorted(set(_KINDS.values()))),
            "for example --scale ml/Deployment/serve=0",
        )  # fmt: skip
    return ScaleWorkload(namespace=parts[0], kind=kind, name=parts[2], replicas=count)


def pair(words: str, flag: str, form: str) -> tuple[str, str]:
    """What stands before and behind the last ``=``. Raises ConfigError."""
    before, sign, behind = words.rpartition("=")
    if not (before and sign and behind):
        raise ConfigError(f"{flag} {one_line(words, 120)!r} can't be", form, f"correct {flag}")
    return before, behind


def counted(words: str, flag: str, form: str) -> tuple[str, int]:
    """The same with a whole number behind it. Raises ConfigError."""
    before, behind = pair(words, flag, form)
    if not (behind.isascii() and behind.isdecimal() and len(behind) <= _DIGITS):
        raise ConfigError(
            f"{flag} {one_line(words, 120)!r} can't be: {one_line(behind, 20)!r} is no number", form, f"correct {flag}"
        )
    return before, int(behind)


def check_kinds(manifests: Iterable[Mapping[str, Any]]) -> None:
    """Raises ConfigError for an object that neither is, nor comes with, pods."""
    for obj in manifests:
        kind = str(obj.get("kind") or "")
        if kind not in workloads.MADE_OF and kind not in workloads.BESIDE:
            near = did_you_mean(kind, workloads.MADE_OF)
            raise ConfigError(
                f"the manifest has a {one_line(kind, 60) or 'document without a kind'}" + (f"; {near}" if near else ""),
                f"pods ({', '.join(workloads.MADE_OF)}) and what comes with them ({', '.join(workloads.BESIDE)})",
                "write its pods themselves",
            )  # fmt: skip
