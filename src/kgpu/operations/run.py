"""The engine as a controller of ``kgpu.manager``: it always follows operations and nodes, and acts while it leads.

Promises: what happens next is on record before it happens; an operation that is stuck delays no other; a write whose
answer was lost is looked up before anything else begins, so that the budget holds; a cluster without the kind
NodeOperation is not an error, and nodes that are still held in it are given back.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Collection, Coroutine, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from kgpu.base.clock import Clock, SystemClock
from kgpu.base.problems import describe
from kgpu.kube.port import KubeApi
from kgpu.kube.shared_informer import SharedInformer
from kgpu.operations.collecting import CollectingProcess, EvidenceCollector
from kgpu.operations.config import MigPolicy, OperationBudget, RemediationPolicy, Strongest
from kgpu.operations.metrics import figures
from kgpu.operations.term import Term
from kgpu.operations.watching import OperationsWatching
from kgpu.operations.writing import ActSettings

if TYPE_CHECKING:
    from kgpu.notifications.notifier import Notifier


class OperationsController:
    """``watch`` always runs, ``term`` while this process leads."""

    name = "operations"

    def __init__(
        self, api: KubeApi, budget: OperationBudget, *, own_pod: tuple[str, str] = ("", ""), clock: Clock | None = None,
        acts: ActSettings | None = None, remediation: RemediationPolicy | None = None,
        now: Callable[[], float] = time.time, nodes: SharedInformer | None = None,
        notifier: Notifier | None = None, collector: EvidenceCollector | None = None, mig: MigPolicy | None = None,
    ) -> None:  # fmt: skip
        """``own_pod`` is this process's pod as (namespace, name), which is not evicted; ``notifier`` tells people
        elsewhere; ``collector`` gets what is known of a node, by default in a process of its own.
        """
        self._collector = collector or CollectingProcess()
        self._notifier = notifier
        self.budget = budget
        self._acts = acts or ActSettings()
        self._remediation = remediation or RemediationPolicy(strongest=Strongest.OFF)
        self._mig = mig or MigPolicy()
        self._clock = clock or SystemClock()
        self._now = now
        self._own_pod = own_pod
        self._writes: Counter[str] = Counter()
        self._term: Term | None = None
        self._problem = ""
        self.watching = OperationsWatching(
            api, clock=self._clock, namespace=self._acts.namespace, groups=[group.label for group in budget.groups],
            nodes=nodes,
        )  # fmt: skip

    async def watch(self) -> None:
        """Follow the cluster until cancelled."""
        await self.watching.run()

    def missing(self) -> Collection[str]:
        """What has not been read yet."""
        return self.watching.missing()

    def term(self, api: KubeApi) -> Sequence[Coroutine[Any, Any, None]]:
        """The work of a term: admit operations, take their steps and write Events."""
        notifier = self._notifier
        self._term = term = Term(
            api, self.watching, lambda: self.budget, clock=self._clock, now=self._now, own_pod=self._own_pod,
            acts=self._acts, remediation=self._remediation, count=self._count, collector=self._collector,
            mig=self._mig, notify=notifier.tell if notifier else None,
        )  # fmt: skip
        works = term.loop(), term.tell(), term.look_for_daemon_sets()
        return (*works, notifier.run()) if notifier else works

    def ended(self) -> None:
        """Called when the term is over."""
        self._term = None

    def failed(self, error: Exception) -> None:
        """Called when the work died of a defect."""
        self._problem = describe(error)

    def metrics(self) -> str:
        """The engine's metrics as text."""
        watching = self.watching
        served = not watching.kind_is_absent
        own = figures(
            watching.operations(), watching.unreadable(), self._writes, nodes=watching.nodes().values(),
            now=self._now(), served=served, breaker=bool(watching.breaker),
        )  # fmt: skip
        return own + (self._notifier.metrics() if self._notifier else "")

    def status(self) -> Mapping[str, object]:
        """What the status page shows."""
        term, budget = self._term, self.budget
        return {
            "operations": {
                "kind": "absent" if self.watching.kind_is_absent else "served",
                "begun": [operation.name for operation in self.watching.operations() if operation.begun],
                "maxParallel": budget.max_parallel,
                "maxUnavailable": str(budget.max_unavailable),
                "refused": dict(term.state.errors) if term else {},
                "remediation": str(self._remediation.strongest),
                "breaker": self.watching.breaker,
                "problem": self._problem,
            }
        }

    def _count(self, what: str) -> None:
        self._writes[what] += 1
