"""The ports of ``sharing.py`` in memory: GPUs with a compute mode and a time slice, and daemons that serve or not."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from kgpu.base.errors import HostError
from kgpu.dra.sharing import NO_INTERVAL, SHARED, ClaimDaemon, DaemonFolders, TimesliceAnswer

EXCLUSIVE = "EXCLUSIVE_PROCESS"


@dataclass(slots=True)
class FakeGpuSettings:
    """``tick`` is called before and after each change; ``unsupported`` GPUs have no time slice that can be set, and
    ``gone`` ones are unknown. ``broken`` makes changes fail.
    """

    modes: dict[str, str] = field(default_factory=dict)
    intervals: dict[str, int] = field(default_factory=dict)
    unsupported: set[str] = field(default_factory=set)
    gone: set[str] = field(default_factory=set)
    broken: bool = False
    tick: Callable[[], None] = lambda: None

    async def mode(self, uuid: str) -> str:
        self._there(uuid)
        return self.modes.get(uuid, SHARED)

    async def set_mode(self, uuid: str, mode: str) -> None:
        self._there(uuid)
        self.tick()
        self.modes[uuid] = mode
        self.tick()

    async def set_timeslice(self, uuid: str, interval: int) -> TimesliceAnswer:
        if uuid in self.gone:
            return TimesliceAnswer.GONE
        self._there(uuid)
        if uuid in self.unsupported:
            return TimesliceAnswer.UNSUPPORTED
        self.tick()
        self.intervals[uuid] = interval
        if interval == NO_INTERVAL:
            del self.intervals[uuid]
        self.tick()
        return TimesliceAnswer.SET

    def _there(self, uuid: str) -> None:
        if self.broken or uuid in self.gone:
            raise HostError(f"nvidia-smi -i {uuid} has failed", "a driver that answers", "look at the GPU")


@dataclass(slots=True)
class FakeDaemonKeeper:
    """``serving`` are the daemons by claim and number. ``problem`` is raised in place of serving."""

    serving: dict[tuple[str, int], ClaimDaemon] = field(default_factory=dict)
    problem: HostError | None = None
    tick: Callable[[], None] = lambda: None

    async def begin(self, claims: Mapping[str, tuple[str, Sequence[ClaimDaemon]]]) -> None:
        wanted = {(uid, one.number): one for uid, (_, daemons) in claims.items() for one in daemons}
        for key in set(self.serving) - set(wanted):
            self._drop(key)
        for key, daemon in wanted.items():
            self._put(key, daemon)

    async def up(self, uid: str, claim: str, daemons: Sequence[ClaimDaemon]) -> None:
        del claim
        for one in daemons:
            self.tick()
            if self.problem is not None:
                raise self.problem
            self._put((uid, one.number), one)

    async def down(self, uid: str, claim: str, daemons: Sequence[ClaimDaemon]) -> None:
        del claim
        for one in daemons:
            self._drop((uid, one.number))

    def folders(self, uid: str, number: int) -> DaemonFolders:
        return DaemonFolders(pipe=f"/mps/{uid}/{number}/pipe", shm=f"/mps/{uid}/shm")

    def _put(self, key: tuple[str, int], daemon: ClaimDaemon) -> None:
        self.tick()
        self.serving[key] = daemon
        self.tick()

    def _drop(self, key: tuple[str, int]) -> None:
        self.tick()
        self.serving.pop(key, None)
        self.tick()
