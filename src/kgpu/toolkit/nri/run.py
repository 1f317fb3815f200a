"""The NRI plugin on a node, for as long as it runs: meets the runtime, answers about containers, says how it is.

A runtime that is not there, or ends, is waited for. One that would drop the devices without a word is told of, and met
again only when it was started anew. Whatever is looked up for a container has to be there before the runtime gives the
plugin up; a container that asks for a GPU is refused rather than given one in the dark.
"""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from kgpu.base.advice import Advice, AdviceSink, Severity
from kgpu.base.backoff import Backoff, BackoffPolicy
from kgpu.base.clock import Clock, SystemClock
from kgpu.base.errors import HostError, KubeError, KubeletError, UserError
from kgpu.base.inotify import Inotify, nearest_existing
from kgpu.base.service import Complaint, StateSink, ignore_state
from kgpu.base.threads import beside
from kgpu.formats.names import CDI_DIR, CDI_STATIC_DIR, NRI_CDI_ANNOTATION
from kgpu.formats.nri_support import WANTED, unsupported
from kgpu.host.driver.capabilities import wanted
from kgpu.hw.port import Reader
from kgpu.kubelet.nri.model import ContainerAdjustment, NriContainer, NriPod, RuntimeInfo
from kgpu.kubelet.nri.plugin import serve
from kgpu.kubelet.pod_resources import Holding, Holdings
from kgpu.kubelet.socket_watch import SocketIdentity, socket_identity
from kgpu.toolkit.nri.config import NriConfig
from kgpu.toolkit.nri.model import Adjust, Ask, ContainerRefusal, Facts, Nothing, Wanted
from kgpu.toolkit.nri.plan import decide, needs_holdings, read
from kgpu.toolkit.nri.ports import Accounts, Gpus
from kgpu.toolkit.nri.specs import SpecFolders

log = logging.getLogger(__name__)

PLUGIN_NAME: Final = "kgpu-toolkit"
SPEC_DIRS: Final = (Path(CDI_STATIC_DIR), Path(CDI_DIR))
REQUEST_SECONDS: Final = 2.0
"""How long a runtime waits that does not say so (containerd's default)."""
SHARE: Final = 0.7
"""The part of that time after which looking things up is given up."""
CALM_SECONDS: Final = 60.0
RETRY: Final = BackoffPolicy(first=0.2, cap=10.0)
MAX_TOLD: Final = 512


@dataclass(frozen=True, slots=True, kw_only=True)
class NriContext:
    """Everything that the plugin gets from outside.

    ``cdi_dirs`` are the runtime's spec folders as this process sees them, later ones win. Without ``accounts`` no
    service account is known; without ``reader`` requirements can't be checked. ``wanted`` says which driver files a
    capability brings. ``on_state(ready, reason)`` hears whether containers are asked about.
    """

    config: NriConfig
    holdings: Holdings
    report: AdviceSink
    reader: Reader | None = None
    accounts: Accounts | None = None
    cdi_dirs: Sequence[Path] = SPEC_DIRS
    wanted: Wanted = wanted
    clock: Clock = field(default_factory=SystemClock)
    on_state: StateSink = ignore_state


async def run(ctx: NriContext) -> None:
    """Be the plugin until cancelled."""
    await _Service(ctx).run()


class UnsupportedRuntimeError(HostError):
    """A runtime that takes the plugin's devices and drops them."""


class _Service:
    def __init__(self, ctx: NriContext) -> None:
        self._ctx = ctx
        self._socket = ctx.config.socket
        self._complaint = Complaint(ctx.report, subject=str(self._socket), reason="NriUnsupported")

    async def run(self) -> None:
        backoff = Backoff(RETRY)
        declined: SocketIdentity | None = None
        logic = NriLogic(self._ctx)
        async with Inotify() as inotify:
            while True:
                # Watch first, look second: a socket that comes in between wakes the wait.
                inotify.watch({nearest_existing(self._socket.parent)})
                identity = socket_identity(self._socket)
                wait = CALM_SECONDS
                if identity is None:
                    declined = None
                    self._ctx.on_state(False, self._absent())
                elif identity != declined:
                    began = self._ctx.clock.monotonic()
                    try:
                        await serve(self._socket, logic, name=PLUGIN_NAME, index=self._ctx.config.index)
                        self._ctx.on_state(False, f"the container runtime at {self._socket} ended the connection")
                    except UnsupportedRuntimeError as problem:
                        declined = identity
                        self._declined(problem)
                    except KubeletError as problem:
                        self._ctx.on_state(False, problem)
                    if identity != declined:
                        wait = backoff.next_delay(ran_for=self._ctx.clock.monotonic() - began)
                await inotify.wait(wait)

    def _absent(self) -> str:
        return (
            f"{self._socket} is not there: no container runtime with NRI switched on (before containerd 2.0 it is off)"
        )

    def _declined(self, problem: UnsupportedRuntimeError) -> None:
        self._ctx.on_state(False, problem)
        self._complaint.of(problem)


class NriLogic:
    """Answers the runtime; see ``kgpu.kubelet.nri.model.NriPluginLogic``."""

    def __init__(self, ctx: NriContext) -> None:
        self._ctx = ctx
        self._specs = SpecFolders(ctx.cdi_dirs)
        self._reading = asyncio.Lock()
        self._gpus = Gpus(ctx.reader, ctx.clock)
        self._runtime = RuntimeInfo(name="", version="")
        self._told: OrderedDict[tuple[str, str, str], None] = OrderedDict()

    def configured(self, runtime: RuntimeInfo) -> None:
        self._runtime = runtime
        why = unsupported(runtime.name, runtime.version)
        if why:
            raise UnsupportedRuntimeError(
                f"the NRI plugin can't give containers GPUs on this node: {why}",
                WANTED,
                f"update the runtime, or switch the NRI plugin off: runtime classes work without {NRI_CDI_ANNOTATION}",
            )

    def ready(self) -> None:
        self._ctx.on_state(True, f"{self._runtime.name} {self._runtime.version} at {self._ctx.config.socket}")

    async def create(self, pod: NriPod, container: NriContainer) -> ContainerAdjustment | None:
        ask = read(self._ctx.config.policy, pod, container)
        if ask is None:
            return None
        seconds = (self._runtime.request_seconds or REQUEST_SECONDS) * SHARE
        try:
            async with asyncio.timeout(seconds):
                facts = await self._look(ask)
        except TimeoutError as problem:
            raise KubeletError(
                f"what {ask.named} asks for could not be looked up within {seconds:g} s",
                "a kubelet, an API server and a driver that answer",
                "nothing, it is tried again; kgpu's log has more if it lasts",
            ) from problem
        # Beside the loop: an image may state as much as it likes, and every container of the node waits for the answer.
        outcome = await beside(decide, self._ctx.config.policy, ask, facts, wanted=self._ctx.wanted)
        match outcome:
            case Adjust(adjustment, why):
                log.info("NRI: %s gets %s", ask.named, why)
                return adjustment
            case ContainerRefusal(refused):
                self._tell(ask, "is refused", refused.one_line())
                raise refused
            case Nothing(why):
                if why:
                    self._tell(ask, "is left as it is", why)
                return None

    async def _look(self, ask: Ask) -> Facts:
        """What the decision depends on, and no more: most containers need nobody to be asked."""
        async with self._reading:
            index = await beside(self._specs.index)
        account = await self._account(ask)
        holdings: tuple[Holding, ...] | UserError | None = None
        if needs_holdings(self._ctx.config.policy, ask, account):
            try:
                holdings = await self._ctx.holdings.holdings()
            except KubeletError as problem:
                holdings = problem
        if not (self._ctx.config.policy.requirements and ask.env.requirements()):
            return Facts(index=index, account=account, holdings=holdings)
        gpus, node = await self._gpus.facts()
        return Facts(index=index, account=account, holdings=holdings, gpus=gpus, node=node)

    async def _account(self, ask: Ask) -> str:
        pod = ask.pod
        if not ask.source or self._ctx.accounts is None or not self._ctx.config.policy.needs_account(pod.namespace):
            return ""
        try:
            return await self._ctx.accounts.account_of(pod.namespace, pod.name, pod.uid)
        except KubeError as problem:
            log.warning(
                "the service account of pod %s/%s is not known: %s", pod.namespace, pod.name, problem.one_line()
            )
            return ""

    def _tell(self, ask: Ask, what: str, why: str) -> None:
        """Once for each container: the kubelet tries again for as long as the pod is there."""
        key = (ask.pod.uid or ask.pod.name, ask.container.name, why)
        if key in self._told:
            return
        self._told[key] = None
        while len(self._told) > MAX_TOLD:
            self._told.popitem(last=False)
        self._ctx.report(
            Advice(
                subject=f"{ask.pod.namespace}/{ask.pod.name}", what=f"{ask.named} {what}", why=why,
                severity=Severity.INFO, reason="NriDecided",
            )
        )  # fmt: skip
