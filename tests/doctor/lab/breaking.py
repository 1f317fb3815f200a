"""Breaking a lab and looking at it: one breakage is data (``Break``), its steps are done, looked at, and taken back.

``play`` waits until the doctor's first finding is the one wanted, asks for evidence and a remedy, takes every step back
and waits until the doctor finds nothing at all: so each breakage begins on a healthy cluster.
"""

from __future__ import annotations

import asyncio
import datetime as dt
import os
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol, TypeAlias

from kgpu.cli.doctor import look, parse_target
from kgpu.cli.main import main
from kgpu.doctor.model import Report
from kgpu.doctor.render import as_text
from kgpu.hw.simulator import kernel_log, mig, operate
from kgpu.kube.client import Client, connect
from kgpu.kube.port import KubeRefusedError, Object, Patch, Resource
from kgpu.lab.embedded.lab import EmbeddedLab
from kgpu.lab.nodes import manage
from kgpu.lab.nodes.folder import has_operator
from tests import polling
from tests.doctor.lab.urgency import sureness
from tests.doctor.pasting import problems

WAIT_S = 300.0
POLL_S = 0.4
Undo: TypeAlias = Callable[[], None]


class Ground:
    """A running lab: its API, its nodes' hardware, and the doctor that looks at it as a user would."""

    def __init__(self, lab: EmbeddedLab) -> None:
        self.lab = lab
        self._runner = asyncio.Runner()
        self._api: Client = self.wait(_connected(str(lab.kubeconfig)))
        self._served: dict[str, Resource] = {}
        self.settled: dict[str, Object] = {}
        """What its nodes offer while nothing is broken; by ``labs.settle``."""

    def close(self) -> None:
        self.wait(self._api.close())
        self._runner.close()

    def wait(self, call: Any) -> Any:
        return self._runner.run(call)

    @property
    def api(self) -> Client:
        return self._api

    def resource(self, kind: str) -> Resource:
        """A kind that is served, or will be in a moment."""
        deadline = time.monotonic() + WAIT_S
        while kind not in self._served:
            self._served = {
                one.kind: one for one in self.wait(self._api.discover()).resources if one.group != "events.k8s.io"
            }
            assert kind in self._served or time.monotonic() < deadline, f"{kind} is not served"
        return self._served[kind]

    @property
    def operated(self) -> bool:
        """Whether kgpu's operator runs the agents."""
        return has_operator(manage.nodes_dir(self.lab.folder))

    def policy_state(self) -> str:
        """What the operator says of its ClusterPolicy."""
        found = self.get("ClusterPolicy", "cluster-policy") or {}
        return str((found.get("status") or {}).get("state"))

    def hardware(self, node: str) -> Path:
        return manage.hw_root(self.lab.folder, node)

    def look(self, target: str = "", host: str = "") -> Report:
        """What ``kgpu doctor TARGET`` finds, or ``kgpu doctor --host`` on a node."""
        root = str(self.hardware(host)) if host else ""
        kubeconfig = "" if host else str(self.lab.kubeconfig)
        found: Report = self.wait(look(parse_target(tuple(target.split()), ""), "", kubeconfig, root))
        return found

    def get(self, kind: str, path: str) -> Object | None:
        namespace, _, name = path.rpartition("/")
        found: Object | None = self.wait(self._api.get(self.resource(kind), name, namespace=namespace))
        return found

    def offered(self) -> dict[str, Object]:
        """What each node has for pods; a resource that a kubelet once had stays with it as 0."""
        found = {}
        for node in self.wait(self._api.list(self.resource("Node"))).items:
            amounts = (node.get("status") or {}).get("allocatable") or {}
            found[node["metadata"]["name"]] = {name: amount for name, amount in amounts.items() if amount != "0"}
        return found


async def _connected(kubeconfig: str) -> Client:
    return connect(kubeconfig)


class Step(Protocol):
    """One thing that is done to a lab; what it gives back undoes it."""

    def do(self, ground: Ground) -> Undo: ...


def until(condition: Callable[[], bool], what: Callable[[], str] | str) -> None:
    if not polling.holds(condition, seconds=WAIT_S, pause=POLL_S):
        raise AssertionError(f"not within {WAIT_S:g} s: {what if isinstance(what, str) else what()}")


@dataclass(frozen=True, slots=True)
class Make:
    """Creates objects, with their status where they have one: that is then played, not made by a controller."""

    objects: tuple[Object, ...]

    def do(self, ground: Ground) -> Undo:
        made: list[Object] = []

        def undo() -> None:
            for one in reversed(made):
                _delete(ground, one)

        try:
            made.extend(_create(ground, one) for one in self.objects)
        except BaseException:
            undo()
            raise
        return undo


def _create(ground: Ground, obj: Object) -> Object:
    resource = ground.resource(obj["kind"])
    status = obj.get("status")
    body = {"apiVersion": resource.api_version, **{key: value for key, value in obj.items() if key != "status"}}
    made: Object = ground.wait(ground.api.create(resource, body))
    if status is not None:
        _played(ground, resource, made, status)
    return made


def _played(ground: Ground, resource: Resource, obj: Object, status: Object) -> None:
    metadata = obj["metadata"]
    place = {"namespace": metadata.get("namespace", "")}
    try:
        ground.wait(ground.api.patch(resource, metadata["name"], {"status": status}, subresource="status", **place))
    except KubeRefusedError as error:
        if error.code != 404:  # a kind whose status is no subresource
            raise
        ground.wait(ground.api.patch(resource, metadata["name"], {"status": status}, **place))


def _delete(ground: Ground, obj: Object) -> None:
    resource, metadata = ground.resource(obj["kind"]), obj["metadata"]
    name, place = metadata["name"], {"namespace": metadata.get("namespace", "")}

    def gone() -> bool:
        now = ground.wait(ground.api.get(resource, name, **place))
        if now is not None and now["metadata"].get("finalizers"):
            try:
                ground.wait(ground.api.patch(resource, name, {"metadata": {"finalizers": None}}, **place))
            except KubeRefusedError as error:
                if error.code != 404:  # it went by itself meanwhile
                    raise
        return now is None

    ground.wait(ground.api.delete(resource, name, grace=0, propagation="Background", **place))
    until(gone, f"{obj['kind']} {name} is gone")


@dataclass(frozen=True, slots=True)
class Change:
    """Patches an object that is there; undone by the patch that leads back."""

    kind: str
    path: str
    change: Object
    subresource: str = ""

    def do(self, ground: Ground) -> Undo:
        resource = ground.resource(self.kind)
        namespace, _, name = self.path.rpartition("/")
        before = ground.get(self.kind, self.path)
        assert before is not None, f"there is no {self.kind} {self.path}"

        def patch(change: Object) -> None:
            ground.wait(ground.api.patch(resource, name, change, namespace=namespace, subresource=self.subresource))

        patch(self.change)
        return lambda: patch(inverse(self.change, before))


def inverse(change: Mapping[str, Any], before: Mapping[str, Any]) -> Object:
    """The merge patch that undoes a merge patch of what was there before."""
    back: Object = {}
    for key, value in change.items():
        was = before.get(key)
        back[key] = inverse(value, was) if isinstance(value, dict) and isinstance(was, dict) else was
    return back


@dataclass(frozen=True, slots=True)
class Conditioned:
    """A condition that a watcher on the node sets, as node-problem-detector does, and takes back."""

    node: str
    type: str
    reason: str
    message: str

    def do(self, ground: Ground) -> Undo:
        now = dt.datetime.now(dt.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        times = {"lastHeartbeatTime": now, "lastTransitionTime": now}

        def say(status: str, reason: str, message: str) -> None:
            row = {"type": self.type, "status": status, "reason": reason, "message": message, **times}
            ground.wait(
                ground.api.patch(
                    ground.resource("Node"), self.node, {"status": {"conditions": [row]}}, subresource="status",
                    kind=Patch.STRATEGIC,
                )
            )  # fmt: skip

        say("True", self.reason, self.message)
        return lambda: say("False", "Well", "")


@dataclass(frozen=True, slots=True)
class Gone:
    """Asks for the end of an object that an earlier step has made, and that may not go yet."""

    kind: str
    path: str

    def do(self, ground: Ground) -> Undo:
        namespace, _, name = self.path.rpartition("/")
        ground.wait(ground.api.delete(ground.resource(self.kind), name, namespace=namespace))
        return lambda: None


@dataclass(frozen=True, slots=True)
class Fault:
    """A fault of a simulated GPU, as ``kgpu lab hw inject`` makes it."""

    node: str
    fault: str
    about: Mapping[str, Any] = field(default_factory=dict)

    def do(self, ground: Ground) -> Undo:
        root = ground.hardware(self.node)
        operate.inject(root, self.fault, **self.about)

        def repaired() -> None:
            operate.clear(root)
            _said_well(root, ground.lab.nodes / self.node / "host" / "state")

        return repaired


def _said_well(root: Path, state: Path) -> None:
    """As whoever has repaired it says: what the kernel's log has of it counts no more."""
    if state.is_dir():
        assert main(["kgpu", "health", "set-healthy", "all", "--host-root", str(root), "--state-dir", str(state)]) == 0


@dataclass(frozen=True, slots=True)
class KernelSays:
    """An Xid in the kernel's log alone."""

    node: str
    gpu: int
    xid: int
    text: str

    def do(self, ground: Ground) -> Undo:
        root = ground.hardware(self.node)
        kernel_log.xid(root, operate.snapshot(root)["gpus"][self.gpu]["pci_bus_id"], self.xid, self.text)
        return lambda: _said_well(root, ground.lab.nodes / self.node / "host" / "state")


@dataclass(frozen=True, slots=True)
class Sliced:
    """GPUs of a node cut into MIG slices behind everybody's back."""

    node: str
    gpus: Mapping[int, tuple[str, ...]]

    def do(self, ground: Ground) -> Undo:
        root = ground.hardware(self.node)
        for gpu, profiles in self.gpus.items():
            mig.partition(root, gpu, profiles)

        def undo() -> None:
            for gpu in self.gpus:
                mig.disable(root, gpu)

        return undo


@dataclass(frozen=True, slots=True)
class KernelLine:
    """Any other line in the kernel's log; undone by a reboot, after which it begins anew."""

    node: str
    text: str

    def do(self, ground: Ground) -> Undo:
        root = ground.hardware(self.node)
        log = root / kernel_log.PATH
        kernel_log.say(root, self.text)
        return lambda: os.truncate(log, 0)


@dataclass(frozen=True, slots=True)
class HostFile:
    """A file of a node's own system, for what ``kgpu doctor --host`` reads; ``text`` None takes it away."""

    node: str
    path: str
    text: str | None

    def do(self, ground: Ground) -> Undo:
        place = ground.hardware(self.node) / self.path
        aside = place.with_name(f"{place.name}.aside")
        place.parent.mkdir(parents=True, exist_ok=True)
        if place.exists():
            place.rename(aside)
        if self.text is not None:
            place.write_text(self.text)

        def undo() -> None:
            place.unlink(missing_ok=True)
            if aside.exists():
                aside.rename(place)

        return undo


@dataclass(frozen=True, slots=True)
class Replaced:
    """A folder of a node (``cdi``: its CDI specs) whose files are put away, and ``files`` in their place."""

    node: str
    folder: str
    files: Mapping[str, str]

    def do(self, ground: Ground) -> Undo:
        place = ground.lab.nodes / self.node / self.folder
        before = {one.name: one.read_bytes() for one in place.iterdir()}
        for name in before:
            (place / name).unlink()
        for name, text in self.files.items():
            (place / name).write_text(text)

        def undo() -> None:
            for name in self.files:
                (place / name).unlink(missing_ok=True)
            for name, data in before.items():
                (place / name).write_bytes(data)

        return undo


@dataclass(frozen=True, slots=True)
class Until:
    """Waits for what the breakage needs to have happened: a value in an object."""

    kind: str
    path: str
    field: tuple[str, ...]
    value: Any

    def do(self, ground: Ground) -> Undo:
        def there() -> bool:
            found: Any = ground.get(self.kind, self.path)
            for key in self.field:
                found = (found or {}).get(key)
            return bool(found == self.value)

        until(there, lambda: f"{self.kind} {self.path} has {'.'.join(self.field)} = {self.value}")
        return lambda: None


@dataclass(frozen=True, slots=True, kw_only=True)
class Break:
    """One way to break a lab.

    ``first`` is the id that must come first; ``names`` must be in that finding's subject or cause. ``target``: the
    doctor is asked about that object too, and says the same. ``host``: what is broken can be seen on that node alone.
    ``played`` tells what no lab can do by itself, so that its outcome was written into a status or an event by hand.
    """

    what: str
    first: str
    names: str
    steps: tuple[Step, ...]
    target: str = ""
    host: str = ""
    played: str = ""

    def __str__(self) -> str:
        return f"{self.first} {self.what}"


def rightly(report: Report, wanted: Break) -> bool:
    """Whether the first finding is the one wanted, and about the object at fault."""
    if not report.findings or report.findings[0].id != wanted.first:
        return False
    first = report.findings[0]
    return wanted.names in str(first.subject) or wanted.names in first.cause


def play(ground: Ground, wanted: Break) -> Report:
    """Break it, see that the doctor says why, repair it, see that the doctor is content. What it said."""
    undos: list[Undo] = []
    try:
        undos.extend(step.do(ground) for step in wanted.steps)
        report = first_rightly(ground, wanted)
        first = report.findings[0]
        assert first.remedy, as_text(report)
        assert any(one.value for one in first.evidence), as_text(report)
        assert [what for root in report.findings for one in root.all() for what in problems(one.remedy)] == []
        if wanted.target:
            exact = ground.look(wanted.target)
            assert rightly(exact, wanted), as_text(exact)
        return report
    finally:
        for undo in reversed(undos):
            undo()
        healthy(ground, wanted.host)


def first_rightly(ground: Ground, wanted: Break) -> Report:
    """The report once it says the same, rightly and as sure as it should be, twice in a row: what is passing does not
    count.
    """
    said = Report()
    right = 0

    def seen() -> bool:
        nonlocal said, right
        said = ground.look(host=wanted.host)
        sure = rightly(said, wanted) and sureness(wanted) in ("", said.findings[0].sureness)
        right = right + 1 if sure else 0
        return right > 1

    until(seen, lambda: f"{wanted.first} about {wanted.names}, {sureness(wanted)}, but:\n{as_text(said)}")
    return said


def healthy(ground: Ground, host: str = "") -> None:
    """Wait until the doctor has nothing to tell, and nodes offer what they did at first.

    Without that the next breakage would take what the last one left for its own.
    """
    said, offered = Report(), ground.settled

    def nothing() -> bool:
        nonlocal said, offered
        said, offered = ground.look(host=host), ground.offered()
        return not said.findings and offered == ground.settled

    until(nothing, lambda: f"no finding and {ground.settled}, but:\n{as_text(said)}\n{offered}")
