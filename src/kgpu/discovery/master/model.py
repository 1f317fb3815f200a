"""What the controller works on, as plain data: Nodes, NodeFeatures and rules, reduced to what decides."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from kgpu.base.advice import Advice
from kgpu.base.plain import items, mapping, text
from kgpu.discovery.features.model import FeatureSet
from kgpu.discovery.master.sharing import FeatureShare
from kgpu.discovery.rules.decode import ObjectFlaw, read_feature, read_rules
from kgpu.discovery.rules.model import RuleSource, feature_set
from kgpu.discovery.rules.outputs import OutputLimits
from kgpu.formats import names
from kgpu.kube.port import Object, name_of, namespace_of, version_of

PART: Final = "part"
"""The key of a reduced object under which its part is kept."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MasterSettings:
    """``namespace`` is the operator's: NodeFeatures of others are not used, as any tenant could write them."""

    namespace: str
    limits: OutputLimits = field(default_factory=OutputLimits)


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


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredFeature:
    """A NodeFeature: what one program has found on ``node``; nothing where it is not of the operator's namespace.
    ``ours``: an agent of kgpu has written it.
    """

    namespace: str
    name: str
    uid: str
    version: str = field(compare=False)
    node: str
    used: bool
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


def feature_of(obj: Object, namespace: str, share: FeatureShare) -> StoredFeature:
    """A NodeFeature object; of other namespaces than ``namespace`` nothing but whose it is."""
    used = namespace_of(obj) == namespace
    spec = read_feature(obj).spec if used else None
    labels = mapping(mapping(obj.get("metadata")).get("labels"))
    return StoredFeature(
        namespace=namespace_of(obj),
        name=name_of(obj),
        uid=text(mapping(obj.get("metadata")).get("uid")),
        version=version_of(obj),
        node=text(labels.get(names.NFD_NODE_NAME_LABEL)),
        used=used,
        ours=used and labels.get(names.PART_OF_LABEL) == names.KGPU,
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


def reduced(obj: Object, part: object) -> Object:
    """An object for a copy that is kept up to date: what says which it is, and its part."""
    metadata = {key: obj["metadata"][key] for key in ("namespace", "name", "resourceVersion") if key in obj["metadata"]}
    return {"metadata": metadata, PART: part}


def _texts(value: Any) -> dict[str, str]:
    return {str(key): str(one) for key, one in mapping(value).items()}
