"""A kubelet's device manager for simulated nodes and tests, speaking the real gRPC to real plugins.

Does what the kubelet does: accepts registrations and dials back, follows ListAndWatch, counts capacity (all devices)
and allocatable (healthy ones), asks for preferred allocation only when there is a choice, keeps what containers hold
and what the plugins answered in a checkpoint across restarts, empties its folder at the start, and marks devices
unhealthy when a plugin goes away. As in the kubelet, a plugin that another one has followed is still listened to, and
its end takes the present one's registration with it. Wording of refusals: the kubelet's (v1.35).
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import zlib
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Self

from kgpu.base.errors import KubeletError
from kgpu.kubelet import convert
from kgpu.kubelet.methods import ALLOCATE, GET_PREFERRED, LIST_AND_WATCH, PRE_START, REGISTRATION
from kgpu.kubelet.model import API_VERSION, ContainerAllocation, DeviceState, PreferenceRequest, Registration
from kgpu.kubelet.pb import deviceplugin_v1beta1_pb2 as dp
from kgpu.kubelet.rpc import RpcClient, RpcError, RpcServer, Service

CHECKPOINT: Final = "kubelet_internal_checkpoint"
CALL_SECONDS: Final = 10.0


REASON: Final = "UnexpectedAdmissionError"


class AdmissionError(KubeletError):
    """A pod that the kubelet refuses; ``message`` is the text that its status shows after "Pod was rejected: "."""

    def __init__(self, why: str, expected: str, remedy: str) -> None:
        self.message = f"Allocate failed due to {why}, which is unexpected"
        super().__init__(f"{REASON}: {self.message}", expected, remedy)


@dataclass(slots=True, eq=False)
class _Endpoint:
    """One registered plugin."""

    registration: Registration
    client: RpcClient
    task: asyncio.Task[None] | None = None
    updates: int = 0


@dataclass(slots=True)
class _Resource:
    devices: dict[str, DeviceState] = field(default_factory=dict)
    endpoint: _Endpoint | None = None
    followed: set[_Endpoint] = field(default_factory=set)
    """Every plugin whose stream is open: ``endpoint``, and those that it has followed."""

    @property
    def healthy(self) -> set[str]:
        return {name for name, device in self.devices.items() if device.healthy}


class FakeKubelet:
    """One node's device manager in ``folder`` (``kubelet.sock`` and the checkpoint are there)."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.socket = folder / "kubelet.sock"
        self._server: RpcServer | None = None
        self._resources: dict[str, _Resource] = {}
        # (pod, container) -> resource -> ids
        self._held: dict[tuple[str, str], dict[str, tuple[str, ...]]] = {}
        self._answers: dict[tuple[str, str], dict[str, ContainerAllocation]] = {}
        self.listeners: list[Callable[[], None]] = []
        """Called after every change of a device list or connection."""
        self._changed = asyncio.Event()
        self.registrations: list[Registration] = []
        self.refuse: str = ""
        self.problem = ""
        """What was wrong with the checkpoint at the last start; then it is kept under CHECKPOINT.corrupt."""
        self._admitting = asyncio.Lock()

    # --- life ---

    async def start(self) -> None:
        """Empty the folder as a kubelet does, load the checkpoint, listen."""
        self.folder.mkdir(parents=True, exist_ok=True)
        for entry in self.folder.iterdir():
            if not entry.name.startswith(CHECKPOINT) and not entry.is_dir():
                with contextlib.suppress(FileNotFoundError):
                    entry.unlink()
        self._load()
        server = RpcServer(self.socket, [Service(REGISTRATION, {"Register": self._register})])
        await server.start()
        self._server = server

    async def stop(self, *, leave_socket: bool = False) -> None:
        """Go away; a killed kubelet leaves its socket file behind."""
        server, self._server = self._server, None
        if server is not None:
            if leave_socket:
                os.link(self.socket, self.socket.with_suffix(".left"))
            await server.close()
            if leave_socket:
                os.rename(self.socket.with_suffix(".left"), self.socket)
        for resource in self._resources.values():
            resource.endpoint = None
            for endpoint in tuple(resource.followed):
                await self._drop(endpoint)
        self._resources.clear()

    async def restart(self) -> None:
        """Stop and start."""
        await self.stop()
        await self.start()

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    # --- what the node shows ---

    def capacity(self) -> dict[str, int]:
        """Devices of every resource, healthy or not."""
        return {name: len(resource.devices) for name, resource in self._resources.items()}

    def allocatable(self) -> dict[str, int]:
        """Healthy devices of every resource."""
        return {name: len(resource.healthy) for name, resource in self._resources.items()}

    def devices(self, resource: str) -> tuple[DeviceState, ...]:
        """The last list that the plugin sent."""
        known = self._resources.get(resource)
        return tuple(known.devices.values()) if known else ()

    def connected(self, resource: str) -> bool:
        """True while the plugin's stream is open and has sent a list."""
        known = self._resources.get(resource)
        return known is not None and known.endpoint is not None and known.endpoint.updates > 0

    def held(self) -> Mapping[tuple[str, str], Mapping[str, tuple[str, ...]]]:
        """What containers hold: (pod, container) to resource to ids."""
        return self._held

    def answers(self, pod: str, container: str) -> Mapping[str, ContainerAllocation]:
        """What the plugins answered when the container got its devices, by resource."""
        return self._answers.get((pod, container), {})

    def resources(self) -> tuple[str, ...]:
        """Every resource that a plugin has ever registered here."""
        return tuple(self._resources)

    async def wait_for(self, condition: Any, *, seconds: float = 60.0) -> None:
        """Return when ``condition()`` is true; TimeoutError after ``seconds``. Looked at on every change."""
        async with asyncio.timeout(seconds):
            while not condition():
                self._changed.clear()
                # Conditions may also depend on what does not pass through here.
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(0.05):
                        await self._changed.wait()

    # --- pods ---

    async def admit(
        self, pod: str, container: str, wants: Mapping[str, int], *, reuse: Collection[str] = ()
    ) -> dict[str, ContainerAllocation]:
        """Give a container its devices, as at pod admission: one pod at a time, as the kubelet does it.

        ``reuse`` names init containers of the same pod, whose devices may be given again. A container that holds its
        devices already, as after a reboot, keeps them while they are healthy; the plugin is not asked again. Raises
        AdmissionError; then the pod holds nothing.
        """
        async with self._admitting:
            answers: dict[str, ContainerAllocation] = {}
            key = (pod, container)
            try:
                for name, count in wants.items():
                    before = self._held.get(key, {}).get(name)
                    ids = await self._choose(name, count, key, reuse)
                    self._held.setdefault(key, {})[name] = ids
                    known = self._answers.get(key, {}).get(name) if ids == before else None
                    answers[name] = known or await self._allocate(name, ids)
            except AdmissionError:
                self.release(pod)
                raise
            self._answers.setdefault(key, {}).update(answers)
            self._save()
            return answers

    def release(self, pod: str) -> None:
        """The pod is gone; its devices are free."""
        keys = [key for key in self._held if key[0] == pod]
        for key in keys:
            del self._held[key]
            self._answers.pop(key, None)
        if keys:
            self._save()

    def keep_only(self, pods: Collection[str]) -> None:
        """Forget every pod that is not among these, as the kubelet does before it allocates."""
        for pod in {pod for pod, _ in self._held if pod not in pods}:
            self.release(pod)

    async def _choose(self, name: str, count: int, key: tuple[str, str], reuse: Collection[str]) -> tuple[str, ...]:
        already = self._held.get(key, {}).get(name, ())
        resource = self._resources.get(name)
        if resource is None or (resource.endpoint is None and not resource.devices):
            raise AdmissionError(
                f"cannot allocate unregistered device {name}", "a registered plugin", "start the plugin"
            )
        if not resource.healthy:
            raise AdmissionError(
                f"no healthy devices present; cannot allocate unhealthy devices {name}",
                "healthy devices",
                "look at the devices and their plugin",
            )
        if not resource.healthy.issuperset(already):
            raise AdmissionError(
                f"previously allocated devices are no longer healthy; cannot allocate unhealthy devices {name}",
                "the devices that the container had",
                "look at the devices and their plugin",
            )
        if len(already) >= count:
            return already
        again = {
            device
            for container in reuse
            for device in self._held.get((key[0], container), {}).get(name, ())
            if device in resource.healthy
        }
        first = tuple(sorted(again))[:count]
        if len(first) == count:
            return first
        used = {device for held in self._held.values() for device in held.get(name, ())}
        return (*first, *await self._choose_free(name, resource, sorted(resource.healthy - used), count, first))

    async def _choose_free(
        self, name: str, resource: _Resource, free: list[str], total: int, first: tuple[str, ...]
    ) -> tuple[str, ...]:
        """``total`` devices less those in ``first``, the plugin's choice where there is one."""
        count = total - len(first)
        if len(free) < count:
            raise AdmissionError(
                f"requested number of devices unavailable for {name}. Requested: {count}, Available: {len(free)}",
                "enough free devices",
                "wait for devices",
            )
        endpoint = resource.endpoint
        preferred: tuple[str, ...] = ()
        if endpoint is not None and endpoint.registration.preferred_allocation and len(free) > count:
            request = PreferenceRequest(available=(*first, *free), must_include=first, size=total)
            try:
                reply = await endpoint.client.call(
                    GET_PREFERRED, convert.preference_message(request), timeout=CALL_SECONDS
                )
            except KubeletError as problem:
                raise AdmissionError(
                    f"device plugin GetPreferredAllocation rpc failed with err: {_described(problem)}",
                    "an answer from the plugin",
                    "look at the plugin",
                ) from problem
            if reply.container_responses:
                preferred = tuple(reply.container_responses[0].deviceIDs)
        wanted = [device for device in preferred if device in free][:count]
        wanted += [device for device in free if device not in wanted][: count - len(wanted)]
        return tuple(wanted)

    async def _allocate(self, name: str, ids: tuple[str, ...]) -> ContainerAllocation:
        endpoint = self._resources[name].endpoint if name in self._resources else None
        if endpoint is None:
            raise AdmissionError(
                f"endpoint not found in cache for a registered resource: {name}",
                "a connected plugin",
                "start the plugin",
            )
        request = dp.AllocateRequest(container_requests=[dp.ContainerAllocateRequest(devices_ids=ids)])
        try:
            reply = await endpoint.client.call(ALLOCATE, request, timeout=CALL_SECONDS)
            if endpoint.registration.pre_start:
                await endpoint.client.call(
                    PRE_START, dp.PreStartContainerRequest(devices_ids=ids), timeout=CALL_SECONDS
                )
        except KubeletError as problem:
            raise AdmissionError(_described(problem), "an answer from the plugin", "look at the plugin") from problem
        if len(reply.container_responses) != 1:
            raise AdmissionError(
                f"no containers return in allocation response {reply}".rstrip(), "one answer", "look at the plugin"
            )
        return convert.allocation_of(reply.container_responses[0])

    # --- plugins ---

    async def _register(self, message: Any) -> Any:
        registration = convert.registration_of(message)
        if self.refuse or registration.version != API_VERSION:
            why = self.refuse or f"requested API version {registration.version!r} is not supported by kubelet"
            raise KubeletError(why, f"version {API_VERSION}", "use a matching plugin")
        await self.connect(registration)
        return dp.Empty()

    async def connect(self, registration: Registration) -> None:
        """Follow a plugin from now on, in place of an earlier one; its endpoint may also be an absolute path."""
        client = RpcClient(self.folder / registration.endpoint)
        resource = self._resources.setdefault(registration.resource, _Resource())
        resource.endpoint = endpoint = _Endpoint(registration, client)
        resource.followed.add(endpoint)
        self.registrations.append(registration)
        endpoint.task = asyncio.create_task(self._follow(resource, endpoint))
        self._tell()

    async def disconnect(self, resource: str, endpoint: str) -> None:
        """Let go of a plugin that has taken its registration back; its devices are unhealthy then."""
        known = self._resources.get(resource)
        if known is None or known.endpoint is None or known.endpoint.registration.endpoint != endpoint:
            return
        former, known.endpoint = known.endpoint, None
        await self._drop(former)
        self._lose(known)

    async def _follow(self, resource: _Resource, endpoint: _Endpoint) -> None:
        try:
            async with contextlib.aclosing(endpoint.client.stream(LIST_AND_WATCH, dp.Empty())) as replies:
                async for reply in replies:
                    resource.devices = {device.id: device for device in convert.devices_of(reply)}
                    endpoint.updates += 1
                    self._save()
                    self._tell()
        except KubeletError:
            pass
        finally:
            endpoint.client.close()
            resource.followed.discard(endpoint)
        present, resource.endpoint = resource.endpoint, None
        if present is not None:
            if present is not endpoint:
                await self._drop(present)
            self._lose(resource)

    def _lose(self, resource: _Resource) -> None:
        resource.devices = {
            name: DeviceState(id=name, healthy=False, numa_node=device.numa_node)
            for name, device in resource.devices.items()
        }
        self._tell()

    def _tell(self) -> None:
        self._changed.set()
        for listener in self.listeners:
            listener()

    async def _drop(self, endpoint: _Endpoint) -> None:
        if endpoint.task is not None:
            endpoint.task.cancel()
            await asyncio.gather(endpoint.task, return_exceptions=True)
        endpoint.client.close()

    # --- checkpoint ---

    def _save(self) -> None:
        data = {
            "PodDeviceEntries": [
                {
                    "PodUID": pod,
                    "ContainerName": container,
                    "ResourceName": name,
                    "DeviceIDs": {"-1": list(ids)},
                    "AllocResp": convert.encode_allocation(self._answers.get((pod, container), {}).get(name)),
                }
                for (pod, container), held in self._held.items()
                for name, ids in held.items()
            ],
            "RegisteredDevices": {
                name: sorted(resource.healthy) for name, resource in self._resources.items() if resource.healthy
            },
        }
        content = json.dumps({"Data": data, "Checksum": _checksum(data)})
        # Not synced to the disk, which may take long: it has to survive this process, not the machine.
        path, new = self.folder / CHECKPOINT, self.folder / f".{CHECKPOINT}.new"
        with open(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w", encoding="utf-8") as out:
            out.write(content)
        os.replace(new, path)

    def _load(self) -> None:
        self._held.clear()
        self._answers.clear()
        self.problem = ""
        path = self.folder / CHECKPOINT
        try:
            held, answers, names = _read_checkpoint(path.read_bytes())
        except FileNotFoundError:
            return
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            self.problem = f"{path} is corrupted ({type(error).__name__}: {str(error)[:200]})"
            with contextlib.suppress(OSError):
                os.replace(path, path.with_name(f"{CHECKPOINT}.corrupt"))
            return
        self._held.update(held)
        self._answers.update(answers)
        for name in names:
            # Known by name only until its plugin registers again: that is how the kubelet comes back.
            self._resources.setdefault(name, _Resource())


_Key = tuple[str, str]


def _read_checkpoint(
    content: bytes,
) -> tuple[dict[_Key, dict[str, tuple[str, ...]]], dict[_Key, dict[str, ContainerAllocation]], list[str]]:
    """What containers hold, what they were answered, and the resources; raises what a wrong content leads to."""
    checkpoint = json.loads(content)
    data = checkpoint["Data"]
    if checkpoint["Checksum"] != _checksum(data):
        raise ValueError("the checksum does not match the data")
    held: dict[_Key, dict[str, tuple[str, ...]]] = {}
    answers: dict[_Key, dict[str, ContainerAllocation]] = {}
    for entry in data["PodDeviceEntries"] or ():
        key = (str(entry["PodUID"]), str(entry["ContainerName"]))
        ids = tuple(str(device) for group in entry["DeviceIDs"].values() for device in group)
        held.setdefault(key, {})[str(entry["ResourceName"])] = ids
        answer = convert.decode_allocation(entry.get("AllocResp") or "")
        if answer is not None:
            answers.setdefault(key, {})[str(entry["ResourceName"])] = answer
    return held, answers, [str(name) for name in data["RegisteredDevices"] or ()]


def _checksum(data: Any) -> int:
    return zlib.crc32(json.dumps(data, sort_keys=True).encode())


def _described(problem: KubeletError) -> str:
    if isinstance(problem, RpcError):
        return f"rpc error: code = {_camel(problem.status)} desc = {problem.message}"
    return f"rpc error: code = Unavailable desc = {problem.what}"


def _camel(status: str) -> str:
    return "".join(word.capitalize() for word in status.split("_"))
