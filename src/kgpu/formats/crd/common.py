"""Blocks that several sections of the custom resources share, and how a field says what it means.

The structs are the only source: names, types, enums, bounds, defaults and descriptions are taken from them by
``schema`` (what the API server checks), ``decode`` (what is read) and the reference documentation. A field that the
manifest does not give is None, empty, or its schema default. Names and rules are those of the replaced operator.
"""

from __future__ import annotations

from typing import Annotated, Any, Final, TypeAlias

import msgspec


def doc(
    text: str,
    *,
    ignored: str = "",
    unbuilt: str = "",
    never: str = "",
    usual: tuple[Any, ...] = (),
    deprecated: str = "",
    pattern: str = "",
    minimum: int | None = None,
    rules: tuple[tuple[str, str], ...] = (),
    schema: dict[str, Any] | None = None,
) -> msgspec.Meta:
    """What a field means, and what the API server checks besides its type.

    ``ignored``: the field is accepted and has no effect; the text says why, or what to use instead. ``unbuilt``: so is
    this field, and all that is in it, until kgpu can do it; the text says what there is instead. ``never``: the same,
    and kgpu is not going to do it. ``usual``: values that
    ask for nothing, because the chart writes them, beside the default and what is empty. ``deprecated``: it still
    works; the text says what to use instead. ``rules`` are CEL rules with the message of their refusal.
    ``schema`` is added to what follows from the type.
    """
    checks = {"pattern": pattern or None, "minimum": minimum, **(schema or {})}
    extra = {
        "ignored": ignored,
        "unbuilt": unbuilt or never,
        "for_good": bool(never),
        "usual": usual,
        "deprecated": deprecated,
        "schema": {key: value for key, value in checks.items() if value is not None},
        "rules": rules,
    }
    return msgspec.Meta(description=text, extra=extra)


IMAGE_NAME: Final = r"[a-zA-Z0-9\-]+"
DURATION: Final = r"^(0|(([0-9]+)y)?(([0-9]+)w)?(([0-9]+)d)?(([0-9]+)h)?(([0-9]+)m)?(([0-9]+)s)?(([0-9]+)ms)?)$"

INT64: Final = {"format": "int64"}
ATOMIC: Final = {"x-kubernetes-map-type": "atomic"}
INT32: Final = {"format": "int32"}
Labels: TypeAlias = dict[str, str]
QUANTITY: Final = (
    r"^(\+|-)?(([0-9]+(\.[0-9]*)?)|(\.[0-9]+))"
    r"(([KMGTPE]i)|[numkMGTPE]|([eE](\+|-)?(([0-9]+(\.[0-9]*)?)|(\.[0-9]+))))?$"
)
# Rules in place of patterns: what breaks one can't be stored any more, but if it is there already then only the part
# that uses it fails, and not the whole policy. Empty texts are for the default.
ABSOLUTE: Final = (("self == '' || self.startsWith('/')", "it has to be an absolute path on the host"),)
LABEL_VALUE: Final = (
    (
        "self == '' || self.matches('^[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?$')",
        "it has to be the value of a label, such as all-1g.10gb",
    ),
)
PODS: Final = (
    (
        "self == '' || self.matches('^[0-9]*[1-9][0-9]*%?$')",
        "it has to be a number of pods such as '1' or a percentage such as '10%', more than 0",
    ),
)
NODES: Final = (("type(self) == string || self >= 0", "it can't be less than 0"),)
Quantities: TypeAlias = dict[str, Annotated[int | str, doc("A quantity such as `500m` or `2Gi`.", pattern=QUANTITY)]]


class Block(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """A mapping of a manifest."""


class EnvVar(Block, frozen=True, kw_only=True):
    """One environment variable, with a plain value."""

    name: Annotated[str, doc("The variable's name.")]
    value: Annotated[str | None, doc("Its value.")] = None


class ComputeResources(Block, frozen=True, kw_only=True):
    """What a container may use and is promised."""

    limits: Annotated[Quantities, doc("The most it may use, by resource.")] = msgspec.field(default_factory=dict)
    requests: Annotated[Quantities, doc("What it is promised, by resource.")] = msgspec.field(default_factory=dict)


class Image(Block, frozen=True, kw_only=True):
    """Where an image is found: repository, image and version together, or the image alone with its full name."""

    repository: Annotated[str | None, doc("Registry and path before the image's name.")] = None
    image: Annotated[str | None, doc("The image's name, or its full name alone.", pattern=IMAGE_NAME)] = None
    version: Annotated[str | None, doc("A tag, or a digest that begins with `sha256:`.")] = None
    image_pull_policy: Annotated[str | None, doc("When the image is pulled; `IfNotPresent` if not given.")] = None
    image_pull_secrets: Annotated[tuple[str, ...], doc("Secrets with the registry's credentials.")] = ()


class EnvImage(Image, frozen=True, kw_only=True):
    """An image and the environment of its container."""

    env: Annotated[tuple[EnvVar, ...], doc("Environment variables added to the container.")] = ()


class SideContainer(EnvImage, frozen=True, kw_only=True):
    """A container beside the driver that can be switched on."""

    enabled: Annotated[bool | None, doc("Whether it runs; off if not given.")] = None
    args: Annotated[tuple[str, ...], doc("Arguments added to the container.")] = ()


class OperandContainer(EnvImage, frozen=True, kw_only=True):
    """An operand's main container."""

    args: Annotated[
        tuple[str, ...], doc("Arguments of the container's program; a warning names those that change nothing.")
    ] = ()
    resources: Annotated[ComputeResources | None, doc("What the container may use and is promised.")] = None
    host_network: Annotated[bool | None, doc("Whether its pods use the host's network.")] = None


class Component(OperandContainer, frozen=True, kw_only=True):
    """An operand."""

    enabled: Annotated[bool | None, doc("Whether the operand runs.")] = None


class Probe(Block, frozen=True, kw_only=True):
    """The timing of a container's probe."""

    initial_delay_seconds: Annotated[int | None, doc("Seconds before the first probe.", schema=INT32)] = None
    timeout_seconds: Annotated[int | None, doc("Seconds after which one has failed.", minimum=1, schema=INT32)] = None
    period_seconds: Annotated[int | None, doc("Seconds between probes.", minimum=1, schema=INT32)] = None
    success_threshold: Annotated[int | None, doc("Successes until it is well again.", minimum=1, schema=INT32)] = None
    failure_threshold: Annotated[int | None, doc("Failures until it has failed.", minimum=1, schema=INT32)] = None


class Named(Block, frozen=True, kw_only=True):
    """A reference to a ConfigMap in the operator's namespace."""

    name: Annotated[str | None, doc("The ConfigMap's name.")] = None


class Switch(Block, frozen=True, kw_only=True):
    """Something that is on or off."""

    enabled: Annotated[bool | None, doc("Whether it is on; off if not given.")] = None


class Env(Block, frozen=True, kw_only=True):
    """The environment of one container."""

    env: Annotated[tuple[EnvVar, ...], doc("Environment variables added to the container.")] = ()


class Rdma(Block, frozen=True, kw_only=True):
    """GPUDirect RDMA."""

    enabled: Annotated[bool | None, doc("Whether GPUs may exchange memory with network cards; off if not given.")] = (
        None
    )
    use_host_mofed: Annotated[bool | None, doc("Whether the network driver of the host is used.")] = None


class WaitForCompletion(Block, frozen=True, kw_only=True):
    """Waiting for work to end before a node's driver is exchanged."""

    pod_selector: Annotated[
        str, doc("Label selector of the pods that are waited for before any is evicted; empty for none.")
    ] = ""
    timeout_seconds: Annotated[
        int, doc("Seconds after which waiting ends and the pods are evicted; 0 for never.", minimum=0)
    ] = 0


class PodDeletion(Block, frozen=True, kw_only=True):
    """Evicting the pods that hold GPUs before a node's driver is exchanged; not where the node is drained instead."""

    force: Annotated[bool, doc("Also pods that no controller would bring back.")] = False
    timeout_seconds: Annotated[
        int, doc("Seconds after which the node's upgrade has failed; 0 for no limit (68 years).", minimum=0)
    ] = 300
    delete_empty_dir: Annotated[bool, doc("Also pods that lose an emptyDir's data.")] = False


class Drain(Block, frozen=True, kw_only=True):
    """Draining a node before its driver is exchanged, in place of evicting only the pods that hold GPUs."""

    enable: Annotated[bool, doc("Whether nodes are drained.")] = False
    force: Annotated[bool, doc("Also pods that no controller would bring back.")] = False
    pod_selector: Annotated[
        str, doc("Label selector of the pods to be drained; empty for all. Pods that hold GPUs go in any case.")
    ] = ""
    timeout_seconds: Annotated[
        int, doc("Seconds after which the node's upgrade has failed; 0 for no limit (68 years).", minimum=0)
    ] = 300
    delete_empty_dir: Annotated[bool, doc("Also pods that lose an emptyDir's data.")] = False


class UpgradePolicy(Block, frozen=True, kw_only=True):
    """How nodes get a new driver: by a NodeOperation for each, within the budget of all operations."""

    auto_upgrade: Annotated[
        bool,
        doc(
            "Whether nodes are upgraded by themselves; otherwise each waits for `kgpu operations approve`.",
            usual=(True,),
        ),
    ] = False
    max_parallel_upgrades: Annotated[
        int, doc("Nodes upgraded at a time, within `operations.maxParallel`; 0 for no limit of its own.", minimum=0)
    ] = 1
    max_unavailable: Annotated[
        int | str | None,
        doc("Nodes that may be down at a time, for whatever reason, as a number or a percentage.", rules=NODES),
    ] = "25%"
    wait_for_completion: Annotated[WaitForCompletion | None, doc("Work to wait for.")] = None
    pod_deletion: Annotated[PodDeletion | None, doc("How pods with GPUs are evicted.")] = None
    drain: Annotated[Drain | None, doc("How nodes are drained.")] = None
