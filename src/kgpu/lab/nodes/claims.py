"""A simulated node's side of Dynamic Resource Allocation: prepares the claims of pods with the drivers that registered.

As the kubelet's DRA manager (v1.35), its rules and words: a claim is prepared once for all pods of the node that use it
and unprepared when the last of them is over; what was prepared is kept in a checkpoint across restarts.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import msgspec

from kgpu.base.backoff import Backoff, BackoffPolicy
from kgpu.base.errors import KubeletError
from kgpu.base.files import write_atomic
from kgpu.base.typed import decode
from kgpu.kube.port import KubeApi, KubeRefusedError, Object, Resource
from kgpu.kubelet.methods import dra_methods
from kgpu.kubelet.pb import dra_v1_pb2 as pb
from kgpu.kubelet.rpc import RpcClient, RpcError
from kgpu.lab.nodes.device_health import DeviceHealthWatch
from kgpu.lab.nodes.plugins import PluginError

log = logging.getLogger(__name__)

CHECKPOINT: Final = "dra_manager_state"
CALL_S: Final = 45.0
CLAIMS: Final = Resource("resource.k8s.io", "v1", "resourceclaims", "ResourceClaim")
EVENT: Final = "FailedPrepareDynamicResources"
_POLICY: Final = BackoffPolicy(first=0.5, cap=30.0)
SERVICES: Final = {"v1.DRAPlugin": "v1", "v1beta1.DRAPlugin": "v1beta1"}


class ClaimError(KubeletError):
    """Claims that can't be prepared now; ``what`` is the kubelet's wording."""

    def __init__(self, why: str) -> None:
        super().__init__(why, "claims that are allocated and a driver that prepares them", "look at the driver's log")


class PreparedDevice(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """One device of a prepared claim."""

    driver: str
    pool: str
    device: str
    share: str = ""
    requests: tuple[str, ...] = ()
    cdi: tuple[str, ...] = ()


class UsedClaim(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """One claim that pods of this node use; ``devices`` is None until it is prepared."""

    namespace: str
    name: str
    uid: str
    drivers: tuple[str, ...]
    pods: list[str]
    devices: list[PreparedDevice] | None = None


class DraDrivers:
    """The DRA drivers that registered: name to endpoint and version; takes plugins for ``PluginRegistry``."""

    def __init__(self) -> None:
        self._known: dict[str, list[tuple[str, str]]] = {}
        self.health = DeviceHealthWatch()

    async def register(self, name: str, endpoint: str, versions: Sequence[str]) -> None:
        chosen = next((SERVICES[version] for version in versions if version in SERVICES), "")
        if not chosen:
            why = (
                f"none of services supported by the plugin ({_quoted(versions)}) are supported by the kubelet "
                f"({_quoted(list(SERVICES))})"
                if versions
                else "empty list of supported gRPC services (aka supported versions)"
            )
            text = f"invalid supported gRPC versions of DRA driver plugin {name} at endpoint {endpoint}: {why}"
            raise PluginError(f"RegisterPlugin error -- plugin validation failed with err: {text}")
        instances = self._known.setdefault(name, [])
        instances[:] = [row for row in instances if row[0] != endpoint]
        instances.append((endpoint, chosen))
        self.health.begin(name, endpoint, versions)

    async def deregister(self, name: str, endpoint: str) -> None:
        self.health.end(name, endpoint)
        instances = [row for row in self._known.get(name, ()) if row[0] != endpoint]
        if instances:
            self._known[name] = instances
        else:
            self._known.pop(name, None)

    def find(self, name: str) -> tuple[str, str]:
        """Endpoint and version of a driver, the newest instance. Raises ClaimError."""
        if not self._known.get(name):
            raise ClaimError(f"DRA driver {name} is not registered")
        return self._known[name][-1]

    async def call(self, name: str, claims: Sequence[UsedClaim], *, prepare: bool) -> Mapping[str, Any]:
        """What the driver answers for each claim, by uid. Raises ClaimError."""
        endpoint, version = self.find(name)
        method = dra_methods(version)[0 if prepare else 1]
        rows = [pb.Claim(namespace=claim.namespace, uid=claim.uid, name=claim.name) for claim in claims]
        try:
            async with RpcClient(Path(endpoint)) as client:
                reply = await client.call(method, method.request(claims=rows), timeout=CALL_S)
        except KubeletError as error:
            detail = f"rpc error: code = {error.status} desc = {error.message}" if isinstance(error, RpcError) else ""
            raise ClaimError(f"{method.name}: {detail or error.what}") from error
        names = {claim.uid: claim.name for claim in claims}
        for uid, row in reply.claims.items():
            if uid not in names:
                raise ClaimError(f"{method.name} returned result for unknown claim UID {uid}")
            if row.error:
                raise ClaimError(f"{method.name} failed for ResourceClaim {names[uid]}: {row.error}")
        if len(reply.claims) != len(claims):
            raise ClaimError(f"{method.name} skipped {len(claims) - len(reply.claims)} ResourceClaims")
        answers: Mapping[str, Any] = reply.claims
        return answers


class ClaimManager:
    """The claims of one node's pods; its checkpoint is in ``folder``."""

    def __init__(self, folder: Path, api: KubeApi, drivers: DraDrivers) -> None:
        self._path = folder / CHECKPOINT
        self._api = api
        self._drivers = drivers
        self._claims: dict[tuple[str, str], UsedClaim] = {}
        self._changing = asyncio.Lock()
        self._load()

    async def prepare(self, pod: Object) -> None:
        """Have every claim of the pod prepared. Raises ClaimError, KubeError."""
        async with self._changing:
            await self._prepare(pod)

    async def _prepare(self, pod: Object) -> None:
        uid, namespace = str(pod["metadata"]["uid"]), str(pod["metadata"]["namespace"])
        claims = []
        for _, name, own in _uses(pod):
            obj = await self._fetch(namespace, name)
            _check(pod, obj, own=own)
            results = ((obj["status"].get("allocation") or {}).get("devices") or {}).get("results") or ()
            drivers = tuple(dict.fromkeys(str(row["driver"]) for row in results))
            for driver in drivers:
                self._drivers.find(driver)
            claims.append(
                UsedClaim(namespace=namespace, name=name, uid=str(obj["metadata"]["uid"]), drivers=drivers, pods=[])
            )
        due: list[UsedClaim] = []
        for claim in claims:
            known = self._claims.setdefault((claim.namespace, claim.name), claim)
            if known.uid != claim.uid:
                raise ClaimError(
                    f"old ResourceClaim with same name {claim.name} and different UID {known.uid} still exists "
                    "(previous pod force-deleted?!)"
                )
            if uid not in known.pods:
                known.pods.append(uid)
            if known.devices is None and known not in due:
                due.append(known)
        if not claims:
            return
        self._save()
        devices: dict[str, list[PreparedDevice]] = {claim.uid: [] for claim in due}
        for driver in dict.fromkeys(name for claim in due for name in claim.drivers):
            batch = [claim for claim in due if driver in claim.drivers]
            for key, row in (await self._drivers.call(driver, batch, prepare=True)).items():
                devices[key] += [_prepared(driver, device) for device in row.devices]
        for claim in due:
            claim.devices = devices[claim.uid]
        self._save()

    async def unprepare(self, pod_uid: str) -> None:
        """The pod is over: undo what no other pod uses. Raises ClaimError; then it is to be tried again."""
        async with self._changing:
            await self._unprepare(pod_uid)

    async def _unprepare(self, pod_uid: str) -> None:
        due = []
        for claim in list(self._claims.values()):
            if pod_uid in claim.pods and len(claim.pods) > 1:
                claim.pods.remove(pod_uid)
            elif pod_uid in claim.pods:
                due.append(claim)
        for driver in dict.fromkeys(name for claim in due for name in claim.drivers):
            await self._drivers.call(driver, [claim for claim in due if driver in claim.drivers], prepare=False)
        for claim in due:
            self._claims.pop((claim.namespace, claim.name), None)
        self._save()

    def forget_devices(self) -> None:
        """The machine was rebooted: what drivers had prepared was in memory, and who uses it is still known."""
        for claim in self._claims.values():
            claim.devices = None
        if self._claims:
            self._save()

    def uses(self, pod_uid: str) -> bool:
        """Whether something of the pod is, or may be, prepared."""
        return any(pod_uid in claim.pods for claim in self._claims.values())

    def pods(self) -> set[str]:
        """The uids of pods that use claims."""
        return {uid for claim in self._claims.values() for uid in claim.pods}

    def of_container(self, pod: Object, container: Object) -> Iterator[tuple[UsedClaim, list[PreparedDevice]]]:
        """The prepared claims that a container names, each with the devices of the request that it names."""
        for name, request in _used_by(pod, container):
            claim = self._claims.get((str(pod["metadata"]["namespace"]), name))
            if claim is not None and claim.devices is not None:
                yield (
                    claim,
                    [
                        device
                        for device in claim.devices
                        if not request or not device.requests or request in device.requests
                    ],
                )

    def cdi_names(self, pod: Object, container: Object) -> tuple[str, ...]:
        """The CDI devices of a container's claims."""
        rows = self.of_container(pod, container)
        return tuple(dict.fromkeys(name for _, devices in rows for device in devices for name in device.cdi))

    def shown(self, pod: Object, container: Object) -> list[dict[str, Any]]:
        """The same for the pod-resources API."""
        return [
            {"name": claim.name, "namespace": claim.namespace, "devices": msgspec.to_builtins(devices)}
            for claim, devices in self.of_container(pod, container)
        ]

    def with_driver(self, driver: str) -> set[str]:
        """The uids of pods that have devices of a driver."""
        return {uid for claim in self._claims.values() if driver in claim.drivers for uid in claim.pods}

    def health(self, pod: Object, container: Object) -> list[dict[str, Any]]:
        """A container's ``allocatedResourcesStatus``: of claims that were made for the pod, as the kubelet has it."""
        made = {row.get("name"): row.get("resourceClaimName") for row in _made(pod)}
        rows = []
        for use in ((container.get("resources") or {}).get("claims")) or ():
            claim = self._claims.get((str(pod["metadata"]["namespace"]), str(made.get(use["name"]) or "")))
            devices = [
                device
                for device in (claim.devices if claim else None) or ()
                if self._drivers.health.says(device.driver)
            ]
            if devices:
                name = f"claim:{use['name']}" + (f"/{use['request']}" if use.get("request") else "")
                rows.append({"name": name, "resources": [self._resource(device) for device in devices]})
        return rows

    def _resource(self, device: PreparedDevice) -> dict[str, str]:
        condition = self._drivers.health.condition(device.driver, device.pool, device.device)
        own = device.cdi[0] if device.cdi else f"{device.driver}/{device.pool}/{device.device}"
        return {"resourceID": own, "health": condition.value}

    async def _fetch(self, namespace: str, name: str) -> Object:
        try:
            claim = await self._api.get(CLAIMS, name, namespace=namespace)
        except KubeRefusedError as refused:
            raise ClaimError(f"fetch ResourceClaim {name}: {refused.what}") from refused
        if claim is None:
            raise ClaimError(f'fetch ResourceClaim {name}: resourceclaims.resource.k8s.io "{name}" not found')
        return claim

    def _save(self) -> None:
        self._path.parent.mkdir(parents=True, exist_ok=True)
        write_atomic(self._path, msgspec.json.encode(list(self._claims.values())), mode=0o600)

    def _load(self) -> None:
        try:
            rows = decode(self._path.read_bytes(), list[UsedClaim])
        except FileNotFoundError:
            return
        except (OSError, msgspec.MsgspecError) as error:
            # Drivers prepare again what is prepared already, so that an empty start is safe.
            log.warning("%s is corrupted (%s); claims are prepared anew", self._path, error)
            os.replace(self._path, self._path.with_name(f"{CHECKPOINT}.corrupt"))
            return
        self._claims = {(claim.namespace, claim.name): claim for claim in rows}


async def unprepare(claims: ClaimManager, pod_uid: str) -> None:
    """Have the claims of a pod that is over unprepared, however long it takes."""
    backoff = Backoff(_POLICY)
    while claims.uses(pod_uid):
        try:
            await claims.unprepare(pod_uid)
        except ClaimError as error:
            log.warning("claims of pod %s: %s; it is tried again", pod_uid, error.what)
            await asyncio.sleep(backoff.next_delay())


def has_claims(pod: Object) -> bool:
    """Whether something is to be prepared before the pod's containers start."""
    return bool(pod["spec"].get("resourceClaims") or _extended(pod))


def _uses(pod: Object) -> Iterator[tuple[str, str, bool]]:
    """Each of the pod's claims: what the pod calls it, its name, and whether it must be the pod's. Raises ClaimError.

    The one that the scheduler made for extended resources comes last; the pod has no word for it.
    """
    for entry in pod["spec"].get("resourceClaims") or ():
        name, own = claim_name(pod, entry)
        if name is not None:
            yield str(entry["name"]), name, own
    extended = _extended(pod)
    if extended:
        yield "", str(extended["resourceClaimName"]), False


def _made(pod: Object) -> Sequence[Object]:
    found: Sequence[Object] = (pod.get("status") or {}).get("resourceClaimStatuses") or ()
    return found


def _extended(pod: Object) -> Object:
    found: Object = (pod.get("status") or {}).get("extendedResourceClaimStatus") or {}
    return found


def _used_by(pod: Object, container: Object) -> Iterator[tuple[str, str]]:
    """The claims that a container uses by name, each with the request that it names, "" for all of the claim."""
    wanted = ((container.get("resources") or {}).get("claims")) or ()
    for use, name, _ in _uses(pod):
        for row in wanted:
            if use and row["name"] == use:
                yield name, str(row.get("request") or "")
    extended = _extended(pod)
    for mapping in extended.get("requestMappings") or ():
        if mapping.get("containerName") == container.get("name"):
            yield str(extended["resourceClaimName"]), str(mapping.get("requestName") or "")


def claim_name(pod: Object, entry: Object) -> tuple[str | None, bool]:
    """The name of a pod's claim, and whether it must be the pod's own; None where none was made. Raises ClaimError."""
    if entry.get("resourceClaimName"):
        return str(entry["resourceClaimName"]), False
    metadata = pod["metadata"]
    if not entry.get("resourceClaimTemplateName"):
        shown = f'pod "{metadata["namespace"]}/{metadata["name"]}", spec.resourceClaim "{entry.get("name")}"'
        raise ClaimError(f"{shown}: none of the supported fields are set")
    for row in (pod.get("status") or {}).get("resourceClaimStatuses") or ():
        if row.get("name") == entry["name"]:
            return row.get("resourceClaimName"), True
    raise ClaimError(f'pod "{metadata["namespace"]}/{metadata["name"]}": ResourceClaim not created yet')


def _check(pod: Object, claim: Object, *, own: bool) -> None:
    """The claim is for this pod and allocated. Raises ClaimError."""
    metadata, about = pod["metadata"], claim["metadata"]
    owners = [row.get("uid") for row in about.get("ownerReferences") or () if row.get("controller")]
    if own and metadata["uid"] not in owners:
        raise ClaimError(
            f"ResourceClaim {about['namespace']}/{about['name']} was not created for pod "
            f"{metadata['namespace']}/{metadata['name']} (pod is not owner)"
        )
    status = claim.get("status") or {}
    if metadata["uid"] not in [row.get("uid") for row in status.get("reservedFor") or ()]:
        raise ClaimError(
            f"pod {metadata['name']} ({metadata['uid']}) is not allowed to use ResourceClaim "
            f"{about['name']} ({about['uid']})"
        )
    if not status.get("allocation"):
        raise ClaimError(f"ResourceClaim {about['name']}: not allocated")


def _prepared(driver: str, device: Any) -> PreparedDevice:
    return PreparedDevice(
        driver=driver, pool=device.pool_name, device=device.device_name, share=device.share_id,
        requests=tuple(device.request_names), cdi=tuple(device.cdi_device_ids),
    )  # fmt: skip


def _quoted(words: Sequence[str]) -> str:
    return "[" + " ".join(f'"{word}"' for word in words) + "]"
