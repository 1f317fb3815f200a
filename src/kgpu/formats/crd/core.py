"""Values of Kubernetes' own kinds, and of the Prometheus operator's, where a custom resource takes them as they are.

Whoever renders a pod from them gives them back unchanged with ``msgspec.to_builtins``.
"""

from __future__ import annotations

from typing import Annotated, Literal, TypeAlias

import msgspec

from kgpu.formats.crd.common import ATOMIC, DURATION, INT32, INT64, Block, Labels, doc


class Toleration(Block, frozen=True, kw_only=True):
    """A taint that pods bear."""

    key: Annotated[str | None, doc("The taint's key; empty for every key.")] = None
    operator: Annotated[str | None, doc("`Exists`, or `Equal` if not given.")] = None
    value: Annotated[str | None, doc("The taint's value, for `Equal`.")] = None
    effect: Annotated[str | None, doc("`NoSchedule`, `PreferNoSchedule` or `NoExecute`; empty for all.")] = None
    toleration_seconds: Annotated[int | None, doc("For `NoExecute`: how long pods stay.", schema=INT64)] = None


class NodeSelectorRequirement(Block, frozen=True, kw_only=True):
    """A condition on one label or field of a Node."""

    key: Annotated[str, doc("The label's key or the field's path.")]
    operator: Annotated[str, doc("`In`, `NotIn`, `Exists`, `DoesNotExist`, `Gt` or `Lt`.")]
    values: Annotated[tuple[str, ...], doc("The values to compare with.")] = ()


class NodeSelectorTerm(Block, frozen=True, kw_only=True):
    """Conditions that hold together."""

    match_expressions: Annotated[tuple[NodeSelectorRequirement, ...], doc("Conditions on labels.")] = ()
    match_fields: Annotated[tuple[NodeSelectorRequirement, ...], doc("Conditions on fields.")] = ()


class NodeSelectorTerms(Block, frozen=True, kw_only=True):
    """Alternatives, one of which has to hold."""

    node_selector_terms: Annotated[tuple[NodeSelectorTerm, ...], doc("The alternatives.")]


class PreferredSchedulingTerm(Block, frozen=True, kw_only=True):
    """Nodes that are better than others."""

    weight: Annotated[int, doc("How much better, 1 to 100.", schema=INT32)]
    preference: Annotated[NodeSelectorTerm, doc("Which Nodes.", schema=ATOMIC)]


class NodeAffinity(Block, frozen=True, kw_only=True):
    """On which Nodes pods have to be, or should."""

    required: Annotated[NodeSelectorTerms | None, doc("Where pods have to be.", schema=ATOMIC)] = msgspec.field(
        default=None, name="requiredDuringSchedulingIgnoredDuringExecution"
    )
    preferred: Annotated[tuple[PreferredSchedulingTerm, ...], doc("Where pods should be.")] = msgspec.field(
        default=(), name="preferredDuringSchedulingIgnoredDuringExecution"
    )


class SecurityProfile(Block, frozen=True, kw_only=True):
    """A seccomp or AppArmor profile."""

    type: Annotated[str, doc("`Localhost`, `RuntimeDefault` or `Unconfined`.")]
    localhost_profile: Annotated[str | None, doc("The profile on the node, for `Localhost`.")] = None


class SELinuxOptions(Block, frozen=True, kw_only=True):
    """An SELinux label."""

    user: Annotated[str | None, doc("The label's user.")] = None
    role: Annotated[str | None, doc("The label's role.")] = None
    type: Annotated[str | None, doc("The label's type.")] = None
    level: Annotated[str | None, doc("The label's level.")] = None


class Sysctl(Block, frozen=True, kw_only=True):
    """A kernel setting of a pod."""

    name: Annotated[str, doc("The setting's name.")]
    value: Annotated[str, doc("Its value.")]


class WindowsOptions(Block, frozen=True, kw_only=True):
    """What only Windows containers have."""

    gmsa_credential_spec: Annotated[str | None, doc("A GMSA credential spec.")] = None
    gmsa_credential_spec_name: Annotated[str | None, doc("The name of a GMSA credential spec.")] = None
    run_as_user_name: Annotated[str | None, doc("The Windows user.")] = None
    host_process: Annotated[bool | None, doc("Whether containers run as host processes.")] = None


class PodSecurityContext(Block, frozen=True, kw_only=True):
    """The security settings of a pod."""

    app_armor_profile: Annotated[SecurityProfile | None, doc("The AppArmor profile.")] = None
    fs_group: Annotated[int | None, doc("The group that owns volumes.", schema=INT64)] = None
    fs_group_change_policy: Annotated[str | None, doc("`OnRootMismatch` or `Always`.")] = None
    run_as_group: Annotated[int | None, doc("The group of processes.", schema=INT64)] = None
    run_as_non_root: Annotated[bool | None, doc("Whether root is refused.")] = None
    run_as_user: Annotated[int | None, doc("The user of processes.", schema=INT64)] = None
    se_linux_change_policy: Annotated[str | None, doc("`MountOption` or `Recursive`.")] = None
    se_linux_options: Annotated[SELinuxOptions | None, doc("The SELinux label.")] = None
    seccomp_profile: Annotated[SecurityProfile | None, doc("The seccomp profile.")] = None
    supplemental_groups: Annotated[
        tuple[int, ...], doc("More groups of processes.", schema={"items": {"type": "integer", **INT64}})
    ] = ()
    supplemental_groups_policy: Annotated[str | None, doc("`Merge` or `Strict`.")] = None
    sysctls: Annotated[tuple[Sysctl, ...], doc("Kernel settings.")] = ()
    windows_options: Annotated[WindowsOptions | None, doc("What only Windows containers have.")] = None


RelabelAction: TypeAlias = Literal[
    "replace", "keep", "drop", "hashmod", "labelmap", "labeldrop", "labelkeep", "lowercase", "uppercase", "keepequal",
    "dropequal", "Replace", "Keep", "Drop", "HashMod", "LabelMap", "LabelDrop", "LabelKeep", "Lowercase", "Uppercase",
    "KeepEqual", "DropEqual",
]  # fmt: skip


class RelabelConfig(Block, frozen=True, kw_only=True):
    """A step of the Prometheus operator's relabelling."""

    source_labels: Annotated[tuple[str, ...], doc("Labels whose values are joined.")] = ()
    separator: Annotated[str | None, doc("What joins them.")] = None
    target_label: Annotated[str | None, doc("The label that gets the result.")] = None
    regex: Annotated[str | None, doc("What the joined values have to match.")] = None
    modulus: Annotated[int | None, doc("For `hashmod`: the modulus.", schema=INT64)] = None
    replacement: Annotated[str | None, doc("The result, with groups of the match.")] = None
    action: Annotated[RelabelAction, doc("What is done.")] = "replace"


class ServiceMonitor(Block, frozen=True, kw_only=True):
    """A ServiceMonitor of the Prometheus operator."""

    enabled: Annotated[bool | None, doc("Whether there is one; off if not given.")] = None
    interval: Annotated[str | None, doc("Time between scrapes.", pattern=DURATION)] = None
    scrape_timeout: Annotated[str | None, doc("Time after which a scrape has failed.", pattern=DURATION)] = None
    honor_labels: Annotated[bool | None, doc("Whether labels of the metrics win over those of the target.")] = None
    additional_labels: Annotated[Labels, doc("Labels of the ServiceMonitor.")] = msgspec.field(default_factory=dict)
    relabelings: Annotated[tuple[RelabelConfig, ...], doc("Relabelling of targets.")] = ()
