"""What is found on a node, whatever lies there."""

from __future__ import annotations

import json
import os

from kgpu.host.root import DriverRoot
from kgpu.hw import roots
from kgpu.validator.look import MAX_SPEC, PciGpu, look_at_driver, look_at_specs, seen


def test_a_simulated_root_is_whole(sim_root) -> None:
    root = sim_root("hgx-h100", gpus=2)
    facts = look_at_driver(DriverRoot.at(root), proc=roots.proc_root(str(root)), sys=roots.sys_root(str(root)))
    assert all(facts.libraries.values())
    assert {"/dev/nvidiactl", "/dev/nvidia-uvm", "/dev/nvidia0", "/dev/nvidia1"} <= facts.nodes
    assert len(facts.pci or ()) == 2
    assert facts.module.count(".") >= 1


def test_an_empty_root_has_nothing(tmp_path) -> None:
    facts = look_at_driver(DriverRoot.at(tmp_path, dev=tmp_path), proc=str(tmp_path), sys=str(tmp_path))
    assert set(facts.libraries.values()) == {""}
    assert (facts.smi, facts.nodes, facts.module, facts.pci) == ("", frozenset(), "", None)


def test_links_out_of_the_root_and_empty_files_are_no_libraries(tmp_path) -> None:
    folder = tmp_path / "root/usr/lib64"
    folder.mkdir(parents=True)
    (tmp_path / "outside").write_text("x")
    (folder / "libcuda.so.1").symlink_to("../../../outside")
    (folder / "libnvidia-ml.so.1").write_text("")
    facts = look_at_driver(DriverRoot.at(tmp_path / "root"))
    assert set(facts.libraries.values()) == {""}


def test_only_display_controllers_of_nvidia_are_gpus(tmp_path) -> None:
    rows = {
        "0000:07:00.0": ("0x10de", "0x030200"),
        "0000:07:00.1": ("0x10de", "0x040300"),
        "0000:08:00.0": ("0x8086", "0x030000"),
    }
    for address, (vendor, kind) in rows.items():
        place = tmp_path / "bus/pci/devices" / address
        place.mkdir(parents=True)
        (place / "vendor").write_text(vendor + "\n")
        (place / "class").write_text(kind + "\n")
    (tmp_path / "nouveau").mkdir()
    (tmp_path / "bus/pci/devices/0000:07:00.0/driver").symlink_to(tmp_path / "nouveau")
    facts = look_at_driver(DriverRoot.at(tmp_path), sys=str(tmp_path))
    assert facts.pci == (PciGpu(address="0000:07:00.0", driver="nouveau"),)


def spec(mount: str, *names: str) -> str:
    edits = {"mounts": [{"hostPath": mount, "containerPath": "/x"}]}
    devices = [{"name": name, "containerEdits": {"env": ["A=b"]}} for name in names]
    return json.dumps({"cdiVersion": "0.5.0", "kind": "nvidia.com/gpu", "devices": devices, "containerEdits": edits})


def test_later_folders_win_and_what_is_missing_is_named(tmp_path) -> None:
    low, high = tmp_path / "low", tmp_path / "high"
    low.mkdir()
    high.mkdir()
    (tmp_path / "there").write_text("")
    (low / "a.json").write_text(spec("/nonexistent/lib", "0", "1"))
    (high / "b.json").write_text(spec(str(tmp_path / "there"), "1"))
    facts = look_at_specs((low, high), DriverRoot.at("/"))
    assert facts.names["nvidia.com/gpu=0"].missing == ("/nonexistent/lib",)
    assert facts.names["nvidia.com/gpu=1"].missing == ()


def test_a_name_twice_in_one_folder(tmp_path) -> None:
    (tmp_path / "a.json").write_text(spec("/", "0"))
    (tmp_path / "b.json").write_text(spec("/", "0"))
    twice = look_at_specs((tmp_path,), DriverRoot.at("/")).names["nvidia.com/gpu=0"].twice
    assert twice == (str(tmp_path / "a.json"), str(tmp_path / "b.json"))


def test_odd_things_among_the_specs_are_told_and_passed_over(tmp_path) -> None:
    os.mkfifo(tmp_path / "pipe.json")
    (tmp_path / "folder.yaml").mkdir()
    (tmp_path / "circle.json").symlink_to("circle.json")
    (tmp_path / "rubbish.yaml").write_text("]")
    (tmp_path / "large.json").write_bytes(b" " * (MAX_SPEC + 1))
    (tmp_path / "fine.json").write_text(spec("/", "0"))
    facts = look_at_specs((tmp_path, tmp_path / "absent"), DriverRoot.at("/"))
    assert (list(facts.names), len(facts.problems)) == (["nvidia.com/gpu=0"], 5)


def test_a_hosts_path_is_looked_for_where_it_is_mounted(tmp_path) -> None:
    host = tmp_path / "host"
    (host / "dev").mkdir(parents=True)
    (host / "dev/nvidiactl").write_text("")
    whole = DriverRoot.at(host, driver_host="/", dev_host="/")
    installed = DriverRoot.at(tmp_path / "driver", driver_host="/run/nvidia/driver", dev=host, dev_host="/")
    assert seen("/usr/lib64/libcuda.so.1", whole, host) == host / "usr/lib64/libcuda.so.1"
    assert seen("/run/nvidia/driver/lib64/x", installed, host) == tmp_path / "driver/lib64/x"
    assert seen("/dev/nvidia0", installed, host) == host / "dev/nvidia0"
    assert seen("/run/nvidia-persistenced/socket", installed, host) == host / "run/nvidia-persistenced/socket"
