"""A drain that is proposed works on the node as it is, and says whom it ends for good."""

from __future__ import annotations

from typing import Any

import pytest

from kgpu.doctor.draining import bare_pods, with_bare_pods
from kgpu.doctor.model import Finding, Subject
from kgpu.doctor.snapshot import Snapshot

DRAIN = "kubectl drain gpu-1 --ignore-daemonsets --delete-emptydir-data"
OWNED = {"ownerReferences": [{"kind": "ReplicaSet", "name": "serve", "controller": True}]}
STATIC = {"annotations": {"kubernetes.io/config.mirror": "x"}}


def pod(name: str, phase: str = "Running", **metadata: Any) -> dict[str, Any]:
    return {
        "kind": "Pod", "metadata": {"name": name, "namespace": "ml", **metadata}, "spec": {"nodeName": "gpu-1"},
        "status": {"phase": phase},
    }  # fmt: skip


def steps(step: str, *pods: dict[str, Any]) -> tuple[str, ...]:
    finding = Finding(subject=Subject("Node", "gpu-1"), cause="x", remedy=(step,))
    return with_bare_pods(finding, Snapshot.of(pods)).remedy


@pytest.mark.parametrize("step", [DRAIN, f"end what is shown: {DRAIN}"])
def test_bare_pods_are_named_and_forced(step: str) -> None:
    found = steps(step, pod("hold"), pod("debug"), pod("serve-1", **OWNED), pod("etcd", **STATIC), pod("old", "Failed"))
    assert found == (f"{step} --force # --force ends for good, for nobody makes them again: ml/hold, ml/debug",)


def test_nothing_is_forced_without_need() -> None:
    assert steps(DRAIN, pod("serve-1", **OWNED)) == (DRAIN,)


def test_what_is_to_be_done_after_it_does_not_spoil_the_command() -> None:
    assert steps(f"{DRAIN}, then reboot it") == (f"{DRAIN} # then reboot it",)
    (line,) = steps(f"{DRAIN}, then reboot it", pod("hold"))
    assert line.startswith(f"{DRAIN} --force # then reboot it; --force ends")


def test_many_are_counted() -> None:
    pods = [pod(f"p{number}") for number in range(20)]
    assert len(bare_pods(Snapshot.of(pods), "gpu-1")) == 20
    assert steps(DRAIN, *pods)[0].endswith("ml/p7 and 12 more")


@pytest.mark.parametrize(
    "step", ["drain the node, then reboot it", "kubectl drain", "no reset, no drain", "kubectl cordon gpu-1"]
)
def test_other_words_stay(step: str) -> None:
    assert steps(step, pod("hold")) == (step,)
