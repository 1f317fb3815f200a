"""``pods/exec`` and ``pods/portforward``: the real server's checks, then the client's connection joined to one of the
node's kubelet.

The kubelet speaks the client's WebSocket; this server passes the bytes on. Promises: each direction waits for its
reader, with ``kubelets.BUFFER`` bytes read ahead; when one side ends, so does the other.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from typing import Final
from urllib.parse import quote, urlencode

from kgpu.lab.embedded.http.answers import ApiAnswer
from kgpu.lab.embedded.http.kubelets import (
    BUFFER,
    Kubelets,
    UpgradedKubelet,
    UpgradeRefusedError,
    internal,
    refusal,
    url_of_kubelet,
)
from kgpu.lab.embedded.http.logs import container_of
from kgpu.lab.embedded.http.request import ApiRequest
from kgpu.lab.embedded.status import Object, bad_request

GOODBYE_S: Final = 10.0  # for a client to read what is left when the kubelet's side is over
_FLAGS: Final = {"stdin": "input", "stdout": "output", "stderr": "error", "tty": "tty"}
"""The API's names of the streams, and the kubelet's."""
_PATHS: Final = {"exec": "exec", "portforward": "portForward"}
"""The kubelet's, by subresource."""
_HANDSHAKE: Final = ("sec-websocket-key", "sec-websocket-version", "sec-websocket-protocol")


def check_host(request: ApiRequest, pod: Object) -> tuple[str, str]:
    """(node, container) that a stream is for. Raises ApiError 400."""
    container = container_of(pod, request.query.text("container")) if request.subresource != "portforward" else ""
    node = str((pod.get("spec") or {}).get("nodeName") or "")
    if not node:
        raise bad_request(f"pod {request.name} does not have a host assigned")
    return node, container


def kubelet_query(request: ApiRequest) -> list[tuple[str, str]]:
    """The query for the kubelet."""
    pairs = [("command", word) for word in request.query.all("command")]
    return pairs + [(theirs, "1") for ours, theirs in _FLAGS.items() if request.query.flag(ours)]


async def answer(
    request: ApiRequest, pod: Object, find_node: Callable[[str], Object | None], kubelets: Kubelets
) -> ApiAnswer:
    """The answer that joins the client to its container. Raises ApiError."""
    node, container = check_host(request, pod)
    kubelet = url_of_kubelet(node, find_node)
    upgrade = request.header("upgrade")
    if not upgrade or "upgrade" not in request.header("connection").lower():
        raise bad_request("Upgrade request required")
    place = (request.namespace, request.name, *([container] if container else []))
    path = "/".join(quote(part, safe="") for part in (_PATHS[request.subresource], *place))
    headers = {"Connection": "Upgrade", "Upgrade": upgrade}
    headers |= {name: request.header(name) for name in _HANDSHAKE if request.header(name)}
    url = f"{kubelet}/{path}?{urlencode(kubelet_query(request))}"
    try:
        return ApiAnswer(101, tunnel=KubeletTunnel(await kubelets.upgrade(url, headers)))
    except UpgradeRefusedError as refused:
        raise refusal(refused.status, refused.text, f"pods/{request.subresource}", request.name) from refused
    except OSError as error:
        raise internal(str(error)) from error


class KubeletTunnel:
    """Passes bytes between a client and a kubelet until one of them ends."""

    def __init__(self, kubelet: UpgradedKubelet) -> None:
        self._kubelet = kubelet

    async def carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Send the kubelet's head to the client, then each what the other says. Closes both."""
        writer.write(self._kubelet.head)
        there = asyncio.ensure_future(_copy(reader, self._kubelet.writer))
        back = asyncio.ensure_future(_copy(self._kubelet.reader, writer))
        try:
            await asyncio.wait((there, back), return_when=asyncio.FIRST_COMPLETED)
            if back.done():  # the client gets the rest
                writer.close()
                with contextlib.suppress(OSError, TimeoutError):
                    async with asyncio.timeout(GOODBYE_S):
                        await writer.wait_closed()
        finally:
            writer.transport.abort()
            self.close()
            for copy in (there, back):
                copy.cancel()
            await asyncio.gather(there, back, return_exceptions=True)

    def close(self) -> None:
        """End the kubelet's side."""
        self._kubelet.writer.transport.abort()


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(OSError):
        while data := await reader.read(BUFFER):
            writer.write(data)
            await writer.drain()
