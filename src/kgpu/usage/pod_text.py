"""What a pod serves over HTTP, asked at its address or through the API server; small answers, and no redirects."""

from __future__ import annotations

import ssl
from dataclasses import dataclass
from typing import Final
from urllib.parse import urlencode

from kgpu.base.errors import UserError
from kgpu.kube.port import PodPages
from kgpu.kube.wire import Wire

_PLAIN: Final = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)


class SilentPodError(UserError):
    """A pod that does not answer as it should."""


@dataclass(frozen=True, slots=True)
class PodPort:
    """A port of a pod."""

    namespace: str
    pod: str
    address: str
    port: int


async def pod_text(
    api: PodPages, where: PodPort, path: str, *, direct: bool, limit: int, query: dict[str, str] | None = None
) -> str:
    """The page under ``path``, of at most ``limit`` bytes; ``direct``: at the pod's address. Raises SilentPodError,
    KubeError and WireError. Deadlines are the caller's.
    """
    if not direct:
        return await api.pod_page(where.namespace, where.pod, where.port, path, limit=limit, query=query)
    host = f"[{where.address}]" if ":" in where.address else where.address
    wire = Wire(f"http://{host}:{where.port}", _PLAIN)
    target = f"{path}?{urlencode(query)}" if query else path
    try:
        answer = await wire.request("GET", target, {"Connection": "close"}, b"", limit=limit)
    finally:
        await wire.close()
    if answer.status_code != 200:
        raise SilentPodError(f"HTTP {answer.status_code}", "200 and a page", "see the pod's log")
    return answer.text
