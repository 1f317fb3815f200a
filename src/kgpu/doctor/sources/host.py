"""What a node's own files, kernel and driver say: of ``--host``, and of the agent's role ``probe``.

Reads only; what can't be read is told as missing. Paths go through ``MountedPaths``, so that a host's root that is
mounted somewhere is followed as the host would follow it. What an Xid means is asked of a judge that the command
line gives: the catalogue is health's.
"""

from __future__ import annotations

import datetime as dt
import errno
import os
import posixpath
import re
import socket
import stat
import time
from collections import deque
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from kgpu.base.errors import DriverFault, HwError, UserError
from kgpu.base.typed import convert
from kgpu.doctor import host_facts
from kgpu.doctor.host_facts import DeviceAccess, File, Gpu, HostFacts, HostProcess, PciDevice, Xid
from kgpu.doctor.model import Missing
from kgpu.doctor.secrets import cleaned
from kgpu.doctor.sources import node_packages
from kgpu.formats import names
from kgpu.formats.names import GAUDI_MODULES, KUBELET_DEVICE_PLUGIN_DIR, POD_RESOURCES_SOCKET, VALIDATIONS_DIR
from kgpu.formats.os_release import parse_os_release
from kgpu.host import pci
from kgpu.host.engines.paths import MountedPaths
from kgpu.host.root import read_some

if TYPE_CHECKING:
    from kgpu.doctor.snapshot import Snapshot
    from kgpu.hw.port import Reader

Judge: TypeAlias = Callable[[Iterable[str]], tuple[Xid, ...]]

MAX_FILE: Final = 128 * 1024
MAX_LOG: Final = 8 * 1024 * 1024
MAX_LINES: Final = 4000
NVML_SECONDS: Final = 10.0
READINGS: Final = (
    "clock_event_reasons", "compute_mode", "critical_temperature_c", "fabric_state", "gpm_2", "memory_unrepairable",
    "memory_used_mib", "pcie_generation", "pcie_max_generation", "pcie_max_width", "pcie_width", "persistence_mode",
    "power_w",
    "remapped_rows_failure", "remapped_rows_pending", "remapped_rows_uncorrectable", "retired_pages_pending",
    "slowdown_temperature_c", "sm_clock_mhz", "temperature_c", "temperature_margin_c", "utilization_percent",
    "vgpu_licensed",
)  # fmt: skip
"""The driver's readings that a rule asks for or quotes; the others are not read."""
VENDORS: Final = frozenset({"10de", "1002", "1da3", "8086"})
_CLASSES: Final = ("03", "12")  # displays; processing accelerators
_DRIVER: Final = re.compile(r"Kernel Module(?: for \S+)?\s+(\d+\.\d+(?:\.\d+)?)")
_LIBRARY: Final = re.compile(r"libnvidia-ml\.so\.(\d+\.\d+(?:\.\d+)?)$")
CONFIGS: Final = (
    "/etc/containerd/config.toml",
    "/etc/containerd/conf.d/*.toml",
    "/etc/containerd/config.d/*.toml",
    "/var/lib/rancher/k3s/agent/etc/containerd/*.toml*",
    "/var/lib/rancher/rke2/agent/etc/containerd/*.toml*",
    "/var/snap/microk8s/current/args/containerd*.toml",
    "/etc/k0s/containerd*.toml",
    "/etc/crio/crio.conf",
    "/etc/crio/crio.conf.d/*",
    "/etc/docker/daemon.json",
    "/etc/nvidia-container-runtime/config.toml",
    "/usr/local/nvidia/toolkit/.config/nvidia-container-runtime/config.toml",
    "/etc/cdi/*",
    "/var/run/cdi/*",
    "/var/lib/kubelet/config.yaml",
    "/etc/kubernetes/kubelet/*.conf",
    "/etc/modprobe.d/*nvidia*",
    "/etc/modprobe.d/*nouveau*",
    "/etc/modprobe.d/*amdgpu*",
    "/etc/modprobe.d/*habana*",
    "/etc/habana-container-runtime/config.toml",
)
FILES: Final = (
    *CONFIGS,
    "/proc/driver/nvidia/params", "/proc/driver/nvidia/version", "/proc/version",
    f"{KUBELET_DEVICE_PLUGIN_DIR}/kubelet_internal_checkpoint", "/run/nvidia/mps/*/*/log/*.log",
)  # fmt: skip
"""Config files, specs and small logs, by patterns of host paths."""

PRESENT: Final = (
    f"{KUBELET_DEVICE_PLUGIN_DIR}/kubelet.sock", POD_RESOURCES_SOCKET, "/run/containerd/containerd.sock",
    "/run/crio/crio.sock", "/run/docker.sock", "/run/k3s/containerd/containerd.sock", names.NRI_SOCKET,
    names.DRIVER_INSTALL_DIR, "/run/mellanox/drivers/.driver-ready", "/usr/share/containers/oci/hooks.d",
    "/usr/local/nvidia/toolkit/nvidia-container-runtime", "/usr/bin/nvidia-container-runtime", "/usr/bin/nvidia-smi",
    "/usr/bin/nvidia-ctk", "/sys/class/kfd", "/sys/module/amdgpu/drivers", names.GAUDI_NETWORK_FILE,
    "/usr/bin/habana-container-runtime", "/usr/local/bin/habana-container-runtime",
    "/run/nvidia-persistenced/socket", "/run/nvidia-fabricmanager/socket",
)  # fmt: skip
_DEVICES: Final = (
    "/dev/nvidia*", "/dev/nvidia-caps/*", "/dev/kfd", "/dev/dri/*", "/dev/dri/by-path/*", "/dev/accel/*",
    "/dev/char/195:*", "/dev/infiniband/*",
)  # fmt: skip
_OPENED: Final = ("/dev/kfd", "/dev/dri/renderD*", "/dev/accel/accel*")
"""Device files of vendors other than NVIDIA whose group and mode count: NVIDIA's driver lets anybody open its own."""
_PORT: Final = re.compile(r"external_port_(\d+)_up")
_SETTINGS: Final = ("fs.inotify.max_user_instances", "fs.inotify.max_user_watches", "vm.nr_hugepages")
_MODULES: Final = re.compile(r"^(?:nvidia\w*|nouveau|amdgpu|habanalabs\w*|i915|xe)(?= )", re.MULTILINE)
_DRIVERS: Final = (names.AMD_DRIVER, *GAUDI_MODULES, *names.INTEL_DRIVERS)
"""Modules that the fields about drivers of vendors other than NVIDIA are of."""
_BARRED: Final = re.compile(r"^\s*(?:blacklist\s+|install\s+)(?P<module>[\w-]+)(?P<command>.*)$", re.MULTILINE)
_BARRED_AT_BOOT: Final = re.compile(r"(?:^|\s)(?:(?:modprobe\.|module_)blacklist)=(?P<modules>[\w,-]+)")
_REFUSES: Final = re.compile(r"\s*(?:/usr)?/?(?:bin/)?(?:true|false)\b")
_BUILT: Final = ("nvidia", "amdgpu", "habanalabs")
"""Beginnings of the names under which DKMS builds accelerators' drivers."""
_UNITS: Final = "/sys/fs/cgroup/system.slice/*.service"


async def snapshot_of_host(root: str = "/", *, judge: Judge | None = None, node: str = "") -> Snapshot:
    """A snapshot of one node: the machine that this runs on."""
    from kgpu.doctor.snapshot import Snapshot

    snapshot = Snapshot()
    snapshot.taken = time.time()
    paths = MountedPaths.at(root)
    facts = gather(paths, judge=judge, node=node)
    driver: dict[str, Any] = await read_driver(_driver_root(paths))
    facts_with = host_facts.encode(facts) | driver
    snapshot.add(facts_with)
    for what, why in facts.missing.items():
        how = "run it as root on the node"
        snapshot.missing.append(
            Missing(f"{what} of node {facts.node}", why, how, slight=host_facts.is_slight(what, why))
        )
    return snapshot


def gather(
    paths: MountedPaths, *, judge: Judge | None = None, node: str = "", log_path: Path | None = None
) -> HostFacts:
    """Everything but what the driver's library says. Never raises for one thing that can't be read.

    ``log_path`` is where the kernel's log is, if not in its usual place. Without a judge no more of it is kept in
    memory than what matters.
    """
    missing: dict[str, str] = {}

    def tried(what: str, look: Callable[[], Any]) -> Any:
        try:
            return look()
        except (OSError, UserError, ValueError) as error:
            missing[what] = (error.strerror or str(error)) if isinstance(error, OSError) else str(error).split("\n")[0]
            return None

    kernel = _text(paths, "/proc/sys/kernel/osrelease").strip()
    log = tried(host_facts.KERNEL_LOG, lambda: kernel_log(paths, log_path, every=judge is not None))
    version = _text(paths, "/proc/driver/nvidia/version")
    version_line = _DRIVER.search(version)
    libraries = _names(paths, "/usr/lib*/**/libnvidia-ml.so.*") or _names(
        paths, "/run/nvidia/driver/usr/lib*/**/libnvidia-ml.so.*"
    )
    versions = [hit[1] for path in libraries if (hit := _LIBRARY.search(path))]
    return HostFacts(
        node=node or os.environ.get("NODE_NAME") or _text(paths, "/etc/hostname").strip() or socket.gethostname(),
        taken=dt.datetime.now(dt.UTC).isoformat(timespec="seconds").replace("+00:00", "Z"),
        boot_id=_text(paths, "/proc/sys/kernel/random/boot_id").strip(),
        boot_time=_boot_time(paths),
        kernel=kernel,
        architecture=os.uname().machine,
        os_release=parse_os_release(_text(paths, "/etc/os-release") or _text(paths, "/usr/lib/os-release")),
        command_line=cleaned(_text(paths, "/proc/cmdline").strip()),
        hypervisor=" hypervisor" in _text(paths, "/proc/cpuinfo", 16384),
        secure_boot=tried("Secure Boot's state", lambda: _secure_boot(paths)),
        headers=paths.exists(f"/lib/modules/{kernel}/build") if kernel else None,
        headers_offered=tried("package lists", lambda: node_packages.has_headers(paths, kernel)),
        disks=node_packages.disks(paths),
        dkms=tried("DKMS", lambda: _dkms(paths)),
        pci=tried(host_facts.PCI_DEVICES, lambda: tuple(_pci(paths))),
        modules=tried("kernel modules", lambda: _modules(paths)),
        module_versions={
            name: version for name in _DRIVERS if (version := _text(paths, f"/sys/module/{name}/version", 256).strip())
        },
        blacklist=_blacklist(paths),
        kernel_log=None if log is None else tuple(line for line in log if host_facts.matters(line))[-MAX_LINES:],
        xids=judge(log) if judge and log else (),
        driver_version=version_line[1] if version_line else "",
        driver_open="Open Kernel Module" in version if version else None,
        library_version=versions[0] if len(set(versions)) == 1 else "",
        libraries=tuple(libraries),
        firmware=_names(paths, "/lib/firmware/nvidia/*"),
        devices=tuple(name.removeprefix("/dev/") for pattern in _DEVICES for name in _names(paths, pattern)),
        device_access=_access(paths),
        validations=tuple(posixpath.basename(name) for name in _names(paths, f"{VALIDATIONS_DIR}/*"))
        + tuple(posixpath.basename(name) for name in _names(paths, f"{VALIDATIONS_DIR}/.*")),
        files={path: _file(paths, path) for pattern in FILES for path in _names(paths, pattern)},
        present={path: paths.exists(path) for path in PRESENT},
        units=tuple(posixpath.basename(name).removesuffix(".service") for name in _names(paths, _UNITS)),
        processes=tried(host_facts.PROCESSES, lambda: tuple(_processes(paths))),
        settings={
            name: value for name in _SETTINGS if (value := _text(paths, f"/proc/sys/{name.replace('.', '/')}").strip())
        },
        missing=missing,
    )


def fingerprint(paths: MountedPaths) -> Hashable:
    """What changes when most of this does, cheaply: by names and times of files, and two short files of /proc."""
    try:
        bus = tuple(sorted(os.listdir(paths.local(f"/{pci.DEVICES}"))))
    except (OSError, UserError):
        bus = ()
    return (
        bus,
        tuple((path, _stamp(paths, path)) for pattern in CONFIGS for path in _names(paths, pattern)),
        tuple(paths.exists(path) for path in PRESENT),
        _names(paths, f"{VALIDATIONS_DIR}/*"),
        _text(paths, "/proc/driver/nvidia/version"),
        _access(paths),
        tuple(_MODULES.findall(_text(paths, "/proc/modules"))),
    )


def _stamp(paths: MountedPaths, path: str) -> tuple[int, int]:
    try:
        found = paths.local(path).stat()
        return found.st_mtime_ns, found.st_size
    except (OSError, UserError):
        return 0, -1


async def read_driver(root: Path) -> dict[str, Any]:
    """``driver_facts`` of a reader of one's own."""
    from kgpu.hw.open import NoHardwareError, open_reader

    try:
        reader = open_reader(driver_root=None if root == Path("/") else root)
    except NoHardwareError:
        return {}
    except UserError as error:
        return _refused(error)
    try:
        return await driver_facts(reader)
    finally:
        await reader.close()


async def driver_facts(reader: Reader) -> dict[str, Any]:
    """What the accelerators' library says, as fields of ``HostFacts``: gpus, cuda, or nvmlError.

    Raises DriverReleasedError.
    """
    import asyncio

    import msgspec

    from kgpu.hw.open import NoHardwareError
    from kgpu.hw.port import DriverReleasedError, Problem

    try:
        async with asyncio.timeout(NVML_SECONDS):
            inventory = await reader.inventory()
            whole = [reading for reading in await reader.readings(READINGS) if reading.whole]
    except TimeoutError:
        return {
            "nvmlError": f"the driver has not answered for {NVML_SECONDS:.0f} seconds",
            "nvmlFault": DriverFault.HUNG,
        }
    except NoHardwareError:
        return {}
    except DriverReleasedError:
        raise
    except UserError as error:
        return _refused(error)
    readings = {
        reading.uuid: {name: reading.values[name] for name in READINGS if name in reading.values} for reading in whole
    }
    down = {
        reading.uuid: tuple(
            sorted(int(port[1]) for name, up in reading.values.items() if not up and (port := _PORT.fullmatch(name)))
        )
        for reading in whole
    }

    gpus = [
        Gpu(
            index=gpu.index, vendor=gpu.vendor, uuid=gpu.uuid, name=gpu.name, pci=gpu.pci_bus_id, mode=gpu.mode,
            memory_mib=gpu.memory_mib,
            mig_capable=gpu.mig_capable, mig_enabled=gpu.mig_enabled, mig_pending=gpu.mig_pending,
            instances=tuple(part.profile for part in gpu.partitions),
            compute=".".join(map(str, gpu.compute_capability or ())), recovery=gpu.recovery_action,
            problems=tuple(f"{row.problem}: {row.sentence}" for row in gpu.findings),
            troubles={str(row.problem): row.what for row in gpu.findings},
            lost=next((row.sentence for row in gpu.findings if row.problem is Problem.LOST), ""),
            ports_down=down.get(gpu.uuid, ()), readings=readings.get(gpu.uuid, {}),
        )
        for gpu in inventory.accelerators
    ]  # fmt: skip
    fields: dict[str, Any] = {"gpus": msgspec.to_builtins(gpus)}
    if inventory.cuda_version:
        fields["cuda"] = ".".join(map(str, inventory.cuda_version))
    return fields


def passing(fields: Mapping[str, Any]) -> Hashable:
    """What of ``driver_facts`` passes by itself: links of ports, and which devices are too hot."""
    gpus = convert(fields.get("gpus", ()), tuple[Gpu, ...], strict=False)
    return tuple((gpu.uuid, gpu.ports_down, gpu.hot) for gpu in gpus)


def _refused(error: UserError) -> dict[str, Any]:
    fault = error.fault if isinstance(error, HwError) else DriverFault.OTHER
    return {"nvmlError": error.what, "nvmlFault": fault}


def _driver_root(paths: MountedPaths) -> Path:
    """The driver container's tree where there is one, else the host's."""
    inside = names.DRIVER_INSTALL_DIR
    return paths.local(inside) if _names(paths, f"{inside}/usr/lib*/**/libnvidia-ml.so.*") else paths.local("/")


def kernel_log(paths: MountedPaths, device: Path | None = None, *, every: bool = True) -> list[str]:
    """The kernel's messages: ``/dev/kmsg`` from the oldest that it has, else a log file. Raises OSError when neither.

    Not ``every``: the last of those that matter to accelerators.
    """
    try:
        return _lines(_kmsg(str(device or paths.local(names.KERNEL_LOG))), every=every)
    except OSError:
        for path in ("/var/log/dmesg", "/var/log/kern.log", "/var/log/messages"):
            data = read_some(paths.local(path), MAX_LOG)
            if data:
                return _lines(iter(data.decode("utf-8", "replace").splitlines()), every=every)
        raise


def _lines(records: Iterator[str], *, every: bool) -> list[str]:
    return list(records) if every else list(deque(filter(host_facts.matters, records), maxlen=MAX_LINES))


def _kmsg(path: str) -> Iterator[str]:
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    left = MAX_LOG
    try:
        if stat.S_ISREG(os.fstat(descriptor).st_mode):  # a simulated driver's
            yield from read_some(Path(path), MAX_LOG).decode("utf-8", "replace").splitlines()
            return
        while left > 0:
            try:
                record = os.read(descriptor, 8192)
            except OSError as error:
                if error.errno == errno.EPIPE:  # overwritten while it was read: go on with what is there
                    continue
                if error.errno == errno.EAGAIN:
                    return
                raise
            if not record:
                return
            left -= len(record)
            yield record.decode("utf-8", "replace").split("\n", 1)[0]
    finally:
        os.close(descriptor)


def _text(paths: MountedPaths, path: str, limit: int = MAX_FILE) -> str:
    try:
        return read_some(paths.local(path), limit).decode("utf-8", "replace")
    except (OSError, UserError):
        return ""


def _names(paths: MountedPaths, pattern: str) -> tuple[str, ...]:
    """Existing paths; ``**`` is one or two folders."""
    if "/**/" not in pattern:
        return paths.glob(pattern)
    return tuple(
        dict.fromkeys(name for deep in ("/", "/*/", "/*/*/") for name in paths.glob(pattern.replace("/**/", deep)))
    )


def _file(paths: MountedPaths, path: str) -> File:
    try:
        local = paths.local(path)
        data = read_some(local, MAX_FILE)
        return File(text=cleaned(data.decode("utf-8", "replace")), modified=local.stat().st_mtime)
    except (OSError, UserError) as error:
        return File(problem=str(error).split("\n")[0])


def _boot_time(paths: MountedPaths) -> float | None:
    hit = re.search(r"^btime (\d+)", _text(paths, "/proc/stat", 1 << 20), re.MULTILINE)
    return float(hit[1]) if hit else None


def _secure_boot(paths: MountedPaths) -> bool | None:
    """None on machines that have no such thing."""
    found = paths.glob("/sys/firmware/efi/efivars/SecureBoot-*")
    if not found:
        return None
    data = paths.local(found[0]).read_bytes()[:8]
    return len(data) >= 5 and data[4] == 1


def _dkms(paths: MountedPaths) -> tuple[str, ...] | None:
    if not paths.exists("/var/lib/dkms"):
        return None
    found = [path for name in _BUILT for path in paths.glob(f"/var/lib/dkms/{name}*/*/*/*/module")]
    parts = [path.split("/") for path in found]
    return tuple(f"{row[4]}/{row[5]}/{row[6]}" for row in parts if len(row) > 7)


def _modules(paths: MountedPaths) -> dict[str, int]:
    """Those of ``/proc/modules``, else of sysfs; and drivers that are built into the kernel. Raises OSError."""
    try:
        text = paths.local("/proc/modules").read_text(errors="replace")
    except FileNotFoundError:
        if not paths.exists("/sys/module"):
            raise
        loaded = [path.split("/")[3] for path in paths.glob("/sys/module/*/initstate")]
        found = {name: int(_text(paths, f"/sys/module/{name}/refcnt", 32).strip() or 0) for name in loaded}
    else:
        rows = (line.split() for line in text.splitlines())
        found = {row[0]: int(row[2]) for row in rows if len(row) > 2 and row[2].lstrip("-").isdecimal()}
    return {name: 0 for name in _DRIVERS if paths.exists(f"/sys/module/{name}/drivers")} | found


def _blacklist(paths: MountedPaths) -> dict[str, str]:
    """By ``modprobe.d`` (lines ``blacklist``, and ``install`` of a command that does nothing) and the command line."""
    barred: dict[str, str] = {}
    for folder in ("/etc/modprobe.d", "/run/modprobe.d", "/lib/modprobe.d", "/usr/lib/modprobe.d"):
        for path in paths.glob(f"{folder}/*.conf"):
            for line in _BARRED.finditer(_text(paths, path)):
                if not line["command"].strip() or _REFUSES.match(line["command"]):
                    barred.setdefault(line["module"].replace("-", "_"), path)
    for boot in _BARRED_AT_BOOT.finditer(_text(paths, "/proc/cmdline")):
        for name in boot["modules"].split(","):
            barred.setdefault(name.replace("-", "_"), "/proc/cmdline")
    return {name: barred[name] for name in _DRIVERS if name in barred}


def has_accelerator(bus: Path) -> bool:
    """Whether there is one that is looked at, on a ``pci.DEVICES`` folder."""
    try:
        return any(one.pci_class[:2] in _CLASSES and one.vendor in VENDORS for one in pci.functions(bus))
    except OSError:
        return False


def _pci(paths: MountedPaths) -> Iterator[PciDevice]:
    for device in pci.functions(paths.local(f"/{pci.DEVICES}")):
        if device.vendor not in VENDORS or (device.vendor == "8086" and device.pci_class[:2] not in _CLASSES):
            continue
        driver = device.folder / "driver"
        yield PciDevice(
            address=device.address, vendor=device.vendor, device=device.hex("device"), pci_class=device.pci_class,
            driver=os.path.basename(os.readlink(driver)) if driver.exists() else "",
            numa_node=device.number("numa_node"), lost=read_some(device.folder / "config", 4) == b"\xff\xff\xff\xff",
            link_width=device.number("current_link_width"), link_width_max=device.number("max_link_width"),
            link_speed=device.text("current_link_speed"), link_speed_max=device.text("max_link_speed"),
            iommu=device.text("iommu_group/type"),
        )  # fmt: skip


def _access(paths: MountedPaths) -> tuple[DeviceAccess, ...]:
    """Each group and mode that files of a pattern have, once."""
    groups: dict[int, str] = {}
    for row in (line.split(":") for line in _text(paths, "/etc/group").splitlines()):
        if len(row) > 2 and row[2].isdecimal():
            groups.setdefault(int(row[2]), row[0])
    found: dict[DeviceAccess, None] = {}
    for pattern in _OPENED:
        for path in paths.glob(pattern):
            try:
                about = paths.local(path).stat()
            except (OSError, UserError):
                continue
            gid, mode = about.st_gid, f"{stat.S_IMODE(about.st_mode):04o}"
            found[DeviceAccess(path=pattern, gid=gid, group=groups.get(gid, ""), mode=mode)] = None
    return tuple(found)


def _processes(paths: MountedPaths) -> Iterator[HostProcess]:
    """Processes that hold a device file of an accelerator, or hang in the kernel and belong to a driver."""
    proc = paths.local("/proc")
    for name in os.listdir(proc):
        if not name.isdecimal():
            continue
        words = pci.line(proc / name / "stat").rpartition(")")
        state = words[2].split()[:1]
        held: set[str] = set()
        try:
            for descriptor in os.listdir(proc / name / "fd"):
                target = os.readlink(proc / name / "fd" / descriptor)
                if target.startswith(("/dev/nvidia", "/dev/kfd", "/dev/accel/")):
                    held.add(target)
        except OSError:
            pass
        title = words[0].partition("(")[2]
        if held or (state == ["D"] and title.startswith("nvidia")):
            yield HostProcess(pid=int(name), name=title, state="".join(state), holds=tuple(sorted(held)))
