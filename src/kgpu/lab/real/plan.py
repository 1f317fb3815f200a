"""The keeper's plan: which mounts the node has and which processes it runs, as pure data.

``needs`` are conditions that must hold before a process is started for the first time: ``unix:PATH`` (somebody
listens there), ``tcp:HOST:PORT``, ``file:PATH`` (exists). After that it is simply restarted when it ends.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

import msgspec

from kgpu.formats import names
from kgpu.lab.common import CONFIG_MAP
from kgpu.lab.real.configs import CONTAINERD_SOCKET, FRONT_PROXY
from kgpu.lab.real.model import (
    API_PORT,
    KERNEL_TUNABLES,
    NODE_DIRS,
    NODE_LINK,
    NODE_NAME,
    POD_CIDR,
    SERVICE_CIDR,
    LabNetwork,
    LabPaths,
    LabSpec,
    node_dir,
)

ETCD_URL: Final = "http://127.0.0.1:2379"
AGENT: Final = "kgpu-agent"
RUN_DIR: Final = "/run/kgpu-lab"
CONTROL_SOCKET: Final = f"{RUN_DIR}/keeper.sock"


class Bind(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """``source`` on the host appears as ``target`` in the node."""

    source: str
    target: str


class PlannedProcess(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One program that the keeper starts and restarts. ``env`` is added to the keeper's own environment."""

    name: str
    argv: tuple[str, ...]
    log: str
    env: dict[str, str] = {}
    needs: tuple[str, ...] = ()
    autostart: bool = True


class KeeperPlan(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """All that the keeper does."""

    hostname: str
    link: str
    address: str
    gateway: str
    binds: tuple[Bind, ...]
    processes: tuple[PlannedProcess, ...]


def make_plan(
    spec: LabSpec, paths: LabPaths, network: LabNetwork, *, bin_dir: Path, environ: Mapping[str, str]
) -> KeeperPlan:
    """The whole plan of one lab."""
    binds = [Bind(str(node_dir(paths, target)), target) for target in NODE_DIRS]
    binds += [Bind(str(paths.config / "tunables" / Path(target).name), target) for target in KERNEL_TUNABLES]
    # The programs that containerd looks for by name (the shim, runc) come first.
    search = os.pathsep.join([str(bin_dir), environ.get("PATH", ""), "/usr/sbin", "/usr/bin", "/sbin", "/bin"])
    processes = [*_control_plane(spec, paths, network), *_node(spec, paths, network)]
    if spec.agent:
        processes.append(agent_process(paths, environ))
    return KeeperPlan(
        hostname=NODE_NAME,
        link=NODE_LINK,
        address=f"{network.node_ip}/{network.subnet.prefixlen}",
        gateway=network.host_ip,
        binds=tuple(binds),
        processes=tuple(
            msgspec.structs.replace(
                process,
                argv=(_program(bin_dir, process.argv[0]), *process.argv[1:]),
                log=str(paths.logs / f"{process.name}.log"),
                env={"PATH": search, **process.env},
            )
            for process in processes
        ),
    )


def _program(bin_dir: Path, name: str) -> str:
    return name if name.startswith("/") else str(bin_dir / name)


def _process(name: str, flags: Sequence[str], *, needs: tuple[str, ...] = ()) -> PlannedProcess:
    return PlannedProcess(name=name, argv=(name, *flags), log="", needs=needs)


def _control_plane(spec: LabSpec, paths: LabPaths, network: LabNetwork) -> list[PlannedProcess]:
    pki = paths.pki
    audit = [f"--audit-policy-file={paths.config}/audit.yaml", f"--audit-log-path={paths.audit_log}"]
    api = f"tcp:{network.node_ip}:{API_PORT}"
    gates = _gates(spec)
    return [
        _process(
            "etcd",
            [
                f"--data-dir={paths.etcd}",
                "--name=lab",
                f"--listen-client-urls={ETCD_URL}",
                f"--advertise-client-urls={ETCD_URL}",
                "--listen-peer-urls=http://127.0.0.1:2380",
                "--initial-advertise-peer-urls=http://127.0.0.1:2380",
                "--initial-cluster=lab=http://127.0.0.1:2380",
                "--unsafe-no-fsync",  # the lab's data need not survive a power cut
                "--log-level=warn",
            ],
        ),
        _process(
            "kube-apiserver",
            [
                f"--etcd-servers={ETCD_URL}",
                "--bind-address=0.0.0.0",
                f"--advertise-address={network.node_ip}",
                f"--secure-port={API_PORT}",
                f"--tls-cert-file={pki}/apiserver.crt",
                f"--tls-private-key-file={pki}/apiserver.key",
                f"--client-ca-file={pki}/ca.crt",
                "--authorization-mode=Node,RBAC",
                "--allow-privileged=true",
                f"--service-cluster-ip-range={SERVICE_CIDR}",
                "--service-account-issuer=https://kubernetes.default.svc.cluster.local",
                f"--service-account-key-file={pki}/service-account.pub",
                f"--service-account-signing-key-file={pki}/service-account.key",
                f"--kubelet-client-certificate={pki}/apiserver-kubelet.crt",
                f"--kubelet-client-key={pki}/apiserver-kubelet.key",
                # Servers of further APIs, such as a metrics adapter, take whom the API server names from it alone.
                f"--proxy-client-cert-file={pki}/{FRONT_PROXY}.crt",
                f"--proxy-client-key-file={pki}/{FRONT_PROXY}.key",
                f"--requestheader-client-ca-file={pki}/ca.crt",
                f"--requestheader-allowed-names={FRONT_PROXY}",
                "--requestheader-username-headers=X-Remote-User",
                "--requestheader-group-headers=X-Remote-Group",
                "--requestheader-extra-headers-prefix=X-Remote-Extra-",
                "--kubelet-preferred-address-types=InternalIP",
                *(audit if spec.audit else ()),
                *_versions(spec),
                *gates,
            ],
            needs=("tcp:127.0.0.1:2379",),
        ),
        _process(
            "kube-controller-manager",
            [
                f"--kubeconfig={paths.kubeconfig_of('kube-controller-manager')}",
                f"--authentication-kubeconfig={paths.kubeconfig_of('kube-controller-manager')}",
                f"--authorization-kubeconfig={paths.kubeconfig_of('kube-controller-manager')}",
                "--leader-elect=false",
                # It may look before the API server has granted it that; failing would cost a restart.
                "--authentication-tolerate-lookup-failure=true",
                # Its start makes hundreds of small calls; the default limit would stretch them over seconds.
                f"--kube-api-qps={spec.controller_rate}",
                f"--kube-api-burst={2 * spec.controller_rate}",
                *([] if spec.node_grace is None else [f"--node-monitor-grace-period={spec.node_grace}s"]),
                "--use-service-account-credentials=true",
                f"--service-account-private-key-file={pki}/service-account.key",
                f"--root-ca-file={pki}/ca.crt",
                f"--cluster-cidr={POD_CIDR}",
                *gates,
                f"--service-cluster-ip-range={SERVICE_CIDR}",
            ],
            needs=(api,),
        ),
        _process(
            "kube-scheduler",
            [
                f"--kubeconfig={paths.kubeconfig_of('kube-scheduler')}",
                f"--authentication-kubeconfig={paths.kubeconfig_of('kube-scheduler')}",
                f"--authorization-kubeconfig={paths.kubeconfig_of('kube-scheduler')}",
                "--leader-elect=false",
                "--authentication-tolerate-lookup-failure=true",
                *gates,
            ],
            needs=(api,),
        ),
    ]


def _versions(spec: LabSpec) -> list[str]:
    return [f"--runtime-config={','.join(f'{one}=true' for one in spec.api_versions)}"] if spec.api_versions else []


def _gates(spec: LabSpec) -> list[str]:
    return [f"--feature-gates={','.join(spec.feature_gates)}"] if spec.feature_gates else []


def _node(spec: LabSpec, paths: LabPaths, network: LabNetwork) -> list[PlannedProcess]:
    api = f"tcp:{network.node_ip}:{API_PORT}"
    return [
        _process("containerd", ["--config=/etc/containerd/config.toml", "--log-level=info"]),
        _process(
            "kubelet",
            [
                f"--config={paths.config}/kubelet.yaml",
                f"--kubeconfig={paths.kubeconfig_of('kubelet')}",
                f"--hostname-override={NODE_NAME}",
                f"--node-ip={network.node_ip}",
                "--root-dir=/var/lib/kubelet",
                "--cert-dir=/var/lib/kubelet/pki",
                *_gates(spec),
            ],
            needs=(f"unix:{CONTAINERD_SOCKET}", api),
        ),
        _process("kube-proxy", [f"--config={paths.config}/kube-proxy.yaml"], needs=(api,)),
    ]


def agent_process(paths: LabPaths, environ: Mapping[str, str]) -> PlannedProcess:
    """The kgpu agent, run from the same Python as this one; started by the lab once the node is there."""
    argv = (
        sys.executable, "-m", "kgpu", "agent",
        "--roles", "deviceplugin,labels,mps",
        "--root", str(paths.hw),
        "--driver-root", str(paths.hw),
        "--kubeconfig", str(paths.kubeconfig_of("agent")),
        "--node-name", NODE_NAME,
        "--device-list-strategy", "cdi-cri",
        "--config-map", CONFIG_MAP,
        "--fallback-strategies", "named,single,empty",
        "--labels-sink", "node",
        "--mps-root", names.MPS_ROOT,
        "--health-address", "0.0.0.0:8090",
    )  # fmt: skip
    env = {
        names.ENV_HW_STATE: str(paths.hw / "state"),
        "PYTHONPATH": environ.get("PYTHONPATH", ""),
        "PYTHONSAFEPATH": "1",
    }
    return PlannedProcess(name=AGENT, argv=argv, log="", env=env, autostart=False)
