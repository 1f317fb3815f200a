"""A kubelet's side of the device plugin API over grpcio, so that kgpu is measured by another gRPC implementation."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import grpc

from kgpu.kubelet.pb import deviceplugin_v1beta1_pb2 as dp


class Kubelet:
    """Listens on ``folder/kubelet.sock`` and remembers who registered, and when (``time.perf_counter``)."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.socket = folder / "kubelet.sock"
        self.registered: dict[str, tuple[str, float]] = {}
        self._changed = threading.Condition()
        self._server = grpc.server(ThreadPoolExecutor(2))
        register = grpc.unary_unary_rpc_method_handler(
            self._register,
            request_deserializer=dp.RegisterRequest.FromString,
            response_serializer=dp.Empty.SerializeToString,
        )
        self._server.add_generic_rpc_handlers(
            (grpc.method_handlers_generic_handler("v1beta1.Registration", {"Register": register}),)
        )
        self._server.add_insecure_port(f"unix:{self.socket}")
        self._server.start()

    def forget(self) -> None:
        """As if nobody had registered yet."""
        with self._changed:
            self.registered.clear()

    def wait(self, resource: str, seconds: float) -> float:
        """When the resource registered. Raises TimeoutError."""
        with self._changed:
            if not self._changed.wait_for(lambda: resource in self.registered, seconds):
                raise TimeoutError(f"{resource} did not register within {seconds} s; there is {list(self.registered)}")
            return self.registered[resource][1]

    def plugin(self, resource: str) -> Plugin:
        """A connection to the plugin that registered the resource."""
        return Plugin(self.folder / self.registered[resource][0])

    def close(self) -> None:
        """Stop and remove the socket."""
        self._server.stop(0).wait()
        self.socket.unlink(missing_ok=True)

    def _register(self, request: Any, _context: Any) -> Any:
        with self._changed:
            self.registered[request.resource_name] = (request.endpoint, time.perf_counter())
            self._changed.notify_all()
        return dp.Empty()


class Plugin:
    """Calls one plugin's socket."""

    def __init__(self, socket: Path) -> None:
        self._channel = grpc.insecure_channel(f"unix:{socket}")
        prefix = "/v1beta1.DevicePlugin/"
        self._allocate = self._channel.unary_unary(
            prefix + "Allocate",
            request_serializer=dp.AllocateRequest.SerializeToString,
            response_deserializer=dp.AllocateResponse.FromString,
        )
        self._prefer = self._channel.unary_unary(
            prefix + "GetPreferredAllocation",
            request_serializer=dp.PreferredAllocationRequest.SerializeToString,
            response_deserializer=dp.PreferredAllocationResponse.FromString,
        )
        self._watch = self._channel.unary_stream(
            prefix + "ListAndWatch",
            request_serializer=dp.Empty.SerializeToString,
            response_deserializer=dp.ListAndWatchResponse.FromString,
        )

    def devices(self) -> list[str]:
        """The ids of one new ListAndWatch stream's first list."""
        stream = self._watch(dp.Empty(), timeout=30)
        try:
            return [device.ID for device in next(iter(stream)).devices]
        finally:
            stream.cancel()

    def allocate(self, ids: Sequence[str]) -> Any:
        """One container's Allocate."""
        request = dp.AllocateRequest()
        request.container_requests.add(devices_ids=ids)
        return self._allocate(request, timeout=30)

    def prefer(self, available: Sequence[str], size: int) -> list[str]:
        """One container's GetPreferredAllocation."""
        request = dp.PreferredAllocationRequest()
        request.container_requests.add(available_deviceIDs=available, allocation_size=size)
        return list(self._prefer(request, timeout=30).container_responses[0].deviceIDs)

    def close(self) -> None:
        """Hang up."""
        self._channel.close()
