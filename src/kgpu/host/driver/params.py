"""/proc/driver/nvidia/params: whether the driver's libraries make and change device nodes, also inside containers.

With ``ModifyDeviceFiles: 1`` (the default) a root process in a container that may make nodes gets /dev/nvidiaN of every
GPU; the device cgroup still refuses to open those that the container was not given. The replaced program hides the file
with a hook that mounts over it. A CDI mount can't do that: runc refuses every mount inside /proc except a few files
that lxcfs emulates (its checkProcMount), so the container would not start; crun has no such rule. So a prepared file is
used only if the caller says that the runtime accepts it; otherwise the report has the remedy.
"""

from __future__ import annotations

import re
from typing import Final

from kgpu.host.driver.model import Item, Search
from kgpu.host.driver.programs import proc_of
from kgpu.host.root import DriverRoot, read_some

PARAMS: Final = "/proc/driver/nvidia/params"
MAX_PARAMS: Final = 64 << 10
_LINE: Final = re.compile(r"^(ModifyDeviceFiles:[ \t]*)(\d+)[ \t]*$", re.MULTILINE | re.ASCII)


def read_params(root: DriverRoot, search: Search | None = None) -> str:
    """The text of this node's (or the simulated root's) params, "" if there is none."""
    return read_some(proc_of(root, search or Search()) / "driver/nvidia/params", MAX_PARAMS).decode(errors="replace")


def modifies_device_files(params: str) -> bool:
    """True if the text says ``ModifyDeviceFiles: 1``."""
    return any(int(match[2]) for match in _LINE.finditer(params))


def prepared_params(params: str) -> str | None:
    """The text with ``ModifyDeviceFiles: 0``; None if nothing has to change (it is 0 already or missing)."""
    return _LINE.sub(r"\g<1>0", params) if modifies_device_files(params) else None


def params_item(params: str) -> Item:
    """The report's item about the node's setting."""
    if not modifies_device_files(params):
        return Item(kind="params", name="ModifyDeviceFiles", found=True, path=PARAMS if params else "")
    return Item(
        kind="params",
        name="ModifyDeviceFiles",
        found=False,
        path=PARAMS,
        why="the driver's libraries make device nodes in containers (ModifyDeviceFiles: 1)",
        breaks="nodes of other GPUs may appear in a container's /dev, where opening them is refused;"
        " load the nvidia module with NVreg_ModifyDeviceFiles=0, or use a spec with hooks",
        optional=True,
    )
