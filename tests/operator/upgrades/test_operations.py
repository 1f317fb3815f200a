"""Which NodeOperations are made for nodes that need another driver, and which are withdrawn again."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import pytest

from kgpu.formats import names
from kgpu.operator.model import Object, ObservedCluster, UpgradeOperation
from kgpu.operator.plan import plan
from kgpu.operator.upgrade_rules import FOR_EVER
from tests.operator.upgrades.fleet import BASE, NEW, OLD, asks_for, fleet, operation, pod_of, wanted_in, with_operations
from tests.operator.world import SETTINGS

AUTO = {"autoUpgrade": True}
BY_HAND = {"autoUpgrade": False}


def made(observed: ObservedCluster) -> tuple[Object, ...]:
    return plan(observed, SETTINGS).upgrades.create


def withdrawn(observed: ObservedCluster) -> list[str]:
    return [one.name for one in plan(observed, SETTINGS).upgrades.withdraw]


def needy(*nodes: str, upgrade: Mapping[str, Any] = AUTO) -> ObservedCluster:
    return asks_for(fleet(*(nodes or ("n1",)), upgrade=upgrade), upgrade=upgrade)


def waiting(observed: ObservedCluster, **status: Any) -> tuple[UpgradeOperation, ...]:
    return tuple(operation(obj, **status) for obj in made(observed))


def test_one_operation_per_node_says_what_is_wanted_and_by_which_rules() -> None:
    found = needy("n1", "n2")
    first, second = made(found)
    wanted = wanted_in(found)
    assert first["spec"] == {
        "nodeName": "n1",
        "nodeUID": "uid-of-n1",
        "type": "DriverUpgrade",
        "requestedBy": names.DRIVER_UPGRADE_REQUESTER,
        "reason": f"ClusterPolicy cluster-policy asks for driver {NEW}",
        "driver": {
            "namespace": "gpu-operator",
            "daemonSet": BASE,
            "digest": wanted.digest,
            "image": f"example.org/driver:{NEW}-ubuntu24.04",
            "version": NEW,
            "fromVersion": OLD,
        },
        "rollout": {"name": "clusterpolicy-cluster-policy", "maxParallel": 1, "maxUnavailable": "25%"},
        "drain": {"timeoutSeconds": 300, "force": False, "deleteEmptyDirData": False, "onlyGpuPods": True},
        "approved": True,
    }
    assert second["spec"]["nodeName"] == "n2"
    assert first["metadata"]["name"] != second["metadata"]["name"]
    assert made(found) == (first, second), "the names follow from what is wanted"


def test_while_it_is_known_no_other_is_made_and_it_stays() -> None:
    found = needy()
    known = with_operations(found, *waiting(found))
    assert (made(known), withdrawn(known)) == ((), [])


def test_defaults_that_the_api_server_adds_make_no_difference() -> None:
    found = needy()
    (obj,) = made(found)
    obj["spec"]["drain"] |= {"onTimeout": "Fail", "podSelector": ""}
    obj["spec"]["rollout"] |= {"stopAfterFailures": 2}
    assert withdrawn(with_operations(found, operation(obj))) == []


def test_nothing_is_made_before_the_daemon_set_asks_for_it() -> None:
    found = needy()
    before = fleet("n1", upgrade=AUTO)
    assert made(dataclasses.replace(found, daemon_sets=before.daemon_sets)) == ()


@pytest.mark.parametrize("policy", [None, BY_HAND])
def test_without_auto_upgrade_each_waits_for_approval(policy: Mapping[str, Any] | None) -> None:
    (obj,) = made(asks_for(fleet("n1", upgrade=policy), upgrade=policy))
    assert obj["spec"]["approved"] is False
    assert "annotations" not in obj["metadata"]


def test_another_digest_withdraws_what_waits_and_lets_what_has_begun_end() -> None:
    found = needy("n1", "n2")
    first, second = made(found)
    other = asks_for(found, "575.57.08", AUTO)
    both = with_operations(other, operation(first), operation(second, phase="Acting"))
    assert withdrawn(both) == [first["metadata"]["name"]]
    assert made(both) == (), "the node of the first is free once the watch has shown it"
    after = with_operations(other, operation(second, phase="Complete", result="Succeeded"))
    assert {obj["spec"]["nodeName"] for obj in made(after)} == {"n1", "n2"}
    assert all(obj["spec"]["driver"]["version"] == "575.57.08" for obj in made(after))


def test_the_former_driver_again_needs_nothing() -> None:
    found = needy()
    back = with_operations(asks_for(found, OLD, AUTO), *waiting(found))
    assert (made(back), withdrawn(back)) == ((), [waiting(found)[0].name])


def test_a_node_that_is_gone_or_another_machine_of_its_name() -> None:
    found = needy()
    gone = with_operations(dataclasses.replace(found, nodes=()), *waiting(found))
    assert withdrawn(gone) == [waiting(found)[0].name]
    anew = dataclasses.replace(found, nodes=(dataclasses.replace(found.nodes[0], uid="another"),))
    replaced = with_operations(anew, *waiting(found, phase="Failed", result="PermanentFailure"))
    (obj,) = made(replaced)
    assert obj["spec"]["nodeUID"] == "another"
    assert obj["metadata"]["name"] != waiting(found)[0].name
    assert withdrawn(with_operations(anew, *waiting(found))) == [waiting(found)[0].name]


def test_the_skip_label() -> None:
    found = needy()
    skips = dataclasses.replace(
        found,
        nodes=tuple(
            dataclasses.replace(n, labels={**n.labels, names.DRIVER_UPGRADE_SKIP: "true"}) for n in found.nodes
        ),
    )
    assert (made(skips), withdrawn(with_operations(skips, *waiting(found)))) == ((), [waiting(found)[0].name])
    assert withdrawn(with_operations(skips, *waiting(found, phase="Draining"))) == []


def test_auto_upgrade_switched_off_takes_back_what_it_approved_and_undoes_nothing() -> None:
    auto, by_hand = needy("n1", "n2"), needy("n1", "n2", upgrade=BY_HAND)
    first, second = made(auto)
    mixed = with_operations(by_hand, operation(first), operation(second, phase="Cordoning"))
    assert withdrawn(mixed) == [first["metadata"]["name"]]
    after = with_operations(by_hand, operation(second, phase="Cordoning"))
    (again,) = made(after)
    assert (again["metadata"]["name"], again["spec"]["approved"]) == (first["metadata"]["name"], False)


def test_what_a_person_has_approved_stays_so() -> None:
    by_hand = needy(upgrade=BY_HAND)
    (obj,) = made(by_hand)
    obj["spec"]["approved"] = True
    assert withdrawn(with_operations(by_hand, operation(obj))) == []
    changed = needy(upgrade={**BY_HAND, "maxParallelUpgrades": 5})
    assert withdrawn(with_operations(changed, operation(obj))) == []


def test_auto_upgrade_switched_on_makes_what_waits_anew() -> None:
    by_hand, auto = needy(upgrade=BY_HAND), needy()
    (obj,) = made(by_hand)
    assert withdrawn(with_operations(auto, operation(obj))) == [obj["metadata"]["name"]]


def test_another_budget_or_drain_reaches_what_waits() -> None:
    found = needy()
    for changed in ({"maxParallelUpgrades": 3}, {"maxUnavailable": 2}, {"podDeletion": {"force": True}}):
        assert withdrawn(with_operations(needy(upgrade={**AUTO, **changed}), *waiting(found))) != []


@pytest.mark.parametrize("result", ["PermanentFailure", "TransientFailure", "Cancelled"])
def test_what_has_failed_or_was_cancelled_is_not_made_again_by_itself(result: str) -> None:
    found = needy()
    over = with_operations(found, *waiting(found, phase="Failed", result=result))
    assert made(over) == ()
    # Another driver is another matter, and so is the same one after that.
    other = asks_for(over, "575.57.08", AUTO)
    (obj,) = made(with_operations(other, *over.upgrades))
    later = operation(obj, phase="Complete", result="Succeeded", created="2026-01-03T00:00:00Z")
    back = with_operations(found, *over.upgrades, later)
    (again,) = made(back)
    assert again["metadata"]["name"] not in {one.name for one in back.upgrades}


def test_the_same_driver_a_second_time_has_another_name() -> None:
    found = needy()
    done = with_operations(found, *waiting(found, phase="Complete", result="Succeeded"))
    (obj,) = made(done)
    assert obj["metadata"]["name"] != done.upgrades[0].name


def test_a_persons_own_upgrade_of_a_node_counts_and_is_never_withdrawn() -> None:
    found = needy()
    (obj,) = made(found)
    obj["spec"]["requestedBy"] = "kubernetes-admin"
    obj["metadata"]["name"] = "mine"
    busy = with_operations(found, operation(obj))
    assert (made(busy), withdrawn(busy)) == ((), [])
    other = asks_for(busy, "575.57.08", AUTO)
    assert withdrawn(with_operations(other, operation(obj))) == []


def test_operations_of_other_types_do_not_count() -> None:
    from kgpu.operator.projections import operation as project

    assert project({"metadata": {"name": "x"}, "spec": {"type": "Reboot", "nodeName": "n1"}})["upgrade"] is None
    for hostile in ({}, {"spec": []}, {"spec": {"type": "DriverUpgrade", "driver": "x"}, "status": 5}):
        project(hostile)


@pytest.mark.parametrize(
    ("upgrade", "drain"),
    [
        ({}, {"timeoutSeconds": 300, "force": False, "deleteEmptyDirData": False, "onlyGpuPods": True}),
        (
            {"podDeletion": {"force": True, "timeoutSeconds": 0, "deleteEmptyDir": True}},
            {"timeoutSeconds": FOR_EVER, "force": True, "deleteEmptyDirData": True, "onlyGpuPods": True},
        ),
        (
            {"drain": {"enable": True, "podSelector": "app=train", "timeoutSeconds": 60, "force": True}},
            {"timeoutSeconds": 60, "force": True, "deleteEmptyDirData": False, "podSelector": "app=train"},
        ),
        (
            {"waitForCompletion": {"podSelector": "job", "timeoutSeconds": 99}},
            {
                "timeoutSeconds": 300, "force": False, "deleteEmptyDirData": False, "onlyGpuPods": True,
                "waitFor": {"podSelector": "job", "timeoutSeconds": 99},
            },
        ),
        (
            {"podDeletion": {"timeoutSeconds": 2**40}},
            {"timeoutSeconds": FOR_EVER, "force": False, "deleteEmptyDirData": False, "onlyGpuPods": True},
        ),
    ],
)  # fmt: skip
def test_upgrade_policy_becomes_the_drain(upgrade: Mapping[str, Any], drain: Mapping[str, Any]) -> None:
    (obj,) = made(needy(upgrade={**AUTO, **upgrade}))
    assert obj["spec"]["drain"] == drain


@pytest.mark.parametrize(
    ("share", "there"), [("10%", "10%"), (3, 3), ("3", 3), ("0", 0), ("005%", "5%"), (None, "25%")]
)
def test_max_unavailable(share: Any, there: Any) -> None:
    (obj,) = made(needy(upgrade={**AUTO, "maxUnavailable": share, "maxParallelUpgrades": 0}))
    assert (obj["spec"]["rollout"]["maxUnavailable"], obj["spec"]["rollout"]["maxParallel"]) == (there, 0)


@pytest.mark.parametrize("share", ["a few", "101%", "-1", "25 %"])
def test_a_budget_that_can_t_be_read_upgrades_nothing_and_is_told(share: str) -> None:
    found = needy(upgrade={**AUTO, "maxUnavailable": share})
    result = plan(found, SETTINGS)
    assert result.upgrades.create == ()
    (status,) = result.policy_status.values()
    assert status["state"] == "notReady"
    assert f'maxUnavailable of ClusterPolicy cluster-policy is "{share}"' in str(status["conditions"])


def test_a_policy_that_can_t_be_rendered_keeps_what_waits() -> None:
    found = needy()
    ops = waiting(found)
    broken = asks_for(found, upgrade=AUTO)
    broken = dataclasses.replace(
        broken, policies=asks_for(found, upgrade=AUTO, env=[{"name": "=", "value": ""}]).policies
    )
    result = plan(with_operations(broken, *ops), SETTINGS)
    assert (result.upgrades.create, result.upgrades.withdraw) == ((), ())


def test_no_driver_is_wanted_any_more() -> None:
    found = needy()
    ops = (*waiting(found), *waiting(found, phase="Acting"))
    assert len(withdrawn(with_operations(dataclasses.replace(found, policies=()), *ops))) == 1


def test_a_long_name_of_a_node_fits() -> None:
    name = "n" * 253
    found = needy(name)
    (obj,) = made(found)
    assert len(obj["metadata"]["name"]) <= 253
    assert pod_of(found.daemon_sets[BASE], name).node == name
