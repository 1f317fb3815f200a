"""A small cluster for reclaiming: the embedded API server, devices that are idle since some moment, and a clock."""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from kgpu.base.advice import Advice
from kgpu.base.times import stamp_of
from kgpu.formats import names
from kgpu.formats.crd.definitions import crds
from kgpu.formats.usage import MILLION, UsageState
from kgpu.kube.kinds import DEPLOYMENTS, GPU_USAGE_POLICIES, NAMESPACES, REPLICA_SETS
from kgpu.kube.port import CONFIG_MAPS, EVENTS, PODS, KubeApi, Object, Resource
from kgpu.lab.embedded.core.model import ApiUser, Call
from kgpu.lab.embedded.core.verbs import ApiCore
from kgpu.lab.embedded.crd.custom_kinds import CustomKinds
from kgpu.lab.embedded.kinds import Kinds
from kgpu.lab.embedded.local_api import LocalApi
from kgpu.lab.embedded.store import ObjectStore
from kgpu.lab.embedded.types.rules import BuiltinRules
from kgpu.notifications.settings import WebhookSettings
from kgpu.notifications.webhook import Delivery, Outcome
from kgpu.operations.writing import evict
from kgpu.usage.hour_prices import HourPrices
from kgpu.usage.now import DeviceNow, HolderNow
from kgpu.usage.price_file import parse
from kgpu.usage.prices import PriceBook
from kgpu.usage.reclaim.delivery import SECRETS
from kgpu.usage.reclaim.record import ReclaimRecord, decode
from kgpu.usage.reclaim.run import ReclaimController
from kgpu.usage.states import IdleRules, UsageVerdict

START: Final = 1_786_356_000.0
"""Monday 2026-08-10 10:00 UTC."""
HOUR: Final = 3600.0
OWN: Final = "gpu-operator"
SPACE: Final = "team-a"
ADMIN: Final = ApiUser("admin", ("system:masters",))
PRICES: Final = PriceBook(parse("perGpuHour\n3.06\n", source="a test.csv"))
SENT: Final = Outcome(Delivery.SENT)


@dataclass(slots=True)
class SimDevice:
    """A device. ``idle_since``: None while it works; ``state`` overrules what follows from it."""

    node: str
    name: str
    holder: HolderNow | None = None
    idle_since: float | None = None
    state: UsageState | None = None
    coverage: float = 1.0
    kept: tuple[str, ...] = ()

    def verdict(self, rules: IdleRules, now: float) -> UsageVerdict:
        state = self.state
        if state is None:
            idle = self.idle_since is not None and now - self.idle_since >= rules.window
            state = UsageState.HELD_IDLE if idle else UsageState.BUSY
            state = state if self.holder else UsageState.FREE
        return UsageVerdict(
            state=state, why="as the test says", coverage=self.coverage, kept=self.kept,
            idle_since=self.idle_since if state is UsageState.HELD_IDLE else None,
        )  # fmt: skip


@dataclass
class SimDevices:
    """An ``IdleSource``."""

    all: list[SimDevice] = field(default_factory=list)

    def devices(self, rules: IdleRules, now: float) -> Sequence[DeviceNow]:
        return [
            DeviceNow(
                node=one.node, device=one.name, product="NVIDIA A100-SXM4-80GB", verdict=one.verdict(rules, now),
                read_at=now, holders=(one.holder,) if one.holder else (),
            )
            for one in self.all
        ]  # fmt: skip


@dataclass
class SimWebhook:
    """A receiver in memory: answers in order, the last for ever."""

    answers: list[Outcome] = field(default_factory=lambda: [SENT])
    bodies: list[bytes] = field(default_factory=list)
    taken: list[bytes] = field(default_factory=list)

    def open(self, settings: WebhookSettings) -> SimWebhook:
        del settings
        return self

    async def post(self, body: bytes) -> Outcome:
        self.bodies.append(body)
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if answer.delivery is Delivery.SENT:
            self.taken.append(body)
        return answer

    async def close(self) -> None:
        """Nothing is open."""


@dataclass
class SimClock:
    """A steady clock that sleeps by going on."""

    at: float = 0.0

    def monotonic(self) -> float:
        return self.at

    async def sleep(self, seconds: float) -> None:
        self.at += seconds


def core_with_kinds(*more: Object) -> ApiCore:
    kinds = Kinds()
    custom = CustomKinds(kinds)
    core = ApiCore(kinds, ObjectStore(), custom.rules_for(BuiltinRules()), ())
    core.custom = custom
    custom.attach(core)
    custom.settle()
    call = Call(user=ADMIN, manager="test")
    for crd in (*(one for one in crds() if "gpuusage" in one["metadata"]["name"]), *more):
        core.create(kinds.need("apiextensions.k8s.io", "customresourcedefinitions"), "", crd, call)
    custom.settle()
    return core


class Scene:
    """The cluster. ``round`` is one round of a process; ``again`` a new process."""

    def __init__(self, api: KubeApi | None = None) -> None:
        self.api: Any = api or LocalApi(core_with_kinds(), ADMIN, manager="test")
        self.now = START
        self.ahead = 0.0
        self.clock = SimClock()
        self.source = SimDevices()
        self.webhook = SimWebhook()
        self.said: list[Advice] = []
        self.controller = self.again()

    def again(self, opened: Any = None) -> ReclaimController:
        """A new process, which remembers nothing."""
        self.controller = ReclaimController(
            self.source, namespace=OWN, opened=opened or self.webhook.open, evict=evict, report=self.said.append,
            prices=HourPrices(lambda _: PRICES),
            clock=self.clock, now=lambda: self.now, clocks_ahead=lambda: self.ahead,
        )  # fmt: skip
        self._round: Any = None
        return self.controller

    async def begin(self, *spaces: str) -> Scene:
        """Namespaces that are opted in, and kgpu's own."""
        for space in spaces or (SPACE,):
            await self.api.create(NAMESPACES, {"metadata": {"name": space, "labels": {names.RECLAIM_LABEL: "enabled"}}})
        await self.api.create(NAMESPACES, {"metadata": {"name": OWN}})
        return self

    async def policy(self, name: str = "all", **spec: Any) -> Object:
        body = {"mode": "reclaim", "namespaces": [SPACE], **spec}
        obj: Object = await self.api.create(GPU_USAGE_POLICIES, {"metadata": {"name": name}, "spec": body})
        return obj

    async def secret(self, url: str, name: str = "hook") -> dict[str, Any]:
        """A receiver's Secret; returns what the policy says of it."""
        data = {"url": base64.b64encode(url.encode()).decode()}
        await self.api.create(SECRETS, {"metadata": {"name": name, "namespace": OWN}, "data": data})
        return {"type": "slack", "secretRef": {"name": name, "key": "url"}}

    async def deployment(
        self, name: str = "llama", *, space: str = SPACE, gpus: int = 1, node: str = "gpu-1", pods: int = 1,
        annotations: Mapping[str, str] | None = None, idle_since: float | None = None,
    ) -> None:  # fmt: skip
        """A Deployment whose pods hold GPUs, all as old as yesterday."""
        labels = {"app": name}
        template = {"metadata": {"labels": labels}, "spec": _pod_spec(gpus)}
        spec = {"replicas": pods, "selector": {"matchLabels": labels}, "template": template}
        owner = await self.create(DEPLOYMENTS, space, name, annotations=annotations, spec=spec)
        made = await self.create(REPLICA_SETS, space, f"{name}-1", owner=(DEPLOYMENTS, owner), spec=spec)
        for number in range(pods):
            await self.pod(
                f"{name}-1-{number}", space=space, owner=(REPLICA_SETS, made), labels=labels, gpus=gpus, node=node,
                top=f"Deployment/{name}", idle_since=idle_since,
            )  # fmt: skip

    async def pod(
        self, name: str, *, space: str = SPACE, owner: tuple[Resource, Object] | None = None, gpus: int = 1,
        node: str = "gpu-1", top: str = "", labels: Mapping[str, str] | None = None,
        annotations: Mapping[str, str] | None = None, idle_since: float | None = None,
    ) -> Object:  # fmt: skip
        """A pod that holds GPUs."""
        spec = {**_pod_spec(gpus), "nodeName": node}
        pod = await self.create(PODS, space, name, owner=owner, labels=labels, annotations=annotations, spec=spec)
        status = {"phase": "Running", "startTime": stamp_of(START - 30 * HOUR)}
        pod = await self.api.patch(PODS, name, {"status": status}, namespace=space, subresource="status")
        holder = HolderNow(
            namespace=space,
            pod=name,
            uid=pod["metadata"]["uid"],
            owner=top,
            share=MILLION,
            held_since=START - 30 * HOUR,
        )
        self.source.all += [
            SimDevice(node=node, name=f"GPU-{name}-{number}", holder=holder, idle_since=idle_since)
            for number in range(gpus)
        ]
        return dict(pod)

    async def create(
        self, resource: Resource, space: str, name: str, *, owner: tuple[Resource, Object] | None = None,
        labels: Mapping[str, str] | None = None, annotations: Mapping[str, str] | None = None, **body: Any,
    ) -> Object:  # fmt: skip
        metadata: Object = {
            "name": name, "namespace": space, "labels": dict(labels or {}), "annotations": dict(annotations or {}),
        }  # fmt: skip
        if owner is not None:
            row, obj = owner
            reference = {"apiVersion": row.api_version, "kind": row.kind, "name": obj["metadata"]["name"]}
            metadata["ownerReferences"] = [{**reference, "uid": obj["metadata"]["uid"], "controller": True}]
        return dict(await self.api.create(resource, {"metadata": metadata, **body}))

    async def round(self, seconds: float = 60.0) -> None:
        """Time passes, then one round."""
        self.now += seconds
        self.clock.at += seconds
        self._round = self._round or self.controller.round(self.api)
        await self._round.once()

    async def rounds(self, seconds: float, every: float = 300.0) -> None:
        """Rounds until that time has passed."""
        for _ in range(int(seconds // every)):
            await self.round(every)

    async def got_policy(self, name: str = "all") -> Object:
        return await self.got(GPU_USAGE_POLICIES, name)

    async def replicas(self, name: str = "llama", space: str = SPACE) -> int:
        return int((await self.got(DEPLOYMENTS, name, space))["spec"]["replicas"])

    async def annotations(self, name: str = "llama", space: str = SPACE) -> Mapping[str, str]:
        return (await self.got(DEPLOYMENTS, name, space))["metadata"].get("annotations") or {}

    async def got(self, resource: Resource, name: str, space: str = "") -> Object:
        obj = await self.api.get(resource, name, namespace=space)
        assert obj is not None, name
        return dict(obj)

    async def record(self) -> ReclaimRecord:
        obj = await self.got(CONFIG_MAPS, names.RECLAIM_RECORD, OWN)
        record = decode(obj["data"][names.RECLAIM_RECORD_KEY])
        assert record is not None
        return record

    async def events(self, reason: str, space: str = SPACE) -> list[Object]:
        listing = await self.api.list(EVENTS, namespace=space)
        return [one for one in listing.items if one["reason"] == reason]

    async def condition(self, kind: str, policy: str = "all") -> Object:
        obj = await self.got(GPU_USAGE_POLICIES, policy)
        return next(dict(one) for one in obj["status"]["conditions"] if one["type"] == kind)


def _pod_spec(gpus: int) -> Object:
    limits = {"nvidia.com/gpu": str(gpus)} if gpus else {}
    return {"containers": [{"name": "main", "image": "registry.invalid/a", "resources": {"limits": limits}}]}
