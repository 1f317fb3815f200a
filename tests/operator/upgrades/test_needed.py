"""Which nodes need another driver: by the digest that their pod was made for, never because kgpu's template changed."""

from __future__ import annotations

import dataclasses
from datetime import UTC, datetime

import pytest

from kgpu.formats import names
from kgpu.formats.crd.nodeoperation import STEADY_SECONDS
from kgpu.operator import projections
from kgpu.operator.plan import plan
from kgpu.operator.upgrades import UpgradeState, node_upgrades
from tests.operator.upgrades.fleet import BASE, NEW, OLD, asks_for, fleet, operation, pod_of, with_operations, with_pods
from tests.operator.world import SETTINGS, driver, policy, settle

AUTO = {"autoUpgrade": True}


def needed(observed) -> set[str]:  # type: ignore[no-untyped-def]
    found = node_upgrades(observed.nodes, observed.daemon_sets, observed.driver_pods, observed.upgrades)
    return {name for name, upgrade in found.items() if upgrade.needed}


def test_nobody_needs_what_runs_and_everybody_needs_what_changed() -> None:
    same = fleet("n1", "n2", upgrade=AUTO)
    assert needed(same) == set()
    assert needed(asks_for(same)) == {"n1", "n2"}
    assert needed(asks_for(same, OLD, env=[{"name": "A", "value": "b"}])) == {"n1", "n2"}


def test_another_template_with_the_same_digest_needs_nothing() -> None:
    before = fleet("n1", upgrade=AUTO)
    newer = dataclasses.replace(SETTINGS, image="example.org/kgpu:2")
    bare = {key: value for key, value in SETTINGS.images.items() if key != "DRIVER_MANAGER_IMAGE"}
    settings = dataclasses.replace(newer, images=bare)
    after = settle(dataclasses.replace(before, daemon_sets={}), settings)
    assert after.daemon_sets[BASE] != before.daemon_sets[BASE], "the driver manager is another one"
    assert needed(after) == set()
    assert plan(after, settings).upgrades.create == ()


@pytest.mark.parametrize("version", ["", "0", "2"])
@pytest.mark.parametrize("digest", ["", "1", "987654321"])
def test_pods_of_another_operator_or_version_are_adopted_by_their_image(version: str, digest: str) -> None:
    there = fleet("n1", upgrade=AUTO)
    adopted = dataclasses.replace(
        there,
        driver_pods=tuple(dataclasses.replace(pod, digest=digest, digest_version=version) for pod in there.driver_pods),
    )
    assert needed(adopted) == set()
    assert plan(adopted, SETTINGS).upgrades.create == ()
    assert needed(asks_for(adopted)) == {"n1"}


def test_a_template_of_another_version_is_compared_by_image_too() -> None:
    there = fleet("n1")
    daemon_set = there.daemon_sets[BASE]
    template = daemon_set["spec"]["template"]
    del template["metadata"]["annotations"][names.DRIVER_DIGEST_VERSION]
    moved = dataclasses.replace(there, driver_pods=(pod_of(daemon_set, "n1", digest="7", digest_version="1"),))
    assert needed(moved) == set()


def test_a_pod_that_is_going_is_not_looked_at_and_a_missing_one_comes_as_wanted() -> None:
    changed = asks_for(fleet("n1", upgrade=AUTO))
    going = dataclasses.replace(
        changed, driver_pods=tuple(dataclasses.replace(pod, leaving=True) for pod in changed.driver_pods)
    )
    assert needed(going) == set()
    none = dataclasses.replace(changed, driver_pods=())
    found = node_upgrades(none.nodes, none.daemon_sets, (), ())
    assert (found["n1"].needed, found["n1"].state) == (False, None)


def test_the_newest_pod_counts() -> None:
    changed = asks_for(fleet("n1", upgrade=AUTO))
    newer = pod_of(changed.daemon_sets[BASE], "n1", name="newer", made="2026-02-01T00:00:00Z")
    assert needed(dataclasses.replace(changed, driver_pods=(*changed.driver_pods, newer))) == set()


@pytest.mark.parametrize("owner", ["", "another-daemonset"])
def test_a_driver_pod_of_no_or_another_daemon_set_has_to_give_way(owner: str) -> None:
    there = fleet("n1", upgrade=AUTO)
    stranger = pod_of(there.daemon_sets[BASE], "n1", name="stranger", daemon_set=owner)
    pending = pod_of(there.daemon_sets[BASE], "n1", ready=False, placed=False)
    assert needed(dataclasses.replace(there, driver_pods=(stranger, pending))) == {"n1"}
    made = plan(dataclasses.replace(there, driver_pods=(stranger, pending)), SETTINGS)
    assert bool(made.upgrades.create) is not bool(owner), "what another controller makes anew is not exchanged"
    assert ("stranger of another-daemonset is a driver's pod, too" in str(made.policy_status)) is bool(owner)


@pytest.mark.parametrize("owner", ["", "another-daemonset"])
@pytest.mark.parametrize("ready", [True, False])
def test_beside_the_pod_that_is_there_others_do_not_count(owner: str, ready: bool) -> None:
    there = fleet("n1", upgrade=AUTO)
    stranger = pod_of(there.daemon_sets[BASE], "n1", name="stranger", daemon_set=owner)
    own = pod_of(there.daemon_sets[BASE], "n1", ready=ready)
    assert needed(dataclasses.replace(there, driver_pods=(stranger, own))) == set()


def test_a_node_without_a_driver_pod_stalls_no_other() -> None:
    """The replaced operator's pass fails for all nodes while a DaemonSet has fewer pods than nodes."""
    changed = asks_for(fleet("n1", "n2", upgrade=AUTO), upgrade=AUTO)
    one = dataclasses.replace(changed, driver_pods=tuple(pod for pod in changed.driver_pods if pod.node == "n2"))
    assert [obj["spec"]["nodeName"] for obj in plan(one, SETTINGS).upgrades.create] == ["n2"]


def test_nodes_without_a_driver_of_ours_have_no_state() -> None:
    there = fleet("n1", upgrade=AUTO)
    host = dataclasses.replace(
        there.nodes[0], name="host", labels={**there.nodes[0].labels, "nvidia.com/gpu.deploy.driver": "pre-installed"}
    )
    found = node_upgrades((*there.nodes, host), there.daemon_sets, there.driver_pods, ())
    assert set(found) == {"n1"}


def test_two_drivers_for_one_node_upgrade_nothing() -> None:
    spec = {"driver": {"enabled": True, "useNvidiaDriverCRD": True}}
    first = driver("a", spec={"version": OLD, "nodeSelector": {"pool": "x"}})
    there = fleet("n1", labels={"pool": "x"})
    crd = settle(
        dataclasses.replace(there, policies=(policy(spec=spec),), drivers=(first,), daemon_sets={}, driver_pods=())
    )
    (name,) = [name for name in crd.daemon_sets if name.startswith("nvidia-gpu-driver")]
    runs = dataclasses.replace(crd, driver_pods=(pod_of(crd.daemon_sets[name], "n1"),))
    assert needed(runs) == set()
    both = dataclasses.replace(
        runs,
        drivers=(
            dataclasses.replace(first, spec=driver("a", spec={"version": OLD, "nodeSelector": {"pool": "x"}}).spec),
            driver("b", spec={"version": NEW, "nodeSelector": {"pool": "x"}}),
        ),
    )
    made = plan(both, SETTINGS)
    assert made.upgrades.create == ()
    assert {status["state"] for status in made.driver_status.values()} == {"notReady"}


def test_a_driver_that_is_asked_for_by_its_own_object_is_exchanged_too() -> None:
    spec = {"driver": {"enabled": True, "useNvidiaDriverCRD": True}}
    there = fleet("n1")
    crd = settle(
        dataclasses.replace(
            there,
            policies=(policy(spec=spec),),
            daemon_sets={},
            driver_pods=(),
            drivers=(driver("a", spec={"default": True, "version": OLD}),),
        )
    )
    (name,) = [name for name in crd.daemon_sets if name.startswith("nvidia-gpu-driver")]
    runs = dataclasses.replace(crd, driver_pods=(pod_of(crd.daemon_sets[name], "n1"),))
    newer = dataclasses.replace(runs, drivers=(driver("a", spec={"default": True, "version": NEW}),), daemon_sets={})
    newer = dataclasses.replace(newer, daemon_sets=settle(newer).daemon_sets)
    made = plan(newer, SETTINGS)
    (obj,) = made.upgrades.create
    assert obj["spec"]["approved"] is True, "an NVIDIADriver upgrades by itself unless told otherwise"
    assert obj["spec"]["rollout"]["name"] == "nvidiadriver-a"
    assert (obj["spec"]["driver"]["daemonSet"], obj["spec"]["driver"]["version"]) == (name, NEW)
    status = made.driver_status["a"]
    assert status["state"] == "notReady"
    assert f"driver {NEW} is wanted, and {OLD} runs" in status["conditions"][0]["message"]
    assert all(one["state"] != "ready" for one in made.policy_status.values())


def test_pods_are_as_their_template_made_them() -> None:
    there = with_pods(fleet("n1"))
    found = node_upgrades(there.nodes, there.daemon_sets, there.driver_pods, ())
    assert found["n1"].state is UpgradeState.DONE


@pytest.mark.parametrize(
    ("since", "fresh"),
    [("2026-01-01T00:00:55Z", True), ("2026-01-01T00:00:49Z", False), ("", False), ("soon", False), (7, False)],
)
def test_a_driver_is_fresh_while_its_pod_has_been_ready_for_a_moment_only(since: object, fresh: bool) -> None:
    made_by = fleet("n1").daemon_sets[BASE]
    pod = {
        "metadata": {"name": "driver-1", **made_by["spec"]["template"]["metadata"]},
        "spec": {**made_by["spec"]["template"]["spec"], "nodeName": "n1"},
        "status": {"conditions": [{"type": "Ready", "status": "True", "lastTransitionTime": since}]},
    }
    (found,) = projections.driver_pods([projections.pod(pod)], datetime(2026, 1, 1, 0, 1, tzinfo=UTC).timestamp())
    assert (found.ready, found.fresh) == (True, fresh)


def test_a_driver_that_is_up_after_a_failure_is_looked_at_again() -> None:
    asked = asks_for(fleet("n1", upgrade=AUTO), upgrade=AUTO)
    (made,) = plan(asked, SETTINGS).upgrades.create
    failed = operation(made, phase="Failed", result="PermanentFailure")
    for fresh, again in ((True, STEADY_SECONDS), (False, None)):
        pod = pod_of(asked.daemon_sets[BASE], "n1", fresh=fresh)
        found = with_operations(dataclasses.replace(asked, driver_pods=(pod,)), failed)
        assert plan(found, SETTINGS).again_after == again
