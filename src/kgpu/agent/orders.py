"""The orders for this node: the operator's document and this Node's labels, followed through the API server.

Promises: if a document can't be read, the last good one stays in force and the problem is reported; if the API server
is unavailable at the start, the last orders are read from a file; neither a missing ConfigMap nor a missing Node
withdraws orders. Only labels, uid and kgpu's own annotations of the Node are kept in memory.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Final

from kgpu.agent.remembered_config import PATIENCE
from kgpu.agent.role_decisions import labels_that_count, string_map
from kgpu.base.advice import Advice, AdviceSink, Severity
from kgpu.base.change_notifier import ChangeNotifier
from kgpu.base.clock import Clock, SystemClock
from kgpu.base.errors import ConfigError, UserError
from kgpu.base.files import write_atomic
from kgpu.base.service import Complaint
from kgpu.base.threads import beside
from kgpu.base.waits import first_of
from kgpu.formats import names
from kgpu.formats.agent_config import AgentConfig, decode
from kgpu.formats.agent_report import is_report
from kgpu.kube.informer import Informer, Scope
from kgpu.kube.port import CONFIG_MAPS, NODES, KubeApi, Object, Selector

log = logging.getLogger(__name__)

MEMORY: Final = names.AGENT_CONFIG_KEY
OPERATION: Final = (names.OPERATION_ANNOTATION, names.OPERATION_REPORT_ANNOTATION)


class Orders:
    """Follow with ``run``; read ``config`` and ``labels``; wait with ``changed``."""

    def __init__(
        self,
        api: KubeApi,
        *,
        node: str,
        namespace: str,
        state_dir: Path,
        decide: AdviceSink,
        clock: Clock | None = None,
        patience: float = PATIENCE,
        whole: bool = False,
    ) -> None:
        """``whole``: an agent of all roles, which does not obey a document for pods of their own (``AgentConfig``)."""
        self._api = api
        self._clock = clock or SystemClock()
        self._decide = decide
        self._patience = patience
        self._whole = whole
        self._memory = state_dir / MEMORY
        self._name = node
        self._key = (namespace, names.AGENT_CONFIG_MAP)
        self._where = f"ConfigMap {namespace}/{names.AGENT_CONFIG_MAP}"
        self.node = Informer(api, Scope(NODES, selector=Selector.named(node)), clock=clock, project=_node_part)
        self._map = Informer(api, Scope(CONFIG_MAPS, namespace, Selector.named(names.AGENT_CONFIG_MAP)), clock=clock)
        self._text = ""
        self._seen = ""
        self._news = ChangeNotifier()
        self._remember = True
        self._removing = False
        self._remember_again = asyncio.Event()
        self._writing = asyncio.Lock()
        self._recalled = False
        self.config: AgentConfig | None = None
        """The document in force, None while there has never been one."""
        self.labels: Mapping[str, str] = {}
        self.uid = ""
        """The Node's uid, "" while it is not known."""
        self.reports: Mapping[str, str] = {}
        """The reports on the Node by annotation, from this process and others; also the order for an operation on its
        GPUs, and the answer to it.
        """
        self.problem: UserError | None = None
        self._complaint = Complaint(decide)
        """Why the document in force may not be the intended one."""

    @property
    def error(self) -> UserError | None:
        """Why what is known may be out of date, or not what is intended."""
        return self.node.error or self._map.error or self.problem

    @property
    def revision(self) -> int:
        """Grows with every change of the attributes."""
        return self._news.revision

    async def changed(self, after: int) -> int:
        """Wait until ``revision`` differs from ``after``; returns it."""
        return await self._news.changed(after)

    async def lost(self, labels: Mapping[str, str]) -> None:
        """Wait until the Node has had all of these labels and then lost or changed one of them."""
        for wanted in (True, False):
            revision = self._news.revision
            while (labels.items() <= self.labels.items()) is not wanted:
                revision = await self.changed(revision)

    async def run(self) -> None:
        """Follow until cancelled."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self.node.run())
            group.create_task(self._map.run())
            group.create_task(self._follow())

    async def look_again(self, seconds: float) -> None:
        """Read the document once more, for at most ``seconds``: a watch may lag behind. Raises no UserError."""
        namespace, name = self._key
        with contextlib.suppress(UserError, TimeoutError):
            async with asyncio.timeout(seconds):
                listing = await self._api.list(CONFIG_MAPS, namespace=namespace, selector=Selector.named(name))
            if listing.items:
                self._take_config(listing.items[0])
                self._news.notify()

    @contextlib.asynccontextmanager
    async def forgotten(self) -> AsyncIterator[None]:
        """Remove the remembered orders, as the agent leaves this node; none are written again until ``keep``."""
        self._remember, self._removing = False, True
        try:
            async with self._writing:  # a write that is under way is removed, too
                self._seen = ""
                with contextlib.suppress(OSError):
                    await beside(self._memory.unlink, missing_ok=True)
            yield
        finally:
            self._removing = False

    def keep(self) -> None:
        """Remember orders again, beginning with the present ones; not while they are being removed."""
        if not (self._remember or self._removing):
            self._remember = True
            self._remember_again.set()

    async def _follow(self) -> None:
        synced = asyncio.gather(self.node.synced.wait(), self._map.synced.wait())
        if not await first_of(synced, self._clock.sleep(self._patience)):
            self._take_node()  # if that much is known, it may have an order for an operation
            if await self._recall():
                log.warning("the API server can't be read now; going on with the last orders")
                self._news.notify()
            await asyncio.gather(self.node.synced.wait(), self._map.synced.wait())
        while True:
            revisions = (self.node.revision, self._map.revision)
            self._remember_again.clear()
            await self._take()
            await first_of(
                self.node.changed(revisions[0]), self._map.changed(revisions[1]), self._remember_again.wait()
            )

    def _take_node(self) -> None:
        node = self.node.objects.get(("", self._name))
        if node is not None:
            metadata = node["metadata"]
            self.labels = string_map(metadata.get("labels"))
            self.uid = str(metadata.get("uid") or "")
            self.reports = string_map(metadata.get("annotations"))

    async def _take(self) -> None:
        self._take_node()
        self._take_config(self._map.objects.get(self._key))
        if (self.config is None or not self.uid) and await self._recall():
            log.warning("the orders or this Node are not in the cluster now; going on with the last ones")
        # An order to leave is never remembered: it holds only while the operator says so.
        if self.config is not None and self.uid and not self.config.leaving:
            async with self._writing:
                await self._write(self.config)
        self._news.notify()

    def _take_config(self, config_map: Object | None) -> None:
        text = None if config_map is None else string_map(config_map.get("data")).get(names.AGENT_CONFIG_KEY)
        try:
            if text is None:
                raise ConfigError(
                    f"{self._where} has no key {names.AGENT_CONFIG_KEY}"
                    if config_map
                    else f"{self._where} does not exist",
                    "the document that the operator writes",
                    "see that the operator runs; it writes it",
                )
            if text != self._text and self._obeys(config := decode(text, source=self._where)):
                self.config, self._text = config, text
                log.info("configuration of ClusterPolicy generation %d", config.generation)
            self.problem = None
            self._complaint.over()
        except ConfigError as error:
            self.problem = error
            # Before the operator has ever written it, and after an uninstall, there is nothing wrong.
            expected = config_map is None and (self.config is None or self.config.leaving)
            severity = Severity.INFO if expected else Severity.ERROR
            self._complaint.tell(
                Advice.from_error(error, subject=self._where, reason="AgentConfigRefused", severity=severity)
            )

    def _obeys(self, config: AgentConfig) -> bool:
        return not (self._whole and config.own_pods and not config.leaving)

    async def _recall(self) -> bool:
        """Fill in what is not known from the remembered orders, once; True if there were any."""
        if self._recalled:
            return False
        self._recalled = True
        try:
            memory = json.loads(await beside(self._memory.read_text, encoding="utf-8"))
            text, labels = memory["config"], string_map(memory["labels"])
            config = decode(text, source=str(self._memory))
        except (OSError, ValueError, KeyError, TypeError, RecursionError, ConfigError):
            return False
        if self.config is None and self._obeys(config):
            self.config, self._text = config, text
        if not self.uid:
            self.labels = labels
        return True

    async def _write(self, config: AgentConfig) -> None:
        document = json.dumps({"config": self._text, "labels": labels_that_count(config, self.labels)})
        if self._remember and document != self._seen:
            self._seen = document
            with contextlib.suppress(OSError):  # a folder that can't be written costs only the memory
                await beside(write_atomic, self._memory, document, mode=0o600)


def _node_part(node: Object) -> Object:
    """The parts of a Node that matter here; its images and conditions change all the time."""
    metadata = node["metadata"]
    kept = {key: metadata[key] for key in ("name", "uid", "resourceVersion", "labels") if key in metadata}
    annotations = string_map(metadata.get("annotations"))
    reports = {key: text for key, text in annotations.items() if is_report(key) or key in OPERATION}
    return {"metadata": kept | ({"annotations": reports} if reports else {})}
