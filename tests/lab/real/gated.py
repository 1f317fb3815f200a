"""A control plane of real programs with DRA's gates on that are off in 1.35: etcd, the API server, then the others.

It has no nodes and needs no root: a test acts as the kubelet, and as the scheduler where it does not start that.
"""

from __future__ import annotations

import functools
import json
import subprocess
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa

from kgpu.lab.real import build
from tests import on_real
from tests.lab.embedded.types.real_server import RealServer
from tests.ports import free_port

GATES = ",".join(
    f"{gate}=true"
    for gate in (
        "DRAConsumableCapacity", "DRADeviceBindingConditions", "DRADeviceTaints", "DRAExtendedResource",
        "DRAPartitionableDevices",
    )
)  # fmt: skip
GANGS = "GenericWorkload=true,GangScheduling=true"
PROGRAMS = frozenset({"etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler"})
_TOKEN = "gated"


@dataclass
class Gated:
    """The running programs, and the client of their API."""

    folder: Path
    bin: Path
    server: RealServer
    base: str
    gates: str = GATES
    stack: ExitStack = field(default_factory=ExitStack)

    def start(self, program: str, *flags: str) -> None:
        log = self.stack.enter_context((self.folder / f"{program}.log").open("w"))
        process = subprocess.Popen([str(self.bin / program), *flags], stdout=log, stderr=subprocess.STDOUT)
        self.stack.callback(process.wait)
        self.stack.callback(process.terminate)

    def keep(self, program: str, *flags: str) -> None:
        """Start it again whenever it ends, as a kubelet does."""
        log = self.stack.enter_context((self.folder / f"{program}.log").open("w"))
        kept = _Kept([str(self.bin / program), *flags], log)
        self.stack.callback(kept.end)
        kept.start()

    @functools.cached_property
    def kubeconfig(self) -> Path:
        """Of the administrator; written once, as a program that has just been started reads it when it comes to that."""
        config = self.folder / "kubeconfig"
        cluster = {"server": self.base, "insecure-skip-tls-verify": True}
        config.write_text(
            json.dumps(
                {
                    "apiVersion": "v1", "kind": "Config", "current-context": "it",
                    "clusters": [{"name": "it", "cluster": cluster}],
                    "users": [{"name": "it", "user": {"token": _TOKEN}}],
                    "contexts": [{"name": "it", "context": {"cluster": "it", "user": "it"}}],
                }
            )
        )  # fmt: skip
        return config

    def start_controllers(self, *flags: str) -> None:
        """With those of claims, quotas, namespaces and garbage."""
        self.start(
            "kube-controller-manager", f"--kubeconfig={self.kubeconfig}", "--leader-elect=false", "--secure-port=0",
            "--authentication-skip-lookup", f"--feature-gates={self.gates}", "--kube-api-qps=500", "--kube-api-burst=1000",
            f"--service-account-private-key-file={self.folder / 'accounts.key'}", *flags,
        )  # fmt: skip

    def start_scheduler(self, *, binding_conditions: bool = False) -> None:
        """Without ``binding_conditions`` it reserves claims that were allocated before, as by somebody else.

        That of 1.35.4 dies at times when pods of a gang are deleted while it looks at them (a nil pointer in
        ``podGroupInfo.UnscheduledPods``): it is started again.
        """
        said = str(binding_conditions).lower()
        gates = self.gates.replace("DRADeviceBindingConditions=true", f"DRADeviceBindingConditions={said}")
        self.keep(
            "kube-scheduler", f"--kubeconfig={self.kubeconfig}", "--leader-elect=false", "--secure-port=0",
            "--authentication-skip-lookup", f"--feature-gates={gates}", "--kube-api-qps=500",
            "--kube-api-burst=1000",
        )  # fmt: skip


class _Kept(threading.Thread):
    """A process that is there until ``end``."""

    def __init__(self, command: list[str], log: IO[str]) -> None:
        super().__init__(daemon=True)
        self._command, self._log = command, log
        self._lock, self._ending = threading.Lock(), threading.Event()
        self._process = self._begin()

    def _begin(self) -> subprocess.Popen[bytes]:
        return subprocess.Popen(self._command, stdout=self._log, stderr=subprocess.STDOUT)

    def run(self) -> None:
        while True:
            self._process.wait()
            self._ending.wait(0.5)  # so that one that can't start does not take a core
            with self._lock:
                if self._ending.is_set():
                    return
                self._process = self._begin()

    def end(self) -> None:
        with self._lock:
            self._ending.set()
            self._process.terminate()
        self.join()


@contextmanager
def running(folder: Path, *, taint_rules: bool = False, gangs: bool = False) -> Iterator[Gated]:
    """The API server, answering; the controllers are the caller's to start. Raises LabError.

    ``taint_rules``: with DeviceTaintRules; ``gangs``: with Workloads, and with DRA as it usually is.
    """
    gates = GANGS if gangs else f"{GATES},DRADeviceTaintRules=true" if taint_rules else GATES
    apis = "scheduling.k8s.io/v1alpha1" if gangs else "resource.k8s.io/v1alpha3" if taint_rules else ""
    programs = build.ensure_binaries(only=PROGRAMS)
    etcd, peers, port = (free_port() for _ in range(3))
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "tokens").write_text(f'{_TOKEN},admin,1,"system:masters"\n')
    key = folder / "accounts.key"
    key.write_bytes(
        rsa.generate_private_key(65537, 2048).private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.TraditionalOpenSSL, serialization.NoEncryption()
        )
    )
    base = f"https://127.0.0.1:{port}"
    found = Gated(folder, programs, RealServer.with_token(base, _TOKEN), base, gates)
    with found.stack:
        etcd_url, peer_url = f"http://127.0.0.1:{etcd}", f"http://127.0.0.1:{peers}"
        found.start(
            "etcd", f"--data-dir={folder / 'etcd'}", f"--listen-client-urls={etcd_url}",
            f"--advertise-client-urls={etcd_url}", f"--listen-peer-urls={peer_url}",
            f"--initial-advertise-peer-urls={peer_url}", f"--initial-cluster=default={peer_url}", "--unsafe-no-fsync",
        )  # fmt: skip
        found.start(
            "kube-apiserver", f"--etcd-servers={etcd_url}", "--bind-address=127.0.0.1", f"--secure-port={port}",
            f"--cert-dir={folder / 'certs'}", f"--token-auth-file={folder / 'tokens'}", "--authorization-mode=RBAC",
            "--service-cluster-ip-range=10.97.0.0/16", "--service-account-issuer=https://kubernetes.default.svc",
            f"--service-account-key-file={key}", f"--service-account-signing-key-file={key}",
            f"--feature-gates={gates}", *([f"--runtime-config={apis}=true"] if apis else []),
        )  # fmt: skip
        assert on_real.looked_for(lambda: _ready(found.server), 120), "the API server does not come up"
        yield found


def _ready(server: RealServer) -> bool:
    try:
        return server.call("GET", "/api/v1/namespaces/default")[0] == 200
    except (OSError, ValueError):
        return False
