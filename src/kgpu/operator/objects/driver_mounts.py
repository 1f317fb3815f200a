"""The files that a driver pod gets besides the host's folders: repositories, certificates, licences, module parameters
and subscriptions. Their paths depend on the operating system's package manager.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from kgpu.base.errors import ConfigError
from kgpu.operator.model import Object
from kgpu.operator.objects.common import host_volume, mount
from kgpu.operator.objects.driver_settings import DriverSettings
from kgpu.operator.objects.openshift import CA_KEY, TRUSTED_CA
from kgpu.operator.objects.pools import Pool


@dataclass(frozen=True, slots=True)
class Files:
    """Volumes of the pod, and the driver container's mounts of them."""

    volumes: list[Object]
    mounts: list[Object]


# (operating systems, folder of package repositories, folder of certificates)
_FOLDERS: Final = (
    (("centos", "rhcos", "rhel", "rocky", "ol"), "/etc/yum.repos.d", "/etc/pki/ca-trust/extracted/pem"),
    (("debian", "ubuntu"), "/etc/apt/sources.list.d", "/usr/local/share/ca-certificates"),
    (("sles", "sl-micro"), "/etc/zypp/repos.d", "/etc/pki/trust/anchors"),
)
FOLDERS: Final = {system: (repos, certs) for systems, repos, certs in _FOLDERS for system in systems}

# (operating systems, volume, path on the host, its kind, path in the container) of package subscriptions.
_SUSE: Final = ("sles", "sl-micro")
_SUBSCRIPTIONS: Final = (
    (("rhel",), "rhel-entitlement", "/etc/pki/entitlement", "Directory", "/run/secrets/etc-pki-entitlement"),
    (("rhel",), "rhel-repo", "/etc/yum.repos.d/redhat.repo", "File", "/run/secrets/redhat.repo"),
    (("rhel",), "rhel-rhsm", "/etc/rhsm", "Directory", "/run/secrets/rhsm"),
    (_SUSE, "suse-credentials", "/etc/zypp/credentials.d", "Directory", "/etc/zypp/credentials.d"),
    (_SUSE, "suse-connect", "/etc/SUSEConnect", "FileOrCreate", "/etc/SUSEConnect"),
)

LICENSE_FILE: Final = "gridd.conf"
LICENSE_TOKEN: Final = "client_configuration_token.tok"  # noqa: S105 - a file's name
CA_FOLDER: Final = "/etc/pki/ca-trust/extracted/pem"
CA_FILE: Final = "tls-ca-bundle.pem"
"""Where programs on Red Hat's systems look for certificates."""
TOPOLOGY_FILE: Final = "nvidia-topologyd.conf"


def files(
    settings: DriverSettings, pool: Pool, config_maps: Mapping[str, frozenset[str]], *, trusted_ca: bool = False
) -> Files:
    """All the files. ``config_maps`` has the keys of the ConfigMaps in the operator's namespace; ``trusted_ca``: there
    is the one with the certificates of OpenShift's proxy. Raises ConfigError.
    """
    files = Files([], [])
    if settings.repositories or settings.certificates:
        _package_files(files, settings, pool, config_maps)
    if settings.license_secret or settings.license_map:
        _license(files, settings)
    if settings.topology:
        _require(settings.what, settings.topology, config_maps, key=TOPOLOGY_FILE)
        files.volumes.append(_config_volume("topology-config", settings.topology, [TOPOLOGY_FILE]))
        files.mounts.append(mount("topology-config", f"/etc/nvidia/{TOPOLOGY_FILE}", sub_path=TOPOLOGY_FILE))
    if settings.module_config:
        keys = _require(settings.what, settings.module_config, config_maps)
        files.volumes.append(_config_volume("kernel-module-params", settings.module_config, keys))
        files.mounts.extend(
            mount("kernel-module-params", f"/drivers/{key}", read_only=True, sub_path=key) for key in keys
        )
    if trusted_ca:
        _trusted_ca(files)
    _host_files(files, settings, pool)
    return files


def _trusted_ca(files: Files) -> None:
    """The certificates as the whole folder, which follows when OpenShift writes others; a single file where the
    policy's certificates are in that folder, unless that file is among them.
    """
    beside = [entry["mountPath"] for entry in files.mounts if entry["mountPath"].startswith(f"{CA_FOLDER}/")]
    path = f"{CA_FOLDER}/{CA_FILE}"
    if path in beside:
        return
    files.volumes.append(
        {"name": TRUSTED_CA, "configMap": {"name": TRUSTED_CA, "items": [{"key": CA_KEY, "path": CA_FILE}]}}
    )
    single = mount(TRUSTED_CA, path, read_only=True, sub_path=CA_FILE)
    files.mounts.append(single if beside else mount(TRUSTED_CA, CA_FOLDER, read_only=True))


def _package_files(
    files: Files, settings: DriverSettings, pool: Pool, config_maps: Mapping[str, frozenset[str]]
) -> None:
    if pool.os_id not in FOLDERS:
        raise ConfigError(
            f'{settings.what}: package repositories or certificates for the operating system "{pool.os_id}"',
            f"one of {', '.join(FOLDERS)}",
            "remove repoConfig and certConfig, or keep the driver off these nodes",
        )
    rows = zip(
        ("repo-config", "cert-config"), (settings.repositories, settings.certificates), FOLDERS[pool.os_id], strict=True
    )
    for volume, name, folder in rows:
        if name:
            # Each file is mounted separately, so that the image's own files in the folder stay.
            keys = _require(settings.what, name, config_maps)
            files.volumes.append(_config_volume(volume, name, keys))
            files.mounts.extend(mount(volume, f"{folder}/{key}", read_only=True, sub_path=key) for key in keys)


def _license(files: Files, settings: DriverSettings) -> None:
    keys = [LICENSE_FILE, *([LICENSE_TOKEN] if settings.token else [])]
    items = [{"key": key, "path": key} for key in keys]
    if settings.license_secret:
        volume: Object = {"name": "licensing-config", "secret": {"secretName": settings.license_secret, "items": items}}
    else:
        volume = _config_volume("licensing-config", settings.license_map, keys)
    files.volumes.append(volume)
    targets = {LICENSE_FILE: f"/drivers/{LICENSE_FILE}", LICENSE_TOKEN: f"/drivers/ClientConfigToken/{LICENSE_TOKEN}"}
    files.mounts.extend(mount("licensing-config", targets[key], read_only=True, sub_path=key) for key in keys)


def _host_files(files: Files, settings: DriverSettings, pool: Pool) -> None:
    # With custom repositories no subscription is needed, and CRI-O, which RHCOS has, mounts the host's by itself.
    own = settings.repositories or pool.rhcos or (pool.os_id == "rhel" and pool.engine_mounts)
    for systems, name, source, kind, target in _SUBSCRIPTIONS:
        if pool.os_id in systems and not own:
            files.volumes.append(host_volume(name, source, kind))
            files.mounts.append(mount(name, target, read_only=True))
    if pool.kernel and pool.os_id in _SUSE:
        files.volumes.append(host_volume("lib-modules", "/lib/modules", "Directory"))
        files.mounts.append(mount("lib-modules", "/run/host/lib/modules", read_only=True))


def _config_volume(volume: str, name: str, keys: list[str]) -> Object:
    return {"name": volume, "configMap": {"name": name, "items": [{"key": key, "path": key} for key in keys]}}


def _require(what: str, name: str, config_maps: Mapping[str, frozenset[str]], *, key: str = "") -> list[str]:
    """The keys of a ConfigMap that has to exist. Raises ConfigError if it, or the ``key``, is missing."""
    keys = config_maps.get(name)
    if not keys or (key and key not in keys):
        state = "does not exist" if keys is None else f'has no key "{key}"' if key else "is empty"
        raise ConfigError(
            f'{what}: the ConfigMap "{name}" {state}',
            "a ConfigMap in the operator's namespace" + (f' with the key "{key}"' if key else " with one key per file"),
            f"create it, or correct its name in {what}",
        )
    return sorted(keys)
