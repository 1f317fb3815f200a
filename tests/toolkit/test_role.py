"""The role: the spec follows the hardware, and stays when the driver can't be read."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
from pathlib import Path

import pytest

from kgpu.base.advice import Advice
from kgpu.base.errors import HwError, line_of
from kgpu.formats.cdi import CdiDevice, CdiDeviceNode, build_spec, dump_spec, parse_spec
from kgpu.host.root import DriverRoot
from kgpu.hw.fake_reader import FakeReader, sample_inventory
from kgpu.hw.open import open_reader
from kgpu.hw.simulator import operate
from kgpu.toolkit.role import SPEC_NAME, ToolkitContext, run

pytestmark = pytest.mark.usefixtures("nothing_flushed_on_the_loop")
SECONDS = 60.0


class Running:
    """The role over a simulated root."""

    def __init__(self, reader, root: Path, cdi: Path) -> None:
        self.spec = cdi / SPEC_NAME
        self.told: list[Advice] = []
        self.states: list[tuple[bool, str]] = []
        self.context = ToolkitContext(
            reader=reader,
            root=DriverRoot.at(root),
            report=self.told.append,
            cdi_dir=cdi,
            on_state=lambda ready, reason: self.states.append((ready, line_of(reason))),
        )

    @contextlib.asynccontextmanager
    async def on(self):
        task = asyncio.create_task(run(self.context))
        try:
            yield self
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    def names(self) -> set[str]:
        return {device.name for device in parse_spec(self.spec.read_bytes()).devices} if self.spec.exists() else set()

    async def until(self, condition) -> None:
        async with asyncio.timeout(SECONDS):
            while not condition():  # noqa: ASYNC110 - a file gives no event here
                await asyncio.sleep(0.01)


@pytest.fixture
async def node(sim_root, tmp_path):
    root = sim_root("hgx-h100", gpus=2)
    reader = open_reader(driver_root=root)
    yield root, Running(reader, root, tmp_path / "cdi")
    await reader.close()


async def test_the_spec_names_every_gpu_and_follows_what_is_lost(node) -> None:
    root, toolkit = node
    uuids = [gpu["uuid"] for gpu in operate.snapshot(root)["gpus"]]
    async with toolkit.on():
        await toolkit.until(lambda: toolkit.names() == {"0", "1", *uuids, "all"})
        before = toolkit.spec.read_bytes()
        operate.inject(root, "lost", gpu=1)
        await toolkit.until(lambda: toolkit.spec.read_bytes() != before)
        toolkit.spec.unlink()
        await toolkit.until(lambda: toolkit.names())
    assert toolkit.states[-1] == (True, str(toolkit.spec))


async def test_a_driver_that_goes_leaves_the_spec(sim_root, tmp_path) -> None:
    root = sim_root("hgx-h100", gpus=1)
    version = operate.snapshot(root)["driver_version"]
    reader = FakeReader(sample_inventory(1, driver_version=version))
    toolkit = Running(reader, root, tmp_path / "cdi")
    async with toolkit.on():
        await toolkit.until(lambda: toolkit.states and toolkit.states[-1][0])
        reader.set_down(HwError("no driver", "a driver", "load it"))
        await toolkit.until(lambda: not toolkit.states[-1][0])
    assert toolkit.names()
    assert [one.reason for one in toolkit.told] == ["CdiNotWritten"]


async def test_a_folder_that_can_not_be_written_is_told(sim_root, tmp_path) -> None:
    root = sim_root("hgx-h100", gpus=1)
    version = operate.snapshot(root)["driver_version"]
    (tmp_path / "cdi").write_text("a file")
    toolkit = Running(FakeReader(sample_inventory(1, driver_version=version)), root, tmp_path / "cdi")
    async with toolkit.on():
        await toolkit.until(lambda: toolkit.told)
    assert "can't be written" in toolkit.told[0].what


def another(folder: Path) -> Path:
    """What a refresh service of another toolkit writes."""
    folder.mkdir(parents=True, exist_ok=True)
    spec = build_spec(
        kind="nvidia.com/gpu", devices=[CdiDevice(names=("0",), nodes=(CdiDeviceNode(path="/dev/nvidia0"),))]
    )
    (folder / "nvidia.yaml").write_text(dump_spec(spec, "yaml"))
    return folder / "nvidia.yaml"


async def test_no_second_spec_beside_one_of_another_program(sim_root, tmp_path) -> None:
    """The same name in two files of one folder is a name that no runtime resolves."""
    root = sim_root("hgx-h100", gpus=1)
    version = operate.snapshot(root)["driver_version"]
    other = another(tmp_path / "cdi")
    toolkit = Running(FakeReader(sample_inventory(1, driver_version=version)), root, tmp_path / "cdi")
    toolkit.context = dataclasses.replace(toolkit.context, remove=lambda path: path.unlink(missing_ok=True))
    async with toolkit.on():
        await toolkit.until(lambda: toolkit.states)
        assert toolkit.states[-1][0]
        assert str(other) in toolkit.states[-1][1]
        assert not toolkit.spec.exists()
        other.unlink()
        await toolkit.until(toolkit.spec.exists)
        another(tmp_path / "cdi")
        await toolkit.until(lambda: not toolkit.spec.exists())


async def test_what_manages_gpus_has_a_spec_of_every_node(sim_root, tmp_path) -> None:
    root = sim_root("hgx-h100", gpus=2)
    version = operate.snapshot(root)["driver_version"]
    toolkit = Running(FakeReader(sample_inventory(2, driver_version=version)), root, tmp_path / "cdi")
    toolkit.context = dataclasses.replace(toolkit.context, management=True)
    async with toolkit.on():
        await toolkit.until(lambda: toolkit.states)
    spec = parse_spec((tmp_path / "cdi" / "management.nvidia.com-gpu.json").read_bytes())
    assert spec.kind == "management.nvidia.com/gpu"
    assert [device.name for device in spec.devices] == ["all"]
    assert len(spec.devices[0].container_edits.device_nodes) > 2


async def test_a_daemon_that_begins_while_the_spec_is_written_is_in_the_next(sim_root, tmp_path) -> None:
    root = sim_root("hgx-h100", gpus=1)
    version = operate.snapshot(root)["driver_version"]
    toolkit = Running(FakeReader(sample_inventory(1, driver_version=version)), root, tmp_path / "cdi")
    mps = root / "tmp/nvidia-mps"
    toolkit.context = dataclasses.replace(
        toolkit.context, on_write=lambda _path: mps.mkdir(parents=True, exist_ok=True)
    )
    async with toolkit.on():
        await toolkit.until(lambda: toolkit.spec.exists() and "/tmp/nvidia-mps" in toolkit.spec.read_text())


async def test_the_spec_follows_daemons_that_begin_and_end(sim_root, tmp_path) -> None:
    """A mount of a socket that has gone would keep every new container with a GPU from starting."""
    root = sim_root("hgx-h100", gpus=1)
    version = operate.snapshot(root)["driver_version"]
    toolkit = Running(FakeReader(sample_inventory(1, driver_version=version)), root, tmp_path / "cdi")
    socket = root / "run/nvidia-persistenced/socket"
    socket.unlink(missing_ok=True)

    def mounts() -> set[str]:
        edits = parse_spec(toolkit.spec.read_bytes()).container_edits if toolkit.spec.exists() else None
        return {mount.container_path for mount in edits.mounts} if edits is not None else set()

    async with toolkit.on():
        await toolkit.until(mounts)
        assert "/run/nvidia-persistenced/socket" not in mounts()
        socket.parent.mkdir(parents=True, exist_ok=True)
        socket.touch()
        await toolkit.until(lambda: "/run/nvidia-persistenced/socket" in mounts())
        for _ in range(2):
            socket.unlink()
            socket.parent.rmdir()
            await toolkit.until(lambda: "/run/nvidia-persistenced/socket" not in mounts())
            assert "persistenced" not in toolkit.spec.read_text(), (
                "an engine fails on any edit with a source that is gone"
            )
            socket.parent.mkdir()
            socket.touch()  # with another inode, as a daemon that starts again makes it
            await toolkit.until(lambda: "/run/nvidia-persistenced/socket" in mounts())
        mps = root / "tmp/nvidia-mps"
        mps.mkdir(parents=True)
        (root / "tmp").chmod(0o1777)
        await toolkit.until(lambda: "/tmp/nvidia-mps" in mounts())
        mps.rmdir()
        mps.symlink_to("/etc")  # what a local user could do once its maker took it away
        await toolkit.until(lambda: "/tmp/nvidia-mps" not in mounts())
