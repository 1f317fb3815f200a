"""Pods, nodes, events and logs with names for what rules ask of them; everything else is a plain ``Obj``."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from kgpu.base.plain import items, mapping, number, text
from kgpu.doctor.model import Evidence, in_file
from kgpu.doctor.objects import Key, Obj, at, plain, seconds

_LISTS: Final = (
    ("initContainers", "initContainerStatuses"),
    ("containers", "containerStatuses"),
)

UNSTARTED: Final = frozenset({"StartError", "ContainerCannotRun"})
"""Termination reasons of containers whose program never ran."""


def mounted_config_maps(owner: Obj, path: str = "spec") -> frozenset[str]:
    """The names of the ConfigMaps that a pod mounts, by themselves or in a projected volume. ``path`` is where its spec
    is: of a controller ``spec.template.spec``.
    """
    volumes = owner.maps(f"{path}.volumes")
    sources = (
        mapping(source) for volume in volumes for source in items(mapping(volume.get("projected")).get("sources"))
    )
    names = (text(mapping(source.get("configMap")).get("name")) for source in (*volumes, *sources))
    return frozenset(names) - {""}


class Container:
    """A container of a pod (or of a template): its spec, and its status as far as there is one."""

    __slots__ = ("_env", "_owner", "_path", "_status_path", "_words", "init", "spec", "status")

    def __init__(self, owner: Obj, path: str, spec: Mapping[str, Any], *, init: bool) -> None:
        self._owner, self._path, self.spec, self.init = owner, path, spec, init
        self.status: Mapping[str, Any] = {}
        self._status_path = ""
        self._words: tuple[str, ...] | None = None  # each rule asks anew
        self._env: dict[str, str] | None = None

    @property
    def name(self) -> str:
        return text(self.spec.get("name"))

    @property
    def image(self) -> str:
        return text(self.spec.get("image"))

    @property
    def words(self) -> tuple[str, ...]:
        """Command and arguments."""
        if self._words is None:
            both = (*items(self.spec.get("command")), *items(self.spec.get("args")))
            self._words = tuple(word for word in both if isinstance(word, str))
        return self._words

    @property
    def env(self) -> dict[str, str]:
        """Variables with a plain value; one whose value is a reference is there as ""."""
        if self._env is None:
            rows = (mapping(row) for row in items(self.spec.get("env")))
            self._env = {text(row.get("name")): text(row.get("value")) for row in rows if text(row.get("name"))}
        return self._env

    @property
    def limits(self) -> Mapping[str, Any]:
        return mapping(at(self.spec, "resources.limits"))

    @property
    def requests(self) -> Mapping[str, Any]:
        return mapping(at(self.spec, "resources.requests"))

    @property
    def ready(self) -> bool:
        return self.status.get("ready") is True

    @property
    def sidecar(self) -> bool:
        """An init container that does not end: it runs beside the others, which begin once it has started."""
        return self.init and self.spec.get("restartPolicy") == "Always"

    @property
    def started(self) -> bool:
        """Whether it runs and has passed its startup probe."""
        return self.state == "running" and self.status.get("started") is True

    @property
    def restarts(self) -> int:
        return number(self.status.get("restartCount"))

    @property
    def state(self) -> str:
        """``waiting``, ``running``, ``terminated``, "" where nobody has said."""
        return next(iter(mapping(self.status.get("state"))), "")

    @property
    def waiting(self) -> str:
        """The word for why it waits: CrashLoopBackOff, ImagePullBackOff, PodInitializing, ... ; "" otherwise."""
        return text(at(self.status, "state.waiting.reason"))

    @property
    def messages(self) -> tuple[tuple[str, str], ...]:
        """What the kubelet says of waiting, of the end and of the last end, each with ``state`` or ``lastState``."""
        places = (("state", "waiting"), ("state", "terminated"), ("lastState", "terminated"))
        rows = ((field, text(at(self.status, f"{field}.{word}.message"))) for field, word in places)
        return tuple((field, message) for field, message in rows if message)

    @property
    def message(self) -> str:
        """All ``messages``, one to a line: a back-off says only that it waits, the last end says why."""
        return "\n".join(message for _, message in self.messages)

    def is_own_message(self, field: str) -> bool:
        """Whether the message of its end, of ``state`` or ``lastState``, is what its program has left there itself
        (``terminationMessagePath``): of what was never started it is the engine's.
        """
        reason = text(at(self.status, f"{field}.terminated.reason"))
        return bool(reason) and reason not in UNSTARTED

    @property
    def exit_code(self) -> int | None:
        """The exit code with which it last ended, None if it never has."""
        for place in ("state.terminated.exitCode", "lastState.terminated.exitCode"):
            code = at(self.status, place)
            if isinstance(code, int) and not isinstance(code, bool):
                return code
        return None

    @property
    def end_reason(self) -> str:
        """``OOMKilled``, ``Error``, ``Completed``, ... of the last end."""
        places = ("state.terminated.reason", "lastState.terminated.reason")
        return next((reason for place in places if (reason := text(at(self.status, place)))), "")

    def cite(self, path: str) -> Evidence:
        """A field of its spec."""
        return self._owner.cite(f"{self._path}.{path}")

    def cite_status(self, path: str = "state") -> Evidence:
        """A field of its status."""
        if not self._status_path:
            return Evidence(object=str(self._owner), field=f"container {self.name}", value="no status")
        words = state_in_words(at(self.status, path)) if path in ("state", "lastState") else None
        return self._owner.cite(f"{self._status_path}.{path}", words)


def state_in_words(state: Any) -> str | None:
    """A container's state as a sentence has it: ``waiting: CrashLoopBackOff (back-off 20s ...)``, or ``ended with exit
    code 3 (Error) at 11:59``; None for what is no state.
    """
    if not isinstance(state, dict):
        return None
    if isinstance(now := state.get("waiting"), dict):
        message = text(now.get("message"))
        return f"waiting: {text(now.get('reason')) or 'for no reason given'}" + (f" ({message})" if message else "")
    if isinstance(end := state.get("terminated"), dict):
        code, why, when = end.get("exitCode"), text(end.get("reason")), text(end.get("finishedAt"))
        number_ = f"exit code {code}" if isinstance(code, int) else "no exit code"
        message = text(end.get("message"))
        return (
            f"ended with {number_}"
            + (f" ({why})" if why else "")
            + (f" at {when}" if when else "")
            + (f": {message}" if message else "")
        )
    if isinstance(runs := state.get("running"), dict):
        began = text(runs.get("startedAt"))
        return "running" + (f" since {began}" if began else "")
    return None


def containers_of(owner: Obj, base: str = "spec", status: str = "status") -> Iterator[Container]:
    """Init containers first. ``base`` is where the pod's spec is: ``spec.template.spec`` for a DaemonSet."""
    for field, status_field in _LISTS:
        statuses = {
            text(entry.get("name")): (position, entry)
            for position, entry in enumerate(
                map(mapping, items(owner.at(f"{status}.{status_field}") if status else ()))
            )
        }
        for position, spec in enumerate(items(owner.at(f"{base}.{field}"))):
            if not isinstance(spec, dict):
                continue
            container = Container(owner, f"{base}.{field}[{position}]", spec, init=field == "initContainers")
            if container.name in statuses:
                number_, container.status = statuses[container.name]
                container._status_path = f"{status}.{status_field}[{number_}]"
            yield container


class Pod(Obj):
    """A pod."""

    __slots__ = ("_containers", "_ready", "_requests", "node", "phase")

    def __init__(self, data: Mapping[str, Any], source: str = "") -> None:
        super().__init__(data, source)
        self._containers: tuple[Container, ...] | None = None
        self._ready: bool | None = None
        self._requests: Mapping[str, int] | None = None
        self.node = plain(self.text("spec.nodeName"))
        self.phase = self.text("status.phase")

    @property
    def ended(self) -> bool:
        return self.phase in ("Succeeded", "Failed")

    @property
    def unplaced(self) -> bool:
        """True while no node has been found for it."""
        return not self.node and not self.ended and not self.deleting

    @property
    def containers(self) -> tuple[Container, ...]:
        """Init containers first."""
        if self._containers is None:  # each rule asks anew
            self._containers = tuple(containers_of(self))
        return self._containers

    @property
    def blamed(self) -> tuple[Container, ...]:
        """Containers in the order in which to look for a fault: init containers, main containers, sidecars. The kubelet
        ends sidecars after the others, so how they end says nothing.
        """
        return tuple(sorted(self.containers, key=lambda container: container.sidecar))

    @property
    def ready(self) -> bool:
        if self._ready is None:
            condition = self.condition("Ready")
            self._ready = condition is not None and condition.status == "True"
        return self._ready

    @property
    def reason(self) -> str:
        """``status.reason``: Evicted, UnexpectedAdmissionError, TopologyAffinityError, ..."""
        return self.text("status.reason")

    @property
    def message(self) -> str:
        return self.text("status.message")

    @property
    def runtime_class(self) -> str:
        return self.text("spec.runtimeClassName")

    @property
    def scheduler(self) -> str:
        return self.text("spec.schedulerName") or "default-scheduler"

    @property
    def requests(self) -> Mapping[str, int]:
        """What it asks for, by resource, in whole pieces; init containers count as more."""
        if self._requests is None:  # each rule asks anew
            self._requests = requests_of(self.map("spec"))
        return self._requests

    def asks(self, resource: str) -> int:
        """How many of a resource its containers ask for together."""
        return self.requests.get(resource, 0)


def requests_of(spec: Mapping[str, Any]) -> dict[str, int]:
    """What a pod of such a spec asks for, by resource, in whole pieces."""
    from kgpu.fit.resources import amounts, pod_requests

    return amounts(pod_requests(spec, []))


class Node(Obj):
    """A node."""

    __slots__ = ("_resources",)

    def __init__(self, data: Mapping[str, Any], source: str = "") -> None:
        super().__init__(data, source)
        self._resources: frozenset[str] | None = None

    @property
    def ready(self) -> bool | None:
        condition = self.condition("Ready")
        return None if condition is None else condition.status == "True"

    @property
    def cordoned(self) -> bool:
        return self.at("spec.unschedulable") is True

    @property
    def taints(self) -> list[Mapping[str, Any]]:
        return self.maps("spec.taints")

    @property
    def kernel(self) -> str:
        return self.text("status.nodeInfo.kernelVersion")

    @property
    def os_image(self) -> str:
        return self.text("status.nodeInfo.osImage")

    @property
    def architecture(self) -> str:
        return self.text("status.nodeInfo.architecture")

    @property
    def kubelet(self) -> str:
        """``v1.35.1``."""
        return self.text("status.nodeInfo.kubeletVersion")

    @property
    def runtime(self) -> tuple[str, str]:
        """``("containerd", "2.1.4")``."""
        name, _, version = self.text("status.nodeInfo.containerRuntimeVersion").partition("://")
        return name, version

    def capacity(self, resource: str) -> int | None:
        """In whole pieces, None where the node does not have that resource at all."""
        return self._amount("capacity", resource)

    def allocatable(self, resource: str) -> int | None:
        return self._amount("allocatable", resource)

    def _amount(self, field: str, resource: str) -> int | None:
        path = f"status.{field}[{resource}]"
        return None if self.at(path) is None else self.number(path)

    def resources(self) -> frozenset[str]:
        """Every resource with a domain that it has or had (an amount of 0 counts)."""
        if self._resources is None:
            resources = {*self.map("status.capacity"), *self.map("status.allocatable")}
            self._resources = frozenset(name for name in resources if "/" in name)
        return self._resources


class Event(Obj):
    """An event, of either API group."""

    __slots__ = ()

    @property
    def about(self) -> tuple[str, str, str]:
        """Kind, namespace and name of what it is about."""
        about = self.map("involvedObject") or self.map("regarding")
        return plain(text(about.get("kind"))), plain(text(about.get("namespace"))), plain(text(about.get("name")))

    @property
    def reason(self) -> str:
        return self.text("reason")

    @property
    def message(self) -> str:
        return self.text("message") or self.text("note")

    @property
    def warning(self) -> bool:
        return self.text("type") == "Warning"

    @property
    def first(self) -> str:
        return self.text("firstTimestamp") or self.text("eventTime") or self.created

    @property
    def last(self) -> str:
        return (
            self.text("series.lastObservedTime")
            or self.text("lastTimestamp")
            or self.text("deprecatedLastTimestamp")
            or self.first
        )

    @property
    def when(self) -> float:
        return seconds(self.last) or 0.0

    def quote(self) -> Evidence:
        """Its reason and message."""
        kind, namespace, name = self.about
        place = f"{namespace}/{name}" if namespace else name
        return Evidence(
            object=f"Event of {kind} {place}", field=self.reason, value=self.message, file=self.source,
            author=self.namespace,
        )  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Log:
    """The last lines of a container's log. ``first_line`` is the number of the first line kept, from 1."""

    namespace: str
    pod: str
    container: str = ""
    previous: bool = False
    lines: tuple[str, ...] = ()
    file: str = ""
    said_in: str = ""
    """The text in which it was found, where another container may have written it there."""

    @property
    def key(self) -> Key:
        return (self.namespace, self.pod)

    @property
    def title(self) -> str:
        container = f" container {self.container}" if self.container else ""
        return f"log of Pod {self.namespace}/{self.pod}{container}{' (before its restart)' if self.previous else ''}"

    def cite(self, position: int) -> Evidence:
        """A line by its position in ``lines``."""
        author = in_file(self.said_in) if self.said_in else self.namespace
        return Evidence(file=self.file or self.title, line=position + 1, value=self.lines[position], author=author)


def as_lines(said: Any) -> Sequence[str]:
    """Lines given as one text or as a list."""
    if isinstance(said, str):
        return said.splitlines()
    return [line for line in items(said) if isinstance(line, str)]
