"""Where commands get recorded usage from: the cluster's history or agents, from a moment on."""

from __future__ import annotations

import os
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from kgpu.cli._rights import USAGE, needing

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from kgpu.usage.agents import UsageAgents
    from kgpu.usage.price_file import PriceList
    from kgpu.usage.recording import UsageRecording
    from kgpu.usage.segments import Timeline


@asynccontextmanager
async def usage_agents(kubeconfig: str, kube_context: str) -> AsyncIterator[UsageAgents]:
    """Whom to ask in a cluster. Raises KubeError."""
    from kgpu.kube.client import connect
    from kgpu.kube.operator_namespace import operator_namespace
    from kgpu.usage.agents import UsageAgents

    api = connect(kubeconfig, context=kube_context)
    try:
        inside = bool(os.environ.get("KUBERNETES_SERVICE_HOST"))
        async with needing(USAGE, api):
            yield UsageAgents(api, namespace=await operator_namespace(api), direct=inside)
    finally:
        await api.close()


async def recorded(
    kubeconfig: str, kube_context: str, since: str, *, priced: bool
) -> tuple[UsageRecording, PriceList | None]:
    """What the cluster has recorded since then, and where it is asked for, its price list. Raises KubeError, and
    ConfigError where nothing records.
    """
    from kgpu.base.advice import Advice, Severity
    from kgpu.usage.asked_prices import cluster_list
    from kgpu.usage.history import recorded_in

    async with usage_agents(kubeconfig, kube_context) as agents:
        recording = await recorded_in(agents, since=needed_since(since))
        listed, problem = await cluster_list(agents) if priced else (None, "")
        if problem:
            recording.advice.append(Advice(what=problem, severity=Severity.WARNING, reason="PricesNotRead").printable())
        return recording, listed


async def cluster_prices(kubeconfig: str) -> tuple[PriceList | None, str]:
    """The cluster's price list, None for kgpu's own; and why that is not the one that is written, "" where it is.
    Raises KubeError.
    """
    from kgpu.usage.asked_prices import cluster_list

    async with usage_agents(kubeconfig, "") as agents:
        return await cluster_list(agents)


def needed_since(since: str) -> int:
    """From when lines are needed, in seconds since 1970: those of two hours before tell what counters began with."""
    import time

    from kgpu.usage.window import moment_us

    return max(0, moment_us(since, "--since", int(time.time() * 1e6)) // 10**6 - 7200) if since else 0


def window(times: Timeline, since: str, until: str) -> tuple[int | None, int | None]:
    """Microseconds since 1970, None for what was not said. Raises ConfigError."""
    from kgpu.usage.plan import last_moment
    from kgpu.usage.window import check_window, moment_us

    last = last_moment(times)
    begin = moment_us(since, "--since", last) if since else None
    end = moment_us(until, "--until", last) if until else None
    check_window(begin, end)
    return begin, end
