"""The CustomResourceDefinitions: kgpu's own kinds as the API server has to know them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import msgspec

from kgpu.formats.crd.clusterpolicy import ClusterPolicySpec
from kgpu.formats.crd.deviceconfig import DeviceConfigSpec, DeviceConfigStatus
from kgpu.formats.crd.nodefeatures import (
    NodeFeatureGroupSpec,
    NodeFeatureGroupStatus,
    NodeFeatureRuleSpec,
    NodeFeatureSpec,
)
from kgpu.formats.crd.nodeoperation import (
    DRIVER_OF_TYPE,
    GPUS_OF_TYPE,
    IMMUTABLE,
    MIG_OF_TYPE,
    NOT_FORGOTTEN,
    ONE_WAY,
    ONLY_MAINTENANCE,
    NodeOperationSpec,
    NodeOperationStatus,
)
from kgpu.formats.crd.nvidiadriver import NVIDIADriverSpec
from kgpu.formats.crd.schema import rules_of, schema
from kgpu.formats.crd.status import ClusterPolicyStatus, NVIDIADriverStatus
from kgpu.formats.crd.usagepolicy import (
    NAMED,
    NOT_THE_SYSTEM,
    GPUUsageOverrideSpec,
    GPUUsagePolicySpec,
    GPUUsagePolicyStatus,
)
from kgpu.formats.names import AMD_DOMAIN, KGPU_DOMAIN, NFD_DOMAIN, NVIDIA_DOMAIN, PART_OF_LABEL

_STATUS: Final = ("Status", ".status.state", 0)
_WIDE: Final = (
    ("GPU-Nodes", ".status.nodes.gpu", 1),
    ("Validated", ".status.nodes.validated", 1),
    ("Message", '.status.conditions[?(@.type=="Ready")].message', 1),
)
_NO_SELECTOR: Final = (
    "!self.default || !has(self.nodeSelector) || size(self.nodeSelector) == 0",
    "the default NVIDIADriver can't have a nodeSelector: it is for the nodes that no other one selects",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Definition:
    """One kind. ``columns`` are what ``kubectl get`` prints: title, JSON path, and 1 for those of ``-o wide`` alone.
    ``rules`` are about the spec and ``whole_rules`` about the object. ``empty``: its spec may be left out, and has its
    defaults then. ``status`` is None for a kind that has none.
    """

    group: str = NVIDIA_DOMAIN
    kind: str
    plural: str
    version: str
    short: tuple[str, ...]
    spec: type[msgspec.Struct]
    status: type[msgspec.Struct] | None
    columns: tuple[tuple[str, str, int], ...]
    summary: str
    rules: tuple[tuple[str, str], ...] = ()
    whole_rules: tuple[tuple[str, str], ...] = ()
    empty: bool = True
    namespaced: bool = False

    @property
    def name(self) -> str:
        """The name of the CustomResourceDefinition."""
        return f"{self.plural}.{self.group}"


DEFINITIONS: Final = (
    Definition(
        kind="ClusterPolicy",
        plural="clusterpolicies",
        version="v1",
        short=(),
        spec=ClusterPolicySpec,
        status=ClusterPolicyStatus,
        columns=(_STATUS, *_WIDE),
        summary="Which operands run in this cluster, and how.",
    ),
    Definition(
        kind="NVIDIADriver",
        plural="nvidiadrivers",
        version="v1alpha1",
        short=("nvd", "nvdriver", "nvdrivers"),
        spec=NVIDIADriverSpec,
        status=NVIDIADriverStatus,
        columns=(_STATUS, ("Default", ".spec.default", 0), *_WIDE),
        summary="The driver of one pool of nodes.",
        rules=(_NO_SELECTOR,),
    ),
    Definition(
        group=KGPU_DOMAIN,
        kind="NodeOperation",
        plural="nodeoperations",
        version="v1alpha1",
        short=("nodeop", "nodeops"),
        spec=NodeOperationSpec,
        status=NodeOperationStatus,
        columns=(
            ("Node", ".spec.nodeName", 0),
            ("Type", ".spec.type", 0),
            ("Phase", ".status.phase", 0),
            ("Result", ".status.result", 0),
            ("Since", ".status.phaseSince", 0),
            ("Message", ".status.message", 1),
            ("By", ".spec.requestedBy", 1),
        ),
        summary="One change of one node: what is wanted, how far it is and what came of it.",
        rules=(*IMMUTABLE, *ONE_WAY, *ONLY_MAINTENANCE, *GPUS_OF_TYPE, *DRIVER_OF_TYPE, *MIG_OF_TYPE),
        whole_rules=NOT_FORGOTTEN,
        empty=False,
    ),
    Definition(
        group=KGPU_DOMAIN,
        kind="GPUUsagePolicy",
        plural="gpuusagepolicies",
        version="v1alpha1",
        short=("gup",),
        spec=GPUUsagePolicySpec,
        status=GPUUsagePolicyStatus,
        columns=(
            ("Mode", ".spec.mode", 0),
            ("Idle", ".status.idleDevices", 0),
            ("Warned", ".status.warned", 0),
            ("Acting", '.status.conditions[?(@.type=="Acting")].status', 0),
            ("Frozen", '.status.conditions[?(@.type=="Frozen")].reason', 0),
            ("Message", '.status.conditions[?(@.type=="Frozen")].message', 1),
        ),
        summary="What becomes of GPUs that are held and not used.",
        rules=(NAMED, NOT_THE_SYSTEM),
    ),
    Definition(
        group=KGPU_DOMAIN,
        kind="GPUUsageOverride",
        plural="gpuusageoverrides",
        version="v1alpha1",
        short=("guo",),
        spec=GPUUsageOverrideSpec,
        status=None,
        columns=(("Mode", ".spec.mode", 0),),
        summary="What a namespace wants gentler than the policy about idle GPUs.",
        namespaced=True,
    ),
)

NFD_DEFINITIONS: Final = (
    Definition(
        group=NFD_DOMAIN,
        kind="NodeFeature",
        plural="nodefeatures",
        version="v1alpha1",
        short=(),
        spec=NodeFeatureSpec,
        status=None,
        columns=(),
        summary="What one program has discovered on one node.",
        empty=False,
        namespaced=True,
    ),
    Definition(
        group=NFD_DOMAIN,
        kind="NodeFeatureRule",
        plural="nodefeaturerules",
        version="v1alpha1",
        short=("nfr",),
        spec=NodeFeatureRuleSpec,
        status=None,
        columns=(),
        summary="What nodes get that have certain features.",
        empty=False,
    ),
    Definition(
        group=NFD_DOMAIN,
        kind="NodeFeatureGroup",
        plural="nodefeaturegroups",
        version="v1alpha1",
        short=("nfg",),
        spec=NodeFeatureGroupSpec,
        status=NodeFeatureGroupStatus,
        columns=(),
        summary="Which nodes have certain features.",
        empty=False,
        namespaced=True,
    ),
)
"""Node feature discovery's kinds, which other programs may have defined already."""

AMD_DEFINITIONS: Final = (
    Definition(
        group=AMD_DOMAIN,
        kind="DeviceConfig",
        plural="deviceconfigs",
        version="v1alpha1",
        short=("gpue",),
        spec=DeviceConfigSpec,
        status=DeviceConfigStatus,
        columns=(
            ("Ready", '.status.conditions[?(@.type=="Ready")].status', 0),
            ("Nodes", ".status.devicePlugin.nodesMatchingSelectorNumber", 0),
            ("Message", '.status.conditions[?(@.type=="Ready")].message', 1),
        ),
        summary="How a set of nodes with AMD GPUs is served.",
        namespaced=True,
    ),
)
"""AMD's kind, likewise."""

_TYPES: Final = {
    ".spec.default": "boolean",
    ".status.devicePlugin.nodesMatchingSelectorNumber": "integer",
    ".status.idleDevices": "integer",
    ".status.nodes.gpu": "integer",
    ".status.nodes.validated": "integer",
    ".status.phaseSince": "date",
    ".status.warned": "integer",
}


def crds() -> list[dict[str, Any]]:
    """The definitions as objects to apply; new ones with every call."""
    return [_crd(row) for row in DEFINITIONS]


def nfd_crds() -> list[dict[str, Any]]:
    """The definitions of node feature discovery's kinds, likewise."""
    return [_crd(row) for row in NFD_DEFINITIONS]


def amd_crds() -> list[dict[str, Any]]:
    """The definition of AMD's kind, likewise."""
    return [_crd(row) for row in AMD_DEFINITIONS]


def _crd(row: Definition) -> dict[str, Any]:
    age = {"name": "Age", "type": "date", "jsonPath": ".metadata.creationTimestamp"}
    columns = [
        {
            "name": title,
            "type": _TYPES.get(path, "string"),
            "jsonPath": path,
            **({"priority": priority} if priority else {}),
        }
        for title, path, priority in row.columns
    ]
    names = {"kind": row.kind, "listKind": f"{row.kind}List", "plural": row.plural, "singular": row.kind.lower()}
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": row.name, "labels": {PART_OF_LABEL: "kgpu"}},
        "spec": {
            "group": row.group,
            "names": {**names, **({"shortNames": list(row.short)} if row.short else {})},
            "scope": "Namespaced" if row.namespaced else "Cluster",
            "versions": [
                {
                    "name": row.version,
                    "served": True,
                    "storage": True,
                    **({"subresources": {"status": {}}} if row.status else {}),
                    "additionalPrinterColumns": [*columns, age],
                    "schema": {"openAPIV3Schema": _root(row)},
                }
            ],
        },
    }


def _root(row: Definition) -> dict[str, Any]:
    # Sections are there with their defaults, so that a JSON patch may replace what is in them.
    default: dict[str, Any] = {"default": {}} if row.empty else {}
    return {
        "type": "object",
        "description": row.summary,
        **({} if row.empty else {"required": ["spec"]}),
        "properties": {
            "apiVersion": {"type": "string"},
            "kind": {"type": "string"},
            "metadata": {"type": "object"},
            "spec": {**schema(row.spec, rules=row.rules), **default},
            **({"status": schema(row.status)} if row.status else {}),
        },
        **rules_of(row.whole_rules),
    }
