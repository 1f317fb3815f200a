"""An image can't turn the driver's mounts against the host: links out of it, preloaded libraries, shared propagation.

Each case is one of the classes in which containers broke out through programs that prepared them on the host.
"""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterable
from pathlib import Path

import pytest

from kgpu.formats.cdi import Spec, parse_spec
from kgpu.lab.real import images
from tests.toolkit.real import glibc, rootfs
from tests.toolkit.real.conftest import Node

ONE = "nvidia.com/gpu=0"


def spec_of(node: Node) -> Spec:
    return parse_spec((node.engine.specs / "nvidia.yaml").read_bytes())


def picture(folder: Path) -> dict[str, tuple[object, ...]]:
    """Every file below: kind, mode, owner, size, time of change and content."""
    found: dict[str, tuple[object, ...]] = {}
    for path in sorted(folder.rglob("*")):
        about = path.lstat()
        content = path.read_bytes() if path.is_file() and not path.is_symlink() else b""
        link = os.readlink(path) if path.is_symlink() else ""
        found[str(path)] = (about.st_mode, about.st_uid, about.st_gid, about.st_mtime_ns, content, link)
    return found


@pytest.fixture
def outside(tmp_path: Path) -> Path:
    """A folder on the host that hostile images point at, with a file in it."""
    folder = tmp_path / "outside"
    folder.mkdir()
    (folder / "secret").write_text("the host's own")
    return folder


def load(node: Node, image: images.LabImage) -> None:
    archive = node.engine.folder / "hostile.tar"
    archive.write_bytes(images.oci_archive(image, architecture=images.architecture()))
    node.engine.load(archive)


def load_linked(node: Node, linked: str, outside: Path, *, absolute: bool) -> str:
    """The name of an image with nothing but busybox, and a link out of it in place of the folder ``linked``."""
    target = str(outside) if absolute else "../" * 12 + str(outside).lstrip("/")
    name = f"test.kgpu.dev/linked-{linked.replace('/', '-')}-{'top' if absolute else 'up'}:1"
    busybox = images.LayerEntry(path="busybox", data=images.host_busybox()[0])
    link = images.LayerEntry(path=linked, link=target)
    load(node, images.LabImage(names=(name,), files=(busybox, *images.folders([link]), link), command=("/busybox",)))
    return name


def mount_points(node: Node) -> list[str]:
    """Where something is mounted, as the engine sees it."""
    return sorted(line.split()[4] for line in node.engine.inside(["cat", "/proc/1/mountinfo"]).lines())


def targets(node: Node) -> Iterable[str]:
    edits = spec_of(node).container_edits
    return (
        {mount.container_path for mount in edits.mounts} | {one.path for one in edits.device_nodes} | {"/dev/nvidia0"}
    )


def test_the_spec_runs_nothing(node: Node) -> None:
    """No hook: no program of ours runs as root beside a container's files and environment."""
    spec = spec_of(node)
    assert not spec.container_edits.hooks
    assert not any(device.container_edits.hooks for device in spec.devices)


def test_nothing_is_mounted_inside_proc(node: Node) -> None:
    """runc refuses such mounts, so a container with one would not start: that is why /proc/driver/nvidia stays."""
    assert not [path for path in targets(node) if path.startswith("/proc")]
    mount = {"hostPath": "/etc/hostname", "containerPath": "/proc/version", "options": ["ro", "bind"]}
    device = {"name": "x", "containerEdits": {"mounts": [mount]}}
    spec = {"cdiVersion": "0.5.0", "kind": "test.kgpu.dev/proc", "devices": [device]}
    path = node.engine.specs / "proc.json"
    path.write_text(json.dumps(spec))
    try:
        done = node.engine.run(rootfs.SHELL, "true", devices=["test.kgpu.dev/proc=x"])
    finally:
        path.unlink()
    assert "it is inside /proc" in done.err


def test_a_hook_has_nothing_of_the_containers_environment(node: Node, tmp_path: Path) -> None:
    """In a spec that was asked to have hooks: a stand-in for their program writes down what it is given."""
    helper = tmp_path / "nvidia-cdi-hook"
    helper.write_text(f'#!/bin/sh\nenv >> {tmp_path}/env\necho "$1" >> {tmp_path}/names\ncat > {tmp_path}/state\n')
    helper.chmod(0o755)
    out = node.engine.specs / "hooked.yaml"
    words = ("--hooks", "--nvidia-cdi-hook-path", str(helper), "--vendor", "hooked.kgpu.dev", "--output", str(out))
    node.kgpu("cdi", "generate", "--driver-root", str(node.root), *words)
    given = ["--env", "LD_PRELOAD=/evil.so", "--env", "EVIL=1"]
    try:
        done = node.engine.run(rootfs.SHELL, "env", devices=["hooked.kgpu.dev/gpu=0"], words=given)
    finally:
        out.unlink()
    assert "EVIL=1" in done.lines()
    seen = {line.partition("=")[0] for line in (tmp_path / "env").read_text().splitlines()}
    assert "NVIDIA_CTK_DEBUG" in seen
    assert not seen & {"LD_PRELOAD", "EVIL", "NVIDIA_VISIBLE_DEVICES"}
    assert (tmp_path / "names").read_text().split()[:3] == ["create-symlinks", "enable-cuda-compat", "update-ldcache"]
    assert json.loads((tmp_path / "state").read_text())["bundle"]


def test_links_at_every_mount_target_lead_nowhere(node: Node, probe: bytes, outside: Path) -> None:
    linked = sorted(targets(node))
    for number in range(len(linked)):
        (outside / str(number)).write_text("the host's own")
    load(node, rootfs.hostile_image(glibc.of_machine(), probe, linked, str(outside)))
    before, mounted = picture(outside), mount_points(node)
    done = node.engine.run(rootfs.HOSTILE, "nvidia-smi", "-L", devices=[ONE])
    assert picture(outside) == before
    assert mount_points(node) == mounted
    # The links were followed, in the container: it has its GPU all the same.
    assert [line[:5] for line in done.lines()] == ["GPU 0"]


@pytest.mark.parametrize("absolute", [True, False])
@pytest.mark.parametrize("linked", ["usr/lib/x86_64-linux-gnu", "usr/lib64", "usr/lib", "run", "proc", "usr"])
def test_folders_that_are_links_lead_nowhere(node: Node, outside: Path, linked: str, absolute: bool) -> None:
    name = load_linked(node, linked, outside, absolute=absolute)
    before, mounted = picture(outside), mount_points(node)
    node.engine.run(name, "/busybox", "true", devices=[ONE])
    assert picture(outside) == before
    assert mount_points(node) == mounted


@pytest.mark.parametrize("absolute", [True, False])
def test_a_dev_folder_that_is_a_link_gets_nothing_of_ours(node: Node, outside: Path, absolute: bool) -> None:
    """runc 1.3 itself follows that link for its /dev/fd, /dev/ptmx and the like, in containers without a GPU too."""
    name = load_linked(node, "dev", outside, absolute=absolute)
    node.engine.run(name, "/busybox", "true")
    before, mounted = picture(outside).keys(), mount_points(node)
    node.engine.run(name, "/busybox", "true", devices=[ONE])
    assert picture(outside).keys() == before
    assert mount_points(node) == mounted
    assert (outside / "secret").read_text() == "the host's own"


def test_a_preloaded_library_stays_in_the_container(node: Node, probe: bytes, tmp_path: Path, outside: Path) -> None:
    """NVIDIAScape's way: the variable is the container's, the file too, and nothing on the host may load it."""
    source, built = tmp_path / "evil.c", tmp_path / "evil.so"
    source.write_text(
        "#include <fcntl.h>\n#include <unistd.h>\n"
        f'__attribute__((constructor)) static void out(void) {{ close(open("{outside}/owned", O_CREAT | O_WRONLY, 0644));'
        ' write(2, "loaded\\n", 7); }\n'
    )
    subprocess.run(["cc", "-shared", "-fPIC", "-o", str(built), str(source)], check=True, capture_output=True)
    system = rootfs.debian_images(glibc.of_machine(), probe)[0]
    evil = images.LayerEntry(path="evil.so", data=built.read_bytes())
    image = images.LabImage(
        names=("test.kgpu.dev/preload:1",),
        files=(*system.files, evil),
        env=("PATH=/usr/bin:/bin", "LD_PRELOAD=/proc/self/cwd/evil.so", "LD_LIBRARY_PATH=/"),
    )
    load(node, image)
    done = node.engine.run(image.names[0], rootfs.PROBE, devices=[ONE])
    assert "loaded" in done.err, "the library works, inside"
    assert sorted(path.name for path in outside.iterdir()) == ["secret"]


@pytest.mark.parametrize("propagation", ["rshared", "shared", "rslave", "rprivate"])
def test_the_mounts_do_not_spread(node: Node, propagation: str) -> None:
    words = ["--rootfs-propagation", propagation]
    before = mount_points(node)
    host = node.engine.inside(["cat", "/proc/1/mountinfo"]).lines()
    host_groups = {group for line in host for group in line.split()[6 : line.split().index("-")]}
    with node.engine.container(rootfs.SHELL, "sleep", "600", devices=[ONE], words=words) as container:
        inside = [line.split() for line in container.mounts()]
        wanted = {mount.container_path for mount in spec_of(node).container_edits.mounts}
        ours = {words[4]: words for words in inside if words[4] in wanted}
        assert ours.keys() == wanted
        groups = {group for words in ours.values() for group in words[6 : words.index("-")]}
        # Made shared by this very option, with nobody; otherwise they are private.
        assert not groups or propagation in {"rshared", "shared"}
        assert not groups & host_groups, "a mount of the container is the host's peer"
        assert not any(group.startswith("master:") for group in groups)
        leaked = [point for point in mount_points(node) if point not in before and point.endswith(tuple(wanted))]
        assert not leaked
    assert mount_points(node) == before


def test_the_driver_on_the_host_can_not_be_changed_from_inside(node: Node) -> None:
    before = picture(node.root / "usr")
    script = """
        for file in $(cut -d' ' -f5 /proc/self/mountinfo | grep -E 'libcuda|libnvidia|nvidia-smi'); do
            echo broken 2>/dev/null >$file && echo "$file was written"
            chmod 777 $file 2>/dev/null && echo "$file has another mode"
            mv $file /tmp/gone 2>/dev/null && echo "$file was moved"
            rm $file 2>/dev/null && echo "$file was removed"
            mount -o remount,rw $file 2>/dev/null && echo "$file was mounted anew"
        done
        true
    """
    assert node.engine.run(rootfs.SHELL, "sh", "-c", script, devices=[ONE]).lines() == []
    assert picture(node.root / "usr") == before


def test_mounts_have_no_more_rights_than_they_need(node: Node) -> None:
    """Libraries and programs are read-only; nothing has set-user-ID or device nodes."""
    with node.engine.container(rootfs.SHELL, "sleep", "600", devices=[ONE]) as container:
        inside = [line.split() for line in container.mounts()]
    state = {mount.container_path for mount in spec_of(node).container_edits.mounts if "rw" in mount.options}
    wanted = {mount.container_path for mount in spec_of(node).container_edits.mounts}
    options = {words[4]: set(words[5].split(",")) for words in inside if words[4] in wanted}
    assert options.keys() == wanted
    for path, have in options.items():
        assert have >= {"nosuid", "nodev"} | ({"rw"} if path in state else {"ro"}), path
    assert state <= {"/run/kgpu/hw/state"}, "only the simulated hardware is written to"
