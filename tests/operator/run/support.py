"""An operator on an API server in memory, in time that tests move: what it wrote, and what became of the cluster."""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterable
from typing import Any

import pytest

from kgpu.base.clock import VirtualClock, settle
from kgpu.formats import names
from kgpu.kube import kinds
from kgpu.kube.fake import FakeApi
from kgpu.kube.leader_election import LeaseTimes
from kgpu.kube.port import (
    CONFIG_MAPS,
    LEASES,
    NODES,
    KubeRefusedError,
    KubeUnreachableError,
    Object,
    Resource,
    name_of,
)
from kgpu.manager.run import ManagerProcess, Options
from kgpu.operator.model import ClusterPlan, NodeLabels, ObservedCluster, OperatorSettings
from kgpu.operator.run import OperatorController
from tests.operator.world import NAMESPACE, SETTINGS, node_object

WRITES = ("apply", "patch", "create", "delete")
POLICY: Object = {
    "apiVersion": "nvidia.com/v1",
    "kind": "ClusterPolicy",
    "metadata": {"name": "cluster-policy", "generation": 1, "creationTimestamp": "2026-01-01T00:00:00Z"},
    "spec": {"driver": {"enabled": False}},
}
MAY_LEAD = "update clusterpolicies/status"
MAY_LABEL = "patch nodes"
STATE = {names.LABEL_OPERATOR_STATE: "test"}


def cluster(nodes: int = 1, *, policy: bool = True) -> FakeApi:
    """An API server with nodes that have GPUs, the operator's kinds, and maybe a ClusterPolicy."""
    api = FakeApi()
    api.served = {kinds.CLUSTER_POLICIES, kinds.NVIDIA_DRIVERS}
    api.put(kinds.NAMESPACES, {"metadata": {"name": NAMESPACE}})
    for number in range(nodes):
        api.put(NODES, node_object(f"n{number}"))
    if policy:
        api.put(kinds.CLUSTER_POLICIES, POLICY)
    return api


def deploy(api: FakeApi, namespace: str, name: str, *, right: str = "", replicas: int = 1, **labels: str) -> None:
    """A Deployment with an account of its own, which has a right, as an administrator's has, or none, as a tenant's."""
    found = {key.replace("__", "/").replace("_", "."): value for key, value in labels.items()}
    metadata = {"name": name, "namespace": namespace, "labels": found, "creationTimestamp": "2026-01-01T00:00:00Z"}
    spec = {"replicas": replicas, "template": {"spec": {"serviceAccountName": name}}}
    if right:
        api.rights.add((f"system:serviceaccount:{namespace}:{name}", right))
    api.put(kinds.DEPLOYMENTS, {"metadata": metadata, "spec": spec})


def writes(api: FakeApi, since: int = 0) -> Counter[tuple[str, str]]:
    """How often each object was written, by plural and name; leader election and questions left out."""
    none = (LEASES.plural, kinds.SUBJECT_ACCESS_REVIEWS.plural)
    return Counter((plural, name) for verb, plural, name in api.calls[since:] if verb in WRITES and plural not in none)


class Run:
    """One operator that runs, and the clock that it lives by."""

    def __init__(self, api: Any, operator: OperatorController, manager: ManagerProcess, clock: VirtualClock) -> None:
        self.api = api
        self.operator = operator
        self.manager = manager
        self.clock = clock
        self.task = asyncio.create_task(manager.run())

    async def until(self, true: Callable[[], Any], what: str = "it", seconds: float = 120.0) -> None:
        """Let time pass until something is true."""
        end = self.clock.monotonic() + seconds
        while not true():
            if self.task.done():
                self.task.result()
            if self.clock.monotonic() > end:
                pytest.fail(f"waited {seconds:g} s for {what}; {self.operator.problem}")
            await self.clock.advance(0.05)

    async def settled(self) -> None:
        """Let time pass until the operator has nothing left to do."""
        await self.clock.advance(0.1)
        await self.until(self.operator.settled.is_set, "the operator to settle")
        await self.clock.advance(1.0)
        await self.until(self.operator.settled.is_set, "the operator to settle")

    async def kill(self) -> None:
        """End it as SIGKILL would: nothing is given back."""
        self.manager.options = Options(lease_namespace=NAMESPACE, elect=False)
        self.task.cancel()
        await asyncio.gather(self.task, return_exceptions=True)


@contextlib.asynccontextmanager
async def running(
    api: Any, *, clock: VirtualClock | None = None, settings: OperatorSettings = SETTINGS, elect: bool = False,
    planner: Callable[[ObservedCluster, OperatorSettings], ClusterPlan] | None = None, identity: str = "", settle_first: bool = True,
) -> AsyncIterator[Run]:  # fmt: skip
    """An operator, until the block ends."""
    clock = clock or VirtualClock()
    options = Options(lease_namespace=NAMESPACE, elect=elect, identity=identity, lease_times=LeaseTimes())
    more: dict[str, Any] = {} if planner is None else {"planner": planner}
    # Plans are measured in the test's time, too. By the machine's, one that is held up by what runs beside it is followed
    # by plans in threads and by pauses, and the test's time goes on meanwhile.
    operator = OperatorController(api, settings, clock=clock, stopwatch=clock.monotonic, **more)
    run = Run(api, operator, ManagerProcess(api, [operator], options, clock=clock), clock)
    try:
        if settle_first:
            await run.settled()
        yield run
    finally:
        await run.kill()
        await settle()


class Wish:
    """A planner that wants what a test says, so that the loop can be looked at alone."""

    def __init__(self, *objects: Object, **rest: Any) -> None:
        self.plan = ClusterPlan(objects=objects, **rest)
        self.seen: list[ObservedCluster] = []

    def __call__(self, observed: ObservedCluster, settings: OperatorSettings) -> ClusterPlan:
        self.seen.append(observed)
        return self.plan

    def want(self, run: Run, plan: ClusterPlan) -> None:
        self.plan = plan
        run.operator.watching.news.set()


def config_map(name: str = "thing", **data: str) -> Object:
    metadata = {"name": name, "namespace": NAMESPACE, "labels": dict(STATE)}
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": data or {"key": "value"}}


def daemon_set(name: str = "operand", image: str = "image:1") -> Object:
    pod = {"metadata": {"labels": {"app": name}}, "spec": {"containers": [{"name": "c", "image": image}]}}
    return {
        "apiVersion": "apps/v1",
        "kind": "DaemonSet",
        "metadata": {"name": name, "namespace": NAMESPACE, "labels": dict(STATE)},
        "spec": {"selector": {"matchLabels": {"app": name}}, "template": pod},
    }


def runtime_class(name: str = "nvidia", handler: str = "nvidia") -> Object:
    metadata = {"name": name, "labels": dict(STATE)}
    return {"apiVersion": "node.k8s.io/v1", "kind": "RuntimeClass", "metadata": metadata, "handler": handler}


def labelled(name: str, clear: Iterable[str] = (), **labels: str) -> NodeLabels:
    return NodeLabels(
        name=name, labels={f"{names.LABEL_DEPLOY_PREFIX}{k}": v for k, v in labels.items()}, clear=tuple(clear)
    )


async def there(api: FakeApi, resource: Resource) -> set[str]:
    """The names of the operator's objects of a kind."""
    listing = await api.list(resource)
    return {
        name_of(obj) for obj in listing.items if names.LABEL_OPERATOR_STATE in ((obj["metadata"].get("labels")) or {})
    }


async def data_of(api: FakeApi, name: str = "thing") -> Any:
    found = await api.get(CONFIG_MAPS, name, namespace=NAMESPACE)
    return None if found is None else found["data"]


async def labels_of(api: FakeApi, name: str) -> dict[str, str]:
    found = await api.get(NODES, name)
    assert found is not None
    return dict(found["metadata"].get("labels") or {})


class Meddled:
    """An API every call of which a test may meddle with: ``before`` and ``after`` see verb, plural and name.

    What they raise is what the operator gets; after ``after``, the call has had its effect all the same.
    """

    def __init__(self, api: Any) -> None:
        self.api = api
        self.before: Callable[[str, str, str], None] = lambda *_: None
        self.after: Callable[[str, str, str], None] = lambda *_: None

    async def _call(self, verb: str, resource: Resource, name: str, call: Any) -> Any:
        self.before(verb, resource.plural, name)
        answer = await call()
        self.after(verb, resource.plural, name)
        return answer

    async def get(self, resource: Resource, name: str, **more: Any) -> Any:
        return await self._call("get", resource, name, lambda: self.api.get(resource, name, **more))

    async def list(self, resource: Resource, **more: Any) -> Any:
        return await self._call("list", resource, "", lambda: self.api.list(resource, **more))

    async def watch(self, resource: Resource, version: str, **more: Any) -> Any:
        self.before("watch", resource.plural, "")
        async with contextlib.aclosing(self.api.watch(resource, version, **more)) as events:
            async for event in events:
                yield event

    async def apply(self, resource: Resource, obj: Object, **more: Any) -> Any:
        return await self._call("apply", resource, name_of(obj), lambda: self.api.apply(resource, obj, **more))

    async def patch(self, resource: Resource, name: str, change: Object, **more: Any) -> Any:
        return await self._call("patch", resource, name, lambda: self.api.patch(resource, name, change, **more))

    async def create(self, resource: Resource, obj: Object, **more: Any) -> Any:
        return await self._call("create", resource, name_of(obj), lambda: self.api.create(resource, obj, **more))

    async def delete(self, resource: Resource, name: str, **more: Any) -> Any:
        return await self._call("delete", resource, name, lambda: self.api.delete(resource, name, **more))

    async def discover(self) -> Any:
        return await self._call("discover", Resource("", "", "", ""), "", lambda: self.api.discover())

    async def close(self) -> None:
        await self.api.close()


def refusal(code: int = 500) -> KubeRefusedError:
    return KubeRefusedError("refused by the test", "nothing", "nothing", code=code)


def silence() -> KubeUnreachableError:
    return KubeUnreachableError("no answer, says the test", "an answer", "wait")
