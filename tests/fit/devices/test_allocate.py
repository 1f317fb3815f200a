"""Allocation beside a brute force that tries everything, its bound, and the status that it gives."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator
from typing import Any

from kgpu.fit.devices import read
from kgpu.fit.devices.allocate import DeviceAllocator
from kgpu.fit.devices.held import HeldDevices
from kgpu.fit.devices.model import AllocationGates
from kgpu.fit.devices.selector import GivenSelectors, SelectorFault
from tests.budget import count
from tests.fit.devices import oracle, table
from tests.fit.devices.generate import Json


def small(chance: random.Random) -> tuple[Json, list[Json]]:
    """A few devices with an attribute, and claims for them."""
    devices = [
        {"name": f"d{at}", "attributes": {"x": {"int": chance.randrange(3)}}} for at in range(chance.randint(1, 5))
    ]
    claims = []
    for _ in range(chance.randint(1, 3)):
        requests = [
            {"name": f"r{at}", "count": chance.choice((1, 1, 2, 3)), "selectors": [f"x != {chance.randrange(4)}"]}
            for at in range(chance.randint(1, 2))
        ]
        claims.append(
            {"requests": requests}
            | ({"constraints": [{"matchAttribute": f"{table.DRIVER}/x"}]} if chance.random() < 0.5 else {})
        )
    return {"slices": [{"pool": "p", "devices": devices}], "claims": claims}, devices


def every_way(row: Json, devices: list[Json]) -> Iterator[Any]:
    """All ways to give each place a device."""
    places = [
        (number, request)
        for number, claim in enumerate(row["claims"])
        for request in claim["requests"]
        for _ in range(request["count"])
    ]
    for chosen in itertools.permutations(devices, len(places)):
        value = [device["attributes"]["x"]["int"] for device in chosen]
        if any(f"x != {value[at]}" in request["selectors"] for at, (_, request) in enumerate(places)):
            continue
        by_claim = [
            {value[at] for at, (owner, _) in enumerate(places) if owner == number}
            for number in range(len(row["claims"]))
        ]
        if all(
            len(values) == 1 or "constraints" not in claim
            for values, claim in zip(by_claim, row["claims"], strict=True)
        ):
            yield [device["name"] for device in chosen]


def test_devices_are_found_when_there_are_any_and_the_first_way_counts() -> None:
    chance = random.Random("brute force")
    for _ in range(count(150, 3000)):
        row, devices = small(chance)
        expected = next(every_way(row, devices), None)
        case = table.case(row)
        verdicts = {
            (f"x != {number}", device["name"]): device["attributes"]["x"]["int"] != number
            for number in range(4)
            for device in devices
        }
        outcome = allocator(case, GivenSelectors(verdicts)).allocate(demands(case), "node-1", {})
        assert not outcome.fault
        found = outcome.allocations
        names = None if found is None else [one.candidate.key.device for claim in found for one in claim.devices]
        assert names == expected, row


def allocator(case: Json, selectors: Any = None, **changes: Any) -> DeviceAllocator:
    found = oracle.allocator(case)
    return DeviceAllocator(
        slices=found.slices,
        classes=found.classes,
        held=found.held,
        selectors=selectors or GivenSelectors({}),
        gates=found.gates,
        **changes,
    )


def demands(case: Json) -> list[Any]:
    return [read.claim_demand("team", obj["metadata"]["name"], obj["spec"]["devices"]) for obj in case["Claims"]]


def many(devices: int, claims: int, *, constraint: bool = False) -> Json:
    rows = [{"name": f"d{at}", "attributes": {"x": {"int": at % 5}}} for at in range(devices)]
    one: Json = {"requests": [{"name": "r", "count": 1}]}
    if constraint:
        one = {"requests": [{"name": "r", "count": 8}], "constraints": [{"matchAttribute": f"{table.DRIVER}/x"}]}
    return table.case({"slices": [{"pool": "p", "devices": rows}], "claims": [one] * claims})


def test_one_device_too_few_is_told_at_once() -> None:
    """Here the scheduler tries every order until its deadline."""
    case = many(64, 65)
    outcome = allocator(case).allocate(demands(case), "node-1", {})
    assert outcome.allocations is None
    assert not outcome.unfinished
    assert outcome.steps < 100


def test_a_group_that_is_too_small_is_no_endless_search() -> None:
    case = many(30, 1, constraint=True)
    outcome = allocator(case).allocate(demands(case), "node-1", {})
    assert outcome.allocations is None
    assert not outcome.unfinished


def test_a_search_that_goes_too_far_says_so() -> None:
    case = many(30, 1, constraint=True)
    outcome = allocator(case, max_steps=50).allocate(demands(case), "node-1", {})
    assert outcome.unfinished
    assert outcome.steps == 51


def test_many_claims_with_many_devices_are_allocated() -> None:
    case = many(128, 40)
    outcome = allocator(case).allocate(demands(case), "node-1", {})
    assert outcome.allocations is not None
    assert len(outcome.allocations) == 40


def test_a_selector_is_asked_once_for_each_device() -> None:
    case = table.case(
        {
            "slices": [{"pool": "p", "devices": 4}],
            "claims": [{"requests": [{"name": "r", "count": 3, "selectors": ["wanted"]}]}],
        }
    )
    selectors = GivenSelectors({("wanted", "d1"): False})
    found = allocator(case, selectors).allocate(demands(case), "node-1", {}).allocations
    assert found is not None
    assert [one.candidate.key.device for one in found[0].devices] == ["d0", "d2", "d3"]
    assert sorted(selectors.asked) == [("wanted", f"d{at}") for at in range(4)]


def test_a_failure_names_the_device() -> None:
    case = table.case(
        {
            "slices": [{"pool": "p", "devices": 2}],
            "claims": [{"requests": [{"name": "r", "selectors": ["wanted"]}]}],
        }
    )
    fault = SelectorFault("no such key: memory", missing="memory")
    outcome = allocator(case, GivenSelectors({("wanted", "d0"): fault})).allocate(demands(case), "node-1", {})
    assert outcome.device == (table.DRIVER, "p", "d0")
    assert outcome.fault == (
        f"claim team/claim-0, request r: selector 0 on device {table.DRIVER}/p/d0: "
        "CEL runtime error: no such key: memory"
    )


def test_a_share_has_an_id_of_its_own_each_time() -> None:
    device = {"name": "a", "allowMultipleAllocations": True, "capacity": {"memory": {"value": "8Gi"}}}
    case = table.case(
        {
            "gates": ["ConsumableCapacity"],
            "slices": [{"pool": "p", "devices": [device]}],
            "claims": [{"requests": [{"name": "r", "count": 2, "capacity": {"memory": "3Gi"}}]}],
        }
    )
    found = allocator(case).allocate(demands(case), "node-1", {}).allocations
    assert found is not None
    numbers = iter("12")
    results = found[0].to_status(lambda: next(numbers))["devices"]["results"]
    assert [result["shareID"] for result in results] == ["1", "2"]
    assert results[0]["consumedCapacity"] == {"memory": "3Gi"}


def test_devices_with_counters_are_all_had() -> None:
    """The scheduler crashes here."""
    row = {
        "gates": ["PartitionableDevices"],
        "slices": [
            {"pool": "p", "counters": {"s": {"x": "2"}}},
            {
                "pool": "p",
                "devices": [
                    {"name": "a", "consumesCounters": [{"counterSet": "s", "counters": {"x": {"value": "1"}}}]}
                ],
            },
        ],
        "claims": [{"requests": [{"name": "r", "mode": "All"}]}],
    }
    assert table.shortly(oracle.ours(table.case(row))) == [["r=p/a"]]


def test_nothing_is_wrong_with_no_claims() -> None:
    empty = DeviceAllocator(
        slices=(), classes={}, held=HeldDevices(), selectors=GivenSelectors({}), gates=AllocationGates()
    )
    assert empty.allocate((), "node-1", {}).allocations == ()


def test_what_was_allocated_is_held_for_the_next_pod() -> None:
    """Without waiting for the API server."""
    device = {"name": "b", "allowMultipleAllocations": True, "capacity": {"memory": {"value": "8Gi"}}}
    case = table.case(
        {
            "gates": ["ConsumableCapacity", "AdminAccess"],
            "slices": [{"pool": "p", "devices": ["a", device]}],
            "claims": [
                {"requests": [{"name": "r"}, {"name": "s", "capacity": {"memory": "3Gi"}}]},
                {"requests": [{"name": "r", "admin": True}]},
            ],
        }
    )
    first, second = demands(case)
    found = allocator(case).allocate((first, second), "node-1", {}).allocations
    assert found is not None
    assert found[1].taken() == ()
    held = HeldDevices.of(found[0].taken(), AllocationGates(consumable_capacity=True))
    assert [key.device for key in held.whole] == ["a"]
    assert {
        key.device: {name: str(amount) for name, amount in took.items()} for key, took in held.consumed.items()
    } == {"b": {"memory": "3Gi"}}
    assert set(held.holders.values()) == {("team/claim-0",)}
