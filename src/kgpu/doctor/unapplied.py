"""Pods of a manifest that nobody has applied yet: how the rules see them, and what a remedy says of them. Pure.

The rules look at such a pod as at one that waits with the scheduler's message. What they propose to do to an object of
the cluster is then a change to the manifest, or is left out where there is nothing to do it to.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from kgpu.base.plain import mapping
from kgpu.base.remedy import Remedy, is_command
from kgpu.doctor.commands import MADE_ANEW
from kgpu.doctor.model import Finding

Object = Mapping[str, Any]

_EDIT: Final = re.compile(
    r"kubectl -n \S+ get pod \S+ -o yaml \| kubectl patch --local -f - -p (?P<patch>.+) -o yaml" + re.escape(MADE_ANEW),
    re.DOTALL,
)
_TEMPLATES: Final = {
    "Pod": (),
    **dict.fromkeys(("Deployment", "ReplicaSet", "StatefulSet", "Job"), ("spec", "template")),
}
"""Where the pods are in an object, for kinds with one template."""
_ANEW: Final = " (a pod can't be changed: it is deleted and made again)"


@dataclass(frozen=True, slots=True, kw_only=True)
class UnappliedPod:
    """A pod that an object of a manifest would become. ``maker`` is that object's kind; ``file`` is where it is from,
    "" where that has no name; ``alone``: the file has no other object. ``node`` is the one that it would get, else
    ``message`` is the scheduler's.
    """

    namespace: str
    name: str
    template: Object
    maker: str
    node: str = ""
    message: str = ""
    file: str = ""
    alone: bool = False

    def as_object(self) -> dict[str, Any]:
        """The pod as it would run, or wait."""
        metadata = {
            key: value
            for key, value in mapping(self.template.get("metadata")).items()
            if key in {"labels", "annotations"}
        }
        waits = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": self.message}
        runs = {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}
        return {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {**metadata, "namespace": self.namespace, "name": self.name},
            "spec": {**mapping(self.template.get("spec")), **({"nodeName": self.node} if self.node else {})},
            "status": runs if self.node else {"phase": "Pending", "conditions": [waits]},
        }


def about_manifest(finding: Finding, pod: UnappliedPod, names: Collection[str]) -> Finding:
    """The finding with steps that make sense before anything is applied; ``names`` are those of all the new pods."""
    return replace(finding, remedy=tuple(_steps(finding.remedy, pod, names)), consequences=())


def _steps(remedy: tuple[Remedy, ...], pod: UnappliedPod, names: Collection[str]) -> Iterator[Remedy]:
    sentence: Remedy | None = None
    for step in remedy:
        if not is_command(step):
            if sentence is not None:
                yield sentence
            sentence = Remedy.again(step.replace(_ANEW, ""))
            continue
        changed = _command(step, pod, names)
        if sentence is not None and (changed is not None or _EDIT.fullmatch(step)):
            yield sentence if changed is not None else Remedy.again(sentence.rstrip(":"))
        if changed is not None:
            yield changed
        sentence = None
    if sentence is not None:
        yield sentence


def _command(step: Remedy, pod: UnappliedPod, names: Collection[str]) -> Remedy | None:
    """The command for the manifest; None where it would act on a pod that is not there."""
    edit = _EDIT.fullmatch(step)
    if edit is not None:
        return _patched(edit["patch"], pod)
    words = step.split()
    if words[:2] == ["kgpu", "doctor"]:
        return Remedy("kgpu doctor -f {}", pod.file) if pod.file else None
    return None if any(word.strip("'\"") in names for word in words) else step


def _patched(quoted: str, pod: UnappliedPod) -> Remedy | None:
    words = shlex.split(quoted)
    if not (pod.file and pod.alone and pod.maker in _TEMPLATES) or len(words) != 1:
        return None
    patch = json.loads(words[0])
    for step in reversed(_TEMPLATES[pod.maker]):
        patch = {step: patch}
    return Remedy("kubectl patch --local -f {} -p {} -o yaml", pod.file, json.dumps(patch, separators=(",", ":")))
