"""Why devices can't be had: one reason for each, one line for alike ones; and the fitter of a snapshot."""

from __future__ import annotations

import dataclasses
from typing import Any

from kgpu.fit import read as fit_read
from kgpu.fit.devices import explain
from kgpu.fit.devices.allocate import DeviceOutcome
from kgpu.fit.devices.cel import CelSelectors
from kgpu.fit.devices.fitter import AllocatingFitter
from kgpu.fit.devices.model import AllocationGates
from kgpu.fit.explain import explain as explain_pod
from kgpu.fit.snapshot import ClusterSnapshot, ClusterView, NodeState
from tests.budget import count
from tests.fit.devices import oracle, table
from tests.fit.devices.generate import LABELS, NODE, Clusters, Json, held_claims
from tests.fit.devices.test_allocate import demands

GPU = 'device.attributes["gpu.example.com"]'


def sentences(row: Json) -> tuple[str, ...]:
    case = table.case(row)
    allocator = oracle.allocator(case)
    outcome = allocator.allocate(demands(case), NODE, LABELS)
    return explain.explain(allocator, demands(case), NODE, LABELS, outcome)


def gpus(count: int, **changes: Any) -> list[Json]:
    return [
        {"name": f"gpu-{at}", "attributes": {"model": {"string": "H100"}, "index": {"int": at}}, **changes}
        for at in range(count)
    ]


def test_nothing_is_missing_where_devices_are_found() -> None:
    assert sentences({"slices": [{"pool": "p", "devices": gpus(1)}], "claims": [{"requests": [{"name": "r"}]}]}) == ()


def test_eight_alike_devices_are_one_line() -> None:
    selector = f'{GPU}.model == "H200"'
    row = {
        "slices": [{"pool": "p", "devices": gpus(8)}],
        "claims": [{"requests": [{"name": "r", "selectors": [selector]}]}],
    }
    assert sentences(row) == (
        "claim claim-0, request r wants 1 device of class any: the node has 8, free for it 0",
        (
            "claim claim-0, request r: gpu-0, gpu-1, gpu-2 and 5 more devices: "
            f"selector {selector} is false: model is H100"
        ),
    )


def test_who_holds_a_device_is_told() -> None:
    row = {
        "slices": [{"pool": "p", "devices": gpus(2)}],
        "held": ["p/gpu-0"],
        "claims": [{"requests": [{"name": "r", "count": 2}]}],
    }
    assert sentences(row) == (
        "claim claim-0, request r wants 2 devices of class any: the node has 2, free for it 1",
        "claim claim-0, request r: gpu-0: taken by claim team/held-0",
    )


def test_capacity_that_is_too_small_is_told_with_its_value() -> None:
    selector = 'device.capacity["gpu.example.com"].memory.compareTo(quantity("80Gi")) >= 0'
    row = {
        "slices": [{"pool": "p", "devices": gpus(1, capacity={"memory": {"value": "81559Mi"}})}],
        "claims": [{"requests": [{"name": "r", "selectors": [selector]}]}],
    }
    assert sentences(row)[1].endswith("is false: memory is 81559Mi")


def test_taints_and_counters_and_what_is_shared() -> None:
    use = [{"counterSet": "s", "counters": {"slices": {"value": "4"}}}]
    row = {
        "gates": ["DeviceTaints", "PartitionableDevices", "ConsumableCapacity"],
        "slices": [
            {"pool": "p", "counters": {"s": {"slices": "7"}}},
            {"pool": "p", "devices": [
                {"name": "a", "consumesCounters": use}, {"name": "b", "consumesCounters": use},
                {"name": "c", "taints": [{"key": "sick", "value": "very", "effect": "NoExecute"}]},
                {"name": "d", "allowMultipleAllocations": True, "capacity": {"memory": {"value": "8Gi"}}},
            ]},
        ],
        "held": ["p/a"],
        "shares": {"p/d": "6Gi"},
        "claims": [{"requests": [{"name": "r"}]}],
    }  # fmt: skip
    head = "claim claim-0, request r"
    assert sentences(row) == (
        f"{head} wants 1 device of class any: the node has 4, free for it 0",
        f"{head}: a: taken by claim team/held-0",
        f"{head}: b: counter slices of s: 3 left, 4 wanted; taken by claim team/held-0",
        f"{head}: c: taint sick=very:NoExecute is not tolerated",
        f"{head}: d: not enough capacity: memory 8Gi, taken 6Gi, wanted 8Gi",
    )


def test_devices_of_other_classes_are_only_counted() -> None:
    row = {
        "slices": [{"pool": "p", "devices": gpus(2)}],
        "classes": {"any": {"selectors": [f"{GPU}.index > 5"]}},
        "claims": [{"requests": [{"name": "r"}]}],
    }
    assert sentences(row) == ("claim claim-0, request r wants 1 device of class any: the node has 0, free for it 0",)


def test_a_constraint_is_told_with_the_values() -> None:
    row = {
        "slices": [{"pool": "p", "devices": gpus(2)}],
        "claims": [
            {"requests": [{"name": "r", "count": 2}], "constraints": [{"matchAttribute": "gpu.example.com/index"}]}
        ],
    }
    assert sentences(row) == (
        (
            "claim claim-0 wants all devices with the same gpu.example.com/index; free devices by its value: "
            "0: gpu-0; 1: gpu-1"
        ),
    )


def test_requests_that_can_only_be_met_one_by_one() -> None:
    row = {
        "slices": [{"pool": "p", "devices": gpus(2)}],
        "claims": [{"requests": [{"name": "r", "count": 2}]}, {"requests": [{"name": "r"}]}],
    }
    assert sentences(row) == ("each request alone could be met, but not all of them together",)


def test_partitions_that_can_only_be_had_one_by_one() -> None:
    use = [{"counterSet": "s", "counters": {"slices": {"value": "4"}}}]
    devices: list[Json] = [{"name": "a", "consumesCounters": use}, {"name": "b", "consumesCounters": use}]
    row = {
        "gates": ["PartitionableDevices", "DeviceTaints"],
        "slices": [{"pool": "p", "counters": {"s": {"slices": "7"}}}, {"pool": "p", "devices": devices}],
        "claims": [{"requests": [{"name": "r", "count": 2}]}],
    }
    assert sentences(row) == ("enough devices are free one by one, but they can't be had together",)
    devices[0]["taints"] = [{"key": "sick", "effect": "NoSchedule"}]
    row["claims"] = [{"requests": [{"name": "r"}]}]
    assert sentences(row)[0].startswith("kube-scheduler counts what a device takes of shared counters even when")


def test_a_pool_that_is_not_whole_is_told() -> None:
    row = {"slices": [{"pool": "p", "devices": gpus(2), "of": 2}], "claims": [{"requests": [{"name": "r"}]}]}
    assert sentences(row)[0] == "pool gpu.example.com/p is incomplete: 1 of 2 slices are there"


def test_a_spoilt_pool_does_not_hide_the_devices_of_others() -> None:
    row = {
        "slices": [{"pool": "p", "devices": ["a", "a"]}, {"pool": "q", "devices": gpus(1)}],
        "held": ["q/gpu-0"],
        "claims": [{"requests": [{"name": "r"}]}],
    }
    assert sentences(row) == (
        "pool gpu.example.com/p is invalid: two devices are named a",
        "claim claim-0, request r wants 1 device of class any: the node has 1, free for it 0",
        "claim claim-0, request r: gpu-0: taken by claim team/held-0",
    )


def test_a_search_that_was_stopped_says_so() -> None:
    case = table.case({"slices": [{"pool": "p", "devices": gpus(2)}], "claims": [{"requests": [{"name": "r"}]}]})
    outcome = DeviceOutcome(unfinished=True, steps=7)
    assert explain.explain(oracle.allocator(case), demands(case), NODE, LABELS, outcome) == (
        "no answer: the search for devices was stopped after 7 steps",
    )


def test_a_fault_is_told_alone() -> None:
    row = {
        "slices": [{"pool": "p", "devices": gpus(2)}],
        "claims": [{"requests": [{"name": "r", "selectors": [f"{GPU}.memory > 1"]}]}],
    }
    assert sentences(row) == (
        (
            "claim team/claim-0, request r: selector 0 on device gpu.example.com/p/gpu-0: "
            "CEL runtime error: no such key: memory"
        ),
    )


def test_every_device_has_a_reason() -> None:
    row = {
        "slices": [{"pool": "p", "devices": gpus(3)}],
        "held": ["p/gpu-1"],
        "claims": [{"requests": [{"name": "r", "count": 3, "selectors": [f"{GPU}.index < 2"]}]}],
    }
    case = table.case(row)
    (found,) = explain.device_reasons(oracle.allocator(case), demands(case), NODE, LABELS).values()
    assert [(candidate.key.device, reason.partition(":")[0]) for candidate, reason in found] == [
        ("gpu-0", ""), ("gpu-1", "taken by claim team/held-0"), ("gpu-2", f"selector {GPU}.index < 2 is false"),
    ]  # fmt: skip


def test_random_clusters_are_always_explained() -> None:
    """A refusal has a sentence, an allocation has none, and each device of the node has one reason for each request."""
    clusters = Clusters("explain")
    for _ in range(count(150, 3000)):
        case = clusters.case()
        allocator = dataclasses.replace(oracle.allocator(case), max_steps=2000)
        outcome = allocator.allocate(demands(case), NODE, LABELS)
        found = explain.explain(allocator, demands(case), NODE, LABELS, outcome)
        assert bool(found) == (outcome.allocations is None)
        assert all(found)
        for reasons in explain.device_reasons(allocator, demands(case), NODE, LABELS).values():
            keys = [candidate.key for candidate, _ in reasons]
            assert len(keys) == len(set(keys))


def cluster(case: Json) -> tuple[ClusterSnapshot, list[Json]]:
    objects = [
        {"kind": "Node", **case["Node"], "status": {"allocatable": {"pods": "10"}}},
        *({"kind": "ResourceSlice", **obj} for obj in case["Slices"]),
        *({"kind": "DeviceClass", **obj} for obj in case["Classes"]),
        *({"kind": "ResourceClaim", **obj} for obj in (*case["Claims"], *held_claims(case))),
    ]
    return ClusterSnapshot.of(ClusterView.of(objects)), objects


def test_the_fitter_of_a_snapshot_judges_and_explains() -> None:
    row = {
        "slices": [{"pool": "p", "devices": gpus(2)}],
        "held": ["p/gpu-0"],
        "claims": [{"requests": [{"name": "r"}]}, {"requests": [{"name": "r", "count": 2}]}],
    }
    snapshot, objects = cluster(table.case(row))
    snapshot.fitter = AllocatingFitter.of(objects, selectors=CelSelectors(), gates=AllocationGates())
    claims = [{"name": f"c{at}", "resourceClaimName": f"claim-{at}"} for at in range(2)]
    pods = [
        fit_read.pod({"metadata": {"name": f"pod-{at}", "namespace": "team"}, "spec": {"resourceClaims": [claims[at]]}})
        for at in range(2)
    ]
    first, second = pods
    assert first is not None
    assert second is not None
    assert explain_pod(first, NODE, snapshot) == ()
    reasons = explain_pod(second, NODE, snapshot)
    assert [reason.phrase for reason in reasons] == ["cannot allocate all claims"] * 2
    assert reasons[1].sentence == "claim claim-1, request r: gpu-0: taken by claim team/held-0"
    node: NodeState = snapshot.nodes[NODE]
    allocations = snapshot.fitter.allocate((snapshot.shelf.claims["team", "claim-0"],), node).allocations
    assert allocations is not None
    assert allocations[0].devices[0].candidate.key.device == "gpu-1"
