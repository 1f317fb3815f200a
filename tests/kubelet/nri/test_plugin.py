"""The plugin and the runtime's side, over a real socket: registering, asking, refusing, hanging up."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from kgpu.base.errors import HostError, KubeletError
from kgpu.kubelet.nri import wire
from kgpu.kubelet.nri.fake import FakeNriRuntime
from kgpu.kubelet.nri.model import ContainerAdjustment, NriContainer, NriMount, NriPod, RuntimeInfo
from kgpu.kubelet.nri.plugin import serve
from kgpu.kubelet.nri.session import (
    FAILED_PRECONDITION,
    INTERNAL,
    UNIMPLEMENTED,
    CallRefusedError,
    Session,
    TtrpcMethod,
)
from kgpu.kubelet.pb import nri_v1alpha1_pb2 as nri
from kgpu.kubelet.pb import ttrpc_pb2 as ttrpc

POD = NriPod(name="p", namespace="ns", uid="u", annotations={"a": "b"})
CONTAINER = NriContainer(
    name="c", id="1", env=("A=b",), mounts=(NriMount(destination="/d", source="/s"),), devices=("/dev/nvidia0",),
    cdi_devices=("nvidia.com/gpu=0",),
)  # fmt: skip


class Logic:
    """Writes down what it is told; answers with ``answer``."""

    def __init__(self) -> None:
        self.runtimes: list[RuntimeInfo] = []
        self.readied = 0
        self.asked: list[tuple[NriPod, NriContainer]] = []
        self.decline: Exception | None = None
        self.answer: Callable[[NriPod, NriContainer], ContainerAdjustment | None] = lambda _pod, _container: None

    def configured(self, runtime: RuntimeInfo) -> None:
        self.runtimes.append(runtime)
        if self.decline is not None:
            raise self.decline

    def ready(self) -> None:
        self.readied += 1

    async def create(self, pod: NriPod, container: NriContainer) -> ContainerAdjustment | None:
        self.asked.append((pod, container))
        return self.answer(pod, container)


@pytest.fixture
async def runtime(folder: Path) -> AsyncIterator[FakeNriRuntime]:
    found = FakeNriRuntime(folder / "nri.sock")
    await found.start()
    yield found
    await found.stop()


@contextlib.asynccontextmanager
async def plugin(
    runtime: FakeNriRuntime, logic: Logic, *, name: str = "one", index: int = 10
) -> AsyncIterator[asyncio.Task]:
    before = len(runtime.plugins)
    task = asyncio.create_task(serve(runtime.socket, logic, name=name, index=index))
    try:
        await runtime.has_plugins(before + 1)
        yield task
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError, KubeletError):
            await task


async def test_it_registers_and_is_told_of_the_runtime(runtime: FakeNriRuntime) -> None:
    logic = Logic()
    async with plugin(runtime, logic, name="mine", index=7):
        assert runtime.plugins == (("07", "mine"),)
        assert logic.runtimes == [runtime.info]
        assert logic.readied == 1


async def test_containers_pass_through_whole(runtime: FakeNriRuntime) -> None:
    logic = Logic()
    async with plugin(runtime, logic):
        assert await runtime.create(POD, CONTAINER) == (None,)
        assert logic.asked == [(POD, CONTAINER)]


async def test_adjustments_of_any_size(runtime: FakeNriRuntime) -> None:
    logic = Logic()
    big = ContainerAdjustment(
        cdi_devices=("nvidia.com/gpu=all",), without_mounts=tuple(f"/usr/lib/lib{n}.so" for n in range(3000))
    )
    async with plugin(runtime, logic):
        for wanted in (
            big,
            ContainerAdjustment(cdi_devices=("nvidia.com/gpu=0",)),
            ContainerAdjustment(without_mounts=("/a",)),
        ):
            logic.answer = lambda _pod, _container, wanted=wanted: wanted
            assert await runtime.create(POD, CONTAINER) == (wanted,)


async def test_a_refusal_carries_its_three_parts(runtime: FakeNriRuntime) -> None:
    logic = Logic()

    def refuse(_pod: NriPod, _container: NriContainer) -> None:
        raise HostError("it is taken", "a free one", "wait")

    async with plugin(runtime, logic):
        logic.answer = refuse
        with pytest.raises(CallRefusedError) as refused:
            await runtime.create(POD, CONTAINER)
        assert refused.value.code == FAILED_PRECONDITION
        assert refused.value.message == "it is taken; expected a free one; to do: wait"
        logic.answer = lambda _pod, _container: None
        assert await runtime.create(POD, CONTAINER) == (None,)


async def test_a_defect_does_not_end_the_connection(runtime: FakeNriRuntime) -> None:
    logic = Logic()
    async with plugin(runtime, logic):
        logic.answer = lambda _pod, _container: 1 / 0  # type: ignore[return-value]
        with pytest.raises(CallRefusedError) as refused:
            await runtime.create(POD, CONTAINER)
        assert refused.value.code == INTERNAL
        assert "division" not in refused.value.message
        logic.answer = lambda _pod, _container: None
        assert await runtime.create(POD, CONTAINER) == (None,)


async def test_it_leaves_a_runtime_that_it_can_not_serve(runtime: FakeNriRuntime) -> None:
    logic = Logic()
    logic.decline = HostError("too old", "a newer one", "update")
    with pytest.raises(HostError, match="too old"):
        await serve(runtime.socket, logic, name="one", index=10)
    assert runtime.plugins == ()
    assert logic.readied == 0


async def test_it_ends_when_the_runtime_hangs_up(runtime: FakeNriRuntime) -> None:
    logic = Logic()
    async with plugin(runtime, logic) as task:
        await runtime.hang_up()
        async with asyncio.timeout(60):
            await task
    assert runtime.plugins == ()


async def test_pods_in_pieces(folder: Path) -> None:
    runtime = FakeNriRuntime(folder / "nri.sock", pieces=3)
    await runtime.start()
    logic = Logic()
    async with plugin(runtime, logic):
        assert logic.readied == 1
    await runtime.stop()
    assert runtime.refusals == []


async def test_plugins_are_asked_in_the_order_of_their_index(runtime: FakeNriRuntime) -> None:
    first, second = Logic(), Logic()
    first.answer = lambda _pod, _container: ContainerAdjustment(cdi_devices=("a.b/c=1",))
    async with plugin(runtime, second, name="b", index=20), plugin(runtime, first, name="a", index=3):
        assert runtime.plugins == (("03", "a"), ("20", "b"))
        assert await runtime.create(POD, CONTAINER) == (ContainerAdjustment(cdi_devices=("a.b/c=1",)), None)


async def test_nobody_there(folder: Path) -> None:
    with pytest.raises(KubeletError, match="NRI"):
        await serve(folder / "none.sock", Logic(), name="one", index=10)
    with pytest.raises(KubeletError, match="NRI"):
        await serve(Path("/" + "x" * 200), Logic(), name="one", index=10)


@pytest.mark.parametrize("said", [b"", b"HTTP/1.1 400 Bad Request\r\n\r\n" * 3, bytes(64), b"\xff" * 40])
async def test_somebody_else_listens_there(folder: Path, said: bytes) -> None:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(1)
        writer.write(said)
        writer.close()

    server = await asyncio.start_unix_server(answer, str(folder / "s"))
    async with server:
        with pytest.raises(KubeletError):
            await serve(folder / "s", Logic(), name="one", index=10)


async def test_a_runtime_that_ends_before_it_configures(folder: Path) -> None:
    async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        async def registered(_request: nri.RegisterPluginRequest) -> nri.Empty:
            asyncio.get_running_loop().call_later(0.01, writer.close)
            return nri.Empty()

        answers = {TtrpcMethod(service="nri.pkg.api.v1alpha1.Runtime", name="RegisterPlugin",
                               request=nri.RegisterPluginRequest, reply=nri.Empty): registered}  # fmt: skip
        await Session(
            reader, writer, serves=wire.RUNTIME_CONNECTION, calls=wire.PLUGIN_CONNECTION, answers=answers
        ).run()

    server = await asyncio.start_unix_server(accept, str(folder / "s"))
    async with server:
        with pytest.raises(KubeletError, match="hung up"):
            await serve(folder / "s", Logic(), name="one", index=10)


async def test_unknown_methods_and_broken_requests_are_answered(runtime: FakeNriRuntime) -> None:
    logic = Logic()
    async with plugin(runtime, logic):
        session = runtime._plugins[0].session
        unknown = TtrpcMethod(service="nri.pkg.api.v1alpha1.Plugin", name="Dance", request=nri.Empty, reply=nri.Empty)
        with pytest.raises(CallRefusedError) as refused:
            await session.call(unknown, nri.Empty(), timeout=60)
        assert refused.value.code == UNIMPLEMENTED
        broken = TtrpcMethod(
            service="nri.pkg.api.v1alpha1.Plugin", name="CreateContainer", request=ttrpc.Request, reply=nri.Empty
        )
        with pytest.raises(CallRefusedError, match="can't be read"):
            await session.call(broken, _Raw(b"\x0a\xff"), timeout=60)
        assert await runtime.create(POD, CONTAINER) == (None,)


class _Raw:
    def __init__(self, data: bytes) -> None:
        self._data = data

    def SerializeToString(self) -> bytes:
        return self._data
