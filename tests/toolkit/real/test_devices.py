"""A container has the devices that it was given, by node and by cgroup, and no others; it keeps them."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator, Sequence
from typing import Any

import pytest

from kgpu.lab.real.namespaces import child_env
from tests import polling
from tests.toolkit.real import rootfs
from tests.toolkit.real.conftest import Node
from tests.toolkit.real.engine import Container, Done

CONTROL = {"/dev/nvidiactl", "/dev/nvidia-uvm", "/dev/nvidia-uvm-tools", "/dev/nvidia-modeset"}
GPUS = tuple(f"/dev/nvidia{number}" for number in range(4))
# A simulated device has no driver behind its node; opening it gets as far as that only where the cgroup allows it.
REACHED = "No such device or address"
DENIED = "Operation not permitted"
ABSENT = "No such file or directory"


def names(*devices: str) -> list[str]:
    return [f"nvidia.com/gpu={device}" for device in devices]


def nodes(done: Done) -> set[str]:
    return {line for line in done.lines() if line.startswith("/dev/nvidia")}


def listed(node: Node, devices: Sequence[str], *words: str) -> set[str]:
    return nodes(node.engine.run(rootfs.SHELL, "find", "/dev", "-name", "nvidia*", devices=devices, words=words))


@pytest.fixture
def whole(node: Node) -> Iterator[Node]:
    """The node, whose GPUs are whole again afterwards."""
    yield node
    node.hw("clear")
    node.generate()


@pytest.mark.parametrize(
    ("devices", "gpus"),
    [
        (("0",), {"/dev/nvidia0"}),
        (("2",), {"/dev/nvidia2"}),
        (("0", "3"), {"/dev/nvidia0", "/dev/nvidia3"}),
        (("1", "1"), {"/dev/nvidia1"}),
        (("all",), set(GPUS)),
        (("0", "all"), set(GPUS)),
    ],
)
def test_a_container_has_exactly_its_devices(node: Node, devices: tuple[str, ...], gpus: set[str]) -> None:
    assert listed(node, names(*devices)) == CONTROL | gpus


def test_an_image_that_says_all_gets_nothing_without_a_request(node: Node) -> None:
    assert listed(node, []) == set()
    script = "echo $NVIDIA_VISIBLE_DEVICES; ls /usr/lib64 /usr/lib 2>/dev/null; grep -c nvidia /proc/self/mountinfo"
    assert node.engine.run(rootfs.SHELL, "sh", "-c", script).out.split() == ["all", "0"]


def test_the_variable_that_images_set_is_void_inside(node: Node) -> None:
    """So that nothing further down takes the image's ``all`` for a request."""
    done = node.engine.run(rootfs.SHELL, "sh", "-c", "echo $NVIDIA_VISIBLE_DEVICES", devices=names("0"))
    assert done.lines() == ["void"]


@pytest.mark.parametrize("words", [(), ("--read-only",), ("--user", "1000:1000")])
def test_nvidia_smi_sees_exactly_its_gpu(node: Node, words: tuple[str, ...]) -> None:
    lines = node.engine.run(rootfs.DEBIAN, "nvidia-smi", "-L", devices=names("1"), words=words).lines()
    assert [re.sub(r" \(UUID.*", "", line) for line in lines] == ["GPU 0: NVIDIA H100 80GB HBM3"]
    everything = node.engine.run(rootfs.DEBIAN, "nvidia-smi", "-L", devices=names("all")).lines()
    assert lines[0].partition("UUID")[2] == everything[1].partition("UUID")[2]


def test_a_user_namespace_has_its_gpu_where_the_nodes_are_in_the_hosts_dev(node: Node) -> None:
    """runc can't make nodes there: it binds the host's node of the same path, whatever the spec says of its place."""
    assert node.engine.inside(["sh", "-c", f"cp -a {node.root}/dev/nvidia* /dev/"]).code == 0
    words = ["cdi", "generate", "--driver-root", str(node.root), "--dev-root", "/", "--vendor", "host.kgpu.dev"]
    out = str(node.engine.specs / "host.yaml")
    made = node.engine.inside([sys.executable, "-m", "kgpu", *words, "--output", out], env=child_env())
    assert made.code == 0, made.err
    mapped = ["--uidmap", "0:100000:65536", "--gidmap", "0:100000:65536"]
    script = "nvidia-smi -L && cat /proc/self/uid_map && find /dev -name 'nvidia*'"
    lines = node.engine.run(rootfs.DEBIAN, "sh", "-c", script, devices=["host.kgpu.dev/gpu=1"], words=mapped).lines()
    assert lines[0].startswith("GPU 0: NVIDIA H100")
    assert lines[1].split() == ["0", "100000", "65536"]
    assert set(lines[2:]) == CONTROL | {"/dev/nvidia1"}


def test_another_gpu_is_out_of_reach_even_with_a_node_of_its_own(node: Node) -> None:
    """A root user of the container may make nodes; the device cgroup is what keeps other GPUs out."""
    script = (
        f"mknod /tmp/other c 195 1 && mknod /tmp/mine c 195 0 && {rootfs.PROBE} -- /dev/nvidia0 /tmp/mine /tmp/other"
    )
    done = node.engine.run(rootfs.DEBIAN, "sh", "-c", script, devices=names("0"))
    assert done.lines() == [f"/dev/nvidia0: {REACHED}", f"/tmp/mine: {REACHED}", f"/tmp/other: {DENIED}"]


def test_the_devices_stay_when_the_cgroup_is_written_anew(node: Node) -> None:
    """systemd's daemon-reload forgets what was added behind its back: all must be in what the engine declared."""
    every = sorted(CONTROL | {"/dev/nvidia2"})
    with node.engine.container(rootfs.DEBIAN, "sleep", "600", devices=names("2")) as container:
        before = container.exec(rootfs.PROBE, "--", *every).lines()
        declared = container.oci_spec()["linux"]
        rules = declared["resources"]["devices"]
        assert rules[0] == {"allow": False, "access": "rwm"}, "everything else is refused"
        for device in (one for one in declared["devices"] if one["path"] in every):
            assert any(allows(rule, device) for rule in rules[1:]), f"{device['path']} is not declared"
        assert {one["path"] for one in declared["devices"]} >= set(every)
        forget_and_declare(container, rules)
        assert container.exec(rootfs.PROBE, "--", *every).lines() == before
        assert before == [f"{path}: {REACHED}" for path in every]


def allows(rule: dict[str, Any], device: dict[str, Any]) -> bool:
    numbers = all(rule.get(key) in {None, device[key]} for key in ("type", "major", "minor"))
    return bool(rule["allow"]) and numbers and set("rw") <= set(rule["access"])


def forget_and_declare(container: Container, rules: list[dict[str, Any]]) -> None:
    """What a reload does to a version 1 device cgroup; version 2 has a program instead, made of the same rules."""
    folder = container.cgroup_folder("devices")
    if folder is None:
        return
    (folder / "devices.deny").write_text("a")
    denied = container.exec(rootfs.PROBE, "--", "/dev/nvidiactl").lines()
    assert denied == [f"/dev/nvidiactl: {DENIED}"], "the cgroup is not the one that counts"
    for rule in rules[1:]:
        numbers = ":".join(str(rule[key]) if key in rule else "*" for key in ("major", "minor"))
        (folder / "devices.allow").write_text(f"{rule.get('type', 'a')} {numbers} {rule['access']}")


def test_slices_come_with_their_capability_nodes_and_no_others(whole: Node) -> None:
    whole.hw("mig", "--gpu", "1", "--profiles", "3g.40gb,2g.20gb")
    whole.generate()
    first, second = (listed(whole, names(f"1:{number}")) for number in (0, 1))
    for found in (first, second):
        caps = {path for path in found if "/nvidia-caps/" in path}
        assert len(caps) == 2
        assert found - caps - {"/dev/nvidia-caps"} == CONTROL | {"/dev/nvidia1"}
    assert not {path for path in first & second if "/nvidia-caps/" in path}
    lines = whole.engine.run(rootfs.DEBIAN, "nvidia-smi", "-L", devices=names("1:1")).lines()
    assert [line.split()[0:2] for line in lines] == [["GPU", "0:"], ["MIG", "2g.20gb"]]


def test_the_slice_of_another_is_out_of_reach(whole: Node) -> None:
    """All slices share their GPU's node: the capability nodes are what keeps them apart."""
    whole.hw("mig", "--gpu", "1", "--profiles", "3g.40gb,2g.20gb")
    whole.generate()
    mine, other = (
        sorted(path for path in listed(whole, names(f"1:{number}")) if "/nvidia-caps/nvidia-cap" in path)
        for number in (0, 1)
    )
    numbers = {path: path.rpartition("cap")[2] for path in (*mine, *other)}
    made = " && ".join(f"mknod /tmp/{number} c 511 {number}" for number in numbers.values())
    script = f"{made} && {rootfs.PROBE} -- {' '.join(f'/tmp/{number}' for number in numbers.values())}"
    done = whole.engine.run(rootfs.DEBIAN, "sh", "-c", script, devices=names("1:0"))
    said = dict(line.split(": ", 1) for line in done.lines())
    assert {said[f"/tmp/{numbers[path]}"] for path in mine} == {REACHED}
    assert {said[f"/tmp/{numbers[path]}"] for path in other} == {DENIED}


def test_a_gpu_that_is_cut_is_not_offered_whole(whole: Node) -> None:
    whole.hw("mig", "--gpu", "1", "--profiles", "3g.40gb,2g.20gb")
    whole.generate()
    done = whole.engine.run(rootfs.SHELL, "true", devices=names("1"))
    assert done.code != 0
    assert "nvidia.com/gpu=1" in done.err
    everything = listed(whole, names("all"))
    assert len({path for path in everything if "/nvidia-caps/" in path}) == 4
    assert everything >= CONTROL | set(GPUS)


def test_a_new_start_of_a_container_adds_nothing(node: Node) -> None:
    """Defect 9: hooks write into the container's files each time, and its second start finds what the first left."""
    find = "find / -xdev -path /tmp -prune -o -print | sort > $at.files"
    mounts_of = "cut -d' ' -f5 /proc/self/mountinfo > $at.mounts"
    # A file that is there may be half written: the last one says that all are whole.
    look = f"at=/tmp/$(ls /tmp | grep -c files); {find}; {mounts_of}; touch $at.done; sleep 600"
    with node.engine.container(rootfs.DEBIAN, "sh", "-c", look, devices=names("0")) as one:
        until_there(one, "/tmp/0.done")
        mounts = one.exec("cat", "/tmp/0.mounts").lines()
        node.engine.ctr("task", "kill", "--signal", "SIGKILL", one.name)
        assert node.engine.ctr("task", "delete", "--force", one.name).code == 0
        done = node.engine.ctr("task", "start", "--detach", "--null-io", one.name)
        assert done.code == 0, done.err
        until_there(one, "/tmp/1.done")
        assert one.exec("cat", "/tmp/1.mounts").lines() == mounts
        assert len(mounts) == len(set(mounts)) > 0
        assert one.exec("diff", "/tmp/0.files", "/tmp/1.files").lines() == []


def until_there(container: Container, path: str) -> None:
    """Wait for the file."""
    assert polling.holds(lambda: container.exec("test", "-e", path).code == 0, seconds=300), f"{path} never came"
