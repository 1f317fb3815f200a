"""``kgpu act reset-gpu`` on simulated machines: the real nvidia-smi over the simulated driver, and real processes."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from kgpu.base.boot import ENV_BOOT_ID
from kgpu.base.errors import HostError
from kgpu.cli.main import main
from kgpu.formats.names import ENV_HOST_ROOT, ENV_LAB_CONTAINER, ENV_RUN_DIR
from kgpu.health import klog
from kgpu.hw.simulator import kernel_log, mig, operate
from kgpu.hw.simulator.create import environment
from kgpu.operations import node_gpus
from kgpu.operations.model import HANGS, REFUSED, UNKNOWN
from kgpu.operations.node_gpus import find_driver
from tests.child import child

BOOT = "8a7f3c52-5a53-4a1e-9a53-0e3b6a0d7d11"
CONTEXT = (
    "import ctypes,sys; c=ctypes.CDLL('libcuda.so.1'); x=ctypes.c_void_p(); c.cuInit(0);"
    "assert c.cuCtxCreate_v2(ctypes.byref(x),0,{})==0; print(flush=True); sys.stdin.read()"
)
WATCHER = (
    "import ctypes,sys; assert ctypes.CDLL('libnvidia-ml.so.1').nvmlInit_v2()==0; print(flush=True); sys.stdin.read()"
)


@dataclass
class Simulated:
    """A simulated machine, and the act's program on it."""

    root: Path
    run_dir: Path
    capsys: pytest.CaptureFixture[str]

    def gpu(self, index: int) -> dict[str, Any]:
        found: dict[str, Any] = operate.snapshot(self.root)["gpus"][index]
        return found

    def words(self, act: str, *indices: int, boot: str = BOOT) -> list[str]:
        gpus = [f"--gpu={self.gpu(index)['uuid']}" for index in indices]
        return ["kgpu", "act", "reset-gpu", f"--id={act}", f"--boot-id={boot}", *gpus]

    def act(self, act: str, *indices: int, boot: str = BOOT) -> tuple[int, str]:
        """The exit code, and what it says in one line."""
        code = main(self.words(act, *indices, boot=boot))
        captured = self.capsys.readouterr()
        said = captured.err if code else captured.out
        assert said.count("\n") == 1
        assert said.strip().isprintable()
        return code, said.strip()

    def resets(self) -> list[int]:
        return [gpu["resets"] for gpu in operate.snapshot(self.root)["gpus"]]

    def persistence(self) -> list[str]:
        words = [self.root / "usr/bin/nvidia-smi", "--query-gpu=persistence_mode", "--format=csv,noheader"]
        env = {**os.environ, **environment(self.root)}
        return subprocess.run(words, env=env, capture_output=True, text=True, check=True).stdout.split()

    @contextmanager
    def program(self, script: str) -> Iterator[int]:
        """A program on the machine's driver that has said that it is ready; its pid."""
        started = child(
            [sys.executable, "-c", script], env={**os.environ, **environment(self.root)}, stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )  # fmt: skip
        with started as process:
            assert process.stdout is not None
            process.stdout.readline()
            yield process.pid


@pytest.fixture
def machine(
    sim_root: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[..., Simulated]:
    def make(profile: str = "hgx-h100", **about: Any) -> Simulated:
        root = sim_root(profile, **about)
        for name, value in (
            (ENV_HOST_ROOT, root), (ENV_RUN_DIR, tmp_path / "run"), (ENV_BOOT_ID, BOOT), (ENV_LAB_CONTAINER, "c" * 64),
        ):  # fmt: skip
            monkeypatch.setenv(name, str(value))
        return Simulated(root, tmp_path / "run", capsys)

    return make


def test_one_gpu_of_two_is_reset_and_is_well(machine: Callable[..., Simulated]) -> None:
    node = machine(gpus=2)
    operate.inject(node.root, "xid", gpu=1, xid=48)
    assert node.gpu(1)["recovery_action"] == "reset"
    assert node.act("op-1", 1) == (0, f"nvidia-smi has reset {node.gpu(1)['uuid']}")
    assert (node.gpu(1)["recovery_action"], node.resets()) == ("none", [0, 1])
    assert node.persistence() == ["Enabled", "Enabled"]
    assert node.act("op-1", 1) == (0, f"nvidia-smi has reset {node.gpu(1)['uuid']}")
    assert node.resets() == [0, 1]


def test_several_in_one_order(machine: Callable[..., Simulated]) -> None:
    node = machine(gpus=4)
    assert node.act("op-1", 3, 1)[0] == 0
    assert node.resets() == [0, 1, 0, 1]


def test_a_gpu_that_answers_nothing_but_reset_required(machine: Callable[..., Simulated]) -> None:
    node = machine(gpus=2)
    operate.inject(node.root, "xid", gpu=0, xid=119)
    assert node.persistence()[0] == "[GPU"
    assert node.act("op-1", 0)[0] == 0
    assert (node.gpu(0)["recovery_action"], node.persistence()) == ("none", ["Enabled", "Enabled"])


def test_programs_on_it_are_named_and_those_on_others_are_left_alone(machine: Callable[..., Simulated]) -> None:
    node = machine(gpus=2)
    with node.program(CONTEXT.format(1)) as pid:
        code, said = node.act("op-1", 1)
        assert (code, f"(pid {pid})" in said, node.resets()) == (REFUSED, True, [0, 0])
        assert node.act("op-2", 0)[0] == 0
    assert node.act("op-1", 1)[0] == 0
    assert (node.resets(), node.persistence()) == ([1, 1], ["Enabled", "Enabled"])


def test_who_has_the_drivers_library_open_is_named(machine: Callable[..., Simulated]) -> None:
    node = machine(gpus=1)
    with node.program(WATCHER) as pid:
        code, said = node.act("op-1", 0)
    assert (code, f"(pid {pid})" in said) == (REFUSED, True)


def test_programs_of_another_simulated_machine_are_none_of_this_ones(
    machine: Callable[..., Simulated], tmp_path: Path
) -> None:
    other = machine(gpus=1)
    node = machine(gpus=1)
    assert node.root != other.root
    with other.program(CONTEXT.format(0)):
        assert node.act("op-1", 0)[0] == 0


def test_a_process_that_no_look_finds_is_left_to_nvidia_smi(machine: Callable[..., Simulated]) -> None:
    from kgpu.hw.simulator import processes

    node = machine(gpus=1)
    processes.add(node.root, 0, pid=4242)
    code, said = node.act("op-1", 0)
    assert (code, node.resets(), node.persistence()) == (REFUSED, [0], ["Enabled"])
    assert "nvidia-smi finds them in use; no process has them open" in said


def test_instances_are_not_lost(machine: Callable[..., Simulated]) -> None:
    node = machine(gpus=2)
    mig.partition(node.root, 0, ["3g.40gb"])
    code, said = node.act("op-1", 0)
    assert (code, "has MIG instances" in said, len(node.gpu(0)["mig"]["devices"])) == (REFUSED, True, 1)
    assert node.act("op-2", 1)[0] == 0
    mig.partition(node.root, 0, [])
    assert node.gpu(0)["mig"]["enabled"]
    assert node.act("op-3", 0)[0] == 0


def test_a100_without_fabric_manager(machine: Callable[..., Simulated]) -> None:
    node = machine("dgx-a100-40g", gpus=2)
    operate.set_values(node.root, {"fabric-manager": "off"})
    code, said = node.act("op-1", 0)
    assert (code, "Fabric Manager does not run" in said, node.resets()) == (REFUSED, True, [0, 0])
    assert node.act("op-2", 0, 1)[0] == 0
    operate.set_values(node.root, {"fabric-manager": "on"})
    assert node.act("op-3", 0)[0] == 0
    assert node.resets() == [2, 1]


def test_h100_needs_no_fabric_manager(machine: Callable[..., Simulated]) -> None:
    node = machine(gpus=2)
    operate.set_values(node.root, {"fabric-manager": "off"})
    assert node.act("op-1", 0)[0] == 0


def test_an_incomplete_set_before_ampere_fails_with_what_is_missing(machine: Callable[..., Simulated]) -> None:
    node = machine("dgx-1-v100")
    code, said = node.act("op-1", 0)
    assert (code, "reset together" in said, sum(node.resets())) == (1, True, 0)
    assert node.act("op-2", *range(8))[0] == 0


@pytest.mark.parametrize(
    ("outcome", "code", "resets", "says"),
    [("fails", 1, 0, "Unknown Error"), ("loses", 0, 1, "persistence mode is not on again"),
     ("renames", 0, 1, "persistence mode is not on again")],
)  # fmt: skip
def test_resets_that_go_wrong(
    machine: Callable[..., Simulated], outcome: str, code: int, resets: int, says: str
) -> None:
    node = machine(gpus=1)
    operate.set_values(node.root, {"next-reset": outcome}, gpu=0)
    words = node.words("op-1", 0)
    found, said = node.act("op-1", 0)
    assert (found, says in said, node.resets()) == (code, True, [resets])
    assert main(words) == code
    assert node.resets() == [resets]


def test_one_that_hangs_is_told_and_never_tried_again(
    machine: Callable[..., Simulated], monkeypatch: pytest.MonkeyPatch
) -> None:
    node = machine(gpus=1)
    monkeypatch.setattr(node_gpus, "RESET_SECONDS", 0.3)
    operate.set_values(node.root, {"next-reset": "hangs"}, gpu=0)
    code, said = node.act("op-1", 0)
    assert (code, said) == (HANGS, "nvidia-smi --gpu-reset does not return; to do: reboot the node")
    operate.clear(node.root)
    assert node.act("op-1", 0) == (code, said)
    assert node.resets() == [0]


def test_a_driver_that_hangs_is_not_waited_for(
    machine: Callable[..., Simulated], monkeypatch: pytest.MonkeyPatch
) -> None:
    node = machine(gpus=1)
    words = node.words("op-1", 0)
    monkeypatch.setattr(node_gpus, "ASK_SECONDS", 0.3)
    operate.inject(node.root, "hang")
    assert main(words) == HANGS
    assert not node.run_dir.exists()


def test_an_order_of_another_boot_is_void(machine: Callable[..., Simulated]) -> None:
    node = machine(gpus=1)
    code, said = node.act("op-1", 0, boot="another")
    assert (code, said) == (REFUSED, f"this machine has booted since: its boot is {BOOT}")
    assert not node.run_dir.exists()


def test_a_gpu_that_has_fallen_off_the_bus_is_not_listed(machine: Callable[..., Simulated]) -> None:
    node = machine(gpus=2)
    operate.inject(node.root, "lost", gpu=0)
    code, said = node.act("op-1", 0)
    assert (code, node.resets()) == (REFUSED, [0, 0]), said


def test_a_machine_without_a_driver(tmp_path: Path) -> None:
    with pytest.raises(HostError, match=f"there is no nvidia-smi in {tmp_path}/run/nvidia/driver or {tmp_path}\n"):
        find_driver({ENV_HOST_ROOT: str(tmp_path)})


def test_a_lab_never_uses_a_driver_that_is_not_simulated(tmp_path: Path) -> None:
    program = tmp_path / "usr/bin/nvidia-smi"
    program.parent.mkdir(parents=True)
    program.touch()
    assert find_driver({ENV_HOST_ROOT: str(tmp_path)}).program == "/usr/bin/nvidia-smi"
    with pytest.raises(HostError, match="there is no nvidia-smi"):
        find_driver({ENV_HOST_ROOT: str(tmp_path), ENV_LAB_CONTAINER: "c"})


def test_the_install_folder_goes_before_the_host(tmp_path: Path) -> None:
    for place in ("opt/driver/usr/bin", "usr/bin"):
        (tmp_path / place).mkdir(parents=True)
        (tmp_path / place / "nvidia-smi").touch()
    env = {ENV_HOST_ROOT: str(tmp_path)}
    assert find_driver(env, "/opt/driver").root == f"{tmp_path}/opt/driver"
    assert find_driver(env).root == str(tmp_path)


def test_the_machines_log_tells_it_and_the_health_check_finds_no_fault_in_it(
    machine: Callable[..., Simulated],
) -> None:
    node = machine(gpus=1)
    node.act("op-1", 0)
    lines = (node.root / kernel_log.PATH).read_bytes().splitlines()
    records = [klog.parse_record(line) for line in lines]
    told = [record.message for record in records if record is not None]
    assert [line.partition(" GPU-")[0] for line in told] == [
        "kgpu: resetting",
        "kgpu: operation op-1: nvidia-smi has reset",
    ]
    assert not any(record.from_kernel for record in records if record is not None)
    assert not [klog.parse_message(line) for line in told if klog.parse_message(line)]
    assert not list(klog.read_lines(lines))
    assert not list(klog.read_lines(f"Nov 28 03:15:13 node-1 kernel: {line}" for line in told))


def wait_for(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + 120
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.01)


@pytest.mark.parametrize("whom", ["all", "parent"])
def test_killed_in_the_middle_of_a_reset(machine: Callable[..., Simulated], whom: str) -> None:
    """By ``kill -9``, with nvidia-smi or without: the next pod resets nothing and puts persistence mode back."""
    node = machine(gpus=1)
    operate.set_values(node.root, {"next-reset": "hangs"}, gpu=0)
    command = [sys.executable, "-m", *node.words("op-1", 0)]
    with child(command, env=dict(os.environ), start_new_session=True, stderr=subprocess.DEVNULL) as process:
        children = Path(f"/proc/{process.pid}/task/{process.pid}/children")

        def resetting() -> int:
            for pid in children.read_text().split():
                with contextlib.suppress(OSError):  # one that has just ended
                    if b"--gpu-reset" in Path(f"/proc/{pid}/cmdline").read_bytes():
                        return int(pid)
            return 0

        wait_for(lambda: resetting() != 0)
        program = resetting()
        (os.killpg if whom == "all" else os.kill)(process.pid, signal.SIGKILL)
        process.wait()
    if whom == "parent":
        assert node.act("op-1", 0) == (UNKNOWN, "the reset op-1 is under way in another process")
        operate.clear(node.root)
    wait_for(lambda: not Path(f"/proc/{program}/exe").exists())
    resets = node.resets()
    assert resets == ([1] if whom == "parent" else [0])
    for _ in range(2):
        assert node.act("op-1", 0) == (UNKNOWN, "the reset op-1 was begun before; how it ended is not known")
    assert (node.resets(), node.persistence()) == (resets, ["Enabled"])
