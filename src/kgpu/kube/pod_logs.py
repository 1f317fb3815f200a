"""What containers have written, through the API server; the right is ``get`` of ``pods/log``."""

from __future__ import annotations

from collections.abc import AsyncIterator

from kgpu.kube.client import Client


class PodLogs:
    """Logs over a client's connections."""

    def __init__(self, client: Client) -> None:
        self._client = client

    async def logs(
        self, namespace: str, pod: str, container: str, *, previous: bool = False, tail: int = 500,
        limit: int = 256 * 1024, since: int = 0,
    ) -> bytes:  # fmt: skip
        """The last ``tail`` lines of a container (-1: all), of these at most the first ``limit`` bytes.

        ``previous``: before its last restart. ``since``: of the last so many seconds, 0 for all.

        Raises KubeRefusedError or KubeUnreachableError.
        """
        query = {"container": container, "limitBytes": str(limit)}
        if tail >= 0:
            query["tailLines"] = str(tail)
        if since:
            query["sinceSeconds"] = str(since)
        if previous:
            query["previous"] = "true"
        # A server that does not count bytes may say a little more.
        return (await self._client.pod_log(namespace, pod, query))[:limit]

    def follow(
        self, namespace: str, pod: str, container: str, *, tail: int = -1, since: int = 0
    ) -> AsyncIterator[bytes]:  # fmt: skip
        """The last ``tail`` lines (-1: all), and what comes, in pieces, until the container ends.

        Raises KubeRefusedError or KubeUnreachableError.
        """
        query = {"container": container}
        if tail >= 0:
            query["tailLines"] = str(tail)
        if since:
            query["sinceSeconds"] = str(since)
        return self._client.follow_pod_log(namespace, pod, query)
