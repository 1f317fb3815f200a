"""One pod's life on a simulated node: starts, probes, restarts, end and status, as the kubelet's pod worker does it.

Level-triggered: after every event ``plan.decide`` says what is due. The status is written by a task of its own, so that
an API server that is away delays the reported status and nothing else.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import shutil
import signal
from collections.abc import Coroutine
from functools import partial
from typing import Any, Final

from kgpu.base.errors import KubeError
from kgpu.kube.port import Object, name_of, namespace_of
from kgpu.lab.nodes import hooks, images, leftovers, listeners, plan, podstatus, probes, starter, volumes
from kgpu.lab.nodes.claims import EVENT, ClaimError, has_claims, unprepare
from kgpu.lab.nodes.context import NodeContext
from kgpu.lab.nodes.podstate import (
    CRASH_LOOP,
    NEVER,
    ContainerRole,
    Phase,
    PodContainer,
    PodState,
    grace_seconds,
    make_containers,
)
from kgpu.lab.nodes.podwriter import StatusWriter
from kgpu.lab.nodes.runtime import Exit, Running, StandIn, exit_of
from kgpu.lab.nodes.usage import RunningContainer

log = logging.getLogger(__name__)

RETRY_S: Final = 10.0  # what could not be made is tried again so often
MESSAGE_LIMIT: Final = 4096


class PodWorker:
    """Runs one admitted pod. Call ``update`` when it has changed, ``vanished`` when the API server has it no more."""

    def __init__(self, node: NodeContext, pod: Object) -> None:
        self.node = node
        self.state = PodState(pod=pod, containers=make_containers(pod), start=node.now())
        self._refusal: tuple[str, str] | None = None
        self._prepared = not has_claims(pod)
        self._prepare_at = 0.0
        self._unpreparing: asyncio.Task[None] | None = None
        self._wake = asyncio.Event()
        self._writer = StatusWriter(node, self.state, self.vanished)
        self._running: dict[str, Running] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._probes: dict[str, list[asyncio.Task[None]]] = {}
        self._killed: dict[str, asyncio.Task[None]] = {}
        self._gone = False
        self.released = False
        self.finished = asyncio.Event()

    # --- told from outside ---

    def update(self, pod: Object) -> None:
        """The pod's object has changed."""
        self.state.pod = pod
        self._wake.set()

    def looked_at(self) -> None:
        """Something that its status tells may have changed."""
        self._writer.changed()

    def vanished(self) -> None:
        """The object is gone: end everything."""
        self._gone = self._writer.gone = True
        self._wake.set()
        self._writer.changed()

    def fail(self, reason: str, message: str) -> None:
        """Before ``run``: what runs of the pod is to be ended, and the pod is to be Failed."""
        self._refusal = (reason, message)

    @property
    def gone(self) -> bool:
        """The API server has it no more."""
        return self._gone

    def running(self, container: str) -> Running | None:
        """The container of that name, while it runs."""
        return self._running.get(container)

    def all_running(self) -> list[RunningContainer]:
        """Every container that runs."""
        namespace, pod = namespace_of(self.state.pod), name_of(self.state.pod)
        return [
            RunningContainer(namespace=namespace, pod=pod, name=name, started=running.started, folder=running.folder)
            for name, running in self._running.items()
        ]

    # --- life ---

    async def run(self) -> None:
        """Until the pod is gone from the API server and everything of it from here."""
        teller = asyncio.create_task(self._writer.run())
        try:
            self._adopt()
            self._spawn(starter.keep_tokens(self.node, self.state))
            if self._refusal is not None and not self.state.terminal:
                self.state.phase, (self.state.reason, self.state.message) = "Failed", self._refusal
            await self._live()
            await teller
        finally:
            # A host that ends leaves containers to the next one: only watching them stops.
            tasks = (teller, *self._tasks, *(task for many in self._probes.values() for task in many))
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        self._clean_up()
        self.finished.set()

    async def _live(self) -> None:
        state = self.state
        if not state.pod_ip and not state.terminal:
            state.pod_ip = self.node.host_ip if state.pod["spec"].get("hostNetwork") else self.node.addresses.take()
            state.sandbox = True
        while True:
            self._wake.clear()
            if state.deleting or self._gone:
                await self._terminate()
                return
            look_at = await self._step()
            self._settle()
            self._writer.changed()
            if self._wake.is_set():
                continue
            delay = None if look_at is None else max(0.0, look_at - self.node.now())
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(delay):
                    await self._wake.wait()

    async def _step(self) -> float | None:
        state, now = self.state, self.node.now()
        over = plan.deadline(state)
        if over is not None and now >= over and not state.terminal:
            self.node.event(state.pod, "Normal", plan.DEADLINE_REASON, plan.DEADLINE_MESSAGE)
            state.phase, state.reason, state.message = "Failed", plan.DEADLINE_REASON, plan.DEADLINE_MESSAGE
        actions = plan.decide(state, now)
        for container in actions.waiting:
            self._crash_loop(container)
        for container in actions.kill:
            self._kill(container, f"Stopping container {container.name}")
        looks = [actions.look_at] if actions.look_at is not None else []
        if actions.start and not await self._prepare():
            return min([*looks, self._prepare_at])
        for container in actions.start:
            if self._wake.is_set() and (self.state.deleting or self._gone):
                break
            if not await self._start(container):
                looks.append(container.not_before)
        return min(looks, default=None)

    async def _prepare(self) -> bool:
        """Have the pod's claims prepared; False when that has to be tried again."""
        node, pod = self.node, self.state.pod
        if self._prepared or node.claims is None:
            return True
        if node.now() < self._prepare_at:
            return False
        try:
            await node.claims.prepare(pod)
        except (ClaimError, KubeError) as error:
            text = f"Failed to prepare dynamic resources: prepare dynamic resources: {error.what}"
            node.event(pod, "Warning", EVENT, text)
            self._prepare_at = node.now() + RETRY_S * node.scale
            return False
        self._prepared = True
        return True

    def _settle(self) -> None:
        """Phase, and devices back when nothing of the pod will run again."""
        state = self.state
        if any(container.was_started for container in state.of(ContainerRole.MAIN)):
            state.initialized = True
        state.phase = plan.phase_of(state, ending=state.deleting or self._gone)
        if state.terminal and not self._running and not self.released:
            state.sandbox = False
            self._release()

    def _release(self) -> None:
        self.released = True
        self.node.devices.release(self.state.uid)
        claims, uid = self.node.claims, self.state.uid
        if claims is not None and claims.uses(uid):
            self._unpreparing = self._spawn(unprepare(claims, uid))

    # --- starting ---

    async def _start(self, container: PodContainer) -> bool:
        """Start a container; False when it has to be tried again. What was not made counts as no restart."""
        before = container.restarts, container.backoff, container.previous
        started = await self._try_start(container)
        if not started and container.phase is Phase.WAITING:
            container.restarts, container.backoff, container.previous = before
        return started

    async def _try_start(self, container: PodContainer) -> bool:
        node, state = self.node, self.state
        init = container.kind is not ContainerRole.MAIN
        if container.ended is not None and container.phase is not Phase.RUNNING:
            plan.on_restart(container, scale=node.scale)
            container.previous = container.ended
        if wrong := images.problem(container.image):
            self._not_started(container, starter.StartTroubleError(images.INVALID, wrong, event="InspectFailed"))
            return False
        if (trouble := starter.pull_trouble(node, container)) is not None:
            self._not_started(container, trouble)
            return False
        text = f'Container image "{container.image}" already present on machine and can be accessed by the pod'
        node.event(state.pod, "Normal", "Pulled", text, container=container.name, init=init)
        try:
            async with node.slots:
                running = await starter.start(node, state, container, self._cdi(container))
        except starter.StartTroubleError as failed:
            self._not_started(container, failed)
            return False
        except KubeError as error:
            container.not_before = node.now() + RETRY_S * node.scale
            container.phase, container.reason, container.message = Phase.WAITING, starter.CREATING, ""
            log.debug("%s/%s: %s", state.full_name, container.name, error.one_line())
            return False
        except Exception as error:
            # Whatever the pod asks for that this code did not think of stays this container's trouble.
            log.exception("%s/%s can't be started", state.full_name, container.name)
            text = f"{type(error).__name__}: {error}"
            self._not_started(container, starter.StartTroubleError(starter.CREATE_ERROR, text))
            return False
        node.event(state.pod, "Normal", "Created", "Container created", container=container.name, init=init)
        node.event(state.pod, "Normal", "Started", "Container started", container=container.name, init=init)
        passed = await hooks.run_until(lambda: self._gone or state.deleting, container.spec, hooks.POST_START, running)
        self._began(container, running)
        if not passed:
            text = "PostStartHook failed"
            node.event(state.pod, "Warning", hooks.FAILED_POST_START, text, container=container.name, init=init)
            self._kill(container, hooks.FAILED_POST_START)
        return True

    def _cdi(self, container: PodContainer) -> tuple[str, ...]:
        claims = self.node.claims
        return claims.cdi_names(self.state.pod, container.spec) if claims is not None else ()

    def _not_started(self, container: PodContainer, trouble: starter.StartTroubleError) -> None:
        node, state = self.node, self.state
        init = container.kind is not ContainerRole.MAIN
        now = node.now()
        if trouble.reason != starter.START_ERROR:
            text = trouble.what if trouble.event != "Failed" else f"Error: {trouble.what}"
            about = "" if trouble.event != "Failed" else container.name
            node.event(state.pod, "Warning", trouble.event, text, container=about, init=init)
            container.phase, container.reason = Phase.WAITING, trouble.reason
            container.message = "" if trouble.reason == starter.CREATING else trouble.what
            container.not_before = now + RETRY_S * node.scale
            return
        node.event(state.pod, "Normal", "Created", "Container created", container=container.name, init=init)
        node.event(state.pod, "Warning", "Failed", f"Error: {trouble.what}", container=container.name, init=init)
        container.id, container.started, container.finished = trouble.container_id, now, now
        container.former = False
        container.phase, container.ready, container.started_ok = Phase.ENDED, False, False
        container.ended = podstatus.terminated(
            container.id, code=128, reason=starter.START_ERROR, message=trouble.what, started=0, finished=now
        )
        container.ended["startedAt"] = "1970-01-01T00:00:00Z"
        plan.after_end(container, scale=node.scale)
        self._wake.set()

    def _began(self, container: PodContainer, running: Running) -> None:
        container.id, container.started, container.former = running.id, running.started, False
        container.phase, container.reason, container.message, container.killing = Phase.RUNNING, "", "", ""
        self._running[container.name] = running
        self._spawn(self._follow(container, running))
        self._start_probes(container, running)
        self._writer.changed()

    def _start_probes(self, container: PodContainer, running: Running) -> None:
        startup = probes.parse(container.spec, "Startup")
        readiness = probes.parse(container.spec, "Readiness")
        container.started_ok = startup is None
        container.ready = container.kind is not ContainerRole.INIT and container.started_ok and readiness is None
        if container.kind is ContainerRole.INIT:
            return
        if startup is not None:
            self._probe(container, running, startup)
        else:
            self._probe_started(container, running)

    def _probe_started(self, container: PodContainer, running: Running) -> None:
        for kind in ("Readiness", "Liveness"):
            probe = probes.parse(container.spec, kind)
            if probe is not None:
                self._probe(container, running, probe)

    def _probe(self, container: PodContainer, running: Running, probe: probes.ContainerProbe) -> None:
        counter = probes.ThresholdCounter(probe, verdict=probe.kind == "Liveness")

        def report(ok: bool, output: str) -> None:
            if not ok:
                text = f"{probe.kind} probe failed: {output}"
                self.node.event(
                    self.state.pod,
                    "Warning",
                    "Unhealthy",
                    text,
                    container=container.name,
                    init=container.kind is not ContainerRole.MAIN,
                )
            if counter.take(ok):
                self._verdict(container, running, probe, ok)

        address = self.node.loopback(self.state.pod_ip)
        # With hostNetwork the address is the node's, where whoever listens answers.
        is_own_port = partial(listeners.is_pods, self.state.uid, self.node.folder, address)
        ports = None if self.state.pod["spec"].get("hostNetwork") else probes.PodPorts(is_own_port)
        task = asyncio.create_task(probes.run(probe, container.spec, running, address, report, ports=ports))
        self._probes.setdefault(container.name, []).append(task)

    def _verdict(self, container: PodContainer, running: Running, probe: probes.ContainerProbe, ok: bool) -> None:
        if self._running.get(container.name) is not running:
            return
        if probe.kind == "Readiness":
            if container.ready != ok:
                container.ready = ok
                self._wake.set()
        elif not ok:
            text = f"Container {container.name} failed {probe.kind.lower()} probe, will be restarted"
            grace = probe.action.get("terminationGracePeriodSeconds")
            self._kill(container, text, grace=grace)
        elif probe.kind == "Startup" and not container.started_ok:
            container.started_ok = True
            container.ready = probes.parse(container.spec, "Readiness") is None
            for task in self._probes.pop(container.name, ()):
                task.cancel()
            self._probe_started(container, running)
            self._wake.set()

    # --- ending ---

    async def _follow(self, container: PodContainer, running: Running) -> None:
        ended = await running.wait()
        self._ended(container, ended)
        self._wake.set()

    def _ended(self, container: PodContainer, ended: Exit) -> None:
        self._running.pop(container.name, None)
        for task in self._probes.pop(container.name, ()):
            task.cancel()
        reason = ended.reason or ("Completed" if ended.code == 0 else "Error")
        container.finished = ended.finished
        container.previous = container.ended
        container.ended = podstatus.terminated(
            container.id, code=ended.code, reason=reason, message=self._message(container, ended),
            started=container.started, finished=ended.finished,
        )  # fmt: skip
        container.phase, container.ready, container.started_ok = Phase.ENDED, False, False
        plan.after_end(container, scale=self.node.scale)
        self._writer.changed()

    def _message(self, container: PodContainer, ended: Exit) -> str:
        """What the container left as its last words."""
        path = starter.folder_of(self.node, container.id) / "termination-log"
        with contextlib.suppress(OSError):
            if text := path.read_bytes()[:MESSAGE_LIMIT].decode(errors="replace"):
                return text
        if container.spec.get("terminationMessagePolicy") == "FallbackToLogsOnError" and ended.code != 0:
            from kgpu.lab.nodes import logs

            path = starter.log_path(self.node, self.state.pod, container.name, container.restarts)
            with contextlib.suppress(OSError):
                lines = path.read_bytes().splitlines(keepends=True)[-80:]
                options = logs.LogOptions()
                return b"".join(logs.render(line, options) for line in lines)[-2048:].decode(errors="replace")
        return ""

    def _kill(self, container: PodContainer, message: str, *, grace: float | None = None) -> None:
        """End a running container in the background; once."""
        running = self._running.get(container.name)
        task = self._killed.get(container.name)
        if running is None or (task is not None and not task.done()):
            return
        self.node.event(
            self.state.pod,
            "Normal",
            "Killing",
            message,
            container=container.name,
            init=container.kind is not ContainerRole.MAIN,
        )
        wait = float(grace_seconds(self.state.pod) if grace is None else grace)
        self._killed[container.name] = self._spawn(self._end(container, running, wait))

    async def _end(self, container: PodContainer, running: Running, grace: float) -> None:
        ended = asyncio.ensure_future(running.wait())
        try:
            await hooks.run(container.spec, hooks.PRE_STOP, running, max(grace, 1.0))
            running.kill(signal.SIGTERM)
            # The kubelet leaves at least two seconds when it has been told of none.
            await asyncio.wait([ended], timeout=max(grace, 0.0))
            if not ended.done():
                running.kill(signal.SIGKILL)
                await ended
        finally:
            ended.cancel()

    async def _terminate(self) -> None:
        """End every container, write the last status, and have the API server delete the pod."""
        state = self.state
        for group in (
            [container for container in state.containers if container.kind is not ContainerRole.SIDECAR],
            list(reversed(state.of(ContainerRole.SIDECAR))),
        ):
            for container in group:
                self._kill(container, f"Stopping container {container.name}", grace=1.0 if self._gone else None)
            while any(container.name in self._running for container in group):
                self._wake.clear()
                grace = state.pod["metadata"].get("deletionGracePeriodSeconds")
                if self._gone or grace == 0:
                    for container in group:
                        if container.name in self._running:
                            self._running[container.name].kill(signal.SIGKILL)
                await self._wake.wait()
        for container in state.containers:
            if container.phase is Phase.WAITING and container.ended is not None:
                container.phase = Phase.ENDED
        self._settle()
        state.sandbox = False
        if not self.released:
            self._release()
        if self._unpreparing is not None:
            await self._unpreparing
        self._writer.end()

    def _crash_loop(self, container: PodContainer) -> None:
        if container.phase is Phase.WAITING:
            return
        state = self.state
        seconds = plan.show_seconds(container.backoff)
        text = f"Back-off restarting failed container {container.name} in pod {state.full_name}"
        self.node.event(
            state.pod,
            "Warning",
            "BackOff",
            text,
            container=container.name,
            init=container.kind is not ContainerRole.MAIN,
        )
        container.phase, container.reason = Phase.WAITING, CRASH_LOOP
        container.message = f"back-off {seconds} restarting failed container={container.name} pod={state.full_name}"

    # --- coming back ---

    def _adopt(self) -> None:
        """Take over what an earlier process of this host left, by the status that it wrote and by what still runs."""
        state, node = self.state, self.node
        status = state.pod.get("status") or {}
        state.phase = status.get("phase") or "Pending"
        state.reason, state.message = str(status.get("reason") or ""), str(status.get("message") or "")
        if status.get("startTime"):
            state.start = plan.seconds_of(status["startTime"])
        if status.get("podIP"):
            state.pod_ip, state.sandbox = status["podIP"], not state.terminal
            node.addresses.keep(state.pod_ip)
        known = {
            row["name"]: row for key in ("initContainerStatuses", "containerStatuses") for row in status.get(key) or ()
        }
        left = {} if node.light else leftovers.latest(node.folder, state.uid)
        for container in state.containers:
            if container.name in known or container.name in left:
                self._adopt_container(container, known.get(container.name) or {}, left.get(container.name))
        if state.terminal and not self._running:
            state.sandbox = False
        run_before = [container for container in state.containers if container.id]
        if run_before and all(node.is_former(container.id) for container in run_before):
            self._after_reboot()

    def _after_reboot(self) -> None:
        """Nothing of the pod has run since the machine's reboot: if it goes on, then in a new sandbox."""
        state, node = self.state, self.node
        if not node.light:
            volumes.forget_memory(state.pod, starter.volumes_of(node, state))
        ends = state.terminal or state.deleting or self._refusal is not None
        if ends or state.restart_policy == NEVER:
            return
        if state.pod_ip and state.pod_ip != node.host_ip:
            node.addresses.free(state.pod_ip)
            state.pod_ip, state.sandbox = "", False
        node.event(state.pod, "Normal", "SandboxChanged", "Pod sandbox changed, it will be killed and re-created.")

    def _adopt_container(self, container: PodContainer, row: Object, left: leftovers.ContainerRun | None) -> None:
        node = self.node
        container.restarts = int(row.get("restartCount") or 0)
        container.id = str(row.get("containerID") or "").removeprefix("containerd://")
        current = row.get("state") or {}
        container.previous = container.ended = (row.get("lastState") or {}).get("terminated")
        if left is not None and left.id != container.id and left.attempt >= container.restarts and left.started:
            # It was started after the last status was written.
            container.ended = current.get("terminated") or container.ended
            container.id, container.restarts, container.started, current = (
                left.id,
                left.attempt,
                left.started,
                {"running": {}},
            )
        if "terminated" in current:
            container.phase, container.ended = Phase.ENDED, current["terminated"]
            container.finished = plan.seconds_of(container.ended.get("finishedAt"))
            container.started = plan.seconds_of(container.ended.get("startedAt"))
        elif "running" in current and container.id:
            container.started = plan.seconds_of(current["running"].get("startedAt")) or container.started
            adopted = self._find(container)
            if isinstance(adopted, Exit):
                self._ended(container, adopted)
            else:
                self._began(container, adopted or self._stand_in(container))
                if not probes.parse(container.spec, "Startup"):
                    container.ready = container.ready or bool(row.get("ready"))
        if node.is_former(container.id):  # a kubelet that starts remembers no back-off
            container.backoff = container.not_before = 0.0
            container.former = self.state.restart_policy != NEVER
        elif container.restarts and container.phase is not Phase.RUNNING:
            container.backoff = plan.backoff_after(container.restarts, scale=node.scale)
            container.not_before = container.finished + container.backoff

    def _find(self, container: PodContainer) -> Running | Exit | None:
        """What has become of a container that ran when its status was written; None for one that only pretended."""
        node = self.node
        folder = starter.folder_of(node, container.id)
        if node.is_former(container.id):
            # As containerd tells of what it finds after a start of the machine.
            return exit_of(folder) or Exit(code=255, finished=node.now(), reason="Unknown")
        adopted = node.runtime.adopt(folder, container.id)
        if adopted is None and not node.light and starter.is_process(node.runtime, container.spec):
            # Its files are gone with what knew how it ended.
            return Exit(code=137, finished=node.now(), signal=9)
        return adopted

    def _stand_in(self, container: PodContainer) -> StandIn:
        return StandIn(container.id, container.started, line=starter.stands_in(self.node, container.image))

    def _clean_up(self) -> None:
        state, node = self.state, self.node
        if state.pod_ip and state.pod_ip != node.host_ip:
            node.addresses.free(state.pod_ip)
        if node.light:
            return
        shutil.rmtree(node.folder / "pods" / state.uid, ignore_errors=True)
        shutil.rmtree(starter.log_path(node, state.pod, "x", 0).parent.parent, ignore_errors=True)
        for container in state.containers:
            if container.id:
                shutil.rmtree(starter.folder_of(node, container.id), ignore_errors=True)

    def _spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task
