"""The cluster's config files, as a pure function from the lab's plan to file texts.

The settings that make Kubernetes run on a small, shared or restricted machine each carry their reason.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final

from kgpu.formats.names import CDI_DIR, CDI_STATIC_DIR
from kgpu.lab.real.model import (
    API_SERVICE_IP,
    DNS_SERVICE_IP,
    NODE_NAME,
    POD_CIDR,
    LabNetwork,
    LabPaths,
    LabSpec,
)

PAUSE_IMAGE: Final = "kgpu.dev/pause:1"
CONTAINERD_SOCKET: Final = "/run/containerd/containerd.sock"
CDI_DIRS: Final = (CDI_STATIC_DIR, CDI_DIR)
AGENT_USER: Final = "kgpu-agent"
FRONT_PROXY: Final = "front-proxy-client"
"""As whom the API server hands requests on to servers of further APIs."""

# kubeconfig name -> (certificate's common name, groups)
USERS: Final[Mapping[str, tuple[str, tuple[str, ...]]]] = {
    "admin": ("kgpu-lab-admin", ("system:masters",)),
    "kubelet": (f"system:node:{NODE_NAME}", ("system:nodes",)),
    "kube-controller-manager": ("system:kube-controller-manager", ()),
    "kube-scheduler": ("system:kube-scheduler", ()),
    "kube-proxy": ("system:kube-proxy", ()),
    "agent": (AGENT_USER, ()),
}


def pki_requests(network: LabNetwork) -> list[dict[str, object]]:
    """What ``lab-pki`` is asked for: the API server's certificates, one per user, and the service-account key."""
    hosts = [
        network.node_ip, "127.0.0.1", API_SERVICE_IP, "localhost",
        "kubernetes", "kubernetes.default", "kubernetes.default.svc", "kubernetes.default.svc.cluster.local",
    ]  # fmt: skip
    users: list[dict[str, object]] = [
        {"name": user, "common_name": name, "organization": list(groups)} for user, (name, groups) in USERS.items()
    ]
    return [
        {"name": "apiserver", "common_name": "kube-apiserver", "hosts": hosts},
        {"name": "apiserver-kubelet", "common_name": "kube-apiserver-kubelet", "organization": ["system:masters"]},
        {"name": FRONT_PROXY, "common_name": FRONT_PROXY},
        {"name": "service-account"},
        *users,
    ]


def kubeconfig(paths: LabPaths, network: LabNetwork, user: str, lab: str) -> str:
    """A kubeconfig with the certificates inlined by path."""
    context = f"kgpu-{lab}"
    return _yaml_json(
        {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [
                {
                    "name": context,
                    "cluster": {"server": network.api_url, "certificate-authority": str(paths.pki / "ca.crt")},
                }
            ],
            "users": [
                {
                    "name": user,
                    "user": {
                        "client-certificate": str(paths.pki / f"{user}.crt"),
                        "client-key": str(paths.pki / f"{user}.key"),
                    },
                }
            ],
            "contexts": [{"name": context, "context": {"cluster": context, "user": user}}],
            "current-context": context,
        }
    )


def kubelet_config(spec: LabSpec, paths: LabPaths, network: LabNetwork) -> str:
    """KubeletConfiguration of the node."""
    return _yaml_json(
        {
            "apiVersion": "kubelet.config.k8s.io/v1beta1",
            "kind": "KubeletConfiguration",
            "containerRuntimeEndpoint": f"unix://{CONTAINERD_SOCKET}",
            "cgroupDriver": "cgroupfs",
            "cgroupRoot": f"/{spec.cgroup(network)}",
            "failCgroupV1": False,  # 1.35 refuses such machines otherwise
            "failSwapOn": False,
            "oomScoreAdj": 0,  # lowering it needs a capability that the machine may not grant
            "authentication": {
                "anonymous": {"enabled": False},
                "webhook": {"enabled": True},
                "x509": {"clientCAFile": str(paths.pki / "ca.crt")},
            },
            "authorization": {"mode": "Webhook"},
            "clusterDNS": [DNS_SERVICE_IP],
            "clusterDomain": "cluster.local",
            "resolvConf": str(paths.config / "resolv.conf"),
            "volumePluginDir": "/var/lib/kubelet/volumeplugins",  # the default would be made in the host's /usr
            "podLogsDir": "/var/log/pods",
            # A full disk must neither evict the lab's pods nor delete images that no registry has.
            "imageGCHighThresholdPercent": 100,
            "evictionHard": {
                "memory.available": "50Mi",
                "nodefs.available": "0%",
                "nodefs.inodesFree": "0%",
                "imagefs.available": "0%",
                "imagefs.inodesFree": "0%",
            },
            # So that a person who watches the node sees a change at once; the default is 10 s. Where nothing changes it
            # is told as seldom as by default, which is with every update if only that is set.
            "nodeStatusUpdateFrequency": "1s",
            "nodeStatusReportFrequency": "5m",
            "shutdownGracePeriod": "0s",
        }
    )


def kube_proxy_config(paths: LabPaths) -> str:
    """KubeProxyConfiguration of the node."""
    return _yaml_json(
        {
            "apiVersion": "kubeproxy.config.k8s.io/v1alpha1",
            "kind": "KubeProxyConfiguration",
            "clientConnection": {"kubeconfig": str(paths.kubeconfig_of("kube-proxy"))},
            "mode": "iptables",
            "hostnameOverride": NODE_NAME,
            "clusterCIDR": POD_CIDR,
            "conntrack": {"maxPerCore": 0, "min": 0},  # machine-wide, not ours to set
            "oomScoreAdj": 0,
        }
    )


def containerd_config(bin_dir: str, snapshotter: str) -> str:
    """Containerd's config.toml, version 3."""
    cdi = ", ".join(f'"{folder}"' for folder in CDI_DIRS)
    return f"""version = 3
root = "/var/lib/containerd"
state = "/run/containerd"

[grpc]
address = "{CONTAINERD_SOCKET}"

[plugins."io.containerd.internal.v1.opt"]
path = "/var/lib/containerd/opt"

[plugins."io.containerd.cri.v1.images"]
snapshotter = "{snapshotter}"

[plugins."io.containerd.cri.v1.images".pinned_images]
sandbox = "{PAUSE_IMAGE}"

[plugins."io.containerd.cri.v1.runtime"]
enable_cdi = true
cdi_spec_dirs = [{cdi}]
# Without CAP_SYS_RESOURCE a container whose score would be lowered does not start at all.
restrict_oom_score_adj = true
# A profile would be loaded into the host's kernel and stay there.
disable_apparmor = true

[plugins."io.containerd.cri.v1.runtime".cni]
bin_dirs = ["{bin_dir}"]
conf_dir = "/etc/cni/net.d"

[plugins."io.containerd.cri.v1.runtime".containerd]
default_runtime_name = "runc"

[plugins."io.containerd.cri.v1.runtime".containerd.runtimes.runc]
runtime_type = "io.containerd.runc.v2"

[plugins."io.containerd.cri.v1.runtime".containerd.runtimes.runc.options]
BinaryName = "{bin_dir}/runc"
SystemdCgroup = false

[plugins."io.containerd.nri.v1.nri"]
disable = false
socket_path = "/var/run/nri/nri.sock"
# containerd's own 5 s and 2 s drop a plugin, and fail the container, on a machine that all nodes of a lab share
plugin_registration_timeout = "60s"
plugin_request_timeout = "60s"
"""


def cni_config() -> str:
    """The node's pod network: one bridge, addresses from a local file."""
    return _yaml_json(
        {
            "cniVersion": "1.0.0",
            "name": "kgpu-lab",
            "plugins": [
                {
                    "type": "bridge",
                    "bridge": "cni0",
                    "isGateway": True,
                    "ipMasq": True,
                    "hairpinMode": True,
                    "ipam": {
                        "type": "host-local",
                        "ranges": [[{"subnet": "10.244.0.0/24"}]],
                        "routes": [{"dst": "0.0.0.0/0"}],
                    },
                },
                {"type": "portmap", "capabilities": {"portMappings": True}},
            ],
        }
    )


def audit_policy() -> str:
    """Who asked for what and was answered how, for service accounts; no bodies."""
    return _yaml_json(
        {
            "apiVersion": "audit.k8s.io/v1",
            "kind": "Policy",
            "omitStages": ["RequestReceived", "ResponseStarted"],
            "rules": [
                {"level": "Metadata", "userGroups": ["system:serviceaccounts"]},
                {"level": "None"},
            ],
        }
    )


def files(spec: LabSpec, paths: LabPaths, network: LabNetwork, *, bin_dir: str, snapshotter: str) -> dict[str, str]:
    """Every config file: path -> text. Files for the node's own folders are under ``paths.node``."""
    texts = {str(paths.kubeconfig_of(user)): kubeconfig(paths, network, user, spec.name) for user in USERS}
    texts |= {
        str(paths.kubeconfig): kubeconfig(paths, network, "admin", spec.name),
        str(paths.config / "kubelet.yaml"): kubelet_config(spec, paths, network),
        str(paths.config / "kube-proxy.yaml"): kube_proxy_config(paths),
        **({str(paths.config / "audit.yaml"): audit_policy()} if spec.audit else {}),
        str(paths.config / "resolv.conf"): "# the lab has no name server of its own\n",
        str(paths.node / "etc-containerd" / "config.toml"): containerd_config(bin_dir, snapshotter),
        str(paths.node / "etc-cni" / "net.d" / "10-kgpu-lab.conflist"): cni_config(),
    }
    return texts


def _yaml_json(value: Any) -> str:
    # JSON is YAML: one writer for both, and every value quoted as it must be.
    return json.dumps(value, indent=2) + "\n"
