"""NVIDIADriver ``nvidia.com/v1alpha1``: the driver of one pool of nodes.

Names differ from ClusterPolicy's ``driver`` section where the replaced operator's do.
"""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec

from kgpu.formats.crd.common import (
    Block,
    ComputeResources,
    EnvImage,
    EnvVar,
    Labels,
    Named,
    Probe,
    Rdma,
    SideContainer,
    UpgradePolicy,
    doc,
)
from kgpu.formats.crd.core import NodeAffinity, PodSecurityContext, Toleration


class PoolUpgradePolicy(UpgradePolicy, frozen=True, kw_only=True):
    """How nodes get a new driver; by themselves, unless told otherwise."""

    auto_upgrade: Annotated[
        bool,
        doc("Whether nodes are upgraded by themselves; otherwise each waits for `kgpu operations approve`."),
    ] = True


class PoolLicensingConfig(Block, frozen=True, kw_only=True):
    """Licences of virtual GPUs."""

    name: Annotated[
        str | None, doc("The ConfigMap with the licence's files.", deprecated="use secretName, which wins")
    ] = None
    secret_name: Annotated[str | None, doc("The Secret with the licence's files.")] = None
    nls_enabled: Annotated[bool | None, doc("Whether the licence system NLS is used; on if not given.")] = None


_SAME = "self == oldSelf"


class NVIDIADriverSpec(Block, frozen=True, kw_only=True):
    """What an NVIDIADriver wants."""

    default: Annotated[bool, doc("Whether this is the driver of nodes that no other NVIDIADriver selects.")] = False
    driver_type: Annotated[
        Literal["gpu", "vgpu", "vgpu-host-manager"],
        doc("Which driver this is.", rules=((_SAME, "driverType is immutable: make a new NVIDIADriver instead"),)),
    ] = "gpu"
    use_precompiled: Annotated[
        bool | None,
        doc(
            "Whether drivers built for one kernel are used; off if not given.",
            rules=((_SAME, "usePrecompiled is immutable: make a new NVIDIADriver instead"),),
        ),
    ] = None
    repository: Annotated[str | None, doc("Registry and path before the image's name.")] = None
    image: Annotated[str, doc("The image's name, or its full name alone.")] = "nvcr.io/nvidia/driver"
    version: Annotated[str | None, doc("A tag, or a digest that begins with `sha256:`.")] = None
    image_pull_policy: Annotated[str | None, doc("When the image is pulled; `IfNotPresent` if not given.")] = None
    image_pull_secrets: Annotated[tuple[str, ...], doc("Secrets with the registry's credentials.")] = ()
    kernel_module_type: Annotated[Literal["auto", "open", "proprietary"], doc("Which kernel modules are loaded.")] = (
        "auto"
    )
    use_open_kernel_modules: Annotated[
        bool | None, doc("Whether the open kernel modules are loaded.", ignored="use kernelModuleType")
    ] = None
    node_selector: Annotated[Labels, doc("The Nodes of this pool, by labels.")] = msgspec.field(default_factory=dict)
    node_affinity: Annotated[NodeAffinity | None, doc("The Nodes of this pool, by expressions.")] = None
    tolerations: Annotated[tuple[Toleration, ...], doc("Taints that pods bear.")] = ()
    priority_class_name: Annotated[str | None, doc("The pods' PriorityClass.")] = None
    labels: Annotated[Labels, doc("Labels added to pods.")] = msgspec.field(default_factory=dict)
    annotations: Annotated[Labels, doc("Annotations added to pods.")] = msgspec.field(default_factory=dict)
    pod_security_context: Annotated[PodSecurityContext | None, doc("The pods' security settings.")] = None
    host_network: Annotated[bool | None, doc("Whether pods use the host's network.")] = None
    resources: Annotated[ComputeResources | None, doc("What the container may use and is promised.")] = None
    args: Annotated[tuple[str, ...], doc("Arguments added to the container.")] = ()
    env: Annotated[tuple[EnvVar, ...], doc("Environment variables added to the container.")] = ()
    secret_env: Annotated[str | None, doc("A Secret whose keys become environment variables.")] = None
    startup_probe: Annotated[Probe | None, doc("Timing of the start.")] = None
    liveness_probe: Annotated[Probe | None, doc("Timing of the liveness probe.")] = None
    readiness_probe: Annotated[Probe | None, doc("Timing of the readiness probe.")] = None
    manager: Annotated[EnvImage | None, doc("The init container that makes room for a new driver.")] = None
    gds: Annotated[SideContainer | None, doc("GPUDirect Storage.")] = None
    gdrcopy: Annotated[SideContainer | None, doc("GDRCopy.")] = None
    rdma: Annotated[Rdma | None, doc("GPUDirect RDMA.")] = None
    repo_config: Annotated[Named | None, doc("Package repositories of the driver container.")] = None
    cert_config: Annotated[Named | None, doc("Certificates of the driver container.")] = None
    virtual_topology_config: Annotated[Named | None, doc("The virtual topology daemon.")] = None
    kernel_module_config: Annotated[Named | None, doc("Parameters of the kernel modules.")] = None
    licensing_config: Annotated[PoolLicensingConfig | None, doc("Licences of virtual GPUs.")] = None
    upgrade_policy: Annotated[PoolUpgradePolicy | None, doc("How nodes get a new driver.")] = None
