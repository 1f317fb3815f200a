"""The evidence that one term collects, beside its passes: no operation waits for another's."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection

from kgpu.base.errors import UserError
from kgpu.base.problems import describe
from kgpu.base.service import end
from kgpu.kube.leader_election import LostLeadError
from kgpu.kube.port import KubeApi
from kgpu.operations import bundles
from kgpu.operations.collecting import EvidenceCollector
from kgpu.operations.model import NodeEvidence, Operation

log = logging.getLogger(__name__)


class EvidenceWork:
    """``start`` begins to collect, ``of`` says what came of it, ``close`` ends what still runs."""

    def __init__(
        self, api: KubeApi, collector: EvidenceCollector, *, namespace: str, news: asyncio.Event
    ) -> None:  # fmt: skip
        """``namespace`` is where bundles are kept; ``news`` is set when one is there."""
        self._api = api
        self._collector = collector
        self._namespace = namespace
        self._news = news
        self._tasks: dict[str, asyncio.Task[NodeEvidence]] = {}
        self._one = asyncio.Lock()
        """One process at a time: each needs memory."""

    def start(self, operation: Operation) -> None:
        """Begin to collect what is known of the operation's node, once."""
        if operation.uid not in self._tasks:
            self._tasks[operation.uid] = asyncio.create_task(self._collect(operation))

    def of(self, uid: str) -> NodeEvidence | None:
        """What came of it; None if it was not begun in this term. Raises LostLeadError."""
        task = self._tasks.get(uid)
        if task is None:
            return None
        return task.result() if task.done() else NodeEvidence()

    async def forget(self, uids: Collection[str]) -> None:
        """End and forget the work for all operations but these."""
        gone = [uid for uid in self._tasks if uid not in uids]
        await end(*(self._tasks.pop(uid) for uid in gone))

    async def close(self) -> None:
        """End what still runs."""
        await self.forget(())

    async def _collect(self, operation: Operation) -> NodeEvidence:
        try:
            known = await bundles.kept(self._api, operation, self._namespace)  # of a leader that was killed
            if known is not None:
                return NodeEvidence(kept=known)
            async with self._one:
                data = await self._collector.collect(operation.node)
            return NodeEvidence(kept=await bundles.keep(self._api, operation, data, self._namespace))
        except LostLeadError:
            raise
        except UserError as error:
            log.warning("%s: no evidence of %s is kept: %s", operation.name, operation.node, error.one_line())
            return NodeEvidence(problem=error.one_line())
        except Exception as error:
            log.exception("%s: a defect of kgpu; it goes on without evidence", operation.name)
            return NodeEvidence(problem=describe(error))
        finally:
            self._news.set()
