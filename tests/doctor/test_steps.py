"""Over all examples: a change is followed by how to see whether it helped, and nothing is set to what it is already.

Both are worked out here from the words of the commands and the example's objects, and not asked of the doctor.
"""

from __future__ import annotations

import copy
import json
import shlex
from collections.abc import Iterator
from typing import Any

import pytest

from kgpu.base.remedy import Remedy, is_command
from kgpu.doctor.model import Finding, Subject
from kgpu.doctor.plan import diagnose
from kgpu.doctor.snapshot import Snapshot
from kgpu.doctor.steps import against_the_state, without
from tests.doctor.example import FOLDER, Example, all_examples, load, merged
from tests.doctor.pasting import simple

CHANGING = {
    "kubectl": [
        "annotate",
        "apply",
        "cordon",
        "create",
        "delete",
        "drain",
        "edit",
        "label",
        "patch",
        "replace",
        "rollout",
        "run",
        "scale",
        "set",
        "taint",
        "uncordon",
    ],
    "helm": ["install", "upgrade", "uninstall"],
    "systemctl": ["disable", "enable", "restart", "start", "stop", "edit"],
    "apt": ["install", "remove"],
    "apt-get": ["install"],
    "modprobe": [],
}
"""What changes something, by program; [] for whatever it is told."""
LOOKS = {"get", "describe", "logs", "wait", "doctor", "status", "health", "top", "explain", "exec", "can-i", "list"}
KINDS = (
    "ClusterPolicy",
    "Deployment",
    "DaemonSet",
    "StatefulSet",
    "Job",
    "Pod",
    "DeviceConfig",
    "DeviceClass",
    "Service",
)
ARGUMENTS = {"-n", "-c", "--type", "-p", "-o", "-f"}


def verb(words: list[str]) -> str:
    """Of ``kubectl -n ml patch …`` patch."""
    rest = iter(words[1:])
    for word in rest:
        if word in ARGUMENTS:
            next(rest, None)
        elif not word.startswith("-"):
            return word
    return ""


def changes(step: str) -> bool:
    for command in simple(step) if is_command(step) else ():
        words = [word.whole for word in command]
        if words[0] in CHANGING and (not CHANGING[words[0]] or verb(words) in CHANGING[words[0]]):
            return True
    return False


def looks(step: str) -> bool:
    return is_command(step) and not changes(step) and (bool(set(shlex.split(step)) & LOOKS) or "nvidia-smi" in step)


def found(example: Example) -> Iterator[tuple[Finding, Snapshot]]:
    snapshot = example.snapshot(example.broken)
    for root in diagnose(snapshot, strict=True).findings:
        yield from ((one, snapshot) for one in root.all())


@pytest.mark.parametrize("example", all_examples(), ids=lambda one: one.name)
def test_a_change_is_followed_by_how_to_see_whether_it_helped(example: Example) -> None:
    for one, _ in found(example):
        changing = [number for number, step in enumerate(one.remedy) if changes(step)]
        assert not changing or any(map(looks, one.remedy[changing[-1] + 1 :])), one.remedy


@pytest.mark.parametrize("example", all_examples(), ids=lambda one: one.name)
def test_nothing_is_set_to_what_it_is(example: Example) -> None:
    for one, snapshot in found(example):
        assert [step for step in one.remedy if set_already(step, snapshot)] == []


def set_already(step: str, snapshot: Snapshot) -> bool:
    """Whether a line is one command that leaves the objects as they are."""
    commands = simple(step) if is_command(step) else []
    if len(commands) != 1 or commands[0][0].whole != "kubectl":
        return False
    words = [word.whole for word in commands[0]]
    namespace = words[words.index("-n") + 1] if "-n" in words else ""
    rest = words[words.index(verb(words)) :]
    check = {"label": labelled, "taint": tainted, "cordon": cordoned, "patch": patched, "scale": scaled}.get(rest[0])
    return check is not None and check(rest, namespace, snapshot)


def labelled(words: list[str], _: str, snapshot: Snapshot) -> bool:
    node = snapshot.nodes.get(words[2])
    pairs = [word for word in words[3:] if not word.startswith("--")]
    if node is None or words[1] != "node" or not pairs:
        return False
    return all(node.labels.get(key) == (value if sign else None) for key, sign, value in (
        (pair.removesuffix("-").partition("=")) for pair in pairs
    ))  # fmt: skip


def tainted(words: list[str], _: str, snapshot: Snapshot) -> bool:
    node = snapshot.nodes.get(words[2])
    if node is None or len(words) != 4:
        return False
    keys = {str(taint.get("key")) for taint in node.taints}
    key = words[3].removesuffix("-").partition(":")[0].partition("=")[0]
    return key not in keys if words[3].endswith("-") else False


def cordoned(words: list[str], _: str, snapshot: Snapshot) -> bool:
    node = snapshot.nodes.get(words[1])
    return node is not None and node.at("spec.unschedulable") is True


def scaled(words: list[str], namespace: str, snapshot: Snapshot) -> bool:
    obj = named(words[1], words[2], namespace, snapshot)
    count = next(word.partition("=")[2] for word in words if word.startswith("--replicas="))
    return obj is not None and str(obj.get("spec", {}).get("replicas", 1)) == count


def patched(words: list[str], namespace: str, snapshot: Snapshot) -> bool:
    obj = named(words[1], words[2], namespace, snapshot)
    patch = json.loads(words[words.index("-p") + 1])
    return obj is not None and isinstance(patch, dict) and after(obj, patch) == obj


def named(kind: str, name: str, namespace: str, snapshot: Snapshot) -> dict[str, Any] | None:
    whole = {one.lower(): one for one in KINDS}.get(kind, kind)
    obj = snapshot.get(whole, name, namespace)
    return obj.data if obj is not None else None


def after(value: Any, patch: Any) -> Any:
    """What a merge patch makes of it."""
    if not isinstance(patch, dict):
        return patch
    made = copy.deepcopy(value) if isinstance(value, dict) else {}
    for key, one in patch.items():
        if one is None:
            made.pop(key, None)
        else:
            made[key] = after(made.get(key), one)
    return made


def test_what_is_so_already_is_left_out_with_the_sentence_above_it() -> None:
    example = load(FOLDER / "DPL-06.yaml")
    usual = diagnose(example.snapshot(example.broken)).findings[0].remedy
    assert "kubectl cordon gpu-1" in usual
    more = {"kind": "Node", "metadata": {"name": "gpu-1"}, "spec": {"unschedulable": True}}
    again = diagnose(example.snapshot(merged([*example.broken, more]))).findings[0].remedy
    assert "kubectl cordon gpu-1" not in again
    assert not any(step.startswith("until the GPU is mended") for step in again)


def test_a_label_is_set_where_it_is_not_and_an_uncordon_stays_behind_a_cordon() -> None:
    node = {"kind": "Node", "metadata": {"name": "n", "labels": {"a": "b"}}, "spec": {}}
    snapshot = Snapshot.of([node])

    def left(*steps: str) -> list[str]:
        told = Finding(subject=Subject("Node", "n"), cause="c", remedy=steps)
        return list(against_the_state(told, snapshot).remedy)

    look = ["see whether it has helped:", "kgpu doctor node n"]
    assert left("on it:", "kubectl label node n a=b --overwrite") == []
    assert left("kubectl label node n a=c --overwrite") == ["kubectl label node n a=c --overwrite", *look]
    assert left("kubectl label node n other-") == []
    assert left("kubectl label node n a- && kubectl label node n a=b")[1:] == look
    assert left("kubectl uncordon n") == []
    assert left("kubectl cordon n", "kubectl uncordon n") == ["kubectl cordon n", "kubectl uncordon n", *look]
    assert left("kubectl cordon n", "kubectl get nodes") == ["kubectl cordon n", "kubectl get nodes"]


def test_a_sentence_that_names_another_way_stays_with_that() -> None:
    both = (
        Remedy("use strategy mixed, or:"),
        Remedy("kubectl label node n a=b"),
        Remedy("in any case:"),
        Remedy("kgpu doctor"),
    )
    left = list(without(both, lambda step: "label" in step))
    assert left == ["use strategy mixed", "in any case:", "kgpu doctor"]
    assert list(without(both, lambda _step: False)) == list(both)
