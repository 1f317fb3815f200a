"""kgpu's operations on nodes, as NodeOperations tell of them: which node is held, by what, and how far it is.

Records are read by the structs of their definition; one that does not fit them is of another version, and is named.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import msgspec

from kgpu.base.printable import one_line
from kgpu.base.remedy import Remedy
from kgpu.base.typed import convert
from kgpu.doctor import remedies
from kgpu.doctor.model import Evidence
from kgpu.doctor.objects import Obj, seconds
from kgpu.doctor.snapshot import Snapshot
from kgpu.formats import names
from kgpu.formats.crd.nodeoperation import (
    ENDED_BY_PEOPLE,
    NodeOperationSpec,
    NodeOperationStatus,
    OperationPhase,
    OperationType,
    Result,
)

KIND: Final = "NodeOperation"
CRD: Final = f"nodeoperations.{names.KGPU_DOMAIN}"
ENDED: Final = frozenset({OperationPhase.COMPLETE, OperationPhase.FAILED})
LATE_SECONDS: Final = 300.0
"""How long after the limit of its phase an operation counts as stuck: the engine itself ends it at the limit."""
_ROOM: Final = 160
_DAY: Final = 86400.0


@dataclass(frozen=True, slots=True)
class KnownOperation:
    """A NodeOperation that this version can read."""

    obj: Obj
    spec: NodeOperationSpec
    status: NodeOperationStatus

    @property
    def name(self) -> str:
        return self.obj.name

    @property
    def node(self) -> str:
        return self.spec.node_name

    @property
    def phase(self) -> OperationPhase:
        return OperationPhase(self.status.phase)

    @property
    def ended(self) -> bool:
        """Whether it is finished."""
        return self.phase in ENDED

    @property
    def begun(self) -> bool:
        """Whether it holds its node."""
        return not self.ended and self.phase is not OperationPhase.PENDING

    @property
    def unapproved(self) -> bool:
        """Whether it waits for a person to let it begin."""
        spec = self.spec
        return self.phase is OperationPhase.PENDING and not (spec.approved or spec.cancel or spec.resume)

    @property
    def in_maintenance(self) -> bool:
        """Whether somebody works on the empty node."""
        return self.phase is OperationPhase.ACTING and OperationType(self.spec.type) is OperationType.MAINTENANCE

    @property
    def waits_for_machine(self) -> bool:
        """Whether it holds the empty node until its machine is replaced."""
        return self.phase is OperationPhase.ACTING and OperationType(self.spec.type) is OperationType.REPLACE

    @property
    def waits_for_person(self) -> bool:
        """Whether it holds the empty node until a person has done the work."""
        return self.phase is OperationPhase.ACTING and OperationType(self.spec.type) in ENDED_BY_PEOPLE

    @property
    def place(self) -> str:
        """``node gpu-7``, or ``GPU GPU-5d1b... of node gpu-7``."""
        gpus = self.spec.gpus
        if not gpus:
            return f"node {self.node}"
        more = f" and {len(gpus) - 1} more" if len(gpus) > 1 else ""
        return f"GPU {one_line(gpus[0], _ROOM)}{more} of node {self.node}"

    @property
    def who(self) -> str:
        """``Maintenance m1 (asked for by jane: new fans)``."""
        by = f"asked for by {self.spec.requested_by}" if self.spec.requested_by else ""
        why = ": ".join(part for part in (by, self.spec.reason) if part)
        return f"{self.spec.type} {self.name}" + (f" ({one_line(why, _ROOM)})" if why else "")

    @property
    def how_far(self) -> str:
        """``which is Draining: 3 pods still to go``."""
        said = one_line(self.status.message, 2 * _ROOM)
        return f"which is {self.phase}" + (f": {said}" if said else "")

    def late(self, snapshot: Snapshot) -> bool:
        """Whether its phase should have ended long ago."""
        age = snapshot.age(self.status.phase_deadline or "")
        return age is not None and age > LATE_SECONDS

    def cited(self) -> tuple[Evidence, ...]:
        """How far it is, and what it says itself."""
        said = (self.obj.cite("status.message"),) if self.status.message else ()
        return (self.obj.cite("status.phase"), *said)

    def steps(self, snapshot: Snapshot) -> tuple[Remedy, ...]:
        """What can be done about an operation that holds its node. Uncordoning would end it halfway."""
        if self.late(snapshot):
            operator = Remedy("kgpu status").why("see whether kgpu's operator runs, and in its log why this stays")
            return (operator, remedies.show_operation(self.name))
        if self.waits_for_machine:
            return self._replacement()
        if self.in_maintenance:
            return (remedies.resume_operation(self.name).why("when the work on the node is done"),)
        return (
            remedies.show_operation(self.name).why("it goes on by itself; how far it is"),
            remedies.cancel_operation(self.name).why("or end it, which gives the node back"),
        )

    def _replacement(self) -> tuple[Remedy, ...]:
        fetched = (
            remedies.bundle_of_operation(self.name).why("fetch what was known of the node, for whoever replaces it"),
        )
        return (
            *(fetched if self.status.evidence is not None else ()),
            Remedy("kubectl delete node {}", self.node).why("once its machine is replaced; this ends the operation"),
            Remedy("or repair the machine and boot it; the node is given back once all its GPUs work"),
            remedies.resume_operation(self.name).why("or give it back as it is"),
        )


@dataclass(frozen=True, slots=True)
class UnknownOperation:
    """A NodeOperation that this version can't read, and why."""

    obj: Obj
    problem: str


def operations(snapshot: Snapshot) -> tuple[KnownOperation, ...]:
    """Those that can be read, by name."""
    return tuple(row for row in snapshot.once(_read) if isinstance(row, KnownOperation))


def unreadable(snapshot: Snapshot) -> tuple[UnknownOperation, ...]:
    """Those that can't."""
    return tuple(row for row in snapshot.once(_read) if isinstance(row, UnknownOperation))


def _read(snapshot: Snapshot) -> tuple[KnownOperation | UnknownOperation, ...]:
    return tuple(map(_one, sorted(snapshot.all("NodeOperation"), key=lambda obj: obj.name)))


def _one(obj: Obj) -> KnownOperation | UnknownOperation:
    try:
        spec = convert(obj.at("spec"), NodeOperationSpec)
        status = convert(obj.at("status") or {}, NodeOperationStatus)
    except (msgspec.ValidationError, ValueError, OverflowError) as error:
        return UnknownOperation(obj, one_line(str(error), _ROOM))
    return KnownOperation(obj, spec, status)


def holding(snapshot: Snapshot) -> Mapping[str, KnownOperation]:
    """By node, the operation that keeps it cordoned; of several the one that began first."""
    return snapshot.once(_holding)


def at_work(snapshot: Snapshot) -> tuple[KnownOperation, ...]:
    """The operations that are under way: those that hold a cordoned node, and those on some GPUs of one."""
    return snapshot.once(_at_work)


def _at_work(snapshot: Snapshot) -> tuple[KnownOperation, ...]:
    held = holding(snapshot)
    return tuple(
        record
        for record in operations(snapshot)
        if record.begun
        and record.node in snapshot.nodes
        and (bool(record.spec.gpus) or held.get(record.node) is record)
    )


def _holding(snapshot: Snapshot) -> dict[str, KnownOperation]:
    held: dict[str, KnownOperation] = {}
    for record in sorted(operations(snapshot), key=lambda record: seconds(record.status.started_at or "") or 0.0):
        node = snapshot.nodes.get(record.node)
        if not record.begun or node is None or not node.cordoned:
            continue
        owners = node.annotations.get(names.CORDON_ANNOTATION)
        was_so = record.status.before is not None and record.status.before.unschedulable
        # What kubectl prints for people may lack the annotation.
        if (owners is None and not was_so) or (owners is not None and record.obj.uid in owners.split(",")):
            held.setdefault(node.name, record)
    return held


def failures(snapshot: Snapshot) -> dict[str, KnownOperation]:
    """The operation that has failed of each node where none has succeeded since, for a day, by the node's name."""
    return snapshot.once(_failures)


def _failures(snapshot: Snapshot) -> dict[str, KnownOperation]:
    last: dict[str, KnownOperation] = {}
    for record in sorted((one for one in operations(snapshot) if one.ended), key=_end):
        if Result(record.status.result or Result.CANCELLED) is not Result.CANCELLED:
            last[record.node] = record
    return {name: record for name, record in last.items() if _is_told(snapshot, record)}


def _is_told(snapshot: Snapshot, record: KnownOperation) -> bool:
    age = snapshot.age(record.status.completed_at or "")
    return record.phase is OperationPhase.FAILED and age is not None and age < _DAY


def _end(record: KnownOperation) -> float:
    return seconds(record.status.completed_at or "") or 0.0
