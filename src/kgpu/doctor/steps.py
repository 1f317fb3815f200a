"""Remedies against the state of the cluster: nothing is set to what it is already, and after a change stands how to see
whether it helped.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Final

from kgpu.base.remedy import Remedy
from kgpu.doctor import remedies
from kgpu.doctor.kinds import Pod
from kgpu.doctor.model import Finding
from kgpu.doctor.snapshot import Snapshot

_OR: Final = ", or:"
HELPED: Final = Remedy("see whether it has helped:")
_KUBECTL: Final = r"kubectl (?:-n \S+ )?"
_CHANGING: Final = (
    rf"{_KUBECTL}(?:annotate|apply|cordon|create|delete|drain|edit|label|patch|replace|rollout|run|scale|set|taint|uncordon)\b",
    "amd-smi set", "apt ", "apt-get ", "apt-mark ", "crictl pull", "crictl rmi", "dcgmi profile", "dkms autoinstall",
    "helm (?:install|upgrade|uninstall)", "kgpu cdi generate", "mkdir ", "modprobe ", "nvidia-ctk ", "nvidia-modprobe ",
    r"nvidia-smi (?:-r|-pm|-c|-i \S+ -mig|mig.* -cgi)", "oc adm", "printf ", "setsebool ", r"sh -c .*\brm ",
    "subscription-manager ", "sysctl -w", "systemctl (?:disable|edit|enable|restart|start|stop)", "update-",
)  # fmt: skip
_CHANGES: Final = re.compile(rf"(?:^|[|;&] *)(?:{'|'.join(_CHANGING)})")
_SHOWS: Final = re.compile(
    rf"^(?:{_KUBECTL}(?:auth can-i|describe|exec|explain|get|logs|wait)\b|kgpu (?:cdi list|doctor|health|status|top)\b"
    r"|nvidia-smi (?:-[Lq]|--query|mig -l|nvlink|topo)|journalctl|lsmod|hl-smi|ibstat)"
)
_LABEL: Final = re.compile(r"kubectl label node (?P<node>\S+) (?P<rest>[^&|;]+)")
_CORDON: Final = re.compile(r"kubectl (?P<verb>cordon|uncordon) (?P<node>\S+)")
_EMPTIES: Final = re.compile(r"\bkubectl (?:cordon|drain) (?P<node>\S+)")
_TARGETS: Final = {"Deployment": "deployment", "Job": "job", "ResourceClaim": "claim"}


def changes(step: str) -> bool:
    """Whether a step is a command that changes something."""
    return _CHANGES.search(step) is not None


def shows(step: str) -> bool:
    """Whether a step is a command that shows how things are."""
    return _SHOWS.match(step) is not None and not changes(step)


def without(remedy: tuple[Remedy, ...], needless: Callable[[str], bool]) -> Iterator[Remedy]:
    """The steps but for needless ones; the sentence above such a one goes, too, and another way in it stays."""
    for step, then in itertools.zip_longest(remedy, remedy[1:]):
        if needless(step):
            continue
        if not (step.endswith(":") and then and needless(then)):
            yield step
        elif step.endswith(_OR):
            yield Remedy.again(step.removesuffix(_OR))


def against_the_state(finding: Finding, snapshot: Snapshot) -> Finding:
    """The finding with a remedy that leaves out what is so already, and ends by showing whether it helped."""
    emptied = {hit["node"] for step in finding.remedy for hit in _EMPTIES.finditer(step)}
    remedy = tuple(without(finding.remedy, lambda step: _is_so(step, snapshot, emptied)))
    last = max((position for position, step in enumerate(remedy) if changes(step)), default=-1)
    if last >= 0 and not any(map(shows, remedy[last + 1 :])):
        remedy = (*remedy, HELPED, look(finding, remedy, snapshot))
    return finding if remedy == finding.remedy else replace(finding, remedy=remedy)


def _is_so(step: str, snapshot: Snapshot, emptied: set[str]) -> bool:
    """Whether a step sets what is set; of nodes that nobody has read that is not known."""
    if hit := _CORDON.fullmatch(step):
        node = snapshot.nodes.get(hit["node"])
        if node is None or node.at("spec.unschedulable") is not (True if hit["verb"] == "cordon" else None):
            return False
        return hit["verb"] == "cordon" or hit["node"] not in emptied
    if hit := _LABEL.fullmatch(step):
        node = snapshot.nodes.get(hit["node"])
        words = [word for word in hit["rest"].split() if not word.startswith("--")]
        return node is not None and bool(words) and all(_has(node.labels, word) for word in words)
    return False


def _has(labels: Mapping[str, str], word: str) -> bool:
    """Whether labels are as ``key=value`` or ``key-`` wants them."""
    key, given, value = word.partition("=")
    return labels.get(key) == value if given else word.endswith("-") and word[:-1] not in labels


def look(finding: Finding, remedy: tuple[Remedy, ...], snapshot: Snapshot) -> Remedy:
    """The command that tells whether a finding is still so: the doctor on what it is about, or what comes after it."""
    subject = finding.subject
    if subject.kind == "Node" and subject.name in snapshot.nodes:
        return remedies.ask_doctor(subject.name)
    if subject.kind == "Node" and not snapshot.nodes:
        return Remedy("kgpu doctor --host")
    kind, name = subject.kind, subject.name
    if kind == "Pod" and (pod := snapshot.pods.get((subject.namespace, name))) is not None:
        kind, name = _lasting(pod, remedy, snapshot)
        if not kind and pod.owner and len(finding.nodes) == 1 and finding.nodes[0] in snapshot.nodes:
            return remedies.ask_doctor(finding.nodes[0])
    what = "pod" if kind == "Pod" else _TARGETS.get(kind, "")
    return Remedy("kgpu doctor {} {}/{}", what, subject.namespace, name) if what else Remedy("kgpu doctor")


def _lasting(pod: Pod, remedy: tuple[Remedy, ...], snapshot: Snapshot) -> tuple[str, str]:
    """A pod's owner of a kind that the doctor is asked about, or a pod of nobody that stays; ("", "") for neither."""
    for kind, name, _ in reversed(tuple(snapshot.owners(pod))):
        if kind in _TARGETS:
            return kind, name
    gone = any("delete pod" in step for step in remedy)
    return ("", "") if pod.owner or gone else ("Pod", pod.name)
