"""Packages of Debian's archive as test data: fetched with the machine's apt, which is not changed by that, and kept.

A package is kept in a folder of the cache under its own digest; nothing is installed.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import tempfile
from pathlib import Path


class NotToBeHad(Exception):
    """The package can't be fetched; the text says why."""


def package(name: str, cache: Path, *, architecture: str = "") -> Path:
    """The package file, of another architecture than this machine's if one is named. Raises NotToBeHad."""
    return _kept(name, cache) or _fetch(name, cache, architecture)


def unpack(file: Path, folder: Path) -> None:
    """The package's files, below the folder."""
    subprocess.run(["dpkg-deb", "-x", str(file), str(folder)], check=True, capture_output=True)


def _kept(name: str, cache: Path) -> Path | None:
    """A package in the cache whose content is what its name says."""
    for path in sorted(cache.glob(f"{name}-*.deb")):
        if path.stem.endswith(_digest(path)):
            return path
        path.unlink()
    return None


def _fetch(name: str, cache: Path, architecture: str) -> Path:
    apt = shutil.which("apt-get")
    if apt is None or shutil.which("dpkg-deb") is None:
        raise NotToBeHad("it comes from Debian's archive, and this machine has no apt-get")
    cache.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="kgpu-apt-") as folder:
        for needed in ("state/lists/partial", "cache/archives/partial"):
            Path(folder, needed).mkdir(parents=True)
        Path(folder, "state/status").touch()
        options = {
            **({"APT::Architecture": architecture, "APT::Architectures": architecture} if architecture else {}),
            "APT::Sandbox::User": "root",
            "Dir::State": f"{folder}/state",
            "Dir::State::status": f"{folder}/state/status",
            "Dir::Cache": f"{folder}/cache",
        }
        words = [apt, "-qq", *(word for key, value in options.items() for word in ("-o", f"{key}={value}"))]
        # One list of several may be out of step with its mirror while the package is in another.
        subprocess.run([*words, "update"], capture_output=True, check=False, timeout=300)
        done = subprocess.run(
            [*words, "download", name], cwd=folder, capture_output=True, text=True, check=False, timeout=300
        )
        found = sorted(Path(folder).glob(f"{name}_*.deb"))
        if done.returncode != 0 or not found:
            raise NotToBeHad(f"apt-get download {name}: {done.stderr.strip()[-300:]}")
        target = cache / f"{name}-{_digest(found[0])}.deb"
        partial = target.with_suffix(f".{os.getpid()}")
        shutil.copyfile(found[0], partial)
        partial.rename(target)
        return target


def _digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()[:16]
