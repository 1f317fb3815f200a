"""Resource claims in the verdict: refused, failing, in flight, useless where they are, and for extended resources."""

from __future__ import annotations

from typing import Any

import pytest

from kgpu.fit import ClusterSnapshot, ClusterView, explain, read, verdict
from kgpu.fit.extended import class_of, extended_ask
from kgpu.fit.model import ClaimView, DeviceRefusal
from kgpu.fit.snapshot import NodeState
from kgpu.fit.verdict import SCHEDULER_ERROR

Object = dict[str, Any]
CLASS = "gpu.example.com"
STUCK = "still not schedulable, preemption: 0/1 nodes are available: 1 Preemption is not helpful for scheduling."


class Fitter:
    """Refuses as it is told, and notes what it was asked."""

    def __init__(self, refusal: DeviceRefusal | None = None) -> None:
        self.said = refusal
        self.asked: list[tuple[ClaimView, ...]] = []

    def refusal(self, claims: tuple[ClaimView, ...], node: NodeState) -> DeviceRefusal | None:
        self.asked.append(claims)
        return self.said

    def preference(self, claims: tuple[ClaimView, ...], node: NodeState) -> int:
        return 0

    def missing(self, claims: tuple[ClaimView, ...], node: NodeState) -> tuple[str, ...]:
        return (self.said.phrase,) if self.said else ()


def node(name: str = "a", **extended: str) -> Object:
    sizes = {
        "cpu": "4",
        "memory": "8Gi",
        "pods": "110",
        **{f"example.com/{key}": value for key, value in extended.items()},
    }
    labels = {"kubernetes.io/hostname": name}
    return {"kind": "Node", "metadata": {"name": name, "labels": labels}, "status": {"allocatable": sizes}}


def device_class(name: str = CLASS, resource: str = "", created: str = "") -> Object:
    spec = {"extendedResourceName": resource} if resource else {}
    return {"kind": "DeviceClass", "metadata": {"name": name, "creationTimestamp": created}, "spec": spec}


def claim(name: str = "c", node_name: str = "", users: tuple[str, ...] = (), **metadata: Any) -> Object:
    asks = [{"name": "gpu", "exactly": {"deviceClassName": CLASS}}]
    status: Object = {"reservedFor": [{"resource": "pods", "name": uid, "uid": uid} for uid in users]}
    if node_name:
        field = {"key": "metadata.name", "operator": "In", "values": [node_name]}
        status["allocation"] = {"nodeSelector": {"nodeSelectorTerms": [{"matchFields": [field]}]}}
    about = {"name": name, "namespace": "default", "uid": f"uid-{name}", **metadata}
    return {"kind": "ResourceClaim", "metadata": about, "spec": {"devices": {"requests": asks}}, "status": status}


def pod(*claims: str, **limits: str) -> Any:
    container = {"name": "c", "resources": {"limits": {f"example.com/{key}": value for key, value in limits.items()}}}
    uses = [{"name": name, "resourceClaimName": name} for name in claims]
    spec = {"containers": [container], "resourceClaims": uses}
    return read.pod({"kind": "Pod", "metadata": {"name": "p", "namespace": "default", "uid": "p"}, "spec": spec})


def snapshot(*objects: Object, fitter: Fitter | None = None, offers: bool = False) -> ClusterSnapshot:
    found = ClusterSnapshot.of(ClusterView.of(objects))
    found.fitter, found.classes_offer = fitter, offers
    return found


def test_a_refusal_is_told_in_the_fitter_s_words() -> None:
    fitter = Fitter(DeviceRefusal("invalid resource pools were encountered"))
    found = verdict(pod("c"), snapshot(node(), device_class(), claim(), fitter=fitter))
    assert found.message == f"0/1 nodes are available: 1 invalid resource pools were encountered. {STUCK}"


def test_what_is_wrong_everywhere_ends_the_attempt() -> None:
    fitter = Fitter(DeviceRefusal("claim default/c: no", everywhere=True))
    objects = (node("a"), node("b"), device_class(), claim())
    found = verdict(pod("c"), snapshot(*objects, fitter=fitter))
    assert (found.reason, found.message) == (
        SCHEDULER_ERROR,
        'running "DynamicResources" filter plugin: claim default/c: no',
    )
    assert len(fitter.asked) == 1
    assert [one.sentence for one in explain(pod("c"), "a", snapshot(*objects, fitter=fitter))] == [
        "claim default/c: no"
    ]


def test_a_claim_that_is_being_allocated_is_waited_for() -> None:
    cluster = snapshot(node(), device_class(), claim(), fitter=Fitter())
    cluster.in_flight.add("uid-c")
    words = "resource claim default/c is in the process of being allocated"
    assert verdict(pod("c"), cluster).message.startswith(f"0/1 nodes are available: {words}. no new claims to")
    cluster.in_flight.clear()
    assert verdict(pod("c"), cluster).fits == ("a",)


@pytest.mark.parametrize(("users", "freed"), [((), "c"), (("p",), "c"), (("p", "q"), None), (("q",), None)])
def test_a_claim_that_is_out_of_reach_is_freed_if_nobody_else_has_it(users: tuple[str, ...], freed: str | None) -> None:
    found = verdict(pod("c"), snapshot(node(), device_class(), claim("c", "b", users), fitter=Fitter()))
    assert (found.deallocates.name if found.deallocates else None) == freed
    words = "deallocation of ResourceClaim completed" if freed else "still not schedulable"
    assert found.message.startswith(f"0/1 nodes are available: 1 resourceclaim not available on the node. {words}, ")


def test_without_the_gate_an_extended_resource_is_the_device_plugin_s_alone() -> None:
    found = verdict(pod(gpu="1"), snapshot(node(), device_class(resource="example.com/gpu"), fitter=Fitter()))
    assert found.counts == {"Insufficient example.com/gpu": 1}


def test_with_it_the_devices_decide_where_there_is_no_plugin() -> None:
    fitter = Fitter(DeviceRefusal("cannot allocate all claims"))
    cluster = snapshot(
        node("a"), node("b", gpu="1"), device_class(resource="example.com/gpu"), fitter=fitter, offers=True
    )
    assert verdict(pod(gpu="1"), cluster).fits == ("b",)
    found = verdict(pod(gpu="2"), cluster)
    assert found.counts == {"Insufficient example.com/gpu": 1, "cannot allocate all claims": 1}
    assert [one.phrase for one in explain(pod(gpu="2"), "a", cluster)] == ["cannot allocate all claims"]
    fitter.said = None
    assert verdict(pod(gpu="2"), cluster).fits == ("a",)
    ((asked,),) = fitter.asked[-1:]
    request = {"deviceClassName": CLASS, "allocationMode": "ExactCount", "count": 2}
    assert asked.spec == {"requests": [{"name": "container-0-request-0", "exactly": request}]}


def test_a_claim_of_an_earlier_attempt_is_deleted_first() -> None:
    owners = [{"kind": "Pod", "name": "p", "uid": "p", "controller": True}]
    annotations = {"resource.kubernetes.io/extended-resource-claim": "true"}
    old = claim("old", ownerReferences=owners, annotations=annotations)
    cluster = snapshot(node(), device_class(resource="example.com/gpu"), old, fitter=Fitter(), offers=True)
    found = verdict(pod(gpu="1"), cluster)
    assert found.message.startswith(
        "0/1 nodes are available: 1 cannot schedule extended resource claim. deletion of ResourceClaim completed, "
    )
    assert found.deallocates is not None
    assert found.deallocates.name == "old"


def test_of_several_classes_the_newest_offers_the_resource() -> None:
    rows = (("b", "2026-01-02T00:00:00Z"), ("c", "2026-01-02T00:00:00Z"), ("a", "2026-01-01T00:00:00Z"))
    cluster = snapshot(*(device_class(name, "example.com/gpu", created) for name, created in rows), offers=True)
    found = [class_of(name, cluster) for name in ("example.com/gpu", "deviceclass.resource.kubernetes.io/a", "cpu")]
    assert [one.name if one else None for one in found] == ["b", "a", None]
    assert class_of("example.com/other", cluster) is None


def test_containers_that_end_use_the_devices_of_those_that_come_after() -> None:
    names = ("init", "sidecar", "large", "main")
    amounts = (2, 1, 5, 3)
    rows: list[Object] = [
        {"name": name, "resources": {"requests": {"cpu": "1", "example.com/gpu": str(amount)}}}
        for name, amount in zip(names, amounts, strict=True)
    ]
    rows[1]["restartPolicy"] = "Always"
    spec = {"initContainers": rows[:3], "containers": rows[3:]}
    view = read.pod({"kind": "Pod", "metadata": {"name": "p", "uid": "p"}, "spec": spec})
    assert view is not None
    ask = extended_ask(view, snapshot(device_class(resource="example.com/gpu"), offers=True))
    assert ask is not None
    found = ask.on(NodeState("a"))
    assert found is not None
    assert [(row["name"], row["exactly"]["count"]) for row in found.requests] == [
        ("container-1-request-1", 1), ("container-2-request-1", 2), ("container-3-request-1", 3),
    ]  # fmt: skip
    assert [(row["containerName"], row["requestName"]) for row in found.mappings] == [
        ("sidecar", "container-1-request-1"), ("main", "container-3-request-1"),
        ("init", "container-1-request-1"), ("init", "container-3-request-1"),
        ("large", "container-3-request-1"), ("large", "container-2-request-1"),
    ]  # fmt: skip
