"""One resource's device plugin on its socket, and the call that registers it with the kubelet.

Every open ListAndWatch stream gets every change of the device list (the replaced program feeds only one of them). The
list that a stream gets is always whole and in the order given.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Sequence
from pathlib import Path
from typing import Any

from kgpu.kubelet import convert
from kgpu.kubelet.methods import DEVICE_PLUGIN, REGISTER
from kgpu.kubelet.model import DeviceState, PluginLogic, Registration
from kgpu.kubelet.pb import deviceplugin_v1beta1_pb2 as dp
from kgpu.kubelet.rpc import RpcClient, RpcServer, Service

REGISTER_SECONDS = 5.0
"""The kubelet dials the plugin back inside the call, so it takes longer than an ordinary one."""


def _ignore() -> None: ...


class DevicePluginServer:
    """Serves ``logic`` and a device list at ``folder/registration.endpoint``.

    ``on_stream()`` is called when a ListAndWatch stream begins, ends, or was sent a list.
    """

    def __init__(
        self, folder: Path, registration: Registration, logic: PluginLogic, *, on_stream: Callable[[], None] = _ignore
    ) -> None:
        self.registration = registration
        self._on_stream = on_stream
        self._logic = logic
        self._rpc = RpcServer(
            folder / registration.endpoint,
            [
                Service(
                    DEVICE_PLUGIN,
                    {
                        "GetDevicePluginOptions": self._options,
                        "ListAndWatch": self._list_and_watch,
                        "GetPreferredAllocation": self._prefer,
                        "Allocate": self._allocate,
                        "PreStartContainer": self._pre_start,
                    },
                )
            ],
        )
        self._message: Any = dp.ListAndWatchResponse()
        self._version = 0
        self._changed = asyncio.Event()
        self._closing = False
        self._sent: dict[int, int] = {}
        self._next_stream = 0

    @property
    def path(self) -> Path:
        """The socket's file."""
        return self._rpc.path

    @property
    def exists(self) -> bool:
        """False when the socket's file was removed or replaced by another program."""
        return self._rpc.exists

    @property
    def replaced(self) -> bool:
        """True when another program's file is in the socket's place."""
        return self._rpc.replaced

    @property
    def streams(self) -> int:
        """How many ListAndWatch streams are open."""
        return len(self._sent)

    @property
    def version(self) -> int:
        """Counts the device lists given so far."""
        return self._version

    @property
    def delivered(self) -> int:
        """The newest version that some stream was sent; -1 when none is open."""
        return max(self._sent.values(), default=-1)

    async def start(self) -> None:
        """Listen. Raises KubeletError."""
        self._closing = False
        await self._rpc.start()

    def update(self, devices: Sequence[DeviceState]) -> None:
        """Give every open and later stream this list."""
        self._message = convert.device_list(devices)
        self._version += 1
        self._wake()

    def _wake(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()

    async def close(self) -> None:
        """End the streams properly, hang up, remove the socket."""
        self._closing = True
        self._wake()
        await asyncio.sleep(0)
        await self._rpc.close()
        self._sent.clear()

    async def _options(self, _request: Any) -> Any:
        return convert.options_message(self.registration)

    async def _list_and_watch(self, _request: Any) -> AsyncGenerator[Any, None]:
        stream = self._next_stream
        self._next_stream += 1
        self._sent[stream] = -1
        self._on_stream()
        try:
            while not self._closing:
                version, message, changed = self._version, self._message, self._changed
                if self._sent[stream] == version:
                    await changed.wait()
                    continue
                yield message
                self._sent[stream] = version
                self._on_stream()
        finally:
            self._sent.pop(stream, None)
            self._on_stream()

    async def _prefer(self, request: Any) -> Any:
        reply = dp.PreferredAllocationResponse()
        for container in request.container_requests:
            reply.container_responses.add(deviceIDs=self._logic.prefer(convert.preference_of(container)))
        return reply

    async def _allocate(self, request: Any) -> Any:
        reply = dp.AllocateResponse()
        for container in request.container_requests:
            convert.add_allocation(reply, self._logic.allocate(tuple(container.devices_ids)))
        return reply

    async def _pre_start(self, _request: Any) -> Any:
        return dp.PreStartContainerResponse()


async def register(kubelet_socket: Path, registration: Registration, *, seconds: float = REGISTER_SECONDS) -> None:
    """Tell the kubelet about a plugin that already listens. Raises KubeletError within ``seconds``."""
    async with RpcClient(kubelet_socket) as client:
        await client.call(REGISTER, convert.registration_message(registration), timeout=seconds)
