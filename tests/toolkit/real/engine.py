"""A containerd of its own with runc, in its own namespaces and without Kubernetes: what the container tests run on.

It reads CDI specs from its own folder and injects them as the one under a kubelet does, with the same library. It has
a /run and a /dev of its own, and sees nothing of the machine's CDI specs; all its processes end with it.
"""

from __future__ import annotations

import itertools
import json
import os
import signal
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from kgpu.base import signals
from kgpu.formats.names import CDI_STATIC_DIR
from kgpu.lab import lock
from kgpu.lab.real import bootstrap, cgroups, mountpoints

SOCKET: Final = "/run/kgpu-engine/containerd.sock"
BUNDLES: Final = "/run/kgpu-engine/state/io.containerd.runtime.v2.task/default"
RUNC_STATE: Final = "/run/containerd/runc/default"
START_S: Final = 300.0
RUN_S: Final = 60.0
# The machine's spec folders stay out of sight: the engine has its own /run, and its own /etc/cdi where there is
# something in one. An empty one may be a lab's, which takes it away when nobody is on it.
_SETUP: Final = """set -e
{room}
mount -t tmpfs -o mode=755 tmpfs /run
mkdir -p /run/cdi
mount --bind {specs} /run/cdi
if test -n "$(ls -A /etc/cdi 2>/dev/null)"; then mount -t tmpfs tmpfs /etc/cdi; fi
mkdir /run/dev
mount -t tmpfs -o mode=755 tmpfs /run/dev
for node in null zero full random urandom tty ptmx fd; do cp -a /dev/$node /run/dev/; done
mkdir /run/dev/pts /run/dev/shm
mount --bind /dev/pts /run/dev/pts
mount --move /run/dev /dev
PATH={bin}:$PATH {bin}/containerd --config {config} >{log} 2>&1 &
wait
"""
# The CRI plugin makes /etc/cni/net.d on the machine.
_WITHOUT_KUBERNETES: Final = """version = 3
disabled_plugins = ["io.containerd.cri.v1.images", "io.containerd.cri.v1.runtime", "io.containerd.grpc.v1.cri"]
"""
_ROOM: Final = "mkdir -p {root}; mount -t tmpfs -o size={room} tmpfs {root}"
_CONFIG: Final = """root = "{root}"
state = "/run/kgpu-engine/state"
[grpc]
address = "{socket}"
[ttrpc]
address = "{socket}.ttrpc"
[plugins."io.containerd.internal.v1.opt"]
path = "{folder}/opt"
"""

_engines: Final = itertools.count(1)  # one process may have several beside each other


@dataclass(frozen=True, slots=True)
class Done:
    """How a container's process ended: its exit code and what it printed."""

    code: int
    out: str
    err: str

    def lines(self) -> list[str]:
        """What was printed; fails when the process did."""
        assert self.code == 0, f"exit {self.code}\n{self.out}{self.err}"
        return self.out.splitlines()


class Engine:
    """One containerd; ``start`` and ``stop`` it. Spec files go into ``specs``.

    Its images are in ``root``, below ``folder`` if none is given; with ``room`` that is a file system of its own in
    memory, of so many bytes (``64m``).
    """

    def __init__(self, folder: Path, bin_dir: Path, *, root: Path | None = None, room: str = "") -> None:
        self.folder, self.bin = folder, bin_dir
        self.root, self._room = root or folder / "root", room
        self.specs = folder / "cdi"
        self.cgroup = f"kgpu-engine-{os.getpid()}-{next(_engines)}"
        self._snapshotter = bootstrap.snapshotter(folder)
        self._cgroups: tuple[str, ...] = ()
        self._folders: list[str] = []  # a lab's, to be removed here where that lab goes first and finds them in use
        self._process: subprocess.Popen[bytes] | None = None
        self._inside: int | None = None
        self._numbers = itertools.count(1)

    def start(self) -> None:
        self.specs.mkdir(parents=True, exist_ok=True)
        config = self.folder / "config.toml"
        config.write_text(_WITHOUT_KUBERNETES + _CONFIG.format(folder=self.folder, root=self.root, socket=SOCKET))
        room = _ROOM.format(root=self.root, room=self._room) if self._room else ""
        log = self.folder / "containerd.log"
        script = _SETUP.format(room=room, specs=self.specs, bin=self.bin, config=config, log=log)
        self._cgroups = cgroups.create(self.cgroup)
        with lock.machine():  # no lab makes or removes its folders until the engine's mounts are there
            self._folders = [one for one in mountpoints.claim([CDI_STATIC_DIR]) if os.path.isdir(one)]
            self._begin(script)

    def _begin(self, script: str) -> None:
        self._process = subprocess.Popen(
            signals.with_defaults(
                ["unshare", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc", "--propagation", "private",
                 "sh", "-c", script]
            ),
        )  # fmt: skip
        end = time.monotonic() + START_S
        while self.ctr("version").code != 0:
            log = self.folder / "containerd.log"
            said = log.read_text()[-2000:] if log.exists() else ""
            assert self._process.poll() is None, f"containerd has ended\n{said}"
            assert time.monotonic() < end, f"containerd doesn't answer\n{said}"
            time.sleep(0.05)

    def stop(self) -> None:
        if self._process is not None:
            self._process.send_signal(signal.SIGKILL)
            self._process.wait()
        with lock.machine():
            left = [*mountpoints.remove(self._folders), *cgroups.remove(self._cgroups)]
        assert not left, f"folders and cgroups that stayed: {left}"

    def load(self, archive: Path) -> None:
        """Take the images of an OCI archive."""
        command = ["images", "import", "--snapshotter", self._snapshotter, "--local", str(archive)]
        done = self.ctr(*command)
        assert done.code == 0, done.err

    def run(
        self,
        image: str,
        *command: str,
        devices: Sequence[str] = (),
        words: Sequence[str] = (),
        seconds: float = RUN_S,
    ) -> Done:
        """Run a container to its end. ``devices`` are CDI names, ``words`` further flags of ``ctr run``."""
        name = f"c{next(self._numbers)}"
        return self.ctr("run", "--rm", *self._flags(name, devices), *words, image, name, *command, seconds=seconds)

    @contextmanager
    def container(
        self, image: str, *command: str, devices: Sequence[str] = (), words: Sequence[str] = ()
    ) -> Iterator[Container]:
        """A container that goes on running in the background; removed at the end."""
        name = f"c{next(self._numbers)}"
        done = self.ctr("run", "--detach", "--null-io", *self._flags(name, devices), *words, image, name, *command)
        assert done.code == 0, done.err
        try:
            yield Container(self, name)
        finally:
            self.ctr("task", "kill", "--signal", "SIGKILL", "--all", name)
            self.ctr("task", "delete", "--force", name)
            self.ctr("container", "delete", name)

    def ctr(self, *words: str, seconds: float = RUN_S) -> Done:
        return self.inside([str(self.bin / "ctr"), "--address", SOCKET, *words], seconds=seconds)

    def inside(self, command: Sequence[str], *, seconds: float = RUN_S, env: Mapping[str, str] | None = None) -> Done:
        """A command in the engine's namespaces."""
        inner = self._inner()
        if inner is None:
            return Done(-1, "", self._why())
        done = subprocess.run(
            ["nsenter", "--target", str(inner), "--mount", "--pid", *command],
            capture_output=True, text=True, check=False, timeout=seconds, stdin=subprocess.DEVNULL, env=env,
        )  # fmt: skip
        return Done(done.returncode, done.stdout, done.stderr)

    def _why(self) -> str:
        """Why there is nothing to enter: the engine has not begun, or has ended, and what it said last."""
        assert self._process is not None
        if (code := self._process.poll()) is None:
            return "the engine is not running yet"
        log = self.folder / "containerd.log"
        return f"the engine has ended with {code}\n{log.read_text()[-3000:] if log.exists() else ''}"

    def _flags(self, name: str, devices: Sequence[str]) -> list[str]:
        flags = ["--snapshotter", self._snapshotter, "--cgroup", f"/{self.cgroup}/{name}"]
        return [*flags, *(word for device in devices for word in ("--device", device))]

    def _inner(self) -> int | None:
        """The first process inside, whose namespaces are the engine's; None before it has them."""
        assert self._process is not None
        outer = self._process.pid
        if self._process.poll() is not None:
            self._inside = None
        # Looked up once: the kernel does not promise that its list of children is whole at every moment.
        if self._inside is not None:
            return self._inside
        try:
            children = Path(f"/proc/{outer}/task/{outer}/children").read_text().split()
            # Before it has its own /run, the machine's would be seen.
            if children and Path(f"/proc/{children[0]}/root/run/kgpu-engine").exists():
                self._inside = int(children[0])
            return self._inside
        except OSError:
            return None


@dataclass(frozen=True, slots=True)
class Container:
    """A running container."""

    engine: Engine
    name: str

    def exec(self, *command: str) -> Done:
        """A command in it, by runc itself: `ctr task exec` may lose what a command prints that ends at once."""
        return self.engine.inside([str(self.engine.bin / "runc"), "--root", RUNC_STATE, "exec", self.name, *command])

    def mounts(self) -> list[str]:
        """Its mountinfo, read beside it."""
        pid = self.engine.inside(["cat", f"{BUNDLES}/{self.name}/init.pid"]).lines()[0]
        return self.engine.inside(["cat", f"/proc/{pid}/mountinfo"]).lines()

    def oci_spec(self) -> Any:
        """What runc was told: the bundle's config.json."""
        done = self.engine.inside(["cat", f"{BUNDLES}/{self.name}/config.json"])
        return json.loads("\n".join(done.lines()))

    def cgroup_folder(self, controller: str) -> Path | None:
        """The container's cgroup of a version 1 controller; None on machines without."""
        folder = cgroups.ROOT / controller / self.engine.cgroup / self.name
        return folder if folder.is_dir() else None
