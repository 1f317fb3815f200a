"""nvidia-smi on simulated driver roots: layouts, queries, selections, texts and exit codes of the vendor's program."""

from __future__ import annotations

import csv
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given
from hypothesis import strategies as st

from kgpu.hw.simulator import operate, reboot
from kgpu.hw.simulator.create import environment
from kgpu.hw.simulator.state import DriverState
from tests.budget import tries
from tests.child import child

Root = Callable[..., Path]
NO_DRIVER = (
    "NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver. "
    "Make sure that the latest NVIDIA driver is installed and running.\n\n"
)


def smi(root: Path, *arguments: str, code: int = 0, **env: str) -> str:
    """What `nvidia-smi ARGUMENTS` prints; it must end with `code`."""
    done = subprocess.run(
        [root / "usr/bin/nvidia-smi", *arguments],
        env={**os.environ, **environment(root), **env},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stderr) == (code, ""), done.stdout
    return done.stdout


def query(root: Path, fields: str, *arguments: str, form: str = "csv,noheader") -> list[list[str]]:
    """The rows of a --query-gpu."""
    text = smi(root, f"--query-gpu={fields}", f"--format={form}", *arguments)
    return list(csv.reader(text.splitlines(), skipinitialspace=True))


def field_names(root: Path) -> list[str]:
    """Every name, and other name, that --help-query-gpu tells of."""
    lines = smi(root, "--help-query-gpu").splitlines()
    return [name for line in lines if line.startswith('"') for name in re.findall(r'"([^"]+)"', line)]


# ---- lists and tables ----


def test_list(sim_root: Root) -> None:
    root = sim_root(gpus=3)
    with DriverState.open(root / "state") as state:
        expected = [f"GPU {i}: {state.gpu(i).name.decode()} (UUID: {state.gpu(i).uuid.decode()})" for i in range(3)]
    assert smi(root, "-L").splitlines() == expected
    assert smi(root, "--list-gpus", "-i", "1").splitlines() == expected[1:2]


def test_only_what_has_a_device_node_is_listed(sim_root: Root) -> None:
    root = sim_root(gpus=3)
    lines = smi(root, "-L").splitlines()
    (root / "dev/nvidia1").unlink()
    assert smi(root, "-L").splitlines() == [lines[0], lines[2].replace("GPU 2", "GPU 1", 1)]


@pytest.mark.parametrize("profile", ["hgx-h100", "t4", "dgx-1-v100", "geforce", "rtx-pro-6000", "mixed-models"])
def test_the_table_keeps_its_shape(sim_root: Root, profile: str) -> None:
    """Every line is 91 columns, whatever the model's name and readings."""
    root = sim_root(profile)
    lines = smi(root).splitlines()
    with DriverState.open(root / "state") as state:
        count = state.gpu_count
        version = state.view.driver_version.decode()
        longest = max(len(state.gpu(i).name.decode()) for i in range(count))
    assert {len(line) for line in lines[1:] if line.strip()} == {91}
    assert re.fullmatch(rf"\| NVIDIA-SMI {version} +Driver Version: {version} +CUDA Version: \d+\.\d +\|", lines[2])
    rows = [line for line in lines if re.match(r"\| +\d+  \S", line)]
    assert len(rows) == count
    assert any("... " in row for row in rows) == (longest > 27)
    assert lines[-2] == f"|  {'No running processes found':<87}|"


def test_the_table_shows_processes(sim_root: Root) -> None:
    root = sim_root(gpus=2)
    script = "import ctypes,sys; c=ctypes.CDLL('libcuda.so.1'); x=ctypes.c_void_p(); c.cuInit(0); c.cuCtxCreate_v2(ctypes.byref(x),0,1); print(flush=True); sys.stdin.read()"
    with child(
        [sys.executable, "-c", script],
        env={**os.environ, **environment(root)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        process.stdout.readline()
        rows = re.findall(r"\|\s+(\d+)\s+N/A\s+N/A\s+(\d+)\s+C\s+(\S+)\s+(\d+)MiB \|", smi(root))
        listed = smi(root, "--query-compute-apps=pid,used_memory,gpu_uuid", "--format=csv,noheader,nounits")
        used = query(root, "index,memory.used", form="csv,noheader,nounits")
        assert process.stdin is not None
        process.stdin.close()
    (row,) = rows
    uuid = query(root, "uuid", "-i", "1")[0][0]
    assert row[:2] == ("1", str(process.pid))
    assert "python" in row[2]
    assert listed == f"{process.pid}, {row[3]}, {uuid}\n"
    assert used == [["0", "0"], ["1", row[3]]]
    assert "No running processes found" in smi(root)


# ---- selecting ----


def test_selection_by_any_name(sim_root: Root) -> None:
    root = sim_root(gpus=4)
    index, uuid, bus, serial = query(root, "index,uuid,pci.bus_id,serial")[2]
    for name in (index, uuid, bus, serial, bus.lower(), bus[4:], bus[4:].removesuffix(".0")):
        assert query(root, "index", "-i", name) == [["2"]], name
    assert query(root, "index", f"--id=3,{uuid},3") == [["3"], ["2"]]
    for bad in ("4", "x", "", "1,,2", "GPU-0000", "0000:FF:00.0"):
        assert smi(root, "-L", "-i", bad, code=6) == "No devices were found\n", bad


# ---- --query-gpu ----


def test_every_field_answers_on_every_model(sim_root: Root) -> None:
    for profile in ("hgx-h100", "t4", "dgx-1-p100", "geforce"):
        root = sim_root(profile, gpus=2)
        names = field_names(root)
        assert len(names) > 120
        header, *rows = query(root, ",".join(names), form="csv")
        assert (len(rows), {len(row) for row in [header, *rows]}) == (2, {len(names)})
        assert not [text for row in rows for text in row if "Unknown" in text or not text]


def test_known_readings(sim_root: Root) -> None:
    root = sim_root(gpus=1)
    fields = "index,name,memory.total,memory.free,mig.mode.current,compute_cap,pstate,fan.speed,clocks.max.sm,power.limit,count"
    assert query(root, fields, form="csv") == [
        ["index", "name", "memory.total [MiB]", "memory.free [MiB]", "mig.mode.current", "compute_cap", "pstate", "fan.speed [%]",
         "clocks.max.sm [MHz]", "power.limit [W]", "count"],
        ["0", "NVIDIA H100 80GB HBM3", "81559 MiB", "81007 MiB", "Disabled", "9.0", "P0", "[N/A]", "1980 MHz", "700.00 W", "1"],
    ]  # fmt: skip


def test_readings_follow_the_state(sim_root: Root) -> None:
    root = sim_root(gpus=2)
    with DriverState.open(root / "state") as state:
        state.set_load(1, 100)
        gpu = state.gpu(1)
        gpu.load_prev = gpu.load_target
        gpu.ecc_volatile[7 + 2] = 5
        state.set_fault(1, throttle_forced=0x40, recovery_action=2)
    fields = "utilization.gpu,ecc.errors.uncorrected.volatile.total,clocks_throttle_reasons.hw_thermal_slowdown,gpu_recovery_action"
    assert query(root, fields, form="csv,noheader,nounits") == [
        ["0", "0", "Not Active", "None"],
        ["100", "5", "Active", "Reboot"],
    ]


@pytest.fixture
def one_gpu(sim_root: Root) -> Path:
    return sim_root(gpus=1)


@given(names=st.data(), units=st.booleans(), header=st.booleans())
@tries(15, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_units_and_header_are_the_only_difference(
    one_gpu: Path, names: st.DataObject, units: bool, header: bool
) -> None:
    root = one_gpu
    known = [
        name
        for name in field_names(root)
        if not name.startswith(("timestamp", "power", "temperature", "clocks.current", "clocks."))
    ]
    chosen = names.draw(st.lists(st.sampled_from(known), min_size=1, max_size=6))
    form = ",".join(["csv", *([] if header else ["noheader"]), *([] if units else ["nounits"])])
    rows = query(root, ",".join(chosen), form=form)
    (full,) = query(root, ",".join(chosen))
    assert len(rows) == 1 + header
    assert rows[-1] == (full if units else [re.sub(r"^([\d.]+) (MiB|%|W|MHz)$", r"\1", text) for text in full])


def test_bad_queries(sim_root: Root) -> None:
    root = sim_root(gpus=1)
    assert (
        smi(root, "--query-gpu=name,frob", "--format=csv", code=2) == 'Field "frob" is not a valid field to query.\n\n'
    )
    assert (
        smi(root, "--query-compute-apps=frob", "--format=csv", code=2)
        == 'Field "frob" is not a valid field to query.\n\n'
    )
    assert "--format=" in smi(root, "--query-gpu=name", code=2)
    assert "--format=" in smi(root, "--query-gpu=name", "--format=xml", code=2)
    assert smi(root, "--frob", code=2) == "Option \"--frob\" is not recognized. Please run 'nvidia-smi -h'.\n\n"
    assert smi(root, "-L", "-q", code=2).startswith("Invalid combination of input arguments.")
    assert smi(root, "-i", code=2).startswith('Option "-i" is not recognized.')


# ---- when things are wrong ----


def test_no_driver(sim_root: Root, tmp_path: Path) -> None:
    root = sim_root(gpus=1)
    for arguments in ((), ("-L",), ("--query-gpu=name", "--format=csv"), ("topo", "-m"), ("mig", "-lgip")):
        assert smi(root, *arguments, code=9, KGPU_HW_STATE=str(tmp_path / "none")) == NO_DRIVER
    elsewhere = tmp_path / "elsewhere"
    (elsewhere / "usr/bin").mkdir(parents=True)
    shutil.copy2(root / "usr/bin/nvidia-smi", elsewhere / "usr/bin/nvidia-smi")
    assert "couldn't find libnvidia-ml.so" in smi(elsewhere, code=12, LD_LIBRARY_PATH="/nonexistent")


def test_a_roots_own_program_finds_its_driver(sim_root: Root) -> None:
    root = sim_root(gpus=2)
    bare = {name: value for name, value in os.environ.items() if name not in {"KGPU_HW_STATE", "LD_LIBRARY_PATH"}}
    done = subprocess.run([root / "usr/bin/nvidia-smi", "-L"], env=bare, capture_output=True, text=True, check=False)
    assert (done.returncode, len(done.stdout.splitlines())) == (0, 2)


@pytest.mark.parametrize(
    ("error", "code", "said"),
    [
        (18, 18, "Failed to initialize NVML: Driver/library version mismatch\n"),
        (999, 255, "Failed to initialize NVML: Unknown Error\n"),
        (4, 4, "Failed to initialize NVML: Insufficient Permissions\n"),
        (9, 9, NO_DRIVER),
    ],
)
def test_init_errors(sim_root: Root, error: int, code: int, said: str) -> None:
    root = sim_root(gpus=1)
    with DriverState.open(root / "state") as state:
        state.set_fault(None, init_error=error)
    assert smi(root, code=code).startswith(said)


def test_a_lost_gpu_hides_no_other(sim_root: Root) -> None:
    root = sim_root(gpus=3)
    with DriverState.open(root / "state") as state:
        state.set_fault(1, lost=1)
        where = f"0000:{state.gpu(1).pci.bus:02X}:{state.gpu(1).pci.device:02X}.0"
    ending = "GPU is lost.  Reboot the system to recover this GPU"
    for arguments in ((), ("-L",), ("--query-gpu=index", "--format=csv,noheader"), ("-q", "-d", "MEMORY")):
        last = smi(root, *arguments, code=15).splitlines()[-1]
        assert last == f"Unable to determine the device handle for GPU{where}: {ending}"
    assert smi(root, "--query-gpu=index", "--format=csv,noheader", code=15).splitlines()[:2] == ["0", "2"]
    assert query(root, "index", "-i", "2") == [["2"]]


def test_no_gpus_at_all(sim_root: Root) -> None:
    root = sim_root(gpus=1)
    (root / "dev/nvidia0").unlink()
    assert smi(root, code=6) == "No devices were found\n"


# ---- the full log ----


def test_full_log(sim_root: Root) -> None:
    root = sim_root(gpus=2)
    text = smi(root, "-q")
    assert [line.index(":") for line in text.splitlines() if " : " in line] == [42] * text.count(" : ")
    assert re.findall(r"^GPU (\S+)$", text, re.MULTILINE) == [row[0] for row in query(root, "pci.bus_id")]
    assert re.search(r"^    MIG Mode\n        Current +: Disabled$", text, re.MULTILINE)
    part = smi(root, "-q", "-d", "MEMORY,ecc", "-i", "1")
    assert re.findall(r"^    (\S.*?)(?: +:.*)?$", part, re.MULTILINE) == ["FB Memory Usage", "ECC Mode", "ECC Errors"]
    assert 'Invalid argument "FROB"' in smi(root, "-q", "-d", "MEMORY,FROB", code=2)


# ---- topology ----


def test_topology_matrix(sim_root: Root) -> None:
    root = sim_root("hgx-h100")
    lines = [line.split("\t") for line in smi(root, "topo", "-m").split("\n\n")[0].splitlines()]
    assert lines[0][1:9] == [f"GPU{i}" for i in range(8)]
    for i, row in enumerate(lines[1:]):
        assert row[:9] == [f"GPU{i}", *(" X " if i == k else "NV18" for k in range(8))]
    pcie = [line.split("\t") for line in smi(sim_root("t4", gpus=4), "topo", "-m").split("\n\n")[0].splitlines()]
    cells = {(i, k): pcie[1 + i][1 + k] for i in range(4) for k in range(4) if i != k}
    assert set(cells.values()) <= {"PIX", "PXB", "PHB", "NODE", "SYS"}
    assert all(cells[i, k] == cells[k, i] for i, k in cells)
    assert smi(root, "topo", code=2).startswith("Usage:")


def test_nvlinks(sim_root: Root) -> None:
    root = sim_root("hgx-h100", gpus=2)
    lines = smi(root, "nvlink", "-s", "-i", "0").splitlines()
    assert lines[0].startswith("GPU 0: NVIDIA H100 80GB HBM3 (UUID: GPU-")
    assert [re.sub(r"[\d.]+ GB", "N GB", line) for line in lines[1:]] == [f"\t Link {i}: N GB/s" for i in range(18)]
    with DriverState.open(root / "state") as state:
        state.gpu(0).link[3].active = 0
    assert smi(root, "nvlink", "-s", "-i", "0").splitlines()[4] == "\t Link 3: <inactive>"
    assert "Replay Errors: 0" in smi(root, "nvlink", "-e")
    assert smi(root, "nvlink", "--frob", code=2).startswith("Usage:")


# ---- modes ----


def test_modes(sim_root: Root) -> None:
    root = sim_root(gpus=2)
    bus = [row[0] for row in query(root, "pci.bus_id")]
    assert smi(root, "-pm", "0", "-i", "1") == f"Disabled persistence mode for GPU {bus[1]}.\nAll done.\n"
    assert smi(root, "-pm", "0", "-i", "1") == f"Persistence mode is already Disabled for GPU {bus[1]}.\nAll done.\n"
    assert (
        smi(root, "-c", "EXCLUSIVE_PROCESS", "-i", "0")
        == f"Set compute mode to EXCLUSIVE_PROCESS for GPU {bus[0]}.\nAll done.\n"
    )
    assert (
        smi(root, "-pl", "500")
        == "".join(f"Power limit for GPU {b} was set to 500.00 W from 700.00 W.\n" for b in bus) + "All done.\n"
    )
    assert "should be between 200.00 W and 700.00 W" in smi(root, "-pl", "1", "-i", "0", code=2)
    assert query(root, "persistence_mode,compute_mode,power.limit") == [
        ["Enabled", "Exclusive_Process", "500.00 W"],
        ["Disabled", "Default", "500.00 W"],
    ]
    assert "Unable to parse" in smi(root, "-pm", "yes", code=2)


# ---- MIG ----


def test_mig_life_cycle(sim_root: Root) -> None:
    root = sim_root(gpus=2)
    assert smi(root, "mig", "-lgi", code=6) == "No MIG-enabled devices found.\n"
    bus = query(root, "pci.bus_id")[0][0]
    assert smi(root, "-i", "0", "-mig", "1") == f"Enabled MIG Mode for GPU {bus}\nAll done.\n"
    assert query(root, "mig.mode.current,mig.mode.pending") == [["Enabled"] * 2, ["Disabled"] * 2]
    made = smi(root, "mig", "-cgi", "9,2g.20gb", "-C").splitlines()
    assert [re.sub(r"instance ID +\d+", "instance ID N", line) for line in made] == [
        "Successfully created GPU instance ID N on GPU  0 using profile MIG 3g.40gb (ID  9)",
        "Successfully created compute instance ID N on GPU  0 GPU instance ID N using profile MIG 3g.40gb (ID  2)",
        "Successfully created GPU instance ID N on GPU  0 using profile MIG 2g.20gb (ID 14)",
        "Successfully created compute instance ID N on GPU  0 GPU instance ID N using profile MIG 2g.20gb (ID  1)",
    ]
    failed = smi(root, "mig", "-cgi", "0", code=23)
    assert failed.splitlines()[-1] == "Failed to create GPU instances: Insufficient Resources"
    listed = smi(root, "-L").splitlines()
    assert [re.sub(r"MIG-[0-9a-f-]{36}", "U", line) for line in listed[1:3]] == [
        "  MIG 3g.40gb      Device  0: (UUID: U)",
        "  MIG 2g.20gb      Device  1: (UUID: U)",
    ]
    table = smi(root)
    assert {len(line) for line in table.splitlines()[1:] if line.strip()} == {91}
    assert len(re.findall(r"^\|  0 +\d+   0   [01]  \|", table, re.MULTILINE)) == 2
    assert "Failed to destroy GPU instances: In use by another client" in smi(root, "mig", "-dgi", code=19)
    assert len(smi(root, "mig", "-dci").splitlines()) == 2
    assert len(smi(root, "mig", "-dgi").splitlines()) == 2
    assert smi(root, "mig", "-lgi", code=6) == "No GPU instances found: Not Found\n"
    assert smi(root, "-i", "0", "-mig", "0") == f"Disabled MIG Mode for GPU {bus}\nAll done.\n"


def test_mig_profiles_and_placements(sim_root: Root) -> None:
    root = sim_root(gpus=1)
    smi(root, "-mig", "1")
    profiles = re.findall(
        r"^\|   0  MIG (\S+) +(\d+) +(\d)/(\d) +([\d.]+) +No +(\d+)", smi(root, "mig", "-lgip"), re.MULTILINE
    )
    assert profiles == [
        ("1g.10gb", "19", "7", "7", "9.75", "16"), ("1g.10gb+me", "20", "1", "1", "9.75", "16"),
        ("1g.20gb", "15", "4", "4", "19.62", "26"), ("2g.20gb", "14", "3", "3", "19.62", "32"),
        ("3g.40gb", "9", "2", "2", "39.50", "60"), ("4g.40gb", "5", "1", "1", "39.50", "64"),
        ("7g.80gb", "0", "1", "1", "79.25", "132"),
    ]  # fmt: skip
    placements = smi(root, "mig", "-lgipp").splitlines()
    assert placements[0] == "GPU  0 Profile ID 19 Placements: {0,1,2,3,4,5,6}:1"
    assert placements[-1] == "GPU  0 Profile ID  0 Placement : {0}:8"
    smi(root, "mig", "-cgi", "9:4")
    assert re.search(r"MIG 3g.40gb +9 +\d+ +4:4 ", smi(root, "mig", "-lgi"))
    assert smi(root, "mig", "-lci", code=6) == "No compute instances found: Not Found\n"
    assert smi(root, "mig", "-cci", "1c.3g.40gb,1c.3g.40gb").count("Successfully created compute instance") == 2
    assert len(re.findall(r"MIG 1c.3g.40gb", smi(root, "mig", "-lci"))) == 2
    assert smi(root, "mig", "--frob", code=2).startswith("Usage:")


def test_mig_mode_that_needs_a_reset(sim_root: Root) -> None:
    """On Ampere the mode of a busy GPU stays pending; where MIG is unknown it is a warning."""
    root = sim_root("dgx-a100-40g", gpus=1)
    script = "import ctypes,subprocess,sys; c=ctypes.CDLL('libcuda.so.1'); x=ctypes.c_void_p(); c.cuInit(0); c.cuCtxCreate_v2(ctypes.byref(x),0,0); sys.exit(subprocess.call(sys.argv[1:]))"
    done = subprocess.run(
        [sys.executable, "-c", script, str(root / "usr/bin/nvidia-smi"), "-mig", "1"],
        env={**os.environ, **environment(root)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, "MIG mode is in pending enable state" in done.stdout) == (0, True)
    assert query(root, "mig.mode.current,mig.mode.pending") == [["Disabled", "Enabled"]]
    assert "Disabled*" in smi(root)
    assert "Treating as warning and moving on.\nAll done." in smi(sim_root("t4", gpus=1), "-mig", "1")
    assert smi(sim_root("t4", gpus=1), "mig", "-lgip", code=6) == "No MIG-supported devices found.\n"


def test_help_and_version(sim_root: Root) -> None:
    root = sim_root(gpus=1)
    assert smi(root, "-h").startswith("NVIDIA System Management Interface -- v570.")
    assert re.fullmatch(
        r"NVIDIA-SMI version  : (\S+)\nNVML version        : 12.\1\nDRIVER version      : \1\nCUDA Version        : 12.8\n",
        smi(root, "--version"),
    )


# ---- compute policies ----


def timeslices(root: Path) -> list[int]:
    """What the state says, which is not by way of the program."""
    state = DriverState.open(root / "state", writable=False)
    try:
        return [int(state.gpu(index).timeslice) for index in range(state.gpu_count)]
    finally:
        state.close()


def test_a_time_slice_is_set_for_gpus_by_name(sim_root: Root) -> None:
    root = sim_root(gpus=3)
    uuids = [row[0] for row in query(root, "uuid")]
    said = smi(root, "compute-policy", "-i", f"{uuids[2]},0", "--set-timeslice=3")
    assert said.count("Set timeslice policy with value Long for GPU") == 2
    assert timeslices(root) == [3, 0, 3]
    smi(root, "compute-policy", "--id", uuids[2], "--set-timeslice", "1")
    listed = smi(root, "compute-policy", "-l").splitlines()[4:-1]
    assert [line.strip("| ").split() for line in listed] == [
        ["0", "Timeslice", "Long"], ["1", "Timeslice", "Default"], ["2", "Timeslice", "Short"],
    ]  # fmt: skip
    smi(root, "compute-policy", "--set-timeslice=0")
    assert timeslices(root) == [0, 0, 0]


def test_a_gpu_that_has_no_time_slice_says_so_as_nvidias_does(sim_root: Root) -> None:
    root = sim_root(gpus=2)
    operate.set_values(root, {"timeslice-support": "off"}, gpu=1)
    said = smi(root, "compute-policy", "--set-timeslice=2", code=3)
    assert re.search(r"Failed to set timeslice policy with value Medium for GPU \S+ : Not Supported\n", said)
    assert said.endswith("Failed to set timeslice for requested devices : Not Supported\n")
    assert timeslices(root) == [2, 0]
    assert "N/A" in smi(root, "compute-policy", "-l", "-i", "1")


@pytest.mark.parametrize("profile", ["dgx-1-p100", "dgx-1-v100", "t4"])
def test_gpus_since_pascals_large_one_have_time_slices(sim_root: Root, profile: str) -> None:
    root = sim_root(profile, gpus=1)
    smi(root, "compute-policy", "--set-timeslice=1")
    assert timeslices(root) == [1]


@pytest.mark.parametrize("words", [["--set-timeslice=4"], ["--set-timeslice"], ["-l", "--set-timeslice=1"], ["-x"]])
def test_what_is_no_compute_policy_is_bad_use(sim_root: Root, words: list[str]) -> None:
    root = sim_root(gpus=1)
    assert "Usage: nvidia-smi compute-policy" in smi(root, "compute-policy", *words, code=2)
    assert timeslices(root) == [0]


def test_a_reset_and_a_reboot_lose_the_time_slice(sim_root: Root) -> None:
    root = sim_root(gpus=1)
    smi(root, "-pm", "0")
    for lose in (lambda: smi(root, "--gpu-reset"), lambda: reboot.reboot(root)):
        smi(root, "compute-policy", "--set-timeslice=3")
        lose()
        assert timeslices(root) == [0]
