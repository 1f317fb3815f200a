"""Reads this node's files: driver files, device nodes, PCI devices, CDI specs. It writes nothing and never raises.

Hostile or odd contents (pipes, huge files, link loops) are problems or ignored, and never block the caller for good:
every open is non-blocking, and callers use a separate thread.
"""

from __future__ import annotations

import contextlib
import os
import re
import stat
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from kgpu.base.errors import UserError
from kgpu.formats.cdi import Spec, parse_spec, qualified_name
from kgpu.formats.names import NVIDIA_CONTROL_NODES, NVIDIA_PCI_ID, VALIDATIONS_DIR
from kgpu.host import kernel_modules
from kgpu.host.driver.layouts import BINARY_DIRS, LIBRARY_DIRS
from kgpu.host.root import DriverRoot, Tree
from kgpu.validator.files import Folder
from kgpu.validator.modules import ASKED_FILE, MODULES, asked_modules

LIBRARIES: Final = ("libnvidia-ml.so.1", "libcuda.so.1")
SMI: Final = "nvidia-smi"
MAX_SPEC: Final = 8 << 20
_ASKED_BYTES: Final = 4096
_SMI_DIRS: Final = (*BINARY_DIRS, "/usr/lib/wsl/lib", "/opt/bin")
_NODE: Final = re.compile(r"nvidia[0-9]{1,5}", re.ASCII)
_MODULE_VERSION: Final = re.compile(r"\b(\d{3,4}\.\d{1,4}(?:\.\d{1,4})?)\b", re.ASCII)
_DISPLAY: Final = ("0x0300", "0x0302")  # VGA and 3D controllers; bridges and audio functions are not GPUs


@dataclass(frozen=True, slots=True, kw_only=True)
class PciGpu:
    """A GPU on the PCI bus: its address such as ``0000:07:00.0``, and its kernel driver ("" for none)."""

    address: str
    driver: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class DriverFacts:
    """What was found of the driver. ``libraries`` has paths by name, "" if missing; ``pci`` is None if it can't be
    read.

    ``module`` is the version of the loaded kernel module, "" if there is none or /proc does not say. ``asked`` are the
    modules beside it (``kgpu.validator.modules``) that the driver's pod was made to load, ``loaded`` those that are.
    """

    root: str
    libraries: Mapping[str, str]
    searched: tuple[str, ...]
    smi: str = ""
    smi_searched: tuple[str, ...] = ()
    nodes: frozenset[str] = frozenset()
    module: str = ""
    pci: tuple[PciGpu, ...] | None = None
    asked: frozenset[str] = frozenset()
    loaded: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True, kw_only=True)
class CdiName:
    """One qualified name: its spec file, and the paths in it that the host lacks."""

    file: str
    missing: tuple[str, ...] = ()
    twice: tuple[str, ...] = ()  # the files that conflict at one priority: runtimes then resolve none


@dataclass(frozen=True, slots=True, kw_only=True)
class CdiFacts:
    """The names that specs define, by ``vendor/class=name``, and problems with spec files."""

    folders: tuple[str, ...]
    names: Mapping[str, CdiName] = field(default_factory=dict)
    problems: tuple[str, ...] = ()


def look_at_driver(
    root: DriverRoot, *, proc: str = "/proc", sys: str = "/sys", validations: Path = Path(VALIDATIONS_DIR)
) -> DriverFacts:
    """Read the driver's facts. ``proc`` and ``sys`` are this node's, or a simulated root's own. In ``validations`` the
    driver's container tells what it was made to load.
    """
    asked = Folder(validations).read(ASKED_FILE, _ASKED_BYTES) or b""
    return DriverFacts(
        root=str(root.files.here),
        libraries={name: _file_in(root.files, LIBRARY_DIRS, name) for name in LIBRARIES},
        searched=LIBRARY_DIRS,
        smi=_file_in(root.files, _SMI_DIRS, SMI),
        smi_searched=_SMI_DIRS,
        nodes=_nodes(root),
        module=_module_version(f"{proc}/driver/nvidia/version"),
        pci=_pci_gpus(f"{sys}/bus/pci/devices"),
        asked=asked_modules(asked.decode("utf-8", "replace")),
        loaded=frozenset(kernel_modules.loaded(Path(sys), MODULES)),
    )


def _file_in(tree: Tree, folders: Iterable[str], name: str) -> str:
    """The first path with a non-empty file of this name; "" for none."""
    for folder in folders:
        path = tree.resolve(f"{folder}/{name}")
        with contextlib.suppress(OSError):
            if path is not None and stat.S_ISREG((status := tree.local(path).lstat()).st_mode) and status.st_size:
                return f"{folder}/{name}"
    return ""


def _nodes(root: DriverRoot) -> frozenset[str]:
    nodes = {f"/dev/{name}" for name in root.dev.names("/dev") if _NODE.fullmatch(name)}
    return frozenset(nodes | {path for path in NVIDIA_CONTROL_NODES if root.has_node(path)})


def _module_version(path: str) -> str:
    match = _MODULE_VERSION.search(_read(path, 4096).decode(errors="replace"))
    return match[1] if match else ""


def _pci_gpus(folder: str) -> tuple[PciGpu, ...] | None:
    try:
        addresses = sorted(os.listdir(folder))
    except OSError:
        return None
    gpus: list[PciGpu] = []
    for address in addresses:
        place = f"{folder}/{address}"
        if _line(f"{place}/vendor") == f"0x{NVIDIA_PCI_ID}" and _line(f"{place}/class").startswith(_DISPLAY):
            driver = ""
            with contextlib.suppress(OSError):
                driver = os.path.basename(os.readlink(f"{place}/driver"))
            gpus.append(PciGpu(address=address.lower(), driver=driver))
    return tuple(gpus)


def _line(path: str) -> str:
    return _read(path, 64).decode(errors="replace").strip().lower()


def _read(path: str | Path, limit: int) -> bytes:
    """The first ``limit`` bytes of a regular file, b"" for anything else."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY)
    except (OSError, ValueError):
        return b""
    try:
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            return b""
        data = b""
        while len(data) < limit and (more := os.read(fd, limit - len(data))):
            data += more
        return data
    except OSError:
        return b""
    finally:
        os.close(fd)


def look_at_specs(folders: Sequence[Path], root: DriverRoot, host: Path = Path("/")) -> CdiFacts:
    """Read every name in the spec folders (later ones win). ``host`` is the host's root as this process sees it."""
    problems: list[str] = []
    names: dict[str, CdiName] = {}
    for folder in folders:
        in_folder: dict[str, CdiName] = {}
        for path in _spec_files(folder):
            raw = _read(path, MAX_SPEC + 1)
            if not raw or len(raw) > MAX_SPEC:
                problems.append(f"{path} is {'too large' if raw else 'empty or no file'}")
                continue
            try:
                spec = parse_spec(raw, source=str(path))
            except UserError as error:
                problems.append(error.one_line())
                continue
            for name, missing in _names(spec, root, host):
                twice = (in_folder[name].file, str(path)) if name in in_folder else ()
                in_folder[name] = CdiName(file=str(path), missing=missing, twice=twice)
        names |= in_folder
    return CdiFacts(folders=tuple(map(str, folders)), names=names, problems=tuple(problems))


def _spec_files(folder: Path) -> list[Path]:
    try:
        return sorted(path for path in folder.iterdir() if path.suffix in {".yaml", ".json"})
    except OSError:
        return []


def _names(spec: Spec, root: DriverRoot, host: Path) -> Iterable[tuple[str, tuple[str, ...]]]:
    exists: dict[str, bool] = {}

    def missing(paths: Iterable[str]) -> list[str]:
        for path in paths:
            if path not in exists:
                exists[path] = os.path.lexists(seen(path, root, host))
        return [path for path in dict.fromkeys(paths) if not exists[path]]

    def paths(edits: object) -> list[str]:
        paths = [node.host_path or node.path for node in getattr(edits, "device_nodes", ())]
        paths += [mount.host_path for mount in getattr(edits, "mounts", ())]
        return paths + [hook.path for hook in getattr(edits, "hooks", ())]

    common = paths(spec.container_edits)
    for device in spec.devices:
        yield qualified_name(spec.kind, device.name), tuple(missing([*common, *paths(device.container_edits)]))


def seen(path: str, root: DriverRoot, host: Path) -> Path:
    """A host's path as this process opens it: inside the driver root if it is in there, else below ``host``."""
    for tree in (root.files, root.dev):
        if tree.host != "/" and (path == tree.host or path.startswith(tree.host + "/")):
            return tree.local(path[len(tree.host) :])
    if root.dev.host == "/" and path.startswith("/dev/"):
        return root.dev.local(path)
    if root.files.host == "/":
        return root.files.local(path)
    return host / path.lstrip("/")
