"""What objects use, and what a quota counts."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from kgpu.base.quantity import Quantity
from kgpu.lab.embedded.types import quota
from tests.lab.embedded.types.table import GPU, Object


def pod(gpus: int, phase: str = "Running", **spec: object) -> Object:
    amounts = {"requests": {GPU: str(gpus), "cpu": "500m"}, "limits": {GPU: str(gpus)}}
    return {
        "metadata": {"name": "p"}, "status": {"phase": phase},
        "spec": {"containers": [{"name": "a", "resources": amounts}], **spec},
    }  # fmt: skip


def a_quota(**hard: str) -> Object:
    return {"metadata": {"name": "q"}, "spec": {"hard": {key.replace("__", "."): value for key, value in hard.items()}}}


GPUS: Object = {
    "metadata": {"name": "q"},
    "spec": {"hard": {f"requests.{GPU}": "4", f"limits.{GPU}": "4", "pods": "9"}},
}


def test_only_requests_of_extended_resources_count() -> None:
    used = quota.quota_usage(GPUS, {quota.PODS: [pod(1), pod(2), pod(4, "Succeeded")]})
    # A limit that no evaluator knows has no entry in the real controller's status either.
    assert {name: str(amount) for name, amount in used.items()} == {f"requests.{GPU}": "3", "pods": "2"}


@given(st.lists(st.integers(min_value=0, max_value=8)))
def test_usage_is_the_sum(gpus: list[int]) -> None:
    used = quota.quota_usage(GPUS, {quota.PODS: [pod(number) for number in gpus]})
    assert used[f"requests.{GPU}"] == Quantity.of(sum(gpus))


def test_init_containers_count_by_the_largest() -> None:
    first = {"name": "i", "resources": {"requests": {GPU: "3"}}}
    side = {"name": "s", "restartPolicy": "Always", "resources": {"requests": {GPU: "1"}}}
    assert str(quota.object_usage("", "pods", pod(1, initContainers=[first]))[f"requests.{GPU}"]) == "3"
    assert str(quota.object_usage("", "pods", pod(1, initContainers=[side]))[f"requests.{GPU}"]) == "2"
    assert str(quota.object_usage("", "pods", pod(1, initContainers=[side, first]))[f"requests.{GPU}"]) == "4"


def test_scopes() -> None:
    scoped = a_quota(pods="1")
    scoped["spec"]["scopes"] = ["Terminating"]
    assert not quota.matches(scoped, "", "pods", pod(1))
    assert quota.matches(scoped, "", "pods", pod(1, activeDeadlineSeconds=5))
    by_class = a_quota(pods="1")
    by_class["spec"]["scopeSelector"] = {
        "matchExpressions": [{"scopeName": "PriorityClass", "operator": "In", "values": ["high"]}]
    }
    assert quota.matches(by_class, "", "pods", pod(1, priorityClassName="high"))
    assert not quota.matches(by_class, "", "pods", pod(1))


def test_counts_of_objects() -> None:
    counted: Object = {
        "metadata": {"name": "q"},
        "spec": {"hard": {"count/deployments.apps": "2", "services.nodeports": "3"}},
    }
    service = {"metadata": {"name": "s"}, "spec": {"type": "NodePort", "ports": [{"port": 1}, {"port": 2}]}}
    assert quota.kinds_needed(counted, [("apps", "deployments")]) == {("apps", "deployments"), ("", "services")}
    used = quota.quota_usage(counted, {("apps", "deployments"): [{"metadata": {}}], ("", "services"): [service]})
    assert {name: str(amount) for name, amount in used.items()} == {
        "count/deployments.apps": "1",
        "services.nodeports": "2",
    }


def test_what_containers_must_state() -> None:
    spec = {"containers": [{"name": "a", "resources": {"limits": {"cpu": "1"}}}, {"name": "b", "resources": {}}]}
    assert quota.missing_amounts(["limits.cpu", "pods"], spec) == "must specify limits.cpu for: b"
    assert (
        quota.missing_amounts(["limits.memory", "limits.cpu"], spec)
        == "must specify limits.cpu for: b; limits.memory for: a,b"
    )
    assert quota.missing_amounts(["limits.nvidia.com/gpu"], spec) == ""


def claim(*requests: Object) -> Object:
    return {"metadata": {"name": "c"}, "spec": {"devices": {"requests": list(requests)}}}


def asked(name: str, count: int, mode: str = "ExactCount") -> Object:
    return {"deviceClassName": name, "count": count, "allocationMode": mode}


def test_devices_are_counted_by_class() -> None:
    key = "a.deviceclass.resource.k8s.io/devices"
    devices = a_quota(**{key.replace(".", "__"): "9", "count/resourceclaims__resource__k8s__io": "9"})
    choices = [asked("a", 2), asked("a", 3), asked("b", 4)]
    claims = [
        claim({"exactly": asked("a", 1)}, {"firstAvailable": choices}),
        claim({"exactly": asked("a", 0, "All")}),
        claim(),
    ]
    used = quota.quota_usage(devices, {quota.RESOURCE_CLAIMS: claims})
    assert {name: str(amount) for name, amount in used.items()} == {
        key: "36",
        "count/resourceclaims.resource.k8s.io": "3",
    }
    assert quota.kinds_needed(devices) == {quota.RESOURCE_CLAIMS}
    assert str(quota.object_usage(*quota.RESOURCE_CLAIMS, claims[0])["b.deviceclass.resource.k8s.io/devices"]) == "4"
