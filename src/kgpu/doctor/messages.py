"""Where a pattern stands in what a cluster says, with the quote: logs, Events, states, kernel logs, conditions."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Final

from kgpu.doctor.kinds import Container, Event, Log, Pod
from kgpu.doctor.matching import IMAGE_WORDS, pods_of_part
from kgpu.doctor.model import Evidence
from kgpu.doctor.objects import Key, Obj
from kgpu.doctor.snapshot import Snapshot

_MODULE: Final = "NVRM: "
_SPREAD: Final = 4
"""Lines that a message of NVIDIA's module takes at most."""


@dataclass(frozen=True, slots=True)
class Hit:
    """A text that matched: the pattern's match, and where it stands."""

    match: re.Match[str]
    evidence: Evidence
    pod: Pod | None = None
    node: str = ""


def in_log(log: Log, pattern: re.Pattern[str], words: str) -> Iterator[tuple[int, re.Match[str]]]:
    """The lines that match, the last first. ``words`` is a literal part of every match: it makes the search cheap."""
    for position in range(len(log.lines) - 1, -1, -1):
        line = log.lines[position]
        if words in line and (hit := pattern.search(line)):
            yield position, hit


def in_logs(
    snapshot: Snapshot, pattern: re.Pattern[str], words: str, *, parts: Iterable[str] = (), pods: Iterable[Pod] = ()
) -> Iterator[Hit]:
    """The last match in the log of each pod that is one of ``parts``, or of ``pods``; of every pod when none given."""
    wanted = {pod.key: pod for part in parts for pod in pods_of_part(snapshot, part)} | {pod.key: pod for pod in pods}
    if not wanted and not parts:
        wanted = {key: pod for key in snapshot.logs if (pod := snapshot.pods.get(key))}
    for key, pod in wanted.items():
        # What a container says now counts before what it said before its restart.
        for log in sorted(snapshot.logs.get(key, ()), key=lambda container_log: container_log.previous):
            match = next(in_log(log, pattern, words), None)
            if match is not None:
                yield Hit(match[1], log.cite(match[0]), pod, pod.node)
                break


def in_events(
    snapshot: Snapshot, pattern: re.Pattern[str], words: str, *, kinds: frozenset[str] = frozenset({"Pod"})
) -> Iterator[Hit]:
    """The latest event that matches, for each object of these kinds."""
    latest: dict[tuple[str, str, str], tuple[Event, re.Match[str]]] = {}
    for message, event in snapshot.once(_event_messages):
        if words in message and event.about[0] in kinds and (hit := pattern.search(message)):
            known = latest.get(event.about)
            if known is None or known[0].when <= event.when:
                latest[event.about] = (event, hit)
    for (kind, namespace, name), (event, hit) in latest.items():
        pod = snapshot.pods.get((namespace, name)) if kind == "Pod" else None
        yield Hit(hit, event.quote(), pod, name if kind == "Node" else pod.node if pod else "")


def _event_messages(snapshot: Snapshot) -> list[tuple[str, Event]]:
    return [(event.message, event) for event in snapshot.all_events()]


def in_status(snapshot: Snapshot, pattern: re.Pattern[str], words: str) -> Iterator[Hit]:
    """Pods of which a container's state, or the pod's own status, has a message that matches."""
    told: set[Key] = set()
    for message, pod, container, field in snapshot.once(_messages):
        if words in message and pod.key not in told and (hit := pattern.search(message)):
            told.add(pod.key)
            yield Hit(hit, _cited(pod, container, field, pattern), pod, pod.node)


def _cited(pod: Pod, container: Container | None, field: str, pattern: re.Pattern[str]) -> Evidence:
    """The message, with its author: the kubelet and the engine quote the program's name and the image's, so that what
    they say of a container is the words of whoever chose them, unless it is of a pull and the image's name is innocent.
    """
    if container is None:
        return pod.cite(field)
    found = container.cite_status(field)
    pulls = container.waiting in IMAGE_WORDS and not container.is_own_message(field)
    return found if pulls and not pattern.search(container.image) else replace(found, author=pod.namespace)


def _messages(snapshot: Snapshot) -> list[tuple[str, Pod, Container | None, str]]:
    """Every message in the status of a pod and its field, the pod's own before its containers'."""
    found: list[tuple[str, Pod, Container | None, str]] = []
    for pod in snapshot.pods.values():
        if pod.message:
            found.append((pod.message, pod, None, "status.message"))
        if not pod.ready:
            found += [(said, pod, one, field) for one in pod.containers for field, said in one.messages]
    return found


def in_kernel_logs(snapshot: Snapshot, pattern: re.Pattern[str], words: str) -> Iterator[Hit]:
    """The last match in each node's kernel log, also where the driver has spread its message over lines."""
    for host in snapshot.hosts.values():
        lines = host.kernel_log or ()
        messages = snapshot.once(_kernel_messages)[host.node]
        for position in range(len(lines) - 1, -1, -1):
            if words in messages[position] and (hit := pattern.search(messages[position])):
                cited = host.cite_log(position)
                spread = hit.end() > len(lines[position])
                yield Hit(hit, replace(cited, value=messages[position]) if spread else cited, None, host.node)
                break


def _kernel_messages(snapshot: Snapshot) -> dict[str, list[str]]:
    return {host.node: _together(host.kernel_log or ()) for host in snapshot.hosts.values()}


def _together(lines: tuple[str, ...]) -> list[str]:
    """Each line, and what NVIDIA's module says in the lines after one of its own: it breaks its longer messages at some
    60 characters, and each part is a line of the log.
    """
    parts = [line.partition(_MODULE) for line in lines]
    messages: list[str] = []
    for position, line in enumerate(lines):
        following = itertools.takewhile(lambda part: part[1], parts[position + 1 : position + _SPREAD])
        rest = [said.strip() for _, _, said in following] if parts[position][1] else []
        messages.append(" ".join((line.rstrip(), *rest)) if rest else line)
    return messages


def in_conditions(
    snapshot: Snapshot,
    pattern: re.Pattern[str],
    *,
    kinds: Iterable[str] = ("ClusterPolicy", "NVIDIADriver", "GPUCluster"),
) -> Iterator[tuple[Obj, re.Match[str], Evidence]]:
    """Objects of which a condition's reason or message matches, each with the first that does."""
    for kind in kinds:
        for obj in snapshot.all(kind):
            for condition in obj.conditions():
                if hit := pattern.search(f"{condition.reason}: {condition.message}"):
                    yield obj, hit, condition.cite()
                    break
