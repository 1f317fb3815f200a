"""Which pods the driver manager evicts: those that the engine's drain takes too, but for what is said here."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from kgpu.drivermanager.eviction import of_all_pods, of_gpu_pods
from kgpu.drivermanager.model import read_pod as local_pod
from kgpu.formats import names
from kgpu.formats.crd.nodeoperation import OperationDrain
from kgpu.kube.port import Object
from kgpu.operations.drain import Evicted, Fate, fate
from kgpu.operations.model import read_pod as node_pod
from tests.drivermanager.made import SETTINGS, pod

SKIP = {names.DRIVER_UPGRADE_DRAIN_SKIP: "true"}
SCRATCH = [{"name": "scratch", "emptyDir": {}}]
KNOWN = Evicted(
    daemon_sets={("default", "owner"): True, ("default", "gone"): False}, cordoned_at=1_700_000_000.0,
    exchanges_driver=True,
)  # fmt: skip


def made(*, labels: dict[str, str] | None = None, phase: str = "Running", name: str = "p", **given: Any) -> Object:
    obj = pod(name, **given)
    return {**obj, "metadata": {**obj["metadata"], "labels": labels or {}}, "status": {"phase": phase}}


def of_daemon_set_that_is_gone() -> Object:
    obj = made(owner="DaemonSet")
    owners = [{"kind": "DaemonSet", "name": "gone", "controller": True}]
    return {**obj, "metadata": {**obj["metadata"], "ownerReferences": owners}}


def later() -> Object:
    tolerations = [{"key": "node.kubernetes.io/unschedulable", "operator": "Exists"}]
    obj = made(gpus=1, tolerations=tolerations)
    return {**obj, "metadata": {**obj["metadata"], "creationTimestamp": "2033-11-14T22:13:20Z"}}


PODS: dict[str, Object] = {
    "with a GPU": made(gpus=1),
    "without": made(),
    "of an init container": made(initContainers=[{"name": "i", "resources": {"limits": {"nvidia.com/gpu": "1"}}}]),
    "with a slice": made(containers=[{"name": "c", "resources": {"limits": {"nvidia.com/mig-1g.5gb": "1"}}}]),
    "with a claim": made(resourceClaims=[{"name": "gpu"}]),
    "with a GPU and the label to skip": made(gpus=1, labels=SKIP),
    "with the label to skip": made(labels=SKIP),
    "of no controller": made(gpus=1, owner=""),
    "with an emptyDir": made(gpus=1, volumes=SCRATCH),
    "of no controller, without a GPU": made(owner=""),
    "with an emptyDir, without a GPU": made(volumes=SCRATCH),
    "selected": made(labels={"app": "batch", "tier": "b"}),
    "not selected": made(labels={"app": "batch"}),
    "a DaemonSet's": made(gpus=1, owner="DaemonSet"),
    "a mirror": {
        **made(gpus=1),
        "metadata": {**made()["metadata"], "annotations": {names.MIRROR_ANNOTATION: "hash"}},
    },
}
OTHERWISE: dict[str, Object] = {
    "at its end": made(gpus=1, phase="Succeeded"),
    "of a DaemonSet that is gone": of_daemon_set_that_is_gone(),
    "that came after the cordon": later(),
}
SELECTORS = ("", "app=batch,tier in (a,b)", "tier,!nope")


def both(obj: Object, *, whole: bool, force: bool, empty_dirs: bool, selector: str) -> tuple[str, str]:
    """What the engine's drain does with a pod, and what the manager does."""
    drain = OperationDrain(
        only_gpu_pods=not whole, force=force, delete_empty_dir_data=empty_dirs, pod_selector=selector if whole else ""
    )
    settings = replace(SETTINGS, force=force, delete_empty_dir=empty_dirs, selector=selector)
    found = (of_all_pods if whole else of_gpu_pods)([local_pod(obj)], settings)
    manager = Fate.EVICT if found.going else Fate.REFUSE if found.refused else Fate.LEAVE
    return str(fate(node_pod(obj), drain, KNOWN).fate), str(manager)


@pytest.mark.parametrize("kind", PODS)
@pytest.mark.parametrize("whole", [False, True], ids=["pods with GPUs", "a drain"])
@pytest.mark.parametrize("force", [False, True])
@pytest.mark.parametrize("empty_dirs", [False, True])
def test_it_takes_the_pods_that_the_engines_drain_takes(kind: str, whole: bool, force: bool, empty_dirs: bool) -> None:
    for selector in SELECTORS:
        engine, manager = both(PODS[kind], whole=whole, force=force, empty_dirs=empty_dirs, selector=selector)
        assert engine == manager, selector


def test_the_kinds_that_differ_do() -> None:
    """Each difference is said in the module: this fails when one of them goes."""
    found = {kind: both(obj, whole=True, force=True, empty_dirs=True, selector="") for kind, obj in OTHERWISE.items()}
    assert found == {
        "at its end": ("evict", "leave"),
        "of a DaemonSet that is gone": ("evict", "leave"),
        "that came after the cordon": ("leave", "evict"),
    }


def test_a_selector_is_one_of_sets_too() -> None:
    chosen = of_all_pods(
        [local_pod(made(labels={"tier": tier}, name=tier)) for tier in "abc"],
        replace(SETTINGS, selector="tier in (a,b)"),
    )
    assert [one.name for one in chosen.going] == ["a", "b"]
