"""Policies as they are in force, overrides that can only be gentler, and workloads as their devices make them."""

from __future__ import annotations

from typing import Any

import pytest

from kgpu.formats.usage import UsageState
from kgpu.usage.now import DeviceNow, HolderNow
from kgpu.usage.reclaim.model import (
    OBSERVER,
    PolicyReading,
    ReclaimMode,
    ReclaimPolicy,
    WorkloadRef,
    idle_nodes,
    in_force,
    policy_for,
    read_policy,
    workloads,
)
from kgpu.usage.states import UsageVerdict


def reading(name: str = "p", **spec: Any) -> PolicyReading:
    return read_policy({"metadata": {"name": name}, "spec": spec}, "gpu-operator")


def policy(name: str = "p", **spec: Any) -> ReclaimPolicy:
    found = reading(name, **spec).policy
    assert found is not None
    return found


def override(**spec: Any) -> dict[str, Any]:
    return {"metadata": {"name": "o", "namespace": "a"}, "spec": spec}


def test_a_policy_observes_unless_it_says_otherwise() -> None:
    found = policy()
    assert found.mode is ReclaimMode.OBSERVE
    assert (found.stop.idle_below, found.stop.window, found.grace) == (0.01, 7200.0, 1800.0)
    assert (found.notice.idle_below, found.notice.window, found.node_after) == (0.05, 3600.0, 1800.0)


@pytest.mark.parametrize(
    ("spec", "what", "expected"),
    [
        ({"mode": "reclam"}, 'spec.mode is "reclam"', 'did you mean "reclaim"?'),
        ({"protekt": {}}, "spec.protekt is not a field", "fields of a GPUUsagePolicy"),
        ({"idle": {"aftr": "1h"}}, 'did you mean "after"?', "fields of a GPUUsagePolicy"),
        ({"mode": "reclaim"}, "would reclaim in every namespace", "spec.namespaces"),
        ({"namespaces": ["kube-system"]}, "spec.namespaces names kube-system", "no namespace of the system"),
        ({"namespaces": ["gpu-operator"]}, "spec.namespaces names gpu-operator", "of kgpu itself"),
        ({"reclaim": {"after": "10m"}}, "spec.reclaim.after is 10m", "at least 30m"),
        ({"reclaim": {"grace": "1m"}}, "spec.reclaim.grace is 1m", "at least 5m"),
        ({"reclaim": {"after": "2 h"}}, 'spec.reclaim.after is "2 h"', "a text that matches"),
        ({"schedule": {"hours": "18:00-08:00"}}, "spec.schedule.hours is 18:00-08:00", "a begin that is before"),
        ({"schedule": {"timeZone": "Europe/Berlim"}}, "spec.schedule.timeZone is 'Europe/Berlim'", "a time zone"),
        ({"schedule": {"timeZone": "../../etc/passwd"}}, "spec.schedule.timeZone is", "a time zone"),
        ({"notify": [{"type": "irc", "secretRef": {"name": "a"}}]}, 'type is "irc"', "slack or teams or webhook"),
        ({"budget": {"perMinute": 0}}, "spec.budget.perMinute is 0", "a number from 1"),
    ],
)  # fmt: skip
def test_what_can_t_be_right_is_refused_in_three_parts(spec: dict[str, Any], what: str, expected: str) -> None:
    found = reading(**spec)
    assert found.policy is None
    assert found.problem is not None
    assert what in found.problem.what
    assert expected in found.problem.why
    assert "kubectl edit gpuusagepolicy p" in found.problem.remedy


def test_an_override_is_only_ever_gentler() -> None:
    strict = policy(mode="reclaim", namespaces=["a"])
    found, _ = policy_for(
        [PolicyReading(name="p", policy=strict)],
        [override(mode="notify", idleAfter="30m", reclaimAfter="8h", grace="10m", protectLabels={"x": "y"})], "a",
    )  # fmt: skip
    assert found.mode is ReclaimMode.NOTIFY
    assert (found.notice.window, found.stop.window, found.grace) == (3600.0, 28_800.0, 1800.0)
    assert found.protect.labels == {"x": "y"}
    assert [told.partition(": ")[2] for told in found.told_of] == [
        "idleAfter is shorter than the policy's and not followed", "grace is shorter than the policy's and not followed",
    ]  # fmt: skip


def test_an_override_can_t_make_a_policy_act() -> None:
    found, _ = policy_for([reading(mode="notify", namespaces=["a"])], [override(mode="reclaim")], "a")
    assert found.mode is ReclaimMode.NOTIFY
    assert "stronger than the policy's" in found.told_of[0]


def test_an_override_that_can_t_be_read_lets_nothing_happen() -> None:
    found, _ = policy_for([reading(mode="reclaim", namespaces=["a"])], [override(mod="notify")], "a")
    assert found.mode is ReclaimMode.OBSERVE
    assert "did you mean" in found.told_of[0]


def test_which_policy_is_about_a_namespace() -> None:
    wide, own, other = reading("wide", mode="notify"), reading("own", namespaces=["a"]), reading("b", namespaces=["b"])
    assert in_force([wide, own, other], "a")[0].name == "own"
    assert in_force([wide, own, other], "c")[0].name == "wide"
    assert in_force([own], "c") == (OBSERVER, "")
    twin = reading("twin", mode="reclaim", namespaces=["a"])
    assert in_force([own, twin], "a") == (own.policy, "the policies own and twin are about the same namespace")
    policy, why = in_force([own, reading("x", reclaim={"after": "10m"})], "a")
    assert policy == own.policy
    assert why == (
        "GPUUsagePolicy x can't be used: spec.reclaim.after is 10m; expected at least 30m, and at most 27777h; to do: "
        "correct it (`kubectl edit gpuusagepolicy x`)"
    )


def device(node: str, name: str, state: UsageState, *holders: HolderNow, **more: Any) -> DeviceNow:
    verdict = UsageVerdict(state=state, why="", coverage=more.pop("coverage", 1.0), idle_since=more.pop("since", None))
    return DeviceNow(node=node, device=name, verdict=verdict, holders=holders, **more)


def holder(pod: str, owner: str = "Deployment/d", **more: Any) -> HolderNow:
    return HolderNow(namespace="a", pod=pod, uid=pod, owner=owner, held_since=1.0, **more)


def test_a_workload_is_as_idle_as_the_last_of_its_devices() -> None:
    idle, busy = UsageState.HELD_IDLE, UsageState.BUSY
    one = device("n", "1", idle, holder("p"), since=100.0)
    (found,) = workloads([one, device("m", "2", idle, holder("q"), since=200.0, coverage=0.95)]).values()
    assert (found.ref, found.state, found.idle_since, found.coverage) == (
        WorkloadRef("a", "Deployment", "d"),
        idle,
        200.0,
        0.95,
    )
    (mixed,) = workloads([one, device("n", "2", busy, holder("p"))]).values()
    assert (mixed.idle, mixed.state) == (False, busy)
    (unsure,) = workloads(
        [one, device("n", "2", busy, holder("p")), device("n", "3", UsageState.UNKNOWN, holder("p"))]
    ).values()
    assert unsure.state is UsageState.UNKNOWN
    (waits,) = workloads([device("n", "2", UsageState.WAITING, holder("p")), one]).values()
    assert (waits.state, waits.idle) == (UsageState.WAITING, False)
    (works,) = workloads(
        [device("n", "2", UsageState.WAITING, holder("p")), device("n", "3", busy, holder("p"))]
    ).values()
    assert works.state is busy
    (hung,) = workloads([one, device("n", "2", UsageState.HUNG, holder("p"))]).values()
    assert hung.state is UsageState.HUNG


def test_tenants_of_one_device_are_judged_apart() -> None:
    shared = device(
        "n", "1", UsageState.BUSY, holder("p", share=500_000), holder("q", "Deployment/e", share=500_000),
        tenants=(("p", UsageVerdict(state=UsageState.HELD_IDLE, why="", coverage=1.0, idle_since=5.0)),),
    )  # fmt: skip
    found = workloads([shared])
    assert [(ref.name, one.idle, one.gpus) for ref, one in found.items()] == [("d", True, 0.5), ("e", False, 0.5)]


def test_a_node_is_idle_when_all_of_it_is_and_somebody_holds_it() -> None:
    idle, free, busy = UsageState.HELD_IDLE, UsageState.FREE, UsageState.BUSY
    found = idle_nodes(
        [
            device("held", "1", idle, holder("p")), device("held", "2", free),
            device("empty", "1", free),
            device("works", "1", idle, holder("p")), device("works", "2", busy, holder("q")),
            device("unsure", "1", idle, holder("p")), device("unsure", "2", UsageState.UNKNOWN),
        ]
    )  # fmt: skip
    assert list(found) == ["held"]
