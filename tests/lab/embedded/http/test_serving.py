"""The network side in this process: a connection that never becomes TLS is closed."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from kgpu.lab.embedded import auth, server, tls
from kgpu.lab.embedded.http import serving


async def test_who_does_not_shake_hands_is_closed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(serving, "HANDSHAKE_S", 0.05)
    settings = server.ServerSettings(folder=tmp_path)
    auth.write_tokens(settings.tokens, [])
    pki = tls.ensure(tmp_path / "pki", hosts=())
    cluster = server.assemble(settings, 1, pki)
    https = serving.server(cluster.app, pki, descriptors=256, stop_s=1)
    with server.listen("127.0.0.1", 0) as listening:
        serves = asyncio.create_task(https.serve(sockets=[listening]))
        reader, writer = await asyncio.open_connection(*listening.getsockname())
        assert await asyncio.wait_for(reader.read(), 300) == b""
        writer.close()
        https.should_exit = True
        await serves
    await cluster.app.close()
    cluster.core.close()
