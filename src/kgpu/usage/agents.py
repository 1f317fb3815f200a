"""The agents that watch usage: found by the API server, asked over HTTP, directly or through its pod proxy.

Only pods of kgpu's own namespace count: anybody may give a pod an agent's labels. Promises: an agent has a deadline and
a bounded answer; one that hangs, streams for ever or is another program delays nobody and is named in ``silent``.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Final, Protocol, TypeVar

from kgpu.base.errors import UserError
from kgpu.base.plain import mapping, text
from kgpu.base.printable import one_line
from kgpu.formats import names
from kgpu.formats.usage_now import MAX_BYTES, NOW_PATH, UsageNow, decode
from kgpu.kube.port import PODS, KubeApi, KubeRefusedError, Object, PodPages, Selector
from kgpu.kube.wire import WireError
from kgpu.usage.pod_text import PodPort, pod_text

DEADLINE: Final = 10.0
AT_ONCE: Final = 32
APPS: Final = (names.AGENT_DAEMON_SET, names.USAGE_DAEMON_SET)
_FORBIDDEN: Final = 403
T = TypeVar("T")


class AgentsApi(KubeApi, PodPages, Protocol):
    """What is asked of an API server."""


class SilentAgentError(UserError):
    """An agent that does not answer as it should."""


@dataclass(frozen=True, slots=True, order=True)
class UsagePod:
    """A running agent's pod."""

    node: str
    namespace: str
    pod: str
    address: str = ""


class UsageAgents:
    """``direct``: this process runs in a pod, and reaches others by their addresses; else through the API server."""

    def __init__(self, api: AgentsApi, *, namespace: str, direct: bool, deadline: float = DEADLINE) -> None:
        self._api = api
        self.namespace = namespace
        self._direct = direct
        self._deadline = deadline
        self._places = asyncio.Semaphore(AT_ONCE)
        self.silent: dict[str, str] = {}
        """Why nodes have not answered, since they were asked last."""
        self._forbidden: KubeRefusedError | None = None

    async def find(self) -> tuple[UsagePod, ...]:
        """The running agents, one a node. Raises KubeError."""
        found: dict[str, UsagePod] = {}
        for app in reversed(APPS):
            found |= {pod["node"]: _agent(pod) for pod in await self._pods(app)}
        return tuple(sorted(found.values()))

    async def history(self) -> tuple[UsagePod, ...]:
        """The pod that has the history of all nodes, where there is one. Raises KubeError."""
        return (await self.histories())[:1]

    async def histories(self) -> tuple[UsagePod, ...]:
        """All pods of the Deployment, of which one may lead. Raises KubeError."""
        return tuple(sorted(map(_agent, await self._pods(names.USAGE_DEPLOYMENT))))

    async def _pods(self, app: str) -> list[Object]:
        selector = Selector(labels=(("app", app),))
        listing = await self._api.list(PODS, namespace=self.namespace, selector=selector, project=_brief)
        return [pod for pod in listing.items if pod["node"] and pod["runs"]]

    async def all_now(self, agents: Iterable[UsagePod], seconds: float, take: Callable[[UsageNow], None]) -> None:
        """Ask each for what it has seen in the last ``seconds``; ``take`` gets each answer as it comes."""

        async def ask(agent: UsagePod) -> None:
            said = await self.ask(agent, NOW_PATH, {"seconds": f"{seconds:.0f}"}, lambda body: _of(agent, body))
            if said is not None:
                take(said)

        await asyncio.gather(*(ask(agent) for agent in agents))

    async def ask(self, agent: UsagePod, path: str, query: dict[str, str], read: Callable[[str], T]) -> T | None:
        """An agent's page as ``read`` understands it; None, and a reason in ``silent``, where it has none."""
        try:
            async with self._places, asyncio.timeout(self._deadline):
                answer = read(await self._page(agent, path, query))
        except TimeoutError:
            self.silent[agent.node] = f"no answer within {self._deadline:g} s"
        except (UserError, WireError, OSError) as error:
            if isinstance(error, KubeRefusedError) and error.code == _FORBIDDEN and error.reason:
                self._forbidden = error  # by the API server: an agent gives no reason of that form
            self.silent[agent.node] = one_line(error.what if isinstance(error, UserError) else str(error), 200)
        else:
            self.silent.pop(agent.node, None)
            return answer
        return None

    def check_rights(self) -> None:
        """Raises KubeRefusedError where an agent could not be asked for want of the right to get pods/proxy."""
        if self._forbidden is not None:
            raise self._forbidden

    async def _page(self, agent: UsagePod, path: str, query: dict[str, str]) -> str:
        where = PodPort(agent.namespace, agent.pod, agent.address, names.USAGE_PORT)
        return await pod_text(self._api, where, path, direct=self._direct, limit=MAX_BYTES, query=query)


def _of(agent: UsagePod, body: str) -> UsageNow:
    """The answer, which has to be about the agent's own node: one pod can't speak for other nodes."""
    said = decode(body, place=f"the agent of {agent.node}")
    if said.node != agent.node:
        raise SilentAgentError(f"it speaks for node {one_line(said.node, 80)}", agent.node, "see what listens there")
    return said


def _brief(pod: Object) -> Object:
    about, status = mapping(pod.get("metadata")), mapping(pod.get("status"))
    return {
        "metadata": {key: about.get(key) for key in ("name", "namespace", "resourceVersion")},
        "node": text(mapping(pod.get("spec")).get("nodeName")),
        "address": text(status.get("podIP")),
        "runs": text(status.get("phase")) == "Running" and bool(status.get("podIP")),
    }


def _agent(pod: Object) -> UsagePod:
    about = pod["metadata"]
    return UsagePod(pod["node"], text(about["namespace"]), text(about["name"]), pod["address"])
