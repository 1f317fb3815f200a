"""Device nodes and the links in /dev/char: real minors, stale links and nodes replaced, what is right left alone."""

from __future__ import annotations

import os

import pytest
from hypothesis import HealthCheck, given
from hypothesis import strategies as st

from kgpu.base.errors import HostError
from kgpu.host.chroot import in_root
from kgpu.host.dev_files import FakeDevFiles, RealDevFiles, dev_folder, load_modules, read_facts
from kgpu.host.dev_nodes import (
    MAX_NUMBER,
    DevFiles,
    DeviceFile,
    DeviceFileAction,
    Numbers,
    apply,
    control_nodes,
    every_node,
    existing_nodes,
    join_nodes,
    plan_links,
    plan_nodes,
    read_cap_minors,
    read_gpu_minor,
    read_majors,
)
from tests.budget import tries

PROC_DEVICES = """\
Character devices:
  1 mem
  4 /dev/vc/0
195 nvidia
195 nvidia-modeset
195 nvidiactl
508 nvidia-uvm
511 nvidia-caps

Block devices:
  8 sd
 99 nvidia-uvm
"""
MAJORS = read_majors(PROC_DEVICES)
quick = tries(suppress_health_check=[HealthCheck.too_slow])
CONTROL = {
    "/dev/nvidiactl": Numbers(195, 255),
    "/dev/nvidia-modeset": Numbers(195, 254),
    "/dev/nvidia-uvm": Numbers(508, 0),
    "/dev/nvidia-uvm-tools": Numbers(508, 1),
}


def steps_of(steps) -> dict[str, str]:
    return {step.path: str(step.action) for step in steps}


# --- what the driver says ---


def test_majors_of_character_devices_alone() -> None:
    assert MAJORS["nvidia-uvm"] == 508
    assert MAJORS["/dev/vc/0"] == 4
    assert "sd" not in MAJORS


def test_minors_of_a_gpu_and_of_capabilities() -> None:
    assert read_gpu_minor("Model: \t\t NVIDIA\nDevice Minor: \t 6\nGPU Excluded:\t No\n") == 6
    assert read_gpu_minor("Model: NVIDIA") is None
    text = "config 1\nmonitor 2\ngpu6/gi0/access 12\ngpu6/gi0/ci1/access 13\nnonsense x\ngpu7/gi1/access 9999999\n"
    assert read_cap_minors(text) == {
        "config": 1, "monitor": 2, "gpu6/gi0/access": 12, "gpu6/gi0/ci1/access": 13,
    }  # fmt: skip


@quick
@given(st.text(max_size=300))
def test_no_text_of_proc_breaks_the_readers(text: str) -> None:
    assert all(0 <= major < 10_000_000 for major in read_majors(text).values())
    minor = read_gpu_minor(text)
    assert minor is None or 0 <= minor <= MAX_NUMBER
    assert all(0 <= number <= MAX_NUMBER for number in read_cap_minors(text).values())


def test_control_nodes_by_name() -> None:
    wanted = control_nodes(MAJORS)
    assert {node.path: node.numbers for node in wanted.nodes} == CONTROL
    assert wanted.notes == ()


def test_older_drivers_name_their_major_otherwise() -> None:
    wanted = control_nodes({"nvidia-frontend": 195}, dev="/run/nvidia/driver/dev")
    assert [node.path for node in wanted.nodes] == [
        "/run/nvidia/driver/dev/nvidiactl", "/run/nvidia/driver/dev/nvidia-modeset",
    ]  # fmt: skip
    assert len(wanted.notes) == 2
    assert "nvidia-uvm" in wanted.notes[0]


def test_every_node_has_the_minor_that_the_driver_says() -> None:
    """GPUs 0..n-1 is a guess that is wrong as soon as one is missing or bound elsewhere."""
    wanted = every_node(MAJORS, [3, 6, 3], {"config": 1, "gpu3/gi0/access": 30})
    nodes = {node.path: node.numbers for node in wanted.nodes}
    assert nodes == {
        **CONTROL,
        "/dev/nvidia3": Numbers(195, 3),
        "/dev/nvidia6": Numbers(195, 6),
        "/dev/nvidia-caps/nvidia-cap1": Numbers(511, 1),
        "/dev/nvidia-caps/nvidia-cap30": Numbers(511, 30),
    }


def test_nodes_without_a_known_major_are_said() -> None:
    wanted = every_node({"nvidia": 195, "nvidia-uvm": 508}, [0], {"config": 1})
    assert [node.path for node in wanted.nodes if "caps" in node.path] == []
    assert any("nvidia-cap1" in note for note in wanted.notes)


def test_facts_of_a_simulated_root(sim_root) -> None:
    facts = read_facts(sim_root("hgx-h100", gpus=2))
    assert facts.gpu_minors == (0, 1)
    assert {"nvidia", "nvidia-uvm", "nvidia-caps"} <= set(facts.majors)
    assert facts.cap_minors["config"] == 1
    assert any(name.startswith("gpu1/gi") for name in facts.cap_minors)


def test_facts_of_a_root_without_a_driver(tmp_path) -> None:
    assert read_facts(tmp_path).gpu_minors == ()


# --- what is there ---


def fake(**devices: Numbers) -> FakeDevFiles:
    return FakeDevFiles(devices={f"/dev/{name.replace('_', '-')}": numbers for name, numbers in devices.items()})


def test_existing_nodes_without_those_that_no_container_needs() -> None:
    files = fake(nvidia0=Numbers(195, 0), nvidiactl=Numbers(195, 255), null=Numbers(1, 3), nvidia_fs0=Numbers(9, 0),
                 nvidia_nvswitch0=Numbers(8, 0), nvidia_nvlink=Numbers(7, 0), nvidia_uvm=Numbers(508, 0))  # fmt: skip
    files.devices["/dev/nvidia-caps/nvidia-cap1"] = Numbers(511, 1)
    files.files |= {"/dev/nvidia1", "/dev/nvidia-caps/other"}
    found = {node.path for node in existing_nodes(files)}
    assert found == {"/dev/nvidia0", "/dev/nvidiactl", "/dev/nvidia-uvm", "/dev/nvidia-caps/nvidia-cap1"}


def test_the_driver_roots_own_dev_counts_when_it_has_nodes() -> None:
    files = fake(nvidia0=Numbers(195, 0))
    assert dev_folder(files, "/run/nvidia/driver") == "/dev"
    files.devices["/run/nvidia/driver/dev/nvidia0"] = Numbers(195, 0)
    assert dev_folder(files, "/run/nvidia/driver/") == "/run/nvidia/driver/dev"
    assert dev_folder(files, "/") == "/dev"


def test_what_is_there_counts_more_than_what_is_expected() -> None:
    there, expected = DeviceFile("/dev/a", Numbers(1, 1)), DeviceFile("/dev/a", Numbers(2, 2))
    other = DeviceFile("/dev/b", Numbers(3, 3))
    assert set(join_nodes([there], [expected, other])) == {there, other}


# --- links ---


def test_links_are_made_replaced_removed_and_left() -> None:
    nodes = (DeviceFile("/dev/nvidia0", Numbers(195, 0)), DeviceFile("/dev/nvidia-uvm", Numbers(508, 0)),
             DeviceFile("/dev/nvidiactl", Numbers(195, 255)), DeviceFile("/dev/nvidia3", Numbers(195, 3)))  # fmt: skip
    files = FakeDevFiles(
        devices={**{node.path: node.numbers for node in nodes}, "/dev/other": Numbers(9, 9)},
        links={
            "/dev/char/195:0": "../nvidia0",  # udev's own, relative
            "/dev/char/508:0": "/dev/nvidia7",  # gone
            "/dev/char/510:0": "/dev/nvidia-uvm",  # the major before the last boot
            "/dev/char/9:9": "../other",
            "/dev/char/7:7": "/dev/nvidia-nothing",
        },
        files={"/dev/char/195:3"},
    )
    steps = plan_links(files, nodes)
    assert steps_of(steps) == {
        "/dev/char/195:0": "keep",
        "/dev/char/508:0": "replace",
        "/dev/char/195:255": "create",
        "/dev/char/195:3": "skip",
        "/dev/char/510:0": "remove",
    }
    apply(files, steps)
    assert files.links == {
        "/dev/char/195:0": "../nvidia0",
        "/dev/char/508:0": "/dev/nvidia-uvm",
        "/dev/char/195:255": "/dev/nvidiactl",
        "/dev/char/9:9": "../other",
        "/dev/char/7:7": "/dev/nvidia-nothing",
    }
    assert not any(step.changes for step in plan_links(files, nodes))
    assert "stale" in next(step.why for step in steps if step.action is DeviceFileAction.REMOVE)


def test_a_link_to_the_same_device_elsewhere_is_right() -> None:
    files = FakeDevFiles(
        devices={"/dev/nvidia0": Numbers(195, 0), "/run/d/dev/nvidia0": Numbers(195, 0)},
        links={"/dev/char/195:0": "/dev/nvidia0"},
    )
    (step,) = plan_links(files, existing_nodes(files, dev="/run/d/dev"))
    assert step.action is DeviceFileAction.KEEP
    assert "/dev/nvidia0" in step.why


numbers = st.builds(Numbers, major=st.integers(0, 3), minor=st.integers(0, 3))
names = st.sampled_from(("nvidia0", "nvidia1", "nvidia-uvm", "nvidiactl"))


@quick
@given(
    devices=st.dictionaries(names.map("/dev/{}".format), numbers),
    links=st.dictionaries(numbers.map("/dev/char/{}".format), names.map("../{}".format)),
    strange=st.sets(numbers.map("/dev/char/{}".format), max_size=2),
)
def test_afterwards_every_node_has_a_link_and_no_link_lies(devices, links, strange) -> None:
    files = FakeDevFiles(devices=dict(devices), links=dict(links), files=strange - set(links))
    nodes = existing_nodes(files)
    apply(files, plan_links(files, nodes))
    for path in files.devices.keys() & {node.path for node in nodes}:
        link = f"/dev/char/{files.devices[path]}"
        assert (
            link in files.files or files.devices["/dev/" + files.links[link].rpartition("/")[2]] == files.devices[path]
        )
    for link, target in files.links.items():
        now = files.devices.get("/dev/" + target.rpartition("/")[2])
        assert now is None or f"/dev/char/{now}" == link
    assert files.devices == devices
    assert not any(step.changes for step in plan_links(files, nodes))


# --- nodes ---


def test_nodes_are_made_and_stale_ones_replaced() -> None:
    files = fake(nvidiactl=Numbers(195, 255), nvidia_uvm=Numbers(510, 0))
    files.files.add("/dev/nvidia-modeset")
    steps = plan_nodes(files, control_nodes(MAJORS).nodes)
    assert steps_of(steps) == {
        "/dev/nvidiactl": "keep",
        "/dev/nvidia-modeset": "skip",
        "/dev/nvidia-uvm": "replace",
        "/dev/nvidia-uvm-tools": "create",
    }
    apply(files, steps)
    assert files.devices["/dev/nvidia-uvm"] == Numbers(508, 0)
    assert files.devices["/dev/nvidia-uvm-tools"] == Numbers(508, 1)
    assert str(steps[2]) == "replace /dev/nvidia-uvm c 508:0 (stale: it was 510:0)"


# --- the fake and the real one behave alike ---


def real(tmp_path) -> RealDevFiles:
    (tmp_path / "dev").mkdir(parents=True)
    return RealDevFiles(tmp_path)


@pytest.fixture(params=["fake", "real"])
def files(request, tmp_path) -> DevFiles:
    return FakeDevFiles() if request.param == "fake" else real(tmp_path / "root")


def test_links_of_both(files: DevFiles) -> None:
    assert files.names("/dev/char") == ()
    assert files.link("/dev/char/1:1") is None
    files.put_link("/dev/char/1:1", "/dev/a")
    files.put_link("/dev/char/1:2", "../b")
    files.put_link("/dev/char/1:1", "/dev/c")
    assert files.names("/dev/char") == ("1:1", "1:2")
    assert (files.link("/dev/char/1:1"), files.link("/dev/char/1:2")) == ("/dev/c", "../b")
    assert files.there("/dev/char/1:1")
    assert files.device("/dev/char/1:1") is None
    files.remove("/dev/char/1:1")
    files.remove("/dev/char/1:1")
    files.remove("/no/such/folder")
    assert files.names("/dev/char") == ("1:2",)
    assert not files.there("/dev/char/1:1")


def may_make_nodes(folder) -> bool:
    try:
        os.mknod(folder / "try", 0o20666, os.makedev(1, 3))
    except PermissionError:
        return False
    os.unlink(folder / "try")
    return True


def test_nodes_of_both(files: DevFiles, tmp_path) -> None:
    if isinstance(files, RealDevFiles) and not may_make_nodes(tmp_path):
        pytest.skip("device nodes can't be made here")
    files.put_node("/dev/caps/cap1", Numbers(511, 1))
    files.put_node("/dev/caps/cap1", Numbers(510, 300))
    assert files.device("/dev/caps/cap1") == Numbers(510, 300)
    assert files.names("/dev/caps") == ("cap1",)
    assert files.link("/dev/caps/cap1") is None
    if isinstance(files, RealDevFiles):
        made = tmp_path / "root/dev/caps/cap1"
        assert made.stat().st_mode & 0o777 == 0o666
        files.remove("/dev/caps/cap1")  # only links are removed
        assert made.exists()


def test_a_link_in_the_root_never_leads_out_of_it(tmp_path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    files = real(tmp_path / "root")
    os.symlink(outside, tmp_path / "root/dev/char")
    with pytest.raises(OSError):
        files.put_link("/dev/char/1:1", "/dev/a")
    os.unlink(tmp_path / "root/dev/char")
    os.symlink("../../../../outside", tmp_path / "root/dev/char")
    with pytest.raises(OSError):
        files.put_link("/dev/char/1:1", "/dev/a")
    assert list(outside.iterdir()) == []


def test_a_failed_change_leaves_nothing_beside(tmp_path) -> None:
    files = real(tmp_path / "root")
    (tmp_path / "root/dev/char/1:1/full").mkdir(parents=True)
    with pytest.raises(OSError):
        files.put_link("/dev/char/1:1", "/dev/a")
    assert files.names("/dev/char") == ("1:1",)


# --- modules ---


def test_modules_are_loaded_with_the_roots_own_program() -> None:
    seen: list[list[str]] = []
    load_modules("/", run=lambda command: seen.append(list(command)) or "")
    load_modules("/run/nvidia/driver", modules=("nvidia",), run=lambda command: seen.append(list(command)) or "")
    assert seen[:2] == [["/sbin/modprobe", "nvidia"], ["/sbin/modprobe", "nvidia-uvm"]]
    assert seen[3] == in_root("/run/nvidia/driver", ["/sbin/modprobe", "nvidia"])


def test_a_module_that_is_not_there_is_explained() -> None:
    with pytest.raises(HostError, match="nvidia-uvm can't be loaded: not found") as caught:
        load_modules("/", run=lambda command: "not found" if command[-1] == "nvidia-uvm" else "")
    assert "modprobe nvidia-uvm" in caught.value.remedy


def test_a_real_modprobe_that_fails_says_why(tmp_path) -> None:
    with pytest.raises(HostError, match="kernel module no-such-module-at-all"):
        load_modules(str(tmp_path), modules=("no-such-module-at-all",))
