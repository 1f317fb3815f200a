"""The NRI plugin with a real containerd: who gets GPUs, who is refused with which words, what is cut away."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import msgspec
import pytest

from kgpu.base.advice import Advice
from kgpu.base.errors import KubeletError, LabError, Reason, line_of
from kgpu.base.files import write_atomic
from kgpu.formats.cdi import ContainerEdits, SpecDevice, dump_spec, parse_spec
from kgpu.hw.open import open_reader
from kgpu.hw.simulator.create import create_root
from kgpu.kubelet.pod_resources import FakeHoldings, Holding
from kgpu.lab.progress import PlainProgress
from kgpu.lab.real import build, hosttools, images
from kgpu.toolkit.nri.config import nri_config
from kgpu.toolkit.nri.run import NriContext, run
from tests.toolkit.real import glibc, rootfs
from tests.toolkit.real.conftest import PROGRAMS, Node, unavailable
from tests.toolkit.real.pods import Cri, NriEngine
from tests.toolkit.real.rootfs import DEBIAN

ANNOTATION = "nvidia.cdi.k8s.io"
GPUS = 4
SETTLE_S = 180.0


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory, probe: bytes) -> Iterator[Node]:
    """containerd with CRI and NRI, images, and specs of four simulated GPUs."""
    progress = PlainProgress()
    folder = tmp_path_factory.mktemp("nri")
    try:
        hosttools.require_platform()
        hosttools.ensure_host_tools(progress)
        bin_dir = build.ensure_binaries(progress, only=PROGRAMS)
        pause = images.pause_image(images.compile_pause(folder))
        archive = images.oci_archive(
            pause, *rootfs.debian_images(glibc.of_machine(), probe), architecture=images.architecture()
        )
    except LabError as error:
        unavailable(error.one_line())
    engine = NriEngine(folder, bin_dir)
    try:
        engine.start()
        write_atomic(folder / "images.tar", archive)
        engine.load(folder / "images.tar")
        node = Node(engine, create_root("hgx-h100", folder / "driver", gpus=GPUS))
        spec = parse_spec(node.generate().read_bytes())
        every = next(device for device in spec.devices if device.name == "all")
        management = msgspec.structs.replace(spec, kind="management.nvidia.com/gpu", devices=(every,))
        write_atomic(engine.specs / "management.json", dump_spec(management, "json"))
        yield node
    finally:
        engine.stop()


@dataclass
class Plugin:
    """The plugin at work, and what it can be told."""

    cri: Cri
    uuids: list[str]
    holdings: FakeHoldings = field(default_factory=FakeHoldings)
    states: list[tuple[bool, str]] = field(default_factory=list)
    changed: asyncio.Event = field(default_factory=asyncio.Event)
    advice: list[Advice] = field(default_factory=list)

    async def ready(self, count: int = 1) -> None:
        """Wait until the runtime has taken the plugin ``count`` times."""
        async with asyncio.timeout(SETTLE_S):
            while sum(ready for ready, _ in self.states) < count:
                self.changed.clear()
                await self.changed.wait()

    def on_state(self, ready: bool, reason: Reason) -> None:
        self.states.append((ready, line_of(reason)))
        self.changed.set()

    def held(self, *uuids: str, pod: str, namespace: str = "user") -> None:
        self.holdings.now = (
            Holding(namespace=namespace, pod=pod, container="main", resource="nvidia.com/gpu", devices=uuids),
        )


@pytest.fixture
async def plugin(site: Node) -> AsyncIterator[Plugin]:
    engine = site.engine
    assert isinstance(engine, NriEngine)
    reader = open_reader(driver_root=site.root)
    uuids = [gpu.uuid for gpu in (await reader.inventory()).accelerators]
    found = Plugin(Cri(engine), uuids)
    context = NriContext(
        config=nri_config(namespace="gpu-operator", allowed="ml", socket=str(engine.nri)),
        reader=reader,
        holdings=found.holdings,
        report=found.advice.append,
        cdi_dirs=(engine.specs,),
        on_state=found.on_state,
    )
    task = asyncio.create_task(run(context))
    try:
        await found.ready()
        yield found
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task
        await reader.close()


async def seen(box) -> list[str]:
    """The UUIDs that nvidia-smi lists in a container; none where it is not there."""
    code, out = await box.run("nvidia-smi -L")
    if code == 127:
        assert "not found" in out
        return []
    assert code == 0, out
    return [line.split("UUID: ")[1].rstrip(")") for line in out.splitlines()]


async def test_it_knows_the_runtime(plugin: Plugin) -> None:
    assert plugin.states[-1][0]
    assert "containerd v2." in plugin.states[-1][1]


async def test_an_annotation_in_an_allowed_namespace(plugin: Plugin) -> None:
    wish = {f"{ANNOTATION}/container.main": "nvidia.com/gpu=1"}
    async with plugin.cri.box(DEBIAN, namespace="ml", annotations=wish, env={"NVIDIA_VISIBLE_DEVICES": "void"}) as box:
        assert await seen(box) == [plugin.uuids[1]]
        assert await box.lines("ls /dev | grep '^nvidia[0-9]'") == ["nvidia1"]


async def test_a_variable_in_an_allowed_namespace(plugin: Plugin) -> None:
    async with plugin.cri.box(DEBIAN, namespace="ml", env={"NVIDIA_VISIBLE_DEVICES": f"0,{plugin.uuids[2]}"}) as box:
        assert sorted(await seen(box)) == sorted([plugin.uuids[0], plugin.uuids[2]])


async def test_an_image_that_wants_all_gets_nothing_elsewhere(plugin: Plugin) -> None:
    async with plugin.cri.box(DEBIAN) as box:  # the image says NVIDIA_VISIBLE_DEVICES=all
        assert await seen(box) == []
        assert await box.run("ls /dev | grep nvidia") == (1, "")
    assert any("must request them as a resource" in advice.why for advice in plugin.advice)


@pytest.mark.parametrize("device", ["nvidia.com/gpu=all", "nvidia.com/gpu=0", "management.nvidia.com/gpu=all"])
async def test_an_annotation_elsewhere_is_refused_in_words_that_reach_the_pod(plugin: Plugin, device: str) -> None:
    with pytest.raises(KubeletError) as refused:
        async with plugin.cri.box(DEBIAN, annotations={ANNOTATION: device}):
            pass
    assert f"asks for {device}, which pods of namespace user may not have" in str(refused.value)
    assert "request nvidia.com/gpu" in str(refused.value)


async def test_never_a_gpu_that_the_kubelet_gave_to_others(plugin: Plugin) -> None:
    plugin.held(plugin.uuids[0], pod="theirs")
    for wish in ("0", plugin.uuids[0], "nvidia.com/gpu=0"):
        with pytest.raises(KubeletError, match="user/theirs"):
            async with plugin.cri.box(DEBIAN, namespace="ml", env={"NVIDIA_VISIBLE_DEVICES": wish}):
                pass
    async with plugin.cri.box(DEBIAN, namespace="ml", env={"NVIDIA_VISIBLE_DEVICES": "all"}) as box:
        assert sorted(await seen(box)) == sorted(plugin.uuids[1:])


async def test_the_pods_own_gpu_by_variable(plugin: Plugin) -> None:
    plugin.held(plugin.uuids[3], pod="mine")
    async with plugin.cri.box(DEBIAN, pod="mine", env={"NVIDIA_VISIBLE_DEVICES": plugin.uuids[3]}) as box:
        assert await seen(box) == [plugin.uuids[3]]


async def test_management_devices_in_the_operators_namespace(plugin: Plugin) -> None:
    plugin.held(*plugin.uuids, pod="theirs")
    wish = {f"{ANNOTATION}/pod": "management.nvidia.com/gpu=all"}
    async with plugin.cri.box(DEBIAN, namespace="gpu-operator", annotations=wish) as box:
        assert sorted(await seen(box)) == sorted(plugin.uuids)


async def test_capabilities_on_the_kubelets_way(plugin: Plugin) -> None:
    only = {"NVIDIA_DRIVER_CAPABILITIES": "utility"}
    async with plugin.cri.box(DEBIAN, env=only, cdi=["nvidia.com/gpu=0"]) as box:
        assert await seen(box) == [plugin.uuids[0]]
        assert await box.run("cat /proc/self/mountinfo | grep libcuda") == (1, "")
        assert await box.lines("cat /proc/self/mountinfo | grep -c libnvidia-ml") != ["0"]
    async with plugin.cri.box(DEBIAN, cdi=["nvidia.com/gpu=0"]) as box:
        assert await box.lines("cat /proc/self/mountinfo | grep -c libcuda") != ["0"]


async def test_capabilities_on_the_plugins_way(plugin: Plugin) -> None:
    only = {"NVIDIA_DRIVER_CAPABILITIES": "utility", "NVIDIA_VISIBLE_DEVICES": "2"}
    async with plugin.cri.box(DEBIAN, namespace="ml", env=only) as box:
        assert await seen(box) == [plugin.uuids[2]]
        assert await box.run("cat /proc/self/mountinfo | grep libcuda") == (1, "")


@pytest.mark.parametrize("way", ["kubelet", "plugin"])
async def test_a_requirement_that_is_not_met(plugin: Plugin, way: str) -> None:
    need = {"NVIDIA_REQUIRE_CUDA": "cuda>=99.0"}
    more = {"cdi": ["nvidia.com/gpu=0"]} if way == "kubelet" else {"namespace": "ml"}
    with pytest.raises(KubeletError, match=r'NVIDIA_REQUIRE_CUDA "cuda>=99\.0" is not met here'):
        async with plugin.cri.box(DEBIAN, env=need, **more):
            pass
    async with plugin.cri.box(DEBIAN, env={**need, "NVIDIA_DISABLE_REQUIRE": "true"}, **more) as box:
        assert plugin.uuids[0] in await seen(box)


async def test_a_long_answer(plugin: Plugin, site: Node) -> None:
    """Adjustments longer than the runtime's read buffer of 4096 bytes, which it takes in two frames."""
    spec = parse_spec((site.engine.specs / "nvidia.yaml").read_bytes())
    data = site.engine.folder / "some-library"
    data.write_bytes(b"x")
    mounts = tuple(
        msgspec.structs.replace(
            spec.container_edits.mounts[0], host_path=str(data), container_path=f"/usr/lib64/libnvcuvid.so.{number}"
        )
        for number in range(1, 400)
    )
    first = next(device for device in spec.devices if device.name == "0")
    device = SpecDevice(name="long", container_edits=msgspec.structs.replace(first.container_edits, mounts=mounts))
    long = msgspec.structs.replace(spec, kind="nvidia.com/long", devices=(device,), container_edits=ContainerEdits())
    path = site.engine.specs / "long.json"
    write_atomic(path, dump_spec(long, "json"))
    try:
        wish = {ANNOTATION: "nvidia.com/long=long"}
        for capabilities, count in (("utility", 0), ("video", 399)):
            env = {"NVIDIA_DRIVER_CAPABILITIES": capabilities}
            async with plugin.cri.box(DEBIAN, namespace="ml", annotations=wish, env=env) as box:
                code, out = await box.run("grep -c libnvcuvid /proc/self/mountinfo")
                assert (code, out.strip()) == (0 if count else 1, str(count))
    finally:
        path.unlink()


async def test_a_runtime_that_is_killed_and_comes_back(plugin: Plugin, site: Node) -> None:
    before = sum(ready for ready, _ in plugin.states)
    wish = {ANNOTATION: "nvidia.com/gpu=0"}
    async with plugin.cri.box(DEBIAN, namespace="ml", annotations=wish) as box:
        assert isinstance(site.engine, NriEngine)
        await asyncio.to_thread(site.engine.restart)
        await plugin.ready(before + 1)
        assert await seen(box) == [plugin.uuids[0]]  # it was not touched
    async with plugin.cri.box(DEBIAN, namespace="ml", annotations=wish) as box:
        assert await seen(box) == [plugin.uuids[0]]


async def test_without_the_plugin_nobody_gets_anything(site: Node) -> None:
    assert isinstance(site.engine, NriEngine)
    cri = Cri(site.engine)
    async with cri.box(DEBIAN, namespace="ml", annotations={ANNOTATION: "nvidia.com/gpu=0"}) as box:
        assert await seen(box) == []


def test_the_specs_are_where_the_engine_reads_them(site: Node) -> None:
    assert {path.name for path in Path(site.engine.specs).iterdir()} >= {"nvidia.yaml", "management.json"}


async def test_two_plugins_at_a_time_do_no_harm(plugin: Plugin, site: Node) -> None:
    """As while an agent is replaced: the runtime refuses what two want at once (the kubelet tries again), no more."""
    second = Plugin(plugin.cri, plugin.uuids)
    assert isinstance(site.engine, NriEngine)
    context = NriContext(
        config=nri_config(namespace="gpu-operator", allowed="ml", socket=str(site.engine.nri)),
        holdings=second.holdings,
        report=second.advice.append,
        cdi_dirs=(site.engine.specs,),
        on_state=second.on_state,
    )
    wish = {ANNOTATION: "nvidia.com/gpu=0"}
    task = asyncio.create_task(run(context))
    try:
        await second.ready()
        with pytest.raises(KubeletError, match="both tried to set CDI device"):
            async with plugin.cri.box(DEBIAN, namespace="ml", annotations=wish):
                pass
        async with plugin.cri.box(DEBIAN, namespace="user") as box:
            assert await seen(box) == []
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task
    async with plugin.cri.box(DEBIAN, namespace="ml", annotations=wish) as box:
        assert await seen(box) == [plugin.uuids[0]]
