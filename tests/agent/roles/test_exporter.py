"""The role ``exporter`` on a simulated driver: through the real C ABI, with faults, and from one process with others."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import sys
from pathlib import Path

from prometheus_client.parser import text_string_to_metric_families as parse_text

from kgpu.agent.options import AgentOptions, LabelsSink
from kgpu.agent.roles import choose_roles
from kgpu.agent.run import Agent
from kgpu.formats.names import ENV_LAB_POD_ADDRESS, ENV_RUN_DIR
from kgpu.hw.simulator import operate
from kgpu.hw.verdicts import GpuVerdict, VerdictFile, verdicts_path
from tests.exporter.serving import fetch, read
from tests.exporter.vendors.amd.made import series

LIMIT = 60.0
TEMPERATURE = "DCGM_FI_DEV_GPU_TEMP"


def values(body: bytes, name: str) -> dict[str, float]:
    return {
        one.labels.get("gpu", ""): one.value
        for family in parse_text(body.decode())
        for one in family.samples
        if one.name == name
    }


async def until(port: int, name: str, good) -> dict[str, float]:
    """Scrape until a metric's values by GPU are good."""
    found: dict[str, float] = {}
    try:
        async with asyncio.timeout(LIMIT):
            while True:
                found = values((await fetch(port, "/metrics"))[2], name)
                if good(found):
                    return found
                await asyncio.sleep(0.05)
    except TimeoutError:
        raise AssertionError(f"{name} is {found}") from None


@contextlib.asynccontextmanager
async def hosted(root, folder, **env: str):
    """An agent with the role; yields the port."""
    env = {"DCGM_EXPORTER_LISTEN": "127.0.0.1:0", "DCGM_EXPORTER_INTERVAL": "200", ENV_RUN_DIR: str(folder), **env}
    options = AgentOptions(
        root=root, env=env, state_dir=folder / "state", labels_sink=LabelsSink.NONE,
        kubelet_socket=folder / "device-plugins" / "kubelet.sock",
    )  # fmt: skip
    agent = Agent(options, choose_roles(["nvidia-dcgm-exporter"]))
    task = asyncio.create_task(agent.run())
    try:
        async with asyncio.timeout(LIMIT):
            while not (status := agent.roles.statuses()) or not status[0].reason.startswith("port "):  # noqa: ASYNC110 - the agent's state
                await asyncio.sleep(0.01)
        yield int(status[0].reason.removeprefix("port "))
    finally:
        agent.stop.set()
        await task


async def test_faults_of_one_gpu_while_it_is_scraped(sim_root, tmp_path):
    root = sim_root("hgx-h100", gpus=2)
    async with hosted(root, tmp_path) as port:
        await until(port, TEMPERATURE, lambda found: set(found) == {"0", "1"})
        operate.inject(root, "xid", gpu=1, xid=79)
        await until(port, "DCGM_FI_DEV_XID_ERRORS", lambda found: found == {"1": 79})
        operate.inject(root, "lost", gpu=1)
        await until(port, "kgpu_gpu_up", lambda found: found == {"0": 1, "1": 0})
        await until(port, TEMPERATURE, lambda found: set(found) == {"0"})
        assert (await fetch(port, "/health"))[0] == 200
        VerdictFile(verdicts_path("/", {ENV_RUN_DIR: str(tmp_path)})).write(
            (GpuVerdict(uuid=next(iter(uuids(await fetch(port, "/metrics"), "1"))), withdraws=True, reason="GPULost"),)
        )
        await until(port, "kgpu_gpu_healthy", lambda found: found == {"1": 0})


async def test_a_gpu_that_hangs_holds_up_no_scrape_of_the_others(sim_root, tmp_path):
    root = sim_root("hgx-h100", gpus=2)
    async with hosted(root, tmp_path) as port:
        await until(port, TEMPERATURE, lambda found: set(found) == {"0", "1"})
        operate.inject(root, "hang", gpu=1)
        await until(port, "kgpu_gpu_up", lambda found: found == {"0": 1, "1": 0})
        assert set(await until(port, TEMPERATURE, bool)) == {"0"}
        operate.clear(root)
        await until(port, TEMPERATURE, lambda found: set(found) == {"0", "1"})


def uuids(scrape, gpu: str) -> set[str]:
    status, headers, body = scrape
    assert status == 200
    samples = [one for family in read(body, headers) for one in family.samples]
    return {one.labels["UUID"] for one in samples if one.labels.get("gpu") == gpu}


async def test_the_kubelet_that_goes_away_takes_no_metric_along(sim_root, tmp_path):
    root = sim_root("hgx-h100", gpus=1)
    async with hosted(root, tmp_path, DCGM_EXPORTER_KUBERNETES="true") as port:
        await until(port, "kgpu_exporter_users_unknown", lambda found: found == {"": 1})
        await until(port, TEMPERATURE, lambda found: set(found) == {"0"})


async def test_the_program_under_the_replaced_name(sim_root, tmp_path):
    """``dcgm-exporter``, as its manifests call it, until SIGTERM."""
    root = sim_root("hgx-h100", gpus=1)
    program = tmp_path / "dcgm-exporter"
    program.write_text(f"#!{sys.executable}\nimport sys\nfrom kgpu.cli.main import main\nsys.exit(main())\n")
    program.chmod(0o755)
    environment = {
        key: value for key, value in os.environ.items() if not key.startswith(("KUBE", "NODE", "KGPU", "DCGM"))
    }
    process = await asyncio.create_subprocess_exec(
        program, "-a", "127.0.0.1:0", "-c", "1000", "--remote-hostengine-info", "localhost:5555",
        env={**environment, "KGPU_ROOT": str(root), ENV_RUN_DIR: str(tmp_path), "NODE_NAME": "a-node"},
        stderr=asyncio.subprocess.PIPE,
    )  # fmt: skip
    try:
        assert process.stderr is not None
        log = b""
        async with asyncio.timeout(LIMIT):
            while b"serving at " not in log:
                line = await process.stderr.readline()
                assert line, log
                log += line
        port = int(log.rpartition(b":")[2])
        await until(port, TEMPERATURE, bool)  # a driver that takes long to open is read later
        status, headers, body = await fetch(port, "/metrics")
        assert status == 200
        assert {one.labels["hostname"] for f in read(body, headers) if f.name == TEMPERATURE for one in f.samples} == {
            "a-node"
        }
        assert b"has no effect" in log
        process.send_signal(signal.SIGTERM)
        async with asyncio.timeout(LIMIT):
            assert await process.wait() == 0
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


def own_listeners(port: int) -> list[str]:
    """The IPv4 addresses where this process listens on the port. Other programs may have the same one elsewhere."""
    mine = {os.stat(file).st_ino for file in os.scandir("/proc/self/fd") if os.readlink(file).startswith("socket:")}
    rows = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    places = [row[1].split(":") for row in rows if row[3] == "0A" and int(row[9]) in mine]
    return [socket.inet_ntoa(bytes.fromhex(host)[::-1]) for host, at in places if int(at, 16) == port]


async def test_on_a_machine_of_many_simulated_nodes_each_listens_on_its_own_address(sim_root, tmp_path):
    env = {"DCGM_EXPORTER_LISTEN": ":0", ENV_LAB_POD_ADDRESS: "127.9.8.7"}
    async with hosted(sim_root("l4", gpus=1), tmp_path, **env) as port:
        _, writer = await asyncio.open_connection("127.9.8.7", port)
        writer.close()
        assert own_listeners(port) == ["127.9.8.7"]


async def test_amd_gpus_have_their_own_names_and_the_verdict(sim_root, tmp_path):
    async with hosted(sim_root("mi300x", gpus=2), tmp_path) as port:
        await until(port, TEMPERATURE, lambda found: set(found) == {"0", "1"})
        page = await fetch(port, "/metrics")
        good, bad = (next(iter(uuids(page, gpu))) for gpu in "01")
        VerdictFile(verdicts_path("/", {ENV_RUN_DIR: str(tmp_path)})).write(
            (GpuVerdict(uuid=good), GpuVerdict(uuid=bad, withdraws=True, reason="RasError"))
        )
        await until(port, "kgpu_gpu_healthy", lambda found: found == {"0": 1, "1": 0})
        text = (await fetch(port, "/metrics"))[2].decode()
        assert series(text, "gpu_health", "gpu_id") == {("0",): 1, ("1",): 0}
        assert series(text, "gpu_junction_temperature", "gpu_id") == {("0",): 38, ("1",): 38}
