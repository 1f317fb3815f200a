"""A container runtime for tests, at a real socket: it answers what ``state`` says, and can go away and come back.

Reads nothing and starts nothing. ``FakeCriRuntime`` is also the port's fake without a socket: ``status`` answers
directly.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Self

from kgpu.base.errors import KubeletError
from kgpu.kubelet.cri import RuntimeStatus, not_served, read_status
from kgpu.kubelet.methods import CRI
from kgpu.kubelet.pb import cri_v1_pb2 as cri
from kgpu.kubelet.rpc import RpcServer, Service


class FakeCriRuntime:
    """A runtime with the given state. ``old``: it knows neither handlers nor RuntimeConfig, as containerd 1.7."""

    def __init__(self, state: RuntimeStatus, *, old: bool = False) -> None:
        self.state = state
        self.old = old
        self.asked = 0
        self.down = ""
        """Why nobody answers; "" while it does."""
        self._server: RpcServer | None = None

    async def status(self) -> RuntimeStatus:
        """The state now. Raises KubeletError while it is down."""
        self.asked += 1
        if self.down:
            raise not_served(Path("fake"), self.down)
        return read_status(self._version(), self._status(), None if self.old else self._config())

    async def serve(self, socket: Path) -> Self:
        """Answer at a socket until ``close``."""
        self._server = RpcServer(socket, [Service(CRI, self._answers())])
        await self._server.start()
        return self

    async def close(self) -> None:
        """Hang up and take the socket away."""
        server, self._server = self._server, None
        if server is not None:
            await server.close()

    def _answers(self) -> dict[str, Any]:
        async def version(_request: Any) -> Any:
            self.asked += 1
            if self.down:
                raise KubeletError(self.down, "a runtime that is up", "wait")
            return self._version()

        async def status(request: Any) -> Any:
            return self._status(verbose=request.verbose)

        async def config(_request: Any) -> Any:
            return self._config()

        answers = {"Version": version, "Status": status}
        return answers if self.old else {**answers, "RuntimeConfig": config}

    def _version(self) -> Any:
        return cri.VersionResponse(
            version="0.1.0",
            runtime_name=self.state.name,
            runtime_version=self.state.version,
            runtime_api_version="v1",
        )

    def _status(self, *, verbose: bool = True) -> Any:
        state = self.state
        reply = cri.StatusResponse()
        reply.status.conditions.add(type="RuntimeReady", status=state.ready, message=state.problem)
        reply.status.conditions.add(type="NetworkReady", status=True)
        for name in () if self.old else state.handlers or ():
            reply.runtime_handlers.add(name=name)
        if verbose:
            runtimes: dict[str, Any] = {name: {} for name in state.handlers or ()}
            config: dict[str, Any] = {
                "containerd": {"defaultRuntimeName": state.default_handler, "runtimes": runtimes},
                "cdiSpecDirs": list(state.cdi_dirs),
            }
            if state.cdi is not None:
                config["enableCDI"] = state.cdi
            reply.info["config"] = json.dumps(config)
        return reply

    def _config(self) -> Any:
        reply = cri.RuntimeConfigResponse()
        driver = cri.CGROUPFS if self.state.cgroup_driver == "cgroupfs" else cri.SYSTEMD
        reply.linux.cgroup_driver = driver
        return reply
