"""Driver roots as real systems have them: one function a layout, each a tree of small files."""

from __future__ import annotations

from pathlib import Path

from tests.host.tree import elf, library, link, touch, write

VERSION = "570.133.20"
NIX_DRIVER = "/nix/store/0kz3-nvidia-x11-570.133.20-6.12.20"
NIX_BINARIES = "/nix/store/7xq1-nvidia-x11-570.133.20-6.12.20-bin"
NIX_LOADER = "/nix/store/5m9a-glibc-2.40-66/lib"
LOADER = "/lib64/ld-linux-x86-64.so.2"
STEMS = ("libcuda", "libnvidia-ml", "libnvidia-ptxjitcompiler", "libnvidia-encode")


def nodes(root: Path) -> None:
    touch(root, "/dev/nvidiactl", "/dev/nvidia-uvm", "/dev/nvidia-uvm-tools", "/dev/nvidia-modeset", "/dev/nvidia0")


def libraries(root: Path, folder: str) -> None:
    for stem in STEMS:
        library(root, folder, stem, VERSION)
    library(root, f"{folder}/vdpau", "libvdpau_nvidia", VERSION)
    name = f"libnvidia-glcore.so.{VERSION}"  # libraries of the driver alone have no other name
    library(root, folder, "libnvidia-glcore", VERSION, soname=name)


def programs(root: Path, folder: str, loader: str = LOADER) -> None:
    for name in ("nvidia-smi", "nvidia-cuda-mps-control"):
        write(root, f"{folder}/{name}", elf(interpreter=loader))


def ubuntu(root: Path) -> Path:
    """Ubuntu's packages; merged /usr."""
    libraries(root, "/usr/lib/x86_64-linux-gnu")
    programs(root, "/usr/bin")
    touch(root, "/etc/debian_version", f"/usr/lib/firmware/nvidia/{VERSION}/gsp_ga10x.bin")
    for name in ("lib", "bin", "sbin"):
        link(root, f"/{name}", f"usr/{name}")
    return root


def debian(root: Path) -> Path:
    """Debian's alternatives: every name in the library folder is a link by way of /etc, absolute."""
    place, current = "/usr/lib/x86_64-linux-gnu", "/usr/lib/x86_64-linux-gnu/nvidia/current"
    libraries(root, current)
    for stem in STEMS:
        (root / f"{current.lstrip('/')}/{stem}.so.1").unlink()
        link(root, f"{place}/{stem}.so.1", f"/etc/alternatives/nvidia--{stem}.so.1-x86_64-linux-gnu")
        link(root, f"{place}/{stem}.so", f"/etc/alternatives/nvidia--{stem}.so.1-x86_64-linux-gnu")
        link(root, f"/etc/alternatives/nvidia--{stem}.so.1-x86_64-linux-gnu", f"{current}/{stem}.so.{VERSION}")
    programs(root, "/usr/lib/nvidia/current")
    link(root, "/usr/bin/nvidia-smi", "/etc/alternatives/nvidia--nvidia-smi")
    link(root, "/etc/alternatives/nvidia--nvidia-smi", "/usr/lib/nvidia/current/nvidia-smi")
    touch(root, "/etc/debian_version", f"/lib/firmware/nvidia/{VERSION}/gsp_ga10x.bin")
    return root


def rhel(root: Path) -> Path:
    """RHEL with 32-bit libraries of the same version, which /usr/lib has."""
    libraries(root, "/usr/lib64")
    for stem in STEMS:
        library(root, "/usr/lib", stem, VERSION, bits=32)
    programs(root, "/usr/bin")
    link(root, "/lib64", "usr/lib64")
    link(root, "/lib", "usr/lib")
    touch(root, "/etc/redhat-release", f"/usr/lib/firmware/nvidia/{VERSION}/gsp_ga10x.bin")
    return root


def driver_container(root: Path) -> Path:
    """What the operator's driver container mounts at /run/nvidia/driver: Ubuntu without a mark, links absolute."""
    libraries(root, "/usr/lib/x86_64-linux-gnu")
    (root / "usr/lib/x86_64-linux-gnu/libcuda.so.1").unlink()
    link(root, "/usr/lib/x86_64-linux-gnu/libcuda.so.1", f"/usr/lib/x86_64-linux-gnu/libcuda.so.{VERSION}")
    programs(root, "/usr/bin")
    link(root, "/lib", "/usr/lib")
    touch(root, f"/usr/lib/firmware/nvidia/{VERSION}/gsp_ga10x.bin", "/run/nvidia-persistenced/socket")
    return root


def nixos(root: Path) -> Path:
    """NixOS: /run/opengl-driver is a link to a folder of links, programs name a loader in the store."""
    graphics = "/nix/store/1b2c-graphics-drivers"
    libraries(root, f"{NIX_DRIVER}/lib")
    link(root, "/run/opengl-driver", graphics)
    for stem in (*STEMS, "libnvidia-glcore"):
        link(root, f"{graphics}/lib/{stem}.so.{VERSION}", f"{NIX_DRIVER}/lib/{stem}.so.{VERSION}")
        link(root, f"{graphics}/lib/{stem}.so.1", f"{NIX_DRIVER}/lib/{stem}.so.1")
    link(root, f"{graphics}/lib/vdpau", f"{NIX_DRIVER}/lib/vdpau")
    touch(root, "/etc/NIXOS", f"{NIX_LOADER}/ld-linux-x86-64.so.2")
    programs(root, f"{NIX_BINARIES}/bin", f"{NIX_LOADER}/ld-linux-x86-64.so.2")
    link(root, "/run/current-system/sw/bin/nvidia-smi", f"{NIX_BINARIES}/bin/nvidia-smi")
    touch(root, f"/run/current-system/firmware/nvidia/{VERSION}/gsp_ga10x.bin")
    return root


def fedora_coreos(root: Path) -> Path:
    """Fedora CoreOS: /usr of a commit, /usr/local and /opt on /var, everything at / a link."""
    libraries(root, "/usr/lib64")
    programs(root, "/usr/bin")
    for name, target in (("lib64", "usr/lib64"), ("bin", "usr/bin"), ("ostree", "sysroot/ostree"), ("opt", "var/opt")):
        link(root, f"/{name}", target)
    link(root, "/usr/local", "../var/usrlocal")
    touch(root, "/sysroot/ostree/repo/config", f"/usr/lib/firmware/nvidia/{VERSION}/gsp_ga10x.bin")
    touch(root, "/etc/fedora-release", "/var/usrlocal/bin/other")
    return root


def talos(root: Path) -> Path:
    """Talos: musl's own root, the driver beside a glibc of its own."""
    libraries(root, "/usr/local/glibc/usr/lib")
    link(root, "/usr/local/glibc/lib", "usr/lib")
    programs(root, "/usr/local/bin")
    link(root, "/lib", "/usr/lib")
    touch(root, "/usr/lib/libc.so", f"/usr/lib/firmware/nvidia/{VERSION}/gsp_ga10x.bin")
    return root


def talos_before_glibc(root: Path) -> Path:
    """Talos as it was, with the libraries in /usr/local/lib."""
    libraries(root, "/usr/local/lib")
    programs(root, "/usr/local/bin")
    touch(root, "/usr/share/talos/x", f"/lib/firmware/nvidia/{VERSION}/gsp_ga10x.bin")
    return root


def cos(root: Path) -> Path:
    """Container-Optimized OS as GKE sets it up: all in a folder of the kubelet's, Vulkan's files at its top."""
    place = "/home/kubernetes/bin/nvidia"
    libraries(root, f"{place}/lib64")
    programs(root, f"{place}/bin")
    touch(root, f"{place}/firmware/nvidia/{VERSION}/gsp_ga10x.bin", f"{place}/vulkan/icd.d/nvidia_icd.json")
    return root


def bottlerocket(root: Path) -> Path:
    """Bottlerocket: everything below the system's own triplet."""
    place = "/x86_64-bottlerocket-linux-gnu/sys-root/usr"
    libraries(root, f"{place}/lib/nvidia/tesla")
    programs(root, f"{place}/libexec/nvidia/tesla/bin")
    touch(root, f"/lib/firmware/nvidia/{VERSION}/gsp_ga10x.bin")
    return root


def arch(root: Path) -> Path:
    """Arch: one folder for everything, lib64 a link to it."""
    libraries(root, "/usr/lib")
    programs(root, "/usr/bin")
    for name, target in (("/usr/lib64", "lib"), ("/lib64", "usr/lib"), ("/lib", "usr/lib")):
        link(root, name, target)
    touch(root, f"/usr/lib/firmware/nvidia/{VERSION}/gsp_ga10x.bin")
    return root


LAYOUTS = {
    ubuntu: "Debian",
    debian: "Debian",
    rhel: "RHEL",
    driver_container: "Debian",
    nixos: "NixOS",
    fedora_coreos: "Fedora CoreOS",
    talos: "Talos",
    talos_before_glibc: "Talos",
    cos: "Container-Optimized OS",
    bottlerocket: "Bottlerocket",
    arch: "",
}
