"""What is in the container images: the same programs on the C libraries of different distributions.

None of them sets LD_LIBRARY_PATH or has a folder made ready for the driver. Where a distribution's images come with a
loader cache, so do these: one that was made without the driver.
"""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Final

from kgpu.lab.real import images
from kgpu.lab.real.images import LabImage, LayerEntry
from tests.toolkit.real.glibc import DEBIAN_FOLDERS, PLAIN_FOLDERS, RHEL_FOLDERS, with_folders

PROBE: Final = "/probe"
DEBIAN: Final = "test.kgpu.dev/debian:1"
OLD_DEBIAN: Final = "test.kgpu.dev/debian-split:1"
DISTROLESS: Final = "test.kgpu.dev/distroless:1"
RHEL: Final = "test.kgpu.dev/rhel:1"
PLAIN: Final = "test.kgpu.dev/plain-glibc:1"
LINKED: Final = "test.kgpu.dev/one-lib-folder:1"
BAKED: Final = "test.kgpu.dev/baked-driver:1"
RHEL_BAKED: Final = "test.kgpu.dev/rhel-baked-driver:1"
SHELL: Final = "test.kgpu.dev/shell:1"
HOSTILE: Final = "test.kgpu.dev/hostile:1"
_ENV: Final = (
    "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
    # What images for GPUs say of themselves; nothing here may take it for a request.
    "NVIDIA_VISIBLE_DEVICES=all",
    "NVIDIA_DRIVER_CAPABILITIES=all",
)
_OLD_DRIVER: Final = "101.1.1"
_MERGED: Final = {"lib": "usr/lib", "lib64": "usr/lib64"}


def compile_probe(folder: Path) -> bytes:
    """The probe program, linked dynamically."""
    out = folder / "probe"
    source = Path(__file__).with_name("probe.c")
    subprocess.run([_compiler(), "-Os", "-s", "-o", str(out), str(source), "-ldl"], check=True, capture_output=True)
    return out.read_bytes()


def debian_images(glibc: Mapping[str, bytes], probe: bytes) -> list[LabImage]:
    """Images that this machine's own C library can make: those with Debian's loader, and those with one cut down."""
    folder = DEBIAN_FOLDERS[1]
    debian = _system(glibc, probe, folder, links=_MERGED)
    plain = {**glibc, "ld.so": with_folders(glibc["ld.so"], PLAIN_FOLDERS)}
    return [
        _image(DEBIAN, [*debian, loader_cache(debian, folder)]),
        _image(BAKED, baked(debian, folder)),
        # Before the folders of / became links into /usr.
        _image(OLD_DEBIAN, _system(glibc, probe, DEBIAN_FOLDERS[0], links={})),
        # A program and its C library, no shell; such images run as a user.
        _image(DISTROLESS, _system(glibc, probe, folder, links=_MERGED, shell=False), user="65532"),
        # As Wolfi, Yocto and glibc's own defaults have it: libraries in /lib, only the loader in /lib64.
        _image(PLAIN, _system(plain, probe, PLAIN_FOLDERS[0], links={})),
        # As Arch and Void have it: every folder is /usr/lib.
        _image(
            LINKED,
            _system(plain, probe, PLAIN_FOLDERS[1], links={"lib": "usr/lib", "lib64": "usr/lib", "usr/lib64": "lib"}),
        ),
        LabImage(names=(SHELL,), files=tuple(_shell()), command=("sh",), env=_ENV),
    ]


def rhel_images(glibc: Mapping[str, bytes], probe: bytes) -> list[LabImage]:
    """The image with a C library that is built for /lib64."""
    cut = {**glibc, "ld.so": with_folders(glibc["ld.so"], RHEL_FOLDERS)}
    folder = RHEL_FOLDERS[1]
    files = _system(cut, probe, folder, links=_MERGED)
    return [_image(RHEL, [*files, loader_cache(files, folder)]), _image(RHEL_BAKED, baked(files, folder))]


def baked(files: list[LayerEntry], folder: str) -> list[LayerEntry]:
    """With another driver's library that the image's build left there and wrote into the loader's cache."""
    where = folder.strip("/")
    old = [
        LayerEntry(path=f"{where}/libcuda.so.{_OLD_DRIVER}", data=_library("libcuda.so.1")),
        LayerEntry(path=f"{where}/libcuda.so.1", link=f"libcuda.so.{_OLD_DRIVER}"),
        LayerEntry(path=f"{where}/libnvidia-ml.so.1", data=_library("libnvidia-ml.so.1")),
    ]
    return [*files, *old, loader_cache([*files, *old], folder)]


def loader_cache(files: Iterable[LayerEntry], folder: str) -> LayerEntry:
    """/etc/ld.so.cache as the image's build would have made it."""
    with tempfile.TemporaryDirectory(prefix="kgpu-rootfs-") as root:
        for file in files:
            place = Path(root, file.path.strip("/"))
            if file.link and not file.link.startswith("busybox"):
                place.symlink_to(file.link)
            elif file.data is not None and "busybox" not in file.path:
                place.write_bytes(file.data)
            elif file.data is None and not file.link:
                place.mkdir(parents=True, exist_ok=True)
        Path(root, "etc/ld.so.conf").write_text(f"{folder}\n")
        subprocess.run([_sbin("ldconfig"), "-r", root], check=True, capture_output=True)
        return LayerEntry(path="etc/ld.so.cache", data=Path(root, "etc/ld.so.cache").read_bytes(), mode=0o644)


def _library(soname: str) -> bytes:
    """A shared library with nothing in it."""
    with tempfile.TemporaryDirectory(prefix="kgpu-library-") as folder:
        out = Path(folder, "library.so")
        command = [_compiler(), "-shared", "-nostdlib", f"-Wl,-soname,{soname}", "-o", str(out), "-x", "c", "/dev/null"]
        subprocess.run(command, check=True, capture_output=True)
        return out.read_bytes()


def _compiler() -> str:
    return shutil.which("cc") or shutil.which("gcc") or "cc"


def _sbin(program: str) -> str:
    return shutil.which(program) or f"/sbin/{program}"


def hostile_image(glibc: Mapping[str, bytes], probe: bytes, targets: Iterable[str], outside: str) -> LabImage:
    """An image in which every path that something will be mounted on is a link to a file of its own in ``outside``, a
    folder on the host.

    ``targets`` are container paths; half of the links are absolute, half climb up.
    """
    hostile = [
        LayerEntry(path=target, link=f"{outside if number % 2 else '../' * 12 + outside.lstrip('/')}/{number}")
        for number, target in enumerate(sorted(targets))
    ]
    known = _system(glibc, probe, DEBIAN_FOLDERS[1], links=_MERGED)
    merged = [LayerEntry(path=images.merged(file.path) if file.path.startswith("lib") else file.path, link=file.link)
              for file in hostile]  # fmt: skip
    have = {file.path.strip("/") for file in known}
    added = [file for file in merged if file.path.strip("/") not in have]
    folders = [folder for folder in images.folders(added) if folder.path not in have]
    return LabImage(names=(HOSTILE,), files=(*known, *folders, *added), command=("sh",), env=_ENV)


def _image(name: str, files: Iterable[LayerEntry], *, user: str = "") -> LabImage:
    return LabImage(names=(name,), files=tuple(files), command=(PROBE,), env=_ENV, user=user)


def _system(
    glibc: Mapping[str, bytes], probe: bytes, folder: str, *, links: Mapping[str, str], shell: bool = True
) -> list[LayerEntry]:
    """A root file system with the C library in ``folder``, the loader where programs name it, and the probe."""
    loader = "lib64/ld-linux-x86-64.so.2"
    where = folder.strip("/")
    files = [
        *(LayerEntry(path=f"{where}/{name}", data=data) for name, data in sorted(glibc.items()) if name != "ld.so"),
        LayerEntry(path=_through(loader, links), data=glibc["ld.so"]),
        LayerEntry(path=PROBE.strip("/"), data=probe),
    ]
    base = _shell() if shell else [LayerEntry(path="etc/passwd", data=b"user:x:65532:65532::/:/probe\n", mode=0o644)]
    known = {file.path.strip("/") for file in base}
    top = [LayerEntry(path=path, link=target) for path, target in links.items() if "/" not in path]
    deep = [LayerEntry(path=path, link=target) for path, target in links.items() if "/" in path]
    new = [one for one in images.folders([*files, *deep, *([] if shell else base)]) if one.path not in known]
    return [*base, *top, *(one for one in new if one.path not in links), *deep, *files]


def _through(path: str, links: Mapping[str, str]) -> str:
    """Where a file of a linked folder really is."""
    head, _, name = path.rpartition("/")
    while head in links:
        head = links[head]
    return f"{head}/{name}"


def _shell() -> list[LayerEntry]:
    return images.base_files(*images.host_busybox())
