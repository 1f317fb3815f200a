"""A drain that is proposed works on the node as it is, and says whom it ends for good."""

from __future__ import annotations

from typing import Any

import pytest

from kgpu.doctor import remedies
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
def test_bare_pods_are_named_above_it_and_nothing_is_forced(step: str) -> None:
    found = steps(step, pod("hold"), pod("debug"), pod("serve-1", **OWNED), pod("etcd", **STATIC), pod("old", "Failed"))
    assert found[1:] == (step,)
    assert found[0].endswith("end them first: ml/hold, ml/debug")


def test_pods_with_an_owner_are_no_obstacle() -> None:
    assert steps(DRAIN, pod("serve-1", **OWNED)) == (DRAIN,)


def test_what_is_to_be_done_after_it_stands_below_the_command() -> None:
    finding = Finding(subject=Subject("Node", "gpu-1"), cause="x", remedy=remedies.reboot("gpu-1"))
    assert with_bare_pods(finding, Snapshot()).remedy == (DRAIN, "then reboot it")
    assert with_bare_pods(finding, Snapshot.of([pod("hold")])).remedy[1:] == (DRAIN, "then reboot it")


def test_many_are_counted() -> None:
    pods = [pod(f"p{number}") for number in range(20)]
    assert len(bare_pods(Snapshot.of(pods), "gpu-1")) == 20
    assert steps(DRAIN, *pods)[0].endswith("ml/p7 and 12 more")


@pytest.mark.parametrize(
    "step", ["drain the node, then reboot it", "kubectl drain", "no reset, no drain", "kubectl cordon gpu-1"]
)
def test_other_words_stay(step: str) -> None:
    assert steps(step, pod("hold")) == (step,)
