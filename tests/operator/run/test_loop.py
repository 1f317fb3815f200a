"""The loop makes the cluster what the plan says, keeps it so, and writes nothing when nothing is to be done."""

from __future__ import annotations

import asyncio
from typing import Any

from kgpu.base.advice import Advice, Severity
from kgpu.formats import names
from kgpu.kube import kinds
from kgpu.kube.port import CONFIG_MAPS, EVENTS, NODES, Resource
from kgpu.operator import conditions
from kgpu.operator.model import ClusterPlan, Object
from tests.operator.run.support import (
    STATE,
    WRITES,
    Meddled,
    Wish,
    cluster,
    config_map,
    daemon_set,
    data_of,
    labelled,
    labels_of,
    refusal,
    running,
    runtime_class,
    there,
    writes,
)
from tests.operator.world import NAMESPACE

DEPLOY = names.LABEL_DEPLOY_PREFIX


async def test_idle_makes_no_writes_for_an_hour() -> None:
    api = cluster(nodes=3)
    async with running(api) as run:
        since = len(api.calls)
        await run.clock.advance(3600)
        assert writes(api, since) == {}


async def test_the_real_plan_labels_nodes_and_makes_its_objects_once() -> None:
    api = cluster(nodes=3)
    async with running(api) as run:
        assert (await labels_of(api, "n2"))[names.LABEL_GPU_PRESENT] == "true"
        assert names.AGENT_DAEMON_SET in await there(api, kinds.DAEMON_SETS)
        assert run.operator.problem == ""
        status = writes(api)
        assert {count for (plural, _), count in status.items() if plural not in ("clusterpolicies", "events")} == {1}


async def test_what_somebody_changes_is_put_back() -> None:
    api, wish = cluster(), Wish(config_map(), daemon_set())
    async with running(api, planner=wish) as run:
        await api.patch(CONFIG_MAPS, "thing", {"data": {"key": "other", "more": "1"}}, namespace=NAMESPACE)
        image = {"spec": {"template": {"spec": {"containers": [{"name": "c", "image": "evil"}]}}}}
        await api.patch(kinds.DAEMON_SETS, "operand", image, namespace=NAMESPACE)
        await run.settled()
        assert await data_of(api) == {"key": "value", "more": "1"}, "what others have added is theirs"
        live = await api.get(kinds.DAEMON_SETS, "operand", namespace=NAMESPACE)
        assert live is not None
        assert live["spec"]["template"]["spec"]["containers"][0]["image"] == "image:1"


async def test_what_somebody_deletes_is_made_again() -> None:
    api, wish = cluster(), Wish(config_map(), runtime_class())
    async with running(api, planner=wish) as run:
        await api.delete(CONFIG_MAPS, "thing", namespace=NAMESPACE)
        await api.delete(kinds.RUNTIME_CLASSES, "nvidia")
        await run.settled()
        assert await there(api, CONFIG_MAPS) == {"thing"}
        assert await there(api, kinds.RUNTIME_CLASSES) == {"nvidia"}


async def test_a_fight_over_an_object_slows_down() -> None:
    api, wish = cluster(), Wish(config_map())
    async with running(api, planner=wish) as run:
        since = len(api.calls)
        for _ in range(600):
            await api.patch(CONFIG_MAPS, "thing", {"data": {"key": "mine"}}, namespace=NAMESPACE)
            await run.clock.advance(0.1)
        put_back = sum(1 for verb, _, _ in api.calls[since:] if verb == "apply")
        assert 3 <= put_back <= 15, "at once at first, every half minute in the end"


async def test_what_is_not_wanted_any_more_is_deleted_and_nothing_else() -> None:
    api = cluster()
    own = config_map("users")
    own["metadata"]["labels"] = {}
    api.put(CONFIG_MAPS, own)
    wish = Wish(config_map("a"), config_map("b"), daemon_set())
    async with running(api, planner=wish) as run:
        wish.want(run, ClusterPlan(objects=(config_map("b"),)))
        await run.settled()
        listing = await api.list(CONFIG_MAPS, namespace=NAMESPACE)
        assert sorted(one["metadata"]["name"] for one in listing.items) == ["b", "users"]
        assert await there(api, kinds.DAEMON_SETS) == set()


async def test_leftovers_of_the_replaced_operator_go_by_their_owner() -> None:
    api = cluster()
    old = daemon_set("nvidia-device-plugin-daemonset")
    old["metadata"]["labels"] = {}
    old["metadata"]["ownerReferences"] = [
        {"apiVersion": "nvidia.com/v1", "kind": "ClusterPolicy", "name": "x", "uid": "u"}
    ]
    api.put(kinds.DAEMON_SETS, old)
    async with running(api, planner=Wish()):
        assert (await api.list(kinds.DAEMON_SETS)).items == ()


async def test_pods_of_an_orphaned_daemon_set_survive() -> None:
    api, wish = cluster(), Wish(daemon_set())
    async with running(api, planner=wish) as run:
        wish.want(run, ClusterPlan(orphan=frozenset({"operand"})))
        await run.until(lambda: ("delete", "daemonsets", "operand") in api.calls)
        live = await api.get(kinds.DAEMON_SETS, "operand", namespace=NAMESPACE)
        assert live is not None
        assert live["metadata"]["finalizers"] == ["orphan"]


async def test_states_that_are_kept_are_not_pruned_and_hold_stops_everything() -> None:
    api, wish = cluster(), Wish(config_map(), daemon_set())
    async with running(api, planner=wish) as run:
        wish.want(run, ClusterPlan(keep=frozenset({"test"})))
        await run.settled()
        assert await there(api, kinds.DAEMON_SETS) == {"operand"}
        wish.want(run, ClusterPlan(hold=True, objects=(config_map("new"),)))
        await run.settled()
        assert await there(api, CONFIG_MAPS) == {"thing"}


async def test_one_refused_object_does_not_stop_the_others_and_is_told_to_the_plan() -> None:
    api, wish = cluster(), Wish(config_map(), runtime_class(), daemon_set())
    api.refuse["apply", "configmaps"] = 403
    async with running(api, planner=wish, settle_first=False) as run:
        await run.until(lambda: wish.seen and wish.seen[-1].apply_errors)
        assert list(wish.seen[-1].apply_errors) == ["ConfigMap/thing"]
        assert await there(api, kinds.DAEMON_SETS) == {"operand"}
        await run.clock.advance(60)
        tries = writes(api)["configmaps", "thing"]
        assert tries < 40, "pauses grow"
        del api.refuse["apply", "configmaps"]
        await run.settled()
        assert await there(api, CONFIG_MAPS) == {"thing"}
        assert wish.seen[-1].apply_errors == {}


async def test_a_runtime_class_of_a_distribution_is_left_alone_or_complained_about() -> None:
    api = cluster()
    api.put(kinds.RUNTIME_CLASSES, {"metadata": {"name": "nvidia"}, "handler": "nvidia"})
    api.put(kinds.RUNTIME_CLASSES, {"metadata": {"name": "nvidia-cdi"}, "handler": "other"})
    wish = Wish(runtime_class(), runtime_class("nvidia-cdi", "nvidia-cdi"))
    async with running(api, planner=wish, settle_first=False) as run:
        await run.until(lambda: wish.seen and wish.seen[-1].apply_errors)
        assert list(wish.seen[-1].apply_errors) == ["RuntimeClass/nvidia-cdi"]
        assert writes(api) == {}
        wish.want(run, ClusterPlan())
        await run.settled()
        assert len((await api.list(kinds.RUNTIME_CLASSES)).items) == 2


async def test_a_users_label_that_comes_between_plan_and_write_is_kept() -> None:
    api, wish = cluster(), Wish(nodes=(labelled("n0", driver="true"),))
    async with running(api, planner=wish, settle_first=False) as run:
        await run.until(lambda: run.operator.watching.ready)
        watching = run.operator.watching
        api.drop_watches()  # the operator does not see what comes now
        await api.apply(NODES, {"metadata": {"name": "n0", "labels": {f"{DEPLOY}driver": "false"}}}, manager="user")
        await run.until(lambda: watching.objects("nodes")["", "n0"]["node"].labels.get(f"{DEPLOY}driver") == "false")
        wish.want(run, ClusterPlan())
        await run.settled()
        assert (await labels_of(api, "n0"))[f"{DEPLOY}driver"] == "false"


async def test_what_the_plan_knows_to_be_anothers_is_overridden() -> None:
    api = cluster()
    await api.apply(NODES, {"metadata": {"name": "n0", "labels": {names.LABEL_GPU_PRESENT: "false"}}}, manager="old")
    async with running(api):
        assert (await labels_of(api, "n0"))[names.LABEL_GPU_PRESENT] == "true"


async def test_others_labels_that_have_to_go_are_removed() -> None:
    api = cluster()
    key = f"{DEPLOY}vgpu-manager"
    await api.apply(NODES, {"metadata": {"name": "n0", "labels": {key: "true"}}}, manager="old")
    async with running(api, planner=Wish(nodes=(labelled("n0", clear=(key,), driver="true"),))) as run:
        await run.clock.advance(10)
        found = await labels_of(api, "n0")
        assert key not in found
        assert found[f"{DEPLOY}driver"] == "true"


async def test_a_node_that_goes_while_it_is_labelled_is_not_made_again() -> None:
    api, wish = cluster(nodes=2), Wish(nodes=(labelled("n0", driver="true"), labelled("n1", driver="true")))
    api.refuse["apply", "nodes"] = 500
    async with running(api, planner=wish, settle_first=False) as run:
        await run.until(lambda: writes(api)["nodes", "n0"])
        await api.delete(NODES, "n0")
        del api.refuse["apply", "nodes"]
        await run.clock.advance(30)
        assert await api.get(NODES, "n0") is None
        assert (await labels_of(api, "n1"))[f"{DEPLOY}driver"] == "true"


async def test_one_bad_node_holds_up_nobody() -> None:
    api, bad = cluster(nodes=40), {"n3", "n7"}
    meddled = Meddled(api)

    def refuse(verb: str, _plural: str, name: str) -> None:
        if verb == "apply" and name in bad:
            raise refusal()

    meddled.before = refuse
    async with running(meddled, settle_first=False) as run:
        await run.clock.advance(2)
        done = {f"n{n}" for n in range(40) if names.LABEL_GPU_PRESENT in await labels_of(api, f"n{n}")}
        assert done == {f"n{n}" for n in range(40)} - bad
        bad.clear()
        await run.settled()
        assert (await labels_of(api, "n3"))[names.LABEL_GPU_PRESENT] == "true"


async def test_a_status_keeps_its_times_and_is_not_written_too_often() -> None:
    api = cluster()
    async with running(api) as run:
        first = await api.get(kinds.CLUSTER_POLICIES, "cluster-policy")
        assert first is not None
        assert all(entry["lastTransitionTime"] for entry in first["status"]["conditions"])
        since = len(api.calls)
        for number in range(50):
            api.put(NODES, {"metadata": {"name": f"new{number}"}})
            await run.clock.advance(0.1)
        await run.settled()
        assert writes(api, since)["clusterpolicies", "cluster-policy"] <= 11


def _policy_is(state: str) -> dict[str, Object]:
    return {"cluster-policy": conditions.status(state, (), namespace=NAMESPACE, generation=1)}


async def test_ready_is_taken_back_before_anything_is_taken_away() -> None:
    """Whoever waits for it would else send work to a node whose GPUs are just being given up."""
    api, wish = cluster(), Wish(config_map(), policy_status=_policy_is(conditions.STATE_NOT_READY))
    async with running(api, planner=wish) as run:
        since = len(api.calls)
        # As soon after another write of the status as that may be: it is not put off.
        wish.want(run, ClusterPlan(objects=(daemon_set(),), policy_status=_policy_is(conditions.STATE_READY)))
        await run.until(lambda: writes(api, since)["clusterpolicies", "cluster-policy"], "the policy to be ready")
        wish.want(run, ClusterPlan(objects=(config_map(),), policy_status=_policy_is(conditions.STATE_NOT_READY)))
        await run.settled()
        made = [(verb, plural) for verb, plural, _ in api.calls[since:] if verb in WRITES]
    assert made == [
        ("apply", "daemonsets"), ("delete", "configmaps"), ("apply", "clusterpolicies"),
        ("apply", "clusterpolicies"), ("apply", "configmaps"), ("delete", "daemonsets"),
    ]  # fmt: skip


async def test_a_advice_is_told_once_and_counted_when_it_comes_back() -> None:
    told = Advice(subject="Node/n0", what="it broke", why="a test", severity=Severity.WARNING, reason="Broken")
    api, wish = cluster(), Wish(advice=(told,))
    async with running(api, planner=wish) as run:
        for _ in range(5):
            run.operator.watching.news.set()
            await run.clock.advance(5)
        (event,) = (await api.list(EVENTS)).items
        assert (event["count"], event["reason"], event["involvedObject"]["name"]) == (1, "Broken", "n0")
        assert event["message"] == "it broke, because a test"
        wish.want(run, ClusterPlan())
        await run.clock.advance(700)
        wish.want(run, ClusterPlan(advice=(told,)))
        await run.clock.advance(5)
        (event,) = (await api.list(EVENTS)).items
        assert event["count"] == 2
    async with running(api, planner=wish) as run:
        await run.clock.advance(5)
        (event,) = (await api.list(EVENTS)).items
        assert event["count"] == 3, "another operator counts on"


async def test_a_daemon_set_whose_pods_are_refused_is_touched_now_and_then_until_they_are_there() -> None:
    api = cluster()
    metadata = {"name": "agents", "namespace": NAMESPACE, "labels": dict(STATE)}
    wanted: Object = {"apiVersion": "apps/v1", "kind": "DaemonSet", "metadata": metadata, "spec": {}}
    wish = Wish(wanted, retry=frozenset({"agents"}))
    async with running(api, planner=wish, settle_first=False) as run:

        async def touched() -> str:
            found = await api.get(kinds.DAEMON_SETS, "agents", namespace=NAMESPACE)
            assert found is not None
            return str(found["metadata"].get("annotations", {}).get(names.RETRIED_ANNOTATION, ""))

        await run.clock.advance(5)
        assert await touched() == ""
        since = len(api.calls)
        await run.clock.advance(61)
        assert 3 <= writes(api, since)["daemonsets", "agents"] <= 5
        assert await touched()
        wish.want(run, ClusterPlan(objects=(wanted,)))
        await run.settled()
        since = len(api.calls)
        await run.clock.advance(120)
        assert writes(api, since) == {}


async def test_kinds_that_come_later_are_followed_and_those_that_go_are_let_go() -> None:
    api = cluster(policy=False)
    api.served, api.unserved = set(), {kinds.CLUSTER_POLICIES, kinds.NVIDIA_DRIVERS}
    async with running(api, settle_first=False) as run:
        await run.clock.advance(60)
        assert writes(api) == {}
        api.unserved = set()
        api.served = {kinds.CLUSTER_POLICIES}
        api.put(kinds.CLUSTER_POLICIES, {"metadata": {"name": "p"}, "spec": {}})
        await run.until(lambda: writes(api)["daemonsets", names.AGENT_DAEMON_SET])
        await api.delete(kinds.CLUSTER_POLICIES, "p")
        api.served, api.unserved = set(), {kinds.CLUSTER_POLICIES}
        await run.clock.advance(120)
        assert await there(api, kinds.DAEMON_SETS) == set()
        assert names.LABEL_GPU_PRESENT not in await labels_of(api, "n0")


class SlowRoles(Meddled):
    """Roles take a while, and a binding of one that is not there is not found, as RBAC has it."""

    refused = 0

    async def apply(self, resource: Resource, obj: Object, **more: Any) -> Any:
        if resource in (kinds.ROLES, kinds.CLUSTER_ROLES):
            for _ in range(20):
                await asyncio.sleep(0)
        if resource in (kinds.ROLE_BINDINGS, kinds.CLUSTER_ROLE_BINDINGS):
            role = kinds.CLUSTER_ROLES if obj["roleRef"]["kind"] == "ClusterRole" else kinds.ROLES
            namespace = obj["metadata"].get("namespace", "") if role is kinds.ROLES else ""
            if await self.api.get(role, obj["roleRef"]["name"], namespace=namespace) is None:
                self.refused += 1
        return await super().apply(resource, obj, **more)


async def test_a_binding_is_applied_after_its_role() -> None:
    api = SlowRoles(cluster())
    async with running(api, settle_first=False) as run:
        await run.until(lambda: writes(api.api)["clusterrolebindings", names.FINDER_DAEMON_SET])
        await run.until(lambda: writes(api.api)["daemonsets", names.FINDER_DAEMON_SET])
    assert api.refused == 0


async def test_the_namespace_gets_labels_and_gives_back_only_those() -> None:
    api = cluster()
    api.put(kinds.NAMESPACES, {"metadata": {"name": NAMESPACE, "labels": {"users": "1"}}})
    body = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE, "labels": {"psa": "privileged"}}}
    wish = Wish(body)

    async def now() -> dict[str, str]:
        found = await api.get(kinds.NAMESPACES, NAMESPACE)
        assert found is not None
        return dict(found["metadata"]["labels"])

    async with running(api, planner=wish) as run:
        assert await now() == {"users": "1", "psa": "privileged"}
        wish.want(run, ClusterPlan())
        await run.settled()
        assert await now() == {"users": "1"}
        since = len(api.calls)
        await run.clock.advance(60)
        assert writes(api, since) == {}
