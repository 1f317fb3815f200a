"""What only the node itself can tell: files of its system and its kernel's log, read by ``kgpu doctor --host`` there."""

from __future__ import annotations

from tests.doctor.lab.breaking import Break, HostFile, KernelLine
from tests.doctor.lab.labs import FIRST

CONTAINERD = "etc/containerd/config.toml"
DROP_IN = "etc/containerd/conf.d/99-nvidia.toml"


def here(what: str, first: str, names: str, *steps: HostFile | KernelLine) -> Break:
    return Break(what=what, first=first, names=names, steps=steps, host=FIRST)


BREAKS = (
    here(
        "an open module on a card that it does not support", "KRN-07", "open",
        KernelLine(FIRST, "NVRM: The NVIDIA GPU 0000:07:00.0 (PCI ID: 10de:1db6) installed in this system is not supported by"
                          " open nvidia.ko because it does not include the required GPU System Processor (GSP)."),
    ),
    here("a card without its power cable", "KRN-10", "power",
         KernelLine(FIRST, "NVRM: GPU 0000:18:00.0: GPU does not have the necessary power cables connected.")),
    here("another version of the module than of the libraries", "DRV-06", "570.86.15",
         HostFile(FIRST, "proc/driver/nvidia/version", "NVRM version: NVIDIA UNIX x86_64 Kernel Module  570.86.15  Tue Jan 14 2025\n")),
    here("no /dev/nvidia-uvm", "DRV-19", "nvidia-uvm", HostFile(FIRST, "dev/nvidia-uvm", None), HostFile(FIRST, "dev/nvidia-uvm-tools", None)),
    here("a drop-in of a later version than containerd's file", "RUN-07", "99-nvidia.toml",
         HostFile(FIRST, CONTAINERD, 'version = 2\nimports = ["/etc/containerd/conf.d/*.toml"]\n'),
         HostFile(FIRST, DROP_IN, "version = 4\n")),
    here("a runtime without its type", "RUN-08", "99-nvidia.toml",
         HostFile(FIRST, CONTAINERD, 'version = 2\nimports = ["/etc/containerd/conf.d/*.toml"]\n'),
         HostFile(FIRST, DROP_IN, 'version = 2\n[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.nvidia]\n'
                                  '[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.nvidia.options]\n  BinaryName = "/usr/bin/nvidia-container-runtime"\n')),
)  # fmt: skip
