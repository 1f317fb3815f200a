"""The history of a cluster: what agents have written, fetched every minute into one store, and served from there.

Promises: a line is stored once, with the cursor after it in the same transaction, so that a restart loses nothing
while agents still have it; an agent that answers nonsense costs only its own lines. After ``DETAIL_DAYS`` an hour's
lines become one.
"""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Callable, Sequence
from typing import Final

from kgpu.base.advice import Advice, AdviceSink, Severity
from kgpu.base.errors import ConfigError, HostError
from kgpu.base.http import AwaitedPage, Page, Request, Response
from kgpu.base.service import Complaint
from kgpu.base.threads import beside
from kgpu.formats.usage import RecordedGpu, RecordedNode
from kgpu.formats.usage_now import LINES_PATH, VERSION, LinesPage, decode_page, encode_page
from kgpu.usage.agents import UsageAgents, UsagePod
from kgpu.usage.hour_prices import HourPrices
from kgpu.usage.recording import UsageRecording
from kgpu.usage.run import LINES_TYPE
from kgpu.usage.store import DAY_SECONDS, UsageStore
from kgpu.usage.wasted import WASTED_KEY, WastedTally, last_key, metric_lines

log = logging.getLogger(__name__)

DETAIL_DAYS: Final = 14
MOST_PAGES: Final = 50
"""Of one agent in a round: the rest comes in the next one."""
_LABELS: Final = "labels"
_KEY: Final = re.compile(r"[ -~]{1,317}", re.ASCII)


class UsageHistory:
    """``round`` is called with the agents that are there."""

    def __init__(
        self, agents: UsageAgents, store: UsageStore, *, report: AdviceSink, now: Callable[[], float] = time.time,
        prices: HourPrices | None = None,
    ) -> None:  # fmt: skip
        self._agents = agents
        self._store = store
        self._disk = Complaint(report)
        self._now = now
        self._labels: tuple[str, ...] = ()
        self._wasted = WastedTally(prices or HourPrices())

    async def round(self, found: Sequence[UsagePod]) -> None:
        """Fetch what is new of each agent, and roll up what is old."""
        try:
            self._labels = _words(await beside(self._store.kept, _LABELS))
            self._wasted.begin(await beside(self._store.kept, WASTED_KEY), self._now())
            self._wasted.forget({agent.node for agent in found})
            for agent in found:
                await self._fetch(agent)
            await beside(self._store.roll_up, int(self._now()) - DETAIL_DAYS * DAY_SECONDS)
        except HostError as error:
            self._disk.tell(Advice.from_error(error, reason="UsageNotSaved"))
        else:
            self._disk.over()

    async def _fetch(self, agent: UsagePod) -> None:
        key = f"cursor:{agent.node}"
        cursor = (await beside(self._store.kept, key) or b"").decode("utf-8", "replace")
        if not self._wasted.knows(agent.node):
            self._wasted.recall(agent.node, await beside(self._store.kept, last_key(agent.node)))
        for _ in range(MOST_PAGES):
            answer = await self._agents.ask(
                agent, LINES_PATH, {"after": cursor},
                lambda body: decode_page(body, place=f"the agent of {agent.node}", node=agent.node),
            )  # fmt: skip
            if answer is None:
                return
            page, lines = answer
            if page.cursor == cursor:
                return
            cursor = page.cursor
            self._labels = tuple(sorted({*self._labels, *filter(_KEY.fullmatch, page.labels)}))[:64]
            kept = [(key, cursor.encode()), (_LABELS, "\n".join(self._labels).encode())]
            kept += await beside(self._wasted.take, agent.node, lines)
            await beside(self._store.save, lines, kept=kept)
            self._wasted.kept()
            if not page.more:
                return

    def metrics(self) -> Sequence[str]:
        """Lines of what was wasted since the history began."""
        counters = self._wasted.counters
        return () if counters is None else metric_lines(counters)

    def pages(self) -> dict[str, Page]:
        """What is served."""
        return {LINES_PATH: AwaitedPage(self._lines)}

    async def _lines(self, request: Request) -> Response:
        try:
            labels = _words(await beside(self._store.kept, _LABELS))
            page = await beside(self._store.page, request.value("after"), since=request.number("since", 0))
        except HostError as error:
            return Response(503, f"{error.what}\n")
        first = LinesPage(version=VERSION, cursor=page.cursor, more=page.more, labels=labels)
        return Response(200, encode_page(first, page.lines), LINES_TYPE)


def _words(kept: bytes | None) -> tuple[str, ...]:
    return tuple(word for word in (kept or b"").decode("utf-8", "replace").split("\n") if word)


async def recorded_in(agents: UsageAgents, *, since: int = 0) -> UsageRecording:
    """What a cluster has recorded since then (seconds since 1970), by its history where there is one, else by its
    agents. Who did not answer is told in the recording's advice. Raises KubeError, and ConfigError where nothing
    records.
    """
    history = await agents.history()
    pods = history or await agents.find()
    found = UsageRecording()
    for pod in pods:
        await _read_all(agents, pod, found, since=since, of_all=bool(history))
    for node, why in sorted(agents.silent.items()):
        found.advice.append(
            Advice(
                subject=node, what=f"what {node} has recorded is missing", why=why, severity=Severity.WARNING,
                reason="UsageNotRead", remedy="kgpu status; see that the agent there runs the role usage",
            ).printable()
        )  # fmt: skip
    if not found.devices:
        agents.check_rights()
        raise _nothing_recorded(agents, any_answer=len(pods) > len(agents.silent))
    return found


def _nothing_recorded(agents: UsageAgents, *, any_answer: bool) -> ConfigError:
    if any_answer:
        return ConfigError(
            "nothing is recorded yet of what GPUs are used for",
            "nodes with GPUs, and seven minutes for the first lines: agents write them every five",
            "ask again in a few minutes; what GPUs do now is shown by `kgpu top`, what is idle by `kgpu idle`",
        )
    why = "; ".join(f"{node}: {said}" for node, said in sorted(agents.silent.items())[:3])
    return ConfigError(
        "nothing has recorded what GPUs are used for" + (f" ({why})" if why else ""),
        f"agents with the role usage in namespace {agents.namespace}",
        "set the Helm value usage.enabled to true, and wait a few minutes; or give a recording by --from",
    )


async def _read_all(agents: UsageAgents, pod: UsagePod, found: UsageRecording, *, since: int, of_all: bool) -> None:
    """All lines that a pod has. ``of_all``: it may speak for all nodes."""
    cursor, more = "", True
    while more:
        answer = await agents.ask(
            pod, LINES_PATH, {"after": cursor, "since": str(since)},
            lambda body: decode_page(body, place=f"the agent of {pod.node}", node="" if of_all else pod.node),
        )  # fmt: skip
        if answer is None:
            return
        page, lines = answer
        found.nodes += [line for line in lines if isinstance(line, RecordedNode)]
        found.devices += [line for line in lines if isinstance(line, RecordedGpu)]
        found.labels = tuple(dict.fromkeys((*found.labels, *page.labels)))
        more, cursor = page.more and page.cursor != cursor, page.cursor
