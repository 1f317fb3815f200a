"""What the operator writes into the status of its custom resources; schema only, status objects stay dictionaries."""

from __future__ import annotations

from typing import Annotated, Final, Literal

from kgpu.formats.crd.common import INT64, Block, doc

_REASON: Final = r"^[A-Za-z]([A-Za-z0-9_,:]*[A-Za-z0-9_])?$"
_TYPE: Final = (
    r"^([a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*/)?"
    r"(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])$"
)


class StatusCondition(Block, frozen=True, kw_only=True):
    """One aspect of the state, in the shape that Kubernetes gives conditions."""

    type: Annotated[str, doc("Which aspect, in CamelCase.", pattern=_TYPE, schema={"maxLength": 316})]
    status: Annotated[Literal["True", "False", "Unknown"], doc("Whether it holds.")]
    reason: Annotated[
        str, doc("Why, as one CamelCase word.", pattern=_REASON, schema={"minLength": 1, "maxLength": 1024})
    ]
    message: Annotated[str, doc("Why, and what to do, for people.", schema={"maxLength": 32768})]
    last_transition_time: Annotated[str, doc("When `status` changed last.", schema={"format": "date-time"})]
    observed_generation: Annotated[
        int | None, doc("The generation of the spec that this is about.", minimum=0, schema=INT64)
    ] = None


CONDITIONS_LIST: Final = {"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["type"]}
_CONDITIONS: Final = doc(
    "`Ready`, `Error`, and one condition per operand that says what is not ready, where and why.",
    schema=CONDITIONS_LIST,
)


class NodeCounts(Block, frozen=True, kw_only=True):
    """How many nodes."""

    total: Annotated[int | None, doc("Nodes of the cluster.")] = None
    gpu: Annotated[int | None, doc("Nodes with GPUs.")] = None
    validated: Annotated[int | None, doc("Nodes whose GPUs have passed every check.")] = None


MAX_REFUSED_NAME: Final = 400
MAX_REFUSAL: Final = 1024


class RefusedObject(Block, frozen=True, kw_only=True):
    """An object that the API server does not take."""

    object: Annotated[str, doc("Which one, as kind/name.", schema={"maxLength": MAX_REFUSED_NAME})]
    message: Annotated[str, doc("What the API server says.", schema={"maxLength": MAX_REFUSAL})]


_REFUSED: Final = doc(
    "Objects that the API server refuses; the operator goes on trying.",
    schema={"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["object"]},
)


class ClusterPolicyStatus(Block, frozen=True, kw_only=True):
    """How a ClusterPolicy is doing."""

    state: Annotated[
        Literal["ignored", "ready", "notReady"], doc("All of it in a word; `ignored`: another one is the active one.")
    ]
    namespace: Annotated[str | None, doc("The namespace of the operator and its operands.")] = None
    conditions: Annotated[tuple[StatusCondition, ...], _CONDITIONS] = ()
    nodes: Annotated[NodeCounts | None, doc("How many nodes.")] = None
    refused: Annotated[tuple[RefusedObject, ...], _REFUSED] = ()


class NVIDIADriverStatus(Block, frozen=True, kw_only=True):
    """How an NVIDIADriver is doing."""

    state: Annotated[
        Literal["ignored", "ready", "notReady", "disabled"],
        doc("All of it in a word; `disabled`: the ClusterPolicy does not use NVIDIADrivers."),
    ]
    namespace: Annotated[str | None, doc("The namespace of the operator and its operands.")] = None
    conditions: Annotated[tuple[StatusCondition, ...], _CONDITIONS] = ()
    nodes: Annotated[NodeCounts | None, doc("How many nodes.")] = None
