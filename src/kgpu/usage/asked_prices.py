"""For clients: the cluster's price list, asked of the Deployment ``kgpu-usage``: all count with the same one."""

from __future__ import annotations

import functools

from kgpu.base.errors import ConfigError, KubeError
from kgpu.base.printable import one_line
from kgpu.formats.usage_prices import PRICES_PATH, PricesSaid, decode
from kgpu.usage.agents import UsageAgents
from kgpu.usage.price_file import PriceList, parse


async def cluster_list(agents: UsageAgents) -> tuple[PriceList | None, str]:
    """The list in force, None for kgpu's own; and why that is not the one that is written, "" where it is."""
    try:
        pods = await agents.history()
    except KubeError as error:
        return None, f"the cluster's price list is not known: {error.what}"
    for pod in pods:
        said: PricesSaid | None = await agents.ask(
            pod, PRICES_PATH, {}, functools.partial(decode, place=f"{pod.namespace}/{pod.pod}")
        )
        if said is None:
            why = agents.silent.pop(pod.node, "no answer")
            return None, f"the cluster's price list is not known, kgpu's own is taken: {why}"
        try:
            found = parse(said.text, source=said.source) if said.text else None
        except ConfigError as error:
            return None, f"the cluster's price list is of another release: {error.what}"
        return found, one_line(said.problem, 1000)
    return None, ""
