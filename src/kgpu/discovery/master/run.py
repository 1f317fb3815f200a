"""The controller: follows NodeFeatures, their rules and groups, and Nodes, and writes what differs; driven by changes.

Level-triggered: each pass compares every Node with what it should have, and a node is evaluated anew only when its
NodeFeatures or the rules have changed. Nothing is written before all kinds have been read, nor while another master
works in this cluster or is not yet known not to. NodeFeatures of nodes that are gone are deleted.
``kgpu.manager`` hosts it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Coroutine, Mapping, Sequence
from typing import Any, Final

from kgpu.base.backoff import Backoff
from kgpu.base.clock import Clock, SystemClock
from kgpu.base.errors import KubeError
from kgpu.base.problems import describe
from kgpu.base.threads import beside
from kgpu.base.waits import first_of
from kgpu.discovery.master.following import PAUSE, ClusterCopy
from kgpu.discovery.master.groups import PACE, GroupKeeper
from kgpu.discovery.master.metrics import GROUPS, MasterFigures
from kgpu.discovery.master.model import MasterSettings, StoredFeature, StoredRules, TrackedNode
from kgpu.discovery.master.plan import NodeChange, NodeVerdict, change, evaluate, hand_over, take_back, without_others
from kgpu.discovery.master.problems import problems
from kgpu.discovery.master.tables import with_built_in
from kgpu.discovery.master.writing import ChangeWriter, ProblemTeller, collect, install, refusal, remove
from kgpu.kube.informer import ObjectCopy
from kgpu.kube.leader_election import LostLeadError
from kgpu.kube.port import KubeApi, KubeRefusedError
from kgpu.kube.shared_informer import SharedInformer

log = logging.getLogger(__name__)

GATHER: Final = 0.05  # seconds in which changes are gathered before a pass
LOOK: Final = 5.0  # seconds between looks whether another master works
WORKS: Final = "works"
BATCH: Final = 50  # Nodes that are written while the next are evaluated


class FeatureRulesController:
    """As a controller of ``kgpu.manager``: ``watch`` runs always, ``term`` while this process leads."""

    name = "feature rules"

    def __init__(
        self, api: KubeApi, settings: MasterSettings, *, nodes: SharedInformer, other: Callable[[], bool | None],
        clock: Clock | None = None,
    ) -> None:  # fmt: skip
        """``other`` says whether another master works in this cluster, None while that is not known."""
        self._settings = settings
        self._other = other
        self._clock = clock or SystemClock()
        self._cluster = ClusterCopy(api, settings, nodes, clock)
        self.figures = MasterFigures()
        self._groups = GroupKeeper(settings.namespace, self._clock, lambda: self.figures.count(GROUPS))
        self._verdicts: dict[str, tuple[object, NodeVerdict]] = {}
        self._problem = ""
        self._state = "waits"

    async def watch(self) -> None:
        """Follow the cluster until cancelled."""
        await self._cluster.watch()

    def missing(self) -> Collection[str]:
        """Empty: whatever can't be read here keeps nothing else from working."""
        return ()

    def term(self, api: KubeApi) -> Sequence[Coroutine[Any, Any, None]]:
        """Keep Nodes as rules say."""
        news = asyncio.Event()
        return self._loop(api, news), *(_follow(copy, news) for copy in self._cluster.copies)

    def ended(self) -> None:
        """The term is over: what is known of Nodes stays."""

    def failed(self, error: Exception) -> None:
        """The work died of a defect."""
        self._problem = describe(error)

    def metrics(self) -> str:
        """Those of node feature discovery's master and collector."""
        return self.figures.text()

    def status(self) -> Mapping[str, object]:
        """What it does, and what went wrong, for the status page."""
        return {"feature_rules": {"state": self._state, "nodes": len(self._verdicts), "problem": self._problem}}

    async def _loop(self, api: KubeApi, news: asyncio.Event) -> None:
        backoff, teller = Backoff(PAUSE), ProblemTeller(api)
        writer = ChangeWriter(api, self._cluster.learn, self.figures.count)
        installed = False
        while True:
            try:
                if not installed and self._other() is False:
                    await install(api)
                    installed = True
                await self._pass(api, writer, teller)
                backoff.reset()
                self._problem = ""
                await first_of(news.wait(), self._clock.sleep(PACE if self._groups.put_off else LOOK))
            except LostLeadError:
                raise
            except KubeError as error:
                if error.one_line() != self._problem:
                    log.warning("%s", error.one_line())
                self._problem = error.one_line()
                await self._clock.sleep(backoff.next_delay())
            await self._clock.sleep(GATHER)
            news.clear()

    async def _pass(self, api: KubeApi, writer: ChangeWriter, teller: ProblemTeller) -> None:
        other, cluster = self._other(), self._cluster
        nodes, features = cluster.nodes(), cluster.features()
        if other:
            self._says("stands back: another node feature discovery's master works in this cluster")
            await writer.write([hand_over(node) for node in nodes.values() if node.marked])
            await remove(api, [one for one in features if one.ours])  # the other one would go on using them
            return
        if other is None or not cluster.read:
            self._says("waits until it has read Nodes, NodeFeatures, rules, and which other programs work here")
            return
        self._says(WORKS)
        rules, groups = cluster.rules(), cluster.groups()
        of_node: dict[str, list[StoredFeature]] = {}
        for one in features:
            if one.used:
                of_node.setdefault(one.node, []).append(one)
        verdicts: dict[str, NodeVerdict] = {}
        gone = [one for one in features if one.used and one.node and one.node not in nodes]
        refused: KubeRefusedError | None = None
        try:
            jobs: tuple[Callable[[], Awaitable[None] | None], ...] = (
                lambda: writer.write_all(self._changes(nodes, of_node, rules, verdicts)),
                lambda: self._groups.keep(api, groups, nodes, of_node, cluster.was_seen),
                lambda: collect(api, gone, self.figures.count),
            )
            for job in jobs:
                refused = await refusal(job()) or refused  # which keeps nothing else from its turn
        finally:
            failures = [(group, self._groups.failures(group)) for group in groups]
            await teller.tell(problems(rules, verdicts, features, failures))
        cluster.forget_seen(nodes)
        if refused is not None:
            raise refused

    async def _changes(
        self, nodes: Mapping[str, TrackedNode], of_node: Mapping[str, list[StoredFeature]], rules: list[StoredRules],
        verdicts: dict[str, NodeVerdict],
    ) -> AsyncIterator[list[NodeChange]]:  # fmt: skip
        """What is to be written, some Nodes at a time, with what each gets in ``verdicts``."""
        sources = with_built_in(one.source for one in rules)
        version = tuple(sorted((one.source.name, one.uid, one.version) for one in rules))
        self._verdicts = {name: known for name, known in self._verdicts.items() if name in nodes}
        self.figures.keep(source.name for source in sources)
        changes: list[NodeChange] = []
        for name, node in nodes.items():
            found = of_node.get(name, [])
            seen = version, tuple(sorted((one.namespace, one.name, one.uid, one.version) for one in found))
            if name not in self._verdicts or self._verdicts[name][0] != seen:
                # In a thread: rules may take seconds of a node, and this loop also renews the lease.
                verdict = await beside(evaluate, found, sources, self._settings, self.figures.timed)
                self._verdicts[name] = seen, verdict
                self.figures.evaluated(verdict.outputs.rejected, len(verdict.failures))
            verdicts[name] = self._settled(node)
            differing = self._change(node, verdicts[name])
            if differing.body or differing.status:
                changes.append(differing)
            if len(changes) >= BATCH:
                yield changes
                changes = []
        yield changes

    def _settled(self, node: TrackedNode) -> NodeVerdict:
        """The node's verdict, with what the Node has from others left to them where the settings say so."""
        verdict = self._verdicts[node.name][1]
        if self._settings.overwrite:
            return verdict
        outputs = without_others(node, verdict.outputs, self._settings.instance)
        return NodeVerdict(outputs=outputs, failures=verdict.failures)

    def _change(self, node: TrackedNode, verdict: NodeVerdict) -> NodeChange:
        instance = self._settings.instance
        if node.marked and node.instance != instance:
            return take_back(node, node.instance)  # kgpu has kept other lists; the next pass begins with its own
        return change(node, verdict.outputs, remove=self._cluster.was_seen(node.name), instance=instance)

    def _says(self, state: str) -> None:
        if state != self._state:
            log.info("rules of node features: kgpu %s", state)
        self._state = state


async def _follow(copy: ObjectCopy, news: asyncio.Event) -> None:
    revision = copy.revision
    while True:
        revision = await copy.changed(revision)
        news.set()
