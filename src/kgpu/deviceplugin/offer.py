"""Serves one resource to the kubelet: socket, registration and device list. A problem of one never affects another.

It registers whenever the kubelet's socket is a new one, and again if the kubelet drops the stream: if one plugin
replaces another, the end of the first one's stream makes the kubelet drop the second. It recreates its own socket when
that was removed (a starting kubelet empties the folder).
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Sequence
from pathlib import Path

from kgpu.base.advice import Advice, AdviceSink
from kgpu.base.backoff import Backoff, BackoffPolicy
from kgpu.base.clock import Clock
from kgpu.base.errors import KubeletError
from kgpu.base.service import Complaint
from kgpu.deviceplugin.core import PluginCore
from kgpu.deviceplugin.model import PluginResource
from kgpu.kubelet.device_plugin import DevicePluginServer, register
from kgpu.kubelet.model import ContainerAllocation, DeviceState, PreferenceRequest, Registration
from kgpu.kubelet.rpc import is_served
from kgpu.kubelet.socket_watch import SocketIdentity

LOOK_SECONDS = 1.0
"""How often the socket and the registration are checked without an event."""
STREAM_SECONDS = 5.0
"""A kubelet opens a stream as soon as a plugin has registered; after this long without one, register again."""
LOST = BackoffPolicy(first=0.2, cap=STREAM_SECONDS, factor=2.0, jitter=0.3, healthy_after=30.0)
"""The same after the kubelet has dropped a stream: soon, because its devices count as unhealthy meanwhile."""
WITHDRAW_SECONDS = 10.0
"""How long an empty list is still served after the kubelet got it, so that it surely acts on it."""
YIELD = BackoffPolicy(first=5.0, cap=300.0, factor=2.0, jitter=0.3, healthy_after=600.0)
"""How long another process that has replaced our socket keeps it: the newest one serves, because two that keep
replacing each other's socket would keep the kubelet busy.
"""
RETRY = BackoffPolicy(first=0.05, cap=1.0, factor=2.0, jitter=0.2, healthy_after=5.0)


class Offer:
    """Serves one resource until cancelled. ``set`` may be called before and while ``run`` runs."""

    def __init__(
        self,
        name: str,
        *,
        core: PluginCore,
        kubelet_socket: Path,
        clock: Clock,
        report: AdviceSink,
        identity: Callable[[], SocketIdentity | None],
        on_progress: Callable[[], None],
        look_seconds: float = LOOK_SECONDS,
    ) -> None:
        self.name = name
        self._core = core
        self._kubelet_socket = kubelet_socket
        self._clock = clock
        self._report = report
        self._identity = identity
        self._on_progress = on_progress
        self._look_seconds = look_seconds
        self._wake = asyncio.Event()
        self._states: tuple[DeviceState, ...] | None = None
        self._server: DevicePluginServer | None = None
        self._registered: SocketIdentity | None = None
        self._registered_at = 0.0
        self._lost = Backoff(LOST)
        self._followed = False
        self._again_at = 0.0
        self._complaint = Complaint(report, subject=name, reason="NotRegistered")
        self._empty_since: float | None = None
        self._yield = Backoff(YIELD)
        self._yield_until = 0.0
        self._served_at = 0.0

    # --- what the kubelet asks (PluginLogic) ---

    def allocate(self, ids: Sequence[str]) -> ContainerAllocation:
        return self._core.allocate(self.name, ids)

    def prefer(self, request: PreferenceRequest) -> Sequence[str]:
        return self._core.prefer(self.name, request).ids

    # --- what the loop says ---

    def set(self, states: tuple[DeviceState, ...]) -> None:
        """Offer these devices from now on; none withdraws the resource."""
        if states == self._states:
            return
        self._states = states
        self._empty_since = None
        if self._server is not None:
            self._server.update(states)
        self.wake()

    def wake(self) -> None:
        """Look again, because something about the kubelet or its folder has changed."""
        self._wake.set()

    def _on_stream(self) -> None:
        if self._server is not None and self._server.streams:
            self._followed = True
        self.wake()

    @property
    def registered(self) -> bool:
        """True while the present kubelet follows the resource and has been sent its devices."""
        known = self._registered is not None and self._registered == self._identity()
        return known and self._server is not None and self._server.delivered >= 0

    @property
    def withdrawn(self) -> bool:
        """True once the resource has no devices any more and the kubelet has had time to act on it."""
        return self._empty_since is not None and self._clock.monotonic() - self._empty_since >= WITHDRAW_SECONDS

    async def run(self) -> None:
        """Serve and register until cancelled."""
        backoff = Backoff(RETRY)
        try:
            while True:
                self._wake.clear()
                try:
                    await self._serve()
                    await self._register()
                    self._complaint.over()
                    backoff.reset()
                    pause = self._pause()
                except KubeletError as problem:
                    self._complaint.of(problem)
                    pause = backoff.next_delay()
                self._note_withdrawal()
                self._on_progress()
                # Not wait_for: on Python 3.11 it swallows a cancellation that comes together with the event.
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(pause):
                        await self._wake.wait()
        finally:
            if self._server is not None:
                await self._server.close()

    async def _serve(self) -> None:
        if self._server is not None and self._server.exists:
            return
        now = self._clock.monotonic()
        if self._server is not None:
            replaced = self._server.replaced
            await self._server.close()
            self._server = None
            self._registered = None
            if replaced:
                self._yield_until = now + self._yield.next_delay(ran_for=now - self._served_at)
        endpoint = self._kubelet_socket.parent / PluginResource(name=self.name).endpoint
        if now < self._yield_until and is_served(endpoint):
            raise KubeletError(
                f"another process took over the socket {endpoint}",
                "one device plugin for each resource of a node",
                "remove the other one; this one takes the socket back when it is gone, or after a while",
            )
        if not self._kubelet_socket.parent.is_dir():
            return  # the kubelet creates the folder; the wait for it is reported elsewhere
        registration = Registration(resource=self.name, endpoint=endpoint.name)
        server = DevicePluginServer(endpoint.parent, registration, self, on_stream=self._on_stream)
        offered = self._states
        server.update(offered or ())
        await server.start()
        self._server = server
        if self._states != offered:  # set meanwhile
            server.update(self._states or ())
        self._served_at = now
        self._registered = None

    async def _register(self) -> None:
        identity = self._identity()
        server = self._server
        if identity is None or server is None:
            self._registered = None
            return
        now = self._clock.monotonic()
        why = "the kubelet's socket appeared or changed"
        if self._registered == identity:
            if self._is_kept(server, now):
                return
            self._registered = None
            why = "the kubelet no longer followed it"
        self._followed = False
        await register(self._kubelet_socket, server.registration)
        self._registered = identity
        self._registered_at = now
        self._again_at = now + STREAM_SECONDS
        self._report(
            Advice(
                subject=self.name,
                what=f"registered with the kubelet, {len(self._states or ())} devices",
                why=why,
                reason="Registered",
            )
        )

    def _is_kept(self, server: DevicePluginServer, now: float) -> bool:
        """Whether the kubelet follows the resource, or still has time to begin."""
        if server.streams:
            return True
        if self._followed:
            self._followed = False
            self._again_at = now + self._lost.next_delay(ran_for=now - self._registered_at)
        return now < self._again_at

    def _pause(self) -> float:
        """Seconds until the next look."""
        waits = self._registered is not None and self._server is not None and not self._server.streams
        left = self._again_at - self._clock.monotonic()
        return min(self._look_seconds, max(left, 0.0)) if waits else self._look_seconds

    def _note_withdrawal(self) -> None:
        server = self._server
        if self._states or server is None:
            self._empty_since = None
        elif self._empty_since is None and server.delivered == server.version:
            self._empty_since = self._clock.monotonic()
