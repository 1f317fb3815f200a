"""Which pod is a node's driver pod, and what its containers say of it."""

from __future__ import annotations

from typing import Any

import pytest

from kgpu.formats import names
from kgpu.kube.port import Object
from kgpu.operations.driver_pods import DriverPod, driver_on, read_driver_pod

BASE = "nvidia-driver-daemonset"
PINNED = {
    "requiredDuringSchedulingIgnoredDuringExecution": {
        "nodeSelectorTerms": [{"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["n1"]}]}]
    }
}


def obj(
    name: str, *, owner: str = BASE, kind: str = "DaemonSet", placed: bool = True, container: str = names.DRIVER_CONTAINER,
    **more: Any,
) -> Object:  # fmt: skip
    owners = [{"kind": kind, "name": owner, "controller": True}] if owner else []
    spec: Object = {"containers": [{"name": container, "image": "driver:570.1-ubuntu24.04"}]}
    spec |= {"nodeName": "n1"} if placed else {"affinity": {"nodeAffinity": PINNED}}
    metadata = {"namespace": "ns", "name": name, "uid": name, "ownerReferences": owners, **more}
    return {"metadata": metadata, "spec": spec, "status": {}}


def chosen(*objects: Object) -> str:
    pod = driver_on(map(read_driver_pod, objects), "n1", BASE)
    return pod.name if pod is not None else ""


ENDING: dict[str, Any] = {"deletionTimestamp": "2033-11-14T22:13:20Z"}


@pytest.mark.parametrize(
    ("objects", "name"),
    [
        ((), ""),
        ((obj("own"),), "own"),
        ((obj("own"), obj("left", owner="")), "own"),
        ((obj("own", **ENDING), obj("left", owner="")), "own"),
        ((obj("own", placed=False), obj("left", owner="")), "left"),
        ((obj("own", placed=False), obj("left", owner="", **ENDING)), "left"),
        ((obj("own", placed=False),), "own"),
        ((obj("own", **ENDING), obj("next", placed=False)), "own"),
        ((obj("left", owner=""),), "left"),
        ((obj("unplaced", owner="", placed=False),), ""),
        ((obj("other", owner="another"),), "other"),
        ((obj("own", placed=False), obj("other", owner="another")), "other"),
        ((obj("own"), obj("other", owner="another")), "own"),
        ((obj("unplaced", owner="another", placed=False),), ""),
        ((obj("replica", owner="set", kind="ReplicaSet"),), ""),
        ((obj("of its name", kind="ReplicaSet"),), ""),
        ((obj("no driver", owner="", container="c"),), ""),
    ],
)
def test_whose_pod_it_is(objects: tuple[Object, ...], name: str) -> None:
    assert chosen(*objects) == name
    assert chosen(*reversed(objects)) == name


HOSTILE: tuple[Any, ...] = (
    None,
    7,
    "x",
    [],
    [None],
    {"a": 1},
    [{"matchFields": [{"key": "metadata.name", "values": 5}]}],
)


@pytest.mark.parametrize("part", HOSTILE, ids=str)
def test_what_is_malformed_is_read_as_nothing(part: Any) -> None:
    pinned = {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": part}}}
    for given in (
        {"metadata": part, "spec": part, "status": part},
        {"metadata": {"ownerReferences": part}, "spec": {"affinity": part, "containers": part}},
        {"spec": {"affinity": {"nodeAffinity": part}}, "status": {"containerStatuses": part, "conditions": part}},
        {"spec": {"affinity": pinned}},
    ):
        pod = read_driver_pod(given)
        assert isinstance(pod, DriverPod)
        assert (pod.node, pod.daemon_set) == ("", "")


@pytest.mark.parametrize(
    ("row", "words"),
    [
        ({"state": {"waiting": {"reason": "PodInitializing"}}}, "nvidia-driver-ctr waits: PodInitializing"),
        ({"state": {"running": {}}, "restartCount": 1}, "nvidia-driver-ctr is at work"),
        (
            {"state": {"waiting": {"reason": "CrashLoopBackOff"}}, "restartCount": 1,
             "lastState": {"terminated": {"exitCode": 3, "message": "no headers"}}},
            "nvidia-driver-ctr has ended with exit code 3: no headers",
        ),
        (
            {"state": {"terminated": {"exitCode": 137, "reason": "OOMKilled"}}, "restartCount": 0},
            "nvidia-driver-ctr has ended with exit code 137: OOMKilled",
        ),
        (
            {"state": {"waiting": {"reason": "CrashLoopBackOff"}}, "restartCount": 2},
            "nvidia-driver-ctr has ended; `kubectl logs --previous` has what it said",
        ),
    ],
)  # fmt: skip
def test_what_it_does_or_how_it_ended(row: Object, words: str) -> None:
    status = {"containerStatuses": [{"name": names.DRIVER_CONTAINER, **row}]}
    assert read_driver_pod({**obj("own"), "status": status}).doing == words
