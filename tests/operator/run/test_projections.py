"""What is kept of objects: what is wrong with a pod, who owns an object, which other programs work in the cluster."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import HealthCheck, given
from hypothesis import strategies as st

from kgpu.formats import names
from kgpu.kube.port import CONFIG_MAPS, PODS, Object
from kgpu.operator import projections
from tests.budget import tries
from tests.operator.run.support import Wish, cluster, config_map, running
from tests.operator.world import NAMESPACE


def status(*containers: Object, phase: str = "Pending", init: tuple[Object, ...] = (), **more: Any) -> Object:
    return {"phase": phase, "containerStatuses": list(containers), "initContainerStatuses": list(init), **more}


def waiting(reason: str, message: str = "", **more: Any) -> Object:
    return {"name": "c", "ready": False, "state": {"waiting": {"reason": reason, "message": message}}, **more}


READY = {"type": "Ready", "status": "True"}
DONE = {"name": "i", "ready": True, "state": {"terminated": {"exitCode": 0}}}
CRASHED = {"lastState": {"terminated": {"exitCode": 3, "message": "no driver"}}}
LOG = "\n".join([*(f"line {number} of a build" for number in range(100)), "no headers", "stopping"])
SAID = f"… {' '.join(f'line {number} of a build' for number in range(93, 100))} no headers stopping"
CASES: tuple[tuple[str, Object, tuple[str, str]], ...] = (
    ("ready", status(conditions=[READY], phase="Running"), ("", "")),
    ("ended well", status(phase="Succeeded"), ("", "")),
    ("evicted", status(phase="Failed", reason="Evicted", message="low on memory"), ("Evicted", "low on memory")),
    (
        "no node",
        status(conditions=[{"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "taint"}]),
        ("Unschedulable", "taint"),
    ),
    ("image", status(waiting("ImagePullBackOff", "no such image")), ("ImagePullBackOff", "container c: no such image")),
    (
        "crash",
        status(waiting("CrashLoopBackOff", "back-off 10s", **CRASHED)),
        ("CrashLoopBackOff", "container c: exit code 3: no driver"),
    ),
    (
        "crash after a long log",
        status(waiting("CrashLoopBackOff", lastState={"terminated": {"exitCode": 1, "message": LOG}})),
        ("CrashLoopBackOff", f"container c: exit code 1: {SAID}"),
    ),
    (
        "stopped by its probe",
        status(
            waiting("CrashLoopBackOff", "back-off", lastState={"terminated": {"exitCode": 0, "message": "no daemon"}})
        ),
        ("CrashLoopBackOff", "container c: exit code 0: no daemon"),
    ),
    (
        "init first",
        status(waiting("PodInitializing"), init=(DONE, waiting("ErrImagePull", "x"))),
        ("ImagePullBackOff", "container c: x"),
    ),
    (
        "ended badly",
        status({"name": "c", "ready": False, "state": {"terminated": {"exitCode": 1, "reason": "OOMKilled"}}}),
        ("OOMKilled", "container c: exit code 1"),
    ),
    (
        "runs, not ready",
        status({"name": "c", "ready": False, "state": {"running": {}}}, phase="Running"),
        ("NotReady", "container c runs but is not ready"),
    ),
    ("starting", status(waiting("ContainerCreating")), ("Starting", "container c is being started")),
    ("just made", {"phase": "Pending"}, ("Starting", "the pod is being started")),
)


@pytest.mark.parametrize(("pod", "said"), [case[1:] for case in CASES], ids=[case[0] for case in CASES])
def test_what_is_wrong_with_a_pod(pod: Object, said: tuple[str, str]) -> None:
    assert projections.pod_trouble(pod) == said


def test_trouble_that_goes_on_is_said_in_the_same_words() -> None:
    pull = "failed to do request: dial tcp: lookup r on 10.0.0.1:53: read udp 10.0.0.9:{}->10.0.0.1:53: i/o timeout"
    pulls = [
        waiting("ErrImagePull", pull.format(40001)),
        waiting("ImagePullBackOff", 'Back-off pulling image "r/x": ErrImagePull: ' + pull.format(40002)),
    ]
    crashed: Object = {"terminated": {"exitCode": 3, "message": "no driver"}}
    crashes = [
        waiting("CrashLoopBackOff", "back-off 10s restarting", lastState=crashed, restartCount=2),
        waiting("CrashLoopBackOff", "back-off 20s restarting", lastState=crashed, restartCount=3),
        {"name": "c", "ready": False, "state": crashed, "lastState": crashed, "restartCount": 3},
        {"name": "c", "ready": False, "state": {"running": {}}, "lastState": crashed, "restartCount": 4},
    ]
    for states in (pulls, crashes):
        assert len({projections.pod_trouble(status(state)) for state in states}) == 1


def test_a_pod_that_is_only_starting_is_explained_by_its_last_event() -> None:
    owner = {"kind": "DaemonSet", "name": "operand", "controller": True}
    affinity = {
        "nodeAffinity": {
            "requiredDuringSchedulingIgnoredDuringExecution": {
                "nodeSelectorTerms": [{"matchFields": [{"key": "metadata.name", "values": ["n1"]}]}]
            }
        }
    }
    pod = projections.pod(
        {
            "metadata": {"name": "p", "uid": "u", "ownerReferences": [owner]},
            "spec": {"affinity": affinity},
            "status": status(waiting("ContainerCreating")),
        }
    )
    events = [
        projections.warning({"involvedObject": {"kind": "Pod", "name": "p", "uid": "u"}, "reason": reason, "message": said, "lastTimestamp": at})
        for reason, said, at in (("FailedMount", "no Secret x", "2026-01-02"), ("Old", "old", "2026-01-01"))
    ]  # fmt: skip
    (found,) = projections.troubles([pod], events)
    assert (found.node, found.daemon_set, found.reason) == ("n1", "operand", "FailedMount")
    assert found.message == "container c is being started: no Secret x"


def test_failures_are_of_daemon_sets_that_miss_pods() -> None:
    events = [
        projections.warning(
            {"involvedObject": {"kind": "DaemonSet", "name": name}, "message": "quota", "lastTimestamp": "1"}
        )
        for name in ("short", "full", "gone")
    ]
    sets = {
        "short": {"metadata": {}, "status": {"desiredNumberScheduled": 2, "currentNumberScheduled": 1}},
        "full": {"metadata": {}, "status": {"desiredNumberScheduled": 2, "currentNumberScheduled": 2}},
    }
    assert projections.failures(sets, events, {"short": "1"}) == {"short": "quota"}


def test_what_kept_pods_away_is_over_when_one_was_made_later() -> None:
    said = 'Error creating: pods "short-x7k2p" is forbidden: exceeded quota: q'
    about = {"involvedObject": {"kind": "DaemonSet", "name": "short"}, "message": said}
    events = [projections.warning({**about, "lastTimestamp": "2026-01-01T00:00:05Z"})]
    sets = {"short": {"metadata": {}, "status": {"desiredNumberScheduled": 2, "currentNumberScheduled": 1}}}
    found = [projections.failures(sets, events, {"short": f"2026-01-01T00:00:0{second}Z"}) for second in (4, 6)]
    assert found == [{"short": "exceeded quota: q"}, {}]


def test_where_pods_of_daemon_sets_are() -> None:
    def pod(name: str, node: str, owner: str, at: str) -> Object:
        owners = [{"kind": "DaemonSet", "name": owner, "controller": True}] if owner else []
        metadata = {"name": name, "ownerReferences": owners, "creationTimestamp": at}
        return projections.pod({"metadata": metadata, "spec": {"nodeName": node}})

    pods = [pod("a", "n1", "one", "2"), pod("b", "n2", "one", "1"), pod("c", "n1", "two", "3"), pod("d", "n1", "", "4")]
    assert projections.nodes_by_daemon_set(pods) == {"one": frozenset({"n1", "n2"}), "two": frozenset({"n1"})}
    assert projections.newest_pods(pods) == {"one": "2", "two": "3"}


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(
        st.sampled_from(["metadata", "spec", "status", "state", "waiting", "conditions", "ownerReferences", "kind"]), inner
    ),
    max_leaves=12,
)  # fmt: skip
REDUCERS = (
    projections.node, projections.policy, projections.driver, projections.daemon_set, projections.config_map, projections.managed, projections.pod, projections.warning,
    projections.deployment,
)  # fmt: skip


@tries(suppress_health_check=[HealthCheck.too_slow])
@given(JSON)
def test_no_object_can_break_the_watch(value: Any) -> None:
    obj = {"metadata": {"name": "x", "resourceVersion": "1"}, "spec": value, "status": value, "data": value}
    for reduce in REDUCERS:
        assert (
            reduce({**obj, "metadata": {**obj["metadata"], "managedFields": value, "ownerReferences": value}})[
                "metadata"
            ]["name"]
            == "x"
        )  # type: ignore[dict-item]


async def test_config_maps_are_known_by_their_keys_and_pods_by_their_trouble() -> None:
    api, wish = cluster(), Wish()
    users = config_map("plugin", default="version: v1", a100="version: v1")
    users["metadata"]["labels"] = {}
    api.put(CONFIG_MAPS, users)
    await api.apply(CONFIG_MAPS, config_map("made", x="y"), manager=names.OPERATOR_FIELD_MANAGER)
    owner = {"kind": "DaemonSet", "name": "operand", "controller": True}
    metadata = {"name": "p", "namespace": NAMESPACE, "ownerReferences": [owner]}
    api.put(PODS, {"metadata": metadata, "spec": {"nodeName": "n0"}, "status": status(waiting("ErrImagePull", "gone"))})
    async with running(api, planner=wish):
        observed = wish.seen[-1]
        assert observed.config_maps["plugin"] == {"default", "a100"}
        assert ("plugin" in observed.given_maps, "made" in observed.given_maps) == (True, False)
        (trouble,) = observed.troubles
        assert (trouble.node, trouble.reason) == ("n0", "ImagePullBackOff")
        assert observed.kube_version == (1, 35)
