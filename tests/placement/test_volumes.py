"""Volumes that wait for their first consumer: free ones are taken once, places are kept, and the unknown is told."""

from __future__ import annotations

from typing import Any

import pytest

from kgpu.placement.answer import answer
from kgpu.placement.model import WhatIfAnswer
from kgpu.placement.question import WhatIfQuestion
from tests.placement.clusters import GPU, Object, by_name, node, pod

ZONE = "topology.kubernetes.io/zone"
NONE_FREE = "node(s) didn't find available persistent volumes to bind"


def ask(*objects: Object, **question: object) -> WhatIfAnswer:
    return answer(WhatIfQuestion(**question), objects)  # type: ignore[arg-type]


def storage(name: str = "local", provisioner: str = "kubernetes.io/no-provisioner", *zones: str, **more: Any) -> Object:
    places = [{"matchLabelExpressions": [{"key": ZONE, "values": list(zones)}]}] if zones else None
    return {"kind": "StorageClass", "metadata": {"name": name, **more}, "provisioner": provisioner,
            "volumeBindingMode": "WaitForFirstConsumer", "allowedTopologies": places}  # fmt: skip


def claim(name: str, size: str = "10Gi", of: str | None = "local", **spec: Any) -> Object:
    named = {} if of is None else {"storageClassName": of}
    asks = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": size}}, **named, **spec}
    return {"kind": "PersistentVolumeClaim", "metadata": {"name": name, "namespace": "ml"}, "spec": asks}


def volume(name: str, host: str, size: str = "10Gi", **spec: Any) -> Object:
    term = {"matchExpressions": [{"key": "kubernetes.io/hostname", "operator": "In", "values": [host]}]}
    return {
        "kind": "PersistentVolume", "metadata": {"name": name}, "status": {"phase": "Available"},
        "spec": {"capacity": {"storage": size}, "accessModes": ["ReadWriteOnce"], "storageClassName": "local",
                 "nodeAffinity": {"required": {"nodeSelectorTerms": [term]}}, **spec},
    }  # fmt: skip


def user(name: str, *claims: str) -> Object:
    volumes = [{"name": one, "persistentVolumeClaim": {"claimName": one}} for one in claims]
    return pod(name, 1, owner="", volumes=volumes)


NODES = [node("a"), node("b")]


@pytest.mark.parametrize(
    ("objects", "lands"),
    [
        ((volume("v", "b"),), "b"),
        ((volume("v", "b", "9Gi"),), ""),
        ((volume("v", "b", storageClassName="other"),), ""),
        ((volume("v", "b", accessModes=["ReadOnlyMany"]),), ""),
        ((volume("v", "b", volumeMode="Block"),), ""),
        ((volume("v", "b", claimRef={"namespace": "ml", "name": "other"}),), ""),
        ((volume("v", "b", claimRef={"namespace": "ml", "name": "c"}),), "b"),
        ((), ""),
    ],
)
def test_a_claim_takes_a_free_volume_that_does(objects: tuple[Object, ...], lands: str) -> None:
    found = ask(*NODES, storage(), claim("c"), *objects, user("p", "c"))
    assert by_name(found.outcomes) == {"p": lands}
    if not lands:
        assert found.outcomes[0].message.startswith(f"0/2 nodes are available: 2 {NONE_FREE}.")


def test_two_claims_do_not_get_one_volume() -> None:
    both = [claim("c"), claim("d")]
    found = ask(*NODES, storage(), *both, volume("v", "a"), user("p", "c"), user("q", "d"))
    assert by_name(found.outcomes) == {"p": "a", "q": ""}
    assert by_name(ask(*NODES, storage(), *both, volume("v", "a"), user("p", "c", "d")).outcomes) == {"p": ""}
    two = ask(*NODES, storage(), *both, volume("v", "a"), volume("w", "a"), user("p", "c", "d"))
    assert by_name(two.outcomes) == {"p": "a"}


def test_a_gang_that_does_not_start_gives_its_volumes_back() -> None:
    one, other = user("p", "c"), user("q", "d")
    for member in (one, other):
        member["metadata"]["labels"]["scheduling.x-k8s.io/pod-group"] = "g"
    found = ask(*NODES, storage(), claim("c"), claim("d"), volume("v", "a"), one, other, user("r", "c"))
    assert by_name(found.outcomes) == {"p": "", "q": "", "r": "a"}


def test_a_class_that_makes_volumes_keeps_to_its_zones_and_what_is_not_known_is_told() -> None:
    zoned = [node("a", labels={ZONE: "x"}), node("b", labels={ZONE: "y"})]
    found = ask(*zoned, storage("disks", "disks.example.com", "y"), claim("c", of="disks"), user("p", "c"))
    assert by_name(found.outcomes) == {"p": "b"}
    assert any("volumes that StorageClass disks makes are taken to be usable from every node" in n for n in found.notes)
    nowhere = ask(*zoned, storage("disks", "disks.example.com", "z"), claim("c", of="disks"), user("p", "c"))
    assert by_name(nowhere.outcomes) == {"p": ""}
    chosen = claim("c", of="disks")
    chosen["metadata"]["annotations"] = {"volume.kubernetes.io/selected-node": "b"}
    assert by_name(ask(*NODES, storage("disks", "disks.example.com"), chosen, user("p", "c")).outcomes) == {"p": "b"}


def test_a_statefulsets_pods_have_claims_of_their_own() -> None:
    template = {"spec": {"containers": [{"name": "c", "image": "i", "resources": {"limits": {GPU: 1}}}]}}
    claims = [{"metadata": {"name": "data"}, "spec": claim("", of=None)["spec"]}]
    sts = {"kind": "StatefulSet", "metadata": {"name": "db", "namespace": "ml"},
           "spec": {"replicas": 3, "template": template, "volumeClaimTemplates": claims}}  # fmt: skip
    usual = storage(annotations={"storageclass.kubernetes.io/is-default-class": "true"})
    found = ask(*NODES, usual, volume("v", "a"), volume("w", "b"), manifests=(sts,))
    assert sorted(by_name(found.outcomes).values()) == ["", "a", "b"]
    without = ask(*NODES, volume("v", "a"), manifests=(sts,))
    assert "unbound immediate PersistentVolumeClaims" in without.outcomes[0].message


def test_ephemeral_volumes_have_claims() -> None:
    template = {"spec": claim("", of="local")["spec"]}
    found = pod("p", 1, owner="", volumes=[{"name": "scratch", "ephemeral": {"volumeClaimTemplate": template}}])
    del found["metadata"]["uid"]
    assert by_name(ask(*NODES, storage(), volume("v", "b"), manifests=(found,)).outcomes) == {"p": "b"}


def test_an_ephemeral_volume_goes_with_its_pod_and_the_next_one_gets_another() -> None:
    own = [{"name": "data", "ephemeral": {"volumeClaimTemplate": {"spec": claim("x")["spec"]}}}]
    bound = claim("p-data", volumeName="va")
    bound["status"], bound["metadata"]["annotations"] = {"phase": "Bound"}, {"pv.kubernetes.io/bind-completed": "yes"}
    taken = volume("va", "a", claimRef={"namespace": "ml", "name": "p-data"})
    cluster = [*NODES, storage(), bound, taken, pod("p", 1, "a", volumes=own)]
    assert by_name(ask(*cluster, volume("vb", "b"), drain=("a",)).outcomes) == {"p": "b"}
    none = ask(*cluster, drain=("a",)).outcomes[0].message
    assert none.startswith(f"0/2 nodes are available: 1 {NONE_FREE}, 1 node(s) were unschedulable.")


def test_a_claim_that_is_no_ephemeral_volumes_keeps_its_volume() -> None:
    bound = claim("c", volumeName="va")
    bound["status"], bound["metadata"]["annotations"] = {"phase": "Bound"}, {"pv.kubernetes.io/bind-completed": "yes"}
    taken = volume("va", "a", claimRef={"namespace": "ml", "name": "c"})
    volumes = [{"name": "data", "persistentVolumeClaim": {"claimName": "c"}}]
    found = ask(*NODES, storage(), bound, taken, volume("vb", "b"), pod("p", 1, "a", volumes=volumes), drain=("a",))
    assert "didn't match PersistentVolume's node affinity" in found.outcomes[0].message


IMMEDIATE = {**storage("now", "csi.example.com"), "volumeBindingMode": "Immediate"}


def test_a_claim_that_does_not_wait_has_a_volume_before_its_pod() -> None:
    """A class that makes volumes does so at once; what is to be said is that nobody knows where they can be used."""
    found = ask(*NODES, IMMEDIATE, manifests=(claim("c", of="now"), user("p", "c")), namespace="ml")
    assert by_name(found.outcomes) == {"p": "a"}
    assert "volumes that StorageClass now makes are taken to be usable from every node" in found.notes[0]


def test_a_claim_that_does_not_wait_takes_a_free_volume_wherever_that_is() -> None:
    by_hand = {**IMMEDIATE, "provisioner": "kubernetes.io/no-provisioner"}
    ours = (claim("c", of="now"), claim("d", of="now"), user("p", "c"), user("q", "d"))
    free = [volume("v", "b", storageClassName="now"), volume("w", "a", "20Gi", storageClassName="now")]
    found = ask(*NODES, by_hand, *free, manifests=ours, namespace="ml")
    assert by_name(found.outcomes) == {"p": "b", "q": "a"}
    less = ask(*NODES, by_hand, free[0], manifests=ours, namespace="ml")
    assert by_name(less.outcomes) == {"p": "b", "q": ""}
    assert "unbound immediate PersistentVolumeClaims" in less.without_node[0].message


def test_a_claim_that_is_there_without_a_volume_is_not_given_one() -> None:
    found = ask(*NODES, IMMEDIATE, claim("c", of="now"), user("p", "c"))
    assert "unbound immediate PersistentVolumeClaims" in found.outcomes[0].message
