"""Finds a host's container engines: which exist, where their files are, and which one the kubelet uses.

Rows of data have the default places of each distribution; what exists on the host decides between them.
"""

from __future__ import annotations

import posixpath
import re
from dataclasses import dataclass, replace
from typing import Final

from kgpu.base.errors import UserError
from kgpu.host.engines.containerd import DEEP_MERGE, import_patterns
from kgpu.host.engines.globs import matches
from kgpu.host.engines.model import Engine, EnginePlace
from kgpu.host.engines.paths import MountedPaths
from kgpu.host.engines.rules import read
from kgpu.host.engines.toml_edit import TomlFile

DROP_IN: Final = "99-nvidia.toml"
RENDERED: Final = frozenset({"k3s", "rke2"})
"""These rewrite containerd's config at each start."""
K0S_MARK: Final = b"# k0s_managed=true"
BINARY_DIRS: Final = (
    "/usr/local/sbin",
    "/usr/local/bin",
    "/usr/sbin",
    "/usr/bin",
    "/sbin",
    "/bin",
    "/usr/libexec/crio",
)
UNIT_DIRS: Final = (
    "/etc/systemd/system",
    "/run/systemd/system",
    "/usr/local/lib/systemd/system",
    "/usr/lib/systemd/system",
    "/lib/systemd/system",
)
OCI_RUNTIMES: Final = ("crun", "runc")
# The files that tell a kubelet its runtime's socket.
KUBELET_FILES: Final = (
    "/var/lib/kubelet/config.yaml",
    "/etc/kubernetes/kubelet.conf.d",
    "/var/lib/kubelet/kubeadm-flags.env",
    "/etc/default/kubelet",
    "/etc/sysconfig/kubelet",
)
_ENDPOINT: Final = re.compile(
    r"(?:containerRuntimeEndpoint:|--container-runtime-endpoint[= ])\s*[\"']?(?:unix://)?(/[^\s\"',]+)"
)
# A kubelet that uses Docker through a shim has the shim's socket.
SHIM_SOCKETS: Final = {"/run/cri-dockerd.sock": "/run/docker.sock"}


@dataclass(frozen=True, slots=True, kw_only=True)
class _Distribution:
    """One distribution's default places; it is present if one of ``signs`` exists. Its service is the
    first unit found.
    """

    engine: Engine
    flavour: str
    signs: tuple[str, ...]
    config: str
    drop_in: str = ""
    socket: str
    services: tuple[str, ...]
    binaries: tuple[str, ...]


def _rancher(name: str, *services: str, binary: str) -> _Distribution:
    folder = f"/var/lib/rancher/{name}/agent/etc/containerd"
    return _Distribution(
        engine=Engine.CONTAINERD, flavour=name, signs=(folder,), config=f"{folder}/config.toml",
        socket="/run/k3s/containerd/containerd.sock", services=services, binaries=(binary,),
    )  # fmt: skip


ROWS: Final = (
    _rancher("k3s", "k3s-agent", "k3s", binary="/var/lib/rancher/k3s/data/current/bin/containerd"),
    _rancher("rke2", "rke2-agent", "rke2-server", binary="/var/lib/rancher/rke2/bin/containerd"),
    _Distribution(
        engine=Engine.CONTAINERD, flavour="microk8s",
        signs=("/var/snap/microk8s/current/args/containerd-template.toml",),
        config="/var/snap/microk8s/current/args/containerd-template.toml",
        socket="/var/snap/microk8s/common/run/containerd.sock", services=("snap.microk8s.daemon-containerd",),
        binaries=("/snap/microk8s/current/bin/containerd",),
    ),
    _Distribution(
        engine=Engine.CONTAINERD, flavour="k0s", signs=("/etc/k0s/containerd.toml", "/run/k0s/containerd.sock"),
        config="/etc/k0s/containerd.toml", drop_in=f"/etc/k0s/containerd.d/{DROP_IN}",
        socket="/run/k0s/containerd.sock",
        services=("k0sworker", "k0scontroller"), binaries=("/var/lib/k0s/bin/containerd",),
    ),
    _Distribution(
        engine=Engine.CRIO, flavour="crio", signs=("/etc/crio", "/usr/bin/crio", "/usr/local/bin/crio"),
        config="/etc/crio/crio.conf", drop_in=f"/etc/crio/crio.conf.d/{DROP_IN}", socket="/run/crio/crio.sock",
        services=("crio",), binaries=("/usr/bin/crio", "/usr/local/bin/crio"),
    ),
    _Distribution(
        engine=Engine.CONTAINERD, flavour="containerd",
        signs=(
            "/etc/containerd/config.toml", "/run/containerd/containerd.sock",
            "/usr/bin/containerd", "/usr/local/bin/containerd",
        ),
        config="/etc/containerd/config.toml", drop_in=f"/etc/containerd/conf.d/{DROP_IN}",
        socket="/run/containerd/containerd.sock", services=("containerd",),
        binaries=("/usr/bin/containerd", "/usr/local/bin/containerd"),
    ),
    _Distribution(
        engine=Engine.DOCKER, flavour="docker",
        signs=("/etc/docker/daemon.json", "/run/docker.sock", "/usr/bin/dockerd"),
        config="/etc/docker/daemon.json", socket="/run/docker.sock", services=("docker",),
        binaries=("/usr/bin/dockerd", "/usr/local/bin/dockerd"),
    ),
)  # fmt: skip


def find_places(paths: MountedPaths, *, kubelet_socket: str = "") -> tuple[EnginePlace, ...]:
    """Every engine found on the host, the kubelet's first; empty if there is none.

    ``kubelet_socket`` is the kubelet's container runtime endpoint if known; otherwise the kubelet's own files are read.
    If those don't tell, engines with an existing socket come first.
    """
    wanted = socket_path(kubelet_socket) or kubelets_socket(paths)
    found = [_placed(row, paths) for row in ROWS if any(paths.exists(sign) for sign in row.signs)]
    return tuple(sorted(found, key=lambda place: (place.socket != wanted, not paths.exists(place.socket))))


def place_for(
    engine: Engine,
    paths: MountedPaths,
    *,
    config: str = "",
    drop_in: str | None = None,
    socket: str = "",
    service: str = "",
) -> EnginePlace:
    """The place of this engine as found, or else its default, with the given values replaced.

    ``drop_in`` is None for the default one, "" to edit the main file itself. A ``config`` other than the found one is
    taken as a plain file of that engine.
    """
    places = [place for place in find_places(paths) if place.engine is engine]
    if config:
        matching = [place for place in places if config in {place.config, place.template}]
        plain = _placed(next(row for row in ROWS if row.flavour == engine.value), paths)
        place = matching[0] if matching else replace(plain, config=config)
    else:
        place = places[0] if places else _placed(next(row for row in ROWS if row.flavour == engine.value), paths)
    if drop_in is not None and drop_in != place.drop_in:
        place = replace(place, drop_in=drop_in, imported=False)
    return replace(place, socket=socket_path(socket) or place.socket, service=service or place.service)


def settled(place: EnginePlace) -> EnginePlace:
    """The place, with the template for k3s and RKE2 if a drop-in would need a copy of the CRI table (containerd < 2.1).

    The copy would freeze what they render at each start, such as the folder of CNI plugins.
    """
    merges = place.merges or (place.version is not None and place.version >= DEEP_MERGE)
    if place.flavour not in RENDERED or not place.imported or merges:
        return place
    template = f"{posixpath.dirname(place.drop_in).removesuffix('.d')}.tmpl"
    return replace(place, drop_in="", imported=False, template=template)


def kubelets_socket(paths: MountedPaths) -> str:
    """The runtime's socket in the kubelet's files, "" if they have none."""
    for path in KUBELET_FILES:
        for file in (path, *paths.glob(f"{path}/*.conf")):
            try:
                raw = read(paths, file) or b""
            except UserError:
                continue
            endpoint = _ENDPOINT.search(raw.decode(errors="replace"))
            if endpoint:
                return socket_path(endpoint.group(1))
    return ""


def socket_path(endpoint: str) -> str:
    """A socket's path without its scheme, with /run for /var/run, and the engine's socket for a shim's."""
    path = posixpath.normpath(endpoint.removeprefix("unix://")) if endpoint else ""
    path = path.removeprefix("/var") if path.startswith("/var/run/") else path
    return SHIM_SOCKETS.get(path, path)


def _placed(row: _Distribution, paths: MountedPaths) -> EnginePlace:
    place = EnginePlace(
        engine=row.engine,
        flavour=row.flavour,
        config=row.config,
        drop_in=row.drop_in,
        socket=row.socket,
        service=next((name for name in row.services if _has_unit(paths, name)), row.services[-1]),
        binary=next((path for path in row.binaries if paths.exists(path)), ""),
        oci=tuple(
            f"{folder}/{name}" for name in OCI_RUNTIMES for folder in BINARY_DIRS if paths.exists(f"{folder}/{name}")
        ),
    )
    if row.flavour in RENDERED:
        return _rendered(place, paths)
    if row.flavour == "k0s":
        managed = (_read(paths, place.config) or K0S_MARK).startswith(K0S_MARK)
        return replace(place, imported=managed, merges=managed)
    if row.flavour == "containerd":
        return replace(place, socket=_told_socket(place, paths))
    return place


def _told_socket(place: EnginePlace, paths: MountedPaths) -> str:
    """The socket from containerd's own config, else the place's."""
    try:
        told = TomlFile(_read(paths, place.config), place.config).get(("grpc", "address"))
    except UserError:
        told = None
    return socket_path(told) if isinstance(told, str) and told else place.socket


def _rendered(place: EnginePlace, paths: MountedPaths) -> EnginePlace:
    """The place for k3s and RKE2: a drop-in if the rendered config imports a folder for it, else the template."""
    folder = posixpath.dirname(place.config)
    try:
        main = TomlFile(_read(paths, place.config), place.config)
        patterns, version = import_patterns(main), main.get(("version",), 0)
    except UserError:
        patterns, version = (), 0
    for name in ("config-v3.toml.d", "config.toml.d"):
        drop_in = f"{folder}/{name}/{DROP_IN}"
        if any(matches(pattern, drop_in) for pattern in patterns):
            return replace(place, drop_in=drop_in, imported=True)
    modern = isinstance(version, int) and version > 2
    return replace(place, template=f"{folder}/{'config-v3.toml.tmpl' if modern else 'config.toml.tmpl'}")


def _has_unit(paths: MountedPaths, service: str) -> bool:
    return any(paths.exists(f"{folder}/{service}.service") for folder in UNIT_DIRS)


def _read(paths: MountedPaths, path: str) -> bytes | None:
    try:
        return read(paths, path)
    except UserError:
        return None
