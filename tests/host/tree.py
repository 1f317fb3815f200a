"""Driver trees for tests: files of nothing, links, device node stand-ins."""

from __future__ import annotations

import os
from pathlib import Path


def touch(root: Path, *paths: str) -> None:
    for path in paths:
        target = root / path.lstrip("/")
        target.parent.mkdir(parents=True, exist_ok=True)
        target.touch()


def link(root: Path, path: str, target: str) -> None:
    place = root / path.lstrip("/")
    place.parent.mkdir(parents=True, exist_ok=True)
    os.symlink(target, place)


def driver(root: Path, folder: str = "/usr/lib/x86_64-linux-gnu", version: str = "550.54.15") -> Path:
    """A small driver: two libraries with their links, nvidia-smi, the control nodes."""
    for stem in ("libcuda", "libnvidia-ml"):
        touch(root, f"{folder}/{stem}.so.{version}")
        link(root, f"{folder}/{stem}.so.1", f"{stem}.so.{version}")
    touch(root, "/usr/bin/nvidia-smi")
    touch(root, "/dev/nvidiactl", "/dev/nvidia-uvm", "/dev/nvidia-uvm-tools", "/dev/nvidia-modeset", "/dev/nvidia0")
    return root
