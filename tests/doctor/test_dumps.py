"""What users have: dumps of other tools, a node's own logs, nvidia-smi, and single logs say what the cluster itself does."""

from __future__ import annotations

import gzip
import io
import json
import os
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kgpu.base.errors import DriverFault
from kgpu.cli.doctor import xids_in
from kgpu.doctor.model import Report
from kgpu.doctor.plan import diagnose
from kgpu.doctor.sources import engine_lines, files, smi, tailed
from tests.budget import tries
from tests.doctor import dumps
from tests.doctor.example import all_examples

EXAMPLES = {one.name: one for one in all_examples()}
Writer = Callable[[dumps.Objects, Path], Path]
WITH_OBJECTS: list[Writer] = [
    dumps.cluster_info_folder, dumps.cluster_info_output, dumps.must_gather, dumps.operator_gather,
]  # fmt: skip
LOGS_ALONE: list[Writer] = [dumps.kubelet_logs, dumps.linked_logs, dumps.docker_logs]


def told(path: Path | str) -> Report:
    return diagnose(files.read(str(path)).judged(xids_in), strict=True)


def first(path: Path | str) -> str:
    found = told(path).findings
    return found[0].id if found else "nothing"


def named_pods(objects: dumps.Objects) -> dumps.Objects:
    """With the names that pods of a DaemonSet have: the examples' are short."""
    said = json.dumps(objects).replace('"plugin-a"', '"nvidia-device-plugin-daemonset-x7k2p"')
    found: dumps.Objects = json.loads(said.replace('"toolkit-a"', '"nvidia-container-toolkit-daemonset-q8n4d"'))
    return found


@pytest.mark.parametrize("write", WITH_OBJECTS, ids=lambda one: one.__name__)
@pytest.mark.parametrize("fault", ["DPL-01", "RUN-06"])
def test_a_dump_says_what_the_cluster_does(fault: str, write: Writer, tmp_path: Path) -> None:
    objects = named_pods(EXAMPLES[fault].broken)
    place = write(objects, tmp_path)
    assert first(place) == fault
    found = files.read(str(place))
    assert {(pod, log.container) for (_, pod), rows in found.logs.items() for log in rows if log.lines} == {
        (pod, container) for _, pod, container, _ in dumps.logs(objects)
    }


@pytest.mark.parametrize("write", WITH_OBJECTS, ids=lambda one: one.__name__)
def test_a_dump_of_a_healthy_cluster_has_no_finding(write: Writer, tmp_path: Path) -> None:
    assert first(write(named_pods(EXAMPLES["DPL-01"].healthy), tmp_path)) == "nothing"


@pytest.mark.parametrize("write", LOGS_ALONE, ids=lambda one: one.__name__)
@pytest.mark.parametrize("fault", ["DPL-01", "RUN-06"])
def test_a_nodes_own_logs_alone(fault: str, write: Writer, tmp_path: Path) -> None:
    assert first(write(named_pods(EXAMPLES[fault].broken), tmp_path)) == fault


def test_the_run_of_a_container_that_goes_on_comes_first(tmp_path: Path) -> None:
    dumps.kubelet_logs(named_pods(EXAMPLES["DPL-01"].broken), tmp_path)
    (rows,) = files.read(str(tmp_path)).logs.values()
    now, before = sorted(rows, key=lambda log: log.previous)
    assert now.lines == ("this was put aside", "I0101 Starting", "E0101 No devices found. Waiting indefinitely.")
    assert before.lines == ("this was before",)


def test_links_of_a_node_are_not_followed(tmp_path: Path) -> None:
    dumps.kubelet_logs(named_pods(EXAMPLES["DPL-01"].broken), tmp_path / "log")
    secret = tmp_path / "secret.log"
    secret.write_text("E0101 No devices found. Waiting indefinitely.\n")
    os.symlink(secret, tmp_path / "log" / "pods" / f"a_b_{dumps.UID}.log")
    assert all("secret" not in log.file for rows in files.read(str(tmp_path / "log")).logs.values() for log in rows)


SAID = ["I0101 Starting", "E0101 No devices found. Waiting indefinitely."]
POD = "nvidia-device-plugin-daemonset-x7k2p"
COLOR = "\x1b[36m{}\x1b[0m"


@pytest.mark.parametrize(
    "lines",
    [
        [f"{POD} nvidia-device-plugin {line}" for line in SAID],
        [f"gpu-operator {POD} nvidia-device-plugin {line}" for line in SAID],
        [f"{COLOR.format(POD)} {COLOR.format('nvidia-device-plugin')} {line}" for line in SAID],
        ["+ gpu-operator " + POD + " \u203a nvidia-device-plugin", *(f"gpu-operator {POD} nvidia-device-plugin {x}" for x in SAID)],
        [json.dumps({"message": f"{line}\n", "nodeName": "gpu-1", "namespace": "gpu-operator", "podName": POD,
                     "containerName": "nvidia-device-plugin"}) for line in SAID],
        [f"[pod/{POD}/nvidia-device-plugin] {line}" for line in SAID],
    ],
    ids=["stern", "stern -A", "stern --color always", "stern with its notices", "stern -o json", "kubectl logs --prefix"],
)  # fmt: skip
@pytest.mark.parametrize("name", ["out.txt", "plugins.log"])
def test_logs_of_many_in_one_text(lines: list[str], name: str, tmp_path: Path) -> None:
    other = lines[-1].replace(POD, "web-7d9f8c6b5-2xk4q").replace(SAID[1], "GET / 200")
    (tmp_path / name).write_text("\n".join([*lines, other]) + "\n")
    found = files.read(str(tmp_path / name))
    assert {pod for _, pod in found.logs} == {POD, "web-7d9f8c6b5-2xk4q"}
    assert first(tmp_path / name) == "DPL-01"


@pytest.mark.parametrize(
    "text", ["the quick brown fox\njumps over\n", "a-1 b\n\nError: x\nTraceback\n more\n", "\n\n", ""]
)
def test_other_texts_are_not_logs_of_many(text: str) -> None:
    assert tailed.parts(text.encode()) == ()


def test_a_log_cannot_put_objects_into_a_dump(tmp_path: Path) -> None:
    """A container prints the end of its own part, an object, and the beginning of another's part."""
    objects = named_pods(EXAMPLES["DPL-01"].broken)
    whose = f"container plugin of pod gpu-operator/{POD}"
    node = json.dumps({"kind": "Node", "metadata": {"name": "forged"}})
    for one in objects:
        if one["kind"] == "PodLog":
            one["lines"] = [f"==== END logs for {whose} ====", node, f"==== START logs for {whose} ====", *one["lines"]]
    found = files.read(str(dumps.cluster_info_output(objects, tmp_path)))
    assert "forged" not in found.nodes
    assert any("marks of other containers' logs" in gap.why for gap in found.missing)


def test_a_log_named_after_its_daemon_set_is_of_its_only_pod(tmp_path: Path) -> None:
    """``kubectl logs ds/nvidia-device-plugin-daemonset > plugin.log`` beside the pods."""
    objects = named_pods(EXAMPLES["DPL-01"].broken)
    (tmp_path / "all.json").write_text(json.dumps({"kind": "List", "items": dumps.plain(objects)}))
    (tmp_path / "plugin.log").write_text("Retrieving plugins.\nE0101 No devices found. Waiting indefinitely.\n")
    assert first(tmp_path) == "DPL-01"


def test_what_is_not_read_is_named(tmp_path: Path) -> None:
    dumps.must_gather(named_pods(EXAMPLES["DPL-01"].broken), tmp_path)
    (tmp_path / "core.bin").write_bytes(bytes(range(256)) * 20)
    (tmp_path / "somebody.log").write_text("hello\n")
    found = files.read(str(tmp_path))
    (gap,) = (one for one in found.missing if "core.bin" in one.what)
    assert "event-filter.html" in gap.what
    assert any("somebody.log" in one.what for one in found.missing)


KERNEL = "[ 1842.113] NVRM: Xid (PCI:0000:07:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus.\n"
JOURNAL = "Jan 01 11:58:20 gpu-9 kernel: NVRM: Xid (PCI:0000:07:00): 79, pid=1, GPU has fallen off the bus.\n"
REPORT = f"""
____________________________________________

Start of NVIDIA bug report log file.  Please include this file, along
with a detailed description of your problem, when reporting a graphics

nvidia-bug-report.sh Version: 33965111

Date: Thu Jan  1 11:59:00 UTC 2026
uname: Linux gpu-9 6.8.0-40-generic #40-Ubuntu SMP x86_64 x86_64 x86_64 GNU/Linux
____________________________________________

*** /proc/driver/nvidia/./version
NVRM version: NVIDIA UNIX x86_64 Kernel Module  570.86.15  Fri Nov 29 00:00:00 UTC 2025
____________________________________________

/usr/bin/dmesg

{KERNEL}
"""


@pytest.mark.parametrize(
    ("name", "text", "node"),
    [
        ("dmesg", KERNEL, "NODE"), ("output", KERNEL, "NODE"), ("dmesg-gpu-9.txt", KERNEL, "gpu-9"),
        ("nodes/gpu-9/dmesg", KERNEL, "gpu-9"), ("journal", JOURNAL, "gpu-9"), ("kern.log", JOURNAL, "gpu-9"),
        ("report.txt", REPORT, "gpu-9"), ("nvidia-bug-report.log.gz", REPORT, "gpu-9"), ("r.gz", REPORT, "gpu-9"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("alone", [True, False])
def test_a_kernels_log_by_any_name(name: str, text: str, node: str, alone: bool, tmp_path: Path) -> None:
    path = tmp_path / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(gzip.compress(text.encode()) if name.endswith(".gz") else text.encode())
    report = told(path if alone else tmp_path)
    assert report.findings[0].id == "HW-01"
    assert report.findings[0].subject.name == (node if not alone or "/" not in name else "NODE")


TABLE = """\
Thu Jan  1 11:58:20 2026
+-----------------------------------------------------------------------------------------+
| NVIDIA-SMI 550.127.05             Driver Version: 550.127.05     CUDA Version: 12.4     |
|-----------------------------------------+------------------------+----------------------+
| GPU  Name                 Persistence-M | Bus-Id          Disp.A | Volatile Uncorr. ECC |
| Fan  Temp   Perf          Pwr:Usage/Cap |           Memory-Usage | GPU-Util  Compute M. |
|                                         |                        |               MIG M. |
|=========================================+========================+======================|
|   0  NVIDIA A100-SXM4-80GB          On  |   00000000:07:00.0 Off |                    0 |
| N/A   29C    P0             63W /  400W |       1MiB /  81920MiB |      0%      Default |
|                                         |                        |              Enabled |
+-----------------------------------------+------------------------+----------------------+
|   1  ERR!                          ERR! |   00000000:0F:00.0 Off |                 ERR! |
|ERR!  ERR! ERR!             ERR! /  ERR! |       1MiB /  81920MiB |     ERR!        ERR! |
|                                         |                        |                 ERR! |
+-----------------------------------------+------------------------+----------------------+
"""
QUERY = """\

==============NVSMI LOG==============

Timestamp                                 : Thu Jan  1 11:58:20 2026
Driver Version                            : 565.57.01
CUDA Version                              : 12.7

Attached GPUs                             : 2
GPU 00000000:18:00.0
    Product Name                          : NVIDIA H100 80GB HBM3
    Persistence Mode                      : Enabled
    MIG Mode
        Current                           : Disabled
        Pending                           : Enabled
    GPU UUID                              : GPU-b42dd28e-ffdd-8720-1df0-98bd8cdc05b1
    GPU Reset Status
        Reset Required                    : No
    GPU Recovery Action                   : None
    PCI
        GPU Link Info
            PCIe Generation
                Max                       : 5
                Current                   : 5
            Link Width
                Max                       : 16x
                Current                   : 16x
    Clocks Event Reasons
        Idle                              : Not Active
        SW Power Cap                      : Active
        HW Slowdown                       : Not Active
            HW Thermal Slowdown           : Not Active
            HW Power Brake Slowdown       : Not Active
    FB Memory Usage
        Total                             : 81559 MiB
        Used                              : 1 MiB
    Compute Mode                          : Exclusive_Process
    Utilization
        Gpu                               : 97 %
    Remapped Rows
        Correctable Error                 : 0
        Uncorrectable Error               : 1
        Pending                           : Yes
        Remapping Failure Occurred        : No
    Temperature
        GPU Current Temp                  : 61 C
        GPU T.Limit Temp                  : 26 C
    Fabric
        State                             : In Progress
        Status                            : N/A

GPU 00000000:2A:00.0
    Product Name                          : NVIDIA H100 80GB HBM3
    MIG Mode
        Current                           : N/A
    GPU UUID                              : GPU-7c3cadbd-17e5-0913-f69b-c618122ea0cd
    Remapped Rows                         : N/A
"""


def test_the_table_of_nvidia_smi() -> None:
    found = smi.read(TABLE)
    assert (found["driverVersion"], found["cuda"]) == ("550.127.05", "12.4")
    well, lost = found["gpus"]
    assert (well["name"], well["pci"], well["migEnabled"]) == ("NVIDIA A100-SXM4-80GB", "0000:07:00.0", True)
    assert lost["lost"] == "nvidia-smi shows ERR! for it"


@pytest.mark.parametrize(
    ("words", "fault"),
    [
        (
            "NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver. Make sure",
            DriverFault.NOT_LOADED,
        ),
        ("Failed to initialize NVML: Driver Not Loaded", DriverFault.NOT_LOADED),
        ("Failed to initialize NVML: Driver/library version mismatch", DriverFault.VERSION_MISMATCH),
        ("Failed to initialize NVML: Insufficient Permissions", DriverFault.NO_PERMISSION),
        ("Failed to initialize NVML: Unknown Error", DriverFault.OTHER),
    ],
)
def test_a_refusal_of_nvidia_smi_has_a_key(words: str, fault: DriverFault) -> None:
    assert smi.read(words)["nvmlFault"] is fault


def test_the_report_of_nvidia_smi() -> None:
    found = smi.read(QUERY)
    assert (found["driverVersion"], found["cuda"]) == ("565.57.01", "12.7")
    one, other = found["gpus"]
    assert (one["uuid"], one["pci"], one["memoryMib"]) == (
        "GPU-b42dd28e-ffdd-8720-1df0-98bd8cdc05b1",
        "0000:18:00.0",
        81559,
    )
    assert (one["migEnabled"], one["migPending"], one["migCapable"], one["recovery"]) == (False, True, True, "none")
    assert one["readings"] == {
        "remapped_rows_pending": 1, "remapped_rows_failure": 0, "remapped_rows_uncorrectable": 1, "pcie_width": 16,
        "pcie_max_width": 16, "pcie_generation": 5, "pcie_max_generation": 5, "temperature_c": 61,
        "temperature_margin_c": 26, "utilization_percent": 97, "memory_used_mib": 1, "compute_mode": 3,
        "persistence_mode": 1, "fabric_state": 2, "clock_event_reasons": 4,
    }  # fmt: skip
    assert (other["uuid"], other["readings"], other["migCapable"]) == (
        "GPU-7c3cadbd-17e5-0913-f69b-c618122ea0cd",
        {},
        False,
    )


@pytest.mark.parametrize(
    ("name", "text", "rule"),
    [
        ("nvidia-smi.txt", TABLE, "HW-01"),
        ("x", "Unable to determine the device handle for GPU 0000:3B:00.0: GPU is lost.  Reboot the system to recover this GPU\n", "HW-01"),
        ("q.out", QUERY, "HW-04"),
        ("gpu-9_nvidia-smi-q.txt", QUERY.replace("Remapping Failure Occurred        : No", "Remapping Failure Occurred        : Yes"), "HW-03"),
        ("smi", QUERY.replace("GPU Recovery Action                   : None", "GPU Recovery Action                   : Reset").replace(": Yes", ": No"), "HW-14"),
        ("smi", QUERY.replace("HW Thermal Slowdown           : Not Active", "HW Thermal Slowdown           : Active").replace(": Yes", ": No"), "HW-05"),
    ],
)  # fmt: skip
def test_a_fault_that_nvidia_smi_shows(name: str, text: str, rule: str, tmp_path: Path) -> None:
    (tmp_path / name).write_text(text)
    assert first(tmp_path / name) == rule
    assert first(tmp_path) == rule


def test_texts_of_one_node_are_one_host(tmp_path: Path) -> None:
    """With what an archive has seen of it itself, which is not touched."""
    host: dict[str, Any] = {"kind": "HostFacts", "metadata": {"name": "gpu-9"}, "driverVersion": "1.2.3"}
    (tmp_path / "host.json").write_text(json.dumps(host))
    (tmp_path / "gpu-9-smi.txt").write_text(TABLE)
    (tmp_path / "journal.txt").write_text(JOURNAL)
    (tmp_path / "nodes.json").write_text(json.dumps({"kind": "Node", "metadata": {"name": "gpu-9"}}))
    (found,) = files.read(str(tmp_path)).hosts.values()
    assert found.driver_version == "1.2.3"
    assert found.kernel_log == (JOURNAL.strip(),)
    assert len(found.gpus or ()) == 2


def test_a_containers_refusal_is_not_the_nodes(tmp_path: Path) -> None:
    """What nvidia-smi says within a container says nothing of the driver of the node."""
    objects = dumps.plain(EXAMPLES["DPL-01"].healthy)
    (tmp_path / "all.json").write_text(json.dumps({"kind": "List", "items": objects}))
    (tmp_path / "what it says.txt").write_text("Failed to initialize NVML: Unknown Error\n")
    assert files.read(str(tmp_path)).hosts == {}


def test_an_archive_from_standard_input(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    dumps.must_gather(named_pods(EXAMPLES["DPL-01"].broken), tmp_path / "in")
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz") as file:
        file.add(tmp_path / "in", "must-gather")

    class Typed:
        buffer = io.BytesIO(packed.getvalue())

    monkeypatch.setattr("sys.stdin", Typed())
    assert first("-") == "DPL-01"


def test_lines_of_an_engine_come_back_whole() -> None:
    said = ["x" * 40_000, "한국어 " * 3, ""]
    assert engine_lines.unwrapped(dumps.cri(said).encode()).decode().splitlines() == said
    mixed = "2026-01-01T00:00:00Z stdout P a\n2026-01-01T00:00:00Z stderr F b\n2026-01-01T00:00:01+09:00 stdout F c\nwhole\n"
    assert engine_lines.unwrapped(mixed.encode()) == b"b\nac\nwhole\n"
    assert engine_lines.unwrapped(b"plain\n") == b"plain\n"


@tries(60)
@given(
    st.binary(max_size=300),
    st.sampled_from(["stdout P ", '{"log":"', "==== START logs", "[pod/a/b] ", "| NVIDIA-SMI 1", "=NVSMI LOG=\n"]),
)
def test_any_bytes_in_these_forms_are_read(data: bytes, head: str) -> None:
    text = f"2026-01-01T00:00:00Z {head}".encode() + data
    engine_lines.unwrapped(text)
    tailed.parts(text)
    rest, found = tailed.sections(data + b"\n" + head.encode() + data)
    assert len(rest) + sum(len(one.data) for one in found) <= len(data) * 2 + 50
    smi.read(head + data.decode("latin-1"))


@pytest.mark.parametrize(
    "place", ["gpu_operand_pod_x.log", "namespaces/a/pods/b/c/c/logs/current.log", "nodes/n/dmesg", "x"]
)
@pytest.mark.parametrize(
    "data", [b"\x00" * 100_000, b"x" * 3_000_000, b"NVRM: " + b"\xff" * 100_000, b"\x1f\x8b\x08" + b"z" * 99]
)
def test_hostile_contents_break_nothing(place: str, data: bytes, tmp_path: Path) -> None:
    path = tmp_path / "hostile" / place
    path.parent.mkdir(parents=True)
    path.write_bytes(data)
    dumps.cluster_info_folder(named_pods(EXAMPLES["DPL-01"].broken), tmp_path / "dump")
    assert first(tmp_path) == "DPL-01"
