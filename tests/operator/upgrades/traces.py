"""Stories as data, and the trace that a node's label leaves: each state, with the node as it was when the state ended."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from kgpu.formats import names
from kgpu.kube.fake import FakeObject
from kgpu.kube.kinds import NODE_OPERATIONS
from kgpu.kube.port import NODES, PODS, Change, Object, Resource
from kgpu.operator.model import UpgradeOperation
from kgpu.operator.projections import operation
from kgpu.operator.upgrades import AT_REST, ENDED, state_of
from tests.operator.upgrades.live_fleet import NEW, LiveFleet
from tests.operator.upgrades.story import AUTO, Story, running_old

NODE = "n1"
SHORT, LONG = 0.1, 5.0
"""Seconds between two looks: while states change, and once one has lasted for ``PATIENCE`` looks."""
PATIENCE = 60
REFUSED = (429, "Cannot evict pod", (("DisruptionBudget", "The disruption budget web needs 2 healthy pods"),))


@dataclass(frozen=True, slots=True, kw_only=True)
class Moment:
    """The node at the end of a state."""

    state: str
    cordoned: bool
    initial: bool
    """The annotation that says that it was cordoned before."""
    asked: tuple[str, ...]
    """The pods that were asked to go."""
    driver_pod: str
    loaded: str


class Trace:
    """The states of a node's upgrade in their order. While an operation is under way they are those of its phases, as the
    operator shows them; the label shows each that lasts. Otherwise they are the label's.
    """

    def __init__(self, fleet: LiveFleet) -> None:
        self._fleet = fleet
        self.moments: list[Moment] = []
        self.labels: list[str] = []
        self.look()
        self._write, fleet._write = fleet._write, self._written  # type: ignore[method-assign]

    def look(self) -> bool:
        """Look at the label; returns whether there is news."""
        label, count = self._fleet.state(NODE), len(self.moments)
        if not self.labels or self.labels[-1] != label:
            self.labels.append(label)
        if label in AT_REST and not any(map(_is_under_way, self._fleet.operations())):
            self._enters(label)
        return len(self.moments) > count

    def _written(self, resource: Resource, stored: FakeObject, change: Change) -> Object:
        before = self._moment(self.moments[-1].state)
        written = self._write(resource, stored, change)
        if resource == NODE_OPERATIONS and _is_under_way(written) and written["spec"]["nodeName"] == NODE:
            found: UpgradeOperation = operation(written)["upgrade"]
            state = str(state_of(found))
            if state != before.state:
                self.moments[-1] = before
                self.moments.append(self._moment(state))
        return written

    def _enters(self, state: str) -> None:
        now = self._moment(state)
        if self.moments and self.moments[-1].state == state:
            self.moments[-1] = now
        else:
            self.moments.append(now)

    def _moment(self, state: str) -> Moment:
        fleet = self._fleet
        annotations = fleet.object(NODES, NODE)["metadata"].get("annotations") or {}
        pods = [pod["metadata"]["uid"] for pod in fleet._of_drivers() if pod["spec"].get("nodeName") == NODE]
        return Moment(
            state=state, cordoned=fleet.unschedulable(NODE), initial=names.DRIVER_UPGRADE_INITIAL in annotations,
            asked=tuple(sorted(set(fleet.evictions))), driver_pod=",".join(pods), loaded=fleet.loaded()[NODE],
        )  # fmt: skip


def _is_under_way(row: Object) -> bool:
    phase = (row.get("status") or {}).get("phase", "Pending")
    return phase not in ("Pending", *ENDED)


def _prepare(fleet: LiveFleet, story: Mapping[str, Any]) -> None:
    for pod in story.get("pods", ()):
        given: dict[str, Any] = {"metadata": {"labels": pod.get("labels") or {}}}
        if pod.get("naked"):
            given["owner"] = None
        (fleet.train if pod.get("gpu", True) else fleet.pod)(pod["name"], NODE, **given)
        if pod.get("held"):
            fleet.budgets["default", pod["name"]] = REFUSED
    if story.get("cordoned"):
        fleet.cordon(NODE)
    if story.get("skip"):
        fleet.label(NODE, **{names.DRIVER_UPGRADE_SKIP: "true"})
    if container := story.get("fails"):
        fleet.driven_by[NODE].fails[NEW] = container


def _ends(fleet: LiveFleet, pod: str) -> None:
    known = fleet.object(PODS, pod, "default")
    fleet.put(PODS, {**known, "status": {"phase": "Succeeded"}})


def _happens(fleet: LiveFleet, what: str, story: Mapping[str, Any]) -> None:
    """What people, pods and machines do at a state."""
    word, _, name = what.partition(" ")
    acts = {
        "ends": lambda: _ends(fleet, name),
        "mends": lambda: fleet.driven_by[NODE].fails.clear(),
        "faults": lambda: setattr(fleet.driven_by[NODE], "passes", False),
        "auto-off": lambda: fleet.want(NEW, {**story.get("upgrade", AUTO), "autoUpgrade": False}),
        "unskips": lambda: fleet.label(NODE, **{names.DRIVER_UPGRADE_SKIP: None}),
    }
    acts[word]()


async def trace(story: Mapping[str, Any], seconds: float = 6_000.0) -> Trace:
    """Tell a story until its last state has lasted a while, or ``seconds`` are over."""
    upgrade: Mapping[str, Any] = story.get("upgrade", AUTO)
    async with running_old(*story.get("nodes", (NODE,)), upgrade=upgrade) as told:
        _prepare(told.fleet, story)
        found = Trace(told.fleet)
        told.fleet.want(NEW, upgrade)
        await _watch(told, story, found, seconds)
        return found


async def _watch(told: Story, story: Mapping[str, Any], found: Trace, seconds: float) -> None:
    clock, looks = told.fleet.clock, 0
    happens: dict[str, str] = dict(story.get("then") or {})
    until = clock.monotonic() + seconds
    while clock.monotonic() < until:
        step = SHORT if looks < PATIENCE else LONG
        await told.run_for(step, step=step)
        looks = 0 if found.look() else looks + 1
        state = found.moments[-1].state
        if found.labels[-1] == state and (what := happens.pop(state, "")):
            _happens(told.fleet, what, story)
            looks = 0
        if looks > 2 * PATIENCE and len(found.moments) >= len(story["trace"]):
            return
