"""Every label, annotation, environment variable, resource and path name that users or other programs know.

The names are the replaced programs' own, so that manifests keep working; kgpu's additions live under ``kgpu.dev/``.
Nothing else in the code spells such a name out.
"""

from __future__ import annotations

from typing import Final

# Prometheus' text format, as answers name it
METRICS_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"

# NVIDIA's hardware
NVIDIA: Final = "nvidia"
NVIDIA_PCI_ID: Final = "10de"
NVIDIA_CONTROL_NODES: Final = ("/dev/nvidiactl", "/dev/nvidia-uvm", "/dev/nvidia-uvm-tools", "/dev/nvidia-modeset")
# The display card of a DGX Station, which the driver lists among the GPUs
NVIDIA_DISPLAY_BOARDS: Final = frozenset({"DGX Display", "NVIDIA DGX Display"})

# AMD's hardware
AMD: Final = "amd"
AMD_PCI_ID: Final = "1002"
AMD_DRIVER: Final = "amdgpu"
# PCI ids of virtual functions: MI210, MI300X, MI300X HF, MI308X (two), MI325X, MI350P, MI350X, MI355X, V710, V620
AMD_VIRTUAL_BOARDS: Final = frozenset(
    {"7410", "74b5", "74bd", "74b6", "74bc", "74b9", "75b8", "75b0", "75b3", "7461", "73ae"}
)
AMD_CONTROL_NODES: Final = ("/dev/kfd",)
ROCM_METRICS_CONFIG: Final = "/etc/metrics/config.json"
ROCM_HEALTH_SOCKET: Final = "/var/lib/amd-metrics-exporter/amdgpu_device_metrics_exporter_grpc.socket"

# Gaudi's
GAUDI: Final = "gaudi"
GAUDI_PCI_ID: Final = "1da3"
GAUDI_DRIVER: Final = "habanalabs"
GAUDI_MODULES: Final = (GAUDI_DRIVER, "habanalabs_cn", "habanalabs_ib", "habanalabs_en")
ENV_HABANA_VISIBLE_DEVICES: Final = "HABANA_VISIBLE_DEVICES"
ENV_HABANA_VISIBLE_MODULES: Final = "HABANA_VISIBLE_MODULES"
ENV_HL_VISIBLE_DEVICES: Final = "HL_VISIBLE_DEVICES"
ENV_HL_VISIBLE_DEVICES_UUID: Final = "HL_VISIBLE_DEVICES_UUID"
HLML_LIBRARY: Final = "usr/lib/habanalabs/libhlml.so"  # below the driver root
GAUDI_NETWORK_FILE: Final = "/etc/habanalabs/gaudinet.json"  # addresses of the cards' external ports

# Intel's GPUs
INTEL: Final = "intel"
INTEL_PCI_ID: Final = "8086"
INTEL_DRIVERS: Final = ("i915", "xe")

# Resources
NVIDIA_DOMAIN: Final = "nvidia.com"
GPU_RESOURCE: Final = "nvidia.com/gpu"
MIG_RESOURCE_PREFIX: Final = "nvidia.com/mig-"
SHARED_SUFFIX: Final = ".shared"
AMD_DOMAIN: Final = "amd.com"
AMD_RESOURCE_PREFIX: Final = "amd.com/"
AMD_GPU_RESOURCE: Final = "amd.com/gpu"
GAUDI_DOMAIN: Final = "habana.ai"
GAUDI_RESOURCE: Final = "habana.ai/gaudi"
INTEL_DOMAIN: Final = "gpu.intel.com"
INTEL_RESOURCE_PREFIX: Final = "gpu.intel.com/"
INTEL_GPU_RESOURCE: Final = "gpu.intel.com/i915"
INTEL_XE_RESOURCE: Final = "gpu.intel.com/xe"
ACCELERATOR_DOMAINS: Final = frozenset({NVIDIA_DOMAIN, AMD_DOMAIN, GAUDI_DOMAIN, INTEL_DOMAIN})

# Node labels that choose a configuration
DEVICE_PLUGIN_CONFIG_LABEL: Final = "nvidia.com/device-plugin.config"
MIG_CONFIG_LABEL: Final = "nvidia.com/mig.config"

# Device plugin: kubelet folder, sockets, environment
KUBELET_DEVICE_PLUGIN_DIR: Final = "/var/lib/kubelet/device-plugins"
KUBELET_SOCKET: Final = "/var/lib/kubelet/device-plugins/kubelet.sock"
DEVICE_PLUGIN_API_VERSION: Final = "v1beta1"
ENV_VISIBLE_DEVICES: Final = "NVIDIA_VISIBLE_DEVICES"
ENV_DRIVER_CAPABILITIES: Final = "NVIDIA_DRIVER_CAPABILITIES"
ENV_IMEX_CHANNELS: Final = "NVIDIA_IMEX_CHANNELS"
ENV_GDRCOPY: Final = "NVIDIA_GDRCOPY"
ENV_GDS: Final = "NVIDIA_GDS"
ENV_MOFED: Final = "NVIDIA_MOFED"
ENV_MPS_PIPE_DIRECTORY: Final = "CUDA_MPS_PIPE_DIRECTORY"
ENV_MPS_FOLDER: Final = "KGPU_MPS_FOLDER"
"""The MPS root as this process sees it, where that is not where its manifest has mounted it (a lab's processes)."""
ENV_DISABLE_HEALTHCHECKS: Final = "DP_DISABLE_HEALTHCHECKS"
ENV_ENABLE_HEALTHCHECKS: Final = "DP_ENABLE_HEALTHCHECKS"
VOLUME_MOUNTS_DIR: Final = "/var/run/nvidia-container-devices"

# Kubernetes' own names of Dynamic Resource Allocation
ADMIN_ACCESS_LABEL: Final = "resource.kubernetes.io/admin-access"  # on a namespace: claims may ask for admin access
CLAIM_FINALIZER: Final = "resource.kubernetes.io/delete-protection"  # of claims that are allocated
DEVICE_CLASS_PREFIX: Final = "deviceclass.resource.kubernetes.io/"  # with a class's name: its extended resource
EXTENDED_CLAIM_ANNOTATION: Final = (
    "resource.kubernetes.io/extended-resource-claim"  # on a claim made for such resources
)
POD_CLAIM_ANNOTATION: Final = "resource.kubernetes.io/pod-claim-name"  # on a claim made for a pod: the pod's name of it

# Pods that start or work together: by whom, and how a pod says so
VOLCANO_POD_GROUP: Final = ("scheduling.k8s.io/group-name", "scheduling.volcano.sh/group-name")  # annotations
KAI_POD_GROUP: Final = "pod-group-name"  # annotation
COSCHEDULING_POD_GROUP: Final = ("scheduling.x-k8s.io/pod-group", "pod-group.scheduling.sigs.k8s.io")  # labels
KUEUE_POD_GROUP: Final = "kueue.x-k8s.io/pod-group-name"  # label
KUEUE_POD_GROUP_COUNT: Final = "kueue.x-k8s.io/pod-group-total-count"  # annotation
JOBSET_NAME: Final = "jobset.sigs.k8s.io/jobset-name"  # label
LWS_NAME: Final = "leaderworkerset.sigs.k8s.io/name"  # label
LWS_LEADER_NAME: Final = "leaderworkerset.sigs.k8s.io/leader-name"  # annotation of workers
LWS_GROUP_INDEX: Final = "leaderworkerset.sigs.k8s.io/group-index"  # label
JOB_INDEX: Final = "batch.kubernetes.io/job-completion-index"  # annotation of an Indexed Job's pods

# CDI
CDI_DIR: Final = "/var/run/cdi"
CDI_STATIC_DIR: Final = "/etc/cdi"
CDI_PLUGIN_VENDOR: Final = "k8s.device-plugin.nvidia.com"
CDI_PLUGIN_VENDOR_AMD: Final = "k8s.device-plugin.amd.com"
CDI_PLUGIN_VENDOR_GAUDI: Final = "k8s.device-plugin.habana.ai"
CDI_PLUGIN_VENDOR_INTEL: Final = "k8s.device-plugin.gpu.intel.com"
CDI_ANNOTATION_PREFIX: Final = "cdi.k8s.io/"
CDI_NVIDIA_KIND: Final = "nvidia.com/gpu"

# Feature discovery
NFD_FEATURE_FILE: Final = "/etc/kubernetes/node-feature-discovery/features.d/gfd"
NFD_NODE_NAME_LABEL: Final = "nfd.node.kubernetes.io/node-name"
NFD_FOLDER: Final = "/etc/kubernetes/node-feature-discovery"
NFD_DOMAIN: Final = "nfd.k8s-sigs.io"
NFD_API_VERSION: Final = "nfd.k8s-sigs.io/v1alpha1"
NODE_FEATURE_PREFIX: Final = "nvidia-features-for-"

# The simulated driver
ENV_HW_STATE: Final = "KGPU_HW_STATE"
NODE_HOST_LABEL: Final = "kgpu.dev/node-host"  # on simulated Nodes: which host's they are
ENV_LAB_CONTAINER: Final = "KGPU_LAB_CONTAINER"  # the id of the simulated node's container that a process is in
ENV_SIMULATED_REBOOT: Final = "KGPU_SIMULATED_REBOOT"  # the file that reboots the simulated machine once it is made
SIMULATED_MACHINE: Final = "/run/nvidia/.machine"  # a simulated machine's root, on a node with another one
ENV_SIMULATED_MACHINE: Final = "KGPU_SIMULATED_MACHINE"  # the same for the lab's driver image
ENV_SIMULATED_NVIDIA_RUN: Final = "KGPU_SIMULATED_NVIDIA_RUN"  # a simulated machine's /run/nvidia
ENV_SIMULATED_LOAD: Final = "KGPU_SIMULATED_LOAD"  # the load profile that a program on the simulated driver follows
ENV_TERMINATION_LOG: Final = "KGPU_TERMINATION_LOG"  # a container's last words, where it has no file system of its own
HW_STATE_PATH: Final = "/run/kgpu/hw/state"

# kgpu's own
KGPU_DOMAIN: Final = "kgpu.dev"
FIELD_MANAGER: Final = "kgpu-agent"

# Node labels that feature discovery writes; the deprecated cuda.* ones beside their successors
LABEL_GFD_TIMESTAMP: Final = "nvidia.com/gfd.timestamp"
LABEL_GPU_MACHINE: Final = "nvidia.com/gpu.machine"
LABEL_GPU_PRODUCT: Final = "nvidia.com/gpu.product"
LABEL_GPU_MODE: Final = "nvidia.com/gpu.mode"
LABEL_GPU_CLIQUE: Final = "nvidia.com/gpu.clique"
LABEL_MIG_CAPABLE: Final = "nvidia.com/mig.capable"
LABEL_MIG_STRATEGY: Final = "nvidia.com/mig.strategy"
LABEL_MPS_CAPABLE: Final = "nvidia.com/mps.capable"
LABEL_VGPU_PRESENT: Final = "nvidia.com/vgpu.present"
LABEL_VGPU_HOST_DRIVER_VERSION: Final = "nvidia.com/vgpu.host-driver-version"
LABEL_VGPU_HOST_DRIVER_BRANCH: Final = "nvidia.com/vgpu.host-driver-branch"
LABEL_CUDA_DRIVER: Final = "nvidia.com/cuda.driver"  # .major .minor .rev, deprecated
LABEL_CUDA_DRIVER_VERSION: Final = "nvidia.com/cuda.driver-version"  # .major .minor .revision .full
LABEL_CUDA_RUNTIME: Final = "nvidia.com/cuda.runtime"  # .major .minor, deprecated
LABEL_CUDA_RUNTIME_VERSION: Final = "nvidia.com/cuda.runtime-version"  # .major .minor .full
# Endings of the keys of one resource's group: nvidia.com/gpu.product, nvidia.com/mig-1g.10gb.product, ...
LABEL_PRODUCT: Final = ".product"
LABEL_COUNT: Final = ".count"
LABEL_REPLICAS: Final = ".replicas"
LABEL_SHARING_STRATEGY: Final = ".sharing-strategy"
LABEL_MEMORY: Final = ".memory"
LABEL_FAMILY: Final = ".family"
LABEL_COMPUTE_MAJOR: Final = ".compute.major"
LABEL_COMPUTE_MINOR: Final = ".compute.minor"
LABEL_MULTIPROCESSORS: Final = ".multiprocessors"
LABEL_SLICES_GI: Final = ".slices.gi"
LABEL_SLICES_CI: Final = ".slices.ci"
LABEL_ENGINES: Final = ".engines."  # copy decoder encoder jpeg ofa
# kgpu's own, on nodes with several models: totals, then kgpu.dev/gpu.<model>.count and the like
KGPU_LABEL_GPU_MODELS: Final = "kgpu.dev/gpu.models"
KGPU_LABEL_GPU_TOTAL: Final = "kgpu.dev/gpu.total"
KGPU_LABEL_MODEL_PREFIX: Final = "kgpu.dev/gpu."
# kgpu's own, on nodes with active RDMA ports: "infiniband" or "ethernet", Gbit/s of the fastest, how many are so fast
KGPU_LABEL_RDMA_LINK: Final = "kgpu.dev/rdma.link-layer"
KGPU_LABEL_RDMA_RATE: Final = "kgpu.dev/rdma.rate"
KGPU_LABEL_RDMA_PORTS: Final = "kgpu.dev/rdma.ports"
LABELS_FIELD_MANAGER: Final = "kgpu-labels"

# Kubernetes' own: what kubectl's client-side apply has sent last
LAST_APPLIED: Final = "kubectl.kubernetes.io/last-applied-configuration"

# Kubernetes' own: the taint of a node that is cordoned
TAINT_UNSCHEDULABLE: Final = "node.kubernetes.io/unschedulable"

# Kubernetes' own: the taints of a node that its conditions and its being out of service bring
PASSING_TAINTS: Final = (
    "node.kubernetes.io/", "node.cloudprovider.kubernetes.io/", "ToBeDeletedByClusterAutoscaler",
    "DeletionCandidateOfClusterAutoscaler", "karpenter.sh/disrupt",
)  # fmt: skip
"""How taints begin that come and go with a node's state."""
TAINT_NOT_READY: Final = "node.kubernetes.io/not-ready"
TAINT_UNREACHABLE: Final = "node.kubernetes.io/unreachable"
TAINT_MEMORY_PRESSURE: Final = "node.kubernetes.io/memory-pressure"
TAINT_DISK_PRESSURE: Final = "node.kubernetes.io/disk-pressure"
TAINT_PID_PRESSURE: Final = "node.kubernetes.io/pid-pressure"
TAINT_NETWORK_UNAVAILABLE: Final = "node.kubernetes.io/network-unavailable"
TAINT_OUT_OF_SERVICE: Final = "node.kubernetes.io/out-of-service"

LAB_PROVISIONER: Final = "kgpu.dev/local"
"""Who makes the embedded lab's volumes: the name of the StorageClass's provisioner and of the volumes' driver."""
LAB_STORAGE_CLASS: Final = "standard"
"""The lab's default StorageClass, named as kind's and minikube's are."""
DEFAULT_STORAGE_CLASS: Final = "storageclass.kubernetes.io/is-default-class"
LABEL_INSTANCE_TYPE: Final = "node.kubernetes.io/instance-type"
LABEL_INSTANCE_TYPE_BETA: Final = "beta.kubernetes.io/instance-type"
LABEL_REGION: Final = "topology.kubernetes.io/region"
LABEL_ZONE: Final = "topology.kubernetes.io/zone"
LABEL_HOSTNAME: Final = "kubernetes.io/hostname"
# How clouds and autoscalers label what a node costs by, and which pool it is of
LABEL_KARPENTER_CAPACITY_TYPE: Final = "karpenter.sh/capacity-type"
LABEL_KARPENTER_NODE_POOL: Final = "karpenter.sh/nodepool"
LABEL_EKS_CAPACITY_TYPE: Final = "eks.amazonaws.com/capacityType"
LABEL_EKS_NODE_GROUP: Final = "eks.amazonaws.com/nodegroup"
LABEL_GKE_SPOT: Final = "cloud.google.com/gke-spot"
LABEL_GKE_NODE_POOL: Final = "cloud.google.com/gke-nodepool"
LABEL_AKS_PRIORITY: Final = "kubernetes.azure.com/scalesetpriority"
LABEL_AKS_NODE_POOL: Final = "kubernetes.azure.com/agentpool"
# Which pool a node is of, whoever makes its nodes
NODE_POOL_LABELS: Final = (LABEL_KARPENTER_NODE_POOL, LABEL_EKS_NODE_GROUP, LABEL_GKE_NODE_POOL, LABEL_AKS_NODE_POOL)
# By which the cluster autoscaler knows a node whose GPUs are not there yet
LABEL_AWS_ACCELERATOR: Final = "k8s.amazonaws.com/accelerator"
LABEL_GCE_ACCELERATOR: Final = "cloud.google.com/gke-accelerator"
LABEL_AZURE_ACCELERATOR: Final = "kubernetes.azure.com/accelerator"
LABEL_CAPI_ACCELERATOR: Final = "cluster-api/accelerator"

# The operator: its CRDs, the labels that say what a node has and which operands it runs
GPU_OPERATOR_NAMESPACE: Final = "gpu-operator"
OPERATOR_FIELD_MANAGER: Final = "kgpu-operator"
FEATURES_FIELD_MANAGER: Final = "kgpu-features"
VALIDATOR_FIELD_MANAGER: Final = "kgpu-validator"
LABEL_GPU_PRESENT: Final = "nvidia.com/gpu.present"
LABEL_DEPLOY_PREFIX: Final = "nvidia.com/gpu.deploy."
LABEL_DEPLOY_OPERANDS: Final = "nvidia.com/gpu.deploy.operands"
LABEL_WORKLOAD_CONFIG: Final = "nvidia.com/gpu.workload.config"
LABEL_DRIVER_OWNER: Final = "nvidia.com/gpu-operator.driver.owner"
LABEL_OPERATOR_STATE: Final = "nvidia.com/gpu-operator.state"  # on operands: which state of the operator they are of
DRIVER_UPGRADE_STATE_LABEL: Final = "nvidia.com/gpu-driver-upgrade-state"
DRIVER_UPGRADE_ENABLED: Final = "nvidia.com/gpu-driver-upgrade-enabled"
DRIVER_UPGRADE_SKIP: Final = "nvidia.com/gpu-driver-upgrade.skip"  # on Nodes: true, where the driver stays as it is
DRIVER_UPGRADE_DRAIN_SKIP: Final = "nvidia.com/gpu-driver-upgrade-drain.skip"  # on pods: true, they stay
DRIVER_UPGRADE_INITIAL: Final = "nvidia.com/gpu-driver-upgrade.node-initial-state.unschedulable"
NEXT_DRIVER: Final = "kgpu.dev/next-driver"  # on Nodes: the DaemonSet that is to install their next driver
DRIVER_UPGRADE_EVENT: Final = "GPUDriverUpgrade"
DRIVER_COMPONENT: Final = "nvidia-driver"  # value of the label component of driver pods
DRIVER_CONTAINER: Final = "nvidia-driver-ctr"
DRIVER_MANAGER_CONTAINER: Final = "k8s-driver-manager"
ENV_DRIVER_CONFIG_DIGEST: Final = "DRIVER_CONFIG_DIGEST"  # in a driver pod: what its driver was installed from
DRIVER_DIGEST_VERSION: Final = "kgpu.dev/driver-digest-version"  # on driver pods: how that digest is made
THIS_DRIVER_DIGEST_VERSION: Final = "1"
PAUSED_FOR_DRIVER_UPGRADE: Final = "paused-for-driver-upgrade"
PAUSED_FOR_MIG_CHANGE: Final = "paused-for-mig-change"  # by NVIDIA's MIG manager; kgpu's pauses nothing
PRE_INSTALLED: Final = "pre-installed"
DRIVER_MANAGER_ANNOTATION: Final = "kgpu.dev/driver-manager"  # on Nodes: what a driver manager gives back at its end
NFD_PREFIX: Final = "feature.node.kubernetes.io/"
NFD_PROFILE_DOMAIN: Final = "profile.node.kubernetes.io"
NFD_PCI_NVIDIA: Final = (
    "feature.node.kubernetes.io/pci-10de.present",
    "feature.node.kubernetes.io/pci-0302_10de.present",
    "feature.node.kubernetes.io/pci-0300_10de.present",
)
NFD_PCI_AMD: Final = (
    "feature.node.kubernetes.io/pci-0300_1002.present",
    "feature.node.kubernetes.io/pci-0302_1002.present",
    "feature.node.kubernetes.io/pci-0380_1002.present",
    "feature.node.kubernetes.io/pci-1200_1002.present",
)
NFD_PCI_GAUDI: Final = ("feature.node.kubernetes.io/pci-1200_1da3.present",)
NFD_PCI_INTEL: Final = (
    "feature.node.kubernetes.io/pci-0300_8086.present",
    "feature.node.kubernetes.io/pci-0302_8086.present",
    "feature.node.kubernetes.io/pci-0380_8086.present",
)
NFD_KERNEL_FULL: Final = "feature.node.kubernetes.io/kernel-version.full"
NFD_OS_ID: Final = "feature.node.kubernetes.io/system-os_release.ID"
NFD_OS_VERSION: Final = "feature.node.kubernetes.io/system-os_release.VERSION_ID"
NFD_OS_VERSION_MAJOR: Final = "feature.node.kubernetes.io/system-os_release.VERSION_ID.major"
NFD_OSTREE_VERSION: Final = "feature.node.kubernetes.io/system-os_release.OSTREE_VERSION"
"""On RHCOS: the release of the whole system, such as ``416.94.202409191851-0``."""
COMPONENT_LABEL: Final = "app.kubernetes.io/component"
SERVICE_NAME_LABEL: Final = "kubernetes.io/service-name"  # on EndpointSlices
SLICE_MANAGER_LABEL: Final = "endpointslice.kubernetes.io/managed-by"
MANAGED_BY_LABEL: Final = "app.kubernetes.io/managed-by"
PART_OF_LABEL: Final = "app.kubernetes.io/part-of"

# The validator: files that other programs wait for, and what kgpu says of a node
VALIDATIONS_DIR: Final = "/run/nvidia/validations"
DRIVER_INSTALL_DIR: Final = "/run/nvidia/driver"
VALIDATED_CONDITION: Final = "kgpu.dev/Validated"  # Node condition: every GPU of this node has passed every check
ROLES_ANNOTATION: Final = "kgpu.dev/roles"  # on Nodes: how this node's agent's roles are (kgpu.formats.agent_report)
AGENT_CONFIG_MAP: Final = "kgpu-agent"
AGENT_CONFIG_KEY: Final = "agent.json"
AGENT_DAEMON_SET: Final = "kgpu-agent"
USAGE_DAEMON_SET: Final = "kgpu-gpu-usage"
USAGE_DEPLOYMENT: Final = "kgpu-usage"  # what keeps the history of usage, where that is asked for
FINDER_DAEMON_SET: Final = "kgpu-node-features"
AGENT_NODE_LABEL: Final = "kgpu.dev/agent"  # on Nodes: the privileged agent belongs there; set by the operator alone
LABEL_VENDOR: Final = "kgpu.dev/vendor"  # on Nodes whose accelerators are not NVIDIA's: whose they are; by the operator
LABEL_DEVICE_CONFIG: Final = "kgpu.dev/device-config"  # on Nodes: which DeviceConfig serves it; by the operator
AGENT_NODE_LEAVING: Final = "leaving"  # its value while the agent cleans up a node that has no work for it any more
ALLOCATION_LABEL: Final = "kgpu.dev/allocation"  # on Nodes, by users: how their GPUs are handed out
ALLOCATION_DEVICE_PLUGIN: Final = "device-plugin"
ALLOCATION_DRA: Final = "dra"
VALIDATOR_DAEMON_SET: Final = "nvidia-operator-validator"

# kgpu's own image, which the chart asks for and `kgpu lab image` makes
IMAGE_REPOSITORY: Final = "kgpu.dev/kgpu"
IMAGE_PATTERN: Final = r"kgpu\.dev/kgpu([:@].*)?"  # that repository's images

# What the operator puts on objects and pods
LABEL_NODE_OS_VERSION: Final = "nvidia.com/node.os-version"
LABEL_PRECOMPILED: Final = "nvidia.com/precompiled"
LABEL_PRECOMPILED_KERNEL: Final = "nvidia.com/precompiled.kernel-version"
OS_LABEL: Final = "kubernetes.io/os"
CHART_LABEL: Final = "helm.sh/chart"
HELM_RELEASE_ANNOTATION: Final = "meta.helm.sh/release-name"
VERSION_LABEL: Final = "app.kubernetes.io/version"
ENV_HOST_ROOT: Final = "KGPU_HOST_ROOT"  # where the agent sees the host's root
HOST_ROOT: Final = "/host"
STATE_DIR: Final = "/var/lib/kgpu"
NODE_STATE_DIR: Final = "/var/lib/kgpu-node"  # where an operand, which keeps its state in a subfolder, sees the whole
ENV_NODE_STATE_DIR: Final = "NODE_STATE_DIR"
KUBELET_ROOT: Final = "/var/lib/kubelet"
AGENT_HEALTH_PORT: Final = 8090
NODE_STATUS_PORT: Final = 8000
EXPORTER_PORT: Final = 9400
USAGE_PORT: Final = 9410  # of what the agents, and the Deployment with the history, say of usage
OVERVIEW_PORT: Final = 9420
EXPORTER_SECOND_PORT: Final = 9401  # of the Service alone, which can't have one port under two names
MPS_ROOT: Final = "/run/nvidia/mps"
TAINT_CONTROL_PLANE: Final = "node-role.kubernetes.io/control-plane"

# The operator's process
KGPU: Final = "kgpu"  # value of the name and part-of labels on kgpu's own objects
NAME_LABEL: Final = "app.kubernetes.io/name"
OPERATOR_LEASE: Final = "53822513.nvidia.com"
OPERATOR_STATUS_MANAGER: Final = "kgpu-operator-status"
ENV_FEATURE_RULES: Final = "KGPU_FEATURE_RULES"
ENV_FEATURE_RULES_CONFIG: Final = "KGPU_FEATURE_RULES_CONFIG"
ENV_FEATURES_CONFIG: Final = "KGPU_FEATURES_CONFIG"  # a worker's configuration itself (YAML), for nodes without a file
OPERATOR_COMPONENT: Final = "kgpu-operator"  # source of its Events

# Node feature discovery's list of the labels that it has set; an instance's name and a dot may come before it
NFD_TRACKING_ANNOTATION: Final = "nfd.node.kubernetes.io/feature-labels"
# Its lists of what else it has set
NFD_TRACKED_ANNOTATIONS: Final = "nfd.node.kubernetes.io/feature-annotations"
NFD_TRACKED_RESOURCES: Final = "nfd.node.kubernetes.io/extended-resources"
NFD_TRACKED_TAINTS: Final = "nfd.node.kubernetes.io/taints"
LABEL_FEATURE_RULES: Final = "kgpu.dev/feature-rules"
"""On Nodes whose lists are kept by kgpu: it takes back what is on them once rules are switched off."""

# On Nodes of a lab that are only data: nothing runs in their pods
LABEL_LIGHT: Final = "kgpu.dev/light"

# The validator's role: the metrics' own port (the replaced program's), and "false" where nothing writes CDI specs
ENV_METRICS_PORT: Final = "METRICS_PORT"
ENV_CLAIMS_SHOWN: Final = "KUBERNETES_ENABLE_DRA"  # whether the exporter, and the role usage, resolve claims' devices
ENV_USAGE: Final = "KGPU_USAGE"  # the operator's: whether agents count what GPUs are used for
ENV_USAGE_LABELS: Final = "KGPU_USAGE_LABELS"  # the keys of pods' labels that are recorded, separated by commas
ENV_CUDA_RECHECK: Final = "cuda.RECHECK_SECONDS"  # the validator's, after how long CUDA runs again on an idle device
ENV_NO_DEVICE_LINKS: Final = "DISABLE_DEV_CHAR_SYMLINK_CREATION"  # "true": no links in /dev/char
ENV_KGPU_TOOLKIT: Final = "KGPU_TOOLKIT"  # for the validator: "false" where nothing of kgpu's writes CDI specs

# Where a node has a process per role: each has an annotation and a field manager of its own, ending in the role's name
ROLES_ANNOTATION_PREFIX: Final = "kgpu.dev/roles."
ROLE_FIELD_MANAGER_PREFIX: Final = "kgpu-agent-"

# For the device plugin: the folder whose files say that this node's GPUs may be offered
ENV_WAIT_FOR_VALIDATION: Final = "WAIT_FOR_VALIDATION"
RETRIED_ANNOTATION: Final = "kgpu.dev/retried-at"
"""On a DaemonSet whose pods were refused: when the operator asked for another attempt."""

# What images and pods ask of a container toolkit by environment, mounts and annotation
ENV_REQUIRE_PREFIX: Final = "NVIDIA_REQUIRE_"
ENV_REQUIRE_CUDA: Final = "NVIDIA_REQUIRE_CUDA"
ENV_REQUIRE_JETPACK: Final = "NVIDIA_REQUIRE_JETPACK"
ENV_DISABLE_REQUIRE: Final = "NVIDIA_DISABLE_REQUIRE"
ENV_CUDA_VERSION: Final = "CUDA_VERSION"
ENV_NVSWITCH: Final = "NVIDIA_NVSWITCH"
CDI_MANAGEMENT_KIND: Final = "management.nvidia.com/gpu"
CDI_PLUGIN_KIND: Final = "k8s.device-plugin.nvidia.com/gpu"
NRI_CDI_ANNOTATION: Final = "nvidia.cdi.k8s.io"

# The NRI plugin: the runtime's socket, the kubelet's word about who holds what, and the plugin's settings
NRI_SOCKET: Final = "/var/run/nri/nri.sock"
POD_RESOURCES_SOCKET: Final = "/var/lib/kubelet/pod-resources/kubelet.sock"
ENV_NRI_ENABLED: Final = "ENABLE_NRI_PLUGIN"
ENV_NRI_INDEX: Final = "NRI_PLUGIN_INDEX"
ENV_NRI_SOCKET: Final = "NRI_SOCKET"
ENV_NRI_NAMESPACE: Final = "NRI_NAMESPACE"
ENV_NRI_MANAGEMENT_NAMESPACES: Final = "NRI_MANAGEMENT_CDI_DEVICE_NAMESPACES"
ENV_NRI_ALLOWED: Final = "KGPU_NRI_ALLOWED"  # namespaces, and service accounts as namespace/name, that may ask too
ENV_ACCEPT_BY_ENV: Final = "ACCEPT_NVIDIA_VISIBLE_DEVICES_ENVVAR_WHEN_UNPRIVILEGED"
ENV_ACCEPT_BY_MOUNTS: Final = "ACCEPT_NVIDIA_VISIBLE_DEVICES_AS_VOLUME_MOUNTS"

# CDI specs: variables of the replaced program, and what kgpu records in a spec when asked to
ENV_EMPTY_DEVICE: Final = "NVCT_EMPTY_DEVICE"  # a device without nodes must change something
ENV_LIBCUDA_DIR: Final = "NVIDIA_CTK_LIBCUDA_DIR"  # where the driver's libcuda is in the container
ENV_TRITON_LIBCUDA: Final = "TRITON_LIBCUDA_PATH"  # the same for Triton, one folder
ENV_HOOK_DEBUG: Final = "NVIDIA_CTK_DEBUG"
CDI_DRIVER_ANNOTATION: Final = "kgpu.dev/driver-version"
CDI_BOOT_ANNOTATION: Final = "kgpu.dev/boot-id"
CDI_COHERENT_ANNOTATION: Final = "gpu.nvidia.com/coherent"

# The toolkit on a node: the usual runtime handler and RuntimeClass, and where engines' original configs are kept
RUNTIME_CLASS: Final = "nvidia"
ENGINES_FOLDER: Final = "engines"
"""In kgpu's state folder."""

# CDI kinds of what is beside GPUs
CDI_GDS_KIND: Final = "nvidia.com/gds"
CDI_MOFED_KIND: Final = "nvidia.com/mofed"
CDI_GDRCOPY_KIND: Final = "nvidia.com/gdrcopy"
CDI_NVSWITCH_KIND: Final = "nvidia.com/nvswitch"
CDI_IMEX_KIND: Final = "nvidia.com/imex-channel"

# Health: the verdicts that others act on, the Node condition, and what the role is told
RUN_DIR: Final = "/run/kgpu"
ENV_RUN_DIR: Final = "KGPU_RUN_DIR"  # where a process sees it, if not below the host's root
HEALTH_VERDICTS: Final = "/run/kgpu/health/verdicts.json"
GPUS_HEALTHY_CONDITION: Final = "kgpu.dev/GPUsHealthy"
VALIDATION_ANNOTATION: Final = "kgpu.dev/validation"  # on Nodes: kgpu.dev/Validated as data (formats.validation_report)
GPUS_ANNOTATION: Final = "kgpu.dev/gpus"  # on Nodes: kgpu.dev/GPUsHealthy as data (formats.gpu_report)
HEALTH_FIELD_MANAGER: Final = "kgpu-health"
HEALTH_HISTORY: Final = "health.db"
"""In kgpu's state folder."""
KERNEL_LOG: Final = "/dev/kmsg"
ENV_KERNEL_LOG: Final = "KGPU_KERNEL_LOG"  # another kernel log than the host's; "" as a value: none
ENV_HEALTH_CONFIG: Final = "KGPU_HEALTH_CONFIG"  # the configuration itself (YAML)
ENV_HEALTH_CONFIG_FILE: Final = "KGPU_HEALTH_CONFIG_FILE"

# Dynamic Resource Allocation: the vendors' drivers, and the versions of their opaque parameters
DRA_GPU_DRIVER: Final = "gpu.nvidia.com"
DRA_AMD_DRIVER: Final = "gpu.amd.com"
DRA_GAUDI_DRIVER: Final = "gaudi.intel.com"
DRA_DRIVERS: Final = frozenset({DRA_GPU_DRIVER, DRA_AMD_DRIVER, DRA_GAUDI_DRIVER})
"""Those that kgpu has."""
DRA_PARAMETERS: Final = "resource.nvidia.com/v1beta1"
DRA_AMD_PARAMETERS: Final = "gpu.resource.amd.com/v1alpha1"
CLAIM_PARAMETERS_POLICY: Final = "kgpu-claim-parameters"
DRA_PCI_BUS_ID: Final = "resource.kubernetes.io/pciBusID"
DRA_PCIE_ROOT: Final = "resource.kubernetes.io/pcieRoot"
DRA_FIELD_MANAGER: Final = "kgpu-dra"
# Taints of devices: an Xid as the value; fallen off the bus; nobody watches it; unwell for another reason (the value)
DRA_TAINT_XID: Final = "gpu.nvidia.com/xid"
DRA_TAINT_LOST: Final = "gpu.nvidia.com/gpu-lost"
DRA_TAINT_UNMONITORED: Final = "gpu.nvidia.com/unmonitored"
DRA_TAINT_UNHEALTHY: Final = "kgpu.dev/gpu-unhealthy"
DRA_AMD_TAINT_LOST: Final = "gpu.amd.com/gpu-lost"
DRA_AMD_TAINT_UNMONITORED: Final = "gpu.amd.com/unmonitored"
DRA_GAUDI_TAINT: Final = "gaudi.intel.com/unhealthy"  # with the value CriticalError
DRA_GAUDI_TAINT_UNMONITORED: Final = "gaudi.intel.com/unmonitored"

# The kubelet's links to the logs of running containers: pod_namespace_container-id.log
CONTAINER_LOGS: Final = "/var/log/containers"

# On a simulated node: the address of this machine that stands for all of the pod's
ENV_LAB_POD_ADDRESS: Final = "KGPU_LAB_POD_ADDRESS"
ENV_LAB_POD_IP: Final = "KGPU_LAB_POD_IP"  # and the address that it has in the cluster

# Labels and others that the doctor reads
JOB_INDEX_LABEL: Final = "batch.kubernetes.io/job-completion-index"
AMD_DEVICECONFIG_FINALIZER: Final = "amd.node.kubernetes.io/deviceconfig-finalizer"
DOCTOR_API_VERSION: Final = "doctor.kgpu.dev/v1"
HOST_FACTS_KEY: Final = "kgpu.dev/host-facts"  # begins the line of an agent's log that has its node's facts
AMD_LABEL_PREFIX: Final = "amd.com/gpu."
BETA_AMD_LABEL_PREFIX: Final = "beta.amd.com/gpu."
AMD_LABELS: Final = (  # what AMD's labeller has a flag for: the label after the prefix, which is the flag, too
    "firmware", "family", "driver-version", "driver-src-version", "device-id", "product-name", "vram", "simd-count",
    "cu-count", "compute-memory-partition", "compute-partitioning-supported", "memory-partitioning-supported",
)  # fmt: skip
AMD_PROFILE_LABEL: Final = "dcm.amd.com/gpu-config-profile"  # by which AMD's device config manager parts GPUs
AMD_PROFILE_STATE_LABEL: Final = "dcm.amd.com/gpu-config-profile-state"  # success or failure; kgpu: pending, too
AMD_PROFILES_MAP: Final = "default-dcm-config"  # the ConfigMap with the replaced operator's profiles
AMD_PARTITION_TAINT: Final = "amd-dcm"  # AMD's procedure sets it (up, NoExecute) while a node is parted
LABEL_AMD_GPU_DEVICE_ID: Final = "amd.com/gpu.device-id"
LABEL_AMD_GPU_FAMILY: Final = "amd.com/gpu.family"
LABEL_AMD_GPU_PRODUCT_NAME: Final = "amd.com/gpu.product-name"
LABEL_CUDA_DRIVER_VERSION_FULL: Final = "nvidia.com/cuda.driver-version.full"
LABEL_CUDA_RUNTIME_VERSION_FULL: Final = "nvidia.com/cuda.runtime-version.full"
LABEL_GAUDI_PRESENT: Final = "habana.ai/hpu-present"
LABEL_INTEL_FEATURE_GAUDI: Final = "intel.feature.node.kubernetes.io/gaudi"
LABEL_INTEL_FEATURE_GPU: Final = "intel.feature.node.kubernetes.io/gpu"
LABEL_INTEL_GPU_PREFIX: Final = "gpu.intel.com/"
LABEL_GAUDI_DEVICE_FAMILY: Final = "habana.ai/device-family"
LABEL_GPU_COMPUTE_MAJOR: Final = "nvidia.com/gpu.compute.major"
LABEL_GPU_COMPUTE_MINOR: Final = "nvidia.com/gpu.compute.minor"
LABEL_GPU_COUNT: Final = "nvidia.com/gpu.count"
LABEL_GPU_REPLICAS: Final = "nvidia.com/gpu.replicas"
LABEL_GPU_SHARING_STRATEGY: Final = "nvidia.com/gpu.sharing-strategy"
LABEL_GPU_SLICES_GI: Final = "nvidia.com/gpu.slices.gi"
MIG_CONFIG_STATE_LABEL: Final = "nvidia.com/mig.config.state"  # success, pending, failed, rebooting
OPERATOR_LAST_APPLIED_HASH: Final = "nvidia.com/last-applied-hash"
"""Annotation on what the replaced operator makes: it puts back what others change there."""
CAPI_GPU_COUNT: Final = "capacity.cluster-autoscaler.kubernetes.io/gpu-count"
"""Annotation on groups of Cluster API machines: what the autoscaler thinks that a new node has."""
CAPI_GPU_TYPE: Final = "capacity.cluster-autoscaler.kubernetes.io/gpu-type"
CAPI_OWNER_NAME: Final = "cluster.x-k8s.io/owner-name"
"""Annotation on nodes: the MachineSet or MachinePool that they are of."""

# Operations on nodes: who holds a node's cordon (uids, separated by commas), and the engine's field manager
REMEDIATION_REQUESTER: Final = "kgpu remediation"  # who wants the operations that verdicts call for
DRIVER_UPGRADE_REQUESTER: Final = "kgpu driver upgrade"  # who wants those that bring a node the wanted driver
MIG_REQUESTER: Final = "kgpu mig"  # who wants those that nodes ask for by their label of MIG
APPROVED_BY: Final = "kgpu.dev/approved-by"  # on NodeOperations: policy, where autoUpgrade has approved it
APPROVED_BY_POLICY: Final = "policy"
REMEDIATION_CONFIG_MAP: Final = "kgpu-remediation"  # there while the breaker is open
REMEDIATION_LABEL: Final = "kgpu.dev/remediation"  # on Nodes: disabled, where a person repairs them
NEEDS_REPLACEMENT_LABEL: Final = "kgpu.dev/needs-replacement"  # on Nodes: true, while a Replace holds them
OPERATION_LABEL: Final = "kgpu.dev/operation"  # on ConfigMaps: the operation whose evidence they keep
CORDON_ANNOTATION: Final = "kgpu.dev/cordon"
OPERATION_ANNOTATION: Final = "kgpu.dev/operation"  # on Nodes: what the agent is to do (kgpu.formats.node_order)
OPERATION_REPORT_ANNOTATION: Final = "kgpu.dev/operation-report"  # on Nodes: the agent's answer to it
MIG_LAYOUTS_MAP: Final = "default-mig-parted-config"  # the ConfigMap with the replaced operator's layouts
MIG_LAYOUTS_KEYS: Final = ("config.yaml", "config-default.yaml")  # keys of a ConfigMap of layouts: documents have both
MIG_NODE_MAP: Final = "{node}-mig-config"  # the ConfigMap with the layouts that were generated for a node
MIG_REQUEST_ANNOTATION: Final = "kgpu.dev/mig-request"  # on Nodes: the agent's wish (kgpu.formats.mig_request)
PARTITION_REQUEST_ANNOTATION: Final = "kgpu.dev/partition-request"  # the same two for AMD's label of profiles
PARTITION_REPORT_ANNOTATION: Final = "kgpu.dev/partition-report"
MIG_OPERATION_ANNOTATION: Final = "kgpu.dev/mig-operation"  # on Nodes: the operator's word on it
MIG_REPORT_ANNOTATION: Final = "kgpu.dev/mig-report"  # on Nodes: what has become of the label of MIG
MIG_OPERATION_FIELD_MANAGER: Final = "kgpu-mig-operation"  # of the operator's word on a request
MIG_NODE_LABEL: Final = "nvidia.com/node-name"  # on the ConfigMap with a node's generated configs: whose they are
VGPU_CONFIG_LABEL: Final = "nvidia.com/vgpu.config"  # by which NVIDIA's vGPU device manager cuts GPUs
MIG_DEFAULT_ANNOTATION: Final = "kgpu.dev/mig-default"  # on Nodes: a default layout that is to act, by the operator
ENV_MIG_OPERATIONS: Final = "KGPU_MIG_OPERATIONS"  # "true": changes of slices are asked of the operator
CONFIG_FILE_PREFIX: Final = "config-map."  # files in an agent's folder with a key of a ConfigMap each
MIG_FIELD_MANAGER: Final = "kgpu-mig"  # of request, report and state label
AMD_PROFILE_FIELD_MANAGER: Final = "kgpu-partitions"  # the same of GPUs that are parted by modes
NODE_ORDER_FIELD_MANAGER: Final = "kgpu-node-order"  # of the answer
OPERATIONS_FIELD_MANAGER: Final = "kgpu-operations"
APPROVAL_POLICY: Final = "kgpu-operation-approval"  # the chart's admission policy on who lets operations begin
ACT_APP: Final = "kgpu-act"  # label app of the pods that act on nodes
ACT_LABEL: Final = "kgpu.dev/act"  # on such a pod: the ID under which the node is asked
OPERATIONS_COMPONENT: Final = "kgpu-operations"  # source of its Events
MIRROR_ANNOTATION: Final = "kubernetes.io/config.mirror"  # Kubernetes' own: a pod that stands for a static one
ENV_OPERATIONS: Final = "KGPU_OPERATIONS"
ENV_OPERATIONS_CONFIG: Final = "KGPU_OPERATIONS_CONFIG"  # the budget (YAML)
ENV_WEBHOOK_URL: Final = "KGPU_WEBHOOK_URL"  # where notifications go; a secret
ENV_WEBHOOK_TOKEN: Final = "KGPU_WEBHOOK_TOKEN"  # noqa: S105 - a variable's name
ENV_WEBHOOK_SECRET: Final = "KGPU_WEBHOOK_SECRET"  # noqa: S105 - the name of the Secret that has both

# Idle GPUs: what people and kgpu write on workloads, pods and namespaces about reclaiming them
ENV_CLUSTER_NAME: Final = "KGPU_CLUSTER_NAME"  # what messages call this cluster
ENV_PRICES: Final = "KGPU_PRICES_CONFIG_MAP"  # the ConfigMap with the cluster's price list, in kgpu's namespace
ENV_RECLAIM: Final = "KGPU_RECLAIM"  # "true": the process with the history of usage also follows GPUUsagePolicies
RECLAIM_LABEL: Final = "kgpu.dev/reclaim"  # on Namespaces: enabled or never
IDLE_POLICY: Final = "kgpu.dev/idle-policy"  # on workloads and Namespaces: never, notify or reclaim
NOTEBOOK_LAST_ACTIVITY: Final = "notebooks.kubeflow.org/last-activity"  # by Kubeflow's controller, with culling on
IDLE_AFTER: Final = "kgpu.dev/idle-after"  # a duration that is longer than the policy's
KEEP_UNTIL: Final = "kgpu.dev/keep-until"  # RFC 3339: nothing is done before
KEEP_BY: Final = "kgpu.dev/keep-by"  # who has said so, and why
RECLAIM_AT: Final = "kgpu.dev/reclaim-at"  # RFC 3339: the deadline that a warning has set
RECLAIM_EPISODE: Final = "kgpu.dev/reclaim-episode"  # since when it was idle when that warning was written
ORIGINAL_REPLICAS: Final = "kgpu.dev/original-replicas"  # what it had, written before it is stopped
RECLAIM_ACTION: Final = "kgpu.dev/reclaim-action"  # how it is stopped, by which it is resumed
CHECKPOINT: Final = "kgpu.dev/checkpoint"  # "true": suspending it loses no work
RECLAIM_FIELD_MANAGER: Final = "kgpu-reclaim"
RECLAIM_COMPONENT: Final = "kgpu-reclaim"  # source of its Events
RECLAIM_RECORD: Final = "kgpu-reclaim"  # the ConfigMap with what was told and done, in kgpu's namespace
RECLAIM_RECORD_KEY: Final = "reclaim.json"
