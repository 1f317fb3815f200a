"""Scale, binding, eviction, tokens, and the kinds that are only asked."""

from __future__ import annotations

from typing import Any

import pytest

from kgpu.lab.embedded.core import ApiCore
from kgpu.lab.embedded.core.model import AllowAll
from kgpu.lab.embedded.status import ApiError, Object
from tests.lab.embedded.support import ADMIN, CALL, kind, make_core, pod

MERGE = "application/merge-patch+json"


@pytest.fixture
def core() -> ApiCore:
    return make_core()


def binding(name: str, node: str = "n", **metadata: Any) -> Object:
    return {"apiVersion": "v1", "kind": "Binding", "metadata": {"name": name, **metadata}, "target": {"kind": "Node", "name": node}}  # fmt: skip


def test_a_scale_shows_and_sets_the_replicas(core: ApiCore) -> None:
    deployments = kind(core, "deployments", "apps")
    selector = {"matchLabels": {"b": "1", "a": "2"}}
    core.create(
        deployments, "default", {"metadata": {"name": "d"}, "spec": {"replicas": 3, "selector": selector}}, CALL
    )
    scale = core.get(deployments, "default", "d", subresource="scale").obj
    assert (scale["kind"], scale["apiVersion"]) == ("Scale", "autoscaling/v1")
    assert (scale["spec"], scale["status"]) == ({"replicas": 3}, {"replicas": 0, "selector": "a=2,b=1"})
    change = {"spec": {"replicas": 5}}
    patched, made = core.patch(deployments, "default", "d", MERGE, change, CALL, subresource="scale")
    assert (patched.obj["spec"], made) == ({"replicas": 5}, False)
    found = core.get(deployments, "default", "d").obj
    assert (found["spec"]["replicas"], found["metadata"]["generation"]) == (5, 2)
    # What was written through the Scale has no time, and so comes first.
    account = [(entry.get("subresource"), "time" in entry) for entry in found["metadata"]["managedFields"]]
    assert account == [("scale", False), (None, True)]
    with pytest.raises(ApiError) as stale:
        core.update(deployments, "default", "d", {**scale, "spec": {"replicas": 1}}, CALL, subresource="scale")
    assert stale.value.code == 409
    with pytest.raises(ApiError) as negative:
        core.patch(deployments, "default", "d", MERGE, {"spec": {"replicas": -1}}, CALL, subresource="scale")
    assert 'Scale.autoscaling "d" is invalid: spec.replicas: Invalid value: -1' in negative.value.message


def test_a_binding_gives_a_pod_its_node_once(core: ApiCore) -> None:
    pods = kind(core, "pods")
    core.create(pods, "default", pod("p"), CALL)
    answer = core.create(pods, "default", binding("p", annotations={"x": "1"}), CALL, name="p", subresource="binding")
    assert answer.obj["status"] == "Success"
    bound = core.get(pods, "default", "p").obj
    assert (bound["spec"]["nodeName"], bound["metadata"]["annotations"]) == ("n", {"x": "1"})
    condition = bound["status"]["conditions"][0]
    assert (condition["type"], condition["status"]) == ("PodScheduled", "True")
    assert condition["lastTransitionTime"]
    with pytest.raises(ApiError) as caught:
        core.create(pods, "default", binding("p", "m"), CALL, name="p", subresource="binding")
    message = 'Operation cannot be fulfilled on pods/binding "p": pod p is already assigned to node "n"'
    assert (caught.value.code, caught.value.message) == (409, message)
    with pytest.raises(ApiError) as missing:
        core.create(pods, "default", binding("q"), CALL, name="q", subresource="binding")
    assert missing.value.message == 'pods "q" not found'


def guarded(core: ApiCore, **status: Any) -> None:
    pods, budgets = kind(core, "pods"), kind(core, "poddisruptionbudgets", "policy")
    obj = pod("p", nodeName="n")
    obj["metadata"]["labels"] = {"app": "x"}
    core.create(pods, "default", obj, CALL)
    running = {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}
    core.patch(pods, "default", "p", MERGE, {"status": running}, CALL, subresource="status")
    spec = {"selector": {"matchLabels": {"app": "x"}}, "minAvailable": 1}
    core.create(budgets, "default", {"metadata": {"name": "b"}, "spec": spec}, CALL)
    core.patch(
        budgets, "default", "b", MERGE, {"status": {"observedGeneration": 1, **status}}, CALL, subresource="status"
    )


def evict(core: ApiCore) -> None:
    eviction = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": "p"}}
    core.create(kind(core, "pods"), "default", eviction, CALL, name="p", subresource="eviction")


def test_a_budget_without_room_refuses_an_eviction(core: ApiCore) -> None:
    guarded(core, disruptionsAllowed=0, currentHealthy=1, desiredHealthy=1)
    with pytest.raises(ApiError) as caught:
        evict(core)
    assert (caught.value.code, caught.value.message) == (429, "Cannot evict pod as it would violate the pod's disruption budget.")  # fmt: skip
    assert caught.value.details is not None
    cause = {
        "reason": "DisruptionBudget",
        "message": "The disruption budget b needs 1 healthy pods and has 1 currently",
    }
    assert caught.value.details["causes"] == [cause]
    assert "deletionTimestamp" not in core.get(kind(core, "pods"), "default", "p").obj["metadata"]


def test_an_eviction_uses_the_budget_and_ends_the_pod(core: ApiCore) -> None:
    guarded(core, disruptionsAllowed=1, currentHealthy=2, desiredHealthy=1)
    evict(core)
    going = core.get(kind(core, "pods"), "default", "p").obj
    assert going["metadata"]["deletionGracePeriodSeconds"] == 30
    assert {row["type"] for row in going["status"]["conditions"]} == {"Ready", "DisruptionTarget"}
    budget = core.get(kind(core, "poddisruptionbudgets", "policy"), "default", "b").obj
    assert budget["status"]["disruptionsAllowed"] == 0
    assert set(budget["status"]["disruptedPods"]) == {"p"}


def test_a_budget_that_is_not_seen_yet_asks_to_come_again(core: ApiCore) -> None:
    guarded(core, observedGeneration=0, disruptionsAllowed=1)
    with pytest.raises(ApiError) as caught:
        evict(core)
    assert caught.value.code == 429
    assert caught.value.details is not None
    assert caught.value.details["retryAfterSeconds"] == 10


class Issuer(AllowAll):
    def issue(self, account: Object, spec: Object) -> tuple[str, str]:
        return f"token of {account['metadata']['name']} for {spec['expirationSeconds']}", "2030-01-01T00:00:00Z"


def test_tokens_of_service_accounts_come_from_the_authority(core: ApiCore) -> None:
    core.authority = Issuer()
    accounts = kind(core, "serviceaccounts")
    core.create(accounts, "default", {"metadata": {"name": "a"}}, CALL)
    found = core.create(accounts, "default", {"spec": {}}, CALL, name="a", subresource="token").obj
    assert found["spec"] == {
        "audiences": ["https://kubernetes.default.svc.cluster.local"], "expirationSeconds": 3600, "boundObjectRef": None,
    }  # fmt: skip
    own = {"audiences": ["x"], "expirationSeconds": 700, "boundObjectRef": {"kind": "Pod", "name": "p"}}
    assert core.create(accounts, "default", {"spec": own}, CALL, name="a", subresource="token").obj["spec"] == own
    assert found["status"] == {"token": "token of a for 3600", "expirationTimestamp": "2030-01-01T00:00:00Z"}
    with pytest.raises(ApiError) as caught:
        core.create(accounts, "default", {"spec": {"expirationSeconds": 5}}, CALL, name="a", subresource="token")
    assert caught.value.code == 422


def test_reviews_are_answered(core: ApiCore) -> None:
    reviews = kind(core, "selfsubjectaccessreviews", "authorization.k8s.io")
    spec = {"resourceAttributes": {"verb": "get", "resource": "pods"}}
    assert core.create(reviews, "", {"spec": spec}, CALL).obj["status"] == {"allowed": True}
    with pytest.raises(ApiError) as caught:
        core.create(reviews, "", {"spec": {}}, CALL)
    assert caught.value.code == 422
    me = core.create(kind(core, "selfsubjectreviews", "authentication.k8s.io"), "", {}, CALL).obj
    assert me["status"]["userInfo"] == {"username": ADMIN.name, "groups": list(ADMIN.groups)}
    tokens = kind(core, "tokenreviews", "authentication.k8s.io")
    assert "authenticated" not in core.create(tokens, "", {"spec": {"token": "x"}}, CALL).obj["status"]


def test_other_subresources_are_refused_plainly(core: ApiCore) -> None:
    pods = kind(core, "pods")
    core.create(pods, "default", pod("p"), CALL)
    for change in ("resize", "ephemeralcontainers"):
        with pytest.raises(ApiError) as caught:
            core.patch(pods, "default", "p", MERGE, {}, CALL, subresource=change)
        assert caught.value.code == 501
