"""Which pods leave a node: kubectl's own table of cases (pkg/drain and pkg/cmd/drain), and what kgpu does beyond it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from kgpu.base.times import stamp_of
from kgpu.formats.crd.nodeoperation import DrainProgress, OperationDrain
from kgpu.operations.drain import AT_ONCE, Evicted, Fate, drain_state, fate, progress
from kgpu.operations.model import Answer, NodePod, read_pod

NOW = 1_700_000_000.0


def pod(
    name: str = "p",
    *,
    owner: str = "",
    phase: str = "Running",
    mirror: bool = False,
    volume: Mapping[str, Any] | None = None,
    **metadata: Any,
) -> NodePod:
    owners = [{"kind": owner, "name": f"my-{owner}", "controller": True}] if owner else []
    annotations = {"kubernetes.io/config.mirror": "hash"} if mirror else {}
    return read_pod(
        {
            "metadata": {"namespace": "ns", "name": name, "uid": f"uid-{name}", "ownerReferences": owners, "annotations": annotations, **metadata},
            "spec": {"nodeName": "n1", "volumes": [dict(volume)] if volume else []},
            "status": {"phase": phase},
        }
    )  # fmt: skip


EMPTY_DIR = {"name": "scratch", "emptyDir": {}}
IN_MEMORY = {"name": "scratch", "emptyDir": {"medium": "Memory"}}
HOST_PATH = {"name": "disk", "hostPath": {"path": "/"}}
DS = ("ns", "my-DaemonSet")
THERE, ORPHAN = Evicted(daemon_sets={DS: True}), Evicted(daemon_sets={DS: False})
PLAIN, FORCE, EMPTY = OperationDrain(), OperationDrain(force=True), OperationDrain(delete_empty_dir_data=True)

# kubectl's cases: what is on the node, with which flags, what is known of DaemonSets, and what becomes of it.
CASES = {
    "RC-managed pod": (pod(owner="ReplicationController"), PLAIN, Evicted(), Fate.EVICT),
    "DS-managed pod with --ignore-daemonsets": (pod(owner="DaemonSet"), PLAIN, THERE, Fate.LEAVE),
    "orphaned DS-managed pod": (pod(owner="DaemonSet"), PLAIN, ORPHAN, Fate.REFUSE),
    "orphaned DS-managed pod with --force": (pod(owner="DaemonSet"), FORCE, ORPHAN, Fate.EVICT),
    "DS-managed pod with emptyDir with --ignore-daemonsets": (pod(owner="DaemonSet", volume=EMPTY_DIR), PLAIN, THERE, Fate.LEAVE),
    "completed DS-managed pod": (pod(owner="DaemonSet", phase="Succeeded"), PLAIN, THERE, Fate.EVICT),
    "Job-managed pod with local storage": (pod(owner="Job", volume=EMPTY_DIR), PLAIN, Evicted(), Fate.REFUSE),
    "Job-managed pod with local storage with --delete-emptydir-data": (pod(owner="Job", volume=EMPTY_DIR), EMPTY, Evicted(), Fate.EVICT),
    "Ended Job-managed pod with local storage": (pod(owner="Job", volume=EMPTY_DIR, phase="Failed"), PLAIN, Evicted(), Fate.EVICT),
    "Job-managed pod": (pod(owner="Job"), PLAIN, Evicted(), Fate.EVICT),
    "RS-managed pod": (pod(owner="ReplicaSet"), PLAIN, Evicted(), Fate.EVICT),
    "naked pod": (pod(), PLAIN, Evicted(), Fate.REFUSE),
    "naked pod with --force": (pod(), FORCE, Evicted(), Fate.EVICT),
    "finished naked pod": (pod(phase="Succeeded"), PLAIN, Evicted(), Fate.EVICT),
    "pod with emptyDir": (pod(volume=EMPTY_DIR), FORCE, Evicted(), Fate.REFUSE),
    "pod with emptyDir in memory": (pod(owner="ReplicaSet", volume=IN_MEMORY), PLAIN, Evicted(), Fate.REFUSE),
    "pod with a folder of the host": (pod(owner="ReplicaSet", volume=HOST_PATH), PLAIN, Evicted(), Fate.EVICT),
    "mirror pod": (pod(mirror=True), PLAIN, Evicted(), Fate.LEAVE),
    "pod of a controller that nobody knows": (pod(owner="Notebook"), PLAIN, Evicted(), Fate.EVICT),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_who_goes_is_who_goes_with_kubectl(case: str) -> None:
    who, drain, known, expected = CASES[case]
    assert fate(who, drain, known).fate is expected


def state(
    *pods: NodePod, drain: OperationDrain = PLAIN, known: Evicted | None = None, ready: bool = True, now: float = NOW
) -> Any:
    return drain_state(pods, drain, known or Evicted(), node_ready=ready, now=now, monotonic=now)


def test_pods_are_asked_a_few_at_a_time_and_not_before_their_time() -> None:
    pods = [pod(f"web-{number:02}", owner="ReplicaSet") for number in range(AT_ONCE + 5)]
    known = Evicted(answers={"uid-web-00": Answer(why="a budget", again_at=NOW + 5)})
    drain = state(*pods, known=known)
    assert len(drain.evict) == AT_ONCE
    assert pods[0] not in drain.evict
    assert len(drain.waiting) == len(pods)
    assert drain.waiting[0].why == "a budget"
    assert pods[0] in state(*pods, known=known, now=NOW + 5).evict


@pytest.mark.parametrize(
    ("metadata", "ready", "why"),
    [
        ({"deletionTimestamp": "2033-11-14T22:13:20Z"}, True, "it is ending"),
        ({"deletionTimestamp": "2013-11-14T22:13:20Z"}, True, "it should have ended by now"),
        ({"deletionTimestamp": "2013-11-14T22:13:20Z", "finalizers": ["a/b"]}, True, "it is kept by its finalizer a/b"),
        ({"deletionTimestamp": stamp_of(NOW - 59)}, False, "it ends once its node's kubelet answers again"),
        ({"deletionTimestamp": "nonsense"}, True, "it should have ended by now"),
    ],
)
def test_a_pod_that_ends_is_waited_for_and_not_asked_again(metadata: Mapping[str, Any], ready: bool, why: str) -> None:
    drain = state(pod(owner="ReplicaSet", **metadata), ready=ready)
    assert drain.evict == ()
    assert [row.why for row in drain.waiting] == [why]


def test_a_pod_whose_kubelet_is_away_is_not_waited_for_for_ever() -> None:
    """It stays in the count, as it may run still."""
    away = pod(owner="ReplicaSet", deletionTimestamp=stamp_of(NOW - 62))
    drain = state(away, ready=False)
    assert drain.done
    assert [row.why for row in drain.stranded] == ["it may still run, as its node's kubelet does not answer"]
    told = progress(drain, DrainProgress(total=3, gone=2))
    assert (told.total, told.gone, told.waiting) == (3, 2, drain.stranded)
    assert not state(away, ready=True).done


def test_a_pod_that_ends_already_is_refused_by_nobody() -> None:
    drain = state(pod(deletionTimestamp="2033-11-14T22:13:20Z"))
    assert (drain.refused, len(drain.waiting)) == ((), 1)


def test_what_can_never_go_is_hopeless_once_all_others_have_gone() -> None:
    known = Evicted(answers={"uid-p": Answer(why="two budgets", again_at=NOW, fatal=True)})
    drain = state(pod(owner="ReplicaSet"), pod("q", owner="ReplicaSet"), known=known, now=NOW + 100)
    assert (drain.hopeless, [row.name for row in drain.evict]) == ("", ["q"])
    drain = state(pod(owner="ReplicaSet"), known=known, now=NOW + 100)
    assert (drain.hopeless, drain.evict) == ("two budgets", ())


def test_a_daemon_set_that_has_not_been_looked_for_is_waited_for() -> None:
    drain = state(pod(owner="DaemonSet"))
    assert (drain.done, drain.evict, drain.refused) == (False, (), ())
    assert "not known yet" in drain.waiting[0].why


BEARS = [{"operator": "Exists"}]
LATER, BEFORE = "2023-11-14T22:13:21Z", "2023-11-14T22:13:20Z"


@pytest.mark.parametrize("owner", ["", "Job"])
@pytest.mark.parametrize(
    ("created", "tolerations", "expected"),
    [(LATER, BEARS, Fate.LEAVE), (BEFORE, BEARS, Fate.EVICT), ("", BEARS, Fate.EVICT), (LATER, [], Fate.EVICT)],
)
def test_who_tolerates_the_cordon_and_came_after_it_stays(
    owner: str, created: str, tolerations: list[Any], expected: Fate
) -> None:
    owners = [{"kind": owner, "name": "o", "controller": True}] if owner else []
    metadata = {"namespace": "ns", "name": "p", "ownerReferences": owners, "creationTimestamp": created}
    who = read_pod({"metadata": metadata, "spec": {"tolerations": tolerations}})
    assert fate(who, FORCE, Evicted(cordoned_at=NOW)).fate is expected
    assert fate(who, FORCE, Evicted()).fate is Fate.EVICT


def test_what_others_say_is_cut() -> None:
    known = Evicted(answers={"uid-p": Answer(why="x\n" * 5000, again_at=NOW + 5)})
    assert len(state(pod(owner="Job"), known=known).waiting[0].why) <= 300
    orphan = pod(ownerReferences=[{"kind": "DaemonSet", "name": "y" * 5000, "controller": True}])
    (row,) = state(orphan, known=Evicted(daemon_sets={("ns", "y" * 5000): False})).refused
    assert len(row.why) <= 300


def test_the_count_of_pods_never_goes_back() -> None:
    first = progress(state(pod("a", owner="Job"), pod("b", owner="Job")), None)
    assert (first.total, first.gone) == (2, 0)
    one_gone = progress(state(pod("b", owner="Job")), first)
    assert (one_gone.total, one_gone.gone) == (2, 1)
    more_came = progress(state(pod("b", owner="Job"), pod("c", owner="Job"), pod("d", owner="Job")), one_gone)
    assert (more_came.total, more_came.gone) == (4, 1)
    assert progress(state(), more_came) == DrainProgress(total=4, gone=4)


@pytest.mark.parametrize(
    ("toleration", "comes_back"),
    [
        ({"operator": "Exists"}, True),
        ({"key": "node.kubernetes.io/unschedulable", "operator": "Exists", "effect": "NoSchedule"}, True),
        ({"key": "node.kubernetes.io/unschedulable", "value": ""}, True),
        ({"key": "nvidia.com/gpu", "operator": "Exists"}, False),
        ({"key": "node.kubernetes.io/unschedulable", "operator": "Exists", "effect": "NoExecute"}, False),
        ({"key": "node.kubernetes.io/unschedulable", "value": "x"}, False),
        ({}, False),
    ],
)
def test_who_tolerates_the_cordon(toleration: Mapping[str, Any], comes_back: bool) -> None:
    read = read_pod({"metadata": {}, "spec": {"tolerations": [toleration]}})
    assert read.tolerates_cordon is comes_back


@pytest.mark.parametrize(
    "obj",
    [
        {},
        {"metadata": None},
        {
            "metadata": {"ownerReferences": [None, 1, {"controller": True}]},
            "spec": {"volumes": [1], "tolerations": "x"},
        },
    ],
)
def test_a_pod_of_any_shape_is_read(obj: Mapping[str, Any]) -> None:
    assert isinstance(read_pod(obj), NodePod)


@pytest.mark.parametrize(
    ("resource", "uses"),
    [("nvidia.com/gpu", True), ("nvidia.com/gpu.shared", True), ("nvidia.com/mig-3g.40gb", True), ("amd.com/gpu", True),
     ("amd.com/cpx_nps4", True), ("amd.com/dpx_nps8", True), ("habana.ai/gaudi", True), ("cpu", False),
     ("example.org/amd.com", False), ("nvidia.com/nic", False)],
)  # fmt: skip
@pytest.mark.parametrize("kind", ["containers", "initContainers"])
def test_which_pods_use_gpus(resource: str, uses: bool, kind: str) -> None:
    asks = {"name": "c", "resources": {"limits": {resource: "1"}}}
    obj = {"metadata": {"name": "p"}, "spec": {kind: [{"name": "other"}, asks]}}
    assert read_pod(obj).uses_gpus is uses


@pytest.mark.parametrize(
    ("kind", "row", "count", "has"),
    [("containers", {}, "1", True), ("initContainers", {"restartPolicy": "Always"}, 1, True),
     ("initContainers", {}, "1", False), ("containers", {}, "0", False), ("containers", {}, 0, False)],
)  # fmt: skip
def test_which_pods_the_kubelet_names_with_devices(kind: str, row: Mapping[str, str], count: Any, has: bool) -> None:
    for resource, ours in (("nvidia.com/mig-1g.10gb", True), ("amd.com/cpx_nps4", True), ("cpu", False)):
        asks = {"name": "c", "resources": {"limits": {resource: count}}, **row}
        assert read_pod({"metadata": {"name": "p"}, "spec": {kind: [asks]}}).has_devices is (has and ours)
