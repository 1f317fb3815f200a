"""The flags and variables of NVIDIA's DRA kubelet plugin, as rows: those in effect, and those without meaning here.

What only tells where the driver is, the agent knows by itself.
"""

from __future__ import annotations

from functools import partial
from typing import Final

from kgpu.formats.names import CDI_DIR, KUBELET_ROOT
from kgpu.formats.settings import Restart, Setting

_row = partial(Setting, metavar="VALUE", restart=Restart.PROCESS)
_AGENT: Final = "the agent serves it on its own address"
_DRIVER: Final = "kgpu finds the driver and its device nodes itself"

FLAGS: Final = (
    _row(attr="feature_gates", flag="--feature-gates", envs=("FEATURE_GATES",), metavar="NAME=BOOL,...",
         help="Gates of NVIDIA's DRA driver, such as DynamicMIG=true."),
    _row(attr="ignored_xids", flag="--additional-xids-to-ignore", envs=("ADDITIONAL_XIDS_TO_IGNORE",),
         metavar="XID,...", help="Xids that keep no claim away, whatever health says."),
    _row(attr="cdi_root", flag="--cdi-root", envs=("CDI_ROOT",), default=CDI_DIR,
         help="The folder of the claims' CDI specs, here and on the host."),
    _row(attr="registrar", flag="--kubelet-registrar-directory-path", envs=("KUBELET_REGISTRAR_DIRECTORY_PATH",),
         default=f"{KUBELET_ROOT}/plugins_registry", help="Where the kubelet looks for plugins."),
    _row(attr="plugins", flag="--kubelet-plugins-directory-path", envs=("KUBELET_PLUGINS_DIRECTORY_PATH",),
         default=f"{KUBELET_ROOT}/plugins", help="Where plugins have their sockets; records of claims are there, too."),
)  # fmt: skip
"""What is in effect."""

WITHOUT: Final = (
    _row(attr="hook", flag="--nvidia-cdi-hook-path", envs=("NVIDIA_CDI_HOOK_PATH",), idle="specs have no hooks"),
    _row(attr="health_port", flag="--healthcheck-port", envs=("HEALTHCHECK_PORT",), idle=_AGENT, usual=("-1",)),
    _row(attr="http_endpoint", flag="--http-endpoint", envs=("HTTP_ENDPOINT",), idle=_AGENT),
    _row(attr="metrics_path", flag="--metrics-path", envs=("METRICS_PATH",), idle=_AGENT, usual=("/metrics",)),
    _row(attr="proc_devices", flag="--alt-proc-devices-path", envs=("ALT_PROC_DEVICES_PATH",), idle=_DRIVER),
    _row(attr="mask_params", flag="--mask-nvidia-driver-params", envs=("MASK_NVIDIA_DRIVER_PARAMS",), idle=_DRIVER,
         usual=("false",)),
)  # fmt: skip
"""What has no meaning here: taken, and told where it asks for something else than is so anyway."""

ROLE_FLAGS: Final = (*FLAGS, *WITHOUT)
