"""Load profiles on the simulated driver: their arithmetic, what NVML tells of them, who follows one, and the clock."""

from __future__ import annotations

import itertools
import os
import signal
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from hypothesis import given
from hypothesis import strategies as st

from kgpu.base.errors import ConfigError
from kgpu.cli.main import cli
from kgpu.hw.simulator import create, load_model, mig, operate, processes, schema
from kgpu.hw.simulator.load_profiles import CHANNELS, LOADS, LoadProfile
from kgpu.hw.simulator.schema import C
from tests.hw.simulator.nvml_process import Nvml

RootMaker = Callable[..., Path]
PLACE = {channel.name: place for place, channel in enumerate(CHANNELS)}
PID = 4242
METRICS = (
    "def metrics(one, two, *ids):\n"
    "    q = c_nvmlGpmMetricsGet_t(); q.version, q.numMetrics, q.sample1, q.sample2 = 1, len(ids), one, two\n"
    "    for m, i in zip(q.metrics, ids): m.metricId = i\n"
    "    nvmlGpmMetricsGet(q)\n"
    "    return [m.value for m in q.metrics[:len(ids)]]"
)
USE = "nvmlDeviceGetUtilizationRates(h).gpu"
USES = "[[s.pid, s.smUtil, s.memUtil] for s in nvmlDeviceGetProcessUtilization(h, 0)]"
POWER = "nvmlDeviceGetPowerUsage(h)"
HEAT = "nvmlDeviceGetTemperature(h, 0)"
ENERGY = "nvmlDeviceGetTotalEnergyConsumption(h)"


@pytest.fixture
def root(sim_root: RootMaker) -> Path:
    """Two H100 whose clock stands, so that nothing moves but by ``ahead``."""
    made = sim_root("hgx-h100", gpus=2)
    operate.set_values(made, {"clock-rate": 0})
    return made


@pytest.fixture
def n(root: Path) -> Iterator[Nvml]:
    with Nvml(root) as process:
        process.run("h = nvmlDeviceGetHandleByIndex(0)")
        process.run(METRICS)
        yield process


def ahead(root: Path, seconds: int) -> None:
    operate.set_values(root, {"clock-ahead": seconds})


def mean(profile: LoadProfile, channel: str) -> float:
    """Over one turn of what comes again and again, in percent."""
    phases = profile.phases[profile.once :]
    place = PLACE[channel]
    return sum(phase.seconds * phase.values[place] for phase in phases) / sum(phase.seconds for phase in phases)


def at(profile: LoadProfile, second: float, channel: str) -> int:
    """What a profile says of a second, by walking through its phases."""
    number = 0
    while second >= profile.phases[number].seconds:
        second -= profile.phases[number].seconds
        number = profile.once if number + 1 == len(profile.phases) else number + 1
    return profile.phases[number].values[PLACE[channel]]


@pytest.mark.parametrize("name", LOADS)
def test_rows_fit_the_state_and_say_shares(name: str) -> None:
    profile = LOADS[name]
    assert len(name) < 32
    assert len(LOADS) <= C["MAX_LOADS"]
    assert profile.once < len(profile.phases) <= C["MAX_PHASES"]
    assert 0 <= profile.memory < 1
    for phase in profile.phases:
        assert phase.seconds > 0
        assert len(phase.values) == len(CHANNELS)
        assert all(0 <= value <= 100 for value in phase.values)
        use = {channel: phase.values[place] for channel, place in PLACE.items()}
        assert use["GR"] >= use["SM"] >= max(use["OCCUPANCY"], use["TENSOR"]), "no SM works without a kernel"


@given(name=st.sampled_from(sorted(LOADS)), times=st.lists(st.integers(0, 400_000), min_size=2, max_size=6))
def test_an_area_is_what_its_seconds_say(name: str, times: list[int]) -> None:
    view = schema.CLASSES["kg_state"]()
    load_model.write_profiles(view)
    row = view.load[load_model.profile_number(name) - 1]
    areas = [load_model.profile_area(row, PLACE["GR"], ms * 1_000_000) for ms in sorted(times)]
    assert areas == sorted(areas)
    second = max(times) // 1000
    one = load_model.profile_area(row, PLACE["GR"], second * 10**9)
    two = load_model.profile_area(row, PLACE["GR"], (second + 1) * 10**9)
    assert two - one == at(LOADS[name], second, "GR") * 10**9


@pytest.mark.parametrize("name", LOADS)
def test_every_reading_follows_the_profile(root: Path, n: Nvml, name: str) -> None:
    profile = LOADS[name]
    idle, power_idle, used = n(HEAT), n(POWER), n("nvmlDeviceGetMemoryInfo(h).used")
    processes.add(root, 0, pid=PID, load=name)
    before = 0
    for second in (2, 9, 40, 64, 125, 600):
        ahead(root, second - before)
        before = second
        assert n(USE) == at(profile, second, "GR"), second
        assert n("nvmlDeviceGetUtilizationRates(h).memory") == at(profile, second, "DRAM"), second
        now = [at(profile, second, "GR"), at(profile, second, "DRAM")]
        samples = n(USES) if n.code(USES) == 0 else []
        if any(now):
            assert samples == [[PID, *now]]
        else:
            assert all(any(use) for _, *use in samples), "a sample is of a time in which something was used"
        with operate.opened(root, writable=False) as state:
            gpu = state.gpu(0)
            span, floor = int(gpu.power_max_mw) - int(gpu.power_idle_mw), int(gpu.power_idle_mw)
        wanted = floor + span * at(profile, second, "POWER") / 100
        assert n(POWER) == pytest.approx(min(wanted, n("nvmlDeviceGetEnforcedPowerLimit(h)")), rel=0.01)
        shown = operate.snapshot(root)["gpus"][0]
        assert shown["utilization_percent"] == n(USE), "Python tells the same"
        assert shown["power_w"] == pytest.approx(wanted / 1000, rel=0.01)
        assert shown["temperature_c"] == n(HEAT) >= idle
    held = n("nvmlDeviceGetMemoryInfo(h).used") - used
    assert held == pytest.approx(profile.memory * (80 << 30), rel=0.02)
    processes.remove(root, 0, PID)
    ahead(root, 5)
    assert [n(USE), n(HEAT), n("nvmlDeviceGetMemoryInfo(h).used")] == [0, idle, used]
    assert n(POWER) == pytest.approx(power_idle, rel=0.02)


def test_averages_and_counters_are_the_profiles_means(root: Path, n: Nvml) -> None:
    profile = LOADS["train"]
    processes.add(root, 0, pid=PID, load="train")
    ahead(root, 5)
    n.run("a, b = nvmlGpmSampleAlloc(), nvmlGpmSampleAlloc(); nvmlGpmSampleGet(h, a)")
    energy = n(ENERGY)
    ahead(root, 120)  # two turns
    n.run("nvmlGpmSampleGet(h, b)")
    gr, sm, occupancy, tensor, dram = n("metrics(a, b, 1, 2, 3, 5, 10)")
    for value, channel in ((gr, "GR"), (sm, "SM"), (occupancy, "OCCUPANCY"), (tensor, "TENSOR"), (dram, "DRAM")):
        assert value == pytest.approx(mean(profile, channel), rel=0.001), channel
    received, links, link = n("metrics(a, b, 21, 60, 62)")
    with operate.opened(root, writable=False) as state:
        gpu = state.gpu(0)
        span, floor = int(gpu.power_max_mw) - int(gpu.power_idle_mw), int(gpu.power_idle_mw)
        assert received == pytest.approx(gpu.pcie_rx_kbs / 1024 * mean(profile, "PCIE_RX") / 100, rel=0.001)
        rate = gpu.link[0].speed_mbps * 1_000_000 / (1 << 20) * mean(profile, "NVLINK") / 100
        assert link == pytest.approx(rate, rel=0.05)
        assert links == pytest.approx(link * gpu.link_count, rel=0.01)
    watts = (floor + span * mean(profile, "POWER") / 100) / 1000
    assert (n(ENERGY) - energy) / 1000 == pytest.approx(watts * 120, rel=0.001)


def test_the_sample_buffer_shows_what_flickers_and_gives_each_sample_once(root: Path, n: Nvml) -> None:
    buffer = "[[s.timeStamp, s.sampleValue.uiVal] for s in nvmlDeviceGetSamples(h, {}, {})[1]]"
    processes.add(root, 0, pid=PID, load="flicker")
    began = n(USE) and n(buffer.format(1, 0))[-1][0]
    ahead(root, 12)
    samples = n(buffer.format(1, 0))
    assert samples == sorted(samples)
    assert len(samples) in {72, 73}, "six in each of the seconds since the load changed"
    steps = {after[0] - before[0] for before, after in itertools.pairwise(samples)}
    assert max(steps) - min(steps) <= 1
    assert {value for _, value in samples} == {0, 100}
    assert sum(value for _, value in samples) / len(samples) == pytest.approx(50, abs=5)
    powers = {value for _, value in n(buffer.format(0, 0))}
    assert max(powers) > 4 * min(powers)
    assert [stamp for stamp, _ in n(buffer.format(1, samples[-3][0]))] == [stamp for stamp, _ in samples[-2:]]
    assert n.code(buffer.format(1, samples[-1][0])) == 6, "nothing is newer"
    ahead(root, 60)
    samples = n(buffer.format(1, 0))
    assert len(samples) == 100, "older ones are gone"
    assert samples[0][0] > began


def test_a_process_has_its_newest_sample_of_a_time_in_which_it_used_something(root: Path, n: Nvml) -> None:
    sample = "[[s.timeStamp, s.smUtil] for s in nvmlDeviceGetProcessUtilization(h, {})]"
    newest = "nvmlDeviceGetSamples(h, 1, 0)[1][-1].timeStamp"
    processes.add(root, 0, pid=PID, load="notebook")
    seen: dict[int, int] = {}
    for _ in range(12):
        ahead(root, 1)
        ((stamp, percent),) = n(sample.format(0))
        assert percent > 0
        seen[n(newest)] = stamp
    assert any(moment - stamp > 500_000 for moment, stamp in seen.items()), "it is of before the pause"
    assert n.code(sample.format(max(seen.values()) + 10_000_000)) == 6, "nothing is newer"
    processes.remove(root, 0, PID)
    processes.add(root, 0, pid=PID, load="idle")
    ahead(root, 30)
    assert n.code(sample.format(0)) == 6, "what has done nothing has none"


def test_accounting_is_the_average_over_a_process_life(root: Path, n: Nvml) -> None:
    processes.add(root, 0, pid=PID, load="flicker")
    assert n.code(f"nvmlDeviceGetAccountingStats(h, {PID})") == 3, "it is off"
    n("nvmlDeviceSetAccountingMode(h, 1)")
    ahead(root, 20)
    stats = n(f"nvmlDeviceGetAccountingStats(h, {PID})")
    assert (stats["gpuUtilization"], stats["memoryUtilization"], stats["isRunning"]) == (50, 25, 1)
    assert stats["maxMemoryUsage"] == pytest.approx(LOADS["flicker"].memory * (80 << 30), rel=0.02)
    assert n.code("nvmlDeviceGetAccountingStats(h, 1)") == 6


def test_heat_comes_and_goes_slowly(root: Path, n: Nvml) -> None:
    idle = n(HEAT)
    processes.add(root, 0, pid=PID, load="train", after_s=10)
    assert n(HEAT) == idle
    ahead(root, 2)
    halfway = n(HEAT)
    ahead(root, 2)
    full = n(HEAT)
    assert idle < halfway < full
    processes.remove(root, 0, PID)
    assert n(HEAT) == full, "the process is gone, its heat is not"
    ahead(root, 2)
    assert idle < n(HEAT) < full
    ahead(root, 4)
    assert n(HEAT) == idle


def test_counters_never_go_back_when_processes_come_and_go(root: Path, n: Nvml) -> None:
    ids = "[nvmlDeviceGetTotalEnergyConsumption(h), *[v.value.ullVal for v in nvmlDeviceGetFieldValues(h, [138, 139])]]"
    seen = [n(ids)]
    for name in ("train", "flicker", "inference", "train"):
        processes.add(root, 0, pid=PID + len(seen) % 2, load=name)
        ahead(root, 7)
        seen.append(n(ids))
    for pid in (PID, PID + 1):
        processes.remove(root, 0, pid)
        seen.append(n(ids))
    for before, after in itertools.pairwise(seen):
        assert all(a <= b for a, b in zip(before, after, strict=True))


def test_processes_that_want_more_than_a_gpu_share_it_and_idle_ones_cost_nothing(root: Path, n: Nvml) -> None:
    for number, name in enumerate(("train", "idle", "held")):
        processes.add(root, 0, pid=PID + number, load=name, after_s=10)
    assert n(USE) == pytest.approx(98 * 100 / 107, abs=1), "idle ones want some watts alone"
    processes.add(root, 0, pid=PID + 3, load="train", after_s=10)
    use = {pid: sm for pid, sm, _ in n(USES)}
    assert use[PID] == use[PID + 3] == pytest.approx(48, abs=2)
    assert use.keys() == {PID, PID + 3}
    assert 90 <= n(USE) <= 100


def test_a_slice_has_its_own_use_and_the_gpu_its_part_of_it(root: Path, n: Nvml) -> None:
    mig.partition(root, 0, ["1g.10gb", "3g.40gb"])
    slices = {row["profile"]: (row["gi"], row["ci"]) for row in operate.snapshot(root)["gpus"][0]["mig"]["devices"]}
    (busy_gi, busy_ci), (idle_gi, _) = slices["1g.10gb"], slices["3g.40gb"]
    processes.add(root, 0, pid=PID, load="train", gi=busy_gi, ci=busy_ci)
    ahead(root, 5)
    pairs = {"whole": "nvmlGpmSampleGet(h, {})"}
    pairs |= {str(gi): f"nvmlGpmMigSampleGet(h, {gi}, {{}})" for gi in (busy_gi, idle_gi)}
    n.run(f"s = {{name: [nvmlGpmSampleAlloc(), nvmlGpmSampleAlloc()] for name in {list(pairs)}}}")
    for number in range(2):
        for name, call in pairs.items():
            n.run(call.format(f"s[{name!r}][{number}]"))
        ahead(root, 60)
    use = {name: n(f"metrics(*s[{name!r}], 1, 2, 5)") for name in pairs}
    profile = LOADS["train"]
    wanted = [mean(profile, channel) for channel in ("GR", "SM", "TENSOR")]
    assert use[str(busy_gi)] == pytest.approx(wanted, rel=0.01)
    assert use[str(idle_gi)] == [0, 0, 0]
    assert use["whole"] == pytest.approx([value * 16 / 132 for value in wanted], rel=0.02)
    assert n.code(USE) == 3, "utilisation is not told of a GPU with slices"
    instance = "nvmlDeviceGetMigDeviceHandleByIndex(h, {})"
    held = [n(f"nvmlDeviceGetMemoryInfo({instance.format(i)}).used") >> 30 for i in range(2)]
    assert sorted(held) == [0, 7]


def test_the_clock_goes_as_fast_as_it_is_told(root: Path, n: Nvml) -> None:
    now = "nvmlDeviceGetFieldValues(h, [83])[0].timestamp"
    first = n(now)
    assert n(now) == first, "it stands"
    ahead(root, 3600)
    assert n(now) == first + 3600 * 10**6
    operate.set_values(root, {"clock-rate": 10_000})
    assert n(now) > first + 3600 * 10**6
    operate.set_values(root, {"clock-rate": 0})
    assert n(now) == n(now)
    with pytest.raises(ConfigError, match="clock-ahead"):
        operate.set_values(root, {"clock-ahead": -5})


# --- programs on the simulated libcuda -------------------------------------------------------------------------------


def start(root: Path, load: str, *arguments: str) -> subprocess.Popen[str]:
    """The program that stands for one that trains; it has answered for every device."""
    env = {**os.environ, **create.environment(root), "KGPU_SIMULATED_LOAD": load}
    program = subprocess.Popen(
        [root / "usr/share/kgpu/gpu-load", *arguments],
        env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert program.stdout is not None
    program.stdout.readline()
    return program


def test_a_program_loads_what_it_sees_until_it_is_killed(root: Path, n: Nvml) -> None:
    used = n("nvmlDeviceGetMemoryInfo(h).used")
    with start(root, "train+20", "--device", "0") as program:
        try:
            assert n(USE) == at(LOADS["train"], 20, "GR")
            (row,) = operate.snapshot(root)["gpus"][0]["processes"]
            assert (row["pid"], row["load"]) == (program.pid, "train")
            assert row["memory_mib"] > 60_000
            assert n("nvmlDeviceGetUtilizationRates(nvmlDeviceGetHandleByIndex(1)).gpu") == 0
        finally:
            program.send_signal(signal.SIGKILL)
    assert operate.snapshot(root)["gpus"][0]["utilization_percent"] == 0, "before anybody has dropped the dead slot"
    assert [n(USE), n("nvmlDeviceGetMemoryInfo(h).used")] == [0, used]


def test_both_sides_count_the_same_when_a_program_ends(root: Path, n: Nvml) -> None:
    fields = "[v.value.ullVal for v in nvmlDeviceGetFieldValues(h, [83, 138, 197])]"
    with start(root, "train+7", "--device", "0") as program:
        try:
            ahead(root, 41)
            before = n(fields)
        finally:
            program.kill()
    with operate.opened(root, writable=False) as state:
        state.reap(0)  # in this process's copy
        counted = [int(state.gpu(0).energy_mj), list(state.gpu(0).load_done)]
    assert n(fields) == before, "the driver stores the same as it counted"
    with operate.opened(root, writable=False) as state:
        assert not state.gpu(0).process[0].used
        assert [int(state.gpu(0).energy_mj), list(state.gpu(0).load_done)] == counted


def test_two_programs_get_the_memory_that_is_there(root: Path) -> None:
    with start(root, "inference") as one, start(root, "inference") as two:
        try:
            rows = operate.snapshot(root)["gpus"]
            assert [[bool(row["memory_mib"]) for row in gpu["processes"]] for gpu in rows] == [[True, True]] * 2
            assert all(gpu["memory_used_mib"] <= gpu["memory_total_mib"] for gpu in rows)
        finally:
            for program in (one, two):
                program.terminate()
    assert (one.returncode, two.returncode) == (143, 143)


@pytest.mark.parametrize("load", ["trainn", "train+x", "train+", "+5", "train+99999999999"])
def test_a_profile_that_is_not_there_is_told_and_loads_nothing(root: Path, load: str) -> None:
    with start(root, load, "--seconds", "0") as program:
        told = program.communicate(timeout=30)[1]
    assert program.returncode == 0
    assert f"KGPU_SIMULATED_LOAD={load} is no load profile" in told
    assert operate.snapshot(root)["gpus"][0]["utilization_percent"] == 0


@pytest.mark.parametrize("arguments", [["--device"], ["--seconds", "x"], ["--seconds", "-1"], ["train"]])
def test_wrong_arguments_of_the_program(root: Path, arguments: list[str]) -> None:
    with start(root, "train", *arguments) as program:
        assert "Usage: gpu-load" in program.communicate(timeout=30)[1]
    assert program.returncode == 2


def test_without_that_device_it_says_so(root: Path) -> None:
    with start(root, "train", "--device", "2") as program:
        assert "CUDA_ERROR_INVALID_DEVICE" in program.communicate(timeout=30)[1]
    assert program.returncode == 1


# --- by hand ---------------------------------------------------------------------------------------------------------


def run(*words: object) -> Result:
    return CliRunner().invoke(cli, ["lab", "hw", *map(str, words)])


def test_the_command(root: Path) -> None:
    assert run("load", "--root", root, "--gpu", 1, "train", "--after", 8).exit_code == 0
    shown = operate.snapshot(root)["gpus"]
    assert [gpu["utilization_percent"] for gpu in shown] == [0, at(LOADS["train"], 8, "GR")]
    (row,) = shown[1]["processes"]
    assert (row["pid"], row["name"], row["load"]) == (1_000_001, "train", "train")
    assert run("load", "--root", root, "--gpu", 1, "--end").exit_code == 0
    assert operate.snapshot(root)["gpus"][1]["processes"] == []


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["trainn"], 'no load profile "trainn"; did you mean "train"'),
        ([], "PROFILE"),
        (["train", "--end"], "PROFILE"),
        (["train", "--gi", 1], "--gi or --ci"),
        (["train", "--after", -1], "--after is -1"),
    ],
)
def test_what_it_refuses(root: Path, words: list[Any], told: str) -> None:
    done = run("load", "--root", root, "--gpu", 0, *words)
    assert done.exit_code != 0
    assert told in str(done.exception) + done.output


def test_the_help_lists_the_profiles() -> None:
    assert all(name in run("load", "--help").output for name in LOADS)


def test_a_clock_that_is_put_back_takes_nothing_back(root: Path, n: Nvml) -> None:
    """What is under way goes on from where it is, and what it has drawn stays."""
    processes.add(root, 0, pid=PID, load="train")
    ahead(root, 3600)
    before = int(n(ENERGY))
    with operate.opened(root) as state:
        start, moved = int(state.gpu(0).process[0].start_us), load_model.now_ns(state.view) // 1000
    operate.reset_clock(root)
    assert operate.snapshot(root)["clock"] is None
    assert int(n(ENERGY)) >= before
    with operate.opened(root) as state:
        now, began = load_model.now_ns(state.view) // 1000, int(state.gpu(0).process[0].start_us)
    assert now - began >= moved - start
    operate.set_values(root, {"clock-rate": 0})
    drawn = int(n(ENERGY))
    ahead(root, 60)
    assert int(n(ENERGY)) > drawn, "the load is still there"


def test_a_clock_that_stood_can_be_put_back(root: Path, n: Nvml) -> None:
    before = int(n(ENERGY))
    operate.reset_clock(root)
    operate.reset_clock(root)
    assert int(n(ENERGY)) >= before


def test_all_that_is_there_by_hand_ends_and_programs_go_on(root: Path, n: Nvml) -> None:
    processes.add(root, 1, pid=PID, load="train")
    with operate.opened(root) as state, state.locked():
        slot = state.gpu(1).process[1]
        slot.used, slot.live, slot.pid, slot.gi_id, slot.ci_id = 1, 1, os.getpid(), C["NO_INSTANCE"], C["NO_INSTANCE"]
    processes.end_all(root)
    with operate.opened(root) as state:
        assert [int(slot.pid) for slot in state.gpu(1).process if slot.used] == [os.getpid()]


def test_other_vendors_have_no_load_that_moves(sim_root: RootMaker) -> None:
    with pytest.raises(ConfigError, match="of which this can't be said"):
        processes.add(sim_root("mi300x", gpus=1), 0, pid=PID, load="train")
