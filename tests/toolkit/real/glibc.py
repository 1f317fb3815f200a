"""C libraries of the container images: this machine's, and one with the folders of RHEL, Fedora and SUSE.

A dynamic loader has its default folders compiled in. Debian ships, for the architecture i386, a 64-bit glibc built for
/lib64 and /usr/lib64, as RHEL's is; it is fetched with the machine's apt, which is not changed by that, and kept in the
cache under its own digest. ``with_folders`` takes folders out of a loader's table that a distribution adds on its own.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import Final

PACKAGE: Final = "libc6-amd64"
LOADER: Final = "/lib64/ld-linux-x86-64.so.2"
NAMES: Final = ("libc.so.6", "libm.so.6", "libdl.so.2", "libpthread.so.0", "librt.so.1")
DEBIAN_FOLDERS: Final = ("/lib/x86_64-linux-gnu", "/usr/lib/x86_64-linux-gnu")
RHEL_FOLDERS: Final = ("/lib64", "/usr/lib64")
PLAIN_FOLDERS: Final = ("/lib", "/usr/lib")
_TABLE: Final = re.compile(rb"(?:(?:/[\w.-]+)+/\0){4}")


class NotToBeHad(Exception):
    """The package can't be fetched; the text says why."""


def default_folders(loader: bytes) -> tuple[str, ...]:
    """The folders that the loader searches without being told, in its order."""
    table = _TABLE.search(loader)
    assert table is not None, "this loader has no table of four default folders"
    return tuple(folder.decode().rstrip("/") for folder in table[0].split(b"\0") if folder)


def with_folders(loader: bytes, kept: tuple[str, ...]) -> bytes:
    """The loader with only ``kept`` of its default folders; the others become folders that no image has."""

    def cut(table: re.Match[bytes]) -> bytes:
        folders = table[0].split(b"\0")[:-1]
        return b"".join(
            (folder if folder.decode().rstrip("/") in kept else b"/" + b"-" * (len(folder) - 2) + b"/") + b"\0"
            for folder in folders
        )

    missing = set(kept) - set(default_folders(loader))
    assert not missing, f"the loader never had {missing}"
    return _TABLE.sub(cut, loader)


def of_machine() -> dict[str, bytes]:
    """File name -> content: the machine's own loader (``ld.so``) and C library."""
    folder = next(Path(folder) for folder in (*DEBIAN_FOLDERS, *RHEL_FOLDERS) if (Path(folder) / NAMES[0]).exists())
    found = {name: (folder / name).read_bytes() for name in NAMES if (folder / name).exists()}
    return {"ld.so": Path(LOADER).read_bytes(), **found}


def of_lib64(cache: Path) -> dict[str, bytes]:
    """The same of the glibc that is built for /lib64. Raises NotToBeHad."""
    package = _kept(cache) or _fetch(cache)
    with tempfile.TemporaryDirectory(prefix="kgpu-glibc-") as folder:
        subprocess.run(["dpkg-deb", "-x", str(package), folder], check=True, capture_output=True)
        where = Path(folder, "lib64")
        return {name: (where / name).read_bytes() for name in ("ld.so", *NAMES)}


def _kept(cache: Path) -> Path | None:
    """A package in the cache whose content is what its name says."""
    for path in sorted(cache.glob(f"{PACKAGE}-*.deb")):
        if path.stem.endswith(_digest(path)):
            return path
        path.unlink()
    return None


def _fetch(cache: Path) -> Path:
    apt = shutil.which("apt-get")
    if apt is None or shutil.which("dpkg-deb") is None:
        raise NotToBeHad("it comes from Debian's archive, and this machine has no apt-get")
    cache.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="kgpu-apt-") as folder:
        for needed in ("state/lists/partial", "cache/archives/partial"):
            Path(folder, needed).mkdir(parents=True)
        Path(folder, "state/status").touch()
        options = {
            "APT::Architecture": "i386",
            "APT::Architectures": "i386",
            "APT::Sandbox::User": "root",
            "Dir::State": f"{folder}/state",
            "Dir::State::status": f"{folder}/state/status",
            "Dir::Cache": f"{folder}/cache",
        }
        words = [apt, "-qq", *(word for key, value in options.items() for word in ("-o", f"{key}={value}"))]
        # One list of several may be out of step with its mirror while the package is in another.
        subprocess.run([*words, "update"], capture_output=True, check=False, timeout=300)
        done = subprocess.run(
            [*words, "download", PACKAGE], cwd=folder, capture_output=True, text=True, check=False, timeout=300
        )
        found = sorted(Path(folder).glob(f"{PACKAGE}_*.deb"))
        if done.returncode != 0 or not found:
            raise NotToBeHad(f"apt-get download {PACKAGE}: {done.stderr.strip()[-300:]}")
        target = cache / f"{PACKAGE}-{_digest(found[0])}.deb"
        partial = target.with_suffix(f".{os.getpid()}")
        shutil.copyfile(found[0], partial)
        partial.rename(target)
        return target


def _digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()[:16]
