"""Maps driver files to NVIDIA_DRIVER_CAPABILITIES: a table and two functions. Pure."""

from __future__ import annotations

import functools
import posixpath
from collections.abc import Collection
from typing import Final

from kgpu.formats.image_env import CAPABILITIES

EVERY: Final = frozenset(CAPABILITIES)

_UTILITY: Final = frozenset({"utility"})
_COMPUTE: Final = frozenset({"compute", "video"})  # the video capability has always included CUDA
_VIDEO: Final = frozenset({"video"})
_DRAWING: Final = frozenset({"graphics", "display"})
_COMPUTE_AND_DRAWING: Final = _COMPUTE | _DRAWING
_COMPAT32: Final = frozenset({"compat32"})

# Prefix of a file name -> capabilities; the longest match counts. Libraries and programs are the legacy runtime's rows;
# the rows that it lacked (from the dispatch libraries on) follow from what uses the file.
_NAMES: Final = {
    "libnvidia-ml.": _UTILITY,
    "libnvidia-cfg": _UTILITY,
    "libnvidia-nscq": _UTILITY,
    "nvidia-smi": _UTILITY,
    "nvidia-debugdump": _UTILITY,
    "nvidia-persistenced": _UTILITY,
    "nv-fabricmanager": _UTILITY,
    "libcuda.": _COMPUTE,
    "libcudadebugger": _COMPUTE,
    "libnvidia-opencl": _COMPUTE,
    "libnvidia-gpucomp": _COMPUTE_AND_DRAWING,  # the shader compilers load it too
    "libnvidia-ptxjitcompiler": _COMPUTE,
    "libnvidia-fatbinaryloader": _COMPUTE,
    "libnvidia-allocator": _COMPUTE_AND_DRAWING,  # also Mesa's buffer manager
    "libnvidia-compiler": _COMPUTE,
    "libnvidia-pkcs11": _COMPUTE,
    "libnvidia-nvvm": _COMPUTE,
    "libnvidia-tileiras": _COMPUTE,
    "nvidia-cuda-mps-control": _COMPUTE,
    "nvidia-cuda-mps-server": _COMPUTE,
    "libvdpau_nvidia": _VIDEO,
    "libnvidia-encode": _VIDEO,
    "libnvidia-opticalflow": _VIDEO,
    "libnvcuvid": _VIDEO,
    "libnvidia-eglcore": _DRAWING,
    "libnvidia-glcore": _DRAWING,
    "libnvidia-tls": _DRAWING,
    "libnvidia-glsi": _DRAWING,
    "libnvidia-fbc": _DRAWING,
    "libnvidia-ifr": _DRAWING,
    "libnvidia-rtcore": _DRAWING,
    "libnvoptix": _DRAWING,
    "libGLX_nvidia": _DRAWING,
    "libEGL_nvidia": _DRAWING,
    "libGLESv2_nvidia": _DRAWING,
    "libGLESv1_CM_nvidia": _DRAWING,
    "libnvidia-glvkspirv": _DRAWING,
    "libnvidia-cbl": _DRAWING,
    "libnvidia-ngx": frozenset({"ngx"}),
    "libGLX_indirect": _DRAWING,
    "libEGL.": _DRAWING,
    "libGL.": _DRAWING,
    "libGLX.": _DRAWING,
    "libGLdispatch.": _DRAWING,
    "libGLESv1_CM.": _DRAWING,
    "libGLESv2.": _DRAWING,
    "libOpenGL.": _DRAWING,
    "libOpenCL.": _COMPUTE,
    "libnvidia-egl-": _DRAWING,
    "libnvidia-gtk": _DRAWING,
    "libnvidia-vulkan-producer": _DRAWING,
    "libnvidia-wayland-client": _DRAWING,
    "libnvidia-present": _DRAWING,
    "libnvidia-vksc-core": _DRAWING,
    "libglxserver_nvidia": _DRAWING,
    "libnvidia-sandboxutils": _UTILITY,
    "nvidia-drm_gbm.so": _DRAWING,
    "nvidia_drv.so": _DRAWING,
    "nvidia-xconfig": _DRAWING,
    "nvidia-imex": _COMPUTE,
    "nvoptix.bin": _DRAWING,
    "nvidia.icd": _COMPUTE,
    "nvidia-mps": _COMPUTE,
}
# Part of a container path -> capabilities, checked first: here the folder says more than the name.
_FOLDERS: Final = {
    "/glvnd/": _DRAWING,
    "/egl/": _DRAWING,
    "/vulkan/": _DRAWING,
    "/X11/": _DRAWING,
    "/i386-linux-gnu/": _COMPAT32,
    "/usr/lib32/": _COMPAT32,
}
_LONGEST: Final = max(map(len, _NAMES))


def capability_of(path: str) -> frozenset[str]:
    """The capabilities that include this file (a library, program or other driver file, by name or container path).

    A file without a row belongs to every capability: too many files are better than a broken driver.
    """
    for part, capabilities in _FOLDERS.items():
        if part in path:
            return capabilities
    return _of_name(posixpath.basename(path))


def wanted(path: str, asked: Collection[str]) -> bool:
    """Whether a container that asks for these capabilities gets this file; ``all`` asks for every one."""
    return "all" in asked or not capability_of(path).isdisjoint(asked)


@functools.lru_cache(maxsize=2048)
def _of_name(name: str) -> frozenset[str]:
    for size in range(min(len(name), _LONGEST), 0, -1):
        if (found := _NAMES.get(name[:size])) is not None:
            return found
    return EVERY
