"""The table of capabilities: rows that fit longest, places that say more than names, and the unknown."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kgpu.formats.image_env import CAPABILITIES, DEFAULT_CAPABILITIES
from kgpu.host.driver.capabilities import _NAMES, EVERY, capability_of, wanted

LIB = "/usr/lib/x86_64-linux-gnu"


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        (f"{LIB}/libcuda.so.550.54.15", {"compute", "video"}),
        (f"{LIB}/libcuda.so", {"compute", "video"}),
        (f"{LIB}/libcudadebugger.so.1", {"compute", "video"}),
        (f"{LIB}/libnvidia-ml.so.1", {"utility"}),
        (f"{LIB}/libnvidia-pkcs11-openssl3.so.550.54.15", {"compute", "video"}),
        (f"{LIB}/libnvidia-nvvm70.so.4", {"compute", "video"}),
        (f"{LIB}/libnvcuvid.so.1", {"video"}),
        (f"{LIB}/vdpau/libvdpau_nvidia.so.1", {"video"}),
        (f"{LIB}/libGLX_nvidia.so.0", {"graphics", "display"}),
        (f"{LIB}/gbm/nvidia-drm_gbm.so", {"graphics", "display"}),
        (f"{LIB}/libnvidia-ngx.so.1", {"ngx"}),
        ("/usr/lib64/libnvidia-allocator.so.1", {"compute", "video", "graphics", "display"}),
        ("/usr/lib/i386-linux-gnu/libcuda.so.1", {"compat32"}),
        ("/usr/lib/libcuda.so.1", {"compute", "video"}),  # 64-bit where a host has one folder for all
        ("/usr/bin/nvidia-smi", {"utility"}),
        ("/usr/bin/nvidia-cuda-mps-server", {"compute", "video"}),
        ("/usr/lib/xorg/modules/drivers/nvidia_drv.so", {"graphics", "display"}),
        ("/usr/share/glvnd/egl_vendor.d/10_nvidia.json", {"graphics", "display"}),
        ("/etc/OpenCL/vendors/nvidia.icd", {"compute", "video"}),
        ("/etc/vulkan/icd.d/nvidia_icd.json", {"graphics", "display"}),
        ("/tmp/nvidia-mps", {"compute", "video"}),
        ("/lib/firmware/nvidia/550.54.15/gsp_ga10x.bin", EVERY),
        ("/run/nvidia-persistenced/socket", EVERY),
        (f"{LIB}/libnvidia-brand-new.so.1", EVERY),
    ],
)
def test_rows(path: str, expected: set[str]) -> None:
    assert capability_of(path) == expected


def test_every_row_is_reached_and_names_known_capabilities() -> None:
    for name, capabilities in _NAMES.items():
        assert capability_of(name) == capabilities <= EVERY


def test_the_default_brings_cuda_and_smi_but_no_drawing() -> None:
    paths = [f"{LIB}/libcuda.so.1", "/usr/bin/nvidia-smi", f"{LIB}/libGLX_nvidia.so.0", f"{LIB}/libnvidia-encode.so.1"]
    assert [path for path in paths if wanted(path, DEFAULT_CAPABILITIES)] == paths[:2]
    assert all(wanted(path, {"all"}) for path in paths)
    assert not any(wanted(path, ()) for path in paths)


@given(st.text(max_size=60), st.sets(st.sampled_from(CAPABILITIES)))
def test_more_capabilities_never_bring_less(path: str, asked: set[str]) -> None:
    assert wanted(path, {"all"})
    assert wanted(path, EVERY)
    for more in CAPABILITIES:
        assert wanted(path, asked | {more}) >= wanted(path, asked)
