"""One control daemon over its life: brought up, watched, started again when it dies, and taken away.

It says that it serves only once its limits are set, and no longer as soon as it has died. A daemon that an agent left
which was killed is taken over as it is, with its clients; one with other GPUs is replaced. Servers of a dead daemon
are ended: they would keep their GPU from the next one's.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable
from typing import Final

from kgpu.base.advice import Advice, AdviceSink, Severity
from kgpu.base.backoff import Backoff, BackoffPolicy
from kgpu.base.clock import Clock
from kgpu.base.errors import HostError
from kgpu.base.service import Complaint, running
from kgpu.base.threads import beside
from kgpu.base.waits import first_of
from kgpu.mps import folders
from kgpu.mps.control_log import ControlLog
from kgpu.mps.driver import MpsDriver
from kgpu.mps.model import DaemonSpec
from kgpu.mps.record import NodeRecord

# The first pause is long enough for the kubelet to hear of it: pods must not go to a daemon that dies at once again.
POLICY: Final = BackoffPolicy(first=1.5, cap=30.0, factor=2.0, jitter=0.3, healthy_after=60.0)
LOOK_SECONDS: Final = 30.0
"""How often a daemon that runs is asked something: one that hangs serves nobody."""
PATIENCE: Final = 2
"""How often in a row it may give no answer before it is replaced."""
QUIT_SECONDS: Final = 2
"""How long its clients may go on when it is told to end."""
_ASK: Final = "get_default_active_thread_percentage"


class ControlDaemon:
    """The daemon of ``spec``. ``changed()`` is called whenever ``serves`` or ``problem`` has changed."""

    def __init__(
        self,
        spec: DaemonSpec,
        *,
        driver: MpsDriver,
        record: NodeRecord,
        report: AdviceSink,
        clock: Clock,
        changed: Callable[[], object] = lambda: None,
    ) -> None:
        self.spec = spec
        self.serves = False
        self.problem: HostError | None = None
        self._driver = driver
        self._record = record
        self._report = report
        self._clock = clock
        self._changed = changed
        self._complaint = Complaint(report, reason="MpsDaemonFailed", subject=spec.subject, severity=Severity.ERROR)
        self._lock = threading.Lock()
        self._over = False

    async def run(self) -> None:
        """Keep it up until cancelled; it goes on then, until ``stop``."""
        backoff = Backoff(POLICY)
        while True:
            began = self._clock.monotonic()
            try:
                said = await beside(ControlLog, self.spec.log, self.spec.subject, behind=True)
                pid = await beside(self._bring_up)
                self._complaint.over()
                self._become(serves=True)
                async with running(**{f"log of {self.spec.subject}": said.follow(self._clock)}):
                    why = await self._watch(pid)
                await beside(said.tell)
                self._become(serves=False)
                await beside(self._clear, why)
            except HostError as problem:
                self._become(serves=False, problem=problem)
                self._complaint.of(problem)
            await self._clock.sleep(backoff.next_delay(ran_for=self._clock.monotonic() - began))

    async def stop(self, *, restore: bool = True) -> None:
        """Take it away, and give its GPUs their former compute mode back if ``restore``. Raises HostError."""
        self._become(serves=False)
        await beside(self._take_away, restore)

    def _become(self, *, serves: bool, problem: HostError | None = None) -> None:
        if (serves, problem) != (self.serves, self.problem):
            self.serves, self.problem = serves, problem
            self._changed()

    async def _watch(self, pid: int) -> str:
        """Wait until it serves no longer, and say why."""
        silent = 0
        while silent < PATIENCE:
            if await first_of(self._driver.ended(pid), self._clock.sleep(LOOK_SECONDS)):
                return f"its process {pid} has ended"
            try:
                await beside(self._driver.tell, self.spec, (_ASK,))
                silent = 0
            except HostError:
                silent += 1
        return f"its process {pid} gives no answer"

    # --- in threads ---

    def _bring_up(self) -> int:
        """Its PID, once it serves."""
        with self._lock:
            if self._over:
                raise HostError(
                    f"the MPS control daemon of {self.spec.subject} is being ended",
                    "no start after its end", "nothing: it is started again when it is wanted",
                )  # fmt: skip
            folders.prepare(self.spec)
            found = self._driver.running(self.spec)
            if found.daemon and found.visible == self.spec.visible:
                self._record.start(self.spec)
                self._told()
                folders.mark(self.spec)
                self._say("the MPS control daemon was taken over with its clients", f"process {found.daemon} serves it")
                return found.daemon
            folders.unmark(self.spec)
            if found.pids:
                self._quit()
            self._refuse_strangers()
            self._record.start(self.spec)
            self._driver.start(self.spec)
            self._told()
            pid = self._driver.running(self.spec).daemon
            if not pid:
                raise HostError(
                    f"the MPS control daemon of {self.spec.subject} has ended at once",
                    "a daemon that stays", f"look at {self.spec.log}/control.log",
                )  # fmt: skip
            folders.mark(self.spec)
            return pid

    def _told(self) -> None:
        """Set its limits, and see that they are in force."""
        self._driver.tell(self.spec, self.spec.commands)
        said = self._driver.tell(self.spec, (_ASK,)).strip()
        try:
            same = float(said) == self.spec.percentage
        except ValueError:
            same = False
        if not same:
            raise HostError(
                f"the MPS control daemon of {self.spec.subject} has {said[:80]!r} as its part of the threads",
                f"{self.spec.percentage}", f"look at {self.spec.log}/control.log",
            )  # fmt: skip

    def _refuse_strangers(self) -> None:
        try:
            self._driver.tell(self.spec, (_ASK,))
        except HostError:
            return
        raise HostError(
            f"another MPS control daemon listens at {self.spec.pipe}, which is not this node's agent's",
            "one daemon for a pipe folder",
            "stop the other, such as a DaemonSet of the replaced mps-control-daemon",
        )

    def _clear(self, why: str) -> None:
        """After it has died or hangs: say so, and end what is left of it."""
        with self._lock:
            with contextlib.suppress(HostError):  # made anew or told when it is brought up
                folders.unmark(self.spec)
            ended = () if self._over else self._driver.end(self.spec)
        self._report(
            Advice(
                subject=self.spec.subject,
                what=f"the clients of {self.spec.subject} are lost, and it takes no new ones until its MPS control"
                " daemon serves again",
                why=why,
                evidence=tuple(f"process {pid} was left of it, and was ended" for pid in ended),
                severity=Severity.ERROR,
                remedy=f"restart the pods that use {self.spec.subject}; look at {self.spec.log}/control.log",
                reason="MpsDaemonLost",
            )
        )

    def _quit(self) -> None:
        with contextlib.suppress(HostError):  # it is ended in any case
            self._driver.tell(self.spec, (f"quit -t {QUIT_SECONDS}",), seconds=QUIT_SECONDS + 2)
        self._driver.end(self.spec)

    def _take_away(self, restore: bool) -> None:
        with self._lock:
            self._over = True
            folders.unmark(self.spec)
            if self._driver.running(self.spec).pids:
                self._quit()
            folders.remove(self.spec)
            self._record.stop(self.spec, restore=restore)

    def _say(self, what: str, why: str) -> None:
        self._report(Advice(subject=self.spec.subject, what=what, why=why, reason="MpsDaemonAdopted"))
