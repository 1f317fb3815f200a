"""From a proven change to what is to be typed: kubectl commands for whoever owns the pod, with the proof as a comment.

The owner's template is patched where that makes new pods. A Job's template can't be changed, nor most of a pod's spec:
they are deleted and made again in one line. Where kubectl can't do it alone (an owner of another kind, a template that
is not known to have what is to be changed), the change is told in words.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Final

from kgpu.base.remedy import Remedy, words
from kgpu.doctor import edits, remedies, smallest_change
from kgpu.doctor.edits import Edit, Spec
from kgpu.doctor.kinds import Pod
from kgpu.doctor.objects import Obj
from kgpu.doctor.secrets import cleaned
from kgpu.doctor.smallest_change import FittingChange, named
from kgpu.doctor.snapshot import Snapshot
from kgpu.doctor.waiting import Waiting

LONGEST: Final = 800
"""Characters of a command; what is longer is told in words, for a line that is cut can't be pasted."""
MADE_ANEW: Final = " | kubectl replace --force -f -"
"""How the command ends for what can't be changed where it is."""
_TEMPLATES: Final = {
    "Deployment": ("spec", "template", "spec"),
    "StatefulSet": ("spec", "template", "spec"),
    "DaemonSet": ("spec", "template", "spec"),
    "ReplicaSet": ("spec", "template", "spec"),
    "Job": ("spec", "template", "spec"),
    "CronJob": ("spec", "jobTemplate", "spec", "template", "spec"),
    "Pod": ("spec",),
}
_SCALED: Final = frozenset({"Deployment", "StatefulSet", "ReplicaSet"})
_OF_JOBS: Final = ("batch.kubernetes.io/controller-uid", "controller-uid")
"""Labels that the API server gives a Job's template, and refuses from others."""


@dataclass(frozen=True, slots=True)
class Owner:
    """What is to be changed so that the pods change: its kind, name, and itself where it is known."""

    kind: str
    namespace: str
    name: str
    obj: Obj | None

    def __str__(self) -> str:
        return f"{self.kind} {self.namespace}/{self.name}"


def owner_of(pod: Pod, snapshot: Snapshot) -> Owner:
    """The topmost controller, as far as the chain is known; the pod itself without one."""
    chain: list[tuple[str, str, Obj | None]] = [("Pod", pod.name, pod), *snapshot.owners(pod)]
    kind, name, obj = chain[-1]
    return Owner(kind, pod.namespace, name, obj)


def steps(one: Waiting, change: FittingChange) -> tuple[Remedy, ...]:
    """A change of ``smallest_change`` as commands; the proof stands behind the first."""
    proof = f"{change.what}; then it fits {named(change.fits)}" if change.fits else change.what
    if change.kind == smallest_change.UNCORDON:
        return (remedies.uncordon(change.subject).why(f"then it fits {named(change.fits)}"),)
    if change.kind == smallest_change.ROOM:
        return (remedies.pods_on(change.value).why(proof),)
    return patched(one, change.edits, proof, words=_words(change))


def _words(change: FittingChange) -> str:
    return f"{change.what} (then it fits {named(change.fits)})" if change.fits else change.what


def patched(pending: Waiting, changes: Iterable[Edit], proof: str, *, words: str) -> tuple[Remedy, ...]:
    """Edits of the waiting pods' template as commands; ``words`` where kubectl can't make them."""
    owner = owner_of(pending.pod, pending.snapshot)
    changes = tuple(changes)
    place = _TEMPLATES.get(owner.kind)
    if place is None or owner.obj is None:  # one that nobody has read may itself be made by another
        return (Remedy("in the pods' template of {}: {}", owner, words),)
    if loss := _lost(owner, pending):
        return (Remedy("in {}: {}; a Job can't be changed, and to delete it would {}", owner, words, loss),)
    patch = edits.patch_of(_spec(owner, pending.pod, place), changes)
    if not patch or not changes:
        return (Remedy("in {}: {}", owner, words),)
    steps_made = _commands(owner, patch, place, pending, proof)
    # What looks like a credential is hidden in what is shown: such a command would no longer be the one that was meant.
    whole = all(len(step) <= LONGEST and cleaned(step) == step for step in steps_made)
    return steps_made if whole else (Remedy("in {}: {}", owner, words),)


def _lost(owner: Owner, one: Waiting) -> str:
    """What would be lost with a Job that is deleted: other pods that run, and the count of those that are done."""
    if owner.kind != "Job" or owner.obj is None:
        return ""
    running = owner.obj.number("status.active") - sum(pod.owner == f"Job/{owner.name}" for pod in one.pods)
    done = owner.obj.number("status.succeeded")
    parts = [f"end its {running} other pods"] if running > 0 else []
    parts += [f"forget {done} that have succeeded"] if done > 0 else []
    return " and ".join(parts)


def ended(pod: Pod, snapshot: Snapshot) -> Remedy:
    """How to free what a pod holds: scale its owner down, or the owner would make the pod again at once."""
    owner = owner_of(pod, snapshot)
    why = f"{pod.path} is the oldest holder; only if it is idle"
    space, kind, name = owner.namespace, owner.kind.lower(), owner.name
    if owner.kind == "Pod":
        return remedies.delete_pod(space, pod.name).why(why)
    replicas = owner.obj.number("spec.replicas", 1) if owner.obj is not None else 0
    if owner.kind in _SCALED and replicas > 0:
        return remedies.scale(space, kind, name, replicas - 1).why(why)
    if owner.kind == "Job" and owner.obj is not None:
        change = '{"spec":{"suspend":true}}'
        then = "its pods end, and begin anew when it is false again"
        return Remedy("kubectl -n {} patch job {} -p {}  # {}; {}", space, name, change, why, then)
    return Remedy("make {} smaller, or end it: {}", owner, why)


def _spec(owner: Owner, pod: Pod, place: tuple[str, ...]) -> Spec:
    at: Any = owner.obj.data if owner.obj is not None else None
    for step in place:
        at = at.get(step) if isinstance(at, dict) else None
    if isinstance(at, dict) and at:
        return at
    found: Any = pod.data.get("spec")
    return edits.without_defaults(found) if isinstance(found, dict) else {}


def _commands(owner: Owner, patch: Spec, place: tuple[str, ...], pending: Waiting, proof: str) -> tuple[Remedy, ...]:
    space, kind, name = owner.namespace, owner.kind.lower(), owner.name
    whole: Spec = patch
    for step in reversed(place):
        whole = {step: whole}
    mine = [
        pod.name for pod in pending.pods if (pod.namespace, pod.owner) == (pending.pod.namespace, pending.pod.owner)
    ]
    again = words(*mine[:10])
    if owner.kind == "Job":
        whole = _new_job(whole, owner)
        return (_made_anew(owner, whole, f"{proof} (a Job can't be changed: it is deleted and made again)"),)
    if owner.kind == "Pod" and set(patch) != {"tolerations"}:
        return (_made_anew(owner, whole, f"{proof} (a pod can't be changed: it is deleted and made again)"),)
    first = Remedy("kubectl -n {} patch {} {} -p {}  # {}", space, kind, name, _json(whole), proof)
    if owner.kind == "CronJob":
        job = pending.pod.owner.partition("/")[2]
        if _lost(Owner("Job", owner.namespace, job, pending.snapshot.get("Job", job, owner.namespace)), pending):
            return (first,)
        then = "made before the change; the next one is as patched"
        return first, remedies.delete(space, "job", job).why(then)
    if owner.kind == "StatefulSet":
        then = "a StatefulSet does not replace a pod that was never ready"
        return first, remedies.delete_pod(space, again).why(then)
    if owner.kind == "ReplicaSet":
        then = "a ReplicaSet changes only the pods that it makes from now on"
        return first, remedies.delete_pod(space, again).why(then)
    return (first,)


def _made_anew(owner: Owner, whole: Spec, proof: str) -> Remedy:
    return Remedy(
        "kubectl -n {} get {} {} -o yaml | kubectl patch --local -f - -p {} -o yaml" + MADE_ANEW + "  # {}",
        owner.namespace, owner.kind.lower(), owner.name, _json(whole), proof,
    )  # fmt: skip


def _new_job(whole: Spec, owner: Owner) -> Spec:
    """The Job without the fields that the API server has set, unless its selector was set by hand."""
    if owner.obj is not None and owner.obj.at("spec.manualSelector") is True:
        return whole
    template = {"metadata": {"labels": dict.fromkeys(_OF_JOBS)}, **whole["spec"]["template"]}
    return {"spec": {"selector": None, "template": template}}


def _json(patch: Spec) -> str:
    return json.dumps(patch, ensure_ascii=False, separators=(",", ":"))
