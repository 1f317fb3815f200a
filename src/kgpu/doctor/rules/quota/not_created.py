"""Pods that were never created, where no other rule says why: the finding quotes the API server's refusal."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

from kgpu.base.remedy import Remedy
from kgpu.doctor import matching, remedies
from kgpu.doctor.kinds import Event
from kgpu.doctor.model import LIKELY, Finding, Place, Subject
from kgpu.doctor.objects import plain
from kgpu.doctor.rule import rule
from kgpu.doctor.rules.quota.refused import refused
from kgpu.doctor.snapshot import Snapshot

_RESOURCE: Final = re.compile(r"(?:(?:requests|limits)\.)?([a-z0-9][\w.-]{0,120}\.[a-z]+/[\w.-]{1,63})")


_STEPS: Final = (
    (
        re.compile(r"failed quota: (?P<quota>[\w.-]{1,63}): must specify (?P<what>[\w./,-]{1,200})"),
        (
            "put {what} into the resources of every container of its template: quota {quota} counts it",
            "or give the namespace defaults by a LimitRange; what it has:",
            "kubectl -n {namespace} get limitrange,resourcequota {quota} -o yaml",
        ),
    ),
    (
        re.compile(r"serviceaccount \"(?P<what>[\w.-]{1,63})\" not found"),
        (
            "make the account, unless serviceAccountName in its template is wrong:",
            "kubectl -n {namespace} create serviceaccount {what}",
        ),
    ),
    (
        re.compile(r"no PriorityClass with name (?P<what>[\w.-]{1,63}) was found"),
        (
            "make {what}, or name in its template's priorityClassName one of:",
            "kubectl get priorityclasses",
        ),
    ),
    (
        re.compile(r"admission webhook \"(?P<what>[\w.-]{1,200})\" denied"),
        ("make its template as the webhook {what} wants it, or ask whoever runs that webhook",),
    ),
)
"""What is to be done about a refusal, by its words."""


def _steps(event: Event, namespace: str) -> tuple[Remedy, ...]:
    for pattern, steps in _STEPS:
        if hit := pattern.search(event.message):
            words = {key: plain(value) for key, value in hit.groupdict().items()}
            return tuple(Remedy(step, **words, namespace=namespace) for step in steps)
    return (Remedy("kubectl -n {} get resourcequota,limitrange -o yaml", namespace),)


@rule("QTA-00", "Pods are refused", Place.CLUSTER, last_resort=True)
def unmade(snapshot: Snapshot) -> Iterator[Finding]:
    """The API server, a quota or a webhook refuses the pods of a controller that are for GPUs. Reported only where no
    other rule knows why.
    """
    for event in refused(snapshot):
        if not _is_ours(snapshot, event):
            continue
        kind, namespace, name = event.about
        yield Finding(
            subject=Subject(kind, name, namespace),
            cause=f"{kind} {namespace}/{name} lacks pods, which are refused: {event.message}",
            evidence=(event.quote(),),
            remedy=(*_steps(event, namespace), remedies.describe(namespace, kind.lower(), name)),
            confidence=LIKELY,
            since=event.first,
        )


def _is_ours(snapshot: Snapshot, event: Event) -> bool:
    if any(matching.is_accelerator(resource) for resource in _RESOURCE.findall(event.message)):
        return True
    kind, namespace, name = event.about
    maker = snapshot.get(kind, name, namespace)
    if maker is None:
        return False
    return bool(matching.parts_of(maker)) or matching.makes_accelerator_pods(maker)
