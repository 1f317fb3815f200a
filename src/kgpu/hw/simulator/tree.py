"""The files of a simulated driver root besides the state: device nodes, procfs, sysfs, DMI, firmware.

Every file that programs read to find an NVIDIA driver is here with the content the real one has, and only the GPUs of
the profile are in it. Device nodes are character devices where the user may make them; otherwise empty plain files
stand in. MIG capability nodes of every possible instance exist from the start, as their numbers do on a real system
(``mig-minors`` lists them all), so instances that any process makes later are usable at once.
"""

from __future__ import annotations

import os
import platform
import stat
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from kgpu.hw.simulator import kernel_log
from kgpu.hw.simulator.fill import SWITCH_DEVICE_IDS, TURING, cpus, split_bus
from kgpu.hw.simulator.profiles import ARCHITECTURES, Profile
from kgpu.hw.simulator.topology import HOSTBRIDGE

MAJORS: Final[Mapping[str, int]] = {
    "nvidia": 195,
    "nvidia-nvswitch": 509,
    "nvidia-uvm": 510,
    "nvidia-caps": 511,
    "nvidia-caps-imex-channels": 512,
}
CAPS_CONFIG, CAPS_MONITOR = 1, 2
ASIDE: Final = ".unloaded"
"""The folder, under the root, of files that are there only while the driver's modules are loaded."""
MAX_GI, MAX_CI = 15, 8  # per GPU, and per GPU instance, in the numbering of capability minors
KERNEL_BUILD: Final = "Release Build  (root@kgpu)"


def gi_minor(gpu: int, gi: int) -> int:
    """Minor of a GPU instance's capability node (``gpu`` is the GPU's minor), as in ``mig-minors``."""
    return 3 + gpu * MAX_GI * (MAX_CI + 1) + gi * (MAX_CI + 1)


def ci_minor(gpu: int, gi: int, ci: int) -> int:
    """Minor of a compute instance's capability node."""
    return gi_minor(gpu, gi) + 1 + ci


def library_dir(root: Path) -> Path:
    """Where the libraries lie under ``root``: the multiarch folder of this machine."""
    machine = platform.machine()
    return root / "usr" / "lib" / f"{'aarch64' if machine in {'aarch64', 'arm64'} else 'x86_64'}-linux-gnu"


def build(root: Path, view: Any, profile: Profile) -> None:
    """Make every file under ``root`` for a state that is already filled. Raises OSError as the system gives it."""
    for path, number, mode in device_nodes(view, profile):
        make_node(f"{root}/dev/{path}", number, mode)
    write(f"{root}/{kernel_log.PATH}", "")
    for relative, content in [*_procfs(view, profile), *_misc(profile)]:
        write(f"{root}/{relative}", content)
    _pci_tree(root, profile)
    if any(ARCHITECTURES[gpu.model.architecture] >= TURING for gpu in profile.gpus):
        for name in ("gsp_ga10x.bin", "gsp_tu10x.bin"):
            write(f"{root}/lib/firmware/nvidia/{profile.driver.version}/{name}", "simulated GSP firmware\n")


def device_nodes(view: Any, profile: Profile) -> Iterator[tuple[str, tuple[int, int], int]]:
    """(path under dev, (major, minor), permission bits) of every node that the driver makes."""
    for index in range(view.gpu_count):
        minor = int(view.gpu[index].minor)
        yield f"nvidia{minor}", (MAJORS["nvidia"], minor), 0o666
    yield "nvidiactl", (MAJORS["nvidia"], 255), 0o666
    yield "nvidia-modeset", (MAJORS["nvidia"], 254), 0o666
    yield "nvidia-uvm", (MAJORS["nvidia-uvm"], 0), 0o666
    yield "nvidia-uvm-tools", (MAJORS["nvidia-uvm"], 1), 0o666
    capable = [int(view.gpu[i].minor) for i in range(view.gpu_count) if view.gpu[i].mig_capable]
    if capable:
        yield "nvidia-caps/nvidia-cap1", (MAJORS["nvidia-caps"], CAPS_CONFIG), 0o400
        yield "nvidia-caps/nvidia-cap2", (MAJORS["nvidia-caps"], CAPS_MONITOR), 0o444
    for gpu in capable:
        for number in range(gi_minor(gpu, 0), gi_minor(gpu, MAX_GI)):
            yield f"nvidia-caps/nvidia-cap{number}", (MAJORS["nvidia-caps"], number), 0o444
    for channel in range(profile.imex_channels):
        yield f"nvidia-caps-imex-channels/channel{channel}", (MAJORS["nvidia-caps-imex-channels"], channel), 0o666
    if profile.nvswitches:
        yield "nvidia-nvswitchctl", (MAJORS["nvidia-nvswitch"], 255), 0o666
    for number in range(len(profile.nvswitches)):
        yield f"nvidia-nvswitch{number}", (MAJORS["nvidia-nvswitch"], number), 0o666


def version_text(version: str, *, open_module: bool) -> str:
    """``/proc/driver/nvidia/version`` of a driver version; GPUs before Turing have no open kernel module."""
    machine = platform.machine()
    flavour = f"Open Kernel Module for {machine}" if open_module else f"{machine} Kernel Module"
    return (
        f"NVRM version: NVIDIA UNIX {flavour}  {version}  {KERNEL_BUILD}\n"
        "GCC version:  gcc version 12.3.0 (Ubuntu 12.3.0-1ubuntu1~22.04)\n"
    )


def change_driver_version(root: Path, old: str, new: str) -> None:
    """Let the files under ``root`` say driver ``new``: procfs, sysfs, firmware folder, library names and links."""
    version = root / "proc/driver/nvidia/version"
    if version.exists():
        version.write_text(version_text(new, open_module="Open Kernel" in version.read_text()))
    _rewrite(root / "sys/module/nvidia/version", f"{new}\n")
    for information in (root / "proc/driver/nvidia/gpus").glob("*/information"):
        _rewrite(information, information.read_text().replace(f"\t {old}\n", f"\t {new}\n"))
    firmware = root / "lib/firmware/nvidia"
    if (firmware / old).is_dir() and not (firmware / new).exists():
        (firmware / old).rename(firmware / new)
    for library in sorted(library_dir(root).glob(f"*.so.{old}")):
        renamed = library.with_name(library.name.removesuffix(old) + new)
        os.link(library, renamed)  # the old name stays until the links point at the new one
        for link in library.parent.iterdir():
            if link.is_symlink() and os.readlink(link) == library.name:
                symlink(link, renamed.name)
        library.unlink()


def symlink(link: Path, target: str) -> None:
    """Make or replace ``link`` atomically."""
    link.parent.mkdir(parents=True, exist_ok=True)
    temporary = link.with_name(f".{link.name}.new")
    temporary.unlink(missing_ok=True)
    temporary.symlink_to(target)
    temporary.replace(link)


def make_node(path: str, number: tuple[int, int], mode: int) -> None:
    def make() -> None:
        try:
            os.mknod(path, mode | stat.S_IFCHR, os.makedev(*number))
        except PermissionError:  # not root, or a container without CAP_MKNOD: a plain file marks the device as there
            os.close(os.open(path, os.O_CREAT | os.O_WRONLY, mode))

    _in_its_folder(path, make)
    os.chmod(path, mode)


def write(path: str, content: str | bytes) -> None:
    def make() -> None:
        with open(path, "wb", buffering=0) as file:
            file.write(content.encode() if isinstance(content, str) else content)

    _in_its_folder(path, make)


def _in_its_folder(path: str, make: Callable[[], None]) -> None:
    """Make a file. Most folders are there already, and a root has two thousand files."""
    try:
        make()
    except FileNotFoundError:
        os.makedirs(os.path.dirname(path), exist_ok=True)
        make()


def _rewrite(path: Path, content: str) -> None:
    if path.exists():
        path.write_text(content)


def _procfs(view: Any, profile: Profile) -> Iterator[tuple[str, str]]:
    version = profile.driver.version
    open_module = all(ARCHITECTURES[gpu.model.architecture] >= TURING for gpu in profile.gpus)
    yield "proc/driver/nvidia/version", version_text(version, open_module=open_module)
    yield (
        "proc/driver/nvidia/params",
        "ResmanDebugLevel: 4294967295\nModifyDeviceFiles: 1\nDeviceFileUID: 0\nDeviceFileGID: 0\nDeviceFileMode: 438\n",
    )
    devices = {"nvidia": 195, "nvidiactl": 195, "nvidia-modeset": 195, **MAJORS}
    lines = "".join(f"{major:3d} {name}\n" for name, major in sorted(devices.items(), key=lambda item: item[1]))
    yield "proc/devices", f"Character devices:\n  1 mem\n{lines}\nBlock devices:\n  8 sd\n"
    minors = [f"config {CAPS_CONFIG}", f"monitor {CAPS_MONITOR}"]
    yield from (_capability("mig/config", CAPS_CONFIG, 256), _capability("mig/monitor", CAPS_MONITOR, 292))
    for index in range(view.gpu_count):
        gpu = view.gpu[index]
        minor, bus = int(gpu.minor), profile.gpus[index].bus
        information = (
            f"Model: \t\t {gpu.name.decode()}\nIRQ:   \t\t {64 + index}\nGPU UUID: \t {gpu.uuid.decode()}\n"
            f"Video BIOS: \t {gpu.vbios.decode()}\nBus Type: \t PCIe\nDMA Size: \t 47 bits\n"
            f"DMA Mask: \t 0x7fffffffffff\nBus Location: \t {bus}\nDevice Minor: \t {minor}\n"
            f"GPU Firmware: \t {version if gpu.gsp_mode else 'N/A'}\nGPU Excluded:\t No\n"
        )
        yield f"proc/driver/nvidia/gpus/{bus}/information", information
        for gi in range(MAX_GI):
            minors.append(f"gpu{minor}/gi{gi}/access {gi_minor(minor, gi)}")
            minors += [f"gpu{minor}/gi{gi}/ci{ci}/access {ci_minor(minor, gi, ci)}" for ci in range(MAX_CI)]
            if gpu.mig_capable:
                folder = f"gpu{minor}/mig/gi{gi}"
                yield _capability(f"{folder}/access", gi_minor(minor, gi), 292)
                for ci in range(MAX_CI):
                    yield _capability(f"{folder}/ci{ci}/access", ci_minor(minor, gi, ci), 292)
    yield "proc/driver/nvidia-caps/mig-minors", "\n".join(minors) + "\n"


def _capability(path: str, minor: int, mode: int) -> tuple[str, str]:
    text = f"DeviceFileMinor: {minor}\nDeviceFileMode: {mode}\nDeviceFileModify: 1\n"
    return f"proc/driver/nvidia/capabilities/{path}", text


def _misc(profile: Profile) -> Iterator[tuple[str, str]]:
    yield "sys/class/dmi/id/product_name", f"{profile.machine.product}\n"
    yield "sys/class/dmi/id/sys_vendor", f"{profile.machine.vendor}\n"
    yield "sys/module/nvidia/version", f"{profile.driver.version}\n"
    for module in ("nvidia", "nvidia_uvm", "nvidia_modeset"):
        yield f"sys/module/{module}/initstate", "live\n"
        yield f"sys/module/{module}/refcnt", "0\n"
    for node, text in enumerate(profile.topology.cpus):
        yield f"sys/devices/system/node/node{node}/cpulist", f"{text}\n"


def _pci_tree(root: Path, profile: Profile) -> None:
    """``sys/devices/pci<root>/<port>/<function>`` with links in ``sys/bus/pci/devices``, as the kernel lays it out."""
    functions = [
        (gpu.bus, gpu.model.pci.device, gpu.model.pci.subsystem, gpu.model.pci.pci_class, profile.topology.numa[i])
        for i, gpu in enumerate(profile.gpus)
    ]
    generations = [gpu.model.nvlink.version for gpu in profile.gpus if gpu.model.nvlink]
    switch_id = SWITCH_DEVICE_IDS.get(max(generations, default=0), 0)
    functions += [(bus, switch_id, switch_id, 0x068000, -1) for bus in profile.nvswitches]
    roots = _root_complexes(profile)
    for number, (bus, device, subsystem, pci_class, numa) in enumerate(functions):
        parent = roots.get(bus, bus.rsplit(":", 1)[0])
        folder = f"devices/pci{parent}/{parent}:01.0/{bus}"
        driver = "nvidia" if number < len(profile.gpus) else "nvidia-nvswitch"
        gpu = profile.gpus[number].model.pci if number < len(profile.gpus) else profile.gpus[0].model.pci
        local = profile.topology.cpus[numa] if 0 <= numa < len(profile.topology.cpus) else ""
        speed = {1: "2.5", 2: "5.0", 3: "8.0", 4: "16.0", 5: "32.0", 6: "64.0", 7: "128.0"}[gpu.gen]
        memory = profile.gpus[number].model.memory if number < len(profile.gpus) else None
        files = {
            "vendor": f"0x{device & 0xFFFF:04x}",
            "device": f"0x{device >> 16:04x}",
            "subsystem_vendor": f"0x{subsystem & 0xFFFF:04x}",
            "subsystem_device": f"0x{subsystem >> 16:04x}",
            "class": f"0x{pci_class:06x}",
            "revision": "0xa1",
            "numa_node": str(numa),
            "local_cpulist": local,
            "local_cpus": _cpu_mask(local),
            "current_link_speed": f"{speed} GT/s PCIe",
            "max_link_speed": f"{speed} GT/s PCIe",
            "current_link_width": str(gpu.width),
            "max_link_width": str(gpu.width),
            "enable": "1",
            "irq": str(64 + number),
            "resource": _bars(number, memory.bar1_mib if memory else 32),
            "uevent": f"DRIVER={driver}\nPCI_CLASS={pci_class:X}\nPCI_ID={device & 0xFFFF:04X}:{device >> 16:04X}\n"
            f"PCI_SUBSYS_ID={subsystem & 0xFFFF:04X}:{subsystem >> 16:04X}\nPCI_SLOT_NAME={bus}",
        }
        for name, text in files.items():
            write(f"{root}/sys/{folder}/{name}", f"{text}\n")
        write(f"{root}/sys/{folder}/config", _config_space(device, subsystem, pci_class))
        symlink(root / "sys/bus/pci/devices" / bus, f"../../../{folder}")
        symlink(root / "sys/bus/pci/drivers" / driver / bus, f"../../../../{folder}")
        symlink(root / "sys" / folder / "driver", f"../../../../bus/pci/drivers/{driver}")


def _root_complexes(profile: Profile) -> dict[str, str]:
    """``domain:bus`` of the host bridge above each GPU: GPUs at HOSTBRIDGE or nearer share one."""
    bridges: dict[str, str] = {}
    for i, gpu in enumerate(profile.gpus):
        near = (j for j in range(i) if profile.topology.levels[i][j] <= HOSTBRIDGE)
        first = next(near, None)
        if first is not None:
            bridges[gpu.bus] = bridges[profile.gpus[first].bus]
            continue
        domain, bus, _, _ = split_bus(gpu.bus)
        number = max(0, bus - 1)
        while f"{domain:04x}:{number:02x}" in bridges.values():
            number = (number + 1) % 256
        bridges[gpu.bus] = f"{domain:04x}:{number:02x}"
    return bridges


def _cpu_mask(text: str) -> str:
    mask = sum(1 << cpu for cpu in cpus(text) if cpu < 1024)
    words = [f"{mask >> shift & 0xFFFFFFFF:08x}" for shift in range(0, max(32, mask.bit_length()), 32)]
    return ",".join(reversed(words))


def _bars(number: int, bar1_mib: int) -> str:
    """The ``resource`` file: BAR0 16 MiB, BAR1 64-bit prefetchable, BAR3 32 MiB, rom; start, end, flags."""
    low, high = 0xC0000000 + (number << 25), (number + 1) << 44
    bar1 = bar1_mib << 20
    rows = [(low, low + (16 << 20) - 1, 0x40200), (high, high + bar1 - 1, 0x14220C), (0, 0, 0)]
    rows += [(high + bar1, high + bar1 + (32 << 20) - 1, 0x14220C)] + [(0, 0, 0)] * 9
    return "\n".join(f"0x{start:016x} 0x{end:016x} 0x{flags:016x}" for start, end, flags in rows)


def _config_space(device: int, subsystem: int, pci_class: int) -> bytes:
    """256 bytes: type 0 header and the power management, MSI and PCI Express capabilities; no vGPU capability."""
    space = bytearray(256)
    space[0x00:0x04] = device.to_bytes(4, "little")
    space[0x04:0x08] = bytes((0x06, 0x04, 0x10, 0x00))  # memory and bus master on; capabilities list
    space[0x08] = 0xA1
    space[0x09:0x0C] = pci_class.to_bytes(3, "little")
    space[0x2C:0x30] = subsystem.to_bytes(4, "little")
    space[0x34] = 0x60
    space[0x60:0x62] = bytes((0x01, 0x68))  # power management
    space[0x68:0x6A] = bytes((0x05, 0x78))  # MSI
    space[0x78:0x7A] = bytes((0x10, 0x00))  # PCI Express, last
    return bytes(space)
