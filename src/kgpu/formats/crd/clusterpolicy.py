"""ClusterPolicy ``nvidia.com/v1``: one object per cluster that says which operands run and how.

Sections that the replaced operator's schema requires may be left out: they are there with their defaults. ``enabled``
is None when the manifest does not say; what that means differs per operand (``kgpu.formats.operands``).
"""

from __future__ import annotations

from typing import Annotated, Final, Literal

import msgspec

from kgpu.formats.crd.common import (
    ABSOLUTE,
    INT32,
    LABEL_VALUE,
    PODS,
    Block,
    Component,
    Env,
    EnvImage,
    Image,
    Labels,
    Named,
    OperandContainer,
    Probe,
    Rdma,
    SideContainer,
    Switch,
    UpgradePolicy,
    doc,
)
from kgpu.formats.crd.core import PodSecurityContext, ServiceMonitor, Toleration
from kgpu.formats.names import KUBELET_ROOT, MPS_ROOT

MACHINES: Final = "nothing for virtual machines is provided; keep NVIDIA's operator where GPUs go to them"


class OperatorMetrics(Block, frozen=True, kw_only=True):
    """How the operator's own metrics are scraped."""

    service_monitor: Annotated[ServiceMonitor | None, doc("The operator's ServiceMonitor.")] = None


class Operator(Block, frozen=True, kw_only=True):
    """The operator itself."""

    runtime_class: Annotated[str, doc("The RuntimeClass that gives pods their GPUs.")] = "nvidia"
    use_ocp_driver_toolkit: Annotated[
        bool | None,
        doc("Unless false, drivers on OpenShift's RHCOS are built in its driver toolkit."),
    ] = msgspec.field(default=None, name="use_ocp_driver_toolkit")
    labels: Annotated[Labels, doc("Labels of all that it makes.")] = msgspec.field(default_factory=dict)
    annotations: Annotated[Labels, doc("Annotations of all that it makes.")] = msgspec.field(default_factory=dict)
    metrics: Annotated[OperatorMetrics | None, doc("How the operator's metrics are scraped.")] = None
    default_runtime: Annotated[
        str | None, doc("The container runtime.", ignored="each node's container runtime is found by itself")
    ] = None
    init_container: Annotated[
        Image | None, doc("The image of init containers.", ignored="init containers use kgpu's own image")
    ] = None


class RollingUpdate(Block, frozen=True, kw_only=True):
    """How DaemonSets are rolled out."""

    max_unavailable: Annotated[
        str | None, doc("Pods that may be away at a time, as a number in quotes or a percentage.", rules=PODS)
    ] = None


class DaemonSets(Block, frozen=True, kw_only=True):
    """What all DaemonSets share."""

    labels: Annotated[Labels, doc("Labels added to pods.")] = msgspec.field(default_factory=dict)
    annotations: Annotated[Labels, doc("Annotations added to pods.")] = msgspec.field(default_factory=dict)
    tolerations: Annotated[tuple[Toleration, ...], doc("Taints that pods bear.")] = ()
    priority_class_name: Annotated[str | None, doc("The pods' PriorityClass.")] = None
    pod_security_context: Annotated[PodSecurityContext | None, doc("The pods' security settings.")] = None
    update_strategy: Annotated[Literal["RollingUpdate", "OnDelete"], doc("How new versions are rolled out.")] = (
        "RollingUpdate"
    )
    rolling_update: Annotated[RollingUpdate | None, doc("How `RollingUpdate` proceeds.")] = None


class RepoConfig(Block, frozen=True, kw_only=True):
    """Package repositories of the driver container."""

    config_map_name: Annotated[str | None, doc("The ConfigMap with the repositories' files.")] = None


class LicensingConfig(Block, frozen=True, kw_only=True):
    """Licences of virtual GPUs."""

    config_map_name: Annotated[
        str | None, doc("The ConfigMap with the licence's files.", deprecated="use secretName, which wins")
    ] = None
    secret_name: Annotated[str | None, doc("The Secret with the licence's files.")] = None
    nls_enabled: Annotated[bool | None, doc("Whether the licence system NLS is used; off if not given.")] = None


class VirtualTopology(Block, frozen=True, kw_only=True):
    """The virtual topology daemon's configuration."""

    config: Annotated[str | None, doc("The ConfigMap's name.")] = None


class Driver(Component, frozen=True, kw_only=True):
    """The kernel driver and its libraries, from a container."""

    use_nvidia_driver_crd: Annotated[
        bool | None, doc("Whether NVIDIADriver objects say which driver nodes get; off if not given.")
    ] = msgspec.field(default=None, name="useNvidiaDriverCRD")
    use_precompiled: Annotated[bool | None, doc("Whether drivers built for one kernel are used; off if not given.")] = (
        None
    )
    kernel_module_type: Annotated[Literal["auto", "open", "proprietary"], doc("Which kernel modules are loaded.")] = (
        "auto"
    )
    use_open_kernel_modules: Annotated[
        bool | None, doc("Whether the open kernel modules are loaded.", ignored="use kernelModuleType")
    ] = None
    startup_probe: Annotated[Probe | None, doc("Timing of the start.")] = None
    liveness_probe: Annotated[Probe | None, doc("Timing of the liveness probe.")] = None
    readiness_probe: Annotated[Probe | None, doc("Timing of the readiness probe.")] = None
    rdma: Annotated[Rdma | None, doc("GPUDirect RDMA.")] = None
    upgrade_policy: Annotated[UpgradePolicy | None, doc("How nodes get a new driver.")] = None
    manager: Annotated[EnvImage | None, doc("The init container that makes room for a new driver.")] = None
    repo_config: Annotated[RepoConfig | None, doc("Package repositories of the driver container.")] = None
    cert_config: Annotated[Named | None, doc("Certificates of the driver container.")] = None
    licensing_config: Annotated[LicensingConfig | None, doc("Licences of virtual GPUs.")] = None
    virtual_topology: Annotated[VirtualTopology | None, doc("The virtual topology daemon.")] = None
    kernel_module_config: Annotated[Named | None, doc("Parameters of the kernel modules.")] = None
    secret_env: Annotated[str | None, doc("A Secret whose keys become environment variables.")] = None


class Toolkit(Component, frozen=True, kw_only=True):
    """What makes GPUs usable inside containers."""

    install_dir: Annotated[
        str, doc("Where it is installed on the host.", unbuilt="nothing is installed there, as devices come by CDI")
    ] = "/usr/local/nvidia"


class DevicePluginConfig(Block, frozen=True, kw_only=True):
    """A ConfigMap of the device plugin's configurations, from which nodes choose by label."""

    name: Annotated[str | None, doc("The ConfigMap's name.")] = None
    default: Annotated[str | None, doc("The key of nodes without a label.")] = None


class Mps(Block, frozen=True, kw_only=True):
    """Sharing of GPUs by MPS."""

    root: Annotated[str, doc("The folder of the MPS daemons on the host.")] = MPS_ROOT


class DevicePlugin(Component, frozen=True, kw_only=True):
    """What offers GPUs to the kubelet."""

    config: Annotated[DevicePluginConfig, doc("The ConfigMap with its configurations.")] = DevicePluginConfig()
    mps: Annotated[Mps | None, doc("Sharing of GPUs by MPS.")] = None


class Dcgm(Component, frozen=True, kw_only=True):
    """The host engine of DCGM."""

    host_port: Annotated[
        int | None, doc("The port on the host.", schema=INT32, ignored="the port is not opened on the host")
    ] = None


class ExporterService(Block, frozen=True, kw_only=True):
    """The metrics exporter's Service."""

    type: Annotated[str | None, doc("The Service's type.")] = None
    internal_traffic_policy: Annotated[str | None, doc("`Cluster`, or `Local` for pods of the same node.")] = None


class HpcJobMapping(Block, frozen=True, kw_only=True):
    """Names of HPC jobs in metrics."""

    enabled: Annotated[bool | None, doc("Whether metrics name the job; off if not given.")] = None
    directory: Annotated[
        str | None,
        doc("Where on the host the batch system says which job is where; `/var/lib/dcgm-exporter/job-mapping`."),
    ] = None


class DcgmExporter(Component, frozen=True, kw_only=True):
    """GPU metrics for Prometheus."""

    config: Annotated[Named | None, doc("The ConfigMap with the list of metrics.")] = None
    service_monitor: Annotated[ServiceMonitor | None, doc("The exporter's ServiceMonitor.")] = None
    service: Annotated[ExporterService | None, doc("The exporter's Service.")] = None
    annotations: Annotated[Labels, doc("Annotations added to its pods.")] = msgspec.field(default_factory=dict)
    host_pid: Annotated[bool | None, doc("Whether its pods see the host's processes; on if not given.")] = (
        msgspec.field(default=None, name="hostPID")
    )
    hpc_job_mapping: Annotated[HpcJobMapping | None, doc("Names of HPC jobs in metrics.")] = None
    enable_pod_labels: Annotated[bool | None, doc("Whether metrics have the pods' labels; off if not given.")] = None
    enable_pod_uid: Annotated[bool | None, doc("Whether metrics have the pods' UIDs; off if not given.")] = (
        msgspec.field(default=None, name="enablePodUID")
    )
    pod_label_allowlist_regex: Annotated[
        tuple[str, ...], doc("Which labels of pods metrics have; regular expressions.")
    ] = ()


class Mig(Block, frozen=True, kw_only=True):
    """How MIG slices are offered."""

    strategy: Annotated[
        Literal["none", "single", "mixed"] | None, doc("Not at all, as GPUs, or each size by its own name.")
    ] = None


class MigManagerConfig(Block, frozen=True, kw_only=True):
    """A ConfigMap of MIG layouts, from which nodes choose by label."""

    name: Annotated[str, doc("The ConfigMap's name; empty for the built-in layouts.")] = ""
    default: Annotated[
        str,
        doc(
            "The layout of nodes without a label; empty for none. `all-disabled` leaves slices that it finds.",
            rules=LABEL_VALUE,
        ),
    ] = "all-disabled"


class MigManager(Component, frozen=True, kw_only=True):
    """What cuts GPUs into MIG slices."""

    config: Annotated[MigManagerConfig, doc("The ConfigMap with the layouts.")] = MigManagerConfig()
    gpu_clients_config: Annotated[Named | None, doc("Services on the host to stop while GPUs are cut.")] = None


class Validator(OperandContainer, frozen=True, kw_only=True):
    """What checks that each step works on a node."""

    driver: Annotated[Env | None, doc("The check of the driver.")] = None
    toolkit: Annotated[Env | None, doc("The check of the toolkit.")] = None
    cuda: Annotated[Env | None, doc("The check of CUDA.")] = None
    plugin: Annotated[Env | None, doc("The check of the device plugin.")] = None
    vfio_pci: Annotated[Env | None, doc("The check of vfio-pci.", never=MACHINES)] = msgspec.field(
        default=None, name="vfioPCI"
    )
    vgpu_manager: Annotated[Env | None, doc("The check of the vGPU manager.", never=MACHINES)] = None
    vgpu_devices: Annotated[Env | None, doc("The check of vGPU devices.", never=MACHINES)] = None


class Cdi(Block, frozen=True, kw_only=True):
    """The Container Device Interface."""

    enabled: Annotated[bool, doc("Whether GPUs get into containers by CDI.")] = True
    default: Annotated[bool, doc("Whether CDI is the default mode.", ignored="it is where CDI is enabled")] = False
    nri_plugin_enabled: Annotated[bool, doc("Whether an NRI plugin injects devices.")] = False


class HostPaths(Block, frozen=True, kw_only=True):
    """Where things are on the host."""

    root_fs: Annotated[str | None, doc("The host's root as its nodes see it; `/` if not given.", rules=ABSOLUTE)] = (
        msgspec.field(default=None, name="rootFS")
    )
    driver_install_dir: Annotated[
        str | None, doc("The driver container's root; `/run/nvidia/driver` if not given.", rules=ABSOLUTE)
    ] = None
    kubelet_root_dir: Annotated[str, doc("The kubelet's folder.", rules=ABSOLUTE)] = KUBELET_ROOT


class SandboxWorkloads(Block, frozen=True, kw_only=True):
    """GPUs for virtual machines."""

    enabled: Annotated[bool | None, doc("Whether nodes can be for virtual machines; off if not given.")] = None
    default_workload: Annotated[
        Literal["container", "vm-passthrough", "vm-vgpu"], doc("What nodes without a label are for.")
    ] = "container"
    mode: Annotated[Literal["kubevirt", "kata"], doc("What runs the virtual machines.")] = "kubevirt"


class VgpuManager(Component, frozen=True, kw_only=True):
    """The host driver of virtual GPUs."""

    driver_manager: Annotated[EnvImage | None, doc("The init container that makes room for a new driver.")] = None
    kernel_module_config: Annotated[Named | None, doc("Parameters of the kernel modules.")] = None


class VgpuDevicesConfig(Block, frozen=True, kw_only=True):
    """A ConfigMap of vGPU layouts, from which nodes choose by label."""

    name: Annotated[str | None, doc("The ConfigMap's name.")] = None
    default: Annotated[str, doc("The layout of nodes without a label.")] = "default"


class VgpuDeviceManager(Component, frozen=True, kw_only=True):
    """What makes vGPU devices."""

    config: Annotated[VgpuDevicesConfig | None, doc("The ConfigMap with the layouts.")] = None


class VfioManager(Component, frozen=True, kw_only=True):
    """What gives GPUs to vfio-pci."""

    driver_manager: Annotated[EnvImage | None, doc("The init container that makes room.")] = None


class CcManager(Component, frozen=True, kw_only=True):
    """What switches confidential computing."""

    default_mode: Annotated[
        Literal["on", "off", "devtools"] | None, doc("The mode of nodes without a label.", usual=("on",))
    ] = None


class KataArtifacts(Block, frozen=True, kw_only=True):
    """Where a Kata runtime's files come from."""

    url: Annotated[str, doc("The artifacts' OCI reference.")]
    pull_secret: Annotated[str | None, doc("The Secret with the registry's credentials.")] = None


class KataRuntimeClass(Block, frozen=True, kw_only=True):
    """One RuntimeClass of Kata."""

    name: Annotated[str, doc("The RuntimeClass's name.")]
    node_selector: Annotated[Labels, doc("The Nodes that have it, by labels.")] = msgspec.field(default_factory=dict)
    artifacts: Annotated[KataArtifacts, doc("Where its files come from.")] = msgspec.field()


class KataConfig(Block, frozen=True, kw_only=True):
    """The RuntimeClasses of Kata."""

    artifacts_dir: Annotated[str, doc("Where artifacts are kept on the host.")] = (
        "/opt/nvidia-gpu-operator/artifacts/runtimeclasses"
    )
    runtime_classes: Annotated[tuple[KataRuntimeClass, ...], doc("The RuntimeClasses.")] = ()


class KataManager(Component, frozen=True, kw_only=True):
    """What installs Kata runtimes."""

    config: Annotated[KataConfig | None, doc("The RuntimeClasses.")] = None


class ClusterPolicySpec(Block, frozen=True, kw_only=True):
    """What a ClusterPolicy wants."""

    operator: Annotated[Operator, doc("The operator itself.")] = Operator()
    daemonsets: Annotated[DaemonSets, doc("What all DaemonSets share.")] = DaemonSets()
    driver: Annotated[Driver, doc("The kernel driver and its libraries, from a container.")] = Driver()
    toolkit: Annotated[Toolkit, doc("What makes GPUs usable inside containers.")] = Toolkit()
    device_plugin: Annotated[DevicePlugin, doc("What offers GPUs to the kubelet.")] = DevicePlugin()
    dcgm: Annotated[
        Dcgm, doc("The host engine of DCGM.", never="kgpu's exporter reads the driver and needs no host engine")
    ] = Dcgm()
    dcgm_exporter: Annotated[DcgmExporter, doc("GPU metrics for Prometheus.")] = DcgmExporter()
    gfd: Annotated[Component, doc("Labels that say which GPUs a node has.")] = Component()
    node_status_exporter: Annotated[Component, doc("Metrics about the validation of each node.")] = Component()
    mig: Annotated[Mig | None, doc("How MIG slices are offered.")] = None
    mig_manager: Annotated[
        MigManager,
        doc("What cuts GPUs into MIG slices.", usual=(True,)),
    ] = MigManager()
    validator: Annotated[Validator | None, doc("What checks that each step works on a node.")] = None
    cdi: Annotated[Cdi | None, doc("The Container Device Interface.")] = None
    host_paths: Annotated[HostPaths | None, doc("Where things are on the host.")] = None
    sandbox_workloads: Annotated[SandboxWorkloads | None, doc("GPUs for virtual machines.", never=MACHINES)] = None
    gds: Annotated[SideContainer | None, doc("GPUDirect Storage.")] = None
    gdrcopy: Annotated[SideContainer | None, doc("GDRCopy.")] = None
    vgpu_manager: Annotated[VgpuManager | None, doc("The host driver of virtual GPUs.", never=MACHINES)] = None
    vgpu_device_manager: Annotated[
        VgpuDeviceManager | None, doc("What makes vGPU devices.", never=MACHINES, usual=(True,))
    ] = None
    vfio_manager: Annotated[VfioManager | None, doc("What gives GPUs to vfio-pci.", never=MACHINES, usual=(True,))] = (
        None
    )
    sandbox_device_plugin: Annotated[
        Component | None, doc("What offers GPUs for virtual machines.", never=MACHINES, usual=(True,))
    ] = None
    kata_sandbox_device_plugin: Annotated[
        Component | None, doc("What offers GPUs for Kata containers.", never=MACHINES, usual=(True,))
    ] = None
    cc_manager: Annotated[
        CcManager | None,
        doc(
            "What switches confidential computing.",
            never="the mode of a node's GPUs stays what it is",
            usual=(True,),
        ),
    ] = None
    kata_manager: Annotated[
        KataManager | None, doc("What installs Kata runtimes.", ignored="Kata's own installer does this now")
    ] = None
    psa: Annotated[Switch | None, doc("Pod Security labels on the operator's namespace.")] = None
    psp: Annotated[
        Switch | None, doc("PodSecurityPolicies.", ignored="Kubernetes has no PodSecurityPolicy any more")
    ] = None
    node_feature_discovery: Annotated[
        Switch | None,
        doc("Not part of this resource, but seen in manifests.", ignored="the Helm value nfd.enabled switches it"),
    ] = None
