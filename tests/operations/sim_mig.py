"""A node's MIG manager of a few lines: it cuts GPUs by order, goes on after it was killed, and asks by its annotation."""

from __future__ import annotations

import enum
from typing import TYPE_CHECKING, Any

import msgspec

from kgpu.formats import mig_request, names
from kgpu.formats.mig_request import MigLayout, MigProgress
from kgpu.formats.node_order import ChangeResult, NodeOrder, OrderAnswer, answer
from kgpu.kube.port import NODES

if TYPE_CHECKING:
    from tests.operations.world import Cluster

SMALL = {"1g.10gb": 7}
LARGE = {"3g.40gb": 2}


class Ends(enum.Enum):
    """How a change ends here."""

    DONE = "done"
    FAILED = "failed"
    LOST = "lost"
    NEVER = "never"


class SimMig:
    """``layouts`` are the slices of each GPU by UUID; None is neither the wanted nor the former layout."""

    def __init__(self) -> None:
        self.layouts: dict[str, dict[str, int] | None] = {"GPU-1": {}, "GPU-2": {}}
        self.ends = Ends.DONE
        self.looks = 2
        """Looks of the agent that one change takes."""
        self.cut: list[str] = []
        """The acts under which GPUs were cut, one row for each time."""
        self._record: tuple[str, dict[str, dict[str, int] | None]] | None = None
        self._results: dict[str, ChangeResult] = {}
        self._left = 0

    @property
    def between(self) -> bool:
        """Whether a GPU has neither the wanted nor the former layout."""
        return None in self.layouts.values()

    def change(self, given: NodeOrder) -> OrderAnswer:
        """The answer to the step ``change``: None for the result while it is under way."""
        if given.id not in self._results:
            self._go_on(given)
        return msgspec.structs.replace(answer(given), result=self._results.get(given.id))

    def die(self) -> None:
        """The process is killed and comes back: what it has put on its disk is there, and it begins anew from that."""
        self._left = self.looks

    def idle(self) -> None:
        """There is no such order: what was begun ends, before anything else, as it was."""
        if self._record is not None:
            self.layouts.update(self._record[1])
            self._record = None

    def _go_on(self, given: NodeOrder) -> None:
        if self._record is None or self._record[0] != given.id:
            self.idle()
            self._record = given.id, {row.gpu: self.layouts.get(row.gpu) for row in given.layouts}
            self.layouts.update(dict.fromkeys(self._record[1]))
            self.cut.append(given.id)
            self._left = self.looks
        self._left -= 1
        if self._left > 0 or self.ends is Ends.NEVER:
            return
        self._results[given.id] = self._end(given, self._record[1])
        self._record = None

    def _end(self, given: NodeOrder, former: dict[str, dict[str, int] | None]) -> ChangeResult:
        if self.ends is Ends.LOST:
            return ChangeResult(done=False, text="GPU-1 refuses a GPU instance, and the former ones", lost=True)
        if self.ends is Ends.FAILED:
            self.layouts.update(former)
            return ChangeResult(done=False, text="GPU-1 refuses a GPU instance 1g.10gb at 0")
        self.layouts.update({row.gpu: dict(row.devices) for row in given.layouts})
        return ChangeResult(done=True)


def layout(gpu: str = "GPU-1", devices: dict[str, int] | None = None) -> MigLayout:
    """All of a GPU as small slices, if nothing else is said."""
    return MigLayout(gpu=gpu, enabled=True, devices=SMALL if devices is None else devices)


def ask(cluster: Cluster, node: str, key: str, *layouts: MigLayout, release: bool = False) -> None:
    """The node asks for its GPUs to be cut; it takes its request back with an empty ``key``."""
    wish = (
        mig_request.request(key=key, config="all-1g.10gb", layouts=layouts or (layout(),), release=release)
        if key
        else None
    )
    annotate(cluster, node, names.MIG_REQUEST_ANNOTATION, mig_request.encode(wish) if wish else None)


def annotate(cluster: Cluster, node: str, key: str, text: str | None) -> None:
    """Somebody writes an annotation, or removes it."""
    known = cluster.object(NODES, node)
    rest = {name: value for name, value in (known["metadata"].get("annotations") or {}).items() if name != key}
    annotations = rest if text is None else {**rest, key: text}
    cluster.put(NODES, {**known, "metadata": {**known["metadata"], "annotations": annotations}})


def told(cluster: Cluster, node: str = "n1") -> MigProgress | None:
    """What the operator has told the node of its request."""
    return mig_request.read_progress(cluster.object(NODES, node)["metadata"].get("annotations") or {})


def spec(key: str = "r1", *layouts: MigLayout, **mig: Any) -> dict[str, Any]:
    """The fields of an operation for a request."""
    rows = layouts or (layout(),)
    wanted = [{"gpu": row.gpu, "enabled": row.enabled, "devices": row.devices} for row in rows]
    return {
        "type": "MigChange", "gpus": [row.gpu for row in rows],
        "mig": {"config": "all-1g.10gb", "request": key, "layouts": wanted, **mig},
    }  # fmt: skip
