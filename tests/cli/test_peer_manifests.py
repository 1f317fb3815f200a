"""What NVIDIA's charts and static manifests put into their containers runs with kgpu's image, or says why it does not.

Each row is one container: its command, arguments and environment as the named file renders them. They are run as the
image runs them, by the links of its program, on a simulated driver and with a kubelet of the tests. Only folders are
other ones than in a pod, where they would be mounted.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import re
import signal
import socket
import sys
import tempfile
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import pytest

from kgpu.formats.names import DEVICE_PLUGIN_CONFIG_LABEL
from kgpu.formats.programs import ENTRYPOINT, LINKS
from kgpu.kubelet.fake import FakeKubelet

MakeRoot = Callable[..., Path]
GPU: Final = "nvidia.com/gpu"
NODE: Final = "gpu-1"


@dataclass(frozen=True, slots=True)
class Container:
    """One container of a rendered manifest. An empty command is the image's entry point."""

    source: str
    command: tuple[str, ...] = ()
    args: tuple[str, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict)


# k8s-device-plugin v0.20.0; what a value adds is in the row of that value.
PLUGIN_CHART: Final = "helm/nvidia-device-plugin/templates/daemonset-device-plugin.yml"
PLUGIN_ENV: Final = {
    "MPS_ROOT": "/run/nvidia/mps", "NVIDIA_VISIBLE_DEVICES": "all", "NVIDIA_DRIVER_CAPABILITIES": "compute,utility",
}  # fmt: skip
PLUGINS: Final = (
    Container(PLUGIN_CHART, ("nvidia-device-plugin",), env=PLUGIN_ENV),
    Container(
        f"{PLUGIN_CHART}, every value", ("nvidia-device-plugin",),
        env={
            **PLUGIN_ENV, "MIG_STRATEGY": "none", "FAIL_ON_INIT_ERROR": "true", "PASS_DEVICE_SPECS": "true",
            "DEVICE_LIST_STRATEGY": "envvar", "DEVICE_ID_STRATEGY": "uuid", "NVIDIA_DRIVER_ROOT": "/",
            "NVIDIA_DEV_ROOT": "/", "NVIDIA_CDI_HOOK_PATH": "/usr/local/nvidia/toolkit/nvidia-cdi-hook",
            "CDI_FEATURE_FLAGS": "disable-ipc-discoverer", "GDRCOPY_ENABLED": "false", "GDS_ENABLED": "false",
            "MOFED_ENABLED": "false", "NVIDIA_MIG_MONITOR_DEVICES": "all", "DEVICE_DISCOVERY_STRATEGY": "auto",
        },
    ),
    Container("static/nvidia-device-plugin.yml", env={"FAIL_ON_INIT_ERROR": "false"}),
    Container("static/nvidia-device-plugin-compat-with-cpumanager.yml", env={"PASS_DEVICE_SPECS": "true"}),
    Container("nvidia-device-plugin.yml of v0.12", args=("--fail-on-init-error=false",)),
    Container("a manifest with Go's single dash", ("/usr/bin/nvidia-device-plugin",), ("-mig-strategy=none",)),
)  # fmt: skip

# dcgm-exporter 4.8: deployment/templates/daemonset.yaml; NODE_NAME is from the pod's spec.
EXPORTER_ENV: Final = {
    "DCGM_EXPORTER_KUBERNETES": "true", "DCGM_EXPORTER_LISTEN": "127.0.0.1:0", "NODE_NAME": NODE,
}  # fmt: skip
EXPORTERS: Final = (
    Container("deployment chart", args=("-f", "/etc/dcgm-exporter/default-counters.csv"), env=EXPORTER_ENV),
    Container(
        "deployment chart with debugDump and every kubernetes value",
        args=(
            "-f", "/etc/dcgm-exporter/dcp-metrics-included.csv", "--dump-enabled", "--dump-directory=/tmp/dumps",
            "--dump-retention=24", "--dump-compression",
        ),
        env={**EXPORTER_ENV, "DCGM_EXPORTER_KUBERNETES_ENABLE_POD_LABELS": "true", "KUBERNETES_ENABLE_DRA": "true"},
    ),
    Container("dcgm-exporter.yaml", env=EXPORTER_ENV),
    Container("a manifest of flags", args=("-f=/etc/dcgm-exporter/default-counters.csv", "-a=127.0.0.1:0")),
    Container("the operator's asset", ("/usr/bin/dcgm-exporter",), ("-collect-interval", "1000"), EXPORTER_ENV),
)  # fmt: skip

# k8s-device-plugin v0.20.0; the output folder is a mount.
DISCOVERIES: Final = (
    Container("static/gpu-feature-discovery-daemonset.yaml", ("/usr/bin/gpu-feature-discovery",),
              env={"MIG_STRATEGY": "none"}),
    Container("static/gpu-feature-discovery-job.yaml.template", ("/usr/bin/gpu-feature-discovery",), ("--oneshot",)),
    Container("a manifest with the short flag", ("gpu-feature-discovery",), ("-o", "FILE", "-oneshot")),
    Container("a manifest with the driver's mount", ("gpu-feature-discovery",),
              ("--output-file=FILE", "--oneshot", "--driver-root-ctr-path=ROOT")),
)  # fmt: skip

CONFIG_ENV: Final = {
    "KUBECONFIG": "", "NODE_NAME": NODE, "NODE_LABEL": DEVICE_PLUGIN_CONFIG_LABEL,
    "CONFIG_FILE_SRCDIR": "/available-configs", "CONFIG_FILE_DST": "/config/config.yaml", "DEFAULT_CONFIG": "",
    "FALLBACK_STRATEGIES": "named,single",
}  # fmt: skip
CONFIG_INIT: Final = Container(
    f"{PLUGIN_CHART}, nvidia-device-plugin-init", ("config-manager",),
    env={**CONFIG_ENV, "ONESHOT": "true", "SEND_SIGNAL": "false", "SIGNAL": "", "PROCESS_TO_SIGNAL": ""},
)  # fmt: skip
CONFIG_SIDECAR: Final = Container(
    f"{PLUGIN_CHART}, nvidia-device-plugin-sidecar", ("config-manager",),
    env={
        **CONFIG_ENV, "ONESHOT": "false", "SEND_SIGNAL": "true", "SIGNAL": "1",
        "PROCESS_TO_SIGNAL": "nvidia-device-plugin",
    },
)  # fmt: skip

MPS_CHART: Final = "helm/nvidia-device-plugin/templates/daemonset-mps-control-daemon.yml"
MPS_MOUNTS: Final = Container(f"{MPS_CHART}, mounts", ("mps-control-daemon", "mount-shm"))
MPS_DAEMON: Final = Container(
    MPS_CHART, ("mps-control-daemon",), env={"NODE_NAME": NODE, "CONFIG_FILE": "/config/config.yaml"}
)  # fmt: skip
REFUSED: Final = (
    (MPS_DAEMON, "can't read the config file /config/config.yaml"),
    (Container("no such subcommand", ("mps-control-daemon", "umount-shm")), "umount-shm"),
    (Container("MPS with slices", ("mps-control-daemon",), ("--mig-strategy", "all")), "unknown MIG strategy: all"),
    (Container("kubelet-socket", ("nvidia-device-plugin",), ("--kubelet-socket=",)), "--kubelet-socket"),
    (Container("kubelet-socket by variable", ("nvidia-device-plugin",), env={"KUBELET_SOCKET": ""}), "KUBELET_SOCKET"),
    (Container("YAML config of 4.8.3", args=("--config-file", "/c.yaml"), env=EXPORTER_ENV), "reads no YAML"),
    (
        Container("YAML config by variable", env={**EXPORTER_ENV, "DCGM_EXPORTER_CONFIG_FILE": "/c.yaml"}),
        "DCGM_EXPORTER_CONFIG_FILE is refused",
    ),
    (Container("nothing at all"), "the container has no command and no arguments"),
    (Container("an unknown flag", args=("--frobnicate",)), "its arguments are --frobnicate"),
)


def named(row: Container | tuple[Container, str]) -> str:
    return row.source if isinstance(row, Container) else row[0].source


@pytest.fixture(scope="module")
def image(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with ``usr/bin`` as in the image: the program, and a link of each name."""
    folder = tmp_path_factory.mktemp("image") / "usr/bin"
    folder.mkdir(parents=True)
    program = folder / "kgpu"
    program.write_text(f"#!{sys.executable}\nimport sys\nfrom kgpu.cli.main import main\nsys.exit(main())\n")
    program.chmod(0o755)
    for name in LINKS:
        (folder / name).symlink_to("kgpu")
    return folder


@pytest.fixture
def folder() -> Iterator[Path]:
    # Unix socket names have at most 107 bytes, which pytest's own folders can exceed.
    with tempfile.TemporaryDirectory(prefix="kgpu") as name:
        yield Path(name)


@contextlib.asynccontextmanager
async def started(
    image: Path, row: Container, places: Mapping[str, str] | None = None
) -> AsyncIterator[asyncio.subprocess.Process]:
    """The container's process; ``places`` are variables of folders that a pod would have mounted."""
    program, *words = (*(row.command or (ENTRYPOINT,)), *row.args)
    env = {"PATH": f"{image}:{os.environ['PATH']}", "HOME": "/root", **row.env, **(places or {})}
    env |= {name: os.environ[name] for name in ("KGPU_RUN_DIR", "PYTHONPATH") if name in os.environ}
    process = await asyncio.create_subprocess_exec(
        str(image / Path(program).name), *words, env=env, stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.PIPE,
    )  # fmt: skip
    try:
        yield process
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await process.communicate()


async def ended(process: asyncio.subprocess.Process) -> tuple[int | None, str]:
    async with asyncio.timeout(300):
        _, told = await process.communicate()
    return process.returncode, told.decode()


async def said(process: asyncio.subprocess.Process, words: str) -> str:
    """The first line of its log that has the words."""
    assert process.stderr is not None
    async with asyncio.timeout(300):
        while line := await process.stderr.readline():
            if words in line.decode():
                return line.decode()
    raise AssertionError(f"it ended without saying {words!r}")


@pytest.mark.parametrize("row", PLUGINS, ids=named)
async def test_the_device_plugin_registers(image: Path, sim_root: MakeRoot, folder: Path, row: Container) -> None:
    root = sim_root("hgx-h100", gpus=2)
    places = {
        "DRIVER_ROOT_CTR_PATH": str(root), "KUBELET_SOCKET": str(folder / "plugins/kubelet.sock"),
        "CDI_DIR": str(folder / "cdi"), "STATE_DIR": str(folder / "state"),
    }  # fmt: skip
    async with FakeKubelet(folder / "plugins") as kubelet, started(image, row, places) as process:
        await kubelet.wait_for(lambda: kubelet.allocatable().get(GPU) == 2, seconds=300)
        process.send_signal(signal.SIGTERM)
        code, told = await ended(process)
        assert code == 0
        assert "Traceback" not in told


async def test_the_mps_control_daemon_serves(image: Path, sim_root: MakeRoot, folder: Path) -> None:
    root, mps = sim_root("hgx-h100", gpus=1), folder / "mps"
    config = folder / "config.yaml"
    config.write_text("sharing: {mps: {resources: [{name: nvidia.com/gpu, replicas: 2}]}}")
    places = {"DRIVER_ROOT_CTR_PATH": str(root), "CONFIG_FILE": str(config), "KGPU_MPS_FOLDER": str(mps)}
    async with started(image, MPS_MOUNTS, places) as process:
        assert (await ended(process))[0] == 0
    assert (mps / "shm").is_dir()
    async with started(image, MPS_DAEMON, places) as process:
        async with asyncio.timeout(300):
            while not (mps / ".ready").exists():
                assert process.returncode is None
                await asyncio.sleep(0.05)
        assert (mps / GPU / "pipe/control").is_socket()
        process.send_signal(signal.SIGTERM)
        code, told = await ended(process)
        assert code == 0
        assert "Traceback" not in told
    assert not (mps / GPU).exists()


@pytest.mark.parametrize("row", EXPORTERS, ids=named)
async def test_the_exporter_serves(image: Path, sim_root: MakeRoot, row: Container) -> None:
    async with started(image, row, {"DRIVER_ROOT_CTR_PATH": str(sim_root("dgx-h100", gpus=1))}) as process:
        line = await said(process, "serving at ")
        host, port = line.split("serving at ")[1].strip().removeprefix("http://").partition("/")[0].split(":")
        async with asyncio.timeout(300):
            while "DCGM_FI_DEV_GPU_TEMP{" not in (page := await get(host, int(port))):  # noqa: ASYNC110 - its readings
                await asyncio.sleep(0.05)
        assert f'hostname="{row.env.get("NODE_NAME") or socket.gethostname()}"' in page


async def get(host: str, port: int) -> str:
    reader, writer = await asyncio.open_connection(host, port)
    writer.write(b"GET /metrics HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
    page = await reader.read()
    writer.close()
    return page.decode()


@pytest.mark.parametrize("row", DISCOVERIES, ids=named)
async def test_feature_discovery_writes_its_file(
    image: Path, sim_root: MakeRoot, tmp_path: Path, row: Container
) -> None:
    root, file = sim_root("t4"), tmp_path / "gfd"
    words = tuple(word.replace("FILE", str(file)).replace("ROOT", str(root)) for word in row.args)
    places = {} if "FILE" in " ".join(row.args) else {"GFD_OUTPUT_FILE": str(file)}
    if "ROOT" not in " ".join(row.args):
        places["DRIVER_ROOT_CTR_PATH"] = str(root)
    async with started(image, Container(row.source, row.command, words, row.env), places) as process:
        if any("oneshot" in word for word in words):
            code, told = await ended(process)
            assert (code, "Traceback" in told) == (0, False)
        else:
            await said(process, "labels written to")
        assert "nvidia.com/gpu.family=turing" in file.read_text()


@pytest.mark.parametrize("row", REFUSED, ids=named)
async def test_what_is_not_there_ends_at_once_with_the_reason(image: Path, row: tuple[Container, str]) -> None:
    container, words = row
    async with started(image, container) as process:
        code, told = await ended(process)
    assert code == 2
    first, expected, remedy, *more = told.rstrip("\n").split("\n")
    assert words in first
    assert (expected.startswith("  expected: "), remedy.startswith("  to do: "), more) == (True, True, [])


class ApiServer:
    """As much of an API server as a program needs that follows one Node: its label can be changed."""

    def __init__(self) -> None:
        self.version, self.value, self.closing = 1, "", False
        self._serving: set[asyncio.Task[None]] = set()

    def label(self, value: str) -> None:
        self.version, self.value = self.version + 1, value

    def _node(self) -> dict[str, Any]:
        labels = {DEVICE_PLUGIN_CONFIG_LABEL: self.value} if self.value else {}
        return {
            "apiVersion": "v1", "kind": "Node",
            "metadata": {"name": NODE, "resourceVersion": str(self.version), "labels": labels},
        }  # fmt: skip

    @contextlib.asynccontextmanager
    async def running(self, folder: Path) -> AsyncIterator[str]:
        """Yields the kubeconfig's path."""
        server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        address = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        config = {
            "apiVersion": "v1", "kind": "Config", "current-context": "c",
            "clusters": [{"name": "k", "cluster": {"server": address}}],
            "contexts": [{"name": "c", "context": {"cluster": "k", "user": "u"}}],
            "users": [{"name": "u", "user": {"token": "t"}}],
        }  # fmt: skip
        path = folder / "kubeconfig"
        path.write_text(json.dumps(config))
        try:
            yield str(path)
        finally:
            self.closing = True
            server.close()
            await server.wait_closed()
            # Who still waits has its answer; a connection that outlived the test would fail whichever comes next.
            await asyncio.sleep(0)
            for task in self._serving:
                task.cancel()
            await asyncio.gather(*self._serving, return_exceptions=True)

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.create_task(self._serve(reader, writer))
        self._serving.add(task)
        task.add_done_callback(self._serving.discard)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await self._answer(reader, writer)
        finally:
            writer.close()

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            head = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")[0]
            if "watch=" in head:
                seen = int(re.search(r"resourceVersion=(\d+)", head)[1])  # type: ignore[index]
                writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nConnection: close\r\n\r\n")
                await writer.drain()
                while seen == self.version and not self.closing:  # noqa: ASYNC110 - the test changes it
                    await asyncio.sleep(0.02)
                text = json.dumps({"type": "MODIFIED", "object": self._node()}) + "\n"
                writer.write(text.encode())
            else:
                items = {"kind": "NodeList", "apiVersion": "v1", "items": [self._node()],
                         "metadata": {"resourceVersion": str(self.version)}}  # fmt: skip
                raw = json.dumps(items).encode()
                writer.write(
                    b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nConnection: close\r\n"
                    b"Content-Length: %d\r\n\r\n" % len(raw) + raw
                )
            await writer.drain()


async def test_the_chart_s_config_manager_beside_the_plugin(
    image: Path, sim_root: MakeRoot, folder: Path, tmp_path: Path
) -> None:
    """The whole pod: the init container, then sidecar and plugin, through a change of the label and of a text."""
    root, source, link = sim_root("hgx-h100", gpus=2), tmp_path / "available-configs", tmp_path / "config.yaml"
    source.mkdir()
    shared = "version: v1\nsharing: {timeSlicing: {resources: [{name: gpu, replicas: %d}]}}\n"
    (source / "default").write_text("version: v1\n")
    (source / "shared").write_text(shared % 4)
    api = ApiServer()
    async with api.running(tmp_path) as kubeconfig, FakeKubelet(folder / "plugins") as kubelet:
        # A name of the test's own: this machine may run a plugin of its own.
        plugin = f"plugin-{os.getpid()}"
        (image / plugin).symlink_to("kgpu")
        places = {"CONFIG_FILE_SRCDIR": str(source), "CONFIG_FILE_DST": str(link), "KUBECONFIG": kubeconfig}
        async with started(image, CONFIG_INIT, places) as process:
            assert (await ended(process))[0] == 0
        assert os.readlink(link) == str(source / "default")
        row = Container(PLUGIN_CHART, (plugin,), ("device-plugin", "run"), PLUGINS[1].env)
        mounts = {
            "DRIVER_ROOT_CTR_PATH": str(root), "KUBELET_SOCKET": str(folder / "plugins/kubelet.sock"),
            "CDI_DIR": str(folder / "cdi"), "STATE_DIR": str(folder / "state"), "CONFIG_FILE": str(link),
        }  # fmt: skip
        async with (
            started(image, row, mounts) as running,
            started(image, CONFIG_SIDECAR, {**places, "PROCESS_TO_SIGNAL": plugin}) as sidecar,
        ):
            await kubelet.wait_for(lambda: kubelet.allocatable().get(GPU) == 2, seconds=300)
            api.label("shared")
            told = await said(sidecar, "signal 1 was sent")
            assert f"({running.pid})" in told
            assert os.readlink(link) == str(source / "shared")
            await kubelet.wait_for(lambda: kubelet.allocatable().get(GPU) == 8, seconds=300)
            (source / "new").write_text(shared % 6)
            (source / "new").replace(source / "shared")
            await said(sidecar, "signal 1 was sent")
            await kubelet.wait_for(lambda: kubelet.allocatable().get(GPU) == 12, seconds=300)
            api.label("shard")
            assert 'names the configuration "shard"' in await said(sidecar, "shard")
            assert os.readlink(link) == str(source / "shared"), "what names nothing changes nothing"
            for process in (sidecar, running):
                process.send_signal(signal.SIGTERM)
                assert (await ended(process))[0] == 0
