"""Changing a simulated node: keys, faults and their clearing, MIG layouts, and the command line over them."""

from __future__ import annotations

import contextlib
import json
import os
import re
import subprocess
import sys
import textwrap
import time

import pytest
from click.testing import CliRunner
from hypothesis import HealthCheck, given
from hypothesis import strategies as st

from kgpu.base.errors import ConfigError, HwError, UserError
from kgpu.cli.lab_hw import hw_group
from kgpu.hw.simulator import mig, operate
from kgpu.hw.simulator.create import create_root, environment, library_path
from kgpu.hw.simulator.settings import SETTINGS
from kgpu.hw.simulator.state import DriverState
from tests.budget import tries

pytestmark = pytest.mark.usefixtures("sim_libs")


@pytest.fixture
def root(tmp_path):
    return create_root("hgx-h100", tmp_path / "node", gpus=4)


def gpu(root, index=0):
    return operate.snapshot(root)["gpus"][index]


def ask(root, expression, index=0):
    """Evaluate a pynvml expression about GPU ``index`` (``h``) in a process of its own; errors give their names."""
    program = f"""
    import json, pynvml as n
    try:
        n.nvmlInit()
        h = n.nvmlDeviceGetHandleByIndex({index})
        answer = {expression}
    except n.NVMLError as error:
        answer = type(error).__name__.removeprefix("NVMLError_")
    print(json.dumps(answer))
    """
    result = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program)],
        env={**os.environ, **environment(root)},
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert result.returncode == 0, result.stderr
    return json.loads(result.stdout)


@pytest.mark.parametrize(
    ("key", "value", "expression", "answer"),
    [
        ("temperature", 77, "n.nvmlDeviceGetTemperature(h, 0)", 77),
        ("temperature", "77C", "n.nvmlDeviceGetTemperature(h, 0)", 77),
        ("utilization", "55%", "n.nvmlDeviceGetUtilizationRates(h).gpu", 55),
        ("memory-utilization", 33, "n.nvmlDeviceGetUtilizationRates(h).memory", 33),
        ("power-limit", "300 W", "n.nvmlDeviceGetPowerManagementLimit(h)", 300_000),
        ("ecc-uncorrected", 5, "n.nvmlDeviceGetTotalEccErrors(h, 1, 0)", 5),
        ("ECC_Corrected_Total", 6, "n.nvmlDeviceGetTotalEccErrors(h, 0, 1)", 6),
        ("persistence", "off", "n.nvmlDeviceGetPersistenceMode(h)", 0),
        ("compute-mode", "exclusive-process", "n.nvmlDeviceGetComputeMode(h)", 3),
        ("nvlink.4", "down", "n.nvmlDeviceGetNvLinkState(h, 4)", 0),
        ("pcie-width", 8, "n.nvmlDeviceGetCurrPcieLinkWidth(h)", 8),
        ("name", "NVIDIA Nonesuch", "n.nvmlDeviceGetName(h)", "NVIDIA Nonesuch"),
        ("cuda-version", "13.1", "n.nvmlSystemGetCudaDriverVersion()", 13010),
        ("recovery-action", "drain-reset", "n.nvmlDeviceGetFieldValues(h, [230])[0].value.uiVal", 4),
        ("throttle", "hw-thermal,power-brake", "n.nvmlDeviceGetCurrentClocksEventReasons(h) & 0xC0", 0xC0),
    ],
)
def test_a_set_value_is_what_nvml_answers(root, key, value, expression, answer):
    operate.set_values(root, {key: value}, gpu=1)
    assert ask(root, expression, 1) == answer


def test_memory_and_power_move_as_asked(root):
    free = ask(root, "n.nvmlDeviceGetMemoryInfo(h).free")
    operate.set_values(root, {"memory-used": "1000MiB", "power": 400}, gpu=0)
    assert free - ask(root, "n.nvmlDeviceGetMemoryInfo(h).free") == 1000 << 20
    assert abs(ask(root, "n.nvmlDeviceGetPowerUsage(h)") - 400_000) < 4_000
    assert gpu(root)["memory_used_mib"] == 1000


def test_without_a_gpu_all_are_set(root):
    operate.set_values(root, {"temperature": 60})
    assert [one["temperature_c"] for one in operate.snapshot(root)["gpus"]] == [60] * 4


def test_a_new_driver_version_renames_its_files(root):
    operate.set_values(root, {"driver-version": "580.95.05"})
    assert ask(root, "n.nvmlSystemGetDriverVersion()") == "580.95.05"
    assert "580.95.05" in (root / "proc/driver/nvidia/version").read_text()
    names = {entry.name for entry in library_path(root).iterdir()}
    assert "libcuda.so.580.95.05" in names
    assert not [name for name in names if "570." in name]


@pytest.mark.parametrize(
    ("values", "says"),
    [
        ({"temperat": 1}, 'did you mean "temperature"'),
        ({"temperature": "hot"}, "whole number"),
        ({"temperature": 900}, "-20 to 150"),
        ({"power-limit": 5000}, "1 to 700"),
        ({"memory-used": 81559}, "MiB"),
        ({"compute-mode": "exclusive"}, "exclusive-thread"),
        ({"throttle": "hw-termal"}, 'did you mean "hw-thermal"'),
        ({"nvlink.18": "down"}, "0 to 17"),
        ({"driver-version": "new"}, "550.54.15"),
        ({"name": "\x00"}, "printable"),
        ({"name": "x" * 96}, "printable"),
    ],
)
def test_bad_values_are_refused_and_nothing_is_written(root, values, says):
    before = operate.snapshot(root)
    with pytest.raises(ConfigError) as caught:
        operate.set_values(root, {"ecc-corrected": 9, **values}, gpu=0)
    assert says in str(caught.value)
    assert operate.snapshot(root) == before


TEXTS = st.one_of(
    st.text(max_size=10), st.integers().map(str), st.sampled_from(["on", "off", "none", "up", "12.4", "550.54.15"])
)


@pytest.fixture(scope="module")
def shared_root(tmp_path_factory, sim_libs):
    return create_root("dgx-1-v100", tmp_path_factory.mktemp("shared") / "node")


@tries(150, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(key=st.sampled_from([*SETTINGS, "nvlink.3", "nvlink.x"]) | st.text(max_size=8), value=TEXTS)
def test_any_key_and_value_is_set_or_a_three_part_error(shared_root, key, value):
    with contextlib.suppress(ConfigError):  # anything else is a failure
        operate.set_values(shared_root, {key: value}, gpu=0)
    operate.snapshot(shared_root)


WATCH = """
import json, sys, pynvml as n
n.nvmlInit()
events = n.nvmlEventSetCreate()
for i in range(n.nvmlDeviceGetCount()):
    h = n.nvmlDeviceGetHandleByIndex(i)
    n.nvmlDeviceRegisterEvents(h, n.nvmlDeviceGetSupportedEventTypes(h) & 0x800B, events)
print("ready", flush=True)
for _ in range(int(sys.argv[1])):
    data = n.nvmlEventSetWait_v2(events, 30000)
    print(json.dumps([n.nvmlDeviceGetIndex(data.device), data.eventType, data.eventData, data.gpuInstanceId]), flush=True)
"""


def test_an_xid_reaches_a_waiting_process_with_its_instance(root):
    mig.partition(root, 2, ["1g.10gb", "1g.10gb"])
    device = gpu(root, 2)["mig"]["devices"][0]
    watcher = subprocess.Popen(
        [sys.executable, "-c", WATCH, "2"], env={**os.environ, **environment(root)}, stdout=subprocess.PIPE, text=True
    )
    with watcher:
        assert watcher.stdout is not None
        assert watcher.stdout.readline() == "ready\n"
        operate.inject(root, "xid", gpu=1, xid=31)
        operate.inject(root, "xid", gpu=2, xid=94, gi=device["gi"], ci=device["ci"])
        seen = [json.loads(line) for line in watcher.stdout]
    assert seen == [[1, 8, 31, 0xFFFFFFFF], [2, 8, 94, device["gi"]]]


def test_xid_79_loses_the_gpu_and_only_it_and_clear_brings_it_back(root):
    operate.inject(root, "xid", gpu=3, xid=79)
    assert ask(root, "n.nvmlDeviceGetTemperature(h, 0)", 3) == "GpuIsLost"
    assert ask(root, "n.nvmlDeviceGetTemperature(h, 0)", 2) == gpu(root, 2)["temperature_c"]
    assert gpu(root, 3)["recovery_action"] == "reboot"
    assert "lost" in gpu(root, 3)["faults"]
    operate.clear(root, 3)
    assert ask(root, "n.nvmlDeviceGetTemperature(h, 0)", 3) == gpu(root, 3)["temperature_c"]
    assert (gpu(root, 3)["faults"], gpu(root, 3)["recovery_action"]) == ([], "none")


@pytest.mark.parametrize(
    ("xid", "field", "check"),
    [
        (48, "ecc", lambda value: value["uncorrected"] == 1),
        (92, "ecc", lambda value: value["corrected"] >= 1),
        (63, "faults", lambda value: "remap pending" in value),
        (64, "recovery_action", lambda value: value == "reset"),
        (74, "nvlinks", lambda value: value["active"] == value["present"] - 1),
        (119, "faults", lambda value: "reset required" in value),
        (31, "recovery_action", lambda value: value == "none"),
    ],
)
def test_xids_bring_what_they_imply_and_clear_takes_it_away(root, xid, field, check):
    healthy = gpu(root)
    operate.inject(root, "xid", gpu=0, xid=xid)
    assert gpu(root)["last_xid"] == xid
    assert check(gpu(root)[field])
    operate.clear(root)
    after = gpu(root)
    assert {**after, "xid_count": 0, "power_w": 0} == {**healthy, "xid_count": 0, "power_w": 0}


def test_pages_are_retired_where_rows_can_not_be_remapped(tmp_path):
    root = create_root("dgx-1-v100", tmp_path / "node", gpus=1)
    operate.inject(root, "xid", gpu=0, xid=63)
    assert gpu(root)["faults"] == ["xid 63", "page retirement pending"]
    assert len(ask(root, "[str(page) for page in n.nvmlDeviceGetRetiredPages(h, 1)]")) == 1


def test_other_faults(root):
    operate.inject(root, "lost", gpu=0)
    assert ask(root, "n.nvmlDeviceGetUUID(h)", 0) == "GpuIsLost"
    operate.inject(root, "ecc", gpu=1, count=3)
    operate.inject(root, "ecc", gpu=1, count=2, corrected=True)
    assert gpu(root, 1)["ecc"] == {"enabled": True, "uncorrected": 3, "corrected": 2}
    operate.inject(root, "hot", gpu=1)
    assert gpu(root, 1)["temperature_c"] == 93
    assert ask(root, "n.nvmlDeviceGetCurrentClocksEventReasons(h) & 0x48", 1) == 0x48
    operate.inject(root, "slow", us=500)
    operate.inject(root, "slow", gpu=3, us=700)
    assert operate.snapshot(root)["faults"] == ["slow 500us"]
    assert gpu(root, 3)["faults"] == ["slow 700us"]
    operate.inject(root, "init-error", code="nvml_error_driver_not_loaded")
    assert ask(root, "1", 1) == "DriverNotLoaded"
    operate.clear(root)
    assert ask(root, "1", 1) == 1
    operate.inject(root, "init-error", gpu=2, code=19)
    assert ask(root, "1", 2) == "InUse"
    assert ask(root, "1", 3) == 1


def test_a_hung_gpu_blocks_its_callers_alone(root):
    operate.inject(root, "hang", gpu=1)
    assert ask(root, "n.nvmlDeviceGetTemperature(h, 0)", 0) == gpu(root, 0)["temperature_c"]
    program = "import pynvml as n; n.nvmlInit(); h = n.nvmlDeviceGetHandleByIndex(1); print('asking', flush=True); "
    program += "print(n.nvmlDeviceGetTemperature(h, 0))"
    child = subprocess.Popen(
        [sys.executable, "-c", program], env={**os.environ, **environment(root)}, stdout=subprocess.PIPE, text=True
    )
    with child:
        with pytest.raises(subprocess.TimeoutExpired):
            child.wait(timeout=1.5)
        operate.clear(root, 1)
        out, _ = child.communicate(timeout=30)
    assert out.split()[-1] == str(gpu(root, 1)["temperature_c"])


@pytest.mark.parametrize(
    ("fault", "options", "says"),
    [
        ("xdi", {"gpu": 0}, 'did you mean "xid"'),
        ("xid", {"gpu": 9, "xid": 79}, "no GPU 9"),
        ("xid", {"gpu": -1, "xid": 79}, "no GPU -1"),
        ("xid", {"xid": 79}, "needs a GPU"),
        ("xid", {"gpu": 0}, "missing"),
        ("xid", {"gpu": 0, "xid": 0}, "1 to 999"),
        ("xid", {"gpu": 0, "xid": 94, "gi": 7}, "no such MIG instance"),
        ("ecc", {"gpu": 0, "count": 0}, "count"),
        ("slow", {}, "--us"),
        ("hot", {"gpu": 0, "celsius": 500}, "celsius"),
        ("init-error", {"code": "DRIVER_NOT_LOADD"}, 'did you mean "DRIVER_NOT_LOADED"'),
        ("init-error", {"code": None}, "no NVML return code"),
    ],
)
def test_bad_faults_are_explained_and_change_nothing(root, fault, options, says):
    before = operate.snapshot(root)
    with pytest.raises(ConfigError) as caught:
        operate.inject(root, fault, **options)
    assert says in str(caught.value)
    assert operate.snapshot(root)["gpus"] == before["gpus"]


def test_mig_layouts_follow_the_drivers_rules(root):
    mig.partition(root, 0, ["3g.40gb", "2g.20gb", "1g.10gb+me"])
    shown = gpu(root)["mig"]
    assert shown["enabled"]
    assert sorted(one["profile"] for one in shown["devices"]) == ["1g.10gb+me", "2g.20gb", "3g.40gb"]
    mig.partition(root, 0, ["1c.3g.40gb"])
    assert [one["profile"] for one in gpu(root)["mig"]["devices"]] == ["1c.3g.40gb"]
    with pytest.raises(ConfigError, match="Insufficient Resources"):
        mig.partition(root, 0, ["7g.80gb", "1g.10gb"])
    assert [one["profile"] for one in gpu(root)["mig"]["devices"]] == ["1c.3g.40gb"]
    with pytest.raises(ConfigError, match=r'did you mean "1g\.10gb"'):
        mig.partition(root, 0, ["1g.10g"])
    mig.disable(root, 0)
    assert not gpu(root)["mig"]["enabled"]


def test_a_refused_layout_costs_nothing(root):
    mig.partition(root, 0, mig.expand(["1g.10gb:7"]))
    before = gpu(root)["mig"]
    with pytest.raises(ConfigError, match="Insufficient Resources"):
        mig.partition(root, 0, mig.expand(["1g.10gb:8"]))
    assert gpu(root)["mig"] == before
    whole = gpu(root, 1)["mig"]
    with pytest.raises(ConfigError, match="Insufficient Resources"):
        mig.partition(root, 1, ["4g.40gb", "4g.40gb"])
    assert gpu(root, 1)["mig"] == whole


def test_all_gpus_are_cut_alike_and_made_whole(root):
    def run(*words):
        return CliRunner().invoke(hw_group, ["mig", "--root", str(root), *words])

    assert run("--gpu", "all", "--profiles", "3g.40gb:2").exit_code == 0
    assert [len(one["mig"]["devices"]) for one in operate.snapshot(root)["gpus"]] == [2] * 4
    assert run("--gpu", "all", "--off").exit_code == 0
    assert not any(one["mig"]["enabled"] for one in operate.snapshot(root)["gpus"])
    for words in ("every", "-1", "1.0", ""):
        assert isinstance(run(f"--gpu={words}", "--off").exception, ConfigError)


def test_a_driver_that_hangs_while_it_tries_leaves_no_process(root, monkeypatch):
    operate.inject(root, "hang", gpu=0)
    monkeypatch.setattr(mig, "TIMEOUT_S", 2)
    with pytest.raises(HwError, match="did not answer within 2 s"):
        mig.disable(root, 0)
    # The trial ends when its parent does; the kernel needs a moment for it.
    until = time.monotonic() + 30
    while still := subprocess.run(["pgrep", "-f", str(root)], capture_output=True, text=True, check=False).stdout:
        assert time.monotonic() < until, still
        time.sleep(0.05)


def test_mig_needs_a_gpu_that_has_it(tmp_path):
    root = create_root("t4", tmp_path / "node")
    with pytest.raises(ConfigError, match="has no MIG"):
        mig.partition(root, 0, ["1g.10gb"])
    with pytest.raises(ConfigError, match="no GPU 1"):
        mig.disable(root, 1)


def test_ampere_mode_changes_go_through_a_reset(tmp_path):
    root = create_root("dgx-a100-80g", tmp_path / "node", gpus=1)
    mig.partition(root, 0, mig.expand(["1g.10gb:7"]))
    assert len(gpu(root)["mig"]["devices"]) == 7
    assert not gpu(root)["mig"]["pending"]
    mig.disable(root, 0)
    assert not gpu(root)["mig"]["pending"]


@pytest.mark.parametrize("item", ["", ":3", "1g.10gb:", "1g.10gb:x", "1g.10gb:0", "1g.10gb:99"])
def test_layout_words_are_checked(item):
    if item == "1g.10gb:":
        assert mig.expand([item]) == ["1g.10gb"]
        return
    with pytest.raises(ConfigError):
        mig.expand([item])


def cli(*words):
    result = CliRunner().invoke(hw_group, [str(word) for word in words])
    return result


def test_the_command_line_works_end_to_end(tmp_path):
    root = tmp_path / "node"
    made = cli("create", "hgx-h100", "--root", root, "--gpus", 2)
    assert made.exit_code == 0, made.output
    assert "KGPU_HW_STATE" in made.output
    assert cli("set", "--root", root, "--gpu", 0, "temperature=66", "utilization=10").exit_code == 0
    assert cli("mig", "--root", root, "--gpu", 1, "--profiles", "1g.10gb:2").exit_code == 0
    assert cli("inject", "--root", root, "xid", 79, "--gpu", 0).exit_code == 0
    table = cli("show", "--root", root).output
    assert re.search(r" (6[6-9]|70) C ", table), "it gets warmer with the load"
    assert "1g.10gb x2" in table
    assert "lost" in table
    data = json.loads(cli("show", "--root", root, "-o", "json").output)
    assert data["gpus"][0]["last_xid"] == 79
    assert cli("clear", "--root", root).exit_code == 0
    assert json.loads(cli("show", "--root", root, "-o", "json").output)["gpus"][0]["faults"] == []
    assert cli("mig", "--root", root, "--gpu", 1, "--off").exit_code == 0
    assert "hgx-h100" in cli("list").output
    assert "memory-used" in cli("set", "--help").output


def test_processes_by_word_come_and_go(root):
    assert cli("process", "--root", root, "--gpu", 0, 4242, "--memory", 2048, "--utilization", 60).exit_code == 0
    gpu = json.loads(cli("show", "--root", root, "-o", "json").output)["gpus"][0]
    assert [(one["pid"], one["memory_mib"]) for one in gpu["processes"]] == [(4242, 2048)]
    assert (gpu["memory_used_mib"], gpu["utilization_percent"]) == (2048, 60)
    assert cli("process", "--root", root, "--gpu", 0, 4242, "--memory", 10).exit_code == 0
    gpu = json.loads(cli("show", "--root", root, "-o", "json").output)["gpus"][0]
    assert (len(gpu["processes"]), gpu["memory_used_mib"], gpu["utilization_percent"]) == (1, 10, 0)
    assert cli("process", "--root", root, "--gpu", 0, 4242, "--end").exit_code == 0
    assert json.loads(cli("show", "--root", root, "-o", "json").output)["gpus"][0]["processes"] == []


def test_time_slowed_down_is_counted_on_when_the_reason_goes(root):
    with DriverState.open(root / "state") as state:
        state.gpu(0).throttle_since_ns = 0
        state.gpu(0).throttle_forced = 0x20
    operate.set_values(root, {"throttle": "none"}, 0)
    with DriverState.open(root / "state") as state:
        counted = state.gpu(0).throttle_ns[1]
    assert counted > 0
    operate.set_values(root, {"throttle": "power-cap"}, 0)
    operate.clear(root)
    with DriverState.open(root / "state") as state:
        assert state.gpu(0).throttle_ns[1] == counted


@pytest.mark.parametrize(
    "words",
    [
        ("create", "hgx-h10", "--root", "{root}x"),
        ("create", "t4", "--root", "{root}"),
        ("create", "t4", "--root", "{root}x", "--gpus", "65"),
        ("create", "t4", "--root", "{root}x", "--topology", "/nonexistent"),
        ("create", "t4", "--root", "{root}x", "--driver", "x"),
        ("show", "--root", "{root}x"),
        ("set", "--root", "{root}", "temperature"),
        ("set", "--root", "{root}", "--gpu", "7", "temperature=1"),
        ("inject", "--root", "{root}", "xid", "--gpu", "0"),
        ("inject", "--root", "{root}", "xid", "seventy", "--gpu", "0"),
        ("inject", "--root", "{root}", "lost", "7", "--gpu", "0"),
        ("mig", "--root", "{root}", "--gpu", "0"),
        ("mig", "--root", "{root}", "--gpu", "0", "--profiles", "9g.1gb"),
        ("clear", "--root", "{root}", "--gpu", "7"),
        ("process", "--root", "{root}", "--gpu", "0", "0"),
        ("process", "--root", "{root}", "--gpu", "7", "5"),
        ("process", "--root", "{root}", "--gpu", "0", "5", "--kind", "computer"),
        ("process", "--root", "{root}", "--gpu", "0", "5", "--gi", "7"),
        ("process", "--root", "{root}", "--gpu", "0", "5", "--gi", "7", "--ci", "0"),
        ("process", "--root", "{root}", "--gpu", "0", "5", "--end"),
    ],
)
def test_bad_input_is_a_user_error(root, words):
    result = cli(*(word.format(root=root) for word in words))
    assert isinstance(result.exception, UserError)


def test_a_damaged_state_is_explained(root):
    (root / "state").write_bytes(b"junk")
    for act in (lambda: operate.snapshot(root), lambda: operate.clear(root), lambda: operate.inject(root, "hang")):
        with pytest.raises(HwError):
            act()
