"""The flags and variables of nvidia-mig-manager, as rows: those that are in effect, and those that have no meaning
here, each with the reason.

They are data of their own because both the role and the operator, which reads them in a ClusterPolicy's
``migManager.env``, tell their users.
"""

from __future__ import annotations

from functools import partial
from typing import Final

from kgpu.formats.go_flags import read_bool
from kgpu.formats.names import DRIVER_INSTALL_DIR, HOST_ROOT
from kgpu.formats.settings import FlagShape, Restart, Setting

_row = partial(Setting, metavar="VALUE")
_switch = partial(Setting, metavar="BOOL", shape=FlagShape.SWITCH, read=read_bool)
_NO_SCRIPT: Final = "kgpu cuts GPUs itself and puts no programs on the host"
_KUBELET: Final = "the kubelet is never stopped for a change of slices"
_CDI: Final = "kgpu's toolkit follows every change of slices by itself"
_DEVICES: Final = "kgpu finds device nodes where the driver is"

FLAGS: Final = (
    _row(attr="config_file", flag="--config-file", aliases=("-f",), envs=("CONFIG_FILE",), restart=Restart.NONE,
         help="Configs by name, in mig-parted's form; followed. Without it they are made for the node's GPUs."),
    _row(attr="default_config_file", envs=("DEFAULT_CONFIG_FILE",), restart=Restart.NONE,
         help="The same, for names that are not among those made for the node's GPUs; followed."),
    _row(attr="host_root", flag="--host-root-mount", aliases=("-m",), envs=("HOST_ROOT_MOUNT",), default=HOST_ROOT,
         help="The host's root, whose services are stopped."),
    _row(attr="clients_file", flag="--gpu-clients-file", aliases=("-g",), envs=("GPU_CLIENTS_FILE",),
         restart=Restart.NONE,
         help="The host's services that use GPUs."),
    _switch(attr="stop_clients", flag="--with-shutdown-host-gpu-clients", aliases=("-d",), default=False,
            envs=("WITH_SHUTDOWN_HOST_GPU_CLIENTS",),
            help="Stop those services while a GPU is reset for its MIG mode, and start them again."),
)  # fmt: skip
"""What is in effect."""

PROCESS: Final = (
    _row(attr="kubeconfig", flag="--kubeconfig", envs=("KUBECONFIG",),
         help="How to reach the API server. Default: in-cluster."),
    _row(attr="node_name", flag="--node-name", aliases=("-n",), envs=("NODE_NAME",), help="The Node to follow."),
    _row(attr="driver_root", flag="--nvidia-driver-root", aliases=("-t",), envs=("NVIDIA_DRIVER_ROOT", "DRIVER_ROOT"),
         help="Where the driver is on the host."),
    _row(attr="container_driver_root", flag="--driver-root-ctr-path", aliases=("-a",), envs=("DRIVER_ROOT_CTR_PATH",),
         help="Where it is in the container."),
)  # fmt: skip
"""What the program takes beside; an agent knows it by itself."""

WITHOUT: Final = (
    _row(attr="script", flag="--reconfigure-script", aliases=("-s",), envs=("RECONFIGURE_SCRIPT",), idle=_NO_SCRIPT,
         usual=("/usr/bin/reconfigure-mig.sh",)),
    _row(attr="host_folder", flag="--host-nvidia-dir", aliases=("-i",), envs=("HOST_NVIDIA_DIR",), idle=_NO_SCRIPT,
         usual=("/usr/local/nvidia",)),
    _row(attr="state_file", flag="--host-mig-manager-state-file", aliases=("-o",),
         envs=("HOST_MIG_MANAGER_STATE_FILE",),
         idle="what is chosen stands in the Node's label, which is followed at every start of the node",
         usual=("/etc/systemd/system/nvidia-mig-manager.service.d/override.conf",)),
    _row(attr="kubelet", flag="--host-kubelet-systemd-service", aliases=("-k",), envs=("HOST_KUBELET_SYSTEMD_SERVICE",),
         idle=_KUBELET, usual=("kubelet.service",)),
    _switch(attr="reboot", flag="--with-reboot", aliases=("-r",), envs=("WITH_REBOOT",), default=False,
            idle="a MIG mode is put in force by a reset of the GPU or taken back, and nodes boot anew only by an "
            "operation that empties them (`kgpu node reboot`)"),
    _row(attr="namespace", flag="--default-gpu-clients-namespace", aliases=("-p",),
         envs=("DEFAULT_GPU_CLIENTS_NAMESPACE",), usual=("default",),
         idle="pods that use a GPU are found by the kubelet's word, in every namespace"),
    _row(attr="dev_root", flag="--dev-root", aliases=("-b",), envs=("NVIDIA_DEV_ROOT", "DEV_ROOT"), idle=_DEVICES,
         usual=("/", DRIVER_INSTALL_DIR)),
    _row(attr="container_dev_root", flag="--dev-root-ctr-path", aliases=("-j",), envs=("DEV_ROOT_CTR_PATH",),
         idle=_DEVICES, usual=("/", DRIVER_INSTALL_DIR, HOST_ROOT, "/driver-root")),
    _switch(attr="cdi", flag="--cdi-enabled", envs=("CDI_ENABLED",), default=False, idle=_CDI, usual=(True,)),
    _row(attr="cdi_hook", flag="--nvidia-cdi-hook-path", envs=("NVIDIA_CDI_HOOK_PATH",), idle=_CDI,
         usual=("/usr/local/nvidia/toolkit/nvidia-cdi-hook",)),
)  # fmt: skip
"""What has no meaning here: taken, and told where it asks for something else than is so anyway."""

ROLE_FLAGS: Final = (*FLAGS, *WITHOUT)
"""What the role takes in its arguments and environment."""
