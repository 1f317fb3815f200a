"""Pods on a containerd with NRI switched on, through the calls that a kubelet makes (CRI), without Kubernetes.

The messages are put together by field number: the tests need six calls of an API that has a hundred messages.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import subprocess
import time
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Self

from kgpu.base import signals
from kgpu.kubelet.rpc import Method, RpcClient
from kgpu.lab.real import cgroups
from kgpu.lab.real.configs import PAUSE_IMAGE
from tests.toolkit.real import engine
from tests.toolkit.real.engine import SOCKET, START_S, Engine

NRI: Final = "/run/nri/nri.sock"
CALL_S: Final = 60.0
# The folder of network settings is made by containerd: in the engine's own /run, not in the machine's /etc.
_CONFIG: Final = """
[plugins."io.containerd.cri.v1.images"]
snapshotter = "{snapshotter}"
[plugins."io.containerd.cri.v1.images".pinned_images]
sandbox = "{pause}"
[plugins."io.containerd.cri.v1.runtime"]
enable_cdi = true
cdi_spec_dirs = ["/run/cdi"]
restrict_oom_score_adj = true
disable_apparmor = true
[plugins."io.containerd.cri.v1.runtime".cni]
conf_dir = "/run/cni/net.d"
[plugins."io.containerd.cri.v1.runtime".containerd.runtimes.runc]
runtime_type = "io.containerd.runc.v2"
[plugins."io.containerd.cri.v1.runtime".containerd.runtimes.runc.options]
BinaryName = "{bin}/runc"
# A plugin that does not answer within this is closed, and pods start without it: by default two seconds, which a plugin
# on a machine that does much else may take.
[plugins."io.containerd.nri.v1.nri"]
disable = false
socket_path = "{nri}"
plugin_registration_timeout = "60s"
plugin_request_timeout = "60s"
"""
# As the engine without Kubernetes is set up, but a containerd that ends is started again.
_START: Final = "PATH={bin}:$PATH {bin}/containerd --config {config} >{log} 2>&1 &\nwait\n"
_AGAIN: Final = (
    "while :; do {bin}/containerd --config {config} >>{log} 2>&1 & echo $! >/run/containerd.pid; wait; done\n"
)


class NriEngine(Engine):
    """An engine that also serves CRI, and takes NRI plugins at ``nri``."""

    def start(self) -> None:
        self.specs.mkdir(parents=True, exist_ok=True)
        config = self.folder / "config.toml"
        more = _CONFIG.format(snapshotter=self._snapshotter, pause=PAUSE_IMAGE, bin=self.bin, nri=NRI)
        common = engine._CONFIG.format(folder=self.folder, root=self.root, socket=SOCKET)
        config.write_text(f"version = 3\n{common}{more}")
        assert _START in engine._SETUP
        script = engine._SETUP.replace(_START, _AGAIN)
        log = self.folder / "containerd.log"
        script = script.format(room="", specs=self.specs, bin=self.bin, config=config, log=log)
        self._cgroups = cgroups.create(self.cgroup)
        self._process = subprocess.Popen(
            signals.with_defaults(
                ["unshare", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc", "--propagation", "private",
                 "sh", "-c", script]
            ),
        )  # fmt: skip
        self.answers()

    def answers(self) -> None:
        """Wait until it takes calls."""
        end = time.monotonic() + START_S
        while self.ctr("--namespace", "k8s.io", "images", "list", "--quiet").code != 0 or not self.nri.exists():
            log = self.folder / "containerd.log"
            said = log.read_text()[-2000:] if log.exists() else ""
            assert self._process is not None
            assert self._process.poll() is None, f"the engine has ended\n{said}"
            assert time.monotonic() < end, f"containerd doesn't answer\n{said}"
            time.sleep(0.05)

    def restart(self) -> None:
        """Kill containerd; it is started again. Containers go on running."""
        before = self._socket()
        assert self.inside(["sh", "-c", "kill -9 $(cat /run/containerd.pid)"]).code == 0
        end = time.monotonic() + START_S
        while self._socket() in (0, before):
            assert time.monotonic() < end, "containerd doesn't come back"
            time.sleep(0.05)
        self.answers()

    def _socket(self) -> int:
        """The NRI socket's inode, 0 while there is none."""
        try:
            return self.nri.stat().st_ino
        except FileNotFoundError:
            return 0

    def load(self, archive: Path) -> None:
        words = ["images", "import", "--snapshotter", self._snapshotter, "--local", str(archive)]
        done = self.ctr("--namespace", "k8s.io", *words)
        assert done.code == 0, done.err

    @property
    def nri(self) -> Path:
        """The NRI socket, seen from here."""
        return self._seen(NRI)

    @property
    def cri(self) -> Path:
        """containerd's socket, seen from here."""
        return self._seen(SOCKET)

    def _seen(self, path: str) -> Path:
        return Path(f"/proc/{self._inner()}/root{path}")


class Raw:
    """A message that is already bytes."""

    def __init__(self, data: bytes = b"") -> None:
        self.data = data

    def SerializeToString(self) -> bytes:
        return self.data

    @classmethod
    def FromString(cls, data: bytes) -> Self:
        return cls(data)


def _varint(number: int) -> bytes:
    out = bytearray()
    while number > 127:
        out.append(number & 127 | 128)
        number >>= 7
    return bytes([*out, number])


def pack(fields: Mapping[int, Any]) -> bytes:
    """A message of field number to value: an integer, text, another such mapping, or a list of these."""
    out = b""
    for number, value in fields.items():
        for one in value if isinstance(value, list | tuple) else [value]:
            if isinstance(one, int):
                out += _varint(number << 3) + _varint(one)
            else:
                data = pack(one) if isinstance(one, Mapping) else one.encode()
                out += _varint(number << 3 | 2) + _varint(len(data)) + data
    return out


def unpack(data: bytes) -> dict[int, list[Any]]:
    """Field number to values: integers, or bytes for everything else."""
    found: dict[int, list[Any]] = {}
    while data:
        key, data = _read(data)
        value: Any
        if key & 7 == 0:
            value, data = _read(data)
        else:
            assert key & 7 == 2
            length, data = _read(data)
            value, data = data[:length], data[length:]
        found.setdefault(key >> 3, []).append(value)
    return found


def _read(data: bytes) -> tuple[int, bytes]:
    number = 0
    for place in itertools.count():
        number |= (data[place] & 127) << (7 * place)
        if data[place] < 128:
            return number, data[place + 1 :]
    raise AssertionError


def text_map(values: Mapping[str, str]) -> list[dict[int, str]]:
    return [{1: key, 2: value} for key, value in values.items()]


@dataclass(frozen=True, slots=True)
class Box:
    """A running container."""

    cri: Cri
    id: str

    async def run(self, command: str) -> tuple[int, str]:
        """Exit code and output of a shell command in it."""
        reply = await self.cri.call("ExecSync", {1: self.id, 2: ["sh", "-c", command], 3: 30})
        out = b"".join([*reply.get(1, []), *reply.get(2, [])]).decode()
        return reply.get(3, [0])[0], out

    async def lines(self, command: str) -> list[str]:
        code, out = await self.run(command)
        assert code == 0, out
        return out.splitlines()


class Cri:
    """A kubelet's side of containerd's socket."""

    def __init__(self, node: NriEngine) -> None:
        self._engine = node
        self._numbers = itertools.count(1)

    async def call(self, name: str, request: Mapping[int, Any]) -> dict[int, list[Any]]:
        """Raises KubeletError when containerd refuses."""
        method = Method(path=f"/runtime.v1.RuntimeService/{name}", request=Raw, reply=Raw)
        async with RpcClient(self._engine.cri) as client:
            return unpack((await client.call(method, Raw(pack(request)), timeout=CALL_S)).data)

    @contextlib.asynccontextmanager
    async def box(
        self,
        image: str,
        *,
        namespace: str = "user",
        pod: str = "",
        container: str = "main",
        annotations: Mapping[str, str] | None = None,
        env: Mapping[str, str] | None = None,
        cdi: Sequence[str] = (),
    ) -> AsyncIterator[Box]:
        """A pod with one container that waits; both go at the end. ``cdi`` are devices that the kubelet gives."""
        name = pod or f"p{next(self._numbers)}"
        config = {
            1: {1: name, 2: f"uid-{name}-{os.urandom(4).hex()}", 3: namespace, 4: 0},
            7: text_map(annotations or {}),
            8: {1: f"/{self._engine.cgroup}/{name}", 2: {1: {1: 2}}},  # the node's network
        }
        sandbox = (await self.call("RunPodSandbox", {1: config}))[1][0].decode()
        try:
            box = {
                1: {1: container, 2: 0},
                2: {1: image},
                3: ["sh", "-c", "trap : TERM; sleep 1000000 & wait"],
                6: text_map(env or {}),
                15: {2: {3: {1: 2}}},
                17: [{1: device} for device in cdi],
            }
            made = (await self.call("CreateContainer", {1: sandbox, 2: box, 3: config}))[1][0].decode()
            await self.call("StartContainer", {1: made})
            yield Box(self, made)
        finally:
            await self.call("StopPodSandbox", {1: sandbox})
            await self.call("RemovePodSandbox", {1: sandbox})


@contextlib.contextmanager
def running(node: NriEngine) -> Iterator[NriEngine]:
    try:
        node.start()
        yield node
    finally:
        node.stop()
