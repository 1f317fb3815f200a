"""The container images of the tests' pods on a real lab, under the names that this version's tests ask for.

``agnhost`` is built from Kubernetes' own source; the shell and the small programs beside it are busybox's, where the
published image has Alpine's. The web servers' places are taken by busybox's, which serves one page.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from kgpu.base.errors import LabError
from kgpu.base.files import write_atomic
from kgpu.lab.embedded import tls
from kgpu.lab.real import images
from kgpu.lab.real.images import LabImage, LayerEntry

_AGNHOST: Final = "/agnhost"
_PAGES: Final = "usr/share/nginx/html"
_USERS: Final = "root:x:0:0:root:/root:/bin/sh\nuser-defined-in-image:x:1000:1000::/home:/bin/sh\n"
_GROUP: Final = "root:x:0:\nuser-defined-in-image:x:1000:\ngroup-defined-in-image:x:50000:user-defined-in-image\n"
NONROOT: Final = "1234"
NNP: Final = "usr/local/bin/nnp"
_NNP_SOURCE: Final = Path(__file__).parent / "effective_uid.c"


@dataclass(frozen=True, slots=True)
class CertificateAndKey:
    """A certificate for localhost and its key, both PEM."""

    certificate: bytes
    key: bytes


def repository(image: str) -> str:
    """The last part of an image's name, without the tag."""
    return image.rpartition("/")[2].partition(":")[0]


def of(names: Iterable[str], repo: str) -> tuple[str, ...]:
    """Which of the names that ``e2e.test --list-images`` prints are of a repository; not those behind a login."""
    return tuple(sorted(name for name in names if repository(name) == repo and "authenticated" not in name))


def make(
    names: Sequence[str],
    *,
    pause: bytes,
    agnhost: bytes,
    nnp: bytes,
    busybox: bytes,
    applets: Sequence[str],
    pair: CertificateAndKey,
) -> list[LabImage]:
    """Every image that can be made here, of the ``names`` that the tests ask for; ``pair`` is for agnhost's servers."""
    base = [file for file in images.base_files(busybox, applets) if file.path not in {"etc/passwd", "etc/group"}]
    users = [
        LayerEntry(path="etc/passwd", data=_USERS.encode(), mode=0o644),
        LayerEntry(path="etc/group", data=_GROUP.encode(), mode=0o644),
    ]
    shell = (*base, *users)
    tester = (
        *shell,
        LayerEntry(path="agnhost", data=agnhost),
        LayerEntry(path="agnhost-2", link="agnhost"),
        LayerEntry(path="uploads"),
        LayerEntry(path="localhost.crt", data=pair.certificate, mode=0o644),
        LayerEntry(path="localhost.key", data=pair.key, mode=0o644),
    )
    page = LayerEntry(path=f"{_PAGES}/index.html", data=b"busybox's web server in the place of nginx\n", mode=0o644)
    server = (*shell, *_new_folders([page], shell), page)
    setuid = LayerEntry(path=NNP, data=nnp, mode=0o4755)
    privileged = (*shell, *_new_folders([setuid], shell), setuid)
    lab_images = [
        LabImage(names=of(names, "pause"), files=(LayerEntry(path="pause", data=pause),), entrypoint=("/pause",)),
        LabImage(names=of(names, "agnhost"), files=tester, entrypoint=(_AGNHOST,), command=("pause",)),
        LabImage(names=of(names, "busybox"), files=shell, command=("sh",)),
        LabImage(
            names=of(names, "nginx"), files=server,
            command=("busybox", "httpd", "-f", "-p", "80", "-h", f"/{_PAGES}"),
        ),
        LabImage(names=of(names, "nonroot"), files=shell, command=("id", "-u"), user=NONROOT),
        LabImage(names=of(names, "nonewprivs"), files=privileged, command=(f"/{NNP}",)),
    ]  # fmt: skip
    return [image for image in lab_images if image.names]


def _new_folders(files: Sequence[LayerEntry], known: Iterable[LayerEntry]) -> list[LayerEntry]:
    existing = {file.path.strip("/") for file in known}
    return [folder for folder in images.folders(files) if folder.path not in existing]


def write(folder: Path, names: Sequence[str], agnhost: Path) -> list[Path]:
    """Make the images as OCI archives in ``folder``. Raises LabError."""
    busybox, applets = images.host_busybox()
    pki = tls.ensure(folder / "tls")
    pair = CertificateAndKey(pki.certificate("server").read_bytes(), pki.key("server").read_bytes())
    pause, nnp = images.compile_pause(folder), images.compile_static(_NNP_SOURCE, folder)
    agnhost_program = agnhost.read_bytes()
    lab_images = make(names, pause=pause, agnhost=agnhost_program, nnp=nnp, busybox=busybox, applets=applets, pair=pair)
    if not lab_images:
        raise LabError(
            "e2e.test asks for no image that is known here", "names such as .../agnhost:2.59", "see images.py"
        )
    archives = []
    for image in lab_images:
        archive = folder / f"{repository(image.names[0])}.tar"
        write_atomic(archive, images.oci_archive(image, architecture=images.architecture()))
        archives.append(archive)
    return archives
