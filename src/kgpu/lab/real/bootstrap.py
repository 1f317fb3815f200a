"""The steps of bringing a lab up that make files and objects: hardware, keys, configs, images, cluster objects."""

from __future__ import annotations

import ctypes
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Final

from kgpu.base.errors import LabError
from kgpu.base.files import write_atomic
from kgpu.formats.names import CDI_STATIC_DIR, DRIVER_INSTALL_DIR, SIMULATED_MACHINE
from kgpu.lab import common
from kgpu.lab.real import configs, images, namespaces
from kgpu.lab.real.model import KERNEL_TUNABLES, NODE_DIRS, LabNetwork, LabPaths, LabSpec, node_dir

if TYPE_CHECKING:
    from kgpu.lab.real.cluster import RealLab

NVIDIA_RUN: Final = "/run/nvidia"
_OVERLAY_MAGIC: Final = 0x794C7630
_SOCKET_S: Final = 30.0


def create_hardware(spec: LabSpec, paths: LabPaths) -> None:
    """The simulated driver root; an existing one is kept."""
    if (paths.hw / "state").exists():
        return
    from kgpu.hw.simulator.create import create_root

    create_root(spec.profile, paths.hw, gpus=spec.gpus)


def check_hardware(spec: LabSpec) -> None:
    """Raises ConfigError when no such hardware can be simulated; makes nothing."""
    from kgpu.hw.simulator import machines

    machines.load(spec.profile, gpus=spec.gpus)


def write_files(spec: LabSpec, paths: LabPaths, network: LabNetwork, bin_dir: Path) -> None:
    """Keys, certificates, configs and the node's empty folders."""
    for folder in (paths.pki, paths.config, paths.logs, paths.images, *(node_dir(paths, name) for name in NODE_DIRS)):
        folder.mkdir(parents=True, exist_ok=True)
    paths.pki.chmod(0o700)
    done = subprocess.run(
        [str(bin_dir / "lab-pki"), str(paths.pki)],
        input=json.dumps(configs.pki_requests(network)), capture_output=True, text=True, check=False,
    )  # fmt: skip
    if done.returncode != 0:
        raise LabError(f"making certificates failed: {done.stderr.strip()}", "keys and certificates", "check the disk")
    for path, text in configs.files(
        spec, paths, network, bin_dir=str(bin_dir), snapshotter=snapshotter(paths.root)
    ).items():
        write_atomic(path, text, mode=0o600 if path.endswith("kubeconfig") else 0o644)
    for target, value in KERNEL_TUNABLES.items():
        write_atomic(paths.config / "tunables" / Path(target).name, f"{value}\n")


def snapshotter(folder: Path) -> str:
    """overlayfs, or the copying one where the lab's folder is itself on an overlay and can't hold another."""
    libc = ctypes.CDLL(None, use_errno=True)
    buffer = ctypes.create_string_buffer(256)
    if libc.statfs(os.fsencode(folder), buffer) == 0 and ctypes.c_long.from_buffer(buffer).value == _OVERLAY_MAGIC:
        return "native"
    return "overlayfs"


def import_images(lab: RealLab) -> None:
    """Make the image archives and load them into the node's containerd."""
    programs = (lab.hw_root / "usr/share/kgpu").glob("*")
    samples = {f"artifact:{program.name}": program.read_bytes() for program in programs if program.is_file()}
    archives = images.write_archives(lab.paths.images, samples)
    ctr = Path(lab.state.bin_dir, "ctr")
    lab._wait(lambda: _containerd_answers(lab, ctr), _SOCKET_S, "containerd to answer", "containerd")
    for archive in archives:
        import_archive(lab, archive)
        archive.unlink()


def import_archive(lab: RealLab, archive: Path) -> None:
    """Load an OCI archive into the node's containerd, for pods to use. Raises LabError."""
    ctr = Path(lab.state.bin_dir, "ctr")
    command = [str(ctr), "-a", configs.CONTAINERD_SOCKET, "-n", "k8s.io", "images", "import"]
    command += ["--snapshotter", snapshotter(lab.paths.root), "--local", str(archive)]
    done = subprocess.run(lab.in_node(command), capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise LabError(
            f"importing {archive.name} failed: {done.stderr.strip()}",
            "containerd to take the image",
            f"look into {lab.paths.logs}/containerd.log",
        )


def _containerd_answers(lab: RealLab, ctr: Path) -> bool:
    command = [str(ctr), "-a", configs.CONTAINERD_SOCKET, "version"]
    return subprocess.run(lab.in_node(command), capture_output=True, check=False).returncode == 0


def apply_objects(lab: RealLab) -> None:
    """What the lab itself puts into the cluster: the agent's rights and its configurations."""
    lab.kubectl(*common.KUBECTL_APPLY)


def write_cdi_spec(lab: RealLab) -> None:
    """The spec of the node's simulated GPUs under NVIDIA's vendor and class; other vendors' nodes have none."""
    from kgpu.hw.simulator.others import simulation_of

    if simulation_of(lab.hw_root) is not None:
        return
    out = node_dir(lab.paths, CDI_STATIC_DIR) / "nvidia.yaml"
    command = [sys.executable, "-m", "kgpu", "cdi", "generate", "--driver-root", str(lab.hw_root), "--output", str(out)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=namespaces.child_env())
    if done.returncode != 0:
        raise LabError(
            f"kgpu cdi generate failed: {done.stderr.strip()}", "a CDI spec of the simulated GPUs", "see its message"
        )


def show_machine(lab: RealLab) -> None:
    """Make the node one whose driver comes in a container, until it ends: its ``/run/nvidia`` is the simulated
    machine's, which is to be seen in it. Raises LabError, HwError.
    """
    from kgpu.hw.simulator import container_driver

    container_driver.remove_from_host(lab.hw_root)
    machine = lab.hw_root / SIMULATED_MACHINE.lstrip("/")
    machine.mkdir(parents=True, exist_ok=True)
    script = 'mkdir -p "$2" && mount --bind "$0" "$1" && mount --rbind "$0/run/nvidia" "$2"'
    command = lab.in_node(["sh", "-c", script, str(lab.hw_root), str(machine), NVIDIA_RUN])
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise LabError(
            f"the machine can't be mounted in the node: {done.stderr.strip()}", "a node that is up",
            "look into the keeper's log",
        )  # fmt: skip


def import_driver(lab: RealLab, *versions: str, system: str) -> None:
    """Load driver images of these releases into the node, for the operating system ``system`` (``ubuntu24.04``)."""
    from kgpu.lab.real.kgpu_image import driver_images

    archive = lab.paths.images / "driver.tar"
    write_atomic(
        archive, images.oci_archive(*driver_images(versions, system, lab.progress), architecture=images.architecture())
    )
    import_archive(lab, archive)
    archive.unlink()


def show_driver(lab: RealLab) -> None:
    """Have the simulated driver also where driver containers install theirs, in the node alone and until it ends.

    Simulated nodes have it there, so that one ClusterPolicy fits them and this one. Raises LabError.
    """
    script = 'mountpoint -q "$1" || { mkdir -p "$1" && mount --rbind "$0" "$1"; }'
    command = lab.in_node(["sh", "-c", script, str(lab.hw_root), DRIVER_INSTALL_DIR])
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise LabError(
            f"the driver can't be mounted in the node: {done.stderr.strip()}", "a node that is up",
            "look into the keeper's log",
        )  # fmt: skip
