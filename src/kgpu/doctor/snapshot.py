"""Everything that was seen of a cluster at one moment, indexed for rules: objects, events, logs and hosts.

Made by ``Snapshot.of`` from what the sources give; after that it is only read. ``missing`` says which evidence could
not be got. What several rules need is worked out once with ``once``.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from dataclasses import replace
from functools import cached_property
from typing import Any, Final, TypeVar

import msgspec

from kgpu.base.plain import mapping, text
from kgpu.doctor import host_facts, secrets
from kgpu.doctor.host_facts import HostFacts, Xid
from kgpu.doctor.kinds import Event, Log, Node, Pod, as_lines
from kgpu.doctor.model import Missing
from kgpu.doctor.objects import Key, Obj, lean, plain, seconds
from kgpu.doctor.read_kinds import kind_of
from kgpu.fit import read
from kgpu.fit.devices.judge import device_fitter
from kgpu.fit.model import PodView
from kgpu.fit.snapshot import ClusterSnapshot
from kgpu.formats.names import MIRROR_ANNOTATION

T = TypeVar("T")
C = TypeVar("C", bound=Obj)
R = TypeVar("R")

LOG_KIND: Final = "PodLog"
MAX_EVENTS: Final = 50_000
OVERDUE: Final = 300.0
"""Seconds after its time to end: what is still there then will not end by itself."""
_TYPES: Final[Mapping[str, type[Obj]]] = {"Pod": Pod, "Node": Node, "Event": Event}
_VOLUME_KINDS: Final = ("PersistentVolumeClaim", "PersistentVolume", "StorageClass")
_NO_VOLUMES: Final = Missing(
    "volumes of pods that wait",
    "claims, volumes and storage classes were not given",
    "kubectl get pvc,pv,sc -A -o yaml",
)
_SAID: Final = {
    "xid": "NVRM: Xid (PCI:0000:00:00): {}, pid=0",
    "sxid": "nvidia-nvswitch0: SXid (PCI:0000:00:00.0): {}, Non-fatal, Link 0",
}
"""A number as the kernel's log has it."""
_TIMES: Final = ("metadata.creationTimestamp", "lastTimestamp", "eventTime", "status.startTime")
"""The first is the API server's own; of the others anybody may write some."""


class Snapshot:
    """Read it through its attributes; all of them are there also where nothing was seen."""

    def __init__(self) -> None:
        self.nodes: dict[str, Node] = {}
        self.pods: dict[Key, Pod] = {}
        self.kinds: dict[str, dict[Key, Obj]] = {}
        """All other objects by kind, then by (namespace, name)."""
        self.logs: dict[Key, list[Log]] = {}
        self.hosts: dict[str, HostFacts] = {}
        self.missing: list[Missing] = []
        self._judge: Callable[[Iterable[str]], tuple[Xid, ...]] | None = None
        self.taken: float = 0.0
        """When it was taken, seconds since 1970: said by the source, else the latest time in any object."""
        self.timed = False
        """Whether the source says when: the times that users write then move nothing."""
        self.version: tuple[int, int] | None = None
        """The API server's version."""
        self.listed: set[str] = set()
        """Kinds of which everything there is was listed, so that what is not here does not exist."""
        self.texts: set[str] = set()
        """Files among others whose names do not say what they are: what they say a container may have printed."""
        self._events: dict[tuple[str, str, str], list[Event]] = {}
        self._seen_events = 0
        self._once: dict[Hashable, Any] = {}

    @classmethod
    def of(
        cls, objects: Iterable[Mapping[str, Any]], *, taken: float = 0.0, missing: Iterable[Missing] = (),
        listed: Iterable[str] = (), version: tuple[int, int] | None = None,
    ) -> Snapshot:  # fmt: skip
        """From documents of any kinds, those of this package (HostFacts, PodLog) among them."""
        snapshot = cls()
        for document in objects:
            snapshot.add(document)
        snapshot.missing += missing
        snapshot.listed |= set(listed)
        snapshot.version = version
        snapshot.taken = taken or snapshot.taken
        return snapshot

    def add(self, data: Any, source: str = "", *, leaned: bool = False) -> None:
        """One document. A List is taken apart; what is no object is left out; a later one of the same name wins."""
        if not isinstance(data, dict):
            return
        kind = text(data.get("kind"))
        if isinstance(data.get("items"), list) and (kind == "List" or kind.endswith("List") or not kind):
            of = kind.removesuffix("List")
            known = {"kind": of, "apiVersion": text(data.get("apiVersion"))} if of else {}
            for document in data["items"]:
                self.add({**known, **document} if isinstance(document, dict) else document, source, leaned=leaned)
            return
        special = _SPECIAL.get(kind)
        if special is not None:
            special(self, data, source)
            return
        if not kind:
            return
        kind = kind_of(kind, text(data.get("apiVersion")))
        obj = _TYPES.get(kind, Obj)(data if leaned else lean(data), source)
        if not obj.name:
            return
        if not isinstance(obj, Event) and (
            self._odd(kind, f"{obj.namespace}/{obj.name}", source) or self._forges(obj, source)
        ):
            return
        if isinstance(obj, Node):
            self.nodes[obj.name] = obj
        elif isinstance(obj, Pod):
            self.pods[obj.key] = obj
        elif isinstance(obj, Event):
            self._add_event(obj)
        else:
            self.kinds.setdefault(kind, {})[obj.key] = obj
        for path in self._times(source):
            self.taken = max(self.taken, seconds(obj.at(path)) or 0.0)

    def _add_event(self, event: Event) -> None:
        self._seen_events += 1
        if self._seen_events <= MAX_EVENTS:
            self._once.pop(Snapshot._current_events, None)
            self._events.setdefault(event.about, []).append(event)
        elif self._seen_events == MAX_EVENTS + 1:
            what = f"events after the first {MAX_EVENTS}"
            self.missing.append(Missing(what, "more are not read", "kubectl -n NAMESPACE get events"))

    def _times(self, source: str) -> tuple[str, ...]:
        """The fields by whose times it is known to have been taken later; clocks differ, so the API server's counts."""
        if source in self.texts:
            return ()
        return _TIMES[:1] if self.timed else _TIMES

    def _forges(self, obj: Obj, source: str) -> bool:
        """Whether a text that anybody may have written has an object that somebody else has too."""
        known = self.get(obj.kind, obj.name, obj.namespace) if source in self.texts else None
        return known is not None and known.source not in self.texts

    def _odd(self, kind: str, path: str, source: str) -> bool:
        """Whether no object may have such a name. It is told, and left out: names come into commands."""
        if plain(path) == path:
            return False
        what = f"{kind} {path.lstrip('/')}" + (f" in {source}" if source else "")
        how = "ask who has made it; it may be hostile"
        self.missing.append(Missing(what, "no object may have such a name", how))
        return True

    def _add_log(self, data: Mapping[str, Any], source: str) -> None:
        metadata = mapping(data.get("metadata"))
        self.add_log(
            Log(
                namespace=text(metadata.get("namespace")), pod=text(metadata.get("name")),
                container=text(data.get("container")), previous=data.get("previous") is True,
                lines=secrets.lines(as_lines(data.get("lines"))), file=source,
            )
        )  # fmt: skip

    def add_log(self, log: Log) -> None:
        self.logs.setdefault(log.key, []).append(log)

    def _add_host(self, data: Mapping[str, Any], source: str) -> None:
        try:
            facts = host_facts.decode(secrets.scrubbed(data))
        except (msgspec.ValidationError, TypeError, ValueError) as error:
            what = f"the facts of a host in {source or 'the input'}"
            self.missing.append(
                Missing(what, f"they can't be read: {error}", "collect them again: kgpu collect --host")
            )
            return
        if not self._odd("facts of node", facts.node, source):
            self.hosts[facts.node] = facts
            self._once.clear()  # what nodes have is known better now

    def sort(self) -> None:
        """By names: what rules find must not depend on the order in which a source lists things."""
        self.nodes = dict(sorted(self.nodes.items()))
        self.pods = dict(sorted(self.pods.items()))
        self.kinds = {kind: dict(sorted(objects.items())) for kind, objects in sorted(self.kinds.items())}

    def judged(self, judge: Callable[[Iterable[str]], tuple[Xid, ...]]) -> Snapshot:
        """Itself, with what the catalogue says of the numbers in kernel logs: their meaning, where nobody has judged
        them yet, and what is to be done about them, in any case.
        """
        self._judge = judge
        for name, host in self.hosts.items():
            read = judge(host.kernel_log) if host.kernel_log else ()
            advice = {(xid.kind, xid.code, xid.pci): xid.advice for xid in read}
            xids = (
                msgspec.structs.replace(
                    xid, advice=advice.get((xid.kind, xid.code, xid.pci)) or self.advice(xid.code, xid.kind)
                )
                for xid in host.xids
            )
            self.hosts[name] = msgspec.structs.replace(host, xids=tuple(xids) or read)
        return self

    # What rules ask

    def advice(self, code: int, kind: str = "xid") -> str:
        """What kgpu's own catalogue says is to be done about an Xid or SXid; "" where nobody is there to judge."""
        if self._judge is None:
            return ""
        found = self._judge([_SAID.get(kind, _SAID["xid"]).format(code)])
        return found[0].advice if found else ""

    def all(self, kind: str) -> Iterable[Obj]:
        """Every object of a kind that is none of nodes, pods, events."""
        return self.kinds.get(kind, {}).values()

    def get(self, kind: str, name: str, namespace: str = "") -> Obj | None:
        """One object; pods and nodes too."""
        if kind == "Node":
            return self.nodes.get(name)
        if kind == "Pod":
            return self.pods.get((namespace, name))
        return self.kinds.get(kind, {}).get((namespace, name))

    def knows(self, kind: str) -> bool:
        """Whether what is not here of a kind does not exist: all were listed, or some are here for sure."""
        found = self.nodes if kind == "Node" else self.kinds.get(kind, {})
        return kind in self.listed or any(one.source not in self.texts for one in found.values())

    def events(self, obj: Obj) -> list[Event]:
        """About an object, the latest first."""
        found = self._events.get((obj.kind, obj.namespace, obj.name)) or []
        if not found and not obj.namespace:  # events of nodes are in some namespace, but not so their subject
            found = self._events.get((obj.kind, "default", obj.name)) or []
        return sorted((one for one in found if _is_about(one, obj)), key=lambda one: -one.when)

    def all_events(self) -> Iterator[Event]:
        """All but those about a former object of a name that another has now: events outlive what they are about."""
        return iter(self.once(Snapshot._current_events))

    def _current_events(self) -> list[Event]:
        found: list[Event] = []
        for (kind, namespace, name), events in self._events.items():
            obj = self.get(kind, name, namespace)
            found += events if obj is None else (one for one in events if _is_about(one, obj))
        return found

    def logs_of(self, pod: Obj) -> list[Log]:
        """The logs of all containers of the pod."""
        return self.logs.get(pod.key, [])

    @cached_property
    def pods_by_node(self) -> dict[str, list[Pod]]:
        found: dict[str, list[Pod]] = {}
        for pod in self.pods.values():
            if pod.node:
                found.setdefault(pod.node, []).append(pod)
        return found

    @cached_property
    def pods_by_owner(self) -> dict[tuple[str, str], list[Pod]]:
        """By namespace and ``Kind/name`` of the controller."""
        found: dict[tuple[str, str], list[Pod]] = {}
        for pod in self.pods.values():
            if pod.owner:
                found.setdefault((pod.namespace, pod.owner), []).append(pod)
        return found

    def owners(self, one: Obj) -> Iterator[tuple[str, str, Obj | None]]:
        """Kind, name and object of an object's controller, of that one's, and so on; None, which ends it: not read."""
        seen: set[str] = set()
        at: Obj | None = one
        while at is not None and at.owner and at.owner not in seen:
            seen.add(at.owner)
            kind, _, name = at.owner.partition("/")
            at = self.get(kind, name, one.namespace)
            yield kind, name, at

    def pods_of(self, owner: Obj) -> list[Pod]:
        """A controller's pods; of a Deployment those of its ReplicaSets, of a CronJob those of its Jobs."""
        name = f"{owner.kind}/{owner.name}"
        found = list(self.pods_by_owner.get((owner.namespace, name), ()))
        for kind, one in self.makers_by_owner.get((owner.namespace, name), ()):
            found += self.pods_by_owner.get((one.namespace, f"{kind}/{one.name}"), ())
        return found

    @cached_property
    def makers_by_owner(self) -> dict[tuple[str, str], list[tuple[str, Obj]]]:
        """ReplicaSets and Jobs, each with its kind, by namespace and ``Kind/name`` of what has made them."""
        found: dict[tuple[str, str], list[tuple[str, Obj]]] = {}
        for kind in ("ReplicaSet", "Job"):
            for one in self.all(kind):
                if one.owner:
                    found.setdefault((one.namespace, one.owner), []).append((kind, one))
        return found

    @cached_property
    def fit(self) -> ClusterSnapshot:
        """The same cluster as kgpu's scheduler sees it."""
        found = ClusterSnapshot()
        for obj in (*self.nodes.values(), *(o for kind in read.READERS for o in self.all(kind)), *self.pods.values()):
            view = read.READERS[obj.kind](obj.data)
            if view is not None:
                found.put(view)
        if self.knows("ResourceSlice") and self.knows("DeviceClass"):
            slices, classes, claims = (
                [one.data for one in self.all(kind)] for kind in ("ResourceSlice", "DeviceClass", "ResourceClaim")
            )
            found.fitter = device_fitter(slices, classes, claims)
        return found

    def view(self, pod: Pod) -> PodView | None:
        """A pod as ``fit`` sees it."""
        view = self.fit.pods.get(pod.uid or pod.path) or read.pod(pod.data)
        if view is None or not view.volume_claims or all(map(self.knows, _VOLUME_KINDS)):
            return view
        if self.knows("PersistentVolumeClaim"):
            known = [self.fit.shelf.volume_claims.get((pod.namespace, name)) for name, _ in view.volume_claims]
            if all(claim is None or (claim.bound and claim.volume in self.fit.shelf.volumes) for claim in known):
                return view
        if pod.unplaced and _NO_VOLUMES not in self.missing:
            self.missing.append(_NO_VOLUMES)
        return replace(view, volume_claims=())  # of a volume that nobody has looked at nothing is known

    def age(self, when: str) -> float | None:
        """Seconds between a time and the moment of this snapshot, None when either is unknown."""
        began = seconds(when)
        return None if began is None or not self.taken else max(self.taken - began, 0.0)

    def overdue(self, obj: Obj) -> float | None:
        """Since how many seconds what is being deleted should be gone, None while it may still end by itself."""
        age = self.age(obj.text("metadata.deletionTimestamp"))  # of a pod: by then its time to end is over
        return None if age is None or age < OVERDUE else age

    def once(self, make: Callable[[Snapshot], R]) -> R:
        """What a function makes of this snapshot, worked out the first time only."""
        if make not in self._once:
            self._once[make] = make(self)
        found: R = self._once[make]
        return found

    def counts(self) -> dict[str, int]:
        """How much there is of what."""
        found = {"nodes": len(self.nodes), "pods": len(self.pods), "events": min(self._seen_events, MAX_EVENTS)}
        found |= {
            "logs": sum(map(len, self.logs.values())),
            "hosts": sum(not host.hollow for host in self.hosts.values()),
        }
        found["other objects"] = sum(map(len, self.kinds.values()))
        return found


def _is_about(event: Event, obj: Obj) -> bool:
    """Whether an event of an object's kind and name is about this very one. Node events and those of static pods carry
    another uid than the object's, which is no sign of anything.
    """
    said = event.text("involvedObject.uid") or event.text("regarding.uid")
    return said in ("", obj.uid) or not obj.uid or not obj.namespace or MIRROR_ANNOTATION in obj.annotations


_SPECIAL: Final[Mapping[str, Callable[[Snapshot, Mapping[str, Any], str], None]]] = {
    LOG_KIND: Snapshot._add_log,
    host_facts.KIND: Snapshot._add_host,
}
