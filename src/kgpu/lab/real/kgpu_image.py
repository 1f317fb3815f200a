"""kgpu's own container image, made on this machine without a registry and without a container tool.

Two layers: the interpreter with its libraries and kgpu's dependencies, which rarely change, and kgpu. The same files
give the same bytes; both are kept in a cache by their content. Modules are compiled, so that a pod starts at once and
stays small.
"""

from __future__ import annotations

import contextlib
import gzip
import hashlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Final

import kgpu
from kgpu.base.errors import LabError
from kgpu.base.files import write_atomic
from kgpu.formats.names import ENV_SIMULATED_MACHINE, IMAGE_REPOSITORY, SIMULATED_MACHINE
from kgpu.formats.programs import ENTRYPOINT, LINKS, PEERS_FOLDER
from kgpu.lab import samples
from kgpu.lab.progress import PlainProgress, Progress
from kgpu.lab.real import images, python_files
from kgpu.lab.real.images import LabImage, Layer, LayerEntry
from kgpu.lab.real.python_files import HOME, PREFIX, SITE, CopiedFile

NAMES: Final = (f"{IMAGE_REPOSITORY}:dev", f"{IMAGE_REPOSITORY}:{kgpu.__version__}")
"""What the image is called: the name for trying things out, and the one that the chart asks for."""
USER: Final = 65532
_FORMAT: Final = "2"  # of what is made here: a new number makes everything anew
_KEPT: Final = 4  # archives and layers that stay in the cache
_IN_USE_S: Final = 3600.0  # since it was asked for; labs of other checkouts share the cache
_ENV: Final = (
    f"PATH=/{HOME}/bin:/{PREFIX}/bin:/usr/local/sbin:/usr/sbin:/usr/bin:/sbin:/bin",
    "PYTHONDONTWRITEBYTECODE=1",
)
_PASSWD: Final = f"root:x:0:0:root:/root:/bin/sh\nkgpu:x:{USER}:{USER}:kgpu:/tmp:/bin/sh\n"
_GROUP: Final = f"root:x:0:\nkgpu:x:{USER}:\n"
_START: Final = "import sys\nfrom kgpu.cli.main import main\nsys.exit(main())\n"


def cache_folder(env: Mapping[str, str] | None = None) -> Path:
    """``$XDG_CACHE_HOME/kgpu/image``, or ``~/.cache/kgpu/image``."""
    cache_home = (os.environ if env is None else env).get("XDG_CACHE_HOME")
    return (Path(cache_home) if cache_home else Path.home() / ".cache") / "kgpu" / "image"


def ensure_image(progress: Progress | None = None, *, cache: Path | None = None) -> Path:
    """The image as an OCI archive, which is made when any of its files has changed. Raises LabError."""
    progress, cache = progress or PlainProgress(), cache or cache_folder()
    own = python_files.own_package()
    lower = ensure_base(progress, cache)
    archive = cache / f"kgpu-{_key([lower.diff_id, *NAMES, *LINKS], own)}.tar"
    if not _kept(archive):
        with progress.step("make kgpu's layer and the image"):
            write_atomic(archive, images.oci_archive(_image(lower, own), architecture=images.architecture()))
        _forget_old(cache, "kgpu-*.tar")
    return archive


def _image(lower: Layer, own: Sequence[CopiedFile]) -> LabImage:
    program = f"{HOME}/bin/kgpu"
    files = [
        *_contents(own),
        LayerEntry(path=program, data=f"#!/{HOME}/bin/python3\n{_START}".encode()),
        *(LayerEntry(path=f"{HOME}/bin/{name}", link="kgpu") for name in LINKS),
        *(LayerEntry(path=f"{PEERS_FOLDER}/{name}", link=f"/{program}") for name in LINKS),
    ]
    return LabImage(
        names=NAMES,
        under=(lower,),
        files=(*images.folders(files), *files),
        entrypoint=(f"/{HOME}/bin/{ENTRYPOINT}",),
        env=_ENV,
        labels={
            "org.opencontainers.image.title": "kgpu",
            "org.opencontainers.image.version": kgpu.__version__,
            "org.opencontainers.image.licenses": "Apache-2.0",
        },
    )


def driver_images(versions: Sequence[str], system: str, progress: Progress | None = None) -> list[LabImage]:
    """NVIDIA's driver image of these releases, which installs a simulated driver: kgpu's image with other programs.

    Raises LabError, HwError.
    """
    from kgpu.hw.simulator.build import native_dir

    sample = samples.by_name(samples.DRIVER)
    lower = ensure_base(progress or PlainProgress(), cache_folder())
    own = _image(lower, python_files.own_package())
    native = native_dir()

    def content(source: str) -> bytes:
        if source.startswith("artifact:"):
            return (native / source.removeprefix("artifact:")).read_bytes()
        return samples.script(source)

    added = [LayerEntry(path=path.strip("/"), data=content(source)) for path, source in sample.files.items()]
    known = {entry.path.strip("/") for entry in own.files}
    files = (*own.files, *(one for one in images.folders(added) if one.path not in known), *added)
    return [
        LabImage(
            names=(f"nvcr.io/nvidia/driver:{version}-{system}",), under=(lower,), files=files,
            entrypoint=sample.entrypoint, command=sample.command,
            env=(
                *_ENV, f"DRIVER_VERSION={version}", f"KGPU_LAB_PYTHON=/{HOME}/bin/python3", "KGPU_MOUNT_SYS=true",
                f"{ENV_SIMULATED_MACHINE}={SIMULATED_MACHINE}",
            ),
        )
        for version in versions
    ]  # fmt: skip


def ensure_base(progress: Progress, cache: Path) -> Layer:
    """The layer below kgpu: interpreter, libraries, dependencies and a shell. Raises LabError."""
    python = python_files.interpreter()
    sources = [python, *python_files.standard_library(), *python_files.packages()]
    shell = _shell()
    strip = shutil.which("strip") or ""
    kept = cache / f"base-{_key([bool(strip), *sorted(shell)], sources)}.tar.gz"
    if _kept(kept):
        blob = kept.read_bytes()
        return Layer(f"sha256:{hashlib.sha256(gzip.decompress(blob)).hexdigest()}", blob)
    with progress.step("compile Python's library and kgpu's dependencies, once"):
        files = [*_contents(sources, strip=strip), *_libraries(sources, strip=strip), *_system(shell)]
        layer = images.make_layer([*images.folders(files), *files], compresslevel=6)
        write_atomic(kept, layer.blob)
    _forget_old(cache, "base-*.tar.gz")
    return layer


def _system(shell: Mapping[str, bytes | str]) -> list[LayerEntry]:
    """What is neither Python nor a library: a shell where this machine has one to give, users, links."""
    name = python_files.VERSION
    config = f"home = /{PREFIX}/bin\ninclude-system-site-packages = false\nversion = {sys.version.split()[0]}\n"
    return [
        *(LayerEntry(path=top, link=f"usr/{top}") for top in ("bin", "sbin", "lib", "lib64")),
        *(
            LayerEntry(path=path, link=content) if isinstance(content, str) else LayerEntry(path=path, data=content)
            for path, content in sorted(shell.items())
        ),
        LayerEntry(path=f"{PREFIX}/bin/python3", link=name),
        LayerEntry(path=f"{HOME}/bin/python3", link=f"/{PREFIX}/bin/{name}"),
        LayerEntry(path=f"{HOME}/pyvenv.cfg", data=config.encode(), mode=0o644),
        LayerEntry(path="etc/passwd", data=_PASSWD.encode(), mode=0o644),
        LayerEntry(path="etc/group", data=_GROUP.encode(), mode=0o644),
        # Names are looked up in files, then in DNS, also by C libraries that want to be told.
        LayerEntry(path="etc/nsswitch.conf", data=b"passwd: files\ngroup: files\nhosts: files dns\n", mode=0o644),
        LayerEntry(path="usr/sbin"),
        LayerEntry(path="tmp", mode=0o1777),
        LayerEntry(path="root", mode=0o700),
    ]


def _shell() -> dict[str, bytes | str]:
    """Path in the image -> busybox itself, or what a link to it says; empty where this machine has none."""
    try:
        busybox, applets = images.host_busybox()
    except LabError:
        return {}
    links: dict[str, bytes | str] = {f"usr/bin/{name}": "busybox" for name in applets if name != "busybox"}
    return {**links, "usr/bin/busybox": busybox}


def _libraries(sources: Iterable[CopiedFile], *, strip: str) -> list[LayerEntry]:
    """The loader and every shared library, in the one folder that the loader looks into by itself."""
    system = images.host_libraries()
    folder = next(os.path.dirname(path) for path in system if path.endswith("/libc.so.6"))
    libraries = python_files.shared_libraries(source.file for source in sources if python_files.is_program(source.file))
    files = {f"{folder}/{os.path.basename(name)}": _data(path, strip=strip) for name, path in libraries.items()}
    files |= system
    for name in ("libnss_files.so.2", "libnss_dns.so.2"):
        if os.path.exists(path := f"{folder}/{name}"):
            files[path] = Path(path).read_bytes()
    return [LayerEntry(path=images.merged(path), data=data) for path, data in sorted(files.items())]


def _data(file: str, *, strip: str) -> bytes:
    """The file's content, without debugging symbols where they can be taken away."""
    if not strip or not python_files.is_program(file):
        return Path(file).read_bytes()
    with tempfile.TemporaryDirectory(prefix="kgpu-strip-") as folder:
        out = os.path.join(folder, "out")
        done = subprocess.run([strip, "--strip-unneeded", "-o", out, file], capture_output=True, check=False)
        return Path(out if done.returncode == 0 else file).read_bytes()


def _contents(sources: Sequence[CopiedFile], *, strip: str = "") -> list[LayerEntry]:
    """The files with what they contain, each Python source followed by its compiled form."""
    with tempfile.TemporaryDirectory(prefix="kgpu-pyc-") as folder:
        compiled = _compile([source for source in sources if source.path.endswith(".py")], folder)
        files: list[LayerEntry] = []
        for source in sources:
            program = python_files.is_program(source.file)
            data = _data(source.file, strip=strip)
            files.append(LayerEntry(path=source.path, data=data, mode=0o755 if program else 0o644))
            if (target := compiled.get(source.path)) and os.path.exists(target):
                where, name = os.path.split(source.path)
                cached = f"{where}/__pycache__/{name[:-3]}.{sys.implementation.cache_tag}.pyc"
                files.append(LayerEntry(path=cached, data=Path(target).read_bytes(), mode=0o644))
    return files


def _compile(sources: Sequence[CopiedFile], folder: str) -> dict[str, str]:
    targets = {source.path: os.path.join(folder, str(number)) for number, source in enumerate(sources)}
    orders = [[source.file, f"/{source.path}", targets[source.path]] for source in sources]
    command = [sys.executable, "-S", str(Path(__file__).with_name("bytecode.py"))]
    env = {"PYTHONHASHSEED": "0", "PATH": os.environ.get("PATH", "")}
    done = subprocess.run(command, input=json.dumps(orders), capture_output=True, text=True, check=False, env=env)
    if done.returncode != 0:
        raise LabError(
            f"compiling the image's modules failed: {done.stderr.strip()[-400:]}",
            "room for them in the folder for temporary files",
            "see the message",
        )
    return targets


def _key(words: Iterable[object], sources: Iterable[CopiedFile]) -> str:
    digest = hashlib.sha256(repr((_FORMAT, sys.version, images.architecture(), *words)).encode())
    for source in sources:
        with open(source.file, "rb") as opened:
            digest.update(f"\0{source.path}\0".encode() + hashlib.file_digest(opened, "sha256").digest())
    return digest.hexdigest()[:16]


def _kept(path: Path) -> bool:
    """Whether it is in the cache, and stays there for as long as it may be in use."""
    try:
        os.utime(path)
    except FileNotFoundError:
        return False
    return True


def _forget_old(cache: Path, pattern: str) -> None:
    """Forget all but the last few, and those that somebody else may be about to read."""
    used: dict[Path, float] = {}
    for path in cache.glob(pattern):
        with contextlib.suppress(FileNotFoundError):  # another process forgets it, too
            used[path] = path.stat().st_mtime
    for path in sorted(used, key=lambda one: used[one], reverse=True)[_KEPT:]:
        if time.time() - used[path] > _IN_USE_S:
            path.unlink(missing_ok=True)


__all__ = ["NAMES", "SITE", "cache_folder", "ensure_base", "ensure_image"]
