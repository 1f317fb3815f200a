"""The container and the volumes of pods that act on nodes. Pure.

To reboot, a pod needs no more than to signal the machine's first process. A reset needs more: the driver's control node
takes a reset only from who has SYS_ADMIN, no device plugin gives out a GPU that is to be reset, and a pod gets no other
device nodes unless it is privileged. nvidia-smi runs in the driver's root below the host's, which brings its own
``/dev``, ``/proc`` and ``/sys``; the mount follows a driver container that starts later. With hostPID ``/proc`` tells
who has a GPU open.
"""

from __future__ import annotations

from typing import Any, Final, TypeAlias

from kgpu.formats import names

Object: TypeAlias = dict[str, Any]
NAME: Final = "act"
_RUN: Final = "run"
_HOST: Final = "host-root"
_DRIVER: Final = "driver-install-dir"


def reset_container(
    act_id: str, boot_id: str, gpus: tuple[str, ...], image: str, pull_policy: str, *,
    driver_install_dir: str = names.DRIVER_INSTALL_DIR, root_fs: str = "/",
) -> Object:  # fmt: skip
    """The container that resets these GPUs (UUIDs). ``driver_install_dir`` is the driver container's root on the host,
    ``root_fs`` the host's root on its nodes.

    Its pod needs hostPID, and ``reset_volumes`` of the same paths.
    """
    install_dir = [] if driver_install_dir == names.DRIVER_INSTALL_DIR else [driver_install_dir]
    mounts: list[Object] = [
        {"name": _RUN, "mountPath": names.RUN_DIR},
        {"name": _HOST, "mountPath": names.HOST_ROOT, "readOnly": True, "mountPropagation": "HostToContainer"},
    ]
    if _is_apart(driver_install_dir, root_fs):
        place = names.HOST_ROOT + driver_install_dir
        mounts.append({"name": _DRIVER, "mountPath": place, "mountPropagation": "HostToContainer"})
    return {
        "name": NAME,
        "image": image,
        "imagePullPolicy": pull_policy,
        "args": [
            "act", "reset-gpu", f"--id={act_id}", f"--boot-id={boot_id}", *(f"--gpu={uuid}" for uuid in gpus),
            *(f"--driver-install-dir={folder}" for folder in install_dir),
        ],
        "securityContext": {
            "privileged": True, "runAsUser": 0, "runAsNonRoot": False, "readOnlyRootFilesystem": True,
        },
        "resources": {"requests": {"cpu": "10m", "memory": "64Mi"}, "limits": {"memory": "256Mi"}},
        "volumeMounts": mounts,
        "terminationMessagePolicy": "FallbackToLogsOnError",
    }  # fmt: skip


def reset_volumes(*, driver_install_dir: str = names.DRIVER_INSTALL_DIR, root_fs: str = "/") -> list[Object]:
    """The volumes of that container."""
    volumes: list[Object] = [
        {"name": _RUN, "hostPath": {"path": names.RUN_DIR, "type": "DirectoryOrCreate"}},
        {"name": _HOST, "hostPath": {"path": root_fs, "type": ""}},
    ]
    if _is_apart(driver_install_dir, root_fs):
        volumes.append({"name": _DRIVER, "hostPath": {"path": driver_install_dir, "type": "DirectoryOrCreate"}})
    return volumes


def _is_apart(driver_install_dir: str, root_fs: str) -> bool:
    """Whether the driver's folder gets a mount of its own: below ``/run`` it is writable as it is, and a folder that is
    no mount on the host would be as read-only as the host's root.
    """
    return root_fs == "/" and not driver_install_dir.startswith("/run/")


def reboot_container(act_id: str, boot_id: str, image: str, pull_policy: str) -> Object:
    """The container that asks the machine to reboot: its only capability is to signal. Its pod needs hostPID."""
    return {
        "name": NAME,
        "image": image,
        "imagePullPolicy": pull_policy,
        "args": ["act", "reboot", f"--id={act_id}", f"--boot-id={boot_id}"],
        "securityContext": {
            "runAsUser": 0,
            "runAsNonRoot": False,
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"], "add": ["KILL"]},
            "appArmorProfile": {"type": "Unconfined"},  # a profile would keep the signal from the machine
            "seccompProfile": {"type": "RuntimeDefault"},
        },
        "resources": {"requests": {"cpu": "10m", "memory": "48Mi"}, "limits": {"memory": "128Mi"}},
        "volumeMounts": [{"name": _RUN, "mountPath": names.RUN_DIR}],
        "terminationMessagePolicy": "FallbackToLogsOnError",
    }


def reboot_volumes() -> list[Object]:
    """The volumes of that container."""
    return [{"name": _RUN, "hostPath": {"path": names.RUN_DIR, "type": "DirectoryOrCreate"}}]
