"""The metrics API over HTTP, and how the nodes' hosts are asked what their containers use."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Iterable
from typing import Any, Final

import msgspec

from kgpu.base import typed
from kgpu.lab.embedded.http import answers, negotiate, options
from kgpu.lab.embedded.http.answers import ApiAnswer
from kgpu.lab.embedded.http.kubelets import Kubelets, url_of_kubelet
from kgpu.lab.embedded.http.request import ApiRequest
from kgpu.lab.embedded.status import ApiError, Object
from kgpu.lab.embedded.usage import Fetch, UsageApi

log = logging.getLogger(__name__)

_LIMIT: Final = 64 * 1024 * 1024  # bytes of an answer
_ANSWER_S: Final = 10.0  # metrics-server's scrape timeout


async def answer(usage: UsageApi, request: ApiRequest) -> ApiAnswer:
    """A list or an object. Raises ApiError."""
    wanted = negotiate.choose(request, tables=False)
    if request.name:
        return await answers.of_value(await usage.get(request.plural, request.namespace, request.name), request, wanted)
    selected = options.of_list(request, watch=False)
    found = await usage.collection(request.plural, request.namespace, selected.labels, selected.fields)
    return await answers.of_value(found, request, wanted)


def fetching(kubelets: Kubelets, nodes: Callable[[], Iterable[Object]]) -> Fetch:
    """Asks every host of nodes once; one that does not answer, or is a kubelet that has no ``/usage``, has no nodes."""

    async def fetch() -> dict[str, Any]:
        named = {node["metadata"]["name"]: node for node in nodes()}
        hosts = set()
        for name in named:
            with contextlib.suppress(ApiError):
                hosts.add(url_of_kubelet(name, named.get))
        sample: dict[str, Any] = {}
        for part in await asyncio.gather(*(_of_host(kubelets, host) for host in sorted(hosts))):
            sample |= {name: row for name, row in part.items() if name in named}
        return sample

    return fetch


async def _of_host(kubelets: Kubelets, host: str) -> dict[str, Any]:
    data = b""
    try:
        async with asyncio.timeout(_ANSWER_S):
            status, body, close = await kubelets.open(f"{host}/usage")
            try:
                async for chunk in body:
                    data += chunk
                    if len(data) > _LIMIT:
                        return {}
            finally:
                await close()
        if status != 200:
            return {}
        rows: dict[str, Any] = typed.decode(data, dict[str, dict[str, Any]])["nodes"]
    except (OSError, TimeoutError, KeyError, msgspec.DecodeError) as error:
        log.info("%s does not tell what its nodes use: %s", host, error)
        return {}
    return rows
