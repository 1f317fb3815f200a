"""What was told and done, as one bounded document that outlives the process: warnings, messages that wait, acts.

It is written before anything is done and after it, on the version that was read; so budgets count over restarts, a
message is kept until its receivers have it, and an act that was begun is found again. A record that can't be read is
not an empty one: nothing is done until somebody has looked.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable
from typing import Final

import msgspec

from kgpu.base import typed
from kgpu.kube.port import Resource
from kgpu.usage.reclaim.model import WorkloadRef

VERSION: Final = 1
MAX_BYTES: Final = 900_000
"""A ConfigMap holds a MiB."""
MOST_EPISODES: Final = 2000
MOST_ACTIONS: Final = 300
_LEAST_ACTIONS: Final = 100
MOST_NOTICES: Final = 500
MOST_WARNINGS: Final = 300
"""Workloads that have a deadline at a time; others have to wait. Of warnings none is dropped."""
MOST_WORKED: Final = 20_000
MOST_KEEPS: Final = 1000
ACTIONS_KEPT: Final = 30 * 86_400.0


class ActionState(enum.StrEnum):
    """How far an act is. ``INTENDED`` counts as done for every budget."""

    INTENDED = "intended"
    DONE = "done"
    VOID = "void"
    RESUMED = "resumed"


class NoticeKind(enum.StrEnum):
    """What a message is about, the most urgent last."""

    RESOLVED = "resolved"
    NODE = "node"
    IDLE = "idle"
    WARNING = "warning"
    STOPPED = "stopped"
    FROZEN = "frozen"


class _RecordPart(msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True, frozen=True, kw_only=True):
    """A part of the document: no key that is not known."""


class StoredTarget(_RecordPart, frozen=True, kw_only=True):
    """The object that is changed to stop a workload."""

    group: str
    version: str
    plural: str
    kind: str
    namespace: str
    name: str
    uid: str
    way: str

    @property
    def resource(self) -> Resource:
        """Its kind."""
        return Resource(self.group, self.version, self.plural, self.kind)


class ReclaimNotice(_RecordPart, frozen=True, kw_only=True):
    """A line of a message that waits. ``waiting`` are the receivers that have not got it. Moments are in seconds since
    1970, amounts in millionths of ``currency``; ``per_hour`` is what it wastes.
    """

    id: str
    kind: NoticeKind
    policy: str
    namespace: str
    who: str
    what: str
    at: float
    since: float | None = None
    per_hour: int = 0
    currency: str = "USD"
    assumed: str = ""
    keep: str = ""
    deadline: float | None = None
    waiting: tuple[str, ...] = ()


class EpisodeEntry(_RecordPart, frozen=True, kw_only=True):
    """A stretch of idleness of a workload or a node, and when people were told last."""

    kind: str
    namespace: str
    name: str
    since: float
    told: float

    @property
    def ref(self) -> WorkloadRef:
        """Whose it is."""
        return WorkloadRef(self.namespace, self.kind, self.name)


class KeepEntry(_RecordPart, frozen=True, kw_only=True):
    """An idle workload that annotations keep. ``since``: when that was seen first, and not reset until its GPUs are
    used; ``told``: the annotation of which people were told that it counts for less than it says.
    """

    kind: str
    namespace: str
    name: str
    since: float
    told: str = ""

    @property
    def ref(self) -> WorkloadRef:
        """Whose it is."""
        return WorkloadRef(self.namespace, self.kind, self.name)


class WarningEntry(_RecordPart, frozen=True, kw_only=True):
    """A workload with a deadline. ``since``: since when it is idle; ``announced``: people were told, or are about to
    be; ``delivered``: when the last receiver had the warning; ``target``: what carries the annotations that show this.
    """

    kind: str
    namespace: str
    name: str
    since: float
    deadline: float
    announced: bool = False
    delivered: float | None = None
    target: StoredTarget

    @property
    def ref(self) -> WorkloadRef:
        """Whose it is."""
        return WorkloadRef(self.namespace, self.kind, self.name)


class ReclaimAction(_RecordPart, frozen=True, kw_only=True):
    """An act. ``id`` names target and episode, so that it happens once."""

    id: str
    policy: str
    kind: str
    namespace: str
    name: str
    target: StoredTarget
    gpus: float
    at: float
    why: str
    undo: str
    state: ActionState = ActionState.INTENDED
    ended: float | None = None

    @property
    def ref(self) -> WorkloadRef:
        """Who was stopped."""
        return WorkloadRef(self.namespace, self.kind, self.name)


class DataFreeze(_RecordPart, frozen=True, kw_only=True):
    """Why nothing is done: too much turned idle at once. ``devices`` are those that have not worked since, as node and
    device. ``everywhere``: the data of all nodes is in doubt, else that of the devices' nodes.
    """

    why: str
    since: float
    devices: tuple[tuple[str, str], ...]
    everywhere: bool = True

    @property
    def nodes(self) -> tuple[str, ...]:
        """The nodes that are in doubt; empty for all."""
        return () if self.everywhere else tuple(sorted({node for node, _ in self.devices}))


class ReclaimRecord(_RecordPart, frozen=True, kw_only=True):
    """The document. ``looked``: the wall clock's last time, in seconds since 1970. ``dropped`` counts messages that
    had to go. ``worked``: which devices were at work at the last look (``doubts.fingerprint``).
    """

    version: int = VERSION
    looked: float = 0.0
    freeze: DataFreeze | None = None
    episodes: tuple[EpisodeEntry, ...] = ()
    keeps: tuple[KeepEntry, ...] = ()
    warnings: tuple[WarningEntry, ...] = ()
    actions: tuple[ReclaimAction, ...] = ()
    notices: tuple[ReclaimNotice, ...] = ()
    dropped: int = 0
    worked: tuple[str, ...] = ()

    def episode(self, ref: WorkloadRef) -> EpisodeEntry | None:
        """What was told about a workload."""
        return next((one for one in self.episodes if one.ref == ref), None)

    def action(self, ref: WorkloadRef) -> ReclaimAction | None:
        """The last act on a workload that is not void."""
        return next(
            (one for one in reversed(self.actions) if one.ref == ref and one.state is not ActionState.VOID), None
        )

    def warning(self, ref: WorkloadRef) -> WarningEntry | None:
        """The warning of a workload."""
        return next((one for one in self.warnings if one.ref == ref), None)

    def with_episode(self, entry: EpisodeEntry) -> ReclaimRecord:
        """The same with this entry in place of the former one."""
        others = tuple(one for one in self.episodes if one.ref != entry.ref)
        return msgspec.structs.replace(self, episodes=(*others, entry))

    def without_episode(self, ref: WorkloadRef) -> ReclaimRecord:
        """The same without that entry."""
        return msgspec.structs.replace(self, episodes=tuple(one for one in self.episodes if one.ref != ref))

    def keep(self, ref: WorkloadRef) -> KeepEntry | None:
        """Since when a workload is kept."""
        return next((one for one in self.keeps if one.ref == ref), None)

    def with_keep(self, entry: KeepEntry) -> ReclaimRecord:
        """The same with this entry in place of the former one."""
        return msgspec.structs.replace(self, keeps=(*self.without_keep(entry.ref).keeps, entry))

    def without_keep(self, ref: WorkloadRef) -> ReclaimRecord:
        """The same without that entry."""
        return msgspec.structs.replace(self, keeps=tuple(one for one in self.keeps if one.ref != ref))

    def with_warning(self, entry: WarningEntry) -> ReclaimRecord:
        """The same with this warning in place of the former one."""
        return msgspec.structs.replace(self, warnings=(*self.without_warning(entry.ref).warnings, entry))

    def without_warning(self, ref: WorkloadRef) -> ReclaimRecord:
        """The same without that warning."""
        return msgspec.structs.replace(self, warnings=tuple(one for one in self.warnings if one.ref != ref))

    def with_action(self, action: ReclaimAction) -> ReclaimRecord:
        """The same with this act in place of the one of its id."""
        others = tuple(one for one in self.actions if one.id != action.id)
        return msgspec.structs.replace(self, actions=(*others, action))

    def with_notices(self, notices: Iterable[ReclaimNotice]) -> ReclaimRecord:
        """The same with these messages, each once."""
        by_id = {one.id: one for one in notices} | {one.id: one for one in self.notices}
        known = {one.id for one in self.notices}
        return msgspec.structs.replace(
            self, notices=(*self.notices, *(one for name, one in by_id.items() if name not in known))
        )


def encode(record: ReclaimRecord) -> str:
    """The document as text, without what is too old or too much: the oldest goes first, and dropped messages count."""
    actions = tuple(one for one in record.actions if record.looked - one.at < ACTIONS_KEPT)[-MOST_ACTIONS:]
    notices = record.notices[-MOST_NOTICES:]
    episodes = record.episodes[-MOST_EPISODES:]
    while True:
        kept = msgspec.structs.replace(
            record, actions=actions, notices=notices, episodes=episodes, worked=record.worked[:MOST_WORKED],
            keeps=record.keeps[-MOST_KEEPS:],
            dropped=record.dropped + len(record.notices) - len(notices),
        )  # fmt: skip
        data = msgspec.json.encode(kept)
        if len(data) <= MAX_BYTES or not (notices or episodes or len(actions) > _LEAST_ACTIONS):
            return data.decode()
        if not (notices or episodes):
            actions = actions[-max(_LEAST_ACTIONS, len(actions) // 2) :]
        notices, episodes = notices[len(notices) // 2 + 1 :], episodes[len(episodes) // 4 + 1 :]


def decode(text: str) -> ReclaimRecord | None:
    """The document; None for what is none of this version."""
    record = typed.read(text, ReclaimRecord)
    return record if record is not None and record.version == VERSION else None
