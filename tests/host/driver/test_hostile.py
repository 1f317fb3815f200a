"""Roots of random files, links, pipes and folders with a driver's names: found or refused, but never led astray."""

from __future__ import annotations

import os
import stat
from pathlib import Path

from hypothesis import HealthCheck, given
from hypothesis import strategies as st

from kgpu.base.errors import HostError
from kgpu.formats.cdi import CdiDevice, CdiDeviceNode, build_spec, dump_spec, parse_spec
from kgpu.host.driver.edits import driver_edits, host_edits, link_pairs
from kgpu.host.driver.find import find_driver_files
from kgpu.host.driver.model import Search
from kgpu.host.root import DriverRoot
from tests.budget import tries
from tests.host.tree import elf

V = "550.54.15"
PLACES = (
    f"usr/lib64/libcuda.so.{V}",
    "usr/lib64/libcuda.so.1",
    f"usr/lib64/libnvidia-ml.so.{V}",
    f"usr/lib64/vdpau/libvdpau_nvidia.so.{V}",
    f"usr/lib64/libnvidia-allocator.so.{V}",
    f"nix/store/x/lib/libnvidia-encode.so.{V}",
    f"usr/lib64/libnvidia-encode.so.{V}",
    "usr/bin/nvidia-smi",
    "run/nvidia-persistenced/socket",
    "tmp/nvidia-mps",
    f"lib/firmware/nvidia/{V}/gsp_ga10x.bin",
    "etc/vulkan/icd.d/nvidia_icd.json",
    "etc/ld.so.cache",
    "usr/lib64/xorg/modules/drivers/nvidia_drv.so",
    "usr/lib64",
    "usr/lib",
    "usr/bin",
    "lib",
)
TARGETS = st.sampled_from(
    ["/", "..", "/usr", "../../../../../../etc/passwd", "/usr/lib64", "nvidia", *(f"/{p}" for p in PLACES)]
)
DATA = st.sampled_from(
    [
        b"",
        elf(soname="libcuda.so.1"),
        elf(soname="../../x"),
        elf(interpreter="/nix/store/x/lib/ld.so"),
        elf(interpreter="/usr/lib64/../../etc/ld.so"),
        elf(bits=32, machine=3),
        b"\x7fELF\x02\x01" + b"\xff" * 200,
    ]
)
MAKE = st.one_of(
    st.tuples(st.just("file"), DATA),
    st.tuples(st.just("link"), TARGETS),
    st.tuples(st.just("pipe"), st.none()),
    st.tuples(st.just("folder"), st.none()),
)


def make(root: Path, place: str, kind: str, what) -> None:
    path = root / place
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        if not Path(os.path.realpath(path.parent)).is_relative_to(os.path.realpath(root)):
            return  # the test itself must not write outside
        if kind == "file":
            with open(path, "xb") as file:
                file.write(what)
        else:
            {"link": lambda: os.symlink(what, path), "pipe": lambda: os.mkfifo(path), "folder": path.mkdir}[kind]()
    except OSError:
        pass  # the place is taken, or lies below a file


@given(st.lists(st.tuples(st.sampled_from(PLACES), MAKE), max_size=14))
@tries(150, suppress_health_check=[HealthCheck.too_slow])
def test_mounts_are_of_the_root_itself_and_no_link_is_left_in_them(tmp_path_factory, things) -> None:
    root = tmp_path_factory.mktemp("root")
    for place, (kind, what) in things:
        make(root, place, kind, what)
    make(root, f"usr/lib/x86_64-linux-gnu/libcuda.so.{V}", "file", elf(soname="libcuda.so.1"))
    make(root, f"usr/lib/x86_64-linux-gnu/libnvidia-ml.so.{V}", "file", elf(soname="libnvidia-ml.so.1"))
    (root / "dev").mkdir(exist_ok=True)
    (root / "dev/nvidiactl").touch()
    driver = DriverRoot.at(root, dev=root, driver_host="/run/nvidia/driver")
    search = Search(sys=root / "sys", proc=root / "proc", compat32=True, explicit_libraries=True)
    try:
        files = find_driver_files(driver, search=search)
    except HostError:
        return
    for edits in (driver_edits(driver, files), host_edits(driver, files)):
        for mount in edits.mounts:
            here = root / mount.host_path.removeprefix("/run/nvidia/driver/")
            assert mount.host_path.startswith("/run/nvidia/driver/")
            assert here.lstat()
            assert os.path.realpath(here) == str(here)
            folder = stat.S_ISDIR(here.lstat().st_mode)
            assert not folder or mount.container_path.startswith(("/nix/store/", "/tmp/nvidia-mps"))
        places = [mount.container_path for mount in edits.mounts]
        assert len(places) == len(set(places))
        assert not any(place.startswith(("/proc", "/sys", "/dev")) or ".." in place for place in places)
        node = CdiDeviceNode(path="/dev/nvidia0")
        spec = build_spec(kind="nvidia.com/gpu", devices=[CdiDevice(names=("0",), nodes=(node,))], common=edits)
        assert parse_spec(dump_spec(spec)) == spec
    assert all(pair.count("::") == 1 for pair in link_pairs(files))
    assert all(item.path if item.found and item.kind != "params" else True for item in files.report.items)
