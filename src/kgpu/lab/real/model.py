"""What one real lab is: its name, its addresses and its folders. Data only.

``plan_network`` gives a lab a /30 that overlaps nothing this machine already routes to, so that labs of several names
can run side by side.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from kgpu.base.errors import LabError
from kgpu.formats.names import CDI_STATIC_DIR, CONTAINER_LOGS, KUBELET_ROOT, STATE_DIR
from kgpu.lab.common import FIRST_NODE, REAL_STATE

NODE_NAME: Final = FIRST_NODE
API_PORT: Final = 6443
SERVICE_CIDR: Final = "10.96.0.0/16"
API_SERVICE_IP: Final = "10.96.0.1"
DNS_SERVICE_IP: Final = "10.96.0.10"
POD_CIDR: Final = "10.244.0.0/16"
NODE_LINK: Final = "eth0"
_LAB_NETWORK: Final = ipaddress.IPv4Network("10.231.0.0/16")
# Inside the lab's namespace; a lab whose own /30 fell into them could not route.
_INNER: Final = (ipaddress.IPv4Network(SERVICE_CIDR), ipaddress.IPv4Network(POD_CIDR))
_NAME: Final = re.compile(r"[a-z0-9]([a-z0-9-]{0,30}[a-z0-9])?")


@dataclass(frozen=True, slots=True, kw_only=True)
class LabSpec:
    """What the user asked for. ``gpus`` None means as many as the profile has; ``agent`` False starts none.

    ``audit``: the API server writes down what each account asks of it, in ``LabPaths.audit_log``. ``controller_rate``:
    requests a second of the controller manager; Kubernetes' own default is 20. ``node_grace``: seconds without a sign
    of life after which a Node counts as lost, None for Kubernetes' own. ``feature_gates``: ``NAME=true``, for all of
    Kubernetes' programs. ``api_versions``: ``GROUP/VERSION`` that the API server serves besides its usual ones.
    """

    name: str = "lab"
    profile: str = "hgx-h100"
    gpus: int | None = None
    agent: bool = True
    audit: bool = False
    controller_rate: int = 200
    node_grace: int | None = None
    feature_gates: tuple[str, ...] = ()
    api_versions: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if not _NAME.fullmatch(self.name):
            raise LabError(
                f"\"{self.name}\" can't be a lab's name",
                "1 to 32 lower-case letters, digits and dashes, beginning and ending with a letter or digit",
                "choose another --name",
            )
        if self.gpus is not None and not 1 <= self.gpus <= 64:
            raise LabError(f"--gpus {self.gpus} is out of range", "1 to 64 simulated GPUs", "choose another --gpus")

    def cgroup(self, network: LabNetwork) -> str:
        """The cgroup under which every pod of this lab lives; two labs of one name may be in two folders."""
        return f"kgpu-lab-{self.name}-{network.index}"


@dataclass(frozen=True, slots=True)
class LabNetwork:
    """The lab's own /30: the host has its first address, the node its second. ``index`` names the host's link."""

    index: int

    @property
    def subnet(self) -> ipaddress.IPv4Network:
        return ipaddress.IPv4Network((int(_LAB_NETWORK.network_address) + 4 * self.index, 30))

    @property
    def host_ip(self) -> str:
        return str(self.subnet[1])

    @property
    def node_ip(self) -> str:
        return str(self.subnet[2])

    @property
    def host_link(self) -> str:
        return f"kgpu-lab{self.index}"

    @property
    def api_url(self) -> str:
        return f"https://{self.node_ip}:{API_PORT}"


def plan_network(used: Iterable[ipaddress.IPv4Network]) -> LabNetwork:
    """The first of the lab /30s that overlaps no network in ``used``, default routes aside; LabError when none."""
    occupied = [*(network for network in used if network.prefixlen > 0), *_INNER]
    for index in range(_LAB_NETWORK.num_addresses // 4):
        network = LabNetwork(index)
        if not any(network.subnet.overlaps(network_in_use) for network_in_use in occupied):
            return network
    raise LabError(
        f"every /30 of {_LAB_NETWORK} is in use on this machine",
        "one free /30 for the link between this machine and the lab's node",
        'take down labs that are not needed ("kgpu lab status", "kgpu lab down --name NAME")',
    )


@dataclass(frozen=True, slots=True)
class LabPaths:
    """The lab's folder: everything that the lab writes on the host is under ``root``."""

    root: Path

    @property
    def state(self) -> Path:
        return self.root / REAL_STATE

    @property
    def plan(self) -> Path:
        return self.root / "plan.json"

    @property
    def pki(self) -> Path:
        return self.root / "pki"

    @property
    def config(self) -> Path:
        return self.root / "config"

    @property
    def kubeconfig(self) -> Path:
        return self.root / "kubeconfig"

    @property
    def logs(self) -> Path:
        return self.root / "logs"

    @property
    def audit_log(self) -> Path:
        """A line of JSON for each request, where the lab was made with ``LabSpec.audit``."""
        return self.logs / "audit.log"

    @property
    def node(self) -> Path:
        """What the node sees as its own /var/lib/kubelet, /etc/cdi and so on."""
        return self.root / "node"

    @property
    def etcd(self) -> Path:
        return self.root / "etcd"

    @property
    def images(self) -> Path:
        return self.root / "images"

    @property
    def hw(self) -> Path:
        """The simulated driver root."""
        return self.root / "hw"

    def kubeconfig_of(self, user: str) -> Path:
        return self.config / f"{user}.kubeconfig"


# The node's own folders: mounted over the host's in the node's mount namespace.
NODE_DIRS: Final = (
    KUBELET_ROOT,
    "/var/lib/containerd",
    "/var/lib/cni",
    "/var/log/pods",
    CONTAINER_LOGS,
    "/etc/cni",
    CDI_STATIC_DIR,
    "/etc/containerd",
    "/etc/kubernetes",
    STATE_DIR,
)

# kubelet sets these for the whole machine when they differ; the node reads its own files here, so it never does.
KERNEL_TUNABLES: Final = {
    "/proc/sys/vm/overcommit_memory": "1",
    "/proc/sys/vm/panic_on_oom": "0",
    "/proc/sys/kernel/panic": "10",
    "/proc/sys/kernel/panic_on_oops": "1",
    "/proc/sys/kernel/keys/root_maxkeys": "1000000",
    "/proc/sys/kernel/keys/root_maxbytes": "25000000",
}


def node_dir(paths: LabPaths, target: str) -> Path:
    """Where the node's folder ``target`` is kept: ``/var/lib/kubelet`` is ``node/var-lib-kubelet``."""
    return paths.node / target.strip("/").replace("/", "-")
