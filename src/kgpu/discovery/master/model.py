"""What the controller works on, as plain data: Nodes, NodeFeatures and rules, reduced to what decides."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from kgpu.base.advice import Advice
from kgpu.base.plain import items, mapping, number, text
from kgpu.discovery.features.model import FeatureSet
from kgpu.discovery.master.sharing import FeatureShare
from kgpu.discovery.rules.decode import ObjectFlaw, feature_spec, read_group, read_rules
from kgpu.discovery.rules.model import GroupSource, RuleSource, feature_set
from kgpu.discovery.rules.outputs import OutputLimits
from kgpu.fit.selectors import LabelSelector
from kgpu.formats import names
from kgpu.kube.port import Object, name_of, namespace_of, version_of

PART: Final = "part"
"""The key of a reduced object under which its part is kept."""
USUAL: Final = "true"
"""What kgpu's mark on a Node says where it keeps the usual lists; otherwise it names the instance."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MasterSettings:
    """``namespace`` is the operator's. NodeFeatures and groups of others are not used, as any tenant could write them,
    but for those of ``namespaces``, which the administrator chooses by their labels.

    Without ``overwrite`` a name that a Node has from somebody else stays as it is. Without ``foreign_labels`` labels
    are taken from what the node's own agent says alone. ``instance`` is whose lists on Nodes are kept, "" for the usual
    ones. ``groups``: NodeFeatureGroups are filled.
    """

    namespace: str
    limits: OutputLimits = field(default_factory=OutputLimits)
    overwrite: bool = True
    foreign_labels: bool = True
    namespaces: LabelSelector | None = None
    instance: str = ""
    groups: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class TrackingLists:
    """The annotations of a Node in which an instance keeps what it has given: lists of names, separated by commas."""

    labels: str
    annotations: str
    resources: str
    taints: str

    @classmethod
    def of(cls, instance: str) -> TrackingLists:
        """``nfd.node.kubernetes.io/...``, or ``<instance>.nfd.node.kubernetes.io/...``."""
        begin = f"{instance}." if instance else ""
        return cls(
            labels=begin + names.NFD_TRACKING_ANNOTATION,
            annotations=begin + names.NFD_TRACKED_ANNOTATIONS,
            resources=begin + names.NFD_TRACKED_RESOURCES,
            taints=begin + names.NFD_TRACKED_TAINTS,
        )

    @property
    def keys(self) -> tuple[str, ...]:
        """All of them."""
        return self.labels, self.annotations, self.resources, self.taints


@dataclass(frozen=True, slots=True, kw_only=True)
class TrackedNode:
    """A Node as far as rules change it. ``resources`` is its capacity."""

    name: str
    uid: str = ""
    version: str = field(default="", compare=False)
    labels: Mapping[str, str] = field(default_factory=dict)
    annotations: Mapping[str, str] = field(default_factory=dict)
    taints: tuple[Mapping[str, str], ...] = ()
    resources: Mapping[str, str] = field(default_factory=dict)

    @property
    def marked(self) -> bool:
        """Whether kgpu keeps its lists."""
        return names.LABEL_FEATURE_RULES in self.labels

    @property
    def instance(self) -> str:
        """Which lists kgpu keeps there."""
        mark = self.labels.get(names.LABEL_FEATURE_RULES, USUAL)
        return "" if mark == USUAL else mark


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredFeature:
    """A NodeFeature: what one program has found on ``node``; nothing where it is of a namespace that is not used.
    ``ours``: an agent of kgpu has written it, and ``own``: it is where that would write it.
    """

    namespace: str
    name: str
    uid: str
    version: str = field(compare=False)
    node: str
    used: bool
    own: bool = True
    ours: bool = False
    features: FeatureSet = FeatureSet()  # noqa: RUF009 - it is frozen
    labels: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredRules:
    """A NodeFeatureRule, and what is wrong with it."""

    source: RuleSource
    uid: str
    version: str = field(compare=False)
    flaws: tuple[ObjectFlaw, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredGroup:
    """A NodeFeatureGroup, what is wrong with it, and the nodes that its status has. ``generation`` is its spec's; of a
    group whose namespace is not used there is no rule.
    """

    namespace: str
    uid: str
    generation: int
    used: bool
    source: GroupSource
    members: tuple[str, ...] = ()
    flaws: tuple[ObjectFlaw, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ToldProblem:
    """What an administrator is told, and the object (without a namespace) that the Event is about."""

    advice: Advice
    kind: str
    name: str
    uid: str = ""


def node_of(obj: Object) -> TrackedNode:
    """A Node object."""
    metadata, spec, status = (mapping(obj.get(part)) for part in ("metadata", "spec", "status"))
    return TrackedNode(
        name=name_of(obj),
        uid=text(metadata.get("uid")),
        version=version_of(obj),
        labels=_texts(metadata.get("labels")),
        annotations=_texts(metadata.get("annotations")),
        taints=tuple(
            {key: str(taint[key]) for key in ("key", "value", "effect", "timeAdded") if taint.get(key)}
            for taint in map(mapping, items(spec.get("taints")))
        ),
        resources={key: value for key, value in _texts(status.get("capacity")).items() if "/" in key},
    )


def feature_of(obj: Object, settings: MasterSettings, share: FeatureShare, *, used: bool) -> StoredFeature:
    """A NodeFeature object; of a namespace that is not used nothing but whose it is."""
    own = namespace_of(obj) == settings.namespace
    spec = feature_spec(obj) if used else None
    labels = mapping(mapping(obj.get("metadata")).get("labels"))
    return StoredFeature(
        namespace=namespace_of(obj),
        name=name_of(obj),
        uid=text(mapping(obj.get("metadata")).get("uid")),
        version=version_of(obj),
        node=text(labels.get(names.NFD_NODE_NAME_LABEL)),
        used=used,
        own=own and name_of(obj) == labels.get(names.NFD_NODE_NAME_LABEL),
        ours=own and labels.get(names.PART_OF_LABEL) == names.KGPU,
        features=share.shared(feature_set(spec.features)) if spec else FeatureSet(),
        labels=dict(spec.labels) if spec else {},
    )


def rules_of(obj: Object) -> StoredRules:
    """A NodeFeatureRule object."""
    read = read_rules(obj)
    return StoredRules(
        source=RuleSource(name=name_of(obj), rules=read.rules),
        uid=text(mapping(obj.get("metadata")).get("uid")),
        version=version_of(obj),
        flaws=tuple(flaw for flaw in read.flaws if not flaw.warning),
    )


def group_of(obj: Object, *, used: bool) -> StoredGroup:
    """A NodeFeatureGroup object; of a namespace that is not used nothing but whose it is."""
    read = read_group(obj if used else None)
    metadata, status = mapping(obj.get("metadata")), mapping(obj.get("status"))
    return StoredGroup(
        namespace=namespace_of(obj),
        uid=text(metadata.get("uid")),
        generation=number(metadata.get("generation")),
        used=used,
        source=GroupSource(name=name_of(obj), rules=read.rules),
        members=tuple(text(mapping(one).get("name")) for one in items(status.get("nodes"))) if used else (),
        flaws=tuple(flaw for flaw in read.flaws if used and not flaw.warning),
    )


def reduced(obj: Object, part: object) -> Object:
    """An object for a copy that is kept up to date: what says which it is, and its part."""
    metadata = {key: obj["metadata"][key] for key in ("namespace", "name", "resourceVersion") if key in obj["metadata"]}
    return {"metadata": metadata, PART: part}


def _texts(value: Any) -> dict[str, str]:
    return {str(key): str(one) for key, one in mapping(value).items()}
