"""The names under which kgpu's one program is found in its image, and the words of its command line behind each.

NVIDIA's charts and manifests start their programs by bare name or from ``/usr/bin``; the image has both.
"""

from __future__ import annotations

from typing import Final

PROGRAM: Final = "kgpu"
ENTRYPOINT: Final = "kgpu-entrypoint"
"""What the image starts where a manifest names no command. With a command of kgpu's it is ``kgpu``; the replaced images
start their own program then, so that with flags alone, or nothing, it is the program that the manifest is for.
"""

# A link of that name to kgpu behaves as that program, with these words put in front.
PROGRAMS: Final[dict[str, tuple[str, ...]]] = {
    "nvidia-device-plugin": ("device-plugin", "run"),
    "gpu-feature-discovery": ("labels", "--daemon"),
    "k8s-node-labeller": ("labels", "--daemon", "--sink", "node"),
    "config-manager": ("config-manager",),
    "mps-control-daemon": ("mps-control-daemon",),
    "gpu-operator": ("operator", "run"),
    "nvidia-validator": ("nvidia-validator",),
    "nvidia-ctk": ("nvidia-ctk",),
    "nvidia-mig-parted": ("mig",),
    "nvidia-mig-manager": ("nvidia-mig-manager",),
    "dcgm-exporter": ("exporter",),
    "driver-manager": ("driver-manager",),
    "manage-crds": ("crds",),
    "kubectl-gpu": (),
    "kubectl-nfd": ("kubectl-nfd",),
    "nfd": ("nfd",),
}

LINKS: Final = (*PROGRAMS, ENTRYPOINT)
"""Beside the program in the image."""
PEERS_FOLDER: Final = "usr/bin"
"""Where the replaced images have their programs, and some manifests look for them: a link of each is there, too."""
