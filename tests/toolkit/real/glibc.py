"""C libraries of the container images: this machine's, and one with the folders of RHEL, Fedora and SUSE.

A dynamic loader has its default folders compiled in. Debian ships, for the architecture i386, a 64-bit glibc built for
/lib64 and /usr/lib64, as RHEL's is; ``tests.debian`` fetches it. ``with_folders`` takes folders out of a loader's
table that a distribution adds on its own.
"""

from __future__ import annotations

import re
import tempfile
from pathlib import Path
from typing import Final

from tests import debian

PACKAGE: Final = "libc6-amd64"
LOADER: Final = "/lib64/ld-linux-x86-64.so.2"
NAMES: Final = ("libc.so.6", "libm.so.6", "libdl.so.2", "libpthread.so.0", "librt.so.1")
DEBIAN_FOLDERS: Final = ("/lib/x86_64-linux-gnu", "/usr/lib/x86_64-linux-gnu")
RHEL_FOLDERS: Final = ("/lib64", "/usr/lib64")
PLAIN_FOLDERS: Final = ("/lib", "/usr/lib")
_TABLE: Final = re.compile(rb"(?:(?:/[\w.-]+)+/\0){4}")


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
    """The same of the glibc that is built for /lib64. Raises debian.NotToBeHad."""
    package = debian.package(PACKAGE, cache, architecture="i386")
    with tempfile.TemporaryDirectory(prefix="kgpu-glibc-") as folder:
        debian.unpack(package, Path(folder))
        where = Path(folder, "lib64")
        return {name: (where / name).read_bytes() for name in ("ld.so", *NAMES)}
