"""The simulated Multi-Process Service: control daemon, servers and clients, through the programs and the CUDA library."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from kgpu.hw.simulator.create import create_root
from tests.native.mps import Mps, Program, eventually

Root = Callable[..., Path]
OUT_OF_MEMORY, UNAVAILABLE, LAUNCH_FAILED, ILLEGAL_ADDRESS = 2, 46, 719, 700
CONNECTION_FAILED, RPC_FAILURE, NOT_READY, MAX_CLIENTS, TERMINATED = 805, 806, 807, 808, 810


@pytest.fixture
def mps(sim_root: Root, tmp_path: Path) -> Iterator[Mps]:
    service = Mps(sim_root(gpus=2), tmp_path)
    yield service
    service.end()


@pytest.fixture
def open_folder(sim_libs: Path) -> Iterator[Path]:
    """A folder that every user can look into, which pytest's own are not."""
    with tempfile.TemporaryDirectory(prefix="mps-") as folder:
        Path(folder).chmod(0o755)
        yield Path(folder)


# ---- the programs ----


def test_without_a_daemon_the_program_says_so(mps: Mps) -> None:
    assert mps.command("get_default_active_thread_percentage", code=1) == "Cannot find MPS control daemon process"


def test_a_daemon_starts_once(mps: Mps) -> None:
    mps.start()
    assert Path(f"/proc/{mps.daemon()}/comm").read_text().startswith("nvidia-cuda-mps")
    second = mps.run("-d")
    assert (second.returncode, second.stdout) == (1, "An instance of this daemon is already running\n")
    assert mps.command("get_default_active_thread_percentage") == "100.0"


def test_a_dead_daemon_is_in_nobodys_way(mps: Mps) -> None:
    mps.start()
    mps.kill()
    with mps.client() as client:  # goes on without MPS, as the real driver does
        assert [client("init()"), client("context()"), client("memory()")[2]] == [0, 0, 81007]
    mps.start()
    assert mps.command("get_server_list") == ""


def test_a_path_too_long_for_a_socket(mps: Mps) -> None:
    done = mps.run("-d", CUDA_MPS_PIPE_DIRECTORY="/tmp/" + "x" * 120)
    assert (done.returncode, done.stdout) == (1, "Cannot find MPS control daemon process\n")


def test_a_log_directory_that_cannot_be_made(mps: Mps, tmp_path: Path) -> None:
    done = mps.run("-d", CUDA_MPS_LOG_DIRECTORY=str(tmp_path / "none/log"))
    assert (done.returncode, done.stdout) == (1, f"{tmp_path}/none/log: No such file or directory\n")


def test_in_the_foreground_the_log_is_on_stderr_and_sigterm_ends_all(mps: Mps) -> None:
    daemon = subprocess.Popen([mps.program, "-f"], env=mps.env, stderr=subprocess.PIPE, text=True)
    assert daemon.stderr is not None
    assert daemon.stderr.readline().endswith(f"Starting control daemon using socket {mps.pipe}/control\n")
    with mps.client() as client:
        assert client("init()") == 0
        server = mps.server()
        daemon.send_signal(signal.SIGTERM)
        rest = daemon.communicate(timeout=120)[1]
    assert daemon.returncode == 0
    assert f"Starting new server {server} for user {os.getuid()}" in rest
    assert "Server has started" in rest
    assert not Path(f"/proc/{server}").exists()
    assert os.listdir(mps.pipe) == ["control_lock"]


def test_quit_waits_for_the_clients_unless_it_is_told_how_long(mps: Mps) -> None:
    mps.start()
    with mps.client() as client:
        assert [client("init()"), client("context()")] == [0, 0]
        waiting = subprocess.Popen([mps.program], env=mps.env, stdin=subprocess.PIPE, text=True)
        assert waiting.stdin is not None
        waiting.stdin.write("quit\n")
        waiting.stdin.close()
        eventually(lambda: "Server has been notified to shutdown" in mps.lines("server"))
        with mps.client() as late:
            assert late("init()") == NOT_READY
        assert client("alloc(1)") == 0, "who is there may go on"
        assert waiting.poll() is None
        client.end()
        assert waiting.wait(timeout=120) == 0
    assert mps.lines()[-1] == "Exit with status 0"
    mps.start()
    with mps.client() as client:
        assert [client("init()"), client("context()")] == [0, 0]
        mps.command("quit -t 0")
        assert client("sync()") == RPC_FAILURE


def test_commands(mps: Mps) -> None:
    mps.start(CUDA_MPS_ACTIVE_THREAD_PERCENTAGE="60", CUDA_MPS_PINNED_DEVICE_MEM_LIMIT="1=3G")
    assert mps.command("get_default_active_thread_percentage") == "60.0"
    assert mps.command("get_default_device_pinned_mem_limit 1") == "3G"
    assert mps.command("set_default_active_thread_percentage 25") == "25.0"
    assert mps.command("set_default_device_pinned_mem_limit 0 1024M\nget_default_device_pinned_mem_limit 0") == "1024M"
    for wrong in (
        "set_default_active_thread_percentage 0", "set_default_active_thread_percentage 101",
        "set_default_device_pinned_mem_limit 0 1T", "set_default_device_pinned_mem_limit 0 -1G",
        "set_default_device_pinned_mem_limit GPU-1 1G", "get_client_list 1", "get_server_status", "quit now", "reboot",
    ):  # fmt: skip
        assert mps.command(wrong, code=1) != "", wrong
    assert mps.command("get_default_active_thread_percentage") == "25.0"
    assert mps.command("start_server -uid 0") == ""
    eventually(lambda: mps.command(f"get_server_status {mps.server()}") == "ACTIVE")
    server = mps.server()
    assert mps.command(f"set_active_thread_percentage {server} 10") == "10.0"
    assert mps.command(f"get_active_thread_percentage {server}") == "10.0"
    assert mps.command(f"set_device_pinned_mem_limit {server} 0 2G\nget_device_pinned_mem_limit {server} 0") == "2G"
    assert mps.command("get_default_active_thread_percentage") == "25.0", "a server's share is its own"
    mps.command(f"shutdown_server {server}")
    eventually(lambda: mps.command("get_server_list") == "")


def test_a_stranger_on_the_socket_harms_nobody(mps: Mps) -> None:
    mps.start()
    with mps.client() as client, socket.socket(socket.AF_UNIX) as idle:
        idle.connect(str(mps.pipe / "control"))
        assert client("init()") == 0
        for noise in (b"\0" * 3000, b"client 1\n", b"client 1 2\nclient 1 2\n", b"\n" * 50, os.urandom(4096)):
            for name in ("control", next(name for name in os.listdir(mps.pipe) if name.startswith("server-"))):
                with socket.socket(socket.AF_UNIX) as stranger:
                    stranger.connect(str(mps.pipe / name))
                    stranger.sendall(noise)
        assert client("context()") == 0
        assert mps.command(f"get_client_list {mps.server()}") == str(client.pid)


# ---- clients ----


def test_a_client_by_its_logs_and_lists(mps: Mps) -> None:
    mps.start()
    with mps.client() as client:
        assert [client("init()"), client("count()"), client("context(1)")] == [0, 2, 0]
        server = mps.server()
        assert mps.command(f"get_client_list {server}") == str(client.pid)
        rows = [line.split() for line in mps.command("ps").splitlines()]
        assert rows[0] == ["PID", "ID", "SERVER", "DEVICE", "NAMESPACE", "COMMAND"]
        assert [row[:3] for row in rows[1:]] == [[str(client.pid), "1", str(server)]]
        assert mps.command("get_device_client_list").splitlines()[1].endswith(f": {client.pid}")
        table = mps.smi()
        assert re.findall(r"\|\s+(\d)   N/A  N/A\s+(\d+)\s+(\S+) ", table) == [
            ("0", str(server), "C"), ("1", str(server), "C"), ("1", str(client.pid), "M+C"),
        ]  # fmt: skip
        client.end()
    eventually(lambda: mps.command("ps").count("\n") == 0)
    user = os.getuid()
    assert [line for line in mps.lines() if str(server) in line or "NEW CLIENT" in line][:3] == [
        f"NEW CLIENT {client.pid} from user {user}: Server is not ready, push client to pending list",
        f"Starting new server {server} for user {user}",
        f"NEW SERVER {server}: Ready",
    ]
    eventually(lambda: mps.lines("server")[-1] == "Client process disconnected")
    log = mps.lines("server")
    assert log[:3] == [
        "Startup",
        f"Connecting to control daemon on socket: {mps.pipe}/control",
        "Initializing server process",
    ]
    assert f"Client {{PID: {client.pid}, Context ID: 0}} connected" in log


def test_limits_of_memory_and_threads(mps: Mps) -> None:
    mps.start()
    mps.command("set_default_device_pinned_mem_limit 0 1024M\nset_default_active_thread_percentage 25")
    with mps.client() as client, mps.client() as other:
        assert [client("init()"), client("context()"), client("sms()")] == [0, 0, 34]  # 33 of 132, in pairs
        assert client("memory()") == [0, 1024, 1024]
        assert [client("alloc(1000)"), client("alloc(32)"), client("memory()")] == [0, OUT_OF_MEMORY, [0, 24, 1024]]
        assert [other("init()"), other("context()"), other("alloc(1024)")] == [0, 0, 0], "each has the limit for itself"
        assert [other("context(1)"), other("memory()")[2]] == [0, 81007], "the other GPU has none"
    server = mps.server()
    mps.command(f"set_device_pinned_mem_limit {server} 0 2G\nset_active_thread_percentage {server} 50")
    with mps.client() as later:
        assert [later("init()"), later("context()"), later("sms()"), later("memory()")[2]] == [0, 0, 66, 2048]


def test_a_client_can_only_have_less(mps: Mps) -> None:
    mps.start()
    mps.command("set_default_device_pinned_mem_limit 0 1G\nset_default_active_thread_percentage 50")
    own = [("10", "0=512M", 14, 512), ("90", "0=4G", 66, 1024), ("x", "0=1,junk,1=5M", 66, 1024)]
    for percent, limit, sms, mib in own:
        wishes = {"CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": percent, "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT": limit}
        with mps.client(**wishes) as client:
            assert [client("init()"), client("context()"), client("sms()"), client("memory()")[2]] == [0, 0, sms, mib]


def test_the_variables_mean_nothing_without_a_daemon(mps: Mps) -> None:
    with mps.client(CUDA_MPS_ACTIVE_THREAD_PERCENTAGE="10", CUDA_MPS_PINNED_DEVICE_MEM_LIMIT="0=1G") as client:
        assert [client("init()"), client("context()"), client("sms()"), client("memory()")[2]] == [0, 0, 132, 81007]


def test_a_server_numbers_its_devices_anew(mps: Mps) -> None:
    with mps.client() as alone:
        assert alone("init()") == 0
        second = alone("uuid(1)")
    mps.start(CUDA_VISIBLE_DEVICES="1")
    mps.command("set_default_device_pinned_mem_limit 0 1G")
    with mps.client() as client:
        assert [client("init()"), client("count()"), client("uuid()"), client("context()")] == [0, 1, second, 0]
        assert client("memory()")[2] == 1024
    with mps.client(CUDA_VISIBLE_DEVICES="1") as confused:
        assert confused("init()") == 100


def test_an_exclusive_gpu_is_for_the_servers_clients(mps: Mps, tmp_path: Path) -> None:
    mps.start()
    mps.smi("-c", "EXCLUSIVE_PROCESS")
    with (
        mps.client() as one,
        mps.client() as two,
        mps.client(CUDA_MPS_PIPE_DIRECTORY=str(tmp_path / "none")) as stranger,
    ):
        assert [one("init()"), one("context()"), two("init()"), two("context()")] == [0] * 4
        assert [stranger("init()"), stranger("context()")] == [0, UNAVAILABLE]
        one.end()
        two.end()
        assert stranger("context()") == UNAVAILABLE, "the server stays on the GPU"
        mps.command("quit")
        assert stranger("context()") == 0


def test_a_server_that_cannot_start_fails_its_client(mps: Mps, tmp_path: Path) -> None:
    mps.smi("-c", "EXCLUSIVE_PROCESS")
    mps.start()
    with mps.client(CUDA_MPS_PIPE_DIRECTORY=str(tmp_path / "none")) as first, mps.client() as client:
        assert [first("init()"), first("context()")] == [0, 0]
        assert client("init()") == CONNECTION_FAILED
    assert next(line for line in mps.lines() if "exited" in line).endswith("exited with status 1")


@pytest.mark.parametrize(("profile", "most"), [("hgx-h100", 48), ("dgx-1-v100", 48), ("dgx-1-p100", 16)])
def test_one_client_too_many(sim_root: Root, tmp_path: Path, profile: str, most: int) -> None:
    mps = Mps(sim_root(profile, gpus=1), tmp_path)
    mps.start()
    try:
        with ExitStack() as stack:
            clients: list[Program] = [stack.enter_context(mps.client()) for _ in range(most + 1)]
            for client in clients:
                client.ask("[init(), context()]")
            codes = sorted(tuple(client.answer()) for client in clients)
            assert codes == [(0, 0)] * most + [(0, MAX_CLIENTS)]
            refused = next(client for client in clients if client("context()") == MAX_CLIENTS)
            leaver = next(client for client in clients if client is not refused)
            leaver.end()
            eventually(lambda: str(leaver.pid) not in mps.command(f"get_client_list {mps.server()}").split())
            assert refused("context()") == 0
    finally:
        mps.end()


def test_a_server_that_dies_takes_its_clients_along(mps: Mps) -> None:
    mps.start()
    with mps.client() as client:
        assert [client("init()"), client("context()"), client("alloc(1)")] == [0, 0, 0]
        os.kill(mps.server(), signal.SIGKILL)
        eventually(lambda: mps.command("get_server_list") == "")
        assert [client("alloc(1)"), client("sync()"), client("context()")] == [RPC_FAILURE] * 3
    with mps.client() as later:
        assert [later("init()"), later("context()")] == [0, 0], "a new server has come"


def test_a_server_outlives_its_daemon_until_its_clients_have_gone(mps: Mps) -> None:
    mps.start()
    with mps.client() as client:
        assert [client("init()"), client("context()")] == [0, 0]
        server = mps.server()
        mps.kill()
        assert client("alloc(1)") == 0
        client.end()
    eventually(lambda: not Path(f"/proc/{server}/exe").exists())


def test_a_fault_ends_all_clients_of_that_gpu(mps: Mps) -> None:
    mps.start()
    with mps.client() as culprit, mps.client() as neighbour, mps.client() as elsewhere:
        assert [culprit("init()"), culprit("context()"), neighbour("init()"), neighbour("context()")] == [0] * 4
        assert [elsewhere("init()"), elsewhere("context(1)")] == [0, 0]
        assert culprit("crash()") == ILLEGAL_ADDRESS
        server = mps.server()
        eventually(lambda: mps.command(f"get_server_status {server}") == "FAULT")
        assert [neighbour("sync()"), elsewhere("sync()")] == [LAUNCH_FAILED, 0]
        with mps.client() as late:
            assert late("init()") == NOT_READY
        culprit.end()
        neighbour.end()
        eventually(lambda: mps.command(f"get_server_status {server}") == "ACTIVE")
        with mps.client() as late:
            assert [late("init()"), late("context()")] == [0, 0]


def test_a_client_can_be_terminated(mps: Mps) -> None:
    mps.start()
    with mps.client() as client, mps.client() as other:
        assert [client("init()"), client("context()"), other("init()"), other("context()")] == [0] * 4
        mps.command(f"terminate_client {mps.server()} {client.pid}")
        eventually(lambda: client("sync()") == TERMINATED)
        assert other("sync()") == 0


def test_a_forked_child_is_no_client_of_its_own(mps: Mps) -> None:
    mps.start()
    with mps.client() as client:
        assert [client("init()"), client("context()"), client("forked()"), client("sync()")] == [0, 0, 3, 0]
        assert mps.command(f"get_client_list {mps.server()}") == str(client.pid)


def test_the_daemon_of_another_node_is_none(mps: Mps, sim_root: Root) -> None:
    mps.start()
    other = sim_root(gpus=1)
    with mps.client(KGPU_HW_STATE=str(other / "state")) as client:
        assert [client("init()"), client("context()"), client("count()")] == [0, 0, 1]
    assert mps.command("get_server_list") == ""


def test_mps_in_a_slice(mps: Mps) -> None:
    from kgpu.hw.simulator import mig

    mig.partition(mps.root, 0, ["1g.10gb"])
    name = re.findall(r"UUID: (MIG-[0-9a-f-]+)", mps.smi("-L"))[0]
    mps.start(CUDA_VISIBLE_DEVICES=name)
    mps.command("set_default_device_pinned_mem_limit 0 2G")
    with mps.client() as client:
        assert [client("init()"), client("count()"), client("context()"), client("memory()")[2]] == [0, 1, 0, 2048]


@pytest.mark.skipif(os.getuid() != 0, reason="needs root, to be another user")
def test_one_user_at_a_time(open_folder: Path) -> None:
    mps = Mps(create_root("t4", open_folder / "root", gpus=1), open_folder)
    (mps.root / "state").chmod(0o666)
    mps.start()
    with mps.client() as root:
        assert [root("init()"), root("context()")] == [0, 0]
        first = mps.server()
        user = subprocess.Popen(
            [mps.root / "usr/share/kgpu/vectoradd"], env=mps.env, user=65534, stdout=subprocess.PIPE, text=True
        )
        eventually(lambda: any("from user 65534: Server is not ready" in line for line in mps.lines()))
        assert (user.poll(), mps.server()) == (None, first), "it waits"
        root.end()
        out = user.communicate(timeout=120)[0]
    assert out.splitlines()[-2:] == ["Test PASSED", "Done"]
    assert os.stat(f"/proc/{mps.server()}").st_uid == 65534
    mps.command("quit")
