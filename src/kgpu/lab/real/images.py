"""The lab's container images, made on this machine without a registry.

An image is an OCI archive built as a pure function from a list of files, so that the same input gives the same bytes.
The root file system of the CUDA samples is this machine's own C library with busybox, plus the sample program; the
driver's libraries come in at run time through CDI, as on a real node.
"""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import os
import platform
import re
import shutil
import subprocess
import tarfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from kgpu.base.errors import LabError
from kgpu.base.files import write_atomic
from kgpu.lab import samples
from kgpu.lab.real.configs import PAUSE_IMAGE

PAUSE_SOURCE: Final = Path(__file__).parent / "pause.c"
BUSYBOX_IMAGES: Final = ("kgpu.dev/busybox:1", "docker.io/library/busybox:latest", "docker.io/library/busybox:1")
CUDA_BASE_IMAGES: Final = (
    "kgpu.dev/cuda:base",
    "docker.io/nvidia/cuda:12.5.0-base-ubuntu22.04",
    "nvcr.io/nvidia/cuda:12.5.0-base-ubuntu22.04",
    "docker.io/nvidia/cuda:12.1-base-ubuntu22.04",
)
VECTORADD_IMAGES: Final = (
    "kgpu.dev/cuda-sample:vectoradd",
    "nvcr.io/nvidia/k8s/cuda-sample:vectoradd-cuda12.5.0",
    "nvcr.io/nvidia/k8s/cuda-sample:vectoradd-cuda11.7.1-ubuntu20.04",
)
# Rows of kgpu.lab.samples, and the names under which the documents use them.
SAMPLE_IMAGES: Final[Mapping[str, tuple[str, ...]]] = {
    "vectoradd": VECTORADD_IMAGES,
    "nbody": (
        "nvcr.io/nvidia/k8s/cuda-sample:nbody-cuda12.5.0",
        "nvcr.io/nvidia/k8s/cuda-sample:nbody-cuda11.6.0-ubuntu18.04",
    ),
    "pytorch": ("nvcr.io/nvidia/pytorch:24.01-py3",),
    "notebook": ("quay.io/jupyter/pytorch-notebook:cuda12-latest",),
    "tritonserver": ("nvcr.io/nvidia/tritonserver:24.01-py3",),
    "shell": ("docker.io/library/ubuntu:22.04", "docker.io/library/ubuntu:24.04"),
}
# What programs that use CUDA link with; older C libraries have them apart, newer ones as empty shells.
_LIBRARIES: Final = ("libc.so.6", "libm.so.6", "libdl.so.2", "libpthread.so.0", "librt.so.1", "libgcc_s.so.1")
_BASH: Final = b'#!/bin/sh\nexec /bin/sh "$@"\n'
"""Busybox is the only shell of these images; what documents ask of bash, it does."""
_ARCH: Final = {"x86_64": "amd64", "aarch64": "arm64"}
_CUDA_ENV: Final = (
    "PATH=/usr/local/nvidia/bin:/usr/local/cuda/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
    "NVIDIA_VISIBLE_DEVICES=all",
    "NVIDIA_DRIVER_CAPABILITIES=compute,utility",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerEntry:
    """One entry of a layer: a file with ``data``, a symbolic link to ``link``, or a folder (neither)."""

    path: str
    data: bytes | None = None
    link: str = ""
    mode: int = 0o755


@dataclass(frozen=True, slots=True)
class Layer:
    """A finished layer: the digest of its tar, which images name it by, and the compressed tar."""

    diff_id: str
    blob: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class LabImage:
    """An image to build: every name it goes by, its files and what it runs.

    ``under`` are layers that were made before, the lowest first; ``files`` are the layer on top of them. ``user`` is
    "" for root.
    """

    names: tuple[str, ...]
    files: tuple[LayerEntry, ...]
    under: tuple[Layer, ...] = ()
    entrypoint: tuple[str, ...] = ()
    command: tuple[str, ...] = ()
    env: tuple[str, ...] = ("PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",)
    workdir: str = "/"
    user: str = ""
    labels: Mapping[str, str] = field(default_factory=dict)


def make_layer(files: Iterable[LayerEntry], *, compresslevel: int = 1) -> Layer:
    """The files as a layer."""
    raw = layer_tar(files)
    return Layer(_digest(raw), gzip.compress(raw, compresslevel=compresslevel, mtime=0))


def layer_tar(files: Iterable[LayerEntry]) -> bytes:
    """An uncompressed layer; entries in the given order, owner root, time 0."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=tarfile.PAX_FORMAT) as tar:
        for file in files:
            info = tarfile.TarInfo(file.path.strip("/"))
            info.mode = file.mode
            if file.link:
                info.type, info.linkname, info.mode = tarfile.SYMTYPE, file.link, 0o777
                tar.addfile(info)
            elif file.data is None:
                info.type = tarfile.DIRTYPE
                tar.addfile(info)
            else:
                info.size = len(file.data)
                tar.addfile(info, io.BytesIO(file.data))
    return out.getvalue()


def oci_archive(*images: LabImage, architecture: str) -> bytes:
    """The images as an OCI layout in a tar, with one index entry per name, as ``ctr images import`` reads it.

    Images with the same files share their layer.
    """
    blobs: dict[str, bytes] = {}
    by_files: dict[tuple[LayerEntry, ...], Layer] = {}
    entries: list[dict[str, Any]] = []
    for image in images:
        if image.files not in by_files:
            by_files[image.files] = make_layer(image.files)
        layers = (*image.under, by_files[image.files])
        config = _json(_config(image, layers, architecture))
        manifest = _json(
            {
                "schemaVersion": 2,
                "mediaType": "application/vnd.oci.image.manifest.v1+json",
                "config": _descriptor("application/vnd.oci.image.config.v1+json", config),
                "layers": [_descriptor("application/vnd.oci.image.layer.v1.tar+gzip", layer.blob) for layer in layers],
            }
        )
        entry = _descriptor("application/vnd.oci.image.manifest.v1+json", manifest)
        entries += [
            {**entry, "annotations": {"io.containerd.image.name": name, "org.opencontainers.image.ref.name": name}}
            for name in image.names
        ]
        blobs.update({_digest(blob): blob for blob in (config, manifest, *(layer.blob for layer in layers))})
    index = {"schemaVersion": 2, "mediaType": "application/vnd.oci.image.index.v1+json", "manifests": entries}
    files = [
        LayerEntry(path="oci-layout", data=_json({"imageLayoutVersion": "1.0.0"}), mode=0o644),
        LayerEntry(path="index.json", data=_json(index), mode=0o644),
        *(
            LayerEntry(path=f"blobs/sha256/{digest.removeprefix('sha256:')}", data=blob, mode=0o644)
            for digest, blob in sorted(blobs.items())
        ),
    ]
    return layer_tar(files)


def _config(image: LabImage, layers: Sequence[Layer], architecture: str) -> dict[str, Any]:
    return {
        "architecture": architecture,
        "os": "linux",
        "config": {
            "User": image.user,
            "Env": list(image.env),
            "Entrypoint": list(image.entrypoint) or None,
            "Cmd": list(image.command) or None,
            "WorkingDir": image.workdir,
            "Labels": dict(image.labels),
        },
        "rootfs": {"type": "layers", "diff_ids": [layer.diff_id for layer in layers]},
    }


def _json(value: Any) -> bytes:
    return json.dumps(value, separators=(",", ":"), sort_keys=True).encode()


def _digest(blob: bytes) -> str:
    return f"sha256:{hashlib.sha256(blob).hexdigest()}"


def _descriptor(media_type: str, blob: bytes) -> dict[str, Any]:
    return {"mediaType": media_type, "digest": _digest(blob), "size": len(blob)}


def folders(files: Sequence[LayerEntry]) -> list[LayerEntry]:
    """The folders that ``files`` need, parents first, each once."""
    entries: dict[str, LayerEntry] = {}
    links = {file.path.strip("/") for file in files if file.link}
    for file in files:
        parts = file.path.strip("/").split("/")[:-1]
        for depth in range(1, len(parts) + 1):
            path = "/".join(parts[:depth])
            if path not in links:
                entries.setdefault(path, LayerEntry(path=path))
    return list(entries.values())


def pause_image(program: bytes) -> LabImage:
    """The sandbox container of every pod."""
    return LabImage(names=(PAUSE_IMAGE,), files=(LayerEntry(path="pause", data=program),), entrypoint=("/pause",))


def base_files(busybox: bytes, applets: Sequence[str]) -> list[LayerEntry]:
    """A shell, its tools and the users file."""
    files = [
        LayerEntry(path="bin", link="usr/bin"),
        LayerEntry(path="sbin", link="usr/sbin"),
        LayerEntry(path="usr/bin/busybox", data=busybox),
        LayerEntry(path="usr/bin/bash", data=_BASH),
        *(LayerEntry(path=f"usr/bin/{applet}", link="busybox") for applet in applets if applet != "busybox"),
        LayerEntry(path="etc/passwd", data=b"root:x:0:0:root:/root:/bin/sh\n", mode=0o644),
        LayerEntry(path="etc/group", data=b"root:x:0:\n", mode=0o644),
        LayerEntry(path="tmp", mode=0o1777),
        LayerEntry(path="root", mode=0o700),
        LayerEntry(path="usr/sbin"),
    ]
    return [*folders(files), *files]


def busybox_image(busybox: bytes, applets: Sequence[str]) -> LabImage:
    """A shell and the usual small tools."""
    return LabImage(names=BUSYBOX_IMAGES, files=tuple(base_files(busybox, applets)), command=("sh",))


def cuda_images(
    busybox: bytes, applets: Sequence[str], libraries: Mapping[str, bytes], programs: Mapping[str, bytes]
) -> list[LabImage]:
    """The CUDA base image and, when their programs are given, the samples.

    ``libraries`` maps absolute paths in the image to contents: the loader and the C library.
    """
    extra = [
        # The folders of the loader, as links into /usr, so that /lib and /usr/lib are one as on current systems.
        *(LayerEntry(path=top, link=f"usr/{top}") for top in ("lib", "lib64")),
        *(LayerEntry(path=merged(path), data=data) for path, data in sorted(libraries.items())),
    ]
    base = [*base_files(busybox, applets), *folders(extra), *extra]
    images = [LabImage(names=CUDA_BASE_IMAGES, files=tuple(base), command=("sh",), env=_CUDA_ENV)]
    if programs:
        images += _sample_images(base, programs)
    return images


def _sample_images(base: Sequence[LayerEntry], programs: Mapping[str, bytes]) -> list[LabImage]:
    """The samples, all with the same files, so that they share a layer."""
    wanted = [samples.by_name(name) for name in SAMPLE_IMAGES]
    contents = {path: source for sample in wanted for path, source in sample.files.items()}
    added = [
        LayerEntry(path=path.strip("/"), data=programs.get(source) or samples.script(source))
        for path, source in sorted(contents.items())
    ]
    known = {file.path.strip("/") for file in base}
    workdirs = [LayerEntry(path=f"{sample.workdir.strip('/')}/.keep", data=b"", mode=0o644) for sample in wanted]
    new = [folder for folder in folders([*added, *workdirs]) if folder.path not in known]
    files = (*base, *new, *added, *workdirs)
    return [
        LabImage(
            names=SAMPLE_IMAGES[sample.name],
            files=files,
            entrypoint=sample.entrypoint,
            # Busybox is the only shell of these images.
            command=tuple("sh" if word == "/bin/bash" else word for word in sample.command),
            env=tuple(f"{name}={value}" for name, value in sample.env.items()),
            workdir=sample.workdir,
        )
        for sample in wanted
    ]


def merged(path: str) -> str:
    """Where a file of /lib or /lib64 is when those are links into /usr; relative to the image's root."""
    path = path.strip("/")
    return path if path.startswith("usr/") else f"usr/{path}"


def host_libraries() -> dict[str, bytes]:
    """The machine's loader and C library: path in the image -> content. Raises LabError when not found."""
    listing = subprocess.run(["ldconfig", "-p"], capture_output=True, text=True, check=False, env=_sbin_env()).stdout
    libraries: dict[str, bytes] = {}
    for name in _LIBRARIES:
        hits = re.findall(rf"^\s+{re.escape(name)} \([^)]*x86-64[^)]*\) => (\S+)", listing, re.MULTILINE)
        hits += re.findall(rf"^\s+{re.escape(name)} \(libc6(?:,AArch64)?\) => (\S+)", listing, re.MULTILINE)
        if hits:
            libraries[hits[0]] = Path(hits[0]).read_bytes()
    loader = _loader()
    if not loader or not any(path.endswith("/libc.so.6") for path in libraries):
        raise LabError(
            "this machine's C library can't be found",
            "glibc with its dynamic loader, listed by ldconfig",
            "use a machine with glibc; musl-based systems can't run the CUDA samples",
        )
    libraries[loader] = Path(loader).read_bytes()
    return libraries


def _loader() -> str:
    for path in ("/lib64/ld-linux-x86-64.so.2", "/lib/ld-linux-aarch64.so.1"):
        if os.path.exists(path):
            return path
    return ""


def _sbin_env() -> dict[str, str]:
    return {**os.environ, "PATH": f"{os.environ.get('PATH', '')}{os.pathsep}/usr/sbin{os.pathsep}/sbin"}


def host_busybox() -> tuple[bytes, list[str]]:
    """The machine's static busybox and the names of its applets. Raises LabError when there is none."""
    program = shutil.which("busybox")
    if program is None:
        raise LabError(
            "no busybox on PATH", "a static busybox, the shell of the lab's images", "apt-get install busybox-static"
        )
    listing = subprocess.run([program, "--list"], capture_output=True, text=True, check=False)
    return Path(program).read_bytes(), listing.stdout.split()


def compile_pause(folder: Path) -> bytes:
    """The static pause program."""
    return compile_static(PAUSE_SOURCE, folder)


def compile_static(source: Path, folder: Path) -> bytes:
    """A program of one C file, built in ``folder`` with the machine's compiler. Raises LabError."""
    folder.mkdir(parents=True, exist_ok=True)
    out = folder / source.stem
    compiler = shutil.which("cc") or shutil.which("gcc") or "cc"
    command = [compiler, "-Os", "-static", "-s", "-o", str(out), str(source)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise LabError(
            f"the program {source.stem} can't be built: {done.stderr.strip()[-400:]}",
            "a C compiler with a static C library",
            'on Debian or Ubuntu "apt-get install gcc libc6-dev"',
        )
    return out.read_bytes()


def architecture() -> str:
    """The machine's architecture in OCI terms."""
    return _ARCH.get(platform.machine(), platform.machine())


def write_archives(folder: Path, programs: Mapping[str, bytes]) -> list[Path]:
    """Build every image of the lab into ``folder`` as ``NAME.tar``; the archives, the pause image first."""
    busybox, applets = host_busybox()
    base, *others = cuda_images(busybox, applets, host_libraries(), programs)
    groups = [[pause_image(compile_pause(folder))], [busybox_image(busybox, applets)], [base], others]
    archives = []
    for group in filter(None, groups):
        archive = folder / f"{group[0].names[0].split('/')[-1].replace(':', '-')}.tar"
        write_atomic(archive, oci_archive(*group, architecture=architecture()))
        archives.append(archive)
    return archives
