"""``kgpu mig`` and ``nvidia-mig-parted``: their flags, texts and exit codes, over the simulated driver."""

from __future__ import annotations

import array
import asyncio
import fcntl
import io
import json
import os
import signal
import subprocess
import sys
import termios
import time
from collections import Counter
from pathlib import Path
from types import SimpleNamespace

import pytest

from kgpu.cli import _mig
from kgpu.cli.main import main
from kgpu.hw.partitioning import CutGpu
from kgpu.hw.simulator import operate, processes
from kgpu.mig.lock import alone
from tests.child import child
from tests.hw.nvidia.test_partitioner import THREE_MODELS
from tests.mig.nvml_view import seen

PEER = "nvidia-mig-parted"
CONFIG = """\
version: v1
mig-configs:
  halves:
  - devices: all
    mig-enabled: true
    mig-devices: {3g.40gb: 2}
  mixed:
  - devices: [0]
    mig-enabled: true
    mig-devices: {1g.10gb: 2, 2g.20gb: 1, 3g.40gb: 1}
  - devices: [1]
    mig-enabled: false
  sevens:
  - device-filter: "0x233010DE"
    devices: all
    mig-enabled: true
    mig-devices: {1g.10gb: 7}
  too-much:
  - devices: [0]
    mig-enabled: false
  - devices: [1]
    mig-enabled: true
    mig-devices: {1g.10gb: 8}
  none:
  - devices: all
    mig-enabled: false
"""


@pytest.fixture
def config(tmp_path) -> str:
    path = tmp_path / "config.yaml"
    path.write_text(CONFIG)
    return str(path)


@pytest.fixture
def root(sim_root) -> Path:
    return sim_root("hgx-h100", gpus=2)


def mig(root: Path, *words: str, program: str = "kgpu") -> int:
    given = ["mig", *words] if program == "kgpu" else [*words]
    return main([program, *given, "--root", str(root)])


def test_from_plan_to_export_and_back(root, config, capsys, tmp_path) -> None:
    assert mig(root, "plan", "-f", config, "-c", "mixed") == 0
    out = capsys.readouterr().out
    assert "GPU 0 (NVIDIA H100 80GB HBM3): MIG off; 9 steps\n  turn MIG on\n" in out
    assert "make a GPU instance 3g.40gb at 4\n" in out
    assert "GPU 1 (NVIDIA H100 80GB HBM3): MIG off; nothing to do\n" in out
    assert seen(root)[0] is False, "a plan changes nothing"

    assert mig(root, "assert", "-f", config, "-c", "mixed") == 3
    captured = capsys.readouterr()
    assert captured.err.startswith("Assertion failure: selected configuration not currently applied\nGPU 0")
    assert captured.out == ""

    assert mig(root, "apply", "-f", config, "-c", "mixed") == 0
    assert capsys.readouterr().out == "MIG configuration applied successfully\n"
    assert seen(root) == (True, True, 4, Counter({"1g.10gb": 2, "2g.20gb": 1, "3g.40gb": 1}))
    assert seen(root, 1) == (False, False, 0, Counter())
    assert mig(root, "assert", "-f", config, "-c", "mixed") == 0
    assert capsys.readouterr().out == "Selected MIG configuration currently applied\n"

    exported = tmp_path / "exported.yaml"
    assert mig(root, "export", "-l", "saved") == 0
    exported.write_text(capsys.readouterr().out)
    assert mig(root, "apply", "-f", config, "-c", "halves") == 0
    assert seen(root, 1) == (True, True, 2, Counter({"3g.40gb": 2}))
    assert mig(root, "apply", "-f", str(exported)) == 0, "the only config needs no name"
    assert mig(root, "assert", "-f", config, "-c", "mixed") == 0


def test_as_json(root, config, capsys) -> None:
    assert mig(root, "plan", "-f", config, "-c", "sevens", "-o", "json") == 0
    plan = json.loads(capsys.readouterr().out)
    assert (plan["config"], len(plan["gpus"]), len(plan["gpus"][1]["steps"])) == ("sevens", 2, 15)
    assert plan["gpus"][0]["steps"][0] == {"action": "set-mode", "enabled": True}
    assert plan["gpus"][0]["steps"][1] == {"action": "create-gpu-instance", "profile": 0, "start": 0, "made": 0}
    assert mig(root, "assert", "-f", config, "-c", "sevens", "-o", "json") == 3
    assert json.loads(capsys.readouterr().out)["applied"] is False
    assert mig(root, "apply", "-f", config, "-c", "sevens", "-o", "json") == 0
    done = json.loads(capsys.readouterr().out)
    assert (done["applied"], [gpu["state"] for gpu in done["gpus"]]) == (True, ["changed", "changed"])
    assert mig(root, "apply", "-f", config, "-c", "sevens", "-o", "json") == 0
    assert [gpu["state"] for gpu in json.loads(capsys.readouterr().out)["gpus"]] == ["unchanged", "unchanged"]
    assert mig(root, "export", "-o", "json") == 0
    entry = {"devices": "all", "mig-enabled": True, "mig-devices": {"1g.10gb": 7}}
    assert json.loads(capsys.readouterr().out) == {"version": "v1", "mig-configs": {"current": [entry]}}


def test_a_gpu_that_can_not_be_cut_so_refuses_all(root, config, capsys) -> None:
    assert mig(root, "apply", "-f", config, "-c", "halves") == 0
    capsys.readouterr()
    assert mig(root, "apply", "-f", config, "-c", "too-much") == 2
    error = capsys.readouterr().err
    assert error.startswith("kgpu: GPU 1 (NVIDIA H100 80GB HBM3) can't be cut into 8 of 1g.10gb\n  expected: ")
    assert seen(root)[3] == Counter({"3g.40gb": 2})
    assert mig(root, "apply", "-f", config, "-c", "too-much", program=PEER) == 1
    assert capsys.readouterr().err.startswith(f"{PEER}: GPU 1 (")


def test_slices_in_use_are_refused_and_shown_by_plan(root, config, capsys) -> None:
    assert mig(root, "apply", "-f", config, "-c", "halves") == 0
    part = operate.snapshot(root)["gpus"][1]["mig"]["devices"][0]
    processes.add(root, 1, pid=4242, gi=int(part["gi"]), ci=int(part["ci"]))
    assert mig(root, "apply", "-f", config, "-c", "none") == 2
    assert "from processes that use it" in capsys.readouterr().err
    assert seen(root)[3] == seen(root, 1)[3] == Counter({"3g.40gb": 2})
    assert mig(root, "plan", "-f", config, "-c", "none") == 0
    assert "in use, so that apply refuses: 3g.40gb at " in capsys.readouterr().out


def test_mig_parted_by_its_name_flags_and_variables(root, config, capsys, monkeypatch) -> None:
    monkeypatch.setenv("MIG_PARTED_CONFIG_FILE", config)
    monkeypatch.setenv("MIG_PARTED_SELECTED_CONFIG", "halves")
    assert mig(root, "assert", program=PEER) == 1
    assert "Assertion failure: selected configuration not currently applied" in capsys.readouterr().err
    assert main([PEER, "--debug", "apply", "--root", str(root)]) == 0
    captured = capsys.readouterr()
    assert captured.out == "MIG configuration applied successfully\n"
    assert "GPU 1 (NVIDIA H100 80GB HBM3): turn MIG on\n" in captured.err
    assert mig(root, "assert", "-mode-only", program=PEER) == 0
    assert capsys.readouterr().out == "Selected MIG mode settings from configuration currently applied\n"
    assert mig(root, "assert", "--selected-config=sevens", "-m", program=PEER) == 0
    assert mig(root, "assert", "--selected-config=sevens", program=PEER) == 1
    monkeypatch.setenv("MIG_PARTED_VALID_CONFIG", "true")
    capsys.readouterr()
    assert main([PEER, "assert", "--root", "/nowhere"]) == 0
    assert capsys.readouterr().out == "Selected MIG configuration is valid\n"
    monkeypatch.setenv("MIG_PARTED_OUTPUT_FORMAT", "json")
    monkeypatch.setenv("MIG_PARTED_CONFIG_LABEL", "mine")
    assert mig(root, "export", program=PEER) == 0
    assert list(json.loads(capsys.readouterr().out)["mig-configs"]) == ["mine"]


def test_debug_tells_what_a_checkpoint_has_and_what_a_restore_does(root, config, capsys, tmp_path) -> None:
    file = str(tmp_path / "before.json")
    assert mig(root, "apply", "-f", config, "-c", "mixed") == 0
    capsys.readouterr()
    assert main([PEER, "--debug", "checkpoint", "-f", file, "--root", str(root)]) == 0
    said = capsys.readouterr().err
    first, second = [gpu["uuid"] for gpu in operate.snapshot(root)["gpus"]]
    assert said.splitlines() == [f"GPU {first}: MIG on, 4 GPU instances", f"GPU {second}: MIG off"]
    assert mig(root, "checkpoint", "-f", file) == 0
    assert capsys.readouterr().err == ""
    assert mig(root, "apply", "-f", config, "-c", "none") == 0
    capsys.readouterr()
    assert main([PEER, "--debug", "restore", "-f", file, "--root", str(root)]) == 0
    assert "GPU 0 (NVIDIA H100 80GB HBM3): turn MIG on\n" in capsys.readouterr().err


def test_a_gpu_without_mig_keeps_no_config_from_being_applied(sim_root, config, tmp_path, capsys) -> None:
    """mig-parted leaves it out where it applies, and fails on it where it asserts."""
    profile = tmp_path / "three.yaml"
    profile.write_text(THREE_MODELS)
    root = sim_root(str(profile))
    path = tmp_path / "on.yaml"
    path.write_text("version: v1\nmig-configs: {on: [{devices: all, mig-enabled: true, mig-devices: {}}]}\n")
    for words in (["apply"], ["assert"], ["assert", "--mode-only"]):
        assert mig(root, *words, "-f", str(path), program=PEER) == 0
    assert [seen(root, index)[0] for index in (0, 1)] == [True, True]
    path.write_text("version: v1\nmig-configs: {on: [{devices: [2], mig-enabled: true, mig-devices: {}}]}\n")
    capsys.readouterr()
    assert mig(root, "assert", "-f", str(path), program=PEER) == 1
    assert "GPU 2 (NVIDIA L4) has no MIG" in capsys.readouterr().err


def test_mode_only_leaves_slices_alone(root, config) -> None:
    assert mig(root, "apply", "-f", config, "-c", "mixed") == 0
    assert mig(root, "apply", "-f", config, "-c", "sevens", "--mode-only") == 0
    assert (seen(root)[2], seen(root, 1)) == (4, (True, True, 0, Counter()))


def test_a_mode_of_an_ampere_waits_where_resets_are_ruled_out(sim_root, tmp_path, capsys) -> None:
    root = sim_root("dgx-a100-40g", gpus=1)
    path = tmp_path / "on.yaml"
    path.write_text("version: v1\nmig-configs: {on: [{devices: all, mig-enabled: true, mig-devices: {}}]}\n")
    with operate.opened(root) as state, state.locked():
        state.gpu(0).mig_pending = 1
    assert mig(root, "apply", "-f", str(path), "-s", "-m") == 0
    assert "comes with its next reset or a reboot" in capsys.readouterr().err
    assert seen(root)[:2] == (False, True)
    assert mig(root, "apply", "-f", str(path), "-s") == 2
    assert "--skip-reset rules out; GPU 0 (NVIDIA A100-SXM4-40GB) has its former layout" in capsys.readouterr().err
    assert seen(root)[:2] == (False, False), "no mode is left to wait"
    assert mig(root, "apply", "-f", str(path)) == 0
    assert seen(root)[:2] == (True, True)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["apply"], "missing required flags 'config-file'"),
        (["apply", "-f", "CONFIG"], "missing required flag 'selected-config' when more than one config available"),
        (["plan", "-f", "CONFIG", "-c", "half"], "selected mig-config not present: half"),
        (["apply", "-f", "/nowhere/config.yaml", "-c", "a"], "/nowhere/config.yaml can't be read"),
        (["apply", "-f", "CONFIG", "-c", "none", "-k", "/nowhere/hooks.yaml"], "/nowhere/hooks.yaml can't be read"),
        (["apply", "-f", "CONFIG", "-c", "none", "-k", "CONFIG"], "error parsing hooks file: "),
        (["export", "-l", ""], "--config-label is empty"),
        (["checkpoint"], "missing required flags 'checkpoint-file'"),
        (["restore"], "missing required flags 'checkpoint-file'"),
        (["restore", "-f", "/nowhere/before.json"], "/nowhere/before.json can't be read"),
        (["restore", "-f", "CONFIG"], "error parsing checkpoint file: "),
    ],
)
def test_wrong_input(words, said, config, tmp_path, capsys) -> None:
    assert mig(tmp_path, *[config if word == "CONFIG" else word for word in words]) == 2
    assert said in capsys.readouterr().err
    assert mig(tmp_path, *[config if word == "CONFIG" else word for word in words], program=PEER) == 1


def test_a_checkpoint_brings_the_layout_back(root, config, capsys, tmp_path) -> None:
    file = tmp_path / "state/before.json"
    assert mig(root, "apply", "-f", config, "-c", "mixed") == 0
    before = instances(root)
    assert mig(root, "checkpoint", "-f", str(file)) == 0
    assert capsys.readouterr().out.endswith("MIG configuration checkpointed successfully\n")
    assert mig(root, "apply", "-f", config, "-c", "halves") == 0
    capsys.readouterr()
    assert mig(root, "restore", "-f", str(file)) == 0
    assert capsys.readouterr().out == "MIG configuration restored successfully\n"
    assert instances(root) == before
    assert mig(root, "restore", "-f", str(file), "-o", "json") == 0
    done = json.loads(capsys.readouterr().out)
    assert (done["restored"], [gpu["state"] for gpu in done["gpus"]]) == (True, ["unchanged", "unchanged"])


def test_checkpoints_as_mig_parted(root, config, capsys, tmp_path, monkeypatch) -> None:
    file = tmp_path / "before.json"
    monkeypatch.setenv("MIG_PARTED_CHECKPOINT_FILE", str(file))
    assert mig(root, "apply", "-f", config, "-c", "halves") == 0
    assert mig(root, "checkpoint", program=PEER) == 0
    first, last = [gpu["uuid"] for gpu in operate.snapshot(root)["gpus"]]
    half = '{"ProfileID":2,"Placement":{"Start":%d,"Size":4},"ComputeInstances":[{"ProfileID":2,"EngProfileID":0}]}'
    gpu = '{"UUID":"%s","MigMode":1,"GpuInstances":[%s,%s]}'
    devices = ",".join(gpu % (uuid, *(half % start for start in starts(file, uuid))) for uuid in (first, last))
    assert file.read_text() == '{"Version":"v1","MigState":{"Devices":[' + devices + "]}}"
    assert mig(root, "apply", "-f", config, "-c", "none") == 0
    assert mig(root, "restore", "--mode-only", program=PEER) == 0
    assert seen(root) == (True, True, 0, Counter())
    assert mig(root, "restore", program=PEER) == 0
    assert seen(root, 1)[3] == Counter({"3g.40gb": 2})
    file.write_text(file.read_text().replace(last, "GPU-gone"))
    capsys.readouterr()
    assert mig(root, "restore", program=PEER) == 1
    assert capsys.readouterr().err.startswith(f"{PEER}: the node has no GPU GPU-gone, which the checkpoint has\n")


def starts(file: Path, uuid: str) -> list[int]:
    """Where the file has the GPU's instances; 3g stands at 0 and 4."""
    devices = {one["UUID"]: one for one in json.loads(file.read_text())["MigState"]["Devices"]}
    found = [one["Placement"]["Start"] for one in devices[uuid]["GpuInstances"]]
    assert sorted(found) == [0, 4]
    return found


def instances(root: Path) -> list[object]:
    """How the GPUs are cut, by the driver."""
    return [
        (gpu.enabled, sorted((one.profile, one.start, *(ci.profile for ci in one.compute)) for one in gpu.instances))
        for gpu in asyncio.run(cut_gpus(root))
    ]


async def cut_gpus(root: Path) -> tuple[CutGpu, ...]:
    driver = _mig.open_driver(str(root))
    try:
        return await driver.gpus()
    finally:
        await driver.close()


def test_a_generated_config_goes_where_it_is_asked_for(root, capsys, tmp_path) -> None:
    assert mig(root, "generate-config") == 0
    printed = capsys.readouterr().out
    assert "  all-1g.10gb:\n  - devices: all\n    mig-enabled: true\n    mig-devices:\n      '1g.10gb': 7\n" in printed
    file = tmp_path / "config.yaml"
    assert mig(root, "generate-config", "-f", str(file), program=PEER) == 0
    assert (file.read_text(), capsys.readouterr().out) == (printed, "")
    assert mig(root, "apply", "-f", str(file), "-c", "all-balanced") == 0
    assert seen(root, 1)[3] == Counter({"1g.10gb": 2, "2g.20gb": 1, "3g.40gb": 1})
    capsys.readouterr()
    assert mig(root, "generate-config", "--output-format", "json", program=PEER) == 0
    assert json.loads(capsys.readouterr().out)["mig-configs"]["all-3g.40gb"][0]["mig-devices"] == {"3g.40gb": 2}


def test_what_is_no_file_is_written_to_and_stays(root, tmp_path, capsys) -> None:
    pipe, link, file = tmp_path / "pipe", tmp_path / "link", tmp_path / "file"
    os.mkfifo(pipe)
    reads = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    assert mig(root, "checkpoint", "-f", str(pipe)) == 0
    assert os.read(reads, 1 << 16).startswith(b'{"Version":"v1"')
    os.close(reads)
    assert pipe.is_fifo()
    file.touch()
    link.symlink_to(file)
    assert mig(root, "checkpoint", "-f", str(link)) == 0
    assert link.is_symlink()
    assert file.read_text().startswith('{"Version":"v1"')
    assert mig(root, "checkpoint", "-f", str(tmp_path)) == 2
    assert f"{tmp_path} can't be written: Is a directory" in capsys.readouterr().err


def hooks_file(folder: Path, **scripts: str) -> Path:
    path = folder / "hooks.yaml"
    hooks = {
        name.replace("_", "-"): [{"command": "/bin/sh", "args": ["-c", script]}] for name, script in scripts.items()
    }
    path.write_text(json.dumps({"version": "v1", "hooks": hooks}))
    return path


def test_hooks_run_around_a_change_with_the_command_lines_variables(
    root, config, tmp_path, capsys, monkeypatch
) -> None:
    log = tmp_path / "log"
    path = hooks_file(
        tmp_path, apply_start=f"env >> {log}", pre_apply_mode=f"echo mode >> {log}", apply_exit=f"echo exit >> {log}"
    )
    monkeypatch.setenv("A_SECRET", "s3cret")
    monkeypatch.setenv("MIG_PARTED_HOOKS_FILE", str(path))
    assert main([PEER, "-d", "apply", "-f", config, "-c", "halves", "--root", str(root)]) == 0
    lines = log.read_text().splitlines()
    told = {line for line in lines if line.startswith("MIG_PARTED_")}
    assert told == {
        f"MIG_PARTED_CONFIG_FILE={config}", "MIG_PARTED_SELECTED_CONFIG=halves", f"MIG_PARTED_HOOKS_FILE={path}",
        "MIG_PARTED_SKIP_RESET=false", "MIG_PARTED_MODE_CHANGE_ONLY=false",
    }  # fmt: skip
    assert lines[-2:] == ["mode", "exit"]
    assert "s3cret" not in log.read_text()
    assert "hook apply-start: /bin/sh\n" in capsys.readouterr().err
    saved = tmp_path / "saved.json"
    assert mig(root, "checkpoint", "-f", str(saved)) == 0
    log.unlink()
    assert mig(root, "restore", "-f", str(saved), "-m") == 0
    assert f"MIG_PARTED_CHECKPOINT_FILE={saved}" in log.read_text()
    assert "MIG_PARTED_MODE_CHANGE_ONLY=true" in log.read_text()


def test_a_hook_that_fails_keeps_all_as_it_was(root, config, tmp_path, capsys) -> None:
    path = hooks_file(tmp_path, pre_apply_config="echo no room; exit 3", apply_exit="exit 4")
    assert mig(root, "apply", "-f", config, "-c", "halves", "-k", str(path)) == 2
    error = capsys.readouterr().err
    assert "kgpu: command 1 of hook pre-apply-config (/bin/sh) has failed with 3: no room\n  expected: exit" in error
    assert "warning: command 1 of hook apply-exit (/bin/sh) has failed with 4" in error
    assert seen(root)[0] is False
    assert mig(root, "apply", "-f", config, "-c", "halves", "-k", str(path), program=PEER) == 1


def test_hooks_that_anybody_may_write_are_not_run(root, config, tmp_path, capsys) -> None:
    path = hooks_file(tmp_path, apply_start=f"touch {tmp_path}/ran")
    path.chmod(0o666)
    assert mig(root, "apply", "-f", config, "-c", "halves", "-k", str(path)) == 2
    assert f"anybody may write to {path}" in capsys.readouterr().err
    assert not (tmp_path / "ran").exists()


def test_two_changes_never_cross(root, config, tmp_path, capsys) -> None:
    saved = tmp_path / "saved.json"
    assert mig(root, "checkpoint", "-f", str(saved)) == 0
    with alone(root / "run/kgpu", "apply of something"):
        for words in (["apply", "-f", config, "-c", "halves"], ["restore", "-f", str(saved)]):
            capsys.readouterr()
            assert mig(root, *words) == 2
            told = f"GPUs of this machine are being cut already, by process {os.getpid()} (apply of something)\n"
            assert told in capsys.readouterr().err
        assert mig(root, "plan", "-f", config, "-c", "halves") == 0, "who only looks does not wait"
    assert seen(root)[0] is False
    assert mig(root, "apply", "-f", config, "-c", "halves") == 0


def test_a_node_without_a_driver(config, tmp_path, capsys) -> None:
    assert mig(tmp_path, "apply", "-f", config, "-c", "none") == 2
    assert "no accelerator driver was found" in capsys.readouterr().err


def test_a_config_from_standard_input_and_what_it_names_in_vain(root, capsys, monkeypatch) -> None:
    text = b"version: v1\nmig-configs: {a: [{devices: [0, 9], mig-enabled: true, mig-devices: {7g.80gb: 1}}]}\n"
    monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=io.BytesIO(text)))
    assert mig(root, "apply", "-f", "-") == 0
    assert "warning: the node has no GPU 9, which the config names" in capsys.readouterr().err
    assert seen(root)[3] == Counter({"7g.80gb": 1})


def test_export_tells_what_no_config_can_say(root, config, capsys) -> None:
    assert mig(root, "apply", "-f", config, "-c", "halves") == 0
    with operate.opened(root) as state, state.locked():
        state.gpu(1).ci[0].used = 0
    capsys.readouterr()
    assert mig(root, "export") == 0
    captured = capsys.readouterr()
    assert "warning: GPU 1 (NVIDIA H100 80GB HBM3) has GPU instances that no config can say: 1 without" in captured.err
    assert captured.out.count("- devices:") == 2


def nearly_full_pipe(room: int) -> tuple[int, int]:
    """A pipe of one page with so much room: who writes more waits until it is read."""
    reads, writes = os.pipe()
    page = fcntl.fcntl(writes, fcntl.F_SETPIPE_SZ, 4096)
    os.write(writes, b"." * (page - room))
    return reads, writes


def waiting(pipe: int) -> int:
    """Bytes that are in it."""
    count = array.array("i", [0])
    fcntl.ioctl(pipe, termios.FIONREAD, count)
    return count[0]


@pytest.mark.parametrize("end", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_ended_in_the_middle(root, config, capsys, end: int) -> None:
    assert mig(root, "apply", "-f", config, "-c", "halves") == 0
    capsys.readouterr()
    assert mig(root, "plan", "-f", config, "-c", "sevens") == 0
    first, *steps = capsys.readouterr().out.splitlines()
    told = [f"{first.partition(':')[0]}: {step.strip()}\n" for step in steps[:7]]
    # It tells each step before it takes it, and finds no room to tell the seventh.
    reads, writes = nearly_full_pipe(len("".join(told[:6])))
    full = waiting(reads) + len("".join(told[:6]))
    words = [sys.executable, "-m", "kgpu", "mig", "--debug", "apply", "-f", config, "-c", "sevens", "--root", str(root)]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    with child(words, stderr=writes, stdout=subprocess.DEVNULL, env=environment) as apply, open(reads, "rb") as tail:
        os.close(writes)
        end_of_patience = time.monotonic() + 120
        while waiting(reads) < full:
            assert apply.poll() is None
            assert time.monotonic() < end_of_patience
            time.sleep(0.01)
        apply.send_signal(end)
        if end == signal.SIGKILL:
            apply.wait()
        tail.read()
        code = apply.wait()
    if end == signal.SIGKILL:
        assert seen(root)[3] in (Counter(), Counter({"1g.10gb": 1})), "both halves have gone, one slice may be there"
    else:
        assert code == {signal.SIGINT: 130, signal.SIGTERM: 143}[end]
        assert seen(root) == (True, True, 2, Counter({"3g.40gb": 2}))
    assert mig(root, "apply", "-f", config, "-c", "sevens") == 0
    assert seen(root) == seen(root, 1) == (True, True, 7, Counter({"1g.10gb": 7}))
