"""DeviceConfig ``amd.com/v1alpha1`` of AMD's GPU operator: how a set of nodes with AMD GPUs is served.

The fields are AMD's. What kgpu does in another way, leaves to somebody else or can't do yet says so at its field, and
whoever writes it is told.
"""

from __future__ import annotations

from typing import Annotated, Final, Literal, TypeAlias

import msgspec

from kgpu.formats.crd.common import INT64, Block, ComputeResources, Labels, Named, doc
from kgpu.formats.crd.core import Toleration
from kgpu.formats.crd.status import CONDITIONS_LIST, StatusCondition

_OWN_IMAGE: Final = "kgpu's own image holds every operand"
_TOLERATED: Final = "agents do all on a node: set daemonsets.tolerations of the ClusterPolicy"
_ROLLED_OUT: Final = "agents are rolled out as daemonsets of the ClusterPolicy says"
_MONITORED: Final = "set dcgmExporter.serviceMonitor of the ClusterPolicy"
LEFT_TO_KMM: Final = (
    "drivers are left to Kernel Module Management (KMM) and to the nodes' own: kgpu uses the one that is loaded"
)

Tolerations: TypeAlias = Annotated[tuple[Toleration, ...], doc("Taints that pods bear.", ignored=_TOLERATED)]
OperandImage: TypeAlias = Annotated[str | None, doc("The image.", ignored=_OWN_IMAGE)]
PullPolicy: TypeAlias = Annotated[str | None, doc("When it is pulled.", ignored=_OWN_IMAGE)]
PullSecret: TypeAlias = Annotated[Named | None, doc("A Secret with the registry's credentials.", ignored=_OWN_IMAGE)]
NodeLabels: TypeAlias = Annotated[Labels, doc("Labels that its nodes have beside those of `selector`.")]


class DaemonSetUpgrade(Block, frozen=True, kw_only=True):
    """How pods of one operand are replaced."""

    upgrade_strategy: Annotated[str | None, doc("`RollingUpdate` or `OnDelete`.", ignored=_ROLLED_OUT)] = None
    max_unavailable: Annotated[int | None, doc("Pods that are replaced at a time.", ignored=_ROLLED_OUT)] = None


class RegistryTls(Block, frozen=True, kw_only=True):
    """How a registry is talked to."""

    insecure: Annotated[bool | None, doc("Whether without TLS.")] = None
    insecure_skip_tls_verify: Annotated[bool | None, doc("Whether without checking its certificate.")] = msgspec.field(
        default=None, name="insecureSkipTLSVerify"
    )


class Utils(Block, frozen=True, kw_only=True):
    """AMD's container for small work on nodes."""

    image: OperandImage = None
    image_pull_policy: PullPolicy = None
    image_registry_secret: PullSecret = None


class CommonConfig(Block, frozen=True, kw_only=True):
    """What operands share."""

    image_registry_secrets: Annotated[tuple[Named, ...], doc("Secrets of registries.", ignored=_OWN_IMAGE)] = ()
    init_container_image: OperandImage = None
    utils_container: Annotated[Utils | None, doc("AMD's container for small work on nodes.")] = None


class ImageBuild(Block, frozen=True, kw_only=True):
    """How KMM builds a driver's image."""

    base_image_registry: Annotated[str | None, doc("Where base images come from.")] = None
    source_image_repo: Annotated[str | None, doc("Where source images come from.")] = None
    base_image_registry_tls: Annotated[RegistryTls | None, doc("How that is talked to.")] = msgspec.field(
        default=None, name="baseImageRegistryTLS"
    )
    package_repo_url: Annotated[str | None, doc("Where packages come from.")] = msgspec.field(
        default=None, name="packageRepoURL"
    )
    gpg_key_url: Annotated[str | None, doc("Where their key comes from.")] = msgspec.field(
        default=None, name="gpgKeyURL"
    )


class KernelModuleConfig(Block, frozen=True, kw_only=True):
    """How the module is loaded."""

    load_args: Annotated[tuple[str, ...], doc("Arguments of modprobe.")] = ()
    unload_args: Annotated[tuple[str, ...], doc("Arguments of modprobe -r.")] = ()
    parameters: Annotated[tuple[str, ...], doc("Parameters of the module.")] = ()


class DrainPolicy(Block, frozen=True, kw_only=True):
    """How a node is emptied."""

    force: Annotated[bool | None, doc("Whether pods without an owner go, too.")] = None
    timeout_seconds: Annotated[int | None, doc("How long that may take.")] = None
    grace_period_seconds: Annotated[int | None, doc("How long pods get to end.")] = None
    ignore_daemon_sets: Annotated[bool | None, doc("Whether pods of DaemonSets stay.")] = None
    ignore_namespaces: Annotated[tuple[str, ...], doc("Namespaces whose pods stay.")] = ()


class DriverUpgrade(Block, frozen=True, kw_only=True):
    """How nodes get another driver."""

    enable: Annotated[bool, doc("Whether they do by themselves.")] = False
    max_parallel_upgrades: Annotated[int | None, doc("Nodes at a time.", minimum=0)] = None
    max_unavailable_nodes: Annotated[int | str | None, doc("Nodes that may be down.")] = None
    reboot_required: Annotated[bool | None, doc("Whether a node reboots.")] = None
    node_drain_policy: Annotated[DrainPolicy | None, doc("How a node is emptied.")] = None
    pod_deletion_policy: Annotated[DrainPolicy | None, doc("How pods with GPUs are deleted.")] = None


class Vfio(Block, frozen=True, kw_only=True):
    """Devices for virtual machines."""

    device_ids: Annotated[tuple[str, ...], doc("PCI ids.")] = msgspec.field(default=(), name="deviceIDs")


class ImageSign(Block, frozen=True, kw_only=True):
    """Keys for signed modules."""

    key_secret: Annotated[Named | None, doc("The private key.")] = None
    cert_secret: Annotated[Named | None, doc("The certificate.")] = None


class AmdDriverSection(Block, frozen=True, kw_only=True):
    """The driver. KMM brings it, or it is on the node."""

    enable: Annotated[bool, doc("Whether KMM is to bring a driver.")] = True
    driver_type: Annotated[
        Literal["container", "vf-passthrough", "pf-passthrough"], doc("For containers or virtual machines.")
    ] = "container"
    version: Annotated[str | None, doc("The driver's release.")] = None
    image: Annotated[str | None, doc("The driver's image.")] = None
    blacklist: Annotated[bool | None, doc("Whether the kernel's own module is kept out.")] = None
    use_source_image: Annotated[bool | None, doc("Whether it is built from an image of sources.")] = None
    amdgpu_installer_repo_url: Annotated[str | None, doc("Where the installer comes from.")] = msgspec.field(
        default=None, name="amdgpuInstallerRepoURL"
    )
    image_registry_secret: Annotated[Named | None, doc("The registry's credentials.")] = None
    image_registry_tls: Annotated[RegistryTls | None, doc("How the registry is talked to.")] = msgspec.field(
        default=None, name="imageRegistryTLS"
    )
    image_sign: Annotated[ImageSign | None, doc("Keys for signed modules.")] = None
    image_build: Annotated[ImageBuild | None, doc("How images are built.")] = None
    kernel_module_config: Annotated[KernelModuleConfig | None, doc("How the module is loaded.")] = None
    upgrade_policy: Annotated[DriverUpgrade | None, doc("How nodes get another driver.")] = None
    vfio_config: Annotated[Vfio | None, doc("Devices for virtual machines.")] = None
    tolerations: Annotated[tuple[Toleration, ...], doc("Taints that its pods bear.")] = ()


class AmdDevicePlugin(Block, frozen=True, kw_only=True):
    """The device plugin and the node labeller."""

    enable_device_plugin: Annotated[bool, doc("Whether GPUs are offered as counted resources.")] = True
    device_plugin_image: OperandImage = None
    device_plugin_image_pull_policy: PullPolicy = None
    device_plugin_tolerations: Tolerations = ()
    device_plugin_arguments: Annotated[
        Labels, doc("`resource_naming_strategy`, `single` or `mixed`; nothing else.")
    ] = msgspec.field(default_factory=dict)
    enable_node_labeller: Annotated[bool, doc("Whether nodes get AMD's labels.")] = True
    node_labeller_image: OperandImage = None
    node_labeller_image_pull_policy: PullPolicy = None
    node_labeller_arguments: Annotated[
        tuple[str, ...], doc("Which labels.", ignored="every label is written, as one that nobody reads costs nothing")
    ] = ()
    node_labeller_tolerations: Tolerations = ()
    image_registry_secret: PullSecret = None
    kubelet_socket_path: Annotated[
        str | None, doc("The kubelet's folder of plugins.", ignored="set hostPaths.kubeletRootDir of the ClusterPolicy")
    ] = None
    host_network: Annotated[bool | None, doc("The pods' network.", ignored="agents need none")] = None
    upgrade_policy: Annotated[DaemonSetUpgrade | None, doc("How its pods are replaced.")] = None


class AmdDraSection(Block, frozen=True, kw_only=True):
    """AMD GPUs as devices of claims."""

    enable: Annotated[bool, doc("Whether GPUs are handed out by claims, in place of the device plugin.")] = False
    image: OperandImage = None
    image_pull_policy: PullPolicy = None
    image_registry_secret: PullSecret = None
    cmd_line_arguments: Annotated[Labels, doc("Arguments.", ignored="kgpu's DRA driver needs none")] = msgspec.field(
        default_factory=dict
    )
    selector: Annotated[Labels, doc("Labels of its nodes.")] = msgspec.field(default_factory=dict)
    tolerations: Tolerations = ()
    upgrade_policy: Annotated[DaemonSetUpgrade | None, doc("How its pods are replaced.")] = None


class AmdServiceMonitor(Block, frozen=True, kw_only=True):
    """How Prometheus finds the metrics."""

    enable: Annotated[bool, doc("Whether there is one.", ignored=_MONITORED)] = False
    interval: Annotated[str | None, doc("How often.", ignored=_MONITORED)] = None
    honor_labels: Annotated[bool | None, doc("Whose labels win.", ignored=_MONITORED)] = None
    honor_timestamps: Annotated[bool | None, doc("Whose time counts.", ignored=_MONITORED)] = None
    labels: Annotated[Labels, doc("Its labels.", ignored=_MONITORED)] = msgspec.field(default_factory=dict)


class AmdPrometheus(Block, frozen=True, kw_only=True):
    """Prometheus."""

    service_monitor: Annotated[AmdServiceMonitor | None, doc("How Prometheus finds the metrics.")] = None


class RbacConfig(Block, frozen=True, kw_only=True):
    """Who may read the metrics, through a proxy."""

    enable: Annotated[bool, doc("Whether there is a proxy.")] = False
    image: OperandImage = None
    disable_https: Annotated[bool | None, doc("Whether without TLS.")] = None
    secret: Annotated[Named | None, doc("Its certificate.")] = None
    client_ca_config_map: Annotated[Named | None, doc("Whose clients it trusts.")] = msgspec.field(
        default=None, name="clientCAConfigMap"
    )


class MetricsExporter(Block, frozen=True, kw_only=True):
    """The metrics exporter."""

    enable: Annotated[bool, doc("Whether there are metrics of these nodes.")] = False
    image: OperandImage = None
    image_pull_policy: PullPolicy = None
    image_registry_secret: PullSecret = None
    port: Annotated[
        int | None,
        doc("The port of the Service for them; 9400 if not given.", minimum=1, schema={"maximum": 65535}),
    ] = None
    service_type: Annotated[
        Literal["ClusterIP", "NodePort"] | None, doc("The kind of the Service, ClusterIP if not given.")
    ] = None
    node_port: Annotated[int | None, doc("Its port on nodes, for NodePort.", minimum=1, schema={"maximum": 65535})] = (
        None
    )
    host_network: Annotated[bool | None, doc("The pods' network.", ignored="agents need none")] = None
    config: Annotated[
        Named | None, doc("A ConfigMap of the operator's namespace with AMD's configuration in `config.json`.")
    ] = None
    selector: NodeLabels = msgspec.field(default_factory=dict)
    tolerations: Tolerations = ()
    pod_annotations: Annotated[Labels, doc("Annotations of its pods.", ignored="set daemonsets.annotations")] = (
        msgspec.field(default_factory=dict)
    )
    service_annotations: Annotated[Labels, doc("Annotations of its Service.")] = msgspec.field(default_factory=dict)
    pod_resource_api_socket_path: Annotated[
        str | None, doc("The kubelet's socket.", ignored="set hostPaths.kubeletRootDir of the ClusterPolicy")
    ] = msgspec.field(default=None, name="podResourceAPISocketPath")
    resource: Annotated[
        ComputeResources | None, doc("What it may use.", ignored="it is a part of the agent, which has its own")
    ] = None
    prometheus: Annotated[AmdPrometheus | None, doc("Prometheus.")] = None
    rbac_config: Annotated[
        RbacConfig | None,
        doc("A proxy.", never="a web config file (DCGM_EXPORTER_WEB_CONFIG_FILE) has TLS and passwords"),
    ] = None
    upgrade_policy: Annotated[DaemonSetUpgrade | None, doc("How its pods are replaced.")] = None


class LogsLocation(Block, frozen=True, kw_only=True):
    """Where logs of tests go."""

    host_path: Annotated[str | None, doc("A folder of the host.")] = None
    mount_path: Annotated[str | None, doc("Where pods see it.")] = None
    logs_export_secrets: Annotated[tuple[Named, ...], doc("Where they are sent.")] = ()


class TestRunner(Block, frozen=True, kw_only=True):
    """Tests of GPUs."""

    enable: Annotated[bool, doc("Whether GPUs are tested.")] = False
    image: OperandImage = None
    image_pull_policy: PullPolicy = None
    image_registry_secret: PullSecret = None
    config: Annotated[Named | None, doc("Which tests.")] = None
    logs_location: Annotated[LogsLocation | None, doc("Where logs go.")] = None
    selector: Annotated[Labels, doc("Labels of its nodes.")] = msgspec.field(default_factory=dict)
    tolerations: Tolerations = ()
    upgrade_policy: Annotated[DaemonSetUpgrade | None, doc("How its pods are replaced.")] = None


class AmdConfigManager(Block, frozen=True, kw_only=True):
    """Partition profiles by a node's label."""

    enable: Annotated[bool, doc("Whether GPUs are parted as labels say.")] = False
    image: OperandImage = None
    image_pull_policy: PullPolicy = None
    image_registry_secret: PullSecret = None
    config: Annotated[
        Named | None,
        doc("A ConfigMap with profiles, under `config.json`; without one `default-dcm-config`."),
    ] = None
    config_manager_tolerations: Tolerations = ()
    selector: NodeLabels = msgspec.field(default_factory=dict)
    upgrade_policy: Annotated[DaemonSetUpgrade | None, doc("How its pods are replaced.")] = None


class RemediationWorkflow(Block, frozen=True, kw_only=True):
    """Repairs by workflows of Argo."""

    enable: Annotated[bool, doc("Whether nodes are repaired.")] = False
    config: Annotated[Named | None, doc("Which workflow for which condition.")] = None
    config_map_image: OperandImage = None
    tester_image: OperandImage = None
    max_parallel_workflows: Annotated[int | None, doc("Nodes at a time.")] = None
    ttl_for_failed_workflows: Annotated[str | None, doc("How long failures are kept.")] = None
    reboot_timeout: Annotated[str | None, doc("How long a reboot may take.")] = None
    auto_start_workflow: Annotated[bool | None, doc("Whether without approval.")] = None
    node_remediation_labels: Annotated[Labels, doc("Labels meanwhile.")] = msgspec.field(default_factory=dict)
    node_remediation_taints: Annotated[tuple[str, ...], doc("Taints meanwhile.")] = ()
    node_drain_policy: Annotated[DrainPolicy | None, doc("How a node is emptied.")] = None


class DeviceConfigSpec(Block, frozen=True, kw_only=True):
    """How a set of nodes with AMD GPUs is served."""

    selector: Annotated[Labels, doc("Labels of its nodes; empty for every node with AMD GPUs.")] = msgspec.field(
        default_factory=dict
    )
    common_config: Annotated[CommonConfig | None, doc("What operands share.")] = None
    driver: Annotated[AmdDriverSection, doc("The driver.", never=LEFT_TO_KMM)] = msgspec.field(
        default_factory=AmdDriverSection
    )
    device_plugin: Annotated[AmdDevicePlugin, doc("The device plugin and the node labeller.")] = msgspec.field(
        default_factory=AmdDevicePlugin
    )
    dra_driver: Annotated[AmdDraSection | None, doc("GPUs as devices of claims.")] = None
    metrics_exporter: Annotated[MetricsExporter, doc("The metrics exporter.")] = msgspec.field(
        default_factory=MetricsExporter
    )
    test_runner: Annotated[TestRunner | None, doc("Tests of GPUs.", unbuilt="run RVS or AGFHC in Jobs of your own")] = (
        None
    )
    config_manager: Annotated[AmdConfigManager, doc("Partition profiles.")] = msgspec.field(
        default_factory=AmdConfigManager
    )
    remediation_workflow: Annotated[
        RemediationWorkflow | None,
        doc("Repairs.", never="kgpu repairs by NodeOperations: set operations.remediation of the chart"),
    ] = None


class OperandCounts(Block, frozen=True, kw_only=True):
    """On how many nodes an operand is."""

    nodes_matching_selector_number: Annotated[int | None, doc("Nodes that are selected.")] = None
    desired_number: Annotated[int | None, doc("Nodes on which it should work.")] = None
    available_number: Annotated[int | None, doc("Nodes on which it does.")] = None


class DeviceConfigStatus(Block, frozen=True, kw_only=True):
    """How a DeviceConfig is doing."""

    device_plugin: Annotated[OperandCounts | None, doc("The device plugin.")] = None
    driver: Annotated[OperandCounts | None, doc("The driver: nodes on which one is loaded.")] = None
    metrics_exporter: Annotated[OperandCounts | None, doc("The metrics exporter.")] = None
    config_manager: Annotated[OperandCounts | None, doc("Partition profiles.")] = None
    conditions: Annotated[tuple[StatusCondition, ...], doc("`Ready` and `Error`.", schema=CONDITIONS_LIST)] = ()
    observed_generation: Annotated[int | None, doc("The generation that this is about.", schema=INT64)] = None
