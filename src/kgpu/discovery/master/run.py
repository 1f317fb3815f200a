"""The controller: follows NodeFeatures, NodeFeatureRules and Nodes, and writes what differs; driven by changes.

Level-triggered: each pass compares every Node with what it should have, and a node is evaluated anew only when its
NodeFeatures or the rules have changed. Nothing is written before all three kinds have been read, nor while another
master works in this cluster or is not yet known not to. NodeFeatures of nodes that are gone are deleted.
``kgpu.manager`` hosts it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Coroutine, Mapping, Sequence
from typing import Any, Final

from kgpu.base.backoff import Backoff, BackoffPolicy
from kgpu.base.clock import Clock, SystemClock
from kgpu.base.errors import KubeError
from kgpu.base.problems import describe
from kgpu.base.service import end, first_end
from kgpu.base.waits import first_of
from kgpu.discovery.master.model import (
    PART,
    MasterSettings,
    StoredFeature,
    StoredRules,
    TrackedNode,
    feature_of,
    node_of,
    reduced,
    rules_of,
)
from kgpu.discovery.master.plan import NodeVerdict, change, evaluate, hand_over
from kgpu.discovery.master.problems import problems
from kgpu.discovery.master.sharing import FeatureShare
from kgpu.discovery.master.tables import with_built_in
from kgpu.discovery.master.writing import ChangeWriter, ProblemTeller, install, remove
from kgpu.kube.informer import Informer, ObjectCopy, Scope
from kgpu.kube.kinds import NODE_FEATURE_RULES
from kgpu.kube.leader_election import LostLeadError
from kgpu.kube.port import NODE_FEATURES, Change, KubeApi, Object
from kgpu.kube.shared_informer import SharedInformer

log = logging.getLogger(__name__)

GATHER: Final = 0.05  # seconds in which changes are gathered before a pass
LOOK: Final = 5.0  # seconds between looks whether another master works
YIELD: Final = 10  # nodes that are evaluated before other work of this process has its turn
_PAUSE: Final = BackoffPolicy(first=0.2, cap=30.0)


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
        self._nodes = nodes.view(lambda obj: reduced(obj, node_of(obj)))
        share = FeatureShare()
        self._features = Informer(
            api, Scope(NODE_FEATURES), clock=clock, backoff=Backoff(_PAUSE),
            project=lambda obj: reduced(obj, feature_of(obj, settings.namespace, share)),
            on_change=self._feature_changed,
        )  # fmt: skip
        self._rules = Informer(
            api, Scope(NODE_FEATURE_RULES), clock=clock, backoff=Backoff(_PAUSE),
            project=lambda obj: reduced(obj, rules_of(obj)),
        )  # fmt: skip
        self._copies: tuple[ObjectCopy, ...] = (self._nodes, self._features, self._rules)
        self._deleted: set[str] = set()
        """Nodes of which a NodeFeature was seen to go: that they have none is known."""
        self._verdicts: dict[str, tuple[object, NodeVerdict]] = {}
        self._problem = ""
        self._state = "waits"

    async def watch(self) -> None:
        """Follow the cluster until cancelled."""
        tasks = [asyncio.create_task(copy.run()) for copy in (self._nodes, self._features, self._rules)]
        try:
            await first_end(tasks)
        finally:
            await end(*tasks)

    def missing(self) -> Collection[str]:
        """Empty: whatever can't be read here keeps nothing else from working."""
        return ()

    def term(self, api: KubeApi) -> Sequence[Coroutine[Any, Any, None]]:
        """Keep Nodes as rules say."""
        news = asyncio.Event()
        return self._loop(api, news), *(_follow(copy, news) for copy in self._copies)

    def ended(self) -> None:
        """The term is over: what is known of Nodes stays."""

    def failed(self, error: Exception) -> None:
        """The work died of a defect."""
        self._problem = describe(error)

    def metrics(self) -> str:
        """Empty: there are no metrics."""
        return ""

    def status(self) -> Mapping[str, object]:
        """What it does, and what went wrong, for the status page."""
        return {"feature_rules": {"state": self._state, "nodes": len(self._verdicts), "problem": self._problem}}

    async def _loop(self, api: KubeApi, news: asyncio.Event) -> None:
        backoff, teller, writer = Backoff(_PAUSE), ProblemTeller(api), ChangeWriter(api, self._nodes.learn)
        installed = False
        while True:
            try:
                if not installed and self._other() is False:
                    await install(api)
                    installed = True
                await self._pass(api, writer, teller)
                backoff.reset()
                self._problem = ""
                await first_of(news.wait(), self._clock.sleep(LOOK))
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
        other = self._other()
        nodes: dict[str, TrackedNode] = {name: obj[PART] for (_, name), obj in self._nodes.objects.items()}
        features: list[StoredFeature] = [obj[PART] for obj in self._features.objects.values()]
        if other:
            self._says("stands back: another node feature discovery's master works in this cluster")
            await writer.write([hand_over(node) for node in nodes.values() if node.marked])
            await remove(api, [one for one in features if one.ours])  # the other one would go on using them
            return
        read = (self._nodes.synced, self._features.synced, self._rules.synced)
        if other is None or not all(synced.is_set() for synced in read):
            self._says("waits until it has read Nodes, NodeFeatures, rules, and which other programs work here")
            return
        self._says("works")
        rules: list[StoredRules] = [obj[PART] for obj in self._rules.objects.values()]
        of_node: dict[str, list[StoredFeature]] = {}
        for one in features:
            if one.used:
                of_node.setdefault(one.node, []).append(one)
        await self._evaluate(nodes, of_node, rules)
        changes = []
        for name, node in nodes.items():
            known = name in of_node or name in self._deleted
            changes.append(change(node, self._verdicts[name][1].outputs, remove=known))
        try:
            await writer.write([one for one in changes if one.body or one.status])
        finally:
            verdicts = {name: verdict for name, (_, verdict) in self._verdicts.items()}
            await teller.tell(problems(rules, verdicts, features))
        await remove(api, [one for one in features if one.used and one.node and one.node not in nodes])

    async def _evaluate(
        self, nodes: Mapping[str, TrackedNode], of_node: Mapping[str, list[StoredFeature]], rules: list[StoredRules]
    ) -> None:
        sources = with_built_in(one.source for one in rules)
        version = tuple(sorted((one.source.name, one.uid, one.version) for one in rules))
        self._verdicts = {name: known for name, known in self._verdicts.items() if name in nodes}
        done = 0
        for name in nodes:
            found = of_node.get(name, [])
            seen = version, tuple(sorted((one.name, one.uid, one.version) for one in found))
            if name in self._verdicts and self._verdicts[name][0] == seen:
                continue
            self._verdicts[name] = seen, evaluate(found, sources, self._settings.limits)
            done += 1
            if done % YIELD == 0:
                await asyncio.sleep(0)

    def _feature_changed(self, happened: Change, obj: Object) -> None:
        if happened is Change.DELETED:
            self._deleted.add(obj[PART].node)

    def _says(self, state: str) -> None:
        if state != self._state:
            log.info("rules of node features: kgpu %s", state)
        self._state = state


async def _follow(copy: ObjectCopy, news: asyncio.Event) -> None:
    revision = copy.revision
    while True:
        revision = await copy.changed(revision)
        news.set()
