"""For clients: what the Deployment ``kgpu-usage`` alone knows of workloads, and how old that is.

What is not known says why; nobody is called safe or doomed by silence.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass, field
from typing import Final

from kgpu.base.errors import KubeError
from kgpu.base.printable import one_line
from kgpu.base.times import stamp_of
from kgpu.formats.usage_reclaim import RECLAIM_PATH, ReclaimSaid, WorkloadSaid, decode
from kgpu.usage.agents import UsageAgents

FRESH: Final = 600.0
"""Seconds for which an answer counts: the process looks every minute."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessWord:
    """What the process said at its last look, in seconds since 1970; without it ``why`` there is none."""

    why: str = "kgpu-usage was not asked"
    at: float | None = None
    workloads: dict[tuple[str, str, str], WorkloadSaid] = field(default_factory=dict)

    @property
    def known(self) -> bool:
        """Whether it has said anything."""
        return self.at is not None

    def of(self, namespace: str, kind: str, name: str) -> WorkloadSaid | None:
        """What it said of a workload, None for nothing."""
        return self.workloads.get((namespace, kind, name))


async def process_word(agents: UsageAgents, now: float) -> ProcessWord:
    """Ask each pod of the Deployment; the newest look counts. ``now`` is in seconds since 1970."""
    try:
        pods = await agents.histories()
    except KubeError as error:
        return ProcessWord(why=f"kgpu-usage can't be asked: {error.what}")
    answers: list[ReclaimSaid] = []
    why = "" if pods else "no kgpu-usage runs (usage.reclaim.enabled of the chart)"
    for pod in pods:
        place = f"{pod.namespace}/{pod.pod}"
        said: ReclaimSaid | None = await agents.ask(pod, RECLAIM_PATH, {}, functools.partial(decode, place=place))
        if said is not None:
            answers.append(said)
        else:
            why = f"kgpu-usage can't be asked: {agents.silent.pop(pod.node, 'no answer')}"
    looked = [one for one in answers if one.at is not None]
    if not looked:
        problem = next((one.problem for one in answers if one.problem), "")
        return ProcessWord(why=why or f"kgpu-usage has not looked yet{problem and ': ' + one_line(problem, 200)}")
    newest = max(looked, key=lambda one: one.at or 0.0)
    assert newest.at is not None, "it has looked"
    if now - newest.at > FRESH:
        return ProcessWord(why=f"kgpu-usage looked last at {stamp_of(newest.at)}")
    return ProcessWord(
        why="", at=newest.at, workloads={(one.namespace, one.kind, one.name): one for one in newest.workloads}
    )
