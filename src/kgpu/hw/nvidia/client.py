"""``NvidiaReader``: the hardware port over NVML in a child process, with one GPU's trouble kept to that GPU.

Promises: no call hangs longer than its deadlines; a GPU whose call hangs or crashes the driver library becomes a typed
finding with its last known facts, is skipped, and is probed in a process of its own with growing pauses until it
answers; the others are read meanwhile. A missing or late driver is an ``HwError`` now and a working reader later.
Whatever changes the inventory is announced as an INVENTORY event, so nobody has to poll.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, TypeVar

from kgpu.base.errors import HwError
from kgpu.base.service import end
from kgpu.formats.names import NVIDIA
from kgpu.hw.nvidia import facts as judge
from kgpu.hw.nvidia.codes import STALE
from kgpu.hw.nvidia.faults import NvmlInitError, held_error, init_error, log_init_error, node_error
from kgpu.hw.nvidia.process import ChildProcess, Died, Refused, Stalled
from kgpu.hw.nvidia.wire import (
    DeviceActivity,
    DriverEvent,
    GpuLinks,
    GpuReply,
    Init,
    Listening,
    NodeReply,
    Processes,
    Pulse,
    Readings,
    Trouble,
)
from kgpu.hw.port import (
    Accelerator,
    Activity,
    EventKind,
    HardwareEvent,
    HardwareFinding,
    Inventory,
    Link,
    Problem,
    Process,
    Reading,
)
from kgpu.hw.subscription import Subscription, Subscriptions

LOG: Final = logging.getLogger(__name__)
MAX_WAIT_S: Final = 60.0
_PATIENT_STALLS: Final = 2
_SETTLE_S: Final = 0.05  # events come in bursts: one look at the state serves them all
_EVENT_SET_FAILED: Final = 0
_PAIRS: Final = frozenset({"topology", "peers"})
MAX_HELD: Final = 2  # killed children that the driver holds in the kernel, per GPU and for the start; each costs 17 MB

T = TypeVar("T")


@dataclass(slots=True)
class SuspectGpu:
    """A GPU that hung or crashed the child: why, and when to probe it again (loop time, seconds)."""

    problem: Problem
    what: str
    again: float
    wait: float
    held: list[ChildProcess] = field(default_factory=list)  # killed on its account, and perhaps still there


class NvidiaReader:
    """Implements ``kgpu.hw.port.Reader``. Times are seconds.

    ``deadline`` bounds each call on a GPU; ``attach_deadline`` the first one of a fresh child, in which a driver
    without persistence wakes the GPU up; ``poll`` is how often the cheap state check runs while anyone listens;
    ``retry`` is the first pause before a hung GPU is probed again.
    """

    def __init__(
        self,
        *,
        driver_root: Path | str | None = None,
        deadline: float = 2.0,
        attach_deadline: float = 10.0,
        init_deadline: float = 20.0,
        poll: float = 1.0,
        retry: float = 1.0,
    ) -> None:
        self._root = str(driver_root or "/")
        self._deadline = deadline
        self._attach_deadline = attach_deadline
        self._init_deadline = init_deadline
        self._poll = poll
        self._retry = retry
        self._lock = asyncio.Lock()
        self._child: ChildProcess | None = None
        self._init: Init | None = None
        self._node: NodeReply | None = None
        self._known: dict[str, Accelerator] = {}
        self._suspects: dict[int, SuspectGpu] = {}
        self._crashes: set[int] = set()
        self._troubles: dict[int, Trouble] = {}
        self._background: set[asyncio.Task[Any]] = set()
        self._dying: set[asyncio.Task[None]] = set()
        self._held: list[ChildProcess] = []
        self._probing: set[int] = set()
        self._signature: dict[int, tuple[object, ...]] | None = None
        self._down = ""
        self._next: asyncio.Task[Inventory] | None = None
        self._links: tuple[tuple[str, ...], tuple[Link, ...]] | None = None
        self._subscriptions = Subscriptions()
        self._watcher: asyncio.Task[None] | None = None
        self._wake = asyncio.Event()
        self._listen_after = 0.0
        self._listen_wait = self._retry
        self._closed = False

    @property
    def child_pid(self) -> int | None:
        """The running hardware child's process id, for memory accounting and tests; None while there is none."""
        return self._child.pid if self._child is not None and self._child.alive else None

    # --- the port ---

    async def inventory(self) -> Inventory:
        """Enumerate now; callers that arrive before a reading has started share it. Raises HwError."""
        if self._next is None:
            self._next = asyncio.create_task(self._read(), name="hw-inventory")
            # Once it has begun it is no longer the next one, but closing must still find it.
            self._background.add(self._next)
            self._next.add_done_callback(self._background.discard)
            # A caller that was cancelled does not collect the error.
            self._next.add_done_callback(lambda task: task.cancelled() or task.exception())
        return await asyncio.shield(self._next)

    async def links(self) -> tuple[Link, ...]:
        """Every pair of readable GPUs; kept until the inventory changes, since topology is slow to read."""
        async with self._lock:
            usable = self._judged(await self._survey("gpu", GpuReply))
            readable = {gpu.index: gpu for gpu in usable if gpu.index not in self._suspects and gpu.usable}
            key = tuple(gpu.uuid for gpu in readable.values())
            if self._links is None or self._links[0] != key:
                answers = await self._survey("topology", GpuLinks, only=sorted(readable))
                self._links = (key, judge.links(readable, answers))
            return self._links[1]

    async def readings(self, keys: Collection[str] | None = None) -> tuple[Reading, ...]:
        """Telemetry of every GPU that answers, of its GPU instances and NVLinks."""
        async with self._lock:
            answers = await self._survey("readings", Readings, keys=None if keys is None else sorted(keys))
            readings = {gpu: answer for gpu, answer in sorted(answers.items()) if isinstance(answer, Readings)}
            peers: dict[int, str | Trouble] = {}
            if len(readings) > 1 and (keys is None or judge.PEERS in keys):
                peers = await self._survey("peers", str, only=readings)
        return tuple(reading for gpu, raw in readings.items() for reading in judge.readings(raw, peers.get(gpu)))

    async def processes(self) -> tuple[Process, ...]:
        """Who uses the GPUs that answer."""
        async with self._lock:
            answers = await self._survey("processes", Processes)
        replies = [answer for _, answer in sorted(answers.items()) if isinstance(answer, Processes)]
        return tuple(process for reply in replies for process in judge.processes(reply))

    async def activity(self, keys: Collection[str]) -> tuple[Activity, ...]:
        """What the GPUs that answer, and their GPU instances, have done since the call before."""
        async with self._lock:
            answers = await self._survey("activity", DeviceActivity, keys=sorted(keys))
        replies = [answer for _, answer in sorted(answers.items()) if isinstance(answer, DeviceActivity)]
        return tuple(one for reply in replies for one in judge.activity(reply))

    def events(self) -> Subscription:
        """Events from now on. None is missed once an ``inventory`` call made after this one has returned."""
        self._check_open()
        if self._watcher is None:
            self._watcher = asyncio.create_task(self._watch(), name="hw-watch")
        return self._subscriptions.add()

    async def close(self) -> None:
        """End the child and every subscription."""
        self._closed = True
        self._subscriptions.close()
        tasks = [task for task in (self._watcher, self._next, *self._background) if task is not None]
        await end(*tasks)
        if self._child is not None:
            await self._child.close()
            self._child = None
        await asyncio.gather(*self._dying)

    # --- reading ---

    async def _read(self) -> Inventory:
        async with self._lock:
            self._next = None
            answers = await self._survey("gpu", GpuReply)
            accelerators = self._judged(answers)
            if self._subscriptions:
                await self._listen(gpu for gpu, answer in answers.items() if isinstance(answer, GpuReply))
                # A GPU can turn out to hang only now.
                accelerators = self._judged(answers)
            self._note(
                {gpu: answer.pulse if isinstance(answer, GpuReply) else answer for gpu, answer in answers.items()}
            )
            return self._inventory(accelerators)

    def _inventory(self, accelerators: tuple[Accelerator, ...]) -> Inventory:
        assert self._init is not None
        assert self._node is not None
        cuda = self._init.cuda_version
        named = {gpu.index for gpu in accelerators}
        nameless = [index for index in range(self._node.count) if index not in named]
        return Inventory(
            vendor=NVIDIA,
            driver_version=self._init.driver_version or "",
            accelerators=accelerators,
            cuda_version=None if cuda is None else (cuda // 1000, cuda % 1000 // 10),
            library_version=self._init.nvml_version or "",
            findings=tuple(self._nameless(index) for index in nameless),
        )

    def _judged(self, answers: dict[int, GpuReply | Trouble]) -> tuple[Accelerator, ...]:
        """All GPUs in the port's terms: read, unreachable with their last known facts, and missing ones last."""
        assert self._node is not None
        read = {
            index: judge.accelerator(answer)
            for index, answer in answers.items()
            if isinstance(answer, GpuReply) and index not in self._suspects
        }
        answered = [gpu.uuid for gpu in read.values()]
        known = dict(self._known)
        listed = dict(read)
        self._troubles = {i: answer for i, answer in answers.items() if not isinstance(answer, GpuReply)}
        for index in sorted({*self._suspects, *self._troubles}):
            before = judge.identify(index, answered, known.values(), self._node.known)
            if before is not None:
                listed[index] = judge.unreachable(before, index, self._finding(index, before.uuid))
                answered.append(before.uuid)
        self._known.update({gpu.uuid: gpu for gpu in listed.values()})
        missing = [self._missing(gpu) for uuid, gpu in known.items() if uuid not in answered]
        return (*(listed[index] for index in sorted(listed)), *missing)

    def _finding(self, index: int, uuid: str) -> HardwareFinding:
        if (suspect := self._suspects.get(index)) is not None:
            return judge.finding(uuid, suspect.problem, suspect.what, "every driver call returns", index)
        return judge.trouble_finding(uuid, index, self._troubles[index])

    def _nameless(self, index: int) -> HardwareFinding:
        if index in self._suspects or index in self._troubles:
            return self._finding(index, "")
        return judge.finding("", Problem.UNREADABLE, f"GPU {index} was not read", "every counted GPU is read")

    @staticmethod
    def _missing(gpu: Accelerator) -> Accelerator:
        what = f"GPU {gpu.index} ({gpu.name}) was here before and is not enumerated any more"
        return judge.unreachable(
            gpu, gpu.index, judge.finding(gpu.uuid, Problem.MISSING, what, "a GPU stays enumerated")
        )

    async def _survey(
        self, op: str, kind: type[T], *, only: Iterable[int] | None = None, keys: list[str] | None = None
    ) -> dict[int, T | Trouble]:
        """Ask about each GPU that isn't suspect, restarting the child past those that stop it. Call with the lock."""
        self._check_open()
        await self._look_at_node()
        assert self._node is not None
        wanted = list(range(self._node.count) if only is None else only)
        answers: dict[int, T | Trouble] = {}
        stalls = 0
        while remedy := [gpu for gpu in wanted if gpu not in answers and gpu not in self._suspects]:
            child = await self._ready()
            # When one GPU after the other hangs it is the driver, and waiting long for each would hold up everything.
            attach = self._attach_deadline if stalls < _PATIENT_STALLS else self._deadline
            try:
                async for gpu, answer in child.each(
                    op, remedy, kind, self._deadline, attach_deadline=attach, others=wanted, keys=keys
                ):
                    answers[gpu] = answer
                    self._crashes.discard(gpu)
            except (Stalled, Died) as error:
                stalls += isinstance(error, Stalled)
                before = set(self._suspects)
                if op in _PAIRS:  # it is about pairs: who of them it was shows when each is asked alone
                    self._drop()
                    await self._survey("pulse", Pulse, only=wanted)
                if before == self._suspects.keys():
                    self._blame(error)
                wanted = [gpu for gpu in wanted if gpu not in self._suspects]
        self._start_probes()
        if answers and all(isinstance(answer, tuple) and answer[1] in STALE for answer in answers.values()):
            # The driver went away under this child; a fresh one sees what is there now, or says why nothing is.
            self._drop()
        return answers

    async def _look_at_node(self) -> None:
        """Count the GPUs; a reloaded driver or a changed set of bound GPUs means a fresh child."""
        for attempt in (1, 2):
            child = await self._ready()
            try:
                node = await child.ask("node", NodeReply, self._deadline)
            except (Stalled, Died) as error:
                self._drop()
                if attempt == 1 and isinstance(error, Died):
                    continue
                raise node_error(error) from error
            except Refused as error:
                self._drop()
                if attempt == 1:
                    continue
                raise init_error(error.trouble, self._root) from error
            assert self._init is not None
            if node.generation != self._init.generation:
                LOG.info("the driver was reloaded: %s", node.generation)
                self._known.clear()
                self._suspects.clear()
            elif {entry[0] for entry in node.known} == {entry[0] for entry in self._init.known}:
                self._node = node
                return
            self._drop()
        await self._ready()

    async def _ready(self) -> ChildProcess:
        """A running child with NVML initialised. Raises HwError."""
        if self._child is not None and self._child.alive:
            return self._child
        self._drop()
        self._held = _still_there(self._held)
        if len(self._held) >= MAX_HELD:
            failure = held_error(held.pid for held in self._held)
            self._went_down(failure)
            raise failure
        child = await ChildProcess.start(self._root, self._on_event)
        try:
            self._init = self._node = await child.ask("init", Init, self._init_deadline)
        except (Stalled, Died, Refused) as error:
            self._kill(child)
            self._held.append(child)
            failure = init_error(error.trouble, self._root) if isinstance(error, Refused) else node_error(error)
            self._went_down(failure)
            raise failure from error
        except BaseException:
            self._kill(child)
            raise
        self._child = child
        return child

    def _drop(self) -> None:
        if self._child is not None:
            self._kill(self._child)
            self._child = None

    def _kill(self, child: ChildProcess) -> None:
        """Kill now, reap when it has gone; only ``close`` waits."""
        child.kill()
        task = asyncio.create_task(child.close(), name=f"hw-reap-{child.pid}")
        self._dying.add(task)
        task.add_done_callback(self._dying.discard)

    def _blame(self, error: Stalled | Died) -> None:
        """The child died or is stuck: note which GPU did it. A first death may have had other reasons: try again."""
        held = [self._child] if self._child is not None else []
        self._drop()
        gpu = error.gpu
        assert gpu is not None, "requests about GPUs are answered GPU by GPU"
        if isinstance(error, Died):
            if gpu not in self._crashes:
                self._crashes.add(gpu)
                return
            problem, what = Problem.CRASHED, f"reading it crashed the driver library: {error}"
        else:
            problem, what = Problem.HUNG, str(error)
        LOG.warning("GPU %d: %s", gpu, what)
        self._crashes.discard(gpu)
        now = asyncio.get_running_loop().time()
        self._suspects[gpu] = SuspectGpu(problem, what, now + self._retry, self._retry, held)

    # --- suspects ---

    def _start_probes(self) -> None:
        now = asyncio.get_running_loop().time()
        for gpu, suspect in self._suspects.items():
            suspect.held = _still_there(suspect.held)
            if suspect.again <= now and gpu not in self._probing and len(suspect.held) < MAX_HELD:
                self._probing.add(gpu)
                task = asyncio.create_task(self._probe(gpu, suspect), name=f"hw-probe-{gpu}")
                self._background.add(task)
                task.add_done_callback(self._background.discard)

    async def _probe(self, gpu: int, suspect: SuspectGpu) -> None:
        """Ask the suspect in a child of its own, so that nobody waits for it."""
        child: ChildProcess | None = None
        try:
            child = await ChildProcess.start(self._root, lambda _event: None)
            await child.ask("init", Init, self._init_deadline)
            async for _ in child.each("gpu", [gpu], GpuReply, self._deadline, attach_deadline=self._attach_deadline):
                pass
        except (Stalled, Died, Refused, OSError) as error:
            suspect.wait = min(2 * suspect.wait, MAX_WAIT_S)
            suspect.again = asyncio.get_running_loop().time() + suspect.wait
            LOG.debug("GPU %d still does not answer (%s); next try in %.1f s", gpu, error, suspect.wait)
        else:
            LOG.info("GPU %d answers again", gpu)
            if self._suspects.get(gpu) is suspect:
                del self._suspects[gpu]
            self._wake.set()
        finally:
            self._probing.discard(gpu)
            if child is not None:
                self._kill(child)
                suspect.held.append(child)

    # --- events ---

    def _on_event(self, raw: DriverEvent) -> None:
        if raw.type == _EVENT_SET_FAILED:
            LOG.warning("waiting for driver events failed (NVML error %d); starting over", raw.data)
            self._drop()
            self._listen_after = asyncio.get_running_loop().time() + self._listen_wait
            self._listen_wait = min(2 * self._listen_wait, MAX_WAIT_S)
        elif (event := judge.event(raw)) is not None:
            self._listen_wait = self._retry
            self._subscriptions.publish(event)
        self._wake.set()

    async def _listen(self, gpus: Iterable[int]) -> None:
        """Register for events where that isn't done in this child yet. Call with the lock held."""
        wanted = list(gpus)
        if asyncio.get_running_loop().time() < self._listen_after:
            return
        while True:
            child = await self._ready()
            remedy = [gpu for gpu in wanted if gpu not in child.listening and gpu not in self._suspects]
            if not remedy:
                return
            try:
                async for gpu, answer in child.each("listen", remedy, Listening, self._deadline):
                    child.listening.add(gpu)
                    if not isinstance(answer, Listening):
                        LOG.warning("GPU %d delivers no events, so its Xids are not seen: %s: %s", gpu, *answer[::2])
            except (Stalled, Died) as error:
                self._blame(error)
            except Refused as error:
                LOG.info("the driver has no events (%s); changes are seen by looking every %g s", error, self._poll)
                child.listening.update(remedy)

    async def _watch(self) -> None:
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._poll):
                    await self._wake.wait()
                    await asyncio.sleep(_SETTLE_S)
            self._wake.clear()
            if not self._subscriptions:
                continue
            try:
                await self._tick()
            except HwError as error:
                LOG.debug("no reading: %s", error.one_line())
            except Exception:
                LOG.exception("the hardware watch failed; it goes on")

    async def _tick(self) -> None:
        async with self._lock:
            answers = await self._survey("pulse", Pulse)
            await self._listen(gpu for gpu, answer in answers.items() if isinstance(answer, Pulse))
            self._note(answers)

    def _note(self, answers: dict[int, Pulse | Trouble]) -> None:
        """Compare with the last known answers and announce a difference."""
        signature: dict[int, tuple[object, ...]] = {gpu: judge.signature(answer) for gpu, answer in answers.items()}
        signature |= {gpu: ("suspect", suspect.problem) for gpu, suspect in self._suspects.items()}
        before, self._signature = self._signature, signature
        was_down, self._down = self._down, ""
        if was_down or (before is not None and before != signature):
            if self._child is not None and before is not None:
                # A GPU that was away may have lost its place in the driver's event set.
                away = {gpu for gpu, value in before.items() if value[0] in {"error", "suspect"}}
                self._child.listening -= away
            self._links = None
            self._subscriptions.publish(HardwareEvent(kind=EventKind.INVENTORY))

    def _went_down(self, error: HwError) -> None:
        if self._down != error.what:
            self._down = error.what
            if isinstance(error, NvmlInitError):
                log_init_error(LOG, error)
            else:
                LOG.warning("%s", error.one_line())
            if self._signature is not None:
                self._subscriptions.publish(HardwareEvent(kind=EventKind.INVENTORY))

    def _check_open(self) -> None:
        if self._closed:
            raise HwError("the hardware reader is closed", "a reader that is in use", "open a new one")


def _still_there(children: Iterable[ChildProcess]) -> list[ChildProcess]:
    return [child for child in children if not child.ended]
