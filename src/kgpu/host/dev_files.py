"""The real device files of a host for ``kgpu.host.dev_nodes``, the driver's facts in /proc, and loading its modules.

Promises: links are followed only inside the host's root; a link or node is made under a temporary name and renamed, so
that the old one is replaced atomically; reads are bounded. ``FakeDevFiles`` is the fake.
"""

from __future__ import annotations

import os
import secrets
import stat
import subprocess
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from kgpu.base.errors import HostError
from kgpu.host.chroot import in_root
from kgpu.host.dev_nodes import (
    DEV,
    MODULES,
    DeviceFile,
    Numbers,
    existing_nodes,
    read_cap_minors,
    read_gpu_minor,
    read_majors,
)
from kgpu.host.root import Tree, read_some

MODE: Final = 0o666
MODPROBE: Final = "/sbin/modprobe"
MODPROBE_SECONDS: Final = 120
_MAX_TEXT: Final = 1 << 20
_MAX_GPUS: Final = 4096


class RealDevFiles:
    """``host_root`` is where this process sees the host's ``/``."""

    def __init__(self, host_root: Path | str = "/") -> None:
        self._tree = Tree.at(host_root, "/")

    def names(self, folder: str) -> tuple[str, ...]:
        return self._tree.names(folder)

    def device(self, path: str) -> Numbers | None:
        found = self._stat(path)
        if found is None or not stat.S_ISCHR(found.st_mode):
            return None
        return Numbers(os.major(found.st_rdev), os.minor(found.st_rdev))

    def link(self, path: str) -> str | None:
        place = self._place(path)
        if place is None:
            return None
        try:
            return os.readlink(place)
        except OSError:
            return None

    def there(self, path: str) -> bool:
        return self._stat(path) is not None

    def put_link(self, path: str, target: str) -> None:
        with self._beside(path) as temporary:
            os.symlink(target, temporary)

    def put_node(self, path: str, numbers: Numbers) -> None:
        with self._beside(path) as temporary:
            os.mknod(temporary, stat.S_IFCHR | MODE, os.makedev(numbers.major, numbers.minor))
            os.chmod(temporary, MODE)  # mknod applies the umask

    def remove(self, path: str) -> None:
        place = self._place(path)
        if place is not None and place.is_symlink():
            with suppress(FileNotFoundError):
                place.unlink()

    @contextmanager
    def _beside(self, path: str) -> Iterator[Path]:
        folder, _, name = path.rpartition("/")
        self._make_folder(folder)
        place = self._place(path)
        if place is None:
            raise FileNotFoundError(2, "there is no such folder", path)
        temporary = place.with_name(f".{name}.{secrets.token_hex(4)}")
        try:
            yield temporary
            os.replace(temporary, place)
        except BaseException:
            with suppress(FileNotFoundError):
                temporary.unlink()
            raise

    def _make_folder(self, folder: str) -> None:
        missing: list[str] = []
        while folder and self._tree.resolve(folder) is None:
            folder, _, name = folder.rpartition("/")
            missing.append(name)
        here = self._tree.local(self._tree.resolve(folder or "/") or "/")
        for name in reversed(missing):
            here /= name
            here.mkdir(mode=0o755)

    def _place(self, path: str) -> Path | None:
        folder, _, name = path.rpartition("/")
        resolved = self._tree.resolve(folder or "/")
        return None if resolved is None or name in {"", ".", ".."} else self._tree.local(resolved) / name

    def _stat(self, path: str) -> os.stat_result | None:
        place = self._place(path)
        if place is None:
            return None
        try:
            return place.lstat()
        except OSError:
            return None


@dataclass(slots=True)
class FakeDevFiles:
    """The fake, in memory: devices and links by path; ``files`` are other files."""

    devices: dict[str, Numbers] = field(default_factory=dict)
    links: dict[str, str] = field(default_factory=dict)
    files: set[str] = field(default_factory=set)

    def names(self, folder: str) -> tuple[str, ...]:
        every = (*self.devices, *self.links, *self.files)
        below = (path.removeprefix(folder + "/").partition("/")[0] for path in every if path.startswith(folder + "/"))
        return tuple(sorted(set(below)))

    def device(self, path: str) -> Numbers | None:
        return self.devices.get(path)

    def link(self, path: str) -> str | None:
        return self.links.get(path)

    def there(self, path: str) -> bool:
        folder, _, name = path.rpartition("/")
        return name in self.names(folder)

    def put_link(self, path: str, target: str) -> None:
        self._forget(path)
        self.links[path] = target

    def put_node(self, path: str, numbers: Numbers) -> None:
        self._forget(path)
        self.devices[path] = numbers

    def remove(self, path: str) -> None:
        self.links.pop(path, None)

    def _forget(self, path: str) -> None:
        self.devices.pop(path, None)
        self.links.pop(path, None)
        self.files.discard(path)


@dataclass(frozen=True, slots=True)
class DriverNumbers:
    """The running driver's numbers: majors by name, the GPUs' minors, capability minors by name."""

    majors: Mapping[str, int]
    gpu_minors: tuple[int, ...]
    cap_minors: Mapping[str, int]


def read_facts(root: Path | str = "/") -> DriverNumbers:
    """Read from the root's own /proc if it has a driver (a simulated root, a driver container), else this system's."""
    own = Path(root) / "proc"
    proc = own if (own / "driver").is_dir() else Path("/proc")
    gpus = proc / "driver/nvidia/gpus"
    try:
        names = sorted(os.listdir(gpus))[:_MAX_GPUS]
    except OSError:
        names = []
    minors = (read_gpu_minor(_text(gpus / name / "information")) for name in names)
    return DriverNumbers(
        read_majors(_text(proc / "devices")),
        tuple(sorted({minor for minor in minors if minor is not None})),
        read_cap_minors(_text(proc / "driver/nvidia-caps/mig-minors")),
    )


def dev_folder(files: RealDevFiles | FakeDevFiles, driver_root: str) -> str:
    """The host's folder with the driver's nodes: the driver root's own if it has any, else ``/dev``."""
    own = f"{driver_root.rstrip('/')}/dev"
    return own if own != DEV and existing_nodes(files, dev=own) else DEV


def load_modules(
    root: str = "/", *, modules: Sequence[str] = MODULES, run: Callable[[Sequence[str]], str] | None = None
) -> None:
    """Load the driver's modules with the root's own modprobe. ``run`` returns an error text or "". Raises HostError."""
    for module, command in zip(modules, load_commands(root, modules), strict=True):
        problem = (run or _run)(in_root(root, [MODPROBE, module]))
        if problem:
            raise HostError(
                f"the kernel module {module} can't be loaded: {problem}",
                f"a driver for the running kernel under {root}",
                f"run `{command}`, and see the kernel's log",
            )


def load_commands(root: str = "/", modules: Sequence[str] = MODULES) -> list[str]:
    """The commands that load the modules, one each in order, for people."""
    inside = "" if Path(root) == Path("/") else f"chroot {root} "
    return [f"{inside}{MODPROBE} {module}" for module in modules]


def nodes_of(text: Iterable[DeviceFile]) -> str:
    """The first nodes and how many more there are, for people."""
    listed = [f"{node.path} ({node.numbers})" for node in text]
    return ", ".join(listed[:4]) + (f" and {len(listed) - 4} more" if len(listed) > 4 else "")


def _run(command: Sequence[str]) -> str:
    try:
        done = subprocess.run(
            list(command), capture_output=True, text=True, errors="replace", timeout=MODPROBE_SECONDS, check=False,
            env={"PATH": "/usr/sbin:/usr/bin:/sbin:/bin"}, stdin=subprocess.DEVNULL,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        return f"no end after {MODPROBE_SECONDS} seconds"
    except OSError as error:
        return f"{command[0]} can't be run: {error.strerror}"
    return "" if done.returncode == 0 else " ".join(done.stderr.split()) or f"exit code {done.returncode}"


def _text(path: Path) -> str:
    return read_some(path, _MAX_TEXT).decode("utf-8", "replace")
