"""Policies, nodes and settings for tests of rendering; each row of ``CASES`` has a golden file of the same name."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from kgpu.formats import names, yaml
from kgpu.formats.crd import decode
from kgpu.operator.model import ClusterNode, NodeLayout, NvidiaDriver, ObservedCluster, OperatorSettings, Policy
from kgpu.operator.objects.common import Rendered
from kgpu.operator.openshift import DriverToolkit, OpenShift
from kgpu.operator.rendering.render import render

IMAGES = {
    "DRIVER_IMAGE": "nvcr.io/nvidia/driver:580.95.05",
    "DRIVER_MANAGER_IMAGE": "nvcr.io/nvidia/cloud-native/k8s-driver-manager:v0.12.0",
    "GDS_IMAGE": "nvcr.io/nvidia/cloud-native/nvidia-fs:2.29.4",
    "GDRCOPY_IMAGE": "nvcr.io/nvidia/cloud-native/gdrdrv:v2.6",
}
SETTINGS = OperatorSettings(namespace="gpu-operator", image="kgpu.dev/kgpu:1.2.3", images=IMAGES)
MONITORING = frozenset(
    f"{kind}.monitoring.coreos.com" for kind in ("servicemonitors", "podmonitors", "prometheusrules")
)


def policy(text: str = "{}", **fields: Any) -> Policy:
    """A ClusterPolicy with that spec, in YAML."""
    decoded = decode.clusterpolicy({"metadata": {"name": "cluster-policy"}, "spec": yaml.load(text)})
    assert not decoded.problem, decoded.problem
    about: dict[str, Any] = {"name": "cluster-policy", "uid": "policy-uid", "generation": 3, "created": ""}
    return Policy(**(about | fields), spec=decoded.spec, warnings=decoded.warnings)


def driver(name: str, text: str, *, uid: str = "2269c984-db9a-4b0e-9fd5-86df0ad269f7") -> NvidiaDriver:
    """An NVIDIADriver with that spec, in YAML."""
    decoded = decode.nvidiadriver({"metadata": {"name": name}, "spec": yaml.load(text)})
    assert not decoded.problem, decoded.problem
    return NvidiaDriver(name=name, uid=uid, generation=1, created="", spec=decoded.spec)


def node(
    name: str,
    os_id: str = "ubuntu",
    version: str = "22.04",
    *,
    kernel: str = "5.15.0-1041-azure",
    runtime: str = "containerd",
    labels: Mapping[str, str] | None = None,
) -> ClusterNode:
    """A GPU node with the feature labels of its operating system."""
    found = {
        names.NFD_PCI_NVIDIA[0]: "true",
        names.NFD_OS_ID: os_id,
        names.NFD_OS_VERSION: version,
        names.NFD_OS_VERSION_MAJOR: version.partition(".")[0],
        names.NFD_KERNEL_FULL: kernel,
        **(labels or {}),
    }
    return ClusterNode(name=name, labels=found, os_id=os_id, os_version=version, kernel=kernel, runtime=runtime)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Case:
    """What is rendered."""

    policy: Policy = dataclasses.field(default_factory=policy)
    settings: OperatorSettings = SETTINGS
    observed: ObservedCluster = dataclasses.field(default_factory=ObservedCluster)

    def rendered(self) -> Rendered:
        return render(self.policy, self.settings, self.observed)


OPERANDS = dataclasses.replace(SETTINGS, layout=NodeLayout.OPERANDS)
SERVICE_MONITOR = "operator: {metrics: {serviceMonitor: {enabled: true}}}"
HOST_DRIVER = "driver: {enabled: false}"
UBUNTU = ObservedCluster(nodes=(node("u1"), node("u2")))
MIXED = ObservedCluster(
    nodes=(
        node("u22"),
        node("u24", version="24.04", kernel="6.8.0-40-generic"),
        node("r9", "rhel", "9.4", kernel="5.14.0-427.37.1.el9_4.x86_64"),
        node("r8", "rocky", "8.10", kernel="4.18.0-553.el8_10.x86_64", runtime="cri-o"),
        node("mine", labels={"nvidia.com/gpu.deploy.driver": "pre-installed"}, version="20.04"),
    )
)
PRECOMPILED = ObservedCluster(
    nodes=(
        node("a", kernel="5.15.0-1041-azure"),
        node("b", kernel="5.15.0-1042-azure"),
        node("c", "rhel", "9.4", kernel="5.14.0-427.37.1.el9_4.aarch64"),
    )
)

FULL = """
operator:
  runtimeClass: nvidia
  labels: {team: ml}
  annotations: {contact: ml@example.org}
  metrics:
    serviceMonitor: {enabled: true, interval: 15s, scrapeTimeout: 10s, honorLabels: true,
      additionalLabels: {release: kube-prometheus},
      relabelings: [{action: replace, sourceLabels: [__meta_kubernetes_pod_node_name], targetLabel: node}]}
daemonsets:
  labels: {tier: gpu, app: not-this, helm.sh/chart: kgpu-1.2.3, app.kubernetes.io/version: v1}
  annotations: {note: "yes"}
  tolerations: [{key: nvidia.com/gpu, operator: Exists, effect: NoSchedule}, {key: dedicated, value: ml}]
  priorityClassName: gpu-critical
  podSecurityContext: {seccompProfile: {type: Unconfined}}
  updateStrategy: RollingUpdate
  rollingUpdate: {maxUnavailable: "25%"}
driver: {enabled: false}
toolkit: {enabled: true, installDir: /opt/nvidia, env: [{name: CONTAINERD_RUNTIME_CLASS, value: nvidia}]}
devicePlugin:
  repository: nvcr.io/nvidia
  image: k8s-device-plugin
  version: v0.20.0
  config: {name: plugin-configs, default: any}
  env: [{name: DEVICE_LIST_STRATEGY, value: envvar}, {name: EXTRA, value: "1"}]
  args: [--shared-devices-allocation-policy=packed]
  resources: {requests: {cpu: 50m}, limits: {memory: 512Mi}}
mig: {strategy: mixed}
gfd: {enabled: true, env: [{name: GFD_SLEEP_INTERVAL, value: 30s}]}
validator: {env: [{name: A, value: "1"}], cuda: {env: [{name: WITH_WORKLOAD, value: "false"}]}}
nodeStatusExporter: {enabled: true, hostNetwork: true}
dcgm: {enabled: true}
dcgmExporter: {enabled: true, serviceMonitor: {enabled: true}}
gds: {enabled: true}
cdi: {enabled: true}
hostPaths: {rootFS: /host-system, driverInstallDir: /opt/nvidia/driver, kubeletRootDir: /var/snap/kubelet}
psa: {enabled: true}
"""

DRIVER_FULL = """
driver:
  repository: registry.example.org/gpu
  image: driver
  version: 580.95.05
  imagePullPolicy: Always
  imagePullSecrets: [registry]
  kernelModuleType: open
  args: [--verbose]
  env: [{name: HTTPS_PROXY, value: "http://proxy:3128"}, {name: KERNEL_MODULE_TYPE, value: auto}]
  secretEnv: driver-secrets
  resources: {limits: {memory: 2Gi}}
  hostNetwork: true
  startupProbe: {initialDelaySeconds: 30, failureThreshold: 200}
  livenessProbe: {periodSeconds: 60}
  readinessProbe: {periodSeconds: 5}
  rdma: {enabled: true, useHostMofed: true}
  manager: {env: [{name: ENABLE_AUTO_DRAIN, value: "true"}], imagePullSecrets: [registry, other]}
  repoConfig: {configMapName: repos}
  certConfig: {name: certs}
  licensingConfig: {secretName: licence, nlsEnabled: true}
  virtualTopology: {config: topology}
  kernelModuleConfig: {name: params}
gds: {enabled: true, args: [--force]}
gdrcopy: {enabled: true, env: [{name: LEVEL, value: "2"}]}
hostPaths: {rootFS: /host-system}
daemonsets: {labels: {tier: gpu, app: other}, annotations: {note: "yes"}}
"""
CONFIG_MAPS = {
    "repos": frozenset({"a.list", "b.list"}),
    "certs": frozenset({"ca.crt"}),
    "topology": frozenset({"nvidia-topologyd.conf"}),
    "params": frozenset({"nvidia.conf"}),
}

OWNED = {names.LABEL_DRIVER_OWNER: "a100"}
CRD_NODES = ObservedCluster(
    nodes=(
        node("n1", labels=OWNED),
        node("n2", "rhel", "9.4", kernel="5.14.0-427.el9.x86_64", labels=OWNED),
        node("n3"),
        node("n4", kernel="5.15.0-1041-azure", labels={names.LABEL_DRIVER_OWNER: "pre"}),
    ),
    drivers=(
        driver(
            "a100",
            """{default: false, repository: nvcr.io/nvidia, image: driver, version: 580.95.05,
            nodeSelector: {pool: a100}, tolerations: [{key: a100, operator: Exists}], priorityClassName: high,
            labels: {tier: gpu}, annotations: {note: "yes"}, licensingConfig: {name: licence},
            nodeAffinity: {requiredDuringSchedulingIgnoredDuringExecution: {nodeSelectorTerms: [
              {matchExpressions: [{key: pool, operator: Exists}]}]}}}""",
        ),
        driver(
            "pre",
            "{usePrecompiled: true, repository: nvcr.io/nvidia, image: driver, version: '580', nodeSelector: {pool: pre}}",
            uid="0c1ff3f0-0000-4000-8000-000000000001",
        ),
    ),
)

RHCOS, RHCOS_NEXT = "416.94.202409191851-0", "417.94.202411070309-0"
TOOLKIT_IMAGE = "quay.io/openshift-release-dev/ocp-v4.0-art-dev@sha256:" + "7f" * 32
OPENSHIFT = OpenShift(
    version="4.16",
    proxy={
        "HTTP_PROXY": "http://proxy:3128",
        "http_proxy": "http://proxy:3128",
        "NO_PROXY": ".svc",
        "no_proxy": ".svc",
    },
    trusted_ca=True,
    toolkit=DriverToolkit(images={RHCOS: TOOLKIT_IMAGE}),
)
CONSTRAINTS = "securitycontextconstraints.security.openshift.io"


def rhcos(name: str, version: str = RHCOS, **labels: str) -> ClusterNode:
    """A GPU node with RHCOS of that version; "" for one whose discovery does not tell it."""
    told = {names.NFD_OSTREE_VERSION: version} if version else {}
    kernel = "5.14.0-427.37.1.el9_4.x86_64"
    return node(name, "rhcos", "4.16", kernel=kernel, runtime="cri-o", labels={**told, **labels})


def openshift(*nodes: ClusterNode, **fields: Any) -> ObservedCluster:
    """An OpenShift cluster with these nodes."""
    fields.setdefault("openshift", OPENSHIFT)
    return ObservedCluster(nodes=nodes, kinds=MONITORING | {CONSTRAINTS}, **fields)


CASES = {
    "agent-default": Case(observed=UBUNTU, policy=policy(HOST_DRIVER)),
    "agent-full": Case(policy=policy(FULL), observed=ObservedCluster(kinds=MONITORING, nodes=UBUNTU.nodes)),
    "agent-foreign-discovery": Case(
        policy=policy(HOST_DRIVER),
        observed=ObservedCluster(foreign_nfd=True, kinds=frozenset({"nodefeatures.nfd.k8s-sigs.io"})),
    ),
    "agent-leaving": Case(policy=policy(HOST_DRIVER, deleting=True)),
    "operands-default": Case(policy=policy(HOST_DRIVER), settings=OPERANDS, observed=UBUNTU),
    "operands-full": Case(
        policy=policy(FULL), settings=OPERANDS, observed=ObservedCluster(kinds=MONITORING, nodes=UBUNTU.nodes)
    ),
    "driver-ubuntu": Case(observed=UBUNTU),
    "driver-rhel": Case(
        observed=ObservedCluster(nodes=(node("r", "rhel", "8.10", kernel="4.18.0-553.el8_10.x86_64"),))
    ),
    "driver-mixed": Case(observed=MIXED),
    "driver-precompiled": Case(
        policy=policy("driver: {usePrecompiled: true, repository: nvcr.io/nvidia, image: driver, version: '580'}"),
        observed=PRECOMPILED,
    ),
    "driver-full": Case(policy=policy(DRIVER_FULL), observed=dataclasses.replace(UBUNTU, config_maps=CONFIG_MAPS)),
    "driver-objects": Case(policy=policy("driver: {useNvidiaDriverCRD: true}"), observed=CRD_NODES),
    "openshift": Case(
        policy=policy("gds: {enabled: true}\ngdrcopy: {enabled: true}\n" + SERVICE_MONITOR),
        observed=openshift(rhcos("r1"), rhcos("r2", RHCOS_NEXT)),
    ),
    "openshift-operands": Case(policy=policy(HOST_DRIVER), settings=OPERANDS, observed=openshift(rhcos("r1"))),
    "openshift-objects": Case(
        policy=policy("driver: {useNvidiaDriverCRD: true}"),
        observed=openshift(rhcos("r1", **OWNED), drivers=CRD_NODES.drivers[:1]),
    ),
    "no-cdi": Case(policy=policy(f"{HOST_DRIVER}\ncdi: {{enabled: false}}")),
    "nri": Case(policy=policy(f"{HOST_DRIVER}\ncdi: {{nriPluginEnabled: true}}")),
}
