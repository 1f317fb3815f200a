"""gRPC over unix sockets: atomic sockets, stale files, refusals, methods that are not offered."""

from __future__ import annotations

import asyncio
import os
import socket
from pathlib import Path
from typing import Any

import pytest

from kgpu.base.errors import KubeletError, UserError
from kgpu.kubelet.methods import ALLOCATE, DEVICE_PLUGIN, GET_OPTIONS, LIST_AND_WATCH, REGISTER
from kgpu.kubelet.pb import deviceplugin_v1beta1_pb2 as dp
from kgpu.kubelet.rpc import RpcClient, RpcError, RpcServer, Service


async def options(_request: Any) -> Any:
    return dp.DevicePluginOptions(pre_start_required=True)


def server(path: Path, **answers: Any) -> RpcServer:
    return RpcServer(path, [Service(DEVICE_PLUGIN, {"GetDevicePluginOptions": options, **answers})])


async def ask(path: Path) -> Any:
    async with RpcClient(path) as client:
        return await client.call(GET_OPTIONS, dp.Empty(), timeout=60)


async def test_an_answer(folder: Path) -> None:
    one = server(folder / "s")
    await one.start()
    assert (await ask(folder / "s")).pre_start_required
    assert os.listdir(folder) == ["s"]
    await one.close()
    assert os.listdir(folder) == []


async def test_methods_without_an_answer_are_unimplemented(folder: Path) -> None:
    one = server(folder / "s")
    await one.start()
    async with RpcClient(folder / "s") as client:
        for method, request in ((ALLOCATE, dp.AllocateRequest()), (REGISTER, dp.RegisterRequest())):
            with pytest.raises(RpcError) as refused:
                await client.call(method, request, timeout=60)
            assert refused.value.status == "UNIMPLEMENTED"
        with pytest.raises(RpcError):
            await anext(client.stream(LIST_AND_WATCH, dp.Empty()))
        # The line is still good.
        assert (await client.call(GET_OPTIONS, dp.Empty(), timeout=60)).pre_start_required
    await one.close()


async def test_a_user_error_is_told_and_anything_else_is_not(folder: Path) -> None:
    async def refuse(request: Any) -> Any:
        if request.container_requests:
            raise UserError("what failed", "what was expected", "what to do")
        raise RuntimeError("secret")

    one = server(folder / "s", Allocate=refuse)
    await one.start()
    async with RpcClient(folder / "s") as client:
        request = dp.AllocateRequest(container_requests=[dp.ContainerAllocateRequest()])
        with pytest.raises(RpcError) as refused:
            await client.call(ALLOCATE, request, timeout=60)
        assert refused.value.message == "what failed; expected what was expected; to do: what to do"
        with pytest.raises(RpcError) as broken:
            await client.call(ALLOCATE, dp.AllocateRequest(), timeout=60)
        assert "secret" not in str(broken.value)
    await one.close()


async def test_a_stale_socket_is_replaced_and_a_newer_one_is_left_alone(folder: Path) -> None:
    path = folder / "s"
    with socket.socket(socket.AF_UNIX) as stale:
        stale.bind(str(path))
    old, new = server(path), server(path)
    await old.start()
    assert old.exists
    await new.start()
    assert not old.exists
    await old.close()
    assert new.exists
    assert await ask(path)
    path.unlink()
    assert not new.exists
    await new.close()


async def test_closing_hangs_up_on_clients(folder: Path) -> None:
    async def never(_request: Any) -> Any:
        yield dp.ListAndWatchResponse()
        await asyncio.Event().wait()

    one = server(folder / "s", ListAndWatch=never)
    await one.start()
    ended = asyncio.Event()

    async def follow() -> None:
        async with RpcClient(folder / "s") as client:
            try:
                async for _ in client.stream(LIST_AND_WATCH, dp.Empty()):
                    opened.set()
            except KubeletError:
                ended.set()

    opened = asyncio.Event()
    task = asyncio.create_task(follow())
    async with asyncio.timeout(60):
        await opened.wait()
        await one.close()
        await ended.wait()
    await task


@pytest.mark.parametrize("there", ["nothing", "file", "closed"])
async def test_nobody_listening_is_a_three_part_error(folder: Path, there: str) -> None:
    path = folder / "s"
    if there == "file":
        path.touch()
    if there == "closed":
        with socket.socket(socket.AF_UNIX) as stale:
            stale.bind(str(path))
    with pytest.raises(KubeletError) as refused:
        await ask(path)
    assert str(path) in refused.value.what
    assert refused.value.remedy


async def test_a_line_that_is_lost_between_connecting_and_its_first_use_is_told(folder: Path) -> None:
    one = server(folder / "s")
    await one.start()
    async with RpcClient(folder / "s") as client:
        protocol = await client._channel.__connect__()
        protocol.processor.connection.close()
        with pytest.raises(KubeletError, match="failed: the connection was lost"):
            await client.call(GET_OPTIONS, dp.Empty(), timeout=5)
        while client._channel._connected:  # noqa: ASYNC110 - it gets to know in a turn of the loop
            await asyncio.sleep(0)
        assert (await client.call(GET_OPTIONS, dp.Empty(), timeout=60)).pre_start_required
    await one.close()


async def test_a_silent_server_meets_the_deadline(folder: Path) -> None:
    async def silent(_request: Any) -> Any:
        await asyncio.Event().wait()

    one = server(folder / "s", GetDevicePluginOptions=silent)
    await one.start()
    async with RpcClient(folder / "s") as client:
        with pytest.raises(KubeletError):
            await client.call(GET_OPTIONS, dp.Empty(), timeout=0.05)
    await one.close()


@pytest.mark.parametrize("name", ["x" * 120, "missing/s"])
async def test_impossible_sockets_are_three_part_errors(folder: Path, name: str) -> None:
    with pytest.raises(KubeletError) as refused:
        await server(folder / name).start()
    assert refused.value.remedy


def test_an_answer_for_no_method_is_a_mistake() -> None:
    with pytest.raises(ValueError, match="AllocateAll"):
        Service(DEVICE_PLUGIN, {"AllocateAll": options})
