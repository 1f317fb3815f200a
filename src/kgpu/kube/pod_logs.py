"""What containers have written, through the API server; the right is ``get`` of ``pods/log``."""

from __future__ import annotations

import asyncio

from kgpu.kube.client import DEADLINE, Client, _path, _refusal, _unreachable
from kgpu.kube.port import PODS
from kgpu.kube.wire import WireError


class PodLogs:
    """Logs over a client's connections."""

    def __init__(self, client: Client) -> None:
        self._client = client

    async def logs(
        self, namespace: str, pod: str, container: str, *, previous: bool = False, tail: int = 500,
        limit: int = 256 * 1024,
    ) -> bytes:  # fmt: skip
        """The last ``tail`` lines of a container, at most ``limit`` bytes; ``previous``: before its last restart.

        Raises KubeRefusedError or KubeUnreachableError.
        """
        import httpx2

        path = _path(PODS, namespace, pod, "log")
        query = {"container": container, "tailLines": str(tail), "limitBytes": str(limit)}
        if previous:
            query["previous"] = "true"
        client = self._client
        try:
            async with asyncio.timeout(DEADLINE):
                answer = await client._send("GET", path, query, None, {"Accept": "*/*"}, small=True)
        except (httpx2.HTTPError, WireError, TimeoutError) as error:
            raise _unreachable("GET", path, client._http, error) from error
        if answer.status_code >= 300:
            raise _refusal("GET", path, answer)
        return answer.content[:limit]
