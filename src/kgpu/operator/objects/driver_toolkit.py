"""The container in which drivers are built on RHCOS: OpenShift's driver toolkit, with the headers of the node's kernel.

It and the driver's container work together through a shared folder, by the programs of NVIDIA's image: that container
copies itself and its environment there and waits for modules, the toolkit's builds them.
"""

from __future__ import annotations

from typing import Final

from kgpu.formats import names
from kgpu.operator.model import Object
from kgpu.operator.objects.common import HOST_TO_CONTAINER, env_list, manifest_of, mount
from kgpu.operator.objects.driver_containers import DIGEST, ENTRY_POINT, PRIVILEGED, SHARED, SHARED_PATH, switches
from kgpu.operator.objects.driver_settings import DriverSettings
from kgpu.operator.objects.openshift import TOOLKIT, BuildToolkit

SHARED_VOLUME: Final[Object] = {"name": SHARED, "emptyDir": {}}

_BUILD: Final = (
    f"until [ -f {SHARED_PATH}/dir_prepared ]; do echo waiting for {names.DRIVER_CONTAINER}; sleep 10; done;"
    f" exec {SHARED_PATH}/{ENTRY_POINT} dtk-build-driver"
)
# (volume of the pod, path in the container, read only, propagation)
_MOUNTS: Final = (
    (SHARED, SHARED_PATH, False, ""),
    ("var-log", "/var/log", False, ""),
    ("mlnx-ofed-usr-src", "/run/mellanox/drivers/usr/src", False, HOST_TO_CONTAINER),
    ("host-os-release", "/host-etc/os-release", True, ""),
    ("firmware-search-path", "/sys/module/firmware_class/parameters/path", False, ""),
    ("nv-firmware", "/lib/firmware", False, ""),
)


def container(settings: DriverSettings, toolkit: BuildToolkit, image: str, number: str) -> Object:
    """The toolkit's container; ``image`` is the driver's where there is no toolkit for these nodes."""
    env = {"RHCOS_VERSION": toolkit.rhcos, names.ENV_VISIBLE_DEVICES: "void", DIGEST: number, **switches(settings)}
    env |= {} if toolkit.image else {"RHCOS_IMAGE_MISSING": "true"}
    made: Object = {
        "name": TOOLKIT,
        "image": image,
        "imagePullPolicy": settings.driver.pull_policy,
        "command": ["bash", "-c"],
        "args": [_BUILD],
        "env": env_list(env),
        "securityContext": PRIVILEGED,
        "volumeMounts": [mount(name, path, read_only=ro, propagation=how) for name, path, ro, how in _MOUNTS],
    }
    if settings.resources is not None:
        made["resources"] = manifest_of(settings.resources)
    return made
