"""The commands that several rules propose: each kind is built in one place, and what is put into it stays one word."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kgpu.base.remedy import Remedy
from kgpu.doctor import remedies
from tests.budget import tries
from tests.doctor.pasting import problems

FOLDER = Path(remedies.__file__).parent
HOSTILE = st.text(st.sampled_from("ab-./ \t\n'\"`$\\;&|<>(){}[]*?!#~=%,:@é\u2028"), min_size=1, max_size=12)
BUILT: dict[str, tuple[Callable[[str, str, str], Remedy], Callable[[str, str, str], list[str]]]] = {
    "drain": (
        lambda a, b, c: remedies.drain(a),
        lambda a, b, c: ["kubectl", "drain", a, "--ignore-daemonsets", "--delete-emptydir-data"],
    ),
    "cordon": (lambda a, b, c: remedies.cordon(a), lambda a, b, c: ["kubectl", "cordon", a]),
    "uncordon": (lambda a, b, c: remedies.uncordon(a), lambda a, b, c: ["kubectl", "uncordon", a]),
    "label": (lambda a, b, c: remedies.label(a, b, c), lambda a, b, c: ["kubectl", "label", "node", a, f"{b}={c}"]),
    "label anew": (
        lambda a, b, c: remedies.label(a, b, c, anew=True),
        lambda a, b, c: ["kubectl", "label", "node", a, f"{b}={c}", "--overwrite"],
    ),
    "labels": (
        lambda a, b, c: remedies.labels(a, b, c),
        lambda a, b, c: ["kubectl", "label", "node", a, "--overwrite", b, c],
    ),
    "relabel": (
        lambda a, b, c: remedies.relabel(a, b, c),
        lambda a, b, c: ["kubectl", "label", "node", a, f"{b}-", "&&", "kubectl", "label", "node", a, f"{b}={c}"],
    ),
    "unlabel": (lambda a, b, c: remedies.unlabel(a, b), lambda a, b, c: ["kubectl", "label", "node", a, f"{b}-"]),
    "taint": (lambda a, b, c: remedies.taint(a, b, c), lambda a, b, c: ["kubectl", "taint", "node", a, b, c]),
    "describe node": (lambda a, b, c: remedies.describe_node(a), lambda a, b, c: ["kubectl", "describe", "node", a]),
    "node field": (
        lambda a, b, c: remedies.node_field(a, b),
        lambda a, b, c: ["kubectl", "get", "node", a, "-o", f"jsonpath={{.{b}}}"],
    ),
    "pods on": (
        lambda a, b, c: remedies.pods_on(a, wide=True),
        lambda a, b, c: ["kubectl", "get", "pods", "-A", "-o", "wide", "--field-selector", f"spec.nodeName={a}"],
    ),
    "run in": (
        lambda a, b, c: remedies.run_in(a, b, c),
        lambda a, b, c: ["kubectl", "-n", a, "exec", b, "--", c],
    ),
    "delete pods": (
        lambda a, b, c: remedies.delete_pod(a, b, c),
        lambda a, b, c: ["kubectl", "-n", a, "delete", "pod", b, c],
    ),
    "move a pod": (
        lambda a, b, c: remedies.move_pod(a, b, c),
        lambda a, b, c: ["kubectl", "cordon", f"{a};", "kubectl", "-n", b, "delete", "pod", f"{c};", "kubectl",
                         "uncordon", a],
    ),
    "delete": (lambda a, b, c: remedies.delete(a, b, c), lambda a, b, c: ["kubectl", "-n", a, "delete", b, c]),
    "describe": (lambda a, b, c: remedies.describe(a, b, c), lambda a, b, c: ["kubectl", "-n", a, "describe", b, c]),
    "edit": (lambda a, b, c: remedies.edit(a, b, c), lambda a, b, c: ["kubectl", "-n", a, "edit", b, c]),
    "logs": (
        lambda a, b, c: remedies.logs(a, b, "-c", c, "--tail=50"),
        lambda a, b, c: ["kubectl", "-n", a, "logs", b, "-c", c, "--tail=50"],
    ),
    "patch": (
        lambda a, b, c: remedies.patch(a, "job", b, {"spec": True}),
        lambda a, b, c: ["kubectl", "-n", a, "patch", "job", b, "--type", "merge", "-p", '{"spec":true}'],
    ),
    "patch the policy": (
        lambda a, b, c: remedies.patch_policy(a, {"spec": None}),
        lambda a, b, c: ["kubectl", "patch", "clusterpolicy", a, "--type", "merge", "-p", '{"spec":null}'],
    ),
    "restart a DaemonSet": (
        lambda a, b, c: remedies.restart_daemonset(a, b),
        lambda a, b, c: ["kubectl", "-n", a, "rollout", "restart", "daemonset", b],
    ),
    "scale": (
        lambda a, b, c: remedies.scale(a, b, c, 2),
        lambda a, b, c: ["kubectl", "-n", a, "scale", b, c, "--replicas=2"],
    ),
    "set env": (lambda a, b, c: remedies.set_env(a, b, c), lambda a, b, c: ["kubectl", "-n", a, "set", "env", b, c]),
    "a ConfigMap of a file": (
        lambda a, b, c: remedies.config_map_of_file(a, b, c),
        lambda a, b, c: ["kubectl", "-n", a, "create", "configmap", b, f"--from-file={c}=FILE", "--dry-run=client",
                         "-o", "yaml", "|", "kubectl", "apply", "-f", "-"],
    ),
    "restart a service": (lambda a, b, c: remedies.restart_service(a), lambda a, b, c: ["systemctl", "restart", a]),
    "the doctor": (lambda a, b, c: remedies.ask_doctor(a), lambda a, b, c: ["kgpu", "doctor", "node", a]),
}  # fmt: skip


@pytest.mark.parametrize("kind", BUILT)
@tries(40)
@given(HOSTILE, HOSTILE, HOSTILE)
def test_whatever_is_put_into_a_command_stays_one_word(kind: str, a: str, b: str, c: str) -> None:
    make, words = BUILT[kind]
    assert shlex.split(make(a, b, c)) == words(a, b, c)


@given(HOSTILE)
def test_a_patch_stays_json_and_one_word(value: str) -> None:
    step = remedies.patch("ml", "job", "train", {"spec": {value: [value]}})
    assert json.loads(shlex.split(step)[-1]) == {"spec": {value: [value]}}


def test_a_row_is_filled_with_what_is_known_and_the_rest_when_it_is_found() -> None:
    row = remedies.filled(remedies.LABEL_ANEW, key="nvidia.com/mig.config", value="NAME")
    assert row == "kubectl label node {node} nvidia.com/mig.config=NAME --overwrite"
    assert Remedy(row, node="gpu 1") == "kubectl label node 'gpu 1' nvidia.com/mig.config=NAME --overwrite"
    assert remedies.filled("a {b}", b="c d{e}") == "a 'c d{{e}}'"


def test_a_row_that_patches_the_policy_gives_the_same_command() -> None:
    spec = {"driver": {"kernelModuleType": "open"}}
    assert Remedy(remedies.policy_row(spec), policy="a b") == remedies.patch_policy("a b", {"spec": spec})


def test_a_reboot_is_a_drain_and_what_comes_after_it() -> None:
    assert remedies.reboot("gpu-1") == (remedies.drain("gpu-1"), "then reboot it")
    assert remedies.reboot("gpu-1", "reseat the card")[1] == "then reboot it; reseat the card"
    assert tuple(Remedy(step, node="gpu-1") for step in remedies.REBOOT) == remedies.reboot("gpu-1")


@given(HOSTILE, st.text(st.sampled_from("ab $(;'\"#"), max_size=9))
def test_a_sentence_about_a_command_changes_none_of_its_words(node: str, sentence: str) -> None:
    step = remedies.drain(node).why(sentence)
    assert shlex.split(step, comments=True) == shlex.split(remedies.drain(node))


def test_each_can_be_pasted() -> None:
    for make, _ in BUILT.values():
        told = ["with the file in place of FILE:", make("a", "b", "c")]
        assert list(problems(told)) == []


ONCE = (
    r"kubectl drain", r"delete pod \{", r"kubectl cordon \{", r"kubectl uncordon \{", r"patch clusterpolicy",
    r"rollout restart", r"label node \{", r"taint node \{", r"describe node \{", r"describe (?:pod|daemonset|job|pvc) ",
    r"get pods -A(?: -o wide)? --field-selector spec\.nodeName=\{", r"set env", r"--replicas=",
    r"edit (?:configmap|limitrange|resourcequota|\{kind\}) \{",
    r"\"systemctl restart (?:kubelet|nvidia-fabricmanager|\{\})", r"\"kgpu doctor node \{", r"\"kgpu xid \{\w*\}\"",
    r"helm upgrade gpu-operator \S+ -n gpu-operator --reuse-values", r"--dry-run=client", r"-n \{(?:namespace)?\} logs",
    r"-n \{(?:namespace)?\} exec", r"-n \S+ patch \S+ \S+ --type merge",
)  # fmt: skip


@pytest.mark.parametrize("kind", ONCE)
def test_a_kind_of_command_is_written_in_one_place(kind: str) -> None:
    """Words for users that only name one (``kubectl describe node``) are no command."""
    found = {path.name for path in FOLDER.rglob("*.py") if re.search(kind, path.read_text())}
    assert found == {"remedies.py"}, kind
