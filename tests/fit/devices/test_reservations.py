"""What the scheduler knows of devices and writes into claims: nothing twice, nothing lost, nothing for ever."""

from __future__ import annotations

from typing import Any

import pytest

from kgpu.fit import ClusterSnapshot, PodView, read
from kgpu.fit.devices.reservations import ClaimGrant, SchedulerDevices, cel
from kgpu.fit.snapshot import NodeState
from kgpu.kube.fake import FakeApi
from kgpu.kube.port import Change, Patch
from kgpu.lab.embedded.controllers.kinds import RESOURCE_CLAIMS
from kgpu.lab.embedded.scheduler.claim_writing import ClaimWriter, ClaimWritingError
from tests.lab.embedded.scheduler import device_stories as make

Object = dict[str, Any]
SPACE = "default"


class Cluster:
    """One node, its devices, and claims."""

    def __init__(self, *objects: Object) -> None:
        self.snapshot = ClusterSnapshot()
        self.devices = self.snapshot.fitter = SchedulerDevices(self.snapshot, cel)
        self.node = NodeState("a")
        for obj in (make.device_class(), *objects):
            self.put(obj)

    def put(self, obj: Object, change: Change = Change.ADDED) -> Object:
        if obj["kind"] == "ResourceClaim":
            obj = {**obj, "metadata": {"namespace": SPACE, "uid": f"uid-{obj['metadata']['name']}", **obj["metadata"]}}
        self.devices.follow(change, obj)
        for view in read.views((obj,)):
            self.snapshot.put(view)
        return obj

    def pod(self, name: str, *claims: str) -> PodView:
        obj = make.pod(name, *claims)
        view = read.pod({**obj, "metadata": {**obj["metadata"], "namespace": SPACE, "uid": f"uid-{name}"}})
        assert view is not None
        return view

    def reserve(self, name: str, *claims: str) -> tuple[ClaimGrant, ...] | None:
        return self.devices.reserve(self.pod(name, *claims), self.node)


def names(grants: tuple[ClaimGrant, ...] | None) -> list[str]:
    return [
        device.candidate.key.device
        for grant in grants or ()
        for device in (grant.allocation.devices if grant.allocation else ())
    ]


def two_gpus() -> Cluster:
    return Cluster(
        make.pieces("a", [make.device("gpu-0"), make.device("gpu-1")]),
        *(make.claim(name, make.exactly()) for name in "cde"),
    )


def test_what_is_decided_is_taken_before_it_is_written() -> None:
    cluster = two_gpus()
    assert names(cluster.reserve("p", "c")) == ["gpu-0"]
    assert names(cluster.reserve("q", "d")) == ["gpu-1"]
    assert cluster.reserve("r", "e") is None
    assert cluster.snapshot.in_flight == {"uid-c", "uid-d"}


def test_what_comes_to_nothing_is_free_again() -> None:
    cluster = two_gpus()
    cluster.reserve("p", "c", "d")
    cluster.devices.release("uid-d")
    assert names(cluster.reserve("q", "e")) == ["gpu-1"]
    assert cluster.snapshot.in_flight == {"uid-c", "uid-e"}


def test_what_is_written_counts_once_and_goes_with_its_claim() -> None:
    cluster = two_gpus()
    cluster.reserve("p", "c")
    written = cluster.put(make.given(make.claim("c", make.exactly()), "a", "gpu-0"), Change.MODIFIED)
    assert cluster.snapshot.in_flight == set()
    assert names(cluster.reserve("q", "d")) == ["gpu-1"]
    cluster.put(written, Change.DELETED)
    assert names(cluster.reserve("r", "e")) == ["gpu-0"]


def test_a_claim_that_has_gone_can_t_be_reserved() -> None:
    assert two_gpus().reserve("p", "none") is None


def test_a_search_that_would_not_end_is_stopped_for_all_nodes() -> None:
    devices = [make.device(f"gpu-{at}", a=at // 3, b=at % 7, c=str(at % 5)) for at in range(60)]
    rules = [{"distinctAttribute": f"{make.DRIVER}/b"}, {"matchAttribute": f"{make.DRIVER}/c"}]
    asks = [make.exactly(f"r{at}", count=4) for at in range(4)]
    cluster = Cluster(make.pieces("net", devices, allNodes=True), make.claim("c", *asks, constraints=rules))
    claims = tuple(cluster.snapshot.shelf.claims.values())
    fitter = cluster.devices._now()
    outcomes = [fitter.allocate(claims, NodeState(f"n{at}")) for at in range(20)]
    assert all(outcome.unfinished for outcome in outcomes)
    assert sum(outcome.steps for outcome in outcomes) < 7000
    refusal = cluster.devices.refusal(claims, NodeState("n0"))
    assert refusal is not None
    assert (refusal.phrase, refusal.everywhere) == ("timed out trying to allocate devices", False)


# Writing


class Claims(FakeApi):
    """An API whose claims somebody else changes between reading and writing."""

    def __init__(self) -> None:
        super().__init__()
        self.meddle: list[Object] = []

    async def patch(self, resource: Any, name: str, change: Object, **more: Any) -> Object:
        if self.meddle:
            self.put(RESOURCE_CLAIMS, self.meddle.pop())
        return await super().patch(resource, name, change, **more)


async def written(api: FakeApi) -> Object:
    found = await api.get(RESOURCE_CLAIMS, "c", namespace=SPACE)
    assert found is not None
    return found


@pytest.fixture
def place() -> tuple[Claims, ClaimWriter, Cluster]:
    async def learn(_: Object) -> None:
        pass

    api, cluster = Claims(), two_gpus()
    api.put(RESOURCE_CLAIMS, cluster.put(make.claim("c", make.exactly())))
    return api, ClaimWriter(api, learn), cluster


def claim(**more: Any) -> Object:
    made = make.claim("c", make.exactly())
    made["metadata"] |= {"namespace": SPACE, "uid": "uid-c", **more.pop("metadata", {})}
    return {**made, **more}


async def test_a_claim_that_changes_meanwhile_is_read_again(place: tuple[Claims, ClaimWriter, Cluster]) -> None:
    api, writer, cluster = place
    grants = cluster.reserve("p", "c")
    assert grants
    api.meddle = [claim(metadata={"labels": {"a": "b"}})]
    await writer.grant(cluster.pod("p", "c"), grants)
    found = await written(api)
    assert found["metadata"]["labels"] == {"a": "b"}
    assert found["metadata"]["finalizers"] == ["resource.kubernetes.io/delete-protection"]
    assert found["status"]["reservedFor"] == [{"resource": "pods", "name": "p", "uid": "uid-p"}]
    assert found["status"]["allocation"]["devices"]["results"][0]["device"] == "gpu-0"


async def test_a_claim_that_another_scheduler_allocates_is_left_to_it(
    place: tuple[Claims, ClaimWriter, Cluster],
) -> None:
    api, writer, cluster = place
    grants = cluster.reserve("p", "c")
    assert grants
    theirs = {"allocation": {"devices": {"results": []}}}
    api.put(RESOURCE_CLAIMS, claim(status=theirs))
    with pytest.raises(ClaimWritingError, match=r'plugin "DynamicResources": claim default/c got allocated elsewhere'):
        await writer.grant(cluster.pod("p", "c"), grants)
    assert (await written(api))["status"] == theirs


async def test_a_claim_that_was_made_anew_is_not_the_one_that_was_meant(
    place: tuple[Claims, ClaimWriter, Cluster],
) -> None:
    api, writer, cluster = place
    grants = cluster.reserve("p", "c")
    assert grants
    api.put(RESOURCE_CLAIMS, claim(metadata={"uid": "another"}))
    with pytest.raises(ClaimWritingError, match="claim default/c got deleted in the meantime"):
        await writer.grant(cluster.pod("p", "c"), grants)


async def test_a_pod_that_is_not_bound_leaves_the_claim_to_the_others(
    place: tuple[Claims, ClaimWriter, Cluster],
) -> None:
    api, writer, cluster = place
    grants = cluster.reserve("p", "c")
    assert grants
    await writer.grant(cluster.pod("p", "c"), grants)
    other = {"resource": "pods", "name": "q", "uid": "uid-q"}
    users = [*(await written(api))["status"]["reservedFor"], other]
    status = {"status": {"reservedFor": users}}
    await api.patch(RESOURCE_CLAIMS, "c", status, namespace=SPACE, subresource="status", kind=Patch.MERGE)
    await writer.take_back(cluster.pod("p", "c"), grants)
    found = (await written(api))["status"]
    assert found["reservedFor"] == [other]
    assert found["allocation"]
